//! What the kernel side says of ends: exit codes, signals with their senders, and the OOM killer, each as `wait4` and the
//! kernel's own counts have it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use smtt_common::event::Kind;
use smtt_config::FaultHook;
use smtt_model::decode::{Fact, OomKilled, ProcessEnd, SignalSent, decode};
use smtt_tests::cgroup::MemoryCgroup;
use smtt_tests::skip::skip;
use xtask::process::wait_for;

use crate::lab::{KernelLab, Workload, lab, with_hook};

/// The facts of an executor that came with records of a kind.
fn facts(lab: &KernelLab, executor: u64, kind: Kind) -> Result<Vec<(u32, Fact)>> {
    let records = lab.of_kind(executor, kind).into_iter();
    records
        .map(|record| {
            let event =
                decode(&record.header, &record.payload).context("a record is unreadable")?;
            Ok((event.pid, event.fact))
        })
        .collect()
}

/// How a process ended.
fn end(lab: &KernelLab, executor: u64, pid: u32) -> Result<ProcessEnd> {
    let all = facts(lab, executor, Kind::PROCESS_GONE)?.into_iter();
    let end = all
        .filter(|(of, _)| *of == pid)
        .find_map(|(_, fact)| match fact {
            Fact::ProcessGone { end, .. } => end,
            _ => None,
        });
    Ok(*end.context("no record says how the process ended")?)
}

fn signals(lab: &KernelLab, executor: u64) -> Result<Vec<SignalSent>> {
    let all = facts(lab, executor, Kind::SIGNAL_SENT)?.into_iter();
    Ok(all
        .filter_map(|(_, fact)| match fact {
            Fact::SignalSent(sent) => Some(*sent),
            _ => None,
        })
        .collect())
}

fn victims(lab: &KernelLab, executor: u64) -> Result<Vec<OomKilled>> {
    let all = facts(lab, executor, Kind::OOM_KILLED)?.into_iter();
    Ok(all
        .filter_map(|(_, fact)| match fact {
            Fact::OomKilled(killed) => Some(killed),
            _ => None,
        })
        .collect())
}

fn kill(pid: u32, signal: i32) -> Result<()> {
    // SAFETY: kill has no precondition; the process is a child of this test.
    let done = unsafe { libc::kill(pid as i32, signal) };
    ensure!(done == 0, "kill: {}", std::io::Error::last_os_error());
    Ok(())
}

/// A workload that waits, its executor's key and its child.
fn start(lab: &mut KernelLab, options: &[&str]) -> Result<(Workload, u64, u32)> {
    let mut workload = Workload::start("deaths", options)?;
    let executor = lab.executor(workload.pid())?;
    workload.go()?;
    let child = workload.expect("CHILD ")?.parse()?;
    workload.quiet()?;
    Ok((workload, executor, child))
}

#[test]
fn every_end_has_the_status_and_the_peak_that_wait_has() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Auto))? else {
        return Ok(());
    };
    // Not SIGSEGV: the Rust program has a handler for it.
    let signals = [libc::SIGKILL, libc::SIGTERM, libc::SIGFPE, libc::SIGABRT];
    let exits = ["exit=0", "exit=1", "exit=52", "exit=255"];
    let mut seen = Vec::new();
    for code in exits {
        let (mut workload, executor, _) = start(&mut lab, &[code])?;
        workload.go()?;
        seen.push((code.to_owned(), executor, workload.pid(), workload.reap()?));
    }
    for signal in signals {
        let (workload, executor, _) = start(&mut lab, &[])?;
        kill(workload.pid(), signal)?;
        let name = format!("signal {signal}");
        seen.push((name, executor, workload.pid(), workload.reap()?));
    }
    lab.read()?;
    for (how, executor, pid, (status, peak)) in seen {
        let end = end(&lab, executor, pid)?;
        ensure!(
            (end.status, end.peak_rss_bytes) == (status, peak),
            "{how}: wait4 says {status:#x} and {peak} bytes, the record {end:?}"
        );
        ensure!(end.name == "workload", "{how}: {end:?}");
    }
    Ok(())
}

