//! Decoder for the marker's facts.

use smtt_common::context::Activity;
use smtt_common::event::marker::{
    BLOCK_ARRAY, BLOCK_ON_HEAP, BLOCK_SAMPLED, BLOCK_SERIALIZED, BLOCK_WITHOUT_TASK,
    CONSUMER_ESTIMATED, PAGE_ACTIVITY_SHIFT, PAGE_ON_HEAP, REPORTED_AGAIN, outcome,
};
use smtt_common::event::used::{BEGUN_LATE, Helper};
use smtt_common::event::{Kind, Schema};

use super::fetch::fetched;
use super::fields::Fields;
use super::memory::{memory_reported, peaks_reported};
use super::metrics::task_metrics;
use super::{
    BlockFact, BlockRead, BlockRemoved, ConsumerUsed, DecodeError, ExecutorDescribed, Fact,
    Outcome, PageAllocated, PageFreed, PythonWorker, RddDescribed, Span, StageDescribed, TaskEnded,
    TaskHeap, TaskStarted, ThreadFact, death,
};

/// Decodes the payload of a marker's fact. Also returns the number of strings that were longer than the marker sends.
pub(super) fn decode(schema: &'static Schema, payload: &[u8]) -> Result<(Fact, u32), DecodeError> {
    let mut fields = Fields::split(schema, payload)?;
    let fact = fact(schema, &mut fields)?;
    Ok((fact, fields.cut()))
}

