//! Event logs of applications that never ran, for tests: every time and byte is given, so the truth is known.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::import::{Admission, import};
use crate::log::Bounds;
use crate::open::App;

/// When the application starts, in milliseconds since 1970.
pub const START: i64 = 1_790_000_000_000;

/// A task of a stage. Times are in milliseconds.
#[derive(Clone, Debug)]
pub struct Task {
    pub run: i64,
    pub gc: i64,
    pub fetch: i64,
    pub write: i64,
    pub delay: i64,
    pub input: i64,
    pub shuffle_read: i64,
    /// Records of its input; without a number one for 100 bytes.
    pub records: Option<i64>,
    pub spilled: i64,
    pub peak: i64,
    pub locality: &'static str,
}

impl Task {
    /// A task that reads so many bytes and runs so long.
    pub fn new(run: i64, input: i64) -> Self {
        Self {
            run,
            gc: 0,
            fetch: 0,
            write: 0,
            delay: 5,
            input,
            shuffle_read: 0,
            records: None,
            spilled: 0,
            peak: 0,
            locality: "PROCESS_LOCAL",
        }
    }
}

/// A stage: its name, its call site and its tasks.
#[derive(Clone, Debug)]
pub struct Stage {
    pub name: String,
    pub site: String,
    pub tasks: Vec<Task>,
}

impl Stage {
    pub fn new(name: &str, tasks: Vec<Task>) -> Self {
        Self {
            name: name.to_owned(),
            site: format!("org.apache.spark.rdd.RDD.{name}\nmine.App.main(App.scala:10)"),
            tasks,
        }
    }
}

/// An application whose log a test makes.
#[derive(Clone, Debug)]
pub struct Made {
    pub id: String,
    pub name: String,
    pub properties: Vec<(String, String)>,
    pub executors: usize,
    pub cores: usize,
    /// An executor whose tasks take so many times longer.
    pub slow: Option<(usize, i64)>,
    pub stages: Vec<Stage>,
}

impl Made {
    pub fn new(id: &str, stages: Vec<Stage>) -> Self {
        Self {
            id: id.to_owned(),
            name: "made".to_owned(),
            properties: vec![("spark.executor.cores".to_owned(), "4".to_owned())],
            executors: 4,
            cores: 4,
            slow: None,
            stages,
        }
    }

    /// The log's text, and the milliseconds from the first submission to the last end.
    pub fn log(&self) -> (String, i64) {
        let mut lines = vec![
            json!({"Event": "SparkListenerApplicationStart", "App Name": self.name, "App ID": self.id, "Timestamp": START, "User": "u"}),
            json!({"Event": "SparkListenerEnvironmentUpdate", "JVM Information": {}, "Hadoop Properties": {}, "System Properties": {},
                "Metrics Properties": {}, "Classpath Entries": {},
                "Spark Properties": self.properties.iter().map(|(name, value)| (name.clone(), Value::from(value.clone())))
                    .collect::<serde_json::Map<_, _>>()}),
        ];
        for executor in 0..self.executors {
            lines.push(json!({"Event": "SparkListenerExecutorAdded", "Timestamp": START, "Executor ID": executor.to_string(),
                "Executor Info": {"Host": format!("host{executor}"), "Total Cores": self.cores}}));
        }
        let (mut now, mut id) = (START, 0);
        for (number, stage) in self.stages.iter().enumerate() {
            now = self.stage(&mut lines, number, stage, now, &mut id);
        }
        lines.push(json!({"Event": "SparkListenerApplicationEnd", "Timestamp": now}));
        let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
        (lines.join("\n"), now - START)
    }

