//! Events of Spark's log that the history keeps, borrowed from their line. Unknown events and fields are skipped.

#![allow(
    missing_docs,
    reason = "fields have the names that Spark gives them in its log, and its documentation describes them"
)]

pub mod metrics;
pub mod sql;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Deref;

use serde::Deserialize;
use serde_json::value::RawValue;

pub use metrics::{Peaks, TaskMetrics};

/// Text, borrowed where the line has no escapes in it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// Longest text that is kept of an event, in bytes.
pub const LONGEST_TEXT: usize = 64 << 10;

/// The beginning of a text: at most so many bytes.
#[must_use]
pub fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// The first `most` characters of a text, and after them `mark` where the text is longer.
#[must_use]
pub fn shortened(text: &str, most: usize, mark: &str) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}{mark}", &text[..end]),
        None => text.to_owned(),
    }
}

impl Text<'_> {
    /// The text, its beginning where it is long.
    #[must_use]
    pub fn kept(&self) -> String {
        cut(self, LONGEST_TEXT).to_owned()
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// Reads the name of an event. Spark writes it first; another order costs a second pass.
#[must_use]
pub fn name(line: &[u8]) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(rename = "Event", borrow)]
        event: Text<'a>,
    }
    const FIRST: &[u8] = b"{\"Event\":\"";
    if let Some(rest) = line.strip_prefix(FIRST)
        && let Some(end) = memchr::memchr2(b'"', b'\\', rest)
        && rest[end] == b'"'
        && let Ok(name) = std::str::from_utf8(&rest[..end])
    {
        return Some(Cow::Borrowed(name));
    }
    serde_json::from_slice::<Named<'_>>(line)
        .ok()
        .map(|named| named.event.0)
}

#[derive(Debug, Deserialize)]
pub struct LogStart<'a> {
    #[serde(rename = "Spark Version", borrow)]
    pub version: Text<'a>,
}

#[derive(Debug, Deserialize)]
pub struct ApplicationStart<'a> {
    #[serde(rename = "App Name", borrow)]
    pub name: Text<'a>,
    #[serde(rename = "App ID", borrow)]
    pub id: Option<Text<'a>>,
    #[serde(rename = "Timestamp")]
    pub time: i64,
    #[serde(rename = "User", borrow)]
    pub user: Text<'a>,
    #[serde(rename = "App Attempt ID", borrow)]
    pub attempt: Option<Text<'a>>,
    #[serde(rename = "Driver Logs", default)]
    pub driver_logs: Option<BTreeMap<String, String>>,
    #[serde(rename = "Driver Attributes", default)]
    pub driver_attributes: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
pub struct ApplicationEnd {
    #[serde(rename = "Timestamp")]
    pub time: i64,
    #[serde(rename = "ExitCode")]
    pub exit_code: Option<i64>,
}

#[derive(Debug, Deserialize)]
pub struct ResourceProfileAdded {
    #[serde(rename = "Resource Profile Id")]
    pub id: i32,
    #[serde(rename = "Executor Resource Requests", default)]
    pub executor: BTreeMap<String, ExecutorRequest>,
    #[serde(rename = "Task Resource Requests", default)]
    pub task: BTreeMap<String, TaskRequest>,
}

#[derive(Debug, Deserialize)]
pub struct ExecutorRequest {
    #[serde(rename = "Resource Name", default)]
    pub name: String,
    #[serde(rename = "Amount", default)]
    pub amount: i64,
    #[serde(rename = "Discovery Script", default)]
    pub script: String,
    #[serde(rename = "Vendor", default)]
    pub vendor: String,
}

#[derive(Debug, Deserialize)]
pub struct TaskRequest {
    #[serde(rename = "Resource Name", default)]
    pub name: String,
    #[serde(rename = "Amount", default)]
    pub amount: f64,
}

#[derive(Debug, Deserialize)]
pub struct BlockManagerId<'a> {
    #[serde(rename = "Executor ID", borrow)]
    pub executor: Text<'a>,
    #[serde(rename = "Host", borrow)]
    pub host: Text<'a>,
    #[serde(rename = "Port")]
    pub port: i64,
}

#[derive(Debug, Deserialize)]
pub struct BlockManagerAdded<'a> {
    #[serde(rename = "Block Manager ID", borrow)]
    pub id: BlockManagerId<'a>,
    #[serde(rename = "Maximum Memory", default)]
    pub memory: i64,
    #[serde(rename = "Timestamp", default = "minus_one")]
    pub time: i64,
    #[serde(rename = "Maximum Onheap Memory")]
    pub on_heap: Option<i64>,
    #[serde(rename = "Maximum Offheap Memory")]
    pub off_heap: Option<i64>,
}

const fn minus_one() -> i64 {
    -1
}

