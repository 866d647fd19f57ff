//! Reads the workers' documents about memory: histories, limits and names, on the time line's time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;

use serde::Deserialize;
use serde_json::Value;
use smtt_model::rows::{ExecutorId, HistoryRow, MemoryRow};
use smtt_model::state::history::Point;
use smtt_store::history::read::Reader;
use smtt_store::history::workers::ended::Ended;
use smtt_store::history::workers::{REST, WorkerFile};

use super::clock::{Clock, Run, clocks};
use super::{Gap, History, LIMITS, Limit, Memory, Moment};
use crate::open::App;
use crate::out::Kind;
use crate::timeline::model::{Model, cut};
use crate::workers::{BYTES, Files, Trouble, kinds, opened, ranges, texts};

/// Points of one history. A daemon writes at most 240.
const POINTS: usize = 2_000;
/// Points of all histories.
const ALL_POINTS: usize = 500_000;
/// RDDs, and places of an RDD, in one point. A daemon writes at most 32 and 16.
const WIDEST: usize = 64;
/// Milliseconds between two points: shortest and longest.
const INTERVALS: Range<i64> = 1..3_600_000;
/// Intervals without a point after which an executor was not measured. Points of a thinned history are up to two apart.
const PATIENCE: i64 = 3;
/// Times beyond which a document is damaged, in milliseconds.
const LATEST: i64 = 8_640_000_000_000_000;

/// Names of an RDD in a worker's document.
#[derive(Deserialize)]
struct Named {
    rdd_id: Option<u32>,
    name: Option<String>,
}

/// Both clocks of a worker at one moment.
#[derive(Deserialize)]
struct Written {
    written_unix_ms: Option<u64>,
    written_boot_ns: Option<u64>,
}

/// What is read before the clocks are known.
#[derive(Default)]
struct Reading {
    rows: Vec<(Run, HistoryRow)>,
    limits: BTreeMap<(Run, String, u32), Vec<Limit>>,
    names: BTreeMap<u32, String>,
    ids: BTreeSet<u32>,
    written: BTreeMap<Run, Option<i64>>,
    points: usize,
    left_out: u64,
    bytes: usize,
}

/// Changes when a file of the application changes.
#[must_use]
pub fn state(files: &Files) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hash = DefaultHasher::new();
    for file in files.all() {
        file.path.hash(&mut hash);
        if let Ok(metadata) = std::fs::symlink_metadata(&file.path) {
            let time = (metadata.mtime(), metadata.mtime_nsec());
            (metadata.len(), metadata.ino(), time).hash(&mut hash);
        }
    }
    hash.finish()
}

/// Documents of a kind in a file, which take their bytes from `left`.
fn documents(
    reader: &Reader,
    kinds: &[Option<String>],
    kind: &str,
    left: &mut usize,
) -> Result<Vec<String>, Trouble> {
    let rows = ranges(kinds.iter().map(|it| it.as_deref() == Some(kind)));
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let all = texts(reader, "json", &rows, left)?;
    Ok(all.into_iter().flatten().collect())
}

fn is_narrow(point: &Point) -> bool {
    let pages = || point.rdds.iter().filter_map(|rdd| rdd.pages.as_ref());
    let sizes = pages()
        .filter_map(|pages| pages.page_sizes.as_ref())
        .all(|it| it.len() <= WIDEST);
    let nodes = pages()
        .filter_map(|pages| pages.nodes.as_ref())
        .all(|it| it.len() <= WIDEST);
    point.rdds.len() <= WIDEST && sizes && nodes
}

