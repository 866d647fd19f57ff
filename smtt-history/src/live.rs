//! A history that the driver wrote while its application ran: parts with rows of tasks and with Spark's other events.
//! They are replayed in the order of the events, exactly as a log is, and become the same tables.

mod rows;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use serde_json::{Value, json};
use smtt_store::history::columns::{META, TASK_SQL, TASKS, Table};
use smtt_store::history::read::Reader;
use smtt_store::history::{parts, place};
use smtt_store::read::ParquetError;

use crate::import::{on_deep_stack, short_message};
use crate::log::Bounds;
use crate::open::{App, exists};
use crate::out::{Kind, Out, Sizes, Times};
use crate::replay::application::summary as summary_of;
use crate::replay::{Replay, Trouble};

use rows::{Metrics, Rows, Unknowns};

/// Parts with a problem that are named; the others are only counted.
const NAMED: usize = 20;
/// Events from the first part that are searched for the application's start.
const FIRST_EVENTS: u64 = 1000;
/// Events of a part at most.
const EVENTS: u64 = 1_000_000;
/// Bytes of a part's events at most. The driver's have 48 Mi characters, of up to three bytes each.
const EVENT_BYTES: usize = 150 << 20;
/// Bytes of a part's file at most.
pub(crate) const FILE_BYTES: u64 = 512 << 20;
/// What the kernel reports where a part's place has a link or another kind of file.
const FOREIGN: [Errno; 3] = [Errno::ELOOP, Errno::ENXIO, Errno::ENODEV];
/// Prefix of folders with the tables of applications that run.
const RUNNING: &str = "smtt-history-";

/// What the parts say of themselves.
#[derive(Debug, Default)]
struct About {
    parts: u64,
    events: u64,
    bytes: u64,
    /// What the driver could not keep.
    lost_tasks: u64,
    lost_events: u64,
    /// Parts, or files of them, that are missing or damaged.
    damaged: u64,
    named: Vec<(u64, String)>,
    /// Columns that this version does not know and cannot keep.
    left_out: u64,
    /// Whether the driver wrote its last part.
    is_over: bool,
    modified_ms: i64,
}

impl About {
    fn trouble(&mut self, part: u64, what: &str) {
        self.damaged += 1;
        if self.named.len() < NAMED {
            self.named.push((part, short_message(what)));
        }
    }

    fn json(&self, replay: &Replay) -> Value {
        let named = self.named.iter();
        json!({
            "importer": env!("CARGO_PKG_VERSION"),
            "writtenBy": "driver",
            "parts": self.parts,
            "lines": self.events,
            "bytes": self.bytes,
            "lostTasks": self.lost_tasks,
            "lostEvents": self.lost_events,
            "damagedParts": self.damaged,
            "damaged": named.map(|(part, what)| json!({"part": part, "problem": what})).collect::<Vec<_>>(),
            "leftOutColumns": self.left_out,
            "hasLastPart": self.is_over,
            "dropped": replay.dropped,
            "droppedDocuments": replay.out.dropped,
        })
    }
}

/// The newest part's number and time: other parts come after it, or an import replaces all of them.
pub(crate) fn state(folder: &Path) -> Option<(u64, i64)> {
    let last = parts::listed(folder).ok()?.last?;
    let path = parts::path(folder, META.name, last);
    Some((last, modified(&path)))
}

fn modified(path: &Path) -> i64 {
    let time = fs::metadata(path).and_then(|metadata| metadata.modified());
    let since = time
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| {
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    })
}

/// The documents of a part.
#[derive(Default)]
struct Documents {
    /// What the part says of itself.
    said: Value,
    /// Its events with their numbers.
    events: Vec<(i64, String)>,
    /// Documents of kinds that this version does not know: kind, id and text.
    others: Vec<(String, String, String)>,
}

/// Opens a table of a part, which has so many rows at most.
fn part_of(folder: &Path, table: &Table, part: u64, most: u64) -> Result<Reader, ParquetError> {
    let path = parts::path(folder, table.name, part);
    let reader = Reader::open_up_to(&path, table.name, FILE_BYTES)?;
    if reader.rows() > most {
        let name = table.name;
        let what = format!("a part's {name} has more than {most} rows");
        return Err(ParquetError::General(what));
    }
    Ok(reader)
}

