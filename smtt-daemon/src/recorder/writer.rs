//! The writer's thread: records -> segments, rotated by time and size, within bounds of memory and disk.
//!
//! A segment that cannot be written or finished is given up: its records are a named loss, the state has the reason,
//! and the folder is retried every [`RETRY`]. Records that arrive until then are lost for the same cause, so that
//! memory stays bounded and the figures add up.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use smtt_config::TraceSettings;
use smtt_machine::clock::now_unix_ns;
use smtt_store::folder::{Folder, segment_name};
use smtt_store::read::ParquetError;
use smtt_store::record::{Origin, Record};
use smtt_store::segment::{Form, Segment};

use super::counts::Ledger;
use crate::subordinate::ShareOwners;

/// Records of one row group at most.
const GROUP: usize = 16_384;
/// Records that wait for their row group at most, in all segments together.
const WAITING: usize = 32_768;
/// Most open segments; the oldest is finished early to open another.
const OPEN: usize = 64;
/// Time between retries of a folder that failed.
pub const RETRY: Duration = Duration::from_secs(5);
/// Time between checks for segments that are due.
const LOOK: Duration = Duration::from_millis(250);

/// A segment and what waits to be written to it.
struct Open {
    source: Arc<Origin>,
    began: Instant,
    waiting: Vec<Record>,
    segment: Option<Segment>,
}

impl Open {
    fn records(&self) -> u64 {
        self.waiting.len() as u64 + self.segment.as_ref().map_or(0, Segment::records)
    }

    fn bytes(&self) -> u64 {
        self.segment.as_ref().map_or(0, Segment::bytes)
    }
}

/// Whether segments can be written.
enum Disk {
    Taken(Folder),
    Failed { cause: &'static str, again: Instant },
}

/// See the module.
pub struct Writer {
    settings: TraceSettings,
    owners: Arc<ShareOwners>,
    ledger: Arc<Ledger>,
    form: Form,
    disk: Disk,
    open: BTreeMap<PathBuf, Open>,
    waiting: usize,
    number: u64,
    retry: Duration,
}

/// Why a segment was given up: the cause of the loss, and the text of the error.
fn reason(error: &ParquetError) -> (&'static str, String) {
    let io = error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>());
    let cause = match io.map(io::Error::kind) {
        Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => "disk_full",
        Some(io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied) => {
            "folder_not_writable"
        }
        Some(io::ErrorKind::NotFound) => "folder_removed",
        Some(io::ErrorKind::ResourceBusy) => "folder_in_use",
        _ => "write_failed",
    };
    (
        cause,
        io.map_or_else(|| error.to_string(), io::Error::to_string),
    )
}

/// What the administrator can do about a cause.
fn remedy(cause: &str) -> &'static str {
    match cause {
        "disk_full" => "make room, or lower [trace] max_bytes",
        "folder_not_writable" => "make the folder writable for the daemon",
        "folder_removed" => "the daemon makes it again as soon as it can",
        "folder_in_use" => "another smtt-daemon writes there: give each its own [trace] folder",
        _ => "check the file system",
    }
}

impl Writer {
    /// A writer that has opened its folder, or failed to and will retry.
    ///
    /// # Errors
    /// When the form of segments is not valid, which a test rules out.
    pub fn new(
        settings: TraceSettings,
        ledger: Arc<Ledger>,
        owners: Arc<ShareOwners>,
    ) -> Result<Self, ParquetError> {
        let mut writer = Self {
            settings,
            owners,
            ledger,
            form: Form::new()?,
            disk: Disk::Failed {
                cause: "folder_not_tried",
                again: Instant::now(),
            },
            open: BTreeMap::new(),
            waiting: 0,
            number: 0,
            retry: RETRY,
        };
        writer.try_folder();
        Ok(writer)
    }

    /// As [`Writer::new`], with another time between retries.
    #[cfg(test)]
    #[must_use]
    pub const fn retry_every(mut self, retry: Duration) -> Self {
        self.retry = retry;
        self
    }

