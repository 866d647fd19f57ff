//! DAMON, the kernel's monitor of data accesses, through `/sys/kernel/mm/damon/admin`.
//!
//! A machine has one DAMON, so the daemon acquires it only when it is free, and only while there is memory to monitor.
//! The daemon puts a mark into a setting that has no meaning for fixed ranges (the update interval of the ranges):
//! magic number, process id and start time of the daemon. By the mark it recognises and takes over what a dead daemon
//! has left; it never changes the settings of any other user.

pub mod windows;

use std::fmt::Display;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::proc::start_ticks;

/// How often DAMON checks, and how long it aggregates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Time from one check of a region to the next.
    pub check: Duration,
    /// Time from one aggregation to the next.
    pub window: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            check: Duration::from_millis(100),
            window: Duration::from_secs(5),
        }
    }
}

impl Pace {
    /// Checks of each region in a window.
    #[must_use]
    pub fn checks(self) -> u32 {
        let checks = self.window.as_micros() / self.check.as_micros().max(1);
        u32::try_from(checks).unwrap_or(u32::MAX).max(1)
    }
}

/// Where DAMON is, below the root folder.
const ADMIN: &str = "sys/kernel/mm/damon/admin/kdamonds";
/// Modules of the kernel that use DAMON for its own purposes.
const MODULES: [&str; 3] = ["damon_reclaim", "damon_lru_sort", "damon_stat"];
/// First 24 bits of the mark.
const MAGIC: u64 = 0x53_4d54;
/// Bits of the process's start time, in clock ticks, in the mark.
const START_BITS: u32 = 18;
/// Releases DAMON after the daemon was killed: waits until the daemon's end of the pipe is closed, and does nothing if
/// the mark is gone.
const GUARD: &str = r#"trap "" HUP INT TERM
read -r line
if [ "$(cat "$1/0/contexts/0/monitoring_attrs/intervals/update_us" 2>/dev/null)" = "$2" ]; then
  echo off > "$1/0/state"
  echo 0 > "$1/nr_kdamonds"
fi"#;

/// Who uses DAMON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Nothing uses it: it can be acquired.
    Free,
    /// A dead daemon's: it can be taken over.
    DeadDaemon,
    /// A running daemon's, with its process id.
    LivingDaemon(u32),
    /// Another user's: a description of it.
    OtherUser(String),
    /// DAMON is unavailable, for this reason.
    Missing(String),
}

/// Why DAMON cannot be used, in one line that states what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// Who uses DAMON on the machine with the root folder `root`. Changes nothing.
#[must_use]
pub fn owner(root: &Path) -> Owner {
    let admin = root.join(ADMIN);
    let Ok(count) = number(&admin.join("nr_kdamonds")) else {
        return Owner::Missing(if root.join("sys/kernel/mm/damon").is_dir() {
            "DAMON's settings cannot be read: run as root".into()
        } else {
            "this kernel has no DAMON (CONFIG_DAMON_VADDR and CONFIG_DAMON_SYSFS)".into()
        });
    };
    for module in MODULES {
        let enabled = root.join(format!("sys/module/{module}/parameters/enabled"));
        if read(&enabled).is_ok_and(|text| matches!(text.as_str(), "Y" | "1")) {
            return Owner::OtherUser(format!("the kernel's own {module} is on"));
        }
    }
    if count == 0 {
        return Owner::Free;
    }
    match mark_of(&admin) {
        Some((pid, start)) if count == 1 => match started(root, pid) {
            Some(ticks) if ticks & ((1 << START_BITS) - 1) == start => Owner::LivingDaemon(pid),
            _ => Owner::DeadDaemon,
        },
        _ => Owner::OtherUser(describe(&admin, count)),
    }
}

/// Why DAMON cannot be acquired; `None` where it can.
#[must_use]
pub fn refusal(owner: &Owner) -> Option<Refusal> {
    match owner {
        Owner::Free | Owner::DeadDaemon => None,
        Owner::LivingDaemon(pid) => Some(Refusal(format!(
            "DAMON is in use: the smtt-daemon with process id {pid}"
        ))),
        Owner::OtherUser(who) => Some(Refusal(format!("DAMON is in use: {who}"))),
        Owner::Missing(why) => Some(Refusal(why.clone())),
    }
}

