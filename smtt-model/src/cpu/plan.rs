//! From a core's events to a plan of measurement: which figures the core can measure, by which formula, and which
//! events are opened together. A figure that the core cannot measure is absent from the plan, never replaced by a
//! similar one.

mod caveat;
mod fit;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;

use super::RoleEvent;
use super::role::{Capability, Role, word};
use super::table::{Filter, Quirk};

pub use caveat::{Caveat, CaveatCode};

/// Quantity that a number adds up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Cycles in which a condition held: at most one per cycle.
    Cycles,
    /// Operations in flight, summed over cycles: can exceed one per cycle.
    Occupancy,
    /// Number of occurrences.
    Count,
    /// Single occurrences, each with details.
    Samples,
}

/// A figure of the page-walk report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FigureName {
    /// Cycles with a page walk for a read in progress.
    ReadWalkCycles,
    /// Cycles with a page walk for a write in progress.
    WriteWalkCycles,
    /// Cycles with a page walk for data in progress, without distinction of reads and writes.
    WalkCycles,
    /// Page walks for reads in flight, summed over cycles.
    ReadWalkOccupancy,
    /// Page walks for writes in flight, summed over cycles.
    WriteWalkOccupancy,
    /// Page walks for data in flight, summed over cycles.
    WalkOccupancy,
    /// Reads that needed a page walk.
    DtlbReadMisses,
    /// Writes that needed a page walk.
    DtlbWriteMisses,
    /// Accesses to data that needed a page walk.
    DtlbMisses,
}

impl FigureName {
    fn quantity(self) -> Quantity {
        use FigureName::*;
        match self {
            ReadWalkCycles | WriteWalkCycles | WalkCycles => Quantity::Cycles,
            ReadWalkOccupancy | WriteWalkOccupancy | WalkOccupancy => Quantity::Occupancy,
            DtlbReadMisses | DtlbWriteMisses | DtlbMisses => Quantity::Count,
        }
    }

    /// Field of a row that holds the figure.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::ReadWalkCycles => "page_walk_read_cycles",
            Self::WriteWalkCycles => "page_walk_write_cycles",
            Self::WalkCycles => "page_walk_cycles",
            Self::ReadWalkOccupancy => "page_walk_read_occupancy",
            Self::WriteWalkOccupancy => "page_walk_write_occupancy",
            Self::WalkOccupancy => "page_walk_occupancy",
            Self::DtlbReadMisses => "dtlb_read_misses",
            Self::DtlbWriteMisses => "dtlb_write_misses",
            Self::DtlbMisses => "dtlb_misses",
        }
    }

    /// Field of a row that holds the figure's ratio to cycles.
    #[must_use]
    pub const fn ratio_key(self) -> &'static str {
        match self {
            Self::ReadWalkCycles => "page_walk_read_ratio",
            Self::WriteWalkCycles => "page_walk_write_ratio",
            Self::WalkCycles => "page_walk_ratio",
            Self::ReadWalkOccupancy => "page_walk_read_occupancy_per_cycle",
            Self::WriteWalkOccupancy => "page_walk_write_occupancy_per_cycle",
            Self::WalkOccupancy => "page_walk_occupancy_per_cycle",
            Self::DtlbReadMisses => "page_walk_read_estimated_ratio",
            Self::DtlbWriteMisses => "page_walk_write_estimated_ratio",
            Self::DtlbMisses => "page_walk_estimated_ratio",
        }
    }
}

/// Formula of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Formula {
    /// The reading itself (the sum of its components, where it has some).
    Reading {
        /// Role of the reading.
        role: Role,
    },
    /// max(0, `of` - `less`), both read in one group.
    Difference {
        /// Role of the minuend.
        of: Role,
        /// Role of the subtrahend.
        less: Role,
    },
}

impl Formula {
    /// The figure, or nothing if a reading is missing.
    pub fn value(self, reading: impl Fn(Role) -> Option<u64>) -> Option<u64> {
        match self {
            Formula::Reading { role } => reading(role),
            Formula::Difference { of, less } => Some(reading(of)?.saturating_sub(reading(less)?)),
        }
    }

