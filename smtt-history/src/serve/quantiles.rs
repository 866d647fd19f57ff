//! Distributions of metrics over a stage's tasks and over its executors, by Spark's rule: the value at `quantile * count`
//! of the sorted values.

use serde_json::{Map, Value, json};
use smtt_store::history::columns::{FIRST_METRIC, TASKS};
use smtt_store::read::ParquetError;

use super::tasks::delay;
use crate::event::metrics::at;
use crate::json::object;
use crate::open::App;

/// Values at the quantiles of `count` values.
fn pick(mut values: Vec<i64>, count: usize, quantiles: &[f64]) -> Value {
    values.sort_unstable();
    let last = count.saturating_sub(1);
    quantiles
        .iter()
        .map(|quantile| {
            let at = ((quantile * count as f64) as usize).min(last);
            json!(values.get(at).copied().unwrap_or_default() as f64)
        })
        .collect()
}

/// Distributions over a stage's successful tasks; `None` where there is none with metrics.
pub(super) fn task_distributions(
    app: &App,
    stage: (i32, i32),
    quantiles: &[f64],
) -> Result<Option<Value>, ParquetError> {
    let tasks = app.tasks()?;
    let ranges = app.rows(&tasks, stage)?;
    let statuses = tasks.texts("status", &ranges)?;
    let measured = tasks.numbers("has_metrics", &ranges)?;
    let has_metrics: Vec<bool> = measured
        .iter()
        .map(|measured| *measured == Some(1))
        .collect();
    let counted: Vec<bool> = statuses
        .iter()
        .zip(&has_metrics)
        .map(|(status, has)| *has && status.as_deref() == Some("SUCCESS"))
        .collect();
    let count = counted.iter().filter(|counted| **counted).count();
    if count == 0 {
        return Ok(None);
    }
    // One column at a time: a stage may have a million tasks.
    let column = |name: &str, rows: &[bool]| -> Result<Vec<i64>, ParquetError> {
        let values = tasks.numbers(name, &ranges)?.into_iter().zip(rows);
        Ok(values
            .filter(|(_, counted)| **counted)
            .map(|(value, _)| value.unwrap_or_default())
            .collect())
    };
    let metric = |at: usize, rows| column(TASKS.columns[FIRST_METRIC + at].name, rows);
    let of = |at: usize| Ok::<_, ParquetError>(pick(metric(at, &counted)?, count, quantiles));
    let sum = |left: usize, right: usize| {
        let both = metric(left, &counted)?
            .into_iter()
            .zip(metric(right, &counted)?);
        let sums = both.map(|(left, right)| left.wrapping_add(right)).collect();
        Ok::<_, ParquetError>(pick(sums, count, quantiles))
    };
    // What Spark computes from times it sorts over all tasks, also unsuccessful ones, and still picks by the number of
    // successful ones.
    let (launches, durations, fetches) = (
        column("launch_time", &has_metrics)?,
        column("duration_ms", &has_metrics)?,
        column("getting_result_time", &has_metrics)?,
    );
    let getting: Vec<i64> = (0..launches.len())
        .map(|row| match fetches[row] {
            ..=0 => 0,
            fetch => launches[row]
                .wrapping_add(durations[row])
                .wrapping_sub(fetch),
        })
        .collect();
    let (run, deserialize, serialize) = (
        metric(at::RUN, &has_metrics)?,
        metric(at::DESERIALIZE, &has_metrics)?,
        metric(at::SERIALIZE, &has_metrics)?,
    );
    let delays = (0..launches.len())
        .map(|row| {
            delay(
                durations[row],
                getting[row],
                run[row],
                deserialize[row],
                serialize[row],
            )
        })
        .collect();
    let all = tasks.numbers("duration_ms", &ranges)?.into_iter().flatten();
    let all = all.filter(|duration| *duration >= 0).collect();
    Ok(Some(json!({
        "quantiles": quantiles,
        "duration": pick(all, count, quantiles),
        "executorDeserializeTime": of(0)?,
        "executorDeserializeCpuTime": of(1)?,
        "executorRunTime": of(2)?,
        "executorCpuTime": of(3)?,
        "resultSize": of(4)?,
        "jvmGcTime": of(5)?,
        "resultSerializationTime": of(6)?,
        "gettingResultTime": pick(getting, count, quantiles),
        "schedulerDelay": pick(delays, count, quantiles),
        "peakExecutionMemory": of(9)?,
        "memoryBytesSpilled": of(7)?,
        "diskBytesSpilled": of(8)?,
        "inputMetrics": {"bytesRead": of(10)?, "recordsRead": of(11)?},
        "outputMetrics": {"bytesWritten": of(12)?, "recordsWritten": of(13)?},
        "shuffleReadMetrics": {
            "readBytes": sum(at::LOCAL_BYTES, at::REMOTE_BYTES)?,
            "readRecords": of(20)?,
            "remoteBlocksFetched": of(14)?,
            "localBlocksFetched": of(15)?,
            "fetchWaitTime": of(16)?,
            "remoteBytesRead": of(17)?,
            "remoteBytesReadToDisk": of(18)?,
            "totalBlocksFetched": sum(at::LOCAL_BLOCKS, at::REMOTE_BLOCKS)?,
            "remoteReqsDuration": of(21)?,
            "shufflePushReadMetricsDist": {
                "corruptMergedBlockChunks": of(22)?,
                "mergedFetchFallbackCount": of(23)?,
                "remoteMergedBlocksFetched": of(24)?,
                "localMergedBlocksFetched": of(25)?,
                "remoteMergedChunksFetched": of(26)?,
                "localMergedChunksFetched": of(27)?,
                "remoteMergedBytesRead": of(28)?,
                "localMergedBytesRead": of(29)?,
                "remoteMergedReqsDuration": of(30)?,
            },
        },
        "shuffleWriteMetrics": {
            "writeBytes": of(31)?,
            "writeRecords": of(33)?,
            "writeTime": of(32)?,
        },
    })))
}

