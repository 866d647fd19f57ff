//! What is kept of an executor so that its death can be explained: its memory over the last two minutes, the signals that
//! it got, what ran out, and, from the moment of its end, the tasks that ran.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use smtt_common::event::memory::MemoryFigure;

use super::bytes::{Caps, tree_bytes, tree_entry_bytes, vec_bytes};
use super::deaths::CHILD_DEATHS;
use super::memory_parts::Divisions;
use super::memory_usage::MemoryUsage;
use super::task::TaskState;
use super::{Executor, MemoryHeld, State};
use crate::attribute::StageKey;
use crate::decode::{Event, Exhausted, Fact, OomKilled, ProcessEnd, SignalSent};
use crate::sort::small::sort_by_key;

/// Samples that are kept: one per second, two minutes.
pub const SAMPLES: usize = 120;
/// Notes of one kind that are kept, the last ones.
const NOTES: usize = 8;
/// Tasks of the last moment that are kept, those that hold most.
const TASKS: usize = 32;
/// Threads whose task is known.
const THREADS: usize = 1024;
/// A snapshot holds for the ends of further children in this time, in nanoseconds.
const SNAPSHOT_NS: u64 = 1_000_000_000;

/// A figure in KiB; the largest value stands for "not measured".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kib(u32);

impl Kib {
    fn of(bytes: Option<u64>) -> Self {
        Self(bytes.map_or(u32::MAX, |bytes| {
            u32::try_from(bytes >> 10)
                .unwrap_or(u32::MAX)
                .min(u32::MAX - 1)
        }))
    }

    fn bytes(self) -> Option<u64> {
        (self.0 != u32::MAX).then(|| u64::from(self.0) << 10)
    }
}

/// Memory of an executor at one time, in bytes. What was not measured is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySample {
    /// Time in nanoseconds since boot.
    pub time_ns: u64,
    /// Resident memory of the JVM.
    pub resident_bytes: Option<u64>,
    /// Part of it in no file: the heap, native memory, stacks.
    pub anonymous_bytes: Option<u64>,
    /// Part of it in mapped files.
    pub file_bytes: Option<u64>,
    /// Part of it in shared memory.
    pub shared_bytes: Option<u64>,
    /// Memory of the JVM that is swapped out.
    pub swapped_bytes: Option<u64>,
    /// Bytes of the Java heap that are in use.
    pub heap_used_bytes: Option<u64>,
    /// Bytes of the Java heap that are committed.
    pub heap_committed_bytes: Option<u64>,
    /// Spark's storage memory.
    pub storage_bytes: Option<u64>,
    /// Spark's execution memory.
    pub execution_bytes: Option<u64>,
    /// Resident memory of the executor's children, such as Python workers, added up.
    pub children_bytes: Option<u64>,
    /// Memory of the executor's cgroup.
    pub cgroup_bytes: Option<u64>,
    /// Threads of the JVM.
    pub threads: Option<u64>,
}

/// A sample as it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    time_ns: u64,
    figures: [Kib; 11],
    threads: u32,
}

impl From<&MemorySample> for Kept {
    fn from(sample: &MemorySample) -> Self {
        Self {
            time_ns: sample.time_ns,
            figures: [
                sample.resident_bytes,
                sample.anonymous_bytes,
                sample.file_bytes,
                sample.shared_bytes,
                sample.swapped_bytes,
                sample.heap_used_bytes,
                sample.heap_committed_bytes,
                sample.storage_bytes,
                sample.execution_bytes,
                sample.children_bytes,
                sample.cgroup_bytes,
            ]
            .map(Kib::of),
            threads: sample.threads.map_or(u32::MAX, |threads| threads as u32),
        }
    }
}

