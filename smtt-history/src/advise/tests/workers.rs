//! What workers wrote changes the advice: the hosts that tasks waited for, the time of spills, and the workers' findings.

use std::path::Path;

use serde_json::json;
use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::workers::{Bounds, FETCHES, FUNCTIONS, REST, Whose, Workers};

use super::super::workers::Figures;
use super::super::{Finding, advise};
use super::*;

/// A span of a task's own thread: task, activity, function, milliseconds.
type Span<'a> = (i64, &'a str, &'a str, i64);

fn worker(folder: &Path, host: &str, run: u64) -> Workers {
    let any = Bounds {
        bytes: 1 << 30,
        files: 1 << 20,
    };
    Workers::take(&folder.join("store"), host, run, None, any).expect("opens")
}

fn write(workers: &mut Workers, batch: &Batch) {
    let done = workers.add(Whose::of("app-1", 7), 0, batch, &|uid| uid);
    done.expect("writes");
}

fn functions(spans: &[Span<'_>]) -> Batch {
    let mut batch = Batch::new(&FUNCTIONS);
    let (none, zero) = (Cell::None, Cell::Number(0));
    for (task, activity, function, ms) in spans {
        let who = [zero, zero, Cell::Number(*task), none, Cell::Text("task")];
        let what = [zero, Cell::Text(activity), Cell::Text(function), zero, zero];
        let own = Cell::Number(ms * 1_000_000);
        batch.push(&[&who[..], &what[..], &[own, own, none]].concat());
    }
    batch
}

fn fetches(all: &[(i64, &str, i64)]) -> Batch {
    let mut batch = Batch::new(&FETCHES);
    let (none, zero) = (Cell::None, Cell::Number(0));
    for (task, address, bytes) in all {
        let who = [zero, zero, Cell::Number(*task), none, Cell::Text(address)];
        let what = [none, zero, zero, zero, zero, Cell::Number(*bytes)];
        batch.push(&[&who[..], &what[..], &[Cell::Text("complete")]].concat());
    }
    batch
}

fn advised(folder: &Path, made: &Made) -> Advice {
    let app = made.open(folder);
    let workers = Figures::in_store(&folder.join("store"), &app, None);
    assert_eq!(workers.left_out, Vec::<String>::new());
    advise(&app, workers).expect("advises")
}

fn only<'a>(advice: &'a Advice, rule: &str) -> &'a Finding {
    let mut own = advice.findings.iter().filter(|it| it.rule == rule);
    own.next()
        .unwrap_or_else(|| panic!("no finding {rule}: {advice:#?}"))
}

fn waiting() -> Vec<Task> {
    let mut tasks = healthy(96, 14);
    for task in &mut tasks {
        task.fetch += 1500;
        task.run += 1500;
    }
    tasks
}

#[test]
fn the_host_that_tasks_wait_for_is_named() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let next = "ShuffleBlockFetcherIterator.next from";
    let (slow, quick) = (format!("{next} host9:7337"), format!("{next} [::1]:7337"));
    let spans: Vec<Span<'_>> = (0..96)
        .flat_map(|task| {
            [
                (task, "shuffle_fetch", slow.as_str(), 1200),
                (task, "shuffle_fetch", quick.as_str(), 300),
                (task, "sort", "sort", 9000),
            ]
        })
        .collect();
    let sent: Vec<_> = (0..96)
        .flat_map(|task| [(task, "host9:7337", 1 << 20), (task, "[::1]:7337", 1 << 20)])
        .collect();
    let made = made(waiting());
    std::fs::create_dir_all(folder.path().join("store")).expect("makes a folder");
    let mut workers = worker(folder.path(), "node-1", 10);
    write(&mut workers, &functions(&spans));
    write(&mut workers, &fetches(&sent));
    let advice = advised(folder.path(), &made);
    let finding = only(&advice, "fetch_wait");
    let said: Vec<&str> = finding.numbers.iter().map(|it| it.value.as_str()).collect();
    assert!(
        said.iter().any(|it| it.starts_with("80.0 % for host9 (")
            && it.ends_with("which sent 50.0 % of the bytes from other executors")),
        "{said:?}"
    );
    assert!(
        said.iter().any(|it| it.starts_with("20.0 % for [::1] (")),
        "{said:?}"
    );
    assert_eq!(finding.settings[0].name, "the host host9", "{finding:#?}");
    let missing = finding.not_measured.join("; ");
    assert!(
        missing.contains("the log does not name the stages that it reads")
            && !missing.contains("no worker wrote"),
        "{missing}"
    );
}

