//! A disk that stalls while accesses arrive: accesses without room in the queue are lost under one name, and under that
//! name only; the job, the daemon and its memory are not affected; afterwards the daemon writes records again.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use smtt_daemon::recorder::QUEUE;
use smtt_store::folder::list_segments;
use smtt_tests::application::LOCAL_CLUSTER;
use smtt_tests::lab::{LIMIT, Run, SparkLab};
use smtt_tests::records::{COUNT, Kinds, parse, sum, told, tracing, written};
use smtt_tests::skip::skip;
use smtt_tests::witness;
use xtask::daemon::Daemon;
use xtask::paths::DEMO_SPARK;
use xtask::process::{output, wait_for};
use xtask::spark::Application;

/// Pages that each of two tasks allocates and frees while the disk works, and while it stalls: the latter are more
/// three times the accesses that the queue and the writer hold together.
const FEW: u64 = 1_000;
const MANY: u64 = 40_000;
/// Records that the writer may hold beside the queue, according to docs/TRACE.md.
const HELD: u64 = 32_768;
/// Limit of the daemon's peak memory.
const RESIDENT_MAX_KIB: u64 = 96 << 10;
/// A stalled disk resumes by itself after this time, whatever the test does: before the kernel reports hung tasks.
const STILL_MAX_SECONDS: &str = "100";

/// A separate disk: a file system in a file.
struct Disk {
    folder: PathBuf,
    guard: Option<Child>,
}

impl Disk {
    /// Mounts the disk; `None`, with a line that says why, where this machine cannot.
    fn mount(scratch: &Path) -> Result<Option<Self>> {
        let (image, folder) = (scratch.join("disk.img"), scratch.join("disk"));
        std::fs::create_dir(&folder)?;
        std::fs::File::create(&image)?.set_len(64 << 20)?;
        let made =
            output(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image)).and_then(|_| {
                output(
                    Command::new("mount")
                        .args(["-o", "loop"])
                        .args([&image, &folder]),
                )
            });
        if let Err(error) = made {
            skip("loop_ext4", format!("{error:#}"))?;
            return Ok(None);
        }
        Ok(Some(Self {
            folder,
            guard: None,
        }))
    }

    /// Freezes the disk: every writer waits. A shell thaws it when this test asks, ends or is killed, or the time is
    /// up.
    fn stop(&mut self) -> Result<()> {
        let mut guard = Command::new("sh")
            .args([
                "-c",
                "timeout \"$2\" cat; fsfreeze --unfreeze \"$1\"",
                "guard",
            ])
            .arg(&self.folder)
            .arg(STILL_MAX_SECONDS)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("no shell")?;
        let frozen = output(Command::new("fsfreeze").arg("--freeze").arg(&self.folder));
        if let Err(error) = frozen {
            drop(guard.stdin.take());
            guard.wait()?;
            return Err(error);
        }
        self.guard = Some(guard);
        Ok(())
    }

    /// Whether the disk is still frozen.
    fn stands_still(&mut self) -> Result<bool> {
        let guard = self.guard.as_mut().context("it was never stopped")?;
        Ok(guard.try_wait()?.is_none())
    }

    /// Thaws the disk.
    fn go(&mut self) -> Result<()> {
        if let Some(mut guard) = self.guard.take() {
            drop(guard.stdin.take());
            let status = guard.wait()?;
            ensure!(status.success(), "the disk was not let go: {status}");
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = self.go() {
            println!("{error:#}");
        }
        // Lazily: a process that still has a file open on it is about to end.
        let unmounted = output(Command::new("umount").arg("--lazy").arg(&self.folder));
        if let Err(error) = unmounted {
            println!("{error:#}");
        }
    }
}

/// The ledger's hop of trace records; attempted = delivered + lost + in flight.
#[derive(Debug)]
struct Hop {
    attempted: u64,
    delivered: u64,
    queue_full: u64,
    in_flight: u64,
}

