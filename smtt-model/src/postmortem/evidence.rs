//! What a verdict rests on, in lines, and what grew before the death.

use super::Growth;
use super::case::{Case, signal_name};
use crate::decode::ProcessEnd;
use crate::sort::small::sort_by_key;
use crate::state::{MemorySample, part_text};
use crate::units::{bytes, duration};

/// Lines of evidence, those of the kernel first.
pub(super) fn evidence(case: &Case) -> Vec<String> {
    let mut lines = Vec::new();
    let before = |time_ns: u64| match case.died_ns.checked_sub(time_ns) {
        Some(ns) => format!("{} before the end", duration(ns)),
        None => format!("{} after the end", duration(time_ns - case.died_ns)),
    };
    match case.end() {
        Some(end) => lines.push(format!(
            "kernel: process {} {}; it had at most {} resident",
            case.subject_pid(),
            ending(end),
            bytes(end.peak_rss_bytes)
        )),
        None => lines.push("kernel: no record of how the process ended".into()),
    }
    for note in &case.oom {
        lines.push(format!(
            "kernel: the OOM killer chose process {} ({}), {}",
            note.what.victim_pid,
            if note.what.is_executor {
                "the JVM"
            } else {
                "a child of the JVM"
            },
            before(note.time_ns)
        ));
    }
    for line in &case.outside.kernel_log {
        lines.push(format!("kernel log: {line}"));
    }
    for note in &case.signals {
        let sent = &note.what.sent;
        let who = if sent.from_kernel {
            format!("the kernel, while process {} ran", sent.sender_pid)
        } else {
            let own = if note.what.from_own {
                ", of the executor itself"
            } else {
                ""
            };
            format!(
                "process {} ({}, user {}{own})",
                sent.sender_pid, sent.sender_name, sent.sender_uid
            )
        };
        lines.push(format!(
            "kernel: {} from {who}, {}",
            signal_name(sent.signal),
            before(note.time_ns)
        ));
    }
    for note in &case.child_ends {
        let own = case.child.as_ref().map(|child| child.what.pid);
        if own != Some(note.what.pid) {
            lines.push(format!(
                "kernel: child {} ({}) {}, {}; it had at most {} resident",
                note.what.pid,
                note.what.end.name,
                ending(&note.what.end),
                before(note.time_ns),
                bytes(note.what.end.peak_rss_bytes)
            ));
        }
    }
    if let Some(cgroup) = &case.outside.cgroup {
        lines.push(cgroup_line(cgroup));
    }
    for note in &case.exhausted {
        let thread = note
            .task_attempt_id
            .map_or_else(String::new, |task| format!(" on the thread of task {task}"));
        let what = if note.what.uncaught {
            "error that no code caught"
        } else {
            "out of a resource"
        };
        lines.push(format!(
            "JVM: {what}: {}{thread}, {}",
            note.what.description,
            before(note.time_ns)
        ));
    }
    for option in &case.outside.options {
        lines.push(format!("JVM option: {option}"));
    }
    if let Some(path) = &case.outside.crash_report {
        lines.push(format!("JVM: crash report {path}"));
    }
    lines
}

fn ending(end: &ProcessEnd) -> String {
    match (end.signal(), end.exit_code()) {
        (Some(signal), _) => format!("was ended by {}", signal_name(signal)),
        (None, Some(code)) => format!("exited with code {code}"),
        (None, None) => "ended".into(),
    }
}

fn cgroup_line(cgroup: &super::CgroupLimits) -> String {
    let mut parts = Vec::new();
    let mut figure = |name: &str, value: Option<u64>| {
        if let Some(value) = value {
            parts.push(format!("{name} {}", bytes(value)));
        }
    };
    figure("limit", cgroup.limit_bytes);
    figure("peak", cgroup.peak_bytes);
    figure("last", cgroup.current_bytes);
    let mut count = |name: &str, value: Option<(u64, u64)>| {
        if let Some((before, after)) = value {
            parts.push(format!("{name} {before} before, {after} after"));
        }
    };
    count("limit hits", cgroup.limit_hits);
    count("OOM kills", cgroup.oom_kills);
    format!(
        "cgroup {} (version {}): {}",
        cgroup.path,
        cgroup.version,
        parts.join(", ")
    )
}

/// A figure of a sample.
type Figure = fn(&MemorySample) -> Option<u64>;

/// Figures that can grow. Parts of others come after them.
const FIGURES: &[(&str, Figure)] = &[
    ("anonymous memory of the JVM", |sample| {
        sample.anonymous_bytes
    }),
    ("mapped files of the JVM", |sample| sample.file_bytes),
    ("shared memory of the JVM", |sample| sample.shared_bytes),
    ("swapped memory of the JVM", |sample| sample.swapped_bytes),
    ("children, such as Python workers", |sample| {
        sample.children_bytes
    }),
    ("Spark's storage memory", |sample| sample.storage_bytes),
    ("Spark's execution memory", |sample| sample.execution_bytes),
    ("Java heap in use", |sample| sample.heap_used_bytes),
    ("cgroup", |sample| sample.cgroup_bytes),
];

/// Parts of the memory that are figures of the samples too.
const SAMPLED_PARTS: &[&str] = &["mapped_files", "shared_memory"];

/// Smallest growth that is named, in bytes.
const GROWTH_MIN: u64 = 1 << 20;

/// What grew from the first to the last sample, the largest growth first: a sum comes before a part of it that grew as
/// much.
pub(super) fn growth(case: &Case) -> Vec<Growth> {
    let samples = case.samples.iter();
    let of_samples = FIGURES.iter().filter_map(|(what, figure)| {
        let from_bytes = samples.clone().find_map(figure)?;
        let to_bytes = samples.clone().rev().find_map(figure)?;
        Some((*what, from_bytes, to_bytes))
    });
    let parts = case.memory.iter().flat_map(|memory| &memory.parts);
    let of_parts = parts.filter_map(|part| {
        let (_, from) = case
            .first_parts
            .iter()
            .find(|(name, _)| *name == part.name)?;
        let bytes = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
        // The samples have it from each second.
        let is_sampled = SAMPLED_PARTS.contains(&part.name.as_str());
        (!is_sampled).then(|| (part_text(&part.name), bytes(*from), bytes(part.bytes)))
    });
    let mut all: Vec<Growth> = of_samples
        .chain(of_parts)
        .filter(|(_, from, to)| *to >= from.saturating_add(GROWTH_MIN))
        .map(|(what, from_bytes, to_bytes)| Growth {
            what: what.into(),
            from_bytes,
            to_bytes,
        })
        .collect();
    sort_by_key(&mut all, |growth| {
        u64::MAX - (growth.to_bytes - growth.from_bytes)
    });
    all
}
