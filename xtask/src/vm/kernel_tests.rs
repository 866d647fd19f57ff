//! The tests against the kernel, run in a guest in the same form as on this machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use smtt_common::event::marker::LIBRARY_NAME;

use super::guest::Guest;
use super::jvm::{self, PROGRAMS};
use super::machine::{GuestFile, swap_on};
use crate::cross::{self, BUILD_LIMIT, FOREIGN_PACKAGES, Programs};
use crate::dist::product::WORKER;
use crate::dist::{Plan, Unpacked, dist};
use crate::features::MUST_HAVE;
use crate::paths::Paths;
use crate::process::run;
use crate::processor::{PACKAGED, Processor};

/// A test program of the package `smtt-tests`, the filter of its tests in a guest, and a time limit in seconds: several
/// times the duration on an idle machine.
type Chosen = (&'static str, &'static str, u32);

/// Every rung of the fault ladder, and the marker's pads.
const LADDER: Chosen = ("fault_ladder", "", 600);
/// A traced JVM.
const JVM: Chosen = ("jvm", "", 2100);
/// The tests of counts. The others test the tables, which no kernel treats differently, and are slow where every
/// instruction is emulated.
const KERNEL: Chosen = (
    "kernel",
    "page_faults:: discovery:: life:: pages::nodes_are pages::memory_that pages::every pages::large pages::frames \
     pages::bytes page_limits::of_a hotness:: nodes:: touched:: idle::",
    2400,
);
/// Those of them that the slowest guest runs.
const FEWER: Chosen = (
    "kernel",
    "page_faults:: discovery:: life:: memory_that_is_bound",
    2400,
);
/// Tests that need counters of dTLB misses. Last: one of them takes a processor offline for a moment.
const WALKS: Chosen = ("page_walks", "guest_", 1200);

/// The tests of a guest before it has swap.
fn chosen(processor: Processor) -> &'static [Chosen] {
    match processor {
        Processor::X86 => &[LADDER, KERNEL],
        Processor::Riscv => &[LADDER, JVM, FEWER, WALKS],
        Processor::Arm => &[LADDER, JVM, KERNEL, WALKS],
    }
}

/// Tests that run again at the end, when the guest has swap: swapped-out memory must be reported.
const SWAPPED: Chosen = (
    "kernel",
    "pages::pages_that pages::every touched::the_memory",
    600,
);
/// Tests with a JVM that run last, in guests whose kernel has two nodes, swap and DAMON.
const SWAPPED_JVM: Chosen = ("places", "", 2100);
/// Deaths by the limit of a cgroup of version 2, in guests that have its memory controller and no daemon.
const DEATHS: Chosen = ("kernel", "deaths::the_oom", 600);
/// The same as a daemon in a pod reports them, with its figures of cgroups. The test of a daemon beside the executor would
/// take as long again, and that of the JVM has such a daemon.
const CGROUP_LIMITS: Chosen = (
    "kernel",
    "cgroup_limits::a_daemon cgroup_limits::processes",
    900,
);
/// Tests that use up the machine's memory, in guests that have a daemon and lend it.
const USED_UP: Chosen = ("kernel", "machine_oom::", 600);
/// Tests that suspend the machine, where it wakes again. The last ones: a guest that slept is not as it was.
const SUSPENDED: Chosen = ("kernel", "suspend::", 900);
/// The programs that some of the tests start.
const STARTED: [&str; 2] = ["workload", "attacker"];
/// Files of a guest, and the lines of the guest's script that run them.
pub struct KernelTests {
    /// The programs and the marker's library, with the same paths as on this machine, which the tests use.
    pub files: Vec<GuestFile>,
    /// Runs the tests; libtest's own lines report the results.
    pub script: String,
}

