//! `smtt-ctl stages --summary`: each figure of a stage in quantiles.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use smtt_model::rows::{Quantiles, StageSummaryRow};
use smtt_model::units;

use super::advise::wrapped;
use super::args::Query;
use super::listing::no_match::no_match;
use super::listing::{Rows, hidden, objects, on, unfiltered};
use super::{Exit, Failure, Output};
use crate::client::Client;
use crate::cluster::WORKER;
use crate::table::cut;

/// Columns of the name of a figure.
const NAME: usize = 22;
/// Columns of a table with all five quantiles.
const WHOLE: usize = NAME + 5 * 11;

/// Requests the stages and prints them.
pub(super) async fn run(client: &Client, output: Output, query: &Query) -> Result<Exit, Failure> {
    let limit = query.rows(output.rows);
    let question = query.filter.ordered(query.sort.clone(), limit);
    // Quantiles of several workers have no sum: each worker's stand for themselves.
    let listing: Rows = client.ask("/v1/stages/summary", &question).await?;
    let is_filtered = question != unfiltered(&question);
    if output.is_data() {
        objects(client, query, &listing, output)?;
    }
    if listing.rows.is_empty() && is_filtered {
        return Err(no_match(client, "/v1/stages/summary", "stages", &question).await);
    }
    if output.is_data() {
        return Ok(Exit::Fine);
    }
    let width = output.width.unwrap_or(usize::MAX);
    let of = |row: &Map<String, Value>| {
        let worker = row.get(WORKER).and_then(Value::as_str);
        let row = serde_json::from_value(Value::Object(row.clone()));
        row.map(|row| text(&row, worker, width))
    };
    let texts: Result<Vec<String>, _> = listing.rows.iter().map(of).collect();
    let texts =
        texts.map_err(|error| Failure::Question(format!("no summary of stages: {error}")))?;
    output.text(&match texts.is_empty() {
        true => "no stages\n".to_owned(),
        false => texts.join("\n") + &hidden(listing.rows.len(), listing.rows_total, 0),
    })?;
    Ok(Exit::Fine)
}

/// One stage, in lines of at most `width` columns.
fn text(row: &StageSummaryRow, worker: Option<&str>, width: usize) -> String {
    let mut lines = vec![
        format!(
            "stage {}.{} of {}{}: {}",
            row.stage_id,
            row.stage_attempt,
            row.application().label().as_deref().unwrap_or("-"),
            on(worker),
            row.name.as_deref().unwrap_or("-"),
        ),
        format!(
            "tasks: {} succeeded, {} failed, {} killed, {} lost, on {} executors",
            row.tasks_succeeded, row.tasks_failed, row.tasks_killed, row.tasks_lost, row.executors,
        ),
    ];
    lines = lines
        .iter()
        .flat_map(|line| wrapped(line, width, 0))
        .collect();
    let mut over = format!("OVER {} TASKS", row.tasks_in_quantiles);
    lines.extend(table(&over, &row.over_tasks, width));
    if row.tasks_in_quantiles < row.tasks_succeeded {
        let line = format!(
            "{} succeeded tasks are not in these figures: they have no row any more, or no accounts",
            row.tasks_succeeded - row.tasks_in_quantiles
        );
        lines.extend(wrapped(&line, width, 0));
    }
    if row.executors > 1 {
        over = format!("OVER {} EXECUTORS", row.executors);
        lines.extend(table(&over, &row.over_executors, width));
    }
    lines.join("\n") + "\n"
}

/// The quartiles are shown where there is room for them.
fn table(over: &str, figures: &BTreeMap<String, Quantiles>, width: usize) -> Vec<String> {
    let every = if width < WHOLE { 2 } else { 1 };
    let cells = |name: &str, cells: [&str; 5]| {
        let mut line = format!("{name:NAME$}");
        for cell in cells.iter().step_by(every) {
            line.push_str(&format!(" {cell:>10}"));
        }
        cut(&line, width)
    };
    let mut lines = vec![cells(over, ["MIN", "25 %", "MEDIAN", "75 %", "MAX"])];
    for (name, figure) in figures {
        let text = |value| match name {
            name if name.ends_with("_ns") => units::duration(value),
            name if name.ends_with("_bytes") => units::bytes(value),
            _ => units::count(value),
        };
        let values = [
            figure.min,
            figure.p25,
            figure.median,
            figure.p75,
            figure.max,
        ];
        let values = values.map(text);
        let name = name.trim_end_matches("_ns").trim_end_matches("_bytes");
        let name = name.trim_start_matches("context_").replace('_', " ");
        lines.push(cells(
            &cut(&name, NAME),
            values.each_ref().map(String::as_str),
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_fits_a_terminal_of_80_columns() {
        let figure = Quantiles {
            min: 1,
            p25: 2,
            median: 3,
            p75: 4 << 30,
            max: u64::MAX,
            values: 9,
        };
        let names = [
            "cpu_ns",
            "execution_memory_peak_bytes",
            "context_switches_involuntary",
        ];
        let figures: BTreeMap<_, _> = names.map(|name| (name.to_owned(), figure)).into();
        let row = StageSummaryRow {
            name: Some("count at Main.scala ".repeat(9)),
            executors: 2,
            tasks_succeeded: 10,
            tasks_in_quantiles: 9,
            over_tasks: figures.clone(),
            over_executors: figures,
            ..StageSummaryRow::default()
        };
        let narrow = super::text(&row, None, 60);
        assert!(
            narrow.lines().all(|line| line.chars().count() <= 60),
            "{narrow}"
        );
        let words: Vec<&str> = narrow.split_whitespace().collect();
        let said = words.join(" ");
        assert!(
            said.contains("they have no row any more, or no accounts")
                && said.contains("MIN MEDIAN MAX"),
            "{narrow}"
        );
        let text = text(&row, None, 80);
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        for part in [
            "OVER 9 TASKS",
            "OVER 2 EXECUTORS",
            "4.0 GiB",
            "16.0 EiB",
            "1 succeeded tasks are",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
