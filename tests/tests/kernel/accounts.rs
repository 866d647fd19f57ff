//! What tasks used, by the kernel's accounts, compared with what the workload reads of its own threads.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_common::event::Kind;
use smtt_common::event::used::{
    ACCOUNTS, CALL_READ_BYTES, CALL_WRITTEN_BYTES, CPU_NS, CPU_WAIT_NS, DISK_READ_BYTES,
    DISK_WAIT_NS, DISK_WRITTEN_BYTES, FAULTS_MAJOR, FAULTS_MINOR, Helper, PARTIAL,
    SWITCHES_INVOLUNTARY, SWITCHES_VOLUNTARY, TaskUsed, UNTIL_END, UNTIL_EXIT, UNTIL_MASK,
    UNTIL_NEXT, helper,
};
use smtt_config::{FaultHook, ProbeSettings};
use smtt_model::decode::{Fact, decode};
use smtt_model::verdict::TASK_THREADS;
use smtt_tests::attackers::row;
use smtt_tests::skip::skip;
use xtask::daemon::Options;
use xtask::features::on_block_device;

use crate::lab::{KernelLab, Workload, daemon_alone, lab, with_hook};

/// The accounts in the order in which the workload reads them.
pub const READ: [(&str, usize); 10] = [
    ("CPU time", CPU_NS),
    ("wait for a CPU", CPU_WAIT_NS),
    ("voluntary switches", SWITCHES_VOLUNTARY),
    ("involuntary switches", SWITCHES_INVOLUNTARY),
    ("minor faults", FAULTS_MINOR),
    ("major faults", FAULTS_MAJOR),
    ("bytes read by calls", CALL_READ_BYTES),
    ("bytes written by calls", CALL_WRITTEN_BYTES),
    ("bytes read from a disk", DISK_READ_BYTES),
    ("bytes written to a disk", DISK_WRITTEN_BYTES),
];

/// Length of a clock tick in `/proc/PID/stat`.
const TICK_NS: u64 = 10_000_000;

/// Switch of the kernel for the accounts of waits for disks.
const DELAY_ACCOUNTING: &str = "/proc/sys/kernel/task_delayacct";

pub fn accounts_of(lab: &KernelLab, executor: u64) -> Result<Vec<TaskUsed>> {
    lab.of_kind(executor, Kind::TASK_USED)
        .into_iter()
        .map(
            |record| match decode(&record.header, &record.payload)?.fact {
                Fact::TaskUsed(used) => Ok(*used),
                other => anyhow::bail!("{other:?} is no account of a task"),
            },
        )
        .collect()
}

pub fn numbers(value: &Value) -> Result<Vec<u64>> {
    let list = value.as_array().context("no list of numbers")?;
    list.iter()
        .map(|number| number.as_u64().context("no number"))
        .collect()
}

