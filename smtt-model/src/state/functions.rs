//! Functions of a task: the spans that its threads reported, and the time of each activity.
//!
//! Functions of one thread nest, and the inner one ends and is reported first. So a span's own time is its duration less
//! that of the spans inside it, and the own times of a thread's spans add up to no more than its life. A task keeps its
//! [`SPANS_PER_TASK`] longest spans; times of activities count all of them.

use std::cmp::Reverse;

use super::Outcome;
use super::bytes::{Caps, HeapBytes as _, Search, vec_bytes};
use super::fetches::Fetches;
use super::task::{Task, Tasks};
use crate::decode::Span;
use crate::sort::small;

/// Spans that a task keeps.
pub const SPANS_PER_TASK: usize = 64;
/// Spans that the tasks of an executor keep together; beyond it those of tasks that ended first go.
pub const SPANS_PER_EXECUTOR: usize = 32_768;
/// Threads of a task whose activities are summed up; further ones are one.
const THREADS: usize = 8;
/// Spans of a thread that may lie inside one that ends later.
const OUTER: usize = 16;
/// Services of Python workers that a task keeps, the first ones.
pub const SERVICES_PER_TASK: usize = 16;
/// Names of functions in an executor.
const NAMES: usize = 255;
/// A name that has no place.
const NO_NAME: u8 = u8::MAX;

/// A span of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Begin, in nanoseconds since boot.
    pub begin_ns: u64,
    /// Duration in nanoseconds.
    pub duration_ns: u64,
    /// Duration without that of the spans inside it.
    pub own_ns: u64,
    /// RDD that was current.
    pub rdd_id: Option<u32>,
    /// Thread in the initial pid namespace.
    pub tid: u32,
    /// Code of [`smtt_common::context::Activity`].
    pub activity: u8,
    name: u8,
}

/// Time of one activity on one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Thread in the initial pid namespace; 0 for further ones.
    pub tid: u32,
    /// Code of [`smtt_common::context::Activity`].
    pub activity: u8,
    /// Number of spans.
    pub spans: u64,
    /// Their own times, in nanoseconds.
    pub own_ns: u64,
}

/// A service of a Python worker to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Process of the worker, in the initial pid namespace.
    pub pid: u32,
    /// Begin, in nanoseconds since boot.
    pub begin_ns: u64,
    /// Duration in nanoseconds.
    pub duration_ns: u64,
}

/// A span, or several beside one another, inside none that has ended.
#[derive(Clone, Copy, Debug)]
struct Outer {
    tid: u32,
    /// Begin of the last one.
    begin_ns: u64,
    /// Their time, and no less than the own times of what is inside them.
    duration_ns: u64,
}

/// The functions of one task.
#[derive(Clone, Debug, Default)]
pub struct Functions {
    spans: Vec<Kept>,
    sums: Vec<Sum>,
    outer: Vec<Outer>,
    services: Vec<Service>,
    /// Its requests for shuffle blocks.
    pub fetches: Fetches,
    /// Spans that are not kept.
    pub left_out: u64,
    /// Own times of those, in nanoseconds.
    pub left_out_ns: u64,
}

impl Functions {
    /// The kept spans, in no order.
    #[must_use]
    pub fn spans(&self) -> &[Kept] {
        &self.spans
    }

    /// The times of activities by thread.
    #[must_use]
    pub fn sums(&self) -> &[Sum] {
        &self.sums
    }

    /// The services of Python workers that have ended, in the order of their ends.
    #[must_use]
    pub fn services(&self) -> &[Service] {
        &self.services
    }

    /// The span's own time; the span is then one of the outer ones. `runs` is the thread that runs the task.
    fn nest(&mut self, tid: u32, runs: u32, begin_ns: u64, duration_ns: u64) -> u64 {
        let mut inside = 0_u64;
        self.outer.retain(|it| {
            let is_inside = it.tid == tid && it.begin_ns >= begin_ns;
            inside = inside.saturating_add(if is_inside { it.duration_ns } else { 0 });
            !is_inside
        });
        if self.outer.len() >= OUTER {
            self.make_room([tid, runs]);
        }
        self.outer.push(Outer {
            tid,
            begin_ns,
            duration_ns: duration_ns.max(inside),
        });
        duration_ns.saturating_sub(inside)
    }

