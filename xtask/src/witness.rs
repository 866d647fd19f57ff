//! The kernel's view of a process, read from `/proc`.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};

/// Page faults of a process since it started, as the kernel counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Faults without input or output.
    pub minor: u64,
    /// Faults that waited for input or output.
    pub major: u64,
}

impl Faults {
    /// Minor and major faults together.
    #[must_use]
    pub fn total(self) -> u64 {
        self.minor + self.major
    }
}

/// The fields of `/proc/PID/stat` after the name, which may itself contain spaces and parentheses.
fn stat(pid: u32) -> Result<Vec<String>> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let (_, fields) = text
        .rsplit_once(')')
        .with_context(|| format!("{path} has no name"))?;
    Ok(fields.split_whitespace().map(str::to_owned).collect())
}

fn number(fields: &[String], field: usize) -> Result<u64> {
    // proc(5) numbers fields from 1, and the first one after the name is the third.
    let text = fields
        .get(field - 3)
        .with_context(|| format!("/proc/PID/stat has no field {field}"))?;
    text.parse()
        .with_context(|| format!("field {field} of /proc/PID/stat is {text}"))
}

/// Faults of all threads of a process, ended ones included.
///
/// # Errors
/// When the process has ended.
pub fn faults(pid: u32) -> Result<Faults> {
    let fields = stat(pid)?;
    Ok(Faults {
        minor: number(&fields, 10)?,
        major: number(&fields, 12)?,
    })
}

/// Faults of the children that a process has waited for, and of theirs.
///
/// # Errors
/// When the process has ended.
pub fn faults_of_ended_children(pid: u32) -> Result<Faults> {
    let fields = stat(pid)?;
    Ok(Faults {
        minor: number(&fields, 11)?,
        major: number(&fields, 13)?,
    })
}

/// Whether a process's first thread sleeps. A thread that only waits for a processor does not.
///
/// # Errors
/// When the process has ended.
pub fn sleeps(pid: u32) -> Result<bool> {
    Ok(stat(pid)?.first().is_some_and(|state| state == "S"))
}

/// CPU time of a process, in seconds.
///
/// # Errors
/// When the process has ended.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    seconds(pid, [14, 15])
}

/// CPU time of ended children that a process has waited for, in seconds.
///
/// # Errors
/// When the process has ended.
pub fn cpu_seconds_of_ended_children(pid: u32) -> Result<f64> {
    seconds(pid, [16, 17])
}

/// The sum of two fields that are times.
fn seconds(pid: u32, fields: [usize; 2]) -> Result<f64> {
    let stat = stat(pid)?;
    // SAFETY: sysconf(3) takes an integer and has no preconditions.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let [one, other] = fields;
    Ok((number(&stat, one)? + number(&stat, other)?) as f64 / ticks as f64)
}

/// CPU time of a process, ended threads included, in nanoseconds.
///
/// # Errors
/// When the process has ended.
pub fn process_cpu_ns(pid: u32) -> Result<u64> {
    let (mut clock, mut time) = (
        0,
        libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        },
    );
    // SAFETY: clock_getcpuclockid(3) and clock_gettime(2) write to these two values, which outlive the calls.
    let read = unsafe {
        libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut time) == 0
    };
    ensure!(read, "process {pid} has no CPU clock: it has ended");
    Ok(time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
}

/// CPU time of the threads of a process that have this name, in nanoseconds.
///
/// # Errors
/// When the process has ended, or has no such thread.
pub fn thread_cpu_ns(pid: u32, name: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/task");
    let mut sum = None;
    for entry in fs::read_dir(&path).with_context(|| format!("cannot list {path}"))? {
        let folder = entry?.path();
        // A thread that has ended meanwhile has no files.
        let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
        if read("comm").trim_end() == name {
            let times = read("schedstat");
            let time = times
                .split_whitespace()
                .next()
                .and_then(|it| it.parse::<u64>().ok());
            sum = Some(sum.unwrap_or(0) + time.unwrap_or(0));
        }
    }
    sum.with_context(|| format!("{path} has no thread {name}"))
}

/// Resident memory of a process, in bytes.
///
/// # Errors
/// When the process has ended.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let fields = stat(pid)?;
    // SAFETY: sysconf(3) takes an integer and has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Ok(number(&fields, 24)? * page.cast_unsigned())
}

