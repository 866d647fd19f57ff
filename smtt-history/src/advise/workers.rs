//! What the workers' daemons wrote about an application: of its tasks the time of spills, merges and waits for shuffle blocks
//! with the host that sent them, and their own findings.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;

use serde::Serialize;
use smtt_model::advise::ApplicationAdvice;
use smtt_model::advise::tasks::{host_of, sender_of};
use smtt_store::history::read::Reader;
use smtt_store::history::workers::{FETCHES, FUNCTIONS, TASKS};
use smtt_store::read::ParquetError;

use crate::open::App;
use crate::serve::Refusal;
use crate::timeline::model::cut;
use crate::workers::{Document, Files, Trouble, opened, ranges};

/// Rows of each table that are read.
const ROWS: u64 = 2_000_000;
/// Tasks that are kept.
const TASKS_KEPT: usize = 1_000_000;
/// Hosts of one task that have counts of their own.
const SENDERS: usize = 1000;
/// Bytes of texts of a row group.
const TEXT_BYTES: usize = 64 << 20;
/// Hosts that have counts of their own; their names come from executors.
const HOSTS: usize = 10_000;

/// What a worker saw of one task, of its own thread. Times are in milliseconds; those of spills, merges and waits for blocks
/// are of spans of 1 ms or more.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Time in spills, without the sorting inside them.
    pub spill: f64,
    /// Time in merges of spilled parts, without other spans inside them.
    pub merge: f64,
    /// Time in which it could run and had no CPU, where the kernel says.
    pub cpu_wait: Option<f64>,
    /// Page faults that needed a disk, where they are counted.
    pub major: Option<f64>,
    /// Time of its page faults, at the lower end of the 95 % interval, where enough of them were measured.
    pub faults: Option<f64>,
    /// Waits for shuffle blocks by the sender's position in [`Figures::hosts`].
    pub waits: Vec<(u32, f64)>,
    /// Bytes of shuffle blocks of other executors, by sender.
    pub bytes: Vec<(u32, f64)>,
}

/// What a worker's daemon found by itself.
#[derive(Clone, Debug, Serialize)]
pub struct OfWorker {
    /// Host of the daemon.
    pub worker: String,
    /// User of the executors.
    pub uid: u32,
    /// Its findings, and the result of each of its rules.
    pub advice: ApplicationAdvice,
}

/// What workers wrote about an application.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Findings of the workers, by user and host.
    pub findings: Vec<OfWorker>,
    /// By the task's id, with the start of the daemon that saw it.
    tasks: HashMap<i64, (u64, Seen)>,
    /// Hosts that sent shuffle blocks.
    pub hosts: Vec<String>,
    positions: HashMap<String, u32>,
    /// What was not read, in words.
    pub left_out: Vec<String>,
}

fn add(all: &mut Vec<(u32, f64)>, host: u32, value: f64) {
    if let Some((_, sum)) = all.iter_mut().find(|(known, _)| *known == host) {
        *sum += value;
    } else if all.len() < SENDERS {
        all.push((host, value));
    }
}

