//! One inspection of a process, on a helper of its own: the process can make each read of its mappings and page tables
//! wait. A step that takes too long ends the inspection; the helper then takes one of the few places of its user until
//! it comes back.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::inspect::InspectError;
use crate::helpers::{Helpers, JobLimits};

/// Helpers at a time.
const PLACES: JobLimits = JobLimits {
    per_user: 2,
    all: 8,
};
/// Longest time of one step.
const STEP: Duration = Duration::from_secs(2);
/// A step of this length is slow: it inspects at most some hundred pages. A session ends at its
/// [`SLOW_STEPS`]th one, because a process may make each step wait for almost [`STEP`].
const SLOW: Duration = Duration::from_millis(250);
const SLOW_STEPS: u32 = 16;

type Step<T> = Box<dyn FnOnce(&mut T) + Send>;

/// An open process `T`, on a helper.
#[derive(Debug)]
pub struct Session<T> {
    steps: Sender<Step<T>>,
    hangs: Cell<bool>,
    slow_steps: Cell<u32>,
}

/// The helpers of sessions.
#[derive(Debug)]
pub struct Sessions(Helpers<u64, ()>);

impl Default for Sessions {
    fn default() -> Self {
        Self(Helpers::new("smtt-pages", PLACES))
    }
}

impl Sessions {
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
        while self.0.next(Duration::ZERO).is_some() {}
        if self.0.is_running(executor) {
            return Err(InspectError::Hangs);
        }
        let (steps, waiting) = channel::<Step<T>>();
        let (opened, result) = channel();
        let work = move || match open() {
            Ok(mut process) => {
                let _ = opened.send(Ok(()));
                for step in waiting {
                    step(&mut process);
                }
            }
            Err(error) => {
                let _ = opened.send(Err(error));
            }
        };
        let started = self.0.start(executor, user, work);
        started.map_err(|_| InspectError::Hangs)?;
        let session = Session {
            steps,
            hangs: Cell::new(false),
            slow_steps: Cell::new(0),
        };
        session.wait(&result)??;
        Ok(session)
    }

    /// Ends a session. A helper that does not hang is free when this returns.
    pub fn close<T>(&mut self, session: Session<T>) {
        let hangs = session.hangs.get();
        drop(session);
        if !hangs {
            let _ = self.0.next(STEP);
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
        let step = move |process: &mut T| {
            let _ = answer.send(step(process));
        };
        let sent = self.steps.send(Box::new(step));
        sent.map_err(|_| InspectError::Ended)?;
        self.wait(&result)
    }

    fn wait<R>(&self, result: &Receiver<R>) -> Result<R, InspectError> {
        let start = Instant::now();
        let result = result.recv_timeout(STEP).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                self.hangs.set(true);
                InspectError::Hangs
            }
            RecvTimeoutError::Disconnected => InspectError::Ended,
        });
        if start.elapsed() >= SLOW {
            self.slow_steps.set(self.slow_steps.get() + 1);
            if self.slow_steps.get() >= SLOW_STEPS {
                self.hangs.set(true);
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    #[test]
    fn a_process_that_makes_every_step_wait_ends_its_session() {
        let mut sessions = Sessions::default();
        let session = sessions.open(1, 1000, || Ok(7)).expect("opened");
        let slow = |_: &mut i32| std::thread::sleep(SLOW + Duration::from_millis(10));
        for step in 0..SLOW_STEPS {
            assert!(
                session.step(|process| *process).is_ok(),
                "before step {step}"
            );
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
        let mut sessions = Sessions::default();
        let mut held = Vec::new();
        for executor in 0..PLACES.per_user as u64 {
            let (release, wait) = sync_channel::<()>(0);
            held.push(release);
            let session = sessions.open(executor, 1000, || Ok(7)).expect("opened");
            assert_eq!(session.step(|process| *process).ok(), Some(7));
            let begin = Instant::now();
            let hanging = session.step(move |_| wait.recv().is_ok());
            assert!(matches!(hanging, Err(InspectError::Hangs)));
            let next = session.step(|process| *process);
            assert!(matches!(next, Err(InspectError::Hangs)));
            sessions.close(session);
            assert!(begin.elapsed() < STEP * 2, "{:?}", begin.elapsed());
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
        assert!(begin.elapsed() < STEP, "{:?}", begin.elapsed());
        drop(held);
        let until = Instant::now() + STEP;
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
