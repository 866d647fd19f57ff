//! One inspection of a process, on a helper of its own: the process can make each read of its mappings and page tables
//! wait. A step that takes too long ends the inspection; the helper then takes one of the few places of its user until
//! it comes back.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::inspect::InspectError;
use crate::helpers::{Helpers, JobLimits};

/// Helpers at a time.
const PLACES: JobLimits = JobLimits {
    per_user: 2,
    all: 8,
};
/// Longest time of one step, since its helper began it.
const STEP: Duration = Duration::from_secs(2);
/// A step of this length is slow: it inspects at most some hundred pages. A session ends at its
/// [`SLOW_STEPS`]th one, because a process may make each step wait for almost [`STEP`].
const SLOW: Duration = Duration::from_millis(250);
const SLOW_STEPS: u32 = 16;

/// Longest time until a helper begins a step: a busy machine, no process, makes it late.
const BEGIN: Duration = Duration::from_secs(10);

/// Times that a session allows.
#[derive(Clone, Copy, Debug)]
struct Times {
    step: Duration,
    slow: Duration,
}

/// When a helper began a step.
type Begun = Arc<OnceLock<Instant>>;

/// What a helper answers: the step's result and time.
type Answer<R> = (R, Duration);

/// Runs a step on its helper.
fn timed<R>(begun: &Begun, step: impl FnOnce() -> R) -> Answer<R> {
    let begin = *begun.get_or_init(Instant::now);
    let result = step();
    (result, begin.elapsed())
}

type Step<T> = Box<dyn FnOnce(&mut T) + Send>;

/// An open process `T`, on a helper.
#[derive(Debug)]
pub struct Session<T> {
    steps: Sender<Step<T>>,
    hangs: Cell<bool>,
    slow_steps: Cell<u32>,
    times: Times,
}

/// The helpers of sessions.
#[derive(Debug)]
pub struct Sessions {
    helpers: Helpers<u64, ()>,
    times: Times,
}

impl Default for Sessions {
    fn default() -> Self {
        Self::with(Times {
            step: STEP,
            slow: SLOW,
        })
    }
}

impl Sessions {
    fn with(times: Times) -> Self {
        Self {
            helpers: Helpers::new("smtt-pages", PLACES),
            times,
        }
    }

    /// Opens a process of an executor and a user, on a helper.
    ///
    /// # Errors
    /// When the process cannot be opened in time, or has not answered the last inspection.
    pub fn open<T: 'static>(
        &mut self,
        executor: u64,
        user: u32,
        open: impl FnOnce() -> Result<T, InspectError> + Send + 'static,
    ) -> Result<Session<T>, InspectError> {
        while self.helpers.next(Duration::ZERO).is_some() {}
        if self.helpers.is_running(executor) {
            return Err(InspectError::Hangs);
        }
        let (steps, waiting) = channel::<Step<T>>();
        let (opened, result) = channel();
        let begun = Begun::default();
        let begin = Arc::clone(&begun);
        let work = move || match timed(&begin, open) {
            (Ok(mut process), time) => {
                let _ = opened.send((Ok(()), time));
                for step in waiting {
                    step(&mut process);
                }
            }
            (Err(error), time) => {
                let _ = opened.send((Err(error), time));
            }
        };
        let started = self.helpers.start(executor, user, work);
        started.map_err(|_| InspectError::Hangs)?;
        let session = Session {
            steps,
            hangs: Cell::new(false),
            slow_steps: Cell::new(0),
            times: self.times,
        };
        session.wait(&begun, &result)??;
        Ok(session)
    }

    /// Ends a session. A helper that does not hang is free when this returns.
    pub fn close<T>(&mut self, session: Session<T>) {
        let hangs = session.hangs.get();
        drop(session);
        if !hangs {
            let _ = self.helpers.next(self.times.step);
        }
    }
}