    /// Makes the oldest two of the thread that has the most into one; of threads with one each, one other than these goes.
    /// A function that began between the two ends with less own time than it had, so no time counts twice.
    fn make_room(&mut self, stay: [u32; 2]) {
        let of = |tid: u32| self.outer.iter().filter(move |it| it.tid == tid).count();
        let most = self.outer.iter().map(|it| (of(it.tid), it.tid)).max();
        let one = match most {
            Some((2.., tid)) => self.outer.iter().position(|it| it.tid == tid),
            _ => self.outer.iter().position(|it| !stay.contains(&it.tid)),
        };
        let Some(one) = one else {
            return;
        };
        let older = self.outer.remove(one);
        if let Some(newer) = self.outer.iter_mut().find(|it| it.tid == older.tid) {
            newer.begin_ns = newer.begin_ns.max(older.begin_ns);
            newer.duration_ns = newer.duration_ns.saturating_add(older.duration_ns);
        }
    }

    fn sum(&mut self, tid: u32, activity: u8, own_ns: u64) {
        let is_known = self.sums.iter().any(|sum| sum.tid == tid);
        let has_room = || {
            let mut tids: Vec<u32> = self.sums.iter().map(|sum| sum.tid).collect();
            tids.sort_unstable();
            tids.dedup();
            tids.len() < THREADS
        };
        let tid = if is_known || has_room() { tid } else { 0 };
        let known = self
            .sums
            .iter_mut()
            .find(|sum| (sum.tid, sum.activity) == (tid, activity));
        let sum = match known {
            Some(sum) => sum,
            None => self.sums.push_mut(Sum {
                tid,
                activity,
                spans: 0,
                own_ns: 0,
            }),
        };
        sum.spans = sum.spans.saturating_add(1);
        sum.own_ns = sum.own_ns.saturating_add(own_ns);
    }

    /// Counts a span that is not kept.
    fn leave_out(&mut self, own_ns: u64) {
        self.left_out = self.left_out.saturating_add(1);
        self.left_out_ns = self.left_out_ns.saturating_add(own_ns);
    }

    /// Keeps a span, in the place of the shortest where there is no room; whether there is one more then.
    fn keep(&mut self, kept: Kept, has_room: bool) -> bool {
        if has_room && self.spans.len() < SPANS_PER_TASK {
            self.spans.push(kept);
            return true;
        }
        let shortest = self.spans.iter_mut().min_by_key(|span| span.duration_ns);
        let out = match shortest {
            Some(shortest) if shortest.duration_ns < kept.duration_ns => {
                std::mem::replace(shortest, kept)
            }
            _ => kept,
        };
        self.leave_out(out.own_ns);
        false
    }

    /// Bytes that one more span may take.
    fn growth(&self) -> usize {
        let grown = |len: usize, capacity: usize| if len == capacity { len.max(4) } else { 0 };
        grown(self.spans.len(), self.spans.capacity()) * size_of::<Kept>()
            + grown(self.sums.len(), self.sums.capacity()) * size_of::<Sum>()
            + grown(self.outer.len(), self.outer.capacity()) * size_of::<Outer>()
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>()
            + vec_bytes(&self.spans)
            + vec_bytes(&self.sums)
            + vec_bytes(&self.outer)
            + vec_bytes(&self.services)
            + self.fetches.bytes()
    }
}

/// Names of functions, each once.
#[derive(Debug, Default)]
pub(super) struct Names(Vec<String>);

impl Names {
    fn number(&mut self, name: &str, caps: &Caps) -> u8 {
        if let Some(at) = self.0.iter().position(|known| known == name) {
            return at as u8;
        }
        let (len, capacity) = (self.0.len(), self.0.capacity());
        let places = if len == capacity { len.max(4) } else { 0 };
        if len == NAMES || !caps.admit(places * size_of::<String>() + name.len()) {
            return NO_NAME;
        }
        self.0.push(name.to_owned());
        len as u8
    }

    pub(super) fn bytes(&self) -> usize {
        vec_bytes(&self.0) + self.0.iter().map(|name| name.heap_bytes()).sum::<usize>()
    }
}

/// The functions of an executor's tasks, beside those in their rows.
#[derive(Debug, Default)]
pub(super) struct Spans {
    names: Names,
    /// Spans that the tasks keep, and those of tasks that were folded since the last search.
    kept: usize,
    search: Search,
}

impl Spans {
    pub(super) fn bytes(&self) -> usize {
        self.names.bytes()
    }
}

impl Task {
    /// The task's functions; `None` where neither a span nor a request was reported.
    #[must_use]
    pub fn functions(&self) -> Option<&Functions> {
        self.functions.as_deref()
    }

