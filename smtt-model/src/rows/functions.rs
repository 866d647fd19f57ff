//! The functions of a task attempt, as a field of its row.

use crate::sort::small::{sort_by, sort_by_key};
use serde::{Deserialize, Serialize};
use smtt_common::context::Activity;
use smtt_common::event::used::{CPU_NS, CPU_WAIT_NS, DISK_WAIT_NS};

use crate::state::fetches::Request;
use crate::state::functions::{Functions, Kept, Service};
use crate::state::{SampledCycles, State, Task, Tasks, Until};

use super::page_walks::DEVIATIONS;

/// The thread that runs the task.
pub const TASK: &str = "task";
/// Another thread that works for the task: it fetches, or writes to a Python worker.
pub const HELPER: &str = "helper";
/// [`FunctionRow::thread`] of a service of a Python worker.
pub const WORKER: &str = "python worker";

/// [`FunctionRow::thread`] of a pause of the executor's collector.
pub const COLLECTIONS: &str = "collections";
/// [`FunctionRow::activity`] of such a pause.
const PAUSE: &str = "collection_pause";

/// Place of a span's lane among those of a task: its own thread, others that worked for it, Python workers, and pauses.
#[must_use]
pub fn lane_of(thread: &str) -> u8 {
    match thread {
        TASK => 0,
        WORKER => 2,
        COLLECTIONS => 3,
        _ => 1,
    }
}

/// Where the time of a task attempt went, by function.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FunctionsRow {
    /// Begin of the executor's task runner, in nanoseconds since boot; the report of the start where that is not known.
    pub begin_ns: u64,
    /// Time from there to the end, in nanoseconds. The times of `activities` and `rest_ns` add up to it once the task has ended.
    pub duration_ns: u64,
    /// Times of the activities on the task's own thread, the longest first. Functions of less than 1 ms are in none of
    /// them.
    pub activities: Vec<ActivityRow>,
    /// What no span covers, in nanoseconds: user code, functions without spans, and calls below 1 ms. Absent where the task's
    /// own thread is not known, and while the task runs: a function that has not ended is in no activity yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest_ns: Option<u64>,
    /// The same duration by what the task's thread did; only of ended tasks whose accounts cover it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<ThreadTimesRow>,
    /// The time on CPUs by activity, however short a call is. Absent where neither cycles nor a clock are sampled, and
    /// before the first sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_cpu: Option<OnCpuRow>,
    /// Times of the activities on other threads that worked for the task.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub helpers: Vec<ActivityRow>,
    /// The longest spans, by thread and begin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<FunctionRow>,
    /// The task's requests for shuffle blocks of other executors, by begin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fetches: Vec<FetchRow>,
    /// All its requests, also those that are not listed. Absent where none was reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetched: Option<FetchedRow>,
    /// Pauses of the executor's collector while the task ran; of a running task up to the last report, a second ago. Absent
    /// where not all of them are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<PausedRow>,
    /// Spans that are not listed: a task keeps the longest 64.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub spans_left_out: u64,
    /// Own times of these, in nanoseconds. They are in the times of the activities.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub spans_left_out_ns: u64,
}

pub(super) const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A request for shuffle blocks that went to another executor, or to a shuffle service. Blocks of the same executor or
/// host that Spark reads from its disk are in no request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchRow {
    /// Host and port of the destination; absent where the name had no place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Spark's id of the executor or service at whose address the blocks were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor_id: Option<String>,
    /// Time from the task's begin to the sending of the request, in nanoseconds.
    pub begin_ns: u64,
    /// Time until the last block arrived or failed, in nanoseconds; until the task's end where that came first.
    pub duration_ns: u64,
    /// Requested blocks.
    pub blocks: u64,
    /// Bytes of the blocks that arrived.
    pub bytes: u64,
    /// `complete`; `failed` where a block failed, or Spark asks for it again because memory was short; `unfinished` where
    /// the task ended before.
    pub outcome: String,
}

