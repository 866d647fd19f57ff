//! `smtt-ctl report`: a readable summary per application.

pub(super) mod cluster;

use crate::users;
use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use smtt_model::protocol::{ApplicationReport, ListQuery, REPORT_ROWS, Report};
use smtt_model::rows::{ExecutorKind, ExecutorRow};
use smtt_model::sort::small::sort_by_key;
use smtt_model::units;

use super::advise::wrapped;
use super::args::{By, Filters};
use super::columns::{self, ListingKind};
use super::listing::no_match::no_match;
use super::table::{self, Column, Form, column};
use super::{Exit, Failure, Output, earlier, groups, listing, status};
use crate::client::Client;

const BY_MEMORY: &[Column] = &[
    column("executor_id", "EXEC", Form::Word, 0),
    column("rdd_id", "RDD", Form::Word, 0),
    column("name", "NAME", Form::Text, 0),
    column("storage_level_name", "LEVEL", Form::Level, 5),
    column("partitions_cached", "CACHED", Form::Count, 4),
    column("storage_memory_bytes", "STORAGE", Form::Bytes, 2),
    column("storage_memory_peak_bytes", "STORAGE PEAK", Form::Bytes, 0),
    column("execution_memory_bytes", "EXECUTION", Form::Bytes, 3),
    column("execution_memory_peak_bytes", "EXEC PEAK", Form::Bytes, 1),
];

/// Requests the report and prints it.
pub(super) async fn run(
    client: &Client,
    output: Output,
    filter: &Filters,
    by: Option<By>,
) -> Result<Exit, Failure> {
    if output.is_data() && by.is_some() {
        return Err(Failure::Question(
            "a report with --by is text: smtt-ctl rdds --by has --json and --csv".to_owned(),
        ));
    }
    if let Some(cluster) = client.cluster() {
        return cluster::run(client, cluster, output, filter, by).await;
    }
    let report: Report = client.ask_one("/v1/report", &filter.question()).await?;
    if output.is_data() {
        output.data(&report)?;
    }
    let question = filter.question();
    if report.applications.is_empty() && question != ListQuery::default() {
        return Err(no_match(client, "/v1/executors", "applications", &question).await);
    }
    if !output.is_data() {
        let mut said = text(&report, output);
        if let Some(by) = by {
            let groups = groups::of(client, filter.question(), by).await?;
            said.push_str(&groups_text(groups::title(by), &groups, by, output));
        }
        output.text(&said)?;
    }
    Ok(if report.degraded.is_empty() {
        Exit::Fine
    } else {
        Exit::Degraded
    })
}

/// Rows as JSON objects for a table.
fn objects<Row: Serialize>(rows: &[Row]) -> Vec<Map<String, Value>> {
    rows.iter()
        .filter_map(|row| match serde_json::to_value(row) {
            Ok(Value::Object(row)) => Some(row),
            _ => None,
        })
        .collect()
}

/// The first groups of RDDs under a heading.
fn groups_text(title: &str, groups: &[Map<String, Value>], by: By, output: Output) -> String {
    let shown = &groups[..groups.len().min(REPORT_ROWS)];
    let table = groups::table(shown, by, output);
    format!(
        "{}{}{}{}",
        heading(title, output),
        table.text,
        listing::hidden(shown.len(), groups.len() as u64, 0),
        hidden(
            table.hidden,
            &format!("rdds --by {}", groups::name(by)),
            output
        )
    )
}

fn heading(text: &str, output: Output) -> String {
    if output.styled {
        format!("\n\u{1b}[1m{text}\u{1b}[0m\n")
    } else {
        format!("\n{text}\n")
    }
}

/// A table under a heading; `by` is the command that lists all its columns.
fn section<Row: Serialize>(
    title: &str,
    by: &str,
    columns: &[Column],
    rows: &[Row],
    output: Output,
) -> String {
    if rows.is_empty() {
        return String::new();
    }
    // The application is printed above all sections.
    let columns: Vec<Column> = columns
        .iter()
        .filter(|column| column.field != "application_id")
        .copied()
        .collect();
    let table = table::fit(&columns, &objects(rows), output, false);
    format!(
        "{}{}{}",
        heading(title, output),
        table.text,
        hidden(table.hidden, by, output)
    )
}

/// A line about the columns that a table has no room for, with the command that lists all of them.
fn hidden(columns: usize, by: &str, output: Output) -> String {
    let line = listing::hidden_columns(columns, &format!("smtt-ctl {by} --columns all"));
    let lines = wrapped(line.trim_end(), output.width.unwrap_or(usize::MAX), 0);
    let lines = lines.iter().filter(|line| !line.is_empty());
    lines.map(|line| format!("{line}\n")).collect()
}

fn section_of<Row: Serialize>(
    title: &str,
    kind: &ListingKind,
    rows: &[Row],
    output: Output,
) -> String {
    let by = kind.path.trim_start_matches("/v1/");
    section(title, by, kind.columns, rows, output)
}

/// Message in place of applications.
pub(super) const NO_APPLICATION: &str = "no application has been seen on this worker\n";

