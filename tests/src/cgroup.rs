//! Cgroups with a memory limit, of either version, as a test makes them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// A cgroup of the test's own; removed when it is dropped.
#[derive(Debug)]
pub struct MemoryCgroup {
    folder: PathBuf,
    /// Version of the hierarchy.
    pub version: u8,
}

impl MemoryCgroup {
    /// Makes a cgroup with this limit; `None` where this machine has no memory controller that the test may use.
    ///
    /// # Errors
    /// When the cgroup cannot be set up.
    pub fn make(name: &str, limit_bytes: u64) -> Result<Option<Self>> {
        let name = format!("smtt-test-{}-{name}", std::process::id());
        let (root, version, limit) =
            if Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists() {
                ("/sys/fs/cgroup/memory", 1, "memory.limit_in_bytes")
            } else if has_memory("/sys/fs/cgroup") {
                ("/sys/fs/cgroup", 2, "memory.max")
            } else {
                return Ok(None);
            };
        let folder = Path::new(root).join(name);
        if fs::create_dir(&folder).is_err() {
            return Ok(None);
        }
        let group = Self { folder, version };
        group.write(limit, &limit_bytes.to_string())?;
        // Without swap the limit is the limit. The file is absent where swap is not counted.
        let swap = if version == 1 {
            "memory.swappiness"
        } else {
            "memory.swap.max"
        };
        let _ = fs::write(group.folder.join(swap), "0");
        Ok(Some(group))
    }

    /// Moves a process into the cgroup.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add(&self, pid: u32) -> Result<()> {
        self.write("cgroup.procs", &pid.to_string())
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

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, text).with_context(|| format!("{} = {text}", path.display()))
    }
}

/// Whether the cgroups below a root of version 2 have the memory controller.
fn has_memory(root: &str) -> bool {
    let file = Path::new(root).join("cgroup.subtree_control");
    fs::read_to_string(file).is_ok_and(|text| text.split_whitespace().any(|name| name == "memory"))
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}
