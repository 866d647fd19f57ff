//! Tables as they look at 60, 80 and 120 columns, compared with `smtt-ctl/tests/golden`. `SMTT_BLESS=1` writes them.

use std::path::Path;
use std::sync::Arc;

use smtt_common::event::marker::storage_level::{DESERIALIZED, DISK, MEMORY, REPLICATION_SHIFT};
use smtt_daemon::postmortem::keeper::Keeper;
use smtt_model::decode::{BlockFact, Fact, JobDescribed, RddDescribed};
use smtt_model::postmortem::{Report, Row, Verdict};
use smtt_model::protocol::MachineCheck;
use smtt_model::rows::ExecutorId;
use smtt_model::state::MemorySample;

use super::advise::later_task;
use super::cluster::with_jobs;
use super::workers::{Workers, dead};
use super::{Daemon, ctl, job, memory, pages};

const LISTINGS: [&[&str]; 23] = [
    &["executors"],
    &["jobs"],
    &["queries"],
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
    &["blocks", "--by", "node"],
    &["pages", "--limit", "3"],
    &["pages", "--by", "query"],
    &["pages", "--by", "node"],
    &["memory"],
    &["advise"],
    &["postmortem"],
    &["postmortem", "7"],
    &["status"],
    &["report"],
];

/// The small job with 60 more cached RDDs, of a user that every machine has.
pub fn daemon() -> Daemon {
    Daemon::with(&facts(), 0)
}

fn facts() -> Vec<Fact> {
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
    facts
}

/// The same with a query, readings of memory and deaths.
fn whole() -> Daemon {
    let mut facts = facts();
    for fact in &mut facts {
        if let Fact::StageDescribed(said) = fact {
            said.job_id = Some(5);
            said.sql_execution_id = Some(2);
            said.sql_description =
                "SELECT day, count(*) FROM users GROUP BY day ORDER BY 2".to_owned();
            said.submitted_unix_ms = Some(1_767_225_600_000);
        }
    }
    facts.push(Fact::JobDescribed(JobDescribed {
        job_id: 5,
        started_unix_ms: 1_767_225_600_000,
        ended_unix_ms: Some(1_767_225_607_300),
        sql_execution_id: Some(2),
        failure: String::new(),
    }));
    let daemon = Daemon::with(&facts, 0);
    let keeper = Keeper::new(None);
    keeper.add(death("7", 12));
    keeper.add(death("9", 40));
    daemon.shared.set_keeper(Arc::new(keeper));
    memory::measured(&daemon);
    daemon
}

/// The death of an executor, so many seconds after midnight.
pub(super) fn death(executor: &str, second: u64) -> Report {
    const MIB: u64 = 1 << 20;
    let sample = |at: u64| MemorySample {
        time_ns: at * 1_000_000_000,
        resident_bytes: Some((600 + 40 * at) * MIB),
        heap_used_bytes: Some((200 + 30 * at) * MIB),
        storage_bytes: Some(100 * MIB),
        ..MemorySample::default()
    };
    Report {
        row: Row {
            id: format!("{second:03}-{executor}"),
            died_unix_ms: 1_767_225_600_000 + second * 1000,
            who: ExecutorId {
                application_id: Some("app-20260101120000-0001".to_owned()),
                executor_id: Some(executor.to_owned()),
                pid: 900,
                uid: Some(0),
                ..ExecutorId::default()
            },
            verdict: Verdict::HeapExhausted,
            sentence: "The Java heap was full: 512 MiB were in use of at most 512 MiB, and a task asked for \
                       more."
                .to_owned(),
            ..Row::default()
        },
        died_ns: 11_000_000_000,
        heap_max_bytes: Some(512 * MIB),
        evidence: vec![
            "the JVM's own message: java.lang.OutOfMemoryError: Java heap space".to_owned(),
        ],
        samples: (0..10).map(sample).collect(),
        advice: vec!["spark.executor.memory: more than the 512 MiB that it had.".to_owned()],
        ..Report::default()
    }
}

/// Questions to three workers, of which one is dead in the second half.
const OF_WORKERS: [&[&str]; 8] = [
    &["executors"],
    &["jobs"],
    &["jobs", "--per-worker"],
    &["queries"],
    &["rdds", "--by", "rdd"],
    &["blocks", "--by", "name"],
    &["pages", "--by", "rdd"],
    &["report"],
];

#[test]
fn tables_of_a_cluster_look_as_before() {
    let workers = Workers::of(&(0..3).map(with_jobs).collect::<Vec<_>>());
    for daemon in &workers.daemons {
        later_task(daemon, 9);
    }
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

/// What the daemon says of its machine.
pub(super) fn machine() -> Vec<MachineCheck> {
    let check = |name: &str, ok, detail: &str, remedy: &str| MachineCheck {
        name: name.to_owned(),
        ok,
        required: false,
        detail: detail.to_owned(),
        remedy: remedy.to_owned(),
    };
    vec![
        check("kernel", true, "Linux 6.18.0 has BTF", ""),
        check(
            "page walks",
            false,
            "this machine has no performance counters, as most virtual machines",
            "give the machine a PMU, or run on bare metal",
        ),
    ]
}

/// What differs from run to run: the daemon's own use, and the place of the configuration; and from machine to machine:
/// what the rules of the advice examine there.
fn without_chance(said: &str, config: &Path) -> String {
    let checks = ["\nChecked, and nothing found\n", "\nCould not be checked\n"];
    let ends = checks.iter().filter_map(|heading| said.find(heading));
    let said = &said[..ends.min().map_or(said.len(), |end| end + 1)];
    let line = |line: &str| match line.starts_with("up ") {
        true => "up 1m02s, CPU 0.50 s (0.80 % of one CPU), memory 20.0 MiB".to_owned(),
        false => line.replace(&config.display().to_string(), "/etc/smtt/smtt.toml"),
    };
    said.lines().map(|it| line(it) + "\n").collect()
}

#[test]
fn tables_look_as_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("smtt.toml");
    std::fs::write(&config, "[control]\ngroup = \"\"\n").expect("written");
    let doctor = ["doctor", "--config", config.to_str().expect("a path")];
    let daemon = whole();
    pages::looked_at(&daemon);
    for columns in ["60", "80", "120"] {
        let mut text = String::new();
        for listing in LISTINGS.into_iter().chain([&doctor[..]]) {
            let output = ctl(&daemon.socket, listing, columns);
            assert!(output.status.success(), "{listing:?}: {output:?}");
            let said = String::from_utf8_lossy(&output.stdout);
            let said = without_chance(&said, &config);
            let line = without_chance(&listing.join(" "), &config);
            text.push_str(&format!("$ smtt-ctl {line}{said}\n"));
        }
        let most: usize = columns.parse().expect("a number");
        let wide = text
            .lines()
            .filter(|line| !line.starts_with('$') && line.chars().count() > most);
        assert_eq!(wide.collect::<Vec<_>>(), [""; 0], "at {columns} columns");
        compare(&format!("{columns}.txt"), &text);
    }
}