/// The requests of a task together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchedRow {
    /// Requests.
    pub requests: u64,
    /// Requested blocks.
    pub blocks: u64,
    /// Blocks that arrived: `remoteBlocksFetched` of Spark, where the task took them all and none was merged.
    pub arrived_blocks: u64,
    /// Blocks that failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed_blocks: u64,
    /// Bytes of the blocks that arrived: `remoteBytesRead` of Spark, where the task took them all.
    pub bytes: u64,
    /// Requests that are not listed: a task lists 1,000.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
}

/// Pauses of the executor's collector while a task ran: all of the application stood still. What a collector does beside
/// the application is in none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PausedRow {
    /// Pauses.
    pub pauses: u64,
    /// Their time within the task's, in nanoseconds.
    pub paused_ns: u64,
    /// Pauses that are not among the spans, which have the longest 64.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
}

/// Time of one activity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivityRow {
    /// Activity, as in docs/ATTRIBUTION.md.
    pub activity: String,
    /// Number of spans.
    pub spans: u64,
    /// Their durations without the spans inside them, in nanoseconds.
    pub own_ns: u64,
}

/// The time on CPUs by activity, from samples of all threads that worked for the task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OnCpuRow {
    /// Sampled event: cycles of the processor, or a clock that stands in for them.
    pub event: String,
    /// Samples.
    pub samples: u64,
    /// Shares of the activities, which add up to 1, the largest first.
    pub activities: Vec<SampledActivityRow>,
}

/// Share of one activity in what was sampled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SampledActivityRow {
    /// Activity, as in docs/ATTRIBUTION.md.
    pub activity: String,
    /// Samples.
    pub samples: u64,
    /// Share of the event's counts; of a clock that the daemon samples by itself, of its samples.
    pub share: f64,
    /// Lower end of the share's 95 % interval, which rests on the number of samples (Wilson's).
    pub share_low: f64,
    /// Upper end of the interval.
    pub share_high: f64,
}

/// What the task's thread did. The times add up to the duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadTimesRow {
    /// On a CPU, in nanoseconds.
    pub cpu_ns: u64,
    /// Could run and had no CPU, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_wait_ns: Option<u64>,
    /// Waited for a disk, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_wait_ns: Option<u64>,
    /// The rest, in nanoseconds: waited for collections, locks, the network, pipes; and for what of the above is absent.
    pub other_ns: u64,
}

/// A span: one call of a function that took 1 ms or more, or the service of a Python worker or a pause of the collector,
/// however long it was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionRow {
    /// `task` for the task's own thread, `helper` for others, `python worker` for a process that served the task,
    /// `collections` for pauses of the executor's collector, empty where that is not known.
    pub thread: String,
    /// Thread id in the initial pid namespace; of a Python worker its process id, of a pause 0.
    pub tid: u32,
    /// Activity, as in docs/ATTRIBUTION.md; of a pause `collection_pause`.
    pub activity: String,
    /// Function of Spark; absent where its name had no place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Time from the task's begin to the span's, in nanoseconds.
    pub begin_ns: u64,
    /// Duration in nanoseconds.
    pub duration_ns: u64,
    /// Duration without the spans inside it.
    pub own_ns: u64,
    /// RDD that was current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdd_id: Option<u32>,
}

fn activity(code: u8) -> String {
    Activity(code).name().unwrap_or("other").to_owned()
}

