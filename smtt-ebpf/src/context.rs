//! The running thread's context: the only reader of a thread's slot.

use core::ptr;

use aya_ebpf::helpers::{bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_probe_read_user};
use smtt_common::{
    context::{Activity, ContextWord, SlotHead},
    counter::{ContextKey, Unattributed},
    settings::{CHANGING, CONTESTED, Process, ROLE_EXECUTOR},
};

use crate::{
    maps::{PROCESSES, THREADS, fetch_add},
    workers,
};

/// The work that the hardware event interrupted.
pub struct Running {
    /// Key of the executor.
    pub executor: u64,
    /// Why there is no context; meaningless where `attributed`.
    pub class: Unattributed,
    /// Whether `key` is the thread's context.
    pub attributed: bool,
    /// The context, all zero where there is none.
    pub key: ContextKey,
}

/// The running thread's work, or `None` when its process belongs to no executor. Other processes cost one look-up.
#[inline(always)]
pub fn running() -> Option<Running> {
    let id = bpf_get_current_pid_tgid();
    // SAFETY: a row that is deleted meanwhile may be reused: then one fault counts for another row.
    let process = unsafe { PROCESSES.get((id >> 32) as u32) }?;
    let executor = process.executor;
    if process.role != ROLE_EXECUTOR {
        workers::know(process);
        let head = worker_head(process);
        return Some(with_head(executor, &head, Unattributed::CHILD));
    }
    // SAFETY: as above.
    let thread = unsafe { THREADS.get(id as u32) };
    let Some(thread) = thread.filter(|thread| thread.executor == executor) else {
        return Some(without(executor, class_by_name()));
    };
    // SAFETY: the helper checks the address; a slot that is not in memory is an error, not a wait.
    match unsafe { bpf_probe_read_user(thread.slot_address as *const SlotHead) } {
        Ok(head) => Some(with_head(executor, &head, Unattributed::IDLE)),
        Err(_) => Some(without(executor, Unattributed::SLOT_UNREADABLE)),
    }
}

/// The context of a Python worker. Its writer runs on another processor, and counts each change before and after it: a copy
/// between two equal, even counts is of one task, unless a second writer found the context in a change. Another one counts
/// as no task.
#[inline(always)]
fn worker_head(process: *const Process) -> SlotHead {
    // SAFETY: a map value. The counts are read by atomic additions of nothing: the processor keeps the copy between them.
    unsafe {
        let changes = || fetch_add(&raw const (*process).context_changes as *mut u64, 0);
        let before = changes();
        let mut head = ptr::read_volatile(&raw const (*process).context);
        if before & (CHANGING | CONTESTED) != 0 || changes() != before {
            head.hot = 0;
        }
        head
    }
}

#[inline(always)]
fn without(executor: u64, class: Unattributed) -> Running {
    Running {
        executor,
        class,
        attributed: false,
        key: ContextKey::default(),
    }
}

#[inline(always)]
fn with_head(executor: u64, head: &SlotHead, idle: Unattributed) -> Running {
    if is_idle(head) {
        return without(executor, idle);
    }
    Running {
        executor,
        class: idle,
        attributed: true,
        key: key(executor, head),
    }
}

/// Whether the thread does no Spark work.
#[inline(always)]
pub fn is_idle(head: &SlotHead) -> bool {
    ContextWord(head.hot).activity() == Activity::IDLE
}

/// The key of a context.
#[inline(always)]
pub fn key(executor: u64, head: &SlotHead) -> ContextKey {
    let hot = ContextWord(head.hot);
    ContextKey {
        executor,
        task_attempt_id: head.task_attempt_id,
        stage_id: head.stage_id,
        rdd_plus_one: hot.rdd_plus_one(),
        stage_attempt: head.stage_attempt as u16,
        activity: hot.activity().0,
        access_region: hot.access().0 | (hot.region().0 << 4),
        reserved: 0,
    }
}

/// The first bytes of a name as one number, and the mask for a prefix of that length.
const fn prefix(text: &[u8]) -> (u64, u64) {
    let mut value = 0_u64;
    let mut at = 0;
    while at < text.len() {
        value |= (text[at] as u64) << (8 * at);
        at += 1;
    }
    let mask = if text.len() >= 8 {
        u64::MAX
    } else {
        (1_u64 << (8 * text.len())) - 1
    };
    (value, mask)
}

/// Thread names of the HotSpot JVM by their first eight bytes (Linux keeps fifteen). One comparison each.
const NAMES: [((u64, u64), Unattributed); 12] = [
    (prefix(b"GC Threa"), Unattributed::GC),
    (prefix(b"G1 "), Unattributed::GC),
    (prefix(b"ParGC Th"), Unattributed::GC),
    (prefix(b"ZWorker"), Unattributed::GC),
    (prefix(b"ZD"), Unattributed::GC),
    (prefix(b"ZUncommi"), Unattributed::GC),
    (prefix(b"Shenando"), Unattributed::GC),
    (prefix(b"C1 Compi"), Unattributed::JIT),
    (prefix(b"C2 Compi"), Unattributed::JIT),
    (prefix(b"JVMCI"), Unattributed::JIT),
    (prefix(b"VM Threa"), Unattributed::VM),
    (prefix(b"VM Perio"), Unattributed::VM),
];

/// The class of a thread without a slot, by its name.
#[inline(always)]
fn class_by_name() -> Unattributed {
    let Ok(name) = bpf_get_current_comm() else {
        return Unattributed::OTHER;
    };
    let start = u64::from_le_bytes([
        name[0], name[1], name[2], name[3], name[4], name[5], name[6], name[7],
    ]);
    let mut at = 0;
    while at < NAMES.len() {
        let ((value, mask), class) = NAMES[at];
        if start & mask == value {
            return class;
        }
        at += 1;
    }
    Unattributed::OTHER
}
