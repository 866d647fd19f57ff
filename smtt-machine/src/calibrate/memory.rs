//! Cache lines in a random order, laid out so that visiting them takes many page walks or few.

use super::Access;

/// Lines that are visited: one per page they are four times what the largest second-level TLB holds, and together they
/// fit a second-level cache.
pub const LINES: usize = 20_480;
const LINE_BYTES: usize = 64;
const PAGE_BYTES: usize = 4096;
const LINES_PER_PAGE: usize = PAGE_BYTES / LINE_BYTES;
/// Pages whose protection is changed to flush the TLB: more than any kernel flushes one by one (x86 33, RISC-V 64,
/// Arm 512) before it flushes the whole TLB.
const FENCE_PAGES: usize = 1024;
/// Alignment and size of a huge page on the processors that have a table of events.
const HUGE_BYTES: usize = 2 << 20;

/// Where the lines are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One per page of 4 KiB.
    Small,
    /// At the same places, in huge pages.
    Huge,
    /// Side by side, in as few pages as hold them.
    Packed,
}

/// A mapping that is unmapped when dropped.
struct Mapping {
    base: *mut u8,
    bytes: usize,
}

impl Mapping {
    fn new(bytes: usize, advice: libc::c_int) -> Result<Self, String> {
        let bytes = bytes + HUGE_BYTES;
        // SAFETY: a new mapping at an address that the kernel chooses; the advice is about that mapping. A kernel
        // without huge pages refuses the advice, which the number of walks will show.
        let base = unsafe {
            let base = libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if base == libc::MAP_FAILED {
                return Err(format!("no memory: {}", std::io::Error::last_os_error()));
            }
            libc::madvise(base, bytes, advice);
            base.cast::<u8>()
        };
        Ok(Self { base, bytes })
    }

