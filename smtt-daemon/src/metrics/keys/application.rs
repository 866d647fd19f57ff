//! The keys of one application, with what was counted under each.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use smtt_common::page_walk::WalkCounters;
use smtt_model::cpu::FigureName;
use smtt_model::state::{Meaning, MemoryHeld, Peak};

use super::Which;
use crate::metrics::counted::{COUNTS, Count, Counter, Counts};

/// How long a key must have counted nothing before another may take its place.
const IDLE_NS: u64 = 600_000_000_000;
/// Keys of one application that are known to share `other`; more are counted again.
const REFUSED_MAX: usize = 4096;

/// Largest value of the last one to two windows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Largest {
    window: u64,
    before: u64,
    now: u64,
}

impl Largest {
    pub(super) fn see(&mut self, value: u64, window: u64) {
        if window != self.window {
            self.before = if window == self.window + 1 {
                self.now
            } else {
                0
            };
            (self.window, self.now) = (window, 0);
        }
        self.now = self.now.max(value);
    }
}

/// One key.
#[derive(Debug, Default)]
pub(in crate::metrics) struct Key {
    pub(super) counters: [Counter; COUNTS],
    /// Sampled page walks since the key was made.
    pub(super) walks: WalkCounters,
    /// Figures of the page walks.
    figures: Vec<(FigureName, Counter)>,
    /// Samples of page walks.
    pub(in crate::metrics) walk_samples: Counter,
    /// Sampled page walks of the last minute.
    pub(in crate::metrics) walks_last_minute: WalkCounters,
    /// Memory that the RDDs hold now.
    pub(in crate::metrics) held: MemoryHeld,
    pub(super) execution_peak: Largest,
    /// Time of the last growth, in nanoseconds since boot.
    pub(super) grown_ns: u64,
}

impl Key {
    /// One counter.
    pub(in crate::metrics) const fn counter(&self, count: Count) -> Counter {
        self.counters[count as usize]
    }

    /// A figure of the page walks.
    pub(in crate::metrics) fn figure(&self, name: FigureName) -> Counter {
        let known = self.figures.iter().find(|(known, _)| *known == name);
        known.map_or_else(Counter::default, |(_, counter)| *counter)
    }

    /// Largest execution memory of the last one to two scrape intervals.
    pub(in crate::metrics) fn execution_peak_bytes(&self) -> u64 {
        self.execution_peak.now.max(self.execution_peak.before)
    }

    pub(super) fn faults(&self) -> u64 {
        self.counters[..3]
            .iter()
            .fold(0, |sum, counter| sum.saturating_add(counter.value()))
    }

    pub(super) fn add(&mut self, more: &More, meaning: Option<&Meaning>, now_ns: u64) {
        for (counter, growth) in self.counters.iter_mut().zip(more.grown.all()) {
            counter.add(growth, now_ns);
        }
        if let Some(walks) = &more.grown.walks {
            self.walks.add(walks);
        }
        if let Some(meaning) = meaning {
            let mut samples = 0_u64;
            for figure in &meaning.figures {
                samples = samples.saturating_add(self.walks.samples[figure.of]);
                let value = figure.value(&self.walks);
                match self
                    .figures
                    .iter_mut()
                    .find(|(name, _)| *name == figure.name)
                {
                    Some((_, counter)) => counter.raise(value, now_ns),
                    None => {
                        let mut counter = Counter::default();
                        counter.raise(value, now_ns);
                        self.figures.push((figure.name, counter));
                    }
                }
            }
            self.walk_samples.raise(samples, now_ns);
        }
        self.held.add(&more.held);
        self.walks_last_minute.add(&more.walks_last_minute);
        if !more.grown.is_nothing() {
            self.grown_ns = now_ns;
        }
    }
}

/// Keys of one application.
#[derive(Debug, Default)]
pub(in crate::metrics) struct Application {
    /// First name of the application.
    pub(in crate::metrics) name: String,
    pub(super) keys: BTreeMap<String, Key>,
    pub(super) none: Key,
    pub(super) other: Key,
    /// Hashes of keys that share `other`.
    refused: HashSet<u64>,
    /// Page walks of all its executors in the last minute, with a context or without.
    pub(in crate::metrics) walks_last_minute: WalkCounters,
}

impl Application {
    /// All keys.
    pub(in crate::metrics) fn keys(&self) -> impl Iterator<Item = (Which, &Key)> {
        let named = |(name, key): (&String, _)| (Which::Named(name.clone()), key);
        let named = self.keys.iter().map(move |(name, key)| named((name, key)));
        named.chain([(Which::None, &self.none), (Which::Other, &self.other)])
    }

    /// The key of the lowest rank, with its growth now.
    pub(super) fn least(&self, growth: &BTreeMap<String, More>) -> Option<(String, (u64, u64))> {
        let rank = |(name, key): (&String, &Key)| {
            let faults = growth.get(name).map_or(0, |more| more.grown.faults());
            let held = growth.get(name).map_or(0, |more| more.rank().1);
            (name.clone(), (key.faults().saturating_add(faults), held))
        };
        let ranks = self.keys.iter().map(rank);
        ranks.min_by_key(|(_, rank)| *rank)
    }

    /// The key whose place another one may take.
    pub(super) fn replaceable(
        &self,
        growth: &BTreeMap<String, More>,
        more: &More,
        now_ns: u64,
    ) -> Option<String> {
        let idle = |(name, key): &(&String, &Key)| {
            !growth.contains_key(*name) && now_ns.saturating_sub(key.grown_ns) >= IDLE_NS
        };
        let longest = self.keys.iter().filter(idle);
        if let Some((name, _)) = longest.min_by_key(|(_, key)| key.grown_ns) {
            return Some(name.clone());
        }
        let (name, (faults, _)) = self.least(growth)?;
        (faults == 0 && more.grown.faults() > 0).then_some(name)
    }

    /// Notes a key that has to share `other`.
    pub(super) fn refuse(&mut self, name: &str, refused: &mut Counter, now_ns: u64) {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        if self.refused.len() >= REFUSED_MAX {
            self.refused.clear();
        }
        if self.refused.insert(hasher.finish()) {
            refused.add(1, now_ns);
        }
    }
}

/// What was counted for a key since the last update.
#[derive(Debug, Default)]
pub(super) struct More {
    pub(super) grown: Counts,
    pub(super) held: MemoryHeld,
    pub(super) execution_peak_bytes: u64,
    pub(super) walks_last_minute: WalkCounters,
}

impl More {
    /// Page faults rank before memory: the kernel counts them, memory is a claim.
    pub(super) fn rank(&self) -> (u64, u64) {
        let held = &self.held;
        let held = held.storage_bytes.saturating_add(held.execution_bytes);
        (self.grown.faults(), held)
    }

    pub(super) fn add(&mut self, grown: &Counts, held: &MemoryHeld, peak: &Peak) {
        self.grown.add(grown);
        self.held.add(held);
        let peak = peak.execution_bytes.max(held.execution_bytes);
        self.execution_peak_bytes = self.execution_peak_bytes.saturating_add(peak);
    }

    pub(super) fn add_all(&mut self, more: &Self) {
        self.grown.add(&more.grown);
        self.held.add(&more.held);
        self.execution_peak_bytes = self
            .execution_peak_bytes
            .saturating_add(more.execution_peak_bytes);
        self.walks_last_minute.add(&more.walks_last_minute);
    }
}
