//! Processes as `/proc` shows them.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use procfs::FromRead as _;
use procfs::process::Stat;

/// A pinned process: reads never reach another process with the same id.
#[derive(Debug)]
pub struct Handle {
    folder: OwnedFd,
}

impl Handle {
    /// Pins a process.
    pub fn open(pid: u32) -> io::Result<Self> {
        let folder = nix::fcntl::open(
            Path::new(&format!("/proc/{pid}")),
            OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Self { folder })
    }

    /// Opens a file below the process's folder.
    pub fn open_file(&self, name: &str, flags: OFlag) -> io::Result<File> {
        Ok(File::from(openat(
            &self.folder,
            Path::new(name),
            flags | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?))
    }

    /// Reads a file below the process's folder.
    pub fn read(&self, name: &str) -> io::Result<String> {
        let mut text = Vec::new();
        self.open_file(name, OFlag::O_RDONLY)?
            .read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Start time in clock ticks since boot; `None` once the process has ended.
    pub fn start_ticks(&self) -> Option<u64> {
        start_ticks(&self.read("stat").ok()?)
    }

    /// Names in a folder below the process's folder.
    pub fn list(&self, name: &str) -> Vec<String> {
        let path = format!("/proc/self/fd/{}/{name}", self.folder.as_raw_fd());
        fs::read_dir(path)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }
}

/// Address range (the name of the file in `map_files`) and name of one line of `maps`.
pub fn mapping(line: &str) -> Option<(&str, &str)> {
    let (range, rest) = line.split_once(' ')?;
    // Permissions, offset, device and inode, then the name after blanks.
    let name = rest.splitn(5, ' ').nth(4)?.trim_start();
    name.starts_with('/').then_some((range, name))
}

fn numbers() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Parent and start time (in clock ticks since boot) of a process.
fn parent_and_start(pid: u32) -> Option<(u32, u64)> {
    let stat = stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)?;
    Some((u32::try_from(stat.ppid).ok()?, stat.starttime))
}

/// The fields of a `/proc/PID/stat`; `None` where the text is malformed.
#[must_use]
pub fn stat(text: &[u8]) -> Option<Stat> {
    // The parser panics on a text without these: `PID (NAME) STATE`.
    let name = text.iter().position(|byte| *byte == b'(')?;
    let end = text.iter().rposition(|byte| *byte == b')')?;
    let rest = text.get(end + 1..)?;
    let state = rest.get(1).is_some_and(u8::is_ascii_graphic);
    let pid = text[..name].strip_suffix(b" ")?;
    let number = !pid.is_empty() && pid.iter().all(u8::is_ascii_digit);
    if !number || end < name || !rest.starts_with(b" ") || !state {
        return None;
    }
    Stat::from_read(text).ok()
}

/// Start time of a process in clock ticks since boot, from the text of its `/proc/PID/stat`.
#[must_use]
pub fn start_ticks(text: &str) -> Option<u64> {
    Some(stat(text.as_bytes())?.starttime)
}

/// Processes with one of these command names, with their start times.
pub fn named(names: &[&str]) -> HashMap<u32, u64> {
    numbers()
        .filter(|pid| {
            fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|comm| names.contains(&comm.trim_end()))
        })
        .filter_map(|pid| Some((pid, parent_and_start(pid)?.1)))
        .collect()
}

/// All descendants of a process.
#[must_use]
pub fn children_of(root: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = numbers()
        .filter_map(|pid| Some((pid, parent_and_start(pid)?.0)))
        .collect();
    let mut family = vec![root];
    let mut at = 0;
    while at < family.len() {
        let parent = family[at];
        family.extend(
            parents
                .iter()
                .filter(|(_, of)| *of == parent)
                .map(|(pid, _)| *pid),
        );
        at += 1;
    }
    family.split_off(1)
}

/// Inode number of the first pid namespace, a constant of the kernel (`PROC_PID_INIT_INO`).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Whether we are in the machine's first pid namespace, whose process ids the kernel side reports. True where the
/// kernel has no such namespaces.
#[must_use]
pub fn in_first_namespace() -> bool {
    fs::metadata("/proc/self/ns/pid").map_or(true, |file| file.ino() == FIRST_PID_NAMESPACE)
}

/// Whether a process is in this process's pid namespace.
#[must_use]
pub fn in_our_namespace(pid: u32) -> bool {
    let of = |name: &str| fs::read_link(format!("/proc/{name}/ns/pid")).ok();
    of(&pid.to_string()) == of("self")
}

/// The id of a process or thread in its innermost pid namespace, from its `status`.
pub fn innermost_id(status: &str) -> Option<u32> {
    status.lines().find_map(|line| {
        line.strip_prefix("NSpid:")?
            .split_whitespace()
            .last()?
            .parse()
            .ok()
    })
}

/// The id, in this process's pid namespace, of the descendant of `executor` with the id `inner` in its own namespace.
#[must_use]
pub fn host_pid(executor: u32, inner: u32) -> Option<u32> {
    children_of(executor).into_iter().find(|pid| {
        fs::read_to_string(format!("/proc/{pid}/status"))
            .ok()
            .as_deref()
            .and_then(innermost_id)
            == Some(inner)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_lines_are_read() {
        let line = "7fb202a54000-7fb202a56000 rw-s 00000000 00:01 1025                       /memfd:smtt-slots (deleted)";
        assert_eq!(
            mapping(line),
            Some(("7fb202a54000-7fb202a56000", "/memfd:smtt-slots (deleted)"))
        );
        assert_eq!(
            mapping("7ffc1000-7ffc2000 rw-p 00000000 00:00 0                          [stack]"),
            None
        );
        assert_eq!(mapping("7ffc1000-7ffc2000 rw-p 00000000 00:00 0 "), None);
    }

    #[test]
    fn a_child_is_found_and_shares_our_namespace() {
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .spawn()
            .expect("sleep starts");
        let children = children_of(std::process::id());
        assert!(
            children.contains(&child.id()),
            "{children:?} has no {}",
            child.id()
        );
        assert!(in_our_namespace(child.id()));
        assert_eq!(host_pid(std::process::id(), child.id()), Some(child.id()));
        child.kill().expect("it ends");
        child.wait().expect("it is reaped");
    }
}
