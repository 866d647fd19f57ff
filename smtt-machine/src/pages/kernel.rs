//! The system calls that report the state of pages. Each inspects only the addresses that the caller names.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr;

/// Consecutive pages in the same state, as the kernel writes them (`struct page_region`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// Address after the last one.
    pub end: u64,
    /// State of the pages: [`PRESENT`] and the other flags below.
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

/// `struct procmap_query` of `include/uapi/linux/fs.h`, Linux 6.11.
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

/// Reads the state of the pages from `start` to `end` (PAGEMAP_SCAN). Fills `regions` in order of address. Returns the
/// number of regions and the address at which the kernel stopped: `end`, or a lower one when `regions` is full.
/// Addresses without a mapping are in no region.
///
/// # Errors
/// The kernel's error; `ENOTTY` where it has no such call.
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
    // SAFETY: the argument has the type of the call, and points to room for the number of regions in it.
    let found = unsafe { pagemap_scan(pagemap.as_raw_fd(), &raw mut arg) }?;
    let found = usize::try_from(found).unwrap_or(0).min(regions.len());
    Ok((found, arg.walk_end))
}

/// Page size in bytes that the mapping at an address was made with (PROCMAP_QUERY).
///
/// # Errors
/// The kernel's error; `ENOTTY` where it has no such call, `ENOENT` where nothing is mapped.
pub fn mapping_page_bytes(maps: &File, address: u64) -> io::Result<u64> {
    let mut query = MapQuery {
        size: size_of::<MapQuery>() as u64,
        query_addr: address,
        ..MapQuery::default()
    };
    // SAFETY: the argument has the type of the call; it requests neither the name nor the build id.
    unsafe { procmap_query(maps.as_raw_fd(), &raw mut query) }?;
    Ok(query.vma_page_size)
}

/// Node of each page, or an error number below zero (`move_pages` that moves nothing).
///
/// # Errors
/// The kernel's error: `ESRCH` when the process has ended, `EPERM` without permission.
pub fn nodes(pid: u32, pages: &[u64], nodes: &mut Vec<i32>) -> io::Result<()> {
    // Pages that the kernel does not reach stay "not in memory".
    nodes.clear();
    nodes.resize(pages.len(), -libc::ENOENT);
    // SAFETY: both arrays have the number of elements that the call gets; without target nodes no page moves.
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
