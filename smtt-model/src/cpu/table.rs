//! Known core types, how to recognise each, and its events. The data come from the vendors' published event lists. The
//! first row that matches a CPU wins, so a narrow pattern stands before a wider one.

// One line per event: the table is for reading.
#[rustfmt::skip]
mod intel;
#[rustfmt::skip]
mod others;
#[cfg(test)]
mod tests;

use super::encoding::{PERF_TYPE_HARDWARE, PERF_TYPE_HW_CACHE, Pmu};
use super::role::CoreType::*;
use super::role::{Capability, CoreType, Role};
use Quirk::*;
use intel::*;
use others::*;
use serde::Serialize;

/// Counters that an event can be counted on, one bit per general counter; none where the vendor states no constraint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters(pub u16);

impl Counters {
    /// The set of these numbers; numbers beyond the last bit are left out.
    pub fn of_numbers(numbers: &[u8]) -> Self {
        Self(numbers.iter().fold(0, |set, &number| {
            set | 1u16.checked_shl(number.into()).unwrap_or(0)
        }))
    }

    /// The counters' numbers, ascending.
    pub fn numbers(self) -> Vec<u8> {
        (0..16).filter(|bit| self.0 >> bit & 1 == 1).collect()
    }
}

const NOT_STATED: Counters = Counters(0);
const C0: Counters = Counters(0b1);
const C3: Counters = Counters(0b1000);
const C0_1: Counters = Counters(0b11);
const C0_3: Counters = Counters(0xf);
const C0_5: Counters = Counters(0x3f);
const C0_7: Counters = Counters(0xff);
const C0_9: Counters = Counters(0x3ff);
const C1_7: Counters = Counters(0xfe);
const C2_7: Counters = Counters(0xfc);
const C2_9: Counters = Counters(0x3fc);

/// Filter on an event's samples that leaves accesses with a page walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    /// The sample's data source shows that the second-level TLB missed.
    StlbMiss,
    /// `op_data3` of the sample: load or store, `dc_l1tlb_miss`, `dc_l2tlb_miss` and `dc_lin_addr_valid` all set.
    IbsDtlbMiss,
    /// The profiling unit keeps only operations with a TLB walk by itself.
    SpeTlbWalk,
}

/// How an event is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Raw `config` of the core's PMU.
    Raw(u64),
    /// One of perf's generic events: `type` and `config`.
    Generic(u32, u64),
    /// On a PMU of its own, in perf's event syntax.
    OtherPmu(&'static str),
    /// The sum of several raw events of the core's PMU.
    Sum(&'static [(&'static str, u64)]),
}

/// One event of one core type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Role of the event.
    pub role: Role,
    /// The vendor's name of the event.
    pub name: &'static str,
    /// Encoding of the event.
    pub code: Code,
    /// Counters that can count the event.
    pub counters: Counters,
    /// Smallest load latency in cycles that is sampled (`config1`); 0 where there is no such condition.
    pub min_latency: u16,
    /// Whether samples of the event contain the data address.
    pub address: bool,
    /// Filter on the samples of the event.
    pub filter: Option<Filter>,
    /// Whether the event adds the number of walks in flight per cycle, whatever its name suggests.
    pub occupancy: bool,
    /// Whether the event covers its role completely; false where the vendor lists only some page sizes.
    pub complete: bool,
    /// The vendor's errata for the event; empty if there are none.
    pub errata: &'static str,
}

const fn event(role: Role, name: &'static str, code: Code, counters: Counters) -> Event {
    let (min_latency, address, filter, occupancy, complete, errata) =
        (0, false, None, false, true, "");
    Event {
        role,
        name,
        code,
        counters,
        min_latency,
        address,
        filter,
        occupancy,
        complete,
        errata,
    }
}

const fn ev(role: Role, name: &'static str, config: u64, counters: Counters) -> Event {
    event(role, name, Code::Raw(config), counters)
}

const fn generic(role: Role, name: &'static str, perf_type: u32, config: u64) -> Event {
    event(role, name, Code::Generic(perf_type, config), NOT_STATED)
}

const fn other_pmu(role: Role, name: &'static str, syntax: &'static str) -> Event {
    event(role, name, Code::OtherPmu(syntax), NOT_STATED)
}

const fn sum(
    role: Role,
    name: &'static str,
    of: &'static [(&'static str, u64)],
    counters: Counters,
) -> Event {
    event(role, name, Code::Sum(of), counters)
}

