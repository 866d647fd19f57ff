//! What earlier runs of this worker's daemon wrote about applications that are still here, or that left not long ago.
//!
//! After a restart the state is empty. The files of the history have the rows of before: they are read when somebody asks
//! for them, one file at a time, and are not kept in memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::iter::Peekable;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::vec;

use serde_json::{Map, Value, json};
use smtt_machine::clock::{boot_id, now_unix_ns};
use smtt_model::attribute::StageKey;
use smtt_model::protocol;
use smtt_model::rows::{ApplicationKey, EarlierRun, Filter, Summary, WorkState};
use smtt_model::sort::small::Gather as _;
use smtt_model::state::State;
use smtt_store::history::read::Reader;
use smtt_store::history::workers::ended::{EXECUTOR, Ended};
use smtt_store::history::workers::{REST, TASKS, WorkerFile, Workers, reader_of_own};
use smtt_store::read::ParquetError;

use crate::helpers::JobLimits;
use crate::shared::Shared;
use crate::timed_reads::TimedReads;

/// Runs of the applications of one user that are known, by the user whose share the user uses.
const RUNS_OF_USER: usize = 64;
/// Runs of all applications that are known.
const RUNS: usize = 512;
/// Bytes of a file. Those that a daemon writes have less.
const FILE_BYTES: u64 = 32 << 20;
/// Bytes of the texts of one column of a file: those that a daemon writes have up to 8 MiB.
const TEXT_BYTES: usize = 10 << 20;
/// Bytes of texts that are read for one answer. A file of tasks has about one megabyte.
const ANSWER_BYTES: usize = 24 << 20;
/// A file without rows costs as much time as so many bytes.
pub(super) const FILE_COST: usize = 64 << 10;
/// Rows that are added at a time.
const AT_A_TIME: usize = 256;
/// Bytes of the texts of rows that are added at a time, beyond one row: what is made of a text takes up to sixteen times its
/// bytes.
const BYTES_AT_A_TIME: usize = 256 << 10;
/// How long the store may take for one file. After one that takes longer no file is read for a while.
const FILE_WAIT: Duration = Duration::from_secs(2);
/// Reads that may hang: one at a time is awaited.
const READS: JobLimits = JobLimits {
    per_user: 4,
    all: 4,
};

/// What an earlier run wrote of one application.
#[derive(Debug)]
struct Written {
    application: ApplicationKey,
    name: Option<String>,
    run: EarlierRun,
    /// User whose share its executors used.
    share: u32,
    files: Vec<WorkerFile>,
}

/// Texts of a column of a file.
type Texts = io::Result<Vec<String>>;

/// What earlier runs wrote. Times in it are of this run of the machine.
#[derive(Debug)]
pub struct Earlier {
    /// Start of the present run in milliseconds since 1970.
    since_unix_ms: u64,
    written: Vec<Written>,
    /// Files of runs beyond the limits.
    left_out: u64,
    /// A store on a network may not answer, and answers of the daemon do not wait for it.
    reads: Mutex<TimedReads<Texts>>,
    /// Reads a column of a file: [`column`].
    pub(super) column: fn(&WorkerFile, &str, Option<&str>) -> Texts,
}

/// A listing of rows that the files have.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    table: &'static str,
    /// Kind of the documents; tasks have none.
    kind: Option<&'static str>,
    order: &'static [&'static str],
}

impl Rows {
    /// The rows of a listing below `/v1`; `None` where the files have none.
    #[must_use]
    pub fn of(listing: &str) -> Option<Self> {
        let kind = match listing {
            "executors" => Some("executor"),
            "memory" => Some("memory"),
            "stages" => Some("stage"),
            "rdds" => Some("rdd"),
            "history" => Some("history"),
            "advise" => Some("findings"),
            "tasks" => None,
            _ => return None,
        };
        let table = if kind.is_some() { &REST } else { &TASKS };
        Some(Self {
            table: table.name,
            kind,
            order: protocol::order(&format!("/v1/{listing}")),
        })
    }
}

impl Rows {
    /// The order of the listing.
    #[must_use]
    pub const fn order(self) -> &'static [&'static str] {
        self.order
    }
}

impl Earlier {
    /// Finds what earlier daemons of this host wrote since the machine's start; `share_of` names the user whose share a user
    /// uses. Files that cannot be read are left out.
    #[must_use]
    pub fn find(workers: &Workers, since_unix_ms: u64, share_of: &dyn Fn(u32) -> u32) -> Self {
        Self::of_boot(workers, since_unix_ms, &boot_id(), share_of)
    }

