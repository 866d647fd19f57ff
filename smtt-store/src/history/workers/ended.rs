//! Executors whose last documents are in a part of their own.
//!
//! A daemon writes that part first, then part 0 without them. Between the two, and for good where the daemon was killed there,
//! part 0 has earlier documents of these executors: readers leave them out.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::Name;

/// Kinds of documents that are about one executor.
const KINDS: [&str; 6] = ["executor", "memory", "stage", "rdd", "places", "history"];

/// Kind of the documents that each executor has one of.
pub const EXECUTOR: &str = "executor";

/// Id of an executor's document of the kind [`EXECUTOR`].
#[must_use]
pub fn id(executor_id: &str, pid: u64) -> String {
    format!("{executor_id}.{pid}")
}

/// Executors whose last documents one run has about one application and user.
#[derive(Clone, Debug, Default)]
pub struct Ended(BTreeSet<String>);

impl Ended {
    /// Whether documents of this kind may be in part 0 and in another part.
    #[must_use]
    pub fn matters(kind: &str) -> bool {
        KINDS.contains(&kind)
    }

    /// Whether a file is a part of last documents: any but part 0.
    #[must_use]
    pub const fn is_part(name: &Name) -> bool {
        name.part > 0
    }

    /// Adds executors of such a part by the ids of their documents of the kind [`EXECUTOR`].
    pub fn extend(&mut self, ids: impl IntoIterator<Item = String>) {
        self.0.extend(ids);
    }

    /// Whether part 0 is to be read without what it has of this executor.
    #[must_use]
    pub fn has(&self, executor_id: &str, pid: u64) -> bool {
        !self.0.is_empty() && self.0.contains(&id(executor_id, pid))
    }

    /// The same by a document of one of the kinds about an executor.
    #[must_use]
    pub fn has_that_of(&self, document: &Map<String, Value>) -> bool {
        let executor = document.get("executor_id").and_then(Value::as_str);
        let pid = document.get("pid").and_then(Value::as_u64);
        pid.is_some_and(|pid| self.has(executor.unwrap_or_default(), pid))
    }
}
