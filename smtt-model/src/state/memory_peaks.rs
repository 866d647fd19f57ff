//! Peaks under the names of Spark's executor metrics, of an executor and of each stage that ran on it, and the
//! execution memory that the tasks of a stage held together.

use std::collections::BTreeMap;

use smtt_common::event::memory::{PEAK_METRICS, PeakMetric};

use super::bytes::Caps;
use super::task::{TaskState, Tasks};
use super::{Executor, Outcome};
use crate::attribute::StageKey;
use crate::decode::{Figure, PeaksReported};

/// A peak and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peak {
    /// The highest value.
    pub value: u64,
    /// When it was reached, in nanoseconds since boot: when it was first seen, where nothing says more.
    pub time_ns: u64,
}

/// Peaks by metric. What was not measured is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    values: [u64; PEAK_METRICS],
    times_ns: [u64; PEAK_METRICS],
    present: u32,
}

impl Peaks {
    /// The peak of a metric.
    #[must_use]
    pub fn of(&self, metric: PeakMetric) -> Option<Peak> {
        let at = usize::from(metric.0);
        let known = at < PEAK_METRICS && self.present & 1 << at != 0;
        known.then(|| Peak {
            value: self.values[at],
            time_ns: self.times_ns[at],
        })
    }

    /// Takes a value of a metric at a time.
    pub(super) fn see(&mut self, metric: PeakMetric, value: u64, time_ns: u64) {
        if self.of(metric).is_none_or(|known| known.value < value)
            && metric.name().is_some()
            && let Some(known) = self.values.get_mut(usize::from(metric.0))
        {
            *known = value;
            self.times_ns[usize::from(metric.0)] = time_ns;
            self.present |= 1 << metric.0;
        }
    }

    /// Takes what the marker reported at a time.
    fn take(&mut self, figures: &[Figure], now_ns: u64) {
        for figure in figures {
            let age_ns = figure.age_ms.saturating_mul(1_000_000);
            self.see(
                PeakMetric(figure.code),
                figure.value,
                now_ns.saturating_sub(age_ns),
            );
        }
    }
}

/// Execution memory that the tasks of one stage hold together, from each grant and release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageHeld {
    /// Bytes that its running tasks hold.
    pub bytes: u64,
    /// The most that they held together.
    pub peak_bytes: u64,
    /// When that was, in nanoseconds since boot.
    pub peak_ns: u64,
    /// A grant or a release was not reported, or before the stage was known: the peak may be too high or too low.
    pub partial: bool,
}

impl StageHeld {
    /// A task of the stage holds other bytes than before.
    pub(super) fn change(&mut self, before: u64, after: u64, now_ns: u64) {
        self.bytes = self.bytes.saturating_sub(before).saturating_add(after);
        if self.bytes > self.peak_bytes {
            (self.peak_bytes, self.peak_ns) = (self.bytes, now_ns);
        }
    }

    /// A task of the stage held this much before its stage was known.
    pub(super) fn join(&mut self, bytes: u64, peak_bytes: u64, now_ns: u64) {
        if peak_bytes == 0 {
            return;
        }
        // What the stage's other tasks held at the task's own peak is not known.
        self.partial = true;
        self.change(0, bytes, now_ns);
        self.at_least(peak_bytes, now_ns);
    }

    /// The tasks together held this much once.
    fn at_least(&mut self, bytes: u64, now_ns: u64) {
        if bytes > self.peak_bytes {
            (self.peak_bytes, self.peak_ns) = (bytes, now_ns);
        }
    }
}

impl Tasks {
    /// Applies a change of a task's execution memory.
    pub(super) fn memory_changed(&mut self, id: Option<u64>, change_bytes: i64, now_ns: u64) {
        let Some(mut task) = id.and_then(|id| self.tasks.get_mut(&id)) else {
            return;
        };
        if task.state.ended() {
            // It has given back all: what comes now was under way.
            return;
        }
        let before = task.live_bytes;
        task.live_bytes = before.saturating_add_signed(change_bytes);
        task.seen_peak_bytes = task.seen_peak_bytes.max(task.live_bytes);
        let (after, stage) = (task.live_bytes, task.stage);
        drop(task);
        if let Some(mut stage) = stage.and_then(|stage| self.stages.get_mut(&stage)) {
            stage.held.change(before, after, now_ns);
        }
    }

    /// A task has ended and holds nothing any more. `told_peak_bytes` is the peak of its memory as the executor counts it:
    /// another one than was seen here shows that a grant or a release was not reported.
    pub(super) fn gave_back(&mut self, id: u64, told_peak_bytes: u64, now_ns: u64) {
        let Some(mut task) = self.tasks.get_mut(&id) else {
            return;
        };
        let held = std::mem::take(&mut task.live_bytes);
        let (seen, stage) = (task.seen_peak_bytes, task.stage);
        drop(task);
        if let Some(mut stage) = stage.and_then(|stage| self.stages.get_mut(&stage)) {
            stage.held.change(held, 0, now_ns);
            stage.held.partial |= seen != told_peak_bytes;
            stage.held.at_least(told_peak_bytes, now_ns);
        }
    }

