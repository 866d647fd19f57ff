//! Events of Intel's cores, one family per set of encodings. A family is shared only by core types whose published
//! events are the same to the bit: a neighbour's encoding often counts something else.

use super::Filter::StlbMiss;
use super::*;
use crate::cpu::role::Capability;
use crate::cpu::role::Role::*;

/// Nehalem-EP; Nehalem-EX.
pub(super) const NEHALEM: Family = Family {
    capability: Capability::CountsOnlyLoadPlusAllDside,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.THREAD_P", 0x3c, C0_3),
        ev(LoadWalksCompleted, "DTLB_LOAD_MISSES.WALK_COMPLETED", 0x208, C0_3),
        ev(DsideWalksCombined, "DTLB_MISSES.WALK_COMPLETED", 0x249, C0_3),
        ev(PreciseLoad, "MEM_LOAD_RETIRED.DTLB_MISS", 0x80cb, C0_3),
        ev(PreciseStore, "MEM_STORE_RETIRED.DTLB_MISS", 0x10c, C0_3),
        ev(PreciseLoadAlt, "MEM_INST_RETIRED.LATENCY_ABOVE_THRESHOLD_4", 0x100b, C3).min_latency(4).address(),
    ],
};

/// Westmere-EP; Westmere-EP; Westmere-EX.
pub(super) const WESTMERE: Family = Family {
    capability: Capability::LoadCyclesPlusAllDsideCycles,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.THREAD_P", 0x3c, C0_3),
        ev(LoadWalkCycles, "DTLB_LOAD_MISSES.WALK_CYCLES", 0x408, C0_3),
        ev(DsideWalkCyclesCombined, "DTLB_MISSES.WALK_CYCLES", 0x449, C0_3),
        ev(LoadWalksCompleted, "DTLB_LOAD_MISSES.WALK_COMPLETED", 0x208, C0_3),
        ev(DsideWalksCombined, "DTLB_MISSES.WALK_COMPLETED", 0x249, C0_3),
        ev(PreciseLoad, "MEM_LOAD_RETIRED.DTLB_MISS", 0x80cb, C0_3),
        ev(PreciseStore, "MEM_STORE_RETIRED.DTLB_MISS", 0x10c, C0_3),
        ev(PreciseLoadAlt, "MEM_INST_RETIRED.LATENCY_ABOVE_THRESHOLD_4", 0x100b, C3).min_latency(4).address(),
        ev(EptWalk, "EPT.WALK_CYCLES", 0x104f, C0_3),
    ],
};

/// Sandy Bridge; Sandy Bridge-EP.
pub(super) const SANDY_BRIDGE: Family = Family {
    capability: Capability::TrueCyclesLoadStoreSeparate,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.THREAD_P", 0x3c, C0_3),
        ev(LoadWalkCycles, "DTLB_LOAD_MISSES.WALK_DURATION", 0x408, C0_3),
        ev(StoreWalkCycles, "DTLB_STORE_MISSES.WALK_DURATION", 0x449, C0_3),
        ev(LoadWalksCompleted, "DTLB_LOAD_MISSES.WALK_COMPLETED", 0x208, C0_3),
        ev(StoreWalksCompleted, "DTLB_STORE_MISSES.WALK_COMPLETED", 0x249, C0_3),
        ev(PreciseLoad, "MEM_UOPS_RETIRED.STLB_MISS_LOADS", 0x11d0, C0_3),
        ev(PreciseStore, "MEM_UOPS_RETIRED.STLB_MISS_STORES", 0x12d0, C0_3),
        ev(PreciseLoadAlt, "MEM_TRANS_RETIRED.LOAD_LATENCY_GT_4", 0x1cd, C3).min_latency(4).filtered(StlbMiss),
        ev(PreciseStoreAlt, "MEM_TRANS_RETIRED.PRECISE_STORE", 0x2cd, C3).filtered(StlbMiss),
        ev(EptWalk, "EPT.WALK_CYCLES", 0x104f, C0_3),
        ev(CyclesCoreScope, "CPU_CLK_UNHALTED.THREAD_P_ANY", 0x20003c, C0_3),
    ],
};

