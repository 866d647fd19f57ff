//! Processes on NUMA nodes, through the kernel's own calls: binds commands to a node, moves threads, and asks the
//! kernel for the nodes of a process's pages.

use std::fs::{self, File};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::memory::PAGE;

const NODES: &str = "/sys/devices/system/node";
/// `MPOL_BIND`: memory of the given nodes only.
const BIND: libc::c_long = 2;
/// Bits of the node mask that calls get.
const MASK_BITS: usize = 64;

/// The numbers of a list like `0-3,8`.
#[must_use]
pub fn numbers(list: &str) -> Vec<u32> {
    let parts = list.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    parts.flatten().collect()
}

/// CPUs of a node; empty where the node does not exist.
#[must_use]
pub fn cpus(node: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("{NODES}/node{node}/cpulist"));
    numbers(&list.unwrap_or_default())
}

/// Nodes that have both CPUs and memory.
#[must_use]
pub fn whole() -> Vec<u32> {
    let list = fs::read_to_string(format!("{NODES}/has_memory")).unwrap_or_default();
    let mut nodes = numbers(&list);
    nodes.retain(|node| !cpus(*node).is_empty());
    nodes
}

fn set_of(cpus: &[u32]) -> libc::cpu_set_t {
    // SAFETY: a set is an array of numbers, and all zeros are an empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus {
        // SAFETY: the set is ours, and the kernel's numbers of CPUs fit into it on the machines that tests run on; the
        // macro checks the bound besides.
        unsafe { libc::CPU_SET(*cpu as usize, &mut set) };
    }
    set
}

/// Restricts a command to the CPUs and the memory of a node, as `numactl --cpunodebind=N --membind=N` does.
///
/// # Errors
/// When the node has no CPUs.
pub fn bind(command: &mut Command, node: u32) -> Result<()> {
    let cpus = cpus(node);
    ensure!(
        !cpus.is_empty() && (node as usize) < MASK_BITS,
        "node {node} has no CPUs"
    );
    let (set, mask) = (set_of(&cpus), 1_u64 << node);
    // SAFETY: both calls read numbers that the closure owns, and may be made between fork and exec.
    unsafe {
        command.pre_exec(move || {
            let bound = libc::syscall(
                libc::SYS_set_mempolicy,
                BIND,
                &raw const mask,
                // The kernel reads one bit less than the call says.
                MASK_BITS + 1,
            );
            if bound != 0 || libc::sched_setaffinity(0, size_of_val(&set), &raw const set) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    Ok(())
}

/// Threads of a process.
///
/// # Errors
/// When the process has ended.
pub fn threads(pid: u32) -> Result<Vec<u32>> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))
        .with_context(|| format!("process {pid} has ended"))?;
    let names = entries.flatten().map(|entry| entry.file_name());
    Ok(names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect())
}

/// Pins a thread to the given CPUs. A thread that has ended is no error.
///
/// # Errors
/// When the kernel refuses.
pub fn move_thread(thread: u32, cpus: &[u32]) -> Result<()> {
    let set = set_of(cpus);
    let thread = libc::pid_t::try_from(thread)?;
    // SAFETY: reads a set of our own.
    if unsafe { libc::sched_setaffinity(thread, size_of_val(&set), &raw const set) } != 0 {
        let error = std::io::Error::last_os_error();
        ensure!(
            error.raw_os_error() == Some(libc::ESRCH),
            "thread {thread} cannot be moved to CPUs {cpus:?}: {error}"
        );
    }
    Ok(())
}

/// The CPUs that a thread may run on, according to the kernel; `None` for a thread that has ended.
#[must_use]
pub fn allowed(pid: u32, thread: u32) -> Option<Vec<u32>> {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).ok()?;
    let mut lines = status.lines();
    lines
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .map(numbers)
}