/// Memory that only this process has, in bytes: without the program and the libraries that it shares.
///
/// # Errors
/// When the process has ended.
pub fn private_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let kib = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
    let private = text.lines().filter(|line| line.starts_with("Private_"));
    Ok(private.filter_map(kib).sum::<u64>() << 10)
}

/// Peak resident memory of a process, in bytes.
///
/// # Errors
/// When the process has ended.
pub fn resident_peak_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let kib: u64 = text
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .with_context(|| format!("{path} has no VmHWM"))?;
    Ok(kib * 1024)
}

/// Processes that descend from `pid`, without itself.
///
/// # Errors
/// When `/proc` cannot be listed.
pub fn descendants(pid: u32) -> Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").context("cannot list /proc")? {
        let Some(child) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        // A process that ended meanwhile has no parent.
        if let Ok(parent) = stat(child).and_then(|fields| number(&fields, 4)) {
            parents.push((child, parent as u32));
        }
    }
    let mut found = vec![pid];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        found.extend(
            parents
                .iter()
                .filter(|(_, of)| *of == parent)
                .map(|(child, _)| *child),
        );
        next += 1;
    }
    found.remove(0);
    Ok(found)
}

/// Command line of a process, its arguments separated by spaces; empty when the process has ended.
#[must_use]
pub fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// Bytes of a process's memory at an address.
///
/// # Errors
/// When the range is not mapped.
pub fn memory(pid: u32, address: u64, length: usize) -> Result<Vec<u8>> {
    let path = format!("/proc/{pid}/mem");
    let mut bytes = vec![0; length];
    let file = File::open(&path).with_context(|| format!("cannot open {path}"))?;
    file.read_exact_at(&mut bytes, address)
        .with_context(|| format!("{path} has no {length} bytes at {address:#x}"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_faults_grow_with_touched_pages() {
        let before = faults(std::process::id()).expect("reads");
        let mut pages = vec![0_u8; 64 << 20];
        for page in pages.chunks_mut(4096) {
            page[0] = 1;
        }
        assert!(pages.iter().step_by(4096).all(|byte| *byte == 1));
        let after = faults(std::process::id()).expect("reads");
        // Huge pages may make one fault of 512.
        assert!(after.total() >= before.total() + 32, "{before:?} {after:?}");
    }

    #[test]
    fn the_time_of_a_named_thread_is_its_own() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let busy = std::thread::Builder::new().name("smtt-busy".to_owned());
        let busy = busy
            .spawn(move || {
                let mut sum = 0_u64;
                while sum < 30_000_000 {
                    sum = std::hint::black_box(sum + 1);
                }
                wait.recv()
            })
            .expect("starts");
        let own = std::process::id();
        crate::process::wait_for("CPU time", std::time::Duration::from_secs(60), || {
            let used = thread_cpu_ns(own, "smtt-busy").unwrap_or(0);
            Ok((used > 10_000_000).then_some(()))
        })
        .expect("the thread has used the CPU");
        assert!(thread_cpu_ns(own, "smtt-none").is_err());
        go.send(()).expect("it waits");
        busy.join().expect("ends").expect("got the signal");
    }

    #[test]
    fn own_memory_is_readable() {
        let bytes = *b"a witness";
        let read = memory(std::process::id(), bytes.as_ptr() as u64, bytes.len()).expect("reads");
        assert_eq!(read, bytes);
        assert!(memory(std::process::id(), 8, 8).is_err());
    }

    #[test]
    fn who_sleeps_does_and_who_runs_does_not() {
        assert!(!sleeps(std::process::id()).expect("reads") || std::process::id() != thread_id());
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("starts");
        let asleep =
            crate::process::wait_for("sleep sleeps", std::time::Duration::from_secs(20), || {
                Ok(sleeps(child.id())?.then_some(()))
            });
        child.kill().expect("ends");
        child.wait().expect("waits");
        asleep.expect("it sleeps");
    }

    fn thread_id() -> u32 {
        // SAFETY: gettid(2) has no arguments.
        unsafe { libc::gettid() }.cast_unsigned()
    }

    #[test]
    fn a_child_is_a_descendant() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("starts");
        let found = descendants(std::process::id()).expect("lists");
        child.kill().expect("ends");
        child.wait().expect("waits");
        assert!(
            found.contains(&child.id()),
            "{found:?} has no {}",
            child.id()
        );
    }
}
