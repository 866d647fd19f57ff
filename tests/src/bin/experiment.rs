//! The experiment's workloads on an emulated machine whose dTLB counters work: page walks of each workload and of its
//! RDDs as the daemon samples them, and then the same workload again, counted plainly.
//!
//! `experiment SCALE WORKLOADS ROUNDS` runs in the guest (`cargo xtask experiment --machine riscv64`); lists are
//! separated by commas. The rounds are `traced`, and without the daemon `machine`
//! (counters of all processors) and `process` (counters of the threads of the JVM). Lines of output that begin with `progress` are for people;
//! those that begin with `figure` carry one JSON object each.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use smtt_machine::perf::{Event, Of, Opening, refusal};
use smtt_model::cpu::{Encoding, Role};
use smtt_tests::jvm::Prepared;
use smtt_tests::page_walk;
use xtask::daemon::{Daemon, Options};
use xtask::paths::Paths;
use xtask::process::{Running, tail, wait_for};

/// Time limit of one run of a workload, and of the JVM's start.
const RUN_LIMIT: Duration = Duration::from_secs(1500);
/// Time for the daemon to read the last samples of a run: several of its ticks.
const SETTLE: Duration = Duration::from_secs(4);
/// Time between two lines about a run that goes on.
const SIGN_OF_LIFE: Duration = Duration::from_secs(30);
/// Time for a daemon to find an executor that runs already.
const FOUND_LIMIT: Duration = Duration::from_secs(120);
/// Events per sample. The emulator's overflow interrupt of cycles comes late or never; the other two come in time.
const PERIODS: &str =
    "{ cycles = 1000003, load_walks_completed = 1009, store_walks_completed = 101 }";
/// How long the rate of the cycle counter is measured.
const RATE_TIME: Duration = Duration::from_secs(5);
/// MiB of the young generation, of a heap of 640 MiB. The old generation holds what the workloads cache.
const YOUNG_MIB: u32 = 240;
/// Partitions of every input.
const PARTITIONS: &str = "2";
/// The events of a run, in the order of [`NAMES`].
const ROLES: [Role; 3] = [
    Role::Cycles,
    Role::LoadWalksCompleted,
    Role::StoreWalksCompleted,
];
/// The columns of the daemon's rows that hold the events of [`ROLES`].
const COLUMNS: [&str; 3] = ["cycles", "dtlb_read_misses", "dtlb_write_misses"];
/// Names of the events in the output.
const NAMES: [&str; 3] = ["cycles", "read", "write"];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [scale, workloads, rounds] = arguments.as_slice() else {
        bail!("usage: experiment SCALE WORKLOADS ROUNDS");
    };
    let start = Instant::now();
    let say = |text: &str| println!("progress {:.0} s: {text}", start.elapsed().as_secs_f64());
    let events = page_walk::events(ROLES)?
        .context("this machine does not count cycles and dTLB misses of reads and writes")?;
    let paths = Paths::find()?;
    let prepared = Prepared::new()?;
    prepared.add(&paths.scala_jar())?;
    let rate = cycles_per_second(&events[0])?;
    let options = Options {
        toml: format!(
            "[probe.fault]\nhook = \"off\"\n\n[limits]\nrdds_per_executor = 8192\n\n[page_walks]\nsample_periods = {PERIODS}\n"
        ),
        without_library: true,
        ..Options::default()
    };
    let programs = std::env::current_exe()?;
    let programs = programs.parent().context("the program has no folder")?;
    say("starting the daemon");
    let mut daemon = Daemon::start(&paths, programs, &prepared.at("daemon"), &options)?;
    figure(&machine(&daemon, rate)?);
    say("starting the JVM");
    let mut command = prepared.java(YOUNG_MIB, &["smtt-experiment.jar"]);
    command
        .args([
            "-Dspark.sql.shuffle.partitions=2",
            "-Dspark.default.parallelism=2",
        ])
        .args([
            "-Dspark.serializer=org.apache.spark.serializer.KryoSerializer",
            "-Dspark.shuffle.sort.bypassMergeThreshold=1",
        ])
        .arg("io.smtt.fixture.ExperimentRounds")
        .args([workloads, scale, PARTITIONS, rounds]);
    let running = Running::start_with_output(
        "the workloads",
        &mut command,
        &prepared.at("application.log"),
        &prepared.at("application.out"),
    )?;
    let mut application = Application {
        prepared,
        running,
        start,
    };
    let mut traces = true;
    for workload in workloads.split(',') {
        for round in rounds.split(',') {
            application.reach(&format!("{round}-{workload}-begin"))?;
            say(&format!("{round} {workload}"));
            if round == "traced" {
                if !traces {
                    daemon.start_again()?;
                    figure(&machine(&daemon, rate)?);
                }
                traces = true;
                figure(&application.traced(&daemon, workload)?);
            } else {
                if traces {
                    daemon.stop();
                }
                traces = false;
                figure(&application.plain(&events, round, workload)?);
            }
        }
    }
    let status = application.running.wait(RUN_LIMIT, || Ok(()))?;
    ensure!(status.success(), "the workloads failed ({status})");
    say("done");
    Ok(())
}

