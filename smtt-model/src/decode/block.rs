//! Facts about cached blocks, and their decoders.

use serde::{Deserialize, Serialize};
use smtt_common::context::Activity;
use smtt_common::event::marker::{
    BLOCK_ARRAY, BLOCK_ON_HEAP, BLOCK_SAMPLED, BLOCK_SERIALIZED, BLOCK_WITHOUT_TASK, REPORTED_AGAIN,
};

use super::DecodeError;
use super::fields::{Fields, activity};

/// See [`Kind::BLOCK_STORED`](smtt_common::event::Kind::BLOCK_STORED) and [`Kind::BLOCK_MOVED`](smtt_common::event::Kind::BLOCK_MOVED).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockFact {
    /// Spark's name of the block.
    pub block_id: String,
    /// Id of the RDD that the block belongs to; `None` for broadcasts and other blocks.
    pub rdd_id: Option<u32>,
    /// Partition that the block holds.
    pub partition: Option<u32>,
    /// Size of the block in bytes, as Spark accounts for it.
    pub size_bytes: u64,
    /// Whether the bytes are on the Java heap.
    pub on_heap: bool,
    /// Whether the block holds serialised bytes instead of objects.
    pub serialized: bool,
    /// The block is an array of objects and the ranges are a sample of them.
    pub sampled: bool,
    /// The block is one array of numbers and the range covers it.
    pub array: bool,
    /// Whether a thread outside of a task stored the block.
    pub without_task: bool,
    /// Whether the fact belongs to a resync and is not new.
    pub reported_again: bool,
    /// Task attempt that stored the block.
    pub task_attempt_id: Option<u64>,
    /// Ranges of the block in all facts together.
    pub range_total: u64,
    /// Index of the first range of this fact.
    pub range_first: u64,
    /// Address and length in bytes of each range.
    pub ranges: Vec<(u64, u64)>,
}

impl BlockFact {
    /// What the block is made of.
    #[must_use]
    pub const fn contents(&self) -> Contents {
        match (self.serialized, self.array, self.sampled, self.range_total) {
            (true, ..) => Contents::Bytes,
            (_, true, ..) => Contents::Array,
            (_, _, true, _) | (.., 0) => Contents::Objects,
            _ => Contents::Columns,
        }
    }
}

/// Contents of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Contents {
    /// Serialised bytes: the ranges cover them.
    #[default]
    Bytes,
    /// A cached DataFrame: the ranges are the buffers of its columns.
    Columns,
    /// An array of numbers: the range covers it.
    Array,
    /// Objects anywhere on the heap: the ranges are a sample of them.
    Objects,
}

impl Contents {
    /// The name in every output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Columns => "columns",
            Self::Array => "array",
            Self::Objects => "objects",
        }
    }
}

/// See [`Kind::BLOCK_READ`](smtt_common::event::Kind::BLOCK_READ).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockRead {
    /// Spark's name of the block.
    pub block_id: String,
    /// Id of the block's RDD.
    pub rdd_id: Option<u32>,
    /// Partition that the block holds.
    pub partition: Option<u32>,
    /// Task attempt that reads the block.
    pub task_attempt_id: Option<u64>,
    /// NUMA node of the reading CPU.
    pub node: Option<u32>,
}

/// See [`Kind::BLOCK_REMOVED`](smtt_common::event::Kind::BLOCK_REMOVED).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockRemoved {
    /// Spark's name of the block.
    pub block_id: String,
    /// Id of the block's RDD.
    pub rdd_id: Option<u32>,
    /// Partition that the block holds.
    pub partition: Option<u32>,
    /// Activity of the removing thread; `None` where it was idle or unknown.
    pub activity: Option<Activity>,
}

pub(super) fn block(fields: &mut Fields<'_>) -> Result<BlockFact, DecodeError> {
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

pub(super) fn read(fields: &Fields<'_>) -> Result<BlockRead, DecodeError> {
    Ok(BlockRead {
        block_id: fields.text("block_id"),
        rdd_id: fields.optional_id("rdd_id")?,
        partition: fields.optional_id("partition")?,
        task_attempt_id: fields.optional("task_attempt_id"),
        node: None,
    })
}

pub(super) fn removed(fields: &Fields<'_>) -> Result<BlockRemoved, DecodeError> {
    let code = fields.text("activity").parse().ok();
    Ok(BlockRemoved {
        block_id: fields.text("block_id"),
        rdd_id: fields.optional_id("rdd_id")?,
        partition: fields.optional_id("partition")?,
        activity: code.and_then(activity),
    })
}
