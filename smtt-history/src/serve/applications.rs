//! The list of applications: the folders of the store, those that ended last first.

use std::cmp::Reverse;
pub(crate) mod folder;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::Deserialize;
use serde_json::Value;
use smtt_store::history::place;

use super::Refusal;
use super::routes::{Answer, Parameters, joined, known};
use crate::json::milliseconds;

use folder::{Folder, Named};

/// Applications of which a list reads the summary at most.
pub(crate) const LISTED: usize = 10_000;
/// Bytes of an application's documents in the list at most, and of those of all. One has less than a kilobyte, and its
/// name.
pub(crate) const TEXTS: (usize, usize) = (256 << 10, 32 << 20);

/// How far a driver's clock may be ahead of the store's, in milliseconds.
const CLOCKS_MS: i64 = 60_000;

/// Where the applications' own documents are.
pub(crate) enum Listing {
    /// In the folders of a store.
    Folder(Arc<Folder>),
    /// In memory: the documents that a bucket had when it was last listed, and folders that the list had no room for.
    Texts(Arc<Vec<Arc<str>>>, u64),
}

impl Listing {
    /// Folders that are in no list, as of the last one: those that changed first, or in a bucket those whose names are the
    /// oldest. No filter finds them.
    pub(crate) fn left_out(&self) -> u64 {
        match self {
            Self::Folder(folder) => folder.left_out(),
            Self::Texts(_, left_out) => *left_out,
        }
    }
}

/// Whether a document is of the application that a folder's name states: the writer of a folder can write any document.
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

/// Documents of a bucket's applications as text, by their ids: as values they would take many times their bytes.
fn by_id(all: &[Arc<str>], (most, most_of_all): (usize, usize)) -> BTreeMap<String, Vec<Arc<str>>> {
    let mut by_id: BTreeMap<String, Vec<Arc<str>>> = BTreeMap::new();
    let (mut bytes, mut left_out) = (0, 0_u64);
    for text in all {
        let named = (text.len() <= most).then(|| serde_json::from_str(text).ok());
        let named = named
            .flatten()
            .filter(|_| bytes + text.len() <= most_of_all);
        let Some(Named { id }) = named else {
            left_out += 1;
            continue;
        };
        let of_id = by_id.entry(id).or_default();
        if of_id.iter().map(|it| it.len()).sum::<usize>() + text.len() > most {
            left_out += 1;
            continue;
        }
        bytes += text.len();
        of_id.push(Arc::clone(text));
    }
    warn(left_out);
    by_id
}

