//! The server under everything that is asked at once, within the memory that the systemd unit gives the daemon. The
//! process of this test is the daemon: it has a state, the server, and clients that keep nothing.

mod filled;
mod resident;
mod served;

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use smtt_common::event::used::{ACCOUNTS, TaskUsed};
use smtt_daemon::shared::Shared;
use smtt_model::decode::{ConsumerUsed, Fact, Outcome, StageDescribed, TaskEnded, TaskStarted};
use smtt_model::state::Limits;

use self::filled::{one_more, tick};
use self::resident::{alone, apply, ask_all, described, figure, peak, read, shared, within_memory};
use self::served::served;

/// Rows of each kind that are offered for an executor: several times what the state takes.
const ROWS_MAX: u64 = 600;
/// Resident memory of the process at which the state counts as full.
const STATE_MAX: u64 = 112 << 20;

/// A task as Spark SQL has them, with the consumers of its execution memory.
fn task(shared: &Shared, executor: u64, task: u64) {
    let started = TaskStarted {
        task_attempt_id: task,
        stage_id: (task / 200) as u32,
        partition: (task % 200) as u32,
        ..TaskStarted::default()
    };
    apply(shared, executor, Fact::TaskStarted(started));
    for class in [
        "org.apache.spark.unsafe.map.BytesToBytesMap",
        "org.apache.spark.shuffle.sort.ShuffleExternalSorter",
        "org.apache.spark.util.collection.unsafe.sort.UnsafeExternalSorter",
    ] {
        let used = ConsumerUsed {
            task_attempt_id: Some(task),
            instances: 1,
            peak_bytes: 1 << 26,
            counted_bytes: Some(1 << 26),
            estimated: false,
            consumer: class.to_owned(),
        };
        apply(shared, executor, Fact::ConsumerUsed(used));
    }
    let ended = TaskEnded {
        task_attempt_id: task,
        stage_id: (task / 200) as u32,
        stage_attempt: 0,
        outcome: Outcome::Succeeded,
        execution_memory_peak_bytes: 1 << 27,
        reason: String::new(),
    };
    apply(shared, executor, Fact::TaskEnded(ended));
}

/// Everything that ends, of the table of paths in docs/API.md, which has the others below.
const LISTINGS: [&str; 23] = [
    "/v1/doctor",
    "/v1/answered",
    "/v1/advise",
    "/v1/tasks/ended",
    "/v1/pages/executors",
    "/v1/tasks",
    "/v1/stages",
    "/v1/stages/summary",
    "/v1/jobs",
    "/v1/queries",
    "/v1/memory",
    "/v1/postmortem",
    "/v1/tasks/failed",
    "/v1/rdds",
    "/v1/blocks",
    "/v1/executors",
    "/v1/pages",
    "/v1/pages/blocks",
    "/v1/pages/tasks",
    "/v1/report",
    "/v1/history",
    "/metrics",
    "/v1/status",
];

/// Paths whose answer never ends, takes the id of a death, has rows of files (a test of their own), or is a line.
const OTHERS: [&str; 6] = [
    "/v1/earlier/{listing}",
    "/v1/trace/follow",
    "/v1/postmortem/report",
    "/-/healthy",
    "/-/ready",
    "/",
];

#[test]
fn no_path_is_left_out() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/API.md");
    let text = std::fs::read_to_string(document).expect("docs/API.md");
    let paths = text.lines().filter_map(|line| line.strip_prefix("| `/"));
    let paths: Vec<String> = paths
        .filter_map(|line| Some(format!("/{}", line.split_once('`')?.0)))
        .collect();
    for path in &paths {
        let path = path.as_str();
        let named = LISTINGS.contains(&path) || OTHERS.contains(&path);
        assert!(named, "{path} is asked by no test of memory");
    }
    assert_eq!(paths.len(), LISTINGS.len() + OTHERS.len());
}

#[test]
fn all_tasks_of_six_executors_fit_the_memory_of_the_unit() {
    alone(
        "all_tasks_of_six_executors_fit_the_memory_of_the_unit",
        || {
            let shared = shared(Limits::default());
            let tasks = Limits::default().tasks_per_executor as u64;
            for executor in 1..=6 {
                described(&shared, executor);
                for id in 0..tasks {
                    task(&shared, executor, executor * 100_000 + id);
                }
            }
            let filled = figure("VmRSS:");
            served(&shared, |socket, port| {
                let (status, bytes) =
                    read(UnixStream::connect(socket).expect("connected"), "/v1/tasks");
                println!(
                    "state {} MiB, answer {} MiB, peak {} MiB",
                    filled >> 20,
                    bytes >> 20,
                    peak() >> 20
                );
                assert_eq!(status, 200);
                assert!(bytes > 6 * tasks * 300, "{bytes} bytes are not all tasks");
                let answers = ask_all(socket, port, &["/v1/tasks", "/v1/report", "/metrics"], 4);
                for (path, status, bytes) in &answers {
                    println!("{path}: {status}, {bytes} bytes");
                    assert!(matches!(status, 200 | 503), "{path}: {status}");
                }
                assert!(
                    answers
                        .iter()
                        .any(|(path, status, _)| path == "/v1/tasks" && *status == 200)
                );
            });
            within_memory();
        },
    );
}

