//! Functions of tasks as tracks of their own, below the cores: one for each thread that worked for a core's task, and one
//! for the pauses of its collector.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde_json::json;
use smtt_model::rows::lane_of;

use super::{Trace, us};
use crate::functions::Span;
use crate::timeline::model::{Model, Task};

/// Thread of the first track of functions.
const FUNCTIONS: usize = 2_000_001;
/// Tracks of a core: the task's own thread and its helpers.
const TRACKS: usize = 8;
/// Thread of the first track of Python workers.
const WORKERS: usize = 4_000_001;
/// Thread of the first track of pauses.
const PAUSES: usize = 8_000_001;

/// Kinds of tracks, in the order of the lanes of a task's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// The task's own thread and its helpers.
    Threads,
    Workers,
    Pauses,
}

impl Kind {
    fn of(span: &Span) -> Self {
        match lane_of(&span.row.thread) {
            0 | 1 => Self::Threads,
            2 => Self::Workers,
            _ => Self::Pauses,
        }
    }
}

/// Tracks that have slices: the process, the kind, the core and the number.
#[derive(Debug, Default)]
pub struct Tracks(BTreeSet<(usize, Kind, usize, usize)>);

/// Place of the span's lane, and id of its thread or process.
fn thread_of(span: &Span) -> (u8, u32) {
    (lane_of(&span.row.thread), span.row.tid)
}

/// Number of a track in the trace.
fn tid(kind: Kind, core: usize, track: usize) -> usize {
    let first = match kind {
        Kind::Threads => FUNCTIONS,
        Kind::Workers => WORKERS,
        Kind::Pauses => PAUSES,
    };
    first + core * TRACKS + track
}

/// The spans of one thread as begins and ends in microseconds, each within `window` and within the one before that has not
/// ended: clocks of two machines differ, and a worker's file may say anything.
fn nested(spans: &[&Span], (from, to): (i64, i64), offset: i64) -> Vec<(i64, i64)> {
    let mut open: Vec<(i64, i64)> = Vec::new();
    let mut last = from;
    let place = |span: &&Span| {
        let begin = begin_ns(span) / 1000 + offset;
        let end = begin_ns(span).saturating_add_unsigned(span.row.duration_ns) / 1000 + offset;
        let begin = begin.clamp(last, to);
        last = begin;
        while open.last().is_some_and(|(_, until)| *until <= begin) {
            open.pop();
        }
        let until = open.last().map_or(to, |(_, until)| *until);
        let slice = (begin, end.clamp(begin, until));
        open.push(slice);
        slice
    };
    spans.iter().map(place).collect()
}

/// Begin by the worker's clock in microseconds since 1970, time from the task's begin, and duration.
pub(super) type Times = (Option<i64>, u64, u64);

fn begin_ns(span: &Span) -> i64 {
    since_begin(span.row.begin_ns)
}

/// Time from the task's begin, small enough to add a length.
pub(super) fn since_begin(ns: u64) -> i64 {
    i64::try_from(ns).map_or(i64::MAX / 4, |begin| begin.min(i64::MAX / 4))
}

/// When a span was.
pub(super) fn times(span: &Span) -> Times {
    (span.begin_unix_us, span.row.begin_ns, span.row.duration_ns)
}

/// A task's begin and end by the driver's clock, and where its begin on its worker is: by the worker's clock, moved into
/// that time. In microseconds since the model's start.
pub(super) type Place = ((i64, i64), i64);

/// The place of a task; `all` are the times of what its worker tells of it.
pub(super) fn place(model: &Model, task: &Task, all: impl Iterator<Item = Times> + Clone) -> Place {
    let (from, to) = (us(task.launch), us(task.end()));
    let said = all.clone().find_map(|(unix_us, begin_ns, _)| {
        Some(
            unix_us?
                .saturating_sub(us(model.start))
                .saturating_sub(since_begin(begin_ns) / 1000),
        )
    });
    let ends = all.map(|(_, begin_ns, duration_ns)| {
        let end = since_begin(begin_ns).saturating_add_unsigned(duration_ns.min(1 << 60));
        end / 1000
    });
    let length = ends.max().unwrap_or(0);
    let last = to.saturating_sub(length).max(from);
    ((from, to), said.unwrap_or(from).clamp(from, last))
}

impl Tracks {
    /// Writes the functions of a task that ran on a core of the process `pid`.
    pub fn task<W: Write>(
        &mut self,
        trace: &mut Trace<W>,
        (window, offset): Place,
        (pid, core): (usize, usize),
        spans: &[Span],
    ) -> io::Result<()> {
        let mut threads: Vec<_> = spans.iter().map(thread_of).collect();
        threads.sort_unstable();
        threads.dedup();
        let has_own = threads.first().is_some_and(|(lane, _)| *lane == 0);
        // The next track of each kind.
        let mut next = [usize::from(!has_own), 0, 0];
        for thread in &threads {
            let of_thread = |span: &&Span| thread_of(span) == *thread;
            let mut all: Vec<&Span> = spans.iter().filter(of_thread).collect();
            let Some(kind) = all.first().map(|span| Kind::of(span)) else {
                continue;
            };
            let track = next[kind as usize];
            if track == TRACKS {
                continue;
            }
            next[kind as usize] += 1;
            all.sort_by_key(|it| (it.row.begin_ns, u64::MAX - it.row.duration_ns));
            self.0.insert((pid, kind, core, track));
            let tid = tid(kind, core, track);
            for (span, (begin, end)) in all.iter().zip(nested(&all, window, offset)) {
                let row = &span.row;
                let name = row.function.as_deref().unwrap_or(&row.activity);
                let arguments = json!({"task": span.task, "activity": row.activity, "own_ns": row.own_ns, "rdd": row.rdd_id,
                    "begin_ns": row.begin_ns, "duration_ns": row.duration_ns});
                let length = (end - begin).unsigned_abs();
                let category = ("function", name);
                trace.slice((pid, tid), (begin, length), category, &arguments)?;
            }
        }
        Ok(())
    }

    /// Names the tracks.
    pub fn names<W: Write>(self, trace: &mut Trace<W>) -> io::Result<()> {
        for (pid, kind, core, track) in self.0 {
            let name = match (kind, track) {
                (Kind::Workers, number) => format!("Python worker {} of core {core}", number + 1),
                (Kind::Pauses, _) => format!("collections during tasks of core {core}"),
                (Kind::Threads, 0) => format!("functions on core {core}"),
                (Kind::Threads, helper) => format!("functions on core {core}, helper {helper}"),
            };
            trace.name(pid, Some(tid(kind, core, track)), &name)?;
        }
        Ok(())
    }
}
