//! Keys of RDDs: what counters of RDDs are counted under.
//!
//! RDDs come and go by the thousand, and so would their series. A key lives as long as its application: the RDD's name,
//! or what else [`Naming`] is told, over all executors of this worker. Each growth of an RDD is added
//! to one key when it is seen; it never moves. So the keys of an application, `none` and `other` together always have
//! what its executors have, and no counter falls when an RDD or an executor is forgotten.

mod application;
mod naming;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use smtt_common::page_walk::WalkCounters;
use smtt_model::attribute::RddKey;
use smtt_model::rows::{GroupBy, reads_by_rdd};
use smtt_model::sort::small::{Gather as _, sort_by};
use smtt_model::state::{Executor, Meaning, MemoryHeld, Peak, State};

use self::application::More;
pub(super) use self::application::{Application, Key};
pub(super) use self::naming::{Named, Naming, QueryKeys, key_of};
use super::KeyLimits;
use super::counted::{Counter, Counts};
use super::shares::max_min;

/// How long a new RDD or executor may stay without its description before it is counted without.
const DESCRIBED_WITHIN_NS: u64 = 10_000_000_000;

/// An application: the user of its executors, and its id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ApplicationKey {
    pub(super) uid: Option<u32>,
    pub(super) id: String,
}

impl ApplicationKey {
    fn of(executor: &Executor) -> Self {
        let said = executor.described.as_ref();
        Self {
            uid: executor.uid,
            id: said.map_or_else(String::new, |said| said.application_id.clone()),
        }
    }

    /// Label of the user; empty until it is known.
    pub(super) fn user(&self) -> String {
        self.uid.map_or_else(String::new, |uid| uid.to_string())
    }
}

/// Which key of an application.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Which {
    /// RDDs by name or call site.
    Named(String),
    /// Work and memory of no RDD.
    None,
    /// RDDs without a key of their own.
    Other,
}

impl Which {
    /// Value of the label `rdd`.
    pub(super) fn label(&self) -> &str {
        match self {
            Self::Named(name) => name,
            Self::None => "none",
            Self::Other => "other",
        }
    }
}

/// What was counted for an application since the last update, by key.
#[derive(Debug, Default)]
struct Growth {
    share: Option<u32>,
    name: String,
    named: BTreeMap<String, More>,
    none: More,
    other: More,
    walks_last_minute: WalkCounters,
}

/// What has been counted of an executor.
#[derive(Debug, Default)]
struct Seen {
    rdds: HashMap<RddKey, Counts>,
    /// First sight of RDDs without a description, in nanoseconds since boot.
    waiting: HashMap<RddKey, u64>,
    /// All that was added to keys.
    counted: Counts,
}

/// All keys.
#[derive(Debug)]
pub(super) struct Keys {
    limits: KeyLimits,
    by: GroupBy,
    /// Length of a window of peaks, in nanoseconds.
    window_ns: u64,
    applications: BTreeMap<ApplicationKey, Application>,
    executors: HashMap<u64, Seen>,
    queries: QueryKeys,
    /// Keys that had to share `other`.
    pub(super) refused: Counter,
}

impl Keys {
    pub(super) fn new(limits: KeyLimits, by: GroupBy, window_ns: u64) -> Self {
        Self {
            limits,
            by,
            window_ns: window_ns.max(1_000_000_000),
            applications: BTreeMap::new(),
            executors: HashMap::new(),
            queries: QueryKeys::default(),
            refused: Counter::default(),
        }
    }

    /// All applications.
    pub(super) fn applications(&self) -> impl Iterator<Item = (&ApplicationKey, &Application)> {
        self.applications.iter()
    }

