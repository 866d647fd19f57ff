//! Shares per user: processes of an unprivileged user take no rows, no room in the ring and no facts from another user.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use smtt_common::counter::{Counter, Unattributed};
use smtt_common::event::Kind;
use smtt_common::settings::Owner;
use smtt_config::{FaultHook, ProbeSettings};
use smtt_daemon::discover::Discoverer;
use smtt_model::subordinate::SubordinateIds;
use smtt_tests::attackers::{AS_UNPRIVILEGED, UNPRIVILEGED_UID};
use tempfile::TempDir;

use crate::foreign_files::find;
use crate::lab::{Workload, all, lab, with_hook};

fn owner(lab: &mut crate::lab::KernelLab, executor: u64) -> Result<Owner> {
    lab.read()?
        .owners
        .into_iter()
        .find(|(key, _)| *key == executor)
        .map(|(_, owner)| owner)
        .context("the executor has no owner")
}

#[test]
fn an_executor_keeps_the_owner_that_it_began_with() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Off))? else {
        return Ok(());
    };
    // The first describes itself, the second is adopted by the daemon.
    let mut first = Workload::start("other_user", &["to=1234"])?;
    let executor = lab.executor(first.pid())?;
    let second = Workload::start("steady", &["ms=10", "describe=no", AS_UNPRIVILEGED])?;
    let adopted = lab.probes.adopt_executor(second.pid())?;
    let (one, other) = (owner(&mut lab, executor)?, owner(&mut lab, adopted)?);
    ensure!(
        (one.uid, other.uid) == (0, UNPRIVILEGED_UID),
        "{one:?} {other:?}"
    );
    ensure!(
        one.cgroup == other.cgroup,
        "two programs of one cgroup: {one:?} {other:?}"
    );
    first.run()?;
    lab.read()?;
    ensure!(owner(&mut lab, executor)? == one, "the owner has changed");
    let facts = lab.of_kind(executor, Kind::BLOCK_READ);
    ensure!(
        facts.len() == 1 && facts[0].header.uid == 0,
        "a fact after the change of the user: {facts:?}"
    );
    ensure!(
        lab.probes
            .user(UNPRIVILEGED_UID)?
            .is_some_and(|user| user.rows.executors == 1)
    );
    second.end()?;
    first.end()?;
    for executor in [executor, adopted] {
        lab.probes.forget_executor(executor)?;
    }
    ensure!(
        lab.probes.user(UNPRIVILEGED_UID)?.is_none() && lab.probes.user(0)?.is_none(),
        "a user without executors keeps its row"
    );
    Ok(())
}

#[test]
fn a_crowd_of_executors_refuses_no_other_user() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Off))? else {
        return Ok(());
    };
    let wanted = 2 * u64::from(ProbeSettings::default().executors);
    let mut crowd = Workload::start(
        "crowd",
        &[
            &format!("executors={wanted}"),
            AS_UNPRIVILEGED,
            "describe=no",
        ],
    )?;
    crowd.run()?;
    lab.read()?;
    let refused = lab.counters[Counter::EXECUTORS_REFUSED.0 as usize];
    let held = lab
        .probes
        .user(UNPRIVILEGED_UID)?
        .context("no row of the user")?;
    ensure!(
        refused > 0 && held.rows.executors + refused == wanted,
        "{refused} of {wanted} were refused, {held:?}"
    );
    let victim = Workload::start("steady", &["ms=100"])?;
    let executor = lab.executor(victim.pid())?;
    ensure!(lab.probes.budget(executor)?.is_some());
    victim.end()?;
    crowd.end()
}

