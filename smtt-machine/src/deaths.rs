//! What only the machine knows of a process that dies: its memory before, options of its JVM, where its crash report is,
//! who sent it a signal, and what the kernel's log reports.
//!
//! Command lines lie in the memory of the process, and paths may lead into a file system that never answers: those are to
//! be read where nothing else waits.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use smtt_model::state::MemorySample;

/// Bytes of a command line that are read.
const COMMAND_LINE_MAX: u64 = 64 << 10;
/// Bytes of the path of a crash report that are kept.
const PATH_MAX: usize = 1024;
/// Options that are kept: a user writes as many as it likes.
const OPTIONS_KEPT: usize = 16;
/// Bytes of an option that is kept.
const OPTION_MAX: usize = 200;
/// Beginnings of the options that decide how a JVM ends.
const OPTIONS: &[&str] = &[
    "-Xmx",
    "-XX:MaxHeapSize=",
    "-XX:MaxRAMPercentage=",
    "-XX:MaxMetaspaceSize=",
    "-XX:MaxDirectMemorySize=",
    "-XX:OnOutOfMemoryError",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:+CrashOnOutOfMemoryError",
    "-XX:+HeapDumpOnOutOfMemoryError",
    "-XX:ErrorFile=",
];
/// Options of `java` whose value is the next word.
const WITH_VALUE: &[&str] = &[
    "-cp",
    "-classpath",
    "--class-path",
    "-p",
    "--module-path",
    "--add-modules",
    "--add-exports",
    "--add-opens",
    "--add-reads",
];
/// Lines of the kernel's log that are kept, and read at a time.
const LOG_LINES: usize = 64;
const LOG_READS: usize = 512;
/// Bytes of one record of the kernel's log.
const LOG_RECORD: usize = 8 << 10;
/// Bytes of a line of the kernel's log that are kept.
const LOG_LINE: usize = 400;

/// Memory and threads of a process, and its parent, from the text of its `status`. The time is left zero. `None` for a
/// process without memory, which is ending.
#[must_use]
pub fn sample(status: &str) -> Option<(MemorySample, Option<u32>)> {
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|rest| rest.split_whitespace().next())
            .and_then(|number| number.parse::<u64>().ok())
    };
    let bytes = |name: &str| field(name).map(|kib| kib << 10);
    let sample = MemorySample {
        resident_bytes: Some(bytes("VmRSS:")?),
        anonymous_bytes: bytes("RssAnon:"),
        file_bytes: bytes("RssFile:"),
        shared_bytes: bytes("RssShmem:"),
        swapped_bytes: bytes("VmSwap:"),
        threads: field("Threads:"),
        ..MemorySample::default()
    };
    let parent = field("PPid:").and_then(|pid| u32::try_from(pid).ok());
    Some((sample, parent))
}

/// Resident bytes of a process; `None` once it has ended.
#[must_use]
pub fn resident(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * procfs::page_size())
}

/// The command line of a process.
fn command_line(pid: u32) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    File::open(format!("/proc/{pid}/cmdline"))?
        .take(COMMAND_LINE_MAX)
        .read_to_end(&mut line)?;
    Ok(line)
}

/// Words of a command line.
fn words(line: &[u8]) -> impl Iterator<Item = String> {
    let words = line.split(|byte| *byte == 0);
    let words = words.filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned())
}

/// Options of a JVM that decide how it ends.
///
/// # Errors
/// When the process has ended.
pub fn options(pid: u32) -> io::Result<Vec<String>> {
    Ok(options_of(&command_line(pid)?))
}

/// The same options in a command line.
#[must_use]
pub fn options_of(line: &[u8]) -> Vec<String> {
    words(line)
        // The words after the class belong to the application.
        .take_while(|word| !word.starts_with("org.apache.spark."))
        .filter(|word| OPTIONS.iter().any(|beginning| word.starts_with(beginning)))
        .take(OPTIONS_KEPT)
        .map(|word| printable(&word, OPTION_MAX))
        .collect()
}

/// The class of Spark or Hadoop that a JVM runs; `None` for other programs, and once the process has ended.
#[must_use]
pub fn program(pid: u32) -> Option<String> {
    program_of(&command_line(pid).ok()?)
}

/// The same class in a command line.
#[must_use]
pub fn program_of(line: &[u8]) -> Option<String> {
    let mut words = line.split(|byte| *byte == 0);
    let launcher = words.next()?.rsplit(|byte| *byte == b'/').next()?;
    let mut class = words.next().filter(|_| launcher == b"java")?;
    while class.starts_with(b"-") {
        if WITH_VALUE.iter().any(|option| option.as_bytes() == class) {
            words.next();
        }
        class = words.next()?;
    }
    let is_known = class.starts_with(b"org.apache.");
    is_known.then(|| printable(&String::from_utf8_lossy(class), OPTION_MAX))
}

