//! Workers' servers without a kernel side: each has seen two executors of a job of 25 s, and serves its socket and its
//! metrics port. Figures differ from worker to worker.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_common::context::Activity;
use smtt_common::counter::{ContextKey, ExecutorCounters, FaultCounters};
use smtt_common::event::marker::storage_level::{DESERIALIZED, DISK, MEMORY, REPLICATION_SHIFT};
use smtt_common::page_walk::WalkCounters;
use smtt_daemon::metrics::MetricsSettings;
use smtt_daemon::server::{self, ControlSocket, Web};
use smtt_daemon::shared::{DaemonInfo, Shared};
use smtt_model::cpu::{Quantity, Role};
use smtt_model::decode::{
    BlockFact, Event, ExecutorDescribed, Fact, JobDescribed, Outcome, PageAllocated, RddDescribed,
    Span, StageDescribed, TaskEnded, TaskStarted,
};
use smtt_model::readings::{Channel, PageWalkReadings, Readings};
use smtt_model::state::Limits;
use smtt_model::verdict::{Verdict, VerdictState};
use tokio::net::TcpListener;
use tokio::sync::watch;
use xtask::paths::Paths;

pub(super) const APP: &str = "app-20260101120000-0001";
/// Executors of a worker.
pub(super) const EXECUTORS: u64 = 2;
const RDDS: u32 = 30;
pub(super) const SECONDS: u64 = 25;
/// Length of a job.
const JOB_SECONDS: u64 = 8;
/// Begin of the first job by the driver's clock.
const BEGIN_UNIX_MS: u64 = 1_767_225_600_000;
const S: u64 = 1_000_000_000;
/// A name with markup, which stays text.
pub(super) const NAME: &str = "<img src=x onerror=document.title='owned'> links";

/// A worker of so many.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) number: u64,
    pub(super) of: u64,
}

impl Part {
    /// The only one.
    pub(super) const ALONE: Self = Self { number: 0, of: 1 };

    /// The ids of its executors.
    fn executors(self) -> std::ops::Range<u64> {
        self.number * EXECUTORS..(self.number + 1) * EXECUTORS
    }

    fn task(self, second: u64, executor: u64) -> u64 {
        second * EXECUTORS * self.of + executor
    }

    /// Bytes of the block that an executor stores in this second: one more MiB for each worker before this one.
    fn block_bytes(self, second: u64) -> u64 {
        (40 + second * 3 + self.number) << 20
    }

    /// The cached RDD that a second's blocks are of.
    fn rdd(second: u64) -> u32 {
        second as u32 / 5 * 5
    }

    /// Page faults by reads of an executor in a second.
    fn reads(self, second: u64) -> u64 {
        900 * (second + 1) * (self.number + 1)
    }

    /// Page faults by writes, as often.
    const WRITES: u64 = 4000;

    /// Storage memory of an RDD at the end, on the whole worker.
    pub(super) fn storage_bytes(self, rdd_id: u32) -> u64 {
        let seconds = (0..SECONDS).filter(|second| Self::rdd(*second) == rdd_id);
        let of_one: u64 = seconds.map(|second| self.block_bytes(second)).sum();
        of_one * EXECUTORS
    }

    /// Page faults of its executors in the first seconds.
    pub(super) fn page_faults(self, seconds: u64) -> u64 {
        let all = (0..seconds).map(|second| self.reads(second) + Self::WRITES);
        all.sum::<u64>() * EXECUTORS
    }
}

