//! Processes as `/proc` shows them.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use procfs::FromRead as _;
use procfs::process::Stat;

/// Most bytes of a small file below a process's folder, such as `status`.
const SMALL_FILE: u64 = 64 << 10;
/// Most names in a folder of a process that are read: threads.
const NAMES_MAX: usize = 1 << 14;

/// Bounds of a text that another user's process makes as long as it wishes.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of a line; a longer one is cut.
    pub line: usize,
    /// Lines.
    pub lines: usize,
    /// Bytes of the whole text.
    pub bytes: usize,
}

/// Bounds of `/proc/PID/maps`: twice the mappings that a process may have by default.
pub const MAPS: Bounds = Bounds {
    line: 8 << 10,
    lines: 1 << 16,
    bytes: 16 << 20,
};

/// Whether [`lines`] reads on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// With the next line.
    Line,
    /// No further.
    Stop,
}

/// Reads a text line by line, with one line in memory. Returns false where the bounds cut the text off.
///
/// # Errors
/// When the text cannot be read.
pub fn lines(
    text: impl Read,
    bounds: &Bounds,
    mut each: impl FnMut(&[u8]) -> Next,
) -> io::Result<bool> {
    let mut text = BufReader::new(text.take(bounds.bytes as u64));
    let mut line = Vec::new();
    let (mut bytes, mut count) = (0, 0);
    loop {
        line.clear();
        loop {
            let chunk = text.fill_buf()?;
            if chunk.is_empty() {
                // The last line may lack its end; at the bound it is only a part of one.
                let whole = bytes < bounds.bytes;
                if whole && count < bounds.lines && !line.is_empty() {
                    each(&line);
                }
                return Ok(whole);
            }
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let (part, used) = end.map_or((chunk, chunk.len()), |end| (&chunk[..end], end + 1));
            let room = bounds.line - line.len();
            line.extend_from_slice(&part[..part.len().min(room)]);
            bytes += used;
            text.consume(used);
            if end.is_some() {
                break;
            }
        }
        if count == bounds.lines {
            return Ok(false);
        }
        count += 1;
        if each(&line) == Next::Stop {
            return Ok(true);
        }
    }
}

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
            flags | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?))
    }

    /// Reads a small file below the process's folder, at most its first 64 KiB.
    pub fn read(&self, name: &str) -> io::Result<String> {
        let mut text = Vec::new();
        self.open_file(name, OFlag::O_RDONLY)?
            .take(SMALL_FILE)
            .read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Whether a thread of the process has not begun to exit. The answer "no" comes before the kernel's hooks for the exit
    /// run, so a caller that adds a row which those hooks remove must ask afterwards.
    pub fn is_running(&self) -> bool {
        let text = self.read("stat").unwrap_or_default();
        // The flags are those of the first thread, which may exit before the others.
        stat(text.as_bytes())
            .is_some_and(|stat| stat.flags & PF_EXITING == 0 || stat.num_threads > 1)
    }

    /// Start time in clock ticks since boot; `None` once the process has ended.
    pub fn start_ticks(&self) -> Option<u64> {
        start_ticks(&self.read("stat").ok()?)
    }

    /// Second since boot in which the process started; `None` once it has ended.
    pub fn start_second(&self) -> Option<u64> {
        Some(self.start_ticks()? / procfs::ticks_per_second().max(1))
    }

    /// Names in a folder below the process's folder.
    pub fn list(&self, name: &str) -> Vec<String> {
        let path = format!("/proc/self/fd/{}/{name}", self.folder.as_raw_fd());
        fs::read_dir(path)
            .into_iter()
            .flatten()
            .flatten()
            .take(NAMES_MAX)
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }

    /// The program that the process runs; `None` once it has ended.
    pub fn image(&self) -> Option<Image> {
        Some(image_of(&stat(self.read("stat").ok()?.as_bytes())?))
    }

    /// Real user of the process. The owner of its folder is another one where the process hides its memory.
    pub fn user(&self) -> io::Result<u32> {
        user(&self.read("status")?).ok_or_else(|| io::Error::other("status has no Uid"))
    }
}

/// The kernel's flag of a thread that exits.
const PF_EXITING: u32 = 4;

/// A process, distinguished by its start from a later one with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
}

/// Real user of a process, from its `status`.
fn user(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().next()?.parse().ok()
}

