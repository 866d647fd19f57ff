//! The room for what workers send to one question, shared max-min fairly: small answers leave their rest to large ones,
//! and where the room is full the largest answer gives way.

use std::fmt;

use smtt_model::sort::small::sort_by_key;
use smtt_model::units;

/// Bytes of the answers of all workers to one question.
const ALL: u64 = 256 << 20;
/// Most bytes of a worker's answer.
const MOST: u64 = 16 << 20;
/// Bytes that there are for each worker at least, however many workers there are.
const LEAST: u64 = 64 << 10;
/// Bytes of the room that an object or a list takes at least: parsed, one takes about 700 bytes.
const PER_OBJECT: u64 = 32;
/// Bytes of the room that a value takes at least.
const PER_VALUE: u64 = 8;

/// Why an answer has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Larger {
    /// It is larger than any answer may be.
    ThanAny,
    /// It had this many bytes, more than any other, when others needed the room.
    ThanShare(u64),
    /// It has more objects or values than there is memory for.
    Structure,
}

impl fmt::Display for Larger {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ThanAny => write!(out, "its answer is larger than {}", units::bytes(MOST)),
            Self::ThanShare(bytes) => write!(
                out,
                "its answer is larger than {}, its share beside those of the other workers",
                units::bytes(*bytes)
            ),
            Self::Structure => out.write_str("its answer has too many objects or values"),
        }?;
        out.write_str(": narrow with --app or --limit")
    }
}

/// Bytes of the answers of so many workers.
fn total(workers: usize) -> u64 {
    ALL.max(LEAST.saturating_mul(workers as u64))
}

/// The bytes of a worker's answer that are held, or why none are.
#[derive(Debug)]
enum Place {
    Held(Vec<u8>),
    GaveWay(Larger),
}

/// The bytes of all answers to one question.
#[derive(Debug)]
pub(super) struct AnswerMemory {
    total: u64,
    taken: u64,
    places: Vec<Place>,
}

impl AnswerMemory {
    /// Room for the answers of so many workers.
    pub fn new(workers: usize) -> Self {
        Self::with(total(workers), workers)
    }

    fn with(total: u64, workers: usize) -> Self {
        Self {
            total,
            taken: 0,
            places: (0..workers).map(|_| Place::Held(Vec::new())).collect(),
        }
    }

    fn size(&self, worker: usize) -> u64 {
        match self.places.get(worker) {
            Some(Place::Held(bytes)) => bytes.len() as u64,
            _ => 0,
        }
    }

    /// Adds bytes to a worker's answer. Where the room is full the largest answer gives way, complete or not. An answer
    /// below its equal share never does: while it finds no room, another one is above that share.
    ///
    /// # Errors
    /// When this answer is the one that gave way, or gives way now.
    pub fn add(&mut self, worker: usize, more: &[u8]) -> Result<(), Larger> {
        if let Some(Place::GaveWay(larger)) = self.places.get(worker) {
            return Err(*larger);
        }
        let wanted = self.size(worker) + more.len() as u64;
        if wanted > MOST {
            return Err(self.refuse(worker, Larger::ThanAny));
        }
        while self.taken + more.len() as u64 > self.total {
            let others = (0..self.places.len()).filter(|other| *other != worker);
            let largest = others.max_by_key(|other| self.size(*other));
            match largest.filter(|other| self.size(*other) > wanted) {
                Some(other) => {
                    let larger = Larger::ThanShare(self.size(other));
                    self.refuse(other, larger);
                }
                None => {
                    let larger = Larger::ThanShare(self.size(worker));
                    return Err(self.refuse(worker, larger));
                }
            }
        }
        if let Some(Place::Held(bytes)) = self.places.get_mut(worker) {
            if bytes.capacity() - bytes.len() < more.len() {
                // Doubling would take up to twice the room.
                bytes.reserve_exact(more.len().max(bytes.len() / 4));
            }
            bytes.extend_from_slice(more);
            self.taken += more.len() as u64;
        }
        Ok(())
    }

