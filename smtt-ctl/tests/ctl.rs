//! `smtt-ctl` as users and scripts call it: the real binary against a served state, without the kernel side.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

use serde_json::Value;
use smtt_common::counter::{COUNTERS, ContextKey, Counter, ExecutorCounters, FaultCounters};
use smtt_common::event::marker::storage_level;
use smtt_daemon::server::{ControlSocket, serve_control};
use smtt_daemon::shared::{DaemonInfo, Shared};
use smtt_model::decode::encode::encode;
use smtt_model::decode::{
    BlockFact, Event, ExecutorDescribed, Fact, Outcome, PageAllocated, RddDescribed,
    StageDescribed, TaskEnded, TaskStarted, decode,
};
use smtt_model::ledger::{DecodeCounts, SourceCounts};
use smtt_model::readings::Readings;
use smtt_model::state::Limits;
use smtt_model::verdict::{Verdict, VerdictState};
use tokio::sync::oneshot;

#[path = "ctl/advise.rs"]
mod advise;
#[path = "ctl/api.rs"]
mod api;
#[path = "ctl/changed.rs"]
mod changed;
#[path = "ctl/cluster.rs"]
mod cluster;
#[path = "ctl/earlier.rs"]
mod earlier;
#[path = "ctl/exits.rs"]
mod exits;
#[path = "ctl/golden.rs"]
mod golden;
#[path = "ctl/habits.rs"]
mod habits;
#[path = "ctl/kubernetes.rs"]
mod kubernetes;
#[path = "ctl/many.rs"]
mod many;
#[path = "ctl/memory.rs"]
mod memory;
#[path = "ctl/pages.rs"]
mod pages;
#[path = "ctl/questions.rs"]
mod questions;
#[path = "ctl/reports.rs"]
mod reports;
#[path = "ctl/room.rs"]
mod room;
#[path = "ctl/tasks.rs"]
mod tasks;
#[path = "ctl/tls.rs"]
mod tls;
#[path = "ctl/top.rs"]
mod top;
#[path = "ctl/twins.rs"]
mod twins;
#[path = "ctl/unanswered.rs"]
mod unanswered;
#[path = "ctl/workers.rs"]
mod workers;

/// Key of the executor; its low half is the process id.
const KEY: u64 = 4711;