fn facts(part: Part, second: u64, executor: u64) -> Vec<Fact> {
    let mut facts = Vec::new();
    if second == 0 {
        facts.push(Fact::ExecutorDescribed(Box::new(ExecutorDescribed {
            application_id: APP.to_owned(),
            application_name: "Rank pages of a crawl".to_owned(),
            executor_id: executor.to_string(),
            host: format!("worker-{}", part.number + 1),
            ..ExecutorDescribed::default()
        })));
        for rdd_id in 0..RDDS {
            let cached = rdd_id % 5 == 0;
            facts.push(Fact::RddDescribed(Box::new(RddDescribed {
                rdd_id,
                name: match rdd_id {
                    0 => NAME.to_owned(),
                    id if cached => format!("ranks of step {id}"),
                    _ => "MapPartitionsRDD".to_owned(),
                },
                call_site: format!("map at Rank.scala:{}", 20 + rdd_id % 4),
                partitions: 10,
                storage_level: match cached {
                    true => DISK | MEMORY | DESERIALIZED | 1 << REPLICATION_SHIFT,
                    false => 0,
                },
                ..RddDescribed::default()
            })));
        }
    }
    let stage_id = second as u32 / 2;
    let task = part.task(second, executor);
    if second.is_multiple_of(2) {
        facts.push(Fact::StageDescribed(StageDescribed {
            stage_id,
            job_id: Some(stage_id / 4),
            tasks: 4,
            name: format!("map at Rank.scala:{}", 20 + stage_id % 4),
            ..StageDescribed::default()
        }));
    }
    if second.is_multiple_of(JOB_SECONDS) {
        let begin = BEGIN_UNIX_MS + second * 1000;
        facts.push(Fact::JobDescribed(JobDescribed {
            job_id: stage_id / 4,
            started_unix_ms: begin,
            ended_unix_ms: Some(begin + JOB_SECONDS * 1000),
            sql_execution_id: None,
            failure: match stage_id {
                4 => NAME.to_owned(),
                _ => String::new(),
            },
        }));
    }
    facts.push(Fact::TaskStarted(TaskStarted {
        task_attempt_id: task,
        stage_id,
        job_id: Some(stage_id / 4),
        ..TaskStarted::default()
    }));
    let rdd_id = Part::rdd(second);
    facts.push(Fact::PageAllocated(PageAllocated {
        task_attempt_id: Some(task),
        page_number: Some(0),
        address: 0x1000 * (1 + task),
        size_bytes: 48 << 20,
        rdd_id: Some(rdd_id),
        ..PageAllocated::default()
    }));
    facts.push(Fact::BlockStored(Box::new(BlockFact {
        block_id: format!("rdd_{rdd_id}_{}", second % 5),
        rdd_id: Some(rdd_id),
        partition: Some(second as u32 % 5),
        size_bytes: part.block_bytes(second),
        task_attempt_id: Some(task),
        ..BlockFact::default()
    })));
    if second > 0 {
        let before = part.task(second - 1, executor);
        for (activity, after_ms, ms) in [
            (Activity::SHUFFLE_FETCH, 50, 150 + 10 * second),
            (Activity::SORT, 500, 120),
        ] {
            facts.push(Fact::Span(Span {
                task_attempt_id: Some(before),
                activity: activity.0,
                start_monotonic_ns: second * S + after_ms * S / 1000,
                duration_ns: ms * S / 1000,
                ..Span::default()
            }));
        }
        facts.push(Fact::TaskEnded(TaskEnded {
            task_attempt_id: before,
            stage_id: (second as u32 - 1) / 2,
            stage_attempt: 0,
            outcome: Outcome::Succeeded,
            execution_memory_peak_bytes: 48 << 20,
            reason: String::new(),
        }));
    }
    facts
}

/// A clock is sampled in place of cycles, as in most virtual machines.
fn sampled_clock() -> PageWalkReadings {
    PageWalkReadings {
        channels: vec![Channel {
            role: Role::Cycles,
            event: "cpu-clock".to_owned(),
            quantity: Quantity::Cycles,
            pass: 0,
            period: 1_000_000,
            counted: 1,
            sampled: 1,
            samples: 1,
            enabled_ns: 1,
            running_ns: 1,
            fault: String::new(),
        }],
        ..PageWalkReadings::default()
    }
}

