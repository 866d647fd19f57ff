//! The known workload: pages touched, and a function called, a known number of times.

use std::io;

/// Pages in every run.
pub const PAGES: usize = 20_000;
/// Calls of the probed function in every run.
pub const CALLS: u64 = 10_000;

/// Anonymous memory of small pages, given back when dropped.
pub struct Memory {
    base: *mut u8,
    page_bytes: usize,
    pages: usize,
}

impl Memory {
    /// Maps `pages` pages without touching them.
    pub fn map(pages: usize) -> io::Result<Self> {
        // SAFETY: sysconf takes no pointers.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses touches no memory of ours.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                pages * page_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A huge page would take one fault and one walk where the workload promises many. A kernel without
        // huge pages refuses the advice with EINVAL, which is as good.
        // SAFETY: the range is the mapping made above.
        unsafe { libc::madvise(base, pages * page_bytes, libc::MADV_NOHUGEPAGE) };
        Ok(Self {
            base: base.cast(),
            page_bytes,
            pages,
        })
    }

    /// Reads one byte of every page, `rounds` times.
    pub fn read(&self, rounds: usize) {
        for _ in 0..rounds {
            for page in 0..self.pages {
                // SAFETY: the offset lies in the mapping, which lives as long as `self`.
                unsafe { self.base.add(page * self.page_bytes).read_volatile() };
            }
        }
    }

    /// Writes one byte of every page.
    pub fn write(&mut self) {
        for page in 0..self.pages {
            // SAFETY: the offset lies in the mapping, which is writable and ours alone.
            unsafe {
                self.base
                    .add(page * self.page_bytes)
                    .write_volatile(page as u8)
            };
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` and nothing refers to it any more.
        unsafe { libc::munmap(self.base.cast(), self.pages * self.page_bytes) };
    }
}

// The same first instruction as the marker's probe pads on x86; a plain nop elsewhere.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".globl smtt_vmprobe_pad",
    ".type smtt_vmprobe_pad, @function",
    "smtt_vmprobe_pad:",
    ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
    "ret",
    ".size smtt_vmprobe_pad, . - smtt_vmprobe_pad",
);
#[cfg(not(target_arch = "x86_64"))]
std::arch::global_asm!(
    ".globl smtt_vmprobe_pad",
    ".type smtt_vmprobe_pad, @function",
    "smtt_vmprobe_pad:",
    "nop",
    "ret",
    ".size smtt_vmprobe_pad, . - smtt_vmprobe_pad",
);

unsafe extern "C" {
    fn smtt_vmprobe_pad();
}

/// Calls the probed function [`CALLS`] times.
pub fn call_pad() {
    for _ in 0..CALLS {
        // SAFETY: the function above only returns.
        unsafe { smtt_vmprobe_pad() };
    }
}

/// Offset of the probed function in this program's file, as a uprobe wants it.
pub fn pad_file_offset() -> io::Result<u64> {
    let address = smtt_vmprobe_pad as *const () as u64;
    for line in std::fs::read_to_string("/proc/self/maps")?.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(_), Some(offset)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let Some((start, end)) = range.split_once('-') else {
            continue;
        };
        let hex = |text| u64::from_str_radix(text, 16).map_err(io::Error::other);
        let (start, end, offset) = (hex(start)?, hex(end)?, hex(offset)?);
        if (start..end).contains(&address) {
            return Ok(address - start + offset);
        }
    }
    Err(io::Error::other(
        "the probed function is in no mapping of /proc/self/maps",
    ))
}

/// Minor and major faults of this thread so far.
pub fn own_faults() -> io::Result<u64> {
    // SAFETY: rusage is plain data for which all zeros is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live rusage.
    if unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((usage.ru_minflt + usage.ru_majflt) as u64)
}
