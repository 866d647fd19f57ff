//! The list of probes, and how each is tried.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use crate::Outcome::{self, Broken, Unsupported};
use crate::bpf::{self, Kind, Program};
use crate::btf;
use crate::perf::{self, Attributes, Event};
use crate::work::{self, CALLS, Memory, PAGES};

type Check = fn() -> io::Result<Outcome>;

/// Every probe, by name, in the order in which they are tried.
pub const ALL: &[(&str, Check)] = &[
    ("release", release),
    ("processors", processors),
    ("nodes", nodes),
    ("btf", type_information),
    ("software_faults", software_faults),
    ("raw_tracepoint", raw_tracepoint),
    ("fentry", fentry),
    ("kprobe", kprobe),
    ("uprobe", uprobe),
    ("dtlb_read_misses", dtlb_read_misses),
    ("dtlb_write_misses", dtlb_write_misses),
    ("dtlb_few_pages", dtlb_few_pages),
    ("dtlb_sampling", dtlb_sampling),
    ("dtlb_program", dtlb_program),
];

/// The function through which every page fault of a process goes, on every architecture.
const FAULT_FUNCTION: &str = "handle_mm_fault";
/// What the function tracer keeps free at every function's entry on riscv64.
const TRACER_ENTRY_BYTES: u64 = 8;
const SAMPLE_PERIOD: u64 = 1_000;

fn release() -> io::Result<Outcome> {
    Ok(Outcome::Ok(
        fs::read_to_string("/proc/sys/kernel/osrelease")?
            .trim()
            .to_owned(),
    ))
}

fn processors() -> io::Result<Outcome> {
    Ok(Outcome::Ok(
        fs::read_to_string("/sys/devices/system/cpu/online")?
            .trim()
            .to_owned(),
    ))
}

fn nodes() -> io::Result<Outcome> {
    let root = Path::new("/sys/devices/system/node");
    if !root.exists() {
        return Ok(Unsupported(
            "the kernel knows no nodes (/sys/devices/system/node is not there)".into(),
        ));
    }
    let mut found = Vec::new();
    for node in 0.. {
        let Ok(memory) = fs::read_to_string(root.join(format!("node{node}/meminfo"))) else {
            break;
        };
        let total = memory
            .lines()
            .find_map(|line| line.split_once("MemTotal:"))
            .map_or("?", |(_, kb)| kb.trim());
        let processors = fs::read_to_string(root.join(format!("node{node}/cpulist")))?;
        found.push(format!(
            "node {node}: processors {}, {total}",
            processors.trim()
        ));
    }
    let text = format!("{} ({})", found.len(), found.join("; "));
    Ok(if found.len() > 1 {
        Outcome::Ok(text)
    } else {
        Unsupported(text)
    })
}

fn type_information() -> io::Result<Outcome> {
    match btf::function(FAULT_FUNCTION) {
        Ok(Some(id)) => Ok(Outcome::Ok(format!("{FAULT_FUNCTION} is type {id}"))),
        Ok(None) => Ok(Broken(format!(
            "/sys/kernel/btf/vmlinux does not know {FAULT_FUNCTION}"
        ))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Unsupported(
            "no /sys/kernel/btf/vmlinux: the kernel was built without BTF".into(),
        )),
        Err(error) => Err(error),
    }
}

fn software_faults() -> io::Result<Outcome> {
    let attributes = Attributes {
        kind: perf::SOFTWARE,
        config: perf::PAGE_FAULTS,
        ..Attributes::default()
    };
    let mut event = Event::open(attributes, false)?;
    let mut memory = Memory::map(PAGES)?;
    let before = work::own_faults()?;
    let counted = event.count(|| memory.write())?;
    Ok(faults(counted, work::own_faults()? - before))
}

fn raw_tracepoint() -> io::Result<Outcome> {
    count_faults(Kind::RawTracepoint, |program| {
        program.attach(c"page_fault_user")
    })
}

fn fentry() -> io::Result<Outcome> {
    let Some(id) = btf::function(FAULT_FUNCTION).ok().flatten() else {
        return Ok(Unsupported("needs BTF".into()));
    };
    count_faults(Kind::FunctionEntry(id), |program| program.attach(c""))
}

fn kprobe() -> io::Result<Outcome> {
    let Some(kind) = pmu("kprobe")? else {
        return Ok(Unsupported("the kernel was built without kprobes".into()));
    };
    let mut offset = 0;
    let outcome = count_faults(Kind::Probe, |program| {
        let open = |offset| {
            let name = c"handle_mm_fault".as_ptr() as u64;
            Event::open(
                Attributes {
                    kind,
                    config1: name,
                    config2: offset,
                    ..Attributes::default()
                },
                false,
            )
        };
        let event = match open(0) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                // A kernel whose kprobes cannot share a function's entry with the function tracer refuses the
                // entry itself; the arguments are still in their registers behind the tracer's space.
                offset = TRACER_ENTRY_BYTES;
                open(offset)?
            }
            other => other?,
        };
        event.set_program(program)?;
        event.enable(true)?;
        Ok(event)
    })?;
    Ok(match outcome {
        Outcome::Ok(text) if offset > 0 => {
            Outcome::Ok(format!("{text}; probed {offset} bytes behind the entry"))
        }
        other => other,
    })
}