impl Figures {
    /// Reads the workers' files of an application. What cannot be read is named in [`Figures::left_out`].
    #[must_use]
    pub fn read(files: &Files) -> Self {
        let mut figures = Self::default();
        match files.documents("findings") {
            Ok(documents) => figures.findings = newest(documents),
            Err(trouble) => figures.leave_out("findings of the workers", trouble),
        }
        let tables: [(&'static str, Group); 3] = [
            (TASKS.name, Self::tasks),
            (FUNCTIONS.name, Self::functions),
            (FETCHES.name, Self::fetches),
        ];
        for (table, group) in tables {
            if let Err(error) = figures.table(files, table, group) {
                figures.leave_out(table, error.into());
            }
        }
        figures
    }

    /// Reads what the workers wrote to a store about an application, of one user's executors where one is given.
    #[must_use]
    pub fn in_store(store: &Path, app: &App, user: Option<u32>) -> Self {
        match Files::of(store, app.identity(), user, None) {
            Ok(files) => Self::read(&files),
            Err(trouble) => {
                let mut none = Self::default();
                none.leave_out("what the workers wrote", trouble);
                none
            }
        }
    }

    /// Answers and pages have the text, so no path of the machine is in it.
    fn leave_out(&mut self, what: &str, trouble: Trouble) {
        self.left_out
            .push(format!("{what}: {}", Refusal::from(trouble).1));
    }

    /// What a worker saw of a task; `None` where no worker wrote about it.
    #[must_use]
    pub fn of(&self, task: i64) -> Option<&Seen> {
        self.tasks.get(&task).map(|(_, seen)| seen)
    }

    fn table(
        &mut self,
        files: &Files,
        table: &'static str,
        group: Group,
    ) -> Result<(), ParquetError> {
        let (mut left, mut cut) = (ROWS, 0);
        for file in files.of_table(table) {
            let Some(reader) = opened(file)? else {
                continue;
            };
            let mut start = 0;
            for &count in reader.groups() {
                let rows = start..start + count.min(left);
                left -= rows.end - rows.start;
                cut += start + count - rows.end;
                start += count;
                if rows.start < rows.end {
                    group(self, &reader, rows, file.name.run)?;
                }
            }
        }
        if cut > 0 {
            self.left_out
                .push(format!("{cut} rows of {table}: there are more than {ROWS}"));
        }
        Ok(())
    }

    /// The row of a task, if no newer daemon saw it.
    fn task(&mut self, id: i64, run: u64) -> Option<&mut Seen> {
        if self.tasks.len() >= TASKS_KEPT && !self.tasks.contains_key(&id) {
            return None;
        }
        let (of_run, seen) = self.tasks.entry(id).or_default();
        if run > *of_run {
            (*of_run, *seen) = (run, Seen::default());
        }
        (run == *of_run).then_some(seen)
    }

    fn host(&mut self, name: &str) -> u32 {
        let name = cut(name);
        let next = self.hosts.len();
        if let Some(at) = self.positions.get(&name) {
            return *at;
        }
        if next >= HOSTS {
            return HOSTS as u32 - 1;
        }
        self.positions.insert(name.clone(), next as u32);
        self.hosts.push(name);
        next as u32
    }

    fn tasks(&mut self, reader: &Reader, rows: Range<u64>, run: u64) -> Result<(), ParquetError> {
        let rows = [rows];
        let of = |name: &str| -> Result<Vec<Option<f64>>, ParquetError> {
            let all = reader.numbers(name, &rows)?.into_iter();
            Ok(all
                .map(|value| value.map(|value| value.max(0) as f64))
                .collect())
        };
        let (waits, major) = (of("cpu_wait_ns")?, of("page_faults_major")?);
        let (times, errors) = (of("page_fault_time_ns")?, of("page_fault_time_error_ns")?);
        let ids = reader.numbers("task_id", &rows)?;
        for (at, id) in ids.into_iter().enumerate() {
            let Some(seen) = id.and_then(|id| self.task(id, run)) else {
                continue;
            };
            let time = times[at].zip(errors[at]);
            seen.cpu_wait = waits[at].map(|ns| ns / 1e6);
            seen.major = major[at];
            seen.faults = time.map(|(time, error)| (time - error).max(0.0) / 1e6);
        }
        Ok(())
    }

    fn functions(
        &mut self,
        reader: &Reader,
        rows: Range<u64>,
        run: u64,
    ) -> Result<(), ParquetError> {
        let first = rows.start;
        let activities = reader.texts_up_to("activity", &[rows], TEXT_BYTES)?;
        let matters = |it: &Option<String>| {
            matches!(it.as_deref(), Some("spill" | "merge" | "shuffle_fetch"))
        };
        let mut wanted = ranges(activities.iter().map(matters));
        for range in &mut wanted {
            *range = range.start + first..range.end + first;
        }
        let (ids, own) = (
            reader.numbers("task_id", &wanted)?,
            reader.numbers("own_ns", &wanted)?,
        );
        let threads = reader.texts_up_to("thread", &wanted, TEXT_BYTES)?;
        let names = reader.texts_up_to("function", &wanted, TEXT_BYTES)?;
        let activities = activities.into_iter().filter(matters);
        for (at, activity) in activities.flatten().enumerate() {
            let (Some(id), Some("task")) = (ids[at], threads[at].as_deref()) else {
                continue;
            };
            let ms = own[at].unwrap_or_default().max(0) as f64 / 1e6;
            let name = names[at].as_deref().unwrap_or_default();
            let from = sender_of(name).map(|host| self.host(host));
            let Some(seen) = self.task(id, run) else {
                continue;
            };
            match (activity.as_str(), from) {
                ("spill", _) => seen.spill += ms,
                ("merge", _) => seen.merge += ms,
                (_, Some(host)) => add(&mut seen.waits, host, ms),
                _ => {}
            }
        }
        Ok(())
    }

    fn fetches(&mut self, reader: &Reader, rows: Range<u64>, run: u64) -> Result<(), ParquetError> {
        let rows = [rows];
        let (ids, bytes) = (
            reader.numbers("task_id", &rows)?,
            reader.numbers("bytes", &rows)?,
        );
        let addresses = reader.texts_up_to("from_address", &rows, TEXT_BYTES)?;
        for ((id, bytes), address) in ids.into_iter().zip(bytes).zip(addresses) {
            let (Some(id), Some(address)) = (id, address) else {
                continue;
            };
            let host = self.host(host_of(&address));
            if let Some(seen) = self.task(id, run) {
                let bytes = bytes.unwrap_or_default().max(0) as f64;
                add(&mut seen.bytes, host, bytes);
            }
        }
        Ok(())
    }
}

/// The findings that the newest daemon of each worker wrote last.
fn newest(documents: Vec<Document>) -> Vec<OfWorker> {
    let mut all: BTreeMap<(u32, String), (u64, u32, OfWorker)> = BTreeMap::new();
    for document in documents {
        let Ok(advice) = serde_json::from_value::<ApplicationAdvice>(document.json) else {
            continue;
        };
        let of_worker = OfWorker {
            worker: document.host.clone(),
            uid: document.uid,
            advice,
        };
        let age = (document.run, document.part);
        let known = all.get(&(document.uid, document.host.clone()));
        if known.is_none_or(|(run, part, _)| (*run, *part) <= age) {
            let key = (document.uid, document.host);
            all.insert(key, (age.0, age.1, of_worker));
        }
    }
    all.into_values().map(|(_, _, it)| it).collect()
}

/// Reads a row group of a table that the daemon started at that time wrote.
type Group = fn(&mut Figures, &Reader, Range<u64>, u64) -> Result<(), ParquetError>;
