//! Task attempts of an application: filtered, sorted by any column, page by page.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;

use maud::html;
use smtt_store::history::read::Reader;
use smtt_store::read::ParquetError;

use super::application::framed;
use super::place::quoted;
use super::shown::Cell;
use super::table::{Choice, Head, Request, form, rows};
use super::{Asked, Document};
use crate::serve::Refusal;
use crate::serve::routes::Parameters;
use crate::timeline::filter::Filter;
use crate::timeline::model::{LOCALITIES, Model, OUTCOMES, Task};
use crate::timeline::parts::{ALL, PARTS};

/// Columns before the parts.
const FIRST: [Head; 10] = [
    ("id", "Task"),
    ("stage", "Stage"),
    ("executor", "Executor"),
    ("host", "Host"),
    ("status", "Status"),
    ("locality", "Locality"),
    ("kind", "Kind"),
    ("launch", "Launched"),
    ("after", "After start"),
    ("duration", "Duration"),
];

/// A column that is read for the page only, or to sort by it: head, columns of the table whose sum it is, and unit.
type Stored = (Head, &'static [&'static str], fn(i64) -> Cell);

const STORED: [Stored; 7] = [
    (("input", "Input"), &["input_bytes"], Cell::Bytes),
    (("output", "Output"), &["output_bytes"], Cell::Bytes),
    (
        ("shuffle_read", "Shuffle read"),
        &["shuffle_remote_bytes", "shuffle_local_bytes"],
        Cell::Bytes,
    ),
    (
        ("shuffle_write", "Shuffle write"),
        &["shuffle_write_bytes"],
        Cell::Bytes,
    ),
    (
        ("spilled_memory", "Spilled, memory"),
        &["memory_spilled_bytes"],
        Cell::Bytes,
    ),
    (
        ("spilled_disk", "Spilled, disk"),
        &["disk_spilled_bytes"],
        Cell::Bytes,
    ),
    (
        ("peak", "Peak execution memory"),
        &["peak_execution_memory_bytes"],
        Cell::Bytes,
    ),
];

/// Begin and end of the window of the time line that the address names.
fn window(parameters: &Parameters) -> Result<(i64, i64), Refusal> {
    let number = |name: &str, default: i64| match parameters.one(name).unwrap_or_default() {
        "" => Ok(default),
        _ => parameters.number(name, default),
    };
    Ok((number("from", i64::MIN)?, number("to", i64::MAX)?))
}

/// Values of a stored column in rows that ascend.
fn stored(
    table: &Reader,
    names: &[&str],
    rows: &[std::ops::Range<u64>],
) -> Result<Vec<Option<i64>>, ParquetError> {
    let mut sums = table.numbers(names[0], rows)?;
    for name in &names[1..] {
        for (sum, more) in sums.iter_mut().zip(table.numbers(name, rows)?) {
            if let (Some(sum), Some(more)) = (sum.as_mut(), more) {
                *sum = sum.saturating_add(more);
            }
        }
    }
    Ok(sums)
}

fn is_measured(task: &Task) -> bool {
    task.parts.iter().any(|part| *part > 0)
}

/// Sorts tasks by a column; ties by launch.
fn sort(
    asked: &Asked<'_>,
    model: &Model,
    tasks: &mut [&Task],
    by: Option<&(String, bool)>,
) -> Result<(), Refusal> {
    tasks.sort_by_key(|task| (task.launch, task.id));
    let Some((column, down)) = by else {
        return Ok(());
    };
    let numbers = |tasks: &mut [&Task], key: &dyn Fn(&Task) -> Option<i64>| {
        // Absent values are last in both orders.
        if *down {
            tasks.sort_by_key(|task| (key(task).is_none(), Reverse(key(task))));
        } else {
            tasks.sort_by_key(|task| (key(task).is_none(), key(task)));
        }
    };
    let executor = |task: &Task| i64::from(model.lanes[task.lane as usize].executor);
    let texts = |tasks: &mut [&Task], key: &dyn Fn(&Task) -> String| {
        tasks.sort_by_cached_key(|task| key(task));
        if *down {
            tasks.reverse();
        }
    };
    if let Some(part) = ALL.iter().position(|part| part.key == column) {
        let value = |task: &Task| is_measured(task).then(|| i64::from(task.parts[part]));
        numbers(tasks, &value);
        return Ok(());
    }
    if let Some((_, names, _)) = STORED.iter().find(|((key, _), _, _)| key == column) {
        let table = asked.app.tasks().map_err(Refusal::failed)?;
        let values = stored(&table, names, &[0..table.rows()]).map_err(Refusal::failed)?;
        numbers(tasks, &|task| {
            values.get(task.row as usize).copied().flatten()
        });
        return Ok(());
    }
    match column.as_str() {
        "id" => numbers(tasks, &|task| Some(task.id)),
        "stage" => numbers(tasks, &|task| {
            let (id, attempt) = model.stages[task.stage as usize].key;
            Some(i64::from(id) << 32 | i64::from(attempt))
        }),
        "executor" => numbers(tasks, &|task| Some(executor(task))),
        "host" => texts(tasks, &|task| model.executor(task).host.clone()),
        "status" => texts(tasks, &|task| {
            OUTCOMES[usize::from(task.outcome)].to_owned()
        }),
        "locality" => numbers(tasks, &|task| Some(i64::from(task.locality))),
        "kind" => numbers(tasks, &|task| {
            let critical = i64::from(model.is_critical(task)) * 4;
            Some(critical + i64::from(task.straggler) * 2 + i64::from(task.speculative))
        }),
        "launch" | "after" => numbers(tasks, &|task| Some(task.launch)),
        "duration" => numbers(tasks, &|task| Some(i64::from(task.duration))),
        _ => return Err(Refusal::bad(format!("the table has no column {column}"))),
    }
    Ok(())
}

