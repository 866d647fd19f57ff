//! The verdict on each row of the probe table.

use serde::{Deserialize, Serialize};

/// Name of the page-walk probe in status and metrics.
pub const PAGE_WALKS: &str = "page_walks";
/// Name of the probe that samples the kernel's clock where the processor's cycles are not sampled.
pub const ON_CPU: &str = "on_cpu";
/// Name of the access-monitoring (DAMON) probe in status and metrics.
pub const HOTNESS: &str = "hotness";
/// Name of the probe that makes the memory that tasks touched first exact.
pub const FIRST_TOUCH: &str = "first_touch";

/// Hook of the verdict on executors whose task threads have no row in the kernel side's table.
pub const TASK_THREADS: &str = "task threads";

/// State of one row of the probe table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictState {
    /// Attached and, where it can be checked, firing.
    Ok,
    /// The kernel or the machine lacks what the probe needs.
    Unsupported,
    /// The probe should work on this machine and does not.
    Broken,
    /// Not needed because a better rung of the ladder is attached, or switched off by configuration.
    NotApplicable,
}

impl VerdictState {
    /// The word for this state in JSON, metrics and messages.
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

/// Verdict on one probe, as `smtt-ctl status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Row of the table: `fault`, `fault_major`, `fault_time`, `first_touch`, `marker`, `exit`, `fork`, `exec`.
    pub name: String,
    /// Attachment point in the kernel or in a library.
    pub hook: String,
    /// State of the probe.
    pub verdict: VerdictState,
    /// Why, in one line, with the next step where there is one; empty where the probe is attached and firing.
    pub reason: String,
}

impl Verdict {
    /// Whether the machine lacks what an additional probe needs: a machine without counters, one whose DAMON has another
    /// user, or a kernel without trampolines is not a fault of the daemon.
    #[must_use]
    pub fn is_of_the_machine(&self) -> bool {
        let additional = [PAGE_WALKS, ON_CPU, HOTNESS, FIRST_TOUCH];
        self.verdict == VerdictState::Unsupported && additional.contains(&self.name.as_str())
    }
}