fn uprobe() -> io::Result<Outcome> {
    let Some(kind) = pmu("uprobe")? else {
        return Ok(Unsupported("the kernel was built without uprobes".into()));
    };
    let attributes = Attributes {
        kind,
        config1: c"/proc/self/exe".as_ptr() as u64,
        config2: work::pad_file_offset()?,
        ..Attributes::default()
    };
    let _statistics = bpf::statistics()?;
    let program = Program::load(Kind::Probe)?;
    let event = Event::open(attributes, false)?;
    event.set_program(&program)?;
    event.enable(true)?;
    work::call_pad();
    event.enable(false)?;
    let runs = program.runs()?;
    let text = format!("{runs} hits of {CALLS} calls");
    Ok(if runs == CALLS {
        Outcome::Ok(text)
    } else {
        Broken(text)
    })
}

fn dtlb_read_misses() -> io::Result<Outcome> {
    dtlb(
        perf::DTLB_READ_MISSES,
        PAGES,
        |memory| memory.read(1),
        PAGES as u64,
    )
}

fn dtlb_write_misses() -> io::Result<Outcome> {
    dtlb(perf::DTLB_WRITE_MISSES, PAGES, Memory::write, PAGES as u64)
}

fn dtlb_few_pages() -> io::Result<Outcome> {
    let rounds = PAGES / 8;
    dtlb(perf::DTLB_READ_MISSES, 8, |memory| memory.read(rounds), 0)
}

fn dtlb_sampling() -> io::Result<Outcome> {
    let mut memory = Memory::map(PAGES)?;
    memory.write();
    match perf::sample(perf::DTLB_READ_MISSES, SAMPLE_PERIOD, || memory.read(5)) {
        Err(error) if no_pmu(&error) => Ok(Unsupported(no_pmu_text(&error))),
        Err(error) => Err(error),
        Ok((misses, samples)) => Ok(sampled(misses, samples, "samples")),
    }
}

fn dtlb_program() -> io::Result<Outcome> {
    let mut memory = Memory::map(PAGES)?;
    memory.write();
    let attributes = Attributes {
        kind: perf::CACHE,
        config: perf::DTLB_READ_MISSES,
        sample_period: SAMPLE_PERIOD,
        ..Attributes::default()
    };
    let mut event = match Event::open(attributes, true) {
        Err(error) if no_pmu(&error) => return Ok(Unsupported(no_pmu_text(&error))),
        other => other?,
    };
    let _statistics = bpf::statistics()?;
    let program = Program::load(Kind::PerfEvent)?;
    event.set_program(&program)?;
    let misses = event.count(|| memory.read(5))?;
    Ok(sampled(misses, program.runs()?, "runs of a program"))
}

/// Runs a program at every fault that `attach` gives it, and compares with the kernel's own count.
fn count_faults<A>(
    kind: Kind,
    attach: impl FnOnce(&Program) -> io::Result<A>,
) -> io::Result<Outcome> {
    let _statistics = bpf::statistics()?;
    let program = match Program::load(kind) {
        Err(error) => {
            return Ok(Unsupported(format!(
                "the kernel does not load such a program: {error}"
            )));
        }
        Ok(program) => program,
    };
    let attached = match attach(&program) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(Unsupported("the kernel does not have this hook".into()));
        }
        other => other?,
    };
    let mut memory = Memory::map(PAGES)?;
    let (before, runs_before) = (work::own_faults()?, program.runs()?);
    memory.write();
    let (after, runs_after) = (work::own_faults()?, program.runs()?);
    drop(attached);
    Ok(faults(runs_after - runs_before, after - before))
}

/// The hook sees the whole machine, and a fault may be tried twice: up to 2 % above the thread's own are fine.
fn faults(counted: u64, own: u64) -> Outcome {
    let text = format!("{counted} counted, {own} by the kernel's own count, {PAGES} pages touched");
    let right = own >= PAGES as u64 && counted >= own && counted <= own + own / 50;
    if right {
        Outcome::Ok(text)
    } else {
        Broken(text)
    }
}

/// Counts misses on `pages` resident pages; a few misses of the surroundings come on top.
fn dtlb(
    config: u64,
    pages: usize,
    touch: impl FnOnce(&mut Memory),
    expected: u64,
) -> io::Result<Outcome> {
    let mut memory = Memory::map(pages)?;
    memory.write();
    let mut event = match Event::open(
        Attributes {
            kind: perf::CACHE,
            config,
            ..Attributes::default()
        },
        true,
    ) {
        Err(error) if no_pmu(&error) => return Ok(Unsupported(no_pmu_text(&error))),
        other => other?,
    };
    let counted = event.count(|| touch(&mut memory))?;
    let text = format!("{counted} counted, {expected} expected");
    let right = counted >= expected && counted <= expected + expected / 50 + 50;
    Ok(if right {
        Outcome::Ok(text)
    } else {
        Broken(text)
    })
}

fn sampled(misses: u64, samples: u64, what: &str) -> Outcome {
    let text = format!("{samples} {what} of {misses} misses with period {SAMPLE_PERIOD}");
    if samples.abs_diff(misses / SAMPLE_PERIOD) <= 1 {
        Outcome::Ok(text)
    } else {
        Broken(text)
    }
}

/// Number of a kind of event that the kernel made a file for.
fn pmu(name: &str) -> io::Result<Option<u32>> {
    match fs::read_to_string(format!("/sys/bus/event_source/devices/{name}/type")) {
        Ok(text) => text.trim().parse().map(Some).map_err(io::Error::other),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn no_pmu(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV)
    )
}

fn no_pmu_text(error: &io::Error) -> String {
    format!("the machine has no such counter: {error}")
}
