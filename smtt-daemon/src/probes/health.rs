//! The verdict of a row of the probe table.

use smtt_model::verdict::{Verdict, VerdictState};

use super::table::Row;

/// Builds the verdict of a row.
pub(super) fn verdict(row: &Row, state: VerdictState, reason: &str) -> Verdict {
    Verdict {
        name: row.probe.into(),
        hook: row.hook_name(),
        verdict: state,
        reason: reason.into(),
    }
}