/// Text for a terminal: without control characters, and bounded.
pub(crate) fn printable(text: &str, limit: usize) -> String {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let safe = |letter: char| {
        if letter.is_control() {
            char::REPLACEMENT_CHARACTER
        } else {
            letter
        }
    };
    text[..end].chars().map(safe).collect()
}

/// Where a JVM writes its crash report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrashReport {
    /// Its working folder.
    folder: PathBuf,
    /// Its process id in its own namespace.
    inner_pid: u32,
    /// Whether its paths are those of this process.
    same_files: bool,
}

impl CrashReport {
    /// Of a running JVM, with the text of its `status`.
    #[must_use]
    pub fn of(pid: u32, status: &str) -> Option<Self> {
        let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let inner = ids.and_then(|ids| ids.split_whitespace().last()?.parse().ok());
        let mounts = |of: &str| fs::read_link(format!("/proc/{of}/ns/mnt")).ok();
        Some(Self {
            folder: fs::read_link(format!("/proc/{pid}/cwd")).ok()?,
            inner_pid: inner.unwrap_or(pid),
            same_files: mounts(&pid.to_string()).is_some_and(|of| mounts("self") == Some(of)),
        })
    }

    /// Paths of the report, the likeliest first.
    fn paths(&self, options: &[String]) -> Vec<PathBuf> {
        let name = format!("hs_err_pid{}.log", self.inner_pid);
        let file = options
            .iter()
            .find_map(|option| option.strip_prefix("-XX:ErrorFile="))
            .map(|path| path.replace("%p", &self.inner_pid.to_string()));
        let own = file.map_or_else(|| self.folder.join(&name), |path| self.folder.join(path));
        vec![own, Path::new("/tmp").join(name)]
    }

    /// The path at which the report is expected.
    #[must_use]
    pub fn expected(&self, options: &[String]) -> Option<String> {
        let first = self.paths(options).into_iter().next()?;
        Some(printable(&first.to_string_lossy(), PATH_MAX))
    }

    /// The report that is there: a file of this user, written after this time (in seconds since 1970). Only its name is
    /// read.
    #[must_use]
    pub fn find(&self, options: &[String], uid: u32, since: i64) -> Option<String> {
        if !self.same_files {
            return None;
        }
        let found = self.paths(options).into_iter().find(|path| {
            fs::symlink_metadata(path)
                .is_ok_and(|file| file.is_file() && file.uid() == uid && file.mtime() >= since)
        })?;
        Some(printable(&found.to_string_lossy(), PATH_MAX))
    }
}

/// The kernel's log, from its opening on: what it says of the OOM killer.
#[derive(Debug)]
pub struct KernelLog {
    file: File,
    lines: KillerLines,
}

/// The last lines of the kernel's log that are about the OOM killer.
#[derive(Debug, Default)]
pub struct KillerLines {
    /// The victim's process id, and the line.
    lines: VecDeque<(u32, String)>,
}

impl KernelLog {
    /// Opens the log at its end; `None` where that is not allowed.
    #[must_use]
    pub fn open() -> Option<Self> {
        let mut file = fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/kmsg")
            .ok()?;
        file.seek(SeekFrom::End(0)).ok()?;
        Some(Self {
            file,
            lines: KillerLines::default(),
        })
    }

    /// Reads what is new.
    pub fn read(&mut self) {
        let mut record = [0; LOG_RECORD];
        for _ in 0..LOG_READS {
            match self.file.read(&mut record) {
                Ok(0) => return,
                Ok(length) => self.lines.take(&String::from_utf8_lossy(&record[..length])),
                // The log has overwritten what was not read: reading goes on with the oldest record.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Err(_) => return,
            }
        }
    }

    /// The lines about a victim.
    #[must_use]
    pub fn about(&self, pid: u32) -> Vec<String> {
        self.lines.about(pid)
    }
}

impl KillerLines {
    /// Takes in one record: numbers, a semicolon, the text, and further lines that begin with a blank.
    pub fn take(&mut self, record: &str) {
        let text = record.split_once(';').map_or(record, |(_, text)| text);
        let line = text.lines().next().unwrap_or_default();
        // Read from the whole line: its names are users' choices, of any length, and come before the last `pid=`.
        let Some(victim) = victim_of(line) else {
            return;
        };
        if self.lines.len() >= LOG_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back((victim, printable(line, LOG_LINE)));
    }

    /// The lines about a victim.
    #[must_use]
    pub fn about(&self, pid: u32) -> Vec<String> {
        let own = self.lines.iter().filter(|(victim, _)| *victim == pid);
        own.map(|(_, line)| line.clone()).collect()
    }
}

