//! Process ids that the kernel gives again: a process with the id of an executor that is gone is not that executor.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use smtt_config::FaultHook;
use smtt_tests::memory::{Mapping, PAGE};
use smtt_tests::skip::skip;

use crate::lab::{KernelLab, Workload, lab, seen, with_hook};

/// Where the last process id can be set: the kernel allocates the next free one after it.
const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
/// Processes that get the id of the executor that is gone, one after the other.
const BIRTHS: usize = 10_000;
/// Births in a row without the id, a millisecond apart, after which a process of the machine has it for longer.
const MISSES: usize = 1000;
/// Executors that are tried, one after the other.
const EXECUTORS: usize = 10;
/// Pages that each of them touches.
const PAGES: usize = 4;
/// Pages that an executor reads.
const READS: u64 = 300;
/// Times that a new executor is started until it has the id; other processes of the machine may take it.
const ATTEMPTS: usize = 50;

/// Whether this kernel allows to set the next process id; false (and a line that says why) where it does not.
pub fn can_choose_ids() -> Result<bool> {
    if fs::write(LAST_PID, "1000").is_ok() {
        return Ok(true);
    }
    skip(
        "last_pid",
        "this kernel has no CONFIG_CHECKPOINT_RESTORE, which sets the next process id",
    )?;
    Ok(false)
}

/// Forks a child with this process id, which touches pages and ends; false where another process has the id.
pub fn birth(memory: &Mapping, pid: u32) -> Result<bool> {
    let id = pid as i32;
    // SAFETY: all fields are numbers; zero is no request.
    let mut request: libc::clone_args = unsafe { std::mem::zeroed() };
    request.exit_signal = libc::SIGCHLD as u64;
    request.set_tid = &raw const id as u64;
    request.set_tid_size = 1;
    // SAFETY: the request and the id outlive the call. The child calls nothing that allocates or locks: it writes to a
    // mapping and ends.
    let child =
        unsafe { libc::syscall(libc::SYS_clone3, &raw const request, size_of_val(&request)) };
    if child < 0 {
        let error = std::io::Error::last_os_error();
        ensure!(
            error.raw_os_error() == Some(libc::EEXIST),
            "clone3: {error}"
        );
        return Ok(false);
    }
    if child == 0 {
        (0..PAGES).for_each(|page| memory.write(page * PAGE));
        // SAFETY: ends the child without its parent's clean-up.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the status is valid, and the child is this process's own.
    let waited = unsafe { libc::waitpid(id, &raw mut status, 0) };
    ensure!(waited == id && status == 0, "the child: status {status}");
    Ok(true)
}

fn executor() -> Result<Workload> {
    let reads = format!("reads={READS}");
    Workload::start("faults", &["rounds=1", &reads, "writes=1"])
}

#[test]
fn ten_thousand_processes_with_the_id_of_a_dead_executor_are_strangers() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Auto))? else {
        return Ok(());
    };
    if !can_choose_ids()? {
        return Ok(());
    }
    for _ in 0..EXECUTORS {
        if reused(&mut lab)? {
            return Ok(());
        }
    }
    bail!("other processes of the machine took the ids of {EXECUTORS} executors");
}

/// Lets the id of an executor be reused; false when another process of the machine has it.
fn reused(lab: &mut KernelLab) -> Result<bool> {
    let mut first = executor()?;
    let pid = first.pid();
    let dead = lab.executor(pid)?;
    first.run()?;
    first.end()?;
    lab.read()?;
    let before = lab.totals(dead)?;
    ensure!(seen(&before) >= READS, "{before:?}");

    let last = (pid - 1).to_string();
    let memory = Mapping::anonymous(PAGES)?;
    let (mut same, mut misses) = (0, 0);
    while same < BIRTHS {
        if birth(&memory, pid)? {
            (same, misses) = (same + 1, 0);
        } else {
            misses += 1;
            if misses == MISSES {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
    lab.read()?;
    ensure!(
        lab.totals(dead)? == before,
        "faults of strangers count for the dead executor: {:?}",
        lab.totals(dead)?
    );
    let rows = lab.probes.rows(dead)?;
    ensure!(rows.processes == 0 && rows.threads == 0, "{rows:?}");

    let mut second = None;
    for _ in 0..ATTEMPTS {
        fs::write(LAST_PID, &last)?;
        let started = executor()?;
        if started.pid() == pid {
            second = Some(started);
            break;
        }
        started.end()?;
    }
    let Some(mut second) = second else {
        return Ok(false);
    };
    let living = lab.executor(pid)?;
    ensure!(living != dead, "both executors have the key {living:#x}");
    second.run()?;
    lab.read()?;
    let of_rdd = |executor| lab.faults(executor, |key| key.rdd_plus_one == 8).read;
    ensure!(
        (of_rdd(dead), of_rdd(living)) == (READS, READS),
        "pages read by the dead and by the living executor: {} and {}, not {READS}",
        of_rdd(dead),
        of_rdd(living)
    );
    ensure!(
        lab.totals(dead)? == before,
        "the dead executor's totals grow"
    );
    second.end()?;
    Ok(true)
}