#[derive(Debug, Deserialize)]
pub struct ExecutorAdded<'a> {
    #[serde(rename = "Timestamp")]
    pub time: i64,
    #[serde(rename = "Executor ID", borrow)]
    pub id: Text<'a>,
    #[serde(rename = "Executor Info", borrow)]
    pub info: ExecutorInfo<'a>,
}

#[derive(Debug, Deserialize)]
pub struct ExecutorInfo<'a> {
    #[serde(rename = "Host", borrow)]
    pub host: Text<'a>,
    #[serde(rename = "Total Cores", default)]
    pub cores: i32,
    #[serde(rename = "Log Urls", default)]
    pub logs: BTreeMap<String, String>,
    #[serde(rename = "Attributes", default)]
    pub attributes: BTreeMap<String, String>,
    #[serde(rename = "Resources", default)]
    pub resources: BTreeMap<String, serde_json::Value>,
    #[serde(rename = "Resource Profile Id", default)]
    pub profile: i32,
}

#[derive(Debug, Deserialize)]
pub struct ExecutorRemoved<'a> {
    #[serde(rename = "Timestamp")]
    pub time: i64,
    #[serde(rename = "Executor ID", borrow)]
    pub id: Text<'a>,
    #[serde(rename = "Removed Reason", borrow, default)]
    pub reason: Text<'a>,
}

/// Any event by which an executor or a node is excluded, or no longer.
#[derive(Debug, Deserialize)]
pub struct Exclusion {
    #[serde(rename = "executorId", alias = "Executor ID")]
    pub executor: Option<String>,
    #[serde(rename = "hostId", alias = "Host ID")]
    pub host: Option<String>,
    #[serde(rename = "stageId", alias = "Stage ID")]
    pub stage: Option<i32>,
    #[serde(rename = "stageAttemptId", alias = "Stage Attempt ID")]
    pub attempt: Option<i32>,
}

#[derive(Debug, Deserialize)]
pub struct StorageLevel {
    #[serde(rename = "Use Disk", default)]
    pub disk: bool,
    #[serde(rename = "Use Memory", default)]
    pub memory: bool,
    #[serde(rename = "Use Off Heap", default)]
    pub off_heap: bool,
    #[serde(rename = "Deserialized", default)]
    pub deserialized: bool,
    #[serde(rename = "Replication", default)]
    pub replication: i64,
}

impl StorageLevel {
    /// Whether blocks of this level are stored at all.
    #[must_use]
    pub const fn is_valid(&self) -> bool {
        (self.memory || self.disk) && self.replication > 0
    }

    /// Spark's description, for example `Disk Memory Serialized 1x Replicated`.
    #[must_use]
    pub fn description(&self) -> String {
        let memory = match (self.memory, self.off_heap) {
            (false, _) => "",
            (true, true) => "Memory (off heap) ",
            (true, false) => "Memory ",
        };
        format!(
            "{}{memory}{}{}x Replicated",
            if self.disk { "Disk " } else { "" },
            if self.deserialized {
                "Deserialized "
            } else {
                "Serialized "
            },
            self.replication
        )
    }
}

#[derive(Debug, Deserialize)]
pub struct RddInfo<'a> {
    #[serde(rename = "RDD ID")]
    pub id: i32,
    #[serde(rename = "Name", borrow, default)]
    pub name: Text<'a>,
    #[serde(rename = "Storage Level")]
    pub level: StorageLevel,
    #[serde(rename = "Number of Partitions", default)]
    pub partitions: i64,
    /// JSON text: the operation that made the RDD, and those around it.
    #[serde(rename = "Scope", borrow)]
    pub scope: Option<Text<'a>>,
    #[serde(rename = "Callsite", borrow, default)]
    pub call_site: Text<'a>,
    #[serde(rename = "Parent IDs", default)]
    pub parents: Vec<i32>,
}

#[derive(Debug, Deserialize)]
pub struct StageInfo<'a> {
    #[serde(rename = "Stage ID")]
    pub id: i32,
    #[serde(rename = "Stage Attempt ID", default)]
    pub attempt: i32,
    #[serde(rename = "Stage Name", borrow)]
    pub name: Text<'a>,
    #[serde(rename = "Number of Tasks", default)]
    pub tasks: i32,
    #[serde(rename = "RDD Info", borrow, default)]
    pub rdds: Vec<RddInfo<'a>>,
    #[serde(rename = "Parent IDs", default)]
    pub parents: Vec<i32>,
    #[serde(rename = "Details", borrow, default)]
    pub details: Text<'a>,
    #[serde(rename = "Submission Time")]
    pub submission: Option<i64>,
    #[serde(rename = "Completion Time")]
    pub completion: Option<i64>,
    #[serde(rename = "Failure Reason", borrow)]
    pub failure: Option<Text<'a>>,
    #[serde(rename = "Accumulables", borrow, default)]
    pub accumulables: Vec<Accumulable<'a>>,
    #[serde(rename = "Resource Profile Id", default)]
    pub profile: i32,
    #[serde(rename = "Shuffle Push Enabled", default)]
    pub push: bool,
    #[serde(rename = "Shuffle Push Mergers Count", default)]
    pub mergers: i32,
}

