//! Ring -> raw records, in batches.
//!
//! The queue to the event loop is bounded. While it is full nothing is read, the ring fills up, and the kernel side
//! counts what does not fit, so that losses occur in one place.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use aya::maps::{MapData, RingBuf};
use smtt_common::event::RecordHeader;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::Sender;
use tokio::time::sleep;

/// One record as it came from the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The record's header.
    pub header: RecordHeader,
    /// The record's payload: `header.payload_bytes` bytes, or fewer where the record is shorter.
    pub payload: Vec<u8>,
}

/// Records per batch at most.
const BATCH: usize = 256;

/// Counts of what was read from the ring.
#[derive(Debug, Default)]
pub struct SourceCounters {
    /// Records taken out of the ring.
    pub read: AtomicU64,
    /// Records too short for a header.
    pub malformed: AtomicU64,
}

/// How long a record waits in the ring at most. The kernel side wakes the daemon only when a good part of the ring is
/// used: a wake-up for each fact would cost the executor and the daemon more than the fact.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Reads the ring until the receiver is gone.
///
/// # Errors
/// When the ring cannot be waited for.
pub async fn run(
    ring: RingBuf<MapData>,
    batches: Sender<Vec<Record>>,
    counters: Arc<SourceCounters>,
) -> anyhow::Result<()> {
    // SAFETY: the ring owns its descriptor and hands out the same one for as long as it lives.
    let mut ring = unsafe { AsyncFd::register(ring) }.context("the ring cannot be waited for")?;
    loop {
        tokio::select! {
            ready = ring.readable_mut() => ready.context("the ring cannot be waited for")?.clear_ready(),
            () = sleep(LOOK_EVERY) => {}
        }
        loop {
            let batch = next_batch(ring.get_mut(), &counters);
            if batch.is_empty() {
                break;
            }
            if batches.send(batch).await.is_err() {
                return Ok(());
            }
        }
        if batches.is_closed() {
            return Ok(());
        }
    }
}

/// Takes up to a batch of records out of the ring.
pub fn next_batch(ring: &mut RingBuf<MapData>, counters: &SourceCounters) -> Vec<Record> {
    let mut batch = Vec::new();
    while batch.len() < BATCH
        && let Some(item) = ring.next()
    {
        counters.read.fetch_add(1, Ordering::Relaxed);
        match parse(&item) {
            Some(record) => batch.push(record),
            None => {
                counters.malformed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    batch
}

/// Splits a record into header and payload.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<Record> {
    const SIZE: usize = size_of::<RecordHeader>();
    let u16_at = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let header = RecordHeader {
        kind: u16_at(0)?,
        node_plus_one: u16_at(2)?,
        payload_bytes: u32_at(4)?,
        time_ns: u64_at(8)?,
        executor: u64_at(16)?,
        pid: u32_at(24)?,
        tid: u32_at(28)?,
        uid: u32_at(32)?,
        reserved: 0,
    };
    let payload = bytes.get(SIZE..)?;
    let length = payload.len().min(header.payload_bytes as usize);
    Some(Record {
        header,
        payload: payload[..length].to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_split_and_a_short_one_refused() {
        let mut bytes = vec![0; 48];
        bytes[0] = 7;
        bytes[4] = 3;
        bytes[24] = 9;
        bytes[32] = 5;
        bytes[40..44].copy_from_slice(b"abcd");
        let record = parse(&bytes).expect("a whole record");
        assert_eq!(
            (
                record.header.kind,
                record.header.pid,
                record.header.uid,
                record.payload.as_slice()
            ),
            (7, 9, 5, b"abc".as_slice())
        );
        assert_eq!(parse(&bytes[..39]), None);
    }
}