#[test]
fn the_time_of_spills_bounds_what_they_cost() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut tasks = healthy(64, 13);
    for task in &mut tasks {
        task.spilled = 1 << 28;
    }
    let made = made(tasks);
    std::fs::create_dir_all(folder.path().join("store")).expect("makes a folder");
    let spans: Vec<Span<'_>> = (0..64)
        .flat_map(|task| {
            [
                (task, "spill", "spill", 400),
                (task, "merge", "merge", 250),
                (task, "merge", "merge", 50),
            ]
        })
        .collect();
    // An older daemon saw the tasks before, and what it wrote does not count.
    let older = [(0, "spill", "spill", 900_000)];
    write(&mut worker(folder.path(), "node-1", 9), &functions(&older));
    write(&mut worker(folder.path(), "node-1", 10), &functions(&spans));
    let advice = advised(folder.path(), &made);
    let finding = only(&advice, "spilling");
    // Four rounds on each core, of 300 ms at least and 700 ms at most.
    let noise = 0.05 * advice.stage_seconds;
    let saving = finding.saving;
    assert!((saving.low - (1.2 - noise)).abs() < 0.05, "{saving:?}");
    assert!((saving.high - (2.8 + noise)).abs() < 0.05, "{saving:?}");
    let said: Vec<_> = finding
        .numbers
        .iter()
        .map(|it| format!("{}: {}", it.what, it.value))
        .collect();
    assert!(
        said.iter()
            .any(|it| it.starts_with("in spills, without their sorting: 25.6 s")),
        "{said:?}"
    );
    assert!(finding.not_measured[0].contains("0 of the 64 tasks"));
}

#[test]
fn a_wait_for_a_late_map_task_is_measured() {
    let made = Made::new(
        "app-1",
        vec![
            Stage::new("maps", healthy(32, 3)),
            Stage::new("reads", waiting()),
        ],
    );
    let wait = |late: i64| {
        let folder = tempfile::tempdir().expect("makes a folder");
        let lines = with_times(&made.log().0, |info| {
            if info["Task ID"] == 31 {
                later(info, "Finish Time", late);
            }
        });
        let mut lines: Vec<serde_json::Value> = lines
            .iter()
            .map(|line| serde_json::from_str(line).expect("parses"))
            .collect();
        for line in &mut lines {
            if line["Stage Info"]["Stage ID"] == 1 {
                line["Stage Info"]["Parent IDs"] = json!([0]);
                line["Stage Info"]["RDD Info"] = json!([{"RDD ID": 9, "Name": "r", "Parent IDs": [], "Number of Partitions": 7,
                    "Storage Level": {"Use Memory": false, "Replication": 1}}]);
            }
        }
        let expected = behind_maps(&lines);
        let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
        let app = opened(folder.path(), &lines);
        let advice = advise(&app, Figures::default()).expect("advises");
        let numbers = &only(&advice, "fetch_wait").numbers;
        let own = numbers.iter().find(|it| it.what.contains("still ran"));
        (own.expect("is measured").value.clone(), expected)
    };
    // Without a late task, with one until which some of the tasks waited a part of their wait, and with later ones.
    for (late, least) in [(0, 0), (500, 0), (1000, 1), (3000, 20_000), (5000, 30_000)] {
        let (said, expected) = wait(late);
        assert!(expected >= least, "{late}: {expected} ms");
        let shown = match expected {
            0 => "0 ms".to_owned(),
            ms => smtt_model::units::duration(ms * 1_000_000),
        };
        assert!(
            said.starts_with(&format!("{shown} (")),
            "{late}: {said}, not {shown}"
        );
    }
}

/// Milliseconds of the second stage's waits for which tasks of the first may have run: from the launch of each to the last
/// end in the first, as far as it waited so long.
fn behind_maps(lines: &[serde_json::Value]) -> u64 {
    let ends: Vec<&serde_json::Value> = lines
        .iter()
        .filter(|line| line["Event"] == "SparkListenerTaskEnd")
        .collect();
    let time = |line: &serde_json::Value, name: &str| line["Task Info"][name].as_i64();
    let of = |stage: i64| ends.iter().filter(move |line| line["Stage ID"] == stage);
    let until = of(0).filter_map(|line| time(line, "Finish Time")).max();
    let until = until.expect("has tasks");
    let waits = of(1).map(|line| {
        let wait = &line["Task Metrics"]["Shuffle Read Metrics"]["Fetch Wait Time"];
        let launch = time(line, "Launch Time").expect("was launched");
        (until - launch).clamp(0, wait.as_i64().expect("is a number"))
    });
    waits.sum::<i64>().unsigned_abs()
}

#[test]
fn findings_of_the_newest_daemon_of_a_worker_stand_beside() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let made = made(healthy(32, 3));
    std::fs::create_dir_all(folder.path().join("store")).expect("makes a folder");
    let document = |title: &str| {
        let finding = json!({"id": "never_read", "severity": "high", "title": title, "window": "w", "computed": "c",
            "disproof": "d", "not_measured": ["m"], "cost": {"of": "o", "estimated": false},
            "subject": {"application_id": "app-1", "executor_ids": []},
            "numbers": [{"what": "blocks stored", "value": 4, "unit": "count"}],
            "saving": {"low": 1.0, "expected": 2.0, "high": 3.0},
            "remedies": [{"why": "free it", "lines": ["rdd.unpersist()"]}]});
        let advice = json!({"application_id": "app-1", "application_name": "n", "findings": [finding], "checks": []});
        let mut batch = Batch::new(&REST);
        batch.push(&[
            Cell::Text("findings"),
            Cell::Text(""),
            Cell::Text(&advice.to_string()),
        ]);
        batch
    };
    write(&mut worker(folder.path(), "node-1", 9), &document("old"));
    write(
        &mut worker(folder.path(), "node-1", 10),
        &document("new \u{1b}[2J"),
    );
    write(&mut worker(folder.path(), "node-2", 5), &document("other"));
    let advice = advised(folder.path(), &made);
    let titles: Vec<_> = advice
        .workers
        .iter()
        .map(|it| (it.worker.as_str(), it.advice.findings[0].title.as_str()))
        .collect();
    assert_eq!(titles, [("node-1", "new \u{1b}[2J"), ("node-2", "other")]);
    let text = super::super::text::text(&advice);
    for part in [
        "of the worker node-2",
        "2.0 s (between 1.0 s and 3.0 s) of the executors' threads",
        "rdd.unpersist()",
        "blocks stored: 4",
    ] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    assert!(!text.contains('\u{1b}'), "{text}");
}

