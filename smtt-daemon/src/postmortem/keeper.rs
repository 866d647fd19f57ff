//! Keeps the reports: in memory until they are on the disk, then on the disk only. A full disk delays, it loses nothing
//! until memory has no room either.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smtt_config::PostmortemSettings;
use smtt_machine::clock::boot_id;
use smtt_model::postmortem::{Deaths, InAdvance, Report, Row, Verdict};
use smtt_model::protocol::ListQuery;
use smtt_store::reports::{Bounds, IN_ADVANCE_BYTES, Reports, length, read};

use super::advance;
use crate::subordinate::ShareOwners;

/// Reports in memory: those that wait for the disk, or the last ones where there is no folder.
const WAITING: usize = 256;
/// Rows of the list.
const ROWS: usize = 1024;
/// Bytes of one answer with the list.
const ANSWER_BYTES: usize = 1 << 20;
/// Pause after a failed write.
const PAUSE: Duration = Duration::from_secs(5);
/// How long the writer sleeps before it checks whether the daemon is stopping.
const NAP: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
struct Kept {
    /// The newest last.
    rows: VecDeque<Row>,
    waiting: VecDeque<Arc<Report>>,
    /// Reports in advance that are to be written.
    in_advance: Option<InAdvance>,
    /// What the daemon before left, and whether its file had anything; `None` until that is read.
    left: Option<(Vec<Report>, bool)>,
    counts: BTreeMap<Verdict, u64>,
    lost: u64,
    /// Why reports cannot be written, and why those in advance cannot be read or written; empty where they can.
    failing: String,
    failing_in_advance: String,
}

/// See the module.
#[derive(Debug)]
pub struct Keeper {
    folder: Option<PathBuf>,
    /// Whose share a user's reports use.
    owners: Arc<ShareOwners>,
    kept: Mutex<Kept>,
    news: Condvar,
}