    /// How the RDDs of the executor with this key are named.
    pub(super) fn naming<'a>(&self, key: u64, executor: &'a Executor) -> Naming<'a> {
        Naming::of(executor, key, self.by, &self.queries)
    }

    /// The application of an executor, and the key of one of its RDDs.
    pub(super) fn which(
        &self,
        executor: &Executor,
        naming: &Naming<'_>,
        rdd: RddKey,
    ) -> (ApplicationKey, Which) {
        let application = ApplicationKey::of(executor);
        let known = self.applications.get(&application);
        let which = match rdd {
            RddKey::None => Which::None,
            RddKey::Overflow => Which::Other,
            RddKey::Id(_) => {
                let (Named::As(key) | Named::NotYet(key)) = naming.key(rdd);
                let own = known.is_some_and(|known| known.keys.contains_key(&key));
                if own { Which::Named(key) } else { Which::Other }
            }
        };
        (application, which)
    }

    /// Adds everything that the executors have counted since the last update.
    pub(super) fn update(&mut self, state: &mut State) {
        let mut peaks = state.take_recent_peaks();
        let state = &*state;
        let now_ns = state.now_ns();
        let mut there = BTreeSet::new();
        let mut queries = std::mem::take(&mut self.queries);
        let mut growths: BTreeMap<ApplicationKey, Growth> = BTreeMap::new();
        for (key, executor) in state.executors() {
            let application = ApplicationKey::of(executor);
            there.insert(application.clone());
            let new = now_ns.saturating_sub(executor.first_seen_ns) < DESCRIBED_WITHIN_NS;
            if executor.described.is_none() && new {
                continue;
            }
            let peaks = peaks.remove(key).unwrap_or_default().into_iter().collect();
            let growth = growths.entry(application).or_default();
            growth.share = executor.share;
            if let (true, Some(said)) = (growth.name.is_empty(), &executor.described) {
                growth.name.clone_from(&said.application_name);
            }
            let seen = self.executors.entry(*key).or_default();
            let known = &mut self.queries;
            let naming = Naming::updated(executor, *key, self.by, known, &mut queries);
            seen.count(executor, &naming, growth, &peaks, now_ns);
        }
        let known = state.executors();
        self.executors.retain(|key, _| known.contains_key(key));
        self.applications.retain(|key, _| there.contains(key));
        let shares = self.shares(&growths);
        let meaning = state.page_walks();
        for (key, growth) in growths {
            let share = shares.get(&key).copied().unwrap_or(0);
            self.add(key, growth, share, meaning, now_ns);
        }
    }

    /// Keys that each application may have.
    fn shares(
        &self,
        growths: &BTreeMap<ApplicationKey, Growth>,
    ) -> BTreeMap<ApplicationKey, usize> {
        let mut users: BTreeMap<Option<u32>, BTreeMap<ApplicationKey, usize>> = BTreeMap::new();
        for (key, growth) in growths {
            let known = self.applications.get(key);
            let old = known.map_or(0, |known| known.keys.len());
            let is_new =
                |name: &&String| !known.is_some_and(|known| known.keys.contains_key(*name));
            let wants = old + growth.named.keys().filter(is_new).count();
            let wants = wants.min(self.limits.per_application);
            users
                .entry(growth.share)
                .or_default()
                .insert(key.clone(), wants);
        }
        let by_user = users.iter();
        let by_user = by_user.map(|(user, wants)| (*user, wants.values().sum()));
        max_min(&by_user.gather(), self.limits.all)
            .into_iter()
            .filter_map(|(user, share)| Some(max_min(users.get(&user)?, share)))
            .flatten()
            .gather()
    }

    fn add(
        &mut self,
        key: ApplicationKey,
        mut growth: Growth,
        share: usize,
        meaning: Option<&Meaning>,
        now_ns: u64,
    ) {
        let window = now_ns / self.window_ns;
        let application = self.applications.entry(key).or_default();
        if application.name.is_empty() {
            application.name = growth.name;
        }
        application.walks_last_minute = growth.walks_last_minute;
        let named = std::mem::take(&mut growth.named);
        // Other users want their share.
        while application.keys.len() > share {
            let Some((name, _)) = application.least(&named) else {
                break;
            };
            application.keys.remove(&name);
        }
        let mut new: Vec<(&String, &More)> = named.iter().collect();
        new.retain(|(name, _)| !application.keys.contains_key(*name));
        // The best first; equal ones in a fixed order.
        sort_by(&mut new, |(name, more), (other, than)| {
            than.rank().cmp(&more.rank()).then_with(|| name.cmp(other))
        });
        let mut full = share == 0;
        for (name, more) in new {
            if full || application.keys.len() >= share {
                // A key after the first that is refused has a lower rank.
                match (!full)
                    .then(|| application.replaceable(&named, more, now_ns))
                    .flatten()
                {
                    Some(least) => drop(application.keys.remove(&least)),
                    None => {
                        full = true;
                        application.refuse(name, &mut self.refused, now_ns);
                        continue;
                    }
                }
            }
            application.keys.insert(name.clone(), Key::default());
        }
        let Application {
            keys, none, other, ..
        } = application;
        for key in keys.values_mut().chain([none, other]) {
            key.held = MemoryHeld::default();
            key.walks_last_minute = WalkCounters::default();
        }
        for (name, more) in &named {
            match application.keys.get_mut(name) {
                Some(key) => {
                    key.add(more, meaning, now_ns);
                    key.execution_peak.see(more.execution_peak_bytes, window);
                }
                None => growth.other.add_all(more),
            }
        }
        for (key, more) in [
            (&mut application.none, &growth.none),
            (&mut application.other, &growth.other),
        ] {
            key.add(more, meaning, now_ns);
            key.execution_peak.see(more.execution_peak_bytes, window);
        }
        // Keys to which nothing came.
        for key in application.keys.values_mut() {
            key.execution_peak.see(0, window);
        }
    }
}