fn kind(model: &Model, task: &Task) -> Cell {
    let all = [
        (model.is_critical(task), "critical"),
        (task.straggler, "straggler"),
        (task.speculative, "speculative"),
    ];
    let all: Vec<&str> = all.iter().filter(|it| it.0).map(|it| it.1).collect();
    if all.is_empty() {
        Cell::Absent
    } else {
        Cell::Text(all.join(", "))
    }
}

pub(super) fn page(asked: &Asked<'_>) -> Document {
    let request = Request::new(asked.parameters)?;
    let filter = Filter::new(asked.parameters)?;
    let executor = request.value("executor").trim();
    let window = window(asked.parameters)?;
    let model = asked.server.timeline(asked.app)?;
    let all = model.tasks.iter().filter(|task| {
        filter.has(&model, task)
            && (executor.is_empty() || model.executor(task).id == executor)
            && task.end() >= window.0
            && task.launch <= window.1
    });
    let mut all: Vec<&Task> = all.collect();
    sort(asked, &model, &mut all, request.sort.as_ref())?;
    let total = all.len();
    let shown = &all[request.page(total)];
    let cells = page_of(asked, &model, shown).map_err(Refusal::failed)?;
    let heads: Vec<Head> = FIRST
        .into_iter()
        .chain(ALL.iter().map(|part| (part.key, part.title)))
        .chain(STORED.iter().map(|(head, _, _)| *head))
        .collect();
    let choice = |name, title, values| Choice {
        name,
        title,
        values,
    };
    let choices = [
        choice("stage", "Stage", &[][..]),
        choice("executor", "Executor", &[]),
        choice("host", "Host", &[]),
        choice("status", "Status", &OUTCOMES[..4]),
        choice("locality", "Locality", &LOCALITIES[..5]),
        choice("longer", "At least (ms)", &[]),
        choice("straggler", "Straggler", &["yes", "no"]),
        choice("speculative", "Speculative", &["yes", "no"]),
        choice("critical", "Critical", &["yes", "no"]),
    ];
    let has_window = ["from", "to"]
        .iter()
        .any(|name| !request.value(name).is_empty());
    let body = html! {
        (form(&request, "", &choices))
        @if has_window {
            p {
                "Tasks within a window of the time line. "
                a href=(asked.place.part("tasks")) { "All tasks" }
            }
        }
        @if model.left_out > 0 {
            p.finding { (model.left_out) " tasks more are only in the REST API: a page has the first "
                (model.tasks.len()) " of the table." }
        }
        (rows(&request, "tasks", "Task attempts", &heads, total, &cells))
    };
    Ok(framed(asked, "tasks", "Tasks", &body))
}

/// Rows of a page: what the model has, and what is read for these tasks.
fn page_of(
    asked: &Asked<'_>,
    model: &Model,
    shown: &[&Task],
) -> Result<Vec<Vec<Cell>>, ParquetError> {
    let mut sorted: Vec<u64> = shown.iter().map(|task| u64::from(task.row)).collect();
    sorted.sort_unstable();
    sorted.dedup();
    let ranges: Vec<std::ops::Range<u64>> = sorted.iter().map(|row| *row..row + 1).collect();
    let table = asked.app.tasks()?;
    let columns: Vec<Vec<Option<i64>>> = STORED
        .iter()
        .map(|(_, names, _)| stored(&table, names, &ranges))
        .collect::<Result<_, _>>()?;
    let place = asked.place;
    let row = |task: &&Task| {
        let executor = model.executor(task);
        let (stage, attempt) = model.stages[task.stage as usize].key;
        let to_stage = place.part(&format!("stages/{stage}/{attempt}"));
        let at = sorted
            .binary_search(&u64::from(task.row))
            .unwrap_or_default();
        let first = [
            Cell::Id(task.id, Some(place.part(&format!("tasks/{}", task.id)))),
            if attempt == 0 {
                Cell::Id(i64::from(stage), Some(to_stage))
            } else {
                Cell::Link(format!("{stage}.{attempt}"), to_stage)
            },
            Cell::Link(
                executor.id.clone(),
                format!("{}?executor={}", place.part("tasks"), quoted(&executor.id)),
            ),
            Cell::Text(executor.host.clone()),
            Cell::Status(OUTCOMES[usize::from(task.outcome)].to_owned()),
            Cell::Text(LOCALITIES[usize::from(task.locality)].to_owned()),
            kind(model, task),
            Cell::Time(model.start.saturating_add(task.launch)),
            Cell::Duration(task.launch),
            Cell::Duration(i64::from(task.duration)),
        ];
        let parts = (0..PARTS).map(|part| {
            if is_measured(task) {
                Cell::Duration(i64::from(task.parts[part]))
            } else {
                Cell::Absent
            }
        });
        let stored = STORED.iter().zip(&columns);
        let stored = stored.map(|((_, _, of), values)| values[at].map_or(Cell::Absent, of));
        first.into_iter().chain(parts).chain(stored).collect()
    };
    Ok(shown.iter().map(row).collect())
}
