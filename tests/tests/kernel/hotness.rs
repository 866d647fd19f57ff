//! Hotness of memory, measured by the kernel's DAMON, against a program with a known access pattern; the daemon does
//! not change a DAMON that another process uses.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use smtt_daemon::hotness::{Hotness, PROBE};
use smtt_machine::damon::{Damon, Owner, Pace, owner};
use smtt_model::rows::{HotnessMethod, PagesRow};
use smtt_tests::skip::skip;

use crate::lab::Workload;
use crate::pages::{MIB, Scene, scene_of};

const ADMIN: &str = "/sys/kernel/mm/damon/admin/kdamonds";
/// How long anything may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
const PACE: Pace = Pace {
    check: Duration::from_millis(100),
    window: Duration::from_secs(2),
};

/// The owner of DAMON; `None` (and a line that says why) where the kernel has no DAMON, unless this machine must have
/// it.
fn monitor() -> Result<Option<Owner>> {
    match owner(Path::new("/")) {
        Owner::Missing(why) => {
            skip("damon", why)?;
            Ok(None)
        }
        owner => Ok(Some(owner)),
    }
}

/// Whether DAMON is free.
fn free_monitor() -> Result<bool> {
    match monitor()? {
        None => Ok(false),
        Some(Owner::Free) => Ok(true),
        Some(other) => {
            skip("free_damon", format!("{other:?}"))?;
            Ok(false)
        }
    }
}

/// All settings of DAMON, except values that DAMON counts by itself.
fn settings() -> Result<BTreeMap<PathBuf, String>> {
    fn add(folder: &Path, found: &mut BTreeMap<PathBuf, String>) -> Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            if matches!(name, Some("stats" | "tried_regions" | "effective_bytes")) {
                continue;
            }
            if path.is_dir() {
                add(&path, found)?;
            } else {
                let said = fs::read_to_string(&path).unwrap_or_else(|error| error.to_string());
                found.insert(path, said);
            }
        }
        Ok(())
    }
    let mut found = BTreeMap::new();
    add(Path::new(ADMIN), &mut found)?;
    Ok(found)
}

fn verdict(scene: &Scene) -> Result<(String, String)> {
    let rows = scene.shared.probes();
    let row = rows.into_iter().find(|row| row.name == PROBE);
    let row = row.context("there is no verdict on hotness")?;
    Ok((row.verdict.name().to_owned(), row.reason))
}

