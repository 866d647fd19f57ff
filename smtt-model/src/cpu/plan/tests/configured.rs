//! Configured events, machines without counters, and how plans are shown.

use super::*;
use std::collections::BTreeMap;

#[test]
fn configured_events_take_the_place_of_the_tables_and_lift_the_capability() {
    use Role::*;
    let unknown: CpuId = "GenuineIntel-6-FE".parse().expect("CPU");
    let load = (LoadWalkCycles, "cpu/event=0x12,umask=0x10,cmask=1/");
    let core = measured(&unknown, &[load, (StoreWalkCycles, "r1001013")])
        .expect("events")
        .cores
        .remove(0);
    assert_eq!(
        core.ratio_capability,
        Capability::TrueCyclesLoadStoreSeparate
    );
    let config = |role| {
        core.roles[&role]
            .encoding
            .as_ref()
            .map(|event| event.perf_config)
    };
    assert_eq!(
        (config(LoadWalkCycles), config(StoreWalkCycles)),
        (Some(0x100_1012), Some(0x100_1013))
    );
    assert!(figures(&core).contains(&(FigureName::ReadWalkCycles, Some(Ratio::Fraction))));
    assert!(warns(&core, CaveatCode::Overridden));
    // A worse event for a good core does not make the core worse.
    let skylake: CpuId = "GenuineIntel-6-5E".parse().expect("CPU");
    let counts =
        measured(&skylake, &[(LoadWalksCompleted, "cpu/event=8,umask=2/")]).expect("events");
    assert_eq!(
        counts.cores[0].ratio_capability,
        Capability::TrueCyclesLoadStoreSeparate
    );
    // Of a hybrid CPU each core type has its own.
    let hybrid: CpuId = "GenuineIntel-6-97".parse().expect("CPU");
    let cores = measured(&hybrid, &[(LoadWalkPending, "cpu_atom/event=8,umask=16/")])
        .expect("events")
        .cores;
    let has = |pmu| {
        cores.iter().find(|core| core.pmu == pmu).map(|core| {
            core.roles[&Cycles].pmu() == pmu
                && core.roles.get(&LoadWalkPending).is_some_and(|event| {
                    event.pmu() == pmu && event.source == crate::cpu::Source::Configuration
                })
        })
    };
    assert_eq!(
        (has("cpu_core"), has("cpu_atom")),
        (Some(false), Some(true))
    );
}

#[test]
fn configured_events_that_cannot_be_used_name_role_term_and_place() {
    let hybrid: CpuId = "GenuineIntel-6-97".parse().expect("CPU");
    for (text, column, says) in [
        ("cpu_core/event=1,umsk=2/", 18, "umsk"),
        ("cpu/event=0x12/", 1, "cpu_core, cpu_atom"),
        ("cpu_core/event=1/,cpu/event=1/", 19, "cpu_core, cpu_atom"),
    ] {
        let error = measured(&hybrid, &[(Role::LoadWalkCycles, text)]).expect_err(text);
        assert_eq!(error.error.column, column, "{error}");
        assert!(
            error.to_string().contains(says) && error.to_string().contains("load_walk_cycles"),
            "{error}"
        );
    }
}

#[test]
fn software_events_are_planned_the_same_on_every_cpu_without_counters() {
    use Role::{Cycles, LoadWalksCompleted, PreciseLoad, PreciseStore, StoreWalksCompleted};
    let cpus = [
        ("AuthenticAMD", 26, 2),
        ("GenuineIntel", 6, 207),
        ("GenuineIntel", 6, 85),
        ("GenuineIntel", 6, 63),
        ("GenuineIntel", 6, 45),
        ("SomeVendor", 1, 1),
    ];
    for (vendor, family, model) in cpus {
        let text = format!(
            "vendor_id : {vendor}\ncpu family : {family}\nmodel : {model}\nstepping : 1\nflags : hypervisor\n"
        );
        let files = BTreeMap::from([("proc/cpuinfo".to_owned(), text)]);
        let passes = |events: &[(Role, &str)]| -> Vec<Vec<Role>> {
            let identity = CpuId::read(&files);
            let core = measured(&identity, events)
                .expect("description")
                .cores
                .remove(0);
            let groups = core.plan.passes.iter().map(|pass| pass.groups.iter());
            groups
                .map(|groups| groups.flat_map(|group| group.roles.clone()).collect())
                .collect()
        };
        let counts = [(Cycles, "cpu-clock"), (LoadWalksCompleted, "page-faults")];
        assert_eq!(
            passes(&counts),
            [vec![Cycles, LoadWalksCompleted]],
            "{vendor} {family} {model}"
        );
        // More than the four counters that every core has.
        let more = [
            (StoreWalksCompleted, "page-faults"),
            (PreciseLoad, "page-faults"),
            (PreciseStore, "minor-faults"),
        ];
        let two = passes(&[&counts[..], &more].concat());
        assert_eq!(
            (two.len(), two.concat().len()),
            (2, 5),
            "{vendor} {family} {model}: {two:?}"
        );
    }
}

