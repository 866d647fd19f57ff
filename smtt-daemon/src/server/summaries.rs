//! Rows over executors: of `/v1/stages/summary`, stages in quantiles over their tasks and executors; of `/v1/jobs` and
//! `/v1/queries`.

use smtt_model::rows::{Filter, JobRow, StageSummaries, StageSummaryRow, WorkBy, WorkSums};
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

/// Jobs or SQL executions that the filter selects. The state is locked for one executor at a time.
#[must_use]
pub fn work(shared: &Shared, filter: &Filter, by: WorkBy) -> Vec<JobRow> {
    let mut sums = WorkSums::new(by);
    each_executor(shared, filter, |state, filter| sums.add(state, filter));
    let measured = shared.state().measured();
    sums.rows(measured)
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
