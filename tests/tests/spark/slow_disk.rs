//! A disk that stands still while accesses come: what finds no room on the way to it is lost by name, and by that
//! name only; the job, the daemon and its memory do not notice; afterwards records are written again.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use smtt_daemon::recorder::QUEUE;
use smtt_store::folder::look;
use smtt_tests::application::LOCAL_CLUSTER;
use smtt_tests::lab::{LIMIT, Run, SparkLab};
use smtt_tests::records::{COUNT, Kinds, parse, sum, told, tracing, written};
use smtt_tests::skip::skip;
use smtt_tests::witness;
use xtask::daemon::Daemon;
use xtask::paths::DEMO_SPARK;
use xtask::process::{output, wait_for};
use xtask::spark::Application;

/// Pages that each of two tasks allocates and frees while the disk is there, and while it stands still: more accesses
/// than what may wait on the way to the disk, in the queue and in the writer.
const FEW: u64 = 1_000;
const MANY: u64 = 25_000;
/// Records that the writer may hold beside the queue, as docs/TRACE.md says.
const HELD: u64 = 32_768;
/// Most that the daemon may ever have in memory.
const RESIDENT_MAX_KIB: u64 = 96 << 10;
/// A disk that stands still is let go by itself after so long, whatever becomes of the test: earlier than the kernel
/// begins to complain of threads that wait.
const STILL_MAX_SECONDS: &str = "100";

/// A disk of its own: a file system in a file.
struct Disk {
    folder: PathBuf,
    guard: Option<Child>,
}

impl Disk {
    /// `None`, with a line that says why, where this machine has no such disks.
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

    /// From now on whoever writes to it waits. A shell lets it go when this test says so, ends or is killed, or the
    /// time is up.
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

    /// Whether it still stands still.
    fn stands_still(&mut self) -> Result<bool> {
        let guard = self.guard.as_mut().context("it was never stopped")?;
        Ok(guard.try_wait()?.is_none())
    }

    /// Lets it go.
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
        // Lazily: whoever still has a file open on it is about to end.
        let unmounted = output(Command::new("umount").arg("--lazy").arg(&self.folder));
        if let Err(error) = unmounted {
            println!("{error:#}");
        }
    }
}

/// The hop of trace records; attempted = delivered + lost + in flight.
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

/// Accesses that came of this application, and of all that the daemon knows.
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

/// Waits until every access that came is on the disk or has the name of its loss. Returns how many of the application
/// came, and how many of them are on the disk: now and then one comes that no task makes.
fn settled(daemon: &Daemon, run: &Run, folder: &Path) -> Result<(u64, u64)> {
    let id = run.submitted.application_id()?;
    let mut seen = String::new();
    let both = wait_for("every access is on the disk or has a name", LIMIT, || {
        let (hop, (own, all)) = (hop(daemon)?, came(daemon, run)?);
        seen = format!("{own} accesses came, {all} with others, {hop:?}");
        // Others may run on this machine, whose records come all the time.
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

/// Waits until all so many accesses of the application came, or are lost before the daemon by name.
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
    let files = look(&folder)?.0.len();
    run.open("few")?;
    run.reach("many")?;
    let second = arrived(&daemon, &run, &logs)?;
    // The daemon has answered all the time: each of these is an answer.
    let still = wait_for("the queue is full", LIMIT, || {
        let hop = hop(&daemon)?;
        Ok((hop.queue_full > 0).then_some(hop))
    })?;
    ensure!(
        disk.stands_still()?,
        "the job took longer than {STILL_MAX_SECONDS} s, for which the disk may stand still"
    );
    println!("{second} accesses came; while the disk stands still: {still:?}");
    ensure!(
        look(&folder)?.0.len() == files,
        "something was written to a disk that stands still"
    );
    let status = daemon.ask(&["status"])?;
    ensure!(
        status.contains("queue_full"),
        "what is lost is not said: {status}"
    );

    disk.go()?;
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
    // What others lost at the same time may hide that some of this application's were not on the disk before.
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