fn documents(folder: &Path, part: u64, most: u64) -> Result<Documents, ParquetError> {
    let meta = part_of(folder, &META, part, EVENTS)?;
    let all = [0..meta.rows().min(most)];
    let texts = |column| meta.texts_up_to(column, &all, EVENT_BYTES);
    let (kinds, ids, texts) = (texts("kind")?, texts("id")?, texts("json")?);
    let mut documents = Documents::default();
    for ((kind, id), text) in kinds.into_iter().zip(ids).zip(texts) {
        let (id, text) = (id.unwrap_or_default(), text.unwrap_or_default());
        match kind.as_deref() {
            Some(parts::PART) => documents.said = serde_json::from_str(&text).unwrap_or_default(),
            Some(parts::EVENT) => {
                let event = id.parse().ok().map(|number| (number, text));
                documents.events.extend(event);
            }
            // The documents of these kinds follow from the events.
            Some(kind) if Kind::ALL.iter().any(|known| known.name() == kind) => {}
            Some(kind) => documents.others.push((kind.to_owned(), id, text)),
            None => {}
        }
    }
    Ok(documents)
}

/// The application's own document; `None` where the folder has no part with its start.
pub(crate) fn summary(folder: &Path) -> Option<String> {
    let all = parts::listed(folder).ok()?;
    let (first, last) = (*all.numbers.first()?, all.last?);
    let mut lines = documents(folder, first, FIRST_EVENTS).ok()?.events;
    if last != first && says_last(folder, last) {
        let end = documents(folder, last, u64::MAX).ok()?.events;
        lines.extend(end.into_iter().rev().take(FIRST_EVENTS as usize));
    }
    let modified = modified(&parts::path(folder, META.name, last));
    let lines = lines.iter().map(|(_, line)| line.as_bytes());
    Some(summary_of(lines, modified)?.to_string())
}

fn path_of(folder: &Path, table: &Table, part: u64) -> String {
    parts::path(folder, table.name, part).display().to_string()
}

/// The kernel's error where a file cannot be read.
fn errno(error: &ParquetError) -> Option<i32> {
    let ParquetError::External(error) = error else {
        return None;
    };
    error.downcast_ref::<io::Error>()?.raw_os_error()
}

/// Whether a part cannot be read now, which says nothing of what is in it: it must not count as damaged, because damaged
/// parts go when the application becomes compact. A link or a pipe in a part's place is damage.
fn is_machine_s(error: &ParquetError) -> bool {
    errno(error).is_some_and(|errno| !FOREIGN.iter().any(|it| *it as i32 == errno))
}

/// Whether a file is missing. A part's `meta` was listed, so it was there; its other files may never have been.
fn is_not_there(error: &ParquetError) -> bool {
    errno(error) == Some(Errno::ENOENT as i32)
}

/// What happens at a number.
#[derive(Clone, Copy)]
enum Step {
    Start(usize),
    End(usize),
    Event(usize),
}

/// Replays one part. `last` is the number of the last event before it: nothing is replayed twice.
fn replay_part(
    (folder, unknown): (&Path, &Unknowns),
    part: u64,
    last: &mut i64,
    replay: &mut Replay,
    about: &mut About,
) -> Result<()> {
    let Documents {
        said,
        events,
        others,
    } = match documents(folder, part, u64::MAX) {
        Ok(read) => read,
        Err(error) => {
            if is_machine_s(&error) {
                return Err(error).with_context(|| path_of(folder, &META, part));
            }
            about.trouble(part, &error.to_string());
            return Ok(());
        }
    };
    let number = |name: &str| said[name].as_u64().unwrap_or_default();
    (about.lost_tasks, about.lost_events) = (number("lostTasks"), number("lostEvents"));
    about.is_over = said["last"] == true;
    for (kind, id, text) in others {
        replay.out.other(&kind, &id, text);
    }
    let mut steps: Vec<(i64, Step)> = Vec::new();
    steps.extend(
        (0..)
            .zip(&events)
            .map(|(at, (number, _))| (*number, Step::Event(at))),
    );
    let (mut rows, mut sql) = (None, Metrics::default());
    if number("tasks") > 0 {
        match Rows::read(folder, part, unknown) {
            Ok(read) => {
                for (row, (started, ended)) in read.started.iter().zip(&read.ended).enumerate() {
                    steps.extend(started.map(|number| (number, Step::Start(row))));
                    steps.extend(ended.map(|number| (number, Step::End(row))));
                }
                rows = Some(read);
            }
            Err(error) if is_machine_s(&error) && !is_not_there(&error) => {
                return Err(error).with_context(|| path_of(folder, &TASKS, part));
            }
            Err(error) => about.trouble(part, &format!("tasks: {error}")),
        }
    }
    if number("taskSql") > 0 {
        match Metrics::read(folder, part, unknown) {
            Ok(read) => sql = read,
            Err(error) if is_machine_s(&error) && !is_not_there(&error) => {
                return Err(error).with_context(|| path_of(folder, &TASK_SQL, part));
            }
            Err(error) => about.trouble(part, &format!("task_sql: {error}")),
        }
    }
    for table in [&META, &TASKS, &TASK_SQL] {
        let size = fs::metadata(parts::path(folder, table.name, part)).map_or(0, |it| it.len());
        about.bytes += size;
    }
    about.parts += 1;
    steps.sort_by_key(|(number, _)| *number);
    steps.retain(|(number, _)| number > last);
    *last = steps.last().map_or(*last, |(number, _)| *number);
    for (number, step) in steps {
        let done = match (step, &rows) {
            (Step::Event(at), _) => {
                about.events += 1;
                replay.line(events[at].1.as_bytes())
            }
            (Step::Start(row), Some(rows)) => {
                rows.start(row, replay);
                Ok(())
            }
            (Step::End(row), Some(rows)) => rows.end(row, &mut sql, replay),
            (_, None) => Ok(()),
        };
        match done {
            Ok(()) => {}
            Err(Trouble::Line(what)) => about.trouble(part, &format!("event {number}: {what}")),
            Err(error) => return Err(error).context("writing the tables"),
        }
    }
    Ok(())
}