fn warn(left_out: u64) {
    if left_out > 0 {
        tracing::warn!(
            "the list is without {left_out} documents of applications: they are too large, cannot be read, or are not of their folder's application"
        );
    }
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
    let add = |texts: &[Arc<str>], all: &mut Vec<_>| {
        let attempts = texts.iter().filter_map(|it| serde_json::from_str(it).ok());
        let application = merged(attempts.collect());
        if is_wanted(&application) {
            all.push((key(&application), shown(application)));
        }
    };
    match listing {
        Listing::Texts(texts, _) => by_id(texts, most)
            .values()
            .for_each(|texts| add(texts, &mut all)),
        Listing::Folder(folder) => {
            let mut applications = folder.applications(most);
            while let Some(texts) = applications.next() {
                add(&texts, &mut all);
                if all.len() >= limit.max(1) {
                    all.sort_by_key(|(key, _)| Reverse(*key));
                    all.truncate(limit);
                    let last = all.last().and_then(|((end, _), _)| *end);
                    let left = applications.newest_left().map(|it| it + CLOCKS_MS);
                    if limit == 0 || left.is_none_or(|left| last.is_some_and(|it| it >= left)) {
                        break;
                    }
                }
            }
            warn(applications.left_out);
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

/// Names of a bucket's applications, the last begun first as far as their ids say it: `local-` and `application_` have
/// milliseconds, `app-` a date. Ids without a time, as those on Kubernetes, are first.
pub(crate) fn newest_first(names: &mut [String]) {
    names.sort_by_cached_key(|name| {
        let begun = begun(name).unwrap_or(i64::MAX);
        Reverse((begun, name.clone()))
    });
}

/// When an application began, by its id: in milliseconds since 1970.
fn begun(name: &str) -> Option<i64> {
    let mut digits = name.split(|it: char| !it.is_ascii_digit());
    let time = digits.find(|it| matches!(it.len(), 13 | 14))?;
    if time.len() == 13 {
        return time.parse().ok();
    }
    let date = DateTime::strptime("%Y%m%d%H%M%S", time).ok()?;
    let zoned = date.to_zoned(TimeZone::UTC).ok()?;
    Some(zoned.timestamp().as_millisecond())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

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

    fn listing(store: &Path) -> Listing {
        Listing::Folder(Arc::new(Folder::new(store.to_owned())))
    }

    fn ids(store: &Path, most: (usize, usize), parameters: &[(&str, &str)]) -> Vec<String> {
        let listing = listing(store);
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
        let listing = listing(store.path());
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

    /// Says when a folder changed, in seconds since 1970.
    fn set_time(folder: &Path, seconds: u64) {
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        let folder = fs::File::open(folder).expect("opens");
        folder.set_modified(time).expect("sets the time");
    }

    #[test]
    fn of_many_folders_those_that_changed_last_are_listed_whatever_their_names() {
        let store = tempfile::tempdir().expect("makes a folder");
        // The forms of ids of local, YARN's and standalone masters: by name, the newest would be last.
        let newest = ["app-20261121101010-0000", "application_1700000000000_0001"];
        for name in newest {
            fs::create_dir(store.path().join(name)).expect("makes a folder");
        }
        for number in 0..LISTED {
            let folder = store.path().join(format!("local-{number:013}"));
            fs::create_dir(&folder).expect("makes a folder");
            set_time(&folder, 1000 + number as u64);
        }
        let folder = Arc::new(Folder::new(store.path().to_owned()));
        let folders = folder.folders();
        assert_eq!(folders.len(), LISTED);
        assert_eq!(Listing::Folder(folder).left_out(), 2);
        let names: Vec<&str> = folders.iter().map(|it| it.name.as_str()).collect();
        assert!(newest.iter().all(|name| names[..2].contains(name)));
        let last = format!("local-{:013}", LISTED - 1);
        assert_eq!(names[2], last);
        assert_eq!(names[LISTED - 1], "local-0000000000002");
    }

    #[test]
    fn a_page_reads_the_documents_that_it_needs_and_keeps_them() {
        let store = tempfile::tempdir().expect("makes a folder");
        let at = |number: i64| format!("app-{number}");
        for number in 1..=40 {
            let end = number * 1_000_000;
            add(store.path(), &at(number), &at(number), end - 1, 10);
            // The tables were made ten seconds after the end.
            set_time(&store.path().join(at(number)), number as u64 * 1000 + 10);
        }
        let folder = Arc::new(Folder::new(store.path().to_owned()));
        let listing = Listing::Folder(Arc::clone(&folder));
        let page = |limit: &str, more: &[(&str, &str)]| {
            let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            let mut parameters = vec![("limit".to_owned(), limit.to_owned())];
            parameters.extend(more.iter().map(own));
            let id = |json: Value| json["id"].as_str().unwrap_or_default().to_owned();
            listed(&listing, &Parameters(parameters), TEXTS, id).expect("lists")
        };
        assert_eq!(page("1", &[]), ["app-40"]);
        assert_eq!(folder.known(), 1);
        assert_eq!(page("3", &[]), ["app-40", "app-39", "app-38"]);
        assert_eq!(folder.known(), 3);
        // A filter that nothing fulfils needs all of them.
        assert!(page("1", &[("status", "RUNNING")]).is_empty());
        assert_eq!(folder.known(), 40);
        // An old application that was imported late is where its end belongs, and what is known is not read again.
        set_time(&store.path().join(at(7)), 50_000);
        assert_eq!(page("2", &[]), ["app-40", "app-39"]);
        assert!(page("0", &[]).is_empty());
        // A folder that was replaced is another.
        fs::remove_dir_all(store.path().join(at(40))).expect("removes");
        add(store.path(), &at(40), &at(40), 1, 10);
        assert_eq!(page("2", &[]), ["app-39", "app-38"]);
    }

    #[test]
    fn all_attempts_of_an_application_are_in_its_page() {
        let store = tempfile::tempdir().expect("makes a folder");
        for (name, id, start) in [
            ("app-1_1", "app-1", 1_000_000),
            ("app-1_2", "app-1", 5_000_000),
            ("app-1_x", "app-1_x", 4_000_000),
            ("app-12", "app-12", 3_000_000),
        ] {
            let folder = store.path().join(name);
            add(store.path(), name, id, start, 10);
            set_time(&folder, start as u64 / 1000);
        }
        assert_eq!(ids(store.path(), TEXTS, &[("limit", "1")]), ["app-1 2"]);
    }

    #[test]
    fn the_ids_of_a_bucket_say_when_they_began() {
        let mut names = [
            "app-20230101000000-0002",
            "local-1767225600000",
            "application_1704067200000_0001_1",
            "spark-0123456789abcdef0123456789abcdef",
            "application_1704067200000_0002",
            "app-20250101000000-0000",
        ]
        .map(str::to_owned);
        newest_first(&mut names);
        let expected = [
            "spark-0123456789abcdef0123456789abcdef",
            "local-1767225600000",
            "app-20250101000000-0000",
            "application_1704067200000_0002",
            "application_1704067200000_0001_1",
            "app-20230101000000-0002",
        ];
        assert_eq!(names, expected);
    }
}
