//! Why an executor died: what is known of the death ([`Case`]), the rules that judge it ([`rules::RULES`]), and the page
//! that is kept ([`Report`]).
//!
//! Pure, as the rest of this crate: the daemon adds what only the machine knows ([`Outside`]).

mod advice;
mod case;
mod evidence;
pub mod rules;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::rows::{ExecutorId, MemoryRow};
use crate::state::{LastMoment, MemorySample};

pub use case::{Case, CgroupLimits, Exhaustion, FULL_PERCENT, Outside, signal_name};

/// Declares the verdicts with their names in JSON, tables and metrics.
macro_rules! verdicts {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal,)*) => {
        /// Why a process died.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Verdict {
            $($(#[doc = $doc])* #[serde(rename = $text)] $name,)*
            /// No rule applies, or the verdict is one of a later version.
            #[default]
            #[serde(rename = "unknown", other)]
            Unknown,
        }

        impl Verdict {
            /// All verdicts.
            pub const ALL: &'static [Self] = &[$(Self::$name,)* Self::Unknown];

            /// The verdict's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                    Self::Unknown => "unknown",
                }
            }
        }
    };
}

verdicts! {
    /// It ended by itself with exit code 0.
    Ended = "ended",
    /// It ended by itself with another exit code.
    Exited = "exited",
    /// Spark, or the process that started it, stopped it.
    StoppedBySpark = "stopped_by_spark",
    /// The JVM ran out of its Java heap.
    HeapExhausted = "heap_exhausted",
    /// The JVM ran out of memory for classes.
    MetaspaceExhausted = "metaspace_exhausted",
    /// The JVM ran out of direct buffers.
    DirectMemoryExhausted = "direct_memory_exhausted",
    /// The JVM could not start a thread.
    ThreadsExhausted = "threads_exhausted",
    /// The JVM ran out of memory; which is not known.
    OutOfMemoryError = "out_of_memory_error",
    /// The kernel's OOM killer, at the limit of a cgroup.
    OomKilledCgroup = "oom_killed_cgroup",
    /// The kernel's OOM killer, because the machine had no memory left.
    OomKilledMachine = "oom_killed_machine",
    /// The kernel's OOM killer; at which limit is not known.
    OomKilled = "oom_killed",
    /// The JVM crashed.
    Crashed = "crashed",
    /// A signal of another process.
    KilledBySignal = "killed_by_signal",
    /// A signal ended a Python worker; the JVM lived on.
    PythonWorkerKilled = "python_worker_killed",
    /// The machine stopped or restarted while it ran.
    LostWithMachine = "lost_with_machine",
    /// Its end was not seen.
    Lost = "lost",
}

impl Verdict {
    /// Whether the process ended as it should.
    #[must_use]
    pub const fn ended_well(self) -> bool {
        matches!(self, Self::Ended | Self::StoppedBySpark)
    }
}

/// Bytes of a text in the list of deaths that are kept.
const LISTED_TEXT: usize = 512;

impl Row {
    /// Cuts long texts, which executors choose, for the list. The report has all of them.
    pub fn cut(&mut self) {
        let who = &mut self.who;
        let texts = [
            &mut who.application_id,
            &mut who.application_attempt_id,
            &mut who.executor_id,
            &mut self.application_name,
        ];
        texts.into_iter().flatten().for_each(cut);
        cut(&mut self.sentence);
    }

    /// Bytes of the row in an answer, at most.
    #[must_use]
    pub fn answer_bytes(&self) -> usize {
        // Names and numbers of the fields; a control character takes six bytes.
        const FIELDS: usize = 512;
        let who = &self.who;
        let texts = [
            &who.application_id,
            &who.application_attempt_id,
            &who.executor_id,
            &self.application_name,
        ];
        let texts = texts.into_iter().flatten().map(String::len).sum::<usize>();
        FIELDS + 6 * (self.id.len() + self.sentence.len() + texts)
    }
}

fn cut(text: &mut String) {
    if text.len() > LISTED_TEXT {
        text.truncate(text.floor_char_boundary(LISTED_TEXT));
        text.push('…');
    }
}

/// What grew during the sampled time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    /// Name of the figure.
    pub what: String,
    /// Bytes in the first sample that has it.
    pub from_bytes: u64,
    /// Bytes in the last sample that has it.
    pub to_bytes: u64,
}

/// One line of the list of deaths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Identity of the report.
    pub id: String,
    /// Time of the death in milliseconds since 1970.
    pub died_unix_ms: u64,
    /// The executor.
    #[serde(flatten)]
    pub who: ExecutorId,
    /// Name of the application as the executor claims it.
    #[serde(default)]
    pub application_name: Option<String>,
    /// The child that died, where it was not the JVM.
    #[serde(default)]
    pub child_pid: Option<u32>,
    /// The verdict.
    pub verdict: Verdict,
    /// The verdict in one sentence.
    pub sentence: String,
}