impl From<&Kept> for MemorySample {
    fn from(kept: &Kept) -> Self {
        let [
            resident,
            anonymous,
            file,
            shared,
            swapped,
            used,
            committed,
            storage,
            execution,
            children,
            cgroup,
        ] = kept.figures.map(Kib::bytes);
        Self {
            time_ns: kept.time_ns,
            resident_bytes: resident,
            anonymous_bytes: anonymous,
            file_bytes: file,
            shared_bytes: shared,
            swapped_bytes: swapped,
            heap_used_bytes: used,
            heap_committed_bytes: committed,
            storage_bytes: storage,
            execution_bytes: execution,
            children_bytes: children,
            cgroup_bytes: cgroup,
            threads: (kept.threads != u32::MAX).then(|| u64::from(kept.threads)),
        }
    }
}

/// Something that happened, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted<T> {
    /// Time in nanoseconds since boot.
    pub time_ns: u64,
    /// Task attempt of the thread to which it happened; absent where it ran none.
    pub task_attempt_id: Option<u64>,
    /// What happened.
    #[serde(flatten)]
    pub what: T,
}

/// A signal to a process of the executor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalNote {
    /// The signal and its sender.
    #[serde(flatten)]
    pub sent: SignalSent,
    /// Whether the sender was a process of the same executor.
    pub from_own: bool,
}

/// A child that a signal ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildEnd {
    /// Process id in the initial pid namespace.
    pub pid: u32,
    /// How it ended.
    pub end: ProcessEnd,
}

/// A task that ran when the executor ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningTask {
    /// Id of the task attempt.
    pub task_attempt_id: u64,
    /// Stage of the task, where known.
    pub stage_id: Option<u32>,
    /// Attempt of the stage.
    pub stage_attempt: Option<u32>,
    /// Partition that it computed, where known.
    pub partition: Option<u32>,
    /// Time since its start, in nanoseconds.
    pub age_ns: Option<u64>,
    /// Execution memory that it held.
    pub execution_bytes: u64,
    /// Most execution memory that it held.
    pub execution_peak_bytes: u64,
    /// The most that its Python workers had resident together; absent where it had none.
    #[serde(default)]
    pub python_worker_peak_bytes: Option<u64>,
}

/// What the executor held and ran when it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastMoment {
    /// Tasks that ran, those that held most first.
    pub tasks: Vec<RunningTask>,
    /// Number of tasks that ran.
    pub running: u64,
    /// Bytes of cached blocks.
    pub storage_bytes: u64,
    /// The part outside of the Java heap.
    pub storage_off_heap_bytes: u64,
    /// Bytes of execution memory.
    pub execution_bytes: u64,
    /// The part outside of the Java heap.
    pub execution_off_heap_bytes: u64,
    /// Python workers that served a task.
    pub python_workers: u64,
    /// Child processes.
    pub children: u64,
}

/// What was known when a child of a living executor ended by a signal.
#[derive(Clone, Debug, PartialEq)]
pub struct LastBefore {
    /// When the child ended, in nanoseconds of the boot clock.
    time_ns: u64,
    /// What the executor held and ran.
    pub last: LastMoment,
    /// Where its memory was.
    pub usage: MemoryUsage,
}

impl LastBefore {
    fn bytes(&self) -> usize {
        size_of::<Self>() + vec_bytes(&self.last.tasks) + self.usage.heap_bytes()
    }
}

/// See the module. One writer samples the memory; the rest comes from the executor's facts.
#[derive(Clone, Debug, Default)]
pub struct BlackBox {
    samples: VecDeque<Kept>,
    /// Parts of the memory over the same time.
    pub divisions: Divisions,
    /// Signals to the JVM.
    pub signals: Vec<Noted<SignalNote>>,
    /// Signals to children.
    pub child_signals: Vec<Noted<SignalNote>>,
    /// Choices of the OOM killer.
    pub oom: Vec<Noted<OomKilled>>,
    /// What ran out.
    pub exhausted: Vec<Noted<Exhausted>>,
    /// Children that a signal ended.
    pub child_ends: Vec<Noted<ChildEnd>>,
    /// How the JVM ended; `None` where no record reports it.
    pub end: Option<ProcessEnd>,
    /// Whether a record of the JVM's end came.
    pub end_seen: bool,
    /// Whether the process lives on with another image.
    pub(super) replaced: bool,
    /// What it held and ran at its end.
    pub last: Option<LastMoment>,
    /// What was known at the end of the last child that a signal ended.
    before_child: Option<Box<LastBefore>>,
    /// When that was last to be kept, also where it had no room.
    before_child_tried_ns: Option<u64>,
    /// The task of each thread, by its id in the initial pid namespace.
    threads: BTreeMap<u32, u64>,
    /// Whether the executor's death is named to be judged.
    pub(super) told: bool,
    /// Whether its death is judged.
    pub(super) judged: bool,
    /// Reported deaths of children, by process.
    pub(super) children_told: Vec<u32>,
}

