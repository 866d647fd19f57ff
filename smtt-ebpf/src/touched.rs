//! Memory that a thread touched first: pages that were not present when the thread accessed them.
//!
//! The counts are in the thread's own row, which only the thread itself writes: an addition needs no lock. They only
//! grow, but for an exception that turns out to be no first touch within the same fault; a task's figure is the growth from
//! its begin to its end.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_probe_read_kernel;
use smtt_common::{
    event::{
        fault::ACCESS_WRITE,
        used::{TOUCHED_EITHER_BYTES, TOUCHED_HEAP_BYTES, TOUCHED_NATIVE_BYTES},
    },
    settings::{FIRST_NATIVE, FIRST_TOUCH, FIRST_WRITE, Thread},
};

use crate::maps::{THREADS, TOUCHES_SINCE, setting};

/// Bytes of a page. Only x86-64 has the tracepoint that reports whether a page was present.
const PAGE: u64 = 4096;
/// Pages of a large page of x86-64 beside the one that was touched.
const MORE_OF_LARGE: u64 = 511;

/// Index of the Java heap's pages in the thread's counts.
const HEAP: usize = 0;
/// Index of all other pages.
const NATIVE: usize = 1;

/// The running thread's exception. It is counted before the kernel handles it.
#[inline(always)]
pub fn fault(thread: *mut Thread, address: u64, access: u32, fresh: bool) {
    // SAFETY (here and below): the callers pass the running thread's row, which they have just looked up.
    unsafe {
        if !fresh {
            (*thread).first_touch = 0;
            return;
        }
        let write = if access == ACCESS_WRITE {
            FIRST_WRITE
        } else {
            0
        };
        let heap = (*thread).heap;
        let part = if address.wrapping_sub(heap.start) < heap.bytes {
            0
        } else {
            FIRST_NATIVE
        };
        let first = address & !(PAGE - 1) | FIRST_TOUCH | write | part;
        (*thread).first_touch = first;
        *count(thread, first) += 1;
    }
}

/// The running thread's last exception was no first touch: the page was there, or the kernel has answered with a signal.
#[inline(always)]
pub fn take_back(thread: *mut Thread) {
    unsafe {
        let first = (*thread).first_touch;
        if first != 0 {
            (*thread).first_touch = 0;
            *count(thread, first) -= 1;
        }
    }
}

/// The kernel has put a large page where the running thread touched memory first. `fault` is its `vm_fault`.
///
/// The same function makes large pages without an exception (`MADV_POPULATE_WRITE`): their address is another one. A read
/// gets the page of zeros, which is no memory.
#[inline(always)]
pub fn large_page(thread: *mut Thread, fault: u64) {
    let offset = setting!(vm_fault_address_offset);
    unsafe {
        let first = (*thread).first_touch;
        if offset == 0 || first & FIRST_WRITE == 0 {
            return;
        }
        let mut address = 0_u64;
        let error = bpf_probe_read_kernel(
            (&raw mut address).cast(),
            size_of::<u64>() as u32,
            (fault + u64::from(offset)) as *const c_void,
        );
        if error == 0 && (address ^ first) & !(PAGE - 1) == 0 {
            (*thread).first_touch = 0;
            *count(thread, first) += MORE_OF_LARGE;
        }
    }
}

/// The count of the part of memory in which the page was touched, which [`fault`] decides: the heap may be reported
/// meanwhile.
#[inline(always)]
unsafe fn count(thread: *mut Thread, first: u64) -> *mut u64 {
    let part = if first & FIRST_NATIVE == 0 {
        HEAP
    } else {
        NATIVE
    };
    unsafe { &raw mut (*thread).touched[part] }
}

/// Writes the accounts of first touches of a thread to `place`; returns a bit for each that there is. There is none where
/// they were not counted at `since_ns` already.
#[inline(always)]
pub fn read(place: *mut u64, tid: u32, since_ns: u64) -> u32 {
    // SAFETY: the callers pass places for all accounts.
    unsafe {
        *place.add(TOUCHED_HEAP_BYTES) = 0;
        *place.add(TOUCHED_NATIVE_BYTES) = 0;
        *place.add(TOUCHED_EITHER_BYTES) = 0;
    }
    let counted = TOUCHES_SINCE.get(0).copied().unwrap_or(0);
    let Some(thread) = THREADS.get_ptr(tid) else {
        return 0;
    };
    if counted == 0 || counted > since_ns {
        return 0;
    }
    // SAFETY: as above.
    unsafe {
        let heap = (*thread).touched[HEAP] * PAGE;
        let native = (*thread).touched[NATIVE] * PAGE;
        if (*thread).heap.bytes == 0 {
            *place.add(TOUCHED_EITHER_BYTES) = heap + native;
            return 1 << TOUCHED_EITHER_BYTES;
        }
        *place.add(TOUCHED_HEAP_BYTES) = heap;
        *place.add(TOUCHED_NATIVE_BYTES) = native;
    }
    1 << TOUCHED_HEAP_BYTES | 1 << TOUCHED_NATIVE_BYTES
}
