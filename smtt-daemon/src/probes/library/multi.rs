//! One link of the kernel for all entry points of a file (`uprobe_multi`, Linux 6.6).
//!
//! The kernel waits once for all probes of such a link, at the attachment and at its end, and holds up `fork` once. A
//! link per entry point waits for each. aya loads the program in the form that such a link refuses, so it is loaded here a
//! second time, with aya's tables.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use anyhow::{Context as _, bail};
use aya::Ebpf;
use aya_obj::Object;

use crate::probes::memory::map_fd;
use crate::probes::perf_link::{BPF_LINK_CREATE, bpf};

const BPF_PROG_LOAD: libc::c_long = 5;
/// `BPF_PROG_TYPE_KPROBE`, which uprobes have too.
const KPROBE: u32 = 2;
/// `BPF_TRACE_UPROBE_MULTI` of the kernel's `enum bpf_attach_type`.
const UPROBE_MULTI: u32 = 48;

/// Loads a program of the object for links to many entry points.
///
/// # Errors
/// When the kernel has no such links, or refuses the program.
pub fn load(object: &[u8], ebpf: &Ebpf, name: &str) -> anyhow::Result<OwnedFd> {
    let mut object = Object::parse(object)?;
    let sections = object
        .functions
        .keys()
        .map(|(section, _)| *section)
        .collect();
    let maps = std::mem::take(&mut object.maps);
    let tables = maps.iter().filter_map(|(name, map)| {
        let fd = map_fd(ebpf.map(name)?)?;
        Some((name.as_str(), fd.as_raw_fd(), map))
    });
    object.relocate_maps(tables, &sections)?;
    object.relocate_calls(&sections)?;
    let program = object.programs.get(name).context("no such program")?;
    let function = object
        .functions
        .get(&program.function_key())
        .context("no such function")?;

    /// The part of the kernel's `union bpf_attr` for a program.
    #[repr(C)]
    struct Load {
        kind: u32,
        instruction_count: u32,
        instructions: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
        interface: u32,
        attach_type: u32,
    }
    let mut load = Load {
        kind: KPROBE,
        instruction_count: u32::try_from(function.instructions.len())?,
        instructions: function.instructions.as_ptr() as u64,
        license: program.license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name: [0; 16],
        interface: 0,
        attach_type: UPROBE_MULTI,
    };
    for (to, from) in load.name.iter_mut().zip(name.bytes().take(15)) {
        *to = from;
    }
    // SAFETY: the struct and all that it points at outlive the call.
    let program = unsafe { bpf(BPF_PROG_LOAD, &load) }.context("the kernel refuses the program")?;
    // An older kernel loads the program too, and refuses every link. One that has such links looks for the file first.
    match link(program.as_fd(), c"/", &[(0, 0)], 0) {
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(program),
        Err(error) => Err(error).context("the kernel has no links to many uprobes"),
        Ok(_) => bail!("the kernel attaches a uprobe to a folder"),
    }
}

/// Attaches the program to all entry points (cookie and file offset) of a file, or to none. `pid` limits the probes to
/// one process; 0 stands for all.
///
/// # Errors
/// The kernel's refusal.
pub fn link(
    program: BorrowedFd<'_>,
    path: &CStr,
    entries: &[(u64, u64)],
    pid: u32,
) -> io::Result<OwnedFd> {
    /// The part of the kernel's `union bpf_attr` for a link to many entry points.
    #[repr(C)]
    struct Link {
        program: u32,
        target: u32,
        attach_type: u32,
        flags: u32,
        path: u64,
        offsets: u64,
        reference_counters: u64,
        cookies: u64,
        count: u32,
        probe_flags: u32,
        pid: u32,
        padding: u32,
    }
    let (cookies, offsets): (Vec<u64>, Vec<u64>) = entries.iter().copied().unzip();
    let link = Link {
        program: program.as_raw_fd() as u32,
        target: 0,
        attach_type: UPROBE_MULTI,
        flags: 0,
        path: path.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        reference_counters: 0,
        cookies: cookies.as_ptr() as u64,
        count: entries.len() as u32,
        probe_flags: 0,
        pid,
        padding: 0,
    };
    // SAFETY: the struct and all that it points at outlive the call.
    unsafe { bpf(BPF_LINK_CREATE, &link) }
}
