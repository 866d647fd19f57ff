//! Kernel memory of tables and programs.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use aya::maps::Map;

/// Lifts the limit on locked memory, which kernels before 5.11 charge tables to. Newer ones do not need it, so a
/// refusal is no error.
pub fn lift_limit() {
    let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the argument is a valid struct.
    let _ = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &unlimited) };
}

/// The descriptor of a table of a kind that is used here.
pub fn map_fd(map: &Map) -> Option<BorrowedFd<'_>> {
    let data = match map {
        Map::HashMap(data) | Map::PerCpuHashMap(data) | Map::Array(data) | Map::PerCpuArray(data) | Map::RingBuf(data) => data,
        _ => return None,
    };
    Some(data.fd().as_fd())
}

/// Bytes that the kernel accounts to a table or program, from its `fdinfo`.
pub fn locked_bytes(fd: BorrowedFd<'_>) -> u64 {
    std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))
        .ok()
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix("memlock:")?.trim().parse().ok()))
        .unwrap_or(0)
}