    /// Frees the room of an answer that will not become complete.
    pub fn forget(&mut self, worker: usize) {
        if let Some(Place::Held(bytes)) = self.places.get_mut(worker) {
            self.taken -= bytes.len() as u64;
            *bytes = Vec::new();
        }
    }

    fn refuse(&mut self, worker: usize, larger: Larger) -> Larger {
        self.forget(worker);
        if let Some(place) = self.places.get_mut(worker) {
            *place = Place::GaveWay(larger);
        }
        larger
    }

    /// Takes an answer out.
    ///
    /// # Errors
    /// When it gave way.
    pub fn take(&mut self, worker: usize) -> Result<Vec<u8>, Larger> {
        match self.places.get_mut(worker) {
            Some(Place::Held(bytes)) => {
                self.taken -= bytes.len() as u64;
                Ok(std::mem::take(bytes))
            }
            Some(Place::GaveWay(larger)) => Err(*larger),
            None => Ok(Vec::new()),
        }
    }
}

/// Room that an answer takes when it is parsed, too: its bytes, or more where it has many objects or values.
pub(super) fn cost(bytes: &[u8]) -> u64 {
    let (mut objects, mut values) = (0_u64, 0_u64);
    let (mut in_text, mut is_escaped) = (false, false);
    for byte in bytes {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            b'{' | b'[' if !in_text => objects += 1,
            b',' if !in_text => values += 1,
            _ => {}
        }
    }
    let bytes = bytes.len() as u64;
    bytes.max(objects * PER_OBJECT).max(values * PER_VALUE)
}

/// Whether each of these answers of so many workers may be parsed: the largest ones may not, until the others fit.
pub(super) fn fitting<'a>(answers: impl Iterator<Item = &'a [u8]>, workers: usize) -> Vec<bool> {
    fits(&answers.map(cost).collect::<Vec<_>>(), total(workers))
}