/// Describes the settings of another user.
fn describe(admin: &Path, count: u64) -> String {
    let text = |path: &str| read(&admin.join(path)).unwrap_or_else(|_| "unknown".into());
    let (state, operations) = (text("0/state"), text("0/contexts/0/operations"));
    let (schemes, action) = (
        number(&admin.join("0/contexts/0/schemes/nr_schemes")).unwrap_or(0),
        text("0/contexts/0/schemes/0/action"),
    );
    let action = if schemes > 0 {
        format!(", action {action}")
    } else {
        String::new()
    };
    let more = if count > 1 {
        format!(" and {} more", count - 1)
    } else {
        String::new()
    };
    format!("kdamond 0 is {state}, operations {operations}{action}{more}")
}

fn read(path: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

fn number(path: &Path) -> io::Result<u64> {
    read(path)?.parse().map_err(io::Error::other)
}

/// Start time of a living process, in clock ticks since boot; `None` for a zombie.
fn started(root: &Path, pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(root.join(format!("proc/{pid}/stat"))).ok()?;
    let state = stat[stat.rfind(')')? + 1..].trim_start().chars().next()?;
    start_ticks(&stat).filter(|_| !matches!(state, 'Z' | 'X'))
}

fn mark_path(admin: &Path) -> PathBuf {
    admin.join("0/contexts/0/monitoring_attrs/intervals/update_us")
}

/// Process id and start time of the daemon in the mark.
fn mark_of(admin: &Path) -> Option<(u32, u64)> {
    let mark = number(&mark_path(admin)).ok()?;
    let pid = mark >> START_BITS & ((1 << 22) - 1);
    (mark >> 40 == MAGIC).then_some((pid as u32, mark & ((1 << START_BITS) - 1)))
}

/// The mark of this process.
fn own_mark() -> u64 {
    let pid = std::process::id();
    let start = started(Path::new("/"), pid).unwrap_or(0) & ((1 << START_BITS) - 1);
    MAGIC << 40 | u64::from(pid) << START_BITS | start
}

/// Monitored processes and ranges: process id, then first address and address after the last one of each range.
pub type Ranges<'a> = Vec<(u32, &'a [(u64, u64)])>;

/// The acquired DAMON. Dropping it releases it.
#[derive(Debug)]
pub struct Damon {
    admin: PathBuf,
    mark: u64,
    guard: Option<Child>,
}

impl Damon {
    /// Acquires DAMON if it is free.
    ///
    /// # Errors
    /// Who uses it, or what is missing.
    pub fn take() -> Result<Self, Refusal> {
        let root = Path::new("/");
        let owner = owner(root);
        if let Some(refusal) = refusal(&owner) {
            return Err(refusal);
        }
        let mut damon = Self {
            admin: root.join(ADMIN),
            mark: own_mark(),
            guard: None,
        };
        if owner == Owner::DeadDaemon {
            tracing::info!("DAMON is taken over from a daemon that has died");
            damon.remove()?;
        }
        damon.write("nr_kdamonds", 1)?;
        // From here on DAMON is ours and must be released after any failure.
        let made = damon.make();
        if let Err(refusal) = made {
            let _ = damon.write("nr_kdamonds", 0);
            return Err(refusal);
        }
        damon.guard = damon.guard();
        Ok(damon)
    }

    fn make(&self) -> Result<(), Refusal> {
        self.write("0/contexts/nr_contexts", 1)?;
        self.write(
            "0/contexts/0/monitoring_attrs/intervals/update_us",
            self.mark,
        )?;
        let known = self.text("0/contexts/0/avail_operations");
        // Kernels before 5.19 do not list their operations.
        if known.is_some_and(|known| known.lines().all(|name| name.trim() != "fvaddr")) {
            return Err(Refusal(
                "this kernel's DAMON cannot monitor processes (CONFIG_DAMON_VADDR)".into(),
            ));
        }
        self.write("0/contexts/0/operations", "fvaddr")
    }