/// Ivy Bridge; Ivy Bridge-EP.
pub(super) const IVY_BRIDGE: Family = Family {
    capability: Capability::TrueCyclesLoadStoreSeparate,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.THREAD_P", 0x3c, C0_3),
        ev(LoadWalkCycles, "DTLB_LOAD_MISSES.WALK_DURATION", 0x8408, C0_3),
        ev(StoreWalkCycles, "DTLB_STORE_MISSES.WALK_DURATION", 0x449, C0_3),
        ev(LoadWalksCompleted, "DTLB_LOAD_MISSES.WALK_COMPLETED", 0x8208, C0_3),
        ev(StoreWalksCompleted, "DTLB_STORE_MISSES.WALK_COMPLETED", 0x249, C0_3),
        ev(PreciseLoad, "MEM_UOPS_RETIRED.STLB_MISS_LOADS", 0x11d0, C0_3),
        ev(PreciseStore, "MEM_UOPS_RETIRED.STLB_MISS_STORES", 0x12d0, C0_3),
        ev(PreciseLoadAlt, "MEM_TRANS_RETIRED.LOAD_LATENCY_GT_4", 0x1cd, C3).min_latency(4).filtered(StlbMiss),
        ev(PreciseStoreAlt, "MEM_TRANS_RETIRED.PRECISE_STORE", 0x2cd, C3).filtered(StlbMiss),
        ev(EptWalk, "EPT.WALK_CYCLES", 0x104f, C0_3),
        ev(CyclesCoreScope, "CPU_CLK_UNHALTED.THREAD_P_ANY", 0x20003c, C0_3),
    ],
};

/// Haswell; Haswell-X.
pub(super) const HASWELL: Family = Family {
    capability: Capability::TrueCyclesLoadStoreSeparate,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.THREAD_P", 0x3c, C0_3),
        ev(LoadWalkCycles, "DTLB_LOAD_MISSES.WALK_DURATION", 0x1008, C0_3),
        ev(StoreWalkCycles, "DTLB_STORE_MISSES.WALK_DURATION", 0x1049, C0_3),
        ev(LoadWalksCompleted, "DTLB_LOAD_MISSES.WALK_COMPLETED", 0xe08, C0_3),
        ev(StoreWalksCompleted, "DTLB_STORE_MISSES.WALK_COMPLETED", 0xe49, C0_3),
        ev(PreciseLoad, "MEM_UOPS_RETIRED.STLB_MISS_LOADS", 0x11d0, C0_3).address().errata("HSD29, HSM30"),
        ev(PreciseStore, "MEM_UOPS_RETIRED.STLB_MISS_STORES", 0x12d0, C0_3).address().errata("HSD29, HSM30"),
        ev(PreciseLoadAlt, "MEM_TRANS_RETIRED.LOAD_LATENCY_GT_4", 0x1cd, C3).min_latency(4).filtered(StlbMiss).errata("HSD76, HSD25, HSM26"),
        ev(EptWalk, "EPT.WALK_CYCLES", 0x104f, C0_3),
        ev(CyclesCoreScope, "CPU_CLK_UNHALTED.THREAD_P_ANY", 0x20003c, C0_3),
    ],
};