/// The process that a line about the OOM killer names; `None` for other lines.
fn victim_of(line: &str) -> Option<u32> {
    let id = if line.starts_with("oom-kill:") {
        line.rsplit_once(",pid=")?.1.split(',').next()?
    } else {
        // "Killed process ", or with a cause before it: "Memory cgroup out of memory: Killed process ".
        line.split_once("Killed process ")?.1.split(' ').next()?
    };
    id.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_sample_is_that_of_status_and_absent_for_a_zombie() {
        let text = "Name:\tjava\nPPid:\t7\nVmRSS:\t    2048 kB\nRssAnon:\t 1024 kB\nThreads:\t9\n";
        let (read, parent) = sample(text).expect("it has memory");
        assert_eq!(
            (read.resident_bytes, read.anonymous_bytes),
            (Some(2 << 20), Some(1 << 20))
        );
        assert_eq!(
            (read.threads, read.file_bytes, parent),
            (Some(9), None, Some(7))
        );
        assert_eq!(sample("Name:\tjava\nPPid:\t7\nThreads:\t1\n"), None);
        let own = fs::read_to_string("/proc/self/status").expect("our own");
        let rss = sample(&own).and_then(|(read, _)| read.resident_bytes);
        let statm = resident(std::process::id());
        assert!(
            rss > Some(1 << 20) && statm > Some(1 << 20),
            "{rss:?} {statm:?}"
        );
    }

    #[test]
    fn options_end_at_the_class_and_a_program_is_spark_s_class() {
        let line = [
            "java",
            "-Xmx1024M",
            "-Dspark.x=-XX:OnOutOfMemoryError",
            "-XX:OnOutOfMemoryError=kill %p",
            "-cp",
            "/opt/spark/*",
            "org.apache.spark.executor.CoarseGrainedExecutorBackend",
            "-Xmx1g",
        ]
        .join("\0");
        assert_eq!(
            options_of(line.as_bytes()),
            ["-Xmx1024M", "-XX:OnOutOfMemoryError=kill %p"]
        );
        let class = program_of(line.as_bytes());
        assert_eq!(
            class.as_deref(),
            Some("org.apache.spark.executor.CoarseGrainedExecutorBackend")
        );
        let of = |line: &str| program_of(line.replace(' ', "\0").as_bytes());
        assert_eq!(of("sh -c kill"), None);
        // Other programs, and JVMs with another class, have such words too.
        for other in [
            "kill org.apache.spark.deploy.worker.Worker",
            "/opt/javac org.apache.spark.deploy.worker.Worker",
            "java -cp org.apache.jar Main org.apache.spark.deploy.worker.Worker",
            "java -jar own.jar org.apache.spark.deploy.worker.Worker",
            "java --class-path",
            "",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        let manager = "org.apache.hadoop.yarn.server.nodemanager.NodeManager";
        let line = format!(
            "/jdk/bin/java -Xmx1g -classpath a:b --add-opens java.base/x=ALL {manager} org.apache.x"
        );
        assert_eq!(of(&line).as_deref(), Some(manager));
        assert_eq!(printable("a\u{1b}[1mb", 200), "a\u{fffd}[1mb");
    }

    #[test]
    fn a_crash_report_is_the_users_own_and_not_older_than_the_process() {
        let scratch = tempfile::tempdir().expect("a folder");
        // SAFETY: getuid has no precondition.
        let uid = unsafe { libc::getuid() };
        let report = CrashReport {
            folder: scratch.path().to_owned(),
            inner_pid: 42,
            same_files: true,
        };
        assert_eq!(report.find(&[], uid, 0), None);
        let path = scratch.path().join("hs_err_pid42.log");
        fs::write(&path, "#").expect("written");
        let named = path.to_str().expect("a path").to_owned();
        assert_eq!(report.find(&[], uid, 0), Some(named.clone()));
        assert_eq!(report.expected(&[]), Some(named));
        assert_eq!(report.find(&[], uid + 1, 0), None);
        assert_eq!(report.find(&[], uid, i64::MAX), None);
        let option = texts(&["-XX:ErrorFile=logs/e%p"]);
        assert!(
            report
                .expected(&option)
                .is_some_and(|path| path.ends_with("/logs/e42"))
        );
    }

    #[test]
    fn the_log_is_that_of_the_victim() {
        let mut log = KillerLines::default();
        for line in [
            "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a/b,task=java,pid=42,uid=1000\n SUBSYSTEM=x\n",
            "3,2,3,-;Memory cgroup out of memory: Killed process 42 (java) total-vm:1kB",
            "3,3,3,-;Memory cgroup out of memory: Killed process 421 (java) total-vm:1kB",
            "6,4,2,-;oom-kill:constraint=CONSTRAINT_NONE,task=,pid=42,x,pid=43,uid=1000",
            "6,4,2,-;usb 1-1: new device",
        ] {
            log.take(line);
        }
        assert_eq!(log.about(421).len(), 1);
        let about = log.about(42);
        assert!(
            about[0].starts_with("oom-kill:constraint=CONSTRAINT_MEMCG"),
            "{about:?}"
        );
        assert!(log.about(43)[0].contains("CONSTRAINT_NONE"));
    }
}
