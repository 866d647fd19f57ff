//! `smtt-ctl postmortem`: why executors died.

use std::collections::BTreeSet;
use std::time::Duration;

use smtt_machine::clock::now_unix_ns;
use smtt_model::postmortem::{Deaths, Report, Row};
use smtt_model::protocol::ListQuery;
use smtt_model::sort::small::Gather as _;
use smtt_model::state::MemorySample;
use smtt_model::{time, units};

use super::advise::wrapped;
use super::memory::division;
use super::{Exit, Failure, Output, say};
use crate::client::{Client, with_query};
use crate::cluster::{Cluster, beside};
use crate::listing::on;
use crate::output::Form;
use crate::users;

/// Workers that an error names at most.
const NAMED: usize = 8;
/// Columns of a text without a given width.
const WIDTH: usize = 100;
/// Levels of a curve.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Columns of a curve: at most, and at least where there is one.
const CURVE: usize = 60;
const CURVE_MIN: usize = 10;
/// Columns beside a curve.
const BESIDE: usize = 62;

/// Requests the list, or the page of one executor, and prints it.
pub(super) async fn run(
    client: &Client,
    output: Output,
    executor: Option<&str>,
    query: ListQuery,
    since: Option<Duration>,
) -> Result<Exit, Failure> {
    let Some(executor) = executor else {
        let mut deaths: Deaths = client.ask("/v1/postmortem", &query).await?;
        let all = deaths.rows.len();
        if let Some(age) = since {
            // The time of a death is of the day, on the worker's clock.
            let now_ms = now_unix_ns() / 1_000_000;
            let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            let begin = now_ms.saturating_sub(age_ms);
            deaths.rows.retain(|row| row.died_unix_ms >= begin);
        }
        if deaths.rows.is_empty() && all > 0 {
            if output.is_data() {
                output.data(&deaths)?;
            }
            return Err(Failure::Nothing(format!(
                "no executor has died in this time; {all} have before: smtt-ctl postmortem lists them"
            )));
        }
        if let (Some(cluster), Form::Json) = (client.cluster(), output.form) {
            output.data(&beside(&deaths, cluster))?;
        } else if output.form == Form::Csv && client.cluster().is_some() {
            output.data(&deaths.rows)?;
        } else if output.is_data() {
            output.data(&deaths)?;
        } else if !deaths.rows.is_empty() || query == ListQuery::default() {
            output.text(&list(&deaths, output.width.unwrap_or(WIDTH)))?;
        }
        if deaths.rows.is_empty() && query != ListQuery::default() {
            let all: Deaths = client.ask("/v1/postmortem", &ListQuery::default()).await?;
            return Err(Failure::Nothing(format!(
                "no such executor has died; {} others have: smtt-ctl postmortem lists them",
                all.rows.len()
            )));
        }
        if deaths.failing.is_empty() {
            return Ok(Exit::Fine);
        }
        say(&deaths.failing);
        return Ok(Exit::Degraded);
    };
    let report = match client.cluster() {
        None => {
            let query = ListQuery {
                executor: Some(executor.to_owned()),
                ..query
            };
            client.ask_one("/v1/postmortem/report", &query).await?
        }
        Some(cluster) => of_workers(client, cluster, executor, &query).await?,
    };
    if output.is_data() {
        output.data(&report)?;
    } else {
        output.text(&page(&report, output.width.unwrap_or(WIDTH)))?;
    }
    Ok(Exit::Fine)
}

