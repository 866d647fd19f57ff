//! Rules about the work of executors: spills, major faults, first touch of memory.

use super::surroundings::Surroundings;
use super::{
    Cost, Finding, Outcome, Remedy, Saving, Severity, View, bytes, count, part, remedy, share,
    whole,
};
use crate::rows::ExecutorRow;
use crate::units;

/// Minimum share of the task time in spills for a finding.
pub(super) const SPILL_SHARE: f64 = 0.05;
/// Minimum number of major faults for a finding.
pub(super) const MAJOR_FAULTS: u64 = 1_000;
/// Minimum rate of major faults for a finding, per second of tracing.
pub(super) const MAJOR_FAULTS_PER_SECOND: f64 = 10.0;
/// Minimum number of page faults in an executor's first minute for a finding: 400 MiB on pages of 4 KiB.
pub(super) const EARLY_FAULTS: u64 = 100_000;
/// Minimum share of the first minute in all page faults of the executor for a finding.
pub(super) const EARLY_SHARE: f64 = 0.5;
/// Maximum delay between an executor's start and its first record for its start to count as traced, in milliseconds.
const LATE_MS: u64 = 60_000;

/// What a stage's tasks on this worker needed: its id, execution memory of one task at most, and how many times as much a
/// task would have needed on average to spill nothing.
struct Needs {
    stage: u32,
    peak: u64,
    factor: Option<f64>,
    /// Tasks of the whole stage.
    tasks: Option<u64>,
}

/// Of the stage whose tasks took the most execution memory.
fn needs(view: &View) -> Option<Needs> {
    let rows = view.stages.iter();
    let largest = rows
        .clone()
        .filter(|row| row.stage_id.is_some())
        .max_by_key(|row| row.execution_memory_peak_bytes)?;
    let own = rows.filter(|row| row.stage_id == largest.stage_id);
    let spilled: Option<u64> = own
        .clone()
        .filter_map(|row| row.used.memory_spilled_bytes)
        .reduce(u64::saturating_add);
    let ended = own.map(|row| row.used_tasks).fold(0, u64::saturating_add);
    let peak = largest.execution_memory_peak_bytes;
    let held = ended.saturating_mul(peak);
    Some(Needs {
        stage: largest.stage_id?,
        peak,
        factor: spilled
            .filter(|spilled| *spilled > 0 && held > 0)
            .map(|spilled| 1.0 + part(spilled, held)),
        tasks: largest.tasks,
    })
}

/// Settings that give each task the execution memory that it needs.
fn more_memory(view: &View, needs: Option<&Needs>) -> Vec<Remedy> {
    let heap = view.executors.iter().filter_map(|row| row.heap_max_bytes);
    let heap = heap.max();
    let Some((needs, factor)) = needs.and_then(|needs| Some((needs, needs.factor?))) else {
        return vec![remedy(
            "More partitions in shuffles (spark.sql.shuffle.partitions; RDDs take spark.default.parallelism or an argument), \
             fewer cores or more memory for each executor. How much is not known: Spark's own count of what was spilled did \
             not come",
            &[],
        )];
    };
    let times = |value: u64| (value as f64 * factor).ceil() as u64;
    let why = format!(
        "{factor:.1} times as much, from what was spilled and a task's execution memory in stage {}",
        needs.stage
    );
    let partitions = needs.tasks.map_or_else(
        || "spark.sql.shuffle.partitions".to_owned(),
        |tasks| format!("spark.sql.shuffle.partitions  {}", times(tasks)),
    );
    let memory = heap.map_or_else(
        || "spark.executor.memory".to_owned(),
        |heap| format!("spark.executor.memory  {}m", times(heap).div_ceil(1 << 20)),
    );
    vec![
        remedy(
            &format!(
                "Smaller tasks: partitions in shuffles, {why} (SQL; RDDs take spark.default.parallelism or an argument):"
            ),
            &[&partitions],
        ),
        remedy(
            &format!(
                "More execution memory per task: memory of each executor with as many cores, {why}; or fewer cores with as \
                 much memory:"
            ),
            &[&memory],
        ),
    ]
}

