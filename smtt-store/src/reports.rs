//! Reports of deaths on disk: one JSON file per death, below one folder with bounded use.
//!
//! Its files are `uid=.../report-<milliseconds since 1970>-<pid>.json`. Users share the space max-min fairly: where it is
//! used up, the oldest reports of the user with the most go. Only files of that form are ever counted or removed.
//!
//! The second line of a file is the checksum of the first. Files of earlier versions have no second line.
//!
//! `living.json` has reports in advance: what there would be to say of each living executor if the machine stopped now, and
//! the reports of deaths that are not written yet. It counts in none of the bounds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use smtt_model::postmortem::{InAdvance, Report};

use crate::folder::make;

const PREFIX: &str = "report-";
const SUFFIX: &str = ".json";
/// Suffix of a file that is being written; hidden.
const IN_PROGRESS: &str = ".part";
const LOCK: &str = ".lock";
/// The file of the reports in advance, and its largest size.
const LIVING: &str = "living.json";
const LIVING_MAX: u64 = 8 << 20;
/// Largest report that is read.
const REPORT_MAX: u64 = 1 << 20;
/// The line of the checksum, with zeros for it.
const SEAL: &str = "\n{\"crc32\":\"00000000\"}\n";
/// A file takes at least one block of its file system.
const BLOCK: u64 = 4096;

/// Limits of the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Disk space of all reports, in bytes.
    pub bytes: u64,
    /// Number of reports.
    pub files: u64,
}

/// What one user has: reports by id, with their disk space.
#[derive(Debug, Default)]
struct Part {
    reports: BTreeMap<String, u64>,
    bytes: u64,
}

/// Bytes of a report in advance.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn length(report: &Report) -> io::Result<u64> {
    Ok(serde_json::to_vec(report)?.len() as u64 + 1)
}

/// Bytes that all reports in advance may have, and the waiting reports beside them.
pub const IN_ADVANCE_BYTES: u64 = LIVING_MAX / 2 - BLOCK;

/// The folder of reports, held by this process.
#[derive(Debug)]
pub struct Reports {
    path: PathBuf,
    gid: Option<u32>,
    bounds: Bounds,
    users: BTreeMap<u32, Part>,
    removed: u64,
    /// Ids of those removed since the last call of [`Reports::take_removed`].
    removed_ids: Vec<String>,
    _lock: Flock<File>,
}

/// The id in a file's name.
fn id_of(name: &str) -> Option<&str> {
    let id = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    is_id(id).then_some(id)
}

/// Whether a text can be the id of a report: digits with hyphens between them. What clients ask for becomes a name.
fn is_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= 64 && id.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}

fn folder_of(root: &Path, uid: u32) -> PathBuf {
    root.join(format!("uid={uid}"))
}

/// CRC-32 of a text, as gzip and zlib have it.
fn crc32(text: &[u8]) -> u32 {
    !text.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0xEDB8_8320 * (sum & 1))
        })
    })
}

/// Waits until the names in a folder are on the disk.
fn sync(folder: &Path) -> io::Result<()> {
    #[cfg(test)]
    tests::see_sync(folder);
    File::open(folder)?.sync_all()
}

/// The line after a text.
fn seal(text: &[u8]) -> String {
    SEAL.replace("00000000", &format!("{:08x}", crc32(text)))
}