#[test]
fn a_machine_without_counters_says_so_and_one_with_them_has_their_numbers() {
    let mut files = BTreeMap::new();
    let mut file = |path: &str, text: &str| files.insert(path.to_owned(), text.to_owned());
    file(
        "proc/cpuinfo",
        "vendor_id : AuthenticAMD\ncpu family : 26\nmodel : 2\nstepping : 1\nflags : hypervisor\n",
    );
    let here = |files: &BTreeMap<String, String>| {
        measured(&CpuId::read(files), &[])
            .expect("description")
            .cores
            .remove(0)
    };
    let bare = here(&files);
    assert_eq!(
        (bare.uarch.as_str(), bare.pmu_present),
        ("Zen 5", Some(false))
    );
    assert!(warns(&bare, CaveatCode::PmuAbsent));
    assert!(
        !bare
            .plan
            .passes
            .iter()
            .flat_map(|pass| &pass.groups)
            .any(|group| group.purpose == Purpose::Addresses)
    );
    let mut file = |path: &str, text: &str| files.insert(path.to_owned(), text.to_owned());
    file("sys/bus/event_source/devices/cpu/type", "4\n");
    file(
        "sys/bus/event_source/devices/cpu/format/event",
        "config:0-7,32-35\n",
    );
    file("sys/bus/event_source/devices/ibs_op/type", "11\n");
    file(
        "sys/bus/event_source/devices/ibs_op/format/cnt_ctl",
        "config:19\n",
    );
    let full = here(&files);
    assert!(full.pmu_present == Some(true) && !warns(&full, CaveatCode::PmuAbsent));
    let ibs = full.roles[&Role::PreciseLoad]
        .encoding
        .as_ref()
        .expect("IBS");
    assert_eq!(
        (ibs.pmu.as_str(), ibs.perf_type, ibs.perf_config),
        ("ibs_op", Some(11), 0x8_0000)
    );
}

/// Linux names the common events that an Arm PMU has, and opens any other number, which then counts 0.
#[test]
fn an_arm_pmu_without_its_cores_events_counts_only_what_the_configuration_gives() {
    use Role::*;
    let pmu = "sys/bus/event_source/devices/armv8_pmuv3";
    let machine = |events: &[&str], given: &[(Role, &str)]| {
        let mut files = BTreeMap::from(
            [
                (
                    "sys/devices/system/cpu/cpu0/regs/identification/midr_el1",
                    "0x00000000414fd0c1\n",
                ),
                (&format!("{pmu}/type"), "10\n"),
                (&format!("{pmu}/format/event"), "config:0-15\n"),
            ]
            .map(|(path, text)| (path.to_owned(), text.to_owned())),
        );
        for event in events {
            files.insert(format!("{pmu}/events/{event}"), "event=0x11\n".to_owned());
        }
        measured(&CpuId::read(&files), given)
            .expect("description")
            .cores
            .remove(0)
    };
    let emulated = machine(&["cpu_cycles", "stall_backend"], &[]);
    assert_eq!(
        (emulated.uarch.as_str(), emulated.pmu.as_str()),
        ("Neoverse N1", "armv8_pmuv3")
    );
    assert!(warns(&emulated, CaveatCode::EventsAbsent));
    assert!(!emulated.roles.contains_key(&DsideWalksCombined));
    assert!(emulated.plan.figures.is_empty(), "{:?}", emulated.plan);
    // What the kernel itself counts can take their place.
    let given = machine(&["cpu_cycles"], &[(LoadWalksCompleted, "cpu-clock")]);
    assert!(given.roles.contains_key(&LoadWalksCompleted) && !given.plan.figures.is_empty());
    for events in [&["cpu_cycles", "dtlb_walk"][..], &[]] {
        let real = machine(events, &[]);
        assert!(!warns(&real, CaveatCode::EventsAbsent), "{events:?}");
        assert!(real.roles.contains_key(&DsideWalksCombined), "{events:?}");
    }
}

#[test]
fn text_and_json_show_events_figures_and_passes() {
    let measured = on("GenuineIntel-6-8F");
    let json = serde_json::to_value(&measured).expect("serialisable");
    let core = &json["cores"][0];
    assert_eq!(core["uarch"], "Sapphire Rapids");
    assert_eq!(core["load_walk_cycles"]["perf_config"], "0x1001012");
    assert_eq!(
        core["load_walk_cycles"]["name"],
        "DTLB_LOAD_MISSES.WALK_ACTIVE"
    );
    let text = measured.to_string();
    for line in [
        "4:0x1001012",
        "read_walk_cycles = load_walk_cycles; fraction",
        "pass 2",
        "(counters 0-3)",
    ] {
        assert!(text.contains(line), "{line} in:\n{text}");
    }
}
