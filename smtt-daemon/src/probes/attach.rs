//! Attaches the rows of the probe table, and the first rung of the page-fault ladder that works.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use aya::maps::Array;
use aya::programs::RawTracePoint;
use smtt_config::FaultHook;
use smtt_machine::clock::now_boot_ns;
use smtt_model::verdict::{FIRST_TOUCH, Verdict, VerdictState};

use super::cpus::Change;
use super::health::verdict;
use super::page_walks::Sampler;
use super::table::{Hook, RUNG_FEXIT, RUNG_KPROBE, RUNG_RAW_TRACEPOINT, RUNG_SOFTWARE, Row, TABLE};
use super::{Probes, kernel_function};

/// The hooks of page faults, which every process on the machine pays for: they are detached while no executor lives.
pub(super) struct FaultHooks {
    /// Rows that this kernel can attach, of the probes in [`COMES_AND_GOES`].
    rows: Vec<&'static Row>,
    /// Links of tracepoints, trampolines and kprobes. Those of software events are in [`Probes::cpus`].
    links: Vec<Box<dyn Send>>,
    is_attached: bool,
    /// Drops the links of the last time.
    detaching: Option<JoinHandle<()>>,
    /// When the last executor ended.
    idle_since: Option<Instant>,
    idle_after: Duration,
}

/// Probes whose hooks are at page faults.
const COMES_AND_GOES: [&str; 3] = ["fault", "fault_major", FIRST_TOUCH];

impl FaultHooks {
    pub(super) const fn new(idle_after: Duration) -> Self {
        Self {
            rows: Vec::new(),
            links: Vec::new(),
            is_attached: false,
            detaching: None,
            idle_since: None,
            idle_after,
        }
    }
}

impl Probes {
    /// Whether a hook of page faults is attached.
    pub(super) fn faults_counted(&self) -> bool {
        self.fault_hooks.is_attached
    }

    /// Attaches the hooks of page faults for an executor that the kernel side reported, so that its first tasks need not
    /// wait for a tick.
    pub fn executor_described(&mut self) {
        self.follow_executors(true);
    }

    /// Attaches the hooks of page faults while an executor lives, and detaches them some time after the last has ended.
    pub(super) fn follow_executors(&mut self, is_one_alive: bool) {
        if let Ok(timer) = &self.fault_timer {
            timer.executor_lives(is_one_alive);
        }
        let hooks = &mut self.fault_hooks;
        if !is_one_alive {
            let since = *hooks.idle_since.get_or_insert_with(Instant::now);
            let is_idle = since.elapsed() >= hooks.idle_after;
            let is_attached = hooks.is_attached;
            self.follow_clock(is_idle);
            if is_idle && is_attached {
                self.detach_fault_hooks();
                tracing::debug!("no executor lives: page faults are not counted");
            }
            return;
        }
        hooks.idle_since = None;
        self.follow_clock(false);
        let hooks = &mut self.fault_hooks;
        if hooks.is_attached || hooks.rows.is_empty() {
            return;
        }
        let start = Instant::now();
        if let Some(detaching) = hooks.detaching.take() {
            // A hook that is attached twice counts twice, and the kernel refuses a second trampoline.
            let _ = detaching.join();
        }
        for row in hooks.rows.clone() {
            let verdict = self.attach(row);
            if verdict.verdict == VerdictState::Ok {
                self.fault_hooks.is_attached |= row.probe == "fault";
            } else {
                tracing::error!("{}", verdict.reason);
            }
            if let Some(known) = self
                .verdicts
                .iter_mut()
                .find(|known| known.name == verdict.name && known.hook == verdict.hook)
            {
                *known = verdict;
            }
        }
        if self.fault_hooks.is_attached {
            self.say_touches_counted();
        } else {
            // The next reading tries all of them again.
            self.detach_fault_hooks();
        }
        tracing::debug!(took = ?start.elapsed(), "an executor lives: page faults are counted");
    }

    /// Samples the clock where cycles are not sampled, unless no executor has lived for some time.
    pub(super) fn follow_clock(&mut self, is_idle: bool) {
        let walks = self.walks.as_ref();
        self.clock
            .see_cycles(walks.is_ok_and(Sampler::samples_cycles));
        let online = self.cpus.online();
        self.clock.follow(&mut self.ebpf, &online, is_idle);
    }

