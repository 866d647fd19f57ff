//! Facts about an executor and its threads, and their decoders.

use super::DecodeError;
use super::fields::Fields;

/// See [`Kind::EXECUTOR_DESCRIBED`](smtt_common::event::Kind::EXECUTOR_DESCRIBED).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorDescribed {
    /// Address of the slot file's header in the JVM.
    pub slots_address: u64,
    /// Slots in the slot file.
    pub slot_count: u64,
    /// Start of the JVM in milliseconds since 1970.
    pub start_unix_ms: u64,
    /// Maximum size of the Java heap, in bytes.
    pub heap_max_bytes: u64,
    /// Number of marker hooks whose target Spark does not have.
    pub missing_hooks: u64,
    /// Flags of the description: how the marker finds addresses on the heap.
    pub flags: u64,
    /// Spark's application id, as the executor claims it.
    pub application_id: String,
    /// Name of the application.
    pub application_name: String,
    /// Spark's executor id, as the executor claims it.
    pub executor_id: String,
    /// Host as Spark names it.
    pub host: String,
    /// Version of Spark.
    pub spark_version: String,
    /// Version of Java.
    pub java_version: String,
    /// Names of the missing hooks, joined with commas.
    pub missing_hook_names: String,
    /// Attempt of the application, where the cluster manager makes several; else empty.
    pub application_attempt_id: String,
    /// Queue of the cluster manager in which the application runs; empty where it has none, as the names of Kubernetes.
    pub queue: String,
    /// Kubernetes namespace, as the executor claims it.
    pub kubernetes_namespace: String,
    /// Kubernetes pod, as the executor claims it.
    pub kubernetes_pod: String,
}

/// Digits of the attempt of an application, at most.
const ATTEMPT_DIGITS: usize = 10;

impl ExecutorDescribed {
    /// Attempt of the application; `None` where its cluster manager makes only one, and where it is no number: folders
    /// have names of an id and an attempt.
    #[must_use]
    pub fn attempt(&self) -> Option<&str> {
        let attempt = self.application_attempt_id.as_str();
        let is_number = (1..=ATTEMPT_DIGITS).contains(&attempt.len())
            && attempt.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then_some(attempt)
    }
}

/// See [`Kind::THREAD_REGISTERED`](smtt_common::event::Kind::THREAD_REGISTERED) and [`Kind::THREAD_GONE`](smtt_common::event::Kind::THREAD_GONE).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadFact {
    /// Address of the slot.
    pub slot_address: u64,
    /// Thread id in the JVM's own pid namespace.
    pub tid: u32,
    /// Generation of the slot: counts its registrations.
    pub generation: u64,
    /// Name of the thread; empty when the thread releases the slot.
    pub name: String,
}

pub(super) fn executor(fields: &Fields<'_>) -> ExecutorDescribed {
    ExecutorDescribed {
        slots_address: fields.word("slots_address"),
        slot_count: fields.word("slot_count"),
        start_unix_ms: fields.word("start_unix_ms"),
        heap_max_bytes: fields.word("heap_max_bytes"),
        missing_hooks: fields.word("missing_hooks"),
        flags: fields.word("flags"),
        application_id: fields.text("application_id"),
        application_name: fields.text("application_name"),
        executor_id: fields.text("executor_id"),
        host: fields.text("host"),
        spark_version: fields.text("spark_version"),
        java_version: fields.text("java_version"),
        missing_hook_names: fields.text("missing_hook_names"),
        application_attempt_id: fields.text("application_attempt_id"),
        queue: fields.text("queue"),
        kubernetes_namespace: fields.text("kubernetes_namespace"),
        kubernetes_pod: fields.text("kubernetes_pod"),
    }
}

/// A thread without its name, which only its registration has.
pub(super) fn thread(fields: &Fields<'_>) -> Result<ThreadFact, DecodeError> {
    Ok(ThreadFact {
        slot_address: fields.word("slot_address"),
        tid: fields.id("tid")?,
        generation: fields.word("generation"),
        name: String::new(),
    })
}

/// See [`Kind::COLLECTOR_PAUSED`](smtt_common::event::Kind::COLLECTOR_PAUSED).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paused {
    /// Number of the pause in the executor's life.
    pub number: u64,
    /// Time from its end to the report.
    pub age_ns: u64,
    /// Duration; `None` where this is no pause: then those before that number, and that time, are reported as far as they
    /// will be, and each one from there on will be.
    pub duration_ns: Option<u64>,
}

pub(super) fn paused(fields: &Fields<'_>) -> Paused {
    Paused {
        number: fields.word("number"),
        age_ns: fields.word("age_ns"),
        duration_ns: fields.optional("duration_ns"),
    }
}
