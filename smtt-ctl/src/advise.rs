//! `smtt-ctl advise`: findings as text.

pub(super) mod cluster;

use crate::users;
use smtt_model::advise::{
    Advice, ApplicationAdvice, Evidence, Finding, RuleOutcome, RuleResult, Severity,
};
use smtt_model::protocol::ListQuery;
use smtt_model::rows::{Listing, Number, made_at};
use smtt_model::units;
use unicode_width::UnicodeWidthStr;

use super::cluster::beside;
use super::earlier::{mark, of};
use super::listing::no_match::no_match;
use super::report::NO_APPLICATION;
use super::{Exit, Failure, Output};
use crate::client::Client;

/// Columns of a text without a given width.
const WIDTH: usize = 100;

/// Requests the advice and prints it.
pub(super) async fn run(
    client: &Client,
    output: Output,
    question: ListQuery,
    all: bool,
) -> Result<Exit, Failure> {
    let mut advice: Advice = client.ask("/v1/advise", &question).await?;
    if client.cluster().is_none() {
        advice.applications.extend(earlier(client, &question).await);
    }
    if let Some(cluster) = client.cluster().filter(|_| output.is_data()) {
        // Surroundings are of one worker each.
        let applications = serde_json::json!({ "applications": advice.applications });
        output.data(&beside(&applications, cluster))?;
    } else if output.is_data() {
        output.data(&advice)?;
    }
    let is_filtered = question.app.is_some() || question.user.is_some();
    if advice.applications.is_empty() && is_filtered {
        return Err(no_match(client, "/v1/executors", "applications", &question).await);
    }
    if !output.is_data() {
        output.text(&match client.cluster() {
            Some(_) if !advice.applications.is_empty() => cluster::text(&advice, output),
            _ => text(&advice, output, all),
        })?;
    }
    Ok(Exit::Fine)
}

/// What earlier runs of the daemon found. A daemon of an older version knows none.
async fn earlier(client: &Client, question: &ListQuery) -> Vec<ApplicationAdvice> {
    let path = of("/v1/advise");
    let asked: Result<Listing<ApplicationAdvice>, _> = client.ask(&path, question).await;
    asked.unwrap_or_default().rows
}

/// Advice as text.
fn text(advice: &Advice, output: Output, all: bool) -> String {
    if advice.applications.is_empty() {
        return NO_APPLICATION.to_owned();
    }
    let applications = advice.applications.iter();
    let texts: Vec<String> = applications
        .map(|application| application_text(application, output, all))
        .collect();
    let mut text = texts.join("\n");
    let width = output.width.unwrap_or(WIDTH);
    for (pid, process) in &advice.surroundings.processes {
        if let Some(reason) = &process.options_unread {
            let line = format!("The JVM options of process {pid} are unknown: {reason}");
            push(&mut text, &line, width, 0);
        }
    }
    text
}

fn bold(text: &str, output: Output) -> String {
    if output.styled {
        format!("\u{1b}[1m{text}\u{1b}[0m")
    } else {
        text.to_owned()
    }
}

/// The application in words.
fn title(application: &ApplicationAdvice) -> String {
    let title = match (
        application.application().label(),
        &application.application_name,
    ) {
        (Some(id), Some(name)) if !name.is_empty() => format!("Application {id} ({name})"),
        (Some(id), _) => format!("Application {id}"),
        (None, _) => "Executors that have not described themselves".to_owned(),
    };
    title + &users::of(application.uid) + &mark(application.earlier.as_ref())
}

fn application_text(application: &ApplicationAdvice, output: Output, all: bool) -> String {
    let title = title(application);
    let width = output.width.unwrap_or(WIDTH);
    let mut text = String::new();
    for line in wrapped(&title, width, 0) {
        text.push_str(&format!("{}\n", bold(&line, output)));
    }
    for (index, finding) in application.findings.iter().enumerate() {
        text.push('\n');
        let before = same_remedies(&application.findings, index);
        text.push_str(&finding_text(index + 1, finding, before, output, width));
    }
    text.push('\n');
    if application.findings.is_empty() {
        text.push_str("Nothing was found.\n");
    }
    for (went, heading) in [
        (RuleOutcome::Nothing, "Checked, and nothing found"),
        (RuleOutcome::NotChecked, "Could not be checked"),
    ] {
        let checks: Vec<&RuleResult> = application
            .checks
            .iter()
            .filter(|check| check.went == went)
            .collect();
        if checks.is_empty() {
            continue;
        }
        // With findings, passed checks take one line; checks that could not be made are always listed.
        if went == RuleOutcome::Nothing && !all && !application.findings.is_empty() {
            let ids: Vec<&str> = checks.iter().map(|check| check.id.as_str()).collect();
            push(
                &mut text,
                &format!("{heading}: {} (--all says more)", ids.join(", ")),
                width,
                0,
            );
            continue;
        }
        text.push_str(&format!("{heading}\n"));
        for check in checks {
            push(
                &mut text,
                &format!("{}: {} ({})", check.id, check.looks_for, check.why),
                width,
                2,
            );
        }
    }
    for check in application.checks.iter().filter(|check| check.left_out > 0) {
        push(
            &mut text,
            &format!(
                "{}: {} more findings are left out",
                check.id, check.left_out
            ),
            width,
            0,
        );
    }
    text
}