#[test]
fn subordinate_ids_use_the_share_of_their_owner() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Off))? else {
        return Ok(());
    };
    let ids = |text| Arc::new(SubordinateIds::parse(text, |_| None).0);
    lab.probes
        .set_subordinate_ids(&ids("5:1:2\n65534:100000:65536"))?;
    let wanted = 2 * u64::from(ProbeSettings::default().executors);
    let mut crowd = Workload::start(
        "crowd",
        &[
            &format!("executors={wanted}"),
            "users_from=165400",
            "describe=no",
        ],
    )?;
    crowd.run()?;
    let owners = lab.read()?.owners;
    let refused = lab.counters[Counter::EXECUTORS_REFUSED.0 as usize];
    let held = lab
        .probes
        .user(UNPRIVILEGED_UID)?
        .context("no row of the owner")?;
    ensure!(
        refused > 0 && held.rows.executors + refused == wanted,
        "{refused} of {wanted} were refused, {held:?}"
    );
    ensure!(
        lab.probes.user(165_400)?.is_none(),
        "an id of the range has a share of its own"
    );
    let mut uids: Vec<u32> = owners.iter().map(|(_, owner)| owner.uid).collect();
    uids.sort_unstable();
    uids.dedup();
    ensure!(
        uids.len() as u64 == held.rows.executors && uids.iter().all(|uid| *uid >= 165_400),
        "the executors' own users are shown: {uids:?}"
    );
    ensure!(
        owners
            .iter()
            .all(|(_, owner)| owner.share == UNPRIVILEGED_UID)
    );
    // Another range, and a user in none.
    let other = Workload::start("steady", &["ms=1", "uid=165535", "describe=no"])?;
    lab.probes.set_subordinate_ids(&ids("65534:100000:65535"))?;
    let executor = lab.probes.adopt_executor(other.pid())?;
    ensure!(owner(&mut lab, executor)?.share == 165_535);
    let victim = Workload::start("steady", &["ms=100"])?;
    let executor = lab.executor(victim.pid())?;
    ensure!(
        lab.probes
            .budget(executor)?
            .is_some_and(|budget| budget.owner.share == 0)
    );
    // Living executors keep their share.
    ensure!(lab.probes.user(UNPRIVILEGED_UID)? == Some(held));
    other.end()?;
    victim.end()?;
    crowd.end()
}

/// A cgroup of its own, removed at the end.
struct Cgroup {
    /// The folder of the mount stays where the mount cannot be removed.
    _mounted: TempDir,
    at: CString,
    folder: PathBuf,
}

impl Cgroup {
    fn new(name: &str) -> Result<Self> {
        let mounted = tempfile::tempdir()?;
        let at = CString::new(mounted.path().as_os_str().as_bytes())?;
        let kind = c"cgroup2".as_ptr();
        // SAFETY: the texts are NUL-terminated and outlive the call.
        let done = unsafe { libc::mount(kind, at.as_ptr(), kind, 0, std::ptr::null()) };
        ensure!(
            done == 0,
            "mount of cgroup2: {}",
            std::io::Error::last_os_error()
        );
        let folder = mounted
            .path()
            .join(format!("smtt-{}-{name}", std::process::id()));
        let cgroup = Self {
            _mounted: mounted,
            at,
            folder,
        };
        fs::create_dir(&cgroup.folder)?;
        Ok(cgroup)
    }

    fn take(&self, pid: u32) -> Result<()> {
        Ok(fs::write(
            self.folder.join("cgroup.procs"),
            pid.to_string(),
        )?)
    }

    /// Moves this process back to the root.
    fn give_back(&self) -> Result<()> {
        let root = self.folder.parent().context("it has no parent")?;
        let own = std::process::id().to_string();
        Ok(fs::write(root.join("cgroup.procs"), own)?)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Killed processes take a moment to leave it.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // SAFETY: the text is NUL-terminated.
        unsafe { libc::umount2(self.at.as_ptr(), libc::MNT_DETACH) };
    }
}

