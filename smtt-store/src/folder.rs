//! The trace folder: safe names, one owner at a time, bounded disk usage.
//!
//! Its files are `uid=.../application_id=.../host=.../segment-<milliseconds since 1970>-<pid>-<number>.parquet`, the
//! layout of partitioned data in Spark and other readers. The user is the one that the kernel reports, so that a process
//! of another user that claims the same application writes elsewhere. Only files of that form are ever counted or removed.
//!
//! Users share the space max-min fairly: where it is used up, the oldest segments of the user with the most go.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use smtt_model::sort::small::sort_by;

use self::removal::Oldest;
pub use self::removal::Shrunk;
use super::segment::IN_PROGRESS;

mod removal;

/// Prefix of a segment's name.
const PREFIX: &str = "segment-";
/// Suffix of a finished segment's name.
const SUFFIX: &str = ".parquet";
/// Longest value in a folder's name, in bytes: a name may have 255, including the key.
const VALUE_BYTES: usize = 180;
/// The lock file of the owner; hidden from readers of the folder.
const LOCK: &str = ".lock";
/// The file that tests whether the folder is writable; hidden like the lock file.
const PROBE: &str = ".probe";
/// Size of the test file: larger than the reserve of some file systems for small files on a full disk.
const PROBE_BYTES: usize = 64 * 1024;

/// Folders from the trace folder to a segment.
const LEVELS: usize = 3;

/// The folder of one executor's segments, below the trace folder. Without a user it has the name for "none" in
/// partitioned data.
#[must_use]
pub fn partition(uid: Option<u32>, application_id: &str, host: &str) -> PathBuf {
    let uid = uid.map_or_else(String::new, |uid| uid.to_string());
    let mut path = PathBuf::from(format!("uid={}", escaped(&uid)));
    path.push(format!("application_id={}", escaped(application_id)));
    path.push(format!("host={}", escaped(host)));
    path
}

/// Encodes untrusted text as part of a folder's name: without separators and control characters, and bounded. Spark and
/// others decode `%2F` to `/`. An empty text becomes the name for "none" in partitioned data.
#[must_use]
pub fn escaped(text: &str) -> String {
    if text.is_empty() {
        return "__HIVE_DEFAULT_PARTITION__".to_owned();
    }
    let mut name = String::new();
    for letter in text.chars() {
        let from = name.len();
        if letter.is_alphanumeric() || matches!(letter, '-' | '_' | '.') {
            name.push(letter);
        } else {
            for byte in letter.encode_utf8(&mut [0; 4]).bytes() {
                // Writing to a string cannot fail.
                let _ = write!(name, "%{byte:02X}");
            }
        }
        if name.len() > VALUE_BYTES {
            name.truncate(from);
            // Long names with a common prefix stay distinct.
            let _ = write!(name, "~{:016x}", fnv(text.as_bytes()));
            break;
        }
    }
    name
}

/// Fowler, Noll and Vo's hash, 1a: the same on every start, unlike the standard library's.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Name of a segment.
#[must_use]
pub fn segment_name(unix_ms: u64, pid: u32, number: u64) -> String {
    format!("{PREFIX}{unix_ms:013}-{pid}-{number:06}{SUFFIX}")
}

/// A finished segment on the disk.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FinishedSegment {
    /// Name of the file: segments in order of their names are in order of their beginnings.
    pub name: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Lists the segments below a trace folder: the finished ones, sorted by name and so the oldest first, and the paths of the
/// unfinished ones. A missing folder has none.
///
/// # Errors
/// When the folder cannot be read.
pub fn list_segments(folder: &Path) -> io::Result<(Vec<FinishedSegment>, Vec<PathBuf>)> {
    let (mut finished, mut unfinished) = (Vec::new(), Vec::new());
    visit(folder, |seen| match seen {
        TraceEntry::Finished(found, _) => finished.push(found),
        TraceEntry::Unfinished(path) => unfinished.push(path),
        TraceEntry::Folder(..) => {}
    })?;
    sort_by(&mut finished, Ord::cmp);
    Ok((finished, unfinished))
}

