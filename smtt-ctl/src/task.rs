//! `smtt-ctl task ID`: one task attempt, what it used, and how the use went over its life.

use smtt_model::protocol::ListQuery;
use smtt_model::rows::{
    FunctionsRow, HelperRow, Listing, OnCpuRow, Series, SplitsRow, TaskRow, UsedRow,
};
use smtt_model::units;

use super::args::Filters;
use super::{Exit, Failure, Output, earlier};
use crate::client::Client;
use crate::table::cut;

/// Bars of eight heights, from nothing to the largest part.
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Columns of a heading.
const HEADING: usize = 17;

/// How a series is written.
#[derive(Clone, Copy)]
enum Form {
    Duration,
    Bytes,
    Count,
}

impl Form {
    fn text(self, value: u64) -> String {
        match self {
            Self::Duration => units::duration(value),
            Self::Bytes => units::bytes(value),
            Self::Count => units::count(value),
        }
    }
}

/// The series in their order: field, heading, form.
const SERIES: [(&str, &str, Form); 9] = [
    ("wall_ns", "time", Form::Duration),
    ("cpu_ns", "CPU", Form::Duration),
    ("heap_allocated_bytes", "heap allocated", Form::Bytes),
    ("thread_page_faults", "page faults", Form::Count),
    ("page_walk_samples", "walk samples", Form::Count),
    ("call_read_bytes", "read", Form::Bytes),
    ("execution_memory_bytes", "execution memory", Form::Bytes),
    ("resident_bytes", "process resident", Form::Bytes),
    ("virtual_bytes", "process virtual", Form::Bytes),
];

/// Requests one task attempt and prints it.
pub(super) async fn run(
    client: &Client,
    output: Output,
    filter: &Filters,
    id: u64,
) -> Result<Exit, Failure> {
    let question = ListQuery {
        task: Some(id),
        ..filter.question()
    };
    let listing: Listing<TaskRow> = earlier::ask(client, "/v1/tasks", &question, None).await?;
    if output.is_data() {
        output.data(&listing.rows)?;
    } else {
        let texts: Vec<String> = listing
            .rows
            .iter()
            .map(|row| text(row, output.width.unwrap_or(usize::MAX)))
            .collect();
        output.text(&texts.join("\n"))?;
    }
    if listing.rows.is_empty() {
        return Err(Failure::Nothing(format!(
            "no task attempt {id} on this worker: smtt-ctl tasks lists them"
        )));
    }
    Ok(Exit::Fine)
}

/// What no activity covers.
const REST: &str = "outside the spans (user code, framework)";
const REST_WIDTH: usize = REST.len();

/// One task as text, in lines of at most `width` columns.
fn text(row: &TaskRow, width: usize) -> String {
    let mut lines = Vec::new();
    let known = |word: &Option<String>| word.clone().unwrap_or_else(|| "-".to_owned());
    let number = |value: Option<u32>| value.map_or("-".to_owned(), |value| value.to_string());
    lines.push(format!(
        "task {} of {}, executor {}{}",
        row.task_attempt_id
            .map_or("-".to_owned(), |id| id.to_string()),
        known(&row.who.application().label()),
        known(&row.who.executor_id),
        earlier::mark(row.who.earlier.as_ref()),
    ));
    let state = serde_json::to_value(row.state).unwrap_or_default();
    lines.push(format!(
        "stage {}.{}, partition {}, attempt {}: {}{}",
        number(row.stage_id),
        number(row.stage_attempt),
        number(row.partition),
        number(row.attempt_number),
        state.as_str().unwrap_or("unknown"),
        row.duration_ns
            .map_or_else(String::new, |time| format!(", {}", units::duration(time))),
    ));
    if let Some(reason) = &row.reason {
        lines.push(reason.lines().next().unwrap_or_default().to_owned());
    }
    match &row.splits {
        Some(splits) => lines.extend(splits_lines(splits, row)),
        None => lines.push("what it used is not known: docs/TASKS.md says when".to_owned()),
    }
    if let Some(splits) = &row.splits_by_input {
        lines.extend(splits_lines(splits, row));
    }
    lines.extend(touched_line(&row.used));
    lines.extend(spark_line(&row.used));
    if let Some(functions) = &row.functions {
        lines.extend(functions_lines(functions));
    }
    if !row.helpers.is_empty() {
        lines.extend([
            String::new(),
            "helpers, in none of the figures above".to_owned(),
        ]);
        lines.extend(row.helpers.iter().map(helper_line));
    }
    let cut_lines = lines.iter().map(|line| cut(line, width) + "\n");
    cut_lines.collect()
}

