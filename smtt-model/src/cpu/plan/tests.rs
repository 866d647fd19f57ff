//! One test per property of the hardware that changes what may be said.

use super::*;
use crate::cpu::{CpuId, Measured, MeasuredCore, OverrideError, Overrides, describe};

fn on(cpu: &str) -> Measured {
    measured(&cpu.parse().expect(cpu), &[]).expect(cpu)
}

fn core(cpu: &str) -> MeasuredCore {
    let mut measured = on(cpu);
    assert_eq!(measured.cores.len(), 1, "{cpu} has one core type");
    measured.cores.remove(0)
}

fn measured(identity: &CpuId, overrides: &[(Role, &str)]) -> Result<Measured, OverrideError> {
    describe(
        identity,
        &Overrides(
            overrides
                .iter()
                .map(|&(role, text)| (role, text.to_owned()))
                .collect(),
        ),
    )
}

fn figures(core: &MeasuredCore) -> Vec<(FigureName, Option<Ratio>)> {
    core.plan
        .figures
        .iter()
        .map(|figure| (figure.name, figure.ratio))
        .collect()
}

fn groups(core: &MeasuredCore, pass: usize, purpose: Purpose) -> Vec<Vec<Role>> {
    let groups = core.plan.passes[pass]
        .groups
        .iter()
        .filter(|group| group.purpose == purpose);
    groups.map(|group| group.roles.clone()).collect()
}

fn warns(core: &MeasuredCore, code: CaveatCode) -> bool {
    core.plan.caveats.iter().any(|caveat| caveat.code == code)
}

#[test]
fn sapphire_rapids_gives_two_true_fractions_from_one_group() {
    use FigureName::*;
    use Role::*;
    let core = core("GenuineIntel-6-8F");
    let fraction = Some(Ratio::Fraction);
    let expected = [
        (ReadWalkCycles, fraction),
        (WriteWalkCycles, fraction),
        (DtlbReadMisses, None),
        (DtlbWriteMisses, None),
    ];
    assert_eq!(figures(&core), expected);
    let group = [Cycles, LoadWalkCycles, StoreWalkCycles];
    assert_eq!(groups(&core, 0, Purpose::Figures), [group]);
    assert_eq!(
        groups(&core, 0, Purpose::Addresses),
        [[PreciseLoad], [PreciseStore]]
    );
    let counts = [LoadWalksCompleted, StoreWalksCompleted];
    assert_eq!(groups(&core, 1, Purpose::Figures), [counts]);
    assert!(warns(&core, CaveatCode::SumIsUpperBound), "four walkers");
    assert!(
        !warns(
            &self::core("GenuineIntel-6-3F"),
            CaveatCode::SumIsUpperBound
        ),
        "Haswell has one walker"
    );
}

#[test]
fn westmere_writes_are_what_is_left_of_all_walks_and_never_negative() {
    use Role::*;
    let core = core("GenuineIntel-6-2C");
    let write = core
        .plan
        .figures
        .iter()
        .find(|figure| figure.name == FigureName::WriteWalkCycles)
        .expect("writes");
    assert_eq!(
        write.formula,
        Formula::Difference {
            of: DsideWalkCyclesCombined,
            less: LoadWalkCycles
        }
    );
    assert_eq!(write.ratio, Some(Ratio::Fraction));
    let group = &groups(&core, 0, Purpose::Figures)[0];
    for role in [Cycles, LoadWalkCycles, DsideWalkCyclesCombined] {
        assert!(
            group.contains(&role),
            "{role} is in the one group: {group:?}"
        );
    }
    let reading = |load, together| {
        write.formula.value(|role| match role {
            LoadWalkCycles => load,
            DsideWalkCyclesCombined => together,
            _ => None,
        })
    };
    assert_eq!(reading(Some(300), Some(1000)), Some(700));
    assert_eq!(
        reading(Some(1001), Some(1000)),
        Some(0),
        "walks for reads that straddle the reading"
    );
    assert_eq!(
        reading(Some(1), None),
        None,
        "half a difference is no figure"
    );
    assert!(warns(&core, CaveatCode::WriteByDifference));
}

#[test]
fn pending_is_occupancy_and_never_a_fraction() {
    for cpu in [
        "GenuineIntel-6-AF",
        "GenuineIntel-6-B6",
        "GenuineIntel-6-86",
        "GenuineIntel-6-7A",
    ] {
        let core = core(cpu);
        assert!(
            figures(&core).contains(&(FigureName::ReadWalkOccupancy, Some(Ratio::Occupancy))),
            "{cpu}"
        );
        assert!(
            figures(&core).contains(&(FigureName::WriteWalkOccupancy, Some(Ratio::Occupancy))),
            "{cpu}"
        );
        assert!(
            !figures(&core)
                .iter()
                .any(|(_, ratio)| *ratio == Some(Ratio::Fraction)),
            "{cpu}"
        );
        assert!(warns(&core, CaveatCode::OccupancyNotFraction), "{cpu}");
    }
    assert_eq!(Ratio::Occupancy.value(250, 100, None), Some(2.5));
}

