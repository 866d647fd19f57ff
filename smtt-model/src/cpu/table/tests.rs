//! The table against itself, always, and against the list it was made from, where that lies beside the checkout.

use super::*;
use crate::cpu::identity::Family as Machine;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use smtt_skip::{NotSkipped, skip};

use crate::cpu::role::word;
use crate::cpu::{CpuId, MeasuredCore, Overrides, Pmus, Quantity, describe, syntax};

/// An identity for every row, found by trying all models: so no row is hidden behind another one.
fn measured_rows() -> BTreeMap<&'static str, MeasuredCore> {
    let mut texts = vec!["riscv".to_owned(), "sifive,p550".to_owned()];
    for (vendor, family) in [
        ("GenuineIntel", 6),
        ("GenuineIntel", 18),
        ("AuthenticAMD", 23),
        ("AuthenticAMD", 25),
        ("AuthenticAMD", 26),
    ] {
        texts.extend((0..=0xff).map(|model| format!("{vendor}-{family}-{model:X}")));
    }
    texts.extend((0..16).map(|stepping| format!("GenuineIntel-6-55-{stepping:X}")));
    // Variant and revision of an Arm core do not matter.
    let parts = CORES.iter().filter_map(|row| row.arm_part);
    texts.extend(parts.map(|part| format!("{:#018x}", 0x412f_0003 | u64::from(part) << 4)));
    let mut rows = BTreeMap::new();
    for text in texts {
        let identity: CpuId = text.parse().expect(&text);
        for core in describe(&identity, &Overrides::default())
            .expect(&text)
            .cores
        {
            if let Some(row) = CORES.iter().find(|row| row.uarch == core.uarch) {
                rows.entry(row.uarch).or_insert(core);
            }
        }
    }
    rows
}

#[test]
fn the_table_is_the_one_that_was_reviewed() {
    let vendor = |row: &Core| match row.cpus.first() {
        Some(cpu) => cpu.split('-').next().unwrap_or_default().to_owned(),
        None if row.arm_part.is_some() => "Arm".to_owned(),
        None => "RISC-V".to_owned(),
    };
    let mut rows = BTreeMap::new();
    let mut capabilities = BTreeMap::new();
    for row in &CORES {
        *rows.entry(vendor(row)).or_insert(0) += 1;
        *capabilities
            .entry(word(&row.family.capability))
            .or_insert(0) += 1;
    }
    let expected = [
        ("Arm", 7),
        ("AuthenticAMD", 6),
        ("GenuineIntel", 47),
        ("RISC-V", 2),
    ];
    assert_eq!(
        rows,
        expected
            .map(|(name, count)| (name.to_owned(), count))
            .into()
    );
    let expected = [
        ("true_cycles_load_store_separate", 25),
        ("load_cycles_plus_all_dside_cycles", 3),
        ("combined_dside_cycles_only", 4),
        ("occupancy_only_load_store_separate", 10),
        ("combined_dside_occupancy_only", 3),
        ("counts_only_load_store_separate", 4),
        ("counts_only_load_plus_all_dside", 2),
        ("counts_only_combined", 11),
    ];
    assert_eq!(
        capabilities,
        expected
            .map(|(name, count)| (name.to_owned(), count))
            .into()
    );
    // FNV-1a over all facts: a slip of a digit anywhere shows here, also where the source list is not at hand.
    let checksum = format!("{CORES:?}")
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
    assert_eq!(
        checksum, 0x53f7_0f74_35b9_e669,
        "the table changed; its checksum is now {checksum:#x}"
    );
}

#[test]
fn every_row_is_found_by_some_identity_and_has_one_event_per_role() {
    let rows = measured_rows();
    let missing: Vec<&str> = CORES
        .iter()
        .map(|row| row.uarch)
        .filter(|name| !rows.contains_key(name))
        .collect();
    assert!(missing.is_empty(), "rows that no CPU leads to: {missing:?}");
    for row in &CORES {
        let roles: BTreeSet<Role> = row.family.events.iter().map(|event| event.role).collect();
        assert_eq!(roles.len(), row.family.events.len(), "{}", row.uarch);
        assert!(roles.contains(&Role::Cycles), "{}", row.uarch);
    }
}

#[test]
fn events_are_those_of_the_source_list() -> Result<(), NotSkipped> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/page-walk-events.json");
    let Ok(text) = std::fs::read_to_string(&path) else {
        return skip(
            "page_walk_list",
            format!("{} is not beside this checkout", path.display()),
        );
    };
    let source: Vec<Value> = serde_json::from_str(&text).expect("source list");
    assert_eq!(source.len(), CORES.len());
    let measured = measured_rows();
    let mut compared = 0;
    for (row, source) in CORES.iter().zip(&source) {
        let object = source.as_object().expect("row");
        assert_eq!(source["uarch"], row.uarch);
        compare_row(row, source);
        let core = serde_json::to_value(&measured[row.uarch]).expect("serialisable");
        assert_eq!(
            source["ratio_capability"], core["ratio_capability"],
            "{}",
            row.uarch
        );
        let listed: BTreeSet<&str> = object
            .iter()
            .filter(|(_, value)| value.get("name").is_some())
            .map(|(key, _)| key.as_str())
            .collect();
        let carried: BTreeSet<String> = measured[row.uarch].roles.keys().map(word).collect();
        assert_eq!(
            listed,
            carried.iter().map(String::as_str).collect(),
            "{}",
            row.uarch
        );
        for role in listed {
            compare_event(&format!("{} {role}", row.uarch), &source[role], &core[role]);
            compared += 1;
        }
    }
    println!(
        "compared {compared} events of {} core types with {}",
        CORES.len(),
        path.display()
    );
    Ok(())
}

