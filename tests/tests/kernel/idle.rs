//! Which programs are attached while no executor lives, by the kernel's own list of this process's links.

use std::collections::BTreeSet;
use std::fs;
use std::io::Error;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use smtt_config::FaultHook;
use smtt_model::verdict::{FIRST_TOUCH, VerdictState};
use smtt_tests::lab::LIMIT;
use smtt_tests::skip::leave_out;
use smtt_tests::witness;

use crate::lab::{KernelLab, Workload, lab, seen, with_hook};

/// Commands of bpf(2).
const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;

/// Programs at births and ends of processes, at signals and at the OOM killer. An executor's end and its threads' would
/// be missed if they came with it.
const ALWAYS: [&str; 5] = ["exec", "exit", "fork", "oom", "signal"];
/// Programs at page faults, on any rung.
const FAULTS: [&str; 5] = [
    "fault_user",
    "fault_kernel",
    "fault_fexit",
    "fault_kprobe",
    "fault_software",
];
/// Programs that measure the time of page faults.
const TIMER: [&str; 2] = ["fault_began", "fault_served"];
/// Programs that correct which memory a task touched first.
const TOUCHES: [&str; 3] = ["large_page", "numa_hint", "swapped_out"];

/// A program's name by its id, cut to 15 characters by the kernel.
fn name_of(program: u32) -> Result<String> {
    #[repr(C)]
    #[derive(Default)]
    struct ById {
        id: u32,
        next: u32,
        flags: u32,
        token: u32,
    }
    // The beginning of the kernel's `struct bpf_prog_info`.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        numbers: [u64; 8],
        name: [u8; 16],
    }
    #[repr(C)]
    struct InfoByFd {
        fd: u32,
        length: u32,
        info: u64,
    }
    let by_id = ById {
        id: program,
        ..ById::default()
    };
    // SAFETY: the structs are laid out as the kernel's and outlive the calls; the kernel gives a new descriptor.
    let fd = unsafe {
        let fd = libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_GET_FD_BY_ID,
            &raw const by_id,
            size_of::<ById>(),
        );
        ensure!(fd >= 0, "program {program}: {}", Error::last_os_error());
        OwnedFd::from_raw_fd(fd as i32)
    };
    let mut info = Info::default();
    let by_fd = InfoByFd {
        fd: fd.as_raw_fd() as u32,
        length: size_of::<Info>() as u32,
        info: &raw mut info as u64,
    };
    // SAFETY: as above; the kernel writes at most the length that the struct names.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_OBJ_GET_INFO_BY_FD,
            &raw const by_fd,
            size_of::<InfoByFd>(),
        )
    };
    ensure!(result == 0, "program {program}: {}", Error::last_os_error());
    let name = info.name.split(|byte| *byte == 0).next();
    Ok(String::from_utf8_lossy(name.unwrap_or_default()).into_owned())
}

/// What this process has attached.
#[derive(Debug, PartialEq, Eq)]
struct Attached {
    /// Names of the programs that have a link.
    programs: BTreeSet<String>,
    /// Open perf events.
    events: usize,
}

fn attached() -> Result<Attached> {
    let (mut programs, mut events) = (BTreeSet::new(), 0);
    for entry in fs::read_dir("/proc/self/fd")? {
        let path = entry?.path();
        // The descriptor of this walk is gone when it is read.
        let Ok(target) = fs::read_link(&path) else {
            continue;
        };
        match target.to_str() {
            Some("anon_inode:[perf_event]") => events += 1,
            Some("anon_inode:bpf_link" | "anon_inode:bpf-link" | "anon_inode:[bpf_link]") => {
                let info = path.to_string_lossy().replace("/fd/", "/fdinfo/");
                // A thread may have closed it meanwhile.
                let Ok(info) = fs::read_to_string(info) else {
                    continue;
                };
                let id = info.lines().find_map(|line| line.strip_prefix("prog_id:"));
                let id = id.with_context(|| format!("a link without a program: {info}"))?;
                programs.insert(name_of(id.trim().parse()?)?);
            }
            _ => {}
        }
    }
    Ok(Attached { programs, events })
}

