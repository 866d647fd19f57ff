//! Tables as they look at 60, 80 and 120 columns, compared with `smtt-ctl/tests/golden`. `SMTT_BLESS=1` writes them.

use std::path::Path;

use smtt_common::event::marker::storage_level::{DESERIALIZED, DISK, MEMORY, REPLICATION_SHIFT};
use smtt_model::decode::{BlockFact, Fact, RddDescribed};

use super::cluster::with_jobs;
use super::workers::{Workers, dead};
use super::{Daemon, ctl, job, pages};

const LISTINGS: [&[&str]; 14] = [
    &["executors"],
    &["jobs"],
    &["stages"],
    &["stages", "--summary"],
    &["tasks"],
    &["rdds", "--limit", "4"],
    &["rdds", "--rdd", "users*", "--limit", "3"],
    &[
        "rdds",
        "--rdd",
        "users*",
        "--columns",
        "rdd,level,page_faults,storage_memory_peak_bytes",
        "--limit",
        "3",
    ],
    &[
        "rdds",
        "--rdd",
        "users*",
        "--columns",
        "rdd,node,node_id",
        "--limit",
        "3",
    ],
    &["rdds", "--by", "name", "--limit", "5"],
    &["rdds", "--by", "node"],
    &["blocks", "--limit", "3"],
    &["pages", "--limit", "3"],
    &["report"],
];

/// The small job with 60 more cached RDDs, of a user that every machine has.
pub fn daemon() -> Daemon {
    let mut facts = job();
    for rdd_id in 100..160 {
        facts.push(Fact::RddDescribed(Box::new(RddDescribed {
            rdd_id,
            name: format!("users by day {rdd_id}"),
            call_site: "cache at Users.scala:7".to_owned(),
            node: "WholeStageCodegen (1)".to_owned(),
            node_id: format!("{}", rdd_id / 2),
            storage_level: DISK | MEMORY | DESERIALIZED | 2 << REPLICATION_SHIFT,
            ..RddDescribed::default()
        })));
        facts.push(Fact::BlockStored(Box::new(BlockFact {
            block_id: format!("rdd_{rdd_id}_0"),
            rdd_id: Some(rdd_id),
            partition: Some(0),
            size_bytes: u64::from(rdd_id) << 10,
            serialized: true,
            range_total: 1,
            ranges: vec![(0x7e00_0000_0000 + (u64::from(rdd_id) << 20), 4096)],
            task_attempt_id: Some(1),
            ..BlockFact::default()
        })));
    }
    Daemon::with(&facts, 0)
}

/// Questions to three workers, of which one is dead in the second half.
const OF_WORKERS: [&[&str]; 6] = [
    &["executors"],
    &["jobs"],
    &["jobs", "--per-worker"],
    &["queries"],
    &["rdds", "--by", "rdd"],
    &["report"],
];

#[test]
fn tables_of_a_cluster_look_as_before() {
    let workers = Workers::of(&(0..3).map(with_jobs).collect::<Vec<_>>());
    let names: Vec<String> = workers
        .addresses()
        .iter()
        .map(std::net::SocketAddr::to_string)
        .collect();
    let dead = dead();
    let mut text = String::new();
    for missing in [false, true] {
        let mut addresses = workers.addresses();
        if missing {
            addresses[2] = dead;
        }
        for listing in OF_WORKERS {
            let output = workers.ctl(&addresses, listing);
            let (shown, said) = (&output.stdout, &output.stderr);
            let line = format!("$ smtt-ctl --cluster workers {}\n", listing.join(" "));
            let parts = [shown, said].map(|part| String::from_utf8_lossy(part).into_owned());
            text.push_str(&format!("{line}{}\n", parts.concat()));
        }
    }
    // A port is another one in each run, and its name as wide as these.
    for (at, name) in names.iter().chain([&dead.to_string()]).enumerate() {
        let width = name.len();
        text = text.replace(name, &format!("{:<width$}", format!("worker-{at}")));
    }
    let trimmed: Vec<&str> = text.lines().map(str::trim_end).collect();
    compare("cluster.txt", &format!("{}\n", trimmed.join("\n")));
}

/// Compares a text with the file of this name.
fn compare(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("SMTT_BLESS").is_some() {
        std::fs::write(&path, text).expect("written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let first = expected
        .lines()
        .zip(text.lines())
        .find(|(old, new)| old != new);
    assert!(
        expected == text,
        "{}: the tables differ, first in {first:?}; SMTT_BLESS=1 writes them:\n{text}",
        path.display()
    );
}

#[test]
fn tables_look_as_before() {
    let daemon = daemon();
    pages::looked_at(&daemon);
    for columns in ["60", "80", "120"] {
        let mut text = String::new();
        for listing in LISTINGS {
            let output = ctl(&daemon.socket, listing, columns);
            assert!(output.status.success(), "{listing:?}: {output:?}");
            let said = String::from_utf8_lossy(&output.stdout);
            text.push_str(&format!("$ smtt-ctl {}\n{said}\n", listing.join(" ")));
        }
        compare(&format!("{columns}.txt"), &text);
    }
}
