//! Owner of everything in the kernel: programs, maps, links. Only this module and [`crate::source`] name aya types.

use serde::Serialize;
use smtt_common::counter::{COUNTERS, ContextCounters, ContextKey, ExecutorCounters};

/// How one row of the probe table fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictState {
    /// Attached and, where that can be told, firing.
    Ok,
    /// The kernel or the machine does not have what it needs.
    Unsupported,
    /// It should work here and does not.
    Broken,
    /// Not needed, because a better rung of its ladder is attached, or switched off by configuration.
    NotApplicable,
}

/// Verdict of one probe, as `smtt-ctl status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Row of the table: `fault`, `fault_major`, `marker`, `exit`, `fork`, `exec`.
    pub probe: String,
    /// Where in the kernel or library it is attached.
    pub hook: String,
    /// How it fared.
    pub verdict: VerdictState,
    /// Why, in one line, with the next step where there is one; empty when all is well.
    pub reason: String,
}

/// What the kernel side has added up since the last reading.
#[derive(Clone, Debug, Default)]
pub struct Readings {
    /// Growth per context since the last reading.
    pub contexts: Vec<(ContextKey, ContextCounters)>,
    /// Totals per executor key since it was registered, summed over CPUs.
    pub executors: Vec<(u64, ExecutorCounters)>,
    /// Totals of the kernel side's own counters, summed over CPUs, indexed by `smtt_common::counter::Counter`.
    pub counters: [u64; COUNTERS],
    /// Whether reads and writes are told apart (false on the software-event rung).
    pub access_known: bool,
    /// Whether major faults are counted.
    pub major_known: bool,
}