impl Keeper {
    /// Without reports. The folder is only read here.
    #[must_use]
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self {
            folder,
            owners: Arc::default(),
            kept: Mutex::default(),
            news: Condvar::new(),
        }
    }

    /// With the owners of subordinate ids.
    #[must_use]
    pub fn sharing(self, owners: Arc<ShareOwners>) -> Self {
        Self { owners, ..self }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a report in.
    pub fn add(&self, report: Report) {
        let verdict = report.row.verdict;
        *self.kept().counts.entry(verdict).or_default() += 1;
        self.take_in(report);
    }

    /// Takes a report in that a daemon has counted.
    fn take_in(&self, mut report: Report) {
        let mut kept = self.kept();
        // Two deaths of one process in one millisecond: a worker's id is used again at the earliest after all others.
        if kept.rows.iter().any(|row| row.id == report.row.id) {
            report.row.id.push_str("-2");
        }
        self.insert(&mut kept.rows, report.row.clone());
        if kept.waiting.len() >= WAITING {
            let given_up = self.remove_one(&mut kept.waiting, |report| report.row.who.uid);
            if let (Some(report), Some(_)) = (given_up, &self.folder) {
                kept.lost += 1;
                kept.rows.retain(|row| row.id != report.row.id);
            }
        }
        kept.waiting.push_back(Arc::new(report));
        drop(kept);
        self.news.notify_all();
    }

    /// Counts deaths that no report can say anything about.
    pub fn lose(&self, deaths: u64) {
        self.kept().lost += deaths;
    }

    /// What the daemon before left of executors that run, once; `None` until it is read, and where nothing is written.
    pub fn left(&self) -> Option<(Vec<Report>, bool)> {
        self.kept().left.as_mut().map(std::mem::take)
    }

    /// Whether reports wait for the disk.
    pub fn waits(&self) -> bool {
        !self.kept().waiting.is_empty()
    }

    /// Takes in the reports in advance, in place of the last ones.
    pub fn set_in_advance(&self, all: InAdvance) {
        self.kept().in_advance = Some(all);
        self.news.notify_all();
    }

    /// Whether a report about the end of the same process is there.
    pub fn has_end_of(&self, report: &Report) -> bool {
        let every_ms = u64::try_from(advance::EVERY.as_millis()).unwrap_or(u64::MAX);
        let kept = self.kept();
        kept.rows
            .iter()
            .any(|row| report.is_ended_by(row, every_ms))
    }

    /// Deaths since the start, by verdict.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<Verdict, u64> {
        self.kept().counts.clone()
    }

    /// Whether reports can be written, and the number of those that were given up; `None` where none are written.
    #[must_use]
    pub fn writing(&self) -> Option<(bool, u64)> {
        self.folder.as_ref()?;
        let kept = self.kept();
        let works = kept.failing.is_empty() && kept.failing_in_advance.is_empty();
        Some((works, kept.lost))
    }

    /// The list of deaths that a query selects, the newest first.
    #[must_use]
    pub fn list(&self, query: &ListQuery) -> Deaths {
        let kept = self.kept();
        let selected = kept.rows.iter().rev().filter(|row| selects(query, row));
        let (mut rows, mut bytes, mut left_out) = (Vec::new(), 0, 0);
        for row in selected.take(query.limit.unwrap_or(usize::MAX)) {
            bytes += row.answer_bytes();
            if bytes > ANSWER_BYTES {
                left_out += 1;
            } else {
                rows.push(row.clone());
            }
        }
        Deaths {
            rows,
            left_out,
            waiting: if self.folder.is_some() {
                kept.waiting.len() as u64
            } else {
                0
            },
            lost: kept.lost,
            failing: match kept.failing.is_empty() {
                true => kept.failing_in_advance.clone(),
                false => kept.failing.clone(),
            },
        }
    }

    /// The newest report that a query selects; its executor may also be the id of a report. Reads the disk.
    ///
    /// # Errors
    /// When the report cannot be read, or executors of several users claim to be the one that is asked for.
    pub fn find(&self, query: &ListQuery) -> io::Result<Option<Arc<Report>>> {
        let (row, waiting) = {
            let kept = self.kept();
            let by_id = kept
                .rows
                .iter()
                .find(|row| query.executor.as_ref() == Some(&row.id));
            let mut selected = kept.rows.iter().rev().filter(|row| selects(query, row));
            let newest = selected.next();
            if by_id.is_none()
                && query.executor.is_some()
                && selected.any(|row| newest.is_some_and(|newest| newest.who.uid != row.who.uid))
            {
                return Err(io::Error::other(
                    "executors of several users have this id: add --user, or name the report by its own id",
                ));
            }
            let Some(row) = by_id.or(newest).cloned() else {
                return Ok(None);
            };
            let waiting = kept.waiting.iter().find(|report| report.row.id == row.id);
            let waiting = waiting.cloned();
            (row, waiting)
        };
        if waiting.is_some() {
            return Ok(waiting);
        }
        let Some(folder) = &self.folder else {
            return Ok(None);
        };
        read(folder, row.who.uid.unwrap_or(u32::MAX), &row.id).map(|report| Some(Arc::new(report)))
    }

    /// What is to be written next, a report or those in advance; waits a moment for one.
    fn next(&self) -> (Option<Arc<Report>>, Option<InAdvance>) {
        let kept = self.kept();
        let idle = |kept: &mut Kept| kept.waiting.is_empty() && kept.in_advance.is_none();
        let (mut kept, _) = self
            .news
            .wait_timeout_while(kept, NAP, idle)
            .unwrap_or_else(PoisonError::into_inner);
        (kept.waiting.front().cloned(), kept.in_advance.take())
    }

    fn written(&self, report: &Arc<Report>) {
        let mut kept = self.kept();
        kept.failing.clear();
        kept.waiting.retain(|waiting| !Arc::ptr_eq(waiting, report));
    }

    /// The reports that wait for the disk, as many as have room beside those in advance.
    fn waiting(&self) -> Vec<Report> {
        let waiting: Vec<Arc<Report>> = self.kept().waiting.iter().cloned().collect();
        let mut room = IN_ADVANCE_BYTES;
        let fits = |report: &Arc<Report>| {
            let left = length(report)
                .ok()
                .and_then(|bytes| room.checked_sub(bytes));
            left.map(|left| room = left).is_some()
        };
        let waiting = waiting.into_iter().filter(fits);
        waiting.map(|report| (*report).clone()).collect()
    }

    fn failed(&self, error: &io::Error) {
        let text = format!("reports about dead executors cannot be written: {error}");
        say(&mut self.kept().failing, text);
    }

    fn failed_in_advance(&self, what: &str, error: &io::Error) {
        let text = format!("reports in advance about living executors cannot be {what}: {error}");
        say(&mut self.kept().failing_in_advance, text);
    }

    /// Reads once what the daemon before left.
    fn read_left(&self, reports: &Reports) {
        if self.kept().left.is_some() {
            return;
        }
        let before = match reports.in_advance() {
            Ok(before) => before,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
                ) =>
            {
                // Another version wrote them, or they are damaged.
                tracing::warn!(
                    "the executors that the daemon before watched are not known: {error}"
                );
                InAdvance::default()
            }
            // They may be readable later, and stay until then.
            Err(error) => return self.failed_in_advance("read", &error),
        };
        let has_any = !before.reports.is_empty() || !before.waiting.is_empty();
        for report in before.waiting {
            if !reports.has(&report) {
                self.take_in(report);
            }
        }
        let ids = (boot_id(), before.boot_id);
        let is_known = |report: &Report| self.has_end_of(report);
        let left = advance::left_behind(before.reports, (&ids.0, &ids.1), is_known);
        left.gone.into_iter().for_each(|report| self.add(report));
        let mut kept = self.kept();
        kept.failing_in_advance.clear();
        kept.left = Some((left.running, has_any));
    }

    /// Writes what is there to write; false where a report could not be written.
    fn turn(&self, reports: &mut Reports) -> bool {
        self.read_left(reports);
        let (report, in_advance) = self.next();
        if let Some(mut all) = in_advance {
            // Whose report is not written yet is not among the executors any more.
            all.waiting = self.waiting();
            match reports.keep_in_advance(&all) {
                Ok(()) => self.kept().failing_in_advance.clear(),
                Err(error) => self.failed_in_advance("written", &error),
            }
        }
        let Some(report) = report else {
            return true;
        };
        let added = reports.add(&report, &|uid| self.owners.share_of(uid));
        let removed = reports.take_removed();
        self.kept().rows.retain(|row| !removed.contains(&row.id));
        match &added {
            Ok(()) => self.written(&report),
            Err(error) => self.failed(error),
        }
        added.is_ok()
    }
}

