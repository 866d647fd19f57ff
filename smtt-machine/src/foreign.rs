//! Files that processes of other users map, identified before their file system is asked for anything.
//!
//! The owner of a process decides what `/proc/PID/map_files` leads to and may exchange it at any moment. The file system
//! of the file may be a program of the same owner that never answers. [`Mapped`] therefore pins the file with a
//! descriptor that only names it (`O_PATH`), and everything is decided on that descriptor: a later exchange changes
//! nothing. The file itself is opened only when its file system is a local one.

use std::fs::{self, File};
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use crate::proc::{Bounds, Handle, Next, lines};

/// Lines of a `mountinfo` that are read; the kernel allows 100,000 mounts in a namespace.
const MOUNTS: Bounds = Bounds {
    line: 16 << 10,
    lines: 1 << 17,
    bytes: 16 << 20,
};

/// File systems whose data come from a local device or from memory, and which only root can mount.
const LOCAL: [&str; 14] = [
    "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "jfs", "vfat", "squashfs",
    "erofs", "iso9660", "rootfs",
];
/// File systems in memory. Users can mount them in namespaces of their own; no program stands behind them.
const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];
/// File systems on top of others. A user's own may stand on a program of his, so they count only where they are mounted
/// in this process's namespace too, as those of containers are.
const STACKED: [&str; 2] = ["overlay", "aufs"];

/// A file that a process maps, pinned and not opened.
#[derive(Debug)]
pub struct Mapped {
    file: File,
}

/// What the kernel knows of a file without asking its file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Device number of the file, as `stat` shows it.
    pub device: u64,
    /// Whether it is a regular file.
    pub regular: bool,
    /// Bytes of the file; the file system may know better.
    pub size: u64,
}

/// A mount: its device, as `major:minor`, and the type of its file system.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    id: u64,
    device: String,
    kind: String,
}

impl Mapped {
    /// Pins the file behind an address range of a process, named as in `map_files`.
    ///
    /// # Errors
    /// When the range has no file any more, or the daemon may not see it.
    pub fn open(handle: &Handle, range: &str) -> io::Result<Self> {
        let file = handle.open_file(&format!("map_files/{range}"), OFlag::O_PATH)?;
        Ok(Self { file })
    }

    /// Pins the file of a path.
    ///
    /// # Errors
    /// When there is none.
    #[cfg(test)]
    pub fn of_path(path: &Path) -> io::Result<Self> {
        let file = nix::fcntl::open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(Self { file: file.into() })
    }

