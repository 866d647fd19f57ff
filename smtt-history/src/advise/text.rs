//! The advice for people.

use std::fmt::Write as _;

use smtt_model::rows::Number;
use smtt_model::units;

use super::Advice;
use super::workers::OfWorker;
use crate::plain::plain;

/// Characters of a text.
const LINE: usize = 300;
/// Characters of a worker's explanation.
const WORDS: usize = 2000;

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
    for what in &advice.left_out {
        let _ = writeln!(out, "without {}", plain(what, LINE));
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
    for of_worker in &advice.workers {
        of_one(&mut out, of_worker);
    }
    if !advice.nothing.is_empty() {
        out.push_str("\nChecked, and nothing found:\n");
        for checked in &advice.nothing {
            let _ = writeln!(out, "  {}: {}", checked.rule, checked.looks_for);
        }
    }
    out
}

/// A number of a worker's finding with its unit.
pub fn value(number: &smtt_model::advise::Evidence) -> String {
    match (&number.value, number.unit.as_str()) {
        (Number::Whole(value), "bytes") => units::bytes(*value),
        (Number::Whole(value), "ns") => units::duration(*value),
        (Number::Whole(value), _) => units::count(*value),
        (Number::Real(value), "share") => units::share(*value),
        (Number::Real(value), _) => format!("{value:.2}"),
    }
}

/// The seconds of a worker's finding, or why there are none.
pub fn seconds(finding: &smtt_model::advise::Finding) -> String {
    finding
        .saving_words()
        .unwrap_or_else(|| "not in seconds".to_owned())
}

/// What a worker found. Executors claim much of it.
fn of_one(out: &mut String, of_worker: &OfWorker) {
    for finding in &of_worker.advice.findings {
        let _ = write!(
            out,
            "\n[{}] {}\n   {}, of the worker {}: {}\n   expected saving: {}\n   computed: {}\n   disproved by: {}\n",
            finding.severity.word(),
            plain(&finding.title, LINE),
            plain(&finding.id, LINE),
            plain(&of_worker.worker, LINE),
            plain(&finding.window, LINE),
            seconds(finding),
            plain(&finding.computed, WORDS),
            plain(&finding.disproof, WORDS),
        );
        out.push_str("   numbers:\n");
        for number in &finding.numbers {
            let _ = writeln!(out, "     {}: {}", plain(&number.what, LINE), value(number));
        }
        for remedy in &finding.remedies {
            let _ = writeln!(out, "   {}", plain(&remedy.why, WORDS));
            for line in &remedy.lines {
                let _ = writeln!(out, "     {}", plain(line, LINE));
            }
        }
        for missing in &finding.not_measured {
            let _ = writeln!(out, "   not measured: {}", plain(missing, WORDS));
        }
    }
}
