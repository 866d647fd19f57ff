//! Links between the kernel side's programs and perf events, with a cookie: aya makes them only for events that it
//! opened itself.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

pub(super) const BPF_LINK_CREATE: libc::c_long = 28;
/// `BPF_PERF_EVENT` of the kernel's `enum bpf_attach_type`.
const BPF_PERF_EVENT: u32 = 41;

/// Runs the program at each overflow or hit of the event. It stays attached while the descriptor is open.
///
/// # Errors
/// The kernel's refusal.
pub fn link(program: BorrowedFd<'_>, event: BorrowedFd<'_>, cookie: u64) -> io::Result<OwnedFd> {
    /// The part of the kernel's `union bpf_attr` for a link to a perf event.
    #[repr(C)]
    struct Link {
        program: u32,
        target: u32,
        attach_type: u32,
        flags: u32,
        cookie: u64,
    }
    let link = Link {
        program: program.as_raw_fd() as u32,
        target: event.as_raw_fd() as u32,
        attach_type: BPF_PERF_EVENT,
        flags: 0,
        cookie,
    };
    // SAFETY: the struct outlives the call and is laid out as the kernel's.
    unsafe { bpf(BPF_LINK_CREATE, &link) }
}

/// bpf(2) for a command that returns a new descriptor.
///
/// # Safety
/// The attributes are laid out as the kernel's for the command, and what they point at is valid.
pub(super) unsafe fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            &raw const *attributes,
            size_of::<T>(),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
