//! The tests against the kernel, run in a guest in the same form as on this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;
use smtt_common::event::marker::LIBRARY_NAME;

use super::guest::{Guest, Processor};
use super::jvm::{self, PROGRAMS};
use super::machine::{GuestFile, swap_on};
use crate::cross::{self, BUILD_LIMIT};
use crate::features::MUST_HAVE;
use crate::paths::Paths;
use crate::process::run;
use crate::step::Steps;

/// A test program of the package `smtt-tests`, the filter of its tests in a guest, and a time limit in seconds: several
/// times the duration on an idle machine.
type Chosen = (&'static str, &'static str, u32);

/// The tests of counts. The others test the tables, which no kernel treats differently, and are slow where every
/// instruction is emulated.
const X86: &[Chosen] = &[
    ("fault_ladder", "", 600),
    (
        "kernel",
        "page_faults:: discovery:: life:: pages::nodes_are pages::memory_that pages::every pages::large pages::frames \
         pages::bytes page_limits::of_a hotness:: nodes:: touched::",
        2400,
    ),
];
/// As [`X86`], for the other processor, and the tests that need its counters.
const FOREIGN: &[Chosen] = &[
    ("fault_ladder", "", 600),
    ("jvm", "", 2100),
    (
        "kernel",
        "page_faults:: discovery:: life:: memory_that_is_bound",
        2400,
    ),
    // Last: one of the tests takes a processor offline for a moment.
    ("page_walks", "guest_", 1200),
];
/// Tests that run again at the end, when the guest has swap: swapped-out memory must be reported.
const SWAPPED: Chosen = (
    "kernel",
    "pages::pages_that pages::every touched::the_memory",
    600,
);
/// Tests with a JVM that run last, on the processor whose kernel has two nodes, swap and DAMON.
const SWAPPED_JVM: Chosen = ("places", "", 2100);
/// Tests that use up the machine's memory, in the guest that has a daemon.
const USED_UP: Chosen = ("kernel", "machine_oom::", 600);
/// Tests that suspend the machine, in the guest that wakes again. The last ones: a guest that slept is not as it was.
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
    let architecture = guest.processor.debian();
    // One build for all programs: the features of shared dependencies depend on the chosen packages, and another choice
    // would build them again. Those of this machine's processor are built already, for the tests on this machine.
    let mut command = cross::build(paths, guest.processor)?;
    command.arg("--message-format=json");
    match guest.processor {
        Processor::X86 => command.arg("--workspace"),
        Processor::Riscv | Processor::Arm => command.args([
            "--package=smtt-tests",
            "--package=smtt-daemon",
            "--package=smtt-ctl",
        ]),
    };
    let mut files = Vec::new();
    let library = cross::marker_library(paths, guest.processor)?;
    let chosen = match guest.processor {
        Processor::X86 => X86,
        Processor::Riscv | Processor::Arm => FOREIGN,
    };
    let mut last = vec![SWAPPED];
    if guest.jvm {
        files.extend(jvm::files(paths, guest.processor, &library)?);
        if guest.processor == Processor::X86 {
            last.extend([SWAPPED_JVM, USED_UP]);
        }
        last.push(SUSPENDED);
    }
    // The tests expect the library where `cargo xtask setup` puts it.
    files.push(GuestFile {
        there: paths.marker().join(LIBRARY_NAME).display().to_string(),
        here: library,
    });
    for test in programs(chosen, &last) {
        command.args(["--test", test]);
    }
    let mut binaries = STARTED.to_vec();
    if guest.jvm {
        binaries.extend(PROGRAMS);
    }
    for binary in &binaries {
        command.args(["--bin", binary]);
    }
    let title = format!("tests against the kernel for {architecture}");
    let log = paths
        .target
        .join(format!("log/build-kernel-tests-{architecture}.log"));
    Steps::new(1).always(&title, log.clone(), |step| {
        step.run(&mut command, BUILD_LIMIT)
    })?;
    let messages =
        fs::read_to_string(&log).with_context(|| format!("cannot read {}", log.display()))?;

    let must = must_have(guest);
    let target = paths.target.display();
    let mut script =
        format!("export {MUST_HAVE}={must} RUST_BACKTRACE=0 CARGO_TARGET_DIR='{target}'\n");
    if guest.jvm {
        script += &jvm::variables(guest.processor);
    }
    let mut by_name = BTreeMap::new();
    for name in programs(chosen, &last) {
        let built = executable(&messages, name);
        let built = built.with_context(|| format!("cargo built no {name}"))?;
        let there = built.display().to_string();
        by_name.insert(name, there.clone());
        files.push(GuestFile {
            here: small(paths, guest.processor, &built)?,
            there,
        });
    }
    let lines = |chosen: &[Chosen]| -> String {
        chosen
            .iter()
            .map(|chosen| run_tests(&by_name[chosen.0], chosen))
            .collect()
    };
    script += &lines(chosen);
    script += &swap_on();
    script += &format!("export {MUST_HAVE}={must},swap\n");
    script += &lines(&last);
    for binary in binaries {
        let built = executable(&messages, binary);
        let built = built.with_context(|| format!("cargo built no {binary}"))?;
        files.push(GuestFile {
            here: small(paths, guest.processor, &built)?,
            there: built.display().to_string(),
        });
    }
    Ok(KernelTests { files, script })
}

/// The required features of a guest. Each has two nodes and may take processors offline; the foreign one counts misses.
fn must_have(guest: &Guest) -> String {
    let more = match guest.processor {
        Processor::X86 | Processor::Arm => "",
        Processor::Riscv => ",dtlb_counters",
    };
    // The one that is known to wake again and has a daemon, whose memory a test may use up.
    let daemon = if guest.jvm && guest.processor == Processor::X86 {
        ",suspend,spare_machine"
    } else {
        ""
    };
    let monitor = if guest.rungs.contains("damon") {
        ",free_damon"
    } else {
        ""
    };
    format!(
        "root,base_pages_4k,two_nodes,processor_switch,{}{more}{monitor}{daemon}",
        guest.rungs
    )
}

/// The script line that runs the tests of a program.
fn run_tests(program: &str, (_, filter, seconds): &Chosen) -> String {
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

/// Path of a program in cargo's messages.
pub fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| Some(Path::new(message["executable"].as_str()?).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::{executable, must_have};
    use crate::features;
    use crate::vm::guest;
    use std::path::PathBuf;

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

    #[test]
    fn a_program_is_found_among_cargos_messages() {
        let messages = "   Compiling a v1\n{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"a\"},\"executable\":null}\n\
                        {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"kernel\"},\"executable\":\"/t/kernel-1\"}\n";
        assert_eq!(
            executable(messages, "kernel"),
            Some(PathBuf::from("/t/kernel-1"))
        );
        assert_eq!(executable(messages, "a"), None);
    }
}