/// The report of the last death of an executor, or of the one with this id, on the worker after `@`. Without one it is the
/// only worker that has such a death: a worker is not believed about another one's executors.
async fn of_workers(
    client: &Client,
    cluster: &Cluster,
    executor: &str,
    query: &ListQuery,
) -> Result<Report, Failure> {
    let deaths: Deaths = client.ask("/v1/postmortem", query).await?;
    let of = |executor: &str, worker: Option<&str>| -> Vec<&Row> {
        let rows = deaths.rows.iter();
        let is_named = |row: &&Row| {
            (row.id == executor || row.who.executor_id.as_deref() == Some(executor))
                && worker.is_none_or(|worker| row.who.worker.as_deref() == Some(worker))
        };
        rows.filter(is_named).collect()
    };
    let mut named = of(executor, None);
    if named.is_empty()
        && let Some((executor, worker)) = executor.rsplit_once('@')
    {
        named = of(executor, Some(worker));
    }
    let Some(last) = named.iter().max_by_key(|row| row.died_unix_ms) else {
        return Err(Failure::Nothing(format!(
            "no executor {executor} has died on a worker that answers; {} others have: smtt-ctl postmortem lists them",
            deaths.rows.len()
        )));
    };
    let workers: BTreeSet<&str> = named
        .iter()
        .filter_map(|row| row.who.worker.as_deref())
        .gather();
    if workers.len() > 1 {
        return Err(Failure::Nothing(format!(
            "executors of that name have died on {} workers: name one of {}",
            workers.len(),
            workers
                .iter()
                .take(NAMED)
                .map(|worker| format!("{executor}@{worker}"))
                .collect::<Vec<_>>()
                .join(", ")
        )));
    }
    if named.len() > 1 {
        say(&format!(
            "{} such executors have died; this is the last one: smtt-ctl postmortem lists them with their ids",
            named.len()
        ));
    }
    let worker = last.who.worker.as_deref().unwrap_or_default();
    let query = ListQuery {
        executor: Some(last.id.clone()),
        ..query.clone()
    };
    let path = with_query("/v1/postmortem/report", &query)?;
    let mut report: Report = cluster.one(worker, &path).await?;
    report.row.who.worker = Some(worker.to_owned());
    Ok(report)
}

/// The list: two lines per death.
fn list(deaths: &Deaths, width: usize) -> String {
    if deaths.rows.is_empty() {
        return "No executor has died.\n".to_owned();
    }
    let mut text = String::new();
    for row in &deaths.rows {
        push(&mut text, &heading(row), width, 0);
        push(&mut text, &row.sentence, width, 4);
    }
    if deaths.left_out > 0 {
        let line = format!(
            "{} older deaths are not shown: narrow the list with --app, --user or --since",
            deaths.left_out
        );
        push(&mut text, &line, width, 0);
    }
    if deaths.lost > 0 {
        let line = format!(
            "{} reports were lost: neither disk nor memory had room",
            deaths.lost
        );
        push(&mut text, &line, width, 0);
    }
    text.push_str("smtt-ctl postmortem ID shows one of them.\n");
    text
}

fn heading(row: &Row) -> String {
    let executor = row.who.executor_id.as_deref().unwrap_or("?");
    let application = row.who.application().label();
    let application = application.as_deref().unwrap_or("?");
    format!(
        "{}  {}  executor {executor} of {application} (process {}{}){}  {}",
        row.id,
        time::clock(row.died_unix_ms),
        row.who.pid,
        on(row.who.worker.as_deref()),
        users::of(row.who.uid),
        row.verdict.name()
    )
}

/// The page of one death.
fn page(report: &Report, width: usize) -> String {
    let row = &report.row;
    let mut text = String::new();
    push(&mut text, &heading(row), width, 0);
    text.push('\n');
    push(&mut text, &row.sentence, width, 0);
    if !report.advice.is_empty() {
        text.push_str("\nWhat to change\n");
        for line in &report.advice {
            push(&mut text, line, width, 2);
        }
    }
    text.push_str("\nWhat this rests on\n");
    for line in &report.evidence {
        push(&mut text, line, width, 2);
    }
    memory(&mut text, report, width);
    if let Some(row) = &report.memory
        && let Some(resident) = row.resident_bytes
    {
        text.push_str(&format!(
            "\nWhere the memory was, {} before the end\n",
            units::duration(row.age_ns.unwrap_or(0))
        ));
        division(&mut text, row, resident, width, "before the end");
    }
    tasks(&mut text, report, width);
    text
}