    /// What the kernel knows of the file.
    ///
    /// # Errors
    /// When the kernel refuses `statx`.
    pub fn known(&self) -> io::Result<Known> {
        let mut status = MaybeUninit::<libc::statx>::zeroed();
        // AT_STATX_DONT_SYNC: a file system that is a program or a server is not asked.
        // SAFETY: the descriptor is open, the empty path is NUL-terminated, and the buffer is ours to be filled in.
        let done = unsafe {
            libc::statx(
                self.file.as_raw_fd(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC,
                libc::STATX_TYPE | libc::STATX_SIZE,
                status.as_mut_ptr(),
            )
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has filled the buffer in, and any bytes are a valid value.
        let status = unsafe { status.assume_init() };
        Ok(Known {
            device: libc::makedev(status.stx_dev_major, status.stx_dev_minor),
            regular: u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFREG,
            size: status.stx_size,
        })
    }

    /// Whether the file is a memfd: it is on the kernel's own memory file system, which no user can mount.
    ///
    /// # Errors
    /// When the kernel refuses `statx` or `memfd_create`.
    pub fn is_memfd(&self) -> io::Result<bool> {
        let own =
            nix::sys::memfd::memfd_create(c"smtt-compare", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)?;
        let own = Self { file: own.into() }.known()?;
        let known = self.known()?;
        Ok(known.regular && known.device == own.device)
    }

    /// Why the file must not be opened: its file system may wait for another program or machine. `None` where it is a
    /// local one.
    ///
    /// # Errors
    /// When the mounts cannot be read.
    pub fn refused_file_system(&self, handle: &Handle) -> io::Result<Option<String>> {
        let id = mount_id(self.file.as_raw_fd())?;
        let own = Handle::open(std::process::id())?;
        let text = |of: &Handle| of.open_file("mountinfo", OFlag::O_RDONLY);
        let device = || Ok(self.known()?.device);
        refusal(id, device, || text(handle), || text(&own))
    }

    /// Opens the pinned file itself. The flags always include `O_NONBLOCK` (a lease of its owner is an error and no
    /// wait), `O_NOCTTY` and `O_CLOEXEC`.
    ///
    /// # Errors
    /// When the file system refuses; `WouldBlock` where another process holds a lease.
    pub fn reopen(&self, flags: OFlag) -> io::Result<File> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let file = nix::fcntl::open(
            Path::new(&path),
            flags | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?;
        Ok(file.into())
    }
}

/// Id of the mount that a descriptor was opened through.
fn mount_id(descriptor: i32) -> io::Result<u64> {
    fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}"))?
        .lines()
        .find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
        .ok_or_else(|| io::Error::other("fdinfo has no mnt_id"))
}

/// Why a file on the mount with this id must not be opened, from the `mountinfo` of the process that maps it and of this
/// process; see [`Mapped::refused_file_system`]. The file's device is asked for where neither has the mount.
///
/// # Errors
/// When a text cannot be read, or the device.
pub fn refusal<T: Read>(
    id: u64,
    device: impl FnOnce() -> io::Result<u64>,
    theirs: impl FnOnce() -> io::Result<T>,
    own: impl Fn() -> io::Result<T>,
) -> io::Result<Option<String>> {
    let mut mount = find(theirs()?, |mount| mount.id == id)?;
    if mount.is_none() {
        mount = find(own()?, |mount| mount.id == id)?;
    }
    if mount.is_none() {
        // Before Linux 6.8 the mapped file of an overlay is the one below it, whose mount is internal. That file
        // system is known by its device.
        let device = device()?;
        let device = format!("{}:{}", libc::major(device), libc::minor(device));
        mount = find(own()?, |mount| mount.device == device)?;
    }
    let Some(Mount { device, kind, .. }) = mount else {
        return Ok(Some(
            "its file system is mounted neither here nor for the process".to_owned(),
        ));
    };
    let any = |kinds: &[&str]| kinds.contains(&kind.as_str());
    if any(&LOCAL) || any(&IN_MEMORY) {
        return Ok(None);
    }
    if !any(&STACKED) {
        return Ok(Some(format!("{kind} is no local file system")));
    }
    let here = find(own()?, |mount| mount.device == device && mount.kind == kind)?;
    Ok(here
        .is_none()
        .then(|| format!("its {kind} is mounted in a namespace of the process only")))
}

/// The first mount of a `mountinfo` that matches.
fn find(text: impl Read, fits: impl Fn(&Mount) -> bool) -> io::Result<Option<Mount>> {
    let mut found = None;
    lines(text, &MOUNTS, |line| {
        found = std::str::from_utf8(line)
            .ok()
            .and_then(mount)
            .filter(|mount| fits(mount));
        if found.is_some() {
            Next::Stop
        } else {
            Next::Line
        }
    })?;
    Ok(found)
}

/// One line of `mountinfo`.
fn mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ');
    Some(Mount {
        id: left.next()?.parse().ok()?,
        device: left.nth(1)?.to_owned(),
        kind: right.split(' ').next()?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_line_of_mountinfo_is_read() {
        let line =
            "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - fuse.sshfs host:/ rw,errors=continue";
        let read = mount(line).expect("a mount");
        assert_eq!(
            (read.id, read.device.as_str(), read.kind.as_str()),
            (36, "98:0", "fuse.sshfs")
        );
        assert_eq!(mount("36 35 98:0 / / rw"), None);
    }

    #[test]
    fn a_file_here_is_local_and_no_memfd() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(b"bytes").expect("written");
        let mapped = Mapped::of_path(file.path()).expect("pinned");
        let own = Handle::open(std::process::id()).expect("this process");
        assert_eq!(mapped.refused_file_system(&own).expect("mounts"), None);
        let known = mapped.known().expect("statx");
        assert!(known.regular && known.size == 5, "{known:?}");
        assert!(!mapped.is_memfd().expect("memfd"));
        assert!(mapped.reopen(OFlag::O_RDONLY).is_ok());
    }

    #[test]
    fn procfs_is_refused_and_a_memfd_is_recognised() {
        let mapped = Mapped::of_path(Path::new("/proc/self/stat")).expect("pinned");
        let own = Handle::open(std::process::id()).expect("this process");
        let refused = mapped.refused_file_system(&own).expect("mounts");
        assert!(refused.is_some_and(|why| why.contains("proc")));
        let memory = nix::sys::memfd::memfd_create(c"a", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)
            .expect("a memfd");
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let pinned = nix::fcntl::open(Path::new(&path), OFlag::O_PATH, Mode::empty()).expect("pin");
        let mapped = Mapped {
            file: pinned.into(),
        };
        assert!(mapped.is_memfd().expect("memfd"));
    }
}