impl BlackBox {
    /// Bytes outside of the struct itself.
    pub(super) fn bytes(&self) -> usize {
        self.samples.capacity() * size_of::<Kept>()
            + self.divisions.bytes()
            + self
                .before_child
                .as_ref()
                .map_or(0, |before| before.bytes())
            + vec_bytes(&self.signals)
            + vec_bytes(&self.child_signals)
            + vec_bytes(&self.oom)
            + vec_bytes(&self.exhausted)
            + vec_bytes(&self.child_ends)
            + vec_bytes(&self.children_told)
            + texts(&self.signals, |note| note.sent.sender_name.capacity())
            + texts(&self.child_signals, |note| note.sent.sender_name.capacity())
            + texts(&self.exhausted, |exhausted| {
                exhausted.description.capacity()
            })
            + texts(&self.child_ends, |child| child.end.name.capacity())
            + self.end.as_ref().map_or(0, |end| end.name.capacity())
            + self.last.as_ref().map_or(0, |last| vec_bytes(&last.tasks))
            + tree_bytes(self.threads.len(), size_of::<(u32, u64)>())
    }

    /// The samples, the oldest first.
    pub fn samples(&self) -> impl Iterator<Item = MemorySample> {
        self.samples.iter().map(MemorySample::from)
    }

    /// Keeps a sample; the oldest one gives way.
    pub(super) fn sample(&mut self, sample: &MemorySample, caps: &Caps) {
        if self.samples.len() >= SAMPLES {
            self.samples.pop_front();
        } else if self.samples.len() == self.samples.capacity() {
            let more = self.samples.capacity().clamp(4, SAMPLES);
            if caps.admit(more * size_of::<Kept>()) {
                self.samples.reserve_exact(more);
            } else if self.samples.pop_front().is_none() {
                return;
            }
        }
        self.samples.push_back(sample.into());
    }

    /// What was known when a child ended at that time, or up to [`SNAPSHOT_NS`] before; `None` where a later child's end
    /// replaced it.
    #[must_use]
    pub fn before_child(&self, ended_ns: u64) -> Option<&LastBefore> {
        let holds = |before: &&LastBefore| {
            let age = ended_ns.checked_sub(before.time_ns);
            age.is_some_and(|age| age < SNAPSHOT_NS)
        };
        self.before_child.as_deref().filter(holds)
    }

    /// The task of a thread.
    pub(super) fn task_of(&self, tid: u32) -> Option<u64> {
        self.threads.get(&tid).copied()
    }
}

fn texts<T>(notes: &[Noted<T>], text: impl Fn(&T) -> usize) -> usize {
    notes.iter().map(|note| text(&note.what)).sum()
}

/// Keeps a note; the oldest one of its kind gives way.
fn keep<T>(notes: &mut Vec<Noted<T>>, note: Noted<T>, text: usize, most: usize, caps: &Caps) {
    if notes.len() >= most {
        notes.remove(0);
    }
    let more = if notes.len() == notes.capacity() {
        notes.capacity().max(4) * size_of::<Noted<T>>()
    } else {
        0
    };
    if caps.admit(more + text) {
        notes.push(note);
    }
}

