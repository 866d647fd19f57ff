//! An event log of an application that never ran: any number of tasks, with the events and names that a test or a
//! benchmark needs. Times follow from a schedule of stages, executors and cores, and from a fixed sequence of numbers, so
//! that two logs of one shape are equal.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// First millisecond of the application, since 1970.
pub const START: i64 = 1_790_000_000_000;
/// The application's id.
pub const ID: &str = "app-20260922000000-0001";
/// A name that is a script where a page does not escape it.
pub const HOSTILE: &str = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\u{202e}&amp;";

/// Size of an application.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Task attempts.
    pub tasks: usize,
    /// Stages, one after the other; each is a job.
    pub stages: usize,
    /// Executors.
    pub executors: usize,
    /// Cores of each.
    pub cores: usize,
    /// SQL metrics that each task updates. With them come copies of the task's metrics and peaks of its executor, as Spark
    /// writes them.
    pub sql_metrics: usize,
}

/// Name of the events of SQL executions, without their ends.
const SQL: &str = "org.apache.spark.sql.execution.ui.SparkListenerSQLExecution";

/// Description of the SQL execution.
#[must_use]
pub fn query() -> String {
    format!("SELECT {HOSTILE}")
}

/// Metrics of a task of which Spark writes copies.
const COPIES: [&str; 22] = [
    "executorDeserializeTime",
    "executorDeserializeCpuTime",
    "executorRunTime",
    "executorCpuTime",
    "resultSize",
    "jvmGCTime",
    "resultSerializationTime",
    "peakExecutionMemory",
    "shuffle.read.remoteBlocksFetched",
    "shuffle.read.localBlocksFetched",
    "shuffle.read.remoteBytesRead",
    "shuffle.read.remoteBytesReadToDisk",
    "shuffle.read.localBytesRead",
    "shuffle.read.fetchWaitTime",
    "shuffle.read.recordsRead",
    "shuffle.read.remoteReqsDuration",
    "shuffle.write.bytesWritten",
    "shuffle.write.recordsWritten",
    "shuffle.write.writeTime",
    "input.bytesRead",
    "input.recordsRead",
    "output.bytesWritten",
];
/// Peaks of executors that are not zero.
const PEAKS: [&str; 10] = [
    "JVMHeapMemory",
    "JVMOffHeapMemory",
    "OnHeapExecutionMemory",
    "OnHeapStorageMemory",
    "OnHeapUnifiedMemory",
    "DirectPoolMemory",
    "MinorGCCount",
    "MinorGCTime",
    "MajorGCCount",
    "TotalGCTime",
];

/// What a log of a shape says, to be compared with answers.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    /// Failed task attempts.
    pub failed: usize,
    /// Id and milliseconds of the longest task; the first of several.
    pub longest: (usize, i64),
    /// Milliseconds of all tasks.
    pub task_time: i64,
    /// Milliseconds from the first launch to the end of the last task.
    pub length: i64,
}

/// The SQL execution of a log with one.
pub const QUERY: usize = 7;

/// Writes the log.
///
/// # Errors
/// When the file cannot be written.
pub fn write(path: &Path, shape: &Shape) -> Result<Truth> {
    write_with(path, shape, None)
}

/// Writes the log; one of its jobs is of the SQL execution [`QUERY`].
///
/// # Errors
/// When the file cannot be written.
pub fn write_with_query(path: &Path, shape: &Shape, job: usize) -> Result<Truth> {
    write_with(path, shape, Some(job))
}

fn write_with(path: &Path, shape: &Shape, query: Option<usize>) -> Result<Truth> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut log = Log {
        out: BufWriter::new(file),
        seed: 0x9e37_79b9_7f4a_7c15,
        query,
    };
    let truth = log.application(shape)?;
    log.out.flush()?;
    Ok(truth)
}

struct Log {
    out: BufWriter<File>,
    seed: u64,
    /// The job of a SQL execution.
    query: Option<usize>,
}