    fn roles(self) -> Vec<Role> {
        match self {
            Formula::Reading { role } => vec![role],
            Formula::Difference { of, less } => vec![less, of],
        }
    }
}

/// Meaning of a figure divided by cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ratio {
    /// figure / cycles: the share of cycles with a walk under way, 0 to 1.
    Fraction,
    /// figure / cycles: walks in flight on average, can exceed 1.
    Occupancy,
    /// figure x calibrated cycles per walk / cycles: an estimate, always marked as such.
    Estimated,
}

impl Ratio {
    /// The ratio, or nothing if no cycles were counted or an estimate has no calibrated cost.
    pub fn value(
        self,
        figure: u64,
        cycles: u64,
        calibrated_cycles_per_walk: Option<f64>,
    ) -> Option<f64> {
        let weight = match self {
            Ratio::Fraction | Ratio::Occupancy => 1.0,
            Ratio::Estimated => calibrated_cycles_per_walk?,
        };
        (cycles > 0).then(|| figure as f64 * weight / cycles as f64)
    }
}

/// A figure with its formula and the meaning of its ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Figure {
    /// Which.
    pub name: FigureName,
    /// What it adds up.
    pub quantity: Quantity,
    /// From which readings.
    pub formula: Formula,
    /// The ratio to cycles; absent if none is meaningful.
    pub ratio: Option<Ratio>,
}

/// Purpose of a group of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Figures: one perf group, its readings belong together.
    Figures,
    /// Data addresses: samples.
    Addresses,
}

/// Events that are opened together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// What for.
    pub purpose: Purpose,
    /// The events, the leader first. Two roles with the same encoding share one event and are distinguished by their
    /// filters.
    pub roles: Vec<Role>,
}

/// Groups that the counters can hold at the same time. Several passes take turns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pass {
    /// The groups.
    pub groups: Vec<Group>,
}

/// Plan of measuring a core's page walks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// What it gives.
    pub figures: Vec<Figure>,
    /// What is opened, pass by pass.
    pub passes: Vec<Pass>,
    /// Caveats of the plan.
    pub caveats: Vec<Caveat>,
}

/// Inputs of a plan.
pub(super) struct Given<'a> {
    pub pmu: &'a str,
    pub pmu_present: Option<bool>,
    pub roles: &'a BTreeMap<Role, RoleEvent>,
    pub capability: Capability,
    pub walkers: Option<u8>,
    pub quirk: Option<Quirk>,
    pub hyper_threading: Option<bool>,
    pub virtualised: Option<bool>,
    /// PMUs that the machine lacks.
    pub absent: &'a dyn Fn(&str) -> bool,
}

impl Given<'_> {
    fn has(&self, role: Role) -> bool {
        self.roles.contains_key(&role)
    }

    fn quantity(&self, role: Role) -> Option<Quantity> {
        self.roles.get(&role).map(|event| event.quantity)
    }

    fn leaks(&self, role: Role) -> bool {
        let is_0xd0 = |config: u64| config & 0xff == 0xd0;
        self.quirk == Some(Quirk::RetiredMemoryEventsLeak)
            // If the state of the sibling thread is unknown, protect its counters.
            && self.hyper_threading != Some(false)
            && self.roles.get(&role).is_some_and(|event| {
                event.openings().any(|opening| opening.pmu == self.pmu && is_0xd0(opening.perf_config))
            })
    }
}

impl Plan {
    pub(super) fn of(given: &Given) -> Self {
        let mut plan = Plan {
            figures: figures(given),
            ..Plan::default()
        };
        plan.caveats = caveat::of(&plan.figures, given);
        plan.open(given);
        plan
    }

    fn caveat(&mut self, code: CaveatCode, text: impl Into<String>) {
        self.caveats.push(Caveat {
            code,
            text: text.into(),
        });
    }

