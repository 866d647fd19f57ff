//! Files that the workers' daemons write about applications:
//! `<store>/source=workers/<application id>/uid=<uid>/<table>-<run>-<part>.<host>.parquet`. Only the daemons may write to
//! these folders.
//!
//! The user in the path is the one that the kernel reports, so no user can write in the name of another. No application id
//! has a `=` in it, so no application can have this folder, and an import that replaces an application's folder leaves it
//! alone. A daemon follows no link below the store and accepts no folder of another owner. It counts and removes only
//! files with its own host's name.

pub mod ended;
mod tables;

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, lchown};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{Gid, UnlinkatFlags, fchown, geteuid, unlinkat};
use smtt_model::sort::small::sort_by;

pub use tables::{FETCHES, FUNCTIONS, REST, TASKS};

use super::batch::Batch;
use super::columns::Table;
use super::place;
use super::read::Reader;
use super::write::Writer;

/// Folder of the workers' files in a store.
pub const FOLDER: &str = "source=workers";
/// Longest name of a host in a file's name.
const HOST_LONGEST: usize = 64;
/// Files of one application that are listed at most.
pub const LISTED: usize = 20_000;
/// Users of one application that are listed at most.
const USERS: usize = 1_000;

/// Tables of a worker.
pub const TABLES: [&Table; 4] = [&TASKS, &FUNCTIONS, &FETCHES, &REST];

/// A file of a worker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// Start of the daemon that wrote it, in milliseconds since 1970.
    pub run: u64,
    /// Number of the part within the run. Part 0 of `worker` is replaced; the others have the last
    /// documents of ended executors.
    pub part: u32,
    /// Table.
    pub table: &'static str,
    /// Host of the daemon.
    pub host: String,
}

impl Name {
    fn text(&self) -> String {
        let (table, run, part, host) = (self.table, self.run, self.part, &self.host);
        format!("{table}-{run:013}-{part:06}.{host}.parquet")
    }

    fn parse(text: &str) -> Option<Self> {
        let (front, host) = text.strip_suffix(".parquet")?.split_once('.')?;
        let mut front = front.splitn(3, '-');
        let table = front.next()?;
        let table = TABLES.iter().find(|known| known.name == table)?.name;
        let name = Self {
            run: front.next()?.parse().ok()?,
            part: front.next()?.parse().ok()?,
            table,
            host: host.to_owned(),
        };
        (place::is_safe(host) && name.text() == text).then_some(name)
    }
}

/// A host's name as part of a path.
#[must_use]
pub fn host_name(text: &str) -> String {
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let bytes = text.bytes().skip_while(|byte| *byte == b'.');
    let name: String = bytes
        .take(HOST_LONGEST)
        .map(|byte| if safe(byte) { char::from(byte) } else { '-' })
        .collect();
    if name.is_empty() {
        "unnamed".to_owned()
    } else {
        name
    }
}

/// Limits of one daemon's files in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of all files.
    pub bytes: u64,
    /// Number of files.
    pub files: u64,
}

/// When a file was written, in milliseconds since 1970, and its size in bytes.
type DatedSize = (u64, u64);

/// The files of one daemon.
#[derive(Debug)]
pub struct Workers {
    store: PathBuf,
    root: OwnedFd,
    host: String,
    run: u64,
    gid: Option<u32>,
    bounds: Bounds,
    /// By user, then by application and name.
    files: BTreeMap<u32, BTreeMap<(String, String), DatedSize>>,
    removed: u64,
}

fn error(errno: Errno) -> io::Error {
    errno.into()
}

/// Path of an open folder.
fn path(folder: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()))
}

/// Opens the folder of a store, which the administrator names: it may be a link.
fn top(store: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut options = fs::OpenOptions::new();
    let folder = options.read(true).custom_flags(flags.bits()).open(store)?;
    Ok(folder.into())
}

fn open(above: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    openat(above, name, flags, Mode::empty()).map_err(error)
}

