//! The only writer to the ring: reserve, fill, submit, count. A record is built only after its place is reserved, and
//! the caller counts a record that found no place.

use core::ptr;

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, BPF_RB_RING_SIZE},
    helpers::{
        bpf_get_current_pid_tgid, bpf_ktime_get_boot_ns,
        generated::{bpf_get_numa_node_id, bpf_probe_read_user},
    },
};
use smtt_common::{
    counter::Counter,
    event::{Kind, PAYLOAD_CLASSES, RecordHeader},
};

use crate::{
    maps::{EXECUTORS, RING, add, count},
    shares::{spend, uid},
};

/// Outcome of sending a fact.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The fact is on the ring.
    Sent,
    /// The ring is full.
    RingFull,
    /// The fact's bytes could not be read.
    Unreadable,
}

/// A record as it lies on the ring.
#[repr(C)]
struct Record<P> {
    header: RecordHeader,
    payload: P,
}

/// The header of a record about the running thread.
#[inline(always)]
fn header(kind: Kind, executor: u64, uid: u32, payload_bytes: u32) -> RecordHeader {
    let id = bpf_get_current_pid_tgid();
    RecordHeader {
        kind: kind.0,
        // SAFETY: the helper has no precondition.
        node_plus_one: (unsafe { bpf_get_numa_node_id() } as u16).wrapping_add(1),
        payload_bytes,
        // SAFETY: the helper has no precondition.
        time_ns: unsafe { bpf_ktime_get_boot_ns() },
        executor,
        pid: (id >> 32) as u32,
        tid: id as u32,
        uid,
        reserved: 0,
    }
}

/// Whether to wake the daemon for a record of so many bytes of the ring: only when a good part of the ring is used, and then
/// once for each sixteenth more. It reads the ring by itself many times a second, so a job's steady trickle of facts costs
/// no wake-up each; and a wake-up costs the sender several microseconds, so that a burst must not have one for each record.
#[inline(always)]
fn wakeup(kind: Kind, bytes: u64) -> u64 {
    let used = RING.query(u64::from(BPF_RB_AVAIL_DATA));
    let step = RING.query(u64::from(BPF_RB_RING_SIZE)) / 16;
    // The daemon attaches the hooks of page faults when it learns of the first executor, and reads the limits of a cgroup
    // before the cgroup goes with the victim of the OOM killer.
    if kind == Kind::EXECUTOR_DESCRIBED
        || kind == Kind::OOM_KILLED
        || (used >= 2 * step && used & !(step - 1) != used.wrapping_sub(bytes) & !(step - 1))
    {
        u64::from(BPF_RB_FORCE_WAKEUP)
    } else {
        u64::from(BPF_RB_NO_WAKEUP)
    }
}

/// How many times its size a record costs its sender: the fuller the ring, the more, so that a sender at its limit fills
/// the ring slowly and leaves room to others while the daemon gets no CPU. 0: there is room for everyone.
#[inline(always)]
pub fn ring_price() -> u64 {
    let quarter = RING.query(u64::from(BPF_RB_RING_SIZE)) / 4;
    let used = RING.query(u64::from(BPF_RB_AVAIL_DATA));
    if used <= quarter {
        0
    } else if used <= 2 * quarter {
        1
    } else if used <= 3 * quarter {
        4
    } else {
        32
    }
}

/// Bytes of the ring that a fact with a payload of this length takes.
#[inline(always)]
pub fn ring_bytes(payload: u64) -> u64 {
    let class = if payload <= PAYLOAD_CLASSES[0] as u64 {
        PAYLOAD_CLASSES[0]
    } else if payload <= PAYLOAD_CLASSES[1] as u64 {
        PAYLOAD_CLASSES[1]
    } else {
        PAYLOAD_CLASSES[2]
    };
    (RING_HEADER + size_of::<RecordHeader>() + class) as u64
}

/// Bytes that the kernel's ring puts before each record.
const RING_HEADER: usize = 8;

/// Bytes of the ring that a record with a payload of the kernel side's own takes.
#[inline(always)]
pub const fn record_bytes<P>() -> u64 {
    (RING_HEADER + size_of::<Record<P>>()) as u64
}

/// Puts a record with a payload of the kernel side's own on the ring; false when the ring is full.
#[inline(always)]
pub fn record<P: Copy + 'static>(kind: Kind, executor: u64, uid: u32, payload: &P) -> bool {
    // SAFETY: the place is that large.
    record_with::<P>(kind, executor, uid, |place| unsafe {
        ptr::write(place, *payload);
    })
}