/// The page about one death.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Who, when and why.
    #[serde(flatten)]
    pub row: Row,
    /// Host as Spark names it.
    #[serde(default)]
    pub host: Option<String>,
    /// Time from the executor's first record to the death, in nanoseconds.
    #[serde(default)]
    pub watched_ns: u64,
    /// What the verdict rests on.
    #[serde(default)]
    pub evidence: Vec<String>,
    /// Time of the death, in nanoseconds since boot, for the times of the samples.
    #[serde(default)]
    pub died_ns: u64,
    /// Maximum size of the Java heap, in bytes.
    #[serde(default)]
    pub heap_max_bytes: Option<u64>,
    /// Most bytes of the process that were resident at once, by the kernel's count.
    #[serde(default)]
    pub peak_rss_bytes: Option<u64>,
    /// Limits and counts of the cgroup.
    #[serde(default)]
    pub cgroup: Option<CgroupLimits>,
    /// Memory over the last two minutes, the oldest sample first.
    #[serde(default)]
    pub samples: Vec<MemorySample>,
    /// What grew meanwhile, the largest growth first.
    #[serde(default)]
    pub growth: Vec<Growth>,
    /// What it held and ran at its end.
    #[serde(default)]
    pub last: LastMoment,
    /// Where its memory was at its end, with the limits; the ages are those at its end. Absent where the kernel was not
    /// asked, and in reports of earlier versions.
    #[serde(default)]
    pub memory: Option<Box<MemoryRow>>,
    /// What to change.
    #[serde(default)]
    pub advice: Vec<String>,
}

/// Answer of the list of deaths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deaths {
    /// The deaths, the newest first.
    pub rows: Vec<Row>,
    /// Older deaths that are left out, beyond the limit of an answer.
    #[serde(default)]
    pub left_out: u64,
    /// Reports that wait for the disk.
    #[serde(default)]
    pub waiting: u64,
    /// Reports that were lost because neither disk nor memory had room, and deaths whose executors had to leave the table first.
    #[serde(default)]
    pub lost: u64,
    /// Why reports cannot be written; empty where they can.
    #[serde(default)]
    pub failing: String,
}

/// Reports in advance: what there would be to say of each living executor if it were lost now, with the machine or while no
/// daemon runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InAdvance {
    /// The kernel's id of this run of the machine.
    pub boot_id: String,
    /// A report for each executor.
    pub reports: Vec<Report>,
    /// Reports of deaths that are judged and not on the disk yet.
    #[serde(default)]
    pub waiting: Vec<Report>,
}

/// How an executor was lost of which only a report in advance is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftBehind {
    /// The machine has started again since.
    Machine,
    /// The process is gone, and no daemon ran when it ended.
    Unwatched,
    /// The process is gone, and the daemon that ran when it ended had no record of it.
    Unseen,
}

impl Report {
    /// Whether a row is about the end of the process that this report in advance is about. The time of this report is that of
    /// the last record, and reports in advance are made every `every_ms` milliseconds, or later where they cannot be written.
    /// What the process says of itself may have come after this report.
    #[must_use]
    pub fn is_ended_by(&self, row: &Row, every_ms: u64) -> bool {
        let (own, other) = (&self.row.who, &row.who);
        let earliest_ms = self.row.died_unix_ms.saturating_sub(2 * every_ms);
        row.child_pid.is_none()
            && (own.pid, own.uid) == (other.pid, other.uid)
            && row.died_unix_ms >= earliest_ms
    }

    /// The report of an executor that left this report in advance.
    #[must_use]
    pub fn left_behind(mut self, how: LeftBehind) -> Self {
        let (verdict, sentence) = match how {
            LeftBehind::Machine => (
                Verdict::LostWithMachine,
                "The machine stopped or restarted while it ran; the time is that of its last record.",
            ),
            LeftBehind::Unwatched => (
                Verdict::Lost,
                "It ended while no daemon ran; the time is that of its last record.",
            ),
            LeftBehind::Unseen => (
                Verdict::Lost,
                "Its end was not seen, because it had no record since the daemon started; the time is that of its last record.",
            ),
        };
        self.row.verdict = verdict;
        sentence.clone_into(&mut self.row.sentence);
        self
    }
}

/// Judges a death.
#[must_use]
pub fn judge(case: &Case, died_unix_ms: u64) -> Report {
    let (verdict, sentence) = rules::verdict(case);
    let died_ns = case.died_ns;
    Report {
        row: Row {
            id: format!("{died_unix_ms:013}-{}", case.subject_pid()),
            died_unix_ms,
            who: case.who.clone(),
            application_name: case.application_name.clone(),
            child_pid: case.child.as_ref().map(|child| child.what.pid),
            verdict,
            sentence,
        },
        host: case.host.clone(),
        watched_ns: died_ns.saturating_sub(case.first_seen_ns),
        evidence: evidence::evidence(case),
        died_ns,
        heap_max_bytes: case.heap_max_bytes,
        peak_rss_bytes: case.end().map(|end| end.peak_rss_bytes),
        cgroup: case.outside.cgroup.clone(),
        samples: case.samples.clone(),
        growth: evidence::growth(case),
        last: case.last.clone(),
        memory: case.memory.clone(),
        advice: advice::advice(case, verdict),
    }
}