    fn stage(
        &self,
        lines: &mut Vec<Value>,
        number: usize,
        stage: &Stage,
        begin: i64,
        id: &mut i64,
    ) -> i64 {
        let mut info = json!({"Stage ID": number, "Stage Attempt ID": 0, "Stage Name": stage.name, "Details": stage.site,
            "Number of Tasks": stage.tasks.len(), "Submission Time": begin, "RDD Info": [], "Accumulables": []});
        lines.push(json!({"Event": "SparkListenerJobStart", "Job ID": number, "Submission Time": begin, "Stage Infos": [info],
            "Stage IDs": [number], "Properties": {}}));
        lines.push(
            json!({"Event": "SparkListenerStageSubmitted", "Stage Info": info, "Properties": {}}),
        );
        let mut free = vec![begin; self.executors * self.cores];
        let mut end = begin;
        for (index, task) in stage.tasks.iter().enumerate() {
            let slots = 0..free.len();
            let slot = slots.min_by_key(|slot| (free[*slot], slot % self.cores, *slot));
            let slot = slot.expect("has a slot");
            let (launch, executor) = (free[slot], slot / self.cores);
            let slow = self.slow.filter(|(slow, _)| *slow == executor);
            let run = task.run * slow.map_or(1, |(_, factor)| factor);
            let finish = launch + run + task.delay;
            free[slot] = finish;
            end = end.max(finish);
            let info = |finish: i64| {
                json!({"Task ID": *id, "Index": index, "Attempt": 0, "Partition ID": index, "Launch Time": launch,
                    "Executor ID": executor.to_string(), "Host": format!("host{executor}"), "Locality": task.locality,
                    "Speculative": false, "Getting Result Time": 0, "Finish Time": finish, "Failed": false, "Killed": false,
                    "Accumulables": []})
            };
            lines.push(json!({"Event": "SparkListenerTaskStart", "Stage ID": number, "Stage Attempt ID": 0, "Task Info": info(0)}));
            let busy = (run - task.gc - task.fetch - task.write).max(0);
            lines.push(json!({"Event": "SparkListenerTaskEnd", "Stage ID": number, "Stage Attempt ID": 0, "Task Type": "ShuffleMapTask",
                "Task End Reason": {"Reason": "Success"}, "Task Info": info(finish), "Task Metrics": {
                "Executor Run Time": run, "Executor CPU Time": busy * 1_000_000, "JVM GC Time": task.gc,
                "Executor Deserialize Time": 0, "Result Serialization Time": 0,
                "Memory Bytes Spilled": task.spilled, "Disk Bytes Spilled": task.spilled / 3, "Peak Execution Memory": task.peak,
                "Shuffle Read Metrics": {"Fetch Wait Time": task.fetch, "Remote Bytes Read": task.shuffle_read, "Local Bytes Read": 0,
                    "Total Records Read": task.shuffle_read / 100},
                "Shuffle Write Metrics": {"Shuffle Bytes Written": task.input / 2, "Shuffle Write Time": task.write * 1_000_000},
                "Input Metrics": {"Bytes Read": task.input, "Records Read": task.records.unwrap_or(task.input / 100)}}}));
            *id += 1;
        }
        info["Completion Time"] = end.into();
        lines.push(json!({"Event": "SparkListenerStageCompleted", "Stage Info": info}));
        lines.push(json!({"Event": "SparkListenerJobEnd", "Job ID": number, "Completion Time": end, "Job Result": {"Result": "JobSucceeded"}}));
        end
    }

    /// Imports the log into a store below a folder.
    pub fn open(&self, folder: &Path) -> App {
        let path = folder.join(&self.id);
        fs::write(&path, self.log().0).expect("writes");
        let done = import(
            &folder.join("store"),
            &path,
            Bounds::default(),
            &Admission::default(),
        );
        let done = done.expect("imports");
        assert_eq!((done.damaged, done.too_long), (0, 0), "{:?}", done.named);
        App::open(&done.folder).expect("opens")
    }
}

/// A sequence of numbers that is always the same.
pub struct Numbers(u64);

impl Numbers {
    /// The sequence of a number.
    pub fn of(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `most`.
    pub fn below(&mut self, most: i64) -> i64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as i64 % most.max(1)
    }
}
