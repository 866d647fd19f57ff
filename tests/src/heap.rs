//! An application that fills memory of every kind with recognisable patterns, and checks that SMTT reports the right
//! addresses. The witness is `/proc/PID/mem`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use xtask::spark::Application;

use crate::json::{list, number, text};
use crate::lab::{LabDaemon, Run, SparkLab};
use crate::records::tracing;
use crate::witness;

/// The daemon finds an executor with its scan, and trace records arrive with their segments.
pub const LIMIT: Duration = Duration::from_secs(300);
/// Part of the bytes at reported addresses that must be the pattern, in hundredths: the rest is the serialiser's own.
const PATTERN_PERCENT: usize = 90;
/// Bytes of the records that a sorting task has inserted when it waits.
const SORTED_BYTES: usize = 150 * 4096;
/// Objects of each block that the marker samples.
pub const SAMPLED: usize = 32;
/// Most bytes of an object with one number in it, with any header of the JVM.
pub const MARK_BYTES: usize = 24;
/// Bytes of the numbers in each block.
const NUMBERS_BYTES: usize = 100_000 * 8;

/// How long the daemon may need to learn of a collection: it reads the number of begun collections with its tick, and
/// moves arrive through the ring.
const LEARNED: Duration = Duration::from_secs(30);
/// Tasks of the second stage of a job that sorts in objects, as the application has partitions there.
const REDUCERS: u64 = 4;

/// Which memory on the heap has addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// All memory; of blocks of objects a sample.
    All,
    /// Memory in primitive arrays.
    Arrays,
    /// No memory.
    Nothing,
}

/// The application, and the daemon that traces it.
#[derive(Debug)]
pub struct Subject<'lab> {
    /// The daemon.
    pub daemon: LabDaemon<'lab>,
    /// The application.
    pub run: Run,
    trace: PathBuf,
    pid: u32,
    /// Task attempt id of the last task that sorted.
    sorted: u64,
}

/// The application on a JVM with those options, at its first gate.
///
/// # Errors
/// When it does not get there, or no executor is found.
pub fn start<'lab>(lab: &'lab SparkLab, java_options: &[&str]) -> Result<Subject<'lab>> {
    let trace = lab.folder().join("trace");
    let daemon = lab.daemon_with(&tracing(&trace, ""))?;
    let mut application = Application::java(&lab.paths, "local[2]", "Addresses", &[])?;
    for (key, value) in [
        // The pattern is to be seen in memory.
        ("spark.rdd.compress", "false"),
        ("spark.broadcast.compress", "false"),
        ("spark.sql.inMemoryColumnarStorage.compressed", "false"),
        ("spark.memory.offHeap.size", "64m"),
        ("spark.driver.memory", "640m"),
        // What is sorted lies in one page.
        ("spark.buffer.pageSize", "1m"),
        // Small collections ask for memory too.
        ("spark.shuffle.spill.initialMemoryThreshold", "1024"),
        ("spark.sql.shuffle.partitions", "2"),
    ] {
        application = application.conf(key, value);
    }
    for option in java_options {
        application = application.java_option(option);
    }
    let mut run = lab.run(application.with_marker(&lab.paths))?;
    run.reach("cached")?;
    let start = Instant::now();
    let pid = loop {
        let rows = run.rows(&daemon, &["executors"])?;
        if let [row] = rows.as_slice() {
            break number(row, "pid")? as u32;
        }
        ensure!(start.elapsed() < LIMIT, "no executor: {rows:?}");
        std::thread::sleep(Duration::from_millis(200));
    };
    Ok(Subject {
        daemon,
        run,
        trace,
        pid,
        sorted: 0,
    })
}

/// Bytes of `memory` that are part of whole patterns.
fn covered(memory: &[u8], pattern: &[u8]) -> usize {
    let mut count = 0;
    let mut at = 0;
    while at + pattern.len() <= memory.len() {
        if memory[at..].starts_with(pattern) {
            count += pattern.len();
            at += pattern.len();
        } else {
            at += 1;
        }
    }
    count
}

/// Address and length of each range.
pub type Ranges = Vec<(u64, usize)>;

/// Address of pages by consumer and size in bytes.
type PageAddresses = BTreeMap<(String, u64), u64>;

