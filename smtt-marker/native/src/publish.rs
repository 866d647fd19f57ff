//! The process context of OTEP 4719: a mapping that OpenTelemetry's profilers find by its name.

use core::ptr;
use core::sync::atomic::{Ordering, fence};

use crate::slots::errno;
use crate::{Env, Ref};

/// Bytes of the mapping: the header and the payload behind it.
const BYTES: usize = 2 * 4096;
/// Name of the mapping, and the first bytes of its header.
const NAME: &core::ffi::CStr = c"OTEL_CTX";
const VERSION: u32 = 2;
/// `PR_SET_VMA` and its only operation: older C libraries lack the names.
const PR_SET_VMA: i32 = 0x5356_4d41;
const PR_SET_VMA_ANON_NAME: u64 = 0;

/// The header, in the proposal's layout.
#[repr(C)]
struct Header {
    signature: [u8; 8],
    version: u32,
    payload_size: u32,
    /// When this payload was published, on the clock that counts while the machine sleeps; 0 while it changes.
    published_ns: u64,
    payload: u64,
}

/// Publishes a payload: in a new mapping where `header` is 0, else in place of the one before. Returns the header's
/// address, or a negative `errno`.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_smtt_marker_Native_publish(
    _env: Env,
    _class: Ref,
    header: i64,
    payload: i64,
    length: i32,
) -> i64 {
    let Ok(length) = usize::try_from(length) else {
        return -i64::from(libc::EINVAL);
    };
    if length > BYTES - size_of::<Header>() {
        return -i64::from(libc::E2BIG);
    }
    let is_new = header == 0;
    let start = if is_new {
        match map() {
            Ok(start) => start,
            Err(errno) => return -i64::from(errno),
        }
    } else {
        header as *mut Header
    };
    // SAFETY: the mapping is ours, page-aligned and `BYTES` long; the caller in Java is one thread at a time, and its
    // payload has `length` bytes. Other processes read, and check the time before and after.
    unsafe {
        let before = (&raw const (*start).published_ns).read_volatile();
        (&raw mut (*start).published_ns).write_volatile(0);
        fence(Ordering::SeqCst);
        let text = start.add(1).cast::<u8>();
        ptr::copy_nonoverlapping(payload as *const u8, text, length);
        let mut signature = [0; 8];
        ptr::copy_nonoverlapping(NAME.as_ptr().cast(), (&raw mut signature).cast::<u8>(), 8);
        (&raw mut (*start).signature).write_volatile(signature);
        (&raw mut (*start).version).write_volatile(VERSION);
        (&raw mut (*start).payload_size).write_volatile(length as u32);
        (&raw mut (*start).payload).write_volatile(text as u64);
        fence(Ordering::SeqCst);
        // Two publications in one tick of the clock must differ.
        (&raw mut (*start).published_ns).write_volatile(now_ns().max(before.wrapping_add(1)));
        // Readers may follow this call. The kernel may not know it, and the memfd has the name as well.
        libc::prctl(
            PR_SET_VMA,
            PR_SET_VMA_ANON_NAME,
            start as u64,
            BYTES as u64,
            NAME.as_ptr() as u64,
        );
    }
    start as i64
}

/// A private mapping of a memfd of that name, which a forked child does not have.
fn map() -> Result<*mut Header, i32> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a NUL-terminated literal.
    let mut fd = unsafe { libc::memfd_create(NAME.as_ptr(), flags | libc::MFD_NOEXEC_SEAL) };
    if fd < 0 {
        // Kernels before 6.3 do not know the last flag.
        // SAFETY: as above.
        fd = unsafe { libc::memfd_create(NAME.as_ptr(), flags) };
    }
    if fd < 0 {
        return Err(errno());
    }
    // SAFETY: the descriptor is ours and not used afterwards; a new mapping touches no memory that exists.
    unsafe {
        let start = if libc::ftruncate(fd, BYTES as libc::off_t) < 0 {
            libc::MAP_FAILED
        } else {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), BYTES, access, libc::MAP_PRIVATE, fd, 0)
        };
        let errno = errno();
        libc::close(fd);
        if start == libc::MAP_FAILED {
            return Err(errno);
        }
        if libc::madvise(start, BYTES, libc::MADV_DONTFORK) < 0 {
            libc::munmap(start, BYTES);
            return Err(libc::EINVAL);
        }
        Ok(start.cast())
    }
}

fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the place is valid; every kernel that the marker runs on has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}
