//! What is opened on which core, for every row of the table.

use super::*;
use smtt_model::cpu::{FigureName, Ratio};

fn of(cpu: &str) -> Result<Wanted, NotMeasured> {
    let identity: CpuId = cpu.parse().expect("a CPU");
    Wanted::of(&PageWalkSettings::default(), &identity, |pmu| match pmu {
        "cpu_atom" => (8..16).collect(),
        _ => (0..8).collect(),
    })
}

fn roles(wanted: &Wanted) -> Vec<(usize, Role)> {
    wanted
        .channels
        .iter()
        .map(|channel| (channel.pass, channel.role))
        .collect()
}

#[test]
fn a_core_that_tells_loads_from_stores_gives_two_fractions_of_one_pass() {
    let wanted = of("GenuineIntel-6-8F").expect("Sapphire Rapids");
    let fractions: Vec<&ChannelFigure> = wanted
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
        assert_eq!(wanted.channels[cycles].role, Role::Cycles);
        assert_eq!(
            wanted.channels[cycles].pass,
            wanted.channels[figure.of].pass
        );
    }
    let group = &wanted.groups[0];
    assert_eq!(group.cpus.len(), 8);
    assert_eq!(group.events[0].channel, 0);
    assert_eq!(wanted.channels[0].role, Role::Cycles, "cycles lead");
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
        .find(|group| group.events.iter().any(|event| event.channel == write.of))
        .expect("its group");
    for channel in [Some(write.of), write.less, write.cycles]
        .into_iter()
        .flatten()
    {
        assert!(
            group.events.iter().any(|event| event.channel == channel),
            "{channel}"
        );
    }
}

#[test]
fn a_core_that_counts_gives_estimates_and_a_sum_has_one_channel() {
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
    let cycles = &wanted.channels[0].period;
    assert!(
        5_000_000_000 / cycles.events <= 200 / together,
        "{cycles:?}"
    );
    let settings = PageWalkSettings {
        sample_periods: [(Role::Cycles, 77)].into(),
        ..PageWalkSettings::default()
    };
    let identity: CpuId = "riscv".parse().expect("a CPU");
    let fixed = Wanted::of(&settings, &identity, |_| (0..1).collect()).expect("riscv");
    assert_eq!(fixed.channels[0].period, Period::fixed(77));
}

#[test]
fn no_row_of_the_table_asks_for_more_channels_than_there_are() {
    for core in &cpu::CORES {
        for cpu in core.cpus {
            let Ok(identity) = cpu.parse::<CpuId>() else {
                continue;
            };
            let cpus_of = |pmu: &str| match pmu {
                "cpu_atom" => (4..8).collect(),
                "cpu_lowpower" => (8..12).collect(),
                _ => (0..4).collect(),
            };
            let Ok(wanted) = Wanted::of(&PageWalkSettings::default(), &identity, cpus_of) else {
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
                !wanted
                    .notes
                    .iter()
                    .any(|note| note.contains("all channels")),
                "{cpu}: {:?}",
                wanted.notes
            );
            assert!(!wanted.figures.is_empty(), "{cpu}");
        }
    }
}

#[test]
fn the_clock_is_in_no_channel_of_page_walks() {
    let (group, channel) = clock::clock(200, BTreeSet::from([0, 1]));
    assert_eq!(channel.period.events, 5_000_001, "200 a second");
    let cookie = group.events[0].cookie;
    assert_eq!(cookie & COOKIE_CHANNEL_MASK, CLOCK_CHANNEL as u64);
    assert_eq!(cookie & (COOKIE_ADDRESS | COOKIE_WRITE), 0);
    assert_eq!((cookie >> COOKIE_EVENT_SHIFT) as usize, CLOCK_EVENT);
    let all = cpu::CORES.iter().flat_map(|core| core.cpus);
    let known = all.filter(|cpu| cpu.parse::<CpuId>().is_ok());
    let most = known.filter_map(|cpu| of(cpu).ok()).map(|wanted| {
        let events = wanted.groups.iter().map(|group| group.events.len());
        (wanted.channels.len(), events.sum::<usize>())
    });
    let most = most.fold((0, 0), |sum, it| (sum.0.max(it.0), sum.1.max(it.1)));
    assert!(most.0 <= CLOCK_CHANNEL && most.1 <= CLOCK_EVENT, "{most:?}");
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
