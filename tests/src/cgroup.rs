//! Cgroups with a limit, of either version, as a test makes them, and the namespaces of a program that sees none of the
//! others.

use std::ffi::{CStr, CString};
use std::fs;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context as _, Result, ensure};

use crate::skip::must_have;

/// The root of the hierarchy of version 2.
const UNIFIED: &str = "/sys/fs/cgroup";
/// Where the kernel shows its log.
const KERNEL_LOG: &str = "/dev/kmsg";

/// A cgroup of the test's own; removed when it is dropped.
#[derive(Debug)]
pub struct Cgroup {
    /// The hierarchy's mount.
    root: PathBuf,
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
        Some(Self {
            root,
            folder,
            version,
        })
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

    /// Does something while this process is in the cgroup: programs that it starts begin and stay there, and count there
    /// from their first page on.
    ///
    /// # Errors
    /// When the kernel refuses to move this process, or the work fails.
    pub fn within<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = self.own()?;
        let own = std::process::id().to_string();
        self.add(std::process::id())?;
        let done = work();
        fs::write(before.join("cgroup.procs"), own)
            .with_context(|| format!("back to {}", before.display()))?;
        done
    }

    /// The cgroup of this process in the same hierarchy.
    fn own(&self) -> Result<PathBuf> {
        let text = fs::read_to_string("/proc/self/cgroup")?;
        let path = text.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let names = |name: &str| controllers.split(',').any(|one| one == name);
            let ours = match self.version {
                1 => self
                    .root
                    .file_name()
                    .is_some_and(|name| name.to_str().is_some_and(names)),
                _ => controllers.is_empty(),
            };
            ours.then(|| path.trim_start_matches('/').to_owned())
        });
        Ok(self
            .root
            .join(path.context("this process is in no such cgroup")?))
    }

    /// Number in a file of the cgroup, or of a line of it: `memory.current`, `memory.stat anon`.
    ///
    /// # Errors
    /// When there is no such number.
    pub fn number(&self, what: &str) -> Result<u64> {
        let (file, key) = what.split_once(' ').unwrap_or((what, ""));
        let path = self.folder.join(file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let value = if key.is_empty() {
            Some(text.trim())
        } else {
            let values = text.lines().filter_map(|line| line.split_once(' '));
            values
                .filter(|(name, _)| *name == key)
                .map(|(_, value)| value)
                .next()
        };
        value
            .context(key.to_owned())?
            .parse()
            .with_context(|| what.to_owned())
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
        let Some(group) = Self::unlimited(name)? else {
            return Ok(None);
        };
        group.limit(limit_bytes)?;
        Ok(Some(group))
    }

    /// Makes a cgroup that [`Self::limit`] may limit later.
    ///
    /// # Errors
    /// When this machine must have another version.
    pub fn unlimited(name: &str) -> Result<Option<Self>> {
        let group = Cgroup::make(name, "memory", "memory.limit_in_bytes");
        ensure!(
            !must_have("memory_cgroup_2") || group.as_ref().is_some_and(|group| group.version == 2),
            "a memory controller of version 2 must be here: {group:?}"
        );
        Ok(group.map(Self))
    }

    /// Sets the limit. Without swap the limit is the limit; the file of swap is absent where swap is not counted.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn limit(&self, bytes: u64) -> Result<()> {
        let (limit, swap) = if self.version == 1 {
            ("memory.limit_in_bytes", "memory.swappiness")
        } else {
            ("memory.max", "memory.swap.max")
        };
        let _ = fs::write(self.folder.join(swap), "0");
        self.write(limit, &bytes.to_string())
    }

    /// Makes the OOM killer end all processes of the cgroup at once; version 2 only.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn kill_as_a_whole(&self) -> Result<()> {
        self.write("memory.oom.group", "1")
    }

    /// Makes a cgroup below this one, without a limit of its own. In version 2 this one has no processes then.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn below(&self, name: &str) -> Result<Self> {
        if self.version == 2 {
            self.write("cgroup.subtree_control", "+memory")?;
        }
        let folder = self.folder.join(name);
        fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        Ok(Self(Cgroup {
            root: self.root.clone(),
            folder,
            version: self.version,
        }))
    }

    /// Bytes in use.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn current_bytes(&self) -> Result<u64> {
        self.number(if self.version == 1 {
            "memory.usage_in_bytes"
        } else {
            "memory.current"
        })
    }

    /// Times that the limit was reached: in version 1 also where memory could be freed then.
    ///
    /// # Errors
    /// When the count cannot be read.
    pub fn limit_hits(&self) -> Result<u64> {
        self.number(if self.version == 1 {
            "memory.failcnt"
        } else {
            "memory.events oom"
        })
    }

    /// The most memory that the cgroup had at once, of the kernel for its processes too.
    ///
    /// # Errors
    /// When the kernel does not say: version 2 does since Linux 5.19.
    pub fn peak_bytes(&self) -> Result<u64> {
        self.number(if self.version == 1 {
            "memory.max_usage_in_bytes"
        } else {
            "memory.peak"
        })
    }

    /// Processes that the OOM killer has ended here, by the kernel's own count.
    ///
    /// # Errors
    /// When the count cannot be read.
    pub fn oom_kills(&self) -> Result<u64> {
        self.number(if self.version == 1 {
            "memory.oom_control oom_kill"
        } else {
            "memory.events oom_kill"
        })
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

/// Starts something without the kernel's log, as the systemd unit does, so that only the counts of cgroups say which limit
/// was reached. What is started keeps the mounts.
///
/// # Errors
/// When the kernel refuses a mount, or the work fails.
pub fn without_kernel_log<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    apart(libc::CLONE_NEWNS, || {
        hide_kernel_log()?;
        work()
    })
}