/// Finds tasks that spend their time writing execution memory to disk.
pub(super) fn spilling(view: &View) -> Outcome {
    const ID: &str = "spilling";
    const LOOKS_FOR: &str = "tasks that write execution memory to disk because it does not fit";
    let times = view.stages.iter().map(|row| row.task_time_ns);
    let task_ns = times.fold(0, u64::saturating_add);
    let spans =
        |row: &ExecutorRow, activity: &str| row.spans.get(activity).copied().unwrap_or_default();
    let executors: Vec<&ExecutorRow> = view
        .executors
        .iter()
        .filter(|row| spans(row, "spill").count > 0)
        .collect();
    let sum = |of: &dyn Fn(&ExecutorRow) -> u64| {
        executors
            .iter()
            .map(|row| of(row))
            .fold(0, u64::saturating_add)
    };
    let count_of = sum(&|row| spans(row, "spill").count);
    let ns = sum(&|row| spans(row, "spill").duration_ns);
    let merged = sum(&|row| spans(row, "merge").duration_ns);
    let looked = format!(
        "{} spills of 1 ms or more in {} of task time",
        units::count(count_of),
        units::duration(task_ns)
    );
    if task_ns == 0 {
        return Outcome::checked(
            ID,
            LOOKS_FOR,
            Vec::new(),
            "no task has ended on this worker",
        );
    }
    // A shuffle merges what it wrote without spills, too, so merges alone are no finding.
    let cost = part(ns, task_ns);
    if cost < SPILL_SHARE {
        return Outcome::checked(ID, LOOKS_FOR, Vec::new(), looked);
    }
    let mut numbers = vec![
        count("spills of 1 ms or more", count_of),
        whole("time in them", ns, "ns"),
        whole("time in merges of 1 ms or more", merged, "ns"),
        whole("time of ended tasks", task_ns, "ns"),
        share("time in spills", cost),
    ];
    let needs = needs(view);
    let mut stage = String::new();
    if let Some(Needs {
        stage: id, peak, ..
    }) = needs
    {
        numbers.push(bytes(
            &format!("execution memory of one task of stage {id}, at most"),
            peak,
        ));
        stage = format!("; most per task in stage {id}");
    }
    let finding = Finding {
        id: ID.to_owned(),
        severity: Severity::of_share(cost),
        title: format!("{} of the task time is spilling{stage}", units::share(cost)),
        subject: view.subject(&executors),
        window: "since the executors were first traced".to_owned(),
        numbers,
        cost: Cost {
            share: Some(cost),
            of: "the task time on this worker".to_owned(),
            estimated: false,
        },
        saving: Some(Saving::up_to(ns.saturating_add(merged))),
        computed: "between nothing and all of the time in spills and merges: spills also sort and serialise, and merges write \
                   the output, which tasks without spills do, too"
            .to_owned(),
        disproof: "without spills the tasks of these stages take as long".to_owned(),
        remedies: more_memory(view, needs.as_ref()),
        not_measured: vec![
            "spills and merges shorter than 1 ms, and merges while a consumer reads".to_owned(),
        ],
    };
    Outcome::checked(ID, LOOKS_FOR, vec![finding], looked)
}