/// What a worker wrote of tasks: id, milliseconds of waits for a CPU, major faults, milliseconds of page faults with half of
/// their interval.
fn accounts(all: &[(i64, i64, i64, i64, i64)]) -> Batch {
    use smtt_store::history::workers::TASKS;
    let mut batch = Batch::new(&TASKS);
    let ns = |ms: &i64| Cell::Number(ms * 1_000_000);
    for (task, wait, major, time, error) in all {
        let (none, zero) = (Cell::None, Cell::Number(0));
        let who = [
            zero,
            zero,
            Cell::Number(*task),
            none,
            Cell::Text("succeeded"),
        ];
        let what = [none, none, none, none, none, Cell::Text("{}")];
        let more = [ns(wait), Cell::Number(*major), ns(time), ns(error)];
        batch.push(&[&who[..], &what[..], &more[..]].concat());
    }
    batch
}

/// Sixty-four even tasks, of which four take 8 s longer, with what a worker saw of the late ones and of the others.
fn late(own: (i64, i64, i64, i64), others: (i64, i64, i64, i64)) -> Advice {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut tasks = healthy(64, 5);
    let is_late = |at: usize| at >= 50 && at.is_multiple_of(4);
    for (at, task) in tasks.iter_mut().enumerate() {
        task.run += if is_late(at) { 8000 } else { 0 };
    }
    std::fs::create_dir_all(folder.path().join("store")).expect("makes a folder");
    let seen: Vec<_> = (0..64)
        .map(|at| {
            let (wait, major, time, error) = if is_late(at) { own } else { others };
            (at as i64, wait, major, time, error)
        })
        .collect();
    write(&mut worker(folder.path(), "node-1", 10), &accounts(&seen));
    advised(folder.path(), &made(tasks))
}

#[test]
fn memory_pressure_explains_late_tasks() {
    let advice = late((10, 4000, 7900, 300), (10, 0, 40, 5));
    let finding = only(&advice, "skew");
    assert!(finding.title.contains("memory pressure"), "{finding:#?}");
    assert_eq!(finding.settings[0].name, "spark.executor.memory");
    // The lower end of what was measured: 7.6 s, less the median of the others.
    let explained = finding.numbers.iter().map(|it| it.value.as_str());
    let explained: Vec<&str> = explained.filter(|it| it.contains("memory")).collect();
    assert!(explained[0].contains(": 94."), "{explained:?}");
    assert!(finding.not_measured.is_empty(), "{finding:#?}");
    // Four seconds of four tasks, at least.
    let (low, high) = (finding.saving.low, finding.saving.high);
    assert!(low < 8.0 && 7.5 < high, "{finding:#?}");
}

#[test]
fn page_faults_without_a_disk_are_no_memory_pressure() {
    let advice = late((10, 0, 7900, 300), (10, 0, 40, 5));
    let finding = only(&advice, "skew");
    assert!(
        finding.title.contains("nothing that was measured"),
        "{finding:#?}"
    );
    // What is usual for all tasks explains none.
    let advice = late((10, 4000, 7900, 300), (10, 4000, 7900, 300));
    let finding = only(&advice, "skew");
    assert!(!finding.title.contains("memory pressure"), "{finding:#?}");
}

#[test]
fn waiting_for_a_cpu_explains_late_tasks() {
    let advice = late((7800, 0, 40, 5), (10, 0, 40, 5));
    let finding = only(&advice, "skew");
    assert!(finding.title.ends_with("waiting for a CPU"), "{finding:#?}");
    assert!(finding.settings[1].name == "spark.executor.cores");
}

#[test]
fn even_tasks_with_pressure_and_waits_have_no_finding() {
    let folder = tempfile::tempdir().expect("makes a folder");
    std::fs::create_dir_all(folder.path().join("store")).expect("makes a folder");
    let seen: Vec<_> = (0..64).map(|at| (at, 300, 50, 200, 20)).collect();
    write(&mut worker(folder.path(), "node-1", 10), &accounts(&seen));
    let advice = advised(folder.path(), &made(healthy(64, 5)));
    assert!(advice.findings.is_empty(), "{:#?}", advice.findings);
}