fn wait(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let begin = Instant::now();
    while !done()? {
        if begin.elapsed() > LIMIT {
            bail!("{what}: not within {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

#[test]
fn another_programs_monitor_is_left_alone() -> Result<()> {
    let Some(found) = monitor()? else {
        return Ok(());
    };
    let Some(scene) = scene_of("hot", &[])? else {
        return Ok(());
    };
    ensure!(
        matches!(found, Owner::Free | Owner::OtherUser(_)),
        "another daemon has it or has left it: {found:?}"
    );
    // If DAMON is free, this test acts as another process that uses it; if it is in use, the test only reads.
    let nr = Path::new(ADMIN).join("nr_kdamonds");
    if found == Owner::Free {
        fs::write(&nr, "1")?;
        fs::write(Path::new(ADMIN).join("0/contexts/nr_contexts"), "1")?;
    }
    let before = settings()?;
    ensure!(before.len() > 5, "there is nothing to compare: {before:?}");
    let mut hotness = Hotness::new(PACE);
    for _ in 0..3 {
        hotness.step(&scene.shared);
    }
    let (state, reason) = verdict(&scene)?;
    println!("{state}: {reason}");
    ensure!(
        state == "unsupported" && reason.starts_with("DAMON is in use"),
        "{state}: {reason}"
    );
    let refused = Damon::take().err().context("it was taken")?.to_string();
    ensure!(reason.starts_with(&refused), "{refused}, {reason}");
    let row = scene.row("hot")?;
    ensure!(
        row.hot_bytes.is_none() && row.hotness_method == Some(HotnessMethod::BlockReads),
        "hotness comes from Spark's reads: {row:?}"
    );
    let check = scene.shared.info().doctor;
    let check = check()
        .into_iter()
        .find(|check| check.name == "how hot memory is");
    let check = check.context("the doctor does not check it")?;
    ensure!(!check.ok && check.detail == refused, "{check:?}");
    drop(hotness);
    let after = settings()?;
    if found == Owner::Free {
        fs::write(&nr, "0")?;
    }
    ensure!(
        before == after,
        "something was changed: {before:#?}, then {after:#?}"
    );
    scene.workload.end()
}

#[test]
fn memory_that_is_touched_is_hot_and_other_memory_is_not() -> Result<()> {
    if !free_monitor()? {
        return Ok(());
    }
    let Some(scene) = scene_of("hot", &[])? else {
        return Ok(());
    };
    let mut hotness = Hotness::new(PACE);
    let rows = || -> Result<[PagesRow; 3]> {
        Ok([scene.row("hot")?, scene.row("cold")?, scene.row("half")?])
    };
    // A machine that is too busy to touch memory for a tenth of a second has windows in which hot memory is not hot.
    let right = |[hot, cold, half]: &[PagesRow; 3]| -> Option<bool> {
        let near = |value: f64, wanted: f64| (value - wanted).abs() < 0.1;
        Some(
            near(hot.hotness?, 1.0)
                && near(cold.hotness?, 0.0)
                && near(half.hotness?, 0.5)
                && hot.hot_bytes? == 8 * MIB
                && half.hot_bytes?.abs_diff(4 * MIB) < MIB / 4,
        )
    };
    let mut last = None;
    let result = wait("hot memory is seen to be hot", || {
        hotness.step(&scene.shared);
        let rows = rows()?;
        let now = rows.each_ref().map(|row| (row.hotness, row.hot_bytes));
        if last.as_ref() != Some(&now) {
            println!("hot, cold, half: {now:?}");
            last = Some(now);
        }
        Ok(right(&rows) == Some(true))
    });
    println!(
        "{:?}, its thread took {:?} ticks",
        verdict(&scene)?,
        hotness.damon().and_then(Damon::cpu_ticks)
    );
    result?;
    for row in rows()? {
        ensure!(
            row.hotness_method == Some(HotnessMethod::Damon)
                && row.checked_bytes == Some(8 * MIB)
                && row.hot_bytes <= row.checked_bytes,
            "{row:?}"
        );
    }
    ensure!(
        scene.row("cold")?.hot_bytes < Some(MIB / 4),
        "it is not accessed: {:?}",
        scene.row("cold")?
    );
    ensure!(verdict(&scene)?.0 == "ok");
    ensure!(matches!(owner(Path::new("/")), Owner::LivingDaemon(_)));
    drop(hotness);
    ensure!(owner(Path::new("/")) == Owner::Free, "it was given back");
    scene.workload.end()
}

fn kill(pid: u32) -> Result<()> {
    // SAFETY: kill has no precondition; the process is a child of ours, or a descendant.
    let result = unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
    ensure!(result == 0, "kill: {}", std::io::Error::last_os_error());
    Ok(())
}

#[test]
fn what_a_killed_daemon_held_is_given_back_or_taken_over() -> Result<()> {
    if !free_monitor()? {
        return Ok(());
    }
    let own = format!("pid={}", std::process::id());
    let start = || -> Result<(Workload, u32)> {
        let mut holder = Workload::start("monitor", &[&own])?;
        let guard = holder.run()?["guard"].as_u64().context("no guard")?;
        Ok((holder, u32::try_from(guard)?))
    };
    let on =
        || fs::read_to_string(Path::new(ADMIN).join("0/state")).is_ok_and(|s| s.trim() == "on");

    let (holder, _) = start()?;
    ensure!(on() && owner(Path::new("/")) == Owner::LivingDaemon(holder.pid()));
    let refused = Damon::take()
        .err()
        .context("it was taken from a living one")?;
    println!("{refused}");
    kill(holder.pid())?;
    wait("the guard gives it back", || {
        Ok(owner(Path::new("/")) == Owner::Free)
    })?;

    let (holder, guard) = start()?;
    kill(guard)?;
    kill(holder.pid())?;
    wait("its holder is dead", || {
        Ok(owner(Path::new("/")) == Owner::DeadDaemon)
    })?;
    ensure!(on(), "it goes on without its holder");
    let damon = Damon::take()?;
    ensure!(!on() && matches!(owner(Path::new("/")), Owner::LivingDaemon(_)));
    drop(damon);
    ensure!(owner(Path::new("/")) == Owner::Free);
    Ok(())
}