#[test]
fn stages_of_one_task_each_fit_the_memory_of_the_unit() {
    alone("stages_of_one_task_each_fit_the_memory_of_the_unit", || {
        let limits = Limits::default();
        let shared = shared(limits);
        for executor in 1..=40 {
            described(&shared, executor);
            for number in 0..limits.stages_per_executor as u64 {
                let id = executor << 16 | number;
                let stage = StageDescribed {
                    stage_id: id as u32,
                    job_id: Some(id as u32),
                    sql_execution_id: Some(id),
                    name: "count at Main.scala:10".to_owned(),
                    ..StageDescribed::default()
                };
                apply(&shared, executor, Fact::StageDescribed(stage));
                let started = TaskStarted {
                    task_attempt_id: id,
                    stage_id: id as u32,
                    ..TaskStarted::default()
                };
                apply(&shared, executor, Fact::TaskStarted(started));
                let used = TaskUsed {
                    task_attempt_id: id,
                    accounts: [id; ACCOUNTS],
                    present: (1 << ACCOUNTS) - 1,
                    ..TaskUsed::default()
                };
                apply(&shared, executor, Fact::TaskUsed(Box::new(used)));
                let ended = TaskEnded {
                    task_attempt_id: id,
                    stage_id: id as u32,
                    stage_attempt: 0,
                    outcome: Outcome::Succeeded,
                    execution_memory_peak_bytes: 0,
                    reason: String::new(),
                };
                apply(&shared, executor, Fact::TaskEnded(ended));
            }
        }
        println!("state {} MiB", figure("VmRSS:") >> 20);
        served(&shared, |socket, _| {
            for path in ["/v1/stages/summary", "/v1/jobs", "/v1/queries"] {
                let stream = UnixStream::connect(socket).expect("connected");
                let (status, bytes) = read(stream, path);
                println!("{path}: {status}, {bytes} bytes, peak {} MiB", peak() >> 20);
                assert_eq!(status, 200, "{path}");
                assert!(bytes > 8 << 20, "{path}: {bytes} bytes are not all rows");
            }
        });
        within_memory();
    });
}

/// Threads of this process that make answers.
fn answering() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").expect("threads");
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok())
        .filter(|name| name.trim() == "smtt-answer")
        .count()
}

#[test]
fn clients_that_ask_and_hang_up_start_no_work_beside_each_other() {
    alone(
        "clients_that_ask_and_hang_up_start_no_work_beside_each_other",
        || {
            let shared = shared(Limits::default());
            described(&shared, 1);
            served(&shared, |socket, port| {
                // Nothing that is begun can end.
                let state = shared.state();
                for _ in 0..100 {
                    let mut scraper = TcpStream::connect(port).expect("connected");
                    let mut client = UnixStream::connect(socket).expect("connected");
                    let question =
                        |path: &str| format!("GET {path} HTTP/1.1\r\nHost: smtt\r\n\r\n");
                    scraper
                        .write_all(question("/metrics").as_bytes())
                        .expect("asked");
                    client
                        .write_all(question("/v1/tasks").as_bytes())
                        .expect("asked");
                    std::thread::sleep(Duration::from_millis(5));
                }
                let threads = answering();
                assert!((1..=2).contains(&threads), "{threads} threads make answers");
                drop(state);
                let stream = TcpStream::connect(port).expect("connected");
                assert_eq!(read(stream, "/metrics").0, 200);
            });
        },
    );
}

#[test]
fn everything_at_once_fits_the_memory_of_the_unit() {
    alone("everything_at_once_fits_the_memory_of_the_unit", || {
        let limits = Limits::default();
        let shared = shared(limits);
        let executors = limits.executors as u64;
        for executor in 1..=executors {
            described(&shared, executor);
        }
        // Until no executor gets a row any more. Ended rows make room for new ones, so there is a most.
        let mut number = 0;
        while figure("VmRSS:") < STATE_MAX && number < ROWS_MAX {
            number += 1;
            let mut taken = false;
            for executor in 1..=executors {
                taken |= one_more(&shared, executor, number);
            }
            tick(&shared, executors, number);
            if !taken {
                break;
            }
        }
        println!(
            "{number} rows of each kind in {executors} executors: {} MiB",
            figure("VmRSS:") >> 20
        );
        assert!(number > ROWS_MAX / 6, "only {number} rows of each kind");
        served(&shared, |socket, port| {
            // Clients that never read their answers.
            let question = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: smtt\r\n\r\n");
            let scrapers: Vec<TcpStream> = (0..40)
                .map(|_| {
                    let mut stream = TcpStream::connect(port).expect("connected");
                    // The server may close it before.
                    let _ = stream.write_all(question("/metrics").as_bytes());
                    stream
                })
                .collect();
            // Clients that follow the records and never read them.
            let followers: Vec<UnixStream> = (0..8)
                .map(|_| {
                    let mut stream = UnixStream::connect(socket).expect("connected");
                    let _ = stream.write_all(question("/v1/trace/follow").as_bytes());
                    stream
                })
                .collect();
            let answers = ask_all(socket, port, &LISTINGS, 2);
            for (path, status, bytes) in &answers {
                println!("{path}: {status}, {bytes} bytes");
                assert!(matches!(status, 200 | 503), "{path}: {status}");
            }
            for path in ["/metrics", "/v1/status"] {
                let answered = |(of, status, _): &(String, u16, u64)| of == path && *status == 200;
                assert!(answers.iter().any(answered), "{path} needs no turn");
            }
            // One after the other each is answered.
            for path in LISTINGS {
                let stream = UnixStream::connect(socket).expect("connected");
                let (status, bytes) = read(stream, path);
                println!("{path}: {status}, {bytes} bytes, peak {} MiB", peak() >> 20);
                assert_eq!(status, 200, "{path}");
            }
            drop((scrapers, followers));
        });
        within_memory();
    });
}
