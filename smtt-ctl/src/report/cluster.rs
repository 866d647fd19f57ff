//! `smtt-ctl report --cluster`: each application as all workers see it.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use smtt_model::protocol::{ListQuery, REPORT_ROWS};
use smtt_model::rows::RddGroupRow;
use smtt_model::sort::small::sort_by_key;
use smtt_model::units;

use super::{classes, groups_text, heading, section_of, title};
use crate::advise::cluster::findings_text;
use crate::advise::wrapped;
use crate::args::{By, Filters, TABLE_ROWS};
use crate::client::Client;
use crate::cluster::{Cluster, OfApplication, Reports, beside, named};
use crate::listing::no_match::no_match;
use crate::output::Form as OutputForm;
use crate::table::cut;
use crate::{Exit, Failure, Output, columns, earlier, groups, listing, users};

/// Reasons of a text, and characters of what a worker reports.
const REASONS: usize = 20;
const WORDS: usize = 200;
/// Applications of a text without `--app`.
const APPLICATIONS: usize = 20;
/// Message in place of applications.
const NO_APPLICATION: &str = "no application has been seen on these workers\n";

/// Requests the reports of all workers and prints them.
pub(super) async fn run(
    client: &Client,
    cluster: &Cluster,
    output: Output,
    filter: &Filters,
    by: Option<By>,
) -> Result<Exit, Failure> {
    let question = filter.question();
    let reports = Reports::ask(cluster, &question).await?;
    match output.form {
        OutputForm::Json => output.data(&as_json(&reports, cluster))?,
        OutputForm::Csv => output.data(&reports.applications)?,
        OutputForm::Text | OutputForm::Plain => {}
    }
    if reports.applications.is_empty() && question != ListQuery::default() {
        return Err(no_match(client, "/v1/executors", "applications", &question).await);
    }
    if !output.is_data() {
        let mut said = without(&cluster.failures(), cluster.missing().1, output);
        said.push_str(&text(client, &reports, output));
        if let Some(by) = by {
            let groups = groups::of(client, question, by).await?;
            said.push_str(&groups_text(groups::title(by), &groups, by, output));
        }
        output.text(&said)?;
    }
    Ok(match reports.degraded.is_empty() {
        true => Exit::Fine,
        false => Exit::Degraded,
    })
}

fn as_json(reports: &Reports, cluster: &Cluster) -> Value {
    let degraded = reports.degraded.iter();
    let degraded = degraded.map(|(reason, hosts)| json!({"reason": reason, "hosts": hosts}));
    let lost = reports.lost.iter();
    let lost = lost.map(|(host, records)| json!({"host": host, "records": records}));
    let fields = json!({
        "applications": reports.applications,
        "degraded": degraded.collect::<Vec<_>>(),
        "lost": lost.collect::<Vec<_>>(),
    });
    beside(&fields, cluster)
}

/// Lines about the workers that are in no figure; empty where there are none.
fn without(failures: &[(String, Vec<String>)], all: usize, output: Output) -> String {
    let missing: usize = failures.iter().map(|(_, names)| names.len()).sum();
    if missing == 0 {
        return String::new();
    }
    let verb = if missing == 1 { "is" } else { "are" };
    let mut text = format!("{missing} of {all} workers {verb} missing in all figures\n");
    for (reason, names) in failures {
        let line = format!("missing: {}: {reason}", named(names));
        for line in wrapped(&line, output.width.unwrap_or(usize::MAX), 0) {
            text.push_str(&format!("{line}\n"));
        }
    }
    text.push('\n');
    text
}

fn text(client: &Client, reports: &Reports, output: Output) -> String {
    let mut text = String::new();
    if reports.applications.is_empty() {
        text.push_str(NO_APPLICATION);
    }
    for (index, application) in reports.applications.iter().take(APPLICATIONS).enumerate() {
        if index > 0 {
            text.push('\n');
        }
        text.push_str(&application_text(client, application, output));
    }
    match reports.applications.len().saturating_sub(APPLICATIONS) {
        0 => {}
        more => text.push_str(&format!("\n{more} more applications: --app names one\n")),
    }
    text.push_str(&heading("What was lost on the way", output));
    if reports.lost.is_empty() {
        text.push_str("nothing\n");
    }
    let shown = reports.lost.len().min(TABLE_ROWS);
    for (worker, records) in &reports.lost[..shown] {
        let records = units::count(*records);
        text.push_str(&format!("{worker}: {records} (smtt-ctl status there)\n"));
    }
    text.push_str(&listing::hidden(shown, reports.lost.len() as u64, 0));
    text.push_str(&degraded(&reports.degraded, output));
    text
}

