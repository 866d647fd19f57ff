//! Opens the planned events, follows CPU hotplug, adapts the periods to the limit, rotates the passes, and reads
//! totals.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use aya::Ebpf;
use aya::maps::PerCpuArray;
use smtt_common::page_walk::WalkCounters;
use smtt_machine::page_walks::{NotMeasured, Wanted, WantedChannel};
use smtt_machine::perf::Count;
use smtt_model::cpu::Role;
use smtt_model::readings::{Channel, ChannelFigure, PageWalkReadings};
use smtt_model::verdict::{PAGE_WALKS, Verdict, VerdictState};

use super::super::wire::Wire;
use super::health::{Condition, Health, Totals};
use super::open::{CpuGroup, load, program};
use crate::probes::retries::Retries;

/// A channel and its totals.
#[derive(Debug)]
struct Counted {
    wanted: WantedChannel,
    total: Count,
    health: Health,
    condition: Condition,
}

/// The open events.
#[derive(Debug)]
pub struct Sampler {
    wanted: Wanted,
    channels: Vec<Counted>,
    groups: Vec<CpuGroup>,
    online: BTreeSet<u32>,
    /// CPUs whose events could not be opened again.
    retries: Retries<u32>,
    pass: usize,
    turn: Duration,
    turned: Instant,
    read: Instant,
}

impl Sampler {
    /// Opens all events on all CPUs, or fails and opens none.
    pub fn start(ebpf: &mut Ebpf, wanted: Wanted, turn: Duration) -> Result<Self, NotMeasured> {
        let broken = |reason: String| NotMeasured {
            state: VerdictState::Broken,
            reason,
        };
        load(ebpf).map_err(|error| broken(format!("{error:#}")))?;
        let program = program(ebpf).map_err(|error| broken(format!("{error:#}")))?;
        let channels = wanted.channels.iter().map(|channel| Counted {
            wanted: channel.clone(),
            total: Count::default(),
            health: Health::default(),
            condition: Condition::NotYet,
        });
        let mut sampler = Self {
            channels: channels.collect(),
            groups: Vec::new(),
            online: wanted
                .groups
                .iter()
                .flat_map(|group| &group.cpus)
                .copied()
                .collect(),
            retries: Retries::default(),
            pass: 0,
            turn,
            turned: Instant::now(),
            read: Instant::now(),
            wanted,
        };
        for cpu in sampler.online.clone() {
            sampler.open(cpu, program).map_err(|reason| NotMeasured {
                state: VerdictState::Unsupported,
                reason,
            })?;
        }
        sampler
            .switch(sampler.pass, true)
            .map_err(|error| broken(format!("the events cannot be switched on: {error}")))?;
        Ok(sampler)
    }

    /// Opens the groups of a CPU, switched off.
    fn open(&mut self, cpu: u32, program: BorrowedFd<'_>) -> Result<(), String> {
        let channels: Vec<WantedChannel> = self
            .channels
            .iter()
            .map(|channel| channel.wanted.clone())
            .collect();
        let opened: Result<Vec<CpuGroup>, String> = self
            .wanted
            .groups
            .iter()
            .filter(|group| group.cpus.contains(&cpu))
            .map(|group| CpuGroup::open(group, cpu, &channels, program))
            .collect();
        self.groups.extend(opened?);
        Ok(())
    }

    fn switch(&self, pass: usize, on: bool) -> std::io::Result<()> {
        self.groups
            .iter()
            .filter(|group| group.pass == pass)
            .try_for_each(|group| group.switch(on))
    }