/// Prints one result.
fn figure(value: &Value) {
    println!("figure {value}");
}

/// Cycles per second of a thread's CPU time. The cycle counter of an emulator is a clock, so this rate turns the CPU
/// time of a process into cycles, also where the samples of cycles are lost.
fn cycles_per_second(event: &Encoding) -> Result<f64> {
    let event = Event::open(Opening {
        event,
        of: Of::ThisThread,
        period: 0,
        addresses: false,
        leader: None,
    })
    .map_err(|error| anyhow::anyhow!(refusal(&error)))?;
    event.enable()?;
    let start = Instant::now();
    while start.elapsed() < RATE_TIME {
        std::hint::spin_loop();
    }
    event.disable()?;
    let count = event.read()?;
    ensure!(count.running_ns > 0, "the cycle counter never ran");
    Ok(count.value as f64 * 1e9 / count.running_ns as f64)
}

/// What the daemon says of the machine's events and of the cost of a walk.
fn machine(daemon: &Daemon, cycles_per_second: f64) -> Result<Value> {
    let status = daemon.json(&["status"])?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let processors = fs::read_to_string("/proc/cpuinfo")?;
    let isa = processors.lines().find_map(|line| line.strip_prefix("isa"));
    Ok(json!({
        "kind": "guest",
        "isa": isa.map(|isa| isa.trim_start_matches([' ', '\t', ':'])),
        "kernel": release.trim(),
        "cycles_per_second": cycles_per_second,
        "page_walks": status["page_walks"],
    }))
}

/// What the daemon knows of the executor at one moment.
struct Snapshot {
    /// The executor's own counts, in the order of [`COLUMNS`].
    executor: Sampled,
    /// Counts of each RDD.
    rdds: BTreeMap<u64, (String, Sampled)>,
    /// The events of the whole machine.
    events: Value,
    /// The kernel's own figures of the process.
    process: Process,
}

/// Sampled events and samples, in the order of [`COLUMNS`]; absent where the machine does not give them.
#[derive(Clone, Copy, Debug, Default)]
struct Sampled([Option<[u64; 2]>; 3]);

impl Sampled {
    fn of(row: &Value) -> Self {
        Self(COLUMNS.map(|column| {
            let samples = if column == COLUMNS[0] {
                &row["cycles_samples"]
            } else {
                &row["page_walks"][column]["samples"]
            };
            Some([row[column].as_u64()?, samples.as_u64()?])
        }))
    }

    /// The growth since `before`.
    fn since(self, before: Self) -> Value {
        let mut grown = serde_json::Map::new();
        for ((name, now), then) in NAMES.iter().zip(self.0).zip(before.0) {
            if let Some(now) = now {
                let then = then.unwrap_or_default();
                grown.insert((*name).to_owned(), json!(now[0].saturating_sub(then[0])));
                grown.insert(
                    format!("{name}_samples"),
                    json!(now[1].saturating_sub(then[1])),
                );
            }
        }
        Value::Object(grown)
    }
}

