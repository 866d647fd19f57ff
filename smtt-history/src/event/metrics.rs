//! Metrics of a task, and peaks of an executor, in the order of the table's columns.

use std::borrow::Cow;
use std::fmt;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use smtt_store::history::columns::{METRICS, PEAKS};

/// Peaks of an executor's memory and collections, in the order of [`PEAKS`]. Absent ones were not in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks(pub [Option<i64>; PEAKS.len()]);

impl Peaks {
    /// Takes the larger value of each; whether any value is larger.
    pub fn raise(&mut self, other: &Self) -> bool {
        let mut any = false;
        for (mine, other) in self.0.iter_mut().zip(other.0) {
            if other > *mine {
                *mine = other;
                any = true;
            }
        }
        any
    }

    /// Whether any peak is known.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.iter().any(Option::is_some)
    }
}

impl<'de> Deserialize<'de> for Peaks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfMap;
        impl<'de> Visitor<'de> for OfMap {
            type Value = Peaks;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("metrics by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Peaks, A::Error> {
                let mut peaks = Peaks::default();
                // Spark writes them in this order, so the next name is nearly always the expected one.
                let mut expected = 0;
                while let Some(name) = map.next_key::<Cow<'de, str>>()? {
                    let at = match PEAKS.get(expected) {
                        Some(peak) if peak.1 == name => Some(expected),
                        _ => PEAKS.iter().position(|peak| peak.1 == name),
                    };
                    match at {
                        Some(at) => {
                            peaks.0[at] = Some(map.next_value()?);
                            expected = at + 1;
                        }
                        None => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                // Spark's value for peaks that were not measured; the other figures are zero then.
                if peaks.0[0].is_some_and(|heap| heap < 0) {
                    peaks = Peaks::default();
                }
                Ok(peaks)
            }
        }
        deserializer.deserialize_map(OfMap)
    }
}

/// A group of numbers of which some may be missing, as older versions of Spark leave them out.
macro_rules! numbers {
    ($(#[$doc:meta])* $name:ident { $($field:ident = $key:literal),* $(,)? } $($more:tt)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Deserialize)]
        #[serde(default)]
        pub struct $name {
            $(#[serde(rename = $key)] $field: i64,)*
            $($more)*
        }
    };
}

numbers! {
    /// "Input Metrics" of a task: what it read from files and other sources.
    Input { bytes = "Bytes Read", records = "Records Read" }
}
numbers! {
    /// "Output Metrics" of a task: what it wrote to files and other sinks.
    Output { bytes = "Bytes Written", records = "Records Written" }
}
numbers! {
    /// "Shuffle Write Metrics".
    Write {
        bytes = "Shuffle Bytes Written",
        time = "Shuffle Write Time",
        records = "Shuffle Records Written",
    }
}
numbers! {
    /// "Push Based Shuffle".
    Push {
        corrupt = "Corrupt Merged Block Chunks",
        fallbacks = "Merged Fetch Fallback Count",
        remote_blocks = "Merged Remote Blocks Fetched",
        local_blocks = "Merged Local Blocks Fetched",
        remote_chunks = "Merged Remote Chunks Fetched",
        local_chunks = "Merged Local Chunks Fetched",
        remote_bytes = "Merged Remote Bytes Read",
        local_bytes = "Merged Local Bytes Read",
        remote_requests = "Merged Remote Requests Duration",
    }
}
numbers! {
    /// "Shuffle Read Metrics".
    Read {
        remote_blocks = "Remote Blocks Fetched",
        local_blocks = "Local Blocks Fetched",
        wait = "Fetch Wait Time",
        remote_bytes = "Remote Bytes Read",
        to_disk = "Remote Bytes Read To Disk",
        local_bytes = "Local Bytes Read",
        records = "Total Records Read",
        requests = "Remote Requests Duration",
    }
    #[serde(rename = "Push Based Shuffle")] push: Push,
}
numbers! {
    /// "Task Metrics" at the end of a task.
    TaskMetrics {
        deserialize = "Executor Deserialize Time",
        deserialize_cpu = "Executor Deserialize CPU Time",
        run = "Executor Run Time",
        cpu = "Executor CPU Time",
        result = "Result Size",
        gc = "JVM GC Time",
        serialize = "Result Serialization Time",
        memory_spilled = "Memory Bytes Spilled",
        disk_spilled = "Disk Bytes Spilled",
        peak = "Peak Execution Memory",
    }
    #[serde(rename = "Peak On Heap Execution Memory")]
    #[doc = "Since Spark 4."]
    pub peak_on_heap: Option<i64>,
    #[serde(rename = "Peak Off Heap Execution Memory")]
    #[doc = "Since Spark 4."]
    pub peak_off_heap: Option<i64>,
    #[serde(rename = "Input Metrics")] input: Input,
    #[serde(rename = "Output Metrics")] output: Output,
    #[serde(rename = "Shuffle Read Metrics")] read: Read,
    #[serde(rename = "Shuffle Write Metrics")] write: Write,
}

impl TaskMetrics {
    /// The metrics that Spark's REST API shows, in the order of the table's columns.
    #[must_use]
    pub const fn values(&self) -> [i64; METRICS] {
        let (read, push) = (&self.read, &self.read.push);
        [
            self.deserialize,
            self.deserialize_cpu,
            self.run,
            self.cpu,
            self.result,
            self.gc,
            self.serialize,
            self.memory_spilled,
            self.disk_spilled,
            self.peak,
            self.input.bytes,
            self.input.records,
            self.output.bytes,
            self.output.records,
            read.remote_blocks,
            read.local_blocks,
            read.wait,
            read.remote_bytes,
            read.to_disk,
            read.local_bytes,
            read.records,
            read.requests,
            push.corrupt,
            push.fallbacks,
            push.remote_blocks,
            push.local_blocks,
            push.remote_chunks,
            push.local_chunks,
            push.remote_bytes,
            push.local_bytes,
            push.remote_requests,
            self.write.bytes,
            self.write.time,
            self.write.records,
        ]
    }
}

/// Positions in [`TaskMetrics::values`] that have a meaning of their own.
pub mod at {
    /// Executor Deserialize Time.
    pub const DESERIALIZE: usize = 0;
    /// Executor Run Time.
    pub const RUN: usize = 2;
    /// JVM GC Time.
    pub const GC: usize = 5;
    /// Result Serialization Time.
    pub const SERIALIZE: usize = 6;
    /// Memory Bytes Spilled.
    pub const MEMORY_SPILLED: usize = 7;
    /// Disk Bytes Spilled.
    pub const DISK_SPILLED: usize = 8;
    /// Input Metrics: Bytes Read.
    pub const INPUT_BYTES: usize = 10;
    /// Remote Blocks Fetched.
    pub const REMOTE_BLOCKS: usize = 14;
    /// Local Blocks Fetched.
    pub const LOCAL_BLOCKS: usize = 15;
    /// Remote Bytes Read.
    pub const REMOTE_BYTES: usize = 17;
    /// Local Bytes Read.
    pub const LOCAL_BYTES: usize = 19;
    /// Total Records Read.
    pub const READ_RECORDS: usize = 20;
    /// Shuffle Bytes Written.
    pub const WRITE_BYTES: usize = 31;
    /// Shuffle Records Written.
    pub const WRITE_RECORDS: usize = 33;
}