/// Waits until a child has ended; its parent has not asked for its status.
fn has_ended(child: u32) -> Result<()> {
    wait_for("the child has ended", Duration::from_secs(60), || {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat"))?;
        let state = stat.rsplit(')').next().map(str::trim_start);
        Ok(state.filter(|state| state.starts_with('Z')).map(|_| ()))
    })
}

#[test]
fn a_signal_has_its_sender_and_others_are_not_recorded() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Auto))? else {
        return Ok(());
    };
    let (workload, executor, child) = start(&mut lab, &[])?;
    let name = std::fs::read_to_string("/proc/thread-self/comm")?;
    for (pid, signal) in [
        (workload.pid(), libc::SIGCHLD),
        (workload.pid(), libc::SIGWINCH),
        (child, libc::SIGKILL),
    ] {
        kill(pid, signal)?;
    }
    // A child that still lives when its parent ends gets a signal for that.
    has_ended(child)?;
    let pid = workload.pid();
    kill(pid, libc::SIGFPE)?;
    let (status, _) = workload.reap()?;
    ensure!(status & 0x7f == libc::SIGFPE as u32, "{status:#x}");
    lab.read()?;
    let expected = |target_pid, is_executor, signal: i32| SignalSent {
        target_pid,
        is_executor,
        signal: signal as u32,
        from_kernel: false,
        sender_pid: std::process::id(),
        // SAFETY: getuid has no precondition.
        sender_uid: unsafe { libc::getuid() },
        sender_name: name.trim().to_owned(),
    };
    let seen = signals(&lab, executor)?;
    ensure!(
        seen == [
            expected(child, false, libc::SIGKILL),
            expected(pid, true, libc::SIGFPE),
        ],
        "{seen:#?}"
    );
    ensure!(end(&lab, executor, child)?.signal() == Some(9));
    ensure!(victims(&lab, executor)?.is_empty(), "no OOM killer ran");
    Ok(())
}

/// A workload in a cgroup of 64 MiB; the victim is it or its child.
fn out_of_memory(grow: &str) -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Auto))? else {
        return Ok(());
    };
    let Some(group) = MemoryCgroup::make(grow, 64 << 20)? else {
        return skip("memory_cgroup", "no cgroup with a memory limit can be made");
    };
    let (mut workload, executor, child) = start(&mut lab, &[&format!("grow={grow}")])?;
    let pid = workload.pid();
    group.add(pid)?;
    group.add(child)?;
    let victim = if grow == "own" {
        workload.go()?;
        let (status, _) = workload.reap()?;
        ensure!(status == 9, "wait4 says {status:#x}");
        pid
    } else {
        kill(child, libc::SIGUSR1)?;
        // The cgroup counts the kill before the child gets it.
        has_ended(child)?;
        child
    };
    lab.read()?;
    ensure!(
        group.oom_kills()? == 1,
        "the kernel counted {}",
        group.oom_kills()?
    );
    let seen = victims(&lab, executor)?;
    let is_executor = victim == pid;
    ensure!(
        seen == [OomKilled {
            victim_pid: victim,
            is_executor
        }],
        "{seen:?}"
    );
    let killed = signals(&lab, executor)?;
    ensure!(
        killed.iter().any(|sent| sent.target_pid == victim
            && sent.signal == 9
            && sent.from_kernel
            && sent.is_executor == is_executor),
        "{killed:?}"
    );
    ensure!(end(&lab, executor, victim)?.status == 9);
    Ok(())
}

#[test]
fn the_oom_killer_names_the_executor() -> Result<()> {
    out_of_memory("own")
}

#[test]
fn the_oom_killer_names_the_child() -> Result<()> {
    out_of_memory("child")
}
