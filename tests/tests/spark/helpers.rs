//! Threads that work for one task beside its own thread: what they used is apart from the task's own figures, and equals
//! what the kernel says of these threads.

use std::fs;
use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_machine::perf::{Event, Of, Opening};
use smtt_model::cpu::Encoding;
use smtt_tests::json::{list, number, text};
use smtt_tests::lab::{LIMIT, LabDaemon, Run, SparkLab};
use xtask::process::wait_for;
use xtask::spark::Application;

/// One executor, one core.
const MASTER: &str = "local-cluster[1,1,1024]";
/// Characters of a line of the input, without its end.
const LINE: usize = 1000;
/// Lines of the input, and those that the reader takes before it stops. What is between is more than sockets and pipes hold.
const LINES: usize = 120_000;
const TAKEN: usize = 60_000;
/// CPU time that a thread has outside of what is read: from its start until it sets its task's context, and in its end.
const AROUND_NS: u64 = 30_000_000;
/// Page faults of the same: those of its stack and of its allocation buffers.
const AROUND_FAULTS: u64 = 100;

/// What the kernel says of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Thread {
    id: u32,
    cpu_ns: u64,
    cpu_wait_ns: u64,
    minor_faults: u64,
}

/// Software events of the kernel that count what a thread does from now until its end.
struct Rest {
    cpu: Event,
    minor_faults: Event,
}

impl Rest {
    fn of(thread: &Thread) -> Result<Self> {
        // perf_event_open(2): PERF_COUNT_SW_TASK_CLOCK and PERF_COUNT_SW_PAGE_FAULTS_MIN.
        let open = |config| -> Result<Event> {
            let event = Event::open(Opening {
                event: &Encoding::software(config),
                of: Of::Descendants(thread.id),
                period: 0,
                addresses: false,
                leader: None,
            })?;
            event.enable()?;
            Ok(event)
        };
        Ok(Self {
            cpu: open(1)?,
            minor_faults: open(5)?,
        })
    }

    /// All that the thread had, given what it had when the counting began.
    fn added_to(&self, before: Thread) -> Result<Thread> {
        Ok(Thread {
            cpu_ns: before.cpu_ns + self.cpu.read()?.value,
            minor_faults: before.minor_faults + self.minor_faults.read()?.value,
            ..before
        })
    }
}

/// The only thread of a process whose name begins with `name`.
fn thread(pid: u64, name: &str) -> Result<Thread> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let entry = entry?;
        let folder = entry.path();
        let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
        if !read("comm").starts_with(name) {
            continue;
        }
        let (times, stat) = (read("schedstat"), read("stat"));
        let times: Vec<u64> = times
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let (_, fields) = stat.rsplit_once(')').context("no name")?;
        // proc(5) has minflt as the tenth field; the first one after the name is the third.
        let minor = fields.split_whitespace().nth(10 - 3).context("no minflt")?;
        found.push(Thread {
            id: entry.file_name().to_string_lossy().parse()?,
            cpu_ns: *times.first().context("no CPU time")?,
            cpu_wait_ns: *times.get(1).context("no wait")?,
            minor_faults: minor.parse()?,
        });
    }
    ensure!(found.len() == 1, "threads {name} of {pid}: {found:?}");
    Ok(found[0])
}

/// A thread that waits: what the kernel says of it does not change any more.
fn waiting(pid: u64, name: &str) -> Result<Thread> {
    let mut before = None;
    wait_for("the helper waits", LIMIT, || {
        let now = thread(pid, name)?;
        let same = before.replace(now) == Some(now);
        Ok(same.then_some(now))
    })
}

/// Whether a helper is a Python worker.
fn is_worker(helper: &Value) -> bool {
    helper["name"] == "python worker"
}

/// The row of the application's only task, whose own accounts and those of `threads` kinds of helper threads have arrived.
/// Python workers, which are processes, stand beside them: `python_used.rs` compares them.
fn task(daemon: &LabDaemon<'_>, run: &Run, threads: usize) -> Result<Value> {
    wait_for("the task has its accounts", LIMIT, || {
        let rows = run.rows(daemon, &["tasks"])?;
        // The kernel side's record and the marker's make the row of a helper; `threads` comes with the former.
        let row = rows.into_iter().find(|row| {
            let helpers = row["helpers"].as_array().map_or(&[][..], Vec::as_slice);
            row["used_until"] == "task_end"
                && helpers.iter().filter(|it| !is_worker(it)).count() == threads
                && helpers.iter().all(|it| it["threads"].as_u64() >= Some(1))
        });
        Ok(row)
    })
}