/// Waits until only that is attached which stays while no executor lives.
fn idle(events: usize) -> Result<()> {
    let start = Instant::now();
    loop {
        let mut now = attached()?;
        // The marker's entry points, without which no executor is found; no process has them mapped.
        now.programs.remove("marker");
        if now.programs.iter().eq(ALWAYS) && now.events == events {
            return Ok(());
        }
        ensure!(
            start.elapsed() < LIMIT,
            "while no executor lives, there are {now:?} and not only {ALWAYS:?} and {events} events"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn nothing_at_page_faults_is_attached_while_no_executor_lives() -> Result<()> {
    // Kernels that lack the last one run the others.
    for hook in [
        FaultHook::RawTracepoint,
        FaultHook::Software,
        FaultHook::Kprobe,
        FaultHook::Fexit,
    ] {
        comes_and_goes(hook)?;
    }
    Ok(())
}

/// Whether the hooks of a rung are gone while no executor lives, and count while one does.
fn comes_and_goes(hook: FaultHook) -> Result<()> {
    let mut settings = with_hook(hook);
    settings.fault_idle = Duration::ZERO;
    // The time of faults is measured in windows, by programs that come and go by themselves.
    settings.fault_windows = Some(Duration::from_millis(100));
    // Samples of page walks stay, where the processor has counters for them. Those of the clock come and go.
    settings.page_walks.enabled = false;
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let is_ok = |lab: &KernelLab, probe: &str| {
        let verdicts = lab.probes.verdicts();
        let mut own = verdicts.iter().filter(|it| it.name == probe);
        own.any(|it| it.verdict == VerdictState::Ok)
    };
    if !is_ok(&lab, "fault") {
        return leave_out("kprobe", "this kernel has none at its fault handler");
    }
    let corrects = is_ok(&lab, FIRST_TOUCH);
    if hook == FaultHook::RawTracepoint && !corrects {
        leave_out("fexit", "this kernel has no programs at large pages")?;
    }
    let mut at_first = attached()?;
    at_first
        .programs
        .retain(|name| !TIMER.contains(&name.as_str()));
    println!("{hook:?}: {at_first:?}");
    lab.read()?;
    // On each CPU stands an event that counts nothing: it says when the CPU went offline.
    // SAFETY: sysconf(3) takes an integer and has no preconditions.
    let clocks = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) } as usize;
    idle(clocks)?;
    for round in 0..3 {
        let mut workload = Workload::start("faults", &["rounds=1"])?;
        let start = Instant::now();
        lab.probes.executor_described();
        println!("{hook:?}: attached in {:?}", start.elapsed());
        // The same as at the start, not twice.
        let mut now = attached()?;
        now.programs.retain(|name| !TIMER.contains(&name.as_str()));
        ensure!(
            now.programs == at_first.programs && now.events >= at_first.events,
            "round {round}: {now:?}, at the start {at_first:?}"
        );
        let is_at_faults = |name: &String| FAULTS.contains(&name.as_str());
        ensure!(now.programs.iter().any(is_at_faults), "{now:?}");
        ensure!(
            now.programs.contains("walk") && now.events >= 2 * clocks,
            "the clock is not sampled: {now:?}"
        );
        ensure!(
            !corrects || TOUCHES.iter().any(|name| now.programs.contains(*name)),
            "{now:?}"
        );
        let executor = lab.executor(workload.pid())?;
        let pid = workload.pid();
        let before = (witness::faults(pid)?.total(), seen(&lab.totals(executor)?));
        workload.run()?;
        lab.read()?;
        let kernel = witness::faults(pid)?.total() - before.0;
        let faults = seen(&lab.totals(executor)?) - before.1;
        // A hook that is attached twice would count twice.
        ensure!(
            faults >= 1500 && faults.abs_diff(kernel) <= 16 + kernel / 10,
            "the kernel counted {kernel} faults, we {faults}"
        );
        workload.end()?;
        // Two readings, because the process may still end during the first.
        lab.read()?;
        lab.read()?;
        idle(clocks)?;
    }
    Ok(())
}
