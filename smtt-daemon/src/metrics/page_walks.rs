//! Page walks as metrics. RDDs without series of their own are in the executor's totals only: a ratio over unrelated
//! RDDs would have no meaning.

use std::collections::{BTreeMap, HashSet};

use smtt_common::page_walk::WalkCounters;
use smtt_model::attribute::RddKey;
use smtt_model::cpu::FigureName;
use smtt_model::state::Meaning;

use super::Value;
use super::collect::{Executor, Families, Rdd};
use super::table::{self, Metric};

/// The counter of a figure, and the gauge of its ratio.
const fn metrics(figure: FigureName) -> (&'static Metric, &'static Metric) {
    use FigureName::*;
    match figure {
        ReadWalkCycles => (table::RDD_WALK_READ, table::RDD_WALK_READ_RATIO),
        WriteWalkCycles => (table::RDD_WALK_WRITE, table::RDD_WALK_WRITE_RATIO),
        WalkCycles => (table::RDD_WALK, table::RDD_WALK_RATIO),
        ReadWalkOccupancy => (table::RDD_OCCUPANCY_READ, table::RDD_OCCUPANCY_READ_RATIO),
        WriteWalkOccupancy => (table::RDD_OCCUPANCY_WRITE, table::RDD_OCCUPANCY_WRITE_RATIO),
        WalkOccupancy => (table::RDD_OCCUPANCY, table::RDD_OCCUPANCY_RATIO),
        DtlbReadMisses => (table::RDD_MISSES_READ, table::RDD_WALK_READ_ESTIMATED),
        DtlbWriteMisses => (table::RDD_MISSES_WRITE, table::RDD_WALK_WRITE_ESTIMATED),
        DtlbMisses => (table::RDD_MISSES, table::RDD_WALK_ESTIMATED),
    }
}

/// Adds everything about page walks.
pub(super) fn series(
    families: &mut Families<'_>,
    meaning: &Meaning,
    executors: &[Executor],
    chosen: &BTreeMap<u64, HashSet<RddKey>>,
) {
    events(families, meaning);
    for executor in executors {
        cycles(families, meaning, executor);
        let named = |rdd: &&Rdd| {
            chosen
                .get(&executor.key)
                .is_some_and(|named| named.contains(&rdd.key))
        };
        for rdd in executor.rdds.iter().filter(named) {
            of_rdd(families, meaning, executor, rdd);
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

/// Cycles of an executor.
fn cycles(families: &mut Families<'_>, meaning: &Meaning, executor: &Executor) {
    let Some(cycles) = meaning.cycles() else {
        return;
    };
    let with = executor.walks_attributed.events[cycles];
    let without = executor.walks.events[cycles].saturating_sub(with);
    for (attribution, value) in [("attributed", with), ("unattributed", without)] {
        let labels = [
            executor.names.application_id.as_str(),
            executor.user.as_str(),
            executor.names.executor_id.as_str(),
            attribution,
        ];
        families.count(table::EXECUTOR_CYCLES, &labels, value);
    }
}

/// Figures and ratios of an RDD.
fn of_rdd(families: &mut Families<'_>, meaning: &Meaning, executor: &Executor, rdd: &Rdd) {
    let id = rdd
        .key
        .id()
        .map_or_else(|| "none".to_owned(), |id| id.to_string());
    let labels = [
        executor.names.application_id.as_str(),
        executor.user.as_str(),
        executor.names.executor_id.as_str(),
        id.as_str(),
        rdd.name.as_str(),
    ];
    let mut samples = 0;
    for figure in &meaning.figures {
        samples += rdd.walks.samples[figure.of];
        let (counter, gauge) = metrics(figure.name);
        families.count(counter, &labels, figure.value(&rdd.walks));
        let Some(cycles) = figure.cycles.filter(|channel| meaning.sound(*channel)) else {
            continue;
        };
        let windows: [(&str, &WalkCounters, &WalkCounters); 2] = [
            ("life", &rdd.walks, &executor.walks),
            ("1m", &rdd.walks_last_minute, &executor.walks_last_minute),
        ];
        for (window, own, executor) in windows {
            let value = figure.value(own) as f64;
            for (of, whose) in [("rdd", own), ("executor", executor)] {
                if let Some(ratio) = meaning.ratio(figure, value, whose.events[cycles]) {
                    let [application, user, executor, rdd, name] = labels;
                    let labels = [application, user, executor, rdd, name, of, window];
                    families.add(gauge, &labels, Value::Real(ratio));
                }
            }
        }
    }
    if !meaning.figures.is_empty() {
        families.count(table::RDD_WALK_SAMPLES, &labels, samples);
    }
}
