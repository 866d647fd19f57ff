//! Rows with only what the rules of `advise` use: those of all executors of an application are in memory together.

use super::rdds::Wanted;
use super::{Filter, RddRow, StageRow, UsedRow};
use crate::attribute::RddKey;
use crate::state::{FaultFigures, State};

impl State {
    /// RDDs with an id that the filter selects and that a rule may be about, because they have or had blocks or hold
    /// memory. Without contexts, and without SQL executions unless `queries` asks for them; of page walks the figures
    /// with a ratio.
    #[must_use]
    pub fn rdds_in_short(&self, filter: &Filter, queries: bool) -> Vec<RddRow> {
        let mut rows = self
            .rdd_listing(
                filter,
                Wanted {
                    whole: false,
                    queries,
                },
            )
            .rows;
        for row in &mut rows {
            row.walks.flat.clear();
            row.walks
                .page_walks
                .retain(|_, figure| figure.ratio.is_some());
        }
        rows
    }

    /// Page faults with a context, of each executor that the filter selects, with their time.
    #[must_use]
    pub fn attributed_faults(&self, filter: &Filter) -> Vec<FaultFigures> {
        let measured = self.measured();
        self.listing(filter, |_, executor, rows| {
            rows.push(FaultFigures::new(&executor.context_faults, measured));
        })
        .rows
    }

    /// One row for all stages of each executor that the filter selects: the sums of their task times and of their waits
    /// for disks, and the largest peak of execution memory of a task, with its stage; of this stage the number of tasks,
    /// what its ended tasks here spilled, and how many these are.
    #[must_use]
    pub fn stages_in_short(&self, filter: &Filter) -> Vec<StageRow> {
        self.listing(filter, |_, executor, rows| {
            let memory = super::work::memory_of_tasks(executor);
            let mut short: Option<StageRow> = None;
            for (key, stage) in &executor.tasks.stages {
                if !filter.stage(Some(*key)) || !filter.rdd_of(executor, stage) {
                    continue;
                }
                let row = short.get_or_insert_default();
                let live = memory.get(key).map_or(0, |(_, peak)| *peak);
                let peak = stage.peak_bytes.max(live);
                if row.stage_id.is_none() || peak > row.execution_memory_peak_bytes {
                    row.stage_id = Some(key.id);
                    row.tasks = stage.described.as_ref().map(|said| said.tasks);
                    row.used.memory_spilled_bytes = UsedRow::new(&stage.used).memory_spilled_bytes;
                    row.used_tasks = stage.used_tasks;
                    row.execution_memory_peak_bytes = peak;
                }
                row.task_time_ns = row.task_time_ns.saturating_add(stage.task_time_ns);
                if let Some(waited) = UsedRow::new(&stage.used).disk_wait_ns {
                    let sum = row.used.disk_wait_ns.get_or_insert_default();
                    *sum = sum.saturating_add(waited);
                }
            }
            rows.extend(short);
        })
        .rows
    }
}

/// Whether a rule may be about the RDD.
pub(super) fn matters(key: RddKey, rdd: Option<&crate::state::Rdd>, holds_memory: bool) -> bool {
    let had_blocks =
        rdd.is_some_and(|rdd| rdd.block_history.stored > 0 || rdd.block_history.found > 0);
    key.id().is_some() && (holds_memory || had_blocks)
}