/// Opens a folder without following a link, and makes it where it is missing. A folder that another user owns, or that
/// others may write to, is refused.
fn make(above: &OwnedFd, name: &str, gid: Option<u32>) -> io::Result<OwnedFd> {
    let is_new = match mkdirat(above, name, Mode::from_bits_truncate(0o750)) {
        Ok(()) => true,
        Err(Errno::EEXIST) => false,
        Err(errno) => return Err(error(errno)),
    };
    let folder = open(above, name)?;
    let metadata = fs::metadata(path(&folder))?;
    if metadata.uid() != geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
        let text = format!(
            "{name} is a folder of user {} with mode {:o}: only the daemon's own folders are written to",
            metadata.uid(),
            metadata.mode() & 0o7777
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    if is_new {
        // Set explicitly: the umask may hide the folder from the group.
        fchmod(&folder, Mode::from_bits_truncate(0o750)).map_err(error)?;
        if let Some(gid) = gid {
            fchown(&folder, None, Some(Gid::from_raw(gid))).map_err(error)?;
        }
    }
    Ok(folder)
}

fn written_ms(metadata: &Metadata) -> u64 {
    let time = metadata.modified().ok();
    let time = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    time.map_or(0, |time| {
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    })
}

/// Names in an open folder that are text.
fn names(folder: &OwnedFd) -> io::Result<impl Iterator<Item = String> + use<>> {
    let entries = fs::read_dir(path(folder))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()))
}

fn user(name: &str) -> Option<u32> {
    let uid: u32 = name.strip_prefix("uid=")?.parse().ok()?;
    (name == format!("uid={uid}")).then_some(uid)
}

/// Whether the name of a user's folder and that of a file in it are those of a worker's file.
#[must_use]
pub fn is_file(folder: &str, name: &str) -> bool {
    user(folder).is_some() && Name::parse(name).is_some()
}

impl Workers {
    /// Opens the folder, makes it where it is missing, counts the files that daemons of this host left, and removes
    /// unfinished ones. `run` is the start of this daemon in milliseconds since 1970.
    ///
    /// # Errors
    /// When a step fails, or the folder is a link or of another user.
    pub fn take(
        store: &Path,
        host: &str,
        run: u64,
        gid: Option<u32>,
        bounds: Bounds,
    ) -> io::Result<Self> {
        let root = make(&top(store)?, FOLDER, gid)?;
        let mut workers = Self {
            store: store.to_owned(),
            root,
            host: host_name(host),
            run,
            gid,
            bounds,
            files: BTreeMap::new(),
            removed: 0,
        };
        for application in names(&workers.root)?.filter(|name| place::is_safe(name)) {
            // What cannot be opened is no folder of a daemon.
            if let Ok(folder) = open(&workers.root, &application) {
                workers.count(&application, &folder)?;
            }
        }
        Ok(workers)
    }

    fn count(&mut self, application: &str, folder: &OwnedFd) -> io::Result<()> {
        let end = format!(".{}.inprogress", self.host);
        for name in names(folder)? {
            let Some((uid, of_user)) = user(&name).zip(open(folder, &name).ok()) else {
                continue;
            };
            for name in names(&of_user)? {
                if name.starts_with('.') && name.ends_with(&end) {
                    let _ = unlinkat(&of_user, name.as_str(), UnlinkatFlags::NoRemoveDir);
                } else if Name::parse(&name).is_some_and(|name| name.host == self.host)
                    && let Ok(metadata) = fs::symlink_metadata(path(&of_user).join(&name))
                {
                    let held = (written_ms(&metadata), metadata.len());
                    let files = self.files.entry(uid).or_default();
                    files.insert((application.to_owned(), name), held);
                }
            }
        }
        Ok(())
    }

    /// Writes rows as a part of a table; `share_of` names the user whose share a user uses. Where the files are beyond
    /// their limits, the oldest of the share with the most go.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for an application id that no folder can have; else when the file cannot be
    /// written. No part of it stays.
    pub fn add(
        &mut self,
        whose: Whose<'_>,
        part: u32,
        batch: &Batch,
        share_of: &impl Fn(u32) -> u32,
    ) -> io::Result<()> {
        let Some(application) = own_folder(whose.application, whose.attempt) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let uid = whose.uid;
        let table = batch.table();
        let name = Name {
            run: self.run,
            part,
            table: table.name,
            host: self.host.clone(),
        }
        .text();
        let above = make(&self.root, &application, self.gid)?;
        let folder = make(&above, &format!("uid={uid}"), self.gid)?;
        let mut said = vec![
            ("smtt.application_id", whose.application),
            ("smtt.host", &self.host),
        ];
        said.extend(
            whose
                .attempt
                .map(|attempt| ("smtt.application_attempt_id", attempt)),
        );
        let write = || -> io::Result<u64> {
            let mut writer = Writer::create(table, &path(&folder), &self.host, &said)?.named(&name);
            writer.write(batch)?;
            Ok(writer.finish()?.bytes)
        };
        let bytes = write()?;
        let file = path(&folder).join(&name);
        if self.gid.is_some() {
            lchown(&file, None, self.gid)?;
        }
        let held = (written_ms(&fs::symlink_metadata(&file)?), bytes);
        let files = self.files.entry(uid).or_default();
        files.insert((application, name), held);
        self.shrink(share_of)
    }