/// The running JVM.
struct Application {
    prepared: Prepared,
    running: Running,
    start: Instant,
}

impl Application {
    fn gate(&self, name: &str) -> std::path::PathBuf {
        self.prepared.at("gates").join(name)
    }

    /// Waits until the application stands at the gate.
    fn reach(&mut self, gate: &str) -> Result<()> {
        let reached = self.gate(&format!("{gate}.reached"));
        let (running, start) = (&mut self.running, self.start);
        let mut next = Instant::now() + SIGN_OF_LIFE;
        let arrived = wait_for(&format!("the gate {gate} is reached"), RUN_LIMIT, || {
            if let Some(status) = running.poll()? {
                bail!("the workloads ended before ({status})");
            }
            if Instant::now() > next {
                next += SIGN_OF_LIFE;
                let process = Process::of(running.pid())?;
                println!(
                    "progress {:.0} s: {} s of CPU time so far; last words: {}",
                    start.elapsed().as_secs_f64(),
                    process.cpu_ms / 1000,
                    tail(running.log(), 1).join("")
                );
            }
            Ok(reached.exists().then_some(()))
        });
        arrived.with_context(|| format!("the workloads say:{}", self.running.hint()))
    }

    /// Opens the gate at the beginning of a run, and waits for the gate at its end; returns the seconds between.
    fn run(&mut self, round: &str, workload: &str) -> Result<f64> {
        let start = Instant::now();
        fs::write(self.gate(&format!("{round}-{workload}-begin.go")), "")?;
        self.reach(&format!("{round}-{workload}-end"))?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Lets the application go on after a run; returns `ok` or `failed`, and the rest of the run's line.
    fn end(&self, round: &str, workload: &str) -> Result<(bool, String)> {
        let text = fs::read_to_string(self.running.output())?;
        let prefix = format!("RAN {round} {workload} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
        let line = line.with_context(|| format!("the workloads printed no line {prefix:?}"))?;
        fs::write(self.gate(&format!("{round}-{workload}-end.go")), "")?;
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        Ok((word == "ok", rest.to_owned()))
    }

    fn snapshot(&self, daemon: &Daemon) -> Result<Snapshot> {
        std::thread::sleep(SETTLE);
        let pid = self.running.pid();
        // A daemon that has just started finds the executor with its next scan.
        let executor = wait_for("the daemon lists the executor", FOUND_LIMIT, || {
            let executors = daemon.rows(&["executors"])?;
            Ok(executors.into_iter().find(|row| row["pid"] == pid))
        })?;
        let mut rdds = BTreeMap::new();
        for row in daemon.rows(&["rdds"])? {
            if let Some(id) = row["rdd_id"].as_u64() {
                let name = row["name"].as_str().unwrap_or_default().to_owned();
                rdds.insert(id, (name, Sampled::of(&row)));
            }
        }
        let status = daemon.json(&["status"])?;
        Ok(Snapshot {
            executor: Sampled::of(&executor),
            rdds,
            events: status["page_walks"]["events"].clone(),
            process: Process::of(pid)?,
        })
    }

    /// One run under the daemon: the growth of its figures between the gates.
    fn traced(&mut self, daemon: &Daemon, workload: &str) -> Result<Value> {
        let before = self.snapshot(daemon)?;
        let seconds = self.run("traced", workload)?;
        let after = self.snapshot(daemon)?;
        let (succeeded, result) = self.end("traced", workload)?;
        let mut rdds = Vec::new();
        for (id, (name, now)) in &after.rdds {
            let then = before.rdds.get(id).map_or(Sampled::default(), |row| row.1);
            let mut grown = now.since(then);
            if NAMES.iter().any(|key| grown[*key].as_u64() > Some(0)) {
                grown["id"] = json!(id);
                grown["name"] = json!(name);
                rdds.push(grown);
            }
        }
        let column = |events: &Value, role: &str, key: &str| {
            let rows = events.as_array()?;
            let row = rows.iter().find(|row| row["role"] == role)?;
            row[key].as_u64()
        };
        let mut whole = serde_json::Map::new();
        for (name, role) in NAMES.iter().zip(ROLES) {
            let role = role.to_string();
            let grown = |key: &str| {
                Some(column(&after.events, &role, key)? - column(&before.events, &role, key)?)
            };
            whole.insert(
                (*name).to_owned(),
                json!({
                    "counted": grown("counted"), "sampled": grown("sampled"),
                    "attributed": grown("attributed"), "unattributed": grown("unattributed"),
                    "period": column(&after.events, &role, "period"),
                    "fault": after.events.as_array().into_iter().flatten()
                        .find(|row| row["role"] == role).map(|row| row["fault"].clone()),
                }),
            );
        }
        let mut figure = after.executor.since(before.executor);
        figure["kind"] = json!("traced");
        figure["workload"] = json!(workload);
        figure["seconds"] = json!(seconds);
        figure["succeeded"] = json!(succeeded);
        figure["result"] = json!(result);
        figure["cpu_ms"] = json!(after.process.cpu_ms - before.process.cpu_ms);
        figure["faults"] = json!(after.process.faults - before.process.faults);
        figure["rdds"] = json!(rdds);
        figure["whole_machine"] = Value::Object(whole);
        Ok(figure)
    }

    /// Who is counted in a round without the daemon.
    fn counted(&self, round: &str) -> Result<Vec<Of>> {
        if round == "machine" {
            let processors = std::thread::available_parallelism()?.get();
            return Ok((0..processors as u32).map(Of::Cpu).collect());
        }
        let mut threads = Vec::new();
        for entry in fs::read_dir(format!("/proc/{}/task", self.running.pid()))? {
            threads.push(Of::Descendants(
                entry?.file_name().to_string_lossy().parse()?,
            ));
        }
        Ok(threads)
    }

    /// One run without the daemon, counted by the kernel: every thread of the process, or all processors.
    fn plain(&mut self, events: &[Encoding; 3], round: &str, workload: &str) -> Result<Value> {
        let pid = self.running.pid();
        let before = Process::of(pid)?;
        let mut open = Vec::new();
        for of in self.counted(round)? {
            for (index, event) in events.iter().enumerate() {
                let opened = Event::open(Opening {
                    event,
                    of,
                    period: 0,
                    addresses: false,
                    leader: None,
                });
                match opened {
                    Ok(event) => open.push((index, event)),
                    // The thread has ended.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(error) => bail!("{of:?}: {}", refusal(&error)),
                }
            }
        }
        for (_, event) in &open {
            event.enable()?;
        }
        let seconds = self.run(round, workload)?;
        let mut counts = [0; 3];
        let (mut enabled, mut counted) = (0, 0);
        for (index, event) in &open {
            let count = event.read()?;
            counts[*index] += count.value;
            enabled += count.enabled_ns;
            counted += count.running_ns;
        }
        let after = Process::of(pid)?;
        let (succeeded, result) = self.end(round, workload)?;
        Ok(json!({
            "kind": round, "workload": workload, "seconds": seconds, "succeeded": succeeded, "result": result,
            "cpu_ms": after.cpu_ms - before.cpu_ms, "faults": after.faults - before.faults,
            "counters": open.len(), "enabled_ns": enabled, "running_ns": counted,
            "cycles": counts[0], "read": counts[1], "write": counts[2],
        }))
    }
}

/// The kernel's own figures of a process.
#[derive(Clone, Copy, Debug)]
struct Process {
    /// CPU time so far, in milliseconds.
    cpu_ms: u64,
    /// Minor page faults so far.
    faults: u64,
}

impl Process {
    fn of(pid: u32) -> Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let (_, rest) = text.rsplit_once(')').context("no name in /proc/PID/stat")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // Numbered as in proc(5), whose third field is the first after the name.
        let field = |number: usize| -> Result<u64> {
            let text = fields.get(number - 3);
            Ok(text.context("/proc/PID/stat is too short")?.parse()?)
        };
        // SAFETY: sysconf(3) takes a number only.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        Ok(Self {
            cpu_ms: (field(14)? + field(15)?) * 1000 / u64::try_from(per_second)?,
            faults: field(10)?,
        })
    }
}
