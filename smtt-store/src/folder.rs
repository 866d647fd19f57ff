//! The trace folder: safe names, one owner at a time, bounded disk usage.
//!
//! Its files are `uid=.../application_id=.../host=.../segment-<milliseconds since 1970>-<pid>-<number>.parquet`, the
//! layout of partitioned data in Spark and other readers. The user is the one that the kernel reports, so that a process
//! of another user that claims the same application writes elsewhere. Only files of that form are ever counted or removed.
//!
//! Users share the space max-min fairly: where it is used up, the oldest segments of the user with the most go.

use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::segment::IN_PROGRESS;

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
/// Segments of a user that are known by name, the oldest ones: the folder is read again after so many removals.
const OLDEST: usize = 1024;

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
pub struct Found {
    /// Name of the file: segments in order of their names are in order of their beginnings.
    pub name: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Finished segments of a folder, the oldest first, and the unfinished ones. A missing folder has none.
///
/// # Errors
/// When the folder cannot be read.
pub fn look(folder: &Path) -> io::Result<(Vec<Found>, Vec<PathBuf>)> {
    let (mut finished, mut unfinished) = (Vec::new(), Vec::new());
    visit(folder, |seen| match seen {
        Seen::Finished(found, _) => finished.push(found),
        Seen::Unfinished(path) => unfinished.push(path),
        Seen::Folder(..) => {}
    })?;
    finished.sort();
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

/// What the trace folder contains.
enum Seen {
    /// A finished segment and its disk space.
    Finished(Found, u64),
    /// An unfinished segment.
    Unfinished(PathBuf),
    /// Disk space of the folder of a user, application or host, and the user.
    Folder(u64, User),
}

/// Goes through the folders of users, applications and hosts.
fn visit(folder: &Path, mut see: impl FnMut(Seen)) -> io::Result<()> {
    for user in below(folder, "uid=")? {
        see(Seen::Folder(folder_space(&user), user_of(&user)));
        visit_user(&user, &mut see)?;
    }
    Ok(())
}

fn visit_user(user: &Path, see: &mut impl FnMut(Seen)) -> io::Result<()> {
    for application in below(user, "application_id=")? {
        see(Seen::Folder(folder_space(&application), user_of(user)));
        for host in below(&application, "host=")? {
            see(Seen::Folder(folder_space(&host), user_of(user)));
            for entry in entries(&host)? {
                let Ok(name) = entry.file_name().into_string() else {
                    continue;
                };
                let hidden = name.strip_prefix('.').unwrap_or_default();
                if hidden.starts_with(PREFIX) && hidden.ends_with(IN_PROGRESS) {
                    see(Seen::Unfinished(entry.path()));
                } else if name.starts_with(PREFIX) && name.ends_with(SUFFIX) {
                    // Removed since the listing: it takes no space.
                    let Ok(metadata) = entry.metadata() else {
                        continue;
                    };
                    let found = Found {
                        name,
                        path: entry.path(),
                        bytes: metadata.len(),
                    };
                    see(Seen::Finished(found, space(&metadata)));
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
    users: BTreeMap<User, Part>,
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

/// What one user has in the folder.
#[derive(Debug, Default)]
struct Part {
    usage: Usage,
    /// The oldest finished segments with their disk space, the oldest first.
    oldest: VecDeque<(Found, u64)>,
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
        let (_, unfinished) = look(path)?;
        for file in &unfinished {
            fs::remove_file(file)?;
        }
        let mut folder = Self {
            path: path.to_owned(),
            gid,
            users: BTreeMap::new(),
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
        let part = self.users.entry(user_above(&path, LEVELS - 1)).or_default();
        for folder in created {
            part.usage.add(folder_space(&folder), 0);
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
        self.users.values().fold(Usage::default(), |mut all, part| {
            all.add(part.usage.bytes, part.usage.files);
            all
        })
    }

    /// Counts a segment that was just finished.
    pub fn finished(&mut self, segment: &Path) {
        // Removed by another process: it takes no space.
        let Ok(metadata) = fs::symlink_metadata(segment) else {
            return;
        };
        let part = self.users.entry(user_above(segment, LEVELS)).or_default();
        let space = space(&metadata);
        // All of the user's segments are known by name: this one is too.
        if part.oldest.len() as u64 == part.usage.files
            && part.oldest.len() < OLDEST
            && let Some(name) = segment.file_name().and_then(|name| name.to_str())
        {
            let found = Found {
                name: name.to_owned(),
                path: segment.to_owned(),
                bytes: metadata.len(),
            };
            let at = part.oldest.partition_point(|(other, _)| *other < found);
            part.oldest.insert(at, (found, space));
        }
        part.usage.add(space, 1);
    }

    /// Reads the whole folder: what it takes, and the oldest segments of each user.
    fn survey(&mut self) -> io::Result<()> {
        // The newest of the oldest is on top.
        let mut users: BTreeMap<User, (Usage, BinaryHeap<(Found, u64)>)> = BTreeMap::new();
        visit(&self.path, |seen| match seen {
            Seen::Finished(found, space) => {
                let (usage, oldest) = users.entry(user_above(&found.path, LEVELS)).or_default();
                usage.add(space, 1);
                oldest.push((found, space));
                if oldest.len() > OLDEST {
                    oldest.pop();
                }
            }
            Seen::Folder(space, user) => users.entry(user).or_default().0.add(space, 0),
            Seen::Unfinished(_) => {}
        })?;
        let part = |(usage, oldest): (Usage, BinaryHeap<_>)| Part {
            usage,
            oldest: oldest.into_sorted_vec().into(),
        };
        self.users = users
            .into_iter()
            .map(|(user, found)| (user, part(found)))
            .collect();
        Ok(())
    }

    /// Removes finished segments until they are within both limits: the oldest ones of the share with the most bytes, or
    /// with the most files where these are too many. `share_of` names the user whose share a user uses. Returns the
    /// number of removed segments.
    ///
    /// # Errors
    /// When the folder cannot be read or a file cannot be removed.
    pub fn shrink(
        &mut self,
        bytes: u64,
        files: u64,
        share_of: impl Fn(u32) -> u32,
    ) -> io::Result<u64> {
        let mut removed = 0;
        let mut surveyed = false;
        loop {
            let usage = self.usage();
            if usage.bytes <= bytes && usage.files <= files {
                break;
            }
            let Some(user) = self.loser(usage.bytes > bytes, &share_of) else {
                break;
            };
            let Some(part) = self.users.get_mut(&user) else {
                break;
            };
            let Some((found, space)) = part.oldest.pop_front() else {
                if std::mem::replace(&mut surveyed, true) {
                    // Others remove files too.
                    break;
                }
                self.survey()?;
                continue;
            };
            surveyed = false;
            match fs::remove_file(&found.path) {
                Ok(()) => removed += 1,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            part.usage.take(space, 1);
            // A folder is removed with its last entry.
            for empty in found.path.ancestors().skip(1).take(LEVELS) {
                let space = folder_space(empty);
                if fs::remove_dir(empty).is_err() {
                    break;
                }
                part.usage.take(space, 0);
            }
            if part.usage.files == 0
                && !found.path.ancestors().nth(LEVELS).is_some_and(Path::exists)
            {
                self.users.remove(&user);
            }
        }
        Ok(removed)
    }

    /// The user whose oldest segment goes: of the share with the most, the user with the oldest segment.
    fn loser(&self, by_bytes: bool, share_of: &impl Fn(u32) -> u32) -> Option<User> {
        let mut shares: BTreeMap<User, Usage> = BTreeMap::new();
        for (user, part) in &self.users {
            let share = shares.entry(user.map(share_of)).or_default();
            share.add(part.usage.bytes, part.usage.files);
        }
        let most = |usage: &Usage| if by_bytes { usage.bytes } else { usage.files };
        let with_files = shares.iter().filter(|(_, usage)| usage.files > 0);
        let (richest, _) = with_files.max_by_key(|(_, usage)| most(usage))?;
        let own = self.users.iter();
        let own = own.filter(|(user, part)| user.map(share_of) == *richest && part.usage.files > 0);
        // A user whose segments are not known by name comes first: the folder is read again.
        own.min_by_key(|(_, part)| part.oldest.front().map(|(found, _)| &found.name))
            .map(|(user, _)| *user)
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
