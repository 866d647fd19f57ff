//! Series of RDDs by their keys: page faults, blocks and memory.

use super::Value;
use super::collect::Families;
use super::counted::Count;
use super::keys::{ApplicationKey, Key, Keys, Which};
use super::table;

/// Labels of a key.
pub(super) struct Labelled {
    application: String,
    name: String,
    user: String,
    rdd: String,
}

impl Labelled {
    pub(super) fn new(application: &ApplicationKey, name: &str, which: &Which) -> Self {
        Self {
            application: application.id.clone(),
            name: name.to_owned(),
            user: application.user(),
            rdd: which.label().to_owned(),
        }
    }

    /// The labels of every metric of RDDs.
    pub(super) fn own(&self) -> [&str; 4] {
        [&self.application, &self.name, &self.user, &self.rdd]
    }

    /// With a fifth label.
    pub(super) fn with<'a>(&'a self, fifth: &'a str) -> [&'a str; 5] {
        let [application, name, user, rdd] = self.own();
        [application, name, user, rdd, fifth]
    }
}

/// Adds the series of all keys.
pub(super) fn series(families: &mut Families<'_>, keys: &Keys) {
    for (application, of) in keys.applications() {
        for (which, key) in of.keys() {
            let labels = Labelled::new(application, &of.name, &which);
            of_key(families, &labels, key);
        }
    }
}

fn of_key(families: &mut Families<'_>, labels: &Labelled, key: &Key) {
    for (count, access) in [
        (Count::Reads, "read"),
        (Count::Writes, "write"),
        (Count::Unknown, "unknown"),
    ] {
        families.counter(table::RDD_FAULTS, &labels.with(access), key.counter(count));
    }
    for (count, metric) in [
        (Count::Major, table::RDD_MAJOR),
        (Count::Timed, table::RDD_TIMED),
        (Count::Stored, table::RDD_STORED),
        (Count::StoredAgain, table::RDD_STORED_AGAIN),
        (Count::Evicted, table::RDD_EVICTED),
        (Count::BlockReads, table::RDD_BLOCK_READS),
    ] {
        families.counter(metric, &labels.own(), key.counter(count));
    }
    if let Some(ns) = key.counter(Count::TimedNs).shown(families.hold) {
        let seconds = Value::Real(ns as f64 / 1e9);
        families.add(table::RDD_TIMED_SECONDS, &labels.own(), seconds);
    }
    for (count, node) in [(Count::Local, "local"), (Count::Remote, "remote")] {
        families.counter(
            table::RDD_READ_BYTES,
            &labels.with(node),
            key.counter(count),
        );
    }
    let (held, labels) = (&key.held, labels.own());
    families.size(table::RDD_STORAGE, &labels, held.storage_bytes);
    families.size(table::RDD_CACHED, &labels, held.blocks);
    let peak = key.execution_peak_bytes().max(held.execution_bytes);
    if peak > 0 {
        families.count(table::RDD_EXECUTION, &labels, held.execution_bytes);
        families.count(table::RDD_EXECUTION_PEAK, &labels, peak);
    }
}