/// Pages that were not present before the task touched them.
fn touched_line(used: &UsedRow) -> Option<String> {
    let all = units::bytes(used.touched_bytes?);
    let parts = used.touched_heap_bytes.zip(used.touched_native_bytes);
    let parts = parts.map_or_else(String::new, |(heap, native)| {
        let [heap, native] = [heap, native].map(units::bytes);
        format!(": {heap} of the heap, {native} of other memory")
    });
    Some(format!("touched {all} of memory first{parts}"))
}

/// Spark's own times of the task, to compare.
fn spark_line(used: &UsedRow) -> Option<String> {
    let time = |value: Option<u64>| value.map(units::duration);
    Some(format!(
        "Spark counts: CPU {}, and {} to deserialise; run time {}; collections {}",
        time(used.spark_cpu_ns)?,
        time(used.spark_deserialize_cpu_ns)?,
        time(used.spark_run_ns)?,
        time(used.spark_collection_ns)?,
    ))
}

/// The time of each activity; with the rest they are the duration.
fn functions_lines(functions: &FunctionsRow) -> Vec<String> {
    let duration = functions.duration_ns;
    let line = |name: &str, spans: &str, ns: u64| {
        let share = ns as f64 * 100.0 / duration.max(1) as f64;
        let time = units::duration(ns);
        format!("{name:REST_WIDTH$}  {spans:>8}  {time:>10}  {share:>5.1} %")
    };
    let mut lines = vec![
        String::new(),
        format!("{:REST_WIDTH$}  {:>8}  {:>10}", "", "SPANS", "TIME"),
    ];
    let activities = functions.activities.iter();
    lines.extend(activities.map(|it| line(&it.activity, &units::count(it.spans), it.own_ns)));
    if let Some(rest_ns) = functions.rest_ns {
        lines.push(line(REST, "", rest_ns));
    }
    if let Some(fetched) = functions.fetched {
        lines.push(format!(
            "fetched {} in {} blocks from other executors, with {} requests",
            units::bytes(fetched.bytes),
            units::count(fetched.arrived_blocks),
            units::count(fetched.requests),
        ));
    }
    if let Some(paused) = functions.paused {
        lines.push(format!(
            "pauses of the collector: {}, together {}",
            units::count(paused.pauses),
            units::duration(paused.paused_ns),
        ));
    }
    if let Some(on_cpu) = &functions.on_cpu {
        lines.extend(on_cpu_lines(on_cpu));
    }
    lines
}

/// What was sampled on CPUs, by activity.
fn on_cpu_lines(on_cpu: &OnCpuRow) -> Vec<String> {
    let title = format!("ON CPUS, {}", on_cpu.event);
    let mut lines = vec![
        String::new(),
        format!("{title:REST_WIDTH$}  {:>8}  {:>10}", "SAMPLES", "SHARE"),
    ];
    lines.extend(on_cpu.activities.iter().map(|it| {
        let percent = |share: f64| share * 100.0;
        format!(
            "{:REST_WIDTH$}  {:>8}  {:>8.1} %  ({:.1} to {:.1})",
            it.activity,
            units::count(it.samples),
            percent(it.share),
            percent(it.share_low),
            percent(it.share_high),
        )
    }));
    lines
}

fn helper_line(helper: &HelperRow) -> String {
    let used = &helper.used;
    let text =
        |value: Option<u64>, form: Form| value.map_or("-".to_owned(), |value| form.text(value));
    let faults = used.thread_minor_faults.zip(used.thread_major_faults);
    let name = match helper.threads {
        1 => helper.name.clone(),
        threads => format!("{} x{threads}", helper.name),
    };
    let pids: Vec<String> = helper.pids.iter().map(u32::to_string).collect();
    let pids = match pids.is_empty() {
        true => String::new(),
        false => format!(", pid {}", pids.join(" ")),
    };
    let partial = match helper.partial_threads {
        0 => "",
        _ => ", partial",
    };
    format!(
        "{name:HEADING$}  CPU {}, wait {}, heap allocated {}, page faults {}{pids}{partial}",
        text(used.cpu_ns, Form::Duration),
        text(used.cpu_wait_ns, Form::Duration),
        text(used.heap_allocated_bytes, Form::Bytes),
        text(
            faults.map(|(minor, major)| minor.saturating_add(major)),
            Form::Count
        ),
    )
}

fn splits_lines(splits: &SplitsRow, row: &TaskRow) -> Vec<String> {
    let until = row.used_until.as_deref().unwrap_or("-");
    let mut lines = vec![
        String::new(),
        format!(
            "{} parts of equal {}, {} readings, until {until}",
            splits.interpolated.len(),
            splits.progress_by,
            splits.measured_points,
        ),
        format!(
            "{:HEADING$}  {:12}  {:>10}  {:>10}  {:>10}",
            "", "", "TOTAL", "LEAST", "MOST"
        ),
    ];
    for (field, heading, form) in SERIES {
        if let Some(series) = splits.series.get(field) {
            lines.push(series_line(heading, series, form));
        }
    }
    let marks = splits.interpolated.iter();
    let marks: String = marks.map(|part| if *part { '.' } else { '^' }).collect();
    lines.push(format!(
        "{:HEADING$}  {marks}  ^ read within, . interpolated",
        ""
    ));
    lines
}

