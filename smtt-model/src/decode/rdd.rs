//! The description of an RDD, and its decoder.

use super::DecodeError;
use super::fields::Fields;

/// See [`Kind::RDD_DESCRIBED`](smtt_common::event::Kind::RDD_DESCRIBED).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RddDescribed {
    /// Id of the RDD.
    pub rdd_id: u32,
    /// Partitions of the RDD.
    pub partitions: u64,
    /// Bits of [`smtt_common::event::marker::storage_level`].
    pub storage_level: u64,
    /// Name of the RDD; empty where it has none.
    pub name: String,
    /// Call site in the application that created the RDD.
    pub call_site: String,
    /// Storage level as Spark writes it.
    pub storage_level_text: String,
    /// Ids of the RDD's parents.
    pub parents: Vec<u32>,
    /// Name of the plan node or of the operation that made the RDD; empty where Spark has none.
    pub node: String,
    /// Spark's id of that node, unique in the application; empty where Spark has none.
    pub node_id: String,
}

pub(super) fn rdd(fields: &Fields<'_>) -> Result<RddDescribed, DecodeError> {
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