fn fact(schema: &'static Schema, fields: &mut Fields<'_>) -> Result<Fact, DecodeError> {
    Ok(match schema.kind {
        Kind::EXECUTOR_DESCRIBED => Fact::ExecutorDescribed(Box::new(executor(fields))),
        Kind::THREAD_REGISTERED => Fact::ThreadRegistered(ThreadFact {
            name: fields.text("thread_name"),
            ..thread(fields)?
        }),
        Kind::THREAD_GONE => Fact::ThreadGone(thread(fields)?),
        Kind::RDD_DESCRIBED => Fact::RddDescribed(Box::new(rdd(fields)?)),
        Kind::STAGE_DESCRIBED => Fact::StageDescribed(StageDescribed {
            stage_id: fields.id("stage_id")?,
            stage_attempt: fields.id("stage_attempt")?,
            tasks: fields.word("tasks"),
            job_id: fields.optional_id("job_id")?,
            rdd_id: fields.optional_id("rdd_id")?,
            name: fields.text("name"),
            sql_execution_id: fields.text("sql_execution_id").parse().ok(),
            sql_description: fields.text("sql_description"),
            job_description: fields.text("job_description"),
        }),
        Kind::TASK_STARTED => Fact::TaskStarted(TaskStarted {
            task_attempt_id: fields.long_id("task_attempt_id")?,
            stage_id: fields.id("stage_id")?,
            stage_attempt: fields.id("stage_attempt")?,
            partition: fields.id("partition")?,
            attempt_number: fields.id("attempt_number")?,
            job_id: fields.optional_id("job_id")?,
        }),
        Kind::TASK_ENDED => Fact::TaskEnded(task_ended(fields)?),
        Kind::TASK_BEGUN => Fact::TaskBegun {
            task_attempt_id: fields.long_id("task_attempt_id")?,
            late: fields.word("flags") & BEGUN_LATE != 0,
        },
        Kind::TASK_HEAP => Fact::TaskHeap(TaskHeap {
            task_attempt_id: fields.long_id("task_attempt_id")?,
            allocated_bytes: fields.optional("allocated_bytes"),
            collection_ms: fields.optional("collection_ms"),
        }),
        Kind::TASK_METRICS => task_metrics(fields)?,
        Kind::SHUFFLE_FETCHED => fetched(fields)?,
        Kind::TASK_HEAP_SO_FAR => Fact::TaskHeapSoFar {
            task_attempt_id: fields.long_id("task_attempt_id")?,
            allocated_bytes: fields.word("allocated_bytes"),
        },
        Kind::HELPER_BEGUN => Fact::HelperBegun {
            task_attempt_id: fields.long_id("task_attempt_id")?,
            helper: Helper(fields.word("helper") as u8),
        },
        Kind::HELPER_ENDED => Fact::HelperEnded {
            task_attempt_id: fields.long_id("task_attempt_id")?,
            helper: Helper(fields.word("helper") as u8),
            allocated_bytes: fields.optional("allocated_bytes"),
        },
        Kind::RESOURCE_EXHAUSTED => Fact::Exhausted(Box::new(death::exhausted(fields))),
        Kind::MEMORY_TOLD => memory_reported(fields),
        Kind::PEAKS_TOLD => peaks_reported(fields)?,
        Kind::BLOCK_STORED => Fact::BlockStored(Box::new(block(fields)?)),
        Kind::BLOCK_MOVED => Fact::BlockMoved(Box::new(block(fields)?)),
        Kind::BLOCK_READ => Fact::BlockRead(BlockRead {
            block_id: fields.text("block_id"),
            rdd_id: fields.optional_id("rdd_id")?,
            partition: fields.optional_id("partition")?,
            task_attempt_id: fields.optional("task_attempt_id"),
            node: None,
        }),
        Kind::BLOCK_REMOVED => Fact::BlockRemoved(BlockRemoved {
            block_id: fields.text("block_id"),
            rdd_id: fields.optional_id("rdd_id")?,
            partition: fields.optional_id("partition")?,
            activity: fields.text("activity").parse().ok().and_then(activity),
        }),
        Kind::PAGE_ALLOCATED => Fact::PageAllocated(PageAllocated {
            task_attempt_id: fields.optional("task_attempt_id"),
            page_number: fields.optional("page_number"),
            address: fields.word("address"),
            size_bytes: fields.word("size_bytes"),
            on_heap: fields.word("flags") & PAGE_ON_HEAP != 0,
            reported_again: fields.word("flags") & REPORTED_AGAIN != 0,
            rdd_id: fields.optional_id("rdd_id")?,
            stage_id: fields.optional_id("stage_id")?,
            consumer: fields.text("consumer"),
            activity: page_activity(fields),
        }),
        Kind::PAGE_FREED => Fact::PageFreed(PageFreed {
            task_attempt_id: fields.optional("task_attempt_id"),
            page_number: fields.optional("page_number"),
            address: fields.word("address"),
            size_bytes: fields.word("size_bytes"),
            on_heap: fields.word("flags") & PAGE_ON_HEAP != 0,
            consumer: fields.text("consumer"),
            activity: page_activity(fields),
        }),
        Kind::CONSUMER_USED => Fact::ConsumerUsed(ConsumerUsed {
            task_attempt_id: fields.optional("task_attempt_id"),
            instances: fields.word("instances"),
            peak_bytes: fields.word("peak_bytes"),
            counted_bytes: fields.optional("counted_bytes"),
            estimated: fields.word("flags") & CONSUMER_ESTIMATED != 0,
            consumer: fields.text("consumer"),
        }),
        Kind::SPAN => Fact::Span(Span {
            task_attempt_id: fields.optional("task_attempt_id"),
            activity: u8::try_from(fields.word("activity")).unwrap_or(u8::MAX),
            start_monotonic_ns: fields.word("start_monotonic_ns"),
            duration_ns: fields.word("duration_ns"),
            rdd_id: fields.optional_id("rdd_id")?,
            name: fields.text("name"),
        }),
        Kind::PYTHON_WORKER => Fact::PythonWorker(PythonWorker {
            pid: fields.id("pid")?,
            task_attempt_id: fields.optional("task_attempt_id"),
            hot: fields.word("hot"),
            stage_id: fields.optional_id("stage_id")?,
            // -1 where there is no stage.
            stage_attempt: fields.optional_id("stage_attempt")?.unwrap_or(0),
        }),
        Kind::RESYNC_DONE => Fact::ResyncDone {
            request: fields.word("request"),
        },
        Kind::RESYNC_TOLD => Fact::ResyncReported {
            request: fields.word("request"),
            facts: fields.word("facts"),
        },
        Kind::ADDRESSES_TOLD => Fact::AddressesReported {
            collection: fields.word("collection"),
            moved_facts: fields.word("moved_facts"),
        },
        other => return Err(DecodeError::UnknownKind(other.0)),
    })
}

