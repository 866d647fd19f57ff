//! What the event loop does, for those that must know it without waiting for it: the step that it is in and since when.
//! A thread of its own ([`watch`]) logs steps that take long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A step that takes longer is logged, and `smtt-ctl status` is degraded.
pub const LONG: Duration = Duration::from_secs(2);
/// After this time in one step the daemon no longer calls itself healthy.
pub const UNHEALTHY: Duration = Duration::from_secs(30);
/// Time between two checks of the event loop.
const CHECK: Duration = Duration::from_millis(500);
/// Time between two lines of the log about the same step.
const SAME_STEP: Duration = Duration::from_secs(60);

/// A step of the event loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// It waits for work.
    Wait,
    /// It decodes a batch of records.
    Decode,
    /// It applies a batch of events to the state.
    Apply,
    /// It adds a found executor to the kernel side's tables.
    AdoptExecutor,
    /// It reads the kernel side's counters.
    ReadCounters,
    /// It reads the slot files of executors.
    ReadSlotFiles,
    /// It applies the readings to the state.
    ApplyReadings,
    /// It removes dead executors from the kernel side's tables.
    ForgetExecutors,
    /// It checks probes and counts losses.
    Account,
}

const STEPS: [Step; 9] = [
    Step::Wait,
    Step::Decode,
    Step::Apply,
    Step::AdoptExecutor,
    Step::ReadCounters,
    Step::ReadSlotFiles,
    Step::ApplyReadings,
    Step::ForgetExecutors,
    Step::Account,
];

impl Step {
    /// The step in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wait => "waiting for work",
            Self::Decode => "decoding records",
            Self::Apply => "applying events",
            Self::AdoptExecutor => "adopting an executor",
            Self::ReadCounters => "reading counters",
            Self::ReadSlotFiles => "reading slot files",
            Self::ApplyReadings => "applying readings",
            Self::ForgetExecutors => "forgetting executors",
            Self::Account => "checking probes",
        }
    }
}

/// The step of the event loop and its beginning, in one word that is read and written without a lock.
#[derive(Debug)]
pub struct Progress {
    origin: Instant,
    /// Milliseconds since `origin` in the upper 56 bits, the step in the lower 8.
    stamp: AtomicU64,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            origin: Instant::now(),
            stamp: AtomicU64::new(0),
        }
    }
}

impl Progress {
    /// The event loop enters a step.
    pub fn enter(&self, step: Step) {
        let since = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX >> 8);
        self.stamp
            .store(since << 8 | step as u64, Ordering::Relaxed);
    }

    /// The step, its beginning, and the time in it.
    fn now(&self) -> (Step, u64, Duration) {
        let stamp = self.stamp.load(Ordering::Relaxed);
        let step = STEPS[(stamp & 0xff) as usize % STEPS.len()];
        let since = Duration::from_millis(stamp >> 8);
        (step, stamp, self.origin.elapsed().saturating_sub(since))
    }

    /// The step that has taken longer than `limit`, and how long; `None` while the event loop makes progress.
    #[must_use]
    pub fn longer_than(&self, limit: Duration) -> Option<(Step, Duration)> {
        let (step, _, time) = self.now();
        (step != Step::Wait && time > limit).then_some((step, time))
    }
}

/// Logs steps that take longer than [`LONG`], until the last other owner of the progress is gone. One line a minute for
/// each step.
pub fn watch(progress: &Arc<Progress>) {
    let progress = Arc::downgrade(progress);
    let watch = move || {
        let mut logged = [None::<(u64, Instant)>; STEPS.len()];
        while let Some(progress) = progress.upgrade() {
            let (step, stamp, time) = progress.now();
            let last = &mut logged[step as usize];
            let again = last.is_none_or(|(known, at)| known != stamp && at.elapsed() > SAME_STEP);
            if step != Step::Wait && time > LONG && again {
                *last = Some((stamp, Instant::now()));
                tracing::warn!(
                    "the event loop has been {} for {:.1} s",
                    step.name(),
                    time.as_secs_f64()
                );
            }
            drop(progress);
            std::thread::sleep(CHECK);
        }
    };
    let thread = std::thread::Builder::new().name("smtt-watch".into());
    if let Err(error) = thread.spawn(watch) {
        tracing::error!("steps that take long are not logged: no thread for it: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_keeps_its_name_on_the_way_through_a_number() {
        let progress = Progress::default();
        for step in STEPS {
            progress.enter(step);
            assert_eq!(progress.now().0, step);
        }
    }

    #[test]
    fn waiting_is_never_long_and_work_is() {
        let progress = Progress::default();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(progress.longer_than(Duration::from_millis(5)), None);
        progress.enter(Step::AdoptExecutor);
        assert_eq!(progress.longer_than(Duration::from_secs(5)), None);
        std::thread::sleep(Duration::from_millis(20));
        let long = progress.longer_than(Duration::from_millis(5));
        let (step, time) = long.expect("it takes long");
        assert_eq!(step, Step::AdoptExecutor);
        assert!(time >= Duration::from_millis(10), "{time:?}");
    }
}