impl Event {
    const fn min_latency(mut self, cycles: u16) -> Self {
        self.min_latency = cycles;
        self
    }

    const fn address(mut self) -> Self {
        self.address = true;
        self
    }

    const fn filtered(mut self, filter: Filter) -> Self {
        self.filter = Some(filter);
        self.address()
    }

    const fn occupancy(mut self) -> Self {
        self.occupancy = true;
        self
    }

    const fn incomplete(mut self) -> Self {
        self.complete = false;
        self
    }

    const fn errata(mut self, errata: &'static str) -> Self {
        self.errata = errata;
        self
    }
}

/// Core types with the same events.
#[derive(Debug)]
pub struct Family {
    /// Capability of the events.
    pub capability: Capability,
    /// The events, one per role.
    pub events: &'static [Event],
}

/// A property of a core type that changes how or what is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quirk {
    /// With hyper-threading on, events 0xd0 are also counted on the sibling thread's counter of the same number.
    RetiredMemoryEventsLeak,
    /// In a virtual machine the time of the nested (EPT) walk is not in the walk cycles.
    WalkCyclesExcludeEpt,
}

/// One core type.
#[derive(Debug)]
pub struct Core {
    /// Name of the core type.
    pub uarch: &'static str,
    /// x86: `VENDOR-FAMILY-MODEL` or `VENDOR-FAMILY-MODEL-STEPPING` (family decimal, the rest hexadecimal), as patterns
    /// of [`super::pattern`].
    pub cpus: &'static [&'static str],
    /// Arm: part number of a core of implementer 0x41.
    pub arm_part: Option<u16>,
    /// Which core of a hybrid CPU.
    pub core_type: Option<CoreType>,
    /// Page walks that the core can have in flight at once, where the vendor states it.
    pub walkers: Option<u8>,
    /// Property of the core type to consider, if any.
    pub quirk: Option<Quirk>,
    /// Events of the core type.
    pub family: Family,
}