impl Log {
    /// A number below `most`.
    fn number(&mut self, most: i64) -> i64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 11) as i64 % most.max(1)
    }

    fn event(&mut self, event: &Value) -> Result<()> {
        serde_json::to_writer(&mut self.out, event)?;
        self.out.write_all(b"\n")?;
        Ok(())
    }

    fn application(&mut self, shape: &Shape) -> Result<Truth> {
        self.event(&json!({"Event": "SparkListenerLogStart", "Spark Version": "4.0.5"}))?;
        self.event(
            &json!({"Event": "SparkListenerApplicationStart", "App Name": HOSTILE, "App ID": ID,
            "Timestamp": START, "User": "u"}),
        )?;
        self.event(&json!({"Event": "SparkListenerEnvironmentUpdate", "JVM Information": {"Java Version": "17"},
            "Spark Properties": {"spark.app.name": HOSTILE}, "Hadoop Properties": {}, "System Properties": {},
            "Metrics Properties": {}, "Classpath Entries": {}}))?;
        for executor in 1..=shape.executors {
            let host = format!("worker{}", executor % 4);
            self.event(&json!({"Event": "SparkListenerExecutorAdded", "Timestamp": START, "Executor ID": executor.to_string(),
                "Executor Info": {"Host": host, "Total Cores": shape.cores}}))?;
        }
        let mut truth = Truth::default();
        let (mut now, mut first) = (START + 1000, 0);
        for stage in 0..shape.stages {
            let tasks =
                shape.tasks * (stage + 1) / shape.stages - shape.tasks * stage / shape.stages;
            now = self.stage(shape, (stage, first, tasks), now, &mut truth)? + 50;
            first += tasks;
        }
        truth.length = now - 50 - (START + 1000);
        self.event(&json!({"Event": "SparkListenerApplicationEnd", "Timestamp": now + 500}))?;
        Ok(truth)
    }

    /// Writes a job with one stage; returns its end.
    fn stage(
        &mut self,
        shape: &Shape,
        (stage, first, tasks): (usize, usize, usize),
        begin: i64,
        truth: &mut Truth,
    ) -> Result<i64> {
        let level = json!({"Use Disk": true, "Use Memory": true, "Use Off Heap": false, "Deserialized": true, "Replication": 1});
        let mut info = json!({"Stage ID": stage, "Stage Attempt ID": 0, "Number of Tasks": tasks, "Submission Time": begin,
            "Stage Name": format!("stage {stage} {HOSTILE}"), "Details": HOSTILE, "Accumulables": [],
            "Parent IDs": stage.checked_sub(1).into_iter().collect::<Vec<_>>(), "RDD Info": chain(stage, tasks, &level)});
        let is_query = self.query == Some(stage);
        let mut properties = json!({"spark.job.description": format!("job {stage} {HOSTILE}")});
        if is_query {
            self.event(&json!({"Event": format!("{SQL}Start"), "executionId": QUERY, "description": query(),
                "details": HOSTILE, "physicalPlanDescription": HOSTILE, "time": begin - 10, "sparkPlanInfo": {"nodeName": HOSTILE,
                "simpleString": HOSTILE, "children": [], "metadata": {}, "metrics": []}}))?;
            properties["spark.sql.execution.id"] = QUERY.to_string().into();
        }
        self.event(&json!({"Event": "SparkListenerJobStart", "Job ID": stage, "Submission Time": begin - 10,
            "Stage Infos": [info], "Stage IDs": [stage], "Properties": properties}))?;
        self.event(
            &json!({"Event": "SparkListenerStageSubmitted", "Stage Info": info, "Properties": {}}),
        )?;
        let mut free: BinaryHeap<Reverse<(i64, usize)>> = (0..shape.executors * shape.cores)
            .map(|slot| Reverse((begin, slot)))
            .collect();
        let mut end = begin;
        for id in first..first + tasks {
            let Some(Reverse((launch, slot))) = free.pop() else {
                break;
            };
            let duration = self.task((stage, id), slot / shape.cores, launch, shape.sql_metrics)?;
            truth.task_time += duration;
            truth.failed += usize::from(fails(id));
            if duration > truth.longest.1 {
                truth.longest = (id, duration);
            }
            end = end.max(launch + duration);
            free.push(Reverse((launch + duration, slot)));
        }
        info["Completion Time"] = end.into();
        self.event(&json!({"Event": "SparkListenerStageCompleted", "Stage Info": info}))?;
        let manager = json!({"Executor ID": "1", "Host": "worker1", "Port": 1});
        self.event(
            &json!({"Event": "SparkListenerBlockManagerAdded", "Block Manager ID": manager,
            "Maximum Memory": 1_000_000, "Timestamp": START}),
        )?;
        self.event(&json!({"Event": "SparkListenerBlockUpdated", "Block Updated Info": {"Block Manager ID": manager,
            "Block ID": format!("rdd_{}_0", 10 * stage + 3), "Storage Level": level, "Memory Size": 1000, "Disk Size": 0}}))?;
        self.event(
            &json!({"Event": "SparkListenerJobEnd", "Job ID": stage, "Completion Time": end + 5,
            "Job Result": {"Result": "JobSucceeded"}}),
        )?;
        if is_query {
            self.event(
                &json!({"Event": format!("{SQL}End"), "executionId": QUERY, "time": end + 6}),
            )?;
        }
        Ok(end)
    }

    /// A task's SQL metrics and copies of its metrics, and peaks of its executor: nothing without SQL metrics. Of four SQL
    /// metrics one is the same for the whole stage and one is another figure of the task.
    fn accumulables(
        &mut self,
        (stage, id): (usize, usize),
        run: i64,
        sql_metrics: usize,
    ) -> (Vec<Value>, Value) {
        let mut all = Vec::new();
        let mut peaks = serde_json::Map::new();
        if sql_metrics == 0 {
            return (all, peaks.into());
        }
        let first = 1000 * stage;
        for at in 0..sql_metrics {
            let update = match at % 4 {
                0 => 1 + stage as i64,
                1 => 200,
                2 => self.number(1000),
                _ => run - self.number(20),
            };
            all.push(json!({"ID": first + at, "Name": format!("metric {at} of the plan"), "Update": update.to_string(),
                "Value": (update * (1 + id as i64)).to_string(), "Internal": true, "Count Failed Values": true,
                "Metadata": "sql"}));
        }
        for (at, name) in COPIES.iter().enumerate() {
            all.push(json!({"ID": first + 500 + at, "Name": format!("internal.metrics.{name}"), "Update": run,
                "Value": run * (1 + id as i64), "Internal": true, "Count Failed Values": true}));
        }
        if id.is_multiple_of(2) {
            for (at, name) in PEAKS.iter().enumerate() {
                let peak = 100_000_000 * (1 + at as i64) + self.number(1 << 20) * 64;
                peaks.insert((*name).to_owned(), peak.into());
            }
        }
        (all, peaks.into())
    }

    /// Writes a task; returns its duration.
    fn task(
        &mut self,
        (stage, id): (usize, usize),
        executor: usize,
        launch: i64,
        sql_metrics: usize,
    ) -> Result<i64> {
        let base = 200 + 100 * (stage as i64 % 3);
        let mut duration = base + self.number(base);
        if id % 97 == 96 {
            duration *= 5;
        }
        let wait = self.number(duration / 4);
        let gc = self.number(duration / 8);
        let write = self.number(duration / 6);
        let run = duration - 30;
        let cpu = (run - wait - gc - write) * 8 / 10;
        let failed = fails(id);
        let reason = if failed {
            json!({"Reason": "ExceptionFailure", "Class Name": "java.lang.RuntimeException", "Description": HOSTILE,
                "Stack Trace": [], "Full Stack Trace": HOSTILE, "Accumulator Updates": []})
        } else {
            json!({"Reason": "Success"})
        };
        let (accumulables, peaks) = self.accumulables((stage, id), run, sql_metrics);
        let info = |finish: i64| {
            json!({"Task ID": id, "Index": id, "Attempt": 0, "Partition ID": id, "Launch Time": launch,
            "Executor ID": (executor + 1).to_string(), "Host": format!("worker{}", (executor + 1) % 4),
            "Locality": if id.is_multiple_of(5) { "ANY" } else { "PROCESS_LOCAL" }, "Speculative": id % 211 == 1,
            "Getting Result Time": 0, "Finish Time": finish, "Failed": failed && finish > 0, "Killed": false,
            "Accumulables": if finish > 0 { accumulables.clone() } else { Vec::new() }})
        };
        self.event(&json!({"Event": "SparkListenerTaskStart", "Stage ID": stage, "Stage Attempt ID": 0, "Task Info": info(0)}))?;
        self.event(&json!({"Event": "SparkListenerTaskEnd", "Stage ID": stage, "Stage Attempt ID": 0,
            "Task Type": "ShuffleMapTask", "Task End Reason": reason, "Task Info": info(launch + duration),
            "Task Executor Metrics": peaks, "Task Metrics": {
                "Executor Deserialize Time": 12, "Executor Deserialize CPU Time": 9_000_000, "Executor Run Time": run,
                "Executor CPU Time": cpu * 1_000_000, "Peak Execution Memory": 4096 * (id as i64 % 17), "Result Size": 1500,
                "JVM GC Time": gc, "Result Serialization Time": 3, "Memory Bytes Spilled": 0, "Disk Bytes Spilled": 0,
                "Shuffle Read Metrics": {"Remote Blocks Fetched": 3, "Local Blocks Fetched": 1, "Fetch Wait Time": wait,
                    "Remote Bytes Read": 30_000, "Remote Bytes Read To Disk": 0, "Local Bytes Read": 10_000,
                    "Total Records Read": 400},
                "Shuffle Write Metrics": {"Shuffle Bytes Written": 20_000 + id, "Shuffle Write Time": write * 1_000_000,
                    "Shuffle Records Written": 200},
                "Input Metrics": {"Bytes Read": 1_000_000 + id, "Records Read": 100},
                "Output Metrics": {"Bytes Written": 0, "Records Written": 0}, "Updated Blocks": []}}))?;
        Ok(duration)
    }
}

/// RDDs of a stage: one that reads the stage before through a shuffle, a source, what both become, and one that is stored.
fn chain(stage: usize, tasks: usize, level: &Value) -> Value {
    let before = (10 * stage).checked_sub(7);
    let none = json!({"Use Disk": false, "Use Memory": false, "Use Off Heap": false, "Deserialized": false, "Replication": 1});
    let rdd = |at: usize, parents: Vec<usize>, level: &Value| {
        json!({"RDD ID": 10 * stage + at, "Name": HOSTILE, "Callsite": HOSTILE, "Parent IDs": parents,
            "Scope": json!({"id": "1", "name": HOSTILE}).to_string(), "Storage Level": level, "Number of Partitions": tasks})
    };
    json!([
        rdd(0, before.into_iter().collect(), &none),
        rdd(1, Vec::new(), &none),
        rdd(2, vec![10 * stage, 10 * stage + 1], &none),
        rdd(3, vec![10 * stage + 2], level)
    ])
}

fn fails(id: usize) -> bool {
    id % 53 == 52
}
