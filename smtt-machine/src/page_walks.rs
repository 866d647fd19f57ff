//! The page-walk events to sample on this machine: turns the plan of its CPU into the events to open, with their
//! channels, groups and CPUs, and the figures that result. Opens nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

pub mod clock;
pub mod period;

use smtt_common::page_walk::{
    COOKIE_ADDRESS, COOKIE_CHANNEL_MASK, COOKIE_EVENT_SHIFT, COOKIE_WRITE,
};
use smtt_model::cpu::{
    self, CaveatCode, CpuId, Encoding, Formula, MeasuredCore, Overrides, PERF_TYPE_SOFTWARE, Pass,
    Purpose, Quantity, Role, RoleEvent,
};
use smtt_model::readings::ChannelFigure;
use smtt_model::verdict::VerdictState;

use self::clock::{CLOCK_CHANNEL, CLOCK_EVENT};
use self::period::Period;
use crate::cpu::{list, of_this_machine};

/// How page walks are sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageWalkSettings {
    /// Whether page walks are measured where the machine can.
    pub enabled: bool,
    /// Samples per second that each CPU takes at most, all events together; the periods follow it.
    pub max_samples_per_second: u32,
    /// Whether the cost of a walk is measured at the start where estimates need it.
    pub calibrate: bool,
    /// Events per sample of a role, fixed: the limit above does not change it.
    pub sample_periods: BTreeMap<Role, u64>,
    /// Length of a turn, where the events do not fit the counters at the same time.
    pub turn: Duration,
    /// Events that replace the table's.
    pub overrides: Overrides,
}

impl Default for PageWalkSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            max_samples_per_second: 200,
            calibrate: true,
            sample_periods: BTreeMap::new(),
            turn: Duration::from_secs(5),
            overrides: Overrides::default(),
        }
    }
}

/// Why nothing is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotMeasured {
    /// The verdict of the probe.
    pub state: VerdictState,
    /// One line for the reader, with what to change.
    pub reason: String,
}

/// One event to open on each CPU of its group.
#[derive(Clone, Debug)]
pub struct WantedEvent {
    /// How it is opened.
    pub encoding: Encoding,
    /// Index of its channel in [`Wanted::channels`].
    pub channel: usize,
    /// The cookie that the kernel side's program gets with each sample.
    pub cookie: u64,
    /// Whether its samples carry addresses.
    pub addresses: bool,
}

/// Events that are opened together, the leader first.
#[derive(Clone, Debug)]
pub struct WantedGroup {
    /// CPUs on which the events are opened.
    pub cpus: BTreeSet<u32>,
    /// Number of the pass, from 0: only the groups of one pass count at a time.
    pub pass: usize,
    /// Events of the group. The first leads: the others count while it does.
    pub events: Vec<WantedEvent>,
}

/// The meaning of a channel.
#[derive(Clone, Debug)]
pub struct WantedChannel {
    /// What the samples of the channel count.
    pub role: Role,
    /// The event's name.
    pub event: String,
    /// The kind of the channel's sum.
    pub quantity: Quantity,
    /// Number of the pass in which its event counts.
    pub pass: usize,
    /// Events per sample.
    pub period: Period,
    /// Channel of the cycles of the same pass; `None` for the cycles themselves.
    pub cycles: Option<usize>,
    /// Whether the processor counts it, not the kernel.
    pub hardware: bool,
}

/// The events, channels and figures to measure.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The core's name.
    pub uarch: String,
    /// Channels of all passes. The cookie of a sample has the index of one.
    pub channels: Vec<WantedChannel>,
    /// Groups to open, by core type and pass.
    pub groups: Vec<WantedGroup>,
    /// Figures to compute from the sums of the channels.
    pub figures: Vec<ChannelFigure>,
    /// Passes that take turns.
    pub passes: usize,
    /// Caveats for the reader, one per line.
    pub notes: Vec<String>,
}

/// The cookie's channel for an event without a channel.
const NO_CHANNEL: usize = COOKIE_CHANNEL_MASK as usize;

impl Wanted {
    /// What to open on this machine, below `root` (`/`).
    pub fn here(settings: &PageWalkSettings, root: &Path) -> Result<Self, NotMeasured> {
        if !settings.enabled {
            return Err(NotMeasured {
                state: VerdictState::NotApplicable,
                reason: "switched off by [page_walks] enabled".into(),
            });
        }
        let identity = of_this_machine(root);
        let online = cpus(&root.join("sys/devices/system/cpu/online")).unwrap_or_default();
        Self::of(settings, &identity, |pmu| {
            let own = root.join(format!("sys/bus/event_source/devices/{pmu}/cpus"));
            match cpus(&own) {
                Some(own) => own.intersection(&online).copied().collect(),
                None => online.clone(),
            }
        })
    }