const fn core(uarch: &'static str, cpus: &'static [&'static str], family: Family) -> Core {
    Core {
        uarch,
        cpus,
        arm_part: None,
        core_type: None,
        walkers: None,
        quirk: None,
        family,
    }
}

const fn arm(uarch: &'static str, part: u16, family: Family) -> Core {
    let mut row = core(uarch, &[], family);
    row.arm_part = Some(part);
    row
}

/// The kernel's name of the event `DTLB_WALK` of Arm's cores.
pub const ARM_WALKS: &str = "dtlb_walk";

/// The kernel's name of their event of cycles.
pub const ARM_CYCLES: &str = "cpu_cycles";

impl Core {
    /// Whether the kernel denies that the PMU counts the events of this core type. On Arm the kernel names the common
    /// events that the PMU has, and [`ARM_WALKS`] is one that every core type of the table has. It opens any number
    /// all the same, and an event that the PMU lacks counts 0: in emulators, and where a hypervisor hides events.
    pub fn denied_by(&self, pmu: &Pmu) -> bool {
        self.arm_part.is_some() && !pmu.events.is_empty() && !pmu.events.contains(ARM_WALKS)
    }

    const fn of_type(mut self, core_type: CoreType) -> Self {
        self.core_type = Some(core_type);
        self
    }

    const fn walkers(mut self, walkers: u8) -> Self {
        self.walkers = Some(walkers);
        self
    }

    const fn quirk(mut self, quirk: Quirk) -> Self {
        self.quirk = Some(quirk);
        self
    }
}

/// Name of the row for a RISC-V core without published events.
pub const RISCV_GENERIC: &str = "generic (SBI PMU)";
/// Name of the row for SiFive's P550.
pub const RISCV_P550: &str = "SiFive P550";

/// Every core type with published page-walk events.
#[rustfmt::skip]
pub static CORES: [Core; 62] = [
    // GenuineIntel.
    core("Nehalem-EP", &["GenuineIntel-6-1A", "GenuineIntel-6-1E", "GenuineIntel-6-1F"], NEHALEM),
    core("Nehalem-EX", &["GenuineIntel-6-2E"], NEHALEM),
    core("Westmere-EP (DP; model 0x2C=44, e.g. Xeon E5620)", &["GenuineIntel-6-2C"], WESTMERE),
    core("Westmere-EP (SP / client; model 0x25=37)", &["GenuineIntel-6-25"], WESTMERE),
    core("Westmere-EX", &["GenuineIntel-6-2F"], WESTMERE),
    core("Sandy Bridge", &["GenuineIntel-6-2A"], SANDY_BRIDGE).quirk(RetiredMemoryEventsLeak),
    core("Sandy Bridge-EP (Jaketown)", &["GenuineIntel-6-2D"], SANDY_BRIDGE).quirk(RetiredMemoryEventsLeak),
    core("Ivy Bridge", &["GenuineIntel-6-3A"], IVY_BRIDGE).walkers(1).quirk(RetiredMemoryEventsLeak),
    core("Ivy Bridge-EP (Ivytown)", &["GenuineIntel-6-3E"], IVY_BRIDGE).walkers(1).quirk(RetiredMemoryEventsLeak),
    core("Haswell", &["GenuineIntel-6-3C", "GenuineIntel-6-45", "GenuineIntel-6-46"], HASWELL).walkers(1).quirk(RetiredMemoryEventsLeak),
    core("Haswell-X", &["GenuineIntel-6-3F"], HASWELL).walkers(1).quirk(RetiredMemoryEventsLeak),
    core("Broadwell", &["GenuineIntel-6-3D", "GenuineIntel-6-47"], BROADWELL),
    core("Broadwell-DE", &["GenuineIntel-6-56"], BROADWELL),
    core("Broadwell-X", &["GenuineIntel-6-4F"], BROADWELL).walkers(2),
    core("Skylake client (Kaby/Coffee/Comet Lake)", &["GenuineIntel-6-4E", "GenuineIntel-6-5E", "GenuineIntel-6-8E", "GenuineIntel-6-9E", "GenuineIntel-6-A5", "GenuineIntel-6-A6"], SKYLAKE).walkers(2).quirk(WalkCyclesExcludeEpt),
    core("Skylake-X", &["GenuineIntel-6-55-[01234]"], SKYLAKE).walkers(2).quirk(WalkCyclesExcludeEpt),
    core("Cascade Lake-X / Cooper Lake-X", &["GenuineIntel-6-55-[56789ABCDEF]"], SKYLAKE).walkers(2).quirk(WalkCyclesExcludeEpt),
    core("Ice Lake", &["GenuineIntel-6-7D", "GenuineIntel-6-7E"], ICE_LAKE).walkers(2),
    core("Ice Lake-X", &["GenuineIntel-6-6A", "GenuineIntel-6-6C"], ICE_LAKE).walkers(2),
    core("Tiger Lake", &["GenuineIntel-6-8C", "GenuineIntel-6-8D"], ICE_LAKE).walkers(2),
    core("Rocket Lake", &["GenuineIntel-6-A7"], ICE_LAKE).walkers(2),
    core("Alder Lake / Raptor Lake P-core (goldencove)", &["GenuineIntel-6-97", "GenuineIntel-6-9A", "GenuineIntel-6-B7", "GenuineIntel-6-BA", "GenuineIntel-6-BF"], GOLDEN_COVE).of_type(Performance).walkers(4),
    core("Alder Lake / Raptor Lake E-core (gracemont)", &["GenuineIntel-6-97", "GenuineIntel-6-9A", "GenuineIntel-6-B7", "GenuineIntel-6-BA", "GenuineIntel-6-BE", "GenuineIntel-6-BF"], GRACEMONT).of_type(Efficient),
    core("Sapphire Rapids", &["GenuineIntel-6-8F"], GOLDEN_COVE).walkers(4),
    core("Emerald Rapids", &["GenuineIntel-6-CF"], GOLDEN_COVE).walkers(4),
    core("Granite Rapids", &["GenuineIntel-6-AD", "GenuineIntel-6-AE"], GOLDEN_COVE).walkers(4),
    core("Sierra Forest (Crestmont)", &["GenuineIntel-6-AF"], CRESTMONT),
    core("Grand Ridge (Crestmont)", &["GenuineIntel-6-B6"], CRESTMONT),
    core("Clearwater Forest (Darkmont)", &["GenuineIntel-6-DD"], DARKMONT),
    core("Meteor Lake E-core (crestmont)", &["GenuineIntel-6-AA", "GenuineIntel-6-AC", "GenuineIntel-6-B5"], CRESTMONT).of_type(Efficient),
    core("Meteor Lake P-core (redwoodcove)", &["GenuineIntel-6-AA", "GenuineIntel-6-AC", "GenuineIntel-6-B5"], GOLDEN_COVE).of_type(Performance).walkers(4),
    core("Lunar Lake P-core (lioncove)", &["GenuineIntel-6-BD"], LION_COVE).of_type(Performance).walkers(4),
    core("Lunar Lake E-core (skymont)", &["GenuineIntel-6-BD"], CRESTMONT).of_type(Efficient),
    core("Arrow Lake LP E-core (crestmont)", &["GenuineIntel-6-C5"], CRESTMONT).of_type(LowPower),
    core("Arrow Lake P-core (lioncove)", &["GenuineIntel-6-C5", "GenuineIntel-6-C6"], LION_COVE).of_type(Performance).walkers(4),
    core("Arrow Lake E-core (skymont)", &["GenuineIntel-6-C5", "GenuineIntel-6-C6"], CRESTMONT).of_type(Efficient),
    core("Panther Lake P-core (cougarcove)", &["GenuineIntel-6-CC", "GenuineIntel-6-D5", "GenuineIntel-6-E5"], LION_COVE).of_type(Performance).walkers(4),
    core("Panther Lake E-core (darkmont)", &["GenuineIntel-6-CC", "GenuineIntel-6-D5", "GenuineIntel-6-E5"], DARKMONT).of_type(Efficient),
    core("Nova Lake E-core (arcticwolf)", &["GenuineIntel-18-1", "GenuineIntel-18-3"], ARCTIC_WOLF).of_type(Efficient),
    core("Nova Lake P-core (coyotecove)", &["GenuineIntel-18-1", "GenuineIntel-18-3"], COYOTE_COVE).of_type(Performance),
    core("Knights Landing / Knights Mill", &["GenuineIntel-6-57", "GenuineIntel-6-85"], KNIGHTS_LANDING),
    core("Bonnell", &["GenuineIntel-6-1C", "GenuineIntel-6-26", "GenuineIntel-6-27", "GenuineIntel-6-35", "GenuineIntel-6-36"], BONNELL),
    core("Silvermont / Airmont", &["GenuineIntel-6-37", "GenuineIntel-6-4A", "GenuineIntel-6-4C", "GenuineIntel-6-4D", "GenuineIntel-6-5A"], SILVERMONT),
    core("Goldmont", &["GenuineIntel-6-5C", "GenuineIntel-6-5F"], GOLDMONT),
    core("Goldmont Plus", &["GenuineIntel-6-7A"], GOLDMONT_PLUS),
    core("Elkhart Lake (Tremont)", &["GenuineIntel-6-96", "GenuineIntel-6-9C"], TREMONT),
    core("Snow Ridge (Tremont)", &["GenuineIntel-6-86"], TREMONT),
    // AuthenticAMD.
    core("Zen 1 / Zen+", &["AuthenticAMD-23-([12][0-9A-F]|[0-9A-F])"], ZEN_1),
    core("Zen 2", &["AuthenticAMD-23-[[:xdigit:]]+"], ZEN_2),
    core("Zen 3", &["AuthenticAMD-25-([245][[:xdigit:]]|[[:xdigit:]])"], ZEN_3),
    core("Zen 4", &["AuthenticAMD-25-[[:xdigit:]]+"], ZEN_4),
    core("Zen 5", &["AuthenticAMD-26-([12467][[:xdigit:]]|[[:xdigit:]])"], ZEN_4),
    core("Zen 6", &["AuthenticAMD-26-[[:xdigit:]]+"], ZEN_6),
    // Arm (implementer 0x41).
    arm("Neoverse N1", 0xd0c, NEOVERSE_N1),
    arm("Neoverse V1", 0xd40, NEOVERSE_N1),
    arm("Neoverse N2", 0xd49, NEOVERSE_N1),
    arm("Neoverse V2", 0xd4f, NEOVERSE_N1),
    arm("Neoverse N3", 0xd8e, NEOVERSE_N3),
    arm("Neoverse V3", 0xd84, NEOVERSE_V3),
    arm("Neoverse V3AE", 0xd83, NEOVERSE_V3),
    // RISC-V.
    core(RISCV_GENERIC, &[], RISCV_SBI),
    core(RISCV_P550, &[], SIFIVE_P550),
];