    /// Distributes the events over few passes: first events that ratios need, then addresses, then plain counts.
    fn open(&mut self, given: &Given) {
        let mut passes = vec![fit::Open::default()];
        if given.has(Role::Cycles) {
            passes[0].figures.push(Role::Cycles);
        }
        let (ratios, counts): (Vec<Figure>, Vec<Figure>) = self
            .figures
            .iter()
            .partition(|figure| figure.ratio.is_some());
        self.place_figures(&mut passes, given, &ratios);
        for group in fit::by_encoding(given, &self.address_sources(given)) {
            self.place(&mut passes, given, &group, fit::Open::with_addresses);
        }
        self.place_figures(&mut passes, given, &counts);
        self.passes = passes.into_iter().map(fit::Open::finish).collect();
        if self.passes.len() > 1 {
            let text = "not all events fit the counters at once: passes take turns, and each \
                        figure says how long it was counted";
            self.caveat(CaveatCode::SeveralPasses, text);
        }
    }

    /// Reads and writes cover the same time if the counters can hold them together.
    fn place_figures(&mut self, passes: &mut Vec<fit::Open>, given: &Given, figures: &[Figure]) {
        let unit = |figure: &Figure| {
            let mut roles = figure.formula.roles();
            if figure.ratio.is_some() && given.has(Role::Cycles) {
                // A ratio needs a denominator that covers the same time.
                roles.insert(0, Role::Cycles);
            }
            roles
        };
        let together: Vec<Role> = figures.iter().flat_map(unit).collect();
        let clean = !together.iter().any(|&role| given.leaks(role));
        if clean && fit::Open::default().with_figures(&together).fits(given) {
            return self.place(passes, given, &together, fit::Open::with_figures);
        }
        for figure in figures {
            self.place(passes, given, &unit(figure), fit::Open::with_figures);
        }
    }

    fn place(
        &mut self,
        passes: &mut Vec<fit::Open>,
        given: &Given,
        roles: &[Role],
        add: fn(&fit::Open, &[Role]) -> fit::Open,
    ) {
        match roles.iter().find(|&&role| given.leaks(role)) {
            Some(role) => {
                passes.push(add(&fit::Open::default(), roles).close());
                let text = format!(
                    "{role} also counts on the sibling hardware thread: it runs in a pass of its own"
                );
                self.caveat(CaveatCode::SeparatePass, text);
            }
            None => fit::place(passes, given, |pass| add(pass, roles)),
        }
    }

    /// Events whose samples give the data address of accesses with a page walk: the precise event itself, or the
    /// alternative if page walks can be picked out of its samples.
    fn address_sources(&mut self, given: &Given) -> Vec<Role> {
        let usable = |role: Role, main: Role| {
            given.roles.get(&role).is_some_and(|event| {
                event.gives_data_address && (role == main || event.filter.is_some())
            })
        };
        let mut sources = Vec::new();
        for (main, alternative) in [
            (Role::PreciseLoad, Role::PreciseLoadAlt),
            (Role::PreciseStore, Role::PreciseStoreAlt),
        ] {
            let source = [main, alternative]
                .into_iter()
                .find(|&role| usable(role, main));
            let absent = |role| {
                given
                    .roles
                    .get(&role)
                    .is_some_and(|event| (given.absent)(event.pmu()))
            };
            match source {
                Some(source) if absent(source) => {
                    let pmu = given.roles.get(&source).map_or("", RoleEvent::pmu);
                    let text = format!(
                        "{source} needs PMU {pmu}, which this machine does not have: no addresses from it"
                    );
                    self.caveat(CaveatCode::NoDataAddress, text);
                }
                Some(source) => sources.push(source),
                None if given.has(main) => {
                    let text = format!(
                        "{main} says where in the program, not which data: no addresses from it"
                    );
                    self.caveat(CaveatCode::NoDataAddress, text);
                }
                None => {}
            }
        }
        sources
    }
}

