//! Metrics of where bytes are, and of what finding it out takes.

use super::collect::{Executor, Families};
use super::table;
use crate::aggregate::view::{Figures, by_rdd};
use crate::aggregate::{ResolveCounts, State};
use crate::attribute::RddKey;
use std::collections::{BTreeMap, HashSet};

/// Snapshot of all executors.
pub(super) struct Pages {
    /// By key of the executor: base page size in bytes, and figures by RDD.
    executors: BTreeMap<u64, (u64, BTreeMap<RddKey, Figures>)>,
    counts: Option<ResolveCounts>,
}

impl Pages {
    /// Takes the snapshot.
    pub(super) fn of(state: &State) -> Self {
        let looked = state
            .executors()
            .iter()
            .filter(|(_, executor)| executor.memory.looked.time_ns > 0);
        Self {
            executors: looked
                .map(|(key, executor)| {
                    (*key, (executor.memory.looked.page_bytes, by_rdd(executor)))
                })
                .collect(),
            counts: state.resolve_counts().copied(),
        }
    }

    /// Adds the series. RDDs that have no series of their own share one.
    pub(super) fn series(
        &self,
        families: &mut Families,
        executors: &[Executor],
        chosen: &BTreeMap<u64, HashSet<RddKey>>,
    ) {
        if let Some(counts) = &self.counts {
            families.count(table::RESOLVER_PAGES, &[], counts.pages);
            families.real(table::RESOLVER_CPU, Some(counts.cpu_ns as f64 / 1e9));
            families.count(table::RESOLVER_UNMAPPED, &[], counts.unmapped_bytes);
        }
        for executor in executors {
            let Some((page_bytes, figures)) = self.executors.get(&executor.key) else {
                continue;
            };
            let named = chosen.get(&executor.key);
            let mut other = Figures::default();
            for (rdd, figures) in figures {
                if !named.is_some_and(|named| named.contains(rdd)) {
                    other.merge(figures);
                    continue;
                }
                let id = rdd
                    .id()
                    .map_or_else(|| "none".to_owned(), |id| id.to_string());
                let name = executor
                    .rdds
                    .iter()
                    .find(|row| row.key == *rdd)
                    .map_or("", |row| row.name.as_str());
                samples(families, executor, (&id, name), figures, *page_bytes);
            }
            samples(families, executor, ("other", ""), &other, *page_bytes);
        }
    }
}

fn samples(
    families: &mut Families,
    executor: &Executor,
    (id, name): (&str, &str),
    figures: &Figures,
    page_bytes: u64,
) {
    let (application, executor) = (
        executor.names.application_id.as_str(),
        executor.names.executor_id.as_str(),
    );
    let labels = [application, executor, id, name];
    families.maybe(
        table::RDD_HUGE,
        &labels,
        figures.huge_page_bytes(page_bytes),
    );
    families.maybe(table::RDD_SWAPPED, &labels, figures.swapped_bytes());
    for row in figures.nodes().unwrap_or_default() {
        let node = row.node.to_string();
        families.count(
            table::RDD_NODE,
            &[application, executor, id, name, &node],
            row.bytes,
        );
    }
}