    /// The first address in it that a huge page can start at.
    fn start(&self) -> *mut u8 {
        let skip = self.base.align_offset(HUGE_BYTES);
        // SAFETY: the mapping is longer than what is used by one huge page.
        unsafe { self.base.add(skip) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and nothing refers to it any more.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// The lines of every layout. A layout has memory only while it is visited.
pub struct Lines {
    /// The order in which lines are visited: one cycle through all lines.
    order: Vec<u32>,
    current: Option<(Layout, Mapping)>,
    fence: Mapping,
}

impl Lines {
    /// The order, and no memory for the lines yet.
    pub fn map() -> Result<Self, String> {
        let fence = Mapping::new(FENCE_PAGES * PAGE_BYTES, libc::MADV_NOHUGEPAGE)?;
        for page in 0..FENCE_PAGES {
            // SAFETY: inside the mapping.
            unsafe { fence.start().add(page * PAGE_BYTES).write_volatile(1) };
        }
        Ok(Self {
            order: circle(LINES),
            current: None,
            fence,
        })
    }

    /// Flushes the TLB entries of this process and keeps the caches, by revoking the access rights of many pages. So
    /// each page of a visit takes a walk, however large the TLB is (an emulator's grows without bound).
    pub fn forget_translations(&self) {
        let start = self.fence.start().cast();
        let bytes = FENCE_PAGES * PAGE_BYTES;
        // SAFETY: the whole range lies in the mapping, and nothing reads or writes it meanwhile. Were it refused, the
        // number of walks would show.
        unsafe {
            libc::mprotect(start, bytes, libc::PROT_NONE);
            libc::mprotect(start, bytes, libc::PROT_READ | libc::PROT_WRITE);
        }
    }

    /// Visits every line once.
    pub fn visit(&mut self, layout: Layout, access: Access) {
        if self.current.as_ref().is_none_or(|(now, _)| *now != layout) {
            self.current = None;
            let advice = if layout == Layout::Huge {
                libc::MADV_HUGEPAGE
            } else {
                libc::MADV_NOHUGEPAGE
            };
            // Without memory nothing is visited, which the counters show.
            self.current = Mapping::new(LINES * PAGE_BYTES, advice)
                .ok()
                .map(|mapping| (layout, mapping));
            self.link(layout);
        }
        let Some((_, mapping)) = &self.current else {
            return;
        };
        let start = mapping.start();
        match access {
            Access::Read => {
                let mut line = 0;
                for _ in 0..LINES {
                    // SAFETY: every line lies in the mapping and holds the number of another line; see `link`.
                    line = unsafe { start.add(place(layout, line)).cast::<u32>().read_volatile() }
                        as usize;
                }
                std::hint::black_box(line);
            }
            Access::Write => {
                for line in &self.order {
                    // SAFETY: inside the mapping; the second word of a line is not its link.
                    unsafe {
                        start
                            .add(place(layout, *line as usize) + 8)
                            .cast::<u32>()
                            .write_volatile(*line);
                    }
                }
            }
        }
    }

    /// Writes into each line which one is next.
    fn link(&self, layout: Layout) {
        let Some((_, mapping)) = &self.current else {
            return;
        };
        let start = mapping.start();
        for (at, line) in self.order.iter().enumerate() {
            let next = self.order[(at + 1) % LINES];
            // SAFETY: every line lies in the mapping.
            unsafe {
                start
                    .add(place(layout, *line as usize))
                    .cast::<u32>()
                    .write_volatile(next);
            }
        }
    }
}

/// Where a line is, from the start. Lines of different pages are at different places in their pages, so that they use
/// all sets of the caches as packed ones do.
const fn place(layout: Layout, line: usize) -> usize {
    match layout {
        Layout::Small | Layout::Huge => line * PAGE_BYTES + (line % LINES_PER_PAGE) * LINE_BYTES,
        Layout::Packed => line * LINE_BYTES,
    }
}

/// One cycle through all numbers below `count`, in a fixed order that no prefetcher predicts.
fn circle(count: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count as u32).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for at in (1..count).rev() {
        // A xorshift generator is random enough for an order.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(at, (state % at as u64) as usize);
    }
    order
}

/// Keeps the calling thread on the CPU that it runs on.
pub fn stay_on_this_cpu() {
    // SAFETY: the set is plain data; zero is the calling thread. A refusal only makes the result noisier.
    unsafe {
        let cpu = libc::sched_getcpu();
        if cpu >= 0 {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu as usize, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_order_is_one_circle_through_all_lines() {
        let order = circle(LINES);
        assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), LINES);
        let steps = order.windows(2).filter(|two| two[1] == two[0] + 1).count();
        assert!(steps < 100, "a prefetcher would see {steps} steps coming");
    }

    #[test]
    fn layouts_have_as_many_lines_and_different_pages() {
        let count = |layout, unit| {
            (0..LINES)
                .map(|line| place(layout, line) / unit)
                .collect::<BTreeSet<_>>()
                .len()
        };
        for layout in [Layout::Small, Layout::Huge, Layout::Packed] {
            assert_eq!(count(layout, LINE_BYTES), LINES);
        }
        assert_eq!(count(Layout::Small, PAGE_BYTES), LINES);
        assert_eq!(count(Layout::Packed, PAGE_BYTES), LINES / LINES_PER_PAGE);
    }

    #[test]
    fn a_visit_touches_every_page_once_and_comes_back() {
        let faults = || {
            // SAFETY: plain data, filled by the call.
            unsafe {
                let mut usage: libc::rusage = std::mem::zeroed();
                libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
                usage.ru_minflt as u64
            }
        };
        let mut lines = Lines::map().expect("an order");
        let before = faults();
        lines.visit(Layout::Small, Access::Read);
        let first = faults() - before;
        assert!(
            (LINES as u64..LINES as u64 + 200).contains(&first),
            "{first}"
        );
        let before = faults();
        lines.visit(Layout::Small, Access::Write);
        assert!(faults() - before < 200, "they are there now");
    }
}