    /// What to open for that CPU, whose PMUs count on those CPUs.
    fn of(
        settings: &PageWalkSettings,
        identity: &CpuId,
        cpus: impl Fn(&str) -> BTreeSet<u32>,
    ) -> Result<Self, NotMeasured> {
        let measured =
            cpu::describe(identity, &settings.overrides).map_err(|error| NotMeasured {
                state: VerdictState::Broken,
                reason: format!("[page_walks.events] {error}"),
            })?;
        let openable = |encoding: &Encoding| {
            encoding.perf_type == Some(PERF_TYPE_SOFTWARE)
                || identity
                    .pmus
                    .get(&encoding.pmu)
                    .is_some_and(|pmu| pmu.present != Some(false))
        };
        let mut wanted = Self::default();
        let mut missing = None;
        for core in &measured.cores {
            let mut more = Self::of_core(core, settings, &openable);
            if more.channels.is_empty() {
                missing = missing.or_else(|| absent(core));
                continue;
            }
            let on = cpus(&core.pmu);
            for group in &mut more.groups {
                group.cpus.clone_from(&on);
            }
            if wanted.channels.is_empty() {
                wanted = more;
            } else if wanted.counts_the_same(&more) {
                wanted.groups.append(&mut more.groups);
            } else {
                // A sum of two kinds of figures has no meaning.
                wanted.notes.push(format!(
                    "cores of type {} ({}) count something else than {}: they are not measured",
                    more.uarch, core.pmu, wanted.uarch
                ));
            }
        }
        if wanted.channels.is_empty() {
            return Err(NotMeasured {
                state: VerdictState::Unsupported,
                reason: missing
                    .unwrap_or_else(|| format!("no event of {} can be counted here", measured.cpu)),
            });
        }
        Ok(wanted)
    }

    fn of_core(
        core: &MeasuredCore,
        settings: &PageWalkSettings,
        openable: &impl Fn(&Encoding) -> bool,
    ) -> Self {
        let usable = |role: &Role| {
            core.roles
                .get(role)
                .is_some_and(|event| event.openings().all(openable))
        };
        let mut wanted = Self {
            uarch: core.uarch.clone(),
            notes: core
                .plan
                .caveats
                .iter()
                .filter(|caveat| caveat.code != CaveatCode::PmuAbsent)
                .map(|caveat| caveat.text.clone())
                .collect(),
            ..Self::default()
        };
        let passes: Vec<&Pass> = core
            .plan
            .passes
            .iter()
            .filter(|pass| worth_a_turn(core, pass))
            .collect();
        for pass in &passes {
            wanted.add_pass(core, pass, &usable);
        }
        wanted.passes = wanted
            .groups
            .iter()
            .map(|group| group.pass + 1)
            .max()
            .unwrap_or(0);
        wanted.number_events();
        wanted.share_the_limit(settings);
        wanted.add_figures(core);
        wanted
    }

    fn add_pass(&mut self, core: &MeasuredCore, pass: &Pass, usable: &impl Fn(&Role) -> bool) {
        let number = self
            .groups
            .iter()
            .map(|group| group.pass + 1)
            .max()
            .unwrap_or(0);
        for group in &pass.groups {
            let mut events = Vec::new();
            for role in group.roles.iter().filter(|role| usable(role)) {
                let Some(event) = core.roles.get(role) else {
                    continue;
                };
                let addresses = group.purpose == Purpose::Addresses;
                if addresses && event.filter.is_some() {
                    self.notes.push(format!(
                        "{role} ({}) needs its samples filtered by their data source, which the kernel side cannot see: no addresses from it",
                        event.name
                    ));
                    continue;
                }
                let Some(channel) = self.add_channel(*role, event, number) else {
                    self.notes.push(format!(
                        "{role} ({}) is not counted: all channels are taken",
                        event.name
                    ));
                    continue;
                };
                let mut cookie = channel as u64;
                if addresses {
                    cookie |= COOKIE_ADDRESS;
                }
                if matches!(role, Role::PreciseStore | Role::PreciseStoreAlt) {
                    cookie |= COOKIE_WRITE;
                }
                events.extend(event.openings().map(|encoding| WantedEvent {
                    encoding: encoding.clone(),
                    channel,
                    cookie,
                    addresses,
                }));
            }
            if !events.is_empty() {
                self.groups.push(WantedGroup {
                    cpus: BTreeSet::new(),
                    pass: number,
                    events,
                });
            }
        }
        let cycles = self
            .channels
            .iter()
            .position(|channel| channel.pass == number && channel.role == Role::Cycles);
        for (index, channel) in self.channels.iter_mut().enumerate() {
            if channel.pass == number && Some(index) != cycles {
                channel.cycles = cycles;
            }
        }
    }