    /// The part of a table after the last one that this run has written.
    #[must_use]
    pub fn next_part(&self, whose: Whose<'_>, table: &Table) -> u32 {
        let application = place::name(whose.application, whose.attempt).unwrap_or_default();
        let from = (application.clone(), String::new());
        let files = self.files.get(&whose.uid).into_iter();
        let files = files.flat_map(|files| files.range(from.clone()..));
        let names = files.map_while(|((folder, name), _)| (*folder == application).then_some(name));
        names
            .filter_map(|name| Name::parse(name))
            .filter(|name| name.run == self.run && name.table == table.name)
            .map(|name| name.part.saturating_add(1))
            .max()
            .unwrap_or(0)
    }

    /// Removes files until the others are within their limits.
    fn shrink(&mut self, share_of: &impl Fn(u32) -> u32) -> io::Result<()> {
        loop {
            let (bytes, files) = self.usage();
            let by_bytes = bytes > self.bounds.bytes;
            if !by_bytes && files <= self.bounds.files {
                return Ok(());
            }
            let mut shares: BTreeMap<u32, u64> = BTreeMap::new();
            for (uid, files) in &self.files {
                *shares.entry(share_of(*uid)).or_default() += if by_bytes {
                    files.values().map(|(_, bytes)| bytes).sum()
                } else {
                    files.len() as u64
                };
            }
            let most = shares.iter().max_by_key(|(_, held)| **held);
            let most = most.map(|(share, _)| *share);
            let of_share = self.files.iter();
            let of_share = of_share.filter(|(uid, _)| most == Some(share_of(**uid)));
            let oldest = of_share
                .flat_map(|(uid, files)| {
                    files
                        .iter()
                        .map(|(name, (written, _))| (*written, name.clone(), *uid))
                })
                .min();
            let Some((_, (application, name), uid)) = oldest else {
                return Ok(());
            };
            self.remove(&application, uid, &name)?;
            if let Some(files) = self.files.get_mut(&uid) {
                files.remove(&(application, name));
                if files.is_empty() {
                    self.files.remove(&uid);
                }
            }
            self.removed += 1;
        }
    }

    fn remove(&self, application: &str, uid: u32, name: &str) -> io::Result<()> {
        let of_user = format!("uid={uid}");
        let above = match open(&self.root, application) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            above => above?,
        };
        match open(&above, &of_user) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            folder => match unlinkat(&folder?, name, UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => return Err(error(errno)),
            },
        }
        // Folders with other files stay.
        let _ = unlinkat(&above, of_user.as_str(), UnlinkatFlags::RemoveDir);
        let _ = unlinkat(&self.root, application, UnlinkatFlags::RemoveDir);
        Ok(())
    }

    /// Files of earlier runs of this host's daemons, newest run first. They stay valid when this is dropped;
    /// [`reader_of_own`] opens them.
    #[must_use]
    pub fn earlier(&self) -> Vec<WorkerFile> {
        let root = self.store.join(FOLDER);
        let files = self.files.iter().flat_map(|(uid, files)| {
            let of_user = format!("uid={uid}");
            let root = &root;
            files.keys().filter_map(move |(application, name)| {
                Some(WorkerFile {
                    uid: *uid,
                    name: Name::parse(name)?,
                    path: root.join(application).join(&of_user).join(name),
                })
            })
        });
        let mut files: Vec<WorkerFile> = files.filter(|file| file.name.run < self.run).collect();
        sort_by(&mut files, |left, right| {
            let key = |file: &WorkerFile| (std::cmp::Reverse(file.name.run), file.path.clone());
            key(left).cmp(&key(right))
        });
        files
    }

    /// Bytes and number of this host's files.
    #[must_use]
    pub fn usage(&self) -> (u64, u64) {
        let files = self.files.values().flat_map(BTreeMap::values);
        files.fold((0, 0), |(bytes, files), (_, more)| {
            (bytes + more, files + 1)
        })
    }

    /// Files removed to make room.
    #[must_use]
    pub const fn removed(&self) -> u64 {
        self.removed
    }
}