/// A server's thread, which ends with this value.
struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    const fn new(stop: oneshot::Sender<()>, thread: JoinHandle<()>) -> Self {
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

/// A daemon without a kernel side.
struct Daemon {
    socket: PathBuf,
    shared: Arc<Shared>,
    _server: Server,
    _folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Daemon {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("smtt.sock");
        let shared = Arc::new(Shared::new(
            DaemonInfo {
                version: "0.1.0".to_owned(),
                kernel_side: "none".to_owned(),
                telemetry_path: "/metrics".to_owned(),
                metrics: smtt_daemon::metrics::MetricsSettings::at_once(100),
                doctor: golden::machine,
            },
            Limits::default(),
        ));
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, bound) = std::sync::mpsc::channel();
        let (path, served) = (socket.clone(), Arc::clone(&shared));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let socket = ControlSocket::bind(&path, "").expect("bound");
                ready.send(()).expect("the test waits");
                let until = async {
                    let _ = stopped.await;
                };
                serve_control(served, socket, until).await.expect("served");
            });
        });
        bound.recv().expect("bound");
        Self {
            socket,
            shared,
            _server: Server::new(stop, thread),
            _folder: folder,
        }
    }

    /// A daemon that has seen a small job, and lost nothing.
    fn with_job() -> Self {
        Self::with(&job(), 1000)
    }

    /// A daemon that has seen these facts of a user, and lost nothing.
    fn with(facts: &[Fact], uid: u32) -> Self {
        let daemon = Self::start();
        let verdict = |probe: &str| Verdict {
            name: probe.to_owned(),
            hook: format!("hook of {probe}"),
            verdict: VerdictState::Ok,
            reason: String::new(),
        };
        daemon
            .shared
            .set_verdicts(["fault", "fault_major", "marker"].map(verdict).to_vec());
        daemon.shared.set_ready(true);
        let mut decoded = DecodeCounts::default();
        for (time_ns, fact) in facts.iter().enumerate() {
            let event = Event {
                time_ns: time_ns as u64 * 1_000_000,
                executor: KEY,
                pid: 4711,
                tid: 4711,
                uid,
                fact: fact.clone(),
            };
            let (header, payload) = encode(&event);
            let event = decode(&header, &payload);
            decoded.count(&event);
            daemon.shared.state().apply(event.expect("decoded"));
        }
        let count = facts.len() as u64;
        let growth = FaultCounters {
            read: 1000,
            write: 500,
            major: 3,
            ..FaultCounters::default()
        };
        let context = ContextKey {
            executor: KEY,
            task_attempt_id: 1,
            stage_id: 3,
            rdd_plus_one: 8,
            ..ContextKey::default()
        };
        let mut totals = ExecutorCounters {
            attributed: growth,
            facts_seen: count,
            ..ExecutorCounters::default()
        };
        totals.unattributed[1].read = 500;
        let mut counters = [0; COUNTERS];
        counters[Counter::RECORDS_SUBMITTED.0 as usize] = count;
        let readings = Readings {
            contexts: vec![(context, growth)],
            executors: vec![(KEY, totals)],
            before: vec![(KEY, 65_120)],
            counters,
            access_known: true,
            major_known: true,
            ..Readings::default()
        };
        daemon.shared.state().add(&readings, 20_000_000);
        daemon.shared.tick(
            SourceCounts {
                taken: count,
                malformed: 0,
            },
            &decoded,
        );
        daemon
    }

    /// Adds a fact of the job's executor to the state.
    fn apply(&self, time_ns: u64, uid: u32, fact: Fact) {
        self.shared.state().apply(Event {
            time_ns,
            executor: KEY,
            pid: 4711,
            tid: 4711,
            uid,
            fact,
        });
    }

    fn ctl(&self, arguments: &[&str]) -> Output {
        ctl(&self.socket, arguments, "80")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.ctl(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// The JSON of a query that selects nothing.
    fn nothing(&self, arguments: &[&str]) -> Value {
        let output = self.ctl(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}

fn ctl(socket: &Path, arguments: &[&str], columns: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_smtt-ctl"))
        .env("SMTT_SOCKET", socket)
        .env("COLUMNS", columns)
        .args(arguments)
        .output()
        .expect("smtt-ctl runs")
}

fn job() -> Vec<Fact> {
    vec![
        Fact::ExecutorDescribed(Box::new(ExecutorDescribed {
            application_id: "app-20260101120000-0001".to_owned(),
            application_name: "PageRank".to_owned(),
            executor_id: "0".to_owned(),
            host: "worker-1".to_owned(),
            ..ExecutorDescribed::default()
        })),
        Fact::RddDescribed(Box::new(RddDescribed {
            rdd_id: 7,
            name: "ranks of a job whose author likes names that go on and on".to_owned(),
            storage_level: storage_level::MEMORY | 1 << storage_level::REPLICATION_SHIFT,
            storage_level_text: "Memory Serialized 1x Replicated".to_owned(),
            ..RddDescribed::default()
        })),
        Fact::RddDescribed(Box::new(RddDescribed {
            rdd_id: 99,
            name: "by-the-way".to_owned(),
            ..RddDescribed::default()
        })),
        Fact::StageDescribed(StageDescribed {
            stage_id: 3,
            tasks: 2,
            name: "map".to_owned(),
            ..StageDescribed::default()
        }),
        Fact::TaskStarted(TaskStarted {
            task_attempt_id: 1,
            stage_id: 3,
            ..TaskStarted::default()
        }),
        Fact::TaskStarted(TaskStarted {
            task_attempt_id: 2,
            stage_id: 3,
            partition: 1,
            ..TaskStarted::default()
        }),
        Fact::BlockStored(Box::new(BlockFact {
            block_id: "rdd_7_0".to_owned(),
            rdd_id: Some(7),
            partition: Some(0),
            size_bytes: 1 << 20,
            serialized: true,
            range_total: 1,
            ranges: vec![(0x7f00_0000_0000, 1 << 20)],
            task_attempt_id: Some(1),
            ..BlockFact::default()
        })),
        Fact::PageAllocated(PageAllocated {
            task_attempt_id: Some(2),
            page_number: Some(0),
            address: 0x1000,
            size_bytes: 4096,
            rdd_id: Some(7),
            ..PageAllocated::default()
        }),
        Fact::TaskEnded(TaskEnded {
            task_attempt_id: 1,
            stage_id: 3,
            stage_attempt: 0,
            outcome: Outcome::Succeeded,
            execution_memory_peak_bytes: 12_345,
            reason: String::new(),
        }),
    ]
}

/// Fields of the first row, which all must be there.
fn fields(rows: &Value, names: &[&str]) {
    let row = rows
        .get(0)
        .and_then(Value::as_object)
        .unwrap_or_else(|| panic!("no row in {rows}"));
    for name in names {
        assert!(row.contains_key(*name), "no {name} in {row:?}");
    }
}

#[test]
fn rdds_as_json() {
    let daemon = Daemon::with_job();
    let rows = daemon.json(&["rdds", "--json"]);
    fields(
        &rows,
        &[
            "application_id",
            "executor_id",
            "rdd_id",
            "name",
            "storage_level",
            "partitions_cached",
            "page_faults_read",
            "page_faults_write",
            "page_faults_major",
            "storage_memory_bytes",
            "execution_memory_bytes",
            "attributed_by",
        ],
    );
    let row = &rows[0];
    assert_eq!(
        (row["rdd_id"].as_u64(), row["storage_memory_bytes"].as_u64()),
        (Some(7), Some(1 << 20))
    );
    assert_eq!(
        (
            row["page_faults_read"].as_u64(),
            row["execution_memory_bytes"].as_u64()
        ),
        (Some(1000), Some(4096))
    );
    assert_eq!(row["attributed_by"], "context");
    assert_eq!(
        daemon.nothing(&["rdds", "--json", "--rdd", "8"]),
        Value::Array(Vec::new())
    );
    assert_eq!(
        daemon.json(&[
            "rdds",
            "--json",
            "--app",
            "PageRank",
            "--executor",
            "0",
            "--stage",
            "3"
        ])[0]["rdd_id"],
        7
    );
}

#[test]
fn tasks_blocks_stages_and_executors_as_json() {
    let daemon = Daemon::with_job();
    let tasks = daemon.json(&["tasks", "--json", "--sort", "task_attempt_id:desc"]);
    fields(
        &tasks,
        &[
            "application_id",
            "executor_id",
            "stage_id",
            "stage_attempt",
            "task_attempt_id",
            "partition",
            "state",
            "duration_ns",
            "page_faults_read",
            "page_faults_write",
            "page_faults_major",
            "execution_memory_peak_bytes",
        ],
    );
    assert_eq!(
        (&tasks[0]["task_attempt_id"], &tasks[0]["state"]),
        (&Value::from(2), &Value::from("running"))
    );
    assert_eq!(
        (&tasks[1]["state"], &tasks[1]["duration_ns"]),
        (&Value::from("succeeded"), &Value::from(4_000_000))
    );
    assert_eq!(tasks[1]["execution_memory_peak_bytes"], 12_345);
    let blocks = daemon.json(&["blocks", "--json"]);
    fields(
        &blocks,
        &[
            "block_id",
            "rdd_id",
            "partition",
            "size_bytes",
            "ranges",
            "on_heap",
            "serialized",
        ],
    );
    assert_eq!(
        blocks[0]["ranges"][0]["address"].as_u64(),
        Some(0x7f00_0000_0000)
    );
    assert_eq!(blocks[0]["ranges"][0]["length"].as_u64(), Some(1 << 20));
    assert_eq!(daemon.json(&["stages", "--json"])[0]["tasks_running"], 1);
    let executors = daemon.json(&["executors", "--json"]);
    assert_eq!(
        (
            executors[0]["page_faults"].as_u64(),
            executors[0]["unattributed"]["gc_thread"].as_u64()
        ),
        (Some(2000), Some(500))
    );
    assert_eq!(executors[0]["unattributed_share"].as_f64(), Some(0.25));
}

#[test]
fn status_as_json() {
    let daemon = Daemon::with_job();
    let status = daemon.json(&["status", "--json"]);
    fields(&status["probes"], &["name", "hook", "verdict", "reason"]);
    fields(
        &status["ledger"],
        &["name", "attempted", "delivered", "lost"],
    );
    for figure in ["cpu_seconds", "rss_bytes", "bpf_memory_bytes"] {
        assert!(status["daemon"].get(figure).is_some(), "{figure}");
    }
    assert_eq!(status["degraded"], Value::Array(Vec::new()));
    for hop in status["ledger"].as_array().expect("hops") {
        assert_eq!(hop["consistent"], true, "{hop}");
    }
}

#[test]
fn tables_fit_the_terminal_and_end_with_the_unattributed_share() {
    let daemon = Daemon::with_job();
    pages::looked_at(&daemon);
    for columns in ["60", "80", "132"] {
        for listing in [
            "executors",
            "stages",
            "tasks",
            "rdds",
            "blocks",
            "pages",
            "report",
            "status",
        ] {
            let output = ctl(&daemon.socket, &[listing], columns);
            assert!(output.status.success(), "{listing}: {output:?}");
            let text = String::from_utf8(output.stdout).expect("text");
            let most = text
                .lines()
                .map(|line| line.chars().count())
                .max()
                .unwrap_or(0);
            assert!(
                most <= columns.parse().expect("a number"),
                "{listing} takes {most} of {columns} columns:\n{text}"
            );
            assert!(!text.contains('\u{1b}'), "no styles without a terminal");
            if ["executors", "stages", "tasks"].contains(&listing) {
                assert!(
                    text.ends_with(
                        "unattributed: 500 of 2,000 page faults (25.0 %)\n\
                         before tracing: 65,120 page faults, in no figure above\n"
                    ),
                    "{listing}:\n{text}"
                );
            }
        }
    }
    let text = String::from_utf8(daemon.ctl(&["rdds"]).stdout).expect("text");
    assert!(
        text.starts_with("application app-20260101120000-0001\n"),
        "{text}"
    );
    assert!(text.contains("1.0 MiB") && text.contains("1,000"), "{text}");
}

#[test]
fn rdds_that_did_nothing_are_left_out_of_the_table_only() {
    let daemon = Daemon::with_job();
    let text = |arguments: &[&str]| String::from_utf8(daemon.ctl(arguments).stdout).expect("text");
    assert!(!text(&["rdds"]).contains("by-the-way"));
    assert!(text(&["rdds"]).ends_with(
        "unattributed: 500 of 2,000 page faults (25.0 %)\n\
         before tracing: 65,120 page faults, in no figure above\n\
         not listed: 1 idle RDDs (--all lists them)\n"
    ));
    assert!(text(&["rdds", "--all"]).contains("by-the-way"));
    assert!(text(&["rdds", "--rdd", "99"]).contains("by-the-way"));
    assert_eq!(
        daemon.json(&["rdds", "--json"]).as_array().map(Vec::len),
        Some(2)
    );
}

#[test]
fn a_reader_that_has_seen_enough_is_fine() {
    let daemon = Daemon::with_job();
    for _ in 0..5 {
        let mut child = Command::new(env!("CARGO_BIN_EXE_smtt-ctl"))
            .args([
                "--socket".as_ref(),
                daemon.socket.as_os_str(),
                "status".as_ref(),
                "--json".as_ref(),
            ])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("smtt-ctl runs");
        drop(child.stdout.take());
        let mut said = String::new();
        child
            .stderr
            .take()
            .expect("piped")
            .read_to_string(&mut said)
            .expect("read");
        let status = child.wait().expect("ended");
        assert_eq!(
            (status.code(), status.signal(), said.as_str()),
            (Some(0), None, "")
        );
    }
}

#[test]
fn top_needs_a_terminal_and_says_so() {
    let daemon = Daemon::with_job();
    let output = daemon.ctl(&["top"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("top needs a terminal"),
        "{output:?}"
    );
}

#[test]
fn a_report_says_what_stands_out() {
    let daemon = Daemon::with_job();
    let text = String::from_utf8(daemon.ctl(&["report"]).stdout).expect("text");
    for part in [
        "Application app-20260101120000-0001 (PageRank)",
        "Executors",
        "unattributed: 500 of 2,000 page faults (25.0 %)",
        "before tracing: 65,120 page faults, in no figure above",
        "  gc_thread: 500",
        "RDDs with most page faults",
        "RDDs that held most memory",
        "Stages with most page faults",
        "Tasks with most page faults",
        "What was lost on the way",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let report = daemon.json(&["report", "--json"]);
    assert_eq!(report["applications"][0]["executors"][0]["pid"], 4711);
}