    /// Starts a process that releases DAMON if the daemon is killed. Without a shell the next daemon releases it.
    fn guard(&self) -> Option<Child> {
        Command::new("/bin/sh")
            .args(["-c", GUARD, "smtt-damon-guard"])
            .arg(&self.admin)
            .arg(self.mark.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .inspect_err(|error| {
                tracing::warn!(
                    "DAMON stays on if the daemon is killed, until it is started again: no /bin/sh: {error}"
                );
            })
            .ok()
    }

    /// Process id of the guard.
    #[must_use]
    pub fn guard_pid(&self) -> Option<u32> {
        self.guard.as_ref().map(Child::id)
    }

    fn text(&self, path: &str) -> Option<String> {
        read(&self.admin.join(path)).ok()
    }

    fn write(&self, path: &str, value: impl Display) -> Result<(), Refusal> {
        let write = || {
            // The kernel accepts one number per call of write.
            fs::OpenOptions::new()
                .write(true)
                .open(self.admin.join(path))?
                .write_all(value.to_string().as_bytes())
        };
        write().map_err(|error| {
            let shown = self.admin.join(path);
            let hint = match error.raw_os_error() {
                Some(libc::EBUSY) => "another program uses it",
                Some(libc::EROFS | libc::EACCES | libc::EPERM) => {
                    "the service may not write there: User=root and ReadWritePaths=/sys/kernel/mm/damon in its unit allow it"
                }
                _ => "the kernel refuses the value",
            };
            Refusal(format!(
                "DAMON cannot be used: {value} > {}: {error}: {hint}",
                shown.display()
            ))
        })
    }

    /// Whether DAMON still has this daemon's mark.
    fn is_ours(&self) -> bool {
        number(&mark_path(&self.admin)).is_ok_and(|mark| mark == self.mark)
    }

    /// Whether DAMON runs: it ends by itself with the last process that it monitors.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_ours() && self.text("0/state").is_some_and(|state| state == "on")
    }

    /// CPU time of DAMON's thread since it was started, in clock ticks; `None` when it does not run.
    #[must_use]
    pub fn cpu_ticks(&self) -> Option<u64> {
        let pid: u32 = self.text("0/pid")?.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace().skip(11);
        Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
    }

    /// Monitors these ranges from now on, and no other. Returns the process id of DAMON's thread.
    ///
    /// # Errors
    /// When another program has taken DAMON from the daemon, or the kernel refuses.
    pub fn start(&mut self, ranges: &Ranges<'_>, pace: Pace) -> Result<u32, Refusal> {
        if !self.is_ours() {
            return Err(Refusal(
                "DAMON is in use: another program took it from this daemon".into(),
            ));
        }
        self.off()?;
        let regions = ranges.iter().map(|(_, ranges)| ranges.len()).sum::<usize>();
        // Minimum and maximum are the number of ranges, so that DAMON neither splits nor merges them.
        let regions = regions.max(3);
        let context = "0/contexts/0";
        for (path, value) in [
            ("intervals/sample_us", pace.check.as_micros() as u64),
            ("intervals/aggr_us", pace.window.as_micros() as u64),
            ("nr_regions/min", regions as u64),
            ("nr_regions/max", regions as u64),
        ] {
            self.write(&format!("{context}/monitoring_attrs/{path}"), value)?;
        }
        self.write(&format!("{context}/targets/nr_targets"), ranges.len())?;
        for (target, (pid, ranges)) in ranges.iter().enumerate() {
            let target = format!("{context}/targets/{target}");
            self.write(&format!("{target}/pid_target"), pid)?;
            self.write(&format!("{target}/regions/nr_regions"), ranges.len())?;
            for (region, (start, end)) in ranges.iter().enumerate() {
                self.write(&format!("{target}/regions/{region}/start"), start)?;
                self.write(&format!("{target}/regions/{region}/end"), end)?;
            }
        }
        self.write("0/state", "on")?;
        let thread = self.text("0/pid").and_then(|pid| pid.parse().ok());
        thread.ok_or_else(|| Refusal("DAMON has no thread: it ended at once".into()))
    }

