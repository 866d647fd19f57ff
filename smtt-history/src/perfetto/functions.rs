//! Functions of tasks as tracks of their own, below the cores: one for each thread that worked for a core's task.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde_json::json;
use smtt_model::rows::{TASK, WORKER};

use super::{Trace, us};
use crate::functions::Span;
use crate::timeline::model::{Model, Task};

/// Thread of the first track of functions.
const FUNCTIONS: usize = 2_000_001;
/// Tracks of a core: the task's own thread and its helpers.
const TRACKS: usize = 8;
/// Thread of the first track of Python workers.
const WORKERS: usize = 4_000_001;

/// Tracks that have slices: the process, whether it is a Python worker's, the core and the number.
#[derive(Debug, Default)]
pub struct Tracks(BTreeSet<(usize, bool, usize, usize)>);

/// Whether the span is of another thread than the task's, and of a process; and the id of these.
fn thread_of(span: &Span) -> ((bool, bool), u32) {
    let row = &span.row;
    ((row.thread != TASK, row.thread == WORKER), row.tid)
}

/// Number of a track in the trace.
fn tid(is_worker: bool, core: usize, track: usize) -> usize {
    (if is_worker { WORKERS } else { FUNCTIONS }) + core * TRACKS + track
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
        let has_own = threads.first().is_some_and(|((is_other, _), _)| !is_other);
        // The next track of threads, and of workers.
        let mut next = [usize::from(!has_own), 0];
        for thread in &threads {
            let is_worker = thread.0.1;
            let track = next[usize::from(is_worker)];
            if track == TRACKS {
                continue;
            }
            next[usize::from(is_worker)] += 1;
            let of_thread = |span: &&Span| thread_of(span) == *thread;
            let mut all: Vec<&Span> = spans.iter().filter(of_thread).collect();
            all.sort_by_key(|it| (it.row.begin_ns, u64::MAX - it.row.duration_ns));
            self.0.insert((pid, is_worker, core, track));
            let tid = tid(is_worker, core, track);
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
        for (pid, is_worker, core, track) in self.0 {
            let name = match (is_worker, track) {
                (true, number) => format!("Python worker {} of core {core}", number + 1),
                (false, 0) => format!("functions on core {core}"),
                (false, helper) => format!("functions on core {core}, helper {helper}"),
            };
            trace.name(pid, Some(tid(is_worker, core, track)), &name)?;
        }
        Ok(())
    }
}