/// Broadwell; Broadwell-DE; Broadwell-X.
pub(super) const BROADWELL: Family = Family {
    capability: Capability::TrueCyclesLoadStoreSeparate,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.THREAD_P", 0x3c, C0_3),
        ev(LoadWalkCycles, "DTLB_LOAD_MISSES.WALK_DURATION:c1", 0x1001008, C0_3).errata("BDM69"),
        ev(StoreWalkCycles, "DTLB_STORE_MISSES.WALK_DURATION:c1", 0x1001049, C0_3).errata("BDM69"),
        ev(LoadWalkPending, "DTLB_LOAD_MISSES.WALK_DURATION", 0x1008, C0_3).errata("BDM69"),
        ev(StoreWalkPending, "DTLB_STORE_MISSES.WALK_DURATION", 0x1049, C0_3).errata("BDM69"),
        ev(LoadWalksCompleted, "DTLB_LOAD_MISSES.WALK_COMPLETED", 0xe08, C0_3).errata("BDM69"),
        ev(StoreWalksCompleted, "DTLB_STORE_MISSES.WALK_COMPLETED", 0xe49, C0_3).errata("BDM69"),
        ev(PreciseLoad, "MEM_UOPS_RETIRED.STLB_MISS_LOADS", 0x11d0, C0_3).address(),
        ev(PreciseStore, "MEM_UOPS_RETIRED.STLB_MISS_STORES", 0x12d0, C0_3).address(),
        ev(PreciseLoadAlt, "MEM_TRANS_RETIRED.LOAD_LATENCY_GT_4", 0x1cd, C3).min_latency(4).filtered(StlbMiss).errata("BDM100, BDM35"),
        ev(EptWalk, "EPT.WALK_CYCLES", 0x104f, C0_3),
        ev(CyclesCoreScope, "CPU_CLK_UNHALTED.THREAD_P_ANY", 0x20003c, C0_3),
    ],
};

/// Skylake client; Skylake-X; Cascade Lake-X / Cooper Lake-X.
pub(super) const SKYLAKE: Family = Family {
    capability: Capability::TrueCyclesLoadStoreSeparate,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.THREAD_P", 0x3c, C0_3),
        ev(LoadWalkCycles, "DTLB_LOAD_MISSES.WALK_ACTIVE", 0x1001008, C0_3),
        ev(StoreWalkCycles, "DTLB_STORE_MISSES.WALK_ACTIVE", 0x1001049, C0_3),
        ev(LoadWalkPending, "DTLB_LOAD_MISSES.WALK_PENDING", 0x1008, C0_3),
        ev(StoreWalkPending, "DTLB_STORE_MISSES.WALK_PENDING", 0x1049, C0_3),
        ev(LoadWalksCompleted, "DTLB_LOAD_MISSES.WALK_COMPLETED", 0xe08, C0_3),
        ev(StoreWalksCompleted, "DTLB_STORE_MISSES.WALK_COMPLETED", 0xe49, C0_3),
        ev(PreciseLoad, "MEM_INST_RETIRED.STLB_MISS_LOADS", 0x11d0, C0_3).address(),
        ev(PreciseStore, "MEM_INST_RETIRED.STLB_MISS_STORES", 0x12d0, C0_3).address(),
        ev(PreciseLoadAlt, "MEM_TRANS_RETIRED.LOAD_LATENCY_GT_4", 0x1cd, C0_3).min_latency(4).filtered(StlbMiss),
        ev(EptWalk, "EPT.WALK_PENDING", 0x104f, C0_3),
        ev(CyclesCoreScope, "CPU_CLK_UNHALTED.THREAD_P_ANY", 0x20003c, C0_3),
    ],
};

/// Ice Lake; Ice Lake-X; Tiger Lake; Rocket Lake.
pub(super) const ICE_LAKE: Family = Family {
    capability: Capability::TrueCyclesLoadStoreSeparate,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.THREAD_P", 0x3c, C0_7),
        ev(LoadWalkCycles, "DTLB_LOAD_MISSES.WALK_ACTIVE", 0x1001008, C0_3),
        ev(StoreWalkCycles, "DTLB_STORE_MISSES.WALK_ACTIVE", 0x1001049, C0_3),
        ev(LoadWalkPending, "DTLB_LOAD_MISSES.WALK_PENDING", 0x1008, C0_3),
        ev(StoreWalkPending, "DTLB_STORE_MISSES.WALK_PENDING", 0x1049, C0_3),
        ev(LoadWalksCompleted, "DTLB_LOAD_MISSES.WALK_COMPLETED", 0xe08, C0_3),
        ev(StoreWalksCompleted, "DTLB_STORE_MISSES.WALK_COMPLETED", 0xe49, C0_3),
        ev(PreciseLoad, "MEM_INST_RETIRED.STLB_MISS_LOADS", 0x11d0, C0_3).address(),
        ev(PreciseStore, "MEM_INST_RETIRED.STLB_MISS_STORES", 0x12d0, C0_3).address(),
        ev(PreciseLoadAlt, "MEM_TRANS_RETIRED.LOAD_LATENCY_GT_4", 0x1cd, C0_7).min_latency(4).filtered(StlbMiss),
        ev(CyclesCoreScope, "CPU_CLK_UNHALTED.DISTRIBUTED", 0x2ec, C0_7),
    ],
};