    /// Reads totals and does what is due: follows CPU hotplug, adapts periods, starts the next pass.
    pub fn read(&mut self, ebpf: &Ebpf) -> anyhow::Result<PageWalkReadings> {
        let elapsed = self.read.elapsed();
        self.read = Instant::now();
        let mut busiest = vec![0_u64; self.channels.len()];
        let mut given_up = Vec::new();
        for (index, group) in self.groups.iter_mut().enumerate() {
            let Ok(steps) = group.read() else {
                given_up.push(index);
                continue;
            };
            for step in steps {
                let total = &mut self.channels[step.channel].total;
                total.value += step.growth.value;
                total.enabled_ns += step.growth.enabled_ns;
                total.running_ns += step.growth.running_ns;
                busiest[step.channel] = busiest[step.channel].max(step.growth.value);
            }
        }
        for index in given_up.into_iter().rev() {
            self.groups.remove(index);
        }
        // Read after the counters, so that the samples cover what the counters had, except for events in no sample yet.
        let sampled = sampled(ebpf)?;
        self.judge(&sampled);
        self.follow_limit(&busiest, elapsed);
        self.take_turns();
        Ok(PageWalkReadings {
            contexts: Vec::new(),
            channels: self
                .channels
                .iter()
                .enumerate()
                .map(|(index, channel)| Channel {
                    role: channel.wanted.role,
                    event: channel.wanted.event.clone(),
                    quantity: channel.wanted.quantity,
                    pass: channel.wanted.pass,
                    period: channel.wanted.period.events,
                    counted: channel.total.value,
                    sampled: sampled.events[index],
                    samples: sampled.samples[index],
                    enabled_ns: channel.total.enabled_ns,
                    running_ns: channel.total.running_ns,
                    fault: channel.condition.reason().to_owned(),
                })
                .collect(),
            figures: self.figures(),
            uarch: self.wanted.uarch.clone(),
            notes: self.wanted.notes.clone(),
        })
    }

    /// The figures; without a ratio where the cycles are faulty.
    fn figures(&self) -> Vec<ChannelFigure> {
        let sound = |channel: usize| self.channels[channel].condition == Condition::Sound;
        self.wanted
            .figures
            .iter()
            .map(|figure| match figure.cycles {
                Some(cycles) if !sound(cycles) => ChannelFigure {
                    cycles: None,
                    ratio: None,
                    ..*figure
                },
                _ => *figure,
            })
            .collect()
    }

    fn judge(&mut self, sampled: &WalkCounters) {
        let counted: Vec<u64> = self
            .channels
            .iter()
            .map(|channel| channel.total.value)
            .collect();
        for (index, channel) in self.channels.iter_mut().enumerate() {
            let cpus = self
                .groups
                .iter()
                .filter(|group| group.channels().any(|channel| channel == index))
                .count();
            channel.condition = channel.health.judge(Totals {
                counted: channel.total.value,
                enabled_ns: channel.total.enabled_ns,
                running_ns: channel.total.running_ns,
                cycles: channel.wanted.cycles.map(|cycles| counted[cycles]),
                cpus,
                unsampled: channel.total.value.saturating_sub(sampled.events[index]),
                period: channel.wanted.period.events,
                steady: channel.wanted.hardware,
            });
        }
    }

    /// Adapts the periods to the rate of the busiest CPU.
    fn follow_limit(&mut self, busiest: &[u64], elapsed: Duration) {
        // Too short an interval gives no reliable rate.
        if elapsed < Duration::from_millis(200) {
            return;
        }
        for (index, channel) in self.channels.iter_mut().enumerate() {
            if channel.wanted.pass != self.pass {
                continue;
            }
            let per_second = (busiest[index] as f64 / elapsed.as_secs_f64()) as u64;
            if !channel.wanted.period.follow(per_second) {
                continue;
            }
            for group in &self.groups {
                if let Err(error) = group.set_period(index, channel.wanted.period.events) {
                    tracing::warn!(
                        cpu = group.cpu,
                        event = channel.wanted.event,
                        "the sampling period cannot be changed: {error}"
                    );
                }
            }
        }
    }

    /// Follows CPU hotplug. The counts of a CPU that went offline stay in the totals.
    pub fn follow_cpus(&mut self, ebpf: &Ebpf, now: &BTreeSet<u32>) {
        self.groups.retain(|group| now.contains(&group.cpu));
        let new: Vec<u32> = now.difference(&self.online).copied().collect();
        self.online.clone_from(now);
        self.retries.retain(|cpu| now.contains(cpu));
        // With several core types, the type of a new CPU is unknown here.
        let one_type = self
            .wanted
            .groups
            .iter()
            .all(|group| group.cpus == self.wanted.groups[0].cpus);
        for cpu in new {
            if one_type {
                for group in &mut self.wanted.groups {
                    group.cpus.insert(cpu);
                }
            }
            self.open_cpu(ebpf, cpu);
        }
    }

