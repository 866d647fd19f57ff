//! Requests of tasks for shuffle blocks of other executors.
//!
//! A task keeps its first [`FETCHES_PER_TASK`] requests; sums count all of them. Those of all tasks of an executor have a
//! bound of their own, beside that of the spans, and every byte is asked for.

use std::cmp::Reverse;

use super::Outcome;
use super::bytes::{Caps, Search, vec_bytes};
use super::functions::Functions;
use super::task::{Task, Tasks};
use crate::decode::Fetched;
use crate::sort::small;

/// Requests that a task keeps.
pub const FETCHES_PER_TASK: usize = 1_000;
/// Requests that the tasks of an executor keep together; beyond it those of tasks that ended first go.
pub const FETCHES_PER_EXECUTOR: usize = 32_768;
/// Executors and services that an executor has asked, each with its name once.
const SOURCES: usize = 4_096;
/// A source that has no place.
const NO_SOURCE: u16 = u16::MAX;

/// A request of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Begin, in nanoseconds since boot.
    pub begin_ns: u64,
    /// Time until its last block, or until the task's end.
    pub duration_ns: u64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Requested blocks.
    pub blocks: u32,
    /// Blocks that arrived.
    pub arrived: u32,
    /// Blocks that failed.
    pub failed: u32,
    source: u16,
}

/// All requests of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Requests.
    pub requests: u64,
    /// Requested blocks.
    pub blocks: u64,
    /// Blocks that arrived.
    pub arrived: u64,
    /// Blocks that failed.
    pub failed: u64,
    /// Bytes that arrived.
    pub bytes: u64,
}

impl Sum {
    const fn add(&mut self, more: &Fetched) {
        self.requests = self.requests.saturating_add(more.requests);
        self.blocks = self.blocks.saturating_add(more.blocks);
        self.arrived = self.arrived.saturating_add(more.arrived_blocks);
        self.failed = self.failed.saturating_add(more.failed_blocks);
        self.bytes = self.bytes.saturating_add(more.arrived_bytes);
    }
}

/// The requests of one task.
#[derive(Clone, Debug, Default)]
pub struct Fetches {
    kept: Vec<Request>,
    /// All requests, also those that are not kept.
    pub sum: Sum,
}

impl Fetches {
    /// The kept requests, in the order of their ends.
    #[must_use]
    pub fn kept(&self) -> &[Request] {
        &self.kept
    }

    /// Requests that are not kept.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.sum.requests.saturating_sub(self.kept.len() as u64)
    }

    pub(super) fn bytes(&self) -> usize {
        vec_bytes(&self.kept)
    }
}

/// Host and port, and Spark's id, of one source.
type Source = (String, String);

/// Sources, each once.
#[derive(Debug, Default)]
struct Sources {
    all: Vec<Source>,
    /// Their places, in the order of the names.
    sorted: Vec<u16>,
    /// Bytes of the names: asked for at each event.
    texts: usize,
}

/// Entries for which a vector grows when it gets one more.
fn growth<T>(of: &Vec<T>) -> usize {
    if of.len() == of.capacity() {
        of.len().max(4) * size_of::<T>()
    } else {
        0
    }
}

impl Sources {
    fn number(&mut self, fetched: &Fetched, caps: &Caps) -> u16 {
        let wanted = (fetched.address.as_str(), fetched.executor_id.as_str());
        let named = |at: &u16| {
            let source = self.all.get(usize::from(*at));
            let name = source.map(|(address, executor)| (address.as_str(), executor.as_str()));
            name.unwrap_or_default().cmp(&wanted)
        };
        let place = match self.sorted.binary_search_by(named) {
            Ok(place) => return self.sorted.get(place).copied().unwrap_or(NO_SOURCE),
            Err(place) => place,
        };
        let texts = wanted.0.len() + wanted.1.len();
        let bytes = growth(&self.all) + growth(&self.sorted) + texts;
        let len = self.all.len();
        if len >= SOURCES || !caps.admit(bytes) {
            return NO_SOURCE;
        }
        self.all.push((wanted.0.to_owned(), wanted.1.to_owned()));
        self.sorted.insert(place, len as u16);
        self.texts += texts;
        len as u16
    }