fn compare_row(row: &Core, source: &Value) {
    let patterns = source
        .get("cpuid_patterns")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    if let Some(part) = row.arm_part {
        assert_eq!(
            (&source["midr_implementer"], &source["midr_part"]),
            (&"0x41".into(), &format!("{part:#05x}").into())
        );
        let register = format!("{:#018x}", 0x410f_0000 | u64::from(part) << 4);
        assert!(
            patterns.iter().all(|pattern| *pattern == register),
            "{}: {patterns:?}",
            row.uarch
        );
    } else {
        assert_eq!(patterns, row.cpus, "{}", row.uarch);
    }
    let core_type = row.core_type.map(|core_type| match core_type {
        CoreType::Performance => "P-core",
        CoreType::Efficient => "E-core",
        CoreType::LowPower => "LP E-core",
    });
    assert_eq!(
        source.get("core_type").and_then(Value::as_str),
        core_type,
        "{}",
        row.uarch
    );
    assert_eq!(
        source.get("tma_page_walkers").and_then(Value::as_u64),
        row.walkers.map(u64::from),
        "{}",
        row.uarch
    );
}

fn compare_event(what: &str, source: &Value, carried: &Value) {
    assert_eq!(source["name"], carried["name"], "{what}");
    if let Some(config) = source.get("perf_config") {
        assert_eq!(config, &carried["perf_config"], "{what}");
        assert_eq!(
            packed(source).as_ref().unwrap_or(config),
            config,
            "{what}: event, umask and the like packed"
        );
    }
    if let Some(perf_type) = source.get("perf_type").and_then(Value::as_str) {
        assert!(
            perf_type.ends_with(&format!("({})", carried["perf_type"])),
            "{what}: {perf_type}"
        );
    }
    let counters = source
        .get("counters")
        .or(source.pointer("/components/0/counters"))
        .and_then(Value::as_str);
    let numbers: Vec<String> = carried["counters"]
        .as_array()
        .expect("counters")
        .iter()
        .map(Value::to_string)
        .collect();
    assert_eq!(counters.unwrap_or_default(), numbers.join(","), "{what}");
    let text = |key: &str| source.get(key).and_then(Value::as_str).unwrap_or_default();
    assert_eq!(
        text("errata"),
        carried
            .get("errata")
            .and_then(Value::as_str)
            .unwrap_or_default(),
        "{what}"
    );
    let address = source
        .get("gives_data_address")
        .and_then(Value::as_bool)
        .unwrap_or(false);
    assert_eq!(carried["gives_data_address"], address, "{what}");
    if let Some(latency) = source.get("msr_value") {
        assert_eq!(
            (&source["msr_index"], &carried["perf_config1"]),
            (&"0x3F6".into(), latency),
            "{what}"
        );
    }
    if let Some(pmu) = source.get("pmu") {
        assert_eq!(&carried["pmu"], pmu, "{what}");
        let syntax = text("perf_format");
        let machine = if pmu == "ibs_op" {
            Machine::Amd
        } else {
            Machine::Arm
        };
        let event = syntax::parse(
            syntax,
            &Pmus::assumed(machine).iter().collect::<Vec<_>>(),
            &[],
        )
        .expect(syntax)
        .remove(0);
        assert_eq!(
            serde_json::to_value(&event).expect("event")["perf_config"],
            carried["perf_config"],
            "{what}"
        );
        assert_eq!(
            format!("{:#x}", event.config1),
            carried
                .get("perf_config1")
                .and_then(Value::as_str)
                .unwrap_or("0x0")
        );
        let filter = if pmu == "ibs_op" {
            "ibs_dtlb_miss"
        } else {
            "spe_tlb_walk"
        };
        assert_eq!(carried["filter"], filter, "{what}");
    }
    assert_eq!(
        source.get("pebs").is_some(),
        carried["precise_ip"] == 2 && !what.ends_with("_alt"),
        "{what}"
    );
    assert_eq!(
        source
            .get("complete")
            .is_none_or(|complete| complete == true),
        carried["complete"] == true,
        "{what}"
    );
    let none = Vec::new();
    let parts = |value: &Value| -> Vec<(Value, Value)> {
        let list = value
            .get("components")
            .and_then(Value::as_array)
            .unwrap_or(&none)
            .iter();
        list.map(|part| (part["name"].clone(), part["perf_config"].clone()))
            .collect()
    };
    assert_eq!(parts(source), parts(carried), "{what}");
}

/// The list's separate fields packed as the event syntax packs them; nothing if there are none but the event.
fn packed(source: &Value) -> Option<Value> {
    source.get("umask")?;
    let fields = ["event", "umask", "cmask", "edge", "any"];
    let terms: Vec<String> = fields
        .iter()
        .filter_map(|field| Some(format!("{field}={}", source.get(field)?.as_str()?)))
        .collect();
    let text = format!("cpu/{}/", terms.join(","));
    let event = syntax::parse(
        &text,
        &Pmus::assumed(Machine::X86).iter().collect::<Vec<_>>(),
        &[],
    )
    .expect(&text)
    .remove(0);
    serde_json::to_value(&event)
        .ok()
        .map(|event| event["perf_config"].clone())
}

#[test]
fn names_that_promise_fractions_are_cycles_and_pending_is_occupancy() {
    for (uarch, core) in measured_rows() {
        for (role, event) in &core.roles {
            let pending = event.name.ends_with("PENDING") || event.name == "DTLB_WALK_PERCYC";
            assert!(
                !pending || event.quantity == Quantity::Occupancy,
                "{uarch} {role}"
            );
        }
    }
}
