//! Inspects the pages of one process.
//!
//! Everything is read through files that are bound to the opened process, and at the end the resolver checks that the
//! process still has the same memory. So data of an ended process, of another process with the same id, or of a
//! process that has called exec never become a figure.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use nix::fcntl::OFlag;
use smtt_machine::pages::kernel::{self, HUGE, PRESENT, Region, SWAPPED, ZERO};
use smtt_machine::pages::{Machine, Method, other_huge_pages};
use smtt_machine::proc::Handle;
use smtt_model::state::{Seen, SizesBy, Targets};

use super::mappings::Mappings;
use super::sample::{Run, pages_of};

/// Most regions per system call.
const REGIONS: usize = 512;
/// Pages whose nodes are read in one system call.
const NODES: usize = 256;
/// Entries of `/proc/PID/pagemap` in one read.
const ENTRIES: usize = 512;
/// Most first pages of an owner whose frames are kept.
pub const FRAMES: usize = 16;

/// Bit of an entry of `/proc/PID/pagemap`: the page is in memory.
const ENTRY_PRESENT: u64 = 1 << 63;
/// Bit of an entry: the page is swapped out.
const ENTRY_SWAPPED: u64 = 1 << 62;
/// Bits of an entry: the page's frame, zero without CAP_SYS_ADMIN.
const ENTRY_FRAME: u64 = (1 << 55) - 1;
/// Flags of `/proc/kpageflags`: a tail of a compound page, of hugetlbfs, a transparent huge page, the page of zeros.
const FRAME_TAIL: u64 = 1 << 16;
const FRAME_HUGETLB: u64 = 1 << 17;
const FRAME_THP: u64 = 1 << 22;
const FRAME_ZERO: u64 = 1 << 24;

/// Why an inspection failed.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The process has ended; another one may have its id.
    #[error("the process has ended")]
    Ended,
    /// It let the reader wait for too long, or other processes of its user did.
    #[error("the process, or others of its user, did not let themselves be read in time")]
    Hangs,
    /// The kernel refuses access.
    #[error("{what} cannot be read: {error}; CAP_SYS_PTRACE is needed")]
    Refused {
        /// The file or call.
        what: &'static str,
        /// The kernel's error.
        #[source]
        error: io::Error,
    },
}

/// Bytes whose node is not read yet: address of the page, bytes in it, owner.
type Ask = (u64, u64, usize);

/// A process whose pages are inspected.
#[derive(Debug)]
pub struct Process {
    machine: Arc<Machine>,
    pid: u32,
    handle: Handle,
    pagemap: File,
    /// Mappings by address, where the kernel does not distinguish holes from untouched pages.
    mappings: Option<Mappings>,
    /// File for the query of a mapping's page size; `None` where there is only one size of large pages.
    maps: Option<File>,
    /// How page sizes are known.
    pub sizes_by: SizesBy,
    asks: Vec<Ask>,
    regions: Vec<Region>,
    nodes: Vec<i32>,
}

