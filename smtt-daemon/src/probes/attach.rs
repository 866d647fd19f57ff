//! Attaches the rows of the probe table, and the first rung of the page-fault ladder that works.

use std::collections::BTreeSet;

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

impl Probes {
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
            Hook::RawTracepoint(name) => self.attach_raw_tracepoint(row.program, name),
            Hook::FunctionReturn(name) => {
                kernel_function::attach_return(&mut self.ebpf, row.program, name)
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

    fn attach_raw_tracepoint(&mut self, program: &str, name: &str) -> anyhow::Result<()> {
        let program: &mut RawTracePoint = self
            .ebpf
            .program_mut(program)
            .context("the object lacks the program")?
            .try_into()?;
        program.load().context("the kernel refuses the program")?;
        program
            .attach(name)
            .context("this kernel does not have the tracepoint")?;
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
