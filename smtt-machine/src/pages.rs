//! The kernel's interfaces for inspecting pages, and the page sizes of this machine.

use std::fs::{self, File};
use std::path::Path;

pub mod kernel;

use self::kernel::{Region, scan};

/// Large page size where the kernel does not report it: that of x86-64.
const LARGE_PAGE_BYTES: u64 = 2 << 20;

/// How the pages of a process are inspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// PAGEMAP_SCAN, Linux 6.7 and newer.
    Scan,
    /// The entries of `/proc/PID/pagemap`, with page sizes from `/proc/kpageflags`.
    Entries,
}

/// What is the same for all processes.
#[derive(Debug)]
pub struct Machine {
    /// How pages are inspected.
    pub method: Method,
    /// Base page size in bytes.
    pub page_bytes: u64,
    /// Size in bytes of what a large entry of the page table maps.
    pub large_page_bytes: u64,
    /// Flags by frame, where they can be read.
    pub frame_flags: Option<File>,
}

impl Machine {
    /// Probes the kernel.
    #[must_use]
    pub fn find() -> Self {
        let page_bytes = procfs::page_size().max(1);
        let large_page_bytes =
            fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .filter(|bytes: &u64| *bytes > page_bytes && bytes.is_power_of_two())
                .unwrap_or(LARGE_PAGE_BYTES);
        Self {
            method: if can_scan() {
                Method::Scan
            } else {
                Method::Entries
            },
            page_bytes,
            large_page_bytes,
            frame_flags: File::open("/proc/kpageflags").ok(),
        }
    }
}

/// Whether the kernel has PAGEMAP_SCAN: tries it on one page of this process.
fn can_scan() -> bool {
    let Ok(pagemap) = File::open("/proc/self/pagemap") else {
        return false;
    };
    let page = procfs::page_size().max(1);
    let address = (&raw const page as u64) / page * page;
    scan(&pagemap, address, address + page, &mut [Region::default()]).is_ok()
}

/// Whether hugetlbfs has pages of another size than the large page now: then a large page may have either size.
#[must_use]
pub fn other_huge_pages(large_page_bytes: u64) -> bool {
    fs::read_dir("/sys/kernel/mm/hugepages")
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let kib = name
                .to_str()
                .and_then(|name| name.strip_prefix("hugepages-")?.strip_suffix("kB"))
                .and_then(|kib| kib.parse::<u64>().ok());
            kib.is_some_and(|kib| kib.saturating_mul(1024) != large_page_bytes)
        })
        .any(|entry| count(&entry.path().join("nr_hugepages")) > 0)
}

fn count(path: &Path) -> u64 {
    fs::read_to_string(path)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}
