//! The rows of `/v1/stages/summary`: stages in quantiles over their tasks and executors.

use smtt_model::rows::{Filter, StageSummaries, StageSummaryRow};

use crate::shared::Shared;

/// The stages that the filter selects. The state is locked for one executor at a time; the values of all tasks are in
/// memory meanwhile, a fifth of what the tasks themselves take.
#[must_use]
pub fn summaries(shared: &Shared, filter: &Filter) -> Vec<StageSummaryRow> {
    let mut summaries = StageSummaries::default();
    for key in shared.executor_keys() {
        let filter = Filter {
            key: Some(key),
            ..filter.clone()
        };
        shared.state().add_to_summaries(&filter, &mut summaries);
    }
    summaries.rows()
}
