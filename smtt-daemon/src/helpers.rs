//! Threads that touch what belongs to processes of other users. Such a thread may hang for as long as the process
//! wishes: in a file system that is a program, or behind the process's memory lock. It is then given up: nothing waits
//! for it, its result is taken when it comes back, and until then it takes one of its user's few places. The user is the
//! one whose share the process uses.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How long a helper may take before it counts as hanging.
pub const BUDGET: Duration = Duration::from_secs(1);
/// Threads that wait for the next job; further ones end with their job.
const IDLE: usize = 4;

/// How many jobs run at a time.
#[derive(Clone, Copy, Debug)]
pub struct JobLimits {
    /// For processes of one user.
    pub per_user: usize,
    /// For processes of all users.
    pub all: usize,
}

type Job<T> = Box<dyn FnOnce() -> T + Send>;
/// Number of a job and its result; `None` where it panicked.
type Done<T> = (u64, Option<T>);
/// A thread that runs the jobs it is sent.
type Worker<T> = Sender<(u64, Job<T>)>;

/// A helper that has not come back.
#[derive(Debug)]
struct Running<K, T> {
    key: K,
    user: u32,
    begin: Instant,
    worker: Worker<T>,
}

/// Runs jobs about processes, each on a thread that does nothing else meanwhile.
#[derive(Debug)]
pub struct Helpers<K, T> {
    name: &'static str,
    limits: JobLimits,
    running: HashMap<u64, Running<K, T>>,
    idle: Vec<Worker<T>>,
    last: u64,
    done: (Sender<Done<T>>, Receiver<Done<T>>),
}

/// Sends the result when the job ends, also when it panics.
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

impl<K: Copy + PartialEq, T: Send + 'static> Helpers<K, T> {
    /// Helpers whose threads have this name.
    #[must_use]
    pub fn new(name: &'static str, limits: JobLimits) -> Self {
        Self {
            name,
            limits,
            running: HashMap::new(),
            idle: Vec::new(),
            last: 0,
            done: channel(),
        }
    }

    /// Whether there is a place for a job about a process of this user.
    pub fn has_place(&self, user: u32) -> bool {
        let own = self.running.values().filter(|running| running.user == user);
        self.running.len() < self.limits.all && own.count() < self.limits.per_user
    }

    /// Whether a job with this key has not come back.
    pub fn is_running(&self, key: K) -> bool {
        self.running.values().any(|running| running.key == key)
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
        let worker = match self.idle.pop() {
            Some(worker) => worker,
            None => self.worker()?,
        };
        worker
            .send((self.last, Box::new(job)))
            .map_err(|_| io::ErrorKind::BrokenPipe)?;
        let running = Running {
            key,
            user,
            begin: Instant::now(),
            worker,
        };
        self.running.insert(self.last, running);
        Ok(())
    }

    /// A new thread. It ends when its sender is dropped.
    fn worker(&self) -> io::Result<Worker<T>> {
        let (worker, jobs) = channel::<(u64, Job<T>)>();
        let done = self.done.0.clone();
        let work = move || {
            for (ticket, job) in jobs {
                let mut ending = Ending {
                    ticket,
                    result: None,
                    done: done.clone(),
                };
                ending.result = Some(job());
            }
        };
        let builder = std::thread::Builder::new().name(self.name.into());
        builder.spawn(work)?;
        Ok(worker)
    }

    /// The next result, after a wait of at most `wait`: the key of the job, and `None` where the job panicked.
    pub fn next(&mut self, wait: Duration) -> Option<(K, Option<T>)> {
        loop {
            let (ticket, result) = self.done.1.recv_timeout(wait).ok()?;
            if let Some(running) = self.running.remove(&ticket) {
                // The thread of a job that panicked has ended.
                if result.is_some() && self.idle.len() < IDLE {
                    self.idle.push(running.worker);
                }
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

    const PLACES: JobLimits = JobLimits {
        per_user: 2,
        all: 16,
    };

    #[test]
    fn a_user_whose_helpers_hang_leaves_places_for_others() {
        let mut helpers: Helpers<u32, u32> = Helpers::new("test", PLACES);
        let (release, wait) = sync_channel::<()>(0);
        let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
        for key in 0..PLACES.per_user as u32 {
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
        assert_eq!(helpers.hanging().count(), PLACES.per_user);
        drop(release);
        for _ in 0..PLACES.per_user {
            assert!(helpers.next(BUDGET * 10).is_some());
        }
        assert!(helpers.has_place(1000));
    }

    #[test]
    fn a_job_that_panics_gives_its_place_back() {
        let mut helpers: Helpers<u32, u32> = Helpers::new("test", PLACES);
        helpers
            .start(1, 0, || panic!("this panic is part of the test"))
            .expect("a place");
        assert_eq!(helpers.next(BUDGET * 10), Some((1, None)));
        assert!(!helpers.any_in_time());
    }

    #[test]
    fn a_thread_runs_one_job_after_another() {
        let mut helpers: Helpers<u32, std::thread::ThreadId> = Helpers::new("test", PLACES);
        let mut threads = std::collections::HashSet::new();
        for key in 0..100 {
            let job = || std::thread::current().id();
            helpers.start(key, 0, job).expect("a place");
            assert!(helpers.is_running(key));
            let (back, thread) = helpers.next(BUDGET * 10).expect("it comes back");
            assert!(back == key && !helpers.is_running(key));
            threads.extend(thread);
        }
        assert_eq!(threads.len(), 1);
    }

    #[test]
    fn there_is_a_limit_for_all_users() {
        let mut helpers: Helpers<u32, ()> = Helpers::new("test", PLACES);
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
        assert_eq!(started, PLACES.all);
        drop(release);
    }
}