/// The report as text.
pub(super) fn text(report: &Report, output: Output) -> String {
    let mut text = String::new();
    if report.applications.is_empty() {
        text.push_str(NO_APPLICATION);
    }
    for (index, application) in report.applications.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        text.push_str(&application_text(application, output));
    }
    text.push_str(&heading("What was lost on the way", output));
    text.push_str(&status::ledger(&report.ledger, output));
    for reason in &report.degraded {
        text.push_str(&format!("degraded: {reason}\n"));
    }
    text
}

/// The application in words.
fn title(id: Option<&str>, name: Option<&str>) -> String {
    match (id, name) {
        (Some(id), Some(name)) if !name.is_empty() => format!("Application {id} ({name})"),
        (Some(id), _) => format!("Application {id}"),
        (None, _) => "Executors that have not described themselves".to_owned(),
    }
}

fn application_text(application: &ApplicationReport, output: Output) -> String {
    let title = title(
        application.application().label().as_deref(),
        application.application_name.as_deref(),
    );
    let mut text = heading(&title, output).trim_start_matches('\n').to_owned();
    if let Some(uid) = application.uid {
        text.push_str(&format!("user {}\n", users::name(uid)));
    }
    text.push_str(&section_of(
        "Executors",
        &columns::EXECUTORS,
        &application.executors,
        output,
    ));
    text.push_str(&listing::footer(&columns::EXECUTORS, &application.summary));
    text.push_str(&earlier::line(&application.summary));
    text.push_str(&classes(&application.executors));
    text.push_str(&section_of(
        "RDDs with most page faults",
        &columns::RDDS,
        &application.rdds_by_faults,
        output,
    ));
    text.push_str(&section(
        "RDDs that held most memory",
        "rdds",
        BY_MEMORY,
        &application.rdds_by_memory,
        output,
    ));
    text.push_str(&section_of(
        "Stages with most page faults",
        &columns::STAGES,
        &application.stages,
        output,
    ));
    text.push_str(&section_of(
        "Tasks with most page faults",
        &columns::TASKS,
        &application.tasks,
        output,
    ));
    text
}

/// Sources of unattributed faults that are listed: more than a daemon knows.
const CLASSES: usize = 40;

/// Sources of the unattributed faults.
fn classes(executors: &[ExecutorRow]) -> String {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (class, faults) in executors
        .iter()
        .filter(|executor| executor.kind == ExecutorKind::Executor)
        .flat_map(|executor| &executor.unattributed)
    {
        let sum: &mut u64 = sums.entry(class).or_default();
        *sum = sum.saturating_add(*faults);
    }
    let mut sums: Vec<(&str, u64)> = sums.into_iter().collect();
    sort_by_key(&mut sums, |(_, faults)| std::cmp::Reverse(*faults));
    let others = sums.split_off(sums.len().min(CLASSES));
    if !others.is_empty() {
        let faults = others.iter().map(|(_, faults)| *faults);
        sums.push(("others", faults.fold(0, u64::saturating_add)));
    }
    let line = |(class, faults): &(&str, u64)| {
        format!("  {}: {}\n", table::cut(class, 60), units::count(*faults))
    };
    sums.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use smtt_model::rows::RddRow;
    use smtt_model::state::FaultFigures;
    use unicode_width::UnicodeWidthStr;

    #[test]
    fn a_report_fits_eighty_columns() {
        let faults = FaultFigures {
            page_faults: Some(123_456),
            page_faults_read: Some(1),
            ..FaultFigures::default()
        };
        let rdd = RddRow {
            rdd_id: Some(1_234_567),
            name: Some("a name that goes on and on and on ".repeat(4)),
            storage_level: Some("Disk Memory Deserialized 1x Replicated".to_owned()),
            storage_memory_peak_bytes: u64::MAX,
            faults,
            ..RddRow::default()
        };
        let report = Report {
            applications: vec![ApplicationReport {
                application_id: Some("app-1".to_owned()),
                application_name: Some("PageRank".to_owned()),
                executors: vec![ExecutorRow {
                    faults,
                    unattributed: BTreeMap::from([("gc_thread".to_owned(), 1234)]),
                    ..ExecutorRow::default()
                }],
                rdds_by_faults: vec![rdd.clone()],
                rdds_by_memory: vec![rdd],
                ..ApplicationReport::default()
            }],
            ..Report::default()
        };
        let text = text(
            &report,
            Output {
                width: Some(80),
                ..Output::default()
            },
        );
        for line in text.lines() {
            assert!(line.width() <= 80, "{line:?}");
        }
        for expected in [
            "Application app-1 (PageRank)",
            "  gc_thread: 1,234",
            "RDDs that held most memory",
            "16.0 EiB",
            "123,456",
        ] {
            assert!(text.contains(expected), "{expected:?} is not in\n{text}");
        }
    }

    #[test]
    fn nothing_seen_is_said() {
        let text = text(&Report::default(), Output::default());
        assert!(text.starts_with("no application has been seen"));
    }
}
