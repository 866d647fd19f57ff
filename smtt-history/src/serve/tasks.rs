//! Task attempts of a stage: a page of them, sorted. Only the page's rows are read whole.

use std::ops::Range;

use serde_json::{Value, json};
use smtt_store::history::columns::{FIRST_METRIC, METRICS, TASKS};
use smtt_store::history::read::{Reader, counted, within};
use smtt_store::read::ParquetError;

use super::Refusal;
use super::routes::{Answer, Parameters, known};
use crate::event::metrics::at;
use crate::json::{date, date_or_none, present};
use crate::open::App;
use crate::out::Kind;

/// Tasks of an answer at most.
const MOST: usize = 100_000;

/// Values of a task's status.
pub(super) const STATUSES: [&str; 5] = ["RUNNING", "KILLED", "FAILED", "SUCCESS", "UNKNOWN"];

/// Status of a task that runs no more and whose result the driver fetches. As in Spark no list is of this status.
const FETCHED: &str = "GET RESULT";

pub(super) fn list(app: &App, id: &str, attempt: &str, parameters: &Parameters) -> Answer {
    let Some(stage) = key(id, attempt) else {
        return Err(Refusal::not_found(format!("unknown stage: {id}")));
    };
    let size = |number: i64| usize::try_from(number).unwrap_or(0);
    let offset = size(parameters.number("offset", 0)?);
    let length = size(parameters.number("length", 20)?).min(MOST);
    let sort = parameters.one("sortBy").unwrap_or("ID");
    let order = match sort.to_ascii_uppercase().as_str() {
        "ID" => None,
        "INCREASING_RUNTIME" | "RUNTIME" | "+RUNTIME" | " RUNTIME" => Some(false),
        "DECREASING_RUNTIME" | "-RUNTIME" => Some(true),
        _ => return Err(Refusal::not_found(format!("unknown order: {sort}"))),
    };
    let statuses = known(parameters, "status", &STATUSES)?;
    let tasks = app.tasks().map_err(Refusal::failed)?;
    let selection = Selection {
        statuses: &statuses,
        order,
        offset,
        length,
    };
    let page = positions(app, &tasks, stage, &selection);
    let page = page.and_then(|page| read(app, &tasks, &page));
    Ok(Value::from(page.map_err(Refusal::failed)?).to_string())
}

/// Stage and attempt of a path.
pub(super) fn key(id: &str, attempt: &str) -> Option<(i32, i32)> {
    Some((id.parse().ok()?, attempt.parse().ok()?))
}

/// Which tasks of a stage are asked for: statuses (none: all), order (by id, or by run time; `Some(true)`: the longest
/// first), and the part of that order.
pub(super) struct Selection<'a> {
    pub(super) statuses: &'a [&'a str],
    pub(super) order: Option<bool>,
    pub(super) offset: usize,
    pub(super) length: usize,
}

/// What a task is sorted by: its run time or nothing, its id, and its row.
type Key = (i64, i64, u64);

/// Rows of the tasks that are asked for, in their order.
pub(super) fn positions(
    app: &App,
    tasks: &Reader,
    stage: (i32, i32),
    selection: &Selection<'_>,
) -> Result<Vec<u64>, ParquetError> {
    let ranges = app.rows(tasks, stage)?;
    ordered(tasks, &ranges, selection)
}

/// The rows of ascending, disjoint ranges that are asked for, in their order. Only what they are chosen by is read, of one row
/// group at a time, and of each only once: stages that alternate have a range for each task.
fn ordered(
    tasks: &Reader,
    ranges: &[Range<u64>],
    selection: &Selection<'_>,
) -> Result<Vec<u64>, ParquetError> {
    // Each row has a key in memory.
    counted(ranges)?;
    let (mut keys, mut start) = (Vec::new(), 0);
    for count in tasks.groups() {
        let end = start + count;
        let here: Vec<Range<u64>> = within(ranges, start..end).collect();
        if !here.is_empty() {
            add(tasks, &here, selection, &mut keys)?;
        }
        start = end;
    }
    let page = page(&mut keys, selection.offset, selection.length);
    Ok(page.iter().map(|key| key.2).collect())
}