/// Finds page faults that waited for a disk.
pub(super) fn major_faults(view: &View, around: &Surroundings) -> Outcome {
    const ID: &str = "major_faults";
    const LOOKS_FOR: &str = "page faults that wait for a disk";
    if !view
        .executors
        .iter()
        .any(|row| row.faults.page_faults_major.is_some())
    {
        return Outcome::not_checked(
            ID,
            LOOKS_FOR,
            "major faults are not counted on this machine (smtt-ctl status)",
        );
    }
    let rate = |row: &ExecutorRow| {
        let major = row.faults.page_faults_major.unwrap_or(0);
        (major, major as f64 / (row.watched_ns.max(1) as f64 / 1e9))
    };
    let executors: Vec<&ExecutorRow> = view
        .executors
        .iter()
        .filter(|row| {
            let (major, per_second) = rate(row);
            major >= MAJOR_FAULTS && per_second >= MAJOR_FAULTS_PER_SECOND
        })
        .collect();
    let all = view
        .executors
        .iter()
        .map(|row| rate(row).0)
        .fold(0, u64::saturating_add);
    let looked = format!(
        "{} major faults of {} executors",
        units::count(all),
        view.executors.len()
    );
    if executors.is_empty() {
        return Outcome::checked(ID, LOOKS_FOR, Vec::new(), looked);
    }
    let major = executors
        .iter()
        .map(|row| rate(row).0)
        .fold(0, u64::saturating_add);
    let fastest = executors.iter().map(|row| rate(row).1).fold(0.0, f64::max);
    let waits = view.stages.iter().filter_map(|row| row.used.disk_wait_ns);
    let waited = waits.reduce(u64::saturating_add);
    let swaps = around.swap_used_bytes > Some(0);
    let finding = Finding {
        id: ID.to_owned(),
        severity: if fastest >= 10.0 * MAJOR_FAULTS_PER_SECOND {
            Severity::High
        } else {
            Severity::Medium
        },
        title: format!(
            "{} page faults waited for a disk, up to {fastest:.0} per second",
            units::count(major)
        ),
        subject: view.subject(&executors),
        window: "since the executors were first traced".to_owned(),
        numbers: [
            Some(count("major faults", major)),
            Some(count("of all executors", all)),
            around
                .swap_used_bytes
                .map(|used| bytes("swap in use on the machine", used)),
        ]
        .into_iter()
        .flatten()
        .collect(),
        cost: Cost {
            share: None,
            of: "each waits for one read of a disk; how long was not measured".to_owned(),
            estimated: false,
        },
        saving: waited.map(Saving::up_to),
        computed: match waited {
            Some(_) => "between nothing and all of the time that ended tasks waited for disks, also for files that they read",
            None => "not in seconds: how long tasks waited for disks was not measured",
        }
        .to_owned(),
        disproof: "the kernel's counts of swapped and read pages (pswpin and pgpgin in /proc/vmstat) stand still while the \
                   tasks run"
            .to_owned(),
        remedies: if swaps {
            super::pages::out_of_swap(view, around)
        } else {
            vec![remedy(
                "Nothing is swapped, so files are mapped: put jars and spark.local.dir on a faster disk, or leave more memory to \
                 the page cache by a smaller spark.executor.memory. How much the files need was not measured",
                &[],
            )]
        },
        not_measured: vec!["which file or swap area was read".to_owned()],
    };
    Outcome::checked(ID, LOOKS_FOR, vec![finding], looked)
}