    fn bytes(&self) -> usize {
        vec_bytes(&self.all) + vec_bytes(&self.sorted) + self.texts
    }
}

/// The requests of an executor's tasks, beside those in their rows.
#[derive(Debug, Default)]
pub(super) struct AllFetches {
    sources: Sources,
    /// Requests that the tasks keep, and those of tasks that were folded since the last search.
    kept: usize,
    search: Search,
}

impl AllFetches {
    pub(super) fn bytes(&self) -> usize {
        self.sources.bytes()
    }
}

impl Tasks {
    /// Host and port, and Spark's id, of whom a request asked; `None` where they had no place.
    #[must_use]
    pub fn source(&self, request: &Request) -> Option<(&str, &str)> {
        let source = self.fetches.sources.all.get(usize::from(request.source))?;
        Some((&source.0, &source.1))
    }

    /// A request ended at `now_ns`, or a sum of several was reported. Those of tasks that are not known have no place;
    /// those that find no bytes count nowhere but as refused.
    pub(super) fn fetched(&mut self, fetched: &Fetched, now_ns: u64, caps: &Caps) -> Outcome {
        let is_one = fetched.requests == 1;
        let has_place = is_one && self.has_place_for_request();
        let Some(mut task) = self.tasks.get_mut(&fetched.task_attempt_id) else {
            return Outcome::Applied;
        };
        if task.functions.is_none() {
            if !caps.admit(size_of::<Functions>()) {
                return Outcome::OverCap("bytes");
            }
            task.functions = Some(Box::default());
        }
        let Some(functions) = &mut task.functions else {
            return Outcome::Applied;
        };
        let fetches = &mut functions.fetches;
        if has_place && fetches.kept.len() < FETCHES_PER_TASK {
            if !caps.admit(growth(&fetches.kept)) {
                return Outcome::OverCap("bytes");
            }
            let small = |blocks: u64| u32::try_from(blocks).unwrap_or(u32::MAX);
            fetches.kept.push(Request {
                begin_ns: now_ns.saturating_sub(fetched.duration_ns),
                duration_ns: fetched.duration_ns,
                bytes: fetched.arrived_bytes,
                blocks: small(fetched.blocks),
                arrived: small(fetched.arrived_blocks),
                failed: small(fetched.failed_blocks),
                source: self.fetches.sources.number(fetched, caps),
            });
            self.fetches.kept += 1;
        }
        fetches.sum.add(fetched);
        Outcome::Applied
    }

    /// Whether the tasks may keep one more request; those of tasks that ended first make room.
    fn has_place_for_request(&mut self) -> bool {
        if self.fetches.kept >= FETCHES_PER_EXECUTOR && self.fetches.search.may() {
            let len = self.tasks.len();
            let before = self.fetches.kept;
            self.forget_requests();
            let freed = before.saturating_sub(self.fetches.kept);
            self.fetches.search.done(len, freed);
        }
        self.fetches.kept < FETCHES_PER_EXECUTOR
    }

    /// Counts the kept requests anew, and lets go of the older half of those whose tasks have ended.
    fn forget_requests(&mut self) {
        let count = |task: &Task| {
            let functions = task.functions.as_ref();
            functions.map_or(0, |it| it.fetches.kept.len())
        };
        let mut left: usize = self.tasks.values().map(count).sum();
        let ended = self.tasks.iter().filter(|(_, task)| task.state.ended());
        let mut ended: Vec<(Reverse<u64>, u64, usize)> = ended
            .map(|(id, task)| (Reverse(task.end_ns.unwrap_or(0)), *id, count(task)))
            .filter(|(_, _, requests)| *requests > 0)
            .collect();
        small::sort_by(&mut ended, Ord::cmp);
        while left > FETCHES_PER_EXECUTOR / 2
            && let Some((_, id, requests)) = ended.pop()
        {
            if let Some(mut task) = self.tasks.get_mut(&id)
                && let Some(functions) = &mut task.functions
            {
                functions.fetches.kept = Vec::new();
                left -= requests;
            }
        }
        self.fetches.kept = left;
    }
}
