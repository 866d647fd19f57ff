//! Events of AMD's, Arm's and RISC-V cores, one family per set of encodings.

use super::*;
use crate::cpu::role::Capability;
use crate::cpu::role::Role::*;

/// AMD's instruction-based sampling gives every sampled micro-operation's address; loads and stores with a miss in
/// both TLB levels are picked out of the samples.
const IBS_LOAD: Event =
    other_pmu(PreciseLoad, "IBS Op (load)", "ibs_op/cnt_ctl=1/").filtered(Filter::IbsDtlbMiss);
const IBS_STORE: Event =
    other_pmu(PreciseStore, "IBS Op (store)", "ibs_op/cnt_ctl=1/").filtered(Filter::IbsDtlbMiss);

/// Arm's statistical profiling; bit 5 of the event filter keeps the operations that needed a TLB walk.
const SPE_LOAD: Event = other_pmu(
    PreciseLoad,
    "SPE (load, TLB walk)",
    "arm_spe_0/load_filter=1,event_filter=0x20,ts_enable=1/",
)
.filtered(Filter::SpeTlbWalk);
const SPE_STORE: Event = other_pmu(
    PreciseStore,
    "SPE (store, TLB walk)",
    "arm_spe_0/store_filter=1,event_filter=0x20,ts_enable=1/",
)
.filtered(Filter::SpeTlbWalk);

/// Zen 1 / Zen+.
pub(super) const ZEN_1: Family = Family {
    capability: Capability::CountsOnlyCombined,
    events: &[
        ev(Cycles, "ls_not_halted_cyc", 0x76, NOT_STATED),
        ev(DsideWalksCombined, "l2_dtlb_misses (0x45/0xf0 in recommended.json) = sum of ls_l1_d_tlb_miss.tlb_reload_*_l2_miss", 0xf045, NOT_STATED),
        IBS_LOAD,
        IBS_STORE,
        ev(DsideTableWalks, "ls_tablewalker.dside", 0x346, NOT_STATED),
    ],
};

/// Zen 2.
pub(super) const ZEN_2: Family = Family {
    capability: Capability::CountsOnlyCombined,
    events: &[
        ev(Cycles, "ls_not_halted_cyc", 0x76, NOT_STATED),
        ev(DsideWalksCombined, "ls_l1_d_tlb_miss.tlb_reload_*_l2_miss (0x10|0x20|0x40|0x80)", 0xf045, NOT_STATED),
        IBS_LOAD,
        IBS_STORE,
        ev(DsideTableWalks, "ls_tablewalker.dside", 0x346, NOT_STATED),
    ],
};

/// Zen 3.
pub(super) const ZEN_3: Family = Family {
    capability: Capability::CountsOnlyCombined,
    events: &[
        ev(Cycles, "ls_not_halted_cyc", 0x76, NOT_STATED),
        ev(DsideWalksCombined, "l2_dtlb_misses (0x45/0xf0 in recommended.json)", 0xf045, NOT_STATED),
        IBS_LOAD,
        IBS_STORE,
        ev(DsideTableWalks, "ls_tablewalker.dside", 0x346, NOT_STATED),
    ],
};

/// Zen 4; Zen 5.
pub(super) const ZEN_4: Family = Family {
    capability: Capability::CountsOnlyCombined,
    events: &[
        ev(Cycles, "ls_not_halted_cyc", 0x76, NOT_STATED),
        ev(DsideWalksCombined, "ls_l1_d_tlb_miss.all_l2_miss", 0xf045, NOT_STATED),
        IBS_LOAD,
        IBS_STORE,
    ],
};

/// Zen 6.
pub(super) const ZEN_6: Family = Family {
    capability: Capability::CountsOnlyCombined,
    events: &[
        ev(Cycles, "ls_not_halted_cyc", 0x76, NOT_STATED),
        ev(DsideWalksCombined, "ls_l1_d_tlb_miss.l2_miss_all", 0xf045, NOT_STATED),
        IBS_LOAD,
        IBS_STORE,
    ],
};

