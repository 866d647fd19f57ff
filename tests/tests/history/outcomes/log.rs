//! Events as Spark writes them, and the reasons for which a task attempt ends.

use serde_json::{Map, Value, json};
use smtt_store::history::columns::PEAKS;

use super::ID;

/// First millisecond of the application.
const START: i64 = 1_795_800_000_000;

/// Name of the events of SQL executions, without their ends.
const SQL: &str = "org.apache.spark.sql.execution.ui.SparkListenerSQLExecution";
/// The first of two metrics of the query's plan.
const METRIC: i64 = 80;

pub type Stage = (i32, i32);

/// A log that grows.
pub struct Log {
    /// The version of Spark that it claims.
    pub version: String,
    text: String,
    pub now: i64,
    /// Whether jobs are of the query.
    is_query: bool,
    /// What is known of each task attempt, by id.
    pub tasks: Vec<(Stage, Value)>,
}

impl Log {
    pub fn new(version: &str, attempt: i64) -> Self {
        let mut log = Self {
            version: version.to_owned(),
            text: String::new(),
            now: START + 1_000_000 * attempt,
            is_query: false,
            tasks: Vec::new(),
        };
        log.add(json!({"Event": "SparkListenerLogStart", "Spark Version": version}));
        log.add(json!({"Event": "SparkListenerResourceProfileAdded", "Resource Profile Id": 0,
            "Executor Resource Requests": {}, "Task Resource Requests": {"cpus": {"Resource Name": "cpus", "Amount": 1.0}}}));
        log.block_manager("driver", "a");
        log.add(json!({"Event": "SparkListenerEnvironmentUpdate", "JVM Information": {"Java Version": "17", "Java Home": "/opt/java",
            "Scala Version": "version 2.13"}, "Spark Properties": {"spark.app.name": "outcomes"}, "Hadoop Properties": {},
            "System Properties": {}, "Metrics Properties": {}, "Classpath Entries": {}}));
        log.add(json!({"Event": "SparkListenerApplicationStart", "App Name": "outcomes", "App ID": ID, "Timestamp": log.now,
            "User": "user", "App Attempt ID": attempt.to_string(),
            "Driver Logs": {"stdout": "http://a/stdout"}, "Driver Attributes": {"USER": "user"}}));
        log
    }

    /// Adds an event, 10 ms after the one before.
    pub fn add(&mut self, event: Value) {
        self.text += &event.to_string();
        self.text.push('\n');
        self.now += 10;
    }

    pub fn ended(mut self) -> String {
        let end = json!({"Event": "SparkListenerApplicationEnd", "Timestamp": self.now});
        self.add(end);
        self.text
    }

    fn block_manager(&mut self, executor: &str, host: &str) {
        self.add(json!({"Event": "SparkListenerBlockManagerAdded",
            "Block Manager ID": {"Executor ID": executor, "Host": host, "Port": 4000}, "Maximum Memory": 400_000_000,
            "Timestamp": self.now, "Maximum Onheap Memory": 300_000_000, "Maximum Offheap Memory": 100_000_000}));
    }

    pub fn executor(&mut self, id: &str, host: &str) {
        self.add(json!({"Event": "SparkListenerExecutorAdded", "Timestamp": self.now, "Executor ID": id,
            "Executor Info": {"Host": host, "Total Cores": 4, "Log Urls": {"stderr": format!("http://{host}/{id}/stderr")},
            "Attributes": {"CONTAINER_ID": id}, "Resources": {}, "Resource Profile Id": 0,
            "Registration Time": self.now}}));
        self.block_manager(id, host);
    }

    pub fn removed(&mut self, id: &str, reason: &str) {
        self.add(json!({"Event": "SparkListenerExecutorRemoved", "Timestamp": self.now, "Executor ID": id,
            "Removed Reason": reason}));
    }

