//! From the plan of this machine's CPU to the events to open: which of them have a slot, which belong together, on
//! which CPUs, and which figures come of it. Nothing is opened here.

use std::collections::BTreeSet;
use std::path::Path;

use smtt_common::walk::{
    COOKIE_ADDRESS, COOKIE_EVENT_SHIFT, COOKIE_SLOT_MASK, COOKIE_WRITE, WALK_EVENTS, WALK_SLOTS,
};

use super::super::health::VerdictState;
use super::super::settings::PageWalkSettings;
use super::SlotFigure;
use super::period::Period;
use crate::perf::TYPE_SOFTWARE;
use crate::pmu::{
    self, CaveatCode, Encoding, Formula, Identity, MeasuredCore, Pass, Purpose, Quantity, Role,
    RoleEvent,
};

/// Why nothing is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotMeasured {
    /// What that means for the daemon.
    pub state: VerdictState,
    /// One line for the reader, with what to change.
    pub reason: String,
}

/// One event to open on each CPU of its group.
#[derive(Clone, Debug)]
pub struct WantedEvent {
    /// How it is opened.
    pub encoding: Encoding,
    /// Where it is added up.
    pub slot: usize,
    /// What the kernel side's program is told with each sample.
    pub cookie: u64,
    /// Whether its samples carry addresses.
    pub addresses: bool,
}

/// Events that are opened together, the leader first.
#[derive(Clone, Debug)]
pub struct WantedGroup {
    /// CPUs.
    pub cpus: BTreeSet<u32>,
    /// The pass.
    pub pass: usize,
    /// The events.
    pub events: Vec<WantedEvent>,
}

/// What a slot is for.
#[derive(Clone, Debug)]
pub struct WantedSlot {
    /// The role.
    pub role: Role,
    /// The event's name.
    pub event: String,
    /// What it adds up.
    pub quantity: Quantity,
    /// The pass.
    pub pass: usize,
    /// Events per sample.
    pub period: Period,
    /// Slot of the cycles of the same pass, unless it is that itself.
    pub cycles: Option<usize>,
    /// Whether the processor counts it, not the kernel.
    pub hardware: bool,
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The core's name.
    pub uarch: String,
    /// The slots.
    pub slots: Vec<WantedSlot>,
    /// The groups.
    pub groups: Vec<WantedGroup>,
    /// The figures.
    pub figures: Vec<SlotFigure>,
    /// Passes that take turns.
    pub passes: usize,
    /// What the reader has to know, in lines.
    pub notes: Vec<String>,
}

/// The cookie's slot where there is none.
const NO_SLOT: usize = COOKIE_SLOT_MASK as usize;

