//! CPUs that go offline and come back. The kernel switches the events of a CPU off for good when the CPU goes offline,
//! and reports nothing: the events of a CPU that came back have to be opened again.
//!
//! A suspend takes all CPUs but one offline and brings them back while the daemon is frozen, so the list of online CPUs
//! is the same before and after. Each CPU therefore has an event that counts nothing: its time stops with the others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use aya::Ebpf;
use aya::programs::PerfEvent;
use aya::programs::perf_event::{
    PerfEventConfig, PerfEventLinkId, PerfEventScope, SamplePolicy, SoftwareEvent,
};
use smtt_machine::perf::{Event, Of, Opening};
use smtt_model::cpu::Encoding;
use smtt_model::sort::small::Gather as _;

use super::retries::Retries;
use super::table;

/// `PERF_COUNT_SW_DUMMY`.
const DUMMY: u64 = 9;

/// More than a tick of the slowest kernel, at which the coarsest clock goes on.
const TICK: Duration = Duration::from_millis(20);

/// The event that counts nothing.
#[derive(Debug)]
struct Clock(Event);

impl Clock {
    /// `None` where the kernel refuses: then only CPUs that are offline at a reading are seen.
    fn start(cpu: u32) -> Option<Self> {
        let nothing = Encoding::software(DUMMY);
        let event = Event::open(Opening {
            event: &nothing,
            of: Of::Cpu(cpu),
            period: 0,
            addresses: false,
            leader: None,
        });
        let event = event.ok()?;
        event.enable().ok()?;
        Some(Self(event))
    }

    /// Nanoseconds for which it has run. The read asks the event's CPU for the time. The time for which it is switched on
    /// goes on where the CPU is back (Linux 6.1).
    fn time(&self) -> Option<u64> {
        self.0.read().ok().map(|count| count.running_ns)
    }
}

/// What changed since the last reading. A CPU that went and came is in both sets.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub gone: BTreeSet<u32>,
    pub come: BTreeSet<u32>,
}