/// Makes tables of an application's parts, in `out`. The parts are those of `name`, whatever they say.
fn make(store: &Path, name: &str, out: Out) -> Result<(Replay, About, String)> {
    make_within(store, name, out, Bounds::default().time)
}

fn make_within(
    store: &Path,
    name: &str,
    out: Out,
    time: Duration,
) -> Result<(Replay, About, String)> {
    let begun = Instant::now();
    let folder = store.join(name);
    let all =
        parts::listed(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut about = About::default();
    let unknown = Unknowns::of(&folder, &all.numbers, begun + time);
    about.left_out = unknown.left_out;
    let mut replay = Replay::new(out);
    replay
        .out
        .keep(unknown.tasks.clone(), unknown.task_sql.clone());
    let (mut last, mut expected) = (0, 1_u64);
    for part in all.numbers {
        if begun.elapsed() > time {
            bail!(
                "{}: reading the parts took longer than {} s, at part {part}",
                folder.display(),
                time.as_secs()
            );
        }
        for missing in expected..part.min(expected.saturating_add(NAMED as u64 + 1)) {
            about.trouble(missing, "the part is missing");
        }
        expected = part.saturating_add(1);
        replay_part(
            (&folder, &unknown),
            part,
            &mut last,
            &mut replay,
            &mut about,
        )?;
        about.modified_ms = modified(&parts::path(&folder, META.name, part));
    }
    if all.beyond > 0 {
        let most = parts::MOST;
        about.trouble(
            expected,
            &format!("{} parts beyond the first {most} are not read", all.beyond),
        );
        about.damaged += all.beyond - 1;
    }
    let Some((id, attempt)) = replay.identity() else {
        bail!("{}: no part has the application's start", folder.display());
    };
    if place::name(id, attempt).as_deref() != Some(name) {
        bail!(
            "{}: the parts say that they are of {id:?}",
            folder.display()
        );
    }
    let id = id.to_owned();
    replay.finish(about.modified_ms)?;
    let mut document = about.json(&replay);
    if let Some(times) = replay.out.lossy_times() {
        document["lossyTimes"] = times.into();
    }
    replay.out.meta(Kind::Import, "", &document);
    Ok((replay, about, id))
}

/// A compacted application.
#[derive(Debug)]
pub struct Compacted {
    /// Folder of its tables, or the address of its objects in a bucket.
    pub folder: PathBuf,
    /// Rows and bytes of its tables.
    pub sizes: Sizes,
    /// Parts that it had, and their bytes.
    pub parts: (u64, u64),
    /// Parts or files of them that are missing or damaged, and what the driver could not keep.
    pub lost: u64,
}

/// Whether an application has parts only.
#[must_use]
pub fn is_live(folder: &Path) -> bool {
    !exists(folder) && state(folder).is_some()
}

/// Replaces an application's parts by its tables.
///
/// # Errors
/// When it has no parts, the driver has not written its last part and is not known to be dead, the parts have changed
/// meanwhile, or the store cannot be written. Then nothing was replaced.
pub fn compact(store: &Path, name: &str, is_dead: bool) -> Result<Compacted> {
    compact_with(store, name, is_dead, Times::Complete)
}

/// As [`compact`], with nanoseconds as exact as `times` says.
///
/// # Errors
/// As [`compact`].
pub fn compact_with(store: &Path, name: &str, is_dead: bool, times: Times) -> Result<Compacted> {
    let folder = store.join(name);
    if !place::is_safe(name) || !is_live(&folder) {
        bail!("{} has no parts of a history", folder.display());
    }
    if !is_dead && !has_last_part(&folder) {
        bail!(
            "{}: the driver has not written its last part; if it is dead, use --dead",
            folder.display()
        );
    }
    compact_after((store, times), name, || {})
}

/// Makes the tables, does `then`, and replaces the parts.
fn compact_after(
    (store, times): (&Path, Times),
    name: &str,
    then: impl FnOnce() + Send + 'static,
) -> Result<Compacted> {
    let (store, name) = (store.to_owned(), name.to_owned());
    on_deep_stack("compact", move || {
        let folder = store.join(&name);
        let before = state(&folder);
        let (beyond, most) = (parts::listed(&folder)?.beyond, parts::MOST);
        if beyond > 0 {
            bail!(
                "{}: the tables would not have the {beyond} parts beyond the first {most}, so the parts stay",
                folder.display()
            );
        }
        let (replay, about, id) = make(&store, &name, Out::create(&store)?.with_times(times))?;
        then();
        // Another process may have made the tables meanwhile, and the parts that were read were half gone.
        let is_same = || is_live(&folder) && state(&folder) == before;
        let (folder, sizes) = replay.out.finish_if(&store, &id, &name, is_same)?;
        Ok(Compacted {
            folder,
            sizes,
            parts: (about.parts, about.bytes),
            lost: about.damaged + about.lost_tasks + about.lost_events,
        })
    })
}

/// Folders of the store whose drivers wrote their last part.
///
/// # Errors
/// When the store cannot be listed.
pub fn names(store: &Path) -> Result<Vec<String>> {
    let entries =
        fs::read_dir(store).with_context(|| format!("cannot list {}", store.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| place::is_safe(name))
        .filter(|name| is_live(&store.join(name)) && has_last_part(&store.join(name)))
        .collect();
    names.sort();
    Ok(names)
}

/// Whether the newest part says that it is the last.
pub(crate) fn has_last_part(folder: &Path) -> bool {
    state(folder).is_some_and(|(last, _)| says_last(folder, last))
}

/// Whether a part says, in its first row, that it is the last. Its events are not read.
fn says_last(folder: &Path, part: u64) -> bool {
    documents(folder, part, 1).is_ok_and(|it| it.said["last"] == true)
}

/// Opens an application that has parts only: a finished one becomes compact, one that runs is opened as it is now.
///
/// # Errors
/// When its parts cannot be read.
pub fn open(store: &Path, name: &str) -> Result<App> {
    let folder = store.join(name);
    if has_last_part(&folder) {
        match compact(store, name, false) {
            Ok(done) => return Ok(App::open(&done.folder)?),
            // A server that may only read answers all the same.
            Err(error) => tracing::warn!(name, error = format!("{error:#}"), "not compacted"),
        }
    }
    open_after(store, name, || {})
}

/// Makes tables of the parts in a folder of their own, does `then`, and opens them.
fn open_after(store: &Path, name: &str, then: impl FnOnce() + Send + 'static) -> Result<App> {
    let folder = store.join(name);
    if exists(&folder) {
        return Ok(App::open(&folder)?);
    }
    let (source, name) = (store.to_owned(), name.to_owned());
    let state = state(&folder).unwrap_or_default();
    let place = tempfile::Builder::new().prefix(RUNNING).tempdir()?;
    let own = place.path().to_owned();
    let tables = on_deep_stack("parts", move || {
        let made = make(&source, &name, Out::create(&own)?);
        then();
        let (replay, _, id) = made?;
        Ok(replay.out.finish(&own, &id, &name, true)?.0)
    });
    // Another process made the tables meanwhile: what was made here is of parts that were half gone.
    if exists(&folder) {
        return Ok(App::open(&folder)?);
    }
    Ok(App::open(&tables?)?.of_parts(folder, state, place))
}

#[cfg(test)]
pub(crate) mod tests;