    /// Tries again to open the events of CPUs that came online, where that failed some time ago.
    pub fn retry_cpus(&mut self, ebpf: &Ebpf) {
        for cpu in self.retries.due(Instant::now()) {
            self.open_cpu(ebpf, cpu);
        }
    }

    /// Opens the events of a CPU that came online and switches on those of this pass.
    fn open_cpu(&mut self, ebpf: &Ebpf, cpu: u32) {
        let opened = program(ebpf)
            .map_err(|error| format!("{error:#}"))
            .and_then(|program| self.open(cpu, program))
            .and_then(|()| {
                self.groups
                    .iter()
                    .filter(|group| group.cpu == cpu && group.pass == self.pass)
                    .try_for_each(|group| group.switch(true))
                    .map_err(|error| error.to_string())
            });
        match opened {
            Ok(()) => {
                self.retries.retain(|other| *other != cpu);
                tracing::info!(cpu, "a CPU came online: its page walks are measured too");
            }
            Err(error) => {
                self.groups.retain(|group| group.cpu != cpu);
                if self.retries.failed(cpu, Instant::now()) {
                    tracing::warn!(
                        "a CPU came online: its page walks are not measured, and tried again: {error}"
                    );
                }
            }
        }
    }

    /// Switches to the next pass when it is due.
    fn take_turns(&mut self) {
        if self.wanted.passes < 2 || self.turned.elapsed() < self.turn {
            return;
        }
        let next = (self.pass + 1) % self.wanted.passes;
        let switched = self
            .switch(self.pass, false)
            .and_then(|()| self.switch(next, true));
        if let Err(error) = switched {
            tracing::warn!("events cannot take turns: {error}");
        }
        self.pass = next;
        self.turned = Instant::now();
    }

    /// Whether cycles are sampled that the machine counts. Before it counted any, they are taken to be.
    pub fn samples_cycles(&self) -> bool {
        let mut all = self.channels.iter();
        all.any(|channel| {
            channel.wanted.role == Role::Cycles
                && (channel.total.value > 0 || !matches!(channel.condition, Condition::Faulty(_)))
        })
    }

    /// The verdict of page walks.
    pub fn verdict(&self) -> Verdict {
        let faults: Vec<String> = self
            .channels
            .iter()
            .filter_map(|channel| match &channel.condition {
                Condition::Faulty(reason) => Some(format!("{}: {reason}", channel.wanted.event)),
                Condition::Sound | Condition::NotYet => None,
            })
            .collect();
        let events: Vec<&str> = self
            .channels
            .iter()
            .map(|channel| channel.wanted.event.as_str())
            .collect();
        Verdict {
            name: PAGE_WALKS.into(),
            hook: format!("perf:{}", events.join(",")),
            verdict: if faults.is_empty() {
                VerdictState::Ok
            } else {
                VerdictState::Broken
            },
            reason: faults.join("; "),
        }
    }
}

/// The verdict where nothing is measured.
pub fn not_measured(why: &NotMeasured) -> Verdict {
    Verdict {
        name: PAGE_WALKS.into(),
        hook: "perf".into(),
        verdict: why.state,
        reason: why.reason.clone(),
    }
}

/// All samples, of all processes.
fn sampled(ebpf: &Ebpf) -> anyhow::Result<WalkCounters> {
    let totals = PerCpuArray::<_, Wire<WalkCounters>>::try_from(
        ebpf.map("WALK_TOTALS").context("no table WALK_TOTALS")?,
    )?;
    let mut sum = WalkCounters::default();
    for Wire(one) in totals.get(&0, 0)?.iter() {
        sum.add(one);
    }
    Ok(sum)
}