impl State {
    /// Threads that run a task now, by thread id and executor key, as the living executors report it.
    #[must_use]
    pub fn task_threads(&self) -> Vec<(u32, u64)> {
        let living = self.executors();
        let living = living
            .iter()
            .filter(|(_, executor)| executor.died_ns.is_none());
        living
            .flat_map(|(key, executor)| executor.task_threads().map(|tid| (tid, *key)))
            .collect()
    }
}

impl Executor {
    /// Threads that run a task now. A thread that helps a task is none.
    fn task_threads(&self) -> impl Iterator<Item = u32> {
        let threads = self.black_box.threads.iter();
        let runs = |(tid, task): &(&u32, &u64)| {
            self.tasks.tasks.get(*task).is_some_and(|task| {
                task.state == TaskState::Running && task.thread() == Some(**tid)
            })
        };
        threads.filter(runs).map(|(tid, _)| *tid)
    }

    /// Keeps a sample of the executor's memory.
    pub(super) fn sample_memory(&mut self, sample: &MemorySample, caps: &Caps) {
        if self.died_ns.is_some() {
            return;
        }
        let held: MemoryHeld = self.memory.total();
        let sample = MemorySample {
            storage_bytes: Some(held.storage_bytes),
            execution_bytes: Some(held.execution_bytes),
            heap_used_bytes: self.usage.latest(MemoryFigure::HEAP_USED),
            heap_committed_bytes: self.usage.latest(MemoryFigure::HEAP_COMMITTED),
            ..*sample
        };
        let divisions = &mut self.black_box.divisions;
        divisions.keep(&self.usage, sample.time_ns, caps);
        self.black_box.sample(&sample, caps);
    }

    /// Notes a fact that may explain the executor's death.
    pub(super) fn note(&mut self, event: &Event, caps: &Caps) {
        let time_ns = event.time_ns;
        let task = self.black_box.task_of(event.tid);
        let notes = &mut self.black_box;
        fn noted<T>(time_ns: u64, task_attempt_id: Option<u64>, what: T) -> Noted<T> {
            Noted {
                time_ns,
                task_attempt_id,
                what,
            }
        }
        match &event.fact {
            Fact::TaskBegun {
                task_attempt_id, ..
            }
            | Fact::HelperBegun {
                task_attempt_id, ..
            } if self.died_ns.is_none() => {
                let room = notes.threads.len() < THREADS
                    && caps.admit(tree_entry_bytes(size_of::<(u32, u64)>()));
                if notes.threads.contains_key(&event.tid) || room {
                    notes.threads.insert(event.tid, *task_attempt_id);
                }
            }
            Fact::TaskEnded(ended) if task == Some(ended.task_attempt_id) => {
                notes.threads.remove(&event.tid);
            }
            Fact::HelperEnded {
                task_attempt_id, ..
            } if task == Some(*task_attempt_id) => {
                notes.threads.remove(&event.tid);
            }
            Fact::TaskUsed(used) if task == Some(used.task_attempt_id) => {
                notes.threads.remove(&event.tid);
            }
            Fact::SignalSent(sent) => {
                let note = SignalNote {
                    sent: (**sent).clone(),
                    // The OOM killer runs in the process whose allocation failed.
                    from_own: !sent.from_kernel
                        && (sent.sender_pid == self.pid
                            || self.children.contains_key(&sent.sender_pid)),
                };
                let of = if sent.is_executor {
                    &mut notes.signals
                } else {
                    &mut notes.child_signals
                };
                let text = sent.sender_name.capacity();
                keep(of, noted(time_ns, None, note), text, NOTES, caps);
            }
            Fact::OomKilled(killed) => {
                let note = noted(time_ns, None, killed.clone());
                keep(&mut notes.oom, note, 0, NOTES, caps);
            }
            Fact::Exhausted(exhausted) => {
                let note = noted(time_ns, task, (**exhausted).clone());
                let text = exhausted.description.capacity();
                keep(&mut notes.exhausted, note, text, NOTES, caps);
            }
            Fact::ProcessGone {
                is_executor: true,
                exec,
                end,
            } => {
                notes.end_seen = true;
                notes.replaced = *exec;
                notes.end = end.as_deref().cloned();
            }
            Fact::ProcessGone {
                is_executor: false,
                exec: false,
                end: Some(end),
            } if end.signal().is_some() => {
                let child = ChildEnd {
                    pid: event.pid,
                    end: (**end).clone(),
                };
                let text = child.end.name.capacity();
                let note = noted(time_ns, None, child);
                keep(&mut notes.child_ends, note, text, NOTES, caps);
                if notes.children_told.len() < CHILD_DEATHS {
                    self.see_before_child(time_ns, caps);
                }
            }
            _ => {}
        }
    }

