//! The list of applications: the folders of the store, newest first.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use serde_json::Value;
use smtt_store::history::place;

use super::Refusal;
use super::routes::{Answer, Parameters};
use crate::open::summary;

/// Applications of which a list reads the summary at most.
const LISTED: usize = 10_000;

/// The list, filtered as Spark filters it.
pub(super) fn list(store: &Path, parameters: &Parameters) -> Answer {
    let limit = usize::try_from(parameters.number("limit", i64::MAX)?).unwrap_or(0);
    let wanted: Vec<&str> = parameters.all("status").collect();
    let dates = ["minDate", "maxDate", "minEndDate", "maxEndDate"].map(|name| {
        parameters.one(name).map_or(Ok(None), |text| {
            milliseconds(text)
                .map(Some)
                .ok_or_else(|| Refusal::bad(format!("{name}: couldn't parse date: {text}")))
        })
    });
    let [min_start, max_start, min_end, max_end] = dates;
    let (starts, ends) = ((min_start?, max_start?), (min_end?, max_end?));
    let mut by_id: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for name in names(store) {
        let Ok(Some(text)) = summary(&store.join(&name)) else {
            continue;
        };
        let Ok(json) = serde_json::from_str::<Value>(&text) else {
            continue;
        };
        let id = json["id"].as_str().unwrap_or_default().to_owned();
        by_id.entry(id).or_default().push(json);
    }
    let mut all: Vec<Value> = by_id.into_values().map(merged).collect();
    all.retain(|application| {
        let attempts = application["attempts"].as_array().into_iter().flatten();
        attempts.into_iter().any(|attempt| {
            let is_running = attempt["completed"] == false;
            let status = if is_running { "running" } else { "completed" };
            let time = |name: &str| attempt[name].as_i64().unwrap_or_default();
            let within = |(min, max): (Option<i64>, Option<i64>), time: i64| {
                min.is_none_or(|min| time >= min) && max.is_none_or(|max| time <= max)
            };
            let ends_within = if is_running {
                // Spark: an application that runs ends after every date.
                ends.1.is_none()
            } else {
                within(ends, time("endTimeEpoch"))
            };
            (wanted.is_empty() || wanted.iter().any(|it| it.eq_ignore_ascii_case(status)))
                && within(starts, time("startTimeEpoch"))
                && ends_within
        })
    });
    let key = |application: &Value| {
        let attempt = &application["attempts"][0];
        (
            attempt["endTimeEpoch"].as_i64(),
            attempt["startTimeEpoch"].as_i64(),
        )
    };
    all.sort_by_key(|application| std::cmp::Reverse(key(application)));
    all.truncate(limit);
    Ok(Value::from(all).to_string())
}

/// One application from the documents of its attempts, which have folders of their own. The newest attempt is first.
pub(super) fn merged(attempts: Vec<Value>) -> Value {
    let mut documents = attempts.into_iter();
    let mut application = documents.next().unwrap_or_default();
    if let Some(all) = application["attempts"].as_array_mut() {
        for mut document in documents {
            if let Some(more) = document["attempts"].as_array_mut() {
                all.append(more);
            }
        }
        all.sort_by_key(|attempt| std::cmp::Reverse(attempt["startTimeEpoch"].as_i64()));
    }
    application
}

/// Names of applications' folders, the greatest first: ids begin with or end in their time.
fn names(store: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(store) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| place::is_safe(name))
        .collect();
    names.sort_unstable_by(|left, right| right.cmp(left));
    names.truncate(LISTED);
    names
}

/// A date as Spark's API takes it: `2026-11-23T02:50:47.265GMT` or `2026-11-23`.
fn milliseconds(text: &str) -> Option<i64> {
    let text = text.strip_suffix("GMT").unwrap_or(text);
    let time = text.parse::<DateTime>().ok().or_else(|| {
        Some(
            text.parse::<Date>()
                .ok()?
                .to_datetime(jiff::civil::Time::midnight()),
        )
    })?;
    let zoned = TimeZone::UTC.to_timestamp(time).ok()?;
    Some(zoned.as_millisecond())
}
