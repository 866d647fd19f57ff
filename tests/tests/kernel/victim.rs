//! An executor at work beside every attack at once: its facts arrive, its page faults are the kernel's count, and the
//! daemon stays the same process, answers, and keeps within its memory.
//!
//! The witnesses are the victim's own count of its facts, the kernel's count of its threads' page faults, the daemon's
//! `VmHWM`, and a server without work, which shows how long an answer takes on a machine whose CPUs are busy.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::attackers::{
    Attackers, Counted, PER_SECOND, READ_LIMIT, Scene, UNPRIVILEGED_UID, cpu_us, phase,
    server_without_work,
};
use smtt_tests::json::{number, sum};
use smtt_tests::witness;
use xtask::daemon::{Daemon, Options};
use xtask::http;

use crate::lab::{Workload, daemon_alone};

/// Length of each of the two phases, alone and beside the attackers.
const PHASE: Duration = Duration::from_secs(15);
/// Memory that the service may have (`MemoryMax=` of the unit).
const RESIDENT_MAX: u64 = 256 << 20;
/// Time within which 99 of 100 answers of `/-/healthy` come. Beside the attackers the time of the server without work is
/// added, [`WAITS`] times: on two CPUs with some twenty programs that never wait, each answer also waits for its turn on a
/// CPU, the daemon's as that server's.
const ANSWER: Duration = Duration::from_millis(100);
/// Turns on a CPU that an answer of the daemon needs for one of the server without work.
const WAITS: u32 = 2;
/// Pause between two questions.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// More than two ticks of the daemon.
const QUIET: Duration = Duration::from_millis(2500);

/// Facts of a user's executors that were dropped.
fn dropped_of(daemon: &Daemon, user: u32) -> Result<u64> {
    let rows = daemon.rows(&["executors"])?;
    Ok(sum(
        rows.iter().filter(|row| row["uid"] == user),
        "facts_dropped",
    ))
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
    // The last counters are read when two readings of the daemon, more than a tick apart, are the same. A starved daemon
    // may not have ticked between them: what is missing must stay missing.
    let (mut last, mut since) = (None, start);
    let (now, row) = loop {
        let (now, row) = Counted::read(daemon, victim.pid())?;
        if last != Some(now) {
            (last, since) = (Some(now), Instant::now());
        } else if since.elapsed() > QUIET
            && (now.faults == kernel && now.facts - before.facts == operations
                || since.elapsed() > QUIET * 10)
        {
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

/// Times of answers, the slowest last.
#[derive(Default)]
pub struct Times(Vec<Duration>);

/// How long answers took.
pub struct SumOfTimes {
    pub median: Duration,
    p90: Duration,
    p95: Duration,
    p99: Duration,
    pub slowest: Duration,
}

impl fmt::Display for SumOfTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            median,
            p90,
            p95,
            p99,
            slowest,
        } = self;
        write!(
            f,
            "median {median:?}, 90 % within {p90:?}, 95 % {p95:?}, 99 % {p99:?}, slowest {slowest:?}"
        )
    }
}

impl Times {
    fn ask(&mut self, port: u16, path: &str) -> Result<()> {
        let start = Instant::now();
        http::get(port, path)?;
        self.0.push(start.elapsed());
        Ok(())
    }

    /// Quantiles and the slowest.
    pub fn sum_up(&mut self) -> Result<SumOfTimes> {
        self.0.sort_unstable();
        let quantile = |percent: usize| {
            let at = (self.0.len() * percent / 100).min(self.0.len().saturating_sub(1));
            self.0.get(at).copied().context("no answer")
        };
        Ok(SumOfTimes {
            median: quantile(50)?,
            p90: quantile(90)?,
            p95: quantile(95)?,
            p99: quantile(99)?,
            slowest: quantile(100)?,
        })
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
            let theirs = dropped_of(&daemon, UNPRIVILEGED_UID)?;
            println!("{theirs} facts of the attackers were dropped");
            ensure!(theirs > 0, "the attackers kept within their limits");
        }
        before = same(&daemon, &victim, &said, before)?;
        cpu.push(cpu_us(&said)?);
        let [daemon_times, idle_times] = &mut times;
        let (healthy, null) = (daemon_times.sum_up()?, idle_times.sum_up()?);
        println!(
            "{} answers: /-/healthy {healthy}, a server without work {null}",
            daemon_times.0.len()
        );
        let allowed = if beside { null.p99 * WAITS } else { null.p99 };
        ensure!(
            healthy.p99 <= ANSWER + allowed,
            "/-/healthy: {healthy}, a server without work {null}"
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
