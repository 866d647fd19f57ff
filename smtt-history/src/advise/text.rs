//! The advice for people.

use std::fmt::Write as _;

use super::Advice;
use crate::plain::plain;

/// Characters of a text.
const LINE: usize = 300;

/// The whole text.
#[must_use]
pub fn text(advice: &Advice) -> String {
    let mut out = format!(
        "Application {}: {} stage attempts with tasks took {:.1} s\n",
        plain(&advice.application_id, LINE),
        advice.checked_stages,
        advice.stage_seconds
    );
    if advice.left_out_tasks > 0 {
        let _ = writeln!(
            out,
            "without {} tasks: there are too many",
            advice.left_out_tasks
        );
    }
    if advice.stages_without_cores > 0 {
        let _ = writeln!(
            out,
            "without idle cores and small tasks of {} stage attempts: the log says that they had too many cores",
            advice.stages_without_cores
        );
    }
    for (at, finding) in advice.findings.iter().enumerate() {
        let more = if finding.more_stages > 0 {
            format!(" and {} more", finding.more_stages)
        } else {
            String::new()
        };
        let _ = write!(
            out,
            "\n{}. [{}] {}\n   {}, stage {}{more}: {}\n   expected saving: {}\n   computed: {}\n   disproved by: {}\n",
            at + 1,
            finding.severity.word(),
            plain(&finding.title, LINE),
            finding.rule,
            finding.stages.join(", "),
            plain(&finding.stage_name, LINE),
            finding.saving.words(),
            finding.computed,
            finding.disproof,
        );
        out.push_str("   numbers:\n");
        for number in &finding.numbers {
            let _ = writeln!(out, "     {}: {}", number.what, plain(&number.value, LINE));
        }
        out.push_str("   change one of:\n");
        for setting in &finding.settings {
            let _ = writeln!(
                out,
                "     {}: {}",
                setting.name,
                plain(&setting.value, LINE)
            );
        }
        for missing in &finding.not_measured {
            let _ = writeln!(out, "   not measured: {missing}");
        }
    }
    if !advice.nothing.is_empty() {
        out.push_str("\nChecked, and nothing found:\n");
        for checked in &advice.nothing {
            let _ = writeln!(out, "  {}: {}", checked.rule, checked.looks_for);
        }
    }
    out
}