impl Keeper {
    /// Keeps the rows in the order of their times, within their bound.
    fn insert(&self, rows: &mut VecDeque<Row>, mut row: Row) {
        row.cut();
        let at = rows.partition_point(|other| other.id <= row.id);
        rows.insert(at, row);
        if rows.len() > ROWS {
            self.remove_one(rows, |row| row.who.uid);
        }
    }

    /// Removes the oldest entry of the user whose share has the most: subordinate ids use that of their owner.
    fn remove_one<T>(&self, all: &mut VecDeque<T>, user: impl Fn(&T) -> Option<u32>) -> Option<T> {
        let share = |one: &T| user(one).map(|uid| self.owners.share_of(uid));
        let shares: Vec<Option<u32>> = all.iter().map(share).collect();
        let mut counts: BTreeMap<Option<u32>, usize> = BTreeMap::new();
        for of in &shares {
            *counts.entry(*of).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        let oldest = most.and_then(|(most, _)| shares.iter().position(|of| *of == most));
        all.remove(oldest?)
    }
}

/// Says once why something fails.
fn say(failing: &mut String, text: String) {
    if *failing != text {
        tracing::error!("{text}");
    }
    *failing = text;
}

fn selects(query: &ListQuery, row: &Row) -> bool {
    let is = |wanted: &Option<String>, has: &Option<String>| {
        wanted.as_deref().is_none_or(|wanted| {
            let has = has.as_deref();
            has.is_some_and(|has| smtt_model::glob::matches(wanted, has))
        })
    };
    (is(&query.app, &row.who.application_id) || is(&query.app, &row.application_name))
        && is(&query.executor, &row.who.executor_id)
        && (query.user.is_none() || query.user == row.who.uid)
}

/// Starts the writer, where there is a folder.
///
/// # Errors
/// When no thread can be made.
pub fn spawn(
    settings: PostmortemSettings,
    keeper: Arc<Keeper>,
    stopped: impl Fn() -> bool + Send + 'static,
) -> io::Result<()> {
    let Some(folder) = settings.folder.clone() else {
        return Ok(());
    };
    std::thread::Builder::new()
        .name("smtt-reports".into())
        .spawn(move || {
            let bounds = Bounds {
                bytes: settings.max_bytes,
                files: settings.max_files,
            };
            let pause = || {
                let naps = PAUSE.as_millis() / NAP.as_millis();
                for _ in 0..naps {
                    if stopped() {
                        return;
                    }
                    std::thread::sleep(NAP);
                }
            };
            let mut reports = loop {
                match Reports::take(&folder, settings.gid, bounds) {
                    Ok(reports) => break reports,
                    Err(error) => keeper.failed(&error),
                }
                pause();
                if stopped() {
                    return;
                }
            };
            load(&keeper, &reports, &folder);
            keeper.kept().failing.clear();
            while !stopped() {
                if !keeper.turn(&mut reports) {
                    pause();
                }
            }
        })
        .map(drop)
}

/// Lists the reports of earlier daemons.
fn load(keeper: &Keeper, reports: &Reports, folder: &std::path::Path) {
    let (mut unread, mut first) = (0, None);
    let share_of = |uid| keeper.owners.share_of(uid);
    for (id, uid) in reports.newest(ROWS, &share_of) {
        match read(folder, uid, &id) {
            Ok(report) => {
                keeper.insert(&mut keeper.kept().rows, report.row);
            }
            // Another version wrote it, or it is damaged.
            Err(error) => {
                unread += 1;
                first.get_or_insert_with(|| format!("{id} of user {uid}: {error}"));
            }
        }
    }
    if let Some(first) = first {
        tracing::warn!(
            "{unread} reports of deaths below {} cannot be read and are not listed, the first is {first}; remove their files",
            folder.display()
        );
    }
}

#[cfg(test)]
mod tests;
