//! The slot file: a memfd, mapped shared, with its header written.

use core::ptr;

use smtt_common::context::{HEADER_SIZE, Header, MAGIC, Range, SLOT_SIZE, Slot, VERSION};

use crate::vm_structs;
use crate::{Env, Ref};

/// Most slots one JVM may ask for: bounds the memory of a mistaken caller to 8 MiB.
const SLOTS_MAX: i32 = 65_536;
/// Bytes between two writes that make every page resident; the smallest page size there is.
const PAGE: usize = 4096;

/// The layout of the slot files, for the daemon: it probes no library whose slot files it cannot read.
#[unsafe(no_mangle)]
#[used]
pub static SMTT_SLOT_LAYOUT: u32 = VERSION;

/// Makes the slot file with `slot_count` slots and returns the address of its header, or a negative `errno`.
///
/// A memfd and not a file in a folder: no path to choose, nothing left behind when the JVM dies, and the daemon
/// finds it by its name in `/proc/PID/maps` anyway. The descriptor is closed at once (the mapping stays), so a
/// child process inherits none, and the mapping is not copied on fork: a forked child cannot write our slots.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_smtt_marker_Native_createSlots(
    _env: Env,
    _class: Ref,
    slot_count: i32,
) -> i64 {
    if !(1..=SLOTS_MAX).contains(&slot_count) {
        return -i64::from(libc::EINVAL);
    }
    let bytes = (HEADER_SIZE + slot_count as usize * SLOT_SIZE).next_multiple_of(PAGE);
    // SAFETY: the name is a NUL-terminated literal.
    let fd = unsafe { libc::memfd_create(c"smtt-slots".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return -i64::from(errno());
    }
    let answer = map(fd, bytes, slot_count as u32);
    // SAFETY: fd is ours and not used afterwards.
    unsafe { libc::close(fd) };
    answer
}

/// Maps the file, makes its pages resident and writes the header, and the addresses of the heap into each slot.
fn map(fd: i32, bytes: usize, slot_count: u32) -> i64 {
    // SAFETY: fd is a file that we own.
    if unsafe { libc::ftruncate(fd, bytes as libc::off_t) } < 0 {
        return -i64::from(errno());
    }
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return -i64::from(errno());
    }
    // A failure only means that forked children keep the mapping until they exec.
    // SAFETY: exactly the mapping made above.
    unsafe { libc::madvise(start, bytes, libc::MADV_DONTFORK) };
    // The kernel side reads slots where it cannot wait for a page: every page is written before it is announced.
    for at in (0..bytes).step_by(PAGE) {
        // SAFETY: inside the mapping.
        unsafe { start.cast::<u8>().add(at).write_volatile(0) };
    }
    let header = Header {
        magic: MAGIC,
        version: VERSION,
        slot_size: SLOT_SIZE as u32,
        slot_count,
        // SAFETY: getpid has no precondition.
        pid: unsafe { libc::getpid() } as u32,
        address: start as u64,
        ..Header::default()
    };
    // SAFETY: the mapping is page-aligned, longer than a header, and no other thread knows it yet.
    unsafe { start.cast::<Header>().write_volatile(header) };
    let heap = vm_structs::heap().map_or_else(Range::default, |(start, end)| Range {
        start,
        bytes: end.wrapping_sub(start),
    });
    for index in 0..slot_count as usize {
        // SAFETY: inside the mapping, which has room for as many slots behind the header.
        unsafe {
            let slot = start.cast::<u8>().add(HEADER_SIZE + index * SLOT_SIZE);
            (&raw mut (*slot.cast::<Slot>()).heap).write_volatile(heap);
        }
    }
    start as i64
}

/// The last error of this thread.
pub(crate) fn errno() -> i32 {
    // SAFETY: the location is valid for the thread's life.
    unsafe { *libc::__errno_location() }
}

/// The calling thread's id, in the JVM's own pid namespace.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_smtt_marker_Native_threadId(_env: Env, _class: Ref) -> i32 {
    // The system call and not `gettid`: that function is younger than some of the C libraries Spark runs on.
    // SAFETY: gettid has no precondition.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}
