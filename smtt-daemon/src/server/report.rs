//! The answer of `/v1/report`: the first rows of each listing, by application.

use std::collections::BTreeSet;

use smtt_model::protocol::{ApplicationReport, REPORT_ROWS, Report};
use smtt_model::rows::{ApplicationKey, Filter, RddRow};
use smtt_model::sort::small::{Gather as _, sort_by_key};
use smtt_model::state::State;

use crate::parts::{Size, each_rows};
use crate::shared::Shared;

/// The report of everything that the filter lets through.
#[must_use]
pub fn report(shared: &Shared, filter: &Filter) -> Report {
    let status = shared.status();
    // Each listing of each executor locks the state separately: a report of a large state would delay the event loop.
    let executors = shared.state().list_executors(filter).rows;
    let keys: BTreeSet<ApplicationKey> = executors.iter().map(|row| row.who.application()).gather();
    let applications = keys
        .into_iter()
        .map(|key| {
            let filter = Filter {
                application: Some(key.clone()),
                ..filter.clone()
            };
            let executors: Vec<_> = executors
                .iter()
                .filter(|row| row.who.application() == key)
                .cloned()
                .collect();
            let most = |row: &RddRow| {
                let storage = row.storage_memory_peak_bytes;
                storage.saturating_add(row.execution_memory_peak_bytes)
            };
            let by_faults = first(
                shared,
                &filter,
                State::rows_of_rdds,
                |state, filter| state.list_rdds(filter).rows,
                |row| row.faults.page_faults.filter(|faults| *faults > 0),
            );
            let by_memory = first(
                shared,
                &filter,
                State::rows_of_rdds,
                |state, filter| state.list_rdds(filter).rows,
                |row| Some(most(row)).filter(|bytes| *bytes > 0),
            );
            let stages = first(
                shared,
                &filter,
                State::rows_of_stages,
                |state, filter| state.list_stages(filter).rows,
                |row| Some(row.faults.page_faults),
            );
            let tasks = first(
                shared,
                &filter,
                State::rows_of_tasks,
                |state, filter| state.list_tasks(filter).rows,
                |row| Some(row.faults.page_faults),
            );
            let state = shared.state();
            let mut summary = state.list_executors(&filter).summary;
            if let Some(earlier) = shared.earlier() {
                earlier.add_to(&mut summary, &state, &filter);
            }
            drop(state);
            ApplicationReport {
                application_name: executors
                    .iter()
                    .find_map(|row| row.application_name.clone()),
                application_id: key.id,
                application_attempt_id: key.attempt,
                uid: key.uid,
                summary,
                executors,
                rdds_by_faults: by_faults,
                rdds_by_memory: by_memory,
                stages,
                tasks,
            }
        })
        .collect();
    Report {
        applications,
        ledger: status.ledger,
        degraded: status.degraded,
    }
}

/// The first rows of a listing by `rank`, the largest first; rows without a rank are left out. A part of one executor's
/// rows at a time is in memory.
fn first<R, Rank: Ord>(
    shared: &Shared,
    filter: &Filter,
    size: Size,
    list: impl Fn(&State, &Filter) -> Vec<R>,
    rank: impl Fn(&R) -> Option<Rank>,
) -> Vec<R> {
    let mut rows: Vec<R> = Vec::new();
    each_rows(shared, filter, size, list, |more| {
        rows.extend(more.into_iter().filter(|row| rank(row).is_some()));
        sort_by_key(&mut rows, |row| std::cmp::Reverse(rank(row)));
        rows.truncate(REPORT_ROWS);
    });
    rows
}