/// Alder Lake / Raptor Lake P-core; Sapphire Rapids; Emerald Rapids; Granite Rapids; Meteor Lake P-core.
pub(super) const GOLDEN_COVE: Family = Family {
    capability: Capability::TrueCyclesLoadStoreSeparate,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.THREAD_P", 0x3c, C0_7),
        ev(LoadWalkCycles, "DTLB_LOAD_MISSES.WALK_ACTIVE", 0x1001012, C0_3),
        ev(StoreWalkCycles, "DTLB_STORE_MISSES.WALK_ACTIVE", 0x1001013, C0_3),
        ev(LoadWalkPending, "DTLB_LOAD_MISSES.WALK_PENDING", 0x1012, C0_3),
        ev(StoreWalkPending, "DTLB_STORE_MISSES.WALK_PENDING", 0x1013, C0_3),
        ev(LoadWalksCompleted, "DTLB_LOAD_MISSES.WALK_COMPLETED", 0xe12, C0_3),
        ev(StoreWalksCompleted, "DTLB_STORE_MISSES.WALK_COMPLETED", 0xe13, C0_3),
        ev(PreciseLoad, "MEM_INST_RETIRED.STLB_MISS_LOADS", 0x11d0, C0_3).address(),
        ev(PreciseStore, "MEM_INST_RETIRED.STLB_MISS_STORES", 0x12d0, C0_3).address(),
        ev(PreciseLoadAlt, "MEM_TRANS_RETIRED.LOAD_LATENCY_GT_4", 0x1cd, C1_7).min_latency(4).filtered(StlbMiss),
        ev(PreciseStoreAlt, "MEM_TRANS_RETIRED.STORE_SAMPLE", 0x2cd, C0).filtered(StlbMiss),
        ev(CyclesCoreScope, "CPU_CLK_UNHALTED.DISTRIBUTED", 0x2ec, C0_7),
    ],
};

/// Alder Lake / Raptor Lake E-core.
pub(super) const GRACEMONT: Family = Family {
    capability: Capability::CountsOnlyLoadStoreSeparate,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.THREAD_P", 0x3c, C0_5),
        ev(LoadWalksCompleted, "DTLB_LOAD_MISSES.WALK_COMPLETED", 0xe08, C0_5),
        ev(StoreWalksCompleted, "DTLB_STORE_MISSES.WALK_COMPLETED", 0xe49, C0_5),
        ev(PreciseLoad, "MEM_UOPS_RETIRED.STLB_MISS_LOADS", 0x11d0, C0_5).address(),
        ev(PreciseStore, "MEM_UOPS_RETIRED.STLB_MISS_STORES", 0x12d0, C0_5).address(),
        ev(PreciseLoadAlt, "MEM_UOPS_RETIRED.LOAD_LATENCY_GT_4", 0x5d0, C0_1).min_latency(4).filtered(StlbMiss),
        ev(PreciseStoreAlt, "MEM_UOPS_RETIRED.STORE_LATENCY", 0x6d0, C0_5).filtered(StlbMiss),
    ],
};