/// Adds the keys of ranges of rows.
fn add(
    tasks: &Reader,
    ranges: &[Range<u64>],
    selection: &Selection<'_>,
    keys: &mut Vec<Key>,
) -> Result<(), ParquetError> {
    let ids = tasks.numbers("task_id", ranges)?;
    let (statuses, order) = (selection.statuses, selection.order);
    let times = match order {
        Some(_) => tasks.numbers("executor_run_time_ms", ranges)?,
        None => Vec::new(),
    };
    // Whether a task succeeded, and whether its status is asked for.
    let of = |status: &[u8]| {
        let is = |wanted: &&str| wanted.as_bytes().eq_ignore_ascii_case(status);
        (
            status == b"SUCCESS",
            statuses.is_empty() || statuses.iter().any(is),
        )
    };
    let states = if order.is_some() || !statuses.is_empty() {
        tasks.texts_as("status", ranges, &of)?
    } else {
        Vec::new()
    };
    // Tasks whose result is fetched are not among those that run.
    let is_fetched: Vec<bool> = if statuses.contains(&"RUNNING") {
        let fetches = tasks.numbers("getting_result_time", ranges)?;
        let durations = tasks.numbers("duration_ms", ranges)?;
        let both = fetches.into_iter().zip(durations);
        both.map(|(fetch, duration)| fetch > Some(0) && duration.is_none())
            .collect()
    } else {
        Vec::new()
    };
    // Spark's index has unsuccessful tasks below the others: minus their time, minus one.
    let time = |row: usize, succeeded: bool| match times[row] {
        None => -1,
        Some(time) if succeeded => time,
        Some(time) => time.wrapping_neg().wrapping_sub(1),
    };
    let places = ranges.iter().cloned().flatten();
    for ((row, id), place) in ids.into_iter().enumerate().zip(places) {
        let state = states.get(row).copied().flatten();
        let (succeeded, is_wanted) = state.unwrap_or((false, statuses.is_empty()));
        if !is_wanted || is_fetched.get(row) == Some(&true) {
            continue;
        }
        let time = match order {
            None => 0,
            Some(false) => time(row, succeeded),
            // The complement orders the other way round.
            Some(true) => !time(row, succeeded),
        };
        keys.push((time, id.unwrap_or(i64::MIN), place));
    }
    Ok(())
}

/// A part of the keys in their order. Only that part is sorted: a stage may have a million tasks.
fn page(keys: &mut [Key], offset: usize, length: usize) -> &[Key] {
    if offset >= keys.len() || length == 0 {
        return &[];
    }
    if offset > 0 {
        keys.select_nth_unstable(offset);
    }
    let rest = &mut keys[offset..];
    if length < rest.len() {
        rest.select_nth_unstable(length);
    }
    let length = length.min(rest.len());
    let page = &mut rest[..length];
    page.sort_unstable();
    page
}

