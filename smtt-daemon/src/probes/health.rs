//! How every probe fares: a verdict per row of the table.

use serde::Serialize;

use super::table::Row;

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

/// The verdict of a row.
pub(super) fn verdict(row: &Row, state: VerdictState, reason: &str) -> Verdict {
    Verdict {
        probe: row.probe.into(),
        hook: row.hook_name(),
        verdict: state,
        reason: reason.into(),
    }
}
