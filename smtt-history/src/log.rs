//! Event logs as Spark writes them: one file, or a folder `eventlog_v2_*` of parts; and their lines, each bounded.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use crate::codec::{Codec, Place, SUFFIXES, Unpack, open_regular};
use crate::out::Times;

/// Suffix of a log that Spark still writes, or whose application died.
const IN_PROGRESS: &str = ".inprogress";
/// Prefix of a folder of parts.
pub(crate) const ROLLING: &str = "eventlog_v2_";

/// An event log.
#[derive(Clone, Debug)]
pub struct Log {
    /// Files in the order of their events.
    pub parts: Vec<PathBuf>,
    /// When the last part changed, in milliseconds since 1970.
    pub modified_ms: i64,
    /// Bytes of all parts.
    pub bytes: u64,
}

impl Log {
    /// The log at a path. Links are not followed.
    ///
    /// # Errors
    /// When there is none, it cannot be read, or a part is no regular file.
    pub fn at(path: &Path) -> io::Result<Self> {
        let parts = if fs::symlink_metadata(path)?.is_dir() {
            parts(path)?
        } else {
            vec![path.to_owned()]
        };
        let (mut modified_ms, mut bytes) = (0, 0);
        for part in &parts {
            let metadata = open_regular(part)?.metadata()?;
            bytes += metadata.len();
            let since = metadata.modified()?.duration_since(UNIX_EPOCH);
            // Of the last part: a compaction makes an earlier one later.
            modified_ms = since.map_or(0, |time| {
                i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
            });
        }
        Ok(Self {
            parts,
            modified_ms,
            bytes,
        })
    }

    /// The log of an application in Spark's folder of event logs, by name; nothing is listed. `name` is a safe name, and no
    /// name of a file.
    #[must_use]
    pub fn find(folder: &Path, name: &str) -> Option<PathBuf> {
        let is_there = |path: &PathBuf| {
            fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() || metadata.is_dir())
        };
        spellings(name).into_iter().find_map(|name| {
            let all = std::iter::once(format!("{ROLLING}{name}")).chain(names(&name));
            all.map(|name| folder.join(name)).find(is_there)
        })
    }
}

/// Names under which Spark may have logged an application. None where the name is that of a log's file or folder.
pub(crate) fn spellings(name: &str) -> Vec<String> {
    if name.starts_with(ROLLING) || name.ends_with(IN_PROGRESS) || Codec::of(name) != Codec::Plain {
        return Vec::new();
    }
    // Spark names logs so: a dot becomes an underscore, a capital a small letter.
    let mut all = vec![name.to_owned()];
    all.extend(Some(name.replace('.', "_").to_ascii_lowercase()).filter(|it| it != name));
    all
}

/// Names of a log that is one file, in the order in which they are looked up.
pub(crate) fn names(spelling: &str) -> Vec<String> {
    let suffixes = || SUFFIXES.iter().map(|(suffix, _)| *suffix);
    std::iter::once(spelling.to_owned())
        .chain(suffixes().map(|suffix| format!("{spelling}{suffix}")))
        .chain(std::iter::once(format!("{spelling}{IN_PROGRESS}")))
        .chain(suffixes().map(|suffix| format!("{spelling}{suffix}{IN_PROGRESS}")))
        .collect()
}

/// Parts of a folder.
fn parts(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        names.extend(entry?.file_name().into_string().ok());
    }
    let parts = in_order(names.into_iter());
    if parts.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("{} has no part events_*", folder.display()),
        ));
    }
    Ok(parts.into_iter().map(|name| folder.join(name)).collect())
}

/// Names `events_<number>_<name>` in the order of their numbers. A `.compact` part replaces those up to its number.
pub(crate) fn in_order(names: impl Iterator<Item = String>) -> Vec<String> {
    let number = |name: &str| -> Option<u64> {
        let rest = name.strip_prefix("events_")?;
        rest.split('_').next()?.parse().ok()
    };
    let numbered =
        names.filter_map(|name| Some((number(&name)?, name.ends_with(".compact"), name)));
    let mut found: Vec<(u64, bool, String)> = numbered.collect();
    found.sort();
    let compact = found.iter().rposition(|(_, is_compact, _)| *is_compact);
    let parts = found.split_off(compact.unwrap_or(0));
    parts.into_iter().map(|(.., name)| name).collect()
}

