//! Ended tasks by stage attempt, with only what the rules of `advise` about stages use.

use std::collections::{BTreeMap, BTreeSet};

use smtt_common::context::Activity;

use super::{ApplicationKey, Filter};
use crate::advise::tasks::{Sender, host_of, sender_of};
use crate::attribute::StageKey;
use crate::decode::{SPARK_METRICS, SPARK_TIMES};
use crate::sort::small::sort_by;
use crate::state::{Executor, State, Task, TaskState};

/// Tasks of one application that the rules see: of each executor an even part, those of living ones first.
pub const TASKS: usize = 65_536;
/// Hosts of a stage attempt that have figures of their own.
const SENDERS: usize = 256;

/// The marker's hook that reports waits for shuffle blocks, and its class: one of them is named where it is missing.
const WAITS: [&str; 2] = [
    "ShuffleBlockFetcherIterator.*/take",
    "ShuffleBlockFetcherIterator",
];

/// A task that returned its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedTask {
    /// Partition that it computed.
    pub partition: u32,
    /// Report of its start, in nanoseconds since boot.
    pub start_ns: u64,
    /// Report of its end, in nanoseconds since boot.
    pub end_ns: u64,
    /// Spark's run time in milliseconds.
    pub run_ms: Option<u64>,
    /// Spark's time of collections in milliseconds.
    pub collection_ms: Option<u64>,
    /// Bytes of input and of shuffles that it read, by Spark's metrics.
    pub bytes: Option<u64>,
    /// Records of input and of shuffles that it read, by Spark's metrics.
    pub records: Option<u64>,
    /// Waits of 1 ms or more for shuffle blocks, of its own thread; absent where its executor does not measure them.
    pub fetch_wait_ns: Option<u64>,
}

/// The ended tasks of a stage attempt on this worker.
#[derive(Clone, Debug, Default)]
pub struct StageTasks {
    /// Id of the stage.
    pub id: u32,
    /// Attempt of the stage.
    pub attempt: u32,
    /// Name of the stage; absent until it is known.
    pub name: Option<String>,
    /// Tasks of the whole stage on all workers.
    pub tasks: Option<u64>,
    /// Executors whose tasks these are.
    pub executor_ids: BTreeSet<String>,
    /// The tasks.
    pub ended: Vec<EndedTask>,
    /// Nanoseconds of waits, and bytes, by the host that sent shuffle blocks.
    pub(crate) senders: BTreeMap<String, (u64, u64)>,
}

impl StageTasks {
    /// Hosts that sent shuffle blocks, by the time that these tasks waited for them: those of the waits that the daemon
    /// still has.
    #[must_use]
    pub fn senders(&self) -> Vec<Sender> {
        let each = self.senders.iter();
        let mut all: Vec<Sender> = each
            .map(|(host, (wait, bytes))| Sender {
                host: host.clone(),
                wait: *wait as f64 / 1e6,
                bytes: *bytes as f64,
            })
            .collect();
        sort_by(&mut all, |left, right| right.wait.total_cmp(&left.wait));
        all
    }

    fn sent(&mut self, host: &str, wait_ns: u64, bytes: u64) {
        if let Some(known) = self.senders.get_mut(host) {
            known.0 = known.0.saturating_add(wait_ns);
            known.1 = known.1.saturating_add(bytes);
        } else if self.senders.len() < SENDERS {
            self.senders.insert(host.to_owned(), (wait_ns, bytes));
        }
    }

    /// Adds the hosts for whose blocks a task waited, and those that sent blocks.
    fn add_senders(&mut self, executor: &Executor, task: &Task) {
        let (Some(functions), Some(own)) = (task.functions(), task.thread()) else {
            return;
        };
        let tasks = &executor.tasks;
        for span in functions.spans() {
            if span.tid == own
                && span.activity == Activity::SHUFFLE_FETCH.0
                && let Some(host) = tasks.function(span).and_then(sender_of)
            {
                self.sent(host, span.own_ns, 0);
            }
        }
        for request in functions.fetches.kept() {
            if let Some((address, _)) = tasks.source(request) {
                self.sent(host_of(address), 0, request.bytes);
            }
        }
    }
}

/// Whether the executor reports waits for shuffle blocks. Names of hooks can be cut off.
fn measures_waits(executor: &Executor) -> bool {
    executor.described.as_ref().is_some_and(|said| {
        let names = || said.missing_hook_names.split(',').map(str::trim);
        let named = names().filter(|name| !name.is_empty()).count() as u64;
        said.missing_hooks <= named && !names().any(|name| WAITS.contains(&name))
    })
}

/// A task that has returned its result and whose start was seen, and whether its waits are measured.
fn ended(task: &Task, has_waits: bool) -> Option<EndedTask> {
    let (Some(started), Some(start_ns), Some(end_ns)) = (task.started, task.start_ns, task.end_ns)
    else {
        return None;
    };
    if task.state != TaskState::Succeeded || task.start_is_late {
        return None;
    }
    let figures = &task.used.figures;
    let read = |name: [&str; 2]| {
        let metrics = figures.metrics?;
        let each = SPARK_METRICS.iter().zip(metrics);
        let wanted = each.filter(|(metric, _)| name.contains(metric));
        Some(wanted.fold(0, |sum: u64, (_, value)| sum.saturating_add(value)))
    };
    let time = |name: &str| {
        let at = SPARK_TIMES.iter().position(|time| *time == name)?;
        figures.times?.get(at).copied()
    };
    let fetch_wait_ns = task.thread().filter(|_| has_waits).map(|own| {
        let sums = task.functions().map_or(&[][..], |it| it.sums());
        sums.iter()
            .filter(|sum| sum.tid == own && sum.activity == Activity::SHUFFLE_FETCH.0)
            .fold(0, |all: u64, sum| all.saturating_add(sum.own_ns))
    });
    Some(EndedTask {
        partition: started.partition,
        start_ns,
        end_ns,
        run_ms: time("run_ms"),
        collection_ms: time("collection_ms"),
        bytes: read(["input_bytes", "shuffle_read_bytes"]),
        records: read(["input_records", "shuffle_read_records"]),
        fetch_wait_ns,
    })
}

