//! One look at the pages of one process.
//!
//! Everything is read through files that belong to the process that was opened, and at the end the process is asked
//! whether its memory is still there: what was read of an ended process, of another one with its id, or after
//! another program was started in it, never becomes a figure.

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

/// Regions that one call of the kernel may fill.
const REGIONS: usize = 512;
/// Pages whose nodes are asked for in one call.
const NODES: usize = 256;
/// Entries of `/proc/PID/pagemap` in one read.
const ENTRIES: usize = 512;
/// Most first pages of an owner whose frames are kept.
pub const FRAMES: usize = 16;

/// A page of `/proc/PID/pagemap` is in memory.
const ENTRY_PRESENT: u64 = 1 << 63;
/// It is swapped out.
const ENTRY_SWAPPED: u64 = 1 << 62;
/// Its frame, zero without CAP_SYS_ADMIN.
const ENTRY_FRAME: u64 = (1 << 55) - 1;
/// Flags of `/proc/kpageflags`: a tail of a compound page, of hugetlbfs, a transparent huge page, the page of zeros.
const FRAME_TAIL: u64 = 1 << 16;
const FRAME_HUGETLB: u64 = 1 << 17;
const FRAME_THP: u64 = 1 << 22;
const FRAME_ZERO: u64 = 1 << 24;

/// Why a look failed.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// There is no such process any more, or another one has its id.
    #[error("the process has ended")]
    Ended,
    /// The kernel does not let us.
    #[error("{what} cannot be read: {error}; CAP_SYS_PTRACE is needed")]
    Refused {
        /// What.
        what: &'static str,
        /// Why.
        #[source]
        error: io::Error,
    },
}

/// Bytes whose node is to be asked for: address of the page, bytes in it, owner.
type Ask = (u64, u64, usize);

/// A process that is looked at.
#[derive(Debug)]
pub struct Process {
    machine: Arc<Machine>,
    pid: u32,
    handle: Handle,
    pagemap: File,
    /// Mappings by address, where the kernel does not tell holes from untouched pages.
    mappings: Option<Mappings>,
    /// Where mappings are asked for their page size; `None` where there is one size of large pages only.
    maps: Option<File>,
    /// What can be said of page sizes.
    pub sizes_by: SizesBy,
    asks: Vec<Ask>,
    regions: Vec<Region>,
    nodes: Vec<i32>,
}

impl Process {
    /// Opens a process that registered as an executor in that second since boot.
    ///
    /// # Errors
    /// When it is gone or may not be looked at.
    pub fn open(
        machine: Arc<Machine>,
        pid: u32,
        registered_second: u64,
    ) -> Result<Self, LookError> {
        let handle = Handle::open(pid).map_err(|_| LookError::Ended)?;
        let started = handle.start_ticks().ok_or(LookError::Ended)?;
        if started / procfs::ticks_per_second().max(1) > registered_second {
            return Err(LookError::Ended);
        }
        let open = |name: &'static str| {
            handle
                .open_file(name, OFlag::O_RDONLY)
                .map_err(|error| match error.raw_os_error() {
                    Some(libc::ESRCH | libc::ENOENT) => LookError::Ended,
                    _ => LookError::Refused { what: name, error },
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
            // Frames are told on the first page that has one.
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

    /// Looks at one run of pages and adds what it sees to the owner of the range.
    ///
    /// # Errors
    /// When the process is gone or may not be looked at.
    pub fn look(
        &mut self,
        targets: &Targets,
        run: Run,
        seen: &mut [Seen],
    ) -> Result<(), LookError> {
        let page = self.machine.page_bytes;
        let Some(range) = targets.ranges.get(run.range) else {
            return Ok(());
        };
        let owner = range.owner;
        // The ends of a range may share their pages with others.
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

    /// Looks once for the frames of an owner's first pages. Where they may not be known the kernel gives none.
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
    ) -> Result<(), LookError> {
        let mut at = start;
        while at < end {
            let (found, walked) = match kernel::scan(&self.pagemap, at, end, &mut self.regions) {
                Ok(found) => found,
                // No address of any process.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EFAULT | libc::EINVAL)) => {
                    break;
                }
                Err(error) => return Err(self.failed("pagemap", error)),
            };
            for index in 0..found {
                let region = self.regions[index];
                // The hole before it is in no mapping.
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
    ) -> Result<(), LookError> {
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

    /// Size of the large page at an address; `None` where it cannot be told.
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
    ) -> Result<(), LookError> {
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
                // Beyond what a process can have; that it lives is asked at the end.
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
    ) -> Result<(), LookError> {
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

    /// Flags of a frame; `None` where we may not know.
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
            // A giant page fills one level of the page table more. It has tails where large pages would have heads,
            // but for its first piece: there the next piece tells.
            let step = large / base;
            let piece = frame / step * step;
            let telling = if piece.is_multiple_of(step * step) {
                piece + step
            } else {
                piece
            };
            let giant = self
                .frame_flags(telling)
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

    /// Owners at whose addresses other memory was mapped while they were looked at than before, by index: nobody can
    /// tell what was never touched from what was given back. The kernel that tells it has none.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn remapped(&self, targets: &Targets) -> Result<Vec<bool>, LookError> {
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
    ) -> Result<(), LookError> {
        self.asks.push((address, bytes, owner));
        if self.asks.len() >= NODES {
            self.ask_nodes(seen)?;
        }
        Ok(())
    }

    /// Asks for the nodes of the pages that are waiting for it.
    ///
    /// # Errors
    /// When the process is gone or may not be looked at.
    pub fn ask_nodes(&mut self, seen: &mut [Seen]) -> Result<(), LookError> {
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

    /// Why the kernel gave nothing: a process that has begun to end has no memory any more, and then no entry.
    fn failed(&self, what: &'static str, error: io::Error) -> LookError {
        if matches!(error.raw_os_error(), Some(libc::ESRCH)) || !self.is_there() {
            LookError::Ended
        } else {
            LookError::Refused { what, error }
        }
    }

    /// Whether the memory that was looked at is still there: neither did the process end, nor is it another program
    /// now.
    #[must_use]
    pub fn is_there(&self) -> bool {
        // The kernel gives nothing for memory that nobody uses any more.
        let mut word = [0; 8];
        matches!(self.pagemap.read_at(&mut word, 0), Ok(8)) && self.handle.start_ticks().is_some()
    }
}

fn mappings(handle: &Handle) -> Result<Mappings, LookError> {
    let maps = handle.read("maps").map_err(|_| LookError::Ended)?;
    Ok(Mappings::new(&maps))
}

/// A range of addresses that others are cut to.
#[derive(Clone, Copy, Debug)]
struct Clip {
    start: u64,
    end: u64,
}

impl Clip {
    /// Bytes from `start` to `end` that lie in it.
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
