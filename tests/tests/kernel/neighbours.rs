//! Processes of an unprivileged user beside an executor of another user: facts without an executor, Python workers that do
//! not exist, threads and children that stay. The executor loses no fact and no row. And a worker whose task changes while
//! it has page faults, whose context is never a mixture of two tasks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_common::context::Activity;
use smtt_common::counter::Unattributed;
use smtt_config::FaultHook;
use smtt_tests::attackers::{AS_UNPRIVILEGED, READ_LIMIT, UNPRIVILEGED_UID, row};
use smtt_tests::json::number;
use xtask::daemon::{Daemon, Options};

use crate::lab::{DaemonAlone, Workload, all, daemon_alone, lab, with_hook};

/// How long the executor works beside the attack.
const LENGTH: &str = "ms=8000";

/// An executor that reports 400 facts a second beside attackers of another user, and a daemon with its own settings. Fails
/// where a fact of the executor does not arrive. Returns the daemon, and what the attackers say of themselves.
fn facts_beside(attackers: &[(&str, &[&str])]) -> Result<Option<(DaemonAlone, Vec<Value>)>> {
    // The priority of the unit, as in the test of the victim.
    let options = Options {
        launcher: ["nice", "-n", "-5"].map(str::to_owned).into(),
        ..Options::default()
    };
    let Some(daemon) = daemon_alone(&options)? else {
        return Ok(None);
    };
    let mut executor = Workload::start("steady", &[LENGTH, "per_second=400", "name=java"])?;
    let pid = executor.pid();
    let start = Instant::now();
    while row(&daemon, pid).is_err() {
        ensure!(start.elapsed() < READ_LIMIT, "the executor is not found");
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut running = Vec::new();
    for (name, options) in attackers {
        let options: Vec<&str> = options.iter().copied().chain([AS_UNPRIVILEGED]).collect();
        running.push(Workload::start(name, &options).with_context(|| (*name).to_owned())?);
    }
    for attacker in &mut running {
        attacker.go()?;
    }
    let told = number(&executor.run()?, "told")?;
    let start = Instant::now();
    loop {
        let row = row(&daemon, pid)?;
        let arrived = row["facts_by_kind"]["blockRead"].as_u64().unwrap_or(0);
        let dropped = number(&row, "facts_dropped")?;
        ensure!(
            dropped == 0 && arrived <= told,
            "{arrived} of {told} facts arrived: {}",
            row["facts_dropped_by_cause"]
        );
        if arrived == told {
            println!("{arrived} of {told} facts arrived");
            break;
        }
        ensure!(
            start.elapsed() < READ_LIMIT,
            "{arrived} of {told} facts arrived"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    let mut said = Vec::new();
    for mut attacker in running {
        said.push(attacker.done()?);
        attacker.end()?;
    }
    executor.end()?;
    Ok(Some((daemon, said)))
}

/// A hop of the daemon's ledger.
fn hop(daemon: &Daemon, name: &str) -> Result<Value> {
    let status = daemon.json(&["status"])?;
    let hops = status["ledger"].as_array().context("no ledger")?;
    let found = hops.iter().find(|hop| hop["name"] == name);
    found
        .cloned()
        .with_context(|| format!("no hop {name} in {hops:?}"))
}

#[test]
fn facts_without_an_executor_are_no_loss_of_another_user_s() -> Result<()> {
    // Without a name by which they would be found, too.
    let facts: &[&str] = &["describe=no", "threads=2", "facts=300000", "pages=16"];
    let Some((daemon, said)) = facts_beside(&[("storm", facts), ("storm", facts)])? else {
        return Ok(());
    };
    let told: u64 = said
        .iter()
        .map(|said| number(said, "told"))
        .sum::<Result<u64>>()?;
    // The counter is read with the next tick.
    let start = Instant::now();
    let unregistered = loop {
        let hop = hop(&daemon, "unregistered")?;
        if number(&hop, "attempted")? >= told || start.elapsed() > READ_LIMIT {
            break hop;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    ensure!(
        number(&unregistered, "attempted")? >= told && told > 1_000_000,
        "the attackers told {told} facts: {unregistered}"
    );
    // No hop of executors shows them, and the daemon is well: `status` ends with 0, or `json` fails.
    for name in ["marker", "kernel", "ring"] {
        let start = Instant::now();
        loop {
            let hop = hop(&daemon, name)?;
            ensure!(
                number(&hop, "attempted")? < told,
                "the hop {name} has facts of the attackers: {hop}"
            );
            if hop["lost"].as_object().is_some_and(|lost| lost.is_empty()) {
                break;
            }
            // The counts of the last tick may have been read while a fact was on its way.
            ensure!(
                start.elapsed() < READ_LIMIT,
                "the hop {name} has losses: {hop}"
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    Ok(())
}

#[test]
fn workers_that_do_not_exist_cost_another_user_no_fact() -> Result<()> {
    let flood: &[&str] = &["namespaces=1", "name=java", "per_second=2000", "ms=10000"];
    let attackers = [("workers_that_are_none", flood); 3];
    let Some((_, said)) = facts_beside(&attackers)? else {
        return Ok(());
    };
    for said in said {
        ensure!(number(&said, "told")? > 10_000, "no flood: {said}");
    }
    Ok(())
}

#[test]
fn threads_and_children_leave_rows_for_another_user() -> Result<()> {
    let mut settings = with_hook(FaultHook::Auto);
    // What four attackers could fill.
    (settings.threads, settings.processes) = (1024, 512);
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let mut attackers = Vec::new();
    for (scenario, count) in [("registered", "threads=300"), ("children", "children=200")] {
        for _ in 0..4 {
            let mut attacker = Workload::start(scenario, &[count, AS_UNPRIVILEGED])?;
            attacker.go()?;
            attacker.expect("STANDS")?;
            attackers.push(attacker);
        }
    }
    lab.read()?;
    let held = lab
        .probes
        .user(UNPRIVILEGED_UID)?
        .context("no row of the user")?;
    println!("{held:?}");
    ensure!(
        held.rows.threads >= 1024 / 3 && held.rows.processes >= 512 / 3,
        "the attackers took too little to show anything: {held:?}"
    );

    let mut victim = Workload::start("faults", &["threads=16", "rounds=4"])?;
    let executor = lab.executor(victim.pid())?;
    let said = victim.run()?;
    lab.read()?;
    let (reads, writes) = (number(&said, "reads")? * 4, number(&said, "writes")? * 4);
    let of = |rdd: u32| lab.faults(executor, |key| key.rdd_plus_one == rdd + 1);
    ensure!(
        (of(7).read, of(8).write) == (reads, writes),
        "its threads: {:?} {:?}, not {reads} reads and {writes} writes",
        of(7),
        of(8)
    );
    let mut parent = Workload::start("fork", &[])?;
    let executor = lab.executor(parent.pid())?;
    let pages = number(&parent.run()?, "pages")?;
    lab.read()?;
    let served = all(&lab.faults(executor, |key| key.task_attempt_id == 77));
    let idle = all(&lab.totals(executor)?.unattributed[Unattributed::CHILD.0 as usize]);
    ensure!(
        served >= pages && idle >= 2 * pages,
        "its children: {served} faults of a worker and {idle} without a task, {pages} and {} pages",
        2 * pages
    );
    for mut attacker in attackers {
        attacker.go_on_to_the_end()?;
        attacker.end()?;
    }
    parent.end()?;
    victim.end()
}

/// Task, stage, and RDD plus one.
type Served = (u64, u32, u32);

/// Faults of a worker whose task changes all the time.
fn by_task(scenario: &str) -> Result<Option<BTreeMap<Served, u64>>> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Auto))? else {
        return Ok(None);
    };
    let mut workload = Workload::start(scenario, &["ms=6000"])?;
    let executor = lab.executor(workload.pid())?;
    workload.go()?;
    // The ring is drained, so that each report has the same way.
    let said = loop {
        lab.read()?;
        lab.records.clear();
        if let Some(said) = workload.done_within(Duration::ZERO)? {
            break said;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    lab.read()?;
    let mut counted: BTreeMap<Served, u64> = BTreeMap::new();
    for (key, faults) in &lab.contexts {
        if key.executor == executor && key.activity == Activity::PYTHON_WORKER.0 {
            let of = (key.task_attempt_id, key.stage_id, key.rdd_plus_one);
            *counted.entry(of).or_default() += all(faults);
        }
    }
    println!("{said}: faults by task, stage and RDD {counted:?}");
    workload.end()?;
    Ok(Some(counted))
}

/// The two tasks that are reported.
const TASKS: [Served; 2] = [(1, 21, 12), (2, 22, 13)];

#[test]
fn a_worker_s_context_is_never_a_mixture_of_two_tasks() -> Result<()> {
    let Some(mut counted) = by_task("worker_swaps")? else {
        return Ok(());
    };
    for task in TASKS {
        let own = counted.remove(&task);
        ensure!(
            own.is_some_and(|faults| faults > 1000),
            "task {task:?} has {own:?} faults"
        );
    }
    ensure!(counted.is_empty(), "mixtures: {counted:?}");
    Ok(())
}

#[test]
fn two_threads_that_report_one_worker_at_once_make_no_mixture() -> Result<()> {
    let Some(mut counted) = by_task("worker_races")? else {
        return Ok(());
    };
    let own: u64 = TASKS.iter().filter_map(|task| counted.remove(task)).sum();
    ensure!(
        own > 1000 && counted.is_empty(),
        "{own} faults are of one task; mixtures: {counted:?}"
    );
    Ok(())
}