/// The shares of activities in a task's sampled cycles.
fn on_cpu(task: &Task, event: &str) -> Option<OnCpuRow> {
    let all = &task.cycles;
    let samples = all.iter().map(|it| it.samples).sum::<u64>();
    let events = all.iter().map(|it| it.events as f64).sum::<f64>();
    if samples == 0 || events <= 0.0 {
        return None;
    }
    let row = |it: &SampledCycles| {
        let share = it.events as f64 / events;
        let (share_low, share_high) = share_interval(share, samples as f64);
        SampledActivityRow {
            activity: activity(it.activity.0),
            samples: it.samples,
            share,
            share_low,
            share_high,
        }
    };
    let mut activities: Vec<SampledActivityRow> = all.iter().map(row).collect();
    sort_by(&mut activities, |a, b| {
        b.share
            .total_cmp(&a.share)
            .then(a.activity.cmp(&b.activity))
    });
    Some(OnCpuRow {
        event: event.to_owned(),
        samples,
        activities,
    })
}

/// Wilson's 95 % interval of a share that was seen in a number of samples.
#[must_use]
pub fn share_interval(share: f64, samples: f64) -> (f64, f64) {
    let square = DEVIATIONS * DEVIATIONS;
    let middle = share + square / (2.0 * samples);
    let half =
        DEVIATIONS * (share * (1.0 - share) / samples + square / (4.0 * samples * samples)).sqrt();
    let whole = 1.0 + square / samples;
    let (low, high) = ((middle - half) / whole, (middle + half) / whole);
    (low.clamp(0.0, share), high.clamp(share, 1.0))
}

/// How a request ended.
const fn outcome(request: &Request) -> &'static str {
    if request.failed > 0 {
        "failed"
    } else if request.arrived >= request.blocks {
        "complete"
    } else {
        "unfinished"
    }
}

/// Adds up the activities of some threads, each at most what those before it left of `most`. Returns the rows, the
/// longest first, and what is left.
fn add_up(functions: &Functions, of: impl Fn(u32) -> bool, most: u64) -> (Vec<ActivityRow>, u64) {
    let mut rows: Vec<ActivityRow> = Vec::new();
    for sum in functions.sums().iter().filter(|sum| of(sum.tid)) {
        let name = activity(sum.activity);
        match rows.iter_mut().find(|row| row.activity == name) {
            Some(row) => {
                row.spans = row.spans.saturating_add(sum.spans);
                row.own_ns = row.own_ns.saturating_add(sum.own_ns);
            }
            None => rows.push(ActivityRow {
                activity: name,
                spans: sum.spans,
                own_ns: sum.own_ns,
            }),
        }
    }
    sort_by(&mut rows, |a, b| {
        (b.own_ns, &a.activity).cmp(&(a.own_ns, &b.activity))
    });
    let mut left = most;
    for row in &mut rows {
        row.own_ns = row.own_ns.min(left);
        left -= row.own_ns;
    }
    (rows, left)
}