fn watch_job(part: Part, shared: &Shared) {
    shared.set_ready(true);
    let verdict = |name: &str| Verdict {
        name: name.to_owned(),
        hook: "exceptions:page_fault_user".to_owned(),
        verdict: VerdictState::Ok,
        reason: String::new(),
    };
    shared.set_verdicts(["fault", "fault_major", "marker"].map(verdict).to_vec());
    for second in 0..SECONDS {
        let mut readings = Readings {
            access_known: true,
            major_known: true,
            ..Readings::default()
        };
        let mut cycles = sampled_clock();
        for executor in part.executors() {
            let key = 4711 + executor;
            for fact in facts(part, second, executor) {
                shared.state().apply(Event {
                    time_ns: (second + 1) * S,
                    executor: key,
                    pid: key as u32,
                    tid: key as u32,
                    uid: 0,
                    fact,
                });
            }
            let faults = FaultCounters {
                read: part.reads(second),
                write: Part::WRITES,
                ..FaultCounters::default()
            };
            let context = ContextKey {
                executor: key,
                task_attempt_id: part.task(second, executor),
                stage_id: second as u32 / 2,
                rdd_plus_one: second as u32 % RDDS + 1,
                ..ContextKey::default()
            };
            readings.contexts.push((context, faults));
            for (activity, samples) in [
                (Activity::COMPUTE, 500 + 10 * second),
                (Activity::SORT, 120),
                (Activity::INSERT, 80),
                (Activity::SPILL, 30),
            ] {
                let mut sampled = WalkCounters::default();
                sampled.samples[0] = samples;
                sampled.events[0] = samples * 1_000_000;
                let context = ContextKey {
                    activity: activity.0,
                    ..context
                };
                cycles.contexts.push((context, sampled));
            }
            let mut totals = ExecutorCounters::default();
            totals.attributed.read = (0..=second).map(|second| part.reads(second)).sum();
            totals.attributed.write = Part::WRITES * (second + 1);
            readings.executors.push((key, totals));
        }
        readings.page_walks = Some(cycles);
        let now = (second + 1) * S + S / 2;
        let mut state = shared.state();
        state.add(&readings, now);
        state.record_history(now);
    }
}

/// The client that tests are built with.
pub(super) fn client(paths: &Paths) -> Result<Command> {
    let ctl = paths.target.join("debug/smtt-ctl");
    ensure!(ctl.is_file(), "run `cargo build -p smtt-ctl`");
    Ok(Command::new(ctl))
}

/// A worker that serves what it has seen, until it is dropped.
pub(super) struct Worker {
    pub(super) socket: PathBuf,
    pub(super) address: SocketAddr,
    _stop: watch::Sender<bool>,
    _runtime: tokio::runtime::Runtime,
}

impl Worker {
    /// Its port is on the loopback address of its number.
    pub(super) fn start(part: Part, folder: &Path, web: impl Into<Web>) -> Result<Self> {
        let info = DaemonInfo {
            version: "0.1.0".to_owned(),
            kernel_side: "none".to_owned(),
            telemetry_path: "/metrics".to_owned(),
            metrics: MetricsSettings::at_once(100),
            doctor: Vec::new,
        };
        let shared = Arc::new(Shared::new(info, Limits::default()));
        watch_job(part, &shared);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let socket = folder.join(format!("worker-{}.sock", part.number));
        let (stop, stopped) = watch::channel(false);
        let address = runtime.block_on(async {
            let control = ControlSocket::bind(&socket, "")?;
            let listener = TcpListener::bind(format!("127.0.0.{}:0", part.number + 1)).await?;
            let address = listener.local_addr()?;
            let until = || server::until_stopped(stopped.clone());
            server::spawn(shared, control, listener, web, until)?;
            anyhow::Ok(address)
        })?;
        Ok(Self {
            socket,
            address,
            _stop: stop,
            _runtime: runtime,
        })
    }

    /// What it says itself of a listing.
    pub(super) fn rows(&self, paths: &Paths, listing: &str) -> Result<Vec<Value>> {
        let mut ctl = client(paths)?;
        ctl.env("SMTT_SOCKET", &self.socket);
        let answer = ctl.args([listing, "--json"]).output()?;
        ensure!(answer.status.success(), "{answer:?}");
        let rows: Value = serde_json::from_slice(&answer.stdout)?;
        rows.as_array().cloned().context("no rows")
    }

    /// Writes its page by the real client.
    pub(super) fn page(&self, paths: &Paths, file: &Path) -> Result<()> {
        let mut ctl = client(paths)?;
        ctl.env("SMTT_SOCKET", &self.socket);
        written(&mut ctl, file, 0)
    }
}

/// Writes a page with a client that knows whom to ask, which ends with this code.
pub(super) fn written(ctl: &mut Command, file: &Path, code: i32) -> Result<()> {
    ctl.args(["report", "--html", "--output"]).arg(file);
    let made = ctl.output()?;
    ensure!(made.status.code() == Some(code), "{made:?}");
    Ok(())
}