/// The text of a file without its checksum, which must be right where it is there. What else follows the text is an error
/// for the reader of JSON.
fn unsealed(file: &[u8]) -> io::Result<&[u8]> {
    let end = file.len().saturating_sub(SEAL.len());
    let (text, line) = file.split_at(end);
    let digits = SEAL.find('0').map_or(0..0, |at| at..at + 8);
    let has_form = line.len() == SEAL.len()
        && (0..line.len()).all(|at| digits.contains(&at) || line[at] == SEAL.as_bytes()[at]);
    if !has_form {
        return Ok(file);
    }
    if line != seal(text).as_bytes() {
        let why = "the report is damaged: its checksum is another";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(text)
}

/// Disk space of a file with this length.
const fn space(length: u64) -> u64 {
    length.div_ceil(BLOCK) * BLOCK
}

impl Reports {
    /// Creates the folder if necessary, locks it, and reads which reports it has. Unfinished files of a crashed daemon are
    /// removed.
    ///
    /// # Errors
    /// When a step fails; [`io::ErrorKind::ResourceBusy`] when another process holds the folder.
    pub fn take(path: &Path, gid: Option<u32>, bounds: Bounds) -> io::Result<Self> {
        make(path, gid)?;
        let lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path.join(LOCK))?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock)
            .map_err(|_| io::Error::from(io::ErrorKind::ResourceBusy))?;
        let mut users: BTreeMap<u32, Part> = BTreeMap::new();
        for folder in fs::read_dir(path)?.filter_map(Result::ok) {
            let name = folder.file_name();
            let uid = name.to_str().and_then(|name| name.strip_prefix("uid="));
            let Some(uid) = uid.and_then(|uid| uid.parse().ok()) else {
                continue;
            };
            // The daemon creates no symbolic links: skip them.
            if !folder.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let part = users.entry(uid).or_default();
            for entry in fs::read_dir(folder.path())?.filter_map(Result::ok) {
                let name = entry.file_name();
                let Some(name) = name.to_str() else { continue };
                if name.starts_with('.') && name.ends_with(IN_PROGRESS) {
                    let _ = fs::remove_file(entry.path());
                } else if let (Some(id), Ok(metadata)) = (id_of(name), entry.metadata()) {
                    let bytes = space(metadata.len());
                    part.bytes += bytes;
                    part.reports.insert(id.to_owned(), bytes);
                }
            }
        }
        let mut reports = Self {
            path: path.to_owned(),
            gid,
            bounds,
            users,
            removed: 0,
            removed_ids: Vec::new(),
            _lock: lock,
        };
        reports.shrink(0, 0, &|uid| uid)?;
        reports.removed_ids = Vec::new();
        Ok(reports)
    }

    /// Writes a report; older ones of the user with the most make room, also where it cannot be written then. `share_of`
    /// names the user whose share a user uses.
    ///
    /// # Errors
    /// When it cannot be written, as on a full disk. No part of it stays.
    pub fn add(&mut self, report: &Report, share_of: &impl Fn(u32) -> u32) -> io::Result<()> {
        let (id, uid) = (&report.row.id, report.row.who.uid.unwrap_or(u32::MAX));
        if !is_id(id) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut text = serde_json::to_vec(report)?;
        text.extend(seal(&text).into_bytes());
        let bytes = space(text.len() as u64);
        self.shrink(bytes, 1, share_of)?;
        let folder = folder_of(&self.path, uid);
        if !folder.is_dir() {
            make(&folder, self.gid)?;
            sync(&self.path)?;
        }
        let part = folder.join(format!(".{PREFIX}{id}{IN_PROGRESS}"));
        let written = self
            .write(&part, &text)
            .and_then(|()| fs::rename(&part, folder.join(format!("{PREFIX}{id}{SUFFIX}"))))
            .and_then(|()| sync(&folder));
        if let Err(error) = written {
            let _ = fs::remove_file(&part);
            return Err(error);
        }
        let own = self.users.entry(uid).or_default();
        let before = own.reports.insert(id.clone(), bytes).unwrap_or(0);
        own.bytes = own.bytes + bytes - before;
        Ok(())
    }

    /// The reports that made room for others since the last call.
    pub fn take_removed(&mut self) -> Vec<String> {
        std::mem::take(&mut self.removed_ids)
    }

    /// Writes the reports in advance, in place of the last ones.
    ///
    /// # Errors
    /// When they cannot be written, as on a full disk. The last ones stay.
    pub fn keep_in_advance(&self, all: &InAdvance) -> io::Result<()> {
        let mut text = serde_json::to_vec(all)?;
        text.extend(seal(&text).into_bytes());
        let part = self.path.join(format!(".{LIVING}{IN_PROGRESS}"));
        let written = self
            .write(&part, &text)
            .and_then(|()| fs::rename(&part, self.path.join(LIVING)))
            .and_then(|()| sync(&self.path));
        if written.is_err() {
            let _ = fs::remove_file(&part);
        }
        written
    }

    /// The reports in advance that the daemon before left; none where it left no file.
    ///
    /// # Errors
    /// When they cannot be read, or are damaged.
    pub fn in_advance(&self) -> io::Result<InAdvance> {
        let file = match File::open(self.path.join(LIVING)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(InAdvance::default());
            }
            file => file?,
        };
        let mut text = Vec::new();
        file.take(LIVING_MAX).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(unsealed(&text)?)?)
    }

    /// Whether a report is there.
    #[must_use]
    pub fn has(&self, report: &Report) -> bool {
        let part = self.users.get(&report.row.who.uid.unwrap_or(u32::MAX));
        part.is_some_and(|part| part.reports.contains_key(&report.row.id))
    }

    fn write(&self, path: &Path, text: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o640)
            .open(path)?;
        // Set explicitly: the umask may hide the file from the group.
        file.set_permissions(fs::Permissions::from_mode(0o640))?;
        if self.gid.is_some() {
            fchown(&file, None, self.gid)?;
        }
        file.write_all(text)?;
        file.sync_all()
    }

    /// Removes reports until so many bytes and files more have room.
    fn shrink(&mut self, bytes: u64, files: u64, share_of: &impl Fn(u32) -> u32) -> io::Result<()> {
        loop {
            let (held, count) = self.usage();
            if held + bytes <= self.bounds.bytes && count + files <= self.bounds.files {
                break;
            }
            let by_bytes = held + bytes > self.bounds.bytes;
            let mut shares: BTreeMap<u32, u64> = BTreeMap::new();
            for (uid, part) in &self.users {
                let count = part.reports.len() as u64;
                *shares.entry(share_of(*uid)).or_default() +=
                    if by_bytes { part.bytes } else { count };
            }
            let richest = shares.iter().max_by_key(|(_, held)| **held);
            let Some((richest, _)) = richest else { break };
            let own = self.users.iter();
            let own = own.filter(|(uid, _)| share_of(**uid) == *richest);
            let oldest = own
                .filter_map(|(uid, part)| Some((part.reports.keys().next()?.clone(), *uid)))
                .min();
            let Some((id, uid)) = oldest else { break };
            let path = folder_of(&self.path, uid).join(format!("{PREFIX}{id}{SUFFIX}"));
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            if let Some(part) = self.users.get_mut(&uid) {
                part.bytes -= part.reports.remove(&id).unwrap_or(0);
                if part.reports.is_empty() {
                    self.users.remove(&uid);
                    let _ = fs::remove_dir(folder_of(&self.path, uid));
                }
            }
            self.removed += 1;
            self.removed_ids.push(id);
        }
        Ok(())
    }

    /// Disk space and number of the reports.
    #[must_use]
    pub fn usage(&self) -> (u64, u64) {
        self.users.values().fold((0, 0), |(bytes, files), part| {
            (bytes + part.bytes, files + part.reports.len() as u64)
        })
    }

    /// Reports removed since the start.
    #[must_use]
    pub const fn removed(&self) -> u64 {
        self.removed
    }

    /// Users and ids of the newest reports, the newest first. Where there are more than `most`, shares have equally many:
    /// `share_of` a user is whose space it uses.
    #[must_use]
    pub fn newest(&self, most: usize, share_of: &dyn Fn(u32) -> u32) -> Vec<(String, u32)> {
        let mut shares: BTreeMap<u32, BTreeSet<(&String, u32)>> = BTreeMap::new();
        for (uid, part) in &self.users {
            let own = shares.entry(share_of(*uid)).or_default();
            for id in part.reports.keys().rev().take(most) {
                own.insert((id, *uid));
            }
        }
        let mut newest = Vec::new();
        while newest.len() < most && !shares.is_empty() {
            let mut turn: Vec<_> = shares.values_mut().filter_map(BTreeSet::pop_last).collect();
            turn.sort_unstable();
            newest.extend(turn.into_iter().rev().take(most - newest.len()));
            shares.retain(|_, own| !own.is_empty());
        }
        newest.sort_unstable();
        let newest = newest.into_iter().rev();
        newest.map(|(id, uid)| (id.clone(), uid)).collect()
    }
}

/// Reads a report of a user.
///
/// # Errors
/// When there is none with this id, it cannot be read, or it is damaged.
pub fn read(folder: &Path, uid: u32, id: &str) -> io::Result<Report> {
    if !is_id(id) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let path = folder_of(folder, uid).join(format!("{PREFIX}{id}{SUFFIX}"));
    let mut text = Vec::new();
    File::open(path)?.take(REPORT_MAX).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(unsealed(&text)?)?)
}

#[cfg(test)]
mod tests;