#[derive(Debug, Deserialize)]
pub struct Accumulable<'a> {
    #[serde(rename = "ID")]
    pub id: i64,
    #[serde(rename = "Name", borrow)]
    pub name: Option<Text<'a>>,
    #[serde(rename = "Update", borrow)]
    pub update: Option<&'a RawValue>,
    #[serde(rename = "Value", borrow)]
    pub value: Option<&'a RawValue>,
    #[serde(rename = "Internal", default)]
    pub internal: bool,
    #[serde(rename = "Metadata", borrow)]
    pub metadata: Option<Text<'a>>,
}

/// Properties that the history uses.
#[derive(Debug, Default, Deserialize)]
pub struct Properties<'a> {
    #[serde(rename = "spark.job.description", borrow)]
    pub description: Option<Text<'a>>,
    #[serde(rename = "spark.jobGroup.id", borrow)]
    pub group: Option<Text<'a>>,
    #[serde(rename = "spark.job.tags", borrow)]
    pub tags: Option<Text<'a>>,
    #[serde(rename = "spark.sql.execution.id", borrow)]
    pub execution: Option<Text<'a>>,
    #[serde(rename = "spark.scheduler.pool", borrow)]
    pub pool: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
pub struct JobStart<'a> {
    #[serde(rename = "Job ID")]
    pub id: i32,
    #[serde(rename = "Submission Time", default)]
    pub time: i64,
    #[serde(rename = "Stage Infos", borrow, default)]
    pub stages: Vec<StageInfo<'a>>,
    #[serde(rename = "Stage IDs", default)]
    pub stage_ids: Vec<i32>,
    #[serde(rename = "Properties", borrow)]
    pub properties: Option<Properties<'a>>,
}

#[derive(Debug, Deserialize)]
pub struct JobEnd<'a> {
    #[serde(rename = "Job ID")]
    pub id: i32,
    #[serde(rename = "Completion Time", default)]
    pub time: i64,
    #[serde(rename = "Job Result", borrow)]
    pub result: JobResult<'a>,
}

#[derive(Debug, Deserialize)]
pub struct JobResult<'a> {
    #[serde(rename = "Result", borrow)]
    pub result: Text<'a>,
}

#[derive(Debug, Deserialize)]
pub struct StageSubmitted<'a> {
    #[serde(rename = "Stage Info", borrow)]
    pub info: StageInfo<'a>,
    #[serde(rename = "Properties", borrow)]
    pub properties: Option<Properties<'a>>,
}

#[derive(Debug, Deserialize)]
pub struct StageCompleted<'a> {
    #[serde(rename = "Stage Info", borrow)]
    pub info: StageInfo<'a>,
}

#[derive(Debug, Deserialize)]
pub struct TaskStart<'a> {
    #[serde(rename = "Stage ID")]
    pub stage: i32,
    #[serde(rename = "Stage Attempt ID", default)]
    pub stage_attempt: i32,
    #[serde(rename = "Task Info", borrow)]
    pub info: TaskInfo<'a>,
}

#[derive(Debug, Deserialize)]
pub struct TaskInfo<'a> {
    #[serde(rename = "Task ID")]
    pub id: i64,
    #[serde(rename = "Index")]
    pub index: i32,
    #[serde(rename = "Attempt", default)]
    pub attempt: i32,
    #[serde(rename = "Partition ID")]
    pub partition: Option<i32>,
    #[serde(rename = "Launch Time")]
    pub launch: i64,
    #[serde(rename = "Executor ID", borrow)]
    pub executor: Text<'a>,
    #[serde(rename = "Host", borrow)]
    pub host: Text<'a>,
    #[serde(rename = "Locality", borrow)]
    pub locality: Text<'a>,
    #[serde(rename = "Speculative", default)]
    pub speculative: bool,
    #[serde(rename = "Getting Result Time", default)]
    pub getting_result: i64,
    #[serde(rename = "Finish Time", default)]
    pub finish: i64,
    #[serde(rename = "Failed", default)]
    pub failed: bool,
    #[serde(rename = "Killed", default)]
    pub killed: bool,
    #[serde(rename = "Accumulables", borrow, default)]
    pub accumulables: Vec<Accumulable<'a>>,
}

