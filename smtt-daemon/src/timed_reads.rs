//! Readings of what belongs to executors: slot files and command lines. An executor decides how long a read takes, so
//! helpers read, and the caller waits for them for a bounded time.
//!
//! A reading belongs to the round in which it was asked for, as the kernel side's counters of one tick. A reading that
//! comes back later is dropped, and the caller does not wait for that executor again for a while. The time of a reading
//! counts from when its helper begins it: that a busy machine runs a helper late is not the executor's doing.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::helpers::{Helpers, JobLimits};
use smtt_model::sort::small::Gather as _;

/// The caller waits for no executor that was late, for this time; it doubles while the executor stays late.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(64);
/// How long the caller waits for helpers to begin.
const BEGIN_WAIT: Duration = Duration::from_secs(1);

/// An executor that was late.
#[derive(Clone, Copy, Debug)]
struct Late {
    until: Instant,
    pause: Duration,
}

/// When a helper began a reading.
type Begun = Arc<OnceLock<Instant>>;

/// A reading to make: key and user of the executor, and the work.
pub type Wanted<T> = (u64, u32, Box<dyn FnOnce() -> T + Send>);

/// See the module.
#[derive(Debug)]
pub struct TimedReads<T> {
    helpers: Helpers<u64, (u64, T)>,
    round: u64,
    late: HashMap<u64, Late>,
    missed: u64,
    unread: BTreeSet<u64>,
}