/// Sierra Forest; Grand Ridge; Meteor Lake E-core; Lunar Lake E-core; Arrow Lake LP E-core; Arrow Lake E-core.
pub(super) const CRESTMONT: Family = Family {
    capability: Capability::OccupancyOnlyLoadStoreSeparate,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.THREAD_P", 0x3c, C0_7),
        ev(LoadWalkPending, "DTLB_LOAD_MISSES.WALK_PENDING", 0x1008, C0_7),
        ev(StoreWalkPending, "DTLB_STORE_MISSES.WALK_PENDING", 0x1049, C0_7),
        ev(LoadWalksCompleted, "DTLB_LOAD_MISSES.WALK_COMPLETED", 0xe08, C0_7),
        ev(StoreWalksCompleted, "DTLB_STORE_MISSES.WALK_COMPLETED", 0xe49, C0_7),
        ev(PreciseLoad, "MEM_UOPS_RETIRED.STLB_MISS_LOADS", 0x11d0, C0_7).address(),
        ev(PreciseStore, "MEM_UOPS_RETIRED.STLB_MISS_STORES", 0x12d0, C0_7).address(),
        ev(PreciseLoadAlt, "MEM_UOPS_RETIRED.LOAD_LATENCY_GT_4", 0x5d0, C0_1).min_latency(4).filtered(StlbMiss),
        ev(PreciseStoreAlt, "MEM_UOPS_RETIRED.STORE_LATENCY", 0x6d0, C0_7).filtered(StlbMiss),
    ],
};

/// Clearwater Forest; Panther Lake E-core.
pub(super) const DARKMONT: Family = Family {
    capability: Capability::CountsOnlyLoadStoreSeparate,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.THREAD_P", 0x3c, C0_7),
        ev(LoadWalksCompleted, "DTLB_LOAD_MISSES.WALK_COMPLETED", 0xe08, C0_7),
        ev(StoreWalksCompleted, "DTLB_STORE_MISSES.WALK_COMPLETED", 0xe49, C0_7),
        ev(PreciseLoad, "MEM_UOPS_RETIRED.STLB_MISS_LOADS", 0x11d0, C0_7),
        ev(PreciseStore, "MEM_UOPS_RETIRED.STLB_MISS_STORES", 0x12d0, C0_7),
        ev(PreciseLoadAlt, "MEM_UOPS_RETIRED.LOAD_LATENCY_GT_4", 0x5d0, C0_7).min_latency(4).filtered(StlbMiss),
        ev(PreciseStoreAlt, "MEM_UOPS_RETIRED.STORE_LATENCY", 0x6d0, C0_7).filtered(StlbMiss),
    ],
};

/// Lunar Lake P-core; Arrow Lake P-core; Panther Lake P-core.
pub(super) const LION_COVE: Family = Family {
    capability: Capability::TrueCyclesLoadStoreSeparate,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.THREAD_P", 0x3c, C0_9),
        ev(LoadWalkCycles, "DTLB_LOAD_MISSES.WALK_ACTIVE", 0x1001012, C0_9),
        ev(StoreWalkCycles, "DTLB_STORE_MISSES.WALK_ACTIVE", 0x1001013, C0_9),
        ev(LoadWalkPending, "DTLB_LOAD_MISSES.WALK_PENDING", 0x1012, C0_9),
        ev(StoreWalkPending, "DTLB_STORE_MISSES.WALK_PENDING", 0x1013, C0_9),
        ev(LoadWalksCompleted, "DTLB_LOAD_MISSES.WALK_COMPLETED", 0xe12, C0_9),
        ev(StoreWalksCompleted, "DTLB_STORE_MISSES.WALK_COMPLETED", 0xe13, C0_9),
        ev(PreciseLoad, "MEM_INST_RETIRED.STLB_MISS_LOADS", 0x11d0, C0_3).address(),
        ev(PreciseStore, "MEM_INST_RETIRED.STLB_MISS_STORES", 0x12d0, C0_3).address(),
        ev(PreciseLoadAlt, "MEM_TRANS_RETIRED.LOAD_LATENCY_GT_4", 0x1cd, C2_9).min_latency(4).filtered(StlbMiss),
        ev(PreciseStoreAlt, "MEM_TRANS_RETIRED.STORE_SAMPLE", 0x2cd, C0_1).filtered(StlbMiss),
    ],
};

