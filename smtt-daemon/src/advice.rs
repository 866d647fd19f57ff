//! Advice for each application: the rules' input, and the surroundings of its executors. It is the answer of
//! `/v1/advise`, a part of the history, and the findings among the metrics.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use smtt_machine::clock::now_unix_ns;
use smtt_model::advise::{Advice, View, advise};
use smtt_model::rows::{
    ApplicationKey, ExecutorKind, ExecutorRow, ExecutorState, Filter, GroupBy, PageWalkRow,
    PagesBy, RddRow,
};
use smtt_model::sort::small::{Gather as _, sort_by_key};
use smtt_model::verdict::{PAGE_WALKS, VerdictState};

use crate::shared::Shared;

/// RDDs of one application that the rules see, on each executor an RDD of its own; those that held the most memory.
const RDDS: usize = 16_384;
/// Those of them whose page walks the rules see.
const WITH_WALKS: usize = 1_024;

/// Advice for each application that the filter lets through, with one finding of a rule for the RDDs that have something in
/// common, where that is asked for. Reads files: call it off the event loop.
#[must_use]
pub fn advice(shared: &Shared, filter: &Filter, by: Option<GroupBy>) -> Advice {
    let listing = shared.state().list_executors(filter);
    let alive = listing
        .rows
        .iter()
        .filter(|row| row.state == ExecutorState::Alive);
    // Users of living executors by process id.
    let processes = {
        let state = shared.state();
        alive
            .filter_map(|row| Some((row.who.pid, state.share_of(row.who.uid)?)))
            .gather()
    };
    let surroundings = shared.surroundings(&processes);
    let mut applications: BTreeMap<ApplicationKey, Vec<ExecutorRow>> = BTreeMap::new();
    for row in listing.rows {
        let of = applications.entry(row.who.application()).or_default();
        of.push(row);
    }
    let measured = listing.summary.measured;
    Advice {
        applications: applications
            .into_iter()
            // One input at a time is in memory.
            .map(|(key, executors)| {
                let mut view = view(shared, filter, by, key, executors);
                view.measured = measured;
                advise(&view, &surroundings)
            })
            .collect(),
        surroundings,
    }
}

/// The rules' input for one application. Each listing of each executor locks the state separately.
fn view(
    shared: &Shared,
    filter: &Filter,
    by: Option<GroupBy>,
    key: ApplicationKey,
    mut executors: Vec<ExecutorRow>,
) -> View {
    // The rules sum over executors.
    if executors
        .iter()
        .any(|row| row.kind == ExecutorKind::Executor)
    {
        executors.retain(|row| row.kind == ExecutorKind::Executor);
    }
    let mut view = View {
        by,
        executors,
        no_walks: no_walks(shared),
        now_unix_ms: now_unix_ns() / 1_000_000,
        ..View::default()
    };
    for executor in shared.executor_keys_of(&key) {
        let filter = Filter {
            key: Some(executor),
            ..filter.clone()
        };
        // Separate statements, because a guard lives until the end of its statement.
        let rdds = shared
            .state()
            .rdds_in_short(&filter, by == Some(GroupBy::Query));
        let pages = shared.state().list_pages(&filter, PagesBy::Rdd).rows;
        let stages = shared.state().stages_in_short(&filter);
        let faults = shared.state().attributed_faults(&filter);
        view.faults.extend(faults);
        view.rdds.extend(rdds);
        view.pages.extend(pages);
        view.stages.extend(stages);
        bound(&mut view, RDDS, WITH_WALKS);
    }
    let turns = shared.state().turns(&key, filter);
    for turn in turns {
        shared
            .state()
            .add_ended_tasks(filter, turn, &mut view.tasks);
    }
    view
}

/// Leaves `most` RDDs, and the page walks of `walks` of them.
fn bound(view: &mut View, most: usize, walks: usize) {
    let held = |row: &RddRow| {
        let storage = row.storage_memory_peak_bytes;
        storage.saturating_add(row.execution_memory_peak_bytes)
    };
    if view.rdds.len() <= walks.min(most) {
        return;
    }
    let mut order: Vec<usize> = (0..view.rdds.len()).collect();
    sort_by_key(&mut order, |at| Reverse(held(&view.rdds[*at])));
    for at in order.iter().skip(walks) {
        view.rdds[*at].walks = PageWalkRow::default();
    }
    if view.rdds.len() <= most {
        return;
    }
    let of = |pid: u32, rdd: Option<u32>| (pid, rdd);
    let less: BTreeSet<_> = order[most..]
        .iter()
        .map(|at| &view.rdds[*at])
        .map(|row| of(row.who.pid, row.rdd_id))
        .gather();
    view.rdds
        .retain(|row| !less.contains(&of(row.who.pid, row.rdd_id)));
    view.pages
        .retain(|row| !less.contains(&of(row.who.pid, row.rdd_id)));
}

/// Why there is no ratio of page walks; empty where there is one.
fn no_walks(shared: &Shared) -> String {
    let measured = shared
        .state()
        .page_walks()
        .is_some_and(|meaning| meaning.figures.iter().any(|figure| figure.ratio.is_some()));
    if measured {
        return String::new();
    }
    let verdicts = shared.probes().into_iter();
    let mut reasons = verdicts
        .filter(|probe| probe.name == PAGE_WALKS && probe.verdict != VerdictState::Ok)
        .map(|probe| probe.reason);
    reasons
        .next()
        .unwrap_or_else(|| "this CPU gives no ratio of page walks to cycles".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use smtt_model::rows::PagesRow;

    #[test]
    fn the_rules_see_the_rdds_that_held_the_most_memory() {
        let mut view = View::default();
        for id in 0..9 {
            let mut row = RddRow {
                rdd_id: Some(id),
                storage_memory_peak_bytes: u64::from((id * 5) % 9),
                ..RddRow::default()
            };
            let cycles = smtt_model::rows::Number::Whole(1);
            row.walks.flat.insert("cycles".to_owned(), cycles);
            view.rdds.push(row);
            view.pages.push(PagesRow {
                rdd_id: Some(id),
                ..PagesRow::default()
            });
        }
        view.pages.push(PagesRow::default());
        bound(&mut view, 4, 2);
        // They stay in their order.
        let left: Vec<_> = view
            .rdds
            .iter()
            .map(|row| {
                (
                    row.rdd_id,
                    row.storage_memory_peak_bytes,
                    row.walks.flat.len(),
                )
            })
            .collect();
        let wanted = [(1, 5, 0), (3, 6, 0), (5, 7, 1), (7, 8, 1)];
        assert_eq!(
            left,
            wanted.map(|(id, bytes, walks)| (Some(id), bytes, walks))
        );
        let pages: Vec<_> = view.pages.iter().map(|row| row.rdd_id).collect();
        assert_eq!(pages, [Some(1), Some(3), Some(5), Some(7), None]);
    }
}