fn hop(daemon: &Daemon) -> Result<Hop> {
    let status = daemon.json(&["status"])?;
    let hops = status["ledger"].as_array().context("no ledger")?;
    let hop = hops
        .iter()
        .find(|hop| hop["name"] == "trace")
        .context("no hop trace")?;
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let lost = hop["lost"].as_object().context("no losses")?;
    let seen = Hop {
        attempted: number(&hop["attempted"]),
        delivered: number(&hop["delivered"]),
        queue_full: lost.get("queue_full").map_or(0, number),
        in_flight: number(&hop["in_flight"]),
    };
    ensure!(
        lost.keys().all(|cause| cause == "queue_full"),
        "lost for another reason: {hop}"
    );
    ensure!(
        seen.attempted == seen.delivered + seen.queue_full + seen.in_flight,
        "the hop does not add up: {hop}"
    );
    ensure!(seen.in_flight <= QUEUE + HELD, "more waits than may: {hop}");
    Ok(seen)
}

/// Accesses that arrived from this application, and from all executors of the daemon.
fn came(daemon: &Daemon, run: &Run) -> Result<(u64, u64)> {
    let of = |rows: Vec<Value>| -> Result<u64> {
        let mut all = 0;
        for row in rows {
            let kinds: Kinds = serde_json::from_value(row["facts_by_kind"].clone())?;
            all += sum(&kinds, true);
        }
        Ok(all)
    };
    Ok((
        of(run.rows(daemon, &["executors"])?)?,
        of(daemon.rows(&["executors"])?)?,
    ))
}

/// Waits until every access that arrived is on the disk or has the name of its loss. Returns both numbers for the
/// application: accesses that arrived, and accesses on the disk. A few accesses come from outside the tasks.
fn settled(daemon: &Daemon, run: &Run, folder: &Path) -> Result<(u64, u64)> {
    let id = run.submitted.application_id()?;
    let mut seen = String::new();
    let both = wait_for("every access is on the disk or has a name", LIMIT, || {
        let (hop, (own, all)) = (hop(daemon)?, came(daemon, run)?);
        seen = format!("{own} accesses came, {all} with others, {hop:?}");
        // Other applications may run on this machine; their records arrive all the time.
        if hop.in_flight > if own == all { 0 } else { QUEUE / 4 } {
            return Ok(None);
        }
        let by_executor = written(daemon, folder, &id)?;
        let on_disk = by_executor.values().map(|kinds| sum(kinds, true)).sum();
        seen = format!("{seen}, {on_disk} are on the disk");
        let named = if own == all {
            hop.attempted == own && hop.delivered == on_disk && own == on_disk + hop.queue_full
        } else {
            on_disk <= own && own <= on_disk + hop.queue_full
        };
        Ok(named.then_some((own, on_disk)))
    });
    println!("{seen}");
    both.context(seen)
}

/// Waits until every fact that the markers sent has arrived, or is lost before the daemon under a name; returns the
/// accesses that arrived.
fn arrived(daemon: &Daemon, run: &Run, logs: &Path) -> Result<u64> {
    wait_for("everything told has come, or has a name", LIMIT, || {
        let (mut missing, mut accesses) = (false, 0);
        for row in run.rows(daemon, &["executors"])? {
            let pid = row["pid"].as_u64().context("no pid")?;
            let told = told(&logs.join(pid.to_string()))?;
            let kinds =
                |field: &str| -> Result<Kinds> { Ok(serde_json::from_value(row[field].clone())?) };
            let (came, lost) = (kinds("facts_by_kind")?, kinds("facts_dropped_by_cause")?);
            let all = |kinds: &Kinds| kinds.values().sum::<u64>();
            missing |= all(&told) != all(&came) + all(&lost);
            accesses += sum(&came, true);
        }
        Ok((!missing).then_some(accesses))
    })
}