impl State {
    /// The functions of a task; `None` where neither start nor accounts are known.
    pub(super) fn functions(&self, tasks: &Tasks, task: &Task) -> Option<FunctionsRow> {
        let nothing = Functions::default();
        let functions = task.functions().unwrap_or(&nothing);
        let end_ns = task.end_ns.unwrap_or_else(|| self.now_ns());
        let of_task = task.thread();
        let is_own = |tid: u32| Some(tid) == of_task;
        let until = task.used.until.filter(|_| !task.used.partial);
        let covered = task.used.duration_ns;
        let is_covered = until == Some(Until::End) && covered > 0;
        let begin_ns = if is_covered {
            end_ns.saturating_sub(covered)
        } else {
            // The task was deserialised before its start was reported.
            let own = functions.spans().iter().filter(|span| is_own(span.tid));
            let first = own.map(|span| span.begin_ns).min();
            first.into_iter().chain(task.start_ns).min()?
        };
        let duration_ns = end_ns.saturating_sub(begin_ns);
        let (activities, rest_ns) = add_up(functions, is_own, duration_ns);
        let (helpers, _) = add_up(functions, |tid| of_task.is_some() && !is_own(tid), u64::MAX);
        let account = |account: usize| task.used.figures.account(account);
        let thread = account(CPU_NS).filter(|_| is_covered).map(|cpu_ns| {
            let mut left = duration_ns;
            let mut take = |wanted: u64| {
                let taken = wanted.min(left);
                left -= taken;
                taken
            };
            let cpu_ns = take(cpu_ns);
            let cpu_wait_ns = account(CPU_WAIT_NS).map(&mut take);
            let disk_wait_ns = account(DISK_WAIT_NS).map(&mut take);
            ThreadTimesRow {
                cpu_ns,
                cpu_wait_ns,
                disk_wait_ns,
                other_ns: left,
            }
        });
        let row = |span: &Kept| FunctionRow {
            thread: match of_task {
                None => "",
                Some(_) if is_own(span.tid) => TASK,
                Some(_) => HELPER,
            }
            .to_owned(),
            tid: span.tid,
            activity: activity(span.activity),
            function: tasks.function(span).map(str::to_owned),
            begin_ns: span.begin_ns.saturating_sub(begin_ns),
            duration_ns: span.duration_ns,
            own_ns: span.own_ns,
            rdd_id: span.rdd_id,
        };
        let service = |it: &Service| FunctionRow {
            thread: WORKER.to_owned(),
            tid: it.pid,
            activity: activity(Activity::PYTHON_WORKER.0),
            begin_ns: it.begin_ns.saturating_sub(begin_ns),
            duration_ns: it.duration_ns,
            own_ns: it.duration_ns,
            ..FunctionRow::default()
        };
        let runs = task.end_ns.is_none();
        let pauses = tasks.pauses().within(begin_ns, end_ns, runs);
        let pause = |(begin, end): &(u64, u64)| FunctionRow {
            thread: COLLECTIONS.to_owned(),
            activity: PAUSE.to_owned(),
            begin_ns: begin - begin_ns,
            duration_ns: end - begin,
            own_ns: end - begin,
            ..FunctionRow::default()
        };
        let paused = pauses.as_ref().map(|all| PausedRow {
            pauses: all.pauses,
            paused_ns: all.paused_ns,
            left_out: all.pauses - all.longest.len() as u64,
        });
        let services = functions.services().iter().map(service);
        let spans = functions.spans().iter().map(row);
        let pauses = pauses.iter().flat_map(|all| &all.longest).map(pause);
        let mut spans: Vec<FunctionRow> = spans.chain(services).chain(pauses).collect();
        let request = |it: &Request| {
            let source = tasks.source(it);
            FetchRow {
                address: source.map(|(address, _)| address.to_owned()),
                executor_id: source.map(|(_, executor)| executor.to_owned()),
                begin_ns: it.begin_ns.saturating_sub(begin_ns),
                duration_ns: it.duration_ns,
                blocks: it.blocks.into(),
                bytes: it.bytes,
                outcome: outcome(it).to_owned(),
            }
        };
        let requests = &functions.fetches;
        let mut fetches: Vec<FetchRow> = requests.kept().iter().map(request).collect();
        sort_by_key(&mut fetches, |it| (it.begin_ns, it.duration_ns));
        let sum = &requests.sum;
        let fetched = (sum.requests > 0).then(|| FetchedRow {
            requests: sum.requests,
            blocks: sum.blocks,
            arrived_blocks: sum.arrived,
            failed_blocks: sum.failed,
            bytes: sum.bytes,
            left_out: requests.left_out(),
        });
        sort_by_key(&mut spans, |it| {
            let longest_first = u64::MAX - it.duration_ns;
            (lane_of(&it.thread), it.tid, it.begin_ns, longest_first)
        });
        Some(FunctionsRow {
            begin_ns,
            duration_ns,
            activities,
            rest_ns: of_task.and(task.end_ns).map(|_| rest_ns),
            thread,
            on_cpu: self.event_of_cycles().and_then(|event| on_cpu(task, event)),
            helpers,
            spans,
            fetches,
            fetched,
            paused,
            spans_left_out: functions.left_out,
            spans_left_out_ns: functions.left_out_ns,
        })
    }
}
