//! Unit tests of the marker's classes: compiled beside the jar, run without Spark in one JVM of each JDK, and again with
//! the agent, whose JVM must not warn.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use smtt_common::event::marker::LIBRARY_NAME;

use super::{JAR_NAME, run, sources, tool};
use crate::features::SKIPPED_LINE;
use crate::paths::Jdk;

/// The first JDK that warns when Unsafe accesses memory, and when native code is loaded without permission.
pub const UNSAFE_WARNS: u32 = 24;
/// The permission to load native code, as docs/SPARK.md gives it.
pub const NATIVE_ACCESS: &str = "--enable-native-access=ALL-UNNAMED";
/// The result of one test, in cargo's form.
const ONE_PASSED: &str =
    "\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
/// Tests that cannot run with the agent and without Unsafe: one has a stand-in for a class of Spark with hooks, the
/// others need Spark's own classes, some of which call Unsafe, or a warning of the marker.
const NOT_QUIET: [&str; 7] = [
    "AttachedTest",
    "HistoryListenerTest",
    "HistoryPartsTest",
    "HistoryStoreTest",
    "HistoryTest",
    "PlanNodeTest",
    "TaskMemoryTest",
];
/// A test that needs Hadoop's user, whose `getSubject` the JDKs from [`UNSAFE_WARNS`] on refuse.
const ASKS_HADOOP: &str = "HistoryListenerTest";
/// Settings of log4j. Spark replaces those without an appender.
const SILENT: &str = "appender.none.type = Null\nappender.none.name = none\nrootLogger.level = off\nrootLogger.appenderRef.none.ref = none\n";
/// The test that attaches the agent to its own JVM, and so changes the tests after it.
const SELF_ATTACH: &str = "SelfAttachTest";
/// Options of JVMs, whether the agent can attach itself there, and what the marker reports where it cannot.
const ATTACHED_JVMS: [(&str, &str, bool); 4] = [
    ("-XX:+UseSerialGC", "", true),
    // The JVM handles no SIGQUIT, and listens from its start.
    ("-Xrs", "", true),
    (
        "-XX:+DisableAttachMechanism",
        "-XX:+DisableAttachMechanism forbids it",
        false,
    ),
    (
        "-XX:-EnableDynamicAgentLoading",
        "-XX:-EnableDynamicAgentLoading forbids it",
        false,
    ),
];

/// Builds the marker and runs the tests in `smtt-marker/tests/java` on every JDK of this machine. Prints result lines in
/// cargo's form.
///
/// # Errors
/// When a part does not build, a test fails, or a JVM warns about the marker.
pub fn test(root: &Path, jars: &Path, out_dir: &Path) -> Result<()> {
    super::build(root, jars, out_dir)?;
    super::collector::test(&out_dir.join(LIBRARY_NAME))?;
    println!("\ntest collections_are_followed ... ok\n{ONE_PASSED}");
    let sources = sources(&root.join("smtt-marker/tests/java"))?;
    let tests: Vec<&str> = sources
        .iter()
        .filter_map(|path| path.file_stem()?.to_str())
        .filter(|name| name.ends_with("Test") && !["Test", SELF_ATTACH].contains(name))
        .collect();
    ensure!(!tests.is_empty(), "smtt-marker/tests/java has no tests");
    let work = out_dir.join("marker-classes");
    let classes = work.join("tests");
    fs::create_dir_all(&classes)?;
    // Spark's classes would log to standard error.
    fs::write(classes.join("log4j2.properties"), SILENT)?;
    let jar = out_dir.join(JAR_NAME);
    let mut javac = Command::new(tool("javac")?);
    javac
        .args([
            "--release",
            "8",
            "-g",
            "-Xlint:all,-options,-serial,-processing,-classfile,-path,-auxiliaryclass",
            "-Werror",
            "-proc:none",
            "-cp",
        ])
        .arg(format!(
            "{}:{}:{}/*",
            work.join("stubs").display(),
            jar.display(),
            jars.display()
        ))
        .arg("-d")
        .arg(&classes)
        .args(&sources);
    run(&mut javac, "javac compiles the marker's tests")?;
    // The tests precede Spark's jars: they have a stand-in for a class of Spark.
    let class_path = format!(
        "{}:{}:{}/*",
        classes.display(),
        jar.display(),
        jars.display()
    );
    let jdks = Jdk::all();
    for jdk in &jdks {
        println!("\nmarker on JDK {}", jdk.release);
        let mut java = runner(jdk, &class_path);
        if jdk.release >= UNSAFE_WARNS {
            // Spark's own class for raw memory calls Unsafe.
            java.arg("--sun-misc-unsafe-memory-access=allow");
        }
        let status = java
            .arg("io.smtt.marker.Runner")
            .args(tests.iter().filter(|test| can_run(jdk, test)))
            .status()
            .context("cannot run java")?;
        if !status.success() {
            bail!(
                "tests of the marker failed on JDK {} ({status})",
                jdk.release
            );
        }
        quiet(jdk, &class_path, &jar, &tests)?;
        self_attach(jdk, &class_path)?;
    }
    for line in skipped(&jdks) {
        println!("{line}");
        // The count of skipped tests is taken from the passed ones.
        println!("{ONE_PASSED}");
    }
    Ok(())
}

