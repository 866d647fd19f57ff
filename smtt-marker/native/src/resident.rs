//! Which parts of this process are resident: the heap, the code cache, the stacks of all threads.
//!
//! The JVM knows what it has committed, and the kernel how much of the process is resident, but neither says how much of
//! the heap is resident: pages of a committed heap are resident from their first use on. `mincore` answers for a range
//! of the own process, one byte per page. It reads the page table of that range, so the caller asks rarely and within a
//! budget; [`Examined::cpu_ns`] is what one examination took.

use core::ffi::{CStr, c_char, c_void};
use core::ptr;

use crate::vm_structs;
use crate::{Env, Ref};

/// Pages that one call of `mincore` answers for: the kernel holds the lock of the address space for at most as many.
const SLICE_PAGES: usize = 4096;
/// Threads whose stacks are found.
const THREADS_MAX: usize = 1 << 15;
/// Bytes of a read of `/proc/self/maps`.
const MAPS_READ: usize = 1 << 14;
/// Smallest page size.
const PAGE: u64 = 4096;
/// Not known.
const UNKNOWN: i64 = -1;

/// What Java reads, in this order.
#[repr(C)]
struct Examined {
    heap: i64,
    code: i64,
    stacks: i64,
    threads: i64,
    anonymous: i64,
    cpu_ns: i64,
}

/// Bytes of a page.
fn page() -> usize {
    // SAFETY: sysconf has no precondition.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(PAGE as usize).max(1)
}

/// Resident bytes of a range; unknown where a part of it is not mapped.
fn resident(start: u64, end: u64) -> i64 {
    let page = page();
    let mut at = start & !(page as u64 - 1);
    let mut pages = 0;
    let mut states = [0_u8; SLICE_PAGES];
    while at < end {
        let left = ((end - at) as usize).div_ceil(page);
        let count = left.min(SLICE_PAGES);
        // SAFETY: the kernel writes one byte per page, for at most as many pages as the array has bytes; the range is
        // only looked up.
        let error = unsafe {
            libc::mincore(
                at as *mut c_void,
                count.wrapping_mul(page),
                states.as_mut_ptr(),
            )
        };
        if error != 0 {
            return UNKNOWN;
        }
        pages += states
            .iter()
            .take(count)
            .map(|state| u64::from(state & 1))
            .sum::<u64>();
        at = at.wrapping_add(count.wrapping_mul(page) as u64);
    }
    pages.wrapping_mul(page as u64) as i64
}

/// CPU time of this thread, in nanoseconds.
fn cpu_ns() -> i64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the answer goes to a variable of its own.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    now.tv_sec
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec)
}

/// See `Native.examineMemory`.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_smtt_marker_Native_examineMemory(
    _env: Env,
    _class: Ref,
    result: i64,
) {
    let before = cpu_ns();
    let range = |range: Option<(u64, u64)>| range.map_or(UNKNOWN, |(from, to)| resident(from, to));
    let (stacks, threads) = stacks();
    let examined = Examined {
        heap: range(vm_structs::heap()),
        code: range(vm_structs::code_cache()),
        stacks,
        threads,
        anonymous: anonymous(),
        cpu_ns: cpu_ns().wrapping_sub(before),
    };
    // SAFETY: Java gives the address of as many words, aligned.
    unsafe { (result as *mut Examined).write(examined) };
}

/// See `Native.residentBytes`.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_smtt_marker_Native_residentBytes(
    _env: Env,
    _class: Ref,
    address: i64,
    length: i64,
) -> i64 {
    let start = address as u64;
    start
        .checked_add(length.max(0) as u64)
        .map_or(UNKNOWN, |end| resident(start, end))
}

/// See `Native.anonymousBytes`.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_smtt_marker_Native_anonymousBytes(_env: Env, _class: Ref) -> i64 {
    anonymous()
}

/// Opens a file of `/proc/self`; negative where that fails.
fn open(path: &CStr) -> i32 {
    // SAFETY: the path is NUL-terminated.
    unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) }
}

/// Reads into `buffer`; none at the end or on an error.
fn read(fd: i32, buffer: &mut [u8]) -> Option<&[u8]> {
    // SAFETY: the buffer has as many bytes.
    let count = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
    buffer
        .get(..usize::try_from(count).ok()?)
        .filter(|read| !read.is_empty())
}

/// `RssAnon`: what is resident without the pages of files and of shared memory.
fn anonymous() -> i64 {
    let fd = open(c"/proc/self/statm");
    if fd < 0 {
        return UNKNOWN;
    }
    let mut text = [0_u8; 256];
    let mut words = [0_u64; 3];
    if let Some(read) = read(fd, &mut text) {
        let numbers = read.split(|byte| *byte == b' ');
        for (word, number) in words.iter_mut().zip(numbers) {
            *word = number.iter().fold(0, |sum, digit| {
                sum.wrapping_mul(10)
                    .wrapping_add(u64::from(digit.wrapping_sub(b'0')))
            });
        }
    }
    // SAFETY: fd is ours and not used afterwards.
    unsafe { libc::close(fd) };
    let [_, resident, shared] = words;
    resident.saturating_sub(shared).wrapping_mul(page() as u64) as i64
}