/// One event for cycles and for numbers: an edge detector that the published list lacks, or a mistake in it.
fn same_encoding(given: &Given) -> bool {
    let encoding = |role| {
        given
            .roles
            .get(&role)
            .and_then(|event| event.encoding.as_ref())
    };
    let cycles = encoding(Role::DsideWalkCyclesCombined);
    cycles.is_some() && cycles == encoding(Role::DsideWalksCombined)
}

fn figures(given: &Given) -> Vec<Figure> {
    use FigureName::*;
    use Role::*;
    let reading = |role| given.has(role).then_some(Formula::Reading { role });
    let difference =
        |of, less| (given.has(of) && given.has(less)).then_some(Formula::Difference { of, less });
    let cycles = |role| reading(role).filter(|_| given.quantity(role) == Some(Quantity::Cycles));
    let mut list: Vec<(FigureName, Formula, Option<Ratio>)> = Vec::new();
    let mut push = |name, formula: Option<Formula>, ratio| {
        list.extend(formula.map(|formula| (name, formula, ratio)))
    };

    let combined_cycles = cycles(DsideWalkCyclesCombined);
    let write_cycles = cycles(StoreWalkCycles)
        .or(combined_cycles.and(difference(DsideWalkCyclesCombined, LoadWalkCycles)));
    let read_cycles = cycles(LoadWalkCycles);
    push(ReadWalkCycles, read_cycles, Some(Ratio::Fraction));
    push(WriteWalkCycles, write_cycles, Some(Ratio::Fraction));
    push(
        ReadWalkOccupancy,
        reading(LoadWalkPending).filter(|_| read_cycles.is_none()),
        Some(Ratio::Occupancy),
    );
    push(
        WriteWalkOccupancy,
        reading(StoreWalkPending).filter(|_| write_cycles.is_none()),
        Some(Ratio::Occupancy),
    );
    if read_cycles.is_none() && write_cycles.is_none() {
        match combined_cycles {
            Some(_) => push(WalkCycles, combined_cycles, Some(Ratio::Fraction)),
            None => push(
                WalkOccupancy,
                reading(DsideWalkCyclesCombined),
                Some(Ratio::Occupancy),
            ),
        }
    }

    // Estimates are for cores without events for walk time; counts of an unknown core are no basis for one.
    let estimate = match given.capability {
        Capability::CountsOnlyLoadStoreSeparate
        | Capability::CountsOnlyLoadPlusAllDside
        | Capability::CountsOnlyCombined => Some(Ratio::Estimated),
        _ => None,
    };
    let combined_counts = matches!(
        given.capability,
        Capability::CountsOnlyCombined
            | Capability::CombinedDsideOccupancyOnly
            | Capability::CombinedDsideCyclesOnly
    );
    let apart = estimate.filter(|_| !combined_counts);
    push(DtlbReadMisses, reading(LoadWalksCompleted), apart);
    let write_misses =
        reading(StoreWalksCompleted).or(difference(DsideWalksCombined, LoadWalksCompleted));
    push(DtlbWriteMisses, write_misses, apart);
    if combined_counts && !same_encoding(given) {
        push(DtlbMisses, reading(DsideWalksCombined), estimate);
    }
    list.into_iter()
        .map(|(name, formula, ratio)| Figure {
            name,
            quantity: name.quantity(),
            formula,
            ratio,
        })
        .collect()
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} = ", word(&self.name))?;
        match self.formula {
            Formula::Reading { role } => write!(f, "{role}")?,
            Formula::Difference { of, less } => write!(f, "max(0, {of} - {less})")?,
        }
        match self.ratio {
            Some(Ratio::Fraction) => write!(f, "; fraction = it / cycles"),
            Some(Ratio::Occupancy) => write!(f, "; occupancy = it / cycles"),
            Some(Ratio::Estimated) => write!(
                f,
                "; estimated ratio = it x calibrated cycles per walk / cycles"
            ),
            None => Ok(()),
        }
    }
}

impl std::fmt::Display for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&word(self))
    }
}