impl Reading {
    /// Reads a file, without what it has of executors that have `ended`.
    fn file(
        &mut self,
        file: &WorkerFile,
        ended: Option<&Ended>,
        left: &mut usize,
    ) -> Result<(), Trouble> {
        let Some(reader) = opened(file)? else {
            return Ok(());
        };
        let run: Run = (file.name.host.clone(), file.name.run);
        let has_ended = |who: &ExecutorId| {
            let executor = who.executor_id.as_deref().unwrap_or_default();
            ended.is_some_and(|ended| ended.has(executor, who.pid.into()))
        };
        let kinds = kinds(&reader)?;
        for text in documents(&reader, &kinds, "history", left)? {
            self.bytes += text.len();
            match serde_json::from_str::<HistoryRow>(&text) {
                Ok(row) if has_ended(&row.who) => {}
                Ok(row) => self.history(&run, row),
                Err(_) => self.left_out += 1,
            }
        }
        for text in documents(&reader, &kinds, "memory", left)? {
            match serde_json::from_str::<MemoryRow>(&text) {
                Ok(row) if has_ended(&row.who) => {}
                Ok(row) => self.limits(&run, &row),
                Err(_) => self.left_out += 1,
            }
        }
        for text in documents(&reader, &kinds, "rdd", left)? {
            let Ok(Named {
                rdd_id: Some(id),
                name: Some(name),
            }) = serde_json::from_str(&text)
            else {
                continue;
            };
            if self.ids.contains(&id) {
                self.names.entry(id).or_insert_with(|| cut(&name));
            }
        }
        let known = self.written.entry(run).or_default();
        for text in documents(&reader, &kinds, "worker", left)? {
            let Ok(Written {
                written_unix_ms: Some(unix_ms),
                written_boot_ns: Some(boot_ns),
            }) = serde_json::from_str(&text)
            else {
                continue;
            };
            let boot = i64::try_from(boot_ns / 1_000_000).unwrap_or(0);
            let unix = i64::try_from(unix_ms).ok().filter(|it| *it <= LATEST);
            *known = unix.map(|unix| unix - boot).or(*known);
        }
        Ok(())
    }

    fn history(&mut self, run: &Run, mut row: HistoryRow) {
        let before = row.points.len();
        row.points.retain(is_narrow);
        row.points.truncate(POINTS.min(ALL_POINTS - self.points));
        self.left_out += (before - row.points.len()) as u64;
        self.points += row.points.len();
        let rdds = row.points.iter().flat_map(|point| &point.rdds);
        self.ids.extend(rdds.filter_map(|rdd| rdd.rdd_id));
        for point in &mut row.points {
            point.stages = Vec::new();
        }
        if !row.points.is_empty() {
            self.rows.push((run.clone(), row));
        }
    }

    fn limits(&mut self, run: &Run, row: &MemoryRow) {
        let group = row
            .cgroup
            .as_ref()
            .map(|group| format!("{}:{}", run.0, group.path));
        let mut limits: Vec<Limit> = Vec::new();
        for known in &row.limits {
            let Some(kind) = LIMITS.iter().position(|(name, _)| *name == known.name) else {
                continue;
            };
            // Kinds 0 and 1 are both the heap: what the JVM reports comes first and is exact.
            let is_known = |it: &Limit| it.kind == kind || it.kind + kind == 1;
            if limits.iter().any(is_known) {
                continue;
            }
            limits.push(Limit {
                kind,
                bytes: known.limit_bytes.min(1 << 50),
                group: group.clone().filter(|_| known.name == "memory.max"),
            });
        }
        let of = |name: &str| {
            let found = row.limits.iter().find(|limit| limit.name == name);
            found.map(|limit| limit.limit_bytes)
        };
        let heap = of("spark.executor.memory").or(of("-Xmx"));
        if let Some((heap, overhead)) = heap.zip(of("spark.executor.memoryOverhead")) {
            limits.push(Limit {
                kind: 4,
                bytes: heap.saturating_add(overhead).min(1 << 50),
                group: None,
            });
        }
        let executor = row.who.executor_id.clone().unwrap_or_default();
        self.limits
            .insert((run.clone(), executor, row.who.pid), limits);
    }
}

/// The most that Spark gives to storage and execution, of executors that its log knows.
fn max_memory(app: &App, executor: &str) -> Option<u64> {
    let text = app.one(Kind::Executor, executor)?;
    let json: Value = serde_json::from_str(text).ok()?;
    json["maxMemory"].as_u64().filter(|bytes| *bytes > 0)
}

/// Points on the time line's time, each until the next one where that is near.
fn moments(row: HistoryRow, boot_ms: i64, start: i64) -> (i64, Vec<Moment>) {
    let interval = i64::try_from(row.interval_ns / 1_000_000).unwrap_or(i64::MAX);
    let interval = interval.clamp(INTERVALS.start, INTERVALS.end);
    let place = |point: Point| {
        let at = i64::try_from(point.time_ns / 1_000_000).unwrap_or(0);
        let at = boot_ms.saturating_add(at).clamp(0, LATEST) - start;
        Moment {
            at,
            until: at + interval,
            collections: point.collections,
            page_faults: point.page_faults,
            rdds: point.rdds,
        }
    };
    let mut all: Vec<Moment> = row.points.into_iter().map(place).collect();
    all.sort_by_key(|moment| moment.at);
    all.dedup_by_key(|moment| moment.at);
    let next: Vec<i64> = all.iter().skip(1).map(|moment| moment.at).collect();
    for (moment, next) in all.iter_mut().zip(next) {
        if next - moment.at <= interval * PATIENCE {
            moment.until = next;
        }
    }
    (interval, all)
}

