//! Findings of `advise` as metrics, so that alerts can rest on them.

use std::collections::{BTreeMap, BTreeSet};

use smtt_model::advise::{Saving, Severity};
use smtt_model::rows::{ExecutorId, ExecutorState, Filter, GroupBy};
use smtt_model::sort::small::Gather as _;

use super::Value;
use super::collect::Families;
use super::keys::{Named, Naming, QueryKeys, key_of};
use super::table;
use crate::advice::advice;
use crate::shared::Shared;

/// Findings that are shown as one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Same {
    count: u64,
    /// What those with seconds save together; absent where none has.
    saving: Option<Saving>,
}

/// Values of the labels of findings that are shown as one, and what is known of them.
pub(super) type Findings = BTreeMap<[String; 6], Same>;

/// The findings that can still be acted on: of applications with a living executor here. Reads files, locks the state for one listing at a time, and waits for the large
/// answer that is being made: call it on a thread of its own.
pub(super) fn find(shared: &Shared) -> Findings {
    let mut findings = Findings::new();
    let executors = shared.state().list_executors(&Filter::default()).rows;
    let alive = executors
        .into_iter()
        .filter(|row| row.state == ExecutorState::Alive);
    let applications: BTreeSet<_> = alive.map(|row| row.who.application()).gather();
    // One at a time: the listings of an application may be large.
    for application in applications {
        let filter = Filter {
            application: Some(application),
            ..Filter::default()
        };
        let queries = queries(shared, &filter);
        let making = shared.making();
        let _making = making.blocking_lock();
        for advice in advice(shared, &filter, None).applications {
            let user = advice.uid.map_or_else(String::new, |uid| uid.to_string());
            for finding in advice.findings.into_iter().filter(|it| !it.is_past()) {
                let subject = &finding.subject;
                let rdd = subject.rdd_id.map(|id| {
                    queries.get(&id).cloned().unwrap_or_else(|| {
                        key_of(
                            shared.info().metrics.by,
                            subject.rdd_name.as_deref().unwrap_or_default(),
                            subject.call_site.as_deref().unwrap_or_default(),
                            subject.node.as_deref().unwrap_or_default(),
                        )
                    })
                });
                let labels = [
                    finding.id,
                    Severity::word(finding.severity).to_owned(),
                    advice.application_id.clone().unwrap_or_default(),
                    advice.application_name.clone().unwrap_or_default(),
                    user.clone(),
                    rdd.unwrap_or_default(),
                ];
                let same = findings.entry(labels).or_default();
                same.count += 1;
                if let Some(saving) = finding.saving {
                    same.saving.get_or_insert_default().add(&saving);
                }
            }
        }
    }
    findings
}

/// Keys of an application's RDDs, where keys are queries.
fn queries(shared: &Shared, filter: &Filter) -> BTreeMap<u32, String> {
    let mut keys = BTreeMap::new();
    if shared.info().metrics.by != GroupBy::Query {
        return keys;
    }
    let (mut known, mut none) = (QueryKeys::default(), QueryKeys::default());
    let state = shared.state();
    for (id, executor) in state.executors() {
        let application = ExecutorId::new(executor).application();
        if filter.application.as_ref() == Some(&application) {
            let by = GroupBy::Query;
            let naming = Naming::updated(executor, *id, by, &mut known, &mut none);
            for rdd in executor.rdds.keys() {
                if let (Some(id), Named::As(key)) = (rdd.id(), naming.key(*rdd)) {
                    keys.entry(id).or_insert(key);
                }
            }
        }
    }
    keys
}

/// Adds the series.
pub(super) fn series(families: &mut Families<'_>, findings: &Findings) {
    for (labels, same) in findings {
        let labels = labels.each_ref().map(String::as_str);
        families.count(table::FINDING, &labels, same.count);
        let Some(saving) = same.saving else { continue };
        for (end, seconds) in [
            ("low", saving.low),
            ("expected", saving.expected),
            ("high", saving.high),
        ] {
            let labels: Vec<&str> = labels.into_iter().chain([end]).collect();
            families.add(table::FINDING_SAVING, &labels, Value::Real(seconds));
        }
    }
}