    /// A worker served the task. Further ones than [`SERVICES_PER_TASK`] are in the sums only.
    pub(super) fn serve(&mut self, service: Service, caps: &Caps) -> Outcome {
        if self.functions.is_none() {
            if !caps.admit(size_of::<Functions>()) {
                return Outcome::OverCap("bytes");
            }
            self.functions = Some(Box::default());
        }
        let Some(functions) = &mut self.functions else {
            return Outcome::Applied;
        };
        let services = &mut functions.services;
        if services.len() < SERVICES_PER_TASK {
            // Most tasks have one worker; a full list moves.
            let places = match services.len() == services.capacity() {
                true => 2 * services.len() + 1,
                false => 0,
            };
            if !caps.admit(places * size_of::<Service>()) {
                return Outcome::OverCap("bytes");
            }
            services.reserve_exact(1);
            services.push(service);
        }
        Outcome::Applied
    }

    /// The thread that runs the task, in the initial pid namespace.
    #[must_use]
    pub fn thread(&self) -> Option<u32> {
        Some(self.tid).filter(|tid| *tid != 0)
    }
}

impl Tasks {
    /// A thread sent the start or the end of a task that it runs.
    pub(super) fn runs_on(&mut self, id: u64, tid: u32) {
        if let Some(mut task) = self.tasks.get_mut(&id)
            && task.tid == 0
        {
            task.tid = tid;
        }
    }

    /// The name of a span's function; `None` where it had no place.
    #[must_use]
    pub fn function(&self, span: &Kept) -> Option<&str> {
        let name = self.functions.names.0.get(usize::from(span.name));
        name.map(String::as_str)
    }

    /// A thread reported a span that ended at `now_ns`. Spans of tasks that are not known have no place; those that find
    /// no bytes count nowhere but as refused.
    pub(super) fn span(&mut self, span: &Span, tid: u32, now_ns: u64, caps: &Caps) -> Outcome {
        let Some(id) = span.task_attempt_id else {
            return Outcome::Applied;
        };
        let has_place = self.has_place();
        let name = self.functions.names.number(&span.name, caps);
        let Some(mut task) = self.tasks.get_mut(&id) else {
            return Outcome::Applied;
        };
        if task.functions.is_none() {
            if !caps.admit(size_of::<Functions>()) {
                return Outcome::OverCap("bytes");
            }
            task.functions = Some(Box::default());
        }
        let runs = task.tid;
        let Some(functions) = &mut task.functions else {
            return Outcome::Applied;
        };
        if !caps.admit(functions.growth()) {
            return Outcome::OverCap("bytes");
        }
        let begin_ns = now_ns.saturating_sub(span.duration_ns);
        let own_ns = functions.nest(tid, runs, begin_ns, span.duration_ns);
        functions.sum(tid, span.activity, own_ns);
        let kept = Kept {
            begin_ns,
            duration_ns: span.duration_ns,
            own_ns,
            rdd_id: span.rdd_id,
            tid,
            activity: span.activity,
            name,
        };
        self.functions.kept += usize::from(functions.keep(kept, has_place));
        Outcome::Applied
    }

    /// Whether the tasks may keep one more span; those of tasks that ended first make room.
    fn has_place(&mut self) -> bool {
        if self.functions.kept >= SPANS_PER_EXECUTOR && self.functions.search.may() {
            let len = self.tasks.len();
            let before = self.functions.kept;
            self.forget_spans();
            let freed = before.saturating_sub(self.functions.kept);
            self.functions.search.done(len, freed);
        }
        self.functions.kept < SPANS_PER_EXECUTOR
    }

    /// Counts the kept spans anew, and lets go of the older half of those whose tasks have ended.
    fn forget_spans(&mut self) {
        let count = |task: &Task| task.functions.as_ref().map_or(0, |it| it.spans.len());
        let kept: usize = self.tasks.values().map(count).sum();
        let ended = self.tasks.iter().filter(|(_, task)| task.state.ended());
        let mut ended: Vec<(Reverse<u64>, u64, usize)> = ended
            .map(|(id, task)| (Reverse(task.end_ns.unwrap_or(0)), *id, count(task)))
            .filter(|(_, _, spans)| *spans > 0)
            .collect();
        small::sort_by(&mut ended, Ord::cmp);
        let mut left = kept;
        while left > SPANS_PER_EXECUTOR / 2
            && let Some((_, id, spans)) = ended.pop()
        {
            if let Some(mut task) = self.tasks.get_mut(&id)
                && let Some(functions) = &mut task.functions
            {
                for span in std::mem::take(&mut functions.spans) {
                    functions.leave_out(span.own_ns);
                }
                left -= spans;
            }
        }
        self.functions.kept = left;
    }
}
