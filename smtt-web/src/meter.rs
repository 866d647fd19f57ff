//! Measures the progress of one connection's answers. The listener needs it to choose a connection to close where it is full,
//! and to end answers below the least rate.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::connections::Endless;

/// A connection makes room for a new one when it has no request this long after its beginning, and its stream was read.
/// Until then the request may be there and not read yet.
const SILENT: Duration = Duration::from_millis(20);
/// So does one that has written nothing for this time, because its client does not read.
const BLOCKED: Duration = Duration::from_millis(100);
/// So does the one with the least rate among those whose answers began this long ago.
const SETTLED: Duration = Duration::from_millis(200);

/// Progress of an answer. Times are milliseconds since the connection began, plus one; 0 stands for none.
#[derive(Debug)]
pub struct Meter {
    origin: Instant,
    read: AtomicBool,
    asked: AtomicU64,
    begun: AtomicU64,
    blocked: AtomicU64,
    written: AtomicU64,
    /// When the last bytes of the answer were handed over, and then when the client had them, where the connection waits for
    /// another request.
    rested: AtomicU64,
    /// The client sent bytes after its request.
    heard: AtomicBool,
    /// The answer has no time limit.
    pub endless: Endless,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            origin: Instant::now(),
            read: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            blocked: AtomicU64::new(0),
            written: AtomicU64::new(0),
            rested: AtomicU64::new(0),
            heard: AtomicBool::new(false),
            endless: Endless::default(),
        }
    }
}

/// How soon a connection is closed to make room for a new one: the greatest rank first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvictionRank {
    /// Bytes per second of an answer that began some time ago, subtracted from the greatest number.
    Slow(u64),
    /// Milliseconds for which nothing could be written.
    Blocked(u64),
    /// Milliseconds without a request.
    Silent(u64),
}

impl Meter {
    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    /// The stream was read, and had no more bytes.
    pub fn wait_for_bytes(&self) {
        self.read.store(true, Ordering::Relaxed);
    }

    /// The head of the request is complete. What was written before it, for a handshake, is no part of the answer.
    pub fn ask(&self) {
        for figure in [&self.begun, &self.blocked, &self.written, &self.rested] {
            figure.store(0, Ordering::Relaxed);
        }
        self.heard.store(false, Ordering::Relaxed);
        self.asked.store(self.now(), Ordering::Relaxed);
    }

    /// The answer is complete, and the connection may carry another request.
    pub fn rest(&self) {
        self.rested.store(self.now(), Ordering::Relaxed);
    }

    /// Whether the answer is complete, and the connection may carry another request.
    pub fn rests(&self) -> bool {
        self.rested.load(Ordering::Relaxed) != 0
    }

    /// The client sent bytes.
    pub fn hear(&self) {
        self.heard.store(true, Ordering::Relaxed);
    }