    /// Switches DAMON off. It may end by itself at the same moment.
    fn off(&self) -> Result<(), Refusal> {
        let on = || self.text("0/state").is_some_and(|state| state == "on");
        if !on() {
            return Ok(());
        }
        let written = self.write("0/state", "off");
        if on() { written } else { Ok(()) }
    }

    /// Switches DAMON off and removes its settings.
    fn remove(&self) -> Result<(), Refusal> {
        self.off()?;
        self.write("nr_kdamonds", 0)
    }
}

impl Drop for Damon {
    fn drop(&mut self) {
        if self.is_ours()
            && let Err(refusal) = self.remove()
        {
            tracing::warn!("DAMON stays as it is: {refusal}");
        }
        if let Some(mut guard) = self.guard.take() {
            // Closing its input ends it.
            guard.stdin = None;
            let _ = guard.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine whose DAMON has these files.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, content).expect("written");
        }
        root
    }

    const COUNT: &str = "sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds";
    const MARK: &str =
        "sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/monitoring_attrs/intervals/update_us";
    const STATE: &str = "sys/kernel/mm/damon/admin/kdamonds/0/state";

    fn said(root: &tempfile::TempDir) -> String {
        refusal(&owner(root.path())).map_or_else(|| "free".into(), |refusal| refusal.0)
    }

    #[test]
    fn another_user_is_named() {
        let used = [
            (COUNT, "1\n"),
            (STATE, "on\n"),
            (MARK, "60000000\n"),
            (
                "sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/operations",
                "paddr\n",
            ),
            (
                "sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/schemes/nr_schemes",
                "1\n",
            ),
            (
                "sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/schemes/0/action",
                "pageout\n",
            ),
        ];
        assert_eq!(
            said(&machine(&used)),
            "DAMON is in use: kdamond 0 is on, operations paddr, action pageout"
        );
        // Set up and not switched on yet is in use as well.
        let prepared = [(COUNT, "2\n"), (STATE, "off\n")];
        assert!(said(&machine(&prepared)).contains("kdamond 0 is off"));
        assert!(said(&machine(&prepared)).ends_with("and 1 more"));
        let module = [
            (COUNT, "0\n"),
            ("sys/module/damon_reclaim/parameters/enabled", "Y\n"),
        ];
        assert!(said(&machine(&module)).contains("damon_reclaim"));
    }

    #[test]
    fn a_free_one_can_be_taken_and_a_missing_one_not() {
        let free = [
            (COUNT, "0\n"),
            ("sys/module/damon_reclaim/parameters/enabled", "N\n"),
        ];
        assert_eq!(owner(machine(&free).path()), Owner::Free);
        assert!(said(&machine(&[])).contains("CONFIG_DAMON_SYSFS"));
    }

    #[test]
    fn ours_is_known_by_its_mark_and_left_to_the_living() {
        let start = 123_456_789_u64;
        let mark = MAGIC << 40 | 4321 << START_BITS | start & ((1 << START_BITS) - 1);
        let mark = mark.to_string();
        let stat = |start: u64| {
            let (before, after) = (["1"; 18].join(" "), ["0"; 30].join(" "));
            format!("4321 (a) b) S {before} {start} {after}")
        };
        let ended = stat(start).replace(") S", ") Z");
        let dead = [(COUNT, "1\n"), (STATE, "on\n"), (MARK, mark.as_str())];
        assert_eq!(owner(machine(&dead).path()), Owner::DeadDaemon);
        let with = |stat: &str| {
            owner(machine(&[dead.as_slice(), &[("proc/4321/stat", stat)]].concat()).path())
        };
        assert_eq!(with(&stat(start)), Owner::LivingDaemon(4321));
        assert_eq!(
            with(&stat(start + 1)),
            Owner::DeadDaemon,
            "its id is another's now"
        );
        assert_eq!(with(&ended), Owner::DeadDaemon);
        let two = [(COUNT, "2\n"), (STATE, "on\n"), (MARK, mark.as_str())];
        assert!(matches!(owner(machine(&two).path()), Owner::OtherUser(_)));
        let mine = own_mark();
        assert_eq!(mine >> 40, MAGIC);
        assert_eq!(
            mine >> START_BITS & ((1 << 22) - 1),
            u64::from(std::process::id())
        );
    }
}