impl<T> Session<T> {
    /// Runs a step with the process.
    ///
    /// # Errors
    /// When it takes too long.
    pub fn step<R: Send + 'static>(
        &self,
        step: impl FnOnce(&mut T) -> R + Send + 'static,
    ) -> Result<R, InspectError> {
        if self.hangs.get() {
            return Err(InspectError::Hangs);
        }
        let (answer, result) = channel();
        let begun = Begun::default();
        let begin = Arc::clone(&begun);
        let step = move |process: &mut T| {
            let _ = answer.send(timed(&begin, || step(process)));
        };
        let sent = self.steps.send(Box::new(step));
        sent.map_err(|_| InspectError::Ended)?;
        self.wait(&begun, &result)
    }

    fn wait<R>(&self, begun: &Begun, result: &Receiver<Answer<R>>) -> Result<R, InspectError> {
        let Times { step, slow } = self.times;
        let asked = Instant::now();
        let (result, time) = loop {
            let end = begun.get().map_or(asked + BEGIN, |begun| *begun + step);
            let left = end.saturating_duration_since(Instant::now());
            // One that begins meanwhile has less time than one that has not begun.
            match result.recv_timeout(left.min(step)) {
                Ok(answer) => break answer,
                Err(RecvTimeoutError::Disconnected) => return Err(InspectError::Ended),
                Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                    self.hangs.set(true);
                    return Err(InspectError::Hangs);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        };
        if time >= slow {
            self.slow_steps.set(self.slow_steps.get() + 1);
            if self.slow_steps.get() >= SLOW_STEPS {
                self.hangs.set(true);
            }
        }
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    /// A time that no test waits out.
    const LONG: Duration = Duration::from_secs(120);
    const PATIENT: Times = Times {
        step: LONG,
        slow: LONG,
    };
    /// A time that is waited out.
    const SHORT: Duration = Duration::from_millis(50);

    #[test]
    fn a_process_that_makes_every_step_wait_ends_its_session() {
        let mut sessions = Sessions::with(PATIENT);
        let mut session = sessions.open(1, 1000, || Ok(7)).expect("opened");
        let slow = |_: &mut i32| std::thread::sleep(SHORT + Duration::from_millis(10));
        for step in 0..SLOW_STEPS {
            session.times.slow = LONG;
            assert!(
                session.step(|process| *process).is_ok(),
                "before step {step}"
            );
            session.times.slow = SHORT;
            assert!(session.step(slow).is_ok(), "step {step}");
        }
        assert!(matches!(
            session.step(|process| *process),
            Err(InspectError::Hangs)
        ));
        sessions.close(session);
    }

    #[test]
    fn a_process_that_hangs_is_given_up_and_keeps_no_place_of_others() {
        let mut sessions = Sessions::with(PATIENT);
        let mut held = Vec::new();
        for executor in 0..PLACES.per_user as u64 {
            let (release, wait) = sync_channel::<()>(0);
            held.push(release);
            let mut session = sessions.open(executor, 1000, || Ok(7)).expect("opened");
            assert_eq!(session.step(|process| *process).ok(), Some(7));
            let begin = Instant::now();
            session.times.step = SHORT;
            let hanging = session.step(move |_| wait.recv().is_ok());
            assert!(matches!(hanging, Err(InspectError::Hangs)));
            // Nothing waits for it again.
            session.times.step = LONG;
            let next = session.step(|process| *process);
            assert!(matches!(next, Err(InspectError::Hangs)));
            sessions.close(session);
            assert!(begin.elapsed() < LONG, "{:?}", begin.elapsed());
        }
        let begin = Instant::now();
        for executor in [0, 99] {
            let refused = sessions.open(executor, 1000, || Ok(0));
            assert!(matches!(refused, Err(InspectError::Hangs)), "{executor}");
        }
        for executor in 100..120 {
            let session = sessions.open(executor, 2000, || Ok(1)).expect("opened");
            sessions.close(session);
        }
        assert!(begin.elapsed() < LONG, "{:?}", begin.elapsed());
        drop(held);
        let until = Instant::now() + LONG;
        while sessions.open(0, 1000, || Ok(0)).is_err() {
            assert!(
                Instant::now() < until,
                "it came back and is inspected again"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_process_that_cannot_be_opened_is_an_error() {
        let mut sessions = Sessions::default();
        let ended = sessions.open::<()>(1, 0, || Err(InspectError::Ended));
        assert!(matches!(ended, Err(InspectError::Ended)));
    }
}
