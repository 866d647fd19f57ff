//! What attacks cost the victim through the daemon: the CPU time of its operations beside all attackers and beside
//! neighbours that only keep the CPUs busy, with a daemon and without one, in turns (`cargo xtask bench victim`).
//!
//! Attackers also cost any neighbour caches and the kernel's locks; the phases without a daemon show that part. A thread
//! that sleeps on an idle machine wakes slowly, so the victim is alone in no phase.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use smtt_tests::attackers::{
    Attackers, Counted, PER_SECOND, READ_LIMIT, Scene, cpu_us, phase, server_without_work,
};
use smtt_tests::lab::programs;
use smtt_tests::workload::Workload;
use xtask::bench::geometric_mean;
use xtask::daemon::{Daemon, Options};
use xtask::paths::Paths;

/// Length of a phase.
const PHASE: Duration = Duration::from_secs(5);
/// Rounds of four phases each.
const ROUNDS: usize = 8;
/// Steps of computation in an operation: about a millisecond, as a job computes between its facts.
const STEPS: &str = "steps=60000";
/// Busy threads of each CPU.
const BUSY: usize = 2;

/// CPU time of an operation in microseconds, beside busy neighbours.
fn beside_busy_ones(victim: &mut Workload) -> Result<f64> {
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..BUSY * thread::available_parallelism()?.get() {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let said = victim.go().and_then(|()| phase(victim));
        end.store(true, Ordering::Relaxed);
        cpu_us(&said?)
    })
}

/// The same beside all attackers.
fn beside_attackers(victim: &mut Workload, scene: &Scene) -> Result<f64> {
    let attackers = Attackers::start(scene, victim.pid())?;
    victim.go()?;
    let cost = cpu_us(&phase(victim)?)?;
    attackers.all_alive()?;
    Ok(cost)
}

/// CPU time of an operation in microseconds, beside the attackers and beside busy neighbours.
fn costs(traced: bool) -> Result<[f64; 2]> {
    let folder = tempfile::tempdir()?;
    let daemon = if traced {
        Some(Daemon::start(
            &Paths::find()?,
            &programs()?,
            folder.path(),
            &Options::default(),
        )?)
    } else {
        None
    };
    let port = match &daemon {
        Some(daemon) => daemon.port,
        None => server_without_work()?,
    };
    let scene = Scene::new()?;
    fs::write(scene.own.join("victim"), fs::read(&scene.library)?)?;
    fs::write(scene.own.join("port"), port.to_string())?;
    let options = [
        format!("ms={}", PHASE.as_millis()),
        format!("per_second={PER_SECOND}"),
    ];
    let mut victim = Workload::start("victim", &[&options[0], &options[1], STEPS, "name=java"])?;
    let start = Instant::now();
    while let Some(daemon) = &daemon
        && Counted::read(daemon, victim.pid()).is_err()
    {
        ensure!(start.elapsed() < READ_LIMIT, "the victim is not found");
        thread::sleep(Duration::from_millis(100));
    }
    let busy = beside_busy_ones(&mut victim)?;
    let attacked = beside_attackers(&mut victim, &scene)?;
    victim.go()?;
    victim.done()?;
    victim.end()?;
    Ok([attacked, busy])
}

fn main() -> Result<()> {
    let mut quotients = Vec::new();
    for number in 0..ROUNDS {
        // The order changes from round to round.
        let (with, without) = if number % 2 == 0 {
            let with = costs(true)?;
            (with, costs(false)?)
        } else {
            let without = costs(false)?;
            (costs(true)?, without)
        };
        let quotient = (with[0] / with[1]) / (without[0] / without[1]);
        println!(
            "an operation beside attackers and beside busy neighbours: {:.2} and {:.2} us with a daemon, {:.2} and {:.2} us without: {quotient:.3}",
            with[0], with[1], without[0], without[1]
        );
        quotients.push(quotient);
    }
    let (mean, low, high) = geometric_mean(&quotients);
    println!("through the daemon: {mean:.3} times, 95 % interval {low:.3} to {high:.3}");
    Ok(())
}
