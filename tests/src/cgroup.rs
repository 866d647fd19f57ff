//! Cgroups with a limit, of either version, as a test makes them.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The root of the hierarchy of version 2.
const UNIFIED: &str = "/sys/fs/cgroup";

/// A cgroup of the test's own; removed when it is dropped.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
    /// Version of the hierarchy.
    pub version: u8,
}

impl Cgroup {
    /// Makes a cgroup with this controller; `None` where this machine has none that the test may use. `sign` is a file
    /// that the controller has in version 1.
    fn make(name: &str, controller: &str, sign: &str) -> Option<Self> {
        let first = Path::new(UNIFIED).join(controller);
        let (root, version) = if first.join(sign).exists() {
            (first, 1)
        } else if has_controller(controller) {
            (PathBuf::from(UNIFIED), 2)
        } else {
            return None;
        };
        let folder = root.join(format!("smtt-test-{}-{name}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        Some(Self { folder, version })
    }

    /// A command that starts a program in the cgroup: the program and its arguments follow.
    #[must_use]
    pub fn launcher(&self) -> Vec<String> {
        let procs = self.folder.join("cgroup.procs").display().to_string();
        let enter = "echo $$ > \"$0\" && exec \"$@\"".to_owned();
        vec!["sh".to_owned(), "-c".to_owned(), enter, procs]
    }

    /// Moves a process into the cgroup; processes that it starts later begin there.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add(&self, pid: u32) -> Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, text).with_context(|| format!("{} = {text}", path.display()))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

/// Whether the cgroups below the root of version 2 have a controller.
fn has_controller(controller: &str) -> bool {
    let file = Path::new(UNIFIED).join("cgroup.subtree_control");
    fs::read_to_string(file)
        .is_ok_and(|text| text.split_whitespace().any(|name| name == controller))
}

/// A cgroup with a limit of memory.
#[derive(Debug)]
pub struct MemoryCgroup(Cgroup);

impl MemoryCgroup {
    /// Makes a cgroup with this limit; `None` where this machine has no memory controller that the test may use.
    ///
    /// # Errors
    /// When the cgroup cannot be set up.
    pub fn make(name: &str, limit_bytes: u64) -> Result<Option<Self>> {
        let Some(group) = Cgroup::make(name, "memory", "memory.limit_in_bytes") else {
            return Ok(None);
        };
        // Without swap the limit is the limit. The file of swap is absent where swap is not counted.
        let (limit, swap) = if group.version == 1 {
            ("memory.limit_in_bytes", "memory.swappiness")
        } else {
            ("memory.max", "memory.swap.max")
        };
        group.write(limit, &limit_bytes.to_string())?;
        let _ = fs::write(group.folder.join(swap), "0");
        Ok(Some(Self(group)))
    }

    /// The most memory that the cgroup had at once, of the kernel for its processes too.
    ///
    /// # Errors
    /// When the kernel does not say: version 2 does since Linux 5.19.
    pub fn peak_bytes(&self) -> Result<u64> {
        let file = if self.version == 1 {
            "memory.max_usage_in_bytes"
        } else {
            "memory.peak"
        };
        let text = fs::read_to_string(self.folder.join(file)).context(file)?;
        text.trim().parse().context(file)
    }

    /// Processes that the OOM killer has ended here, by the kernel's own count.
    ///
    /// # Errors
    /// When the count cannot be read.
    pub fn oom_kills(&self) -> Result<u64> {
        let file = if self.version == 1 {
            "memory.oom_control"
        } else {
            "memory.events"
        };
        let text = fs::read_to_string(self.folder.join(file))?;
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.with_context(|| format!("{file} has no oom_kill"))?
            .parse()
            .context("a count")
    }
}

impl Deref for MemoryCgroup {
    type Target = Cgroup;

    fn deref(&self) -> &Cgroup {
        &self.0
    }
}

/// A cgroup whose CPU time can be limited.
#[derive(Debug)]
pub struct CpuCgroup(Cgroup);

/// Microseconds for which the kernel shares CPU time out.
const PERIOD_US: u32 = 100_000;

impl CpuCgroup {
    /// Makes a cgroup without a limit; `None` where this machine has no CPU controller that the test may use.
    #[must_use]
    pub fn make(name: &str) -> Option<Self> {
        Cgroup::make(name, "cpu", "cpu.cfs_quota_us").map(Self)
    }

    /// Limits the CPU time, as a share of one CPU; `None`: no limit.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn limit(&self, share: Option<f64>) -> Result<()> {
        let quota = share.map(|share| (share * f64::from(PERIOD_US)) as u32);
        if self.version == 1 {
            self.write("cpu.cfs_period_us", &PERIOD_US.to_string())?;
            let quota = quota.map_or("-1".to_owned(), |quota| quota.to_string());
            self.write("cpu.cfs_quota_us", &quota)
        } else {
            let quota = quota.map_or("max".to_owned(), |quota| quota.to_string());
            self.write("cpu.max", &format!("{quota} {PERIOD_US}"))
        }
    }
}

impl Deref for CpuCgroup {
    type Target = Cgroup;

    fn deref(&self) -> &Cgroup {
        &self.0
    }
}

/// A cgroup with a limit of processes and threads.
#[derive(Debug)]
pub struct ThreadCgroup(Cgroup);

impl ThreadCgroup {
    /// Makes a cgroup with this limit; `None` where this machine has no controller of processes that the test may use.
    ///
    /// # Errors
    /// When the cgroup cannot be set up.
    pub fn make(name: &str, limit: u32) -> Result<Option<Self>> {
        let Some(group) = Cgroup::make(name, "pids", "tasks") else {
            return Ok(None);
        };
        group.write("pids.max", &limit.to_string())?;
        Ok(Some(Self(group)))
    }

    /// How often the kernel has refused a thread or process here, by its own count.
    ///
    /// # Errors
    /// When the count cannot be read.
    pub fn refusals(&self) -> Result<u64> {
        let text = fs::read_to_string(self.folder.join("pids.events"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("max "));
        line.context("pids.events has no max")?
            .parse()
            .context("a count")
    }
}

impl Deref for ThreadCgroup {
    type Target = Cgroup;

    fn deref(&self) -> &Cgroup {
        &self.0
    }
}
