//! Chooses the decoder of a marker's fact by its kind.

use smtt_common::event::used::{BEGUN_LATE, Helper};
use smtt_common::event::{Kind, Schema};

use super::fetch::fetched;
use super::fields::Fields;
use super::memory::{memory_reported, peaks_reported};
use super::metrics::task_metrics;
use super::{
    DecodeError, Fact, ThreadFact, block, death, execution_memory, executor, rdd, stage, task,
};

/// Decodes the payload of a marker's fact. Also returns the number of strings that were longer than the marker sends.
pub(super) fn decode(schema: &'static Schema, payload: &[u8]) -> Result<(Fact, u32), DecodeError> {
    let mut fields = Fields::split(schema, payload)?;
    let fact = fact(schema, &mut fields)?;
    Ok((fact, fields.cut()))
}

fn fact(schema: &'static Schema, fields: &mut Fields<'_>) -> Result<Fact, DecodeError> {
    Ok(match schema.kind {
        Kind::EXECUTOR_DESCRIBED => Fact::ExecutorDescribed(Box::new(executor::executor(fields))),
        Kind::THREAD_REGISTERED => Fact::ThreadRegistered(ThreadFact {
            name: fields.text("thread_name"),
            ..executor::thread(fields)?
        }),
        Kind::THREAD_GONE => Fact::ThreadGone(executor::thread(fields)?),
        Kind::RDD_DESCRIBED => Fact::RddDescribed(Box::new(rdd::rdd(fields)?)),
        Kind::STAGE_DESCRIBED => Fact::StageDescribed(stage::stage(fields)?),
        Kind::JOB_DESCRIBED => Fact::JobDescribed(stage::job(fields)?),
        Kind::TASK_STARTED => Fact::TaskStarted(task::started(fields)?),
        Kind::TASK_ENDED => Fact::TaskEnded(task::ended(fields)?),
        Kind::TASK_BEGUN => Fact::TaskBegun {
            task_attempt_id: fields.long_id("task_attempt_id")?,
            late: fields.word("flags") & BEGUN_LATE != 0,
        },
        Kind::TASK_HEAP => Fact::TaskHeap(task::heap(fields)?),
        Kind::TASK_METRICS => task_metrics(fields)?,
        Kind::SHUFFLE_FETCHED => fetched(fields)?,
        Kind::COLLECTOR_PAUSED => Fact::Paused(executor::paused(fields)),
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
        Kind::BLOCK_STORED => Fact::BlockStored(Box::new(block::block(fields)?)),
        Kind::BLOCK_MOVED => Fact::BlockMoved(Box::new(block::block(fields)?)),
        Kind::BLOCK_READ => Fact::BlockRead(block::read(fields)?),
        Kind::BLOCK_REMOVED => Fact::BlockRemoved(block::removed(fields)?),
        Kind::PAGE_ALLOCATED => Fact::PageAllocated(execution_memory::allocated(fields)?),
        Kind::PAGE_FREED => Fact::PageFreed(execution_memory::freed(fields)),
        Kind::CONSUMER_USED => Fact::ConsumerUsed(execution_memory::used(fields)),
        Kind::SPAN => Fact::Span(task::span(fields)?),
        Kind::PYTHON_WORKER => Fact::PythonWorker(task::python_worker(fields)?),
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
