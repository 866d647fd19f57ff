//! Every table of the kernel side. All are preallocated, so that no hook allocates memory; the daemon sets the
//! final sizes at load time.

use aya_ebpf::macros::map;
use aya_ebpf::maps::{HashMap, PerCpuArray, PerCpuHashMap, RingBuf};
use smtt_common::counter::{COUNTERS as COUNTER_COUNT, ContextCounters, ContextKey, Counter, ExecutorCounters};
use smtt_common::settings::{Budget, Process, Settings, Thread};

/// Facts on their way to the daemon. A second of the busiest executor's facts fits.
#[map]
pub static RING: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// Processes of executors, by process id: the JVMs and their children.
#[map]
pub static PROCESSES: HashMap<u32, Process> = HashMap::with_max_entries(4096, 0);

/// Threads with a slot, by thread id.
#[map]
pub static THREADS: HashMap<u32, Thread> = HashMap::with_max_entries(16384, 0);

/// What is added up per context: running tasks times their activities and RDDs.
#[map]
pub static CONTEXTS: HashMap<ContextKey, ContextCounters> = HashMap::with_max_entries(16384, 0);

/// What is added up per executor.
#[map]
pub static EXECUTORS: PerCpuHashMap<u64, ExecutorCounters> = PerCpuHashMap::with_max_entries(64, 0);

/// What each executor uses of the shared tables.
#[map]
pub static BUDGETS: HashMap<u64, Budget> = HashMap::with_max_entries(64, 0);

/// Counters that belong to no executor.
#[map]
pub static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(COUNTER_COUNT as u32, 0);

/// State of the address stream's rate limit, per CPU.
#[repr(C)]
pub struct Sampler {
    /// Faults of executors so far.
    pub faults: u64,
    /// Second since boot that `sent` counts.
    pub second: u64,
    /// Samples sent in that second.
    pub sent: u64,
}

/// One sampler per CPU.
#[map]
pub static SAMPLER: PerCpuArray<Sampler> = PerCpuArray::with_max_entries(1, 0);

/// Set by the daemon before loading. Its default must differ from every other constant: the compiler merges equal
/// constants, and a merged one would change with the settings.
#[unsafe(no_mangle)]
pub static SETTINGS: Settings = Settings {
    fault_sample_every: 0,
    fault_samples_per_second: 0,
    facts_per_second: 0,
    threads_per_executor: 0,
    contexts_per_executor: 0,
    task_tgid_offset: 0,
    task_pid_offset: 0,
    reserved: u32::MAX,
};

/// Reads one of the settings.
macro_rules! setting {
    ($field:ident) => {
        crate::maps::read_setting(&raw const crate::maps::SETTINGS.$field)
    };
}
pub(crate) use setting;

/// The volatile read behind [`setting`]: it keeps the compiler from folding the default in.
#[inline(always)]
pub fn read_setting(field: *const u32) -> u32 {
    // SAFETY: the macro passes a field of a static.
    unsafe { core::ptr::read_volatile(field) }
}

/// Adds to a 64-bit counter that other CPUs, or a program that interrupted this one, may add to as well.
#[inline(always)]
pub fn add(counter: *mut u64, amount: u64) {
    // SAFETY: every caller passes the address of an aligned u64 in a map value.
    unsafe {
        core::arch::asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) counter, in(reg) amount, options(nostack));
    }
}

/// Adds one to a counter of the kernel side.
#[inline(always)]
pub fn count(counter: Counter) {
    if let Some(value) = COUNTERS.get_ptr_mut(counter.0) {
        add(value, 1);
    }
}

/// The second since boot.
#[inline(always)]
pub fn boot_second() -> u64 {
    now_ns() / 1_000_000_000
}

/// Nanoseconds since boot, including suspend.
#[inline(always)]
pub fn now_ns() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { aya_ebpf::helpers::generated::bpf_ktime_get_boot_ns() }
}