    /// An executor or a host (`hostId`) that is excluded, or no longer, by the events of Spark since 3.1 and before.
    pub fn exclusion(&mut self, what: &str, old: &str, fields: &Value) {
        for name in [old, what] {
            let mut event = json!({"Event": format!("org.apache.spark.scheduler.SparkListener{name}"), "time": self.now});
            for (key, value) in fields.as_object().into_iter().flatten() {
                event[key] = value.clone();
            }
            self.add(event);
        }
    }

    pub fn job(&mut self, id: i32, stages: &[Value], group: &str) {
        let ids: Vec<&Value> = stages.iter().map(|stage| &stage["Stage ID"]).collect();
        let mut properties =
            json!({"spark.jobGroup.id": group, "spark.job.description": format!("of {group}")});
        if self.is_query {
            properties["spark.sql.execution.id"] = "0".into();
        }
        self.add(json!({"Event": "SparkListenerJobStart", "Job ID": id, "Submission Time": self.now, "Stage Infos": stages,
            "Stage IDs": ids, "Properties": properties}));
    }

    /// A query of the first job, whose tasks update a metric.
    pub fn query_start(&mut self) {
        self.is_query = true;
        self.add(json!({"Event": format!("{SQL}Start"), "executionId": 0, "rootExecutionId": 0, "description": "a query", "details": "details",
            "physicalPlanDescription": "== Physical Plan ==", "sparkPlanInfo": {"nodeName": "Scan", "simpleString": "Scan",
            "children": [], "metadata": {}, "metrics": [
                {"name": "number of output rows", "accumulatorId": METRIC, "metricType": "sum"},
                {"name": "duration", "accumulatorId": METRIC + 1, "metricType": "timing"}]},
            "time": self.now, "modifiedConfigs": {}}));
    }

    pub fn query_end(&mut self) {
        self.is_query = false;
        self.add(json!({"Event": format!("{SQL}End"), "executionId": 0, "time": self.now}));
    }

    pub fn job_end(&mut self, id: i32, failure: Option<&str>) {
        let result = match failure {
            None => json!({"Result": "JobSucceeded"}),
            Some(text) => {
                json!({"Result": "JobFailed", "Exception": {"Message": text, "Stack Trace": []}})
            }
        };
        self.add(json!({"Event": "SparkListenerJobEnd", "Job ID": id, "Completion Time": self.now, "Job Result": result}));
    }

    /// The stage with the time of its submission.
    pub fn submit(&mut self, stage: &mut Value) {
        stage["Submission Time"] = self.now.into();
        self.add(
            json!({"Event": "SparkListenerStageSubmitted", "Stage Info": stage,
            "Properties": {"spark.scheduler.pool": "pool", "spark.job.description": "a stage"}}),
        );
    }

    /// The stage with the time of its end, and why it failed.
    pub fn complete(&mut self, stage: &mut Value, failure: Option<&str>) {
        stage["Completion Time"] = self.now.into();
        if let Some(failure) = failure {
            stage["Failure Reason"] = failure.into();
        }
        stage["Accumulables"] = json!([{"ID": 70, "Name": "mine", "Value": "12", "Internal": false, "Count Failed Values": false}]);
        self.add(json!({"Event": "SparkListenerStageCompleted", "Stage Info": stage}));
    }

    /// A task attempt; returns its id.
    pub fn launch(&mut self, stage: &Value, (index, attempt): (i32, i32), executor: &str) -> usize {
        self.launch_as(stage, (index, attempt), executor, &json!({}))
    }

    /// As [`Self::launch`], with some fields of its own.
    pub fn launch_as(
        &mut self,
        stage: &Value,
        (index, attempt): (i32, i32),
        executor: &str,
        own: &Value,
    ) -> usize {
        let id = self.tasks.len();
        let mut info = json!({"Task ID": id, "Index": index, "Attempt": attempt, "Partition ID": index,
            "Launch Time": self.now, "Executor ID": executor, "Host": "b", "Locality": "PROCESS_LOCAL",
            "Speculative": false, "Getting Result Time": 0, "Finish Time": 0, "Failed": false, "Killed": false,
            "Accumulables": []});
        for (key, value) in own.as_object().into_iter().flatten() {
            info[key] = value.clone();
        }
        let number = |field: &str| stage[field].as_i64().unwrap_or_default() as i32;
        let key = (number("Stage ID"), number("Stage Attempt ID"));
        self.tasks.push((key, info.clone()));
        self.add(json!({"Event": "SparkListenerTaskStart", "Stage ID": key.0, "Stage Attempt ID": key.1, "Task Info": info}));
        id
    }

