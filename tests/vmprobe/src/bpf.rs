//! The smallest BPF program there is, attached to a hook; the kernel itself counts how often it ran.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

const PROG_LOAD: libc::c_int = 5;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const RAW_TRACEPOINT_OPEN: libc::c_int = 17;
const ENABLE_STATS: libc::c_int = 32;

/// `mov r0, 0; exit`.
static RETURN_ZERO: [u64; 2] = [0xb7, 0x95];
/// Helpers are not called, but tracing programs must be under a licence that the kernel knows.
static LICENCE: &[u8; 4] = b"GPL\0";

/// Kind of program.
#[derive(Clone, Copy)]
pub enum Kind {
    /// For kprobes and uprobes.
    Probe,
    /// For raw tracepoints.
    RawTracepoint,
    /// For perf events.
    PerfEvent,
    /// At the entry of the function with this BTF type number.
    FunctionEntry(u32),
}

/// A loaded program.
pub struct Program(File);

impl AsRawFd for Program {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Program {
    /// Loads it.
    pub fn load(kind: Kind) -> io::Result<Self> {
        // The kernel's `union bpf_attr` for loading, up to and with `attach_prog_fd`.
        let mut attributes = [0u8; 120];
        let (program_type, attach_type, function) = match kind {
            Kind::Probe => (2u32, 0u32, 0u32),
            Kind::RawTracepoint => (17, 0, 0),
            Kind::PerfEvent => (7, 0, 0),
            Kind::FunctionEntry(function) => (26, 24, function),
        };
        attributes[0..4].copy_from_slice(&program_type.to_ne_bytes());
        attributes[4..8].copy_from_slice(&(RETURN_ZERO.len() as u32).to_ne_bytes());
        attributes[8..16].copy_from_slice(&(RETURN_ZERO.as_ptr() as u64).to_ne_bytes());
        attributes[16..24].copy_from_slice(&(LICENCE.as_ptr() as u64).to_ne_bytes());
        attributes[68..72].copy_from_slice(&attach_type.to_ne_bytes());
        attributes[108..112].copy_from_slice(&function.to_ne_bytes());
        call(PROG_LOAD, &mut attributes).map(Self)
    }

    /// Attaches it to a raw tracepoint, or to the function it was loaded for when `tracepoint` is empty.
    /// Detached when the file is dropped.
    pub fn attach(&self, tracepoint: &std::ffi::CStr) -> io::Result<File> {
        let mut attributes = [0u8; 16];
        let name = if tracepoint.is_empty() {
            0
        } else {
            tracepoint.as_ptr() as u64
        };
        attributes[0..8].copy_from_slice(&name.to_ne_bytes());
        attributes[8..12].copy_from_slice(&(self.as_raw_fd() as u32).to_ne_bytes());
        call(RAW_TRACEPOINT_OPEN, &mut attributes)
    }

    /// How often it has run; counted while [`statistics`] are on.
    pub fn runs(&self) -> io::Result<u64> {
        // The kernel's `struct bpf_prog_info` up to and with `run_cnt`, its last word.
        let mut info = [0u8; 208];
        let mut attributes = [0u8; 16];
        attributes[0..4].copy_from_slice(&(self.as_raw_fd() as u32).to_ne_bytes());
        attributes[4..8].copy_from_slice(&(info.len() as u32).to_ne_bytes());
        attributes[8..16].copy_from_slice(&(info.as_mut_ptr() as u64).to_ne_bytes());
        syscall(OBJ_GET_INFO_BY_FD, &mut attributes)?;
        let mut runs = [0; 8];
        runs.copy_from_slice(&info[200..208]);
        Ok(u64::from_ne_bytes(runs))
    }
}

/// Lets the kernel count the runs of programs until the file is dropped.
pub fn statistics() -> io::Result<File> {
    call(ENABLE_STATS, &mut [0u8; 4])
}

fn call(command: libc::c_int, attributes: &mut [u8]) -> io::Result<File> {
    let fd = syscall(command, attributes)?;
    // SAFETY: the kernel has just given this descriptor to us alone.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn syscall(command: libc::c_int, attributes: &mut [u8]) -> io::Result<RawFd> {
    // SAFETY: the attributes are as long as said, and every address in them is of live memory of the length
    // that stands beside it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            attributes.as_mut_ptr(),
            attributes.len(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result as RawFd)
    }
}
