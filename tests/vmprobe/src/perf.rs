//! Perf events, opened with exact attributes.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};

/// The part of the kernel's `perf_event_attr` (its second published size) that is needed here.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Attributes {
    /// `PERF_TYPE_*` or the number in a PMU's `type` file.
    pub kind: u32,
    /// Set when the event is opened.
    pub size: u32,
    /// Which event of that kind.
    pub config: u64,
    /// Events per sample; 0 counts only.
    pub sample_period: u64,
    /// `PERF_SAMPLE_*`.
    pub sample_type: u64,
    /// `PERF_FORMAT_*`.
    pub read_format: u64,
    /// The bits from `disabled` on; set when the event is opened.
    pub flags: u64,
    /// Events between two wake-ups.
    pub wakeup: u32,
    /// Kind of breakpoint.
    pub breakpoint: u32,
    /// Address of the function's or file's name, for probes.
    pub config1: u64,
    /// Offset in it, for probes.
    pub config2: u64,
}

/// `PERF_TYPE_SOFTWARE`.
pub const SOFTWARE: u32 = 1;
/// `PERF_TYPE_HW_CACHE`.
pub const CACHE: u32 = 3;
/// `PERF_COUNT_SW_PAGE_FAULTS`.
pub const PAGE_FAULTS: u64 = 2;
/// dTLB, read, miss.
pub const DTLB_READ_MISSES: u64 = 3 | (1 << 16);
/// dTLB, write, miss.
pub const DTLB_WRITE_MISSES: u64 = 3 | (1 << 8) | (1 << 16);

const DISABLED: u64 = 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_DISABLE: libc::c_ulong = 0x2401;
const IOC_SET_BPF: libc::c_ulong = 0x4004_2408;
const SAMPLE_IP: u64 = 1;
const RECORD_SAMPLE: u32 = 9;
const RING_PAGES: usize = 8;

/// An open event of this thread.
pub struct Event(File);

impl Event {
    /// Opens a counter of this thread, switched off. `user_only` leaves the kernel's own work out.
    pub fn open(mut attributes: Attributes, user_only: bool) -> io::Result<Self> {
        attributes.size = size_of::<Attributes>() as u32;
        attributes.flags = DISABLED | if user_only { EXCLUDE_KERNEL } else { 0 };
        // SAFETY: the attributes outlive the call and carry their size.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                0,
                -1,
                -1,
                8,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given this descriptor to us alone.
        Ok(Self(unsafe { File::from_raw_fd(fd as i32) }))
    }

    /// Runs the program at every overflow or hit.
    pub fn set_program(&self, program: &impl AsRawFd) -> io::Result<()> {
        self.control(IOC_SET_BPF, program.as_raw_fd().into())
    }

    /// Switches the event on or off.
    pub fn enable(&self, on: bool) -> io::Result<()> {
        self.control(if on { IOC_ENABLE } else { IOC_DISABLE }, 0)
    }

    /// What it counts while `work` runs.
    pub fn count(&mut self, work: impl FnOnce()) -> io::Result<u64> {
        let before = self.read()?;
        self.enable(true)?;
        work();
        self.enable(false)?;
        Ok(self.read()? - before)
    }

    fn read(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.0.read_exact(&mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn control(&self, request: libc::c_ulong, argument: libc::c_long) -> io::Result<()> {
        // SAFETY: these requests take numbers, no pointers.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), request as _, argument) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}

/// Misses counted and samples taken while `work` runs, with one sample per `period` misses.
pub fn sample(config: u64, period: u64, work: impl FnOnce()) -> io::Result<(u64, u64)> {
    let attributes = Attributes {
        kind: CACHE,
        config,
        sample_period: period,
        sample_type: SAMPLE_IP,
        ..Attributes::default()
    };
    let mut event = Event::open(attributes, true)?;
    // SAFETY: sysconf takes no pointers.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let bytes = (1 + RING_PAGES) * page_bytes;
    // SAFETY: a new mapping of the event's ring at an address that the kernel chooses.
    let ring = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            event.0.as_raw_fd(),
            0,
        )
    };
    if ring == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let counted = event.count(work);
    // SAFETY: the ring is mapped, the event is off, so nobody writes; `data_head` is at byte 1024 of the first
    // page, and records are 8-byte aligned from the second page on. The ring is larger than what was asked for
    // can fill, so the head has not wrapped.
    let samples = unsafe {
        let head = ring.cast::<u8>().add(1024).cast::<u64>().read_volatile() as usize;
        let data = ring.cast::<u8>().add(page_bytes);
        let mut at = 0;
        let mut samples = 0;
        while at + 8 <= head.min(RING_PAGES * page_bytes) {
            let kind = data.add(at).cast::<u32>().read();
            let size = data.add(at + 6).cast::<u16>().read();
            samples += u64::from(kind == RECORD_SAMPLE);
            at += usize::from(size.max(8));
        }
        samples
    };
    // SAFETY: the mapping was made above and nothing refers to it any more.
    unsafe { libc::munmap(ring, bytes) };
    Ok((counted?, samples))
}