/// An executor whose tasks are to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Its key.
    pub key: u64,
    /// Executors with the same right to the room that is left, this one with them.
    pub of: usize,
}

/// Collects the ended tasks of an application executor by executor.
#[derive(Clone, Debug)]
pub struct TasksByStage {
    stages: BTreeMap<StageKey, StageTasks>,
    /// Tasks that still have room.
    room: usize,
    /// Ended tasks that had no room.
    pub left_out: u64,
    /// Executors with such tasks that do not measure waits for shuffle blocks.
    pub without_waits: u64,
    /// Facts of executors with such tasks that found no room: spans may be among them.
    pub refused: u64,
}

impl Default for TasksByStage {
    fn default() -> Self {
        Self {
            stages: BTreeMap::new(),
            room: TASKS,
            left_out: 0,
            without_waits: 0,
            refused: 0,
        }
    }
}

impl TasksByStage {
    /// The stage attempts with their tasks.
    pub fn stages(&self) -> impl Iterator<Item = &StageTasks> {
        self.stages.values()
    }

    fn add_executor(&mut self, executor: &Executor, filter: &Filter, of: usize) {
        let said = executor.described.as_ref();
        let executor_id = said.map(|said| said.executor_id.as_str());
        let has_waits = measures_waits(executor);
        let before = self.room;
        let least = before - before / of.max(1);
        for task in executor.tasks.tasks.values() {
            let Some(key) = task.stage.filter(|key| filter.stage(Some(*key))) else {
                continue;
            };
            let Some(figures) = ended(task, has_waits) else {
                continue;
            };
            if self.room == least {
                self.left_out += 1;
                continue;
            }
            self.room -= 1;
            let of = self.stages.entry(key).or_insert_with(|| StageTasks {
                id: key.id,
                attempt: u32::from(key.attempt),
                ..StageTasks::default()
            });
            of.ended.push(figures);
            if let Some(id) = executor_id
                && !of.executor_ids.contains(id)
            {
                of.executor_ids.insert(id.to_owned());
                let row = executor.tasks.stages.get(&key);
                let said = row.and_then(|row| row.described.as_ref());
                if let Some(said) = said.filter(|_| of.name.is_none()) {
                    (of.name, of.tasks) = (Some(said.name.clone()), Some(said.tasks));
                }
            }
            of.add_senders(executor, task);
        }
        if self.room < before {
            self.without_waits += u64::from(!has_waits);
            self.refused = self.refused.saturating_add(executor.bytes_refused);
        }
    }
}

impl State {
    /// The executors of an application that the filter selects, in the order in which their tasks are to be added: living
    /// ones first, of these and of the others those with the fewest tasks first. What they leave of their parts is for
    /// those after them.
    #[must_use]
    pub fn turns(&self, application: &ApplicationKey, filter: &Filter) -> Vec<Turn> {
        let names = self.names();
        let all = self.executors().iter();
        let all = all.filter(|(key, executor)| {
            application.has(executor) && filter.executor(**key, executor, &names)
        });
        let mut order: Vec<(bool, usize, u64)> = all
            .map(|(key, executor)| (executor.died_ns.is_some(), executor.tasks.tasks.len(), *key))
            .collect();
        sort_by(&mut order, Ord::cmp);
        let of = |is_dead: bool| order.iter().filter(|it| it.0 == is_dead).count();
        let mut left = [of(false), of(true)];
        let mut turns = Vec::with_capacity(order.len());
        for (is_dead, _, key) in &order {
            let left = &mut left[usize::from(*is_dead)];
            turns.push(Turn {
                key: *key,
                of: *left,
            });
            *left -= 1;
        }
        turns
    }

    /// Adds the ended tasks of an executor, if the filter selects it: one pass over its tasks, without a sort.
    pub fn add_ended_tasks(&self, filter: &Filter, turn: Turn, tasks: &mut TasksByStage) {
        let filter = Filter {
            key: Some(turn.key),
            ..filter.clone()
        };
        self.listing::<()>(&filter, |_, executor, _| {
            tasks.add_executor(executor, &filter, turn.of);
        });
    }
}

#[cfg(test)]
impl TasksByStage {
    /// With room for so many tasks.
    pub(crate) fn with_room(room: usize) -> Self {
        Self {
            room,
            ..Self::default()
        }
    }

    /// Of known stages.
    pub(crate) fn of(stages: impl IntoIterator<Item = StageTasks>) -> Self {
        let key = |it: &StageTasks| StageKey {
            id: it.id,
            attempt: it.attempt as u16,
        };
        Self {
            stages: stages.into_iter().map(|it| (key(&it), it)).collect(),
            ..Self::default()
        }
    }
}

#[cfg(test)]
impl StageTasks {
    /// With hosts that sent blocks, with milliseconds of waits and bytes.
    pub(crate) fn with_senders(mut self, hosts: &[(&str, u64, u64)]) -> Self {
        for (host, ms, bytes) in hosts {
            self.sent(host, ms * 1_000_000, *bytes);
        }
        self
    }
}