/// Disk space of a file or folder in bytes. A file system that reports blocks late reports at least the length.
fn space(of: &Metadata) -> u64 {
    let blocks = of.blocks().saturating_mul(512);
    if of.is_dir() {
        blocks
    } else {
        blocks.max(of.len())
    }
}

/// A user by the name of its folder; `None` for the folder of records without one.
type User = Option<u32>;

/// The user whose folder this is.
fn user_of(folder: &Path) -> User {
    let name = folder.file_name()?.to_str()?;
    name.strip_prefix("uid=")?.parse().ok()
}

/// The user of a file, a host or an application, which are this many folders below that of the user.
fn user_above(path: &Path, levels: usize) -> User {
    user_of(path.ancestors().nth(levels)?)
}

/// What a walk through the trace folder meets.
enum TraceEntry {
    /// A finished segment and its disk space.
    Finished(FinishedSegment, u64),
    /// An unfinished segment.
    Unfinished(PathBuf),
    /// Disk space of the folder of a user, application or host, and the user.
    Folder(u64, User),
}

/// Goes through the folders of users, applications and hosts.
fn visit(folder: &Path, mut see: impl FnMut(TraceEntry)) -> io::Result<()> {
    for user in below(folder, "uid=")? {
        see(TraceEntry::Folder(folder_space(&user), user_of(&user)));
        visit_user(&user, &mut see)?;
    }
    Ok(())
}

fn visit_user(user: &Path, see: &mut impl FnMut(TraceEntry)) -> io::Result<()> {
    for application in below(user, "application_id=")? {
        see(TraceEntry::Folder(
            folder_space(&application),
            user_of(user),
        ));
        for host in below(&application, "host=")? {
            see(TraceEntry::Folder(folder_space(&host), user_of(user)));
            for entry in entries(&host)? {
                let Ok(name) = entry.file_name().into_string() else {
                    continue;
                };
                let hidden = name.strip_prefix('.').unwrap_or_default();
                if hidden.starts_with(PREFIX) && hidden.ends_with(IN_PROGRESS) {
                    see(TraceEntry::Unfinished(entry.path()));
                } else if name.starts_with(PREFIX) && name.ends_with(SUFFIX) {
                    // Removed since the listing: it takes no space.
                    let Ok(metadata) = entry.metadata() else {
                        continue;
                    };
                    let found = FinishedSegment {
                        name,
                        path: entry.path(),
                        bytes: metadata.len(),
                    };
                    see(TraceEntry::Finished(found, space(&metadata)));
                }
            }
        }
    }
    Ok(())
}

/// Disk space of one folder without its entries; 0 where it is gone.
fn folder_space(path: &Path) -> u64 {
    fs::symlink_metadata(path).map_or(0, |of| space(&of))
}

