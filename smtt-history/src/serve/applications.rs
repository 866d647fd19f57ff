//! The list of applications: the folders of the store, newest first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use smtt_store::history::place;

use super::Refusal;
use super::routes::{Answer, Parameters, joined, known};
use crate::json::milliseconds;
use crate::live;
use crate::open::{exists, summary_up_to};

/// Applications of which a list reads the summary at most.
pub(crate) const LISTED: usize = 10_000;
/// Bytes of an application's documents in the list at most, and of those of all. One has less than a kilobyte, and its
/// name.
pub(crate) const TEXTS: (usize, usize) = (256 << 10, 32 << 20);

/// Where the applications' own documents are.
pub(crate) enum Listing {
    /// In the folders of a store.
    Folder(PathBuf),
    /// In memory: the documents that a bucket had when it was last listed.
    Texts(Arc<Vec<Arc<str>>>),
}

impl Listing {
    /// One document after the other; `None` for one of more than `most` bytes, one that cannot be read, or one of another
    /// application than its folder's name says.
    fn texts(&self, most: usize) -> Box<dyn Iterator<Item = Option<String>> + '_> {
        match self {
            Self::Folder(store) => Box::new(names(store).into_iter().filter_map(move |name| {
                let folder = store.join(&name);
                let text = if exists(&folder) {
                    match summary_up_to(&folder, most) {
                        Ok(text) => text?,
                        Err(_) => return Some(None),
                    }
                } else {
                    live::summary(&folder)?
                };
                Some((text.len() <= most && is_of(&text, &name)).then_some(text))
            })),
            Self::Texts(texts) => Box::new(texts.iter().map(move |text| {
                let fits = text.len() <= most;
                fits.then(|| text.to_string())
            })),
        }
    }
}

/// What says which documents are attempts of one application.
#[derive(Deserialize)]
struct Named {
    id: String,
}

/// Whether a document is of the application that a folder's name says: whoever makes a folder can write any document.
pub(crate) fn is_of(text: &str, name: &str) -> bool {
    #[derive(Deserialize)]
    struct Attempt {
        #[serde(rename = "attemptId")]
        id: Option<String>,
    }
    #[derive(Deserialize)]
    struct Own {
        id: String,
        #[serde(default)]
        attempts: Vec<Attempt>,
    }
    serde_json::from_str(text).is_ok_and(|own: Own| {
        let attempt = own.attempts.first().and_then(|it| it.id.as_deref());
        own.attempts.len() <= 1 && place::name(&own.id, attempt).as_deref() == Some(name)
    })
}

/// Documents of all applications as text, by their ids: as values they would take many times their bytes.
fn by_id(listing: &Listing, (most, most_of_all): (usize, usize)) -> BTreeMap<String, Vec<String>> {
    let mut by_id: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut bytes, mut left_out) = (0, 0_u64);
    for text in listing.texts(most) {
        let named = text.and_then(|text| {
            let Named { id } = serde_json::from_str(&text).ok()?;
            Some((id, text))
        });
        let Some((id, text)) = named.filter(|(_, text)| bytes + text.len() <= most_of_all) else {
            left_out += 1;
            continue;
        };
        let of_id = by_id.entry(id).or_default();
        if of_id.iter().map(String::len).sum::<usize>() + text.len() > most {
            left_out += 1;
            continue;
        }
        bytes += text.len();
        of_id.push(text);
    }
    if left_out > 0 {
        tracing::warn!(
            "the list is without {left_out} documents of applications: they are too large, cannot be read, or are not of their folder's application"
        );
    }
    by_id
}

/// The list, filtered as Spark filters it.
pub(crate) fn list(listing: &Listing, parameters: &Parameters) -> Answer {
    let all = listed(listing, parameters, TEXTS, |application| {
        application.to_string()
    })?;
    Ok(joined(all.iter().map(String::as_str)))
}

/// The list, of each application what `shown` makes of it: only one is there as a value at a time.
pub(crate) fn listed<T>(
    listing: &Listing,
    parameters: &Parameters,
    most: (usize, usize),
    shown: impl Fn(Value) -> T,
) -> Result<Vec<T>, Refusal> {
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
    let now = Timestamp::now().as_millisecond();
    let is_wanted = |application: &Value| {
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
    };
    let key = |application: &Value| {
        let attempt = &application["attempts"][0];
        (
            attempt["endTimeEpoch"].as_i64(),
            attempt["startTimeEpoch"].as_i64(),
        )
    };
    let mut all = Vec::new();
    for (_, texts) in by_id(listing, most) {
        let attempts = texts.iter().filter_map(|it| serde_json::from_str(it).ok());
        let application = merged(attempts.collect());
        if is_wanted(&application) {
            all.push((key(&application), shown(application)));
        }
    }
    all.sort_by_key(|(key, _)| Reverse(*key));
    all.truncate(limit);
    Ok(all.into_iter().map(|(_, shown)| shown).collect())
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

/// Names of applications' folders, the greatest first: ids begin with or end in their time. Of a folder with many more
/// names only those are held.
fn names(store: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(store) else {
        return Vec::new();
    };
    let names = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| place::is_safe(name));
    let (mut greatest, mut left_out) = (BinaryHeap::new(), 0_u64);
    for name in names {
        greatest.push(Reverse(name));
        if greatest.len() > LISTED {
            greatest.pop();
            left_out += 1;
        }
    }
    if left_out > 0 {
        tracing::warn!(left_out, "the list of applications is cut");
    }
    let sorted = greatest.into_sorted_vec();
    sorted.into_iter().map(|Reverse(name)| name).collect()
}

