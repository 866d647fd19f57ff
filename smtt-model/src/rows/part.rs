//! Parts of an executor's rows: one executor may have more rows, with what is in them, than fit into memory.

use std::hash::{DefaultHasher, Hash, Hasher as _};

use super::Filter;
use crate::state::State;

/// Rows that are made at once, about. What a row has by RDD or by activity counts as rows.
const PART_ROWS: usize = 1024;

/// One of several parts of an executor's rows, by a hash of their ids with a secret: an executor that chooses its ids
/// cannot put its largest rows into one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    number: u64,
    of: u64,
    secret: u64,
}

impl Part {
    /// All parts of so many rows.
    pub fn all(rows: usize, secret: u64) -> impl Iterator<Item = Self> {
        let of = (rows / PART_ROWS + 1) as u64;
        (0..of).map(move |number| Self { number, of, secret })
    }

    fn has(&self, id: &impl Hash) -> bool {
        if self.of == 1 {
            return true;
        }
        let mut hasher = DefaultHasher::new();
        (self.secret, id).hash(&mut hasher);
        hasher.finish() % self.of == self.number
    }
}

impl Filter {
    /// Whether the row with this id is in the wanted part.
    pub(super) fn in_part(&self, id: &impl Hash) -> bool {
        self.part.is_none_or(|part| part.has(id))
    }

    /// Whether the rows that sum over all others are in the wanted part.
    pub(super) fn in_first_part(&self) -> bool {
        self.part.is_none_or(|part| part.number == 0)
    }
}

impl State {
    /// Stages of an executor, and what they have by RDD.
    #[must_use]
    pub fn rows_of_stages(&self, key: u64) -> usize {
        self.executors().get(&key).map_or(0, |executor| {
            let stages = executor.tasks.stages.values();
            let rows = stages.map(|stage| 1 + stage.rdds.len() + stage.rdd_walks.len());
            rows.sum()
        })
    }

    /// RDDs of an executor, and what they have by activity.
    #[must_use]
    pub fn rows_of_rdds(&self, key: u64) -> usize {
        self.executors().get(&key).map_or(0, |executor| {
            let rdds = executor.rdds.values();
            let rows = rdds.map(|rdd| 1 + rdd.doing.len() + rdd.doing_walks.len());
            rows.sum()
        })
    }

    /// Tasks of an executor.
    #[must_use]
    pub fn rows_of_tasks(&self, key: u64) -> usize {
        let executor = self.executors().get(&key);
        executor.map_or(0, |executor| executor.tasks.tasks.len())
    }
}