/// A figure of a sample, with its name.
type Figure = (&'static str, fn(&MemorySample) -> Option<u64>);

const FIGURES: [Figure; 11] = [
    ("resident memory of the JVM", |sample| sample.resident_bytes),
    ("  anonymous", |sample| sample.anonymous_bytes),
    ("  mapped files", |sample| sample.file_bytes),
    ("  shared", |sample| sample.shared_bytes),
    ("swapped", |sample| sample.swapped_bytes),
    ("Java heap in use", |sample| sample.heap_used_bytes),
    ("Java heap committed", |sample| sample.heap_committed_bytes),
    ("Spark's storage memory", |sample| sample.storage_bytes),
    ("Spark's execution memory", |sample| sample.execution_bytes),
    ("children, such as Python", |sample| sample.children_bytes),
    ("cgroup", |sample| sample.cgroup_bytes),
];

/// The last sample as a table, each line with its curve.
fn memory(text: &mut String, report: &Report, width: usize) {
    let Some(last) = report.samples.last() else {
        text.push_str("\nMemory: no sample was taken; it lived too short\n");
        return;
    };
    let age = report.died_ns.saturating_sub(last.time_ns);
    let first = report.samples.first().map_or(0, |sample| sample.time_ns);
    let span = last.time_ns.saturating_sub(first);
    text.push_str(&format!(
        "\nMemory {} before the end, and over {} before that\n",
        units::duration(age),
        units::duration(span)
    ));
    // A narrow terminal has the figures without their curves.
    let columns = match width.saturating_sub(BESIDE) {
        0..CURVE_MIN => 0,
        columns => columns.min(CURVE),
    };
    for (name, figure) in FIGURES {
        let values: Vec<Option<u64>> = report.samples.iter().map(figure).collect();
        let Some(value) = values.iter().rev().find_map(|value| *value) else {
            continue;
        };
        let most = values.iter().flatten().max().copied().unwrap_or(0);
        let line = format!(
            "  {name:<28}{:>10}  at most {:>10}  {}",
            units::bytes(value),
            units::bytes(most),
            curve(&values, columns)
        );
        text.push_str(&format!("{}\n", line.trim_end()));
    }
    let mut limit = |name: &str, value: Option<u64>| {
        if let Some(value) = value {
            text.push_str(&format!("  {name:<28}{:>10}\n", units::bytes(value)));
        }
    };
    limit("peak of the JVM (kernel)", report.peak_rss_bytes);
    limit("heap at most (-Xmx)", report.heap_max_bytes);
    let cgroup = report.cgroup.as_ref();
    limit(
        "limit of the cgroup",
        cgroup.and_then(|cgroup| cgroup.limit_bytes),
    );
    if !report.growth.is_empty() {
        text.push_str("\nWhat grew\n");
        for growth in &report.growth {
            text.push_str(&format!(
                "  {:<36}+{:>10}  from {} to {}\n",
                growth.what,
                units::bytes(growth.to_bytes - growth.from_bytes),
                units::bytes(growth.from_bytes),
                units::bytes(growth.to_bytes)
            ));
        }
    }
}

/// Values as a curve from zero to the largest one; a blank where nothing was measured.
fn curve(values: &[Option<u64>], columns: usize) -> String {
    let columns = columns.min(values.len());
    let most = values.iter().flatten().max().copied().unwrap_or(0).max(1);
    (0..columns)
        .map(|column| {
            let (from, to) = (
                column * values.len() / columns,
                (column + 1) * values.len() / columns,
            );
            match values[from..to].iter().flatten().max() {
                None => ' ',
                Some(value) => {
                    let level = u128::from(*value) * (LEVELS.len() as u128 - 1) / u128::from(most);
                    LEVELS[level as usize]
                }
            }
        })
        .collect()
}

fn tasks(text: &mut String, report: &Report, width: usize) {
    let last = &report.last;
    let held = format!(
        "{} {} ran; Spark held {} of storage and {} of execution memory ({} and {} outside of the heap)",
        last.running,
        if last.running == 1 { "task" } else { "tasks" },
        units::bytes(last.storage_bytes),
        units::bytes(last.execution_bytes),
        units::bytes(last.storage_off_heap_bytes),
        units::bytes(last.execution_off_heap_bytes)
    );
    text.push('\n');
    push(text, &held, width, 0);
    for task in &last.tasks {
        let stage = match (task.stage_id, task.stage_attempt) {
            (Some(id), Some(attempt)) => format!("stage {id}.{attempt}"),
            _ => "stage ?".to_owned(),
        };
        let partition = task
            .partition
            .map_or_else(String::new, |partition| format!(", partition {partition}"));
        let age = task
            .age_ns
            .map_or_else(String::new, |ns| format!(", for {}", units::duration(ns)));
        let python = task
            .python_worker_peak_bytes
            .map_or_else(String::new, |bytes| {
                format!(
                    "; its Python workers had at most {} resident",
                    units::bytes(bytes)
                )
            });
        let line = format!(
            "task {} ({stage}{partition}){age}: held {}, at most {} of execution memory{python}",
            task.task_attempt_id,
            units::bytes(task.execution_bytes),
            units::bytes(task.execution_peak_bytes)
        );
        push(text, &line, width, 2);
    }
    if last.running > last.tasks.len() as u64 {
        text.push_str("  and others, which held less\n");
    }
}

fn push(text: &mut String, line: &str, width: usize, indent: usize) {
    for part in wrapped(line, width, indent) {
        text.push_str(&part);
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use smtt_model::rows::{LimitRow, MemoryPart, MemoryRow};
    use smtt_model::state::RunningTask;

    use super::*;

    #[test]
    fn a_curve_shows_what_was_not_measured_as_a_blank() {
        assert_eq!(curve(&[Some(0), None, Some(7), Some(14)], 4), "▁ ▄█");
        assert_eq!(curve(&[Some(1), Some(2), Some(2), Some(4)], 2), "▄█");
        assert_eq!(curve(&[], 10), "");
        assert_eq!(curve(&[None; 3], 10), "   ");
        assert_eq!(curve(&[Some(u64::MAX), Some(0)], 10), "█▁");
    }

    #[test]
    fn a_page_has_the_verdict_before_the_numbers() {
        let mut report = Report {
            evidence: vec!["kernel: it ended".to_owned()],
            advice: vec!["Use less.".to_owned()],
            samples: vec![MemorySample {
                resident_bytes: Some(3 << 20),
                ..MemorySample::default()
            }],
            ..Report::default()
        };
        report.row.sentence = "It ended.".to_owned();
        let text = page(&report, 100);
        let places: Vec<usize> = [
            "It ended.",
            "Use less.",
            "kernel: it ended",
            "3.0 MiB",
            "0 tasks ran",
        ]
        .iter()
        .map(|part| {
            text.find(part)
                .unwrap_or_else(|| panic!("{part} in {text}"))
        })
        .collect();
        assert!(places.is_sorted(), "{text}");
        assert!(
            !text.contains("swapped"),
            "what was not measured is absent: {text}"
        );
        report.samples.clear();
        assert!(page(&report, 100).contains("no sample"));
        assert!(!page(&report, 100).contains("Where the memory was"));
        report.memory = Some(Box::new(MemoryRow {
            resident_bytes: Some(100 << 20),
            age_ns: Some(400_000_000),
            examined_age_ns: Some(3_000_000_000),
            parts: vec![MemoryPart {
                name: "direct_buffers".to_owned(),
                bytes: 60 << 20,
                estimated: false,
            }],
            limits: vec![LimitRow {
                name: "memory.max".to_owned(),
                limit_bytes: 7 << 30,
                ..LimitRow::default()
            }],
            ..MemoryRow::default()
        }));
        report.last.tasks = vec![RunningTask {
            python_worker_peak_bytes: Some(910 << 20),
            ..RunningTask::default()
        }];
        let text = page(&report, 160);
        for part in [
            "Where the memory was, 400.0 ms before the end",
            "100.0 MiB resident, divided 3.0 s before the end",
            "direct buffers",
            "memory.max",
            "its Python workers had at most 910.0 MiB resident",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