#[test]
fn the_accounts_of_each_task_are_those_of_the_kernel() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Off))? else {
        return Ok(());
    };
    let mut workload = Workload::start("accounts", &[])?;
    let executor = lab.executor(workload.pid())?;
    let done = workload.run()?;
    lab.read()?;
    let used: BTreeMap<u64, TaskUsed> = accounts_of(&lab, executor)?
        .into_iter()
        .map(|used| (used.task_attempt_id, used))
        .collect();
    let tasks = done["tasks"].as_array().context("no tasks")?;
    ensure!(
        tasks.len() == 40 && used.len() == 40,
        "{} tasks ran, {} have accounts",
        tasks.len(),
        used.len()
    );
    // Sum over the tasks, and tasks in which both readings of the workload are equal.
    let mut sums = [0_u64; READ.len()];
    let mut exact = [0_usize; READ.len()];
    let mut widest = 0;
    for task in tasks {
        let id = task["task"].as_u64().context("no task id")?;
        let used = used
            .get(&id)
            .with_context(|| format!("task {id} has no accounts"))?;
        ensure!(used.flags == UNTIL_END, "task {id}: {used:?}");
        let (inner, outer) = (numbers(&task["inner"])?, numbers(&task["outer"])?);
        for (at, (name, account)) in READ.into_iter().enumerate() {
            ensure!(used.present & 1 << account != 0, "no {name}: {used:?}");
            let value = used.accounts[account];
            ensure!(
                inner[at] <= value && value <= outer[at],
                "task {id}, {name}: {value} by the kernel side, {} inside and {} outside of the task",
                inner[at],
                outer[at]
            );
            sums[at] += value;
            exact[at] += usize::from(inner[at] == outer[at]);
        }
        ensure!(
            used.accounts[CPU_NS] <= used.duration_ns,
            "task {id} used more CPU time than there was: {used:?}"
        );
        widest = widest.max((outer[0] - inner[0]) * 1000 / used.accounts[CPU_NS]);
    }
    for (at, (name, _)) in READ.into_iter().enumerate() {
        println!(
            "{name}: {} in all, the same on both sides in {} of 40 tasks",
            sums[at], exact[at]
        );
    }
    println!("the readings of CPU time differ by {widest} thousandths at most");
    // The bounds say something: counts are the same on both sides, and there is something to count.
    for at in [2, 4, 5, 7] {
        ensure!(
            exact[at] >= 30,
            "{} is known in {} tasks",
            READ[at].0,
            exact[at]
        );
    }
    for at in [0, 1, 2, 3, 4, 6, 7] {
        ensure!(sums[at] > 0, "no task has {}", READ[at].0);
    }
    ensure!(
        sums[4] >= 40 * 300 && sums[7] >= 40 << 20,
        "too few faults or bytes: {sums:?}"
    );
    workload.end()?;
    if !on_block_device(Path::new(".")) {
        return skip("disk", "the working folder is on no block device");
    }
    // Each task writes 1 MiB to the disk, reads it again, and touches 32 pages of it that are not in the page cache.
    for at in [5, 8, 9] {
        ensure!(
            exact[at] >= 30,
            "{} is known in {} tasks",
            READ[at].0,
            exact[at]
        );
    }
    ensure!(
        sums[5] >= 40 * 16 && sums[8] >= 40 << 19 && sums[9] >= 40 << 19,
        "too few major faults, or bytes of the disk: {sums:?}"
    );
    Ok(())
}

#[test]
fn ten_thousand_short_tasks_have_their_accounts() -> Result<()> {
    // The default limits, as on a user's machine.
    let settings = ProbeSettings {
        fault_hook: FaultHook::Off,
        ..ProbeSettings::default()
    };
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let mut workload = Workload::start("short_tasks", &[])?;
    let executor = lab.executor(workload.pid())?;
    workload.go()?;
    // The daemon reads many times a second.
    let done = loop {
        std::thread::sleep(Duration::from_millis(50));
        lab.read()?;
        if let Some(done) = workload.done_within(Duration::ZERO)? {
            break done;
        }
    };
    lab.read()?;
    let tasks = done["tasks"].as_array().context("no tasks")?;
    let used: BTreeMap<u64, TaskUsed> = accounts_of(&lab, executor)?
        .into_iter()
        .map(|used| (used.task_attempt_id, used))
        .collect();
    let totals = lab.totals(executor)?;
    let (due, full, limited) = (
        totals.records_seen,
        totals.records_ring_full,
        totals.records_rate_limited,
    );
    println!(
        "{due} accounts were due, {} came, {full} found the ring full, {limited} were above the rate, in {} ms",
        used.len(),
        done["ms"]
    );
    ensure!(tasks.len() == 10_000, "{} tasks ran", tasks.len());
    ensure!(
        due == 10_000 && due == used.len() as u64 + full + limited,
        "due {due}, delivered {}, lost {full} + {limited}",
        used.len()
    );
    ensure!(used.len() == 10_000, "{} tasks have accounts", used.len());
    for task in tasks {
        let [id, inner, outer] = numbers(task)?[..] else {
            anyhow::bail!("{task} is no task");
        };
        let used = &used[&id];
        let cpu = used.accounts[CPU_NS];
        ensure!(
            used.flags == UNTIL_END && inner <= cpu && cpu <= outer && inner >= 300_000,
            "task {id} used {inner} to {outer} ns by its own clock: {used:?}"
        );
    }
    workload.end()
}

