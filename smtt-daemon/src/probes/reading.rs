//! Reads the tables of counters and turns totals into growth.

use std::collections::HashMap as Known;
use std::os::fd::BorrowedFd;

use anyhow::Context as _;
use aya::Ebpf;
use aya::maps::{HashMap, PerCpuArray, PerCpuHashMap};
use smtt_common::context::Activity;
use smtt_common::counter::{COUNTERS, ContextKey, ExecutorCounters, FaultCounters, Unattributed};
use smtt_common::page_walk::{WALK_CHANNELS, WalkCounters};
use smtt_common::settings::{Budget, TableOperation, Thread};

use super::wire::{Plain, Wire};
use super::{Readings, memory, tables};

/// Readings without growth after which a context is removed from the table. It returns when it grows again.
const QUIET_READINGS: u32 = 30;

/// Counters that only grow.
trait Growing: Plain + Default + PartialEq {
    /// The growth from one reading to the next.
    fn since(&self, before: &Self) -> Self;
}

/// A table of the kernel side with a row per context.
struct Contexts<V> {
    name: &'static str,
    /// The operation that reports removed rows to the kernel side.
    release: TableOperation,
    known: Known<ContextKey, Seen<V>>,
}

/// A context at the last reading.
#[derive(Clone, Copy, Default)]
struct Seen<V> {
    counters: V,
    quiet: u32,
}

/// The contexts at the last reading.
pub struct Reader {
    faults: Contexts<FaultCounters>,
    walks: Contexts<WalkCounters>,
    /// Sums over all contexts of each executor, including contexts that were removed.
    attributed: Known<u64, FaultCounters>,
    /// The part of `attributed` that Python workers had.
    of_workers: Known<u64, u64>,
    /// Threads with a row at the last reading, and their executors.
    threads: Vec<(u32, u64)>,
    /// Page-walk samples of executors that were forgotten, since the last reading.
    walks_left: Vec<(ContextKey, WalkCounters)>,
}

impl Default for Reader {
    fn default() -> Self {
        Self {
            faults: Contexts {
                name: "CONTEXTS",
                release: TableOperation::RELEASE_CONTEXTS,
                known: Known::new(),
            },
            walks: Contexts {
                name: "WALKS",
                release: TableOperation::RELEASE_WALKS,
                known: Known::new(),
            },
            attributed: Known::new(),
            of_workers: Known::new(),
            threads: Vec::new(),
            walks_left: Vec::new(),
        }
    }
}

impl Reader {
    /// Reads everything but page walks.
    pub fn read(&mut self, ebpf: &mut Ebpf) -> anyhow::Result<Readings> {
        self.threads = flush(ebpf)?;
        let mut readings = Readings {
            contexts: self.faults.read(ebpf)?,
            ..Readings::default()
        };
        for (key, growth) in &readings.contexts {
            let total = self.attributed.entry(key.executor).or_default();
            *total = sum(*total, growth);
            if key.activity == Activity::PYTHON_WORKER.0 {
                *self.of_workers.entry(key.executor).or_default() += faults(growth);
            }
        }
        let executors = PerCpuHashMap::<_, u64, Wire<ExecutorCounters>>::try_from(
            ebpf.map("EXECUTORS").context("no table EXECUTORS")?,
        )?;
        for (key, values) in executors.iter().flatten() {
            let totals = self.totals(key, values.iter().map(|Wire(one)| one));
            readings.executors.push((key, totals));
        }
        let budgets = HashMap::<_, u64, Wire<Budget>>::try_from(
            ebpf.map("BUDGETS").context("no table BUDGETS")?,
        )?;
        readings.owners = budgets
            .iter()
            .flatten()
            .map(|(key, Wire(budget))| (key, budget.owner))
            .collect();
        let counters =
            PerCpuArray::<_, u64>::try_from(ebpf.map("COUNTERS").context("no table COUNTERS")?)?;
        for index in 0..COUNTERS {
            readings.counters[index] = counters.get(&(index as u32), 0)?.iter().sum();
        }
        Ok(readings)
    }

    /// Counted faults of an executor's own process, without those of its children.
    pub fn own_faults(&self, executor: u64, totals: &ExecutorCounters) -> u64 {
        let classes: u64 = totals.unattributed.iter().map(faults).sum();
        let child = faults(&totals.unattributed[usize::from(Unattributed::CHILD.0)]);
        let workers = self.of_workers.get(&executor).copied().unwrap_or(0);
        (faults(&totals.attributed) + classes).saturating_sub(child + workers)
    }

