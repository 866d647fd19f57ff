//! Which files are one inode for the kernel's probes.
//!
//! Overlay mounts of one lower folder, as containers of one image have them, show a file each, with numbers of its own
//! since Linux 6.8; the kernel probes the inode behind them. Another link to that inode would report each fact of all its
//! processes once more. No number that a file shows says this for certain, and users can mount overlays of files that are
//! not theirs. The kernel's own breakpoints say it: this process maps a page of every probed file, and a probe on an
//! instruction in that page, for this process alone, appears in the mappings of the same inode only.
//!
//! The page is never executed. It is read as another process would read it (`process_vm_readv`): where the file has been
//! truncated, that is an error rather than a signal, and where the file system has to bring the page, the daemon's memory
//! lock is free meanwhile, which a read of `/proc/self/mem` would hold.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::ptr;
use std::sync::Arc;

use anyhow::Context as _;

use super::known::PAD;
use super::link::Attacher;

/// Bits of an entry of `/proc/PID/pagemap`.
const PAGE_PRESENT: u64 = 1 << 63;
const PAGE_SWAPPED: u64 = 1 << 62;
/// Of a file, or shared.
const PAGE_OF_FILE: u64 = 1 << 61;

/// A private mapping of the page of a file that has a probe pad.
#[derive(Debug)]
pub struct Page {
    start: usize,
    length: NonZeroUsize,
    /// Address of the pad.
    pad: usize,
    /// File offset of the pad.
    pub offset: u64,
}

impl Page {
    /// Maps the page with the pad at this file offset.
    ///
    /// # Errors
    /// When the file system or the mount refuses. A mount without programs (`noexec`) does: the kernel shows no
    /// breakpoints there.
    pub fn map(file: &File, pad: u64) -> io::Result<Self> {
        // SAFETY: sysconf has no precondition.
        let length = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })
            .ok()
            .and_then(NonZeroUsize::new)
            .ok_or(io::ErrorKind::Unsupported)?;
        let inside = pad as usize % length;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length.get(),
                libc::PROT_READ | libc::PROT_EXEC,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                (pad - inside as u64) as libc::off_t,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(explained(file, io::Error::last_os_error()));
        }
        let page = Self {
            start: start as usize,
            length,
            pad: start as usize + inside,
            offset: pad,
        };
        // SAFETY: exactly the mapping made above, which nothing uses.
        if unsafe { libc::mprotect(start, length.get(), libc::PROT_READ) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(page)
    }

    /// The first byte of the pad, and that of the instruction behind it. They are in one page: pads are aligned.
    fn code(&self) -> io::Result<[u8; 2]> {
        let mut code = [0; PAD.len() + 1];
        let own = libc::iovec {
            iov_base: code.as_mut_ptr().cast(),
            iov_len: code.len(),
        };
        let page = libc::iovec {
            iov_base: self.pad as *mut libc::c_void,
            iov_len: code.len(),
        };
        // SAFETY: the buffer is ours and that long; the kernel checks the page's address.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &own, 1, &page, 1, 0) };
        match usize::try_from(read) {
            Ok(bytes) if bytes == code.len() => Ok([code[0], code[PAD.len()]]),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// Whether the pad has a breakpoint: the inode is probed, by this process or another one.
    ///
    /// # Errors
    /// When the file has no such page any more.
    pub fn is_probed(&self) -> io::Result<bool> {
        Ok(self.code()?[0] != PAD[0] && self.is_copy()?)
    }

    /// Whether the page is this process's own copy, as a breakpoint makes it, and no page of the file. The owner of the
    /// file writes to the latter, and can take the copy away by truncating the file.
    fn is_copy(&self) -> io::Result<bool> {
        let mut entry = [0; 8];
        let index = (self.start / self.length) as u64;
        File::open("/proc/self/pagemap")?.read_exact_at(&mut entry, 8 * index)?;
        let entry = u64::from_ne_bytes(entry);
        Ok((entry & PAGE_PRESENT != 0 || entry & PAGE_SWAPPED != 0) && entry & PAGE_OF_FILE == 0)
    }
}

/// What to do where the kernel does not map a file's code.
fn explained(file: &File, error: io::Error) -> io::Error {
    let mut mount = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the descriptor is open, and the buffer is ours to be filled in; all bytes are a valid value.
    let mount = unsafe {
        libc::fstatvfs(file.as_raw_fd(), mount.as_mut_ptr());
        mount.assume_init()
    };
    if error.kind() == io::ErrorKind::PermissionDenied && mount.f_flag & libc::ST_NOEXEC != 0 {
        let text = "it is on a mount with noexec, so no JVM can load it either: install it elsewhere, or mount that file system with exec";
        return io::Error::new(error.kind(), text);
    }
    error
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing has a reference into it.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.length.get()) };
    }
}

/// Those of the pages that are of the same inode as a file with a pad at this offset. Only one thread may ask at a time:
/// another one's mark would mislead.
///
/// # Errors
/// When the kernel refuses a probe.
pub fn marked(
    attacher: &Attacher,
    file: &File,
    pad: u64,
    mut pages: Vec<Arc<Page>>,
) -> anyhow::Result<Vec<Arc<Page>>> {
    let behind = |page: &Page| page.code().ok().map(|code| code[1]);
    let before: Vec<_> = pages.iter().map(|page| behind(page)).collect();
    let mark = attacher.mark(file, pad + PAD.len() as u64);
    let mark = mark.context("the kernel refuses a probe")?;
    let mut before = before.into_iter();
    pages.retain(|page| {
        let (before, now) = (before.next().flatten(), behind(page));
        let changed = before.is_some() && now.is_some() && before != now;
        changed && page.is_copy().unwrap_or(false)
    });
    drop(mark);
    Ok(pages)
}
