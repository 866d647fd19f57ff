//! The tests against the kernel, run in a guest as they are run on this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::machine::GuestFile;
use crate::cross::{BUILD_LIMIT, cargo};
use crate::marker;
use crate::places::Places;
use crate::process::run;
use crate::step::Steps;

/// Test programs of the package `smtt-tests`, and which of their tests run in a guest: those about counts. The others
/// are about the tables, which no kernel treats differently, and are slow where every instruction is emulated.
const TESTS: [(&str, &str); 2] = [("fault_ladder", ""), ("kernel", "counts::")];
/// A test program's time in a guest, in seconds.
const LIMIT_SECONDS: u32 = 400;
/// The program that they start.
const WORKLOAD: &str = "workload";

/// What is put into a guest, and the lines of the guest's script that run it.
pub struct KernelTests {
    /// The programs and the marker's library, at the paths that they have here: the tests look there.
    pub files: Vec<GuestFile>,
    /// Runs the tests; libtest's own lines say how they fared.
    pub script: String,
}

/// Builds the tests. `rungs` are those of the fault ladder that the guest's kernel must have.
///
/// # Errors
/// When something does not build.
pub fn build(places: &Places, rungs: &str) -> Result<KernelTests> {
    let library = marker::build_library(&places.root, &places.marker())?;
    let log = places.target.join("log/build-kernel-tests.log");
    let mut command = cargo();
    command.args([
        "test",
        "--no-run",
        "--message-format=json",
        "--package",
        "smtt-tests",
        "--target-dir",
    ]);
    command.arg(&places.target).current_dir(&places.root);
    for (test, _) in TESTS {
        command.args(["--test", test]);
    }
    Steps::new(1).always("tests against the kernel", log.clone(), |step| {
        step.run(&mut command, BUILD_LIMIT)
    })?;
    let text =
        fs::read_to_string(&log).with_context(|| format!("cannot read {}", log.display()))?;

    let small = places.target.join("vm");
    fs::create_dir_all(&small)
        .with_context(|| format!("cannot make the folder {}", small.display()))?;
    let mut files = vec![GuestFile {
        here: library.clone(),
        there: library.display().to_string(),
    }];
    let mut script = format!("export SMTT_MUST_HAVE={rungs} RUST_BACKTRACE=0\n");
    for (name, filter) in TESTS.iter().chain([&(WORKLOAD, "")]) {
        let built = executable(&text, name).with_context(|| format!("cargo built no {name}"))?;
        let here = small.join(name);
        // A test's own information for debuggers is eight times its code, and a guest's memory is small.
        let mut strip = Command::new("strip");
        strip.arg("--strip-debug").arg("-o").arg(&here).arg(&built);
        run(
            "strip (package binutils)",
            &mut strip,
            &places.target.join("log/strip.log"),
            BUILD_LIMIT,
        )?;
        let there = built.display().to_string();
        if *name != WORKLOAD {
            script += &format!(
                "timeout {LIMIT_SECONDS} {there} --test-threads=1 --show-output {filter} || failed=1\n"
            );
        }
        files.push(GuestFile { here, there });
    }
    Ok(KernelTests { files, script })
}

/// Path of a program in cargo's messages.
fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| Some(Path::new(message["executable"].as_str()?).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::executable;
    use std::path::PathBuf;

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