#[test]
fn lost_accounts_are_counted_by_executor() -> Result<()> {
    let mut settings = with_hook(FaultHook::Off);
    settings.ring_bytes = 16 << 10;
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let start = |tasks: &str| Workload::start("short_tasks", &[tasks, "us=0", "spin_us=0"]);
    // The ring is not read meanwhile. The modest one ends before the greedy one begins.
    let (mut modest, mut greedy) = (start("tasks=5")?, start("tasks=2000")?);
    let of = [
        (lab.executor(modest.pid())?, 5),
        (lab.executor(greedy.pid())?, 2000),
    ];
    modest.run()?;
    greedy.run()?;
    lab.read()?;
    for (executor, tasks) in of {
        let totals = lab.totals(executor)?;
        let came = accounts_of(&lab, executor)?.len() as u64;
        let (full, limited) = (totals.records_ring_full, totals.records_rate_limited);
        ensure!(
            totals.records_seen == tasks && tasks == came + full + limited,
            "due {tasks}, delivered {came}, lost {full} + {limited}: {totals:?}"
        );
        ensure!(
            (full + limited > 0) == (tasks == 2000),
            "{tasks} tasks: {totals:?}"
        );
    }
    modest.end()?;
    greedy.end()
}

#[test]
fn a_task_without_an_end_has_accounts_too() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Off))? else {
        return Ok(());
    };
    let mut workload = Workload::start("odd_tasks", &[])?;
    let executor = lab.executor(workload.pid())?;
    workload.go()?;
    workload.expect("OPEN")?;
    // SAFETY: a process that this test started and has not waited for.
    unsafe { libc::kill(workload.pid() as i32, libc::SIGKILL) };
    let dead = workload.go_on_to_the_end();
    ensure!(dead.is_err(), "the workload survived");
    lab.read()?;
    let (helpers, used): (Vec<TaskUsed>, Vec<TaskUsed>) = accounts_of(&lab, executor)?
        .into_iter()
        .partition(|used| helper(used.flags).0 != 0);
    let of: BTreeMap<u64, &TaskUsed> = used
        .iter()
        .map(|used| (used.task_attempt_id, used))
        .collect();
    ensure!(used.len() == 5 && of.len() == 5, "{used:#?}");
    let cpu = |task: u64| of[&task].accounts[CPU_NS];
    for (task, until) in [(1, UNTIL_NEXT), (2, UNTIL_END), (5, UNTIL_EXIT)] {
        ensure!(
            of[&task].flags == until && of[&task].present != 0,
            "task {task}: {:?}",
            of[&task]
        );
        // At an exit the kernel may lack the time since the last tick, 10 ms where it has 100 a second.
        let least = if until == UNTIL_EXIT { 10 } else { 20 } * 1_000_000;
        ensure!(
            (least..40_000_000).contains(&cpu(task)),
            "task {task} used {} ns",
            cpu(task)
        );
    }
    for task in [3, 4] {
        ensure!(
            of[&task].flags == PARTIAL | UNTIL_END
                && of[&task].present == 0
                && of[&task].accounts == [0; ACCOUNTS],
            "task {task} was not begun: {:?}",
            of[&task]
        );
    }
    ensure!(
        used.iter()
            .all(|used| used.flags & UNTIL_MASK != UNTIL_MASK)
    );
    let ends = [
        (Helper::PYTHON_WRITER, UNTIL_END),
        (Helper::PIPE_WRITER, UNTIL_EXIT),
    ];
    ensure!(helpers.len() == ends.len(), "{helpers:#?}");
    for (used, (what, until)) in helpers.iter().zip(ends) {
        ensure!(
            helper(used.flags) == what
                && used.flags & UNTIL_MASK == until
                && used.flags & PARTIAL == 0
                && used.task_attempt_id == 2
                && (20_000_000..30_000_000).contains(&used.accounts[CPU_NS]),
            "{used:?} is no helper of task 2 with 20 ms of CPU time"
        );
    }
    // The rows go with the threads.
    let rows = lab.probes.task_rows()?;
    ensure!(rows == 0, "{rows} rows are left in the table of tasks");
    Ok(())
}