    /// Writes the batches of the queue until its sender is dropped, then finishes every segment.
    pub fn run(mut self, records: &Receiver<Vec<Record>>) {
        loop {
            match records.recv_timeout(LOOK.min(self.settings.segment_time)) {
                Ok(batch) => self.take_in(batch),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.rotate();
        }
        self.finish_all();
    }

    /// Finishes every segment.
    pub fn finish_all(&mut self) {
        let all: Vec<PathBuf> = self.open.keys().cloned().collect();
        for partition in all {
            self.finish(&partition);
        }
    }

    /// Adds records to their segments.
    pub fn take_in(&mut self, batch: Vec<Record>) {
        let records = batch.len() as u64;
        self.ledger.taken(&batch);
        {
            let mut status = self.ledger.lock();
            status.counts.queued = status.counts.queued.saturating_sub(records);
            match self.disk {
                Disk::Taken(_) => status.counts.held += records,
                Disk::Failed { cause, .. } => {
                    status.counts.lose(cause, records);
                    return;
                }
            }
        }
        for record in batch {
            if !self.open.contains_key(&record.source.partition) {
                self.make_room();
                let open = Open {
                    source: Arc::clone(&record.source),
                    began: Instant::now(),
                    waiting: Vec::new(),
                    segment: None,
                };
                self.open.insert(record.source.partition.clone(), open);
            }
            if let Some(open) = self.open.get_mut(&record.source.partition) {
                open.waiting.push(record);
                self.waiting += 1;
            }
        }
        // A batch is small against a row group: one check after each is enough.
        let full: Vec<PathBuf> = self
            .open
            .iter()
            .filter(|(_, open)| open.waiting.len() >= GROUP)
            .map(|(partition, _)| partition.clone())
            .collect();
        for partition in full {
            self.flush(&partition);
        }
        while self.waiting > WAITING {
            let largest = self.open.iter().max_by_key(|(_, open)| open.waiting.len());
            let Some(largest) = largest.map(|(partition, _)| partition.clone()) else {
                break;
            };
            self.flush(&largest);
        }
    }

    /// Finishes segments that are due, and retries a folder that failed.
    pub fn rotate(&mut self) {
        if let Disk::Failed { again, .. } = self.disk
            && Instant::now() >= again
        {
            self.try_folder();
        }
        let due: Vec<PathBuf> = self
            .open
            .iter()
            .filter(|(_, open)| {
                open.began.elapsed() >= self.settings.segment_time
                    || open.bytes() >= self.settings.segment_bytes
            })
            .map(|(partition, _)| partition.clone())
            .collect();
        for partition in due {
            self.finish(&partition);
        }
    }

    /// Finishes the oldest segment when there is no room for another.
    fn make_room(&mut self) {
        if self.open.len() >= OPEN
            && let Some(oldest) = self.open.iter().min_by_key(|(_, open)| open.began)
        {
            let oldest = oldest.0.clone();
            self.finish(&oldest);
        }
    }

    /// Writes the waiting records as one row group.
    fn flush(&mut self, partition: &PathBuf) {
        let Some(open) = self.open.get_mut(partition) else {
            return;
        };
        let waiting = std::mem::take(&mut open.waiting);
        self.waiting -= waiting.len();
        if waiting.is_empty() {
            return;
        }
        let written = match &mut self.disk {
            Disk::Taken(folder) => (|| {
                let segment = match &mut open.segment {
                    Some(segment) => segment,
                    none => {
                        self.number += 1;
                        let path = folder.partition(&open.source.partition)?;
                        let name = segment_name(
                            now_unix_ns() / 1_000_000,
                            std::process::id(),
                            self.number,
                        );
                        none.insert(Segment::create(
                            &self.form,
                            &open.source,
                            &path,
                            &name,
                            folder.gid(),
                        )?)
                    }
                };
                segment.write(&waiting)
            })(),
            Disk::Failed { cause, .. } => {
                let cause = *cause;
                self.lose(cause, waiting.len() as u64);
                return;
            }
        };
        match written {
            Ok(()) => self.stay_within(),
            Err(error) => {
                let cause = self.failed(&error);
                self.lose(cause, waiting.len() as u64);
            }
        }
    }

    /// Writes the waiting records and gives the segment its final name.
    fn finish(&mut self, partition: &PathBuf) {
        self.flush(partition);
        let Some(open) = self.open.remove(partition) else {
            return;
        };
        let records = open.records();
        let Some(segment) = open.segment else {
            return;
        };
        let finished = match segment.finish() {
            Ok(finished) => finished,
            Err(error) => {
                let cause = self.failed(&error);
                self.lose(cause, records);
                return;
            }
        };
        let mut disk_bytes = None;
        if let (Disk::Taken(folder), Some(finished)) = (&mut self.disk, &finished) {
            folder.finished(&finished.path);
            disk_bytes = Some(folder.usage().bytes);
        }
        {
            let mut status = self.ledger.lock();
            let counts = &mut status.counts;
            counts.held = counts.held.saturating_sub(records);
            counts.written += records;
            counts.segments += 1;
            counts.disk_bytes = disk_bytes.unwrap_or(counts.disk_bytes);
        }
        self.stay_within();
    }

    /// Counts records of a segment as lost.
    fn lose(&self, cause: &'static str, records: u64) {
        let mut status = self.ledger.lock();
        status.counts.held = status.counts.held.saturating_sub(records);
        status.counts.lose(cause, records);
    }

    /// Keeps the folder within its bytes and files: the oldest finished segments of the user with the most go, where open
    /// segments count for their own user.
    fn stay_within(&mut self) {
        let bound = self.settings.max_bytes;
        let mut open: BTreeMap<Option<u32>, u64> = BTreeMap::new();
        for own in self.open.values() {
            *open.entry(own.source.uid).or_default() += own.bytes();
        }
        if open.values().sum::<u64>() > bound / 2 {
            self.finish_largest(|_| true);
            return;
        }
        let Disk::Taken(folder) = &mut self.disk else {
            return;
        };
        let owners = Arc::clone(&self.owners);
        let share_of = |uid| owners.share_of(uid);
        match folder.shrink(bound, self.settings.max_files, &open, share_of) {
            Ok(shrunk) => {
                let disk_bytes = folder.usage().bytes;
                {
                    let mut status = self.ledger.lock();
                    status.counts.segments_removed += shrunk.removed;
                    status.counts.disk_bytes = disk_bytes;
                }
                if let Some(share) = shrunk.finish {
                    self.finish_largest(|open| open.source.uid.map(share_of) == share);
                }
            }
            Err(error) => {
                self.failed(&error.into());
            }
        }
    }

    /// Finishes the largest open segment of those that `of` selects, and shrinks the folder then.
    fn finish_largest(&mut self, of: impl Fn(&Open) -> bool) {
        let written = self
            .open
            .iter()
            .filter(|(_, open)| open.bytes() > 0 && of(open));
        let largest = written.max_by_key(|(_, open)| open.bytes());
        if let Some((largest, _)) = largest {
            let largest = largest.clone();
            self.finish(&largest);
        }
    }

    /// Opens and locks the folder if possible.
    fn try_folder(&mut self) {
        match Folder::take(&self.settings.folder, self.settings.gid) {
            Ok((folder, removed)) => {
                let mut status = self.ledger.lock();
                status.counts.disk_bytes = folder.usage().bytes;
                status.counts.leftovers_removed += removed;
                let folder_path = self.settings.folder.display();
                if removed > 0 {
                    tracing::warn!(
                        "{removed} unfinished trace segments of an earlier crash are removed from {folder_path}"
                    );
                }
                if !status.failing.is_empty() {
                    tracing::info!("trace records are written to {folder_path} again");
                    status.failing.clear();
                }
                drop(status);
                self.disk = Disk::Taken(folder);
                // The bound may be lower than at the last start.
                self.stay_within();
            }
            Err(error) => {
                self.failed(&error.into());
            }
        }
    }

    /// Logs once why nothing can be written, and schedules the retry. Returns the cause of the loss.
    fn failed(&mut self, error: &ParquetError) -> &'static str {
        let (cause, text) = reason(error);
        let logged = matches!(self.disk, Disk::Failed { cause: before, .. } if before == cause);
        let message = format!(
            "trace records cannot be written to {}: {text}: {}",
            self.settings.folder.display(),
            remedy(cause)
        );
        if !logged {
            tracing::error!("{message}");
        }
        // Drop the folder and open it again later: the path may now name another folder than the locked one. Open
        // segments must not be left in it.
        self.disk = Disk::Failed {
            cause,
            again: Instant::now() + self.retry,
        };
        let given_up: u64 = self.open.values().map(Open::records).sum();
        self.open.clear();
        self.waiting = 0;
        let mut status = self.ledger.lock();
        status.failing = message;
        status.counts.held = status.counts.held.saturating_sub(given_up);
        status.counts.lose(cause, given_up);
        cause
    }
}