fn series_line(heading: &str, series: &Series, form: Form) -> String {
    let most = series.parts.iter().copied().max().unwrap_or(0);
    let least = series.parts.iter().copied().min().unwrap_or(0);
    let total = series
        .total
        .map_or("-".to_owned(), |total| form.text(total));
    format!(
        "{heading:HEADING$}  {:12}  {total:>10}  {:>10}  {:>10}",
        sparkline(&series.parts),
        form.text(least),
        form.text(most),
    )
}

/// A bar for each part. A part that is not zero has a bar.
fn sparkline(parts: &[u64]) -> String {
    let most = u128::from(parts.iter().copied().max().unwrap_or(0));
    let bar = |part: &u64| match u128::from(*part) {
        0 => BARS[0],
        part => BARS[((part * 8).div_ceil(most) as usize).clamp(1, 8)],
    };
    parts.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use smtt_model::rows::{ActivityRow, FetchedRow, PausedRow, SampledActivityRow};

    use super::*;

    #[test]
    fn bars_are_in_proportion_to_the_largest_part() {
        assert_eq!(sparkline(&[0, 1, 50, 100, 99]), " ▁▄██");
        assert_eq!(sparkline(&[0, 0]), "  ");
        assert_eq!(sparkline(&[u64::MAX, u64::MAX / 2]), "█▄");
    }

    #[test]
    fn a_task_fits_a_terminal_of_80_columns() {
        let series = |value: u64, total| Series {
            parts: (0..12).map(|part| part * value).collect(),
            total,
            measured_points: 9,
        };
        let mut splits = SplitsRow {
            progress_by: "time".to_owned(),
            measured_points: 9,
            interpolated: (0..12).map(|part| part % 3 == 0).collect(),
            ..SplitsRow::default()
        };
        for (field, ..) in SERIES {
            splits
                .series
                .insert(field.to_owned(), series(u64::MAX / 100, Some(u64::MAX)));
        }
        splits
            .series
            .insert("resident_bytes".to_owned(), series(7 << 20, None));
        let functions = FunctionsRow {
            duration_ns: 4_000_000,
            activities: vec![ActivityRow {
                activity: "sort".to_owned(),
                spans: 2,
                own_ns: 3_000_000,
            }],
            rest_ns: Some(1_000_000),
            fetched: Some(FetchedRow {
                requests: 2,
                arrived_blocks: 8,
                bytes: 3 << 20,
                ..FetchedRow::default()
            }),
            paused: Some(PausedRow {
                pauses: 3,
                paused_ns: 17_000_000,
                left_out: 0,
            }),
            on_cpu: Some(OnCpuRow {
                event: "cycles".to_owned(),
                samples: 200,
                activities: vec![SampledActivityRow {
                    activity: "insert".to_owned(),
                    samples: 200,
                    share: 1.0,
                    share_low: 0.981,
                    share_high: 1.0,
                }],
            }),
            ..FunctionsRow::default()
        };
        let row = TaskRow {
            functions: Some(functions),
            task_attempt_id: Some(u64::MAX),
            reason: Some(format!("{}\nat Main.java", "long ".repeat(40))),
            splits_by_input: Some(SplitsRow {
                progress_by: "input".to_owned(),
                ..splits.clone()
            }),
            splits: Some(splits),
            used: UsedRow {
                touched_bytes: Some(3 << 30),
                touched_heap_bytes: Some(1 << 30),
                touched_native_bytes: Some(2 << 30),
                ..UsedRow::default()
            },
            ..TaskRow::default()
        };
        let text = text(&row, 80);
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert!(text.contains(".^^.^^.^^.^^"), "{text}");
        for by in ["time", "input"] {
            assert!(text.contains(&format!("12 parts of equal {by}")), "{text}");
        }
        assert!(
            text.contains(" 75.0 %") && text.contains(" 25.0 %"),
            "{text}"
        );
        assert!(!text.contains("Main.java"));
        let first = "touched 3.0 GiB of memory first: 1.0 GiB of the heap, 2.0 GiB of other memory";
        assert!(text.contains(first), "{text}");
        let fetched = "fetched 3.0 MiB in 8 blocks from other executors, with 2 requests";
        assert!(text.contains(fetched), "{text}");
        let paused = "pauses of the collector: 3, together 17.0 ms";
        assert!(text.contains(paused), "{text}");
        assert!(text.contains("ON CPUS, cycles"), "{text}");
        assert!(text.contains("100.0 %  (98.1 to 100.0)"), "{text}");
        // No series is cut.
        assert_eq!(text.matches('…').count(), 1, "{text}");
    }
}