#[test]
fn the_wait_for_a_disk_is_there_where_the_kernel_keeps_it() -> Result<()> {
    if !std::path::Path::new(DELAY_ACCOUNTING).exists() {
        return skip(
            "delay_accounting",
            "this kernel keeps the account from its start, or not at all",
        );
    }
    let before = fs::read_to_string(DELAY_ACCOUNTING)?;
    let outcome = ["0", "1"].into_iter().try_for_each(|on| -> Result<()> {
        fs::write(DELAY_ACCOUNTING, on)?;
        let Some(mut lab) = lab(&with_hook(FaultHook::Off))? else {
            return Ok(());
        };
        let mut workload = Workload::start("accounts", &["threads=1", "tasks=5", "mapped=256"])?;
        let executor = lab.executor(workload.pid())?;
        let done = workload.run()?;
        lab.read()?;
        let used = accounts_of(&lab, executor)?;
        ensure!(used.len() == 5, "{} tasks have accounts", used.len());
        let waited: u64 = used.iter().map(|used| used.accounts[DISK_WAIT_NS]).sum();
        let tasks = done["tasks"].as_array().context("no tasks")?;
        let ticks: Vec<[u64; 2]> = tasks
            .iter()
            .map(|task| Ok([numbers(&task["inner"])?[10], numbers(&task["outer"])?[10]]))
            .collect::<Result<_>>()?;
        println!(
            "delay accounting {on}: the tasks waited {waited} ns for a disk; in ticks inside and outside: {ticks:?}"
        );
        if on == "1" {
            ensure!(
                waited > 0 || !on_block_device(Path::new(".")),
                "no task waited for the disk"
            );
            // The kernel itself may count a wait from the machine's start on: then its file says so too.
            for (used, [inner, outer]) in used.iter().zip(ticks) {
                let wait = used.accounts[DISK_WAIT_NS];
                // The kernel shows whole ticks: a difference may be one off.
                ensure!(
                    inner.saturating_sub(1) * TICK_NS <= wait && wait <= (outer + 1) * TICK_NS,
                    "{wait} ns, in ticks {inner} inside and {outer} outside of the task: {used:?}"
                );
            }
        }
        for used in &used {
            let present = used.present & 1 << DISK_WAIT_NS != 0;
            ensure!(present == (on == "1"), "delay accounting is {on}: {used:?}");
        }
        workload.end()
    });
    fs::write(DELAY_ACCOUNTING, before.trim())?;
    outcome
}

/// Threads that one executor may have a row for, a quarter of `[limits] threads`.
const ROWS: u64 = 16;
/// How long the daemon may take to see threads without a row, at two readings.
const VERDICT_LIMIT: Duration = Duration::from_secs(60);

#[test]
fn tasks_on_threads_that_are_not_traced_have_a_verdict() -> Result<()> {
    let options = Options {
        toml: format!("[limits]\nthreads = {}\n", 4 * ROWS),
        ..Options::default()
    };
    let Some(daemon) = daemon_alone(&options)? else {
        return Ok(());
    };
    let verdict = || -> Result<Option<String>> {
        let status = daemon.json(&["status"])?;
        let probes = status["probes"].as_array().context("no probes")?;
        let own = probes.iter().find(|probe| probe["hook"] == TASK_THREADS);
        Ok(own.map(|probe| probe["reason"].to_string()))
    };
    // Tasks of 0.1 s, one after the other on each thread.
    let tasks = |threads: u64, seconds: u64| {
        let options = [
            format!("threads={threads}"),
            format!("tasks={}", threads * seconds * 10),
            "us=100000".to_owned(),
            "spin_us=500".to_owned(),
            "name=java".to_owned(),
        ];
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        Workload::start("short_tasks", &options)
    };

    let mut few = tasks(ROWS - 4, 6)?;
    few.go()?;
    while few.done_within(Duration::from_millis(200))?.is_none() {
        let said = verdict()?;
        ensure!(said.is_none(), "each thread has a row: {said:?}");
    }
    few.end()?;

    let mut many = tasks(ROWS + 8, 90)?;
    many.go()?;
    let start = Instant::now();
    let said = loop {
        if let Some(said) = verdict()? {
            break said;
        }
        ensure!(start.elapsed() < VERDICT_LIMIT, "no verdict");
        ensure!(
            many.done_within(Duration::from_millis(100))?.is_none(),
            "its tasks have ended"
        );
    };
    println!("after {:?}: {said}", start.elapsed());
    ensure!(
        said.contains("tasks of 1 executors run on threads that are not traced")
            && said.contains("raise [limits] threads"),
        "{said}"
    );
    let row = row(&daemon, many.pid())?;
    ensure!(row["threads_refused"].as_u64() >= Some(8), "{row}");
    let checks = daemon.json(&["doctor"])?;
    let checks = checks.as_array().context("no checks")?;
    let check = checks.iter().find(|check| check["name"] == TASK_THREADS);
    ensure!(
        check.is_some_and(|check| check["ok"] == false && check["required"] == false),
        "{check:?}"
    );
    // One warning names the process: that of its discovery, or, where that came before the threads, that of its tasks.
    let log = fs::read_to_string(daemon.log())?;
    let pid = many.pid();
    let lines = [
        format!("tasks of process {pid} run on threads"),
        format!("child processes of process {pid} are not traced"),
    ];
    let named: usize = lines.iter().map(|line| log.matches(line).count()).sum();
    ensure!(named == 1, "{log}");
    Ok(())
}