    /// Keeps what the executor holds and runs, before it is let go.
    pub(super) fn see_last_moment(&mut self, now_ns: u64) {
        self.black_box.last = Some(self.last_moment(now_ns));
        self.black_box.threads.clear();
    }

    /// Keeps what the executor holds and runs when a child ends: soon its task has ended too. Children that end by the hundred
    /// share a snapshot, and a refused one is not tried again at once: each goes over all tasks.
    fn see_before_child(&mut self, now_ns: u64, caps: &Caps) {
        let tried = self.black_box.before_child_tried_ns;
        if tried.is_some_and(|tried| now_ns.abs_diff(tried) < SNAPSHOT_NS) {
            // Records of two processors may come in another order than their times.
            if let Some(before) = &mut self.black_box.before_child {
                before.time_ns = before.time_ns.min(now_ns);
            }
            return;
        }
        self.black_box.before_child_tried_ns = Some(now_ns);
        let before = LastBefore {
            time_ns: now_ns,
            last: self.last_moment(now_ns),
            usage: self.usage.clone(),
        };
        let freed = self.black_box.before_child.take();
        let freed = freed.map_or(0, |before| before.bytes());
        let more = before.bytes().saturating_sub(freed);
        self.black_box.before_child = caps.admit(more).then(|| Box::new(before));
    }

    /// What the executor holds and runs.
    pub(crate) fn last_moment(&self, now_ns: u64) -> LastMoment {
        #[cfg(test)]
        super::tests::LOOKS.set(super::tests::LOOKS.get() + 1);
        let running = |state: TaskState| state == TaskState::Running;
        let tasks = self.tasks.tasks.iter();
        let mut tasks: Vec<RunningTask> = tasks
            .filter(|(_, task)| running(task.state))
            .map(|(id, task)| RunningTask {
                task_attempt_id: *id,
                stage_id: task.stage.map(|stage: StageKey| stage.id),
                stage_attempt: task.stage.map(|stage| u32::from(stage.attempt)),
                partition: task.started.as_ref().map(|started| started.partition),
                age_ns: task.start_ns.map(|start| now_ns.saturating_sub(start)),
                execution_bytes: task.live_bytes,
                execution_peak_bytes: task.seen_peak_bytes,
                python_worker_peak_bytes: task.python_peak_bytes,
            })
            .collect();
        let running = tasks.len() as u64;
        sort_by_key(&mut tasks, |task| {
            (u64::MAX - task.execution_bytes, task.task_attempt_id)
        });
        tasks.truncate(TASKS);
        tasks.shrink_to_fit();
        let held = self.memory.total();
        LastMoment {
            tasks,
            running,
            storage_bytes: held.storage_bytes,
            storage_off_heap_bytes: held.storage_off_heap_bytes,
            execution_bytes: held.execution_bytes,
            execution_off_heap_bytes: held.execution_off_heap_bytes,
            python_workers: self.python_workers.len() as u64,
            children: self.children.len() as u64,
        }
    }
}

impl super::State {
    /// Keeps a sample of an executor's memory. Without a row it is dropped.
    pub fn sample_memory(&mut self, executor: u64, sample: &MemorySample) {
        self.change_known(executor, |executor, caps| {
            executor.sample_memory(sample, caps)
        });
    }
}