impl Seen {
    /// Adds what an executor has counted since the last call to the growth of its application.
    fn count(
        &mut self,
        executor: &Executor,
        naming: &Naming<'_>,
        growth: &mut Growth,
        peaks: &HashMap<RddKey, Peak>,
        now_ns: u64,
    ) {
        let mut reads = reads_by_rdd(executor);
        let (mut total, mut waiting) = (Counts::default(), Counts::default());
        for (rdd, row) in &executor.rdds {
            let mut counts = Counts::of(row);
            if let Some(reads) = reads.remove(rdd) {
                counts.add_reads(&reads);
            }
            total.add(&counts);
            if *rdd == RddKey::Overflow {
                // Its growth is what is left of the sum in the end: rows are folded into it.
                continue;
            }
            let grown = counts.growth(self.rdds.get(rdd));
            let held = executor.memory.held(*rdd);
            let peak = peaks.get(rdd).copied().unwrap_or_default();
            let walks = row.walks.last_minute(now_ns);
            if grown.is_nothing()
                && held.is_nothing()
                && peak == Peak::default()
                && walks.is_empty()
            {
                continue;
            }
            let more = match (rdd, naming.key(*rdd)) {
                (RddKey::None, _) => &mut growth.none,
                (_, Named::As(key)) => growth.named.entry(key).or_default(),
                (_, Named::NotYet(key)) => {
                    let since = *self.waiting.entry(*rdd).or_insert(now_ns);
                    if now_ns.saturating_sub(since) < DESCRIBED_WITHIN_NS {
                        waiting.add(&grown);
                        growth.other.add(&Counts::default(), &held, &peak);
                        continue;
                    }
                    growth.named.entry(key).or_default()
                }
            };
            more.add(&grown, &held, &peak);
            more.walks_last_minute.add(&walks);
            self.counted.add(&grown);
            self.rdds.insert(*rdd, counts);
        }
        for reads in reads.values() {
            total.add_reads(reads);
        }
        // Memory of RDDs without a row.
        for (rdd, held) in executor.memory.holders() {
            if !executor.rdds.contains_key(&rdd) {
                let more = match rdd {
                    RddKey::None => &mut growth.none,
                    _ => &mut growth.other,
                };
                more.add(&Counts::default(), held, &Peak::default());
            }
        }
        if let Some(held) = overflow(executor) {
            growth
                .other
                .add(&Counts::default(), &held, &Peak::default());
        }
        let rest = total.less(&self.counted).less(&waiting);
        growth.other.grown.add(&rest);
        self.counted.add(&rest);
        growth
            .walks_last_minute
            .add(&executor.all_walks.last_minute(now_ns));
        self.rdds.retain(|rdd, _| executor.rdds.contains_key(rdd));
        self.waiting
            .retain(|rdd, _| executor.rdds.contains_key(rdd));
    }
}

/// Memory of the overflow row.
fn overflow(executor: &Executor) -> Option<MemoryHeld> {
    let known = executor.rdds.contains_key(&RddKey::Overflow);
    known.then(|| executor.memory.held(RddKey::Overflow))
}

#[cfg(test)]
mod tests;