fn fits(costs: &[u64], total: u64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..costs.len()).collect();
    let cost = |at: &usize| costs.get(*at).copied().unwrap_or(u64::MAX);
    sort_by_key(&mut order, |at| cost(at));
    let (mut taken, mut fits) = (0_u64, vec![false; costs.len()]);
    for at in order {
        taken = taken.saturating_add(cost(&at));
        if let Some(fits) = fits.get_mut(at) {
            *fits = cost(&at) <= MOST && taken <= total;
        }
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    /// Adds so many bytes in pieces of the size that a connection brings.
    fn send(room: &mut AnswerMemory, worker: usize, bytes: usize) -> Result<(), Larger> {
        let piece = [b' '; 16 * KIB];
        let mut left = bytes;
        while left > 0 {
            let now = left.min(piece.len());
            room.add(worker, &piece[..now])?;
            left -= now;
        }
        Ok(())
    }

    #[test]
    fn small_answers_leave_their_rest_to_large_ones() {
        let mut room = AnswerMemory::new(500);
        for worker in 1..499 {
            assert_eq!(send(&mut room, worker, 100 * KIB), Ok(()));
        }
        // 30 times its equal share, as with 7,500 rows of RDDs.
        assert_eq!(send(&mut room, 0, 15 << 20), Ok(()));
        assert_eq!(send(&mut room, 499, 100 * KIB), Ok(()));
        for (worker, bytes) in [(0, 15 << 20), (1, 100 * KIB), (499, 100 * KIB)] {
            assert_eq!(room.take(worker).map(|bytes| bytes.len()), Ok(bytes));
        }
    }

    #[test]
    fn the_largest_answer_gives_way_and_none_below_its_equal_share() {
        // Complete or not, first or last.
        for order in [[0, 1, 2, 3], [3, 2, 1, 0]] {
            let mut room = AnswerMemory::with(4 << 20, 4);
            let sizes = [500 * KIB, 900 * KIB, 1 << 20, 3 << 20];
            let sent = order.map(|worker| (worker, send(&mut room, worker, sizes[worker])));
            let gave_way: Vec<usize> = (0..4).filter(|at| room.take(*at).is_err()).collect();
            assert_eq!(gave_way, [3], "{sent:?}");
        }
    }

    #[test]
    fn a_worker_that_sends_without_end_fails_alone() {
        let mut room = AnswerMemory::with(20 << 20, 3);
        assert_eq!(send(&mut room, 0, 3 << 20), Ok(()));
        assert_eq!(send(&mut room, 1, usize::MAX), Err(Larger::ThanAny));
        // Its room is free again.
        assert_eq!(send(&mut room, 2, 15 << 20), Ok(()));
        assert_eq!(room.taken, 18 << 20);
        assert_eq!(room.add(1, b" "), Err(Larger::ThanAny));
        room.forget(2);
        assert_eq!(room.taken, 3 << 20);
    }

    #[test]
    fn the_room_is_never_exceeded_and_no_answer_fails_while_there_is_room() {
        for seed in 0..20_u64 {
            let workers = 40;
            let mut random = seed * 2 + 1;
            let mut next = |below: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % below
            };
            let total = 1 << 20;
            let mut room = AnswerMemory::with(total, workers);
            // Some want a small answer, some one without end.
            let wants: Vec<u64> = (0..workers)
                .map(|worker| match worker % 4 {
                    0 => u64::MAX,
                    _ => next(60_000),
                })
                .collect();
            for _ in 0..20_000 {
                let worker = next(workers as u64) as usize;
                let left = wants[worker] - room.size(worker);
                if left == 0 || matches!(room.places[worker], Place::GaveWay(_)) {
                    continue;
                }
                let more = vec![0; left.min(1 + next(900)) as usize];
                let before: Vec<u64> = (0..workers).map(|at| room.size(at)).collect();
                let wanted = before[worker] + more.len() as u64;
                let added = room.add(worker, &more);
                assert!(room.taken <= total);
                let sum: u64 = (0..workers).map(|at| room.size(at)).sum();
                assert_eq!(room.taken, sum);
                let lost = (0..workers).filter(|at| room.size(*at) < before[*at]);
                for lost in lost.chain(added.is_err().then_some(worker)) {
                    let all: u64 = before.iter().sum();
                    assert!(all + more.len() as u64 > total, "there was room");
                    let size = if lost == worker { wanted } else { before[lost] };
                    assert!(size > total / workers as u64, "below its equal share");
                    assert!(
                        (0..workers).all(|at| room.size(at) <= size),
                        "not the largest"
                    );
                }
            }
            for (worker, wants) in wants.iter().enumerate() {
                if *wants <= total / workers as u64 {
                    assert_ne!(room.take(worker).map_err(|_| ()), Err(()));
                }
            }
        }
    }

    #[test]
    fn structure_takes_room_and_text_does_not() {
        let rows = |count: u64| vec!["{\"\":1}"; count as usize].join(",").into_bytes();
        assert_eq!(cost(&rows(1000)), 1000 * PER_OBJECT);
        let list = |count: u64| format!("[{}1]", "1,".repeat(count as usize)).into_bytes();
        assert_eq!(cost(&list(1000)), 1000 * PER_VALUE);
        let text = format!("\"\\\"{}\"", "{,[".repeat(100_000));
        assert_eq!(cost(text.as_bytes()), text.len() as u64);
        let brackets = vec![b'['; MOST as usize / PER_OBJECT as usize + 1];
        assert_eq!(fitting([&brackets[..]].into_iter(), 1), [false]);
        assert_eq!(fitting([&brackets[1..]].into_iter(), 1), [true]);
        // Dense answers of many workers: the largest of them give way.
        assert_eq!(fits(&[5, 1, 9, 3], 9), [true, true, false, true]);
        assert_eq!(fits(&[5, 1, 9, 3], 18), [true; 4]);
        assert_eq!(fits(&[MOST + 1], u64::MAX), [false]);
    }

    #[test]
    fn the_room_grows_with_workers_only_where_there_are_very_many() {
        assert_eq!(total(1), 256 << 20);
        assert_eq!(total(500), 256 << 20);
        assert_eq!(total(10_000), 10_000 * (64 << 10));
    }
}