    /// Sets what the running tasks hold to the truth: a snapshot of all pages is complete, or pages turned out to be
    /// given back.
    pub(super) fn hold_exactly(&mut self, truth: &BTreeMap<u64, u64>, now_ns: u64) {
        let wrong: Vec<(u64, u64)> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.state == TaskState::Running)
            .map(|(id, task)| (*id, task.live_bytes, truth.get(id).copied().unwrap_or(0)))
            .filter(|(_, live, held)| live != held)
            .map(|(id, _, held)| (id, held))
            .collect();
        for (id, held) in wrong {
            let Some(mut task) = self.tasks.get_mut(&id) else {
                continue;
            };
            let before = std::mem::replace(&mut task.live_bytes, held);
            task.seen_peak_bytes = task.seen_peak_bytes.max(held);
            let stage = task.stage;
            drop(task);
            if let Some(mut stage) = stage.and_then(|stage| self.stages.get_mut(&stage)) {
                stage.held.partial = true;
                stage.held.change(before, held, now_ns);
            }
        }
    }
}

impl Tasks {
    /// Takes what a reading of the executor's processes says for the stages that run: `since` for those that ran at the
    /// reading at `before_ns` too, `now` for the others.
    pub(super) fn processes_seen(
        &mut self,
        now: &[(PeakMetric, u64)],
        since: &[(PeakMetric, u64)],
        before_ns: u64,
        now_ns: u64,
        caps: &Caps,
    ) {
        let running: Vec<StageKey> = self
            .stages
            .iter()
            .filter(|(_, stage)| stage.count(TaskState::Running) > 0)
            .map(|(key, _)| *key)
            .collect();
        for key in running {
            let Some(mut stage) = self.stages.get_mut(&key) else {
                continue;
            };
            if stage.peaks.is_none() && !caps.admit(size_of::<Peaks>()) {
                continue;
            }
            let ran_before = stage.read_ns == before_ns && before_ns > 0;
            stage.read_ns = now_ns;
            let peaks = stage.peaks.get_or_insert_default();
            for (metric, value) in if ran_before { since } else { now } {
                peaks.see(*metric, *value, now_ns);
            }
        }
    }
}

impl Executor {
    /// The marker reported peaks.
    pub(super) fn peaks_reported(
        &mut self,
        told: &PeaksReported,
        now_ns: u64,
        caps: &Caps,
    ) -> Outcome {
        let Some((id, attempt)) = told.stage else {
            self.peaks.take(&told.figures, now_ns);
            return Outcome::Applied;
        };
        let full = self.tasks.stages_full(caps);
        let Some(mut stage) = self.tasks.stage(StageKey::new(id, attempt), caps) else {
            return Outcome::OverCap(full);
        };
        if stage.peaks.is_none() {
            if !caps.admit(size_of::<Peaks>()) {
                return Outcome::OverCap("bytes");
            }
            stage.peaks = Some(Box::default());
        }
        if let Some(peaks) = &mut stage.peaks {
            peaks.take(&told.figures, now_ns);
        }
        Outcome::Applied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_keeps_its_time_and_never_falls() {
        let mut peaks = Peaks::default();
        let told = |code, value, age_ms| Figure {
            code,
            age_ms,
            value,
        };
        assert_eq!(peaks.of(PeakMetric::JVM_HEAP), None);
        let heap = PeakMetric::JVM_HEAP.0;
        peaks.take(&[told(heap, 0, 0), told(99, 7, 0), told(0, 7, 0)], 50);
        let nothing = Peak {
            value: 0,
            time_ns: 50,
        };
        assert_eq!(peaks.of(PeakMetric::JVM_HEAP), Some(nothing));
        peaks.take(&[told(heap, 9, 1)], 5_000_000);
        peaks.take(&[told(heap, 8, 0)], 6_000_000);
        let peak = Peak {
            value: 9,
            time_ns: 4_000_000,
        };
        assert_eq!(peaks.of(PeakMetric::JVM_HEAP), Some(peak));
        assert_eq!(peaks.of(PeakMetric::JVM_OFF_HEAP), None);
        // An age beyond the boot is no time before it.
        peaks.take(&[told(heap, 10, u64::MAX >> 8)], 5);
        assert_eq!(
            peaks.of(PeakMetric::JVM_HEAP).map(|peak| peak.time_ns),
            Some(0)
        );
    }

    #[test]
    fn a_stage_holds_what_its_tasks_hold_together() {
        let mut held = StageHeld::default();
        held.change(0, 10, 1);
        held.change(0, 5, 2);
        held.change(10, 0, 3);
        held.change(5, 9, 4);
        assert_eq!(
            held,
            StageHeld {
                bytes: 9,
                peak_bytes: 15,
                peak_ns: 2,
                partial: false
            }
        );
    }
}