    /// Growth of the samples of page walks per context.
    pub fn read_walks(
        &mut self,
        ebpf: &mut Ebpf,
    ) -> anyhow::Result<Vec<(ContextKey, WalkCounters)>> {
        let mut grown = std::mem::take(&mut self.walks_left);
        grown.extend(self.walks.read(ebpf)?);
        Ok(grown)
    }

    /// Threads with a row at the last reading, and their executors.
    pub fn threads(&self) -> &[(u32, u64)] {
        &self.threads
    }

    /// Totals of an executor, from the counters of each processor.
    fn totals<'a>(
        &self,
        executor: u64,
        counters: impl Iterator<Item = &'a ExecutorCounters>,
    ) -> ExecutorCounters {
        let attributed = self.attributed.get(&executor).copied().unwrap_or_default();
        let start = ExecutorCounters {
            attributed,
            ..ExecutorCounters::default()
        };
        counters.fold(start, plus)
    }

    /// Current contexts of an executor in the table.
    pub fn rows(&self, ebpf: &Ebpf, executor: u64) -> anyhow::Result<usize> {
        self.faults.rows(ebpf, executor)
    }

    /// Removes the contexts of an executor that is forgotten, and returns its last totals. Its row of totals is still
    /// there.
    pub fn forget(&mut self, ebpf: &mut Ebpf, executor: u64) -> anyhow::Result<ExecutorCounters> {
        for (_, growth) in self.faults.forget(ebpf, executor)? {
            let total = self.attributed.entry(executor).or_default();
            *total = sum(*total, &growth);
        }
        let left = self.walks.forget(ebpf, executor)?;
        self.walks_left.extend(left);
        let executors = PerCpuHashMap::<_, u64, Wire<ExecutorCounters>>::try_from(
            ebpf.map("EXECUTORS").context("no table EXECUTORS")?,
        )?;
        // Without a row it was removed before: there is nothing to add.
        let counters = executors.get(&executor, 0).ok();
        let counters = counters.iter().flat_map(|values| values.iter());
        let totals = self.totals(executor, counters.map(|Wire(one)| one));
        self.attributed.remove(&executor);
        self.of_workers.remove(&executor);
        Ok(totals)
    }
}

/// Moves the faults that threads have pending to the table of contexts. Returns the threads and their executors.
fn flush(ebpf: &Ebpf) -> anyhow::Result<Vec<(u32, u64)>> {
    let map = memory::map_fd(ebpf.map("THREADS").context("no table THREADS")?)
        .context("THREADS is no hash table")?;
    let threads = tables::rows::<u32, Thread>(map).context("the table THREADS cannot be read")?;
    for (tid, thread) in &threads {
        let tid = *tid;
        if thread.pending != [FaultCounters::default(); 2] {
            tables::change(ebpf, TableOperation::FLUSH_THREAD, &[u64::from(tid)])?;
        }
    }
    let executor = |(tid, thread): &(u32, Thread)| (*tid, thread.executor);
    Ok(threads.iter().map(executor).collect())
}

impl<V: Growing> Contexts<V> {
    /// The growth since the last reading. A quiet context is removed by one look-up-and-delete, so that no count is
    /// lost between the two.
    fn read(&mut self, ebpf: &mut Ebpf) -> anyhow::Result<Vec<(ContextKey, V)>> {
        let mut grown = Vec::new();
        let mut quiet: Vec<ContextKey> = Vec::new();
        let rows = tables::rows::<ContextKey, V>(self.map(ebpf)?)
            .with_context(|| format!("the table {} cannot be read", self.name))?;
        for (key, now) in rows {
            let seen = self.known.entry(key).or_default();
            let growth = now.since(&seen.counters);
            if growth == V::default() {
                seen.quiet += 1;
                if seen.quiet >= QUIET_READINGS {
                    quiet.push(key);
                }
            } else {
                *seen = Seen {
                    counters: now,
                    quiet: 0,
                };
                grown.push((key, growth));
            }
        }
        self.remove(ebpf, &quiet, &mut grown)?;
        Ok(grown)
    }

