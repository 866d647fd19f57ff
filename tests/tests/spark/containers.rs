//! Stand-alone Spark in a container with process ids, mounts, users, a host name and a network of its own, and the daemon
//! outside of it or in a privileged container. What the executors see as their process ids, users and files is not what
//! the daemon sees. The witnesses are `/proc` of the host, the kernel's counts of page faults, and the bytes of the
//! blocks in the executors' memory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_tests::container::{Container, FIRST_USER, Spec};
use smtt_tests::json::{number, text};
use smtt_tests::lab::{LIMIT, SparkLab, programs};
use smtt_tests::truth::unless_collected;
use xtask::daemon::{Daemon, Options};
use xtask::paths::Jdk;
use xtask::process::{Running, wait_for};
use xtask::witness::resident_bytes;

use super::storage::ranges_hold_the_pattern;

/// Id of the container, as a runtime of Kubernetes makes it.
const ID: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
/// Name of the pod.
const POD: &str = "storage-exec-1";
/// Queue of the application: what names it on YARN is read wherever it runs.
const QUEUE: &str = "root.etl";
/// Blocks of one RDD.
const PARTITIONS: usize = 2;
/// Share of an executor's page faults by which two counts may differ, that are not taken at the same moment.
const NEAR: f64 = 0.01;
/// Where README has the jar, and where the container has it.
const JAR: [&str; 2] = [
    "/usr/lib/smtt/smtt-marker.jar",
    "/opt/marker/smtt-marker.jar",
];
/// A cluster of one worker with two executors, and an application that Spark brings the marker to by README's options.
const SCRIPT: &str = r#"
cd /tmp
spark=/opt/spark/bin
$spark/spark-class org.apache.spark.deploy.master.Master --host 127.0.0.1 --port 7077 >/scratch/master.log 2>&1 &
$spark/spark-class org.apache.spark.deploy.worker.Worker --host 127.0.0.1 --cores 2 --memory 2g --work-dir /tmp/work \
    spark://127.0.0.1:7077 >/scratch/worker.log 2>&1 &
exec $spark/spark-submit --master spark://127.0.0.1:7077 --class io.smtt.fixture.Storage \
    README_OPTIONS \
    --conf spark.executor.cores=1 --conf spark.executor.memory=768m --conf spark.ui.enabled=false \
    --conf spark.memory.offHeap.enabled=true --conf spark.memory.offHeap.size=128m --conf spark.rdd.compress=false \
    --conf spark.yarn.queue=QUEUE --conf spark.smtt.fixture.barrier=/scratch/gates /opt/fixture/smtt-fixture.jar 2 >/scratch/result 2>/scratch/submit.log
"#;

/// The script with the options of README's `spark-submit`.
fn script(lab: &SparkLab) -> Result<String> {
    let readme = fs::read_to_string(lab.paths.root.join("README.md"))?;
    let line = readme
        .lines()
        .find_map(|line| line.strip_prefix("spark-submit ")?.strip_suffix(" ..."));
    let options = line.context("README has no spark-submit")?;
    let [there, here] = JAR;
    ensure!(
        options.contains(there) && SCRIPT.contains("README_OPTIONS"),
        "{options}"
    );
    Ok(SCRIPT
        .replace("README_OPTIONS", &options.replace(there, here))
        .replace("QUEUE", QUEUE))
}

/// A folder that the container's users may write to.
fn open_to_all(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777))?;
    Ok(())
}

/// Faults of an executor: all that the daemon counts, and all that the kernel counts.
fn faults(row: &Value) -> Result<(u64, u64)> {
    let mut counted = number(row, "page_faults")?;
    counted += row["page_faults_before_tracing"].as_u64().unwrap_or(0);
    let stat = fs::read_to_string(format!("/proc/{}/stat", number(row, "pid")?))?;
    let fields = stat.rsplit_once(") ").context("no stat")?.1;
    let fields: Vec<&str> = fields.split(' ').collect();
    // proc(5): minflt is field 10 and majflt field 12, from 1; the state is field 3.
    Ok((
        counted,
        fields[7].parse::<u64>()? + fields[9].parse::<u64>()?,
    ))
}

