//! Distributions of metrics over a stage's tasks and over its executors, by Spark's rule: the value at `quantile * count`
//! of the sorted values.

use serde_json::{Map, Value, json};
use smtt_store::history::columns::{FIRST_METRIC, TASKS};
use smtt_store::read::ParquetError;

use super::tasks::delay;
use crate::event::metrics::at;
use crate::json::object;
use crate::open::App;

/// Values at the quantiles.
fn pick(mut values: Vec<i64>, quantiles: &[f64]) -> Value {
    values.sort_unstable();
    let last = values.len().saturating_sub(1);
    quantiles
        .iter()
        .map(|quantile| {
            let at = ((quantile * values.len() as f64) as usize).min(last);
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
    let counted: Vec<bool> = statuses
        .iter()
        .zip(measured)
        .map(|(status, measured)| status.as_deref() == Some("SUCCESS") && measured == Some(1))
        .collect();
    if !counted.contains(&true) {
        return Ok(None);
    }
    // One column at a time: a stage may have a million tasks.
    let column = |name: &str| -> Result<Vec<i64>, ParquetError> {
        let values = tasks.numbers(name, &ranges)?.into_iter().zip(&counted);
        Ok(values
            .filter(|(_, counted)| **counted)
            .map(|(value, _)| value.unwrap_or_default())
            .collect())
    };
    let metric = |at: usize| column(TASKS.columns[FIRST_METRIC + at].name);
    let of = |at: usize| Ok::<_, ParquetError>(pick(metric(at)?, quantiles));
    let sum = |left: usize, right: usize| {
        let both = metric(left)?.into_iter().zip(metric(right)?);
        let sums = both.map(|(left, right)| left.wrapping_add(right)).collect();
        Ok::<_, ParquetError>(pick(sums, quantiles))
    };
    let (launches, durations, fetches) = (
        column("launch_time")?,
        column("duration_ms")?,
        column("getting_result_time")?,
    );
    let getting: Vec<i64> = (0..launches.len())
        .map(|row| match fetches[row] {
            ..=0 => 0,
            fetch => launches[row].wrapping_add(durations[row]).wrapping_sub(fetch),
        })
        .collect();
    let (run, deserialize, serialize) =
        (metric(at::RUN)?, metric(at::DESERIALIZE)?, metric(at::SERIALIZE)?);
    let delays = (0..launches.len())
        .map(|row| delay(durations[row], getting[row], run[row], deserialize[row], serialize[row]))
        .collect();
    Ok(Some(json!({
        "quantiles": quantiles,
        "duration": pick(durations.clone(), quantiles),
        "executorDeserializeTime": of(0)?,
        "executorDeserializeCpuTime": of(1)?,
        "executorRunTime": of(2)?,
        "executorCpuTime": of(3)?,
        "resultSize": of(4)?,
        "jvmGcTime": of(5)?,
        "resultSerializationTime": of(6)?,
        "gettingResultTime": pick(getting, quantiles),
        "schedulerDelay": pick(delays, quantiles),
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
pub(super) fn executor_distributions(summaries: &Value, quantiles: &[f64]) -> Value {
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
    let none = Map::new();
    let summaries = summaries.as_object().unwrap_or(&none);
    let values = |of: &dyn Fn(&Value) -> Option<i64>| {
        pick(summaries.values().filter_map(of).collect(), quantiles)
    };
    let fields = FIELDS.iter().map(|&field| (field, values(&|summary| summary[field].as_i64())));
    let peaks = smtt_store::history::columns::PEAKS.iter().map(|&(_, name)| {
        let value = |summary: &Value| Some(summary["peakMemoryMetrics"][name].as_i64().unwrap_or(0));
        (name, values(&value))
    });
    object(
        std::iter::once(("quantiles", json!(quantiles)))
            .chain(fields)
            .chain(std::iter::once(("peakMemoryMetrics", object(peaks)))),
    )
}
