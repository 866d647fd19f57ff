//! Findings: what costs time, the setting that helps, and the seconds that it would save; from Spark's tasks, and as the
//! workers' daemons found them.

use maud::{Markup, html};

use super::application::framed;
use super::shown::cut;
use super::{Asked, Document};
use crate::advise::text::{seconds, value};
use crate::advise::workers::{Figures, OfWorker};
use crate::advise::{Advice, Finding, advise};
use crate::serve::Refusal;

pub(super) fn page(asked: &Asked<'_>) -> Document {
    let user = asked.parameters.one("user").and_then(|it| it.parse().ok());
    let store = &asked.server.settings.store;
    let workers = Figures::in_store(store, asked.app, user);
    let advice = advise(asked.app, workers).map_err(Refusal::failed)?;
    for what in &advice.left_out {
        asked.missing.add(format!("findings are without {what}"));
    }
    let body = html! {
        p {
            (advice.checked_stages) " stage attempts were checked; while they had running tasks "
            (format!("{:.1} s", advice.stage_seconds)) " passed. "
            "A saving is what a simulation of the stage's tasks on its cores gives, so it holds if nothing else ran meanwhile."
        }
        @if advice.findings.is_empty() { p.empty { "Nothing found." } }
        @if !advice.findings.is_empty() { (table(&advice)) }
        @for (at, finding) in advice.findings.iter().enumerate() { (one(asked, at, finding)) }
        (of_workers(&advice.workers))
        @if !advice.nothing.is_empty() {
            h2 { "Checked, and nothing found" }
            dl { @for checked in &advice.nothing { dt { (checked.rule) } dd { (checked.looks_for) } } }
        }
        @for what in &advice.left_out { p.soft { "Without " (cut(what)) "." } }
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
                        td.words.rule { (finding.rule) }
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

/// Findings of all workers.
fn found(workers: &[OfWorker]) -> impl Iterator<Item = (&str, &smtt_model::advise::Finding)> {
    workers.iter().flat_map(|of_worker| {
        let findings = of_worker.advice.findings.iter();
        findings.map(|finding| (of_worker.worker.as_str(), finding))
    })
}

/// What the workers' daemons found. Executors claim much of it, so all of it is text.
fn of_workers(workers: &[OfWorker]) -> Markup {
    let few = |seconds: f64| {
        if seconds < 1.0 {
            format!("{:.0} ms", seconds * 1000.0)
        } else {
            format!("{seconds:.1} s")
        }
    };
    html! {
        h2 id="workers" { "Findings of the workers" }
        @if workers.is_empty() { p.empty { "No worker wrote findings about this application." } }
        @else if found(workers).next().is_none() { p.empty { "The workers found nothing." } }
        @else {
            p { "Seconds are those of the executors' threads on one worker. Threads run at the same time, so the application becomes shorter by a part of them. Those of skew are of the stage's tasks on that worker." }
            div.wide tabindex="0" role="region" aria-label="Findings of the workers" { table.data id="worker-findings" {
                thead { tr { th.words { "Finding" } th.words { "Rule" } th.words { "Severity" } th.words { "Worker" } th { "Saves" } th { "At least" } th { "At most" } } }
                tbody {
                    @for (at, (worker, finding)) in found(workers).enumerate() {
                        tr {
                            td.words { a href=(format!("#worker-finding-{at}")) { bdi { (cut(&finding.title)) } } }
                            td.words.rule { (cut(&finding.id)) }
                            td.words { (finding.severity.word()) }
                            td.words { bdi { (cut(worker)) } }
                            @match finding.saving {
                                Some(saving) => {
                                    @for seconds in [saving.expected, saving.low, saving.high] { td { (few(seconds)) } }
                                }
                                None => { td colspan="3" { "not in seconds" } }
                            }
                        }
                    }
                }
            } }
        }
        @for (at, (worker, finding)) in found(workers).enumerate() { (of_worker(at, worker, finding)) }
    }
}

/// One finding of a worker. Its explanations are the daemon's own, so they are whole.
fn of_worker(at: usize, worker: &str, finding: &smtt_model::advise::Finding) -> Markup {
    html! {
        section.finding id=(format!("worker-finding-{at}")) {
            h3 { bdi { (cut(&finding.title)) } }
            p { "On " bdi { (cut(worker)) } ", " (cut(&finding.window)) }
            p { strong { "Expected saving: " (seconds(finding)) } }
            @for remedy in &finding.remedies {
                p { (remedy.why) }
                @if !remedy.lines.is_empty() { pre tabindex="0" { @for line in &remedy.lines { (cut(line)) "\n" } } }
            }
            dl { @for number in &finding.numbers { dt { (cut(&number.what)) } dd { (value(number)) } } }
            p.soft { "Computed: " (finding.computed) "." }
            p.soft { "Disproved by: " (finding.disproof) "." }
            @for missing in &finding.not_measured { p.soft { "Not measured: " (missing) "." } }
        }
    }
}
