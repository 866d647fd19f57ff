//! The system calls that say where pages are. Each looks at what the caller names and at nothing else.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr;

/// A stretch of pages that are alike, as the kernel writes it (`struct page_region`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// Address after the last one.
    pub end: u64,
    /// What the pages are: [`PRESENT`] and its like.
    pub categories: u64,
}

/// `struct pm_scan_arg` of `include/uapi/linux/fs.h`, Linux 6.7.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct procmap_query` of the same header, Linux 6.11.
#[repr(C)]
#[derive(Default)]
struct MapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const _: () = {
    assert!(size_of::<Region>() == 24);
    assert!(size_of::<ScanArg>() == 96);
    assert!(size_of::<MapQuery>() == 104);
};

/// The page is in memory.
pub const PRESENT: u64 = 1 << 3;
/// The page is swapped out.
pub const SWAPPED: u64 = 1 << 4;
/// The page is the kernel's page of zeros.
pub const ZERO: u64 = 1 << 5;
/// The page is mapped by a large entry of the page table, or by hugetlbfs.
pub const HUGE: u64 = 1 << 6;

/// The ioctls, without a check of their arguments.
mod ioctl {
    #![allow(missing_docs, reason = "made by a macro")]
    use super::{MapQuery, ScanArg};
    nix::ioctl_readwrite!(pagemap_scan, b'f', 16, ScanArg);
    nix::ioctl_readwrite!(procmap_query, b'f', 17, MapQuery);
}
use self::ioctl::{pagemap_scan, procmap_query};

/// Asks what the pages from `start` to `end` are (PAGEMAP_SCAN). Fills `regions` in order of address and returns how
/// many, and where the kernel stopped: at `end`, or earlier when `regions` is full. What is in no mapping is in no
/// region.
///
/// # Errors
/// What the kernel says; `ENOTTY` where it has no such call.
pub fn scan(
    pagemap: &File,
    start: u64,
    end: u64,
    regions: &mut [Region],
) -> io::Result<(usize, u64)> {
    let mut arg = ScanArg {
        size: size_of::<ScanArg>() as u64,
        start,
        end,
        vec: regions.as_mut_ptr() as u64,
        vec_len: regions.len() as u64,
        return_mask: PRESENT | SWAPPED | ZERO | HUGE,
        ..ScanArg::default()
    };
    // SAFETY: the argument is what the call takes, and names a place for as many regions as it says.
    let found = unsafe { pagemap_scan(pagemap.as_raw_fd(), &raw mut arg) }?;
    let found = usize::try_from(found).unwrap_or(0).min(regions.len());
    Ok((found, arg.walk_end))
}

/// Page size in bytes that the mapping at an address was made with (PROCMAP_QUERY).
///
/// # Errors
/// What the kernel says; `ENOTTY` where it has no such call, `ENOENT` where nothing is mapped.
pub fn mapping_page_bytes(maps: &File, address: u64) -> io::Result<u64> {
    let mut query = MapQuery {
        size: size_of::<MapQuery>() as u64,
        query_addr: address,
        ..MapQuery::default()
    };
    // SAFETY: the argument is what the call takes; neither name nor build id is asked for.
    unsafe { procmap_query(maps.as_raw_fd(), &raw mut query) }?;
    Ok(query.vma_page_size)
}

/// Node of each page, or an error number below zero (`move_pages` that moves nothing).
///
/// # Errors
/// What the kernel says: `ESRCH` when the process is gone, `EPERM` without the right to look at it.
pub fn nodes(pid: u32, pages: &[u64], nodes: &mut Vec<i32>) -> io::Result<()> {
    // What the kernel does not get to stays "not in memory".
    nodes.clear();
    nodes.resize(pages.len(), -libc::ENOENT);
    // SAFETY: both arrays have as many elements as the call is told; without target nodes no page moves.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid as libc::pid_t,
            pages.len() as libc::c_ulong,
            pages.as_ptr(),
            ptr::null::<libc::c_int>(),
            nodes.as_mut_ptr(),
            0 as libc::c_int,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
