//! Findings: what costs time, the setting that helps, and the seconds that it would save.

use maud::{Markup, html};

use super::application::framed;
use super::shown::cut;
use super::{Asked, Document};
use crate::advise::{Advice, Finding, advise};
use crate::serve::Refusal;

pub(super) fn page(asked: &Asked<'_>) -> Document {
    let advice = advise(asked.app).map_err(Refusal::failed)?;
    let body = html! {
        p {
            (advice.checked_stages) " stage attempts were checked; while they had running tasks "
            (format!("{:.1} s", advice.stage_seconds)) " passed. "
            "A saving is what a simulation of the stage's tasks on its cores gives, so it holds if nothing else ran meanwhile."
        }
        @if advice.findings.is_empty() { p.empty { "Nothing found." } }
        @if !advice.findings.is_empty() { (table(&advice)) }
        @for (at, finding) in advice.findings.iter().enumerate() { (one(asked, at, finding)) }
        @if !advice.nothing.is_empty() {
            h2 { "Checked, and nothing found" }
            dl { @for checked in &advice.nothing { dt { (checked.rule) } dd { (checked.looks_for) } } }
        }
        @if advice.left_out_tasks > 0 { p.soft { (advice.left_out_tasks) " tasks were not read: there are too many." } }
        @if advice.stages_without_cores > 0 {
            p.soft { (advice.stages_without_cores) " stage attempts were not checked for idle cores and small tasks: they have too many cores." }
        }
    };
    Ok(framed(asked, "findings", "Findings", &body))
}

fn table(advice: &Advice) -> Markup {
    html! {
        div.wide tabindex="0" role="region" aria-label="Findings" { table.data id="findings" {
            caption { "Seconds that each would save, alone" }
            thead { tr { th.words { "Finding" } th.words { "Rule" } th.words { "Severity" } th { "Saves" } th { "At least" } th { "At most" } } }
            tbody {
                @for (at, finding) in advice.findings.iter().enumerate() {
                    tr {
                        td.words { a href=(format!("#finding-{at}")) { bdi { (cut(&finding.title)) } } }
                        td.words { (finding.rule) }
                        td.words { (finding.severity.word()) }
                        @for seconds in [finding.saving.expected, finding.saving.low, finding.saving.high] {
                            td { (format!("{seconds:.1} s")) }
                        }
                    }
                }
            }
        } }
    }
}

fn one(asked: &Asked<'_>, at: usize, finding: &Finding) -> Markup {
    let to = |id: &str| {
        asked
            .place
            .part(&format!("stages/{}", id.replacen('.', "/", 1)))
    };
    html! {
        section.finding id=(format!("finding-{at}")) {
            h2 { (cut(&finding.title)) }
            p {
                "Stages "
                @for id in &finding.stages { a href=(to(id)) { (id) } " " }
                @if finding.more_stages > 0 { "and " (finding.more_stages) " more " }
                ": " bdi { (cut(&finding.stage_name)) }
            }
            p { strong { "Expected saving: " (finding.saving.words()) } }
            h3 { "Change one of" }
            dl { @for setting in &finding.settings { dt { (setting.name) } dd { bdi { (cut(&setting.value)) } } } }
            h3 { "Numbers of the stage that costs most" }
            dl { @for number in &finding.numbers { dt { (number.what) } dd { bdi { (cut(&number.value)) } } } }
            p.soft { "Computed: " (finding.computed) "." }
            p.soft { "Disproved by: " (finding.disproof) "." }
            @for missing in &finding.not_measured { p.soft { "Not measured: " (missing) "." } }
        }
    }
}
