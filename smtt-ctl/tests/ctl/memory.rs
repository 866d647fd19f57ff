//! `smtt-ctl memory`.

use smtt_common::event::memory::MemoryFigure as F;
use smtt_model::decode::{Figure, MemoryReported, PeaksReported};
use smtt_model::state::{CgroupMemory, ChildKind, ChildMemory, KernelMemory, ProcessMemory};

use super::{Daemon, Fact, KEY, ctl};

const MIB: u64 = 1 << 20;

fn kernel() -> KernelMemory {
    let memory = ProcessMemory {
        resident_bytes: 1000 * MIB,
        anonymous_bytes: 900 * MIB,
        file_bytes: 90 * MIB,
        shared_bytes: 10 * MIB,
        resident_peak_bytes: 1100 * MIB,
        ..ProcessMemory::default()
    };
    let child = ChildMemory {
        pid: 9,
        inner_pid: 9,
        name: "python3".into(),
        kind: ChildKind::Python,
        memory: ProcessMemory {
            resident_bytes: 60 * MIB,
            anonymous_bytes: 50 * MIB,
            ..ProcessMemory::default()
        },
    };
    KernelMemory {
        process: memory,
        children: vec![child],
        children_unread: 0,
        cgroup: Some(CgroupMemory {
            path: "pods/a".into(),
            version: 2,
            current_bytes: 1200 * MIB,
            limit_bytes: Some(2048 * MIB),
            peak_bytes: Some(1500 * MIB),
            anonymous_bytes: 930 * MIB,
            file_bytes: 200 * MIB,
            shared_bytes: 10 * MIB,
            kernel_bytes: Some(30 * MIB),
        }),
    }
}

fn apply(daemon: &Daemon, fact: Fact) {
    daemon.apply(16_000_000, 0, fact);
}

fn told(examined: bool, figures: &[(F, u64)]) -> Fact {
    let figures = figures.iter().map(|(figure, mib)| Figure {
        code: figure.0,
        age_ms: 0,
        value: mib * MIB,
    });
    Fact::MemoryReported(Box::new(MemoryReported {
        examined,
        overhead_is_default: true,
        figures: figures.collect(),
    }))
}

fn part(row: &serde_json::Value, list: &str, name: &str) -> Option<i64> {
    let parts = if list == "parts" {
        &row["parts"]
    } else {
        &row[list]["parts"]
    };
    let found = parts.as_array()?.iter().find(|part| part["name"] == name)?;
    Some(found["bytes"].as_i64()? / MIB as i64)
}

fn sum(parts: &serde_json::Value) -> i64 {
    let bytes = |part: &serde_json::Value| part["bytes"].as_i64();
    parts
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(bytes)
        .sum()
}

/// Sets the memory that the kernel knows of.
pub fn measured(daemon: &Daemon) {
    daemon.shared.state().set_memory(KEY, kernel(), 15_000_000);
}