    /// As [`Self::find`], in the run of the machine with this id.
    pub(super) fn of_boot(
        workers: &Workers,
        since_unix_ms: u64,
        boot_id: &str,
        share_of: &dyn Fn(u32) -> u32,
    ) -> Self {
        let mut runs: BTreeMap<(u64, String), Vec<WorkerFile>> = BTreeMap::new();
        for file in workers.earlier() {
            let folder = file.path.parent().map(|it| it.display().to_string());
            let key = (u64::MAX - file.name.run, folder.unwrap_or_default());
            runs.entry(key).or_default().push(file);
        }
        let mut of_user: BTreeMap<u32, usize> = BTreeMap::new();
        let (mut found, mut left_out) = (Vec::new(), 0);
        for files in runs.into_values() {
            let Some(share) = files.first().map(|file| share_of(file.uid)) else {
                continue;
            };
            let of_user = of_user.entry(share).or_default();
            *of_user += 1;
            if *of_user > RUNS_OF_USER || found.len() >= RUNS {
                left_out += files.len() as u64;
                continue;
            }
            match Written::read(files, boot_id, share) {
                Ok(written) => found.extend(written),
                Err(error) => tracing::debug!("a file of an earlier run cannot be read: {error}"),
            }
        }
        Self {
            since_unix_ms,
            written: found,
            left_out,
            reads: Mutex::new(TimedReads::new("smtt-earlier", READS)),
            column,
        }
    }

    #[cfg(test)]
    pub(super) const fn written_is_empty(&self) -> bool {
        self.written.is_empty()
    }

    /// The runs whose applications the filter selects and are here, or were within the time for which dead executors are
    /// kept.
    fn selected<'a>(&'a self, state: &State, filter: &Filter) -> Vec<&'a Written> {
        let now_ms = now_unix_ns() / 1_000_000;
        let kept_ms = state.limits().retention_ns / 1_000_000;
        let is_here = |written: &Written| {
            let mut all = state.executors().values();
            let is_recent = now_ms.saturating_sub(written.run.until_unix_ms) <= kept_ms;
            is_recent || all.any(|executor| written.application.has(executor))
        };
        let all = self.written.iter();
        all.filter(|written| written.is_selected(filter) && is_here(written))
            .collect()
    }

    /// Adds the earlier runs with rows of applications that the filter selects to a summary, the oldest first.
    pub fn add_to(&self, summary: &mut Summary, state: &State, filter: &Filter) {
        let mut latest: BTreeMap<u64, u64> = BTreeMap::new();
        for written in self.selected(state, filter) {
            let until = latest.entry(written.run.since_unix_ms).or_default();
            *until = (*until).max(written.run.until_unix_ms);
        }
        let run = |(since_unix_ms, until_unix_ms)| EarlierRun {
            since_unix_ms,
            until_unix_ms,
        };
        summary.earlier_runs = latest.into_iter().map(run).collect();
        let has_some = !summary.earlier_runs.is_empty();
        summary.measured_since_unix_ms = has_some.then_some(self.since_unix_ms);
    }

    /// Gives the rows that the filter selects to `add`, some at a time: of each user's files in turn the newest first, until
    /// the answer has its bytes. Returns the number of files that were left out; one that cannot be read is none of them.
    ///
    /// # Errors
    /// Those of `add`.
    pub fn each(
        &self,
        shared: &Shared,
        rows: Rows,
        filter: &Filter,
        add: impl FnMut(Vec<Map<String, Value>>) -> io::Result<()>,
    ) -> io::Result<u64> {
        self.each_within(ANSWER_BYTES, shared, rows, filter, add)
    }

    /// As [`Self::each`], within so many bytes.
    pub(super) fn each_within(
        &self,
        mut left: usize,
        shared: &Shared,
        rows: Rows,
        filter: &Filter,
        mut add: impl FnMut(Vec<Map<String, Value>>) -> io::Result<()>,
    ) -> io::Result<u64> {
        // A statement of its own, because a guard lives until the end of its statement.
        let selected = self.selected(&shared.state(), filter);
        let mut turns = turns(&selected, rows);
        // A part 0 comes after the other parts of its run, of which these are the executors.
        let mut ended: BTreeMap<(Option<&Path>, u64), Ended> = BTreeMap::new();
        while let Some(mut of_user) = turns.pop_front() {
            let Some((written, file)) = of_user.pop_front() else {
                continue;
            };
            let others = turns.iter().map(VecDeque::len).sum::<usize>();
            let unread = self.left_out + (others + of_user.len() + 1) as u64;
            if left == 0 {
                return Ok(unread);
            }
            turns.push_back(of_user);
            let matters = rows.kind.is_some_and(Ended::matters);
            let is_part = matters && Ended::is_part(&file.name);
            let Some(texts) = self.read(file, "json", rows.kind) else {
                return Ok(unread);
            };
            // Without its executors part 0 would list them again.
            let ids = is_part.then(|| self.read(file, "id", Some(EXECUTOR)));
            let Some(ids) = ids.unwrap_or_else(|| Some(Ok(Vec::new()))) else {
                return Ok(unread);
            };
            let (texts, ids) = match (texts, ids) {
                (Ok(texts), Ok(ids)) => (texts, ids),
                (Err(error), _) | (_, Err(error)) => {
                    tracing::debug!("a file of an earlier run cannot be read: {error}");
                    continue;
                }
            };
            let bytes = texts.iter().chain(&ids).map(String::len).sum::<usize>();
            left = left.saturating_sub(bytes + FILE_COST);
            let run = (file.path.parent(), file.name.run);
            let mut of_run = None;
            if is_part {
                ended.entry(run).or_default().extend(ids);
            } else if matters {
                of_run = ended.remove(&run);
            }
            let has_ended = |row: &Map<String, Value>| {
                let of_run = of_run.as_ref();
                of_run.is_some_and(|ended| ended.has_that_of(row))
            };
            let mut texts = texts.into_iter().peekable();
            while texts.peek().is_some() {
                let some = next_texts(&mut texts);
                let parsed = some
                    .iter()
                    .filter_map(|text| serde_json::from_str(text).ok());
                let parsed = parsed.filter(|row| selects(filter, rows, row) && !has_ended(row));
                let mut parsed: Vec<Map<String, Value>> = parsed.collect();
                drop(some);
                if rows.kind == Some("stage") {
                    as_of_now(shared, &written.application, &mut parsed);
                }
                let mark = |mut row: Map<String, Value>| {
                    row.insert("earlier".to_owned(), json!(written.run));
                    row
                };
                add(parsed.into_iter().map(mark).collect())?;
            }
        }
        Ok(self.left_out)
    }

    /// A column of a file; `None` where the store does not answer in time.
    fn read(
        &self,
        file: &WorkerFile,
        name: &'static str,
        kind: Option<&'static str>,
    ) -> Option<Texts> {
        let (column, file) = (self.column, file.clone());
        let read: Box<dyn FnOnce() -> Texts + Send> = Box::new(move || column(&file, name, kind));
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        let found = reads.read(vec![(0, 0, read)], FILE_WAIT).pop();
        found.map(|(_, texts)| texts)
    }
}

