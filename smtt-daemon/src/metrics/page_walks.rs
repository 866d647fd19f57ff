//! Page walks as metrics. `rdd="other"` has counters but no ratios: a ratio over unrelated RDDs would have no meaning.

use smtt_model::cpu::FigureName;
use smtt_model::state::Meaning;

use super::Value;
use super::collect::Families;
use super::keys::{Key, Keys, Which};
use super::rdds::Labelled;
use super::table::{self, Metric};

/// The counter of a figure, the gauge of its ratio, and the value of their label `access`.
const fn metrics(figure: FigureName) -> (&'static Metric, &'static Metric, &'static str) {
    use FigureName::*;
    let (counter, gauge) = match figure {
        ReadWalkCycles | WriteWalkCycles | WalkCycles => (table::RDD_WALK, table::RDD_WALK_RATIO),
        ReadWalkOccupancy | WriteWalkOccupancy | WalkOccupancy => {
            (table::RDD_OCCUPANCY, table::RDD_OCCUPANCY_RATIO)
        }
        DtlbReadMisses | DtlbWriteMisses | DtlbMisses => {
            (table::RDD_MISSES, table::RDD_WALK_ESTIMATED)
        }
    };
    let access = match figure {
        ReadWalkCycles | ReadWalkOccupancy | DtlbReadMisses => "read",
        WriteWalkCycles | WriteWalkOccupancy | DtlbWriteMisses => "write",
        WalkCycles | WalkOccupancy | DtlbMisses => "any",
    };
    (counter, gauge, access)
}

/// Adds everything about page walks.
pub(super) fn series(families: &mut Families<'_>, meaning: &Meaning, keys: &Keys) {
    events(families, meaning);
    for (application, of) in keys.applications() {
        for (which, key) in of.keys() {
            let labels = Labelled::new(application, &of.name, &which);
            for figure in &meaning.figures {
                let (counter, _, access) = metrics(figure.name);
                families.counter(counter, &labels.with(access), key.figure(figure.name));
            }
            families.counter(table::RDD_WALK_SAMPLES, &labels.own(), key.walk_samples);
            if which != Which::Other {
                let all = &of.walks_last_minute;
                ratios(families, meaning, &labels, key, all);
            }
        }
    }
}

/// Ratios of the last minute; `all` are the samples of all executors of the application.
fn ratios(
    families: &mut Families<'_>,
    meaning: &Meaning,
    labels: &Labelled,
    key: &Key,
    all: &smtt_common::page_walk::WalkCounters,
) {
    let own = &key.walks_last_minute;
    for figure in &meaning.figures {
        let Some(cycles) = figure.cycles.filter(|channel| meaning.sound(*channel)) else {
            continue;
        };
        let (_, gauge, access) = metrics(figure.name);
        let value = figure.value(own) as f64;
        for (of, whose) in [("rdd", own), ("application", all)] {
            // Without cycles of its own the RDD did not run.
            let ratio = meaning.ratio(figure, value, whose.events[cycles]);
            if let Some(ratio) = ratio.filter(|_| own.events[cycles] > 0) {
                let [application, name, user, rdd] = labels.own();
                let labels = [application, name, user, rdd, access, of];
                families.add(gauge, &labels, Value::Real(ratio));
            }
        }
    }
}

/// The sampled events themselves.
fn events(families: &mut Families<'_>, meaning: &Meaning) {
    for channel in &meaning.channels {
        let (role, turn) = (channel.role.to_string(), channel.pass.to_string());
        let labels = [role.as_str(), channel.event.as_str(), turn.as_str()];
        families.count(table::WALK_COUNTED, &labels, channel.counted);
        families.count(table::WALK_SAMPLED, &labels, channel.sampled);
        let seconds = |ns: u64| Value::Real(ns as f64 / 1e9);
        families.add(table::WALK_ENABLED, &labels, seconds(channel.enabled_ns));
        families.add(table::WALK_RUNNING, &labels, seconds(channel.running_ns));
    }
    let Some(calibration) = &meaning.calibration else {
        return;
    };
    for (access, cost) in [("read", calibration.read), ("write", calibration.write)] {
        if let Some(cost) = cost {
            families.add(table::WALK_COST, &[access], Value::Real(cost.cycles));
        }
    }
}
