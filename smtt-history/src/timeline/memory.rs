//! Memory over time beneath the tasks: what executors held, by RDD, region of Spark's memory, page size or node, as their
//! workers' daemons wrote it.
//!
//! [`read`] reads the workers' documents once and puts them on Spark's time ([`clock`]); [`cells`] makes the answer for a
//! window of time, of a size that depends on the picture and not on the length of the history; [`parts`] divides a moment.

pub mod cells;
pub mod clock;
pub mod parts;
pub mod peak;
pub mod read;
pub mod serve;
mod sweep;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use smtt_model::state::history::RddPoint;

use self::clock::Clock;

/// Memory of an executor at one moment, and until when it stands for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moment {
    /// Milliseconds since the time line's start.
    pub at: i64,
    /// End of the time that the moment stands for.
    pub until: i64,
    /// Collections that had begun until then; absent where the marker does not count them.
    pub collections: Option<u64>,
    /// Page faults of the executor until then; absent where they are not counted.
    pub page_faults: Option<u64>,
    /// Memory by RDD.
    pub rdds: Vec<RddPoint>,
}

/// A limit of an executor's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Index in [`LIMITS`].
    pub kind: usize,
    /// The limit in bytes.
    pub bytes: u64,
    /// The control group whose limit it is: executors may share one.
    pub group: Option<String>,
}

/// Limits that are lines: name of the setting, and title.
pub const LIMITS: [(&str, &str); 6] = [
    ("-Xmx", "heap (-Xmx)"),
    ("spark.executor.memory", "heap (spark.executor.memory)"),
    ("maxMemory", "storage and execution memory of Spark"),
    (
        "spark.memory.offHeap.size",
        "off heap (spark.memory.offHeap.size)",
    ),
    // Overhead is what the process takes beside the heap: alone it bounds nothing that is drawn.
    ("heap + spark.executor.memoryOverhead", "heap and overhead"),
    ("memory.max", "control group (memory.max)"),
];

/// What one daemon wrote about one executor.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Spark's id of the executor.
    pub executor: String,
    /// Process id on the worker.
    pub pid: u32,
    /// Host of the daemon.
    pub worker: String,
    /// Start of the daemon in milliseconds since 1970.
    pub run: u64,
    /// Milliseconds between two moments.
    pub interval_ms: i64,
    /// Moments in order of time.
    pub moments: Vec<Moment>,
    /// Limits of the executor.
    pub limits: Vec<Limit>,
}

/// A time in which an executor was not measured, between two in which it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Spark's id of the executor.
    pub executor: String,
    /// Milliseconds since the time line's start.
    pub from: i64,
    /// Milliseconds since the time line's start.
    pub to: i64,
    /// Whether another run of the worker's daemon measured after it.
    pub is_restart: bool,
}

/// Memory of an application's executors over time.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// By executor and time.
    pub histories: Vec<History>,
    /// Times between moments of one executor that are not measured.
    pub gaps: Vec<Gap>,
    /// Names of RDDs.
    pub names: BTreeMap<u32, String>,
    /// How the clocks of the workers were joined to Spark's.
    pub clocks: Vec<Clock>,
    /// Whether any worker wrote about the application.
    pub has_workers: bool,
    /// Executors with tasks whose memory no worker wrote.
    pub unmeasured: Vec<String>,
    /// Executors with tasks.
    pub executors: usize,
    /// Histories whose daemon wrote no clock.
    pub undated: usize,
    /// Documents that are no histories, and points beyond the bounds.
    pub left_out: u64,
    /// Bytes of the documents.
    pub bytes: usize,
}

impl Memory {
    /// Ids of the measured executors, numbers in their order.
    #[must_use]
    pub fn measured(&self) -> Vec<&str> {
        let mut ids: Vec<&str> = self
            .histories
            .iter()
            .map(|it| it.executor.as_str())
            .collect();
        ids.dedup();
        ids
    }

    /// What a reader has to know of the picture, in sentences.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.has_workers {
            notes.push(
                "No worker has written about this application: set store in [history] of the configuration of the daemons \
                 to the store of this server."
                    .to_owned(),
            );
            return notes;
        }
        if self.histories.is_empty() && self.undated == 0 {
            notes.push(
                "The workers have written no memory over time of this application.".to_owned(),
            );
        }
        if self.undated > 0 {
            notes.push(format!(
                "The memory of {} executors has no place on the time line: their daemons wrote no clock, and no task is \
                 known to both sides.",
                self.undated
            ));
        }
        if !self.unmeasured.is_empty() && !self.histories.is_empty() {
            let names: Vec<&str> = self.unmeasured.iter().take(8).map(String::as_str).collect();
            let more = if self.unmeasured.len() > names.len() {
                " and others"
            } else {
                ""
            };
            notes.push(format!(
                "The workers have not written the memory of {} of {} executors ({}{more}): the sums are without it.",
                self.unmeasured.len(),
                self.executors,
                names.join(", ")
            ));
        }
        if self.left_out > 0 {
            notes.push(format!(
                "{} documents or points were damaged or beyond the bounds, and are left out.",
                self.left_out
            ));
        }
        notes.extend(clock::note(&self.clocks));
        notes
    }
}
