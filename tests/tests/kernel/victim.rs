//! An executor at work beside every attack at once: its facts arrive, its page faults are the kernel's count, and the
//! daemon stays the same process, answers, and keeps within its memory.
//!
//! The witnesses are the victim's own count of its facts, the kernel's count of its threads' page faults, the daemon's
//! `VmHWM`, and a server without work, which shows how long an answer takes on a machine whose CPUs are busy.

mod price;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::json::{number, sum};
use smtt_tests::skip::leave_out;
use smtt_tests::witness;
use xtask::daemon::{Daemon, Options};
use xtask::http;

use crate::foreign_files::{Attacker, NOBODY, Scene};
use crate::lab::{Workload, daemon_alone};

/// Length of each of the two phases, alone and beside the attackers.
const PHASE: Duration = Duration::from_secs(15);
/// Facts that the victim sends per second.
const PER_SECOND: u64 = 400;
/// Memory that the service may have (`MemoryMax=` of the unit).
const RESIDENT_MAX: u64 = 256 << 20;
/// Limit of the median answer of `/-/healthy`.
const ANSWER_MEDIAN: Duration = Duration::from_millis(100);
/// Limit of the slowest answer: on two CPUs with some twenty programs that never wait, an answer waits for its turn on a
/// CPU several times. The slowest answer of the server without work is added.
const ANSWER_WORST: Duration = Duration::from_secs(1);
/// Pause between two questions.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// How long the daemon may take to read the last counters after the victim has come to rest.
const READ_LIMIT: Duration = Duration::from_secs(20);
/// More than two ticks of the daemon.
const QUIET: Duration = Duration::from_millis(2500);

/// Attacks by files, of the program `attacker`.
const FILES: [&str; 10] = [
    "container",
    "exec",
    "swap",
    "giant-elf",
    "lease-library",
    "lease-slots",
    "long-maps",
    "many-slots",
    "garbage-slots",
    "slow-readers",
];

/// Attacks by facts, faults and processes, of the program `workload`. They run into their limits or are killed.
const FACTS: [(&str, &[&str]); 7] = [
    ("crowd", &["executors=128"]),
    ("garbage", &["registrations=1000000000"]),
    ("flood", &["ms=60000"]),
    ("flood", &["ms=60000"]),
    ("forks", &["children=100000000"]),
    ("contexts", &["pages=16384"]),
    ("storm", &["threads=2", "facts=100000000"]),
];

/// The daemon's row of a process.
pub fn row(daemon: &Daemon, pid: u32) -> Result<Value> {
    let rows = daemon.rows(&["executors"])?;
    rows.into_iter()
        .find(|row| row["pid"] == pid)
        .with_context(|| format!("process {pid} is not listed"))
}

/// Facts of a user's executors that were dropped.
fn dropped_of(daemon: &Daemon, user: u32) -> Result<u64> {
    let rows = daemon.rows(&["executors"])?;
    Ok(sum(
        rows.iter().filter(|row| row["uid"] == user),
        "facts_dropped",
    ))
}

/// What the daemon says of the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    facts: u64,
    attributed: u64,
    /// All page faults since the process began.
    faults: u64,
}

impl Counted {
    pub fn read(daemon: &Daemon, pid: u32) -> Result<(Self, Value)> {
        let row = row(daemon, pid)?;
        let counted = Self {
            facts: row["facts_by_kind"]["blockRead"].as_u64().unwrap_or(0),
            attributed: number(&row, "page_faults_attributed")?,
            faults: number(&row, "page_faults")? + number(&row, "page_faults_before_tracing")?,
        };
        Ok((counted, row))
    }
}

/// The victim's counts of one phase.
pub fn phase(victim: &mut Workload) -> Result<Value> {
    let said: Value = serde_json::from_str(&victim.expect("PHASE ")?)?;
    victim.quiet()?;
    Ok(said)
}

