//! Caveats of the figures as text.

use serde::Serialize;

use super::super::Source;
use super::super::role::{Capability, Role};
use super::super::table::Quirk;
use super::{Figure, FigureName, Formula, Given, Ratio, same_encoding};

/// Caveats of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CaveatCode {
    /// This machine does not have the PMU.
    PmuAbsent,
    /// This machine's PMU does not have the core's events.
    EventsAbsent,
    /// No published events for this CPU.
    UnknownCpu,
    /// An event comes from the configuration.
    Overridden,
    /// Read and write walks can overlap.
    SumIsUpperBound,
    /// Writes are computed as all data walks minus reads.
    WriteByDifference,
    /// Walks in flight, not a fraction.
    OccupancyNotFraction,
    /// Reads and writes are not distinguished.
    CombinedOnly,
    /// Numbers of walks, not their cost.
    CountsOnly,
    /// TLB refills stand for walks.
    RefillsNotWalks,
    /// A count misses some page sizes.
    Incomplete,
    /// Two quantities with one encoding: one is not published.
    SameEncoding,
    /// Nested walk time of virtual machines is missing.
    NestedWalksExcluded,
    /// An event must not run beside others.
    SeparatePass,
    /// Not all events fit at once.
    SeveralPasses,
    /// Samples contain no data addresses.
    NoDataAddress,
    /// The vendor lists errata.
    Errata,
}

/// A caveat and its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Caveat {
    /// Which.
    pub code: CaveatCode,
    /// One line for the reader.
    pub text: String,
}

/// Caveats of the figures that do not depend on how the events are opened.
pub(super) fn of(figures: &[Figure], given: &Given) -> Vec<Caveat> {
    use FigureName::*;
    let has = |name| figures.iter().find(|figure| figure.name == name).copied();
    let direct =
        |name| has(name).is_some_and(|figure| matches!(figure.formula, Formula::Reading { .. }));
    let any = |ratio| figures.iter().any(|figure| figure.ratio == Some(ratio));
    let mut list: Vec<(CaveatCode, String)> = Vec::new();
    let mut say = |code, text: &str| list.push((code, text.to_owned()));
    if given.pmu_present == Some(false) {
        say(
            CaveatCode::PmuAbsent,
            &format!(
                "this machine has no PMU `{}`: nothing of this can be counted here; a virtual machine gets one only if \
                 its host exposes counters (bare-metal or metal-like instance types, `-cpu host,pmu=on`)",
                given.pmu
            ),
        );
    }
    for (role, event) in given.roles {
        if event.source == Source::Configuration {
            say(
                CaveatCode::Overridden,
                &format!("{role} is taken from the configuration: `{}`", event.name),
            );
        }
        if !event.complete {
            say(
                CaveatCode::Incomplete,
                &format!("{role} counts 4 KiB pages only: it is a lower bound"),
            );
        }
        if !event.errata.is_empty() {
            say(
                CaveatCode::Errata,
                &format!("{role}: the vendor lists errata {}", event.errata),
            );
        }
    }
    let several_walkers = given
        .walkers
        .map_or(given.has(Role::LoadWalkPending), |walkers| walkers > 1);
    if direct(ReadWalkCycles) && direct(WriteWalkCycles) && several_walkers {
        say(
            CaveatCode::SumIsUpperBound,
            "walks for reads and for writes can overlap: read + write is an upper bound of all walk cycles",
        );
    }
    if figures
        .iter()
        .any(|figure| matches!(figure.formula, Formula::Difference { .. }))
    {
        say(
            CaveatCode::WriteByDifference,
            "the core counts reads, and reads and writes together: writes = max(0, together - reads), from one group",
        );
    }
    if any(Ratio::Occupancy) {
        say(
            CaveatCode::OccupancyNotFraction,
            "the core adds up walks in flight: occupancy / cycles can exceed 1 and is no fraction of the cycles",
        );
    }
    if has(WalkCycles).or(has(WalkOccupancy)).is_some()
        || given.capability == Capability::CountsOnlyCombined
    {
        say(
            CaveatCode::CombinedOnly,
            "the core does not tell walks for reads and for writes apart: one figure",
        );
    }
    if any(Ratio::Estimated) {
        say(
            CaveatCode::CountsOnly,
            "the core counts walks, not their cycles: ratios are estimates, count x calibrated cycles per walk / cycles",
        );
    }
    if has(DtlbMisses).is_some() && has(DtlbReadMisses).is_some() {
        say(
            CaveatCode::RefillsNotWalks,
            "read and write misses are refills of the last TLB level, instructions among them; only dtlb_misses counts data walks",
        );
    }
    if same_encoding(given) {
        say(
            CaveatCode::SameEncoding,
            "the published events for walk cycles and number of walks are the same: only the cycles are given",
        );
    }
    if given.quirk == Some(Quirk::WalkCyclesExcludeEpt) && given.virtualised != Some(false) {
        let when = if given.virtualised.is_none() {
            "in a virtual machine "
        } else {
            ""
        };
        say(
            CaveatCode::NestedWalksExcluded,
            &format!(
                "{when}the time of nested (EPT) walks is not in the walk cycles: true ratios are higher"
            ),
        );
    }
    list.into_iter()
        .map(|(code, text)| Caveat { code, text })
        .collect()
}