/// The CPUs with events, and the software events on them.
#[derive(Debug)]
pub(super) struct Cpus {
    clocks: BTreeMap<u32, Option<Clock>>,
    /// Software events that are attached, with their programs.
    software: Vec<(&'static str, table::SoftwareEvent)>,
    links: Vec<(u32, &'static str, PerfEventLinkId)>,
    /// Events that could not be attached to a CPU that came online.
    retries: Retries<(u32, &'static str)>,
}

impl Cpus {
    /// The CPUs that are online.
    ///
    /// # Errors
    /// When the kernel does not list them.
    pub fn new() -> anyhow::Result<Self> {
        let clocks = online()?.into_iter().map(|cpu| (cpu, Clock::start(cpu)));
        Ok(Self {
            clocks: clocks.gather(),
            software: Vec::new(),
            links: Vec::new(),
            retries: Retries::default(),
        })
    }

    /// Attaches a program to a software event of all processes on all CPUs.
    pub fn attach(
        &mut self,
        ebpf: &mut Ebpf,
        name: &'static str,
        event: table::SoftwareEvent,
    ) -> anyhow::Result<()> {
        let program = program(ebpf, name)?;
        if program.fd().is_err() {
            program.load().context("the kernel refuses the program")?;
        }
        for cpu in self.clocks.keys() {
            self.links
                .push((*cpu, name, attach_to_cpu(program, event, *cpu)?));
        }
        self.software.push((name, event));
        Ok(())
    }

    /// Takes a program's links out; dropping them detaches it from every CPU.
    pub fn detach(&mut self, ebpf: &mut Ebpf, name: &str) -> Vec<Box<dyn Send>> {
        self.software.retain(|(other, _)| *other != name);
        self.retries.retain(|(_, other)| *other != name);
        let own = self.links.extract_if(.., |(_, other, _)| *other == name);
        let own: Vec<PerfEventLinkId> = own.map(|(_, _, link)| link).collect();
        let Ok(program) = program(ebpf, name) else {
            return Vec::new();
        };
        own.into_iter()
            .filter_map(|link| program.take_link(link).ok())
            .map(|link| Box::new(link) as Box<dyn Send>)
            .collect()
    }

    /// CPUs that went or came since the last call, whose software events are replaced.
    pub fn follow(&mut self, ebpf: &mut Ebpf) -> Change {
        let Ok(now) = online() else {
            return Change::default();
        };
        let change = self.change(&now);
        for (cpu, name, link) in std::mem::take(&mut self.links) {
            if !change.gone.contains(&cpu) {
                self.links.push((cpu, name, link));
            } else if let Ok(program) = program(ebpf, name) {
                // The kernel has switched its event off; an error could only say that it is gone.
                let _ = program.detach(link);
            }
        }
        self.retries
            .retain(|(cpu, _)| now.contains(cpu) && !change.come.contains(cpu));
        let time = Instant::now();
        let due = self.retries.due(time);
        for (name, event) in &self.software {
            let again = due.iter().filter(|(_, other)| other == name);
            let cpus = change.come.iter().chain(again.map(|(cpu, _)| cpu));
            for cpu in cpus {
                let attached =
                    program(ebpf, name).and_then(|program| attach_to_cpu(program, *event, *cpu));
                match attached {
                    Ok(link) => {
                        tracing::info!(cpu, "a CPU came online: {name} is attached to it");
                        self.retries.retain(|other| *other != (*cpu, *name));
                        self.links.push((*cpu, name, link));
                    }
                    Err(error) => {
                        if self.retries.failed((*cpu, *name), time) {
                            tracing::warn!(
                                "a CPU came online and is not counted, which is tried again: {error:#}"
                            );
                        }
                    }
                }
            }
        }
        change
    }

    /// Compares with the CPUs that are online now, and remembers these.
    fn change(&mut self, now: &BTreeSet<u32>) -> Change {
        let left = self.clocks.keys().filter(|cpu| !now.contains(cpu));
        let mut gone: BTreeSet<u32> = left.copied().gather();
        gone.extend(self.standing().keys());
        self.clocks.retain(|cpu, _| !gone.contains(cpu));
        let come: BTreeSet<u32> = now
            .iter()
            .filter(|cpu| !self.clocks.contains_key(cpu))
            .copied()
            .gather();
        for cpu in &come {
            self.clocks.insert(*cpu, Clock::start(*cpu));
        }
        Change { gone, come }
    }

    /// CPUs whose clocks stand still, with the time that they show.
    fn standing(&self) -> BTreeMap<u32, Option<u64>> {
        let time = |cpu: &u32| self.clocks.get(cpu)?.as_ref()?.time();
        let clocks = self.clocks.iter().filter(|(_, clock)| clock.is_some());
        let mut standing: BTreeMap<u32, Option<u64>> =
            clocks.map(|(cpu, _)| (*cpu, time(cpu))).gather();
        let stands = |cpu: &u32, before: &mut Option<u64>| *before == time(cpu);
        standing.retain(stands);
        if !standing.is_empty() {
            // A coarse clock may stand between two reads.
            std::thread::sleep(TICK);
            standing.retain(stands);
        }
        standing
    }

    /// The CPUs that were online at the last reading.
    pub fn online(&self) -> BTreeSet<u32> {
        self.clocks.keys().copied().gather()
    }
}

/// CPUs that are online.
pub(super) fn online() -> anyhow::Result<BTreeSet<u32>> {
    let cpus =
        aya::util::online_cpus().map_err(|(path, error)| anyhow::anyhow!("{path}: {error}"))?;
    Ok(cpus.into_iter().collect())
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> anyhow::Result<&'a mut PerfEvent> {
    Ok(ebpf
        .program_mut(name)
        .context("the object lacks the program")?
        .try_into()?)
}

/// Attaches a program to a software event of all processes on a CPU; it runs once per occurrence.
fn attach_to_cpu(
    program: &mut PerfEvent,
    event: table::SoftwareEvent,
    cpu: u32,
) -> anyhow::Result<PerfEventLinkId> {
    let event = match event {
        table::SoftwareEvent::PageFaultsMinor => SoftwareEvent::PageFaultsMin,
        table::SoftwareEvent::PageFaultsMajor => SoftwareEvent::PageFaultsMaj,
    };
    program
        .attach(
            PerfEventConfig::Software(event),
            PerfEventScope::AllProcessesOneCpu { cpu },
            SamplePolicy::Period(1),
            false,
        )
        .with_context(|| format!("the software event cannot be opened on CPU {cpu}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_that_go_and_come_are_told_apart_from_those_that_stay() {
        let mut cpus = Cpus {
            clocks: (0..3).map(|cpu| (cpu, None)).collect(),
            software: Vec::new(),
            links: Vec::new(),
            retries: Retries::default(),
        };
        assert_eq!(cpus.change(&BTreeSet::from([0, 1, 2])), Change::default());
        let change = cpus.change(&BTreeSet::from([0, 2, 9999]));
        assert_eq!(change.gone, BTreeSet::from([1]));
        assert_eq!(change.come, BTreeSet::from([9999]));
        assert_eq!(cpus.online(), BTreeSet::from([0, 2, 9999]));
    }
}
