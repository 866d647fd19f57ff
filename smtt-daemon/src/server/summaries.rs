//! Rows over executors: of `/v1/stages/summary`, stages in quantiles over their tasks and executors; and of `/v1/jobs`.

use smtt_model::rows::{Filter, JobRow, Jobs, StageSummaries, StageSummaryRow};
use smtt_model::state::State;

use crate::shared::Shared;

/// The stages that the filter selects. The state is locked for one executor at a time; the values of all tasks are in
/// memory meanwhile, a fifth of what the tasks themselves take.
#[must_use]
pub fn summaries(shared: &Shared, filter: &Filter) -> Vec<StageSummaryRow> {
    let mut summaries = StageSummaries::default();
    each_executor(shared, filter, |state, filter| {
        state.add_to_summaries(filter, &mut summaries);
    });
    summaries.rows()
}

/// The jobs that the filter selects. The state is locked for one executor at a time.
#[must_use]
pub fn jobs(shared: &Shared, filter: &Filter) -> Vec<JobRow> {
    let mut jobs = Jobs::default();
    each_executor(shared, filter, |state, filter| {
        state.add_to_jobs(filter, &mut jobs);
    });
    jobs.rows(&shared.state())
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
