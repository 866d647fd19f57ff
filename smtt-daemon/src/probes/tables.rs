//! Operations on the kernel side's tables for which aya has no call.
//!
//! The daemon changes tables that hooks also change by running the kernel side's program `tables`, so that they have
//! one writer and every count stays right; see `smtt_common::settings::TableOperation`.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use anyhow::Context as _;
use aya::Ebpf;
use aya::programs::RawTracePoint;
use smtt_common::counter::ContextKey;
use smtt_common::settings::TableOperation;

use super::wire::Plain;

const BPF_PROG_TEST_RUN: libc::c_long = 10;
const BPF_MAP_LOOKUP_AND_DELETE_ELEM: libc::c_long = 21;
const BPF_MAP_LOOKUP_BATCH: libc::c_long = 24;
/// Argument words of the program.
const ARGUMENTS: usize = 7;
/// Rows per system call. A bucket of the table must fit whole, and buckets hold a few rows.
const BATCH: usize = 1024;
/// Name of the program.
const PROGRAM: &str = "tables";

/// Loads the program.
pub fn load(ebpf: &mut Ebpf) -> anyhow::Result<()> {
    let program: &mut RawTracePoint = ebpf
        .program_mut(PROGRAM)
        .context("the object lacks the program `tables`")?
        .try_into()?;
    program
        .load()
        .context("the kernel refuses the program that changes the tables")
}

/// Runs one operation; returns whether it was done.
pub fn change(ebpf: &Ebpf, operation: TableOperation, words: &[u64]) -> anyhow::Result<bool> {
    /// The part of the kernel's `union bpf_attr` for a run of a program.
    #[repr(C)]
    #[derive(Default)]
    struct Run {
        program: u32,
        returned: u32,
        data_size: [u32; 2],
        data: [u64; 2],
        repeat: u32,
        duration: u32,
        context_size: [u32; 2],
        context: [u64; 2],
        flags: u32,
        cpu: u32,
        batch_size: u32,
        padding: u32,
    }
    let program = ebpf
        .program(PROGRAM)
        .context("the object lacks the program `tables`")?;
    let mut arguments = [0_u64; ARGUMENTS];
    arguments[0] = operation.0;
    for (argument, word) in arguments[1..].iter_mut().zip(words) {
        *argument = *word;
    }
    let mut run = Run {
        program: program.fd()?.as_fd().as_raw_fd() as u32,
        context_size: [size_of_val(&arguments) as u32, 0],
        context: [arguments.as_ptr() as u64, 0],
        ..Run::default()
    };
    // SAFETY: the arguments outlive the call, and the struct is laid out as the kernel's.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_TEST_RUN,
            &raw mut run,
            size_of::<Run>(),
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error())
            .context("the program that changes the tables cannot be run");
    }
    Ok(run.returned == 1)
}

/// Every row of a hash table. A row that is added or removed meanwhile may be missing or stale until the next
/// reading; no row is returned twice.
pub fn rows<K: Plain + Default, V: Plain + Default>(
    map: BorrowedFd<'_>,
) -> io::Result<Vec<(K, V)>> {
    /// The part of the kernel's `union bpf_attr` for operations on many elements.
    #[repr(C)]
    struct Batch {
        from: u64,
        to: u64,
        keys: u64,
        values: u64,
        count: u32,
        map: u32,
        element_flags: u64,
        flags: u64,
    }
    let mut rows = Vec::new();
    let mut keys = vec![K::default(); BATCH];
    let mut values = vec![V::default(); BATCH];
    let mut position = 0_u32;
    let mut first = true;
    loop {
        let mut batch = Batch {
            from: if first { 0 } else { &raw const position as u64 },
            to: &raw mut position as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: keys.len() as u32,
            map: map.as_raw_fd() as u32,
            element_flags: 0,
            flags: 0,
        };
        // SAFETY: the vectors hold `count` elements of the sizes that the table was made with.
        let done = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                BPF_MAP_LOOKUP_BATCH,
                &raw mut batch,
                size_of::<Batch>(),
            )
        };
        let error = (done != 0).then(io::Error::last_os_error);
        match error.as_ref().and_then(io::Error::raw_os_error) {
            // The kernel reports the end of the table together with the last rows.
            None | Some(libc::ENOENT) => {}
            Some(libc::ENOSPC) => {
                keys.resize(keys.len() * 2, K::default());
                values.resize(keys.len(), V::default());
                continue;
            }
            Some(_) => return Err(error.unwrap_or_else(io::Error::last_os_error)),
        }
        let count = (batch.count as usize).min(keys.len());
        rows.extend(keys.iter().copied().zip(values.iter().copied()).take(count));
        if error.is_some() {
            return Ok(rows);
        }
        first = false;
    }
}

/// Removes a context from such a table and returns its last value, in one step.
pub fn take_context<V: Plain + Default>(map: BorrowedFd<'_>, key: &ContextKey) -> Option<V> {
    /// The part of the kernel's `union bpf_attr` for operations on one element.
    #[repr(C)]
    struct Element {
        map: u32,
        padding: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let mut value = V::default();
    let element = Element {
        map: map.as_raw_fd() as u32,
        padding: 0,
        key: std::ptr::from_ref(key) as u64,
        value: &raw mut value as u64,
        flags: 0,
    };
    // SAFETY: key and value outlive the call and have the sizes that the table was made with.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_MAP_LOOKUP_AND_DELETE_ELEM,
            &raw const element,
            size_of::<Element>(),
        )
    };
    (done == 0).then_some(value)
}