fn entries(folder: &Path) -> io::Result<Vec<fs::DirEntry>> {
    match fs::read_dir(folder) {
        Ok(entries) => Ok(entries.filter_map(Result::ok).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn below(folder: &Path, prefix: &str) -> io::Result<Vec<PathBuf>> {
    Ok(entries(folder)?
        .into_iter()
        .filter(|entry| {
            // The daemon creates no symbolic links: skip them.
            entry.file_type().is_ok_and(|kind| kind.is_dir())
                && entry.file_name().to_string_lossy().starts_with(prefix)
        })
        .map(|entry| entry.path())
        .collect())
}

/// The trace folder, held by this process.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    gid: Option<u32>,
    users: BTreeMap<User, Usage>,
    oldest: Oldest,
    _lock: Flock<File>,
}

/// What finished segments and their folders take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Disk space of segments and folders, in bytes.
    pub bytes: u64,
    /// Number of segments.
    pub files: u64,
}

impl Usage {
    fn add(&mut self, bytes: u64, files: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.files = self.files.saturating_add(files);
    }

    fn take(&mut self, bytes: u64, files: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.files = self.files.saturating_sub(files);
    }
}

impl Folder {
    /// Creates the folder if necessary, locks it, and tests whether it is writable. Returns it with the number of
    /// removed unfinished segments of a crashed daemon.
    ///
    /// # Errors
    /// When a step fails; [`io::ErrorKind::ResourceBusy`] when another process holds the folder.
    pub fn take(path: &Path, gid: Option<u32>) -> io::Result<(Self, u64)> {
        make(path, gid)?;
        let name = path.join(LOCK);
        drop(
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&name)?,
        );
        // Opened for reading only: a file that is open for writing prevents a read-only remount of its disk.
        let lock = File::open(&name)?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| {
            match io::Error::from(error) {
                busy if busy.kind() == io::ErrorKind::WouldBlock => {
                    io::ErrorKind::ResourceBusy.into()
                }
                other => other,
            }
        })?;
        let probe = path.join(PROBE);
        let tried = File::create(&probe).and_then(|mut file| {
            io::Write::write_all(&mut file, &[0; PROBE_BYTES])?;
            file.sync_all()
        });
        // Removed also after a failure; a failure to remove it appears at the next write.
        let _ = fs::remove_file(&probe);
        tried?;
        let mut unfinished = Vec::new();
        visit(path, |seen| {
            if let TraceEntry::Unfinished(path) = seen {
                unfinished.push(path);
            }
        })?;
        for file in &unfinished {
            fs::remove_file(file)?;
        }
        let mut folder = Self {
            path: path.to_owned(),
            gid,
            users: BTreeMap::new(),
            oldest: Oldest::default(),
            _lock: lock,
        };
        folder.survey()?;
        Ok((folder, unfinished.len() as u64))
    }

    /// The folder of a partition, created if necessary.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn partition(&mut self, partition: &Path) -> io::Result<PathBuf> {
        let path = self.path.join(partition);
        let new = path
            .ancestors()
            .take(LEVELS)
            .filter(|folder| !folder.is_dir());
        let created: Vec<PathBuf> = new.map(Path::to_owned).collect();
        make(&path, self.gid)?;
        let usage = self.users.entry(user_above(&path, LEVELS - 1)).or_default();
        for folder in created {
            usage.add(folder_space(&folder), 0);
        }
        Ok(path)
    }

    /// Id of the group that may read.
    #[must_use]
    pub const fn gid(&self) -> Option<u32> {
        self.gid
    }

    /// What finished segments and their folders take.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.users.values().fold(Usage::default(), |mut all, own| {
            all.add(own.bytes, own.files);
            all
        })
    }

    /// Counts a segment that was just finished.
    pub fn finished(&mut self, segment: &Path) {
        // Removed by another process: it takes no space.
        let Ok(metadata) = fs::symlink_metadata(segment) else {
            return;
        };
        let usage = self.users.entry(user_above(segment, LEVELS)).or_default();
        usage.add(space(&metadata), 1);
    }

    /// Reads what the whole folder takes.
    fn survey(&mut self) -> io::Result<()> {
        let mut users: BTreeMap<User, Usage> = BTreeMap::new();
        visit(&self.path, |seen| match seen {
            TraceEntry::Finished(found, space) => {
                let usage = users.entry(user_above(&found.path, LEVELS)).or_default();
                usage.add(space, 1);
            }
            TraceEntry::Folder(space, user) => users.entry(user).or_default().add(space, 0),
            TraceEntry::Unfinished(_) => {}
        })?;
        self.users = users;
        Ok(())
    }
}

/// Creates a folder and its parents, readable for the group; existing folders stay unchanged.
pub(crate) fn make(path: &Path, gid: Option<u32>) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent() {
        make(above, gid)?;
    }
    match DirBuilder::new().mode(0o750).create(path) {
        // Another process created it first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
        Ok(()) => {
            // Set the mode explicitly: the umask may hide the folder from the group.
            fs::set_permissions(path, fs::Permissions::from_mode(0o750))?;
            if gid.is_some() {
                chown(path, None, gid)?;
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