#[test]
fn combined_only_cores_give_one_figure() {
    use FigureName::*;
    for (cpu, name, ratio) in [
        ("GenuineIntel-6-4D", WalkCycles, Ratio::Fraction),
        ("GenuineIntel-6-5C", WalkCycles, Ratio::Fraction),
        ("GenuineIntel-6-57", WalkCycles, Ratio::Fraction),
        ("0x00000000410fd8e0", WalkOccupancy, Ratio::Occupancy),
        ("0x00000000410fd840", WalkOccupancy, Ratio::Occupancy),
    ] {
        let core = core(cpu);
        let ratios: Vec<_> = figures(&core)
            .into_iter()
            .filter(|(_, ratio)| ratio.is_some())
            .collect();
        assert_eq!(ratios, [(name, Some(ratio))], "{cpu} {}", core.uarch);
        assert!(warns(&core, CaveatCode::CombinedOnly), "{cpu}");
    }
}

#[test]
fn counts_only_cores_give_counts_and_ratios_that_are_called_estimates() {
    use FigureName::*;
    let estimated = Some(Ratio::Estimated);
    for (cpu, expected) in [
        (
            "GenuineIntel-6-1A",
            vec![(DtlbReadMisses, estimated), (DtlbWriteMisses, estimated)],
        ),
        (
            "GenuineIntel-6-DD",
            vec![(DtlbReadMisses, estimated), (DtlbWriteMisses, estimated)],
        ),
        (
            "riscv",
            vec![(DtlbReadMisses, estimated), (DtlbWriteMisses, estimated)],
        ),
        ("AuthenticAMD-26-2", vec![(DtlbMisses, estimated)]),
        ("sifive,p550", vec![(DtlbMisses, estimated)]),
        (
            "0x00000000410fd4f0",
            vec![
                (DtlbReadMisses, None),
                (DtlbWriteMisses, None),
                (DtlbMisses, estimated),
            ],
        ),
    ] {
        let core = core(cpu);
        assert_eq!(figures(&core), expected, "{cpu}");
        assert!(warns(&core, CaveatCode::CountsOnly), "{cpu}");
    }
    assert!(warns(
        &core("0x00000000410fd4f0"),
        CaveatCode::RefillsNotWalks
    ));
    assert_eq!(
        Ratio::Estimated.value(10, 1000, None),
        None,
        "no estimate without a calibrated cost"
    );
    assert_eq!(Ratio::Estimated.value(10, 1000, Some(30.0)), Some(0.3));
    assert_eq!(
        Ratio::Fraction.value(0, 0, None),
        None,
        "no cycles, no ratio"
    );
}

#[test]
fn groups_and_passes_respect_the_counters() {
    use Role::*;
    // Two general counters: cycles and one event at a time.
    let knl = core("GenuineIntel-6-57");
    assert_eq!(
        groups(&knl, 0, Purpose::Figures),
        [[Cycles, DsideWalkCyclesCombined]]
    );
    assert_eq!(groups(&knl, 1, Purpose::Addresses), [[PreciseLoad]]);
    assert_eq!(groups(&knl, 1, Purpose::Figures), [[DsideWalksCombined]]);
    assert!(warns(&knl, CaveatCode::SeveralPasses));
    // Four: the ratios and one sampled event, then the others.
    let skylake = core("GenuineIntel-6-55-4");
    assert_eq!(
        groups(&skylake, 0, Purpose::Figures),
        [[Cycles, LoadWalkCycles, StoreWalkCycles]]
    );
    assert_eq!(groups(&skylake, 0, Purpose::Addresses), [[PreciseLoad]]);
    assert_eq!(
        groups(&skylake, 1, Purpose::Figures),
        [[LoadWalksCompleted, StoreWalksCompleted]]
    );
    assert_eq!(groups(&skylake, 1, Purpose::Addresses), [[PreciseStore]]);
    // Ten: all at once.
    let lion_cove = &on("GenuineIntel-6-BD").cores[0];
    assert_eq!(lion_cove.plan.passes.len(), 1);
    assert!(!warns(lion_cove, CaveatCode::SeveralPasses));
    // Both of Sandy Bridge's address events need counter 3: never in one pass.
    let sandy_bridge = core("GenuineIntel-6-2D");
    let with = |role| {
        let passes = sandy_bridge.plan.passes.iter();
        passes
            .filter(|pass| pass.groups.iter().any(|group| group.roles == [role]))
            .count()
    };
    assert_eq!((with(PreciseLoadAlt), with(PreciseStoreAlt)), (1, 1));
    let both = |pass: &Pass| {
        [PreciseLoadAlt, PreciseStoreAlt]
            .iter()
            .all(|&role| pass.groups.iter().any(|group| group.roles == [role]))
    };
    assert!(!sandy_bridge.plan.passes.iter().any(both));
}

