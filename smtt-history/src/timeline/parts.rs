//! Where the time of a task attempt went, from Spark's metrics. The parts add up to the duration.

/// Number of parts.
pub const PARTS: usize = 9;

/// A part of a task's duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Name in answers and URLs.
    pub key: &'static str,
    /// Name on pages.
    pub title: &'static str,
    /// Where it comes from.
    pub source: &'static str,
}

const fn part(key: &'static str, title: &'static str, source: &'static str) -> Part {
    Part { key, title, source }
}

/// All parts, in the order in which a task is drawn. Only the lengths are measured, not the order.
pub const ALL: [Part; PARTS] = [
    part(
        "delay",
        "scheduler delay",
        "duration without deserialisation, run time, serialisation and getting the result",
    ),
    part(
        "deserialize",
        "deserialisation",
        "Executor Deserialize Time",
    ),
    part("fetch", "shuffle fetch wait", "Fetch Wait Time"),
    part("gc", "garbage collection", "JVM GC Time"),
    part("write", "shuffle write", "Shuffle Write Time"),
    part(
        "cpu",
        "running on a CPU",
        "Executor CPU Time, as far as the run time has room beside the three before",
    ),
    part(
        "other",
        "other run time",
        "what remains of the run time: waiting for disks, locks, a CPU or Python",
    ),
    part(
        "serialize",
        "result serialisation",
        "Result Serialization Time",
    ),
    part("result", "getting result", "Getting Result Time"),
];

/// Times of a task attempt, all in one unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Finish minus launch.
    pub duration: u64,
    /// Executor Deserialize Time.
    pub deserialize: u64,
    /// Executor Run Time.
    pub run: u64,
    /// Executor CPU Time.
    pub cpu: u64,
    /// Fetch Wait Time.
    pub fetch: u64,
    /// JVM GC Time.
    pub gc: u64,
    /// Shuffle Write Time.
    pub write: u64,
    /// Result Serialization Time.
    pub serialize: u64,
    /// Finish minus Getting Result Time.
    pub result: u64,
}

/// Divides a duration. Metrics may claim more than there is (clocks differ, a collection stops every thread of the
/// executor): a part gets at most what those before it left, in the order of the statements below.
#[must_use]
pub fn divide(times: &Times) -> [u64; PARTS] {
    let mut left = times.duration;
    let mut take = |wanted: u64| {
        let taken = wanted.min(left);
        left -= taken;
        taken
    };
    let (deserialize, run) = (take(times.deserialize), take(times.run));
    let (serialize, result) = (take(times.serialize), take(times.result));
    let delay = left;
    let mut left = run;
    let mut take = |wanted: u64| {
        let taken = wanted.min(left);
        left -= taken;
        taken
    };
    let (fetch, gc) = (take(times.fetch), take(times.gc));
    // The CPU time has that of the shuffle write in it.
    let (write, cpu) = (take(times.write), take(times.cpu));
    [
        delay,
        deserialize,
        fetch,
        gc,
        write,
        cpu,
        left,
        serialize,
        result,
    ]
}

/// Index of the largest part; `None` where all are zero.
#[must_use]
pub fn largest(parts: &[u32; PARTS]) -> Option<usize> {
    let (at, most) = parts.iter().enumerate().max_by_key(|(_, part)| **part)?;
    (*most > 0).then_some(at)
}