/// Whose files: those about an application, or about one attempt of it, and the user of its executors.
#[derive(Clone, Copy, Debug)]
pub struct Whose<'a> {
    /// Id of the application.
    pub application: &'a str,
    /// Attempt of the application, where its cluster manager makes several.
    pub attempt: Option<&'a str>,
    /// User of the executors.
    pub uid: u32,
}

impl<'a> Whose<'a> {
    /// Files of an application without attempts.
    #[must_use]
    pub const fn of(application: &'a str, uid: u32) -> Self {
        Self {
            application,
            attempt: None,
            uid,
        }
    }
}

/// A file that a worker's daemon wrote about one application and one user.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkerFile {
    /// User of the executors.
    pub uid: u32,
    /// Host, run, part and table, as the file's name states.
    pub name: Name,
    /// Path of the file in the store.
    pub path: PathBuf,
}

/// Names of the folders below [`FOLDER`] that may have files about an application, or about one attempt of it: that of the
/// attempt, and that of executors that did not name theirs, which is the application's where the first has none. None where
/// an id could leave the store.
#[must_use]
pub fn folders(application: &str, attempt: Option<&str>) -> Vec<String> {
    let Some(own) = place::name(application, attempt) else {
        return Vec::new();
    };
    let unnamed = place::name(application, None).filter(|_| attempt.is_some());
    std::iter::once(own).chain(unnamed).collect()
}

/// Whether an application can have files: its id can be a folder's name.
#[must_use]
pub fn can_have_files(application: &str, attempt: Option<&str>) -> bool {
    own_folder(application, attempt).is_some()
}

/// The folder's name; `None` for one that a restart would not find again, and so never remove.
fn own_folder(application: &str, attempt: Option<&str>) -> Option<String> {
    place::name(application, attempt).filter(|name| place::is_safe(name))
}

/// Files in a folder of [`folders`], by user, daemon and part. At most [`LISTED`].
///
/// # Errors
/// When a folder cannot be read. A missing one has no files.
pub fn files(store: &Path, folder: &str) -> io::Result<Vec<WorkerFile>> {
    let mut all = Vec::new();
    if !place::is_safe(folder) {
        return Ok(all);
    }
    let folder = store.join(FOLDER).join(folder);
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(all),
        entries => entries?,
    };
    for entry in entries.take(USERS) {
        let entry = entry?;
        let Some(uid) = entry.file_name().to_str().and_then(user) else {
            continue;
        };
        if !entry.file_type()?.is_dir() {
            continue;
        }
        for entry in fs::read_dir(entry.path())? {
            let entry = entry?;
            let name = entry.file_name().to_str().and_then(Name::parse);
            if let Some(name) = name
                && entry.file_type()?.is_file()
                && all.len() < LISTED
            {
                let path = entry.path();
                all.push(WorkerFile { uid, name, path });
            }
        }
    }
    sort_by(&mut all, Ord::cmp);
    Ok(all)
}

/// Opens a worker's file.
///
/// # Errors
/// When it is no table of that name.
pub fn reader(file: &WorkerFile) -> parquet::errors::Result<Reader> {
    Reader::open(&file.path, file.name.table)
}

/// Opens a file that [`Workers::earlier`] names, of at most `most` bytes. Below the store no link is followed.
///
/// # Errors
/// When there is no such file, or it is no table of that name.
pub fn reader_of_own(file: &WorkerFile, most: u64) -> parquet::errors::Result<Reader> {
    let lost = || io::Error::from(io::ErrorKind::NotFound);
    // The store, the folder of workers, the application's, the user's, the file.
    let mut above: Vec<&Path> = file.path.ancestors().take(5).collect();
    let store = above.pop().filter(|_| above.len() == 4).ok_or_else(lost)?;
    let mut folder = top(store)?;
    let mut name = "";
    for path in above.iter().rev() {
        if !name.is_empty() {
            folder = open(&folder, name)?;
        }
        name = path
            .file_name()
            .and_then(|it| it.to_str())
            .ok_or_else(lost)?;
    }
    Reader::open_up_to(&path(&folder).join(name), file.name.table, most)
}

#[cfg(test)]
mod tests;