/// Finds executors whose tasks are the first to touch the heap.
pub(super) fn first_touch(view: &View, around: &Surroundings) -> Outcome {
    const ID: &str = "first_touch";
    const LOOKS_FOR: &str = "storms of page faults in the first minute of an executor";
    if !view.measured.page_faults {
        return Outcome::not_checked(
            ID,
            LOOKS_FOR,
            "page faults are not counted on this machine (smtt-ctl status)",
        );
    }
    // First record too late: the traced first minute is not the executor's first one.
    let watched = |row: &&ExecutorRow| {
        let heard_ms = view.now_unix_ms.saturating_sub(row.watched_ns / 1_000_000);
        row.page_faults_first_minute.is_some()
            && (row.state != crate::rows::ExecutorState::Alive
                || row
                    .start_unix_ms
                    .is_none_or(|start| start + LATE_MS >= heard_ms))
    };
    let known: Vec<&ExecutorRow> = view.executors.iter().filter(watched).collect();
    if known.is_empty() {
        return Outcome::not_checked(
            ID,
            LOOKS_FOR,
            "no executor was traced for a minute from its start",
        );
    }
    let early = |row: &ExecutorRow| row.page_faults_first_minute.unwrap_or(0);
    let touched = |row: &ExecutorRow| {
        around
            .processes
            .get(&row.who.pid)
            .and_then(|process| process.switch("AlwaysPreTouch"))
    };
    let executors: Vec<&ExecutorRow> = known
        .iter()
        .copied()
        .filter(|row| early(row) >= EARLY_FAULTS)
        .filter(|row| part(early(row), row.faults.page_faults.unwrap_or(0)) >= EARLY_SHARE)
        .filter(|row| touched(row) != Some(true))
        .collect();
    let looked = format!("the first minute of {} executors", known.len());
    if executors.is_empty() {
        return Outcome::checked(ID, LOOKS_FOR, Vec::new(), looked);
    }
    let faults = executors
        .iter()
        .map(|row| early(row))
        .fold(0, u64::saturating_add);
    let collector = executors
        .iter()
        .filter_map(|row| row.unattributed.get("gc_thread"));
    let collector = collector.fold(0, |sum: u64, more| sum.saturating_add(*more));
    let most = executors.iter().map(|row| early(row)).max().unwrap_or(0);
    let all = executors
        .iter()
        .filter_map(|row| row.faults.page_faults)
        .fold(0, u64::saturating_add);
    // As a share of one CPU for a minute, because tasks wait for the faults.
    let time = view.fault_time();
    let cost = time.all(most) as f64 / 60e9;
    let heap = executors
        .iter()
        .filter_map(|row| row.heap_max_bytes)
        .max()
        .unwrap_or(0);
    let growing = executors.iter().any(|row| {
        around
            .processes
            .get(&row.who.pid)
            .and_then(|process| process.has("-Xms"))
            != Some(true)
    });
    let mut options = "-XX:+AlwaysPreTouch".to_owned();
    if growing && heap > 0 {
        options.push_str(&format!(" -Xms{}m", heap >> 20));
    }
    let mut remedies = vec![remedy(
        "Touch the heap when the JVM starts, before tasks run (starting takes longer). Without -Xms only the part that is \
         committed first is touched; Spark sets it on Kubernetes only. Add to what is configured:",
        &[&format!("spark.executor.extraJavaOptions  {options}")],
    )];
    if around.transparent_huge_pages.as_deref() != Some("never") {
        remedies.push(remedy(
            "With huge pages one fault brings 2 MiB instead of 4 KiB:",
            &["spark.executor.extraJavaOptions  -XX:+UseTransparentHugePages"],
        ));
    }
    let mut not_measured =
        vec!["which of the faults were on the Java heap: only those go away".to_owned()];
    if !time.is_measured {
        not_measured.insert(0, "what a fault costs on this machine".to_owned());
    }
    let finding = Finding {
        id: ID.to_owned(),
        severity: Severity::of_share(cost),
        title: format!(
            "{} of {} page faults fell into the first minute",
            units::count(faults),
            units::count(all)
        ),
        subject: view.subject(&executors),
        window: "the first minute of each executor, against its life so far".to_owned(),
        numbers: vec![
            count("page faults in the first minute", faults),
            count("the most of one executor", most),
            count("page faults in all", all),
            count("page faults of collector threads", collector),
            bytes("largest Java heap", heap),
        ],
        cost: Cost {
            share: Some(cost),
            of: format!(
                "one CPU for the first minute, by page faults of {}",
                time.words()
            ),
            estimated: true,
        },
        saving: Some(Saving {
            low: 0.0,
            ..time.seconds((faults as f64 * (1.0 - part(collector, all))) as u64)
        }),
        computed: format!(
            "page faults of the first minute, of {}, without the share that collector threads have in all; none of them for \
             the lower end, because only faults on the Java heap go away. The time moves to the start of the JVM, before tasks",
            time.words()
        ),
        disproof:
            "started with the heap touched, the executors have as many page faults while tasks run"
                .to_owned(),
        remedies,
        not_measured,
    };
    Outcome::checked(ID, LOOKS_FOR, vec![finding], looked)
}