/// Distributions over a stage's executors.
pub(super) fn executor_distributions(summaries: &Map<String, Value>, quantiles: &[f64]) -> Value {
    const FIELDS: [&str; 14] = [
        "taskTime",
        "failedTasks",
        "succeededTasks",
        "killedTasks",
        "inputBytes",
        "inputRecords",
        "outputBytes",
        "outputRecords",
        "shuffleRead",
        "shuffleReadRecords",
        "shuffleWrite",
        "shuffleWriteRecords",
        "memoryBytesSpilled",
        "diskBytesSpilled",
    ];
    let values = |of: &dyn Fn(&Value) -> Option<i64>| {
        let values: Vec<i64> = summaries.values().filter_map(of).collect();
        let count = values.len();
        pick(values, count, quantiles)
    };
    let fields = FIELDS
        .iter()
        .map(|&field| (field, values(&|summary| summary[field].as_i64())));
    // An older Spark knows fewer peaks. Where no executor has any, the list is the newest.
    let all = summaries
        .values()
        .map(|summary| &summary["peakMemoryMetrics"]);
    let none = all.clone().all(Value::is_null);
    let is_known = |name: &str| none || all.clone().any(|peaks| peaks.get(name).is_some());
    let peaks = smtt_store::history::columns::PEAKS
        .iter()
        .filter(|(_, name)| is_known(name))
        .map(|&(_, name)| {
            let value =
                |summary: &Value| Some(summary["peakMemoryMetrics"][name].as_i64().unwrap_or(0));
            (name, values(&value))
        });
    object(
        std::iter::once(("quantiles", json!(quantiles)))
            .chain(fields)
            .chain(std::iter::once(("peakMemoryMetrics", object(peaks)))),
    )
}
