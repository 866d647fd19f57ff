//! Offsets of the kernel's fields that the kernel side reads, from the running kernel's own types.

use std::fs;

use smtt_common::event::used::{
    CALL_READ_BYTES, CALL_WRITTEN_BYTES, CPU_NS, CPU_WAIT_NS, DISK_READ_BYTES, DISK_WAIT_NS,
    DISK_WRITTEN_BYTES, FAULTS_MAJOR, FAULTS_MINOR, KERNEL_ACCOUNTS, SWITCHES_INVOLUNTARY,
    SWITCHES_VOLUNTARY,
};
use smtt_common::settings::Settings;
use smtt_machine::btf::KernelTypes;

/// Setting of the kernel that enables the threads' account of their waits for disks.
const DELAY_ACCOUNTING: &str = "/proc/sys/kernel/task_delayacct";

const THREAD: &str = "task_struct";

/// A field of a struct, by the struct's name.
type Field = (&'static str, &'static str);

/// The sum of CPU time over the ended threads of a process has another name than a thread's.
const ENDED_CPU: &str = "sum_sched_runtime";

/// The account, the field of `task_struct`, and the field in it where it is a struct.
const FIELDS: [(usize, &str, Option<Field>); KERNEL_ACCOUNTS - 1] = [
    (CPU_NS, "se", Some(("sched_entity", "sum_exec_runtime"))),
    (CPU_WAIT_NS, "sched_info", Some(("sched_info", "run_delay"))),
    (SWITCHES_VOLUNTARY, "nvcsw", None),
    (SWITCHES_INVOLUNTARY, "nivcsw", None),
    (FAULTS_MINOR, "min_flt", None),
    (FAULTS_MAJOR, "maj_flt", None),
    (
        CALL_READ_BYTES,
        "ioac",
        Some(("task_io_accounting", "rchar")),
    ),
    (
        CALL_WRITTEN_BYTES,
        "ioac",
        Some(("task_io_accounting", "wchar")),
    ),
    (
        DISK_READ_BYTES,
        "ioac",
        Some(("task_io_accounting", "read_bytes")),
    ),
    (
        DISK_WRITTEN_BYTES,
        "ioac",
        Some(("task_io_accounting", "write_bytes")),
    ),
];

/// Sets all offsets that this kernel has. Returns why the ids of a new process are not known, where they are not.
pub(super) fn set(settings: &mut Settings) -> Option<String> {
    let types = match KernelTypes::read() {
        Ok(types) => types,
        Err(error) => return Some(error),
    };
    let thread = |field: &str| types.offset(THREAD, field);
    let ids = thread("tgid").and_then(|tgid| Ok((tgid, thread("pid")?)));
    if let Ok(offsets) = ids {
        (settings.task_tgid_offset, settings.task_pid_offset) = offsets;
    }
    // The next ones only make counts exact in rare cases; without them the kernel side still works.
    if let (Ok(signal), Ok(live)) = (thread("signal"), types.offset("signal_struct", "live")) {
        (settings.task_signal_offset, settings.signal_live_offset) = (signal, live);
    }
    // Both or none: the kernel side takes a process without resident pages for one whose end it cannot read.
    if let (Ok(code), Ok(peak)) = (
        types.offset("signal_struct", "group_exit_code"),
        types.offset("signal_struct", "maxrss"),
    ) {
        (
            settings.signal_exit_code_offset,
            settings.signal_maxrss_offset,
        ) = (code, peak);
        settings.page_bytes = u32::try_from(procfs::page_size()).unwrap_or(4096);
    }
    if let Ok(disabled) = thread("pagefault_disabled") {
        settings.task_pagefault_disabled_offset = disabled;
    }
    if let Ok(address) = types.offset("vm_fault", "address") {
        settings.vm_fault_address_offset = address;
    }
    if let (Ok(pid), Ok(level), Ok(numbers), Ok(namespace), Ok(number)) = (
        thread("thread_pid"),
        types.offset("pid", "level"),
        types.offset("pid", "numbers"),
        types.offset("pid_namespace", "ns"),
        types.offset("ns_common", "inum"),
    ) {
        settings.task_thread_pid_offset = pid;
        (settings.pid_level_offset, settings.pid_numbers_offset) = (level, numbers);
        settings.pid_namespace_number_offset = namespace + number;
    }
    accounts(settings, &types);
    if let Err(error) = workers(settings, &types) {
        tracing::info!("Python workers have no accounts: {error}");
    }
    ids.err()
}

/// The accounts of a thread; those that this kernel does not keep stay absent.
fn accounts(settings: &mut Settings, types: &KernelTypes) {
    for (account, field, inner) in FIELDS {
        let inner = inner.map_or(Ok(0), |(name, field)| types.offset(name, field));
        match types.offset(THREAD, field).and_then(|at| Ok(at + inner?)) {
            Ok(offset) => settings.account_offsets[account] = offset,
            Err(error) => tracing::info!("an account of tasks is absent: {error}"),
        }
    }
    // Linux before 5.14 has no such file: there the account is on unless the command line switches it off, and a thread
    // without the account has a null pointer.
    if fs::read_to_string(DELAY_ACCOUNTING).is_ok_and(|text| text.trim() == "0") {
        tracing::info!(
            "tasks have no time of waiting for a disk: {DELAY_ACCOUNTING} is 0 (set it to 1 before the daemon and the executors start)"
        );
        return;
    }
    let (delays, blkio) = (
        types.offset(THREAD, "delays"),
        types.offset("task_delay_info", "blkio_delay"),
    );
    match (delays, blkio) {
        (Ok(delays), Ok(blkio)) => {
            settings.account_offsets[DISK_WAIT_NS] = delays;
            settings.blkio_delay_offset = blkio;
        }
        (Err(error), _) | (_, Err(error)) => {
            tracing::info!("tasks have no time of waiting for a disk: {error}");
        }
    }
}

/// What the accounts of a whole process need: the list of its threads, and the sums over those that have ended. They have
/// the names of a thread's accounts but for CPU time; the kernel keeps no sum of waits.
fn workers(settings: &mut Settings, types: &KernelTypes) -> Result<(), String> {
    let process = |field: &str| types.offset("signal_struct", field);
    let (leader, node, threads, lock) = (
        types.offset(THREAD, "group_leader")?,
        types.offset(THREAD, "thread_node")?,
        process("thread_head")?,
        process("stats_lock")?,
    );
    for (account, field, inner) in FIELDS {
        let offset = match account {
            CPU_NS => process(ENDED_CPU)?,
            CPU_WAIT_NS => continue,
            _ => {
                let inner = inner.map_or(Ok(0), |(name, field)| types.offset(name, field));
                process(field).and_then(|at| Ok(at + inner?))?
            }
        };
        settings.signal_account_offsets[account] = offset;
    }
    (
        settings.task_leader_offset,
        settings.task_thread_node_offset,
    ) = (leader, node);
    (
        settings.signal_threads_offset,
        settings.signal_stats_lock_offset,
    ) = (threads, lock);
    Ok(())
}