/// The program that a process runs: it differs after an exec, although process id and start time are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Image {
    /// Start time of the process in clock ticks since boot.
    pub start_ticks: u64,
    /// Address of the stack's bottom, which the kernel chooses anew at each exec.
    pub stack: u64,
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

/// The parent of a process, and the process with its start.
fn parent(pid: u32) -> Option<(u32, Started)> {
    let stat = stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)?;
    let start_ticks = stat.starttime;
    Some((u32::try_from(stat.ppid).ok()?, Started { pid, start_ticks }))
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

/// What this process has used since its start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OwnFigures {
    /// CPU time of all its threads, in seconds.
    pub cpu_seconds: f64,
    /// Resident memory in bytes.
    pub resident_bytes: u64,
}

/// CPU time and memory of this process; `None` where `/proc` does not have it.
#[must_use]
pub fn own() -> Option<OwnFigures> {
    let stat = stat(&fs::read("/proc/self/stat").ok()?)?;
    Some(OwnFigures {
        cpu_seconds: (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64,
        resident_bytes: stat.rss.saturating_mul(procfs::page_size()),
    })
}

/// The kernel's count of page faults of a process, minor and major; `None` once it is reaped.
#[must_use]
pub fn page_faults(pid: u32) -> Option<u64> {
    let stat = stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)?;
    Some(stat.minflt + stat.majflt)
}

/// Whether there is a process with this id; a zombie is one until it is reaped.
#[must_use]
pub fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Whether a process has a thread with this id.
#[must_use]
pub fn thread_exists(pid: u32, tid: u32) -> bool {
    Path::new(&format!("/proc/{pid}/task/{tid}")).exists()
}

/// Processes with one of these command names, with the programs that they run.
pub fn named(names: &[&str]) -> HashMap<u32, Image> {
    numbers()
        .filter(|pid| {
            fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|comm| names.contains(&comm.trim_end()))
        })
        .filter_map(|pid| Some((pid, image(pid)?)))
        .collect()
}

/// The program that a process runs.
#[must_use]
pub fn image(pid: u32) -> Option<Image> {
    Some(image_of(&stat(
        &fs::read(format!("/proc/{pid}/stat")).ok()?,
    )?))
}

const fn image_of(stat: &Stat) -> Image {
    Image {
        start_ticks: stat.starttime,
        stack: stat.startstack,
    }
}

/// All descendants of a process.
#[must_use]
pub fn children_of(root: u32) -> Vec<Started> {
    let mut children: HashMap<u32, Vec<Started>> = HashMap::new();
    for (parent, child) in numbers().filter_map(parent) {
        children.entry(parent).or_default().push(child);
    }
    // Removed, so that processes whose parents changed while they were read make no circle.
    let mut family = children.remove(&root).unwrap_or_default();
    let mut at = 0;
    while at < family.len() {
        family.extend(children.remove(&family[at].pid).unwrap_or_default());
        at += 1;
    }
    family
}

/// Inode number of the first pid namespace, a constant of the kernel (`PROC_PID_INIT_INO`).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Whether we are in the machine's first pid namespace, whose process ids the kernel side reports. True where the
/// kernel has no such namespaces.
#[must_use]
pub fn in_first_namespace() -> bool {
    fs::metadata("/proc/self/ns/pid").map_or(true, |file| file.ino() == FIRST_PID_NAMESPACE)
}

/// Number of a process's pid namespace, which is its inode's; `None` where it cannot be read.
fn pid_namespace(process: &str) -> Option<u32> {
    let file = fs::metadata(format!("/proc/{process}/ns/pid")).ok()?;
    u32::try_from(file.ino()).ok()
}