#[test]
fn memory_is_divided_into_parts_that_add_up() {
    let daemon = Daemon::with_job();
    let unread = daemon.ctl(&["memory"]);
    assert_eq!(unread.status.code(), Some(0), "{unread:?}");
    let unread = daemon.ctl(&["memory", "--fail-on", "degraded"]);
    assert_eq!(unread.status.code(), Some(1), "{unread:?}");
    daemon.shared.state().set_memory(KEY, kernel(), 15_000_000);

    // Without the marker anonymous memory is not divided.
    let row = &daemon.json(&["memory", "--json"])[0];
    assert_eq!(sum(&row["parts"]), 1000 * MIB as i64, "{row}");
    assert_eq!(part(row, "parts", "heap_and_native"), Some(900));
    assert!(
        row["examined_age_ns"].is_null() && row["threads"].is_null(),
        "{row}"
    );

    let figures = [
        (F::ANONYMOUS, 880),
        (F::HEAP_RESIDENT, 500),
        (F::HEAP_USED, 300),
        (F::HEAP_MAX, 600),
        (F::STORAGE_ON_HEAP, 100),
        // More than what is left of the used heap: an estimate.
        (F::EXECUTION_ON_HEAP, 900),
        (F::DIRECT, 200),
        (F::METASPACE, 50),
        (F::CODE_COMMITTED, 20),
        (F::MEMORY_OVERHEAD, 384),
    ];
    apply(&daemon, told(true, &figures));
    // What comes later does not change the examined parts.
    apply(&daemon, told(false, &[(F::HEAP_USED, 310), (F::DIRECT, 1)]));
    let row = &daemon.json(&["memory", "--json"])[0];
    assert_eq!(sum(&row["parts"]), 1000 * MIB as i64, "{row}");
    for (name, mib) in [
        ("heap_storage", Some(100)),
        ("heap_execution", Some(200)),
        ("heap_other_objects", Some(0)),
        ("heap_free", Some(200)),
        ("direct_buffers", Some(200)),
        ("code_cache", Some(20)),
        ("thread_stacks", None),
        ("native_not_explained", Some(110)),
        ("since_examined", Some(20)),
        ("mapped_files", Some(90)),
    ] {
        assert_eq!(part(row, "parts", name), mib, "{name} of {row}");
    }
    let group = &row["cgroup"];
    assert_eq!(sum(&group["parts"]), 1200 * MIB as i64, "{group}");
    assert_eq!(part(row, "cgroup", "python_workers"), Some(50));
    assert_eq!(
        part(row, "cgroup", "counted_in_several_processes"),
        Some(-20)
    );
    assert_eq!(part(row, "cgroup", "page_cache"), Some(190));
    assert_eq!(part(row, "cgroup", "not_explained"), Some(40));
    let limit = |name: &str| {
        let limits = row["limits"].as_array().expect("limits");
        let found = limits.iter().find(|limit| limit["name"] == name);
        found.map(|limit| limit["free_bytes"].as_i64().map(|free| free / MIB as i64))
    };
    assert_eq!(limit("-Xmx"), Some(Some(290)));
    // 1,000 of the JVM and 60 of the worker, without the heap's 500.
    assert_eq!(
        limit("spark.executor.memoryOverhead"),
        Some(Some(384 - 560))
    );
    assert_eq!(limit("memory.max"), Some(Some(848)));
    assert_eq!(limit("spark.memory.offHeap.size"), None);
}

#[test]
fn the_table_fits_the_terminal_and_has_the_peaks() {
    let daemon = Daemon::with_job();
    daemon.shared.state().set_memory(KEY, kernel(), 15_000_000);
    let figures = vec![Figure {
        code: 3,
        age_ms: 1,
        value: 7 * MIB,
    }];
    let peaks = |stage| {
        Fact::PeaksReported(Box::new(PeaksReported {
            stage,
            figures: figures.clone(),
        }))
    };
    apply(&daemon, peaks(None));
    apply(&daemon, peaks(Some((3, 0))));
    apply(
        &daemon,
        told(
            true,
            &[
                (F::ANONYMOUS, 880),
                (F::HEAP_RESIDENT, 500),
                (F::HEAP_USED, 300),
            ],
        ),
    );
    for width in ["80", "120"] {
        let text = ctl(&daemon.socket, &["memory", "--peaks"], width).stdout;
        let text = String::from_utf8(text).expect("text");
        let limit: usize = width.parse().expect("a number");
        assert!(
            text.lines().all(|line| line.chars().count() <= limit),
            "{text}"
        );
        for words in [
            "heap: free, but resident",
            "shared after a fork",
            "OnHeapExecutionMemory",
            "-20.0 MiB",
        ] {
            assert!(text.contains(words), "no {words:?} in {text}");
        }
        assert!(!text.contains("JVMHeapMemory"), "not measured: {text}");
    }
    let text = ctl(&daemon.socket, &["stages", "--peaks"], "80").stdout;
    let text = String::from_utf8(text).expect("text");
    for line in [
        "stage 3.0 of app-20260101120000-0001, executor 0: map",
        "  execution memory, all together      12.1 KiB  not all was reported",
        "  execution memory, largest task      12.1 KiB",
        "  OnHeapExecutionMemory                7.0 MiB",
    ] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
    let none = ctl(&daemon.socket, &["stages", "--peaks", "--stage", "9"], "80");
    assert_eq!((none.status.code(), &*none.stdout), (Some(1), &b""[..]));
    let stages = daemon.json(&["stages", "--stage", "3", "--json"]);
    assert_eq!(
        stages[0]["executor_peaks"]["OnHeapExecutionMemory"]["value"],
        7 * MIB,
        "{stages}"
    );
}