/// Ends what one daemon reports where the next one begins, and finds times that are not measured.
fn gaps(histories: &mut [History]) -> Vec<Gap> {
    let mut gaps = Vec::new();
    for at in 0..histories.len() {
        let (before, rest) = histories.split_at_mut(at);
        let this = &rest[0];
        let Some(first) = this.moments.first().map(|moment| moment.at) else {
            continue;
        };
        let is_same = |it: &&mut History| {
            it.executor == this.executor && it.pid == this.pid && it.worker == this.worker
        };
        if let Some(earlier) = before.last_mut().filter(is_same) {
            earlier.moments.retain(|moment| moment.at < first);
            if let Some(last) = earlier.moments.last_mut() {
                last.until = last.until.min(first);
                gaps.push(Gap {
                    executor: this.executor.clone(),
                    from: last.until,
                    to: first,
                    is_restart: earlier.run != this.run,
                });
            }
        }
        for pair in this.moments.windows(2) {
            if pair[0].until < pair[1].at {
                gaps.push(Gap {
                    executor: this.executor.clone(),
                    from: pair[0].until,
                    to: pair[1].at,
                    is_restart: false,
                });
            }
        }
    }
    gaps.sort_by_key(|gap| (gap.from, gap.to));
    gaps
}

/// Reads what the workers wrote about an application's memory.
///
/// # Errors
/// When a file cannot be read, or the documents are too many.
pub fn read(files: &Files, app: &App, model: &Model) -> Result<Memory, Trouble> {
    let mut reading = Reading::default();
    let mut left = BYTES;
    let ended = files.ended(&mut left)?;
    for file in files.of_table(REST.name) {
        let of_run = ended.get(&(file.name.host.as_str(), file.name.run));
        let of_run = of_run.filter(|_| !Ended::is_part(&file.name));
        reading.file(file, of_run, &mut left)?;
    }
    let clocks: Vec<Clock> = clocks(files, model, &reading.written);
    let boot = |run: &Run| {
        let same = |clock: &&Clock| clock.worker == run.0 && clock.run == run.1;
        clocks.iter().find(same).and_then(|clock| clock.boot_ms)
    };
    let mut memory = Memory {
        has_workers: !files.is_empty(),
        executors: model.executors.len(),
        left_out: reading.left_out,
        bytes: reading.bytes,
        ..Memory::default()
    };
    for (run, row) in reading.rows {
        let executor = row.who.executor_id.clone().unwrap_or_default();
        let pid = row.who.pid;
        let Some(boot_ms) = boot(&run) else {
            memory.undated += 1;
            continue;
        };
        let (interval_ms, moments) = moments(row, boot_ms, model.start);
        let key = (run, executor, pid);
        let mut limits = reading.limits.get(&key).cloned().unwrap_or_default();
        limits.extend(max_memory(app, &key.1).map(|bytes| Limit {
            kind: 2,
            bytes: bytes.min(1 << 50),
            group: None,
        }));
        let ((worker, run), executor, pid) = key;
        memory.histories.push(History {
            executor: cut(&executor),
            pid,
            worker,
            run,
            interval_ms,
            moments,
            limits,
        });
    }
    memory.histories.sort_by(|left, right| {
        let key = |it: &History| {
            let number = it.executor.parse::<u64>().unwrap_or(u64::MAX);
            let first = it.moments.first().map(|moment| moment.at);
            (
                number,
                it.executor.clone(),
                it.worker.clone(),
                it.pid,
                first,
                it.run,
            )
        };
        key(left).cmp(&key(right))
    });
    memory.gaps = gaps(&mut memory.histories);
    memory
        .histories
        .retain(|history| !history.moments.is_empty());
    let measured: BTreeSet<&str> = memory
        .histories
        .iter()
        .map(|it| it.executor.as_str())
        .collect();
    let all = model
        .executors
        .iter()
        .filter(|it| !measured.contains(it.id.as_str()));
    memory.unmeasured = all.map(|it| cut(&it.id)).collect();
    for id in reading
        .ids
        .difference(&reading.names.keys().copied().collect())
    {
        let text = app.one(Kind::Rdd, &id.to_string());
        let json = text.and_then(|text| serde_json::from_str::<Value>(text).ok());
        if let Some(name) = json.as_ref().and_then(|json| json["name"].as_str()) {
            memory.names.insert(*id, cut(name));
        }
    }
    memory.names.append(&mut reading.names);
    memory.clocks = clocks;
    Ok(memory)
}