#[test]
fn no_event_is_counted_twice() {
    for cpu in [
        "GenuineIntel-6-2C",
        "GenuineIntel-6-3F",
        "GenuineIntel-6-55-4",
        "GenuineIntel-6-57",
    ] {
        let core = core(cpu);
        let mut seen = Vec::new();
        for role in core
            .plan
            .passes
            .iter()
            .flat_map(|pass| &pass.groups)
            .flat_map(|group| &group.roles)
        {
            assert!(!seen.contains(role), "{cpu}: {role} in two groups");
            seen.push(*role);
        }
    }
}

#[test]
fn every_ratio_has_its_readings_and_its_cycles_in_one_group_on_every_core() {
    for row in &crate::cpu::CORES {
        let cpu = match (row.cpus.first(), row.arm_part) {
            (_, Some(part)) => format!("{:#x}", 0x410f_0000 | u32::from(part) << 4),
            (Some(cpu), _) if row.uarch.starts_with("Zen") => cpu
                .split("-([")
                .next()
                .unwrap_or(cpu)
                .replace("-[[:xdigit:]]+", "-FF"),
            (Some(cpu), _) => cpu.replace("[01234]", "4").replace("[56789ABCDEF]", "7"),
            (None, _) if row.uarch.contains("P550") => "sifive,p550".to_owned(),
            (None, _) => "riscv".to_owned(),
        };
        let cpu = if cpu.matches('-').count() == 1 {
            format!("{cpu}-1")
        } else {
            cpu
        };
        for core in on(&cpu).cores {
            for figure in &core.plan.figures {
                let mut needed = figure.formula.roles();
                needed.extend(figure.ratio.map(|_| Role::Cycles));
                let together = core
                    .plan
                    .passes
                    .iter()
                    .flat_map(|pass| &pass.groups)
                    .any(|group| {
                        group.purpose == Purpose::Figures
                            && needed.iter().all(|role| group.roles.contains(role))
                    });
                assert!(
                    together,
                    "{cpu} {}: {figure} has no group with {needed:?}",
                    core.uarch
                );
            }
        }
    }
}

#[test]
fn events_that_leak_into_the_sibling_run_in_a_pass_of_their_own() {
    use Role::*;
    let haswell: CpuId = "GenuineIntel-6-3F".parse().expect("Haswell");
    for (hyper_threading, alone) in [(None, true), (Some(true), true), (Some(false), false)] {
        let identity = CpuId {
            hyper_threading,
            ..haswell.clone()
        };
        let core = measured(&identity, &[]).expect("Haswell").cores.remove(0);
        let of_its_own = |role| {
            core.plan
                .passes
                .iter()
                .any(|pass| pass.groups.len() == 1 && pass.groups[0].roles == [role])
        };
        assert_eq!(
            of_its_own(PreciseLoad) && of_its_own(PreciseStore),
            alone,
            "{hyper_threading:?}"
        );
        assert_eq!(
            warns(&core, CaveatCode::SeparatePass),
            alone,
            "{hyper_threading:?}"
        );
    }
    assert!(
        !warns(&core("GenuineIntel-6-4F"), CaveatCode::SeparatePass),
        "Broadwell is free of it"
    );
    assert!(
        !warns(&core("GenuineIntel-6-3E"), CaveatCode::SeparatePass),
        "Ivy Bridge's address events are 0xcd"
    );
}

#[test]
fn guests_of_skylake_and_cascade_lake_are_told_that_nested_walks_are_missing() {
    for (cpu, expected) in [
        ("GenuineIntel-6-55-4", true),
        ("GenuineIntel-6-55-7", true),
        ("GenuineIntel-6-6A", false),
    ] {
        let guest = CpuId {
            virtualised: Some(true),
            ..cpu.parse().expect(cpu)
        };
        let host = CpuId {
            virtualised: Some(false),
            ..guest.clone()
        };
        let told = |identity| {
            warns(
                &measured(identity, &[]).expect(cpu).cores[0],
                CaveatCode::NestedWalksExcluded,
            )
        };
        assert_eq!((told(&guest), told(&host)), (expected, false), "{cpu}");
    }
}