    fn add_channel(&mut self, role: Role, event: &RoleEvent, pass: usize) -> Option<usize> {
        let first = event.openings().next()?;
        let channel = self.channels.len();
        if channel >= CLOCK_CHANNEL || channel >= NO_CHANNEL {
            return None;
        }
        self.channels.push(WantedChannel {
            role,
            event: event.name.clone(),
            quantity: event.quantity,
            pass,
            // Set below, when the number of simultaneously open events is known.
            period: Period::fixed(1),
            cycles: None,
            hardware: first.perf_type != Some(PERF_TYPE_SOFTWARE),
        });
        Some(channel)
    }

    /// Gives each event its number on its CPU. An event without a number is not opened.
    fn number_events(&mut self) {
        let mut number = 0;
        for group in &mut self.groups {
            for event in &mut group.events {
                event.cookie |= number << COOKIE_EVENT_SHIFT;
                number += 1;
            }
        }
        if number as usize > CLOCK_EVENT {
            self.notes.push(format!(
                "{number} events would be open on a CPU, {CLOCK_EVENT} are the most: give fewer in [page_walks.events]"
            ));
            self.groups.clear();
            self.channels.clear();
        }
    }

    /// Divides the limit of a CPU among the events that are open at the same time.
    fn share_the_limit(&mut self, settings: &PageWalkSettings) {
        for channel in 0..self.channels.len() {
            let pass = self.channels[channel].pass;
            let together: u64 = self
                .groups
                .iter()
                .filter(|group| group.pass == pass)
                .map(|group| group.events.len() as u64)
                .sum();
            let encoding = self
                .groups
                .iter()
                .flat_map(|group| &group.events)
                .find(|event| event.channel == channel)
                .map(|event| event.encoding.clone());
            let wanted = &mut self.channels[channel];
            if let Some(events) = settings.sample_periods.get(&wanted.role) {
                wanted.period = Period::fixed(*events);
            } else if let Some(encoding) = encoding {
                wanted.period = Period::new(
                    &encoding,
                    wanted.quantity,
                    wanted.role == Role::Cycles,
                    u64::from(settings.max_samples_per_second) / together.max(1),
                );
            }
        }
    }

    /// The plan's figures whose events have channels of one pass.
    fn add_figures(&mut self, core: &MeasuredCore) {
        for figure in &core.plan.figures {
            let channel_in = |pass: usize, role: Role| {
                self.channels
                    .iter()
                    .position(|channel| channel.pass == pass && channel.role == role)
            };
            let found = (0..self.passes).find_map(|pass| {
                let (of, less) = match figure.formula {
                    Formula::Reading { role } => (channel_in(pass, role)?, None),
                    Formula::Difference { of, less } => {
                        (channel_in(pass, of)?, Some(channel_in(pass, less)?))
                    }
                };
                Some((of, less, channel_in(pass, Role::Cycles)))
            });
            if let Some((of, less, cycles)) = found {
                self.figures.push(ChannelFigure {
                    name: figure.name,
                    quantity: figure.quantity,
                    of,
                    less,
                    cycles,
                    ratio: figure.ratio.filter(|_| cycles.is_some()),
                });
            }
        }
    }

    /// Whether the channels of two core types can hold one sum.
    fn counts_the_same(&self, other: &Self) -> bool {
        self.figures == other.figures
            && self.channels.len() == other.channels.len()
            && self.channels.iter().zip(&other.channels).all(|(one, two)| {
                (one.role, one.quantity, one.pass) == (two.role, two.quantity, two.pass)
            })
    }
}

/// Whether a pass gives a ratio or addresses. A pass that only counts would take time from the others, so it is used
/// only where no pass gives a ratio.
fn worth_a_turn(core: &MeasuredCore, pass: &Pass) -> bool {
    let with_ratio: Vec<Role> = core
        .plan
        .figures
        .iter()
        .filter(|figure| figure.ratio.is_some())
        .flat_map(|figure| match figure.formula {
            Formula::Reading { role } => vec![role],
            Formula::Difference { of, less } => vec![of, less],
        })
        .collect();
    with_ratio.is_empty()
        || pass.groups.iter().any(|group| {
            group.purpose == Purpose::Addresses
                || group.roles.iter().any(|role| with_ratio.contains(role))
        })
}

/// The plan's reason for an absent PMU.
fn absent(core: &MeasuredCore) -> Option<String> {
    core.plan
        .caveats
        .iter()
        .find(|caveat| {
            matches!(
                caveat.code,
                CaveatCode::PmuAbsent | CaveatCode::EventsAbsent
            )
        })
        .map(|caveat| caveat.text.clone())
}

/// The CPUs of a list such as `0-3,8`; `None` where there is no such file.
fn cpus(path: &Path) -> Option<BTreeSet<u32>> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(list(&text)?.into_iter().collect())
}

#[cfg(test)]
mod tests;
