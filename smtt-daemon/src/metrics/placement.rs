//! Metrics of the placement of bytes, and of the cost of measuring it.

use std::collections::{BTreeMap, HashSet};

use smtt_model::attribute::RddKey;
use smtt_model::rows::{Figures, by_rdd, reads_by_rdd};
use smtt_model::state::{NodeReads, ResolveCounts, State};

use super::collect::{Executor, Families};
use super::{Value, table};

/// Snapshot of all executors.
pub(super) struct Pages {
    /// By key of the executor: base page size in bytes, and figures by RDD.
    executors: BTreeMap<u64, (u64, BTreeMap<RddKey, Figures>)>,
    /// By key of the executor: bytes read of each RDD, by their placement.
    reads: BTreeMap<u64, BTreeMap<RddKey, NodeReads>>,
    counts: Option<ResolveCounts>,
}

impl Pages {
    /// Takes the snapshot.
    pub(super) fn of(state: &State) -> Self {
        let looked = state.executors().iter().filter(|(_, executor)| {
            executor.memory.looked.time_ns > 0 || !executor.memory.touched.is_empty()
        });
        Self {
            executors: looked
                .map(|(key, executor)| {
                    let figures = by_rdd(executor, state.now_ns());
                    (*key, (executor.memory.looked.page_bytes, figures))
                })
                .collect(),
            reads: state
                .executors()
                .iter()
                .map(|(key, executor)| (*key, reads_by_rdd(executor)))
                .collect(),
            counts: state.resolve_counts().copied(),
        }
    }

    /// Adds the series. RDDs that have no series of their own share one.
    pub(super) fn series(
        &self,
        families: &mut Families<'_>,
        executors: &[Executor],
        chosen: &BTreeMap<u64, HashSet<RddKey>>,
    ) {
        if let Some(counts) = &self.counts {
            families.count(table::RESOLVER_PAGES, &[], counts.pages);
            families.real(table::RESOLVER_CPU, Some(counts.cpu_ns as f64 / 1e9));
            families.count(table::RESOLVER_UNMAPPED, &[], counts.unmapped_bytes);
            families.count(table::RESOLVER_DISCARDED, &[], counts.discarded);
        }
        for executor in executors {
            let named = chosen.get(&executor.key);
            let mut other = NodeReads::default();
            for (rdd, reads) in self.reads.get(&executor.key).into_iter().flatten() {
                if named.is_some_and(|named| named.contains(rdd)) {
                    let (id, name) = names(executor, *rdd);
                    node_reads(families, executor, (&id, name), reads);
                } else {
                    other.add(reads);
                }
            }
            node_reads(families, executor, ("other", ""), &other);
            let Some((page_bytes, figures)) = self.executors.get(&executor.key) else {
                continue;
            };
            let mut other = Figures::default();
            for (rdd, figures) in figures {
                if !named.is_some_and(|named| named.contains(rdd)) {
                    other.merge(figures);
                    continue;
                }
                let (id, name) = names(executor, *rdd);
                samples(families, executor, (&id, name), figures, *page_bytes);
            }
            samples(families, executor, ("other", ""), &other, *page_bytes);
        }
    }
}

/// Labels of an RDD: id and name.
fn names(executor: &Executor, rdd: RddKey) -> (String, &str) {
    let id = rdd
        .id()
        .map_or_else(|| "none".to_owned(), |id| id.to_string());
    let mut rows = executor.rdds.iter();
    let name = rows.find(|row| row.key == rdd);
    (id, name.map_or("", |row| row.name.as_str()))
}

fn node_reads(
    families: &mut Families<'_>,
    executor: &Executor,
    (id, name): (&str, &str),
    reads: &NodeReads,
) {
    let Some(ratio) = reads.remote_ratio() else {
        return;
    };
    let (application, user, executor) = (
        executor.names.application_id.as_str(),
        executor.user.as_str(),
        executor.names.executor_id.as_str(),
    );
    let labels = [application, user, executor, id, name];
    families.count(table::RDD_READ_LOCAL, &labels, reads.local_bytes);
    families.count(table::RDD_READ_REMOTE, &labels, reads.remote_bytes);
    families.add(table::RDD_REMOTE_RATIO, &labels, Value::Real(ratio));
}

fn samples(
    families: &mut Families<'_>,
    executor: &Executor,
    (id, name): (&str, &str),
    figures: &Figures,
    page_bytes: u64,
) {
    let (application, user, executor) = (
        executor.names.application_id.as_str(),
        executor.user.as_str(),
        executor.names.executor_id.as_str(),
    );
    let labels = [application, user, executor, id, name];
    families.maybe(
        table::RDD_HUGE,
        &labels,
        figures.huge_page_bytes(page_bytes),
    );
    families.maybe(table::RDD_SWAPPED, &labels, figures.swapped_bytes());
    if let Some(sample) = figures.sample(page_bytes) {
        families.count(table::RDD_SAMPLED, &labels, figures.sampled_objects());
        let mut ratio = |family, value: Option<f64>| {
            if let Some(value) = value {
                families.add(family, &labels, Value::Real(value));
            }
        };
        ratio(table::RDD_SAMPLED_HUGE, sample.huge_page_share);
        ratio(table::RDD_SAMPLED_SWAPPED, Some(sample.swapped_share));
        for on in &sample.nodes {
            let node = on.node.to_string();
            families.add(
                table::RDD_SAMPLED_NODE,
                &[application, user, executor, id, name, &node],
                Value::Real(on.share),
            );
        }
    }
    if let Some(ratio) = figures.touched().hotness() {
        families.count(table::RDD_HOT, &labels, figures.touched().hot_bytes);
        families.add(table::RDD_ACCESSED_RATIO, &labels, Value::Real(ratio));
    }
    for row in figures.nodes().unwrap_or_default() {
        let node = row.node.to_string();
        families.count(
            table::RDD_NODE,
            &[application, user, executor, id, name, &node],
            row.bytes,
        );
    }
}
