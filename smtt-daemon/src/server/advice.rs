//! The answer of `/v1/advise`: the rules' input for each application, and the surroundings of its executors.

use std::collections::{BTreeMap, BTreeSet};

use smtt_machine::clock::now_unix_ns;
use smtt_model::advise::{Advice, View, advise};
use smtt_model::rows::{ApplicationKey, ExecutorKind, ExecutorState, Filter, PagesBy};
use smtt_model::verdict::{PAGE_WALKS, VerdictState};

use crate::shared::Shared;

/// Advice for each application that the filter lets through. Reads files: call it off the event loop.
#[must_use]
pub fn advice(shared: &Shared, filter: &Filter) -> Advice {
    let (views, processes) = views(shared, filter);
    let surroundings = shared.surroundings(&processes);
    Advice {
        applications: views
            .iter()
            .map(|view| advise(view, &surroundings))
            .collect(),
        surroundings,
    }
}

/// The rules' input for each application, and the users of living executors by process id. Each listing locks the state
/// separately.
fn views(shared: &Shared, filter: &Filter) -> (Vec<View>, BTreeMap<u32, u32>) {
    let listing = shared.state().list_executors(filter);
    let no_walks = no_walks(shared);
    let alive = listing
        .rows
        .iter()
        .filter(|row| row.state == ExecutorState::Alive);
    let processes = {
        let state = shared.state();
        alive
            .filter_map(|row| Some((row.who.pid, state.share_of(row.who.uid)?)))
            .collect()
    };
    let keys: BTreeSet<ApplicationKey> = listing
        .rows
        .iter()
        .map(|row| row.who.application())
        .collect();
    let views = keys.into_iter().map(|key| {
        let filter = Filter {
            application: Some(key.clone()),
            ..filter.clone()
        };
        // Separate statements, because a guard lives until the end of its statement.
        let rdds = shared.state().list_rdds(&filter).rows;
        let pages = shared.state().list_pages(&filter, PagesBy::Rdd).rows;
        let stages = shared.state().list_stages(&filter).rows;
        let of_key = listing
            .rows
            .iter()
            .filter(|row| row.who.application() == key);
        let mut executors: Vec<_> = of_key.cloned().collect();
        // The rules sum over executors.
        if executors
            .iter()
            .any(|row| row.kind == ExecutorKind::Executor)
        {
            executors.retain(|row| row.kind == ExecutorKind::Executor);
        }
        View {
            executors,
            rdds,
            pages,
            stages,
            measured: listing.summary.measured,
            no_walks: no_walks.clone(),
            now_unix_ms: now_unix_ns() / 1_000_000,
        }
    });
    (views.collect(), processes)
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