/// The texts of the rows that are added next: at least one.
fn next_texts(texts: &mut Peekable<vec::IntoIter<String>>) -> Vec<String> {
    let (mut some, mut bytes) = (Vec::new(), 0);
    while some.len() < AT_A_TIME {
        let fits = |text: &String| some.is_empty() || bytes + text.len() <= BYTES_AT_A_TIME;
        let Some(text) = texts.next_if(fits) else {
            break;
        };
        bytes += text.len();
        some.push(text);
    }
    some
}

/// Says of stages that ran then how they go as the driver has told since; nothing where it has told no executor here.
fn as_of_now(shared: &Shared, application: &ApplicationKey, rows: &mut [Map<String, Value>]) {
    let runs = |row: &Map<String, Value>| row.get("state") == Some(&json!(WorkState::Running));
    let key = |row: &Map<String, Value>| {
        let number = |name: &str| u32::try_from(row.get(name)?.as_u64()?).ok();
        Some(StageKey::new(number("stage_id")?, number("stage_attempt")?))
    };
    let wanted = rows.iter().filter(|row| runs(row)).filter_map(key);
    let wanted: BTreeSet<StageKey> = wanted.gather();
    if wanted.is_empty() {
        return;
    }
    let known = shared.state().courses_of_stages(application, &wanted);
    for row in rows.iter_mut().filter(|row| runs(row)) {
        let now = key(row).and_then(|key| known.get(&key)).cloned();
        let now = now.unwrap_or_default();
        for (field, value) in [
            ("state", json!(now.state)),
            ("completed_unix_ms", json!(now.ended_unix_ms)),
            ("duration_ns", json!(now.duration_ns)),
            ("failure", json!(now.failure)),
        ] {
            row.remove(field);
            if !value.is_null() {
                row.insert(field.to_owned(), value);
            }
        }
    }
}

/// The files of a table by the user whose share it is, each user's newest first.
fn turns<'a>(
    selected: &[&'a Written],
    rows: Rows,
) -> VecDeque<VecDeque<(&'a Written, &'a WorkerFile)>> {
    let mut by_user: BTreeMap<u32, VecDeque<_>> = BTreeMap::new();
    for written in selected {
        // The runs are in that order already.
        let files = written.files.iter().rev();
        let files = files.filter(|file| file.name.table == rows.table);
        for file in files {
            by_user
                .entry(written.share)
                .or_default()
                .push_back((*written, file));
        }
    }
    by_user.into_values().collect()
}