/// The releases beside JDK 17 on which the marker must not warn, and which this machine lacks.
fn skipped(jdks: &[Jdk]) -> Vec<String> {
    let lacks = |fits: fn(&u32) -> bool| !jdks.iter().any(|jdk| fits(&jdk.release));
    let mut lines = Vec::new();
    if lacks(|release| *release == 21) {
        lines.push(format!(
            "test no_warning_on_jdk_21 ... {SKIPPED_LINE}jdk_21: no JDK under /usr/lib/jvm is of release 21, so its warnings are not known"
        ));
    }
    if lacks(|release| *release >= UNSAFE_WARNS) {
        lines.push(format!(
            "test no_warning_on_jdk_25 ... {SKIPPED_LINE}jdk_25: no JDK under /usr/lib/jvm is newer than {}, so only Unsafe's form of memory was tested",
            UNSAFE_WARNS - 1
        ));
    }
    lines
}

fn can_run(jdk: &Jdk, test: &str) -> bool {
    jdk.release < UNSAFE_WARNS || test != ASKS_HADOOP
}

/// Java with what the tests need; the class to run is missing.
fn runner(jdk: &Jdk, class_path: &str) -> Command {
    let mut java = Command::new(jdk.tool("java"));
    // The same collector on every machine; heap handles are readable under it.
    java.args(["-XX:+UseSerialGC", "-Xmx128m", "-cp", class_path]);
    if jdk.release >= UNSAFE_WARNS {
        java.arg(NATIVE_ACCESS);
    }
    java
}

/// Runs the tests with the agent; its JVM must not warn about the marker. Where the JVM can refuse Unsafe, it does.
fn quiet(jdk: &Jdk, class_path: &str, jar: &Path, tests: &[&str]) -> Result<()> {
    let mut java = runner(jdk, class_path);
    java.arg(format!("-javaagent:{}", jar.display()));
    if jdk.release >= UNSAFE_WARNS {
        java.arg("--sun-misc-unsafe-memory-access=deny");
    }
    let output = java
        .arg("io.smtt.marker.Runner")
        .args(tests.iter().filter(|test| !NOT_QUIET.contains(test)))
        .output()
        .context("cannot run java")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "tests of the marker failed with the agent on JDK {} ({})\n{}{errors}",
        jdk.release,
        output.status,
        String::from_utf8_lossy(&output.stdout),
    );
    let warnings = warnings(&errors);
    ensure!(
        warnings.is_empty(),
        "JDK {} warns about the marker:\n{}",
        jdk.release,
        warnings.join("\n")
    );
    println!("test no_warning_on_jdk_{} ... ok", jdk.release);
    println!("{ONE_PASSED}");
    Ok(())
}

/// Runs the test of the attachment in JVMs with different options. None may print its stacks, which is what SIGQUIT does
/// where the JVM does not expect it.
fn self_attach(jdk: &Jdk, class_path: &str) -> Result<()> {
    for (option, reason, attaches) in ATTACHED_JVMS {
        let output = runner(jdk, class_path)
            .args([option, &format!("-Dattaches={attaches}")])
            .args(["io.smtt.marker.Runner", SELF_ATTACH])
            .output()
            .context("cannot run java")?;
        let out = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success() && !out.contains("Full thread dump"),
            "the agent does not attach itself as it should on JDK {} with {option} ({})\n{out}{errors}",
            jdk.release,
            output.status,
        );
        let said = errors.lines().find(|line| line.contains("smtt-marker:"));
        ensure!(
            said.is_some() != attaches && said.unwrap_or_default().contains(reason),
            "with {option} the marker says: {said:?}"
        );
        println!("test {SELF_ATTACH}::{option} ... ok\n{ONE_PASSED}");
    }
    Ok(())
}

/// Lines of a JVM's standard error that warn: the JVM's own, and the marker's about itself.
fn warnings(errors: &str) -> Vec<&str> {
    errors
        .lines()
        .filter(|line| {
            ["WARNING", "Unsafe", "smtt-marker:"]
                .iter()
                .any(|word| line.contains(word))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_release_that_this_machine_lacks_is_a_skipped_test() {
        let named = |releases: &[u32]| {
            let jdk = |release: &u32| Jdk {
                home: std::path::PathBuf::new(),
                release: *release,
            };
            let jdks: Vec<Jdk> = releases.iter().map(jdk).collect();
            let name = |line: &String| line.split(' ').nth(1).map(str::to_owned);
            skipped(&jdks).iter().filter_map(name).collect::<Vec<_>>()
        };
        assert_eq!(
            named(&[17]),
            ["no_warning_on_jdk_21", "no_warning_on_jdk_25"]
        );
        assert_eq!(named(&[17, 25]), ["no_warning_on_jdk_21"]);
        assert_eq!(named(&[17, 21]), ["no_warning_on_jdk_25"]);
        assert_eq!(named(&[17, 21, 26]), [""; 0]);
    }

    #[test]
    fn warnings_are_found() {
        let errors = "Picked up JAVA_TOOL_OPTIONS: -Xshare:auto\n\
             WARNING: A terminally deprecated method in sun.misc.Unsafe has been called\n\
             smtt-marker: a hook failed\n\
             \tat io.smtt.marker.Agent.start\n";
        assert_eq!(
            warnings(errors),
            [
                "WARNING: A terminally deprecated method in sun.misc.Unsafe has been called",
                "smtt-marker: a hook failed"
            ]
        );
    }
}
