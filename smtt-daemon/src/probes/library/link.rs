//! Probes of the kernel on one open file. aya attaches by path and through an exclusive reference to all programs; here
//! any thread attaches to the descriptor that it has checked, and owns what it has attached.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use anyhow::Context as _;
use aya::programs::ProgramFd;
use smtt_machine::perf::{Event, Processes};

use super::multi;
use crate::probes::perf_link::link;

/// Probes of one file, or of several.
pub type Links = Vec<OwnedFd>;

/// Threads that close probes at the same time.
const CLOSERS: usize = 16;

/// Closes probes. The kernel waits for a grace period at each, some 50 to 200 ms; the waits of several threads overlap.
pub fn close(mut links: Links) {
    let share = links.len().div_ceil(CLOSERS).max(1);
    std::thread::scope(|scope| {
        while !links.is_empty() {
            let part = links.split_off(links.len().saturating_sub(share));
            // Where no thread can be made, the part is closed here.
            let _ = std::thread::Builder::new()
                .stack_size(64 << 10)
                .spawn_scoped(scope, move || drop(part));
        }
    });
}

/// Attaches the marker's program to files.
#[derive(Debug)]
pub struct Attacher {
    program: ProgramFd,
    /// The same program for one link to all entry points; `None` before Linux 6.6.
    multi: Option<OwnedFd>,
    /// Type number of the kernel's PMU `uprobe`.
    kind: u32,
}

impl Attacher {
    /// # Errors
    /// When the kernel has no uprobes.
    pub fn new(program: ProgramFd, multi: Option<OwnedFd>) -> anyhow::Result<Self> {
        let path = "/sys/bus/event_source/devices/uprobe/type";
        let kind = fs::read_to_string(path)
            .with_context(|| format!("{path} cannot be read: the kernel has no uprobes"))?;
        Ok(Self {
            program,
            multi,
            kind: kind
                .trim()
                .parse()
                .with_context(|| format!("{path}: {kind:?}"))?,
        })
    }

    /// Attaches to all entry points (cookie and file offset) of an open file. After an error none is attached.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn attach(&self, file: &File, entries: &[(u64, u64)]) -> io::Result<Links> {
        let path = path_of(file)?;
        if let Some(program) = &self.multi {
            return Ok(vec![multi::link(program.as_fd(), &path, entries, 0)?]);
        }
        entries
            .iter()
            .map(|(cookie, offset)| {
                let event =
                    Event::uprobe(self.kind, &path, *offset, Processes::All).map_err(explained)?;
                // The link keeps the event.
                link(self.program.as_fd(), event.as_fd(), *cookie)
            })
            .collect()
    }

    /// Puts a probe on an instruction, in mappings of this process only.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn mark(&self, file: &File, offset: u64) -> io::Result<OwnedFd> {
        let path = path_of(file)?;
        if let Some(program) = &self.multi {
            return multi::link(program.as_fd(), &path, &[(0, offset)], std::process::id());
        }
        Event::uprobe(self.kind, &path, offset, Processes::This)
            .map(OwnedFd::from)
            .map_err(explained)
    }
}

/// A path that leads to the open file itself, whatever its name leads to by now.
fn path_of(file: &File) -> io::Result<CString> {
    Ok(CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?)
}

/// What to do where the kernel refuses the event of a uprobe.
fn explained(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::PermissionDenied {
        let text = "Linux before 6.6 needs CAP_SYS_ADMIN for uprobes (the drop-in /usr/share/smtt/smtt-sys-admin.conf)";
        return io::Error::new(error.kind(), text);
    }
    error
}
