//! What to change, with numbers where they are known.

use super::Verdict;
use super::case::Case;
use crate::units::bytes;

/// Unit of a suggested size.
const STEP: u64 = 256 << 20;
/// Room above what was needed, in percent.
const ROOM_PERCENT: u64 = 10;

/// Sentences for the user.
pub(super) fn advice(case: &Case, verdict: Verdict) -> Vec<String> {
    match verdict {
        Verdict::HeapExhausted => heap(case),
        Verdict::OutOfMemoryError => vec![
            "Look for the OutOfMemoryError in the executor's log: its text says what ran out.".into(),
        ],
        Verdict::MetaspaceExhausted => vec![format!(
            "Raise -XX:MaxMetaspaceSize{} in spark.executor.extraJavaOptions, and spark.executor.memoryOverhead by as much; classes that are generated again and again are a leak.",
            option(case, "-XX:MaxMetaspaceSize=")
        )],
        Verdict::DirectMemoryExhausted => vec![format!(
            "Raise -XX:MaxDirectMemorySize{} in spark.executor.extraJavaOptions, and spark.executor.memoryOverhead by as much. Without the option the limit is that of the heap.",
            option(case, "-XX:MaxDirectMemorySize=")
        )],
        Verdict::ThreadsExhausted => vec![format!(
            "The JVM had {} threads: raise the limit of processes (ulimit -u, pids.max of the cgroup), or use fewer threads.",
            case.last_figure(|sample| sample.threads)
                .map_or_else(|| "too many".into(), |threads| threads.to_string())
        )],
        Verdict::OomKilledCgroup | Verdict::PythonWorkerKilled => cgroup(case),
        Verdict::OomKilled => {
            let mut lines = cgroup(case);
            lines.push("Compare the sum of all executors' limits with the machine's memory.".into());
            lines
        }
        Verdict::OomKilledMachine => vec![format!(
            "The processes of this worker need more memory than the machine has; this executor held {}. Run fewer executors here, or lower SPARK_WORKER_MEMORY.",
            total(case).map_or_else(|| "an unknown part".into(), bytes)
        )],
        Verdict::Crashed => vec![
            "The crash report names the library and the function; a native library of the application is the usual cause.".into(),
        ],
        _ => Vec::new(),
    }
}

/// The value of an option, for a sentence.
fn option(case: &Case, beginning: &str) -> String {
    let mut all = case.outside.options.iter();
    all.find_map(|option| option.strip_prefix(beginning))
        .map_or_else(String::new, |value| format!(" (now {value})"))
}

fn heap(case: &Case) -> Vec<String> {
    let mut lines = Vec::new();
    let most = case.heap_max_bytes;
    let suggested = most.map(|most| rounded(most.saturating_add(most / 2)));
    lines.push(match (most, suggested) {
        (Some(most), Some(more)) => format!(
            "The heap has at most {}: try spark.executor.memory={}, or smaller partitions.",
            bytes(most),
            spark_size(more)
        ),
        _ => "Raise spark.executor.memory, or make partitions smaller.".into(),
    });
    if case.last.running > 1 {
        // As many as give each task what the larger heap would give it.
        let fewer = (case.last.running * 2 / 3).max(1);
        lines.push(format!(
            "{} tasks ran at once{}: {fewer} instead of {} cores (spark.executor.cores) leave as much more to each.",
            case.last.running,
            case.last
                .tasks
                .first()
                .filter(|task| task.execution_bytes > 0)
                .map_or_else(String::new, |task| format!(
                    ", task {} held {} of execution memory",
                    task.task_attempt_id,
                    bytes(task.execution_bytes)
                )),
            case.last.running,
        ));
    }
    lines
}

/// Memory of the JVM and of its children at the last sample.
fn total(case: &Case) -> Option<u64> {
    let jvm = case.last_figure(|sample| sample.resident_bytes)?;
    Some(
        jvm + case
            .last_figure(|sample| sample.children_bytes)
            .unwrap_or(0),
    )
}

/// A cgroup's limit is the heap and the overhead: what did not fit is in the overhead.
fn cgroup(case: &Case) -> Vec<String> {
    let limit = case
        .outside
        .cgroup
        .as_ref()
        .and_then(|cgroup| cgroup.limit_bytes);
    let (Some(limit), Some(heap)) = (limit, case.heap_max_bytes) else {
        return Vec::new();
    };
    let overhead = limit.saturating_sub(heap);
    // The children's own peak, where one died, is later than the last sample.
    let ended = case
        .child_ends
        .iter()
        .map(|note| note.what.end.peak_rss_bytes);
    let children = case
        .largest(|sample| sample.children_bytes)
        .unwrap_or(0)
        .max(ended.max().unwrap_or(0));
    let native = case
        .largest(|sample| sample.resident_bytes)
        .unwrap_or(0)
        .max(case.jvm_end.as_ref().map_or(0, |end| end.peak_rss_bytes))
        .saturating_sub(heap);
    let needed = children + native;
    let mut parts = Vec::new();
    if children > 0 {
        parts.push(format!(
            "Python workers and other children needed {}",
            bytes(children)
        ));
    }
    if native > 0 {
        parts.push(format!("the JVM needed {} besides its heap", bytes(native)));
    }
    let needs = if parts.is_empty() {
        "the processes needed more".into()
    } else {
        parts.join(", ")
    };
    let suggested = rounded(
        (needed.max(overhead.saturating_add(STEP)) / 100).saturating_mul(100 + ROOM_PERCENT),
    );
    let cores = fewer(case.last.running, children, overhead.saturating_sub(native));
    vec![format!(
        "The limit of {} leaves {} beside a heap of {}, and {needs}: spark.executor.memoryOverhead={}{cores}.",
        bytes(limit),
        bytes(overhead),
        bytes(heap),
        spark_size(suggested)
    )]
}

/// How many tasks' Python workers fit into the room that there is, for a sentence; nothing where not one task's do.
fn fewer(running: u64, children: u64, room: u64) -> String {
    if running < 2 {
        return String::new();
    }
    if children == 0 {
        return ", or fewer cores per executor (spark.executor.cores)".into();
    }
    // With room for all of them at the last sample, what was needed later did not fit.
    let fit = (u128::from(room) * u128::from(running) / u128::from(children)) as u64;
    match fit.min(running - 1) {
        0 => String::new(),
        fit => format!(", or {fit} instead of {running} cores (spark.executor.cores)"),
    }
}

fn rounded(size: u64) -> u64 {
    size.div_ceil(STEP).max(1).saturating_mul(STEP)
}

/// A size in Spark's notation.
fn spark_size(size: u64) -> String {
    if size.is_multiple_of(1 << 30) {
        format!("{}g", size >> 30)
    } else {
        format!("{}m", size >> 20)
    }
}