    /// The end of a task attempt, in the state that Spark's scheduler gives the reason. A second end has that of the first.
    pub fn end(&mut self, id: usize, reason: &Value) {
        let name = reason["Reason"].as_str().unwrap_or_default();
        let (key, info) = (self.tasks[id].0, &mut self.tasks[id].1);
        if info["Finish Time"] == 0 {
            info["Finish Time"] = (self.now + 3 * id as i64).into();
            info["Failed"] = [
                "FetchFailed",
                "ExceptionFailure",
                "ExecutorLostFailure",
                "UnknownReason",
            ]
            .contains(&name)
            .into();
            info["Killed"] = ["TaskKilled", "TaskCommitDenied"].contains(&name).into();
            info["Accumulables"] = (0..2)
                .map(|at| {
                    json!({"ID": METRIC + at, "Name": "of the plan",
                "Update": (5 + id).to_string(), "Value": (50 * id).to_string(), "Internal": true,
                "Count Failed Values": true, "Metadata": "sql"})
                })
                .collect();
        }
        let mut event = json!({"Event": "SparkListenerTaskEnd", "Stage ID": key.0, "Stage Attempt ID": key.1,
            "Task Type": "ShuffleMapTask", "Task End Reason": reason, "Task Info": info,
            "Task Executor Metrics": self.peaks(id as i64)});
        // What is lost has no metrics.
        if !["ExecutorLostFailure", "Resubmitted", "TaskResultLost"].contains(&name) {
            event["Task Metrics"] = metrics(id as i64);
        }
        self.add(event);
    }

    /// Peaks of an executor, which are larger after some tasks. Spark 3.5 has no concurrent collections.
    pub fn peaks(&self, id: i64) -> Value {
        let names = PEAKS.iter().map(|(_, name)| (*name).to_owned());
        let is_old = self.version.starts_with("3.");
        let names = names.filter(|name| !is_old || !name.starts_with("Concurrent"));
        names
            .zip(1..)
            .map(|(name, at)| (name, json!(1000 * at * (id % 5))))
            .collect::<Map<_, _>>()
            .into()
    }

    pub fn succeed(&mut self, id: usize) {
        self.end(id, &json!({"Reason": "Success"}));
    }
}

/// A stage that is not submitted yet.
pub fn stage((id, attempt): Stage, tasks: i32, parents: &[i32]) -> Value {
    json!({"Stage ID": id, "Stage Attempt ID": attempt, "Stage Name": format!("stage {id} at Outcomes.java:{id}"),
        "Number of Tasks": tasks, "RDD Info": [], "Parent IDs": parents, "Details": "details", "Accumulables": [],
        "Resource Profile Id": 0, "Shuffle Push Enabled": false, "Shuffle Push Mergers Count": 0})
}

fn metrics(id: i64) -> Value {
    json!({"Executor Deserialize Time": 1 + id % 3, "Executor Deserialize CPU Time": 1_000_000 + id, "Executor Run Time": 2 + id % 7,
        "Executor CPU Time": 2_000_000 + id, "Peak Execution Memory": 4096 * id, "Result Size": 900 + id, "JVM GC Time": id % 4,
        "Result Serialization Time": id % 2, "Memory Bytes Spilled": 0, "Disk Bytes Spilled": 0,
        "Shuffle Read Metrics": {"Remote Blocks Fetched": id, "Local Blocks Fetched": 1, "Fetch Wait Time": id % 5,
            "Remote Bytes Read": 300 + id, "Remote Bytes Read To Disk": 0, "Local Bytes Read": 100 + id,
            "Total Records Read": 40 + id, "Remote Requests Duration": id,
            "Push Based Shuffle": {"Corrupt Merged Block Chunks": 0, "Merged Fetch Fallback Count": 0,
                "Merged Remote Blocks Fetched": 0, "Merged Local Blocks Fetched": 0, "Merged Remote Chunks Fetched": 0,
                "Merged Local Chunks Fetched": 0, "Merged Remote Bytes Read": 0, "Merged Local Bytes Read": 0,
                "Merged Remote Requests Duration": 0}},
        "Shuffle Write Metrics": {"Shuffle Bytes Written": 200 + id, "Shuffle Write Time": 5_000 + id,
            "Shuffle Records Written": 20 + id},
        "Input Metrics": {"Bytes Read": 1_000 + id, "Records Read": 10 + id},
        "Output Metrics": {"Bytes Written": 7 + id, "Records Written": 1}, "Updated Blocks": []})
}