/// What limits the reading of a log, and what is kept of it.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of a line at most; longer lines are skipped and counted.
    pub line_bytes: usize,
    /// Bytes of all lines at most, after decompression.
    pub log_bytes: u64,
    /// Longest time of an import.
    pub time: Duration,
    /// How exact the nanoseconds of tasks are kept.
    pub times: Times,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            line_bytes: 64 << 20,
            log_bytes: 64 << 30,
            time: Duration::from_secs(3600),
            times: Times::Complete,
        }
    }
}

/// What follows next in a log.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// A line is in the buffer.
    Line,
    /// A line longer than the bound was skipped.
    TooLong,
    /// The part could not be read further: it is damaged, or ends within a compressed block.
    Damaged(String),
    /// The log is larger than the bound.
    TooLarge,
    /// All parts of the log are read.
    End,
}

/// A place in a log after which no line was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Index of the part.
    pub part: usize,
    /// Where in it.
    pub place: Place,
    /// Lines before it, and their bytes.
    pub number: u64,
    pub bytes: u64,
}

/// Lines of a log.
pub struct Lines {
    parts: std::vec::IntoIter<PathBuf>,
    from: Option<Box<dyn Unpack>>,
    /// The file of the current part.
    file: Option<File>,
    chunk: Vec<u8>,
    filled: usize,
    at: usize,
    bounds: Bounds,
    /// The place after the last line that has an end.
    pub(crate) mark: Mark,
    /// Whether what was read last is the end of the log, which may go on there. After [`Next::End`] it says nothing.
    pub(crate) is_open_end: bool,
    /// The parts that were read.
    pub(crate) seen: Vec<Seen>,
    /// Bytes of lines so far.
    pub bytes: u64,
    /// Number of the current line, from 1.
    pub number: u64,
    /// The current line.
    pub line: Vec<u8>,
}

impl Lines {
    /// Lines of a log's parts.
    #[must_use]
    pub fn new(log: &Log, bounds: Bounds) -> Self {
        Self::after(log, bounds, Mark::default())
    }

    /// Lines of a log after a place. [`Lines::seen`] begins with the part of that place.
    pub(crate) fn after(log: &Log, bounds: Bounds, mark: Mark) -> Self {
        let parts: Vec<PathBuf> = log.parts.iter().skip(mark.part).cloned().collect();
        Self {
            parts: parts.into_iter(),
            from: None,
            file: None,
            chunk: vec![0; 256 << 10],
            filled: 0,
            at: 0,
            bounds,
            mark,
            is_open_end: false,
            seen: Vec::new(),
            bytes: mark.bytes,
            number: mark.number,
            line: Vec::new(),
        }
    }

    /// Reads the next line into [`Lines::line`], without its end.
    pub fn read(&mut self) -> Next {
        self.line.clear();
        // One line with a long plan must not keep its memory for the rest of the log.
        if self.line.capacity() > 4 << 20 {
            self.line.shrink_to(256 << 10);
        }
        self.is_open_end = false;
        let (mut is_long, mut any) = (false, false);
        loop {
            if self.from.is_none() {
                match self.open() {
                    None => {}
                    Some(next) => return next,
                }
            }
            if self.at == self.filled {
                let Some(from) = &mut self.from else { continue };
                match from.read(&mut self.chunk) {
                    Ok(0) => {
                        self.leave();
                        if any {
                            self.number += 1;
                            return if is_long { Next::TooLong } else { Next::Line };
                        }
                        continue;
                    }
                    Ok(some) => (self.at, self.filled) = (0, some),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => {
                        self.leave();
                        self.number += u64::from(any);
                        return Next::Damaged(error.to_string());
                    }
                }
            }
            let rest = &self.chunk[self.at..self.filled];
            let end = memchr::memchr(b'\n', rest);
            let some = &rest[..end.unwrap_or(rest.len())];
            self.bytes += some.len() as u64 + u64::from(end.is_some());
            if self.bytes > self.bounds.log_bytes {
                return Next::TooLarge;
            }
            any = true;
            if is_long || self.line.len() + some.len() > self.bounds.line_bytes {
                is_long = true;
                self.line = Vec::new();
            } else {
                self.line.extend_from_slice(some);
            }
            self.at += some.len() + usize::from(end.is_some());
            if end.is_some() {
                self.number += 1;
                self.set_mark();
                return if is_long { Next::TooLong } else { Next::Line };
            }
        }
    }

