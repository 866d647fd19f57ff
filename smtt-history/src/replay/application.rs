//! The application, its environment and its resource profiles.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::Replay;
use crate::event::{self, ApplicationEnd, ApplicationStart, LogStart, ResourceProfileAdded};
use crate::json::{date, object, present};
use crate::out::Kind;

/// What Spark puts in the place of a secret.
const REDACTED: &str = "*********(redacted)";
/// Spark's default of `spark.redaction.regex`, as plain words.
const SECRETS: [&str; 5] = ["secret", "password", "token", "access.key", "accesskey"];

#[derive(Clone, Debug, Default)]
pub(super) struct Application {
    id: Option<String>,
    name: String,
    attempt: Option<String>,
    start: i64,
    end: Option<i64>,
    exit_code: Option<i64>,
    user: String,
    version: String,
    profiles: BTreeMap<i32, Profile>,
    task_cpus: i32,
    environment: Option<Environment>,
}

/// A resource profile: as the REST API shows it, and how many CPUs each of its tasks takes.
#[derive(Clone, Debug)]
struct Profile {
    json: Value,
    task_cpus: i32,
    /// What it takes of the replay's memory.
    bytes: usize,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Environment {
    #[serde(rename = "JVM Information", default)]
    jvm: BTreeMap<String, String>,
    #[serde(rename = "Spark Properties", default)]
    spark: BTreeMap<String, String>,
    #[serde(rename = "Hadoop Properties", default)]
    hadoop: BTreeMap<String, String>,
    #[serde(rename = "System Properties", default)]
    system: BTreeMap<String, String>,
    #[serde(rename = "Metrics Properties", default)]
    metrics: BTreeMap<String, String>,
    #[serde(rename = "Classpath Entries", default)]
    classpath: BTreeMap<String, String>,
}

impl Application {
    pub(super) fn identity(&self) -> Option<(&str, Option<&str>)> {
        Some((self.id.as_deref()?, self.attempt.as_deref()))
    }

    pub(super) const fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Tasks that an executor of a profile runs at a time. Spark's server knows no other limit of a profile in a log.
    pub(super) fn max_tasks(&self, profile: i32, cores: i32) -> i32 {
        let profile = self.profiles.get(&profile);
        let cpus = profile.map_or(self.task_cpus, |profile| profile.task_cpus);
        cores / cpus.max(1)
    }
}

/// The application's document from some of its events; `None` where its start is not among them.
pub(crate) fn summary<'a>(
    lines: impl Iterator<Item = &'a [u8]>,
    modified_ms: i64,
) -> Option<Value> {
    let mut application = Application::default();
    for line in lines {
        match event::name(line).as_deref() {
            Some("SparkListenerLogStart") => {
                application.version = super::parse::<LogStart<'_>>(line).ok()?.version.kept();
            }
            Some("SparkListenerApplicationStart") => application.begin(&super::parse(line).ok()?),
            Some("SparkListenerApplicationEnd") => {
                application.end = Some(super::parse::<ApplicationEnd>(line).ok()?.time);
            }
            _ => {}
        }
    }
    application.id.as_ref()?;
    Some(application.json(modified_ms))
}

impl Application {
    fn begin(&mut self, event: &ApplicationStart<'_>) {
        self.id = event.id.as_ref().map(|id| id.to_string());
        self.name = event.name.kept();
        self.attempt = event.attempt.as_ref().map(|attempt| attempt.to_string());
        self.start = event.time;
        self.user = event.user.kept();
    }

    fn json(&self, modified_ms: i64) -> Value {
        let end = self.end.unwrap_or(-1);
        let last = self.end.unwrap_or(modified_ms);
        let attempt = present(json!({
            "attemptId": self.attempt,
            "startTime": date(self.start),
            "endTime": date(end),
            "lastUpdated": date(modified_ms),
            "duration": last.wrapping_sub(self.start),
            "sparkUser": self.user,
            "completed": self.end.is_some(),
            "exitCode": self.exit_code,
            "appSparkVersion": self.version,
            "startTimeEpoch": self.start,
            "endTimeEpoch": end,
            "lastUpdatedEpoch": modified_ms,
        }));
        let id = self.id.clone().unwrap_or_default();
        json!({"id": id, "name": self.name, "attempts": [attempt]})
    }
}

impl Replay {
    pub(super) fn on_log_start(&mut self, event: &LogStart<'_>) {
        self.application.version = event.version.kept();
    }