/// Pins all threads of a process to the given CPUs, including threads that start meanwhile.
///
/// # Errors
/// When the process has ended or the kernel refuses.
pub fn move_threads(pid: u32, cpus: &[u32]) -> Result<()> {
    loop {
        let others = || -> Result<Vec<u32>> {
            let mut others = threads(pid)?;
            others.retain(|thread| {
                let elsewhere = |allowed: Vec<u32>| allowed != cpus;
                allowed(pid, *thread).is_some_and(elsewhere)
            });
            Ok(others)
        };
        let moved = others()?;
        if moved.is_empty() {
            return Ok(());
        }
        for thread in moved {
            move_thread(thread, cpus)?;
        }
    }
}

/// Addresses of the pages that a range touches.
pub fn pages(address: u64, length: u64) -> impl Iterator<Item = u64> {
    let page = PAGE as u64;
    (address / page * page..address + length).step_by(PAGE)
}

/// The node of each page of a process; a negative number is the reason why a page has none.
///
/// # Errors
/// When the kernel refuses.
pub fn of_pages(pid: u32, pages: &[u64]) -> Result<Vec<i32>> {
    let addresses: Vec<*const libc::c_void> = pages
        .iter()
        .map(|page| std::ptr::with_exposed_provenance(*page as usize))
        .collect();
    let mut nodes = vec![0_i32; pages.len()];
    // SAFETY: both arrays have the number of entries that the call gets; the addresses are another process's, and
    // without target nodes the call moves nothing.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            libc::pid_t::try_from(pid)?,
            pages.len(),
            addresses.as_ptr(),
            std::ptr::null::<i32>(),
            nodes.as_mut_ptr(),
            0,
        )
    };
    ensure!(
        result == 0,
        "move_pages of process {pid}: {}",
        std::io::Error::last_os_error()
    );
    Ok(nodes)
}

/// Asks the kernel to swap out the whole pages of a range of another process; returns the bytes that the kernel
/// accepted.
///
/// # Errors
/// When the kernel refuses.
pub fn page_out(pid: u32, address: u64, length: u64) -> Result<u64> {
    // SAFETY: takes numbers and returns a file descriptor that only this function owns.
    let process = unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, libc::pid_t::try_from(pid)?, 0);
        ensure!(
            process >= 0,
            "pidfd_open({pid}): {}",
            std::io::Error::last_os_error()
        );
        OwnedFd::from_raw_fd(i32::try_from(process)?)
    };
    let page = PAGE as u64;
    let (first, end) = (
        address.next_multiple_of(page),
        (address + length) / page * page,
    );
    let range = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(first as usize),
        iov_len: end.saturating_sub(first) as usize,
    };
    // SAFETY: reads one range of our own; the range names memory of another process, whose content stays.
    let took = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_raw_fd(),
            &raw const range,
            1_usize,
            libc::MADV_PAGEOUT,
            0_u32,
        )
    };
    ensure!(
        took >= 0,
        "process_madvise(MADV_PAGEOUT): {}",
        std::io::Error::last_os_error()
    );
    Ok(u64::try_from(took)?)
}

/// Bytes of a range of another process in pages that are swapped out, according to the page table.
///
/// # Errors
/// When the page table cannot be read.
pub fn swapped_bytes(pid: u32, address: u64, length: u64) -> Result<u64> {
    let table = File::open(format!("/proc/{pid}/pagemap"))?;
    let page = PAGE as u64;
    let mut bytes = 0;
    for start in pages(address, length) {
        let mut entry = [0; 8];
        table.read_exact_at(&mut entry, start / page * 8)?;
        if u64::from_ne_bytes(entry) >> 62 & 1 == 1 {
            bytes += (start + page).min(address + length) - start.max(address);
        }
    }
    Ok(bytes)
}

/// Bytes of a process that are swapped out, according to `/proc/PID/status`.
///
/// # Errors
/// When the process has ended.
pub fn swap_of(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmSwap:"))
        .context("no VmSwap in the process's status")?;
    let kib = line
        .split_whitespace()
        .next()
        .and_then(|kib| kib.parse::<u64>().ok());
    Ok(kib.context("VmSwap is no number")? << 10)
}