/// Runs the cluster in its container and compares what the daemon says with the host's witnesses.
fn is_traced(lab: &SparkLab, daemon: &Daemon) -> Result<()> {
    let scratch = lab.folder().join("scratch");
    let gates = scratch.join("gates");
    open_to_all(&scratch)?;
    open_to_all(&gates)?;
    fs::write(scratch.join("run.sh"), script(lab)?)?;
    let (jdk, spark) = (Jdk::main()?.home, lab.paths.spark_home("4.0.5")?);
    let fixture = lab.paths.fixture_jar();
    let fixture = fixture.parent().context("no folder of the fixture")?;
    let marker = lab.paths.marker();
    let settings = Path::new("/etc/java-17-openjdk");
    let mut binds = vec![
        (jdk.as_path(), "/opt/jdk"),
        (spark.as_path(), "/opt/spark"),
        (fixture, "/opt/fixture"),
        (marker.as_path(), "/opt/marker"),
        (scratch.as_path(), "/scratch"),
    ];
    // Debian's JDK has its settings there.
    if settings.exists() {
        binds.push((settings, "/etc/java-17-openjdk"));
    }
    let environment = [
        "PATH=/usr/bin:/bin",
        "JAVA_HOME=/opt/jdk",
        "SPARK_HOME=/opt/spark",
        "SPARK_LOCAL_IP=127.0.0.1",
        "SPARK_WORKER_OPTS=-XX:+UseSerialGC",
        "KUBERNETES_SERVICE_HOST=10.0.0.1",
        &format!("HOSTNAME={POD}"),
    ]
    .map(str::to_owned);
    let cgroup = format!("/kubepods/burstable/pod5f7b1a1e-6c1c-4c5b-9d35-8a8f6f6a1b0c/{ID}");
    let container = Container::new(
        &lab.paths,
        lab.folder(),
        &Spec {
            name: POD,
            namespaces: &["pid", "mount", "user", "uts", "ipc", "network"],
            command: &["/bin/bash", "/scratch/run.sh"],
            environment: &environment,
            binds: &binds,
            capabilities: &["SETUID", "SETGID", "KILL"],
            cgroup: &cgroup,
        },
    )?;
    let log = lab.folder().join("container.log");
    let mut running = Running::start("the container", &mut container.command(), &log)?;
    wait_for("the application has cached its RDDs", LIMIT, || {
        if running.poll()?.is_some() {
            let said = fs::read_to_string(scratch.join("submit.log")).unwrap_or_default();
            anyhow::bail!("the container has ended{}: {said}", running.hint());
        }
        Ok(gates.join("cached.reached").exists().then_some(()))
    })?;

    let rows = || -> Result<Vec<Value>> {
        let rows = daemon.rows(&["executors"])?;
        let own = |row: &Value| row["uid"] == FIRST_USER && row["kind"] == "executor";
        Ok(rows.into_iter().filter(own).collect())
    };
    let executors = wait_for("both executors with their container", LIMIT, || {
        let rows = rows()?;
        let known = rows.iter().filter(|row| row["container_id"] == ID);
        Ok((known.count() == 2).then_some(rows))
    })?;
    let metrics = daemon.metrics()?;
    for row in &executors {
        ensure!(
            row["kubernetes_pod"] == POD
                && row["kubernetes_namespace"] == "default"
                && row["queue"] == QUEUE,
            "{row}"
        );
        let [application, name, executor] = ["application_id", "application_name", "executor_id"]
            .map(|field| row[field].as_str().unwrap_or_default());
        let series = format!(
            r#"smtt_executor_info{{application_id="{application}",user="{FIRST_USER}",application_name="{name}",executor_id="{executor}",queue="{QUEUE}",kubernetes_namespace="default",kubernetes_pod="{POD}",container_id="{ID}"}} 1"#
        );
        ensure!(
            metrics.lines().any(|line| line == series),
            "no {series} in {metrics}"
        );
        let pid = number(row, "pid")?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let ids: Vec<&str> = field("NSpid:")
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        ensure!(
            field("Name:").is_some_and(|name| name.trim() == "java") && ids.len() == 2,
            "{pid} is no JVM in a namespace of its own: {status}"
        );
        ensure!(
            ids[0] != ids[1],
            "the test needs two different ids: {ids:?}"
        );
    }
    // Collections and compilations go on, so the two counts are of slightly different moments.
    wait_for("all page faults of the executors", LIMIT, || {
        let pairs: Result<Vec<(u64, u64)>> = rows()?.iter().map(faults).collect();
        let pairs = pairs?;
        println!("page faults, counted and by the kernel: {pairs:?}");
        let near = |(ours, kernel): &(u64, u64)| {
            (*ours as f64 - *kernel as f64).abs() <= NEAR * *kernel as f64
        };
        Ok((pairs.len() == 2 && pairs.iter().all(near)).then_some(()))
    })?;
    for row in rows()? {
        // The tasks touch their blocks at once: on a busy machine most of that is before the daemon finds the library.
        ensure!(
            number(&row, "page_faults_attributed")? > 0,
            "tasks touched their blocks: {row}"
        );
    }
    let application = text(&executors[0], "application_id")?;
    let listed = |arguments: &[&str]| -> Result<Vec<Value>> {
        daemon.rows(&[arguments, &["--app", &application]].concat())
    };
    ensure!(ranges_hold_the_pattern(&listed, "off-heap", false)? == PARTITIONS);
    let on_heap = unless_collected(|| ranges_hold_the_pattern(&listed, "serialised", true))?;
    ensure!(on_heap == PARTITIONS);

    // Accounts of tasks and the table of memory, read by ids that the container does not know.
    let tasks = listed(&["tasks"])?;
    let mut whole = 0;
    for row in tasks.iter().filter(|row| row["state"] == "succeeded") {
        ensure!(row["used_until"] == "task_end", "{row}");
        // A task that began before the daemon had found the library says so.
        if row["used_is_partial"] != true {
            ensure!(number(row, "cpu_ns")? > 0, "{row}");
            whole += 1;
        }
    }
    ensure!(whole >= PARTITIONS, "{tasks:#?}");
    wait_for("the memory of both executors adds up", LIMIT, || {
        let rows = listed(&["memory"])?;
        let mut right = 0;
        for row in &rows {
            let pid = number(row, "pid")?;
            if !executors.iter().any(|executor| executor["pid"] == pid) {
                continue;
            }
            let parts = row["parts"].as_array().into_iter().flatten();
            let sum: i64 = parts.filter_map(|part| part["bytes"].as_i64()).sum();
            let kernel = resident_bytes(pid as u32)?;
            println!("memory of {pid}: parts {sum}, VmRSS {kernel}");
            right += usize::from(sum.unsigned_abs().abs_diff(kernel) <= kernel / 100);
        }
        Ok((right == 2).then_some(()))
    })?;

    for gate in ["cached", "unpersisted", "evicted", "end"] {
        fs::write(gates.join(format!("{gate}.go")), "")?;
    }
    wait_for("the application ends", LIMIT, || {
        Ok(running.poll()?.map(drop))
    })?;
    let result = fs::read_to_string(scratch.join("result"))?;
    ensure!(result.contains("RESULT storage "), "{result}");
    wait_for("the executors' ends", LIMIT, || {
        Ok(rows()?
            .iter()
            .all(|row| row["state"] == "dead")
            .then_some(()))
    })?;
    let reports = wait_for("the executors' reports", LIMIT, || {
        let page = daemon.json(&["postmortem", "--app", &application])?;
        let reports = page["rows"].as_array().context("no reports")?;
        let of = |executor: &Value| {
            let same = |report: &&Value| report["pid"] == executor["pid"];
            reports.iter().find(same).cloned()
        };
        Ok(executors.iter().map(of).collect::<Option<Vec<Value>>>())
    })?;
    for report in reports {
        println!("{}: {}", report["verdict"], report["sentence"]);
        // The kernel kills what is left in a process namespace whose first process has ended.
        let verdicts = ["ended", "stopped_by_spark", "killed_by_signal"];
        ensure!(
            verdicts.iter().any(|verdict| report["verdict"] == *verdict),
            "{report:#}"
        );
    }
    Ok(())
}

