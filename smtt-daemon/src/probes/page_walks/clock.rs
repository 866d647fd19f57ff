//! Samples of the kernel's clock, for the shares of activities in the CPU time of tasks (`on_cpu`) where the processor's
//! cycles are not sampled. They are taken on all CPUs or on none, while an executor lives.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::Context as _;
use aya::Ebpf;
use smtt_common::counter::ContextKey;
use smtt_common::page_walk::WalkCounters;
use smtt_machine::page_walks::clock::{CLOCK, CLOCK_CHANNEL, clock};
use smtt_model::readings::ClockReadings;
use smtt_model::verdict::{ON_CPU, Verdict, VerdictState};

use super::open::{CpuGroup, load, program};
use crate::probes::retries::Retries;

/// What is lost without it, for the reader of a verdict.
const WITHOUT: &str = "without it the shares of activities in the CPU time of tasks are unknown";

/// The clock's events.
#[derive(Debug)]
pub struct Clock {
    samples_per_second: u32,
    /// Whether the processor's cycles give no shares. It stays so: the shares of a task are of one event.
    is_needed: bool,
    groups: Vec<CpuGroup>,
    /// Why it could not be opened the last time.
    refused: Option<(VerdictState, String)>,
    retries: Retries<()>,
}

impl Clock {
    /// With `samples_per_second` samples on each CPU; 0 takes none.
    pub fn new(samples_per_second: u32) -> Self {
        Self {
            samples_per_second,
            is_needed: false,
            groups: Vec::new(),
            refused: None,
            retries: Retries::default(),
        }
    }

    /// Whether it is not switched off.
    pub const fn is_wanted(&self) -> bool {
        self.samples_per_second > 0
    }

    /// Sets whether the processor's cycles are sampled. A clock that was needed once stays.
    pub const fn see_cycles(&mut self, are_sampled: bool) {
        self.is_needed |= !are_sampled;
    }

    /// Whether samples are taken while an executor lives.
    const fn is_used(&self) -> bool {
        self.is_wanted() && self.is_needed
    }

    /// Closes the events of CPUs that went offline: the kernel has switched them off for good.
    pub fn forget_cpus(&mut self, gone: &BTreeSet<u32>) {
        self.groups.retain(|group| !gone.contains(&group.cpu));
    }

    /// Opens the events on the CPUs that are online, or closes them while no executor lives.
    pub fn follow(&mut self, ebpf: &mut Ebpf, online: &BTreeSet<u32>, is_idle: bool) {
        if !self.is_used() || is_idle {
            self.groups.clear();
            return;
        }
        let has = |cpu: &u32| self.groups.iter().any(|group| group.cpu == *cpu);
        let missing: BTreeSet<u32> = online.iter().filter(|cpu| !has(cpu)).copied().collect();
        let now = Instant::now();
        if missing.is_empty() || self.refused.is_some() && self.retries.due(now).is_empty() {
            return;
        }
        match self.open(ebpf, missing) {
            Ok(()) => {
                self.refused = None;
                self.retries.retain(|()| false);
            }
            Err((state, reason)) => {
                // Shares of some CPUs only would be those of the tasks that ran there.
                self.groups.clear();
                let reason = format!("{reason}; {WITHOUT}");
                if self.retries.failed((), now) {
                    tracing::warn!("the clock is not sampled, which is tried again: {reason}");
                }
                self.refused = Some((state, reason));
            }
        }
    }

    fn open(&mut self, ebpf: &mut Ebpf, cpus: BTreeSet<u32>) -> Result<(), (VerdictState, String)> {
        let broken = |error: anyhow::Error| (VerdictState::Broken, format!("{error:#}"));
        load(ebpf).map_err(broken)?;
        let program = program(ebpf).map_err(broken)?;
        let (wanted, channel) = clock(self.samples_per_second, cpus);
        for cpu in &wanted.cpus {
            let channels = std::slice::from_ref(&channel);
            let group = CpuGroup::open(&wanted, *cpu, channels, program)
                .map_err(|reason| (VerdictState::Unsupported, reason))?;
            let on = group.switch(true);
            let named = || format!("{CLOCK} on CPU {cpu} cannot be switched on");
            on.with_context(named).map_err(broken)?;
            self.groups.push(group);
        }
        Ok(())
    }

    /// Takes the clock's samples out of the growth per context; `None` where it is not used.
    pub fn take(&self, contexts: &mut [(ContextKey, WalkCounters)]) -> Option<ClockReadings> {
        if !self.is_used() {
            return None;
        }
        let one = |(key, counters): &mut (ContextKey, WalkCounters)| {
            counters.events[CLOCK_CHANNEL] = 0;
            let samples = std::mem::take(&mut counters.samples[CLOCK_CHANNEL]);
            (samples > 0).then_some((*key, samples))
        };
        Some(ClockReadings {
            event: CLOCK.to_owned(),
            contexts: contexts.iter_mut().filter_map(one).collect(),
        })
    }

    /// The verdict.
    pub fn verdict(&self) -> Verdict {
        let (verdict, reason) = match &self.refused {
            _ if !self.is_wanted() => (
                VerdictState::NotApplicable,
                "switched off by [probe.on_cpu] samples_per_second",
            ),
            _ if !self.is_needed => (
                VerdictState::NotApplicable,
                "the processor's cycles are sampled",
            ),
            Some((state, reason)) => (*state, reason.as_str()),
            None => (VerdictState::Ok, ""),
        };
        Verdict {
            name: ON_CPU.into(),
            hook: format!("perf:{CLOCK}"),
            verdict,
            reason: reason.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_the_clock_are_no_page_walks() {
        let mut counters = WalkCounters::default();
        (counters.events[1], counters.samples[1]) = (70, 7);
        let walks = counters;
        (
            counters.events[CLOCK_CHANNEL],
            counters.samples[CLOCK_CHANNEL],
        ) = (9_000_000, 2);
        let key = |executor| ContextKey {
            executor,
            ..ContextKey::default()
        };
        let mut contexts = vec![(key(1), counters), (key(2), walks)];
        let mut clock = Clock::new(200);
        clock.see_cycles(true);
        assert!(clock.take(&mut contexts).is_none(), "cycles are sampled");
        assert_eq!(contexts[0].1, counters);
        clock.see_cycles(false);
        clock.see_cycles(true);
        let taken = clock.take(&mut contexts).expect("stays needed");
        assert_eq!(taken.contexts, [(key(1), 2)]);
        assert!(contexts.iter().all(|(_, left)| *left == walks));
    }

    #[test]
    fn the_verdict_says_why_there_are_no_samples() {
        let mut off = Clock::new(0);
        off.see_cycles(false);
        let verdict = off.verdict();
        assert_eq!(verdict.verdict, VerdictState::NotApplicable);
        assert!(verdict.reason.contains("[probe.on_cpu]"), "{verdict:?}");
        assert!(off.take(&mut []).is_none());
        let unneeded = Clock::new(200).verdict();
        assert_eq!(unneeded.verdict, VerdictState::NotApplicable);
        assert!(unneeded.reason.contains("cycles are sampled"));
    }
}