    /// All up to here was read.
    fn set_mark(&mut self) {
        if let Some(from) = &self.from {
            self.mark.place = from.place();
            self.mark.place.skip += self.at as u64;
        }
        (self.mark.number, self.mark.bytes) = (self.number, self.bytes);
    }

    fn leave(&mut self) {
        self.from = None;
        self.is_open_end = self.parts.len() == 0;
        let seen = self
            .file
            .take()
            .map(|file| Seen::of(&file, self.is_open_end));
        self.seen.push(seen.unwrap_or_default());
    }

    fn open(&mut self) -> Option<Next> {
        let Some(part) = self.parts.next() else {
            return Some(Next::End);
        };
        (self.at, self.filled) = (0, 0);
        // A part that follows another one: all of that was read.
        if !self.seen.is_empty() {
            self.mark.part += 1;
            self.mark.place = Place::default();
            (self.mark.number, self.mark.bytes) = (self.number, self.bytes);
        }
        let name = part
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let opened = open_regular(&part).and_then(|file| {
            self.file = Some(file.try_clone()?);
            Codec::of_file(name, &file).read_from(file, self.mark.place)
        });
        match opened {
            Ok(from) => {
                self.from = Some(from);
                None
            }
            Err(error) => {
                self.leave();
                Some(Next::Damaged(error.to_string()))
            }
        }
    }
}

/// Bytes before the end of what was read that a part must still have.
const LAST_BYTES: u64 = 4096;

/// The file of a part, as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Device and inode. An inode is never 0.
    file: (u64, u64),
    /// Bytes that were read, as they are in the file.
    bytes: u64,
    /// When it was changed last.
    changed: (i64, i64),
    /// The last of these bytes, of a part that may grow.
    last: Vec<u8>,
}

impl Seen {
    /// The default, which is no file, where it cannot be read.
    fn of(file: &File, grows: bool) -> Self {
        let seen = || {
            let metadata = file.metadata()?;
            let mut file = file;
            // The position is that of the reader, too.
            let bytes = file.stream_position()?;
            Ok::<_, io::Error>(Self {
                file: (metadata.dev(), metadata.ino()),
                bytes,
                changed: (metadata.mtime(), metadata.mtime_nsec()),
                last: last_bytes(file, if grows { bytes } else { 0 })?,
            })
        };
        seen().unwrap_or_default()
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.last.len()
    }

    /// Whether both are of one file.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        self.file == other.file && self.file.1 != 0
    }

    /// Whether a part has what was read. Only one that `grows` may have more.
    fn is_in(&self, part: &Path, grows: bool) -> bool {
        let is_same = || {
            let file = open_regular(part)?;
            let metadata = file.metadata()?;
            let is_same = (metadata.dev(), metadata.ino()) == self.file
                && if metadata.len() == self.bytes {
                    (metadata.mtime(), metadata.mtime_nsec()) == self.changed
                } else {
                    grows && metadata.len() > self.bytes
                };
            Ok::<_, io::Error>(is_same && (!grows || last_bytes(&file, self.bytes)? == self.last))
        };
        is_same().unwrap_or(false)
    }

    /// Whether a log begins with the parts that were read, and only the last of them has grown.
    pub(crate) fn are_in(all: &[Self], log: &Log) -> bool {
        let is_in =
            |(at, (seen, part)): (usize, (&Self, &PathBuf))| seen.is_in(part, at + 1 == all.len());
        log.parts.len() >= all.len() && all.iter().zip(&log.parts).enumerate().all(is_in)
    }
}

/// The last of a file's first bytes.
fn last_bytes(file: &File, bytes: u64) -> io::Result<Vec<u8>> {
    let mut last = vec![0; bytes.min(LAST_BYTES) as usize];
    file.read_exact_at(&mut last, bytes - bytes.min(LAST_BYTES))?;
    Ok(last)
}

#[cfg(test)]
mod tests;