    /// Removes contexts from the table and adds their growth since the reading.
    fn remove(
        &mut self,
        ebpf: &Ebpf,
        keys: &[ContextKey],
        grown: &mut Vec<(ContextKey, V)>,
    ) -> anyhow::Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let mut removed: Known<u64, u64> = Known::new();
        let map = self.map(ebpf)?;
        for key in keys {
            let seen = self.known.remove(key).unwrap_or_default();
            if let Some(last) = tables::take_context::<V>(map, key) {
                let growth = last.since(&seen.counters);
                if growth != V::default() {
                    grown.push((*key, growth));
                }
                *removed.entry(key.executor).or_default() += 1;
            }
        }
        for (executor, count) in removed {
            tables::change(ebpf, self.release, &[executor, count])?;
        }
        Ok(())
    }

    /// Current rows of an executor in the table.
    fn rows(&self, ebpf: &Ebpf, executor: u64) -> anyhow::Result<usize> {
        Ok(tables::rows::<ContextKey, V>(self.map(ebpf)?)?
            .iter()
            .filter(|(key, _)| key.executor == executor)
            .count())
    }

    /// Removes the rows of an executor, and returns their growth since the last reading.
    fn forget(&mut self, ebpf: &Ebpf, executor: u64) -> anyhow::Result<Vec<(ContextKey, V)>> {
        let keys: Vec<ContextKey> = tables::rows::<ContextKey, V>(self.map(ebpf)?)?
            .into_iter()
            .map(|(key, _)| key)
            .filter(|key| key.executor == executor)
            .collect();
        let mut grown = Vec::new();
        self.remove(ebpf, &keys, &mut grown)?;
        self.known.retain(|key, _| key.executor != executor);
        Ok(grown)
    }

    fn map<'a>(&self, ebpf: &'a Ebpf) -> anyhow::Result<BorrowedFd<'a>> {
        let name = self.name;
        memory::map_fd(
            ebpf.map(name)
                .with_context(|| format!("the object lacks the table {name}"))?,
        )
        .with_context(|| format!("{name} is no hash table"))
    }
}

impl Growing for FaultCounters {
    fn since(&self, before: &Self) -> Self {
        Self {
            read: self.read.wrapping_sub(before.read),
            write: self.write.wrapping_sub(before.write),
            unknown: self.unknown.wrapping_sub(before.unknown),
            major: self.major.wrapping_sub(before.major),
            timed: self.timed.wrapping_sub(before.timed),
            timed_ns: self.timed_ns.wrapping_sub(before.timed_ns),
            timed_squares: self.timed_squares.wrapping_sub(before.timed_squares),
        }
    }
}

impl Growing for WalkCounters {
    fn since(&self, before: &Self) -> Self {
        let mut growth = *self;
        for slot in 0..WALK_CHANNELS {
            growth.events[slot] = growth.events[slot].wrapping_sub(before.events[slot]);
            growth.samples[slot] = growth.samples[slot].wrapping_sub(before.samples[slot]);
        }
        growth
    }
}

/// Number of faults; it includes the major ones.
fn faults(counters: &FaultCounters) -> u64 {
    counters.read + counters.write + counters.unknown
}

fn sum(a: FaultCounters, b: &FaultCounters) -> FaultCounters {
    FaultCounters {
        read: a.read + b.read,
        write: a.write + b.write,
        unknown: a.unknown + b.unknown,
        major: a.major + b.major,
        timed: a.timed + b.timed,
        timed_ns: a.timed_ns.wrapping_add(b.timed_ns),
        timed_squares: a.timed_squares.wrapping_add(b.timed_squares),
    }
}

fn plus(mut total: ExecutorCounters, one: &ExecutorCounters) -> ExecutorCounters {
    total.attributed = sum(total.attributed, &one.attributed);
    for (class, counters) in one.unattributed.iter().enumerate() {
        total.unattributed[class] = sum(total.unattributed[class], counters);
    }
    total.facts_seen += one.facts_seen;
    total.facts_unknown += one.facts_unknown;
    total.facts_rate_limited += one.facts_rate_limited;
    total.facts_too_long += one.facts_too_long;
    total.facts_unreadable += one.facts_unreadable;
    total.facts_ring_full += one.facts_ring_full;
    total.threads_refused += one.threads_refused;
    total.samples_seen += one.samples_seen;
    total.samples_ring_full += one.samples_ring_full;
    total.samples_rate_limited += one.samples_rate_limited;
    total.records_seen += one.records_seen;
    total.records_ring_full += one.records_ring_full;
    total.records_rate_limited += one.records_rate_limited;
    total
}