/// Lines about figures that are less exact. Workers choose the words, so their number and length are bounded.
pub fn degraded<Text: AsRef<str>>(reasons: &BTreeMap<Text, Vec<Text>>, output: Output) -> String {
    let width = output.width.unwrap_or(usize::MAX);
    let mut text = String::new();
    for (reason, workers) in reasons.iter().take(REASONS) {
        let line = format!(
            "degraded on {}: {}",
            named(workers),
            cut(reason.as_ref(), WORDS)
        );
        for line in wrapped(&line, width, 0) {
            text.push_str(&format!("{line}\n"));
        }
    }
    match reasons.len().saturating_sub(REASONS) {
        0 => text,
        more => text + &format!("{more} more reasons: --json has all\n"),
    }
}

fn application_text(client: &Client, application: &OfApplication, output: Output) -> String {
    let short = |text: &Option<String>| text.as_deref().map(|text| cut(text, WORDS));
    let (id, name) = (
        short(&application.key().label()),
        short(&application.application_name),
    );
    let title = title(id.as_deref(), name.as_deref());
    let mut text = heading(&title, output).trim_start_matches('\n').to_owned();
    if let Some(uid) = application.uid {
        text.push_str(&format!("user {}\n", users::name(uid)));
    }
    let hosts = &application.hosts;
    let plural = if hosts.len() == 1 { "" } else { "s" };
    let on = format!("on {} worker{plural}: {}", hosts.len(), named(hosts));
    for line in wrapped(&on, output.width.unwrap_or(usize::MAX), 0) {
        text.push_str(&format!("{line}\n"));
    }
    let executors = &application.executors;
    let shown = &executors[..executors.len().min(TABLE_ROWS)];
    text.push_str(&section_of(
        "Executors",
        &client.kind(&columns::EXECUTORS),
        shown,
        output,
    ));
    if executors.len() > shown.len() {
        let hidden = units::count((executors.len() - shown.len()) as u64);
        text.push_str(&format!(
            "hidden: {hidden} executors with fewer page faults (smtt-ctl executors lists them)\n"
        ));
    }
    text.push_str(&listing::footer(&columns::EXECUTORS, &application.summary));
    text.push_str(&earlier::line(&application.summary));
    text.push_str(&classes(executors));
    text.push_str(&rdds_text(&application.rdds, output));
    text.push_str(&section_of(
        "Stages with most page faults",
        &client.kind(&columns::STAGES),
        &application.stages,
        output,
    ));
    text.push_str(&section_of(
        "Tasks with most page faults",
        &client.kind(&columns::TASKS),
        &application.tasks,
        output,
    ));
    text.push_str(&heading("Findings", output));
    let advice: Vec<_> = application.advice.iter().collect();
    let findings = findings_text(&advice, output);
    text.push_str(findings.trim_start_matches('\n'));
    text
}

fn rdds_text(rdds: &[RddGroupRow], output: Output) -> String {
    let held = |row: &RddGroupRow| {
        let storage = row.storage_memory_bytes;
        storage.saturating_add(row.execution_memory_bytes)
    };
    let mut costly = rdds.to_vec();
    costly.retain(|row| row.faults.page_faults.unwrap_or(0) > 0);
    let mut holding = rdds.to_vec();
    holding.retain(|row| held(row) > 0);
    sort_by_key(&mut holding, |row| std::cmp::Reverse(held(row)));
    let mut text = String::new();
    for (title, rows) in [
        ("RDDs with most page faults", costly),
        ("RDDs that hold most memory", holding),
    ] {
        if !rows.is_empty() {
            let shown = &rows[..rows.len().min(REPORT_ROWS)];
            text.push_str(&section_of(title, &groups::kind(By::Rdd), shown, output));
            text.push_str(&listing::hidden(shown.len(), rows.len() as u64, 0));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_workers_say_of_themselves_stays_short() {
        let reasons = |count: usize, length: usize| {
            let reason = |n: usize| {
                (
                    format!("{n:05} {}", "why ".repeat(length)),
                    vec![n.to_string()],
                )
            };
            (0..count).map(reason).collect::<BTreeMap<_, _>>()
        };
        let narrow = Output {
            width: Some(60),
            ..Output::default()
        };
        assert_eq!(
            degraded(&reasons(1, 2), narrow),
            "degraded on 0: 00000 why why\n"
        );
        let flood = degraded(&reasons(5000, 5000), narrow);
        assert!(flood.len() < 10_000, "{} bytes", flood.len());
        assert!(flood.lines().all(|line| line.len() <= 62), "{flood}");
        assert!(flood.ends_with("4980 more reasons: --json has all\n"));
    }

    #[test]
    fn missing_workers_are_named_with_their_reasons_and_not_all_of_them() {
        let names = |count: usize| (0..count).map(|n| format!("w{n}")).collect::<Vec<_>>();
        let output = Output::default();
        assert_eq!(without(&[], 3, output), "");
        let said = without(
            &[
                ("cannot connect".to_owned(), names(1)),
                ("no answer within 2s".to_owned(), names(300)),
            ],
            500,
            output,
        );
        assert_eq!(
            said,
            "301 of 500 workers are missing in all figures\n\
             missing: w0: cannot connect\n\
             missing: w0, w1, w2, w3, w4, w5, w6, w7 and 292 more: no answer within 2s\n\n"
        );
    }
}
