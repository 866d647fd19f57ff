//! What running tasks have used so far, read at the daemon's pace. Such figures are replaced by the accounts at the
//! task's end and are in no sum.

use smtt_common::event::used::{
    ACCOUNTS, CALL_READ_BYTES, CPU_NS, FAULTS_MAJOR, FAULTS_MINOR, KERNEL_ACCOUNTS,
};

use super::bytes::Caps;
use super::splits::{CPU, FAULTS, HEAP, Live, Parts, Point, READ, Splits, Totals, WALKS};
use super::task::{Task, TaskState, Tasks};
use super::used::Used;
use super::{Meaning, Outcome, State};

/// A reading of a running task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskReading {
    /// Id of the task attempt.
    pub task_attempt_id: u64,
    /// Growth of each account of [`smtt_common::event::used`] since the task's first reading.
    pub accounts: [u64; ACCOUNTS],
    /// A bit for each account that both readings have.
    pub present: u32,
    /// Time since the first reading, in nanoseconds.
    pub duration_ns: u64,
    /// The task began before its first reading.
    pub partial: bool,
    /// Virtual memory of the process, in bytes.
    pub virtual_bytes: Option<u64>,
    /// Resident memory of the process, in bytes.
    pub resident_bytes: Option<u64>,
}

/// The figures of a task to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// The figures.
    pub figures: Used,
    /// Where they end: a word of [`super::Until`], `now`, or `last_reading` where the task has ended and its accounts
    /// have not arrived.
    pub until: Option<&'static str>,
    /// Time that they cover, in nanoseconds.
    pub duration_ns: u64,
    /// The task began before its first reading.
    pub partial: bool,
}

/// The series that add up, of these figures.
fn totals(figures: &Used, walks: Option<u64>) -> Totals {
    let mut totals = [None; super::splits::SUMS];
    totals[CPU] = figures.account(CPU_NS);
    totals[HEAP] = figures.heap_allocated_bytes;
    totals[FAULTS] = figures
        .account(FAULTS_MINOR)
        .zip(figures.account(FAULTS_MAJOR))
        .map(|(minor, major)| minor.saturating_add(major));
    totals[READ] = figures.account(CALL_READ_BYTES);
    totals[WALKS] = walks;
    totals
}

impl Live {
    fn figures(&self) -> Used {
        let heap = Some(self.heap_bytes).filter(|bytes| *bytes != u64::MAX);
        let mut accounts = [0; ACCOUNTS];
        accounts[..KERNEL_ACCOUNTS].copy_from_slice(&self.accounts);
        Used::so_far(accounts, self.present, self.duration_ns, heap)
    }
}

impl Task {
    /// The figures to show: the accounts at the end, or those of the last reading.
    #[must_use]
    pub fn shown(&self) -> Shown {
        match (self.used.until, self.splits.live()) {
            (None, Some(live)) => Shown {
                figures: live.figures(),
                until: Some(match self.state.ended() {
                    true => "last_reading",
                    false => "now",
                }),
                duration_ns: live.duration_ns,
                partial: live.partial,
            },
            (until, _) => Shown {
                figures: self.used.figures,
                until: until.map(super::Until::name),
                duration_ns: self.used.duration_ns,
                partial: self.used.partial,
            },
        }
    }

    /// The shape of the task's series and their totals; `None` where the kernel's accounts of it are not known.
    #[must_use]
    pub fn parts(&self, meaning: Option<&Meaning>) -> Option<(Parts, Totals)> {
        let shown = self.shown();
        if shown.duration_ns == 0 {
            return None;
        }
        let totals = totals(&shown.figures, self.walk_samples(meaning));
        let parts = match &self.splits {
            Splits::None => Parts::even(),
            Splits::Live(live) => Parts::new(&live.points, shown.duration_ns, &totals),
            Splits::Ended(parts) => **parts,
        };
        Some((parts, totals))
    }

    /// Samples of page walks; absent where they are not measured.
    fn walk_samples(&self, meaning: Option<&Meaning>) -> Option<u64> {
        let figures = &meaning?.figures;
        let samples = figures.iter().map(|figure| self.walks.samples[figure.of]);
        (!figures.is_empty()).then(|| samples.sum())
    }

    /// Keeps a reading; `false` where the bytes do not fit or the task has its last accounts.
    fn read(&mut self, reading: &TaskReading, meaning: Option<&Meaning>, caps: &Caps) -> bool {
        let walks = self.walk_samples(meaning);
        let execution = self.live_bytes;
        let Some(live) = self.live(caps) else {
            return false;
        };
        live.accounts
            .copy_from_slice(&reading.accounts[..KERNEL_ACCOUNTS]);
        live.present = reading.present & ((1 << KERNEL_ACCOUNTS) - 1);
        live.duration_ns = reading.duration_ns;
        live.partial = reading.partial;
        let states = [
            reading.virtual_bytes,
            reading.resident_bytes,
            Some(execution),
        ];
        let sums = totals(&live.figures(), walks);
        live.points
            .push(Point::new(reading.duration_ns, &sums, &states));
        true
    }

    /// Whether readings count: the task runs, and its accounts have not arrived.
    fn is_read(&self) -> bool {
        self.state == TaskState::Running && self.used.until.is_none()
    }

    /// The place of the readings; `None` where they do not count, or the bytes do not fit.
    fn live(&mut self, caps: &Caps) -> Option<&mut Live> {
        if !self.is_read() {
            return None;
        }
        if matches!(self.splits, Splits::None) && caps.admit(size_of::<Live>()) {
            self.splits = Splits::Live(Box::default());
        }
        match &mut self.splits {
            Splits::Live(live) => Some(live),
            _ => None,
        }
    }

    /// The accounts of the task's end have arrived: only the shape of its series is kept.
    pub(super) fn close(&mut self) {
        if let Splits::Live(live) = &self.splits {
            let totals = totals(&self.used.figures, None);
            let parts = Parts::new(&live.points, self.used.duration_ns, &totals);
            self.splits = Splits::Ended(Box::new(parts));
        }
    }
}

impl Tasks {
    /// The marker reported what a running task has allocated on the heap.
    pub(super) fn heap_so_far(&mut self, id: u64, bytes: u64, caps: &Caps) -> Outcome {
        let Some(mut task) = self.tasks.get_mut(&id) else {
            return Outcome::Ignored("task_not_known");
        };
        if let Some(live) = task.live(caps) {
            live.heap_bytes = bytes;
            return Outcome::Applied;
        }
        if task.is_read() {
            Outcome::OverCap("bytes")
        } else {
            // A reading from another thread that came after the end: the exact figures are there, nothing is lost.
            Outcome::Applied
        }
    }
}

impl State {
    /// Applies readings of an executor's running tasks. Those of tasks that are not known, or have their last accounts
    /// already, have no effect.
    pub fn tasks_read(&mut self, executor: u64, readings: &[TaskReading]) {
        let meaning = self.page_walks.take();
        self.change_known(executor, |executor, caps| {
            for reading in readings {
                if let Some(mut task) = executor.tasks.tasks.get_mut(&reading.task_attempt_id) {
                    task.read(reading, meaning.as_ref(), caps);
                }
            }
        });
        self.page_walks = meaning;
    }

    /// The shape of a task's series and their totals.
    pub(crate) fn parts_of_task(&self, task: &Task) -> Option<(Parts, Totals)> {
        task.parts(self.page_walks.as_ref())
    }
}