    /// Detaches every hook of page faults.
    fn detach_fault_hooks(&mut self) {
        let hooks = &mut self.fault_hooks;
        hooks.is_attached = false;
        let mut links = std::mem::take(&mut hooks.links);
        for row in &hooks.rows {
            if let Hook::Software(_) = row.hook {
                links.extend(self.cpus.detach(&mut self.ebpf, row.program));
            }
        }
        // The kernel waits until no processor runs the hook. Where no thread can be made, the wait is here.
        hooks.detaching = std::thread::Builder::new()
            .name("smtt-unhook".into())
            .spawn(move || drop(links))
            .ok();
        self.say_touches_counted();
    }

    /// Tells the kernel side since when first touches of pages are counted: only the raw tracepoints see them.
    fn say_touches_counted(&mut self) {
        let hooks = &self.fault_hooks;
        let see = hooks.rows.iter().any(|row| row.rung == RUNG_RAW_TRACEPOINT);
        let since = if see && hooks.is_attached {
            now_boot_ns()
        } else {
            0
        };
        let table = self.ebpf.map_mut("TOUCHES_SINCE");
        let set = table.context("no table TOUCHES_SINCE").and_then(|table| {
            let mut table = Array::<_, u64>::try_from(table)?;
            Ok(table.set(0, since, 0)?)
        });
        if let Err(error) = set {
            tracing::error!("the memory that tasks touched first is not known: {error:#}");
        }
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
                } else if row.rung == RUNG_RAW_TRACEPOINT && !cfg!(target_arch = "x86_64") {
                    // Other processors got a tracepoint of that name later, with codes of their own.
                    verdict(
                        row,
                        VerdictState::Unsupported,
                        "its error code is known for x86-64 only: the next rung takes its place",
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
                        self.fault_hooks.is_attached = true;
                    }
                    verdict
                }
            } else if row.probe == "fault_major" && fault_hook == FaultHook::Off {
                verdict(
                    row,
                    VerdictState::NotApplicable,
                    "switched off by [probe.fault] hook",
                )
            } else if row.probe == FIRST_TOUCH && fault_rung != Some(RUNG_RAW_TRACEPOINT) {
                verdict(
                    row,
                    VerdictState::NotApplicable,
                    "only the raw tracepoints of page faults see which memory a task touches first",
                )
            } else if let (true, Some(reason)) =
                (matches!(row.probe, "fork" | "signal" | "oom"), &no_offsets)
            {
                verdict(row, VerdictState::Unsupported, reason)
            } else {
                self.attach(row)
            };
            if verdict.verdict == VerdictState::Ok && COMES_AND_GOES.contains(&row.probe) {
                self.fault_hooks.rows.push(row);
            }
            self.major_known |= row.probe == "fault_major" && verdict.verdict == VerdictState::Ok;
            self.verdicts.push(verdict);
        }
        if fault_rung.is_none() {
            // Without a hook that counts faults, the others have nothing to come and go with.
            self.fault_hooks.rows.clear();
        }
        self.say_touches_counted();
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
            Hook::Kprobe(name) => kernel_function::attach_kprobe(&mut self.ebpf, row.program, name)
                .map(|link| self.fault_hooks.links.push(Box::new(link))),
            Hook::Software(event) => self.cpus.attach(&mut self.ebpf, row.program, event),
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

    /// Follows CPU hotplug. The events of a CPU that went offline are gone, also where it came back at once.
    pub(super) fn follow_cpus(&mut self) {
        let change = self.cpus.follow(&mut self.ebpf);
        if change == Change::default() {
            if let Ok(sampler) = &mut self.walks {
                sampler.retry_cpus(&self.ebpf);
            }
            return;
        }
        let now = self.cpus.online();
        self.clock.forget_cpus(&change.gone);
        if let Ok(sampler) = &mut self.walks {
            let stayed = now.difference(&change.come).copied().collect();
            sampler.follow_cpus(&self.ebpf, &stayed);
            sampler.follow_cpus(&self.ebpf, &now);
        }
    }
}