/// Index of an earlier finding with the same remedies, which are printed only once.
pub(super) fn same_remedies(findings: &[Finding], index: usize) -> Option<usize> {
    let finding = findings.get(index)?;
    let same = |earlier: &Finding| earlier.id == finding.id && earlier.remedies == finding.remedies;
    findings[..index]
        .iter()
        .position(same)
        .filter(|_| !finding.remedies.is_empty())
}

fn finding_text(
    number: usize,
    finding: &Finding,
    before: Option<usize>,
    output: Output,
    width: usize,
) -> String {
    let mut text = String::new();
    let head = format!("{number}. [{}] {}", finding.severity.word(), finding.title);
    for line in wrapped(&head, width, 0) {
        text.push_str(&format!("{}\n", bold(&line, output)));
    }
    let mut about = format!(
        "{}, on executors {}",
        finding.id,
        finding.subject.executor_ids.join(", ")
    );
    if let Some(place) = made_at(
        finding.subject.call_site.as_deref(),
        finding.subject.node.as_deref(),
    ) {
        about.push_str(&format!("; made at {place}"));
    }
    push(&mut text, &about, width, 3);
    push(&mut text, &format!("costs: {}", cost(finding)), width, 3);
    for (name, what) in saving(finding) {
        let line = format!("{}: {what}", name.to_lowercase());
        push(&mut text, &line, width, 3);
    }
    push(
        &mut text,
        &format!("numbers ({}):", finding.window),
        width,
        3,
    );
    for evidence in &finding.numbers {
        push(
            &mut text,
            &format!("{}: {}", evidence.what, shown(evidence)),
            width,
            5,
        );
    }
    if let Some(before) = before {
        let same = format!("what helps: the same as for {}", before + 1);
        push(&mut text, &same, width, 3);
    }
    for remedy in finding.remedies.iter().filter(|_| before.is_none()) {
        push(&mut text, &remedy.why, width, 3);
        for line in &remedy.lines {
            // Lines to copy: wrapped only where they do not fit at all.
            push(&mut text, line, width, 7);
        }
    }
    if !finding.not_measured.is_empty() {
        push(
            &mut text,
            &format!("not measured: {}", finding.not_measured.join("; ")),
            width,
            3,
        );
    }
    text
}

/// The cost of a finding as text.
pub(super) fn cost(finding: &Finding) -> String {
    let share = finding.cost.share.map(units::share);
    match (share, finding.cost.estimated) {
        (Some(share), true) => format!("{share} of {} (estimated)", finding.cost.of),
        (Some(share), false) => format!("{share} of {}", finding.cost.of),
        (None, _) => format!("not measured: {}", finding.cost.of),
    }
}

/// What the remedy of a finding saves, how that was computed, and what would disprove it, each with its name. An older
/// daemon does not report it.
pub(super) fn saving(finding: &Finding) -> impl Iterator<Item = (&'static str, String)> {
    let told = [
        ("Expected saving", finding.saving_words()),
        ("Computed", Some(finding.computed.clone())),
        ("Disproved by", Some(finding.disproof.clone())),
    ];
    told.into_iter().filter_map(|(name, text)| {
        let text = text.filter(|text| !text.is_empty())?;
        Some((name, text))
    })
}

/// A number as text, with its unit.
pub(super) fn shown(evidence: &Evidence) -> String {
    match (evidence.value, evidence.unit.as_str()) {
        (Number::Whole(value), "bytes") => units::bytes(value),
        (Number::Whole(value), "ns") => units::duration(value),
        (Number::Whole(value), _) => units::count(value),
        (Number::Real(value), "share") => units::share(value),
        (Number::Real(value), unit) => format!("{value:.2} {unit}"),
    }
}

/// The CSS class of a severity.
pub(super) const fn class(severity: Severity) -> &'static str {
    severity.word()
}

fn push(text: &mut String, what: &str, width: usize, indent: usize) {
    for line in wrapped(what, width, indent) {
        text.push_str(&line);
        text.push('\n');
    }
}

