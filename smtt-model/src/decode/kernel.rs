//! Decoder for records of the kernel side: fixed structs of `smtt-common`, read field by field.

use smtt_common::counter::ContextKey;
use smtt_common::event::Kind;
use smtt_common::event::exit::REASON_EXEC;
use smtt_common::event::fault::{ACCESS_UNKNOWN, ACCESS_WRITE};
use smtt_common::event::used::{ACCOUNTS, TaskUsed, WorkerUsed};

use super::fields::Reader;
use super::{DecodeError, Fact, death};

/// Decodes the payload of a kernel-side record.
pub(super) fn decode(kind: Kind, payload: &[u8]) -> Result<Fact, DecodeError> {
    let mut reader = Reader::new(payload);
    let fact = match kind {
        Kind::PROCESS_FORKED => forked(&mut reader),
        Kind::PROCESS_GONE => gone(&mut reader),
        Kind::SIGNAL_SENT => death::signal(&mut reader),
        Kind::OOM_KILLED => death::oom(&mut reader),
        Kind::TASK_USED => used(&mut reader).map(|used| Fact::TaskUsed(Box::new(used))),
        Kind::WORKER_USED => worker_used(&mut reader).map(|used| Fact::WorkerUsed(Box::new(used))),
        Kind::FAULT_SAMPLE => {
            sample(&mut reader).map(|(address, write, context)| Fact::FaultSample {
                address,
                write,
                context,
            })
        }
        Kind::WALK_SAMPLE => {
            sample(&mut reader).map(|(address, write, context)| Fact::WalkSample {
                address,
                write,
                context,
            })
        }
        other => return Err(DecodeError::UnknownKind(other.0)),
    };
    fact.ok_or(DecodeError::Truncated {
        kind,
        field: "payload",
    })
}

fn forked(reader: &mut Reader<'_>) -> Option<Fact> {
    let child_pid = reader.u32()?;
    let _reserved = reader.u32()?;
    Some(Fact::ProcessForked { child_pid })
}

fn gone(reader: &mut Reader<'_>) -> Option<Fact> {
    let reason = reader.u32()?;
    let is_executor = reader.u32()?;
    Some(Fact::ProcessGone {
        exec: reason == REASON_EXEC,
        is_executor: is_executor == 1,
        end: death::end(reader)?.map(Box::new),
    })
}

fn used(reader: &mut Reader<'_>) -> Option<TaskUsed> {
    let task_attempt_id = reader.u64()?;
    let mut accounts = [0; ACCOUNTS];
    for account in &mut accounts {
        *account = reader.u64()?;
    }
    Some(TaskUsed {
        task_attempt_id,
        accounts,
        duration_ns: reader.u64()?,
        present: reader.u32()?,
        flags: reader.u32()?,
    })
}

fn worker_used(reader: &mut Reader<'_>) -> Option<WorkerUsed> {
    Some(WorkerUsed {
        used: used(reader)?,
        pid: reader.u32()?,
        reserved: reader.u32()?,
    })
}

/// Address of a sampled access, whether it was a write, and its context.
fn sample(reader: &mut Reader<'_>) -> Option<(u64, Option<bool>, Option<ContextKey>)> {
    let address = reader.u64()?;
    let access = reader.u32()?;
    let _reserved = reader.u32()?;
    let context = ContextKey {
        executor: reader.u64()?,
        task_attempt_id: reader.u64()?,
        stage_id: reader.u32()?,
        rdd_plus_one: reader.u32()?,
        stage_attempt: reader.u16()?,
        activity: reader.u8()?,
        access_region: reader.u8()?,
        reserved: reader.u32()?,
    };
    Some((
        address,
        (access & ACCESS_UNKNOWN == 0).then_some(access & ACCESS_WRITE != 0),
        (context != ContextKey::default()).then_some(context),
    ))
}