/// Starts something as in the pod of a DaemonSet: in a cgroup of its own, which is the root of all that it sees at the usual
/// place, and without the kernel's log. The machine's whole tree is mounted read-only at `host`.
///
/// # Errors
/// When the kernel refuses a mount, or the work fails.
pub fn in_pod<T: Send>(
    group: &MemoryCgroup,
    host: &Path,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    group.within(|| {
        apart(libc::CLONE_NEWNS | libc::CLONE_NEWCGROUP, || {
            hide_kernel_log()?;
            let usual = Path::new(UNIFIED);
            mount(Some(usual), host, None, libc::MS_BIND | libc::MS_REC, None)?;
            let read_only = libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY;
            mount(None, host, None, read_only, None)?;
            let at = text(usual)?;
            // SAFETY: the text is NUL-terminated.
            let done = unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
            ensure!(done == 0, "umount: {}", std::io::Error::last_os_error());
            if group.version == 1 {
                mount(None, usual, Some(c"tmpfs"), 0, None)?;
                fs::create_dir(&group.root)?;
                mount(None, &group.root, Some(c"cgroup"), 0, Some(c"memory"))?;
            } else {
                mount(None, usual, Some(c"cgroup2"), 0, None)?;
            }
            work()
        })
    })
}

fn hide_kernel_log() -> Result<()> {
    // Nothing of this is to be seen in the machine's own namespace.
    mount(
        None,
        Path::new("/"),
        None,
        libc::MS_REC | libc::MS_PRIVATE,
        None,
    )?;
    if Path::new(KERNEL_LOG).exists() {
        mount(
            Some(Path::new("/dev/null")),
            Path::new(KERNEL_LOG),
            None,
            libc::MS_BIND,
            None,
        )?;
    }
    Ok(())
}

/// Does something on a thread with namespaces of its own; programs that it starts have them too.
fn apart<T: Send>(namespaces: i32, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let done = scope.spawn(|| {
            // SAFETY: the call takes no pointer, and changes this thread only.
            let done = unsafe { libc::unshare(namespaces) };
            ensure!(done == 0, "unshare: {}", std::io::Error::last_os_error());
            work()
        });
        done.join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn mount(
    from: Option<&Path>,
    at: &Path,
    kind: Option<&CStr>,
    flags: libc::c_ulong,
    options: Option<&CStr>,
) -> Result<()> {
    let from = from.map_or(Ok(c"none".to_owned()), text)?;
    let to = text(at)?;
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: the texts are NUL-terminated and outlive the call; the others are null.
    let done = unsafe {
        libc::mount(
            from.as_ptr(),
            to.as_ptr(),
            pointer(kind),
            flags,
            pointer(options).cast(),
        )
    };
    let error = std::io::Error::last_os_error();
    ensure!(done == 0, "mount at {}: {error}", at.display());
    Ok(())
}

fn text(path: &Path) -> Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}
