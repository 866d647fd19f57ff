//! Rows over executors: of `/v1/stages/summary`, stages in quantiles over their tasks and executors; of `/v1/jobs` and
//! `/v1/queries`; and of `/v1/tasks/ended`, a part of an executor's tasks at a time.
//!
//! A row sums up over executors, so it cannot be made executor by executor; and a full state has more rows than fit into
//! memory before they are compressed. They are made part by part, the ids of a part chosen by a keyed hash: an executor
//! that chooses its ids cannot put them all into one part.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::io;

use serde::Serialize;
use smtt_machine::clock::now_boot_ns;
use smtt_model::rows::{Filter, StageSummaries, WorkBy, WorkSums};
use smtt_model::state::State;

use super::runs::Runs;
use crate::shared::Shared;

/// Rows that are made at once, about.
const PART_ROWS: usize = 1024;

/// The stages that the filter selects. The state is locked for one executor at a time.
///
/// # Errors
/// When a row cannot be compressed.
pub fn summaries(shared: &Shared, filter: &Filter, runs: &mut Runs) -> io::Result<()> {
    in_parts(shared, runs, |in_part| {
        let mut summaries = StageSummaries::default();
        each_executor(shared, filter, |state, filter| {
            state.add_to_summaries(filter, in_part, &mut summaries);
        });
        summaries.rows()
    })
}

/// Jobs or SQL executions that the filter selects. The state is locked for one executor at a time.
///
/// # Errors
/// When a row cannot be compressed.
pub fn work(shared: &Shared, filter: &Filter, runs: &mut Runs, by: WorkBy) -> io::Result<()> {
    in_parts(shared, runs, |in_part| {
        let mut sums = WorkSums::new(by);
        each_executor(shared, filter, |state, filter| {
            sums.add(state, filter, in_part);
        });
        let measured = shared.state().measured();
        sums.rows(measured)
    })
}

/// Ended tasks of the executors that the filter selects, with their lives in parts. The state is locked for
/// [`PART_ROWS`] rows at a time.
///
/// # Errors
/// When a row cannot be compressed.
pub fn ended_tasks(shared: &Shared, filter: &Filter, runs: &mut Runs) -> io::Result<()> {
    let until_ns = now_boot_ns();
    for key in shared.executor_keys() {
        let filter = Filter {
            key: Some(key),
            ..filter.clone()
        };
        if shared.state().list_executors(&filter).rows.is_empty() {
            continue;
        }
        let mut known = BTreeSet::new();
        loop {
            let rows = shared
                .state()
                .newly_ended_tasks(key, until_ns, PART_ROWS, &mut known);
            if rows.is_empty() {
                break;
            }
            runs.add(rows)?;
        }
    }
    Ok(())
}

/// Adds the rows of one part after the other.
fn in_parts<R: Serialize>(
    shared: &Shared,
    runs: &mut Runs,
    rows: impl Fn(&dyn Fn(u64) -> bool) -> Vec<R>,
) -> io::Result<()> {
    let parts = (shared.state().stage_rows() / PART_ROWS + 1) as u64;
    let hash = RandomState::new();
    for part in 0..parts {
        runs.add(rows(&|id| hash.hash_one(id) % parts == part))?;
    }
    Ok(())
}

fn each_executor(shared: &Shared, filter: &Filter, mut add: impl FnMut(&State, &Filter)) {
    for key in shared.executor_keys() {
        let filter = Filter {
            key: Some(key),
            ..filter.clone()
        };
        add(&shared.state(), &filter);
    }
}
