//! Threads that touch what belongs to processes of other users. Such a thread may hang for as long as the process
//! wishes: in a file system that is a program, or behind the process's memory lock. It is then given up: nothing waits
//! for it, its result is taken when it comes back, and until then it takes one of its user's few places (the user is the one whose share the process uses).

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Helpers at a time for processes of one user.
const PER_USER: usize = 2;
/// Helpers at a time.
const ALL: usize = 16;
/// How long a helper may take before it counts as hanging.
pub const BUDGET: Duration = Duration::from_secs(1);

/// A helper that has not come back.
#[derive(Debug)]
struct Running<K> {
    key: K,
    user: u32,
    begin: Instant,
}

/// Number of a job and its result; `None` where it panicked.
type Done<T> = (u64, Option<T>);

/// Runs jobs about processes, each on a thread of its own.
#[derive(Debug)]
pub struct Helpers<K, T> {
    running: HashMap<u64, Running<K>>,
    last: u64,
    done: (Sender<Done<T>>, Receiver<Done<T>>),
}

impl<K, T> Default for Helpers<K, T> {
    fn default() -> Self {
        Self {
            running: HashMap::new(),
            last: 0,
            done: channel(),
        }
    }
}

/// Sends the result when the thread ends, also when the job panics.
struct Ending<T> {
    ticket: u64,
    result: Option<T>,
    done: Sender<Done<T>>,
}

impl<T> Drop for Ending<T> {
    fn drop(&mut self) {
        // Without a receiver the daemon is ending.
        let _ = self.done.send((self.ticket, self.result.take()));
    }
}

impl<K: Copy, T: Send + 'static> Helpers<K, T> {
    /// Whether there is a place for a job about a process of this user.
    pub fn has_place(&self, user: u32) -> bool {
        let own = self.running.values().filter(|running| running.user == user);
        self.running.len() < ALL && own.count() < PER_USER
    }

    /// Starts a job.
    ///
    /// # Errors
    /// When there is no place, or no thread can be made.
    pub fn start(
        &mut self,
        key: K,
        user: u32,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<()> {
        if !self.has_place(user) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.last += 1;
        let ending = Ending {
            ticket: self.last,
            result: None,
            done: self.done.0.clone(),
        };
        std::thread::Builder::new()
            .name("smtt-inspect".into())
            .spawn(move || {
                // The whole value moves into the thread, not only the field that is set.
                let mut ending = ending;
                ending.result = Some(job());
            })?;
        self.running.insert(
            self.last,
            Running {
                key,
                user,
                begin: Instant::now(),
            },
        );
        Ok(())
    }

    /// The next result, after a wait of at most `wait`: the key of the job, and `None` where the job panicked.
    pub fn next(&mut self, wait: Duration) -> Option<(K, Option<T>)> {
        loop {
            let (ticket, result) = self.done.1.recv_timeout(wait).ok()?;
            if let Some(running) = self.running.remove(&ticket) {
                return Some((running.key, result));
            }
        }
    }

    /// Whether a helper is within its time.
    pub fn any_in_time(&self) -> bool {
        let mut running = self.running.values();
        running.any(|running| running.begin.elapsed() < BUDGET)
    }

    /// Keys of the helpers that hang.
    pub fn hanging(&self) -> impl Iterator<Item = K> {
        self.running
            .values()
            .filter(|running| running.begin.elapsed() >= BUDGET)
            .map(|running| running.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    #[test]
    fn a_user_whose_helpers_hang_leaves_places_for_others() {
        let mut helpers: Helpers<u32, u32> = Helpers::default();
        let (release, wait) = sync_channel::<()>(0);
        let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
        for key in 0..PER_USER as u32 {
            let wait = std::sync::Arc::clone(&wait);
            let job = move || {
                let _ = wait.lock().map(|wait| wait.recv());
                key
            };
            helpers.start(key, 1000, job).expect("a place");
        }
        assert!(!helpers.has_place(1000));
        assert!(helpers.start(9, 1000, || 9).is_err());
        helpers.start(7, 0, || 7).expect("a place for another user");
        assert_eq!(helpers.next(BUDGET * 10), Some((7, Some(7))));
        assert_eq!(helpers.next(Duration::ZERO), None);
        assert_eq!(helpers.hanging().count(), 0);
        std::thread::sleep(BUDGET);
        assert_eq!(helpers.hanging().count(), PER_USER);
        drop(release);
        for _ in 0..PER_USER {
            assert!(helpers.next(BUDGET * 10).is_some());
        }
        assert!(helpers.has_place(1000));
    }

    #[test]
    fn a_job_that_panics_gives_its_place_back() {
        let mut helpers: Helpers<u32, u32> = Helpers::default();
        helpers
            .start(1, 0, || panic!("this panic is part of the test"))
            .expect("a place");
        assert_eq!(helpers.next(BUDGET * 10), Some((1, None)));
        assert!(!helpers.any_in_time());
    }

    #[test]
    fn there_is_a_limit_for_all_users() {
        let mut helpers: Helpers<u32, ()> = Helpers::default();
        let (release, wait) = sync_channel::<()>(0);
        let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
        let started = (0..100)
            .filter(|user| {
                let wait = std::sync::Arc::clone(&wait);
                let job = move || {
                    let _ = wait.lock().map(|wait| wait.recv());
                };
                helpers.start(*user, *user, job).is_ok()
            })
            .count();
        assert_eq!(started, ALL);
        drop(release);
    }
}