impl Process {
    /// Opens a process that registered as an executor in that second since boot.
    ///
    /// # Errors
    /// When the process has ended or access to it is refused.
    pub fn open(
        machine: Arc<Machine>,
        pid: u32,
        registered_second: u64,
    ) -> Result<Self, InspectError> {
        let handle = Handle::open(pid).map_err(|_| InspectError::Ended)?;
        let started = handle.start_second().ok_or(InspectError::Ended)?;
        if started > registered_second {
            return Err(InspectError::Ended);
        }
        let open = |name: &'static str| {
            handle
                .open_file(name, OFlag::O_RDONLY)
                .map_err(|error| match error.raw_os_error() {
                    Some(libc::ESRCH | libc::ENOENT) => InspectError::Ended,
                    _ => InspectError::Refused { what: name, error },
                })
        };
        let pagemap = open("pagemap")?;
        let mappings = match machine.method {
            Method::Scan => None,
            Method::Entries => Some(mappings(&handle)?),
        };
        let other_sizes = other_huge_pages(machine.large_page_bytes);
        let maps = match machine.method {
            Method::Scan if other_sizes => Some(open("maps")?),
            _ => None,
        };
        let sizes_by = match machine.method {
            Method::Scan => SizesBy::PageTables,
            // Unknown until the first page whose frame is visible.
            Method::Entries => SizesBy::Nothing,
        };
        Ok(Self {
            machine,
            pid,
            handle,
            pagemap,
            mappings,
            maps,
            sizes_by,
            asks: Vec::with_capacity(NODES),
            regions: vec![Region::default(); REGIONS],
            nodes: Vec::with_capacity(NODES),
        })
    }

    /// Inspects runs of pages, with the frames of first pages where they are wanted.
    ///
    /// # Errors
    /// When the process has ended or access to it is refused.
    pub fn inspect_all(
        &mut self,
        targets: &Targets,
        runs: &[Run],
        frames: bool,
        seen: &mut [Seen],
    ) -> Result<(), InspectError> {
        for run in runs {
            if frames {
                self.frames(targets, *run, seen);
            }
            self.inspect(targets, *run, seen)?;
        }
        self.ask_nodes(seen)
    }

    /// Inspects one run of pages and adds the result to the owner of the range.
    ///
    /// # Errors
    /// When the process has ended or access to it is refused.
    pub fn inspect(
        &mut self,
        targets: &Targets,
        run: Run,
        seen: &mut [Seen],
    ) -> Result<(), InspectError> {
        let page = self.machine.page_bytes;
        let Some(range) = targets.ranges.get(run.range) else {
            return Ok(());
        };
        let owner = range.owner;
        // The first and the last page of a range may be shared with other ranges.
        let clip = Clip {
            start: range.address,
            end: range.address.saturating_add(range.length),
        };
        let end = run.address.saturating_add(run.pages.saturating_mul(page));
        {
            let seen = &mut seen[owner];
            seen.examined_pages += run.pages;
            seen.examined_bytes += clip.bytes(run.address, end);
        }
        match self.machine.method {
            Method::Scan => self.scan(run.address, end, clip, owner, seen),
            Method::Entries => self.entries(run.address, end, clip, owner, seen),
        }
    }

    /// Reads the frames of an owner's first pages, once. Without permission the kernel shows no frames.
    pub fn frames(&self, targets: &Targets, run: Run, seen: &mut [Seen]) {
        let page = self.machine.page_bytes;
        let Some(range) = targets.ranges.get(run.range) else {
            return;
        };
        // Ranges of an owner follow one another.
        let is_first = run.range == 0 || targets.ranges[run.range - 1].owner != range.owner;
        let frames = &mut seen[range.owner].frames;
        if !is_first || !frames.is_empty() {
            return;
        }
        let (first, pages) = pages_of(range.address, range.length, page);
        let mut buffer = [0_u8; FRAMES * 8];
        let wanted = usize::try_from(pages).unwrap_or(FRAMES).min(FRAMES);
        let read = self
            .pagemap
            .read_at(&mut buffer[..wanted * 8], first / page * 8)
            .unwrap_or(0);
        for entry in buffer[..read].chunks_exact(8) {
            let mut word = [0; 8];
            word.copy_from_slice(entry);
            let entry = u64::from_ne_bytes(word);
            let frame = entry & ENTRY_FRAME;
            if entry & ENTRY_PRESENT == 0 {
                frames.push(None);
            } else if frame != 0 {
                frames.push(Some(frame));
            } else {
                frames.clear();
                return;
            }
        }
    }

    fn scan(
        &mut self,
        start: u64,
        end: u64,
        clip: Clip,
        owner: usize,
        seen: &mut [Seen],
    ) -> Result<(), InspectError> {
        let mut at = start;
        while at < end {
            let (found, walked) = match kernel::scan(&self.pagemap, at, end, &mut self.regions) {
                Ok(found) => found,
                // Not an address of any process.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EFAULT | libc::EINVAL)) => {
                    break;
                }
                Err(error) => return Err(self.failed("pagemap", error)),
            };
            for index in 0..found {
                let region = self.regions[index];
                // The hole before the region is in no mapping.
                seen[owner].unmapped_bytes += clip.bytes(at, region.start);
                self.region(region, clip, owner, seen)?;
                at = at.max(region.end);
            }
            let walked = walked.clamp(at, end);
            if walked == at && found == 0 {
                break;
            }
            seen[owner].unmapped_bytes += clip.bytes(at, walked);
            at = walked;
        }
        seen[owner].unmapped_bytes += clip.bytes(at, end);
        Ok(())
    }

    fn region(
        &mut self,
        region: Region,
        clip: Clip,
        owner: usize,
        seen: &mut [Seen],
    ) -> Result<(), InspectError> {
        let bytes = clip.bytes(region.start, region.end);
        let is = |category| region.categories & category != 0;
        if !is(PRESENT) {
            let seen = &mut seen[owner];
            if is(SWAPPED) {
                seen.swapped_bytes += bytes;
            } else {
                seen.untouched_bytes += bytes;
            }
            return Ok(());
        }
        let page_bytes = if is(HUGE) {
            self.large_page_bytes(region.start)
        } else {
            Some(self.machine.page_bytes)
        };
        seen[owner].present_bytes += bytes;
        if let Some(page_bytes) = page_bytes {
            seen[owner].add_page_size(page_bytes, bytes);
        }
        if is(ZERO) {
            seen[owner].zero_bytes += bytes;
            return Ok(());
        }
        // One page of the kernel is on one node, so one address stands for it.
        let step = page_bytes.unwrap_or(self.machine.page_bytes);
        let mut at = region.start;
        while at < region.end {
            let next = ((at / step + 1) * step).min(region.end);
            self.ask(at, clip.bytes(at, next), owner, seen)?;
            at = next;
        }
        Ok(())
    }

    /// Size of the large page at an address; `None` where it is unknown.
    fn large_page_bytes(&self, address: u64) -> Option<u64> {
        let Some(maps) = &self.maps else {
            return Some(self.machine.large_page_bytes);
        };
        let mapped = kernel::mapping_page_bytes(maps, address).ok()?;
        // Transparent huge pages are in mappings of the base size.
        Some(if mapped > self.machine.page_bytes {
            mapped
        } else {
            self.machine.large_page_bytes
        })
    }

    fn entries(
        &mut self,
        start: u64,
        end: u64,
        clip: Clip,
        owner: usize,
        seen: &mut [Seen],
    ) -> Result<(), InspectError> {
        let page = self.machine.page_bytes;
        let mut buffer = [0_u8; ENTRIES * 8];
        let mut at = start;
        while at < end {
            let wanted = (((end - at) / page) as usize).min(ENTRIES);
            let read = self
                .pagemap
                .read_at(&mut buffer[..wanted * 8], at / page * 8)
                .unwrap_or(0);
            if read < 8 {
                // Beyond the address space of a process. Whether the process lives is checked at the end.
                seen[owner].unmapped_bytes += clip.bytes(at, end);
                break;
            }
            for entry in buffer[..read].chunks_exact(8) {
                let mut word = [0; 8];
                word.copy_from_slice(entry);
                self.entry(at, u64::from_ne_bytes(word), clip, owner, seen)?;
                at += page;
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        at: u64,
        entry: u64,
        clip: Clip,
        owner: usize,
        seen: &mut [Seen],
    ) -> Result<(), InspectError> {
        let page = self.machine.page_bytes;
        let bytes = clip.bytes(at, at.saturating_add(page));
        if entry & ENTRY_PRESENT == 0 {
            let mapped = self.is_mapped(at);
            let seen = &mut seen[owner];
            if entry & ENTRY_SWAPPED != 0 {
                seen.swapped_bytes += bytes;
            } else if mapped {
                seen.untouched_bytes += bytes;
            } else {
                seen.unmapped_bytes += bytes;
            }
            return Ok(());
        }
        seen[owner].present_bytes += bytes;
        let mut zero = false;
        if let Some(flags) = self.frame_flags(entry & ENTRY_FRAME) {
            self.sizes_by = SizesBy::Frames;
            let (size, is_zero) = self.frame_size(entry & ENTRY_FRAME, flags);
            seen[owner].add_page_size(size, bytes);
            zero = is_zero;
        }
        if zero {
            seen[owner].zero_bytes += bytes;
            return Ok(());
        }
        self.ask(at, bytes, owner, seen)
    }

    /// Flags of a frame; `None` without permission.
    fn frame_flags(&self, frame: u64) -> Option<u64> {
        let mut word = [0; 8];
        let file = self.machine.frame_flags.as_ref().filter(|_| frame != 0)?;
        file.read_exact_at(&mut word, frame * 8).ok()?;
        Some(u64::from_ne_bytes(word))
    }

    /// Size of the page that a frame belongs to, and whether it is the page of zeros.
    fn frame_size(&self, frame: u64, flags: u64) -> (u64, bool) {
        let (base, large) = (self.machine.page_bytes, self.machine.large_page_bytes);
        let zero = flags & FRAME_ZERO != 0;
        if flags & FRAME_HUGETLB != 0 {
            // A giant page covers one more level of the page table. It has tails where large pages would have heads,
            // except in its first piece: there the next piece decides.
            let step = large / base;
            let piece = frame / step * step;
            let deciding = if piece.is_multiple_of(step * step) {
                piece + step
            } else {
                piece
            };
            let giant = self
                .frame_flags(deciding)
                .is_some_and(|flags| flags & FRAME_TAIL != 0);
            return (if giant { large * step } else { large }, zero);
        }
        (if flags & FRAME_THP != 0 { large } else { base }, zero)
    }

    fn is_mapped(&self, address: u64) -> bool {
        self.mappings
            .as_ref()
            .is_none_or(|mappings| mappings.contains(address))
    }

    /// Whether the mappings at each owner's addresses changed during the inspection, by index: then pages that were
    /// never touched and pages that were unmapped look alike. Always false where the kernel distinguishes them.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn remapped(&self, targets: &Targets) -> Result<Vec<bool>, InspectError> {
        let mut remapped = vec![false; targets.owners.len()];
        if let Some(before) = &self.mappings {
            let after = mappings(&self.handle)?;
            for range in &targets.ranges {
                let (start, end) = (range.address, range.address + range.length);
                remapped[range.owner] |= before.within(start, end).ne(after.within(start, end));
            }
        }
        Ok(remapped)
    }

    fn ask(
        &mut self,
        address: u64,
        bytes: u64,
        owner: usize,
        seen: &mut [Seen],
    ) -> Result<(), InspectError> {
        self.asks.push((address, bytes, owner));
        if self.asks.len() >= NODES {
            self.ask_nodes(seen)?;
        }
        Ok(())
    }

    /// Reads the nodes of the pages whose node is not read yet.
    ///
    /// # Errors
    /// When the process has ended or access to it is refused.
    pub fn ask_nodes(&mut self, seen: &mut [Seen]) -> Result<(), InspectError> {
        if self.asks.is_empty() {
            return Ok(());
        }
        let addresses: Vec<u64> = self.asks.iter().map(|(address, ..)| *address).collect();
        kernel::nodes(self.pid, &addresses, &mut self.nodes)
            .map_err(|error| self.failed("the nodes of pages", error))?;
        for ((_, bytes, owner), node) in self.asks.drain(..).zip(&self.nodes) {
            match u32::try_from(*node) {
                Ok(node) => seen[owner].add_node(node, bytes),
                Err(_) => seen[owner].node_unknown_bytes += bytes,
            }
        }
        Ok(())
    }

    /// Classifies a failed read: a process that is exiting has no memory any more, and then no entry in `/proc`.
    fn failed(&self, what: &'static str, error: io::Error) -> InspectError {
        if matches!(error.raw_os_error(), Some(libc::ESRCH)) || !self.is_there() {
            InspectError::Ended
        } else {
            InspectError::Refused { what, error }
        }
    }

    /// Whether the process still has the inspected memory: it has neither ended nor called exec.
    #[must_use]
    pub fn is_there(&self) -> bool {
        // The kernel returns nothing for memory that has no user any more.
        let mut word = [0; 8];
        matches!(self.pagemap.read_at(&mut word, 0), Ok(8)) && self.handle.start_ticks().is_some()
    }
}

fn mappings(handle: &Handle) -> Result<Mappings, InspectError> {
    handle
        .open_file("maps", OFlag::O_RDONLY)
        .and_then(Mappings::read)
        .map_err(|_| InspectError::Ended)
}

/// A range of addresses to which other ranges are clipped.
#[derive(Clone, Copy, Debug)]
struct Clip {
    start: u64,
    end: u64,
}

impl Clip {
    /// Bytes from `start` to `end` that lie in this range.
    fn bytes(self, start: u64, end: u64) -> u64 {
        end.min(self.end).saturating_sub(start.max(self.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clip_cuts_both_ends() {
        let clip = Clip { start: 10, end: 20 };
        assert_eq!(clip.bytes(0, 100), 10);
        assert_eq!(clip.bytes(15, 17), 2);
        assert_eq!(clip.bytes(0, 12), 2);
        assert_eq!(clip.bytes(18, u64::MAX), 2);
        assert_eq!(clip.bytes(20, 30), 0);
        assert_eq!(clip.bytes(30, 20), 0);
    }
}