/// Neoverse N1; Neoverse V1; Neoverse N2; Neoverse V2.
pub(super) const NEOVERSE_N1: Family = Family {
    capability: Capability::CountsOnlyCombined,
    events: &[
        ev(Cycles, "CPU_CYCLES", 0x11, NOT_STATED),
        ev(LoadWalksCompleted, "L2D_TLB_REFILL_RD", 0x5c, NOT_STATED),
        ev(StoreWalksCompleted, "L2D_TLB_REFILL_WR", 0x5d, NOT_STATED),
        ev(DsideWalksCombined, "DTLB_WALK", 0x34, NOT_STATED),
        SPE_LOAD,
        SPE_STORE,
        ev(ItlbWalk, "ITLB_WALK", 0x35, NOT_STATED),
        ev(L1dTlbRefillRd, "L1D_TLB_REFILL_RD", 0x4c, NOT_STATED),
        ev(L1dTlbRefillWr, "L1D_TLB_REFILL_WR", 0x4d, NOT_STATED),
    ],
};

/// Neoverse N3.
pub(super) const NEOVERSE_N3: Family = Family {
    capability: Capability::CombinedDsideOccupancyOnly,
    events: &[
        ev(Cycles, "CPU_CYCLES", 0x11, NOT_STATED),
        ev(DsideWalkCyclesCombined, "DTLB_WALK_PERCYC", 0x8128, NOT_STATED).occupancy(),
        ev(DsideWalksCombined, "DTLB_WALK", 0x34, NOT_STATED),
        SPE_LOAD,
        SPE_STORE,
        ev(ItlbWalk, "ITLB_WALK", 0x35, NOT_STATED),
        ev(StallBackendTlb, "STALL_BACKEND_TLB", 0x8167, NOT_STATED),
    ],
};

/// Neoverse V3; Neoverse V3AE.
pub(super) const NEOVERSE_V3: Family = Family {
    capability: Capability::CombinedDsideOccupancyOnly,
    events: &[
        ev(Cycles, "CPU_CYCLES", 0x11, NOT_STATED),
        ev(DsideWalkCyclesCombined, "DTLB_WALK_PERCYC", 0x8128, NOT_STATED).occupancy(),
        ev(LoadWalksCompleted, "L2D_TLB_REFILL_RD", 0x5c, NOT_STATED),
        ev(StoreWalksCompleted, "L2D_TLB_REFILL_WR", 0x5d, NOT_STATED),
        ev(DsideWalksCombined, "DTLB_WALK", 0x34, NOT_STATED),
        SPE_LOAD,
        SPE_STORE,
        ev(ItlbWalk, "ITLB_WALK", 0x35, NOT_STATED),
        ev(L1dTlbRefillRd, "L1D_TLB_REFILL_RD", 0x4c, NOT_STATED),
        ev(L1dTlbRefillWr, "L1D_TLB_REFILL_WR", 0x4d, NOT_STATED),
        ev(StallBackendTlb, "STALL_BACKEND_TLB", 0x8167, NOT_STATED),
    ],
};

/// generic.
pub(super) const RISCV_SBI: Family = Family {
    capability: Capability::CountsOnlyLoadStoreSeparate,
    events: &[
        generic(Cycles, "riscv_cycles", PERF_TYPE_HARDWARE, 0),
        generic(LoadWalksCompleted, "dTLB-load-misses", PERF_TYPE_HW_CACHE, 0x10003),
        generic(StoreWalksCompleted, "dTLB-store-misses", PERF_TYPE_HW_CACHE, 0x10103),
    ],
};

/// SiFive P550.
pub(super) const SIFIVE_P550: Family = Family {
    capability: Capability::CountsOnlyCombined,
    events: &[
        generic(Cycles, "riscv_cycles", PERF_TYPE_HARDWARE, 0),
        ev(DsideWalksCombined, "UTLB_MISS", 0x2002, NOT_STATED),
        ev(DtlbMiss, "DTLB_MISS", 0x1002, NOT_STATED),
    ],
};