    pub(super) fn on_application_start(&mut self, event: &ApplicationStart<'_>) {
        let application = &mut self.application;
        // A second start would be another application: the first one names the folder.
        if application.id.is_some() {
            return;
        }
        application.begin(event);
        if let Some(logs) = &event.driver_logs
            && let Some(driver) = self.executors.get_mut("driver")
        {
            driver.logs.clone_from(logs);
            driver.attributes = event.driver_attributes.clone().unwrap_or_default();
        }
    }

    pub(super) fn on_application_end(&mut self, event: &ApplicationEnd) {
        self.application.end = Some(event.time);
        self.application.exit_code = event.exit_code;
    }

    pub(super) fn on_environment(&mut self, environment: Environment) {
        let cpus = environment.spark.get("spark.task.cpus");
        self.application.task_cpus = cpus.and_then(|cpus| cpus.parse().ok()).unwrap_or(1);
        self.application.environment = Some(environment);
    }

    /// `bytes` are those of the line.
    pub(super) fn on_resource_profile(&mut self, event: &ResourceProfileAdded, bytes: usize) {
        // Values of JSON take more than their text.
        let bytes = 8 * bytes;
        if self.application.profiles.len() >= super::LIVE || !self.held.take(bytes) {
            self.drop_one("resource profiles");
            return;
        }
        let executor = event.executor.iter().map(|(name, request)| {
            let request = json!({
                "resourceName": request.name,
                "amount": request.amount,
                "discoveryScript": request.script,
                "vendor": request.vendor,
            });
            (name.clone(), request)
        });
        let task = event.task.iter().map(|(name, request)| {
            let request = json!({"resourceName": request.name, "amount": request.amount});
            (name.clone(), request)
        });
        let json = json!({
            "id": event.id,
            "executorResources": object(executor),
            "taskResources": object(task),
        });
        let task_cpus = event.task.get("cpus").map_or(1.0, |request| request.amount);
        let profile = Profile {
            json,
            task_cpus: task_cpus as i32,
            bytes,
        };
        if let Some(old) = self.application.profiles.insert(event.id, profile) {
            self.held.give(old.bytes);
        }
    }

    /// Spark shows the application's time as the driver's, and the collections that the driver's peaks have.
    pub(super) fn describe_driver(&self, driver: &mut Value, modified_ms: i64) {
        let last = self.application.end.unwrap_or(modified_ms);
        driver["totalDuration"] = last.wrapping_sub(self.application.start).into();
        if let Some(time) = driver["peakMemoryMetrics"]["TotalGCTime"].as_i64() {
            driver["totalGCTime"] = time.into();
        }
    }

    pub(super) fn finish_application(&mut self, modified_ms: i64) {
        let application = &self.application;
        let id = application.id.clone().unwrap_or_default();
        let json = application.json(modified_ms);
        self.out.meta(Kind::Application, &id, &json);
        if let Some(environment) = &application.environment {
            let json = environment.json(&application.profiles);
            self.out.meta(Kind::Environment, "", &json);
        }
    }
}

impl Environment {
    fn json(&self, profiles: &BTreeMap<i32, Profile>) -> Value {
        let pairs = |pairs: &BTreeMap<String, String>| {
            pairs
                .iter()
                .map(|(key, value)| json!([key, value]))
                .collect::<Value>()
        };
        let redacted = |pairs: &BTreeMap<String, String>| {
            pairs
                .iter()
                .map(|(key, value)| json!([key, redact(key, value)]))
                .collect::<Value>()
        };
        let profiles: Vec<&Value> = profiles.values().map(|profile| &profile.json).collect();
        json!({
            "runtime": present(json!({
                "javaVersion": self.jvm.get("Java Version"),
                "javaHome": self.jvm.get("Java Home"),
                "scalaVersion": self.jvm.get("Scala Version"),
            })),
            "sparkProperties": redacted(&self.spark),
            "hadoopProperties": redacted(&self.hadoop),
            "systemProperties": redacted(&self.system),
            "metricsProperties": redacted(&self.metrics),
            "classpathEntries": pairs(&self.classpath),
            "resourceProfiles": profiles,
        })
    }
}

/// Hides secrets that the driver did not hide itself.
fn redact<'a>(key: &str, value: &'a str) -> &'a str {
    let is_secret = |text: &str| {
        let text = text.to_lowercase();
        SECRETS.iter().any(|secret| text.contains(secret))
    };
    if is_secret(key) || is_secret(value) {
        REDACTED
    } else {
        value
    }
}
