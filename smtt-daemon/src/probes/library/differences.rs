//! Verdicts about markers of other releases: what their libraries lack, what they have beyond this version, and slot files
//! that this version cannot read.

use std::collections::BTreeSet;

use smtt_common::context::VERSION;

use super::configured::found;
use super::known::{Differences, other_layout};
use super::state::{Probed, State};
use crate::probes::{Verdict, VerdictState};

/// Names in verdicts.
const OLDER: &str = "uprobe:libraries of an older marker";
const NEWER: &str = "uprobe:libraries of a newer marker";
const LAYOUT: &str = "uprobe:slot files of another layout";
/// Facts that a verdict names.
const NAMED: usize = 8;

/// The names, of which only some are written where there are many.
fn listed(names: &BTreeSet<&str>) -> String {
    let first: Vec<&str> = names.iter().copied().take(NAMED).collect();
    match names.len().saturating_sub(NAMED) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// Facts in which probed files differ, and how many files and processes that concerns.
fn differing<'state>(
    state: &'state State,
    of: impl Fn(&'state Differences) -> Vec<&'state str>,
) -> Option<(String, String)> {
    let mut names = BTreeSet::new();
    let (mut files, mut processes) = (0, 0);
    let in_use = |file: &&Probed| file.configured || !file.executors.is_empty();
    for file in state.files.values().filter(in_use) {
        let different = of(&file.differences);
        if !different.is_empty() {
            names.extend(different);
            files += 1;
            processes += file.executors.len();
        }
    }
    (files > 0).then(|| {
        let s = |count: usize| if count == 1 { "" } else { "s" };
        let es = if processes == 1 { "" } else { "es" };
        (
            listed(&names),
            format!("{files} file{} of {processes} process{es}", s(files)),
        )
    })
}

/// One verdict for each kind of difference that there is. Such libraries are probed, so none makes the daemon degraded.
pub(super) fn verdicts(state: &State) -> Vec<Verdict> {
    let mut all = Vec::new();
    let is = |hook, reason: &str| found(hook, VerdictState::NotApplicable, reason);
    if let Some((names, files)) = differing(state, |of| of.missing.clone()) {
        all.push(is(
            OLDER,
            &format!(
                "{files} without {names}: figures from these facts are absent; upgrade the marker's jar and library to the daemon's release, and restart the applications"
            ),
        ));
    }
    if let Some((names, files)) =
        differing(state, |of| of.unknown.iter().map(String::as_str).collect())
    {
        all.push(is(
            NEWER,
            &format!(
                "{files} with {names}, which this daemon does not know: it counts these facts (facts_unknown) and does not read them; upgrade the daemon, and restart it"
            ),
        ));
    }
    let layouts: BTreeSet<u32> = state.other_layout.values().copied().collect();
    if let Some(layout) = layouts.last() {
        // Any user can make such a file.
        all.push(is(
            LAYOUT,
            &format!(
                "{} processes have slot files of the layout {layout}, and this daemon reads the layout {VERSION}, so nothing of them is traced: {}",
                state.other_layout.len(),
                other_layout(*layout)
            ),
        ));
    }
    all
}