#[cfg(test)]
mod tests {
    use smtt_store::history::batch::{Batch, Cell};
    use smtt_store::history::columns::META;
    use smtt_store::history::write::Writer;

    use super::*;

    /// A store with an application whose document has about so many bytes.
    fn add(store: &Path, name: &str, id: &str, start: i64, bytes: usize) {
        let folder = store.join(name);
        fs::create_dir(&folder).expect("makes a folder");
        let mut attempt = serde_json::json!({"completed": true, "startTimeEpoch": start, "endTimeEpoch": start + 1});
        if let Some((_, number)) = name.split_once('_') {
            attempt["attemptId"] = number.into();
        }
        let json = serde_json::json!({"id": id, "name": "n".repeat(bytes), "attempts": [attempt]});
        let mut batch = Batch::new(&META);
        batch.push(&["application", "", &json.to_string()].map(Cell::Text));
        let mut writer = Writer::create(&META, &folder, "1", &[]).expect("creates");
        writer.write(&batch).expect("writes");
        writer.finish().expect("finishes");
    }

    fn ids(store: &Path, most: (usize, usize), parameters: &[(&str, &str)]) -> Vec<String> {
        let listing = Listing::Folder(store.to_owned());
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let parameters = Parameters(parameters.iter().map(own).collect());
        let id = |json: Value| {
            let attempts = json["attempts"].as_array().map_or(0, Vec::len);
            format!("{} {attempts}", json["id"].as_str().unwrap_or_default())
        };
        listed(&listing, &parameters, most, id).expect("lists")
    }

    #[test]
    fn the_list_of_a_folder_is_bounded_in_bytes() {
        let store = tempfile::tempdir().expect("makes a folder");
        for number in 1..6 {
            let id = format!("app-{number}");
            add(store.path(), &id, &id, number * 1000, 1000);
        }
        add(store.path(), "app-6", "app-6", 6000, 300_000);
        // Two attempts of one application.
        add(store.path(), "app-7_1", "app-7", 7000, 10);
        add(store.path(), "app-7_2", "app-7", 7500, 10);
        let all = [
            "app-7 2", "app-5 1", "app-4 1", "app-3 1", "app-2 1", "app-1 1",
        ];
        assert_eq!(ids(store.path(), TEXTS, &[]), all);
        // Of one application, and of all.
        assert_eq!(ids(store.path(), (2000, 3600), &[]), all[..4]);
        assert_eq!(ids(store.path(), (200, 3600), &[]), ["app-7 1"]);
        assert_eq!(ids(store.path(), TEXTS, &[("limit", "2")]), all[..2]);
        // Answers are the documents as they are.
        let listing = Listing::Folder(store.path().to_owned());
        let text = list(&listing, &Parameters(Vec::new())).expect("lists");
        let json: Vec<Value> = serde_json::from_str(&text).expect("is JSON");
        assert_eq!((json.len(), &json[1]["id"]), (6, &Value::from("app-5")));
    }

    #[test]
    fn a_folder_speaks_for_no_other_application() {
        let store = tempfile::tempdir().expect("makes a folder");
        add(store.path(), "app-1", "app-1", 1000, 10);
        add(store.path(), "app-2_1", "app-2", 2000, 10);
        for (folder, id) in [
            ("app-9", "app-1"),
            ("app-9_1", "app-2"),
            ("app-9_2", "app-2_1"),
            ("app-1_1", "app-1"),
        ] {
            add(store.path(), folder, id, 9000, 10);
        }
        // The last one is a second attempt of its own application.
        assert_eq!(ids(store.path(), TEXTS, &[]), ["app-1 2", "app-2 1"]);
        let own = |attempts: &str| format!(r#"{{"id":"app-1","attempts":{attempts}}}"#);
        assert!(is_of(&own("[]"), "app-1") && is_of(&own(r#"[{"attemptId":"1"}]"#), "app-1_1"));
        assert!(!is_of(&own("[{},{}]"), "app-1") && !is_of(&own("[]"), "app-1_1"));
        assert!(!is_of("{}", "app-1"));
    }

    #[test]
    fn the_greatest_names_of_many_are_listed() {
        let store = tempfile::tempdir().expect("makes a folder");
        let name = |number: usize| format!("app-{number:06}");
        for number in 0..LISTED + 3 {
            fs::write(store.path().join(name(number)), "").expect("writes");
        }
        let names = names(store.path());
        assert_eq!(names.len(), LISTED);
        assert_eq!(
            (&names[0], &names[LISTED - 1]),
            (&name(LISTED + 2), &name(3))
        );
    }
}