impl Written {
    /// The files of one application and user of one run; `None` where the machine has started since, or where they do not
    /// state it.
    fn read(
        files: Vec<WorkerFile>,
        boot_id: &str,
        share: u32,
    ) -> Result<Option<Self>, ParquetError> {
        let is_about = |file: &&WorkerFile| file.name.table == REST.name && file.name.part == 0;
        let Some(about) = files.iter().find(is_about) else {
            return Ok(None);
        };
        let reader = open(about)?;
        let Some(id) = reader.said("smtt.application_id") else {
            return Ok(None);
        };
        let attempt = reader.said("smtt.application_attempt_id");
        let documents = column(about, "json", Some("worker"))?;
        let document: Option<Map<String, Value>> = documents
            .first()
            .and_then(|text| serde_json::from_str(text).ok());
        let Some(document) = document else {
            return Ok(None);
        };
        let text = |name: &str| document.get(name).and_then(Value::as_str);
        let number = |name: &str| document.get(name).and_then(Value::as_u64);
        if boot_id.is_empty() || text("boot_id") != Some(boot_id) {
            return Ok(None);
        }
        let (Some(since_unix_ms), Some(until_unix_ms)) =
            (number("daemon_start_unix_ms"), number("written_unix_ms"))
        else {
            return Ok(None);
        };
        Ok(Some(Self {
            application: ApplicationKey {
                id: Some(id),
                attempt,
                uid: Some(about.uid),
            },
            name: text("application_name").map(str::to_owned),
            run: EarlierRun {
                since_unix_ms,
                until_unix_ms,
            },
            share,
            files,
        }))
    }

    fn is_selected(&self, filter: &Filter) -> bool {
        let id = self.application.id.as_deref().unwrap_or_default();
        let uid = self.application.uid.unwrap_or_default();
        let is_it = |key: &ApplicationKey| *key == self.application;
        filter.application.as_ref().is_none_or(is_it)
            && filter.application(id, self.name.as_deref(), uid)
    }
}

fn open(file: &WorkerFile) -> Result<Reader, ParquetError> {
    reader_of_own(file, FILE_BYTES)
}

/// Texts of a column of a file: of documents of one kind, or all.
fn column(file: &WorkerFile, name: &str, kind: Option<&str>) -> Texts {
    let reader = open(file).map_err(io::Error::other)?;
    let within = |column: &str, rows: &[std::ops::Range<u64>]| {
        let texts = reader.texts_within(column, rows, TEXT_BYTES);
        let texts = texts.map_err(io::Error::other)?;
        texts.ok_or_else(|| io::Error::other(format!("more than {TEXT_BYTES} bytes")))
    };
    let all = 0..reader.rows();
    let rows: Vec<_> = match kind {
        None => vec![all],
        Some(kind) => {
            let kinds = within("kind", &[all])?.into_iter();
            let numbered = (0..).zip(kinds);
            let of_kind = numbered.filter(|(_, it)| it.as_deref() == Some(kind));
            of_kind.map(|(row, _)| row..row + 1).collect()
        }
    };
    Ok(within(name, &rows)?.into_iter().flatten().collect())
}

/// Whether the filter selects a row. Its application is selected.
fn selects(filter: &Filter, rows: Rows, row: &Map<String, Value>) -> bool {
    let text = |name: &str| row.get(name).and_then(Value::as_str);
    let number = |name: &str| row.get(name).and_then(Value::as_u64);
    let is = |wanted: &Option<String>, name: &str| {
        let wanted = wanted.as_ref();
        wanted
            .is_none_or(|wanted| text(name).is_some_and(|it| smtt_model::glob::matches(wanted, it)))
    };
    let executor = is(&filter.executor, "executor_id");
    let has_stage = matches!(rows.kind, None | Some("stage"));
    let stage = filter.stage.as_ref().is_none_or(|wanted| {
        let (id, attempt) = match wanted.split_once('.') {
            Some((id, attempt)) => (id, attempt.parse().ok()),
            None => (wanted.as_str(), number("stage_attempt")),
        };
        has_stage && id.parse().ok() == number("stage_id") && attempt == number("stage_attempt")
    });
    let rdd = filter.rdd.as_ref().is_none_or(|wanted| {
        let by_id = wanted
            .parse()
            .ok()
            .is_some_and(|id: u64| number("rdd_id") == Some(id));
        rows.kind == Some("rdd") && (by_id || is(&filter.rdd, "name"))
    });
    let task = filter
        .task
        .is_none_or(|wanted| rows.kind.is_none() && number("task_attempt_id") == Some(wanted));
    executor && stage && rdd && task
}