/// Compares a phase with the daemon's growth since `before`; the daemon reads its counters once a second.
pub fn same(daemon: &Daemon, victim: &Workload, said: &Value, before: Counted) -> Result<Counted> {
    let (operations, faults) = (number(said, "operations")?, number(said, "faults")?);
    ensure!(
        faults >= number(said, "pages")?,
        "the kernel counted fewer faults than pages were touched: {said}"
    );
    let kernel = witness::faults(victim.pid())?.total();
    let start = Instant::now();
    // The last counters are read when two readings of the daemon, more than a tick apart, are the same.
    let (mut last, mut since) = (None, start);
    let (now, row) = loop {
        let (now, row) = Counted::read(daemon, victim.pid())?;
        if last != Some(now) {
            (last, since) = (Some(now), Instant::now());
        } else if since.elapsed() > QUIET {
            break (now, row);
        }
        ensure!(
            start.elapsed() < READ_LIMIT,
            "the victim's counts do not come to rest: {now:?}"
        );
        thread::sleep(Duration::from_millis(200));
    };
    let (facts, attributed) = (now.facts - before.facts, now.attributed - before.attributed);
    println!(
        "facts {facts} of {operations}; page faults of the threads {attributed} of {faults}, of the process {} of {kernel}",
        now.faults
    );
    let dropped = number(&row, "facts_dropped")?;
    ensure!(
        facts == operations && dropped == 0,
        "the victim sent {operations} facts, {facts} arrived: {}",
        row["facts_dropped_by_cause"]
    );
    // The same tolerance as in the tests of page faults.
    let close = |ours: u64, kernel: u64| ours.abs_diff(kernel) * 100 <= kernel;
    ensure!(
        close(attributed, faults) && close(now.faults, kernel),
        "the victim's threads had {faults} page faults, {attributed} are attributed; the process had {kernel}, {} are counted",
        now.faults
    );
    Ok(now)
}

/// CPU time of one operation of the victim, in microseconds.
fn cpu_us(said: &Value) -> Result<f64> {
    Ok(number(said, "cpu_ns")? as f64 / 1e3 / number(said, "operations")? as f64)
}

/// A server that answers at once, on a thread of this process.
pub fn server_without_work() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let answered = stream.and_then(|mut stream| {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte)?;
                    head.extend(byte);
                }
                stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nfine\n")
            });
            if answered.is_err() {
                return;
            }
        }
    });
    Ok(port)
}

/// Times of answers, the slowest last.
#[derive(Default)]
pub struct Times(Vec<Duration>);

impl Times {
    fn ask(&mut self, port: u16, path: &str) -> Result<()> {
        let start = Instant::now();
        http::get(port, path)?;
        self.0.push(start.elapsed());
        Ok(())
    }

    /// Median and slowest.
    pub fn sum_up(&mut self) -> Result<(Duration, Duration)> {
        self.0.sort_unstable();
        let median = *self.0.get(self.0.len() / 2).context("no answer")?;
        Ok((median, *self.0.last().context("no answer")?))
    }
}

/// Asks until the phase is over.
pub fn answers(
    ports: (u16, u16),
    end: &AtomicBool,
    each: &mut dyn FnMut() -> Result<()>,
) -> Result<[Times; 2]> {
    let (mut daemon, mut idle) = (Times::default(), Times::default());
    while !end.load(Ordering::Relaxed) {
        daemon.ask(ports.0, "/-/healthy")?;
        idle.ask(ports.1, "/")?;
        each()?;
        thread::sleep(ASK_EVERY);
    }
    Ok([daemon, idle])
}

