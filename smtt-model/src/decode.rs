//! Bytes -> [`Event`]. The decoder is total: it never panics, whatever bytes a foreign process wrote.
//!
//! The schemas of marker facts are in [`smtt_common::event::marker::MARKER_FACTS`]; records of the kernel side are
//! fixed structs. A payload that is too short, or holds an impossible id, is an error with a cause for the loss ledger.
//! Fields after the last known one are ignored.
//!
//! `marker` and `kernel` choose the decoder of a record by its kind. Each family of facts has one module with its
//! structs and their decoders: `executor`, `rdd`, `stage`, `task`, `block`, and so on.

mod block;
mod death;
#[cfg(any(test, feature = "encode"))]
pub mod encode;
mod error;
mod execution_memory;
mod executor;
mod fact;
mod fetch;
mod fields;
mod kernel;
mod marker;
mod memory;
mod metrics;
mod rdd;
mod stage;
mod task;

use smtt_common::event::{Kind, RecordHeader};

pub use block::{BlockFact, BlockRead, BlockRemoved, Contents};
pub use death::{Exhausted, OomKilled, ProcessEnd, SignalSent};
pub use error::DecodeError;
pub use execution_memory::{ConsumerUsed, PageAllocated, PageFreed};
pub use executor::{ExecutorDescribed, Paused, ThreadFact};
pub use fact::Fact;
pub use fetch::Fetched;
pub use memory::{Figure, MemoryReported, PeaksReported};
pub use metrics::{SPARK_METRICS, SPARK_TIMES, TaskMetrics};
pub use rdd::RddDescribed;
pub use stage::{JobDescribed, StageDescribed};
pub use task::{Outcome, PythonWorker, Span, TaskEnded, TaskHeap, TaskStarted};

/// One decoded record: time, process and fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since boot.
    pub time_ns: u64,
    /// Key of the executor; zero where the kernel side does not know it.
    pub executor: u64,
    /// Process id in the initial pid namespace.
    pub pid: u32,
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// User of the executor's process, as the kernel reports it, in the initial user namespace.
    pub uid: u32,
    /// The fact that the record reports.
    pub fact: Fact,
}

/// Decodes one record.
///
/// # Errors
/// When the kind is unknown, the payload is shorter than its schema, or an id is impossible.
pub fn decode(header: &RecordHeader, payload: &[u8]) -> Result<Event, DecodeError> {
    decode_cut(header, payload).map(|(event, _)| event)
}

/// As [`decode`]; also returns the number of strings that were cut to the limits of the schema. The marker cuts its
/// strings there, so a longer one does not come from a marker.
///
/// # Errors
/// As [`decode`].
pub fn decode_cut(header: &RecordHeader, payload: &[u8]) -> Result<(Event, u32), DecodeError> {
    let kind = Kind(header.kind);
    let stated = usize::try_from(header.payload_bytes).unwrap_or(usize::MAX);
    if payload.len() < stated {
        return Err(DecodeError::Truncated {
            kind,
            field: "payload",
        });
    }
    let payload = &payload[..stated];
    let (mut fact, cut) = match smtt_common::event::marker::schema(kind) {
        Some(schema) => marker::decode(schema, payload)?,
        None => (kernel::decode(kind, payload)?, 0),
    };
    if let Fact::BlockRead(read) = &mut fact {
        // The node comes from the kernel side, not from the marker.
        read.node = header.node_plus_one.checked_sub(1).map(u32::from);
    }
    let event = Event {
        time_ns: header.time_ns,
        executor: header.executor,
        pid: header.pid,
        tid: header.tid,
        uid: header.uid,
        fact,
    };
    Ok((event, cut))
}

#[cfg(test)]
mod tests;