#[test]
fn a_crowd_in_one_cgroup_refuses_no_other_cgroup_of_its_user() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Off))? else {
        return Ok(());
    };
    let cgroup = Cgroup::new("crowd")?;
    let configured = u64::from(ProbeSettings::default().executors);
    let wanted = 2 * configured;
    let mut crowd = Workload::start(
        "crowd",
        &[
            &format!("executors={wanted}"),
            AS_UNPRIVILEGED,
            "describe=no",
        ],
    )?;
    cgroup.take(crowd.pid())?;
    crowd.run()?;
    lab.read()?;
    let held = lab
        .probes
        .user(UNPRIVILEGED_UID)?
        .context("no row of the user")?;
    ensure!(
        (configured..wanted).contains(&held.rows.executors),
        "one cgroup may have the executors of the configuration: {held:?}"
    );
    let victim = Workload::start("steady", &["ms=100", AS_UNPRIVILEGED])?;
    let executor = lab.executor(victim.pid())?;
    ensure!(lab.probes.budget(executor)?.is_some());
    victim.end()?;
    crowd.end()
}

#[test]
fn a_daemon_that_sees_no_path_of_a_cgroup_learns_it_from_the_kernel() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Off))? else {
        return Ok(());
    };
    let (own, container) = (Cgroup::new("daemon")?, Cgroup::new("container")?);
    let mut workload = Workload::start("late", &["name=java", "describe=no"])?;
    workload.go()?;
    workload.expect("REGISTERED")?;
    container.take(workload.pid())?;
    let found = find(&mut Discoverer::new(lab.probes.libraries()), workload.pid())?;
    // This thread sees cgroups from its own one on, as a daemon in a container does. The thread ends with the test.
    own.take(std::process::id())?;
    // SAFETY: the call takes no pointer, and changes this thread only.
    let done = unsafe { libc::unshare(libc::CLONE_NEWCGROUP) };
    own.give_back()?;
    ensure!(done == 0, "{}", std::io::Error::last_os_error());
    let executor = lab.probes.adopt_executor(workload.pid())?;
    ensure!(
        owner(&mut lab, executor)?.cgroup == 0,
        "the path leads somewhere"
    );
    found.slots.request_resync(41)?;
    workload.run()?;
    let id = fs::metadata(&container.folder)?.ino();
    let owner = owner(&mut lab, executor)?;
    ensure!(owner.cgroup == id, "{owner:?}, its cgroup is {id}");
    workload.end()
}

#[test]
fn a_refused_user_takes_no_row_of_the_table_of_users() -> Result<()> {
    let settings = ProbeSettings {
        executors: 3,
        ..with_hook(FaultHook::Off)
    };
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let start =
        |user: u32| Workload::start("steady", &["ms=1", "describe=no", &format!("uid={user}")]);
    // Six rows of executors and of users; two users have two executors.
    let crowd = [70_001, 70_001, 70_002, 70_003, 70_003, 70_006]
        .into_iter()
        .map(start)
        .collect::<Result<Vec<_>>>()?;
    let mut adopted = Vec::new();
    for workload in &crowd {
        adopted.push(lab.probes.adopt_executor(workload.pid())?);
    }
    let refused = start(70_004)?;
    ensure!(
        lab.probes.adopt_executor(refused.pid()).is_err(),
        "the table is not full"
    );
    ensure!(
        lab.probes.user(70_004)?.is_none(),
        "a user without executors has a row"
    );
    lab.probes.forget_executor(adopted[0])?;
    let victim = start(70_005)?;
    let executor = lab.probes.adopt_executor(victim.pid())?;
    ensure!(
        lab.probes
            .user(70_005)?
            .is_some_and(|user| user.rows.executors == 1)
    );
    for executor in adopted.drain(1..).chain([executor]) {
        lab.probes.forget_executor(executor)?;
    }
    for user in 70_001..=70_006 {
        ensure!(
            lab.probes.user(user)?.is_none(),
            "user {user} without executors keeps its row"
        );
    }
    for workload in crowd.into_iter().chain([refused, victim]) {
        workload.end()?;
    }
    Ok(())
}

