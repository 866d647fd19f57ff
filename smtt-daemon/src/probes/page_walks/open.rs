//! The open events of one CPU: a group, with the kernel side's program behind each event; and that program.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use anyhow::Context as _;
use aya::Ebpf;
use aya::programs::PerfEvent;
use smtt_machine::page_walks::{WantedChannel, WantedGroup};
use smtt_machine::perf::{Count, Event, Of, Opening, refusal};

use crate::probes::perf_link::link;

/// Name of the kernel side's program.
const PROGRAM: &str = "walk";

/// Loads the program, where it is not loaded yet.
pub(super) fn load(ebpf: &mut Ebpf) -> anyhow::Result<()> {
    let program: &mut PerfEvent = ebpf
        .program_mut(PROGRAM)
        .context("the object lacks the program `walk`")?
        .try_into()?;
    if program.fd().is_ok() {
        return Ok(());
    }
    program
        .load()
        .context("the kernel refuses the program that takes samples")
}

/// The loaded program.
pub(super) fn program(ebpf: &Ebpf) -> anyhow::Result<BorrowedFd<'_>> {
    let program = ebpf
        .program(PROGRAM)
        .context("the object lacks the program `walk`")?;
    Ok(program.fd()?.as_fd())
}

/// One open event.
#[derive(Debug)]
struct Open {
    /// Dropped first: the program must not run for a closed event.
    _link: OwnedFd,
    event: Event,
    channel: usize,
    last: Count,
}

/// The group of one CPU.
#[derive(Debug)]
pub struct CpuGroup {
    /// The CPU.
    pub cpu: u32,
    /// The pass.
    pub pass: usize,
    events: Vec<Open>,
}

/// Growth of an event of a group since the last reading.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Its channel.
    pub channel: usize,
    /// Growth of its count and of its times.
    pub growth: Count,
}

impl CpuGroup {
    /// Opens a group on a CPU, switched off, with the program behind every event.
    ///
    /// # Errors
    /// A line that names the event and says why it is refused.
    pub fn open(
        wanted: &WantedGroup,
        cpu: u32,
        channels: &[WantedChannel],
        program: BorrowedFd<'_>,
    ) -> Result<Self, String> {
        let mut events: Vec<Open> = Vec::new();
        for one in &wanted.events {
            let channel = &channels[one.channel];
            let named = |error: &io::Error| {
                format!(
                    "{} ({}) on CPU {cpu}: {}",
                    channel.event,
                    channel.role,
                    refusal(error)
                )
            };
            let event = Event::open(Opening {
                event: &one.encoding,
                of: Of::Cpu(cpu),
                period: channel.period.events,
                addresses: one.addresses,
                leader: events.first().map(|open| &open.event),
            })
            .map_err(|error| named(&error))?;
            let link = link(program, event.as_fd(), one.cookie).map_err(|error| {
                format!(
                    "{} on CPU {cpu}: the kernel does not run a program at its samples ({error}); Linux 5.15 or later does",
                    channel.event
                )
            })?;
            events.push(Open {
                _link: link,
                event,
                channel: one.channel,
                last: Count::default(),
            });
        }
        Ok(Self {
            cpu,
            pass: wanted.pass,
            events,
        })
    }

    /// Switches all its events on or off.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn switch(&self, on: bool) -> io::Result<()> {
        match self.events.first() {
            Some(leader) if on => leader.event.enable(),
            Some(leader) => leader.event.disable(),
            None => Ok(()),
        }
    }

    /// Growth of each event since the last reading.
    ///
    /// # Errors
    /// When the kernel has stopped an event for good.
    pub fn read(&mut self) -> io::Result<Vec<Step>> {
        self.events
            .iter_mut()
            .map(|open| {
                let now = open.event.read()?;
                let before = std::mem::replace(&mut open.last, now);
                Ok(Step {
                    channel: open.channel,
                    growth: Count {
                        value: now.value.saturating_sub(before.value),
                        enabled_ns: now.enabled_ns.saturating_sub(before.enabled_ns),
                        running_ns: now.running_ns.saturating_sub(before.running_ns),
                    },
                })
            })
            .collect()
    }

    /// Channels of its events.
    pub fn channels(&self) -> impl Iterator<Item = usize> {
        self.events.iter().map(|open| open.channel)
    }

    /// Changes the period of the events of a channel.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_period(&self, channel: usize, events: u64) -> io::Result<()> {
        self.events
            .iter()
            .filter(|open| open.channel == channel)
            .try_for_each(|open| open.event.set_period(events))
    }
}
