//! Emulated machines: other kernels, other processors (one with a dTLB counter), several NUMA nodes.
//!
//! | module | what |
//! |---|---|
//! | [`guest`] | the emulated machines: processor, kernel package, required features |
//! | [`packages`] | Debian packages of any suite and processor, without touching the system's own packages |
//! | [`prepare`] | emulator, kernels and the guests' shell, kept in the cache |
//! | [`archive`] | the guest's first file system |
//! | [`libraries`] | the shared libraries that a program needs in a guest |
//! | [`modules`] | the kernel modules that a guest's disk needs |
//! | [`disk`] | a disk with a JVM and Spark |
//! | [`system`] | a disk with an installed Debian whose init is systemd |
//! | [`machine`] | boots a guest, runs a script in it, returns output and exit status |
//! | [`jvm`] | the files of a traced JVM in a guest |
//! | [`kernel_tests`] | the tests against the kernel, run in a guest |
//! | [`experiment`] | the experiment's workloads in a guest |
//! | [`matrix`] | the table of each guest's features and of the tests that passed in it |

mod archive;
mod disk;
mod experiment;
mod guest;
mod jvm;
mod kernel_tests;
mod libraries;
mod machine;
mod matrix;
mod modules;
pub mod packages;
mod prepare;
pub mod system;

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};

use crate::paths::Paths;
use crate::setup;
use crate::stages::NOT_RUN_LINE;

pub use disk::disk;
pub use experiment::experiment;
pub use guest::Guest;
pub use kernel_tests::KernelTests;
pub use machine::{GuestFile, Init, Machine, Ran};
pub use prepare::{Prepared, prepare, unpacked};

/// The tests take three minutes in the slowest guest, more when the machine has other work; beyond this limit a guest
/// hangs.
const TIME_OUT: Duration = Duration::from_secs(4800);

/// The environment variable with the second, since 1970, by which guests are to be done: what runs `cargo xtask test` ends
/// it some time later. A guest that would not be done by then does not run, and is named at the end: the results of the
/// others are not lost.
pub const END: &str = "SMTT_END";

/// Seconds that are left according to [`END`].
fn left() -> Option<u64> {
    let end: u64 = std::env::var(END).ok()?.parse().ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(end.saturating_sub(now.as_secs()))
}

/// Describes the guest. A single node is unsupported: the tests that need two nodes would skip.
const MACHINE: &str = "echo \"row release ok $(uname -r)\"\n\
     echo \"row processors ok $(cat /sys/devices/system/cpu/online)\"\n\
     nodes= count=0\n\
     for node in /sys/devices/system/node/node[0-9]*; do\n\
     [ -d $node ] || continue\n\
     count=$((count + 1))\n\
     processors=$(cat $node/cpulist)\n\
     memory=$(sed -n 's/.*MemTotal: *//p' $node/meminfo)\n\
     nodes=\"$nodes; ${node##*/}: processors ${processors:-none}, $memory\"\n\
     done\n\
     word=ok; [ $count -gt 1 ] || word=unsupported\n\
     echo \"row nodes $word $count$nodes\"\n";

/// Checks that a JVM starts: its version is the row's detail.
const JVM: &str = "java=$(ls -d /disk/usr/lib/jvm/*/bin/java | head -n 1)\n\
     answer=$(chroot /disk ${java#/disk} -Xint -version 2>&1) \
     && echo \"row jvm ok $(echo \"$answer\" | head -n 1)\" || echo \"row jvm broken $(echo \"$answer\" | tail -n 1)\"\n";

/// Names of the emulated machines, in the order in which they run.
#[must_use]
pub fn names() -> Vec<&'static str> {
    guest::ALL.iter().map(|guest| guest.name).collect()
}

/// Runs the tests in the named emulated machine, or in all but those that run by their name only, one after the other
/// (emulation needs all processors).
///
/// # Errors
/// When a machine cannot be prepared or does not boot, or a required feature is broken.
pub fn test(paths: &Paths, name: Option<&str>) -> Result<()> {
    setup::for_machines(paths)?;
    let mut total = matrix::Totals::default();
    let mut times = Vec::new();
    for guest in Guest::named(name)? {
        if let Some(left) = left()
            && left < guest.seconds
        {
            println!(
                "{NOT_RUN_LINE}{}: {left} s are left, it takes up to {} s; `cargo xtask vm {}` runs it",
                guest.name, guest.seconds, guest.name
            );
            continue;
        }
        let mut timed = |stage, since: Instant| times.push((guest.name, stage, since.elapsed()));
        let since = Instant::now();
        let prepared = prepare(paths, guest)?;
        timed("prepare", since);

        let since = Instant::now();
        let tests = kernel_tests::build(paths, guest)?;
        timed("build", since);

        let since = Instant::now();
        let disk = guest
            .jvm
            .then(|| disk(paths, guest.processor))
            .transpose()?;
        timed("disk", since);

        let since = Instant::now();
        let content = Content { tests, disk };
        total.add(run(paths, guest, &prepared, content)?);
        timed("boot and test", since);
    }
    println!();
    for (guest, stage, time) in &times {
        println!("{guest:<10} {stage:<16} {:>6.1} s", time.as_secs_f64());
    }
    // In the form of cargo's own result lines, so that `cargo xtask test` sums them up too.
    println!("\n{total}");
    if !total.broken.is_empty() {
        bail!("{} rows of the matrix are broken", total.broken.len());
    }
    Ok(())
}

/// Files and script of a guest.
struct Content {
    tests: KernelTests,
    disk: Option<PathBuf>,
}

/// Boots one guest and prints its rows of the matrix.
fn run(
    paths: &Paths,
    guest: &Guest,
    prepared: &Prepared,
    content: Content,
) -> Result<matrix::Totals> {
    let mut script = format!("failed=0\n{MACHINE}{}", content.tests.script);
    if guest.jvm {
        script += JVM;
    }
    script += "exit $failed";
    // In the target folder: another checkout may run the same machine at the same time.
    let log = paths
        .target
        .join("log")
        .join(format!("vm-console-{}.log", guest.name));
    let machine = Machine {
        guest,
        prepared,
        files: content.tests.files,
        disk: content.disk,
        init: Init::Shell,
        time_out: TIME_OUT,
        log,
    };
    let mut matrix = matrix::Matrix::new(guest);
    let ran = machine.run(&script, |line| matrix.line(line))?;
    println!(
        "\n{:<10} up in {:.1} s, tested in {:.1} s",
        guest.name,
        ran.boot.as_secs_f64(),
        ran.script.as_secs_f64()
    );
    Ok(matrix.finish(ran.status))
}
