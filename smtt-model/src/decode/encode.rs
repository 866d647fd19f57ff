//! The decoder's counterpart, for code that makes records: replay tests, the test harness, the native workload.

use smtt_common::context::Activity;
use smtt_common::counter::ContextKey;
use smtt_common::event::death::FROM_KERNEL;
use smtt_common::event::exit::{NAME_LENGTH, REASON_EXEC, REASON_EXIT};
use smtt_common::event::fault::{ACCESS_UNKNOWN, ACCESS_WRITE};
use smtt_common::event::marker::{
    BLOCK_ARRAY, BLOCK_ON_HEAP, BLOCK_SAMPLED, BLOCK_SERIALIZED, BLOCK_WITHOUT_TASK,
    CONSUMER_ESTIMATED, EXHAUSTED_BY_JVM, EXHAUSTED_UNCAUGHT, PAGE_ACTIVITY_SHIFT, PAGE_ON_HEAP,
    REPORTED_AGAIN, outcome,
};
use smtt_common::event::memory::{MEMORY_EXAMINED, OVERHEAD_IS_DEFAULT};
use smtt_common::event::used::{BEGUN_LATE, TaskUsed};
use smtt_common::event::{Kind, RecordHeader};

use super::{BlockFact, Event, Fact, Outcome, SPARK_TIMES, ThreadFact};