#[test]
fn executors_in_a_container_are_traced_from_outside() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    // The library is in the jar alone, which Spark brings into the container.
    let options = Options {
        without_library: true,
        ..Options::default()
    };
    let daemon = lab.daemon_with(&options)?;
    is_traced(&lab, &daemon)?;
    drop(daemon);
    lab.passed()
}

#[test]
fn executors_in_a_container_are_traced_from_a_privileged_one() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let programs = programs()?;
    let config = lab.folder().join("smtt.toml").display().to_string();
    let folder = lab.folder().display().to_string();
    let container = Container::new(
        &lab.paths,
        lab.folder(),
        &Spec {
            name: "smtt-daemon",
            // As the DaemonSet: process ids and network are the host's.
            namespaces: &["mount", "ipc"],
            command: &["/opt/programs/smtt-daemon", "--config", &config],
            environment: &["PATH=/usr/bin:/bin".to_owned()],
            binds: &[
                (&programs, "/opt/programs"),
                (Path::new("/sys"), "/sys"),
                (lab.folder(), &folder),
            ],
            capabilities: &[
                "BPF",
                "PERFMON",
                "SYS_PTRACE",
                "DAC_READ_SEARCH",
                "CHECKPOINT_RESTORE",
            ],
            cgroup: "/smtt-daemon",
        },
    )?;
    let words = |command: Command| -> Result<Vec<String>> {
        let all = std::iter::once(command.get_program()).chain(command.get_args());
        all.map(|word| Ok(word.to_str().context("a path that is no text")?.to_owned()))
            .collect()
    };
    // The launcher's last word takes the daemon's program: the container has its own.
    let mut launcher = vec!["sh".to_owned(), "-c".to_owned()];
    launcher.push(format!("exec {}", words(container.command())?.join(" ")));
    let options = Options {
        without_library: true,
        launcher,
        ..Options::default()
    };
    let daemon = lab.daemon_with(&options)?;
    is_traced(&lab, &daemon)?;
    drop(daemon);
    drop(container);
    lab.passed()
}