pub fn exception(text: &str) -> Value {
    json!({"Reason": "ExceptionFailure", "Class Name": "java.lang.RuntimeException", "Description": text,
        "Stack Trace": [{"Declaring Class": "io.smtt.Fixture", "Method Name": "call", "File Name": "Fixture.java", "Line Number": 7}],
        "Full Stack Trace": format!("java.lang.RuntimeException: {text}\n\tat io.smtt.Fixture.call(Fixture.java:7)\n"),
        "Accumulator Updates": [{"ID": 70, "Update": "3", "Internal": false, "Count Failed Values": true}]})
}

pub fn killed(reason: &str) -> Value {
    json!({"Reason": "TaskKilled", "Kill Reason": reason, "Accumulator Updates": []})
}

pub fn fetch_failed(executor: &str, map_index: Option<i64>) -> Value {
    let mut reason = json!({"Reason": "FetchFailed", "Block Manager Address": {"Executor ID": executor, "Host": "b", "Port": 4000},
        "Shuffle ID": 3, "Map ID": 17, "Reduce ID": 2, "Message": "Connection refused <b>\n\tat io.smtt.Fixture.call(Fixture.java:7)"});
    if let Some(index) = map_index {
        reason["Map Index"] = index.into();
    }
    reason
}

/// Each reason as Spark writes it, and as older versions do: without fields that came later. Unsuccessful attempts come first.
pub fn reasons() -> Vec<Value> {
    let lost = |fields: Value| {
        let mut reason = json!({"Reason": "ExecutorLostFailure", "Executor ID": "2"});
        for (key, value) in fields.as_object().into_iter().flatten() {
            reason[key] = value.clone();
        }
        reason
    };
    let without = |mut reason: Value, fields: &[&str]| {
        if let Some(all) = reason.as_object_mut() {
            all.retain(|key, _| !fields.contains(&key.as_str()));
        }
        reason
    };
    let denied =
        json!({"Reason": "TaskCommitDenied", "Job ID": 8, "Partition ID": 3, "Attempt Number": 1});
    vec![
        fetch_failed("2", Some(5)),
        fetch_failed("2", Some(i64::from(i32::MIN))),
        without(
            fetch_failed("2", None),
            &["Block Manager Address", "Message"],
        ),
        exception("planned <i>"),
        without(exception("old"), &["Full Stack Trace"]),
        without(
            exception("old, no trace"),
            &["Full Stack Trace", "Stack Trace"],
        ),
        lost(json!({"Exit Caused By App": true, "Loss Reason": "Container killed by YARN"})),
        lost(json!({"Exit Caused By App": false, "Loss Reason": null})),
        without(lost(json!({})), &["Executor ID"]),
        denied.clone(),
        denied.clone(),
        without(denied, &["Job ID", "Partition ID", "Attempt Number"]),
        killed("another attempt succeeded"),
        killed("another attempt succeeded"),
        killed("by hand & <script>"),
        without(killed(""), &["Kill Reason", "Accumulator Updates"]),
        json!({"Reason": "TaskResultLost"}),
        json!({"Reason": "UnknownReason"}),
        json!({"Reason": "Success"}),
    ]
}