/// Nova Lake E-core.
pub(super) const ARCTIC_WOLF: Family = Family {
    capability: Capability::OccupancyOnlyLoadStoreSeparate,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.THREAD_P", 0x3c, C0_7),
        ev(LoadWalkPending, "DTLB_LOAD_MISSES.WALK_PENDING", 0x1008, C0_7),
        ev(StoreWalkPending, "DTLB_STORE_MISSES.WALK_PENDING", 0x1049, C0_7),
        sum(LoadWalksCompleted, "SUM(DTLB_LOAD_MISSES.WALK_COMPLETED_4K)", &[("DTLB_LOAD_MISSES.WALK_COMPLETED_4K", 0x208)], C0_7).incomplete(),
        sum(StoreWalksCompleted, "SUM(DTLB_STORE_MISSES.WALK_COMPLETED_4K)", &[("DTLB_STORE_MISSES.WALK_COMPLETED_4K", 0x249)], C0_7).incomplete(),
    ],
};

/// Nova Lake P-core.
pub(super) const COYOTE_COVE: Family = Family {
    capability: Capability::TrueCyclesLoadStoreSeparate,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.THREAD_P", 0x3c, C0_7),
        ev(LoadWalkCycles, "DTLB_LOAD_MISSES.WALK_ACTIVE", 0x1001012, C0_7),
        ev(StoreWalkCycles, "DTLB_STORE_MISSES.WALK_ACTIVE", 0x1001013, C0_7),
        ev(LoadWalkPending, "DTLB_LOAD_MISSES.WALK_PENDING", 0x1012, C0_7),
        ev(StoreWalkPending, "DTLB_STORE_MISSES.WALK_PENDING", 0x1013, C0_7),
        ev(LoadWalksCompleted, "DTLB_LOAD_MISSES.WALK_COMPLETED", 0xe12, C0_7),
        ev(StoreWalksCompleted, "DTLB_STORE_MISSES.WALK_COMPLETED", 0xe13, C0_7),
        ev(PreciseLoad, "MEM_INST_RETIRED.STLB_MISS_LOADS", 0x11d0, C0_3).address(),
        ev(PreciseStore, "MEM_INST_RETIRED.STLB_MISS_STORES", 0x12d0, C0_3).address(),
        ev(PreciseLoadAlt, "MEM_TRANS_RETIRED.LOAD_LATENCY_GT_4", 0x1cd, C2_7).min_latency(4).filtered(StlbMiss),
        ev(PreciseStoreAlt, "MEM_TRANS_RETIRED.STORE_SAMPLE", 0x2cd, C0_1).filtered(StlbMiss),
    ],
};

/// Knights Landing / Knights Mill.
pub(super) const KNIGHTS_LANDING: Family = Family {
    capability: Capability::CombinedDsideCyclesOnly,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.THREAD_P", 0x3c, C0_1),
        ev(DsideWalkCyclesCombined, "PAGE_WALKS.D_SIDE_CYCLES", 0x105, C0_1),
        ev(DsideWalksCombined, "PAGE_WALKS.D_SIDE_WALKS", 0x40105, C0_1),
        ev(PreciseLoad, "MEM_UOPS_RETIRED.DTLB_MISS_LOADS", 0x804, C0_1).address(),
    ],
};

/// Bonnell.
pub(super) const BONNELL: Family = Family {
    capability: Capability::CombinedDsideCyclesOnly,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.CORE_P", 0x3c, C0_1),
        ev(DsideWalkCyclesCombined, "PAGE_WALKS.D_SIDE_CYCLES", 0x10c, C0_1),
        ev(DsideWalksCombined, "PAGE_WALKS.D_SIDE_WALKS", 0x10c, C0_1),
        ev(PreciseLoad, "MEM_LOAD_RETIRED.DTLB_MISS", 0x4cb, C0_1),
    ],
};

/// Silvermont / Airmont.
pub(super) const SILVERMONT: Family = Family {
    capability: Capability::CombinedDsideCyclesOnly,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.CORE_P", 0x3c, C0_1),
        ev(DsideWalkCyclesCombined, "PAGE_WALKS.D_SIDE_CYCLES", 0x105, C0_1),
        ev(DsideWalksCombined, "PAGE_WALKS.D_SIDE_WALKS", 0x40105, C0_1),
        ev(PreciseLoad, "MEM_UOPS_RETIRED.DTLB_MISS_LOADS", 0x804, C0_1),
    ],
};