#[derive(Debug, Deserialize)]
pub struct TaskEnd<'a> {
    #[serde(rename = "Stage ID")]
    pub stage: i32,
    #[serde(rename = "Stage Attempt ID", default)]
    pub stage_attempt: i32,
    #[serde(rename = "Task Type", borrow)]
    pub kind: Option<Text<'a>>,
    #[serde(rename = "Task End Reason", borrow)]
    pub reason: Reason<'a>,
    #[serde(rename = "Task Info", borrow)]
    pub info: Option<TaskInfo<'a>>,
    #[serde(rename = "Task Executor Metrics", default)]
    pub peaks: Peaks,
    #[serde(rename = "Task Metrics")]
    pub metrics: Option<TaskMetrics>,
}

/// Why a task ended; each reason has some of the fields.
#[derive(Debug, Deserialize)]
pub struct Reason<'a> {
    #[serde(rename = "Reason", borrow)]
    pub reason: Text<'a>,
    #[serde(rename = "Kill Reason", borrow)]
    pub kill: Option<Text<'a>>,
    #[serde(rename = "Class Name", borrow)]
    pub class: Option<Text<'a>>,
    #[serde(rename = "Description", borrow)]
    pub description: Option<Text<'a>>,
    #[serde(rename = "Full Stack Trace", borrow)]
    pub trace: Option<Text<'a>>,
    /// [`Frame`]s, which are read where the whole trace is absent.
    #[serde(rename = "Stack Trace", borrow)]
    pub frames: Option<&'a RawValue>,
    #[serde(rename = "Block Manager Address", borrow)]
    pub address: Option<BlockManagerId<'a>>,
    #[serde(rename = "Shuffle ID")]
    pub shuffle: Option<i64>,
    #[serde(rename = "Map ID")]
    pub map: Option<i64>,
    #[serde(rename = "Map Index")]
    pub map_index: Option<i64>,
    #[serde(rename = "Reduce ID")]
    pub reduce: Option<i64>,
    #[serde(rename = "Message", borrow)]
    pub message: Option<Text<'a>>,
    #[serde(rename = "Job ID")]
    pub job: Option<i64>,
    #[serde(rename = "Partition ID")]
    pub partition: Option<i64>,
    #[serde(rename = "Attempt Number")]
    pub attempt: Option<i64>,
    #[serde(rename = "Executor ID", borrow)]
    pub executor: Option<Text<'a>>,
    #[serde(rename = "Exit Caused By App")]
    pub by_application: Option<bool>,
    #[serde(rename = "Loss Reason", borrow)]
    pub loss: Option<Text<'a>>,
}

/// A place in a stack trace.
#[derive(Debug, Deserialize)]
pub struct Frame<'a> {
    #[serde(rename = "Declaring Class", borrow)]
    pub class: Text<'a>,
    #[serde(rename = "Method Name", borrow)]
    pub method: Text<'a>,
    #[serde(rename = "File Name", borrow)]
    pub file: Option<Text<'a>>,
    #[serde(rename = "Line Number", default)]
    pub line: i64,
}

#[derive(Debug, Deserialize)]
pub struct StageExecutorMetrics<'a> {
    #[serde(rename = "Executor ID", borrow)]
    pub executor: Text<'a>,
    #[serde(rename = "Stage ID")]
    pub stage: i32,
    #[serde(rename = "Stage Attempt ID", default)]
    pub attempt: i32,
    #[serde(rename = "Executor Metrics")]
    pub peaks: Peaks,
}

#[derive(Debug, Deserialize)]
pub struct ExecutorMetricsUpdate<'a> {
    #[serde(rename = "Executor ID", borrow)]
    pub executor: Text<'a>,
    #[serde(rename = "Executor Metrics Updated", default)]
    pub updates: Vec<StagePeaks>,
}

#[derive(Debug, Deserialize)]
pub struct StagePeaks {
    #[serde(rename = "Stage ID")]
    pub stage: i32,
    #[serde(rename = "Stage Attempt ID", default)]
    pub attempt: i32,
    #[serde(rename = "Executor Metrics")]
    pub peaks: Peaks,
}

#[derive(Debug, Deserialize)]
pub struct BlockUpdated<'a> {
    #[serde(rename = "Block Updated Info", borrow)]
    pub info: BlockInfo<'a>,
}

#[derive(Debug, Deserialize)]
pub struct BlockInfo<'a> {
    #[serde(rename = "Block Manager ID", borrow)]
    pub manager: BlockManagerId<'a>,
    #[serde(rename = "Block ID", borrow)]
    pub block: Text<'a>,
    #[serde(rename = "Storage Level")]
    pub level: StorageLevel,
    #[serde(rename = "Memory Size", default)]
    pub memory: i64,
    #[serde(rename = "Disk Size", default)]
    pub disk: i64,
}

#[derive(Debug, Deserialize)]
pub struct UnpersistRdd {
    #[serde(rename = "RDD ID")]
    pub id: i32,
}
