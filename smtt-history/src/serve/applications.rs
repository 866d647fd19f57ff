//! The list of applications: the folders of the store, newest first.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use smtt_store::history::place;

use super::Refusal;
use super::routes::{Answer, Parameters, known};
use crate::json::milliseconds;
use crate::live;
use crate::open::summary;

/// Applications of which a list reads the summary at most.
pub(crate) const LISTED: usize = 10_000;

/// Where the applications' own documents are.
pub(crate) enum Listing {
    /// In the folders of a store.
    Folder(PathBuf),
    /// Here.
    Texts(Arc<Vec<Arc<str>>>),
}

impl Listing {
    fn texts(&self) -> Box<dyn Iterator<Item = String> + '_> {
        match self {
            Self::Folder(store) => Box::new(names(store).into_iter().filter_map(|name| {
                let folder = store.join(&name);
                let text = summary(&folder).ok().flatten();
                text.or_else(|| live::summary(&folder))
            })),
            Self::Texts(texts) => Box::new(texts.iter().map(|text| text.to_string())),
        }
    }
}

/// The list, filtered as Spark filters it.
pub(crate) fn list(listing: &Listing, parameters: &Parameters) -> Answer {
    let limit = usize::try_from(parameters.number("limit", i64::MAX)?).unwrap_or(0);
    let wanted = known(parameters, "status", &["COMPLETED", "RUNNING"])?;
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
    for text in listing.texts() {
        let Ok(json) = serde_json::from_str::<Value>(&text) else {
            continue;
        };
        let id = json["id"].as_str().unwrap_or_default().to_owned();
        by_id.entry(id).or_default().push(json);
    }
    let mut all: Vec<Value> = by_id.into_values().map(merged).collect();
    let now = Timestamp::now().as_millisecond();
    all.retain(|application| {
        // The newest attempt, which is the first, says whether the application runs.
        let is_running = application["attempts"][0]["completed"] == false;
        let status = if is_running { "RUNNING" } else { "COMPLETED" };
        if !wanted.is_empty() && !wanted.contains(&status) {
            return false;
        }
        let attempts = application["attempts"].as_array().into_iter().flatten();
        attempts.into_iter().any(|attempt| {
            let time = |name: &str| attempt[name].as_i64().unwrap_or_default();
            let within = |(min, max): (Option<i64>, Option<i64>), time: i64| {
                min.is_none_or(|min| time >= min) && max.is_none_or(|max| time <= max)
            };
            let ends_within = if is_running {
                // Spark: an application that runs ends after every date that has passed.
                ends.1.is_none_or(|max| max > now)
            } else {
                within(ends, time("endTimeEpoch"))
            };
            within(starts, time("startTimeEpoch")) && ends_within
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
pub(crate) fn merged(attempts: Vec<Value>) -> Value {
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
    if names.len() > LISTED {
        let left_out = names.len() - LISTED;
        tracing::warn!(left_out, "the list of applications is cut");
    }
    names.truncate(LISTED);
    names
}