/// Goldmont.
pub(super) const GOLDMONT: Family = Family {
    capability: Capability::CombinedDsideCyclesOnly,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.CORE_P", 0x3c, C0_3),
        ev(DsideWalkCyclesCombined, "PAGE_WALKS.D_SIDE_CYCLES", 0x105, C0_3),
        ev(PreciseLoad, "MEM_UOPS_RETIRED.DTLB_MISS_LOADS", 0x11d0, C0_3).address(),
        ev(PreciseStore, "MEM_UOPS_RETIRED.DTLB_MISS_STORES", 0x12d0, C0_3).address(),
    ],
};

/// Goldmont Plus.
pub(super) const GOLDMONT_PLUS: Family = Family {
    capability: Capability::OccupancyOnlyLoadStoreSeparate,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.CORE_P", 0x3c, C0_3),
        ev(LoadWalkPending, "DTLB_LOAD_MISSES.WALK_PENDING", 0x1008, C0_3),
        ev(StoreWalkPending, "DTLB_STORE_MISSES.WALK_PENDING", 0x1049, C0_3),
        sum(LoadWalksCompleted, "SUM(DTLB_LOAD_MISSES.WALK_COMPLETED_4K, DTLB_LOAD_MISSES.WALK_COMPLETED_2M_4M, DTLB_LOAD_MISSES.WALK_COMPLETED_1GB)", &[("DTLB_LOAD_MISSES.WALK_COMPLETED_4K", 0x208), ("DTLB_LOAD_MISSES.WALK_COMPLETED_2M_4M", 0x408), ("DTLB_LOAD_MISSES.WALK_COMPLETED_1GB", 0x808)], C0_3),
        sum(StoreWalksCompleted, "SUM(DTLB_STORE_MISSES.WALK_COMPLETED_4K, DTLB_STORE_MISSES.WALK_COMPLETED_2M_4M, DTLB_STORE_MISSES.WALK_COMPLETED_1GB)", &[("DTLB_STORE_MISSES.WALK_COMPLETED_4K", 0x249), ("DTLB_STORE_MISSES.WALK_COMPLETED_2M_4M", 0x449), ("DTLB_STORE_MISSES.WALK_COMPLETED_1GB", 0x849)], C0_3),
        ev(PreciseLoad, "MEM_UOPS_RETIRED.DTLB_MISS_LOADS", 0x11d0, C0_3).address(),
        ev(PreciseStore, "MEM_UOPS_RETIRED.DTLB_MISS_STORES", 0x12d0, C0_3).address(),
        ev(EptWalk, "EPT.WALK_PENDING", 0x104f, C0_3),
    ],
};

/// Elkhart Lake; Snow Ridge.
pub(super) const TREMONT: Family = Family {
    capability: Capability::OccupancyOnlyLoadStoreSeparate,
    events: &[
        ev(Cycles, "CPU_CLK_UNHALTED.CORE_P", 0x3c, C0_3),
        ev(LoadWalkPending, "DTLB_LOAD_MISSES.WALK_PENDING", 0x1008, C0_3),
        ev(StoreWalkPending, "DTLB_STORE_MISSES.WALK_PENDING", 0x1049, C0_3),
        ev(LoadWalksCompleted, "DTLB_LOAD_MISSES.WALK_COMPLETED", 0xe08, C0_3),
        ev(StoreWalksCompleted, "DTLB_STORE_MISSES.WALK_COMPLETED", 0xe49, C0_3),
        ev(PreciseLoad, "MEM_UOPS_RETIRED.DTLB_MISS_LOADS", 0x11d0, C0_3).address(),
        ev(PreciseStore, "MEM_UOPS_RETIRED.DTLB_MISS_STORES", 0x12d0, C0_3).address(),
        ev(EptWalk, "EPT.WALK_PENDING", 0x104f, C0_3),
    ],
};