    /// Whether the client sent bytes after its last request.
    pub fn has_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    /// The kernel took bytes of the answer.
    pub fn wrote(&self, bytes: usize) {
        let _ = self
            .begun
            .compare_exchange(0, self.now(), Ordering::Relaxed, Ordering::Relaxed);
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The kernel takes no more bytes until the client has read some, or takes them again.
    pub fn set_blocked(&self, blocked: bool) {
        if !blocked {
            self.blocked.store(0, Ordering::Relaxed);
            return;
        }
        let _ = self
            .blocked
            .compare_exchange(0, self.now(), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// How long the answer may go on without further progress before it is below the least rate.
    pub fn patience(&self, rate: u64, first: Duration) -> Duration {
        let begun = match self.begun.load(Ordering::Relaxed) {
            0 => self.now(),
            begun => begun,
        };
        let paid = self.written.load(Ordering::Relaxed).saturating_mul(1000) / rate.max(1);
        let until = begun + paid.max(first.as_millis() as u64);
        Duration::from_millis(until.saturating_sub(self.now()))
    }

    /// The rank of the connection among those that may make room for a new one. One whose client waits for its answer has
    /// none.
    pub fn eviction_rank(&self) -> Option<EvictionRank> {
        let now = self.now();
        let since = |time: u64| now.saturating_sub(time);
        if self.asked.load(Ordering::Relaxed) == 0 {
            let silent = u128::from(now) > SILENT.as_millis() && self.read.load(Ordering::Relaxed);
            return silent.then_some(EvictionRank::Silent(now));
        }
        let rested = self.rested.load(Ordering::Relaxed);
        if rested != 0 && self.blocked.load(Ordering::Relaxed) == 0 {
            let silent = u128::from(since(rested)) > SILENT.as_millis();
            return silent.then_some(EvictionRank::Silent(since(rested)));
        }
        let begun = self.begun.load(Ordering::Relaxed);
        if begun == 0 || self.endless.is_set() {
            return None;
        }
        let blocked = self.blocked.load(Ordering::Relaxed);
        if blocked != 0 && u128::from(since(blocked)) >= BLOCKED.as_millis() {
            return Some(EvictionRank::Blocked(since(blocked)));
        }
        let slow = u128::from(since(begun)) >= SETTLED.as_millis();
        let rate = self.written.load(Ordering::Relaxed).saturating_mul(1000) / since(begun).max(1);
        slow.then_some(EvictionRank::Slow(u64::MAX - rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A meter of a connection that began some time ago.
    fn old() -> Meter {
        Meter {
            origin: Instant::now()
                .checked_sub(Duration::from_secs(100))
                .expect("the machine runs for longer"),
            ..Meter::default()
        }
    }

    #[test]
    fn silent_connections_make_room_first_then_blocked_ones_then_slow_ones() {
        let silent = old();
        assert_eq!(silent.eviction_rank(), None, "its request may be there");
        silent.wait_for_bytes();
        let blocked = old();
        blocked.ask();
        blocked.wrote(1 << 30);
        blocked
            .blocked
            .store(blocked.now() - 200, Ordering::Relaxed);
        let (slow, fast) = (old(), old());
        for (meter, bytes) in [(&slow, 1 << 10), (&fast, 1 << 20)] {
            meter.ask();
            meter.wrote(bytes);
            meter.begun.store(meter.now() - 5000, Ordering::Relaxed);
        }
        let ranks = [
            fast.eviction_rank(),
            slow.eviction_rank(),
            blocked.eviction_rank(),
            silent.eviction_rank(),
        ];
        assert!(ranks.is_sorted() && ranks[0].is_some(), "{ranks:?}");
    }

    #[test]
    fn a_connection_between_two_requests_makes_room_unless_its_answer_waits() {
        let meter = old();
        meter.ask();
        meter.wrote(1 << 20);
        meter.rest();
        assert_eq!(
            meter.eviction_rank(),
            None,
            "its next request may be on its way"
        );
        std::thread::sleep(SILENT * 2);
        assert!(matches!(
            meter.eviction_rank(),
            Some(EvictionRank::Silent(_))
        ));
        // The last bytes are handed over, and the client does not read them.
        meter.blocked.store(meter.now() - 200, Ordering::Relaxed);
        assert!(matches!(
            meter.eviction_rank(),
            Some(EvictionRank::Blocked(_))
        ));
        meter.ask();
        assert_eq!(
            meter.eviction_rank(),
            None,
            "it waits for its second answer"
        );
    }

    #[test]
    fn a_client_that_waits_for_its_answer_or_follows_makes_no_room() {
        assert_eq!(
            Meter::default().eviction_rank(),
            None,
            "its request may be on its way"
        );
        let waiting = old();
        waiting.ask();
        assert_eq!(waiting.eviction_rank(), None);
        let new = Meter::default();
        new.ask();
        new.wrote(1);
        new.set_blocked(true);
        assert_eq!(new.eviction_rank(), None, "it has a moment to read");
        let follows = old();
        follows.ask();
        follows.wrote(1);
        follows.blocked.store(1, Ordering::Relaxed);
        assert!(follows.eviction_rank().is_some());
        follows.endless.set();
        assert_eq!(follows.eviction_rank(), None);
    }

    #[test]
    fn bytes_of_a_handshake_are_no_part_of_an_answer() {
        let meter = old();
        meter.wait_for_bytes();
        meter.wrote(4000);
        meter.set_blocked(true);
        assert!(
            matches!(meter.eviction_rank(), Some(EvictionRank::Silent(_))),
            "it has no request yet"
        );
        meter.begun.store(1, Ordering::Relaxed);
        meter.ask();
        assert_eq!(meter.eviction_rank(), None, "it waits for its answer");
        let first = Duration::from_secs(2);
        assert_eq!(meter.patience(1000, first), first);
    }

    #[test]
    fn patience_is_bought_with_bytes() {
        let first = Duration::from_secs(2);
        let meter = old();
        assert_eq!(meter.patience(1000, first), first);
        meter.wrote(1000);
        assert_eq!(meter.patience(1000, first), first);
        meter.wrote(4000);
        let patience = meter.patience(1000, first).as_millis();
        assert!((4900..=5000).contains(&patience), "{patience}");
        meter.begun.store(meter.now() - 9000, Ordering::Relaxed);
        assert_eq!(meter.patience(1000, first), Duration::ZERO);
    }
}