impl Wanted {
    /// What to open on this machine, below `root` (`/`).
    pub fn here(settings: &PageWalkSettings, root: &Path) -> Result<Self, NotMeasured> {
        if !settings.enabled {
            return Err(NotMeasured {
                state: VerdictState::NotApplicable,
                reason: "switched off by [pmu] enabled".into(),
            });
        }
        let identity = Identity::of_this_machine(root);
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
        identity: &Identity,
        cpus: impl Fn(&str) -> BTreeSet<u32>,
    ) -> Result<Self, NotMeasured> {
        let measured =
            pmu::describe(identity, &settings.overrides).map_err(|error| NotMeasured {
                state: VerdictState::Broken,
                reason: format!("[pmu.events] {error}"),
            })?;
        let openable = |encoding: &Encoding| {
            encoding.perf_type == Some(TYPE_SOFTWARE)
                || identity
                    .pmus
                    .get(&encoding.pmu)
                    .is_some_and(|pmu| pmu.present != Some(false))
        };
        let mut wanted = Self::default();
        let mut missing = None;
        for core in &measured.cores {
            let mut more = Self::of_core(core, settings, &openable);
            if more.slots.is_empty() {
                missing = missing.or_else(|| absent(core));
                continue;
            }
            let on = cpus(&core.pmu);
            for group in &mut more.groups {
                group.cpus.clone_from(&on);
            }
            if wanted.slots.is_empty() {
                wanted = more;
            } else if wanted.counts_the_same(&more) {
                wanted.groups.append(&mut more.groups);
            } else {
                // Two kinds of figures in one sum would be neither.
                wanted.notes.push(format!(
                    "cores of type {} ({}) count something else than {}: they are not measured",
                    more.uarch, core.pmu, wanted.uarch
                ));
            }
        }
        if wanted.slots.is_empty() {
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
                let Some(slot) = self.add_slot(*role, event, number) else {
                    self.notes.push(format!(
                        "{role} ({}) is not counted: all slots are taken",
                        event.name
                    ));
                    continue;
                };
                let mut cookie = slot as u64;
                if addresses {
                    cookie |= COOKIE_ADDRESS;
                }
                if matches!(role, Role::PreciseStore | Role::PreciseStoreAlt) {
                    cookie |= COOKIE_WRITE;
                }
                events.extend(event.openings().map(|encoding| WantedEvent {
                    encoding: encoding.clone(),
                    slot,
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
            .slots
            .iter()
            .position(|slot| slot.pass == number && slot.role == Role::Cycles);
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if slot.pass == number && Some(index) != cycles {
                slot.cycles = cycles;
            }
        }
    }

    fn add_slot(&mut self, role: Role, event: &RoleEvent, pass: usize) -> Option<usize> {
        let first = event.openings().next()?;
        let slot = self.slots.len();
        if slot >= WALK_SLOTS || slot >= NO_SLOT {
            return None;
        }
        self.slots.push(WantedSlot {
            role,
            event: event.name.clone(),
            quantity: event.quantity,
            pass,
            // Follows when it is known how many events are open together.
            period: Period::fixed(1),
            cycles: None,
            hardware: first.perf_type != Some(TYPE_SOFTWARE),
        });
        Some(slot)
    }

    /// Gives each event its number on its CPU. What has none is not opened.
    fn number_events(&mut self) {
        let mut number = 0;
        for group in &mut self.groups {
            for event in &mut group.events {
                event.cookie |= number << COOKIE_EVENT_SHIFT;
                number += 1;
            }
        }
        if number as usize > WALK_EVENTS {
            self.notes.push(format!(
                "{number} events would be open on a CPU, {WALK_EVENTS} are the most: give fewer in [pmu.events]"
            ));
            self.groups.clear();
            self.slots.clear();
        }
    }

    /// The limit is for a CPU; the events that are open at the same time share it.
    fn share_the_limit(&mut self, settings: &PageWalkSettings) {
        for slot in 0..self.slots.len() {
            let pass = self.slots[slot].pass;
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
                .find(|event| event.slot == slot)
                .map(|event| event.encoding.clone());
            let wanted = &mut self.slots[slot];
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

    /// The plan's figures whose events have slots of one pass.
    fn add_figures(&mut self, core: &MeasuredCore) {
        for figure in &core.plan.figures {
            let slot_in = |pass: usize, role: Role| {
                self.slots
                    .iter()
                    .position(|slot| slot.pass == pass && slot.role == role)
            };
            let found = (0..self.passes).find_map(|pass| {
                let (of, less) = match figure.formula {
                    Formula::Reading { role } => (slot_in(pass, role)?, None),
                    Formula::Difference { of, less } => {
                        (slot_in(pass, of)?, Some(slot_in(pass, less)?))
                    }
                };
                Some((of, less, slot_in(pass, Role::Cycles)))
            });
            if let Some((of, less, cycles)) = found {
                self.figures.push(SlotFigure {
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

    /// Whether the slots of two core types can hold one sum.
    fn counts_the_same(&self, other: &Self) -> bool {
        self.figures == other.figures
            && self.slots.len() == other.slots.len()
            && self.slots.iter().zip(&other.slots).all(|(one, two)| {
                (one.role, one.quantity, one.pass) == (two.role, two.quantity, two.pass)
            })
    }
}

/// Whether a pass gives a ratio or addresses. One that only counts would take time from those that do; it is worth it
/// where there is no ratio at all.
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

/// What the plan says about a PMU that is not there.
fn absent(core: &MeasuredCore) -> Option<String> {
    core.plan
        .caveats
        .iter()
        .find(|caveat| caveat.code == CaveatCode::PmuAbsent)
        .map(|caveat| caveat.text.clone())
}

/// The CPUs of a list such as `0-3,8`; `None` where there is no such file.
fn cpus(path: &Path) -> Option<BTreeSet<u32>> {
    let text = std::fs::read_to_string(path).ok()?;
    let mut cpus = BTreeSet::new();
    for piece in text.trim().split(',').filter(|piece| !piece.is_empty()) {
        let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmu::{FigureName, Ratio};

    fn of(cpu: &str) -> Result<Wanted, NotMeasured> {
        let identity: Identity = cpu.parse().expect("a CPU");
        Wanted::of(&PageWalkSettings::default(), &identity, |pmu| match pmu {
            "cpu_atom" => (8..16).collect(),
            _ => (0..8).collect(),
        })
    }

    fn roles(wanted: &Wanted) -> Vec<(usize, Role)> {
        wanted
            .slots
            .iter()
            .map(|slot| (slot.pass, slot.role))
            .collect()
    }

    #[test]
    fn a_core_that_tells_loads_from_stores_gives_two_fractions_of_one_pass() {
        let wanted = of("GenuineIntel-6-8F").expect("Sapphire Rapids");
        let fractions: Vec<&SlotFigure> = wanted
            .figures
            .iter()
            .filter(|figure| figure.ratio == Some(Ratio::Fraction))
            .collect();
        assert_eq!(
            fractions
                .iter()
                .map(|figure| figure.name)
                .collect::<Vec<_>>(),
            [FigureName::ReadWalkCycles, FigureName::WriteWalkCycles]
        );
        for figure in fractions {
            let cycles = figure.cycles.expect("a denominator");
            assert_eq!(wanted.slots[cycles].role, Role::Cycles);
            assert_eq!(wanted.slots[cycles].pass, wanted.slots[figure.of].pass);
        }
        let group = &wanted.groups[0];
        assert_eq!(group.cpus.len(), 8);
        assert_eq!(group.events[0].slot, 0);
        assert_eq!(wanted.slots[0].role, Role::Cycles, "cycles lead");
    }

    #[test]
    fn writes_that_are_a_difference_come_from_one_group() {
        let wanted = of("GenuineIntel-6-2C").expect("Westmere");
        let write = wanted
            .figures
            .iter()
            .find(|figure| figure.name == FigureName::WriteWalkCycles)
            .expect("by difference");
        let group = wanted
            .groups
            .iter()
            .find(|group| group.events.iter().any(|event| event.slot == write.of))
            .expect("its group");
        for slot in [Some(write.of), write.less, write.cycles]
            .into_iter()
            .flatten()
        {
            assert!(
                group.events.iter().any(|event| event.slot == slot),
                "{slot}"
            );
        }
    }

    #[test]
    fn a_core_that_counts_gives_estimates_and_a_sum_has_one_slot() {
        for cpu in ["riscv", "AuthenticAMD-25-1"] {
            let wanted = of(cpu).expect(cpu);
            assert!(
                wanted
                    .figures
                    .iter()
                    .any(|figure| figure.ratio == Some(Ratio::Estimated)),
                "{cpu}: {:?}",
                wanted.figures
            );
            let mut known = std::collections::BTreeSet::new();
            assert!(
                roles(&wanted).into_iter().all(|role| known.insert(role)),
                "{cpu}: {:?}",
                roles(&wanted)
            );
        }
    }

    #[test]
    fn core_types_that_count_different_things_are_not_mixed() {
        let wanted = of("GenuineIntel-6-97").expect("Alder Lake");
        assert_eq!(wanted.groups[0].cpus, (0..8).collect());
        assert!(
            wanted.groups.iter().all(|group| !group.cpus.contains(&8)),
            "{:?}",
            wanted.groups
        );
        assert!(
            wanted.notes.iter().any(|note| note.contains("cpu_atom")),
            "{:?}",
            wanted.notes
        );
    }

    #[test]
    fn addresses_are_marked_and_those_that_need_a_filter_are_left_out() {
        let haswell = of("GenuineIntel-6-3F").expect("Haswell");
        let precise: Vec<&WantedEvent> = haswell
            .groups
            .iter()
            .flat_map(|group| &group.events)
            .filter(|event| event.addresses)
            .collect();
        assert!(!precise.is_empty());
        assert!(
            precise
                .iter()
                .all(|event| event.cookie & COOKIE_ADDRESS != 0)
        );
        assert!(precise.iter().any(|event| event.cookie & COOKIE_WRITE != 0));
        let sandy = of("GenuineIntel-6-2D").expect("Sandy Bridge");
        assert!(
            sandy
                .groups
                .iter()
                .flat_map(|group| &group.events)
                .all(|event| !event.addresses)
        );
        assert!(sandy.notes.iter().any(|note| note.contains("data source")));
    }

    #[test]
    fn the_limit_is_shared_by_what_is_open_together() {
        let wanted = of("GenuineIntel-6-8F").expect("Sapphire Rapids");
        let together = wanted
            .groups
            .iter()
            .filter(|group| group.pass == 0)
            .map(|group| group.events.len() as u64)
            .sum::<u64>();
        let cycles = &wanted.slots[0].period;
        assert!(
            5_000_000_000 / cycles.events <= 200 / together,
            "{cycles:?}"
        );
        let settings = PageWalkSettings {
            sample_periods: [(Role::Cycles, 77)].into(),
            ..PageWalkSettings::default()
        };
        let identity: Identity = "riscv".parse().expect("a CPU");
        let fixed = Wanted::of(&settings, &identity, |_| (0..1).collect()).expect("riscv");
        assert_eq!(fixed.slots[0].period, Period::fixed(77));
    }

    #[test]
    fn no_row_of_the_table_asks_for_more_slots_than_there_are() {
        for core in &pmu::CORES {
            for cpu in core.cpus {
                let Ok(identity) = cpu.parse::<Identity>() else {
                    continue;
                };
                let cpus_of = |pmu: &str| match pmu {
                    "cpu_atom" => (4..8).collect(),
                    "cpu_lowpower" => (8..12).collect(),
                    _ => (0..4).collect(),
                };
                let Ok(wanted) = Wanted::of(&PageWalkSettings::default(), &identity, cpus_of)
                else {
                    continue;
                };
                for on in 0..12 {
                    let mut known = BTreeSet::new();
                    let on_it = wanted
                        .groups
                        .iter()
                        .filter(|group| group.cpus.contains(&on));
                    for event in on_it.flat_map(|group| &group.events) {
                        let number = event.cookie >> COOKIE_EVENT_SHIFT;
                        assert!(known.insert(number), "{cpu}: {number} twice");
                    }
                }
                assert!(
                    !wanted.notes.iter().any(|note| note.contains("all slots")),
                    "{cpu}: {:?}",
                    wanted.notes
                );
                assert!(!wanted.figures.is_empty(), "{cpu}");
            }
        }
    }

    #[test]
    fn a_machine_without_a_pmu_says_what_to_change() {
        let root = tempfile::tempdir().expect("temporary folder");
        let cpuinfo = "vendor_id : GenuineIntel\ncpu family : 6\nmodel : 143\nstepping : 6\n";
        std::fs::create_dir_all(root.path().join("proc")).expect("folder");
        std::fs::write(root.path().join("proc/cpuinfo"), cpuinfo).expect("file");
        let why = Wanted::here(&PageWalkSettings::default(), root.path()).expect_err("no PMU");
        assert_eq!(why.state, VerdictState::Unsupported);
        assert!(why.reason.contains("virtual machine"), "{}", why.reason);
        let off = PageWalkSettings {
            enabled: false,
            ..PageWalkSettings::default()
        };
        let why = Wanted::here(&off, root.path()).expect_err("off");
        assert_eq!(why.state, VerdictState::NotApplicable);
    }
}