#[test]
fn greedy_processes_leave_contexts_for_another_user() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Auto))? else {
        return Ok(());
    };
    let mut attackers = Vec::new();
    for _ in 0..4 {
        let mut attacker = Workload::start("contexts", &["pages=4096", AS_UNPRIVILEGED])?;
        attacker.run()?;
        attackers.push(attacker);
    }
    let mut victim = Workload::start("contexts", &["pages=100"])?;
    let said = victim.run()?;
    let executor = lab.executor(victim.pid())?;
    let totals = lab.totals(executor)?;
    let held = lab
        .probes
        .user(UNPRIVILEGED_UID)?
        .context("no row of the user")?;
    let attributed = all(&lab.faults(executor, |key| key.rdd_plus_one > 100));
    let refused = all(&totals.unattributed[Unattributed::TABLE_FULL.0 as usize]);
    println!("{held:?}; the victim: {attributed} attributed, {refused} without a row");
    ensure!(
        Some(attributed) == said["faults"].as_u64() && refused == 0,
        "{attributed} faults are attributed, {refused} found no row, the kernel counted {}",
        said["faults"]
    );
    ensure!(
        held.rows.contexts >= u64::from(ProbeSettings::default().contexts) / 3,
        "the attackers took too little to show anything: {held:?}"
    );
    for attacker in attackers {
        attacker.end()?;
    }
    victim.end()
}