/// Resident bytes of the stacks of all threads but the first, and the number of threads.
///
/// The kernel no longer marks stacks in `/proc/self/maps`. But each thread has registered the address of its list of
/// robust mutexes, which is in the thread's own control block, and that lies at the upper end of its stack.
fn stacks() -> (i64, i64) {
    let bytes = THREADS_MAX * size_of::<u64>();
    // SAFETY: malloc has no precondition; the memory is freed below.
    let places = unsafe { libc::malloc(bytes).cast::<u64>() };
    if places.is_null() {
        return (UNKNOWN, UNKNOWN);
    }
    // SAFETY: the array is ours, has as many elements, and `control_blocks` initialises those that it counts.
    let result = unsafe {
        let (found, threads) = control_blocks(places);
        let places = core::slice::from_raw_parts_mut(places, found);
        places.sort_unstable();
        (resident_stacks(places), threads)
    };
    // SAFETY: from malloc, and not used afterwards.
    unsafe { libc::free(places.cast()) };
    result
}

/// Writes the address of the control block of each thread but the first; returns their number and that of all threads.
///
/// # Safety
/// `places` has [`THREADS_MAX`] elements.
unsafe fn control_blocks(places: *mut u64) -> (usize, i64) {
    // SAFETY: the path is NUL-terminated; the folder is closed below.
    let folder = unsafe { libc::opendir(c"/proc/self/task".as_ptr()) };
    if folder.is_null() {
        return (0, UNKNOWN);
    }
    // SAFETY: getpid has no precondition.
    let first = i64::from(unsafe { libc::getpid() });
    let (mut found, mut threads) = (0, 0);
    loop {
        // SAFETY: the folder is open.
        let entry = unsafe { libc::readdir(folder) };
        if entry.is_null() {
            break;
        }
        // SAFETY: the entry lives until the next call, and its name ends with NUL.
        let tid = unsafe { number((*entry).d_name.as_ptr()) };
        let Some(tid) = tid else {
            continue;
        };
        threads += 1;
        if tid == first || found >= THREADS_MAX {
            continue;
        }
        let (mut head, mut length) = (0_u64, 0_usize);
        // SAFETY: the answers go to variables of their own.
        let error = unsafe {
            libc::syscall(
                libc::SYS_get_robust_list,
                tid,
                &raw mut head,
                &raw mut length,
            )
        };
        if error == 0 && head != 0 {
            // SAFETY: below the number of elements.
            unsafe { places.add(found).write(head) };
            found += 1;
        }
    }
    // SAFETY: the folder is ours and not used afterwards.
    unsafe { libc::closedir(folder) };
    (found, threads)
}

/// A name that consists of digits, as a number.
///
/// # Safety
/// The name ends with NUL.
unsafe fn number(name: *const c_char) -> Option<i64> {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let digits = !name.is_empty() && name.iter().all(u8::is_ascii_digit);
    digits.then(|| {
        name.iter().fold(0_i64, |sum, digit| {
            sum.wrapping_mul(10)
                .wrapping_add(i64::from(digit.wrapping_sub(b'0')))
        })
    })
}

/// Resident bytes of the writable mappings that these sorted addresses lie in, each up to the end of the control block.
fn resident_stacks(places: &[u64]) -> i64 {
    let fd = open(c"/proc/self/maps");
    if fd < 0 {
        return UNKNOWN;
    }
    let (mut sum, mut next) = (0_i64, 0);
    let mut buffer = [0_u8; MAPS_READ];
    let mut line = Line::default();
    while let Some(text) = read(fd, &mut buffer) {
        for byte in text {
            if !line.take(*byte) {
                continue;
            }
            while places.get(next).is_some_and(|place| *place < line.start) {
                next += 1;
            }
            // Several places in one mapping are one stack and what lies beside it.
            let mut last = None;
            while let Some(place) = places.get(next).filter(|place| **place < line.end) {
                last = Some(*place);
                next += 1;
            }
            if let Some(place) = last {
                let top = (place | (PAGE - 1)).wrapping_add(1 + PAGE);
                sum = sum.wrapping_add(resident(line.start, line.end.min(top)).max(0));
            }
        }
    }
    // SAFETY: fd is ours and not used afterwards.
    unsafe { libc::close(fd) };
    sum
}

/// The address range of one line of `maps`, taken in byte by byte.
#[derive(Default)]
struct Line {
    start: u64,
    end: u64,
    value: u64,
    /// Numbers that are complete.
    numbers: u8,
}

impl Line {
    /// Takes one byte; true once the range is complete.
    fn take(&mut self, byte: u8) -> bool {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'\n' => {
                (self.value, self.numbers) = (0, 0);
                return false;
            }
            _ => {
                self.numbers = self.numbers.saturating_add(1);
                match self.numbers {
                    1 => self.start = self.value,
                    2 => self.end = self.value,
                    _ => {}
                }
                self.value = 0;
                return self.numbers == 2;
            }
        };
        self.value = self.value << 4 | u64::from(digit);
        false
    }
}

/// Reads a word that the JVM keeps at a fixed place.
///
/// # Safety
/// The address is that of a word of the JVM, or zero.
pub(crate) unsafe fn word(address: u64) -> Option<u64> {
    let place: *const u64 = ptr::with_exposed_provenance(address as usize);
    // SAFETY: the caller's promise.
    (!place.is_null()).then(|| unsafe { place.read() })
}