/// Tasks of rows, as the REST API shows them, in the order of `page`.
pub(crate) fn read(app: &App, tasks: &Reader, page: &[u64]) -> Result<Vec<Value>, ParquetError> {
    let mut sorted: Vec<u64> = page.to_vec();
    sorted.sort_unstable();
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for &row in &sorted {
        match ranges.last_mut() {
            Some(range) if range.end == row => range.end += 1,
            _ => ranges.push(row..row + 1),
        }
    }
    let numbers = |name: &str| tasks.numbers(name, &ranges);
    let texts = |name: &str| tasks.texts(name, &ranges);
    let (ids, indices, attempts, partitions) = (
        numbers("task_id")?,
        numbers("task_index")?,
        numbers("attempt")?,
        numbers("partition")?,
    );
    let (launches, durations, fetches, speculative) = (
        numbers("launch_time")?,
        numbers("duration_ms")?,
        numbers("getting_result_time")?,
        numbers("speculative")?,
    );
    let (executors, hosts, statuses, localities) = (
        texts("executor_id")?,
        texts("host")?,
        texts("status")?,
        texts("locality")?,
    );
    let (errors, accumulators, measured) = (
        texts("error")?,
        texts("accumulators")?,
        numbers("has_metrics")?,
    );
    let metrics: Vec<Vec<Option<i64>>> = TASKS.columns[FIRST_METRIC..FIRST_METRIC + METRICS]
        .iter()
        .map(|column| numbers(column.name))
        .collect::<Result<_, _>>()?;
    let last = last_updated(app);
    let logs = app.executor_logs();
    let task = |row: usize| {
        let value = |metric: usize| metrics[metric][row].unwrap_or_default();
        let launch = launches[row].unwrap_or_default();
        let is_running = durations[row].is_none();
        let duration = durations[row].unwrap_or_else(|| last.wrapping_sub(launch));
        let duration = (duration > 0).then_some(duration);
        let has_metrics = measured[row] == Some(1);
        let fetch = fetches[row].filter(|time| *time > 0);
        let getting = fetch.map_or(0, |fetch| {
            launch
                .wrapping_add(duration.unwrap_or_default())
                .wrapping_sub(fetch)
        });
        let delay = duration
            .filter(|_| has_metrics && !is_running)
            .map_or(0, |duration| {
                delay(
                    duration,
                    getting,
                    value(at::RUN),
                    value(at::DESERIALIZE),
                    value(at::SERIALIZE),
                )
            });
        let accumulators = accumulators[row].as_deref().unwrap_or("[]");
        let executor = executors[row].as_deref().unwrap_or_default();
        present(json!({
            "taskId": ids[row],
            "index": indices[row],
            "attempt": attempts[row],
            "partitionId": partitions[row].unwrap_or(-1),
            "launchTime": date(launch),
            "resultFetchStart": date_or_none(fetch),
            "duration": duration,
            "executorId": executor,
            "host": hosts[row],
            "status": if fetch.is_some() && is_running { Some(FETCHED) } else { statuses[row].as_deref() },
            "taskLocality": localities[row],
            "speculative": speculative[row] == Some(1),
            "accumulatorUpdates": serde_json::from_str::<Value>(accumulators).unwrap_or_default(),
            "errorMessage": errors[row],
            "taskMetrics": has_metrics.then(|| shown(&value)),
            "executorLogs": logs.get(executor).cloned().unwrap_or_else(|| json!({})),
            "schedulerDelay": delay,
            "gettingResultTime": getting,
        }))
    };
    Ok(page
        .iter()
        .filter_map(|row| sorted.binary_search(row).ok())
        .map(task)
        .collect())
}

/// Time that a task waited for its driver: what of its duration nothing else explains.
pub(super) fn delay(
    duration: i64,
    getting: i64,
    run: i64,
    deserialize: i64,
    serialize: i64,
) -> i64 {
    [getting, run, deserialize, serialize]
        .into_iter()
        .fold(duration, i64::wrapping_sub)
        .max(0)
}

fn last_updated(app: &App) -> i64 {
    let application = app.all(Kind::Application).first();
    application
        .and_then(|(_, text)| serde_json::from_str::<Value>(text).ok())
        .and_then(|json| json["attempts"][0]["lastUpdatedEpoch"].as_i64())
        .unwrap_or_default()
}

/// The metrics of a task, in the groups of the REST API.
fn shown(value: &dyn Fn(usize) -> i64) -> Value {
    json!({
        "executorDeserializeTime": value(0),
        "executorDeserializeCpuTime": value(1),
        "executorRunTime": value(2),
        "executorCpuTime": value(3),
        "resultSize": value(4),
        "jvmGcTime": value(5),
        "resultSerializationTime": value(6),
        "memoryBytesSpilled": value(7),
        "diskBytesSpilled": value(8),
        "peakExecutionMemory": value(9),
        "inputMetrics": {"bytesRead": value(10), "recordsRead": value(11)},
        "outputMetrics": {"bytesWritten": value(12), "recordsWritten": value(13)},
        "shuffleReadMetrics": {
            "remoteBlocksFetched": value(14),
            "localBlocksFetched": value(15),
            "fetchWaitTime": value(16),
            "remoteBytesRead": value(17),
            "remoteBytesReadToDisk": value(18),
            "localBytesRead": value(19),
            "recordsRead": value(20),
            "remoteReqsDuration": value(21),
            "shufflePushReadMetrics": {
                "corruptMergedBlockChunks": value(22),
                "mergedFetchFallbackCount": value(23),
                "remoteMergedBlocksFetched": value(24),
                "localMergedBlocksFetched": value(25),
                "remoteMergedChunksFetched": value(26),
                "localMergedChunksFetched": value(27),
                "remoteMergedBytesRead": value(28),
                "localMergedBytesRead": value(29),
                "remoteMergedReqsDuration": value(30),
            },
        },
        "shuffleWriteMetrics": {
            "bytesWritten": value(31),
            "writeTime": value(32),
            "recordsWritten": value(33),
        },
    })
}

#[cfg(test)]
mod tests;
