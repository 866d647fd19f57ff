//! Kernel memory of tables and programs, and the resource limits that restrict them.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd};

use aya::maps::Map;

/// Lifts the limit on locked memory, which kernels before 5.11 charge tables to (newer kernels do not, so a refusal is
/// no error), and raises the limit on open files to its maximum: page walks use two files for each event and CPU.
pub fn lift_limits() {
    let unlimited = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    let mut files = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the arguments are valid structs, the second one ours to be filled in.
    unsafe {
        libc::setrlimit(libc::RLIMIT_MEMLOCK, &unlimited);
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut files) == 0 {
            files.rlim_cur = files.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &files);
        }
    }
}

/// The descriptor of a table of a kind that is used here.
pub fn map_fd(map: &Map) -> Option<BorrowedFd<'_>> {
    let data = match map {
        Map::HashMap(data)
        | Map::PerCpuHashMap(data)
        | Map::Array(data)
        | Map::PerCpuArray(data)
        | Map::LpmTrie(data)
        | Map::RingBuf(data) => data,
        _ => return None,
    };
    Some(data.fd().as_fd())
}

/// Bytes that the kernel accounts to this process's tables and programs, from the `fdinfo` of its descriptors. This
/// includes tables that other modules own, such as the ring. A duplicated descriptor counts once.
pub fn locked_bytes() -> u64 {
    let mut bytes = HashMap::new();
    for entry in std::fs::read_dir("/proc/self/fdinfo")
        .into_iter()
        .flatten()
        .flatten()
    {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
        };
        let id = field("map_id:")
            .map(|id| ("map", id))
            .or_else(|| field("prog_id:").map(|id| ("program", id)));
        // A link also names its program, but shows no memory of its own.
        if let (Some(id), Some(locked)) = (id, field("memlock:")) {
            bytes.insert(id, locked);
        }
    }
    bytes.values().sum()
}