/// Runs an application whose thread `thread_name` helps its task, and compares what the daemon says of the helper `name`.
fn compare(
    version: &str,
    application: impl FnOnce(&SparkLab) -> Result<Application>,
    (thread_name, name): (&str, &str),
    result: &str,
) -> Result<()> {
    let lab = SparkLab::new(version)?;
    let daemon = lab.daemon()?;
    let application = application(&lab)?.with_marker(&lab.paths);
    let mut run = lab.run(application)?;
    run.reach("half")?;
    let executors = run.rows(&daemon, &["executors"])?;
    let executor = executors
        .iter()
        .find(|row| row["executor_id"] == "0")
        .context("no executor")?;
    let pid = number(executor, "pid")?;
    let (helper, own) = (waiting(pid, thread_name)?, waiting(pid, "Executor task l")?);
    // After the gate a helper may still work: Spark's pipe writer computes the lines that it cannot write any more.
    let rest = Rest::of(&helper)?;
    run.open("half")?;
    run.reach("end")?;
    let row = task(&daemon, &run, 1)?;
    let helper = rest.added_to(helper)?;
    let all = list(&row, "helpers")?;
    let said = all.iter().find(|it| !is_worker(it)).context("no helper")?;
    println!("Spark {version}: {said}, the kernel {helper:?}, the task's own thread {own:?}");
    ensure!(text(said, "name")? == name && number(said, "threads")? == 1);
    let (cpu, allocated) = (
        number(said, "cpu_ns")?,
        number(said, "heap_allocated_bytes")?,
    );
    ensure!(
        cpu.abs_diff(helper.cpu_ns) <= AROUND_NS && cpu > AROUND_NS,
        "the helper used {cpu} ns, by the kernel {helper:?}"
    );
    number(said, "cpu_wait_ns")?;
    let faults = number(said, "thread_minor_faults")?;
    ensure!(
        faults <= helper.minor_faults && helper.minor_faults - faults <= AROUND_FAULTS,
        "{faults} faults, by the kernel {helper:?}"
    );
    // Each line that was taken was a string on the heap.
    ensure!(allocated >= (TAKEN * LINE) as u64, "{allocated} bytes");
    // The helpers of the only task are all that its stage and its job have.
    for listing in ["stages", "jobs"] {
        let rows = run.rows(&daemon, &[listing])?;
        let sums: Vec<&Value> = rows.iter().map(|row| &row["helpers"]).collect();
        let sums: Vec<&&Value> = sums.iter().filter(|sum| !sum.is_null()).collect();
        ensure!(sums.len() == 1, "{listing}: {rows:?}");
        for figure in [
            "threads",
            "cpu_ns",
            "heap_allocated_bytes",
            "thread_minor_faults",
        ] {
            let of_all: u64 = all.iter().filter_map(|it| it[figure].as_u64()).sum();
            ensure!(
                sums[0][figure] == of_all && !said[figure].is_null(),
                "{figure} of {listing}: {}, of the task: {all:?}",
                sums[0]
            );
        }
    }
    // The task's own figures do not have the helper's: its thread waited.
    let mine = number(&row, "cpu_ns")?;
    ensure!(
        mine <= own.cpu_ns + 10 * AROUND_NS && number(&row, "heap_allocated_bytes")? < allocated,
        "the task's own thread used {mine} ns, by the kernel {own:?}: {row}"
    );
    assert_eq!(run.finish(&["end"])?, result);
    drop(daemon);
    lab.passed()
}

/// The application that reads a text file in Python.
fn python(lab: &SparkLab) -> Result<Application> {
    let path = lab.folder().join("lines.txt");
    let mut file = std::io::BufWriter::new(fs::File::create(&path)?);
    let line = "x".repeat(LINE);
    for _ in 0..LINES {
        writeln!(file, "{line}")?;
    }
    file.into_inner()?;
    let path = path.to_string_lossy();
    Application::python(
        &lab.paths,
        MASTER,
        "helping.py",
        &[&path, &TAKEN.to_string()],
    )
}

#[test]
fn a_python_writer_is_a_part_of_its_own() -> Result<()> {
    let result = format!("RESULT helping {}", TAKEN * LINE);
    compare(
        "3.5.9",
        python,
        ("stdout writer f", "python writer"),
        &result,
    )
}

#[test]
fn a_pipe_writer_is_a_part_of_its_own() -> Result<()> {
    let taken = (TAKEN * LINE).to_string();
    // The writer does not notice that the command has ended, and computes what is left: more than the pipe holds, but little.
    let (lines, line) = ((TAKEN + 200).to_string(), LINE.to_string());
    let piping = |lab: &SparkLab| {
        let arguments = [&*lines, &*line, &*taken];
        Application::java(&lab.paths, MASTER, "Piping", &arguments)
    };
    let result = format!("RESULT piping {taken}");
    compare("4.0.5", piping, ("stdin writer fo", "pipe writer"), &result)
}

#[test]
fn spark_4_writes_to_python_on_the_task_s_own_thread() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let daemon = lab.daemon()?;
    let mut run = lab.run(python(&lab)?.with_marker(&lab.paths))?;
    run.open("half")?;
    run.reach("end")?;
    let row = task(&daemon, &run, 0)?;
    let helpers = row["helpers"].as_array().map_or(&[][..], Vec::as_slice);
    ensure!(helpers.iter().all(is_worker), "{row}");
    ensure!(
        number(&row, "heap_allocated_bytes")? >= (TAKEN * LINE) as u64,
        "{row}"
    );
    run.finish(&["end"])?;
    drop(daemon);
    lab.passed()
}
