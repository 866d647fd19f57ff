//! `smtt-ctl stages --peaks`: the peaks of each stage attempt. What its own tasks held together stands apart from what
//! the whole executor held while one of them ran.

use std::fmt::Write as _;

use smtt_model::rows::{Listing, StageRow};
use smtt_model::units;

use super::args::Query;
use super::listing::no_match::no_match;
use super::listing::{hidden, objects, on, unfiltered};
use super::memory::peak_value;
use super::{Exit, Failure, Output, earlier};
use crate::client::Client;
use crate::table::cut;

/// Columns of the name of a metric.
const NAME: usize = 32;

/// Requests the stages and prints their peaks.
pub(super) async fn run(client: &Client, output: Output, query: &Query) -> Result<Exit, Failure> {
    let limit = query.rows(output.rows);
    let question = query.filter.ordered(query.sort.clone(), limit);
    let listing: Listing<StageRow> =
        earlier::ask(client, "/v1/stages", &question, Some(query)).await?;
    let is_filtered = question != unfiltered(&question);
    if output.is_data() {
        objects(client, query, &listing, output)?;
    }
    if listing.rows.is_empty() && is_filtered {
        return Err(no_match(client, "/v1/stages", "stages", &question).await);
    }
    if output.is_data() {
        return Ok(Exit::Fine);
    }
    let width = output.width.unwrap_or(usize::MAX);
    // A stage that ran nothing here has no peaks; the overflow row has none either.
    let ran = listing.rows.iter().filter(|row| has_run(row));
    let texts: Vec<String> = ran.map(|row| text(row, width)).collect();
    output.text(&match texts.is_empty() {
        true => match client.cluster() {
            None => "no stages with tasks on this worker\n".to_owned(),
            Some(_) => "no stages with tasks on these workers\n".to_owned(),
        },
        false => {
            let hidden = hidden(listing.rows.len(), listing.rows_total, 0);
            texts.join("\n") + &hidden + &earlier::left_out(&listing.summary)
        }
    })?;
    Ok(Exit::Fine)
}

fn has_run(row: &StageRow) -> bool {
    let ended = row.tasks_succeeded + row.tasks_failed + row.tasks_killed + row.tasks_lost;
    row.stage_id.is_some() && (row.tasks_running + ended > 0 || !row.executor_peaks.is_empty())
}

/// One stage attempt on one executor, in lines of at most `width` columns.
fn text(row: &StageRow, width: usize) -> String {
    let number = |value: Option<u32>| value.map_or("-".to_owned(), |value| value.to_string());
    let partial = match row.tasks_execution_memory_peak_partial {
        true => "  not all was reported",
        false => "",
    };
    let own = |name: &str, bytes: u64| format!("  {name:NAME$} {:>11}", units::bytes(bytes));
    let mut lines = vec![
        format!(
            "stage {}.{} of {}, executor {}{}: {}",
            number(row.stage_id),
            number(row.stage_attempt),
            row.who.application().label().as_deref().unwrap_or("-"),
            row.who.executor_id.as_deref().unwrap_or("-"),
            on(row.who.worker.as_deref()) + &earlier::mark(row.who.earlier.as_ref()),
            row.name.as_deref().unwrap_or("-"),
        ),
        format!("  {:NAME$} {:>11}", "OWN TASKS", "PEAK"),
        own(
            "execution memory, all together",
            row.tasks_execution_memory_peak_bytes,
        ) + partial,
        own(
            "execution memory, largest task",
            row.execution_memory_peak_bytes,
        ),
    ];
    if row.executor_peaks.is_empty() {
        lines.push("  peaks of the executor are not known: docs/MEMORY.md says when".to_owned());
    } else {
        lines.push(format!(
            "  {:NAME$} {:>11}  AGO",
            "EXECUTOR MEANWHILE", "PEAK"
        ));
    }
    for (name, peak) in &row.executor_peaks {
        let (value, age) = (peak_value(name, peak.value), units::duration(peak.age_ns));
        lines.push(format!("  {name:NAME$} {value:>11}  {age}"));
    }
    let mut text = String::new();
    for line in lines {
        let _ = writeln!(text, "{}", cut(&line, width));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use smtt_model::rows::PeakRow;

    use super::*;

    #[test]
    fn own_peaks_stand_apart_from_those_of_the_executor() {
        let peak = |value| PeakRow {
            value,
            age_ns: 3_000_000_000,
        };
        let row = StageRow {
            stage_id: Some(3),
            stage_attempt: Some(1),
            name: Some("count at Main.scala ".repeat(9)),
            tasks_succeeded: 1,
            tasks_execution_memory_peak_bytes: 12 << 20,
            execution_memory_peak_bytes: 7 << 20,
            executor_peaks: BTreeMap::from([
                ("OnHeapExecutionMemory".to_owned(), peak(90 << 20)),
                ("MinorGCCount".to_owned(), peak(5)),
                ("MinorGCTime".to_owned(), peak(1500)),
            ]),
            ..StageRow::default()
        };
        let known = text(&row, 80);
        for line in [
            "stage 3.1 of -, executor -: count",
            "  execution memory, all together      12.0 MiB\n",
            "  execution memory, largest task       7.0 MiB\n",
            "  OnHeapExecutionMemory               90.0 MiB  3.0 s\n",
            "  MinorGCCount                               5  3.0 s\n",
            "  MinorGCTime                            1.5 s  3.0 s\n",
        ] {
            assert!(known.contains(line), "{line}: {known}");
        }
        assert!(known.lines().all(|line| line.chars().count() <= 80));
        let partial = StageRow {
            tasks_execution_memory_peak_partial: true,
            executor_peaks: BTreeMap::new(),
            ..row.clone()
        };
        let partial = text(&partial, 80);
        assert!(
            partial.contains("12.0 MiB  not all was reported"),
            "{partial}"
        );
        assert!(partial.contains("are not known") && !partial.contains("MEANWHILE"));
        assert!(has_run(&row) && !has_run(&StageRow::default()));
    }
}
