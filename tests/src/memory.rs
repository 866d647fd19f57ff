//! Memory whose every first touch is exactly one page fault; CPU clocks of threads; processors.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::ptr;

use anyhow::{Context as _, Result, bail};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Pages that the kernel may map around a fault in a file mapping: a fresh page per window faults once.
pub const WINDOW: usize = 64 << 10;

/// A mapping of this program.
#[derive(Debug)]
pub struct Mapping {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory; each thread touches a separate part.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Private memory on small pages: a large page would make one fault of many.
    ///
    /// # Errors
    /// When the kernel refuses the mapping.
    pub fn anonymous(pages: usize) -> Result<Self> {
        let mapping = Self::map(pages * PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        // SAFETY: exactly the mapping made above.
        if unsafe { libc::madvise(mapping.start.cast(), mapping.bytes, libc::MADV_NOHUGEPAGE) } != 0
        {
            let error = std::io::Error::last_os_error();
            // A kernel without large pages rejects the advice and does not need it.
            if error.raw_os_error() != Some(libc::EINVAL) {
                return Err(error.into());
            }
        }
        Ok(mapping)
    }

    /// A fresh file of `windows` windows, mapped shared. No process has read the file, so no page is in the page cache.
    /// Readahead is off: it would bring large folios, and one fault maps a whole folio.
    ///
    /// # Errors
    /// When the file system has no room for the file, or the kernel refuses the mapping.
    pub fn file(windows: usize) -> Result<Self> {
        let file: File = tempfile::tempfile()?;
        file.set_len((windows * WINDOW) as u64)?;
        Self::of_file(&file, windows * WINDOW)
    }

    /// The first bytes of a file, mapped shared, without readahead.
    ///
    /// # Errors
    /// When the kernel refuses the mapping.
    pub fn of_file(file: &File, bytes: usize) -> Result<Self> {
        let mapping = Self::map(bytes, libc::MAP_SHARED, file.as_raw_fd())?;
        // SAFETY: exactly the mapping made above.
        if unsafe { libc::madvise(mapping.start.cast(), mapping.bytes, libc::MADV_RANDOM) } != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        Ok(mapping)
    }

    fn map(bytes: usize, flags: i32, fd: i32) -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                fd,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            bail!("mmap of {bytes} bytes: {}", std::io::Error::last_os_error());
        }
        Ok(Self {
            start: start.cast(),
            bytes,
        })
    }

    /// Address of the first byte.
    #[must_use]
    pub fn address(&self) -> usize {
        self.start as usize
    }

    /// Reads one byte.
    ///
    /// # Panics
    /// Outside of the mapping.
    pub fn read(&self, at: usize) {
        assert!(at < self.bytes);
        // SAFETY: inside the mapping.
        unsafe { self.start.add(at).read_volatile() };
    }

    /// Writes one byte.
    ///
    /// # Panics
    /// Outside of the mapping.
    pub fn write(&self, at: usize) {
        assert!(at < self.bytes);
        // SAFETY: inside the mapping, and no other thread touches this byte.
        unsafe { self.start.add(at).write_volatile(1) };
    }

    /// Returns the pages to the kernel, so that they fault again.
    pub fn forget(&self) {
        // SAFETY: exactly this mapping; its content is no longer needed.
        unsafe { libc::madvise(self.start.cast(), self.bytes, libc::MADV_DONTNEED) };
    }

    /// Flushes the TLB entries of the mapping: the kernel drops translations when it takes an access right away. The
    /// kernel chooses whether it flushes others too.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn forget_translations(&self) -> Result<()> {
        // A page that is not resident has no translation to drop.
        (0..self.bytes).step_by(PAGE).for_each(|at| self.write(at));
        for rights in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
            // SAFETY: exactly this mapping; its owner touches it only with all rights.
            if unsafe { libc::mprotect(self.start.cast(), self.bytes, rights) } != 0 {
                return Err(std::io::Error::last_os_error().into());
            }
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly this mapping; no code uses it afterwards.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

/// Maps every page of the program's code and of its libraries': where the linker puts a function must not decide whether
/// the task that calls it first has a page fault more.
///
/// # Errors
/// When the kernel does not list the mappings.
pub fn map_code() -> Result<()> {
    for line in std::fs::read_to_string("/proc/self/maps")?.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(rights), Some(path)) = (words.next(), words.next(), words.nth(3))
        else {
            continue;
        };
        if !path.starts_with('/') || !rights.starts_with("r-x") {
            continue;
        }
        let (start, end) = range.split_once('-').context("no range")?;
        let end = usize::from_str_radix(end, 16)?;
        for at in (usize::from_str_radix(start, 16)?..end).step_by(PAGE) {
            // SAFETY: a page that this program may read, and does not unmap.
            unsafe { (at as *const u8).read_volatile() };
        }
    }
    Ok(())
}

/// Sets the command name of the program.
pub fn set_name(name: &str) {
    if let Ok(name) = CString::new(name) {
        // SAFETY: the name is NUL-terminated.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    }
}

/// The calling thread's id.
#[must_use]
pub fn thread_id() -> u32 {
    // SAFETY: gettid has no precondition.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Page faults of the calling thread so far, minor and major, as the kernel counts them.
#[must_use]
pub fn thread_faults() -> u64 {
    // SAFETY: plain data, filled by the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage
    };
    (usage.ru_minflt + usage.ru_majflt) as u64
}

/// CPU time of all threads of this process so far, in nanoseconds.
#[must_use]
pub fn cpu_time_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of the calling thread so far, in nanoseconds.
#[must_use]
pub fn thread_cpu_time_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the place is valid.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Pins the calling thread to a processor.
///
/// # Errors
/// When the processor is offline, or outside this process's CPU set.
pub fn pin(processor: usize) -> Result<()> {
    // SAFETY: the set is plain data; zero is the calling thread.
    let pinned = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if pinned != 0 {
        bail!("processor {processor}: {}", std::io::Error::last_os_error());
    }
    Ok(())
}
