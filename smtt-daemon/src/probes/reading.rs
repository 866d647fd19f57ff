//! Reads the tables of counters and turns running totals into growth.

use std::collections::HashMap as Known;
use std::os::fd::BorrowedFd;

use anyhow::Context as _;
use aya::Ebpf;
use aya::maps::{HashMap, MapData, PerCpuArray, PerCpuHashMap};
use smtt_common::counter::{COUNTERS, ContextKey, ExecutorCounters, FaultCounters};
use smtt_common::settings::TableOperation;

use super::wire::Wire;
use super::{Readings, memory, tables};

/// A context that has not grown for so many readings is taken out of the table; it comes back when it grows again.
const QUIET_READINGS: u32 = 30;

/// What the last reading saw.
#[derive(Default)]
pub struct Reader {
    known: Known<ContextKey, Seen>,
    /// What executors have in all contexts together, also in those that left the table.
    attributed: Known<u64, FaultCounters>,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    counters: FaultCounters,
    quiet: u32,
}

impl Reader {
    /// Reads everything. A quiet context is removed by one look-up-and-delete, so that no fault falls between.
    pub fn read(&mut self, ebpf: &mut Ebpf) -> anyhow::Result<Readings> {
        let mut readings = Readings::default();
        let mut quiet: Vec<ContextKey> = Vec::new();
        let rows =
            tables::contexts(contexts(ebpf)?).context("the table of contexts cannot be read")?;
        for (key, now) in rows {
            let seen = self.known.entry(key).or_default();
            let growth = minus(&now, &seen.counters);
            if growth == FaultCounters::default() {
                seen.quiet += 1;
                if seen.quiet >= QUIET_READINGS {
                    quiet.push(key);
                }
            } else {
                *seen = Seen {
                    counters: now,
                    quiet: 0,
                };
                readings.contexts.push((key, growth));
            }
        }
        self.remove(ebpf, &quiet, &mut readings)?;
        for (key, growth) in &readings.contexts {
            let total = self.attributed.entry(key.executor).or_default();
            *total = sum(*total, growth);
        }
        let executors = PerCpuHashMap::<_, u64, Wire<ExecutorCounters>>::try_from(
            ebpf.map("EXECUTORS").context("no table EXECUTORS")?,
        )?;
        for (key, values) in executors.iter().flatten() {
            let attributed = self.attributed.get(&key).copied().unwrap_or_default();
            let start = ExecutorCounters {
                attributed,
                ..ExecutorCounters::default()
            };
            readings.executors.push((
                key,
                values.iter().fold(start, |sum, Wire(one)| plus(sum, one)),
            ));
        }
        let counters =
            PerCpuArray::<_, u64>::try_from(ebpf.map("COUNTERS").context("no table COUNTERS")?)?;
        for index in 0..COUNTERS {
            readings.counters[index] = counters.get(&(index as u32), 0)?.iter().sum();
        }
        Ok(readings)
    }

    /// Takes contexts out of the table, with what they grew since.
    fn remove(
        &mut self,
        ebpf: &Ebpf,
        keys: &[ContextKey],
        readings: &mut Readings,
    ) -> anyhow::Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let mut removed: Known<u64, u64> = Known::new();
        let map = contexts(ebpf)?;
        for key in keys {
            let seen = self.known.remove(key).unwrap_or_default();
            if let Some(last) = tables::take_context(map, key) {
                let growth = minus(&last, &seen.counters);
                if growth != FaultCounters::default() {
                    readings.contexts.push((*key, growth));
                }
                *removed.entry(key.executor).or_default() += 1;
            }
        }
        for (executor, count) in removed {
            tables::change(ebpf, TableOperation::RELEASE_CONTEXTS, &[executor, count])?;
        }
        Ok(())
    }

    /// Contexts of an executor that are in the table now.
    pub fn rows(&self, ebpf: &Ebpf, executor: u64) -> anyhow::Result<usize> {
        Ok(tables::contexts(contexts(ebpf)?)?
            .iter()
            .filter(|(key, _)| key.executor == executor)
            .count())
    }

    /// Drops the contexts of an executor that is forgotten.
    pub fn forget(&mut self, ebpf: &mut Ebpf, executor: u64) -> anyhow::Result<()> {
        let mut contexts: HashMap<&mut MapData, Wire<ContextKey>, Wire<FaultCounters>> =
            HashMap::try_from(ebpf.map_mut("CONTEXTS").context("no table CONTEXTS")?)?;
        let own: Vec<Wire<ContextKey>> = contexts
            .keys()
            .flatten()
            .filter(|Wire(key)| key.executor == executor)
            .collect();
        for key in own {
            let _ = contexts.remove(&key);
        }
        self.known.retain(|key, _| key.executor != executor);
        self.attributed.remove(&executor);
        Ok(())
    }
}

/// The table of contexts.
fn contexts(ebpf: &Ebpf) -> anyhow::Result<BorrowedFd<'_>> {
    memory::map_fd(ebpf.map("CONTEXTS").context("no table CONTEXTS")?)
        .context("CONTEXTS is no hash table")
}

/// The growth from one reading to the next.
fn minus(now: &FaultCounters, before: &FaultCounters) -> FaultCounters {
    FaultCounters {
        read: now.read.wrapping_sub(before.read),
        write: now.write.wrapping_sub(before.write),
        unknown: now.unknown.wrapping_sub(before.unknown),
        major: now.major.wrapping_sub(before.major),
    }
}

fn sum(a: FaultCounters, b: &FaultCounters) -> FaultCounters {
    FaultCounters {
        read: a.read + b.read,
        write: a.write + b.write,
        unknown: a.unknown + b.unknown,
        major: a.major + b.major,
    }
}

fn plus(mut total: ExecutorCounters, one: &ExecutorCounters) -> ExecutorCounters {
    total.attributed = sum(total.attributed, &one.attributed);
    for (class, counters) in one.unattributed.iter().enumerate() {
        total.unattributed[class] = sum(total.unattributed[class], counters);
    }
    total.facts_seen += one.facts_seen;
    total.facts_rate_limited += one.facts_rate_limited;
    total.facts_too_long += one.facts_too_long;
    total.facts_unreadable += one.facts_unreadable;
    total.facts_ring_full += one.facts_ring_full;
    total.threads_refused += one.threads_refused;
    total.samples_seen += one.samples_seen;
    total.samples_ring_full += one.samples_ring_full;
    total.samples_rate_limited += one.samples_rate_limited;
    total
}
