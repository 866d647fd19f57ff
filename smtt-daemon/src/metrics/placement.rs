//! Metrics of the placement of bytes, and of the cost of measuring it.

use std::collections::BTreeMap;

use smtt_model::rows::{Figures, by_rdd};
use smtt_model::sort::small::Gather as _;
use smtt_model::state::{ResolveCounts, State};

use super::collect::Families;
use super::keys::{ApplicationKey, Keys, Which};
use super::rdds::Labelled;
use super::{Value, table};

/// Snapshot of all executors.
pub(super) struct Pages {
    /// Figures of each key, and the name of its application.
    keys: BTreeMap<(ApplicationKey, Which), Figures>,
    names: BTreeMap<ApplicationKey, String>,
    /// The machine's base page size in bytes.
    page_bytes: u64,
    counts: Option<ResolveCounts>,
}

impl Pages {
    /// Takes the snapshot.
    pub(super) fn of(state: &State, keys: &Keys) -> Self {
        let mut pages = Self {
            keys: BTreeMap::new(),
            names: BTreeMap::new(),
            page_bytes: 0,
            counts: state.resolve_counts().copied(),
        };
        for (id, executor) in state.executors() {
            if executor.memory.last_examined.time_ns == 0 && executor.memory.accessed.is_empty() {
                continue;
            }
            pages.page_bytes = pages
                .page_bytes
                .max(executor.memory.last_examined.page_bytes);
            let naming = keys.naming(*id, executor);
            for (rdd, figures) in by_rdd(executor, state.now_ns()) {
                let key = keys.which(executor, &naming, rdd);
                pages.keys.entry(key).or_default().merge(&figures);
            }
        }
        let names = keys.applications();
        pages.names = names
            .map(|(key, application)| (key.clone(), application.name.clone()))
            .gather();
        pages
    }

    /// Adds the series.
    pub(super) fn series(&self, families: &mut Families<'_>) {
        if let Some(counts) = &self.counts {
            families.count(table::RESOLVER_PAGES, &[], counts.pages);
            families.real(table::RESOLVER_CPU, Some(counts.cpu_ns as f64 / 1e9));
            families.count(table::RESOLVER_UNMAPPED, &[], counts.unmapped_bytes);
            families.count(table::RESOLVER_DISCARDED, &[], counts.discarded);
        }
        for ((application, which), figures) in &self.keys {
            let name = self.names.get(application).map_or("", String::as_str);
            let labels = Labelled::new(application, name, which);
            samples(families, &labels, figures, self.page_bytes);
        }
    }
}

fn samples(families: &mut Families<'_>, labelled: &Labelled, figures: &Figures, page_bytes: u64) {
    let labels = labelled.own();
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
                &labelled.with(&node),
                Value::Real(on.share),
            );
        }
    }
    if let Some(ratio) = figures.accessed().hotness() {
        families.count(table::RDD_HOT, &labels, figures.accessed().hot_bytes);
        families.add(table::RDD_ACCESSED_RATIO, &labels, Value::Real(ratio));
    }
    for row in figures.nodes().unwrap_or_default() {
        let node = row.node.to_string();
        families.count(table::RDD_NODE, &labelled.with(&node), row.bytes);
    }
}
