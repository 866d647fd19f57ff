//! The vocabulary of page-walk measurement: roles of events and capabilities of cores.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Role of an event. The order is the order of listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Cycles of the hardware thread while it runs: the denominator.
    Cycles,
    /// Cycles with a page walk for a load in progress.
    LoadWalkCycles,
    /// Cycles with a page walk for a store in progress.
    StoreWalkCycles,
    /// Cycles of page walks for data, loads and stores together.
    DsideWalkCyclesCombined,
    /// Page walks for loads in flight, summed over cycles.
    LoadWalkPending,
    /// Page walks for stores in flight, summed over cycles.
    StoreWalkPending,
    /// Page walks that loads needed.
    LoadWalksCompleted,
    /// Page walks that stores needed.
    StoreWalksCompleted,
    /// Page walks for data, loads and stores together.
    DsideWalksCombined,
    /// Samples of loads that needed a page walk.
    PreciseLoad,
    /// Samples of stores that needed a page walk.
    PreciseStore,
    /// Samples of loads that can be filtered for those with a page walk.
    PreciseLoadAlt,
    /// Samples of stores that can be filtered for those with a page walk.
    PreciseStoreAlt,
    /// Nested page walks of virtual machines.
    EptWalk,
    /// Cycles of the core, both hardware threads together; never a denominator of a thread.
    CyclesCoreScope,
    /// Table walks for data as the walker counts them.
    DsideTableWalks,
    /// Page walks for instructions.
    ItlbWalk,
    /// First-level TLB refills by reads.
    L1dTlbRefillRd,
    /// First-level TLB refills by writes.
    L1dTlbRefillWr,
    /// Cycles stalled on the TLB.
    StallBackendTlb,
    /// First-level data TLB misses.
    DtlbMiss,
}

/// Capability of a core's events, from the most to the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Walk cycles of loads and of stores: two true fractions.
    TrueCyclesLoadStoreSeparate,
    /// Walk cycles of loads, and of loads and stores together.
    LoadCyclesPlusAllDsideCycles,
    /// Walk cycles of loads and stores together only.
    CombinedDsideCyclesOnly,
    /// Walks in flight, loads and stores apart: can exceed one per cycle.
    OccupancyOnlyLoadStoreSeparate,
    /// Walks in flight, loads and stores together.
    CombinedDsideOccupancyOnly,
    /// Numbers of walks, loads and stores apart.
    CountsOnlyLoadStoreSeparate,
    /// Numbers of walks of loads, and of loads and stores together.
    CountsOnlyLoadPlusAllDside,
    /// Number of walks, loads and stores together.
    CountsOnlyCombined,
    /// There is no published definition of this core's events.
    Unknown,
}

/// A core of a hybrid CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CoreType {
    /// P-core.
    Performance,
    /// E-core.
    Efficient,
    /// LP E-core.
    LowPower,
}

impl CoreType {
    /// The PMU under which the kernel offers this core of a hybrid CPU.
    pub fn pmu(self) -> &'static str {
        match self {
            CoreType::Performance => "cpu_core",
            CoreType::Efficient => "cpu_atom",
            CoreType::LowPower => "cpu_lowpower",
        }
    }
}

/// The name of a unit variant as it is serialised, so that text, JSON and configuration use one word.
pub(super) fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&word(self))
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&word(self))
    }
}