/// All attackers; they are killed when this is dropped.
struct Attackers {
    files: Vec<(&'static str, Attacker)>,
    facts: Vec<(&'static str, Workload)>,
}

impl Attackers {
    fn start(scene: &Scene, victim: u32) -> Result<Self> {
        let mut files = Vec::new();
        for name in FILES {
            files.push((name, scene.attack(name).context(name)?));
        }
        if std::path::Path::new("/dev/fuse").exists() {
            files.push(("fuse", scene.start("fuse", 0).context("fuse")?));
        } else {
            leave_out("fuse", "there is no /dev/fuse")?;
        }
        let user = format!("uid={NOBODY}");
        let mut facts = Vec::new();
        for (name, options) in FACTS {
            let options: Vec<&str> = options
                .iter()
                .copied()
                .chain([user.as_str(), "name=java"])
                .collect();
            facts.push((name, Workload::start(name, &options).context(name)?));
        }
        let claims = [
            format!("executor={victim}"),
            format!("pid={victim}"),
            "ms=60000".into(),
        ];
        let options: Vec<&str> = claims
            .iter()
            .map(String::as_str)
            .chain([user.as_str(), "name=java"])
            .collect();
        facts.push(("claims", Workload::start("claims", &options)?));
        for (_, attacker) in &mut facts {
            attacker.go()?;
        }
        Ok(Self { files, facts })
    }

    /// The next step of those that wait for one.
    fn step(&mut self) -> Result<()> {
        for (name, attacker) in &mut self.files {
            if *name == "exec" {
                attacker.go()?;
                attacker.expect("READY")?;
            }
        }
        Ok(())
    }

    /// Whether each still runs, so that it was an attack until the end.
    fn all_alive(&self) -> Result<()> {
        let files = self
            .files
            .iter()
            .map(|(name, attacker)| (name, attacker.pid()));
        let facts = self
            .facts
            .iter()
            .map(|(name, attacker)| (name, attacker.pid()));
        for (name, pid) in files.chain(facts) {
            witness::faults(pid).with_context(|| format!("the attacker {name} has ended"))?;
        }
        Ok(())
    }
}

#[test]
fn a_victim_beside_all_attackers_loses_nothing() -> Result<()> {
    // The priority of the unit: beside attackers and other work the ring would be full before the daemon has a CPU.
    let options = Options {
        launcher: ["nice", "-n", "-5"].map(str::to_owned).into(),
        ..Options::default()
    };
    let Some(daemon) = daemon_alone(&options)? else {
        return Ok(());
    };
    let scene = Scene::new()?;
    std::fs::write(scene.own.join("victim"), std::fs::read(&scene.library)?)?;
    std::fs::write(scene.own.join("port"), daemon.port.to_string())?;
    let idle = server_without_work()?;
    let options = [
        format!("ms={}", PHASE.as_millis()),
        format!("per_second={PER_SECOND}"),
    ];
    let mut victim = Workload::start("victim", &[&options[0], &options[1], "name=java"])?;
    let pid = victim.pid();
    let start = Instant::now();
    while Counted::read(&daemon, pid).is_err() {
        ensure!(start.elapsed() < READ_LIMIT, "the victim is not found");
        thread::sleep(Duration::from_millis(100));
    }

    let mut before = Counted::read(&daemon, pid)?.0;
    let mut cpu = Vec::new();
    for beside in [false, true] {
        let mut attackers = if beside {
            Some(Attackers::start(&scene, pid)?)
        } else {
            None
        };
        let end = AtomicBool::new(false);
        victim.go()?;
        let (said, mut times) = thread::scope(|scope| {
            let asking = scope.spawn(|| {
                answers((daemon.port, idle), &end, &mut || {
                    attackers.as_mut().map_or(Ok(()), Attackers::step)
                })
            });
            let said = phase(&mut victim);
            end.store(true, Ordering::Relaxed);
            let times = asking
                .join()
                .map_err(|_| anyhow::anyhow!("the asking thread panicked"))?;
            Ok::<_, anyhow::Error>((said?, times?))
        })?;
        println!("beside attackers: {beside}; {said}");
        if let Some(attackers) = &attackers {
            attackers.all_alive()?;
            let theirs = dropped_of(&daemon, NOBODY)?;
            println!("{theirs} facts of the attackers were dropped");
            ensure!(theirs > 0, "the attackers kept within their limits");
        }
        before = same(&daemon, &victim, &said, before)?;
        cpu.push(cpu_us(&said)?);
        let [daemon_times, idle_times] = &mut times;
        let (healthy, null) = (daemon_times.sum_up()?, idle_times.sum_up()?);
        println!(
            "{} answers: /-/healthy {healthy:?} (median and slowest), a server without work {null:?}",
            daemon_times.0.len()
        );
        ensure!(
            healthy.0 <= ANSWER_MEDIAN && healthy.1 <= ANSWER_WORST + null.1,
            "/-/healthy: {healthy:?}, a server without work {null:?}"
        );
    }
    println!(
        "CPU time of an operation: {:.2} us alone, {:.2} us beside the attackers ({:+.1} %)",
        cpu[0],
        cpu[1],
        (cpu[1] / cpu[0] - 1.0) * 100.0
    );
    let peak = witness::resident_peak_bytes(daemon.pid()).context("the daemon has ended")?;
    println!("the daemon had {} MiB at most", peak >> 20);
    ensure!(peak < RESIDENT_MAX, "the daemon had {} MiB", peak >> 20);
    victim.go()?;
    victim.done()?;
    victim.end()
}
