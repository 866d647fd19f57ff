//! Facts about execution memory, and their decoders.

use smtt_common::context::Activity;
use smtt_common::event::marker::{
    CONSUMER_ESTIMATED, PAGE_ACTIVITY_SHIFT, PAGE_ON_HEAP, REPORTED_AGAIN,
};

use super::DecodeError;
use super::fields::{Fields, activity};

/// See [`Kind::PAGE_ALLOCATED`](smtt_common::event::Kind::PAGE_ALLOCATED).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageAllocated {
    /// Task attempt that owns the memory.
    pub task_attempt_id: Option<u64>,
    /// Page number in the task's page table; `None` for a grant without a Spark page.
    pub page_number: Option<u64>,
    /// Address of the memory; zero where it has none.
    pub address: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Whether the memory is on the Java heap.
    pub on_heap: bool,
    /// Whether the fact belongs to a resync and is not new.
    pub reported_again: bool,
    /// RDD that was current at the allocation.
    pub rdd_id: Option<u32>,
    /// Stage of the task.
    pub stage_id: Option<u32>,
    /// Class of the consumer that allocated the memory.
    pub consumer: String,
    /// Activity of the allocating thread; `None` where it was idle or unknown.
    pub activity: Option<Activity>,
}

/// See [`Kind::PAGE_FREED`](smtt_common::event::Kind::PAGE_FREED).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageFreed {
    /// Task attempt that owned the memory.
    pub task_attempt_id: Option<u64>,
    /// Page number in the task's page table; `None` for a grant without a Spark page.
    pub page_number: Option<u64>,
    /// Address of the memory; zero where it had none.
    pub address: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Whether the memory was on the Java heap.
    pub on_heap: bool,
    /// Class of the consumer that had allocated the memory.
    pub consumer: String,
    /// Activity of the freeing thread; `None` where it was idle or unknown.
    pub activity: Option<Activity>,
}

/// See [`Kind::CONSUMER_USED`](smtt_common::event::Kind::CONSUMER_USED).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerUsed {
    /// Task attempt that the consumers worked for.
    pub task_attempt_id: Option<u64>,
    /// Number of consumers of this class.
    pub instances: u64,
    /// Sum of the consumers' peaks, in bytes.
    pub peak_bytes: u64,
    /// Bytes of these consumers that Spark counts into the task's `peakExecutionMemory`; `None` where the marker did
    /// not see it.
    pub counted_bytes: Option<u64>,
    /// Whether `counted_bytes` is Spark's estimate of the size of objects.
    pub estimated: bool,
    /// Class of the consumers.
    pub consumer: String,
}

pub(super) fn allocated(fields: &Fields<'_>) -> Result<PageAllocated, DecodeError> {
    let flags = fields.word("flags");
    Ok(PageAllocated {
        task_attempt_id: fields.optional("task_attempt_id"),
        page_number: fields.optional("page_number"),
        address: fields.word("address"),
        size_bytes: fields.word("size_bytes"),
        on_heap: flags & PAGE_ON_HEAP != 0,
        reported_again: flags & REPORTED_AGAIN != 0,
        rdd_id: fields.optional_id("rdd_id")?,
        stage_id: fields.optional_id("stage_id")?,
        consumer: fields.text("consumer"),
        activity: page_activity(flags),
    })
}

pub(super) fn freed(fields: &Fields<'_>) -> PageFreed {
    let flags = fields.word("flags");
    PageFreed {
        task_attempt_id: fields.optional("task_attempt_id"),
        page_number: fields.optional("page_number"),
        address: fields.word("address"),
        size_bytes: fields.word("size_bytes"),
        on_heap: flags & PAGE_ON_HEAP != 0,
        consumer: fields.text("consumer"),
        activity: page_activity(flags),
    }
}

pub(super) fn used(fields: &Fields<'_>) -> ConsumerUsed {
    ConsumerUsed {
        task_attempt_id: fields.optional("task_attempt_id"),
        instances: fields.word("instances"),
        peak_bytes: fields.word("peak_bytes"),
        counted_bytes: fields.optional("counted_bytes"),
        estimated: fields.word("flags") & CONSUMER_ESTIMATED != 0,
        consumer: fields.text("consumer"),
    }
}

fn page_activity(flags: u64) -> Option<Activity> {
    activity((flags >> PAGE_ACTIVITY_SHIFT) as u8)
}
