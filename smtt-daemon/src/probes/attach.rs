//! Attaches the rows of the probe table, and the first rung of the page-fault ladder that works.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use aya::Ebpf;
use aya::programs::perf_event::{PerfEventConfig, PerfEventScope, SamplePolicy, SoftwareEvent};
use aya::programs::{PerfEvent, RawTracePoint};
use smtt_config::FaultHook;
use smtt_model::verdict::{Verdict, VerdictState};

use super::health::verdict;
use super::table::{
    self, Hook, RUNG_FEXIT, RUNG_KPROBE, RUNG_RAW_TRACEPOINT, RUNG_SOFTWARE, Row, TABLE,
};
use super::{Probes, kernel_function};

/// The hooks of page faults, which every process on the machine pays for. Raw tracepoints and trampolines are detached
/// while no executor lives; a kprobe and the software event stay.
pub(super) struct FaultHooks {
    rows: Vec<&'static Row>,
    links: Vec<Box<dyn Send>>,
    /// When the last executor ended.
    idle_since: Option<Instant>,
    idle_after: Duration,
}

impl FaultHooks {
    pub(super) const fn new(idle_after: Duration) -> Self {
        Self {
            rows: Vec::new(),
            links: Vec::new(),
            idle_since: None,
            idle_after,
        }
    }
}

impl Probes {
    /// Whether a hook of page faults is attached.
    pub(super) fn faults_counted(&self) -> bool {
        !self.fault_hooks.links.is_empty()
            || self
                .verdicts
                .iter()
                .any(|verdict| verdict.name == "fault" && verdict.verdict == VerdictState::Ok)
    }

    /// Attaches the hooks of page faults for an executor that the kernel side reported, so that its first tasks need not
    /// wait for a tick.
    pub fn executor_described(&mut self) {
        self.follow_executors(true);
    }

    /// Attaches the hooks of page faults while an executor lives, and detaches them some time after the last has ended.
    pub(super) fn follow_executors(&mut self, is_one_alive: bool) {
        let hooks = &mut self.fault_hooks;
        if !is_one_alive {
            let since = *hooks.idle_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= hooks.idle_after && !hooks.links.is_empty() {
                let links = std::mem::take(&mut hooks.links);
                tracing::debug!("no executor lives: page faults are not counted");
                // The kernel waits until no processor runs the hook. Where no thread can be made, the wait is here.
                let _ = std::thread::Builder::new()
                    .name("smtt-unhook".into())
                    .spawn(move || drop(links));
            }
            return;
        }
        hooks.idle_since = None;
        if !hooks.links.is_empty() || hooks.rows.is_empty() {
            return;
        }
        let start = Instant::now();
        for row in hooks.rows.clone() {
            let verdict = self.attach(row);
            if verdict.verdict != VerdictState::Ok {
                tracing::error!("page faults are not counted: {}", verdict.reason);
            }
            if let Some(known) = self
                .verdicts
                .iter_mut()
                .find(|known| known.name == verdict.name && known.hook == verdict.hook)
            {
                *known = verdict;
            }
        }
        tracing::debug!(took = ?start.elapsed(), "an executor lives: page faults are counted");
    }

    /// Attaches every row but the marker's.
    pub(super) fn attach_table(&mut self, fault_hook: FaultHook, no_offsets: Option<String>) {
        let mut fault_rung: Option<&str> = None;
        for row in TABLE.iter().filter(|row| row.hook != Hook::Marker) {
            let verdict = if row.probe == "fault" {
                let allowed = match fault_hook {
                    FaultHook::Auto => true,
                    FaultHook::RawTracepoint => row.rung == RUNG_RAW_TRACEPOINT,
                    FaultHook::Fexit => row.rung == RUNG_FEXIT,
                    FaultHook::Kprobe => row.rung == RUNG_KPROBE,
                    FaultHook::Software => row.rung == RUNG_SOFTWARE,
                    FaultHook::Off => false,
                };
                if !allowed {
                    verdict(
                        row,
                        VerdictState::NotApplicable,
                        "switched off by [probe.fault] hook",
                    )
                } else if fault_rung.is_some_and(|rung| rung != row.rung) {
                    verdict(
                        row,
                        VerdictState::NotApplicable,
                        "a better hook is attached",
                    )
                } else {
                    let verdict = self.attach(row);
                    if verdict.verdict == VerdictState::Ok {
                        fault_rung = Some(row.rung);
                        if matches!(row.hook, Hook::RawTracepoint(_) | Hook::FunctionReturn(_)) {
                            self.fault_hooks.rows.push(row);
                        }
                    }
                    verdict
                }
            } else if row.probe == "fault_major" && fault_hook == FaultHook::Off {
                verdict(
                    row,
                    VerdictState::NotApplicable,
                    "switched off by [probe.fault] hook",
                )
            } else if row.rung == RUNG_RAW_TRACEPOINT && !cfg!(target_arch = "x86_64") {
                verdict(
                    row,
                    VerdictState::Unsupported,
                    "its arguments are known for x86-64 only; the software event takes its place",
                )
            } else if let (true, Some(reason)) = (row.probe == "fork", &no_offsets) {
                verdict(row, VerdictState::Unsupported, reason)
            } else {
                self.attach(row)
            };
            self.major_known |= row.probe == "fault_major" && verdict.verdict == VerdictState::Ok;
            self.verdicts.push(verdict);
        }
        self.access_known = fault_rung.is_some_and(|rung| rung != RUNG_SOFTWARE);
    }