/// Fields that a kernel's type information lacks in the next test, and the columns that rest on them alone.
const HIDDEN: [(&str, &str); 2] = [("run_delay", "cpu_wait_ns"), ("rchar", "call_read_bytes")];

/// This kernel's type information with other names for the hidden fields.
fn types_without_fields() -> Result<Vec<u8>> {
    let mut types = fs::read("/sys/kernel/btf/vmlinux")?;
    for (field, _) in HIDDEN {
        let name = format!("\0{field}\0").into_bytes();
        let mut found = 0;
        while let Some(at) = types.windows(name.len()).position(|part| part == name) {
            types[at + 1] = b'X';
            found += 1;
        }
        ensure!(found > 0, "this kernel has no field {field}");
    }
    Ok(types)
}

#[test]
fn a_kernel_without_a_field_leaves_its_column_out_and_nothing_else() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let Ok(types) = types_without_fields() else {
        return skip("btf", "the kernel has no type information");
    };
    let file = folder.path().join("vmlinux");
    fs::write(&file, types)?;
    // Only this daemon sees the other file.
    let enter = "mount --bind \"$0\" /sys/kernel/btf/vmlinux && exec \"$@\"";
    let file = file.display().to_string();
    let launcher = ["unshare", "--mount", "sh", "-c", enter, &file];
    let options = Options {
        launcher: launcher.map(str::to_owned).into(),
        ..Options::default()
    };
    let Some(daemon) = daemon_alone(&options)? else {
        return Ok(());
    };
    let log = fs::read_to_string(daemon.log())?;
    for (field, _) in HIDDEN {
        ensure!(
            log.contains(&format!("of this kernel has no field {field}")),
            "{field} is not named: {log}"
        );
    }
    let options = ["threads=2", "tasks=40", "us=20000", "spin_us=5000"];
    let mut workload = Workload::start("short_tasks", &options)?;
    let done = workload.run()?;
    let own = row(&daemon, workload.pid())?;
    let application = own["application_id"].as_str().context("no application")?;
    let start = Instant::now();
    let tasks = loop {
        let tasks = daemon.rows(&["tasks", "--app", application])?;
        // Page faults need none of the hidden fields.
        let own = row(&daemon, workload.pid())?;
        let whole = tasks.len() == 40 && own["page_faults"].as_u64() > Some(0);
        if whole && tasks.iter().all(|task| task["used_until"] == "task_end") {
            break tasks;
        }
        ensure!(start.elapsed() < VERDICT_LIMIT, "{own}\n{tasks:?}");
        std::thread::sleep(Duration::from_millis(200));
    };
    let truth = done["tasks"].as_array().context("no tasks")?;
    for task in &tasks {
        for (_, column) in HIDDEN {
            ensure!(task[column].is_null(), "{column}: {task}");
        }
        for column in [
            "context_switches",
            "thread_minor_faults",
            "thread_major_faults",
            "call_written_bytes",
            "disk_read_bytes",
            "disk_written_bytes",
            "used_duration_ns",
        ] {
            ensure!(task[column].is_u64(), "{column}: {task}");
        }
        // The thread's own clock, read inside and outside of the task.
        let truth = truth.iter().find(|own| own[0] == task["task_attempt_id"]);
        let truth = numbers(truth.context("an unknown task")?)?;
        let cpu = task["cpu_ns"].as_u64().context("no CPU time")?;
        ensure!(truth[1] <= cpu && cpu <= truth[2], "{truth:?}: {task}");
    }
    let status = daemon.json(&["status"])?;
    let probes = status["probes"].as_array().context("no probes")?;
    ensure!(
        probes.iter().all(|probe| probe["verdict"] != "broken"),
        "{status}"
    );
    workload.end()
}