#[test]
fn hybrid_cpus_have_one_result_per_core_type() {
    let seen = |cpu: &str| -> Vec<(String, Capability)> {
        on(cpu)
            .cores
            .into_iter()
            .map(|core| (core.pmu, core.ratio_capability))
            .collect()
    };
    use Capability::*;
    let (true_cycles, occupancy) = (TrueCyclesLoadStoreSeparate, OccupancyOnlyLoadStoreSeparate);
    let expected = [
        ("cpu_core".to_owned(), true_cycles),
        ("cpu_atom".to_owned(), CountsOnlyLoadStoreSeparate),
    ];
    assert_eq!(seen("GenuineIntel-6-97"), expected);
    let expected = [
        ("cpu_lowpower", occupancy),
        ("cpu_core", true_cycles),
        ("cpu_atom", occupancy),
    ];
    assert_eq!(
        seen("GenuineIntel-6-C5"),
        expected.map(|(pmu, capability)| (pmu.to_owned(), capability))
    );
    assert_eq!(
        seen("GenuineIntel-6-BE"),
        [("cpu".to_owned(), CountsOnlyLoadStoreSeparate)],
        "E-cores only"
    );
}

#[test]
fn a_core_without_published_events_gets_counts_and_no_borrowed_encoding() {
    for cpu in [
        "GenuineIntel-6-FE",
        "GenuineIntel-19-1",
        "HygonGenuine-24-1",
        "0x00000000410fd0b0",
        "0x00000000c00fac30",
    ] {
        let core = core(cpu);
        assert_eq!(
            (core.uarch.as_str(), core.ratio_capability),
            ("unknown", Capability::Unknown),
            "{cpu}"
        );
        let expected = [
            (FigureName::DtlbReadMisses, None),
            (FigureName::DtlbWriteMisses, None),
        ];
        assert_eq!(figures(&core), expected, "{cpu}");
        for event in core.roles.values().flat_map(|event| &event.encoding) {
            assert!(
                matches!(event.perf_type, Some(0 | 3)),
                "{cpu}: only the kernel's generic events"
            );
        }
        assert!(warns(&core, CaveatCode::UnknownCpu), "{cpu}");
    }
    // 0x55 is Skylake or Cascade Lake: without the stepping neither.
    let core = core("GenuineIntel-6-55");
    assert_eq!(core.uarch, "unknown");
    assert!(
        core.plan
            .caveats
            .iter()
            .any(|caveat| caveat.text.contains("add the stepping"))
    );
}

#[test]
fn one_event_for_two_quantities_gives_one_figure() {
    let bonnell = core("GenuineIntel-6-1C");
    assert_eq!(
        figures(&bonnell),
        [(FigureName::WalkCycles, Some(Ratio::Fraction))]
    );
    assert!(warns(&bonnell, CaveatCode::SameEncoding));
}

#[test]
fn a_sum_that_lacks_page_sizes_is_called_a_lower_bound() {
    let nova_lake = on("GenuineIntel-18-1");
    let small = nova_lake
        .cores
        .iter()
        .find(|core| core.pmu == "cpu_atom")
        .expect("E-core");
    assert!(warns(small, CaveatCode::Incomplete));
    let goldmont_plus = core("GenuineIntel-6-7A");
    assert_eq!(
        goldmont_plus.roles[&Role::LoadWalksCompleted]
            .openings()
            .count(),
        3
    );
    assert!(!warns(&goldmont_plus, CaveatCode::Incomplete));
}

#[test]
fn addresses_come_from_events_that_carry_them_and_know_of_the_walk() {
    use Role::*;
    let addresses = |cpu: &str| -> Vec<Vec<Role>> {
        let core = core(cpu);
        (0..core.plan.passes.len())
            .flat_map(|pass| groups(&core, pass, Purpose::Addresses))
            .collect()
    };
    assert_eq!(
        addresses("GenuineIntel-6-2A"),
        [[PreciseLoadAlt], [PreciseStoreAlt]],
        "Sandy Bridge: latency and store"
    );
    assert_eq!(
        addresses("GenuineIntel-6-4F"),
        [[PreciseLoad], [PreciseStore]]
    );
    assert!(
        addresses("GenuineIntel-6-2C").is_empty(),
        "Westmere's samples do not tell of the walk"
    );
    assert!(warns(&core("GenuineIntel-6-2C"), CaveatCode::NoDataAddress));
    assert_eq!(
        addresses("AuthenticAMD-25-11"),
        [[PreciseLoad, PreciseStore]],
        "one IBS event, told apart by its samples"
    );
    let arm = core("0x00000000410fd490");
    assert_eq!(
        groups(&arm, 0, Purpose::Addresses),
        [[PreciseLoad]],
        "the sampling unit follows one event at a time"
    );
    assert_eq!(groups(&arm, 1, Purpose::Addresses), [[PreciseStore]]);
}

mod configured;