/// Number of a process's pid namespace where that is not this process's; 0 where it cannot be read.
#[must_use]
pub fn other_pid_namespace(pid: u32) -> Option<u32> {
    let own = pid_namespace(&pid.to_string());
    (own != pid_namespace("self")).then_some(own.unwrap_or(0))
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

/// Descendants of `executor` in its pid namespace: for the id there, the id in this process's. At most [`DESCENDANTS_MAX`].
#[must_use]
pub fn descendants_by_inner_id(executor: u32) -> HashMap<u32, u32> {
    let inner = |pid| innermost_id(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?);
    let namespace = pid_namespace(&executor.to_string());
    children_of(executor)
        .into_iter()
        .take(DESCENDANTS_MAX)
        .filter(|child| pid_namespace(&child.pid.to_string()) == namespace)
        .filter_map(|child| Some((inner(child.pid)?, child.pid)))
        .collect()
}

/// Descendants whose ids are read: more than a Spark executor has Python workers.
const DESCENDANTS_MAX: usize = 1024;

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

    /// The lines that are read within bounds, and whether the text was read to its end.
    fn read(text: &str, bounds: Bounds) -> (Vec<String>, bool) {
        let mut read = Vec::new();
        let whole = lines(text.as_bytes(), &bounds, |line| {
            read.push(String::from_utf8_lossy(line).into_owned());
            Next::Line
        });
        (read, whole.expect("bytes"))
    }

    #[test]
    fn lines_are_read_within_bounds() {
        let bounds = Bounds {
            line: 4,
            lines: 3,
            bytes: 100,
        };
        assert_eq!(
            read("ab\n\nabcd\n", bounds),
            (vec!["ab".into(), String::new(), "abcd".into()], true)
        );
        assert_eq!(
            read("ab\ncd", bounds),
            (vec!["ab".into(), "cd".into()], true)
        );
        assert_eq!(
            read("abcde\nf\n", bounds),
            (vec!["abcd".into(), "f".into()], true)
        );
        assert_eq!(
            read("a\nb\nc\nd\n", bounds),
            (vec!["a".into(), "b".into(), "c".into()], false)
        );
        let short = Bounds { bytes: 5, ..bounds };
        assert_eq!(read("ab\ncdef\n", short), (vec!["ab".into()], false));
    }

    #[test]
    fn a_giant_line_takes_no_memory() {
        let mut giant = io::repeat(b'x').take(1 << 24);
        let mut most = 0;
        let whole = lines(&mut giant, &MAPS, |line| {
            most = most.max(line.len());
            Next::Line
        });
        assert!(!whole.expect("bytes") && most <= MAPS.line);
        // Reading ends at the bound.
        let mut endless = io::repeat(b'\n');
        assert!(!lines(&mut endless, &MAPS, |_| Next::Line).expect("bytes"));
    }

    #[test]
    fn the_user_is_the_real_one() {
        assert_eq!(user("Name:\tx\nUid:\t1000\t0\t0\t0\n"), Some(1000));
        assert_eq!(user("Name:\tx\n"), None);
    }

    #[test]
    fn a_child_is_found_and_shares_our_namespace() {
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .spawn()
            .expect("sleep starts");
        let children = children_of(std::process::id());
        let handle = Handle::open(child.id()).expect("it is there");
        let started = Started {
            pid: child.id(),
            start_ticks: handle.start_ticks().expect("it has not ended"),
        };
        assert!(
            children.contains(&started),
            "{children:?} has no {started:?}"
        );
        assert!(handle.is_running());
        assert!(exists(child.id()) && thread_exists(child.id(), child.id()));
        assert!(!thread_exists(child.id(), std::process::id()));
        let ticks = procfs::ticks_per_second();
        assert_eq!(handle.start_second(), Some(started.start_ticks / ticks));
        assert!(page_faults(child.id()) > Some(0));
        assert_eq!(other_pid_namespace(child.id()), None);
        let found = descendants_by_inner_id(std::process::id());
        assert_eq!(found.get(&child.id()), Some(&child.id()));
        child.kill().expect("it ends");
        // It is a zombie until it is reaped, and its start can still be read.
        while handle.is_running() {
            std::thread::yield_now();
        }
        assert_eq!(handle.start_ticks(), Some(started.start_ticks));
        child.wait().expect("it is reaped");
        assert!(!handle.is_running() && handle.start_ticks().is_none());
        assert!(!exists(child.id()) && !thread_exists(child.id(), child.id()));
        assert_eq!(
            (handle.start_second(), page_faults(child.id())),
            (None, None)
        );
    }
    #[test]
    fn own_figures_are_those_of_this_process() {
        let figures = own().expect("this process is there");
        let status = fs::read_to_string("/proc/self/status").expect("it is read");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let word = line.and_then(|line| line.split_whitespace().next());
        let kib: u64 = word.and_then(|word| word.parse().ok()).expect("a size");
        // Other tests take memory in between, and the kernel's counts are not exact.
        let (low, high) = (kib << 8, kib << 12);
        assert!(
            (low..=high).contains(&figures.resident_bytes),
            "{figures:?}, {kib} KiB"
        );
        let begin = figures.cpu_seconds;
        while own().expect("still there").cpu_seconds <= begin {
            std::hint::spin_loop();
        }
    }
}
