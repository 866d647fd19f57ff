//! How every probe fares: a verdict per row of the probe table, and what follows for the whole.

use serde::{Deserialize, Serialize};

/// Probe of the sampled page walks, in status and metrics.
pub const PAGE_WALKS: &str = "page_walks";
/// Probe of the kernel's monitor of accesses, in status and metrics.
pub const HOTNESS: &str = "hotness";

/// How one row of the probe table fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

impl VerdictState {
    /// Its word in JSON, metrics and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unsupported => "unsupported",
            Self::Broken => "broken",
            Self::NotApplicable => "not_applicable",
        }
    }
}

/// Verdict of one probe, as `smtt-ctl status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Row of the table: `fault`, `fault_major`, `marker`, `exit`, `fork`, `exec`.
    pub name: String,
    /// Where in the kernel or library it is attached.
    pub hook: String,
    /// How it fared.
    pub verdict: VerdictState,
    /// Why, in one line, with the next step where there is one; empty when all is well.
    pub reason: String,
}