/// Builds the tests for a guest.
///
/// # Errors
/// When a part does not build.
pub fn build(paths: &Paths, guest: &Guest) -> Result<KernelTests> {
    let mut files = Vec::new();
    let packaged = packaged(paths, guest.processor)?;
    let chosen = chosen(guest.processor);
    let mut last = vec![SWAPPED];
    let cgroups = guest.has("memory_cgroup_2");
    if cgroups {
        last.push(if guest.jvm { CGROUP_LIMITS } else { DEATHS });
    }
    if guest.jvm {
        files.extend(jvm::files(paths, guest.processor, packaged.as_ref())?);
        if guest.has("damon") {
            last.push(SWAPPED_JVM);
        }
        if guest.has("spare_machine") {
            last.push(USED_UP);
        }
        last.push(SUSPENDED);
    } else {
        // The tests expect the library where `cargo xtask setup` puts it.
        files.push(GuestFile {
            there: paths.marker().join(LIBRARY_NAME).display().to_string(),
            here: cross::marker_library(paths, guest.processor)?,
        });
    }
    let tests: Vec<&str> = programs(chosen, &last).into_iter().collect();
    let mut binaries = STARTED.to_vec();
    if let Some(packaged) = &packaged {
        let folder = cross::folder(paths, guest.processor, None);
        files.extend(PROGRAMS.map(|name| GuestFile {
            here: packaged.program(),
            there: folder.join(name).display().to_string(),
        }));
    } else if guest.jvm {
        binaries.extend(PROGRAMS);
    }
    // One build for all programs: the features of shared dependencies depend on the chosen packages, and another choice
    // would build them again. Those of this machine's processor are built already, for the tests on this machine.
    let built = Programs {
        what: "tests against the kernel",
        log: "kernel-tests",
        packages: if guest.processor.foreign() {
            FOREIGN_PACKAGES
        } else {
            &[]
        },
        tests: &tests,
        binaries: &binaries,
        profile: None,
    }
    .build(paths, guest.processor)?;

    let must = must_have(guest);
    let target = paths.target.display();
    let mut script =
        format!("export {MUST_HAVE}={must} RUST_BACKTRACE=0 CARGO_TARGET_DIR='{target}'\n");
    if guest.jvm {
        script += &jvm::variables(guest.processor);
    }
    let lines = |chosen: &[Chosen]| -> String {
        chosen
            .iter()
            .map(|chosen| run_tests(&built[chosen.0], chosen))
            .collect()
    };
    script += &lines(chosen);
    script += &swap_on();
    script += &format!("export {MUST_HAVE}={must},swap\n");
    script += &lines(&last);
    for program in built.values() {
        files.push(GuestFile {
            here: small(paths, guest.processor, program)?,
            there: program.display().to_string(),
        });
    }
    Ok(KernelTests { files, script })
}

/// The daemon, its client and the marker of the guest, which are those of the package where one is made for a foreign
/// processor: nothing else runs them.
fn packaged(paths: &Paths, processor: Processor) -> Result<Option<Unpacked>> {
    if !processor.foreign() || !PACKAGED.contains(&processor) {
        return Ok(None);
    }
    let plan = Plan::trial(paths, processor);
    let made = dist(paths, &plan)?;
    let worker = made.of(&WORKER, processor)?;
    worker.unpack(&plan.out.join("unpacked")).map(Some)
}

/// The required features of a guest. Each has two nodes and may take processors offline.
fn must_have(guest: &Guest) -> String {
    let monitor = if guest.has("damon") {
        ",free_damon"
    } else {
        ""
    };
    format!(
        "root,base_pages_4k,two_nodes,processor_switch,{}{monitor}",
        guest.features
    )
}

/// The script line that runs the tests of a program.
fn run_tests(program: &Path, (_, filter, seconds): &Chosen) -> String {
    let program = program.display();
    format!("timeout {seconds} {program} --test-threads=1 --show-output {filter} || failed=1\n")
}

/// Names of the test programs, without duplicates.
fn programs(chosen: &[Chosen], last: &[Chosen]) -> BTreeSet<&'static str> {
    chosen.iter().chain(last).map(|(name, ..)| *name).collect()
}

/// A program without debug information, which is eight times its code: a guest's memory is small. A foreign program is
/// a release build, with little of it.
///
/// # Errors
/// When the program cannot be stripped.
pub fn small(paths: &Paths, processor: Processor, built: &Path) -> Result<PathBuf> {
    if processor.foreign() {
        return Ok(built.to_owned());
    }
    let folder = paths.target.join("vm");
    fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let small = folder.join(built.file_name().context("a program without a name")?);
    let mut strip = Command::new("strip");
    strip.arg("--strip-debug").arg("-o").arg(&small).arg(built);
    run(
        "strip (package binutils)",
        &mut strip,
        &paths.target.join("log/strip.log"),
        BUILD_LIMIT,
    )?;
    Ok(small)
}

#[cfg(test)]
mod tests {
    use super::must_have;
    use crate::features;
    use crate::vm::guest;

    #[test]
    fn what_guests_must_have_are_features() {
        for guest in &guest::ALL {
            for name in must_have(guest).split(',') {
                assert!(
                    features::ALL.iter().any(|(feature, _)| *feature == name),
                    "{name} of {} is no feature",
                    guest.name
                );
            }
        }
    }
}