/// The activity of a code; none where the thread was idle.
fn activity(code: u8) -> Option<Activity> {
    Some(Activity(code)).filter(|activity| *activity != Activity::IDLE)
}

fn page_activity(fields: &Fields<'_>) -> Option<Activity> {
    activity((fields.word("flags") >> PAGE_ACTIVITY_SHIFT) as u8)
}

fn executor(fields: &Fields<'_>) -> ExecutorDescribed {
    ExecutorDescribed {
        slots_address: fields.word("slots_address"),
        slot_count: fields.word("slot_count"),
        start_unix_ms: fields.word("start_unix_ms"),
        heap_max_bytes: fields.word("heap_max_bytes"),
        missing_hooks: fields.word("missing_hooks"),
        flags: fields.word("flags"),
        application_id: fields.text("application_id"),
        application_name: fields.text("application_name"),
        executor_id: fields.text("executor_id"),
        host: fields.text("host"),
        spark_version: fields.text("spark_version"),
        java_version: fields.text("java_version"),
        missing_hook_names: fields.text("missing_hook_names"),
        application_attempt_id: fields.text("application_attempt_id"),
        queue: fields.text("queue"),
        kubernetes_namespace: fields.text("kubernetes_namespace"),
        kubernetes_pod: fields.text("kubernetes_pod"),
    }
}

fn thread(fields: &Fields<'_>) -> Result<ThreadFact, DecodeError> {
    Ok(ThreadFact {
        slot_address: fields.word("slot_address"),
        tid: fields.id("tid")?,
        generation: fields.word("generation"),
        name: String::new(),
    })
}

fn rdd(fields: &Fields<'_>) -> Result<RddDescribed, DecodeError> {
    Ok(RddDescribed {
        rdd_id: fields.id("rdd_id")?,
        partitions: fields.word("partitions"),
        storage_level: fields.word("storage_level"),
        name: fields.text("name"),
        call_site: fields.text("call_site"),
        storage_level_text: fields.text("storage_level_text"),
        // The list may be truncated within a number; unreadable parts are left out.
        parents: fields
            .text("parents")
            .split(',')
            .filter_map(|id| id.trim().parse().ok())
            .collect(),
        node: fields.text("node"),
        node_id: fields.text("node_id"),
    })
}

fn task_ended(fields: &Fields<'_>) -> Result<TaskEnded, DecodeError> {
    Ok(TaskEnded {
        task_attempt_id: fields.long_id("task_attempt_id")?,
        stage_id: fields.id("stage_id")?,
        stage_attempt: fields.id("stage_attempt")?,
        outcome: match fields.word("outcome") {
            outcome::SUCCESS => Outcome::Succeeded,
            outcome::FAILED => Outcome::Failed,
            outcome::KILLED => Outcome::Killed,
            _ => {
                return Err(DecodeError::Invalid {
                    kind: Kind::TASK_ENDED,
                    field: "outcome",
                });
            }
        },
        execution_memory_peak_bytes: fields.word("execution_memory_peak_bytes"),
        reason: fields.text("reason"),
    })
}

fn block(fields: &mut Fields<'_>) -> Result<BlockFact, DecodeError> {
    let flags = fields.word("flags");
    Ok(BlockFact {
        block_id: fields.text("block_id"),
        rdd_id: fields.optional_id("rdd_id")?,
        partition: fields.optional_id("partition")?,
        size_bytes: fields.word("size_bytes"),
        on_heap: flags & BLOCK_ON_HEAP != 0,
        serialized: flags & BLOCK_SERIALIZED != 0,
        sampled: flags & BLOCK_SAMPLED != 0,
        array: flags & BLOCK_ARRAY != 0,
        without_task: flags & BLOCK_WITHOUT_TASK != 0,
        reported_again: flags & REPORTED_AGAIN != 0,
        task_attempt_id: fields.optional("task_attempt_id"),
        range_total: fields.word("range_total"),
        range_first: fields.word("range_first"),
        ranges: std::mem::take(&mut fields.ranges),
    })
}