impl Subject<'_> {
    /// The executor's row.
    ///
    /// # Errors
    /// When the application has no executor.
    pub fn executor(&self) -> Result<Value> {
        let rows = self.run.rows(&self.daemon, &["executors"])?;
        rows.into_iter().next().context("no executor")
    }

    /// Asks while nothing is stale, and asks again if a collection came in between: the JVM may collect at any time. A
    /// wrong answer is retried while the daemon may not have learned of the last collection.
    ///
    /// # Errors
    /// When addresses stay stale, or the answer stays wrong.
    pub fn between_collections<T>(&self, ask: impl Fn() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let mut wrong_since: Option<Instant> = None;
        loop {
            let before = self.executor()?;
            let answer = (before["heap_addresses"] == "current").then(&ask);
            let after = self.executor()?;
            let quiet = after["heap_addresses"] == "current"
                && before["collections"] == after["collections"];
            match answer {
                Some(Ok(answer)) if quiet => return Ok(answer),
                Some(Err(error)) if quiet => {
                    let since = *wrong_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > LEARNED {
                        return Err(error);
                    }
                    println!("asked again: {error:#}");
                }
                _ => ensure!(
                    start.elapsed() < LIMIT,
                    "addresses do not become current: {before:#}"
                ),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Checks that ranges hold the pattern.
    fn hold(&self, what: &str, pattern: &str, ranges: &Ranges) -> Result<()> {
        let (mut bytes, mut found) = (0, 0);
        for (address, length) in ranges {
            let memory = witness::memory(self.pid, *address, *length)?;
            bytes += length;
            found += covered(&memory, pattern.as_bytes());
        }
        ensure!(
            bytes > 0 && found * 100 >= bytes * PATTERN_PERCENT,
            "{what}: {found} of {bytes} bytes are {pattern}: {ranges:x?}"
        );
        Ok(())
    }

    /// Checks that ranges hold the pattern, in the form that the RDD's records have.
    fn hold_as(&self, name: &str, pattern: &str, ranges: &Ranges) -> Result<()> {
        if name == "nums" {
            let length = ranges.first().map_or(0, |range| range.1);
            ensure!(length == NUMBERS_BYTES, "all of the array: {ranges:x?}");
        }
        if name != "mark" {
            return self.hold(name, pattern, ranges);
        }
        // Each object holds the pattern once.
        for (address, length) in ranges {
            let memory = witness::memory(self.pid, *address, *length)?;
            ensure!(
                *length <= MARK_BYTES && covered(&memory, pattern.as_bytes()) == pattern.len(),
                "{name}: at {address:#x} is no {pattern} but {memory:x?}"
            );
        }
        Ok(())
    }

    /// Checks that every block holds the application's pattern; returns the blocks' ranges, by name.
    ///
    /// # Errors
    /// When a block does not hold its pattern, or is missing.
    pub fn check_blocks(&self, told: Told) -> Result<BTreeMap<String, Ranges>> {
        let rdds = self.run.rows(&self.daemon, &["rdds"])?;
        let mut seen = BTreeMap::new();
        for name in [
            "serialised",
            "disk too",
            "off-heap",
            "objects",
            "mark",
            "nums",
        ] {
            let rdd = rdds
                .iter()
                .find(|row| row["name"].as_str() == Some(name))
                .with_context(|| format!("no RDD {name} in {rdds:#?}"))?;
            let id = number(rdd, "rdd_id")?.to_string();
            let blocks = self.run.rows(&self.daemon, &["blocks", "--rdd", &id])?;
            ensure!(blocks.len() == 2, "{name}: {blocks:#?}");
            for block in &blocks {
                let ranges = ranges(block)?;
                let pattern = format!("<{name}/{}>", number(block, "partition")?);
                let (contents, count) = match name {
                    "objects" | "mark" => ("objects", SAMPLED),
                    "nums" => ("array", 1),
                    _ => ("bytes", ranges.len()),
                };
                ensure!(block["contents"] == contents, "{name}: {block:#}");
                let has = match told {
                    _ if name == "off-heap" => true,
                    Told::All => true,
                    Told::Arrays => contents != "objects",
                    Told::Nothing => false,
                };
                if has {
                    ensure!(ranges.len() == count, "{name}: {block:#}");
                    self.hold_as(name, &pattern, &ranges)?;
                } else {
                    ensure!(ranges.is_empty(), "no address is reported: {block:#}");
                }
                seen.insert(text(block, "block_id")?, ranges);
            }
        }
        if told != Told::Nothing {
            self.check_others(&mut seen)?;
        }
        Ok(seen)
    }

    /// Checks the columns of the cached DataFrame, and the broadcast.
    fn check_others(&self, seen: &mut BTreeMap<String, Ranges>) -> Result<()> {
        let (mut columns, mut pieces) = (0, 0);
        for block in self.run.rows(&self.daemon, &["blocks"])? {
            let (id, ranges) = (text(&block, "block_id")?, ranges(&block)?);
            if block["contents"] == "columns" {
                let pattern = format!("<columns/{}>", number(&block, "partition")?);
                self.hold(&id, &pattern, &ranges)?;
                columns += 1;
            } else if id.starts_with("broadcast_") && id.contains("_piece") {
                let length: usize = ranges.iter().map(|(_, length)| length).sum();
                ensure!(length > 0, "a broadcast piece without addresses: {block:#}");
                // Other broadcasts are the application's code.
                if length > 1 << 20 {
                    self.hold(&id, "<broadcast/0>", &ranges)?;
                    pieces += 1;
                }
            } else {
                continue;
            }
            seen.insert(id, ranges);
        }
        ensure!(
            columns == 2 && pieces > 0,
            "{columns} blocks of columns, {pieces} pieces of the broadcast"
        );
        Ok(())
    }

    /// Trace records of the application that are on the disk so far.
    ///
    /// # Errors
    /// When the daemon's client does not answer.
    pub fn records(&self) -> Result<Vec<Value>> {
        let application = self.run.submitted.application_id()?;
        let folder = self.trace.display().to_string();
        let said = self.daemon.ask(&[
            "trace",
            "--folder",
            &folder,
            "--app",
            &application,
            "--json",
        ])?;
        said.lines()
            .map(|line| serde_json::from_str(line).context("a record is not JSON"))
            .collect()
    }

    /// Pages that the only task of a kind holds according to its records: the last address by consumer and size.
    fn pages(&self, since: usize) -> Result<PageAddresses> {
        let mut pages = BTreeMap::new();
        for record in self.records()?.iter().skip(since) {
            let consumer = record["consumer"].as_str().unwrap_or_default().to_owned();
            let key = |length: &Value| Some((consumer.clone(), length.as_u64()?));
            match (record["kind"].as_str(), record["virtual_address"].as_u64()) {
                (Some("allocate" | "alive"), Some(address)) if record["region"] == "execution" => {
                    pages.extend(key(&record["length_bytes"]).map(|key| (key, address)));
                }
                (Some("free"), Some(_)) => {
                    key(&record["length_bytes"]).and_then(|key| pages.remove(&key));
                }
                _ => {}
            }
        }
        Ok(pages)
    }

    /// Number of recorded moves of blocks; records arrive with their segments.
    ///
    /// # Errors
    /// When no block moves.
    pub fn moves(&self) -> Result<usize> {
        let start = Instant::now();
        loop {
            let records = self.records()?;
            let moves = records.iter().filter(|record| record["kind"] == "move");
            match moves.count() {
                0 => ensure!(
                    start.elapsed() < LIMIT,
                    "nothing moved, so nothing was tried"
                ),
                moves => return Ok(moves),
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    /// At a gate of a task that sorts, checks that the task's pages hold its records.
    fn check_pages(&mut self, name: &str, gate: &str, since: usize) -> Result<()> {
        self.run.reach(gate)?;
        let start = Instant::now();
        let pattern = format!("<{name}/0>");
        loop {
            let found = self.between_collections(|| {
                let pages = self.pages(since)?;
                let mut found = 0;
                for ((_, length), address) in &pages {
                    // A page that was reported a moment ago may be freed by now, with the record of the free still in
                    // flight.
                    let memory = witness::memory(self.pid, *address, *length as usize);
                    found += memory.map_or(0, |memory| covered(&memory, pattern.as_bytes()));
                }
                Ok((found, pages))
            })?;
            if found.0 * 100 >= SORTED_BYTES * PATTERN_PERCENT {
                println!(
                    "{gate}: {} of {SORTED_BYTES} bytes in {:x?}",
                    found.0, found.1
                );
                return Ok(());
            }
            if start.elapsed() > LIMIT {
                bail!(
                    "{gate}: {} of {SORTED_BYTES} bytes {pattern} are in the pages {:x?}",
                    found.0,
                    found.1
                );
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    /// Checks a way of sorting that keeps its records in pages.
    ///
    /// # Errors
    /// When the pages do not hold the records.
    pub fn sorts_in_pages(&mut self, name: &str) -> Result<()> {
        let since = self.records()?.len();
        let (first, second) = (name.to_owned(), format!("{name}-collected"));
        self.check_pages(name, &first, since)?;
        self.run.open(&first)?;
        self.check_pages(name, &second, since)?;
        self.run.open(&second)
    }

    /// Checks Spark's sorter for objects: Spark grants it memory, which lies somewhere on the heap.
    ///
    /// # Errors
    /// When the sorter gets no grant, or has pages.
    pub fn sorts_in_objects(&mut self, name: &str) -> Result<()> {
        let since = self.records()?.len();
        let (first, second) = (name.to_owned(), format!("{name}-collected"));
        self.run.reach(&first)?;
        // Records of earlier tasks may still arrive: only the task with such a grant counts.
        let granted = |record: &&Value| {
            record["kind"] == "allocate"
                && record["virtual_address"].is_null()
                && record["consumer"]
                    .as_str()
                    .is_some_and(|consumer| consumer.starts_with("External"))
        };
        let start = Instant::now();
        let task = loop {
            if let Some(grant) = self.records()?.iter().skip(since).find(granted) {
                break number(grant, "task_attempt_id")?;
            }
            ensure!(start.elapsed() < LIMIT, "{name} is granted nothing");
            std::thread::sleep(Duration::from_millis(300));
        };
        self.sorted = task;
        self.run.open(&first)?;
        self.run.reach(&second)?;
        let records = self.records()?;
        let paged = |record: &&Value| {
            record["region"] == "execution"
                && record["task_attempt_id"] == task
                && record["virtual_address"].is_u64()
        };
        if let Some(record) = records.iter().find(paged) {
            bail!("{name} has pages: {record:#}");
        }
        self.run.open(&second)
    }

    /// The running task of the job after the one that sorted; it waits at a gate. The end of an earlier task may be
    /// reported after the gate was reached, and the start of this one, too: a task of the sort's second stage is not taken
    /// for it.
    fn running(&self) -> Result<u64> {
        let last_of_sort = self.sorted + REDUCERS;
        let start = Instant::now();
        loop {
            let mut tasks = self.run.rows(&self.daemon, &["tasks"])?;
            tasks.retain(|task| {
                task["state"] == "running" && task["task_attempt_id"].as_u64() > Some(last_of_sort)
            });
            if let [task] = tasks.as_slice() {
                return number(task, "task_attempt_id");
            }
            ensure!(start.elapsed() < LIMIT, "not one task runs: {tasks:#?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Spark's bypass writer, which takes no execution memory, then the sort of a table. The table's pages are reported
    /// later, so once they have arrived no fact of the bypass writer is in flight.
    ///
    /// # Errors
    /// When the bypass writer takes memory, or the table's pages are missing.
    pub fn bypasses_then_sorts(&mut self, name: &str, table: &str) -> Result<()> {
        self.run.reach(name)?;
        let task = self.running()?;
        for gate in [name.to_owned(), format!("{name}-collected")] {
            self.run.reach(&gate)?;
            self.run.open(&gate)?;
        }
        self.sorts_in_pages(table)?;
        let records = self.records()?;
        // A merge of less than a millisecond has no record.
        let merge = records
            .iter()
            .find(|record| record["kind"] == "merge" && record["task_attempt_id"] == task);
        if let Some(merge) = merge {
            let function = merge["consumer"].as_str().unwrap_or_default();
            ensure!(
                function.contains("BypassMergeSort"),
                "{name} went another way: {merge:#}"
            );
        }
        let taken =
            |record: &&Value| record["kind"] == "allocate" && record["task_attempt_id"] == task;
        if let Some(record) = records.iter().find(taken) {
            bail!("{name} takes no execution memory: {record:#}");
        }
        Ok(())
    }

    /// Checks a run under an unsupported collector: no page has an address.
    ///
    /// # Errors
    /// When a page has an address.
    pub fn sorts_without_addresses(&mut self, name: &str) -> Result<()> {
        for gate in [name.to_owned(), format!("{name}-collected")] {
            self.run.reach(&gate)?;
            self.run.open(&gate)?;
        }
        let pages = self.pages(0)?;
        ensure!(pages.is_empty(), "{name}: {pages:x?}");
        Ok(())
    }

    /// Lets the application run to its end.
    ///
    /// # Errors
    /// When its result is wrong.
    pub fn finish(mut self) -> Result<()> {
        let result = self.run.finish(&["end"])?;
        ensure!(
            result.starts_with("RESULT addresses "),
            "it says {result:?}"
        );
        Ok(())
    }
}

/// Ranges of a block that have an address.
fn ranges(block: &Value) -> Result<Ranges> {
    let all: Ranges = list(block, "ranges")?
        .iter()
        .map(|range| Ok((number(range, "address")?, number(range, "length")? as usize)))
        .collect::<Result<_>>()?;
    Ok(all
        .into_iter()
        .filter(|(address, _)| *address != 0)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::covered;

    #[test]
    fn only_whole_patterns_are_counted() {
        assert_eq!(covered(b"..<a/1><a/1>.<a/", b"<a/1>"), 10);
    }
}