    /// Attaches one row.
    fn attach(&mut self, row: &Row) -> Verdict {
        let attached = match row.hook {
            Hook::RawTracepoint(name) => self.attach_raw_tracepoint(row, name),
            Hook::FunctionReturn(name) => {
                kernel_function::attach_return(&mut self.ebpf, row.program, name)
                    .map(|link| self.fault_hooks.links.push(Box::new(link)))
            }
            Hook::Kprobe(name) => kernel_function::attach_kprobe(&mut self.ebpf, row.program, name),
            Hook::Software(event) => self.attach_software(row, event),
            Hook::Marker => Ok(()),
        };
        match attached {
            Ok(()) => verdict(row, VerdictState::Ok, ""),
            Err(error) => {
                let missing = error.chain().any(|cause| {
                    cause
                        .downcast_ref::<std::io::Error>()
                        .is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
                });
                let state = if missing {
                    VerdictState::Unsupported
                } else {
                    VerdictState::Broken
                };
                verdict(
                    row,
                    state,
                    &format!("{error:#}; without it {}", row.without),
                )
            }
        }
    }

    fn attach_raw_tracepoint(&mut self, row: &Row, name: &str) -> anyhow::Result<()> {
        let program: &mut RawTracePoint = self
            .ebpf
            .program_mut(row.program)
            .context("the object lacks the program")?
            .try_into()?;
        if program.fd().is_err() {
            program.load().context("the kernel refuses the program")?;
        }
        let link = program
            .attach(name)
            .context("this kernel does not have the tracepoint")?;
        if row.probe == "fault" {
            self.fault_hooks
                .links
                .push(Box::new(program.take_link(link)?));
        }
        Ok(())
    }

    fn attach_software(&mut self, row: &Row, event: table::SoftwareEvent) -> anyhow::Result<()> {
        let program = program(&mut self.ebpf, row.program)?;
        program.load().context("the kernel refuses the program")?;
        for cpu in &self.online {
            attach_to_cpu(program, event, *cpu)?;
        }
        self.software.push((row.program, event));
        Ok(())
    }

    /// Follows CPU hotplug. A CPU that comes online gets the software events of the other CPUs; the kernel closes the
    /// events of a CPU that goes offline.
    pub(super) fn follow_cpus(&mut self) {
        let Ok(now) = online() else { return };
        if now == self.online {
            return;
        }
        let before = std::mem::replace(&mut self.online, now);
        for cpu in self.online.difference(&before) {
            for (name, event) in &self.software {
                let attached = program(&mut self.ebpf, name)
                    .and_then(|program| attach_to_cpu(program, *event, *cpu));
                match attached {
                    Ok(()) => tracing::info!(cpu, "a CPU came online: {name} is attached to it"),
                    Err(error) => tracing::warn!("a CPU came online and is not counted: {error:#}"),
                }
            }
        }
        if let Ok(sampler) = &mut self.walks {
            sampler.follow_cpus(&self.ebpf, &self.online);
        }
    }
}

/// CPUs that are online.
pub(super) fn online() -> anyhow::Result<BTreeSet<u32>> {
    let cpus =
        aya::util::online_cpus().map_err(|(path, error)| anyhow::anyhow!("{path}: {error}"))?;
    Ok(cpus.into_iter().collect())
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> anyhow::Result<&'a mut PerfEvent> {
    Ok(ebpf
        .program_mut(name)
        .context("the object lacks the program")?
        .try_into()?)
}

/// Attaches a program to a software event of all processes on a CPU; it runs once per occurrence.
fn attach_to_cpu(
    program: &mut PerfEvent,
    event: table::SoftwareEvent,
    cpu: u32,
) -> anyhow::Result<()> {
    let event = match event {
        table::SoftwareEvent::PageFaults => SoftwareEvent::PageFaults,
        table::SoftwareEvent::PageFaultsMajor => SoftwareEvent::PageFaultsMaj,
    };
    program
        .attach(
            PerfEventConfig::Software(event),
            PerfEventScope::AllProcessesOneCpu { cpu },
            SamplePolicy::Period(1),
            false,
        )
        .with_context(|| format!("the software event cannot be opened on CPU {cpu}"))?;
    Ok(())
}
