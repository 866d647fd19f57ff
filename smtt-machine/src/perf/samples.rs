//! The records of a tracepoint, from a buffer that is shared with the kernel.

use std::mem::offset_of;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{io, ptr};

use perf_event_open_sys::bindings::{
    PERF_RECORD_LOST, PERF_RECORD_SAMPLE, PERF_SAMPLE_RAW, PERF_TYPE_TRACEPOINT,
    perf_event_mmap_page,
};

use super::{Event, attributes};

/// Offsets, in the first page of the buffer, of the kernel's write position and of the read position.
const HEAD: usize = offset_of!(perf_event_mmap_page, data_head);
const TAIL: usize = offset_of!(perf_event_mmap_page, data_tail);

/// An open tracepoint and its buffer. Dropping it closes both.
#[derive(Debug)]
pub struct Samples {
    buffer: *mut u8,
    page_bytes: usize,
    /// A power of two.
    data_bytes: usize,
    /// Keeps the event open.
    _event: Event,
}

// SAFETY: the buffer is this value's own, and is read through an exclusive reference only.
unsafe impl Send for Samples {}

impl Samples {
    /// Listens to a tracepoint in one thread; `pages` is a power of two.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn of_tracepoint(id: u64, thread: u32, pages: usize) -> io::Result<Self> {
        let mut attributes = attributes(PERF_TYPE_TRACEPOINT, id);
        attributes.sample_period = 1;
        attributes.sample_type = PERF_SAMPLE_RAW.into();
        let event = Event::with(attributes, thread as i32, -1, -1)?;
        let page_bytes = procfs::page_size() as usize;
        let pages = pages.next_power_of_two();
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
        let buffer = unsafe {
            libc::mmap(
                ptr::null_mut(),
                (pages + 1) * page_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_fd().as_raw_fd(),
                0,
            )
        };
        if buffer == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            buffer: buffer.cast(),
            page_bytes,
            data_bytes: pages * page_bytes,
            _event: event,
        })
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: both words are on the first page of the mapping, aligned, and shared with the kernel as atomics.
        unsafe { AtomicU64::from_ptr(self.buffer.add(offset).cast()) }
    }

    /// Copies bytes out of the buffer, from a position that only grows.
    fn copy(&self, position: u64, bytes: &mut [u8]) {
        let start = position as usize & (self.data_bytes - 1);
        let first = bytes.len().min(self.data_bytes - start);
        // SAFETY: the data begin on the second page and are as long as that; the kernel writes nothing between tail
        // and head, where these bytes are.
        unsafe {
            let data = self.buffer.add(self.page_bytes);
            ptr::copy_nonoverlapping(data.add(start), bytes.as_mut_ptr(), first);
            ptr::copy_nonoverlapping(data, bytes.as_mut_ptr().add(first), bytes.len() - first);
        }
    }

    /// Passes the fields of every new record to `take`; returns the number of lost records.
    pub fn drain(&mut self, mut take: impl FnMut(&[u8])) -> u64 {
        let mut tail = self.word(TAIL).load(Ordering::Relaxed);
        let head = self.word(HEAD).load(Ordering::Acquire);
        let mut lost = 0_u64;
        let mut record = Vec::new();
        while head.wrapping_sub(tail) >= 8 {
            let mut header = [0; 8];
            self.copy(tail, &mut header);
            let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
            let bytes = u64::from(u16::from_ne_bytes([header[6], header[7]]));
            if bytes < 8 || bytes > head.wrapping_sub(tail) {
                // Malformed: the start of the next record is unknown.
                tail = head;
                lost += 1;
                break;
            }
            record.resize(bytes as usize - 8, 0);
            self.copy(tail + 8, &mut record);
            tail += bytes;
            match kind {
                // The length of the fields, then the fields.
                PERF_RECORD_SAMPLE if record.len() > 4 => take(&record[4..]),
                // An id, then the number of lost records.
                PERF_RECORD_LOST if record.len() >= 16 => {
                    let mut many = [0; 8];
                    many.copy_from_slice(&record[8..16]);
                    lost = lost.saturating_add(u64::from_ne_bytes(many));
                }
                _ => {}
            }
        }
        self.word(TAIL).store(tail, Ordering::Release);
        lost
    }
}

impl Drop for Samples {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that was made, which nothing borrows any more.
        unsafe { libc::munmap(self.buffer.cast(), self.data_bytes + self.page_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smtt_skip::{NotSkipped, skip};

    #[test]
    fn every_hit_of_a_tracepoint_is_recorded_until_the_buffer_is_full() -> Result<(), NotSkipped> {
        let folders = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
        let id = folders.iter().find_map(|root| {
            std::fs::read_to_string(format!("{root}/events/exceptions/page_fault_user/id")).ok()
        });
        let Some(id) = id.and_then(|id| id.trim().parse().ok()) else {
            return skip(
                "tracepoints",
                "tracefs is not mounted, or not for us, or has no tracepoint of page faults",
            );
        };
        let mut samples = match Samples::of_tracepoint(id, 0, 2) {
            Ok(samples) => samples,
            Err(error) => return skip("tracepoints", super::super::refusal(&error)),
        };
        let touch = |pages: usize| {
            // SAFETY: a new mapping, written inside its bounds, and given back.
            unsafe {
                let memory = libc::mmap(
                    ptr::null_mut(),
                    pages * 4096,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                );
                assert_ne!(memory, libc::MAP_FAILED);
                libc::madvise(memory, pages * 4096, libc::MADV_NOHUGEPAGE);
                for page in 0..pages {
                    memory.cast::<u8>().add(page * 4096).write_volatile(1);
                }
                libc::munmap(memory, pages * 4096);
            }
        };
        let count = |samples: &mut Samples| {
            let mut reported = 0;
            let lost = samples.drain(|bytes| {
                assert!(bytes.len() >= 8);
                reported += 1;
            });
            (reported, lost)
        };
        count(&mut samples);
        let mut reported = 0;
        // More than the buffer holds, in parts that it holds.
        for _ in 0..40 {
            touch(20);
            let (more, lost) = count(&mut samples);
            assert_eq!(lost, 0);
            reported += more;
        }
        assert!(reported >= 800, "{reported} of 800 page faults");
        touch(2000);
        let (kept, _) = count(&mut samples);
        assert!(kept < 2000, "{kept}");
        // The next record that finds room reports the loss.
        touch(1);
        let (_, lost) = count(&mut samples);
        assert!(lost > 0);
        Ok(())
    }
}
