//! Replays of event sequences against the views: each event goes through the bytes of its record, as on the ring.

mod bytes;
mod deaths;
mod ended_tasks;
mod execution;
mod fetches;
mod functions;
mod heap;
mod history;
mod hostile;
mod life;
mod page_walks;
mod pauses;
mod placement;
mod python;
mod replay;
mod running;
mod samples;
mod summaries;

use super::*;
use smtt_common::context::{Access, Activity, Region};
use smtt_common::counter::ContextKey;
use smtt_common::event::marker::storage_level;
use smtt_common::settings::executor_key;

use crate::decode::encode::encode;
use crate::decode::{
    BlockFact, ExecutorDescribed, Outcome as TaskOutcome, PageAllocated, PageFreed, RddDescribed,
    TaskEnded, TaskStarted, decode,
};
use crate::rows::{Filter, RddRow, TaskRow};

thread_local! {
    /// Calls of `Executor::last_moment` by this thread.
    pub(super) static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

/// The key of executor `n`, with process id 100 + n.
fn key(n: u32) -> u64 {
    executor_key(100 + n, 50)
}

/// Gives a fact of executor `n` to the state, through its bytes.
fn tell(state: &mut State, n: u32, time_ns: u64, fact: Fact) -> Outcome {
    let event = Event {
        time_ns,
        executor: key(n),
        pid: 100 + n,
        tid: 100 + n,
        uid: 1000,
        fact,
    };
    let (header, payload) = encode(&event);
    let decoded = decode(&header, &payload).expect("what was encoded can be decoded");
    assert_eq!(decoded, event);
    state.apply(decoded)
}

fn described(application: &str, executor: &str) -> Fact {
    Fact::ExecutorDescribed(Box::new(ExecutorDescribed {
        application_id: application.to_owned(),
        application_name: "PageRank".to_owned(),
        executor_id: executor.to_owned(),
        spark_version: "4.0.5".to_owned(),
        ..ExecutorDescribed::default()
    }))
}

/// An executor of an attempt of an application.
fn described_attempt(application: &str, executor: &str, attempt: &str) -> Fact {
    let Fact::ExecutorDescribed(mut said) = described(application, executor) else {
        unreachable!("it describes an executor");
    };
    attempt.clone_into(&mut said.application_attempt_id);
    Fact::ExecutorDescribed(said)
}

fn rdd(id: u32, name: &str, level: &str) -> Fact {
    Fact::RddDescribed(Box::new(RddDescribed {
        rdd_id: id,
        partitions: 2,
        name: name.to_owned(),
        storage_level: if level.is_empty() {
            0
        } else {
            storage_level::MEMORY
        },
        storage_level_text: level.to_owned(),
        parents: vec![id.saturating_sub(1)],
        ..RddDescribed::default()
    }))
}

fn started(task: u64, stage: u32) -> Fact {
    let partition = u32::try_from(task).expect("small");
    Fact::TaskStarted(TaskStarted {
        task_attempt_id: task,
        stage_id: stage,
        partition,
        job_id: Some(0),
        ..TaskStarted::default()
    })
}

fn ended(task: u64, stage: u32, outcome: TaskOutcome) -> Fact {
    Fact::TaskEnded(TaskEnded {
        task_attempt_id: task,
        stage_id: stage,
        stage_attempt: 0,
        outcome,
        execution_memory_peak_bytes: 4096,
        reason: String::new(),
    })
}

fn block(rdd: u32, partition: u32, size_bytes: u64, ranges: &[(u64, u64)]) -> BlockFact {
    BlockFact {
        block_id: format!("rdd_{rdd}_{partition}"),
        rdd_id: Some(rdd),
        partition: Some(partition),
        size_bytes,
        on_heap: true,
        serialized: true,
        task_attempt_id: Some(1),
        range_total: ranges.len() as u64,
        ranges: ranges.to_vec(),
        ..BlockFact::default()
    }
}

fn stored(block: BlockFact) -> Fact {
    Fact::BlockStored(Box::new(block))
}

fn page(task: u64, number: Option<u64>, size_bytes: u64) -> PageAllocated {
    PageAllocated {
        task_attempt_id: Some(task),
        page_number: number,
        address: number.map_or(0, |number| 0x10_0000 * (number + 1)),
        size_bytes,
        rdd_id: Some(7),
        stage_id: Some(3),
        consumer: "Sorter".to_owned(),
        ..PageAllocated::default()
    }
}

fn freed(page: &PageAllocated) -> Fact {
    Fact::PageFreed(PageFreed {
        task_attempt_id: page.task_attempt_id,
        page_number: page.page_number,
        address: page.address,
        size_bytes: page.size_bytes,
        on_heap: page.on_heap,
        consumer: page.consumer.clone(),
        activity: None,
    })
}

/// A context of executor `n`; task `u64::MAX` and stage `u32::MAX` for none, `rdd` `None` for no RDD.
fn context(n: u32, task: u64, stage: u32, rdd: Option<u32>) -> ContextKey {
    ContextKey {
        executor: key(n),
        task_attempt_id: task,
        stage_id: stage,
        rdd_plus_one: rdd.map_or(0, |rdd| rdd + 1),
        stage_attempt: 0,
        activity: Activity::CACHE_READ.0,
        access_region: Access::READ.0 | (Region::STORAGE.0 << 4),
        reserved: 0,
    }
}

fn faults(read: u64, write: u64, major: u64) -> FaultCounters {
    FaultCounters {
        read,
        write,
        major,
        ..FaultCounters::default()
    }
}

fn readings(contexts: Vec<(ContextKey, FaultCounters)>) -> Readings {
    let mut executors: BTreeMap<u64, ExecutorCounters> = BTreeMap::new();
    for (context, growth) in &contexts {
        super::faults::add(
            &mut executors.entry(context.executor).or_default().attributed,
            growth,
        );
    }
    Readings {
        contexts,
        executors: executors.into_iter().collect(),
        access_known: true,
        major_known: true,
        ..Readings::default()
    }
}

fn state_with(limits: Limits) -> State {
    let mut state = State::new(limits);
    state.set_page_faults_measured(true);
    state
}

fn state() -> State {
    state_with(Limits::default())
}

fn rdds(state: &State) -> Vec<RddRow> {
    state.list_rdds(&Filter::default()).rows
}

fn the_rdd(state: &State, n: u32, id: u32) -> RddRow {
    let row = rdds(state)
        .into_iter()
        .find(|row| row.who.pid == 100 + n && row.rdd_id == Some(id));
    row.unwrap_or_else(|| panic!("no row of RDD {id} of executor {n}: {:?}", rdds(state)))
}

fn the_task(state: &State, id: u64) -> TaskRow {
    let row = state
        .list_tasks(&Filter::default())
        .rows
        .into_iter()
        .find(|row| row.task_attempt_id == Some(id));
    row.unwrap_or_else(|| panic!("no row of task {id}"))
}

fn filter(
    app: Option<&str>,
    executor: Option<&str>,
    rdd: Option<&str>,
    stage: Option<&str>,
) -> Filter {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    Filter {
        app: owned(app),
        executor: owned(executor),
        rdd: owned(rdd),
        stage: owned(stage),
        ..Filter::default()
    }
}