/// As [`record`], for a payload that is too large for the stack: `fill` writes all of it.
#[inline(always)]
fn record_with<P: 'static>(kind: Kind, executor: u64, uid: u32, fill: impl FnOnce(*mut P)) -> bool {
    let Some(mut entry) = RING.reserve::<Record<P>>(0) else {
        return false;
    };
    let record = entry.as_mut_ptr();
    // SAFETY: the entry is that large, aligned to 8 and ours until it is submitted.
    unsafe {
        ptr::write(
            &raw mut (*record).header,
            header(kind, executor, uid, size_of::<P>() as u32),
        );
        fill(&raw mut (*record).payload);
    }
    entry.submit(wakeup(kind, record_bytes::<P>()));
    count(Counter::RECORDS_SUBMITTED);
    true
}

/// As [`record`], for facts of the kernel side itself (fork, exit, tasks), counted by executor. They count against its
/// rate, unless `always`.
#[inline(always)]
pub fn own_record<P: Copy + 'static>(kind: Kind, executor: u64, payload: &P, always: bool) {
    // SAFETY: the place is that large.
    own_record_with::<P>(kind, executor, always, |place| unsafe {
        ptr::write(place, *payload);
    });
}

/// As [`own_record`], for a payload that is too large for the stack: `fill` writes all of it.
#[inline(always)]
pub fn own_record_with<P: 'static>(
    kind: Kind,
    executor: u64,
    always: bool,
    fill: impl FnOnce(*mut P),
) {
    let Some(row) = EXECUTORS.get_ptr_mut(executor) else {
        count(Counter::RECORDS_WITHOUT_EXECUTOR);
        return;
    };
    // SAFETY (here and below): the row was just looked up and stays a map value for the whole run.
    add(unsafe { &raw mut (*row).records_seen }, 1);
    if !always && !spend(executor, record_bytes::<P>()) {
        add(unsafe { &raw mut (*row).records_rate_limited }, 1);
        return;
    }
    if !record_with(kind, executor, uid(executor), fill) {
        add(unsafe { &raw mut (*row).records_ring_full }, 1);
    }
}

/// Copies a payload out of the running process into the smallest record class that holds it.
///
/// The copy goes straight into the ring: a uprobe program can be preempted, so a buffer per CPU could be
/// overwritten by another thread's fact between its two halves.
#[inline(always)]
pub fn user_payload(kind: Kind, executor: u64, uid: u32, address: u64, bytes: u64) -> Outcome {
    if bytes <= PAYLOAD_CLASSES[0] as u64 {
        in_class::<{ PAYLOAD_CLASSES[0] }>(kind, executor, uid, address, bytes)
    } else if bytes <= PAYLOAD_CLASSES[1] as u64 {
        in_class::<{ PAYLOAD_CLASSES[1] }>(kind, executor, uid, address, bytes)
    } else {
        in_class::<{ PAYLOAD_CLASSES[2] }>(kind, executor, uid, address, bytes)
    }
}

#[inline(always)]
fn in_class<const BYTES: usize>(
    kind: Kind,
    executor: u64,
    uid: u32,
    address: u64,
    bytes: u64,
) -> Outcome {
    let Some(mut entry) = RING.reserve::<Record<[u8; BYTES]>>(0) else {
        return Outcome::RingFull;
    };
    let record = entry.as_mut_ptr();
    // SAFETY: the entry holds a header and BYTES bytes and is ours until it is submitted; the source is checked by
    // the helper.
    let read = unsafe {
        ptr::write(
            &raw mut (*record).header,
            header(kind, executor, uid, bytes as u32),
        );
        // The verifier must see the bound on the very value that is used as the size. The compiler knows the bound
        // from the choice of the class and would leave this check out; verifiers of Linux 6.1 do not know it of a
        // copy on the stack, so the value is read again.
        let size = ptr::read_volatile(&raw const bytes);
        let size = if size > BYTES as u64 {
            BYTES as u64
        } else {
            size
        };
        bpf_probe_read_user(
            (&raw mut (*record).payload).cast(),
            size as u32,
            address as *const _,
        )
    };
    if read != 0 {
        entry.discard(u64::from(BPF_RB_NO_WAKEUP));
        return Outcome::Unreadable;
    }
    entry.submit(wakeup(kind, record_bytes::<[u8; BYTES]>()));
    count(Counter::RECORDS_SUBMITTED);
    Outcome::Sent
}