/// Text wrapped at blanks (longer words anywhere) into lines of `width` columns; further lines are indented by two more
/// columns. Blanks within a line stay.
pub(super) fn wrapped(text: &str, width: usize, indent: usize) -> Vec<String> {
    let width = width.max(indent + 12);
    let mut lines = Vec::new();
    let mut line = " ".repeat(indent);
    let mut empty = true;
    for word in text.split_inclusive(' ') {
        let next = |lines: &mut Vec<String>, line: &mut String| {
            let rest = " ".repeat(indent + 2);
            lines.push(std::mem::replace(line, rest).trim_end().to_owned());
        };
        if !empty && line.width() + word.trim_end().width() > width {
            next(&mut lines, &mut line);
        }
        for letter in word.chars() {
            if letter != ' ' && line.width() + letter.to_string().width() > width {
                next(&mut lines, &mut line);
            }
            line.push(letter);
        }
        empty = false;
    }
    lines.push(line.trim_end().to_owned());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use smtt_model::advise::{Cost, Remedy, Saving, Subject};

    const OUTPUT: Output = Output {
        width: Some(60),
        styled: false,
        form: crate::output::Form::Text,
        rows: None,
    };

    #[test]
    fn a_finding_fits_the_terminal_and_says_everything() {
        let finding = Finding {
            id: "never_read".to_owned(),
            severity: Severity::High,
            title: "RDD 7 (a name that goes on and on and on and on and on) is cached".to_owned(),
            subject: Subject {
                executor_ids: vec!["0".to_owned()],
                call_site: Some("cache at Job.java:17".to_owned()),
                node: Some("InMemoryTableScan".to_owned()),
                ..Subject::default()
            },
            window: "so far".to_owned(),
            numbers: vec![Evidence {
                what: "storage memory now".to_owned(),
                value: Number::Whole(3 << 20),
                unit: "bytes".to_owned(),
            }],
            cost: Cost {
                share: Some(0.5),
                of: "the storage memory".to_owned(),
                estimated: false,
            },
            remedies: vec![Remedy {
                why: "Free it:".to_owned(),
                lines: vec!["rdd.unpersist()".to_owned()],
            }],
            not_measured: vec!["reads on other workers".to_owned()],
            saving: Some(Saving::new(1.0, 2.0, 3.0)),
            computed: "as if it were not there".to_owned(),
            disproof: "a task reads it".to_owned(),
        };
        let checks = [
            ("swapped", RuleOutcome::Nothing),
            ("small_pages", RuleOutcome::NotChecked),
        ];
        let mut application = ApplicationAdvice {
            application_id: Some("app-1".to_owned()),
            findings: vec![finding],
            checks: checks
                .map(|(id, went)| RuleResult {
                    id: id.to_owned(),
                    went,
                    why: "a reason".to_owned(),
                    ..RuleResult::default()
                })
                .to_vec(),
            ..ApplicationAdvice::default()
        };
        let advice = |application: &ApplicationAdvice| Advice {
            applications: vec![application.clone()],
            ..Advice::default()
        };
        let said = text(&advice(&application), OUTPUT, false);
        for line in said.lines() {
            assert!(line.width() <= 60, "{line:?}");
        }
        for part in [
            "1. [high] RDD 7",
            "made at cache at Job.java:17",
            "node InMemoryTableScan",
            "costs: 50.0 % of the storage memory",
            "expected saving: 2.0 s (between 1.0 s and 3.0 s)",
            "computed: as if it were not there",
            "disproved by: a task reads it",
            "     storage memory now: 3.0 MiB",
            "       rdd.unpersist()",
            "not measured: reads on other workers",
            "Checked, and nothing found: swapped",
            "Could not be checked\n  small_pages",
        ] {
            assert!(said.contains(part), "{part:?} is not in\n{said}");
        }
        // A second finding with the same remedies does not repeat them.
        application.findings.push(Finding {
            title: "RDD 8 is cached".to_owned(),
            ..application.findings[0].clone()
        });
        let twice = text(&advice(&application), OUTPUT, false);
        assert!(
            twice.matches("rdd.unpersist()").count() == 1
                && twice.contains("what helps: the same as for 1"),
            "{twice}"
        );
        application.findings.clear();
        let said = text(&advice(&application), OUTPUT, false);
        assert!(
            said.contains("Nothing was found.") && said.contains("swapped:"),
            "{said}"
        );
        assert!(text(&Advice::default(), OUTPUT, false).starts_with("no application"));
    }

    #[test]
    fn text_is_broken_at_blanks() {
        assert_eq!(
            wrapped("one two three four", 14, 2),
            ["  one two", "    three four"]
        );
        assert_eq!(wrapped(&"x".repeat(30), 14, 0)[0], "x".repeat(14));
    }
}
