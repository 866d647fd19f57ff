//! The answer of `/v1/report`: the first rows of each listing, by application.

use std::collections::BTreeSet;

use smtt_model::protocol::{ApplicationReport, REPORT_ROWS, Report};
use smtt_model::rows::{ApplicationKey, Filter, RddRow};

use crate::shared::Shared;

/// The report of everything that the filter lets through.
#[must_use]
pub fn report(shared: &Shared, filter: &Filter) -> Report {
    let status = shared.status();
    // Each listing locks the state separately: a report of a large state would delay the event loop.
    let executors = shared.state().list_executors(filter).rows;
    let keys: BTreeSet<ApplicationKey> =
        executors.iter().map(|row| row.who.application()).collect();
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
            let mut by_faults = shared.state().list_rdds(&filter).rows;
            let mut by_memory = by_faults.clone();
            by_faults.retain(|row| row.faults.page_faults > Some(0));
            by_faults.sort_by_key(|row| std::cmp::Reverse(row.faults.page_faults));
            by_faults.truncate(REPORT_ROWS);
            let most = |row: &RddRow| {
                let storage = row.storage_memory_peak_bytes;
                storage.saturating_add(row.execution_memory_peak_bytes)
            };
            by_memory.retain(|row| most(row) > 0);
            by_memory.sort_by_key(|row| std::cmp::Reverse(most(row)));
            by_memory.truncate(REPORT_ROWS);
            let mut stages = shared.state().list_stages(&filter);
            stages
                .rows
                .sort_by_key(|row| std::cmp::Reverse(row.faults.page_faults));
            stages.rows.truncate(REPORT_ROWS);
            let mut tasks = shared.state().list_tasks(&filter).rows;
            tasks.sort_by_key(|row| std::cmp::Reverse(row.faults.page_faults));
            tasks.truncate(REPORT_ROWS);
            ApplicationReport {
                application_name: executors
                    .iter()
                    .find_map(|row| row.application_name.clone()),
                application_id: key.id,
                uid: key.uid,
                summary: stages.summary,
                executors,
                rdds_by_faults: by_faults,
                rdds_by_memory: by_memory,
                stages: stages.rows,
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