/// A payload in the simple form of the marker's facts. The caller gives words, ranges and strings in the order of
/// the schema; `range_count` is one of the words. Strings longer than 65,535 bytes are cut.
#[must_use]
pub fn payload(words: &[u64], ranges: &[(u64, u64)], strings: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in words {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    for (address, length) in ranges {
        bytes.extend_from_slice(&address.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
    }
    for string in strings {
        let mut end = string.len().min(usize::from(u16::MAX));
        while !string.is_char_boundary(end) {
            end -= 1;
        }
        bytes.extend_from_slice(&u16::try_from(end).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend_from_slice(&string.as_bytes()[..end]);
    }
    bytes
}

/// The record of an event: `decode` of it gives the event again.
#[must_use]
pub fn encode(event: &Event) -> (RecordHeader, Vec<u8>) {
    let (kind, payload) = encode_fact(&event.fact);
    let node = match &event.fact {
        Fact::BlockRead(read) => read.node,
        _ => None,
    };
    let header = RecordHeader {
        kind: kind.0,
        node_plus_one: node.map_or(0, |node| node as u16 + 1),
        payload_bytes: u32::try_from(payload.len()).unwrap_or(u32::MAX),
        time_ns: event.time_ns,
        executor: event.executor,
        pid: event.pid,
        tid: event.tid,
        uid: event.uid,
        reserved: 0,
    };
    (header, payload)
}

fn digits(value: Option<u64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn id(value: Option<u32>) -> u64 {
    value.map_or(u64::MAX, u64::from)
}

fn page_activity(activity: Option<Activity>) -> u64 {
    u64::from(activity.unwrap_or_default().0) << PAGE_ACTIVITY_SHIFT
}

fn long_id(value: Option<u64>) -> u64 {
    value.unwrap_or(u64::MAX)
}

fn encode_fact(fact: &Fact) -> (Kind, Vec<u8>) {
    match fact {
        Fact::ExecutorDescribed(executor) => (
            Kind::EXECUTOR_DESCRIBED,
            payload(
                &[
                    executor.slots_address,
                    executor.slot_count,
                    executor.start_unix_ms,
                    executor.heap_max_bytes,
                    executor.missing_hooks,
                    executor.flags,
                ],
                &[],
                &[
                    &executor.application_id,
                    &executor.application_name,
                    &executor.executor_id,
                    &executor.host,
                    &executor.spark_version,
                    &executor.java_version,
                    &executor.missing_hook_names,
                    &executor.application_attempt_id,
                    &executor.queue,
                    &executor.kubernetes_namespace,
                    &executor.kubernetes_pod,
                ],
            ),
        ),
        Fact::ThreadRegistered(thread) => (
            Kind::THREAD_REGISTERED,
            payload(&thread_words(thread), &[], &[&thread.name]),
        ),
        Fact::ThreadGone(thread) => (Kind::THREAD_GONE, payload(&thread_words(thread), &[], &[])),
        Fact::RddDescribed(rdd) => {
            let parents: Vec<String> = rdd.parents.iter().map(ToString::to_string).collect();
            (
                Kind::RDD_DESCRIBED,
                payload(
                    &[u64::from(rdd.rdd_id), rdd.partitions, rdd.storage_level],
                    &[],
                    &[
                        &rdd.name,
                        &rdd.call_site,
                        &rdd.storage_level_text,
                        &parents.join(","),
                        &rdd.node,
                        &rdd.node_id,
                    ],
                ),
            )
        }
        Fact::StageDescribed(stage) => (
            Kind::STAGE_DESCRIBED,
            payload(
                &[
                    u64::from(stage.stage_id),
                    u64::from(stage.stage_attempt),
                    stage.tasks,
                    id(stage.job_id),
                    id(stage.rdd_id),
                ],
                &[],
                &[
                    &stage.name,
                    &digits(stage.sql_execution_id),
                    &stage.sql_description,
                    &stage.job_description,
                    &digits(stage.submitted_unix_ms),
                    &digits(stage.completed_unix_ms),
                    &stage.failure,
                ],
            ),
        ),
        Fact::JobDescribed(job) => (
            Kind::JOB_DESCRIBED,
            payload(
                &[
                    u64::from(job.job_id),
                    job.started_unix_ms,
                    job.ended_unix_ms.unwrap_or(u64::MAX),
                    job.sql_execution_id.unwrap_or(u64::MAX),
                ],
                &[],
                &[&job.failure],
            ),
        ),
        Fact::TaskStarted(task) => (
            Kind::TASK_STARTED,
            payload(
                &[
                    task.task_attempt_id,
                    u64::from(task.stage_id),
                    u64::from(task.stage_attempt),
                    u64::from(task.partition),
                    u64::from(task.attempt_number),
                    id(task.job_id),
                ],
                &[],
                &[],
            ),
        ),
        Fact::TaskEnded(task) => (
            Kind::TASK_ENDED,
            payload(
                &[
                    task.task_attempt_id,
                    u64::from(task.stage_id),
                    u64::from(task.stage_attempt),
                    match task.outcome {
                        Outcome::Succeeded => outcome::SUCCESS,
                        Outcome::Failed => outcome::FAILED,
                        Outcome::Killed => outcome::KILLED,
                    },
                    task.execution_memory_peak_bytes,
                ],
                &[],
                &[&task.reason],
            ),
        ),
        Fact::BlockStored(block) => (Kind::BLOCK_STORED, block_payload(block)),
        Fact::BlockMoved(block) => (Kind::BLOCK_MOVED, block_payload(block)),
        Fact::BlockRead(block) => (
            Kind::BLOCK_READ,
            payload(
                &[
                    id(block.rdd_id),
                    id(block.partition),
                    long_id(block.task_attempt_id),
                ],
                &[],
                &[&block.block_id],
            ),
        ),
        Fact::BlockRemoved(block) => (
            Kind::BLOCK_REMOVED,
            payload(
                &[id(block.rdd_id), id(block.partition)],
                &[],
                &[
                    &block.block_id,
                    &block.activity.unwrap_or_default().0.to_string(),
                ],
            ),
        ),
        Fact::PageAllocated(page) => (
            Kind::PAGE_ALLOCATED,
            payload(
                &[
                    long_id(page.task_attempt_id),
                    long_id(page.page_number),
                    page.address,
                    page.size_bytes,
                    flag(page.on_heap, PAGE_ON_HEAP)
                        | flag(page.reported_again, REPORTED_AGAIN)
                        | page_activity(page.activity),
                    id(page.rdd_id),
                    id(page.stage_id),
                ],
                &[],
                &[&page.consumer],
            ),
        ),
        Fact::PageFreed(page) => (
            Kind::PAGE_FREED,
            payload(
                &[
                    long_id(page.task_attempt_id),
                    long_id(page.page_number),
                    page.address,
                    page.size_bytes,
                    flag(page.on_heap, PAGE_ON_HEAP) | page_activity(page.activity),
                ],
                &[],
                &[&page.consumer],
            ),
        ),
        Fact::ConsumerUsed(used) => (
            Kind::CONSUMER_USED,
            payload(
                &[
                    long_id(used.task_attempt_id),
                    used.instances,
                    used.peak_bytes,
                    long_id(used.counted_bytes),
                    flag(used.estimated, CONSUMER_ESTIMATED),
                ],
                &[],
                &[&used.consumer],
            ),
        ),
        Fact::Span(span) => (
            Kind::SPAN,
            payload(
                &[
                    long_id(span.task_attempt_id),
                    u64::from(span.activity),
                    span.start_monotonic_ns,
                    span.duration_ns,
                    id(span.rdd_id),
                ],
                &[],
                &[&span.name],
            ),
        ),
        Fact::Fetched(fetched) => (
            Kind::SHUFFLE_FETCHED,
            payload(
                &[
                    fetched.task_attempt_id,
                    fetched.start_monotonic_ns,
                    fetched.duration_ns,
                    fetched.requests,
                    fetched.blocks,
                    fetched.arrived_blocks,
                    fetched.failed_blocks,
                    fetched.arrived_bytes,
                ],
                &[],
                &[&fetched.address, &fetched.executor_id],
            ),
        ),
        Fact::Paused(paused) => (
            Kind::COLLECTOR_PAUSED,
            payload(
                &[paused.number, paused.age_ns, long_id(paused.duration_ns)],
                &[],
                &[],
            ),
        ),
        Fact::PythonWorker(worker) => (
            Kind::PYTHON_WORKER,
            payload(
                &[
                    u64::from(worker.pid),
                    long_id(worker.task_attempt_id),
                    worker.hot,
                    id(worker.stage_id),
                    u64::from(worker.stage_attempt),
                ],
                &[],
                &[],
            ),
        ),
        Fact::AddressesReported {
            collection,
            moved_facts,
        } => (
            Kind::ADDRESSES_TOLD,
            payload(&[*collection, *moved_facts, 0], &[], &[]),
        ),
        Fact::ResyncReported { request, facts } => {
            (Kind::RESYNC_TOLD, payload(&[*request, *facts], &[], &[]))
        }
        Fact::ResyncDone { request } => (Kind::RESYNC_DONE, payload(&[*request], &[], &[])),
        Fact::TaskBegun {
            task_attempt_id,
            late,
        } => (
            Kind::TASK_BEGUN,
            payload(&[*task_attempt_id, flag(*late, BEGUN_LATE)], &[], &[]),
        ),
        Fact::TaskHeap(heap) => (
            Kind::TASK_HEAP,
            payload(
                &[
                    heap.task_attempt_id,
                    long_id(heap.allocated_bytes),
                    long_id(heap.collection_ms),
                ],
                &[],
                &[],
            ),
        ),
        Fact::TaskMetrics(metrics) => {
            let mut words = vec![metrics.task_attempt_id];
            words.extend(metrics.values);
            words.extend(metrics.times.unwrap_or([u64::MAX; SPARK_TIMES.len()]));
            (Kind::TASK_METRICS, payload(&words, &[], &[]))
        }
        Fact::TaskHeapSoFar {
            task_attempt_id,
            allocated_bytes,
        } => (
            Kind::TASK_HEAP_SO_FAR,
            payload(&[*task_attempt_id, *allocated_bytes], &[], &[]),
        ),
        Fact::HelperBegun {
            task_attempt_id,
            helper,
        } => (
            Kind::HELPER_BEGUN,
            payload(&[*task_attempt_id, u64::from(helper.0)], &[], &[]),
        ),
        Fact::HelperEnded {
            task_attempt_id,
            helper,
            allocated_bytes,
        } => {
            let words = [
                *task_attempt_id,
                u64::from(helper.0),
                long_id(*allocated_bytes),
            ];
            (Kind::HELPER_ENDED, payload(&words, &[], &[]))
        }
        Fact::MemoryReported(told) => (
            Kind::MEMORY_TOLD,
            payload(
                &[
                    flag(told.examined, MEMORY_EXAMINED)
                        | flag(told.overhead_is_default, OVERHEAD_IS_DEFAULT),
                    told.figures.len() as u64,
                ],
                &super::memory::pairs(&told.figures),
                &[],
            ),
        ),
        Fact::PeaksReported(told) => (
            Kind::PEAKS_TOLD,
            payload(
                &[
                    id(told.stage.map(|(stage, _)| stage)),
                    id(told.stage.map(|(_, attempt)| attempt)),
                    told.figures.len() as u64,
                ],
                &super::memory::pairs(&told.figures),
                &[],
            ),
        ),
        Fact::TaskUsed(used) => (Kind::TASK_USED, used_payload(used)),
        Fact::WorkerUsed(worker) => {
            let mut bytes = used_payload(&worker.used);
            bytes.extend(words32(&[worker.pid, worker.reserved]));
            (Kind::WORKER_USED, bytes)
        }
        Fact::ProcessForked { child_pid } => (Kind::PROCESS_FORKED, words32(&[*child_pid, 0])),
        Fact::ProcessGone {
            exec,
            is_executor,
            end,
        } => {
            let reason = if *exec { REASON_EXEC } else { REASON_EXIT };
            let known = u32::from(end.is_some());
            let end = end.as_deref().cloned().unwrap_or_default();
            let mut bytes = words32(&[reason, u32::from(*is_executor), end.status, known]);
            bytes.extend(end.peak_rss_bytes.to_le_bytes());
            bytes.extend(name(&end.name));
            (Kind::PROCESS_GONE, bytes)
        }
        Fact::SignalSent(sent) => {
            let mut bytes = words32(&[
                sent.target_pid,
                u32::from(sent.is_executor),
                sent.signal,
                if sent.from_kernel { FROM_KERNEL } else { 0 },
                sent.sender_pid,
                sent.sender_uid,
            ]);
            bytes.extend(name(&sent.sender_name));
            (Kind::SIGNAL_SENT, bytes)
        }
        Fact::OomKilled(killed) => (
            Kind::OOM_KILLED,
            words32(&[killed.victim_pid, u32::from(killed.is_executor)]),
        ),
        Fact::Exhausted(exhausted) => {
            let source = if exhausted.uncaught {
                EXHAUSTED_UNCAUGHT
            } else {
                EXHAUSTED_BY_JVM
            };
            let words = [source, exhausted.flags];
            let text = payload(&words, &[], &[&exhausted.description]);
            (Kind::RESOURCE_EXHAUSTED, text)
        }
        Fact::FaultSample {
            address,
            write,
            context,
        } => (
            Kind::FAULT_SAMPLE,
            sample(*address, *write, context.as_ref()),
        ),
        Fact::WalkSample {
            address,
            write,
            context,
        } => (
            Kind::WALK_SAMPLE,
            sample(*address, *write, context.as_ref()),
        ),
    }
}

const fn flag(set: bool, bit: u64) -> u64 {
    if set { bit } else { 0 }
}

fn thread_words(thread: &ThreadFact) -> [u64; 3] {
    [
        thread.slot_address,
        u64::from(thread.tid),
        thread.generation,
    ]
}

fn block_payload(block: &BlockFact) -> Vec<u8> {
    payload(
        &[
            id(block.rdd_id),
            id(block.partition),
            block.size_bytes,
            flag(block.on_heap, BLOCK_ON_HEAP)
                | flag(block.serialized, BLOCK_SERIALIZED)
                | flag(block.sampled, BLOCK_SAMPLED)
                | flag(block.array, BLOCK_ARRAY)
                | flag(block.without_task, BLOCK_WITHOUT_TASK)
                | flag(block.reported_again, REPORTED_AGAIN),
            long_id(block.task_attempt_id),
            block.range_total,
            block.range_first,
            block.ranges.len() as u64,
        ],
        &block.ranges,
        &[&block.block_id],
    )
}

fn used_payload(used: &TaskUsed) -> Vec<u8> {
    let words = [
        &[used.task_attempt_id][..],
        &used.accounts,
        &[used.duration_ns],
    ];
    let mut bytes = payload(&words.concat(), &[], &[]);
    bytes.extend(words32(&[used.present, used.flags]));
    bytes
}

/// A command name, padded with zeros.
fn name(text: &str) -> [u8; NAME_LENGTH] {
    let mut name = [0; NAME_LENGTH];
    for (place, byte) in name.iter_mut().zip(text.bytes()) {
        *place = byte;
    }
    name
}

fn words32(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn sample(address: u64, write: Option<bool>, context: Option<&ContextKey>) -> Vec<u8> {
    let access = match write {
        Some(true) => ACCESS_WRITE,
        Some(false) => 0,
        None => ACCESS_UNKNOWN,
    };
    let context = context.copied().unwrap_or_default();
    let mut bytes = address.to_le_bytes().to_vec();
    bytes.extend(words32(&[access, 0]));
    bytes.extend(context.executor.to_le_bytes());
    bytes.extend(context.task_attempt_id.to_le_bytes());
    bytes.extend(words32(&[context.stage_id, context.rdd_plus_one]));
    bytes.extend(context.stage_attempt.to_le_bytes());
    bytes.extend([context.activity, context.access_region]);
    bytes.extend(context.reserved.to_le_bytes());
    bytes
}