#[test]
fn a_flood_of_facts_costs_another_user_none() -> Result<()> {
    // The settings of a real daemon.
    let settings = ProbeSettings {
        fault_hook: FaultHook::Off,
        ..ProbeSettings::default()
    };
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let mut attackers = Vec::new();
    let mut theirs = Vec::new();
    for _ in 0..4 {
        let attacker = Workload::start("flood", &["ms=4000", AS_UNPRIVILEGED])?;
        theirs.push(lab.executor(attacker.pid())?);
        attackers.push(attacker);
    }
    let mut victim = Workload::start("steady", &["ms=3000", "per_second=400"])?;
    let executor = lab.executor(victim.pid())?;
    for attacker in &mut attackers {
        attacker.go()?;
    }
    victim.go()?;
    // The interval at which the daemon polls the ring.
    let done = loop {
        lab.read()?;
        lab.records
            .retain(|record| record.header.executor == executor);
        if let Some(done) = victim.done_within(Duration::ZERO)? {
            break done;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let told = done["told"].as_u64().context("no count")?;
    lab.read()?;
    let totals = lab.totals(executor)?;
    let delivered = lab.of_kind(executor, Kind::BLOCK_READ).len() as u64;
    for attacker in &mut attackers {
        attacker.done()?;
    }
    lab.read()?;
    let mut limited = 0;
    for executor in theirs {
        let totals = lab.totals(executor)?;
        println!(
            "an attacker: {} facts, {} above its rate, {} found the ring full",
            totals.facts_seen, totals.facts_rate_limited, totals.facts_ring_full
        );
        limited += totals.facts_rate_limited;
    }
    ensure!(limited > 0, "no flood");
    ensure!(
        delivered == told && totals.facts_ring_full + totals.facts_rate_limited == 0,
        "the victim told {told} facts, {delivered} arrived: {totals:?}"
    );
    for workload in attackers {
        workload.end()?;
    }
    victim.end()
}

#[test]
fn samples_have_the_rate_of_their_executor_and_of_its_user() -> Result<()> {
    const RATE: u64 = 1000;
    let mut settings = with_hook(FaultHook::Auto);
    settings.settings.fault_sample_every = 1;
    settings.settings.fault_samples_per_second = 1_000_000;
    settings.settings.facts_per_second = RATE as u32;
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let mut workloads = Vec::new();
    for _ in 0..4 {
        workloads.push(Workload::start(
            "touch_and_tell",
            &["pages=20000", "facts=400", AS_UNPRIVILEGED],
        )?);
    }
    let start = Instant::now();
    for workload in &mut workloads {
        workload.go()?;
    }
    for workload in &mut workloads {
        workload.done()?;
    }
    let seconds = start.elapsed().as_secs() + 1;
    lab.read()?;
    let mut all = 0;
    for (place, workload) in workloads.iter().enumerate() {
        let executor = lab.executor(workload.pid())?;
        let totals = lab.totals(executor)?;
        let samples = lab.of_kind(executor, Kind::FAULT_SAMPLE).len() as u64;
        println!(
            "executor {place}: {samples} of {} samples in {seconds} s, facts above the rate: {}",
            totals.samples_seen, totals.facts_rate_limited
        );
        ensure!(
            totals.samples_rate_limited > 0
                && totals.samples_seen
                    == samples + totals.samples_ring_full + totals.samples_rate_limited,
            "{samples} samples of {totals:?}"
        );
        // Half of the bucket at once, and then the rate, since its start: it has a dozen faults before the clock's.
        ensure!(
            samples <= RATE / 2 + (seconds + 1) * RATE + 4,
            "{samples} samples in {seconds} seconds at {RATE} a second"
        );
        all += samples;
    }
    ensure!(
        all <= RATE + (seconds + 1) * 2 * RATE + 4,
        "{all} samples of one user in {seconds} seconds at {} a second",
        2 * RATE
    );
    for workload in workloads {
        workload.end()?;
    }
    Ok(())
}

#[test]
fn samples_leave_half_of_the_rate_to_facts() -> Result<()> {
    let mut settings = with_hook(FaultHook::Auto);
    settings.settings.fault_sample_every = 1;
    settings.settings.fault_samples_per_second = 1_000_000;
    settings.settings.facts_per_second = 1000;
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let mut workload = Workload::start("touch_and_tell", &["pages=20000", "facts=400"])?;
    let executor = lab.executor(workload.pid())?;
    workload.run()?;
    lab.read()?;
    let totals = lab.totals(executor)?;
    ensure!(
        totals.samples_rate_limited > 10_000,
        "too few samples to take anything from facts: {totals:?}"
    );
    ensure!(
        totals.facts_rate_limited == 0,
        "samples took the place of {} facts",
        totals.facts_rate_limited
    );
    workload.end()
}

#[test]
fn births_and_deaths_have_a_limit() -> Result<()> {
    let mut settings = with_hook(FaultHook::Off);
    settings.settings.facts_per_second = 50;
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let mut workload = Workload::start("forks", &["children=500"])?;
    let executor = lab.executor(workload.pid())?;
    let start = Instant::now();
    let children = workload.run()?["children"].as_u64().context("no count")?;
    let seconds = start.elapsed().as_secs() + 2;
    lab.read()?;
    let totals = lab.totals(executor)?;
    let delivered = (lab.of_kind(executor, Kind::PROCESS_FORKED).len()
        + lab.of_kind(executor, Kind::PROCESS_GONE).len()) as u64;
    let (due, limited) = (totals.records_seen, totals.records_rate_limited);
    ensure!(
        due >= 2 * children && due == delivered + limited,
        "{due} records were due, {delivered} arrived, {limited} were above the rate"
    );
    ensure!(
        limited > 0 && delivered <= seconds * 50 + 4,
        "{delivered} records in {seconds} seconds at 50 a second"
    );
    let budget = lab.probes.budget(executor)?.context("no budget")?;
    ensure!(budget.rows.processes == 0, "{budget:?}");
    let pid = workload.pid();
    workload.end()?;
    lab.read()?;
    ensure!(
        lab.of_kind(executor, Kind::PROCESS_GONE)
            .iter()
            .any(|record| record.header.pid == pid),
        "the end of the executor itself is always reported"
    );
    Ok(())
}