#[test]
fn accesses_that_a_disk_does_not_take_are_lost_by_name_and_hurt_nobody() -> Result<()> {
    let lab = SparkLab::new(DEMO_SPARK)?;
    let Some(mut disk) = Disk::mount(lab.folder())? else {
        return lab.passed();
    };
    let folder = disk.folder.join("trace");
    let logs = lab.folder().join("told");
    std::fs::create_dir(&logs)?;
    let daemon = lab.daemon_with(&tracing(
        &folder,
        "[probe.marker]\nfacts_per_second = 10000000\n",
    ))?;
    let jar = lab.paths.marker().join("smtt-marker.jar");
    let job = [FEW.to_string(), MANY.to_string()];
    let job: Vec<&str> = job.iter().map(String::as_str).collect();
    let application = Application::java(&lab.paths, LOCAL_CLUSTER, "Accesses", &job)?
        .with_marker_at(&jar, &format!("log={}/%p", logs.display()));
    let mut run = lab.run(application)?;
    run.reach("few")?;
    let id = run.submitted.application_id()?;
    arrived(&daemon, &run, &logs)?;
    let (came_first, written_first) = settled(&daemon, &run, &folder)?;
    ensure!(
        came_first == written_first && came_first >= 4 * FEW,
        "{came_first} accesses came, {written_first} are on the disk"
    );

    disk.stop()?;
    let files = list_segments(&folder)?.0.len();
    run.open("few")?;
    // The daemon answers all the time: each query here succeeds.
    let still = wait_for("the queue is full", LIMIT, || {
        let hop = hop(&daemon)?;
        ensure!(
            disk.stands_still()?,
            "the disk stood still for {STILL_MAX_SECONDS} s: {hop:?}"
        );
        Ok((hop.queue_full > 0).then_some(hop))
    })?;
    println!("while the disk stands still: {still:?}");
    ensure!(
        list_segments(&folder)?.0.len() == files,
        "something was written to a disk that stands still"
    );
    let status = daemon.ask(&["status"])?;
    ensure!(
        status.contains("queue_full"),
        "what is lost is not said: {status}"
    );
    ensure!(
        disk.stands_still()?,
        "the disk stood still for {STILL_MAX_SECONDS} s only"
    );

    // A slow rest of the burst needs no disk that stands still.
    disk.go()?;
    run.reach("many")?;
    let second = arrived(&daemon, &run, &logs)?;
    println!("{second} accesses came");
    let (came_by_then, written_by_then) = settled(&daemon, &run, &folder)?;
    ensure!(
        (written_first..came_by_then).contains(&written_by_then),
        "{came_by_then} accesses came, {written_by_then} are on the disk, {written_first} before"
    );
    run.open("many")?;
    run.reach("end")?;
    arrived(&daemon, &run, &logs)?;
    let (came, on_disk) = settled(&daemon, &run, &folder)?;
    let peak = witness::resident_peak_bytes(daemon.pid())? / 1024;
    println!("the daemon had at most {peak} KiB");
    let (came_after, written_after) = (came - came_by_then, on_disk - written_by_then);
    // Losses of other applications in the same interval may hide that some of this one's records were missing before.
    ensure!(
        came_after >= 4 * FEW && written_after >= came_after,
        "the disk is back: {came_after} accesses came, {written_after} were written"
    );
    let python = lab.paths.spark_env(DEMO_SPARK).join("bin/python");
    let counted = output(
        Command::new(python)
            .args(["-c", COUNT])
            .arg(&folder)
            .arg(&id),
    )?;
    let opened: u64 = parse(&counted)?.values().sum();
    let (_, later) = settled(&daemon, &run, &folder)?;
    ensure!(
        (on_disk..=later).contains(&opened),
        "PyArrow reads {opened} records in files that open, of {on_disk} and {later}"
    );
    ensure!(peak <= RESIDENT_MAX_KIB, "the daemon had {peak} KiB");
    let result = run.finish(&["end"])?;
    if result != format!("RESULT accesses {} pages", 4 * FEW + 2 * MANY) {
        bail!("losses have changed the job: {result}");
    }
    drop(daemon);
    drop(disk);
    lab.passed()
}