impl<T: Send + 'static> TimedReads<T> {
    /// No readings yet. Their threads have this name.
    #[must_use]
    pub fn new(name: &'static str, limits: JobLimits) -> Self {
        Self {
            helpers: Helpers::new(name, limits),
            round: 0,
            late: HashMap::new(),
            missed: 0,
            unread: BTreeSet::new(),
        }
    }

    /// Makes these readings, and waits for each at most for `wait` since it began, for helpers to begin at most
    /// [`BEGIN_WAIT`]. None starts later than `wait` after the first began: executors that are slow one after another
    /// delay the caller by two waits. Every reading that is returned began after this call. What is missing is in [`Self::unread`].
    pub fn read(&mut self, wanted: Vec<Wanted<T>>, wait: Duration) -> Vec<(u64, T)> {
        let begin = Instant::now();
        self.round += 1;
        // Late readings of earlier rounds are dropped.
        while self.helpers.next(Duration::ZERO).is_some() {}
        let mut missing: BTreeSet<u64> = wanted.iter().map(|(key, ..)| *key).gather();
        let mut waiting = VecDeque::from(wanted);
        let (mut awaited, mut read) = (HashMap::new(), Vec::new());
        let mut first_begun = None;
        loop {
            let begun = awaited.values().filter_map(|begun: &Begun| begun.get());
            first_begun = first_begun.into_iter().chain(begun.copied()).min();
            if first_begun.is_none_or(|first| first.elapsed() < wait) {
                self.start(&mut waiting, &mut awaited, begin);
            }
            let ends = awaited.values().map(|begun| match begun.get() {
                Some(began) => (*began + wait).min(begin + BEGIN_WAIT + wait),
                None => begin + BEGIN_WAIT,
            });
            let left = ends.max().map_or(Duration::ZERO, |end| {
                end.saturating_duration_since(Instant::now())
            });
            // One that begins meanwhile has less time than one that has not begun.
            match self.helpers.next(left.min(wait)) {
                Some((key, Some((round, reading)))) if round == self.round => {
                    first_begun.get_or_insert_with(Instant::now);
                    awaited.remove(&key);
                    missing.remove(&key);
                    read.push((key, reading));
                }
                Some((key, _)) => {
                    awaited.remove(&key);
                }
                None if left.is_zero() => break,
                None => {}
            }
        }
        let now = Instant::now();
        // Keys of processes that have ended would otherwise stay.
        self.late.retain(|_, late| now < late.until + PAUSE_MAX);
        let begun = awaited.iter().filter(|(_, begun)| begun.get().is_some());
        for (&key, _) in begun {
            let pause = match self.late.get(&key) {
                Some(late) if now < late.until + late.pause => (late.pause * 2).min(PAUSE_MAX),
                _ => PAUSE,
            };
            let until = now + pause;
            self.late.insert(key, Late { until, pause });
        }
        self.missed += missing.len() as u64;
        self.unread = missing;
        read
    }

    /// Starts the readings that have a place. One whose executor has not answered the last one is left out.
    fn start(
        &mut self,
        waiting: &mut VecDeque<Wanted<T>>,
        awaited: &mut HashMap<u64, Begun>,
        now: Instant,
    ) {
        for _ in 0..waiting.len() {
            let Some((key, user, work)) = waiting.pop_front() else {
                return;
            };
            if self.helpers.is_running(key) {
                continue;
            }
            if !self.helpers.has_place(user) {
                waiting.push_back((key, user, work));
                continue;
            }
            let (round, begun) = (self.round, Begun::default());
            let begin = Arc::clone(&begun);
            let started = self.helpers.start(key, user, move || {
                let _ = begin.set(Instant::now());
                (round, work())
            });
            let is_late = self.late.get(&key).is_some_and(|late| now < late.until);
            if started.is_ok() && !is_late {
                awaited.insert(key, begun);
            }
        }
    }

    /// Executors without a reading in the last round.
    pub const fn unread(&self) -> &BTreeSet<u64> {
        &self.unread
    }

    /// Rounds so far.
    pub const fn rounds(&self) -> u64 {
        self.round
    }

    /// Readings that were missing since the start.
    pub const fn missed(&self) -> u64 {
        self.missed
    }

    /// Forgets an executor.
    pub fn forget(&mut self, executor: u64) {
        self.late.remove(&executor);
        self.unread.remove(&executor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    /// A wait that is waited out; a busy machine makes quick readings in it.
    const WAIT: Duration = Duration::from_secs(2);
    /// A wait that no test waits out: a caller that waits for a hanging reading needs this time at least.
    const LONG: Duration = Duration::from_secs(120);
    const PLACES: JobLimits = JobLimits {
        per_user: 8,
        all: 24,
    };

    fn quick(key: u64) -> Wanted<u64> {
        (key, 0, Box::new(move || key))
    }

    /// A reading that ends when the sender is dropped.
    fn hanging(key: u64) -> (Wanted<u64>, SyncSender<()>) {
        let (release, wait): (_, Receiver<()>) = sync_channel(0);
        let wait = Mutex::new(wait);
        let work = move || {
            let _ = wait.lock().map(|wait| wait.recv());
            key
        };
        ((key, 0, Box::new(work)), release)
    }

    fn sorted(mut read: Vec<(u64, u64)>) -> Vec<u64> {
        read.sort_unstable();
        read.into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn an_executor_whose_file_hangs_delays_no_other_and_is_waited_for_once() {
        let mut reads = TimedReads::new("test", PLACES);
        let (slow, release) = hanging(1);
        let mut wanted: Vec<_> = (2..40).map(quick).collect();
        wanted.insert(0, slow);
        let begin = Instant::now();
        let others: Vec<u64> = (2..40).collect();
        assert_eq!(sorted(reads.read(wanted, WAIT)), others);
        // Once for all, not once for each.
        assert!(begin.elapsed() < WAIT * 30, "{:?}", begin.elapsed());
        assert!(reads.unread().contains(&1));
        let begin = Instant::now();
        for round in 0..20 {
            let wanted = (1..40).map(quick).collect();
            assert_eq!(sorted(reads.read(wanted, LONG)), others, "round {round}");
            assert_eq!(reads.missed(), round + 2);
        }
        assert!(begin.elapsed() < LONG, "{:?}", begin.elapsed());
        drop(release);
    }

    #[test]
    fn a_late_reading_is_never_taken_for_one_of_a_later_round() {
        let mut reads = TimedReads::new("test", PLACES);
        let (slow, release) = hanging(1);
        assert!(reads.read(vec![slow], WAIT / 100).is_empty());
        drop(release);
        let until = Instant::now() + WAIT * 20;
        let mut read = Vec::new();
        while read.is_empty() && Instant::now() < until {
            let work: Wanted<u64> = (1, 0, Box::new(|| 77));
            read = reads.read(vec![work], WAIT);
            std::thread::sleep(WAIT / 200);
        }
        assert_eq!(read, [(1, 77)], "the late one said 1");
    }

    #[test]
    fn a_user_whose_files_all_hang_leaves_places_to_others() {
        let mut reads = TimedReads::new("test", PLACES);
        let mut held = Vec::new();
        let mut wanted = Vec::new();
        for key in 0..64 {
            let ((key, _, work), release) = hanging(key);
            wanted.push((key, 1000, work));
            held.push(release);
        }
        wanted.push(quick(99));
        let begin = Instant::now();
        assert_eq!(sorted(reads.read(wanted, WAIT)), [99]);
        assert!(begin.elapsed() < WAIT * 30, "{:?}", begin.elapsed());
        assert_eq!(reads.unread().len(), 64);
        let begin = Instant::now();
        assert_eq!(sorted(reads.read(vec![quick(99)], LONG)), [99]);
        assert!(begin.elapsed() < LONG, "{:?}", begin.elapsed());
        drop(held);
    }

    #[test]
    fn a_user_whose_files_are_slow_one_after_another_does_not_add_the_waits_up() {
        let mut reads = TimedReads::new("test", PLACES);
        let (wait, slow) = (Duration::from_millis(50), Duration::from_millis(40));
        let wanted = (0..64).map(|key| -> Wanted<u64> {
            let work = move || {
                std::thread::sleep(slow);
                key
            };
            (key, 1000, Box::new(work))
        });
        // Those that begin at once, and those that take their places.
        let read = reads.read(wanted.collect(), wait).len();
        assert!(read <= 2 * PLACES.per_user, "{read}");
    }

    #[test]
    fn the_pause_doubles_while_an_executor_stays_late() {
        let mut reads = TimedReads::new("test", PLACES);
        for pause in [PAUSE, PAUSE * 2, PAUSE * 4] {
            let (slow, release) = hanging(1);
            assert!(reads.read(vec![slow], WAIT / 200).is_empty());
            assert_eq!(reads.late[&1].pause, pause);
            drop(release);
            // As if the pause had passed.
            let late = reads.late.get_mut(&1).expect("it was late");
            late.until = Instant::now();
            while reads.helpers.is_running(1) {
                let _ = reads.helpers.next(WAIT);
            }
        }
    }
}
