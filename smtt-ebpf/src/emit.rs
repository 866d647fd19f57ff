//! The only writer to the ring: reserve, fill, submit. A caller that gets `false` or an error counts the loss.

use aya_ebpf::helpers::generated::bpf_probe_read_user;
use smtt_common::counter::Counter;
use smtt_common::event::exit::{ProcessForked, ProcessGone};
use smtt_common::event::fault::FaultSample;
use smtt_common::event::{Kind, PAYLOAD_CLASSES, RecordHeader};

use crate::maps::{RING, count, now_ns};

/// A record with room for `N` bytes of payload.
#[repr(C)]
struct Bytes<const N: usize> {
    header: RecordHeader,
    payload: [u8; N],
}

/// A record of a fixed form.
#[repr(C)]
struct Fixed<T> {
    header: RecordHeader,
    payload: T,
}

/// Why a fact did not reach the ring.
pub enum Lost {
    /// No room.
    RingFull,
    /// The marker's bytes could not be read.
    Unreadable,
}

#[inline(always)]
fn header(kind: Kind, executor: u64, pid: u32, tid: u32, payload_bytes: u32) -> RecordHeader {
    RecordHeader { kind: kind.0, flags: 0, payload_bytes, time_ns: now_ns(), executor, pid, tid }
}

/// Copies a fact of the marker to the ring. `length` is at most the largest class.
#[inline(always)]
pub fn fact(kind: Kind, executor: u64, pid: u32, tid: u32, address: u64, length: u32) -> Result<(), Lost> {
    if length as usize <= PAYLOAD_CLASSES[0] {
        copy::<{ PAYLOAD_CLASSES[0] }>(kind, executor, pid, tid, address, length)
    } else if length as usize <= PAYLOAD_CLASSES[1] {
        copy::<{ PAYLOAD_CLASSES[1] }>(kind, executor, pid, tid, address, length)
    } else {
        copy::<{ PAYLOAD_CLASSES[2] }>(kind, executor, pid, tid, address, length)
    }
}

#[inline(always)]
fn copy<const N: usize>(kind: Kind, executor: u64, pid: u32, tid: u32, address: u64, length: u32) -> Result<(), Lost> {
    let Some(mut entry) = RING.reserve::<Bytes<N>>(0) else {
        return Err(Lost::RingFull);
    };
    let record = entry.as_mut_ptr();
    // The verifier wants the bound next to its use.
    let bounded = if length as usize > N { N as u32 } else { length };
    // SAFETY: the record is N bytes long past its header, and a bad user address is an error value.
    let read = unsafe {
        (*record).header = header(kind, executor, pid, tid, bounded);
        bpf_probe_read_user((&raw mut (*record).payload).cast(), bounded, address as *const _)
    };
    if read != 0 {
        entry.discard(0);
        return Err(Lost::Unreadable);
    }
    entry.submit(0);
    count(Counter::RECORDS_SUBMITTED);
    Ok(())
}

#[inline(always)]
fn fixed<T: 'static>(kind: Kind, executor: u64, pid: u32, tid: u32, payload: T) -> bool {
    let Some(mut entry) = RING.reserve::<Fixed<T>>(0) else {
        return false;
    };
    entry.write(Fixed { header: header(kind, executor, pid, tid, size_of::<T>() as u32), payload });
    entry.submit(0);
    count(Counter::RECORDS_SUBMITTED);
    true
}

/// Sends a sampled fault.
#[inline(always)]
pub fn fault_sample(executor: u64, pid: u32, tid: u32, sample: FaultSample) -> bool {
    fixed(Kind::FAULT_SAMPLE, executor, pid, tid, sample)
}

/// Says that a process of an executor is gone.
#[inline(always)]
pub fn process_gone(executor: u64, pid: u32, tid: u32, gone: ProcessGone) {
    own(fixed(Kind::PROCESS_GONE, executor, pid, tid, gone));
}

/// Says that a process of an executor forked.
#[inline(always)]
pub fn process_forked(executor: u64, pid: u32, tid: u32, forked: ProcessForked) {
    own(fixed(Kind::PROCESS_FORKED, executor, pid, tid, forked));
}

/// Counts a record of the kernel side itself.
#[inline(always)]
fn own(sent: bool) {
    count(Counter::RECORDS_SEEN);
    if !sent {
        count(Counter::RECORDS_RING_FULL);
    }
}
