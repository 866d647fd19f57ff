//! Rows of a large listing in the order of their keys, without all of them in memory: the rows of an executor, or a part
//! of them, are a sorted run, compressed in pieces, and the answer merges the runs piece by piece. Many small runs become
//! a larger one before, so that few pieces are open at once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::VecDeque;
use std::io;

use serde::Serialize;
use smtt_model::sort::Keys;
use smtt_model::sort::small::sort_by;
use zstd::bulk::{Compressor, Decompressor};

/// Approximate bytes of one piece before it is compressed.
const PIECE: usize = 32 << 10;
/// Compression costs time of the daemon; rows of one executor repeat so much that the fastest level is enough.
const LEVEL: i32 = 1;

/// Runs of one size that become one.
const AT_ONCE: usize = 8;
/// Bytes of all rows of an answer once they are compressed.
const BYTES: usize = 24 << 20;

/// Sorted rows.
#[derive(Debug, Default)]
struct Run {
    /// How often its rows were merged.
    level: u32,
    /// Bytes of the compressed pieces, also of those that were opened.
    bytes: usize,
    /// Compressed pieces that follow, with their length before compression.
    pieces: VecDeque<(Vec<u8>, usize)>,
    /// The current piece: key and row, each after its length in four bytes.
    open: Vec<u8>,
    at: usize,
}

impl Run {
    /// The next key or row of the current piece.
    fn field(&self, at: usize) -> Option<&[u8]> {
        let length = self.open.get(at..at + 4)?;
        let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
        self.open.get(at + 4..at + 4 + length)
    }

    fn key(&self) -> Option<&[u8]> {
        self.field(self.at)
    }

    /// Appends the current row, and goes to the next one.
    fn take(&mut self, into: &mut Vec<u8>) -> Option<()> {
        let at = self.at + 4 + self.key()?.len();
        let row = self.field(at)?;
        into.extend_from_slice(row);
        self.at = at + 4 + row.len();
        Some(())
    }

    /// Opens the next piece where the current one is at its end.
    fn open_next(&mut self, decompressor: &mut Decompressor<'_>) -> io::Result<()> {
        if self.at >= self.open.len() {
            self.at = 0;
            self.open = match self.pieces.pop_front() {
                Some((piece, length)) => decompressor.decompress(&piece, length)?,
                None => Vec::new(),
            };
        }
        Ok(())
    }
}

/// Writes a run.
struct Pieces<'a> {
    compressor: &'a mut Compressor<'static>,
    run: Run,
    /// The piece that is not full yet.
    piece: Vec<u8>,
}

impl<'a> Pieces<'a> {
    fn new(compressor: &'a mut Compressor<'static>) -> Self {
        Self {
            compressor,
            run: Run::default(),
            piece: Vec::with_capacity(PIECE * 2),
        }
    }

    fn push(&mut self, key: &[u8], row: &[u8]) -> io::Result<()> {
        for field in [key, row] {
            let length = u32::try_from(field.len()).map_err(io::Error::other)?;
            self.piece.extend_from_slice(&length.to_le_bytes());
            self.piece.extend_from_slice(field);
        }
        if self.piece.len() >= PIECE {
            self.close()?;
        }
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        let mut compressed = self.compressor.compress(&self.piece)?;
        // The compressor reserves room for a piece that does not get smaller.
        compressed.shrink_to_fit();
        self.run.bytes += compressed.len();
        self.run.pieces.push_back((compressed, self.piece.len()));
        self.piece.clear();
        Ok(())
    }

    fn run(mut self, level: u32) -> io::Result<Run> {
        if !self.piece.is_empty() {
            self.close()?;
        }
        Ok(Run { level, ..self.run })
    }
}

/// Takes in rows, some after the other.
pub struct Runs {
    keys: Keys,
    limit: usize,
    /// Rows so far, also those beyond the limit.
    total: u64,
    runs: Vec<Run>,
    compressor: Compressor<'static>,
}

impl Runs {
    /// Runs of at most `limit` rows each.
    ///
    /// # Errors
    /// When there is no memory for the compressor.
    pub fn new(keys: Keys, limit: usize) -> io::Result<Self> {
        Ok(Self {
            keys,
            limit,
            total: 0,
            runs: Vec::new(),
            compressor: Compressor::new(LEVEL)?,
        })
    }

    /// Adds rows: those of one executor, or a part of them.
    ///
    /// # Errors
    /// When a row has no JSON form or cannot be compressed; [`io::ErrorKind::FileTooLarge`] where the answer has no more
    /// room.
    pub fn add<R: Serialize>(&mut self, rows: Vec<R>) -> io::Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        self.total += rows.len() as u64;
        let mut keyed: Vec<(Vec<u8>, R)> = rows
            .into_iter()
            .map(|row| (self.keys.of(&row), row))
            .collect();
        sort_by(&mut keyed, |left, right| left.0.cmp(&right.0));
        keyed.truncate(self.limit);
        let mut pieces = Pieces::new(&mut self.compressor);
        let mut row = Vec::new();
        for (key, fields) in keyed {
            row.clear();
            serde_json::to_writer(&mut row, &fields)?;
            pieces.push(&key, &row)?;
        }
        let run = pieces.run(0)?;
        self.runs.push(run);
        self.merge_small()?;
        if self.runs.iter().map(|run| run.bytes).sum::<usize>() > BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(())
    }

    /// Makes one run of the last ones while they have the same level: the answer opens a piece of each run at once.
    fn merge_small(&mut self) -> io::Result<()> {
        while let Some(first) = self.runs.len().checked_sub(AT_ONCE) {
            let level = self.runs[first].level;
            if self.runs[first..].iter().any(|run| run.level != level) {
                break;
            }
            let mut merge = Merge::new(self.runs.split_off(first), self.limit, 0)?;
            let mut pieces = Pieces::new(&mut self.compressor);
            let mut row = Vec::new();
            while let Some(key) = merge.keyed_row(&mut row)? {
                pieces.push(&key, &row)?;
                row.clear();
            }
            let run = pieces.run(level + 1)?;
            self.runs.push(run);
        }
        Ok(())
    }

    /// All rows in the order of their keys.
    ///
    /// # Errors
    /// The outer one when a run cannot be opened, the inner one when no row has a field to sort by.
    pub fn merge(self) -> io::Result<Result<Merge, smtt_model::sort::SortError>> {
        if let Err(error) = self.keys.check() {
            return Ok(Err(error));
        }
        Merge::new(self.runs, self.limit, self.total).map(Ok)
    }
}

/// Rows in the order of their keys; equal ones in the order of their runs.
pub struct Merge {
    runs: Vec<Run>,
    next: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
    left: usize,
    total: u64,
    decompressor: Decompressor<'static>,
}

impl Merge {
    fn new(mut runs: Vec<Run>, limit: usize, total: u64) -> io::Result<Self> {
        let mut decompressor = Decompressor::new()?;
        let mut next = BinaryHeap::new();
        for (number, run) in runs.iter_mut().enumerate() {
            run.open_next(&mut decompressor)?;
            if let Some(key) = run.key() {
                next.push(Reverse((key.to_vec(), number)));
            }
        }
        Ok(Self {
            runs,
            next,
            left: limit,
            total,
            decompressor,
        })
    }

    /// Appends the next row as JSON. Returns whether there was one.
    ///
    /// # Errors
    /// When a piece cannot be opened.
    pub fn row(&mut self, into: &mut Vec<u8>) -> io::Result<bool> {
        Ok(self.keyed_row(into)?.is_some())
    }

    /// Appends the next row as JSON. Returns its key; `None` where there is no more row.
    fn keyed_row(&mut self, into: &mut Vec<u8>) -> io::Result<Option<Vec<u8>>> {
        if self.left == 0 {
            return Ok(None);
        }
        let Some(Reverse((this, number))) = self.next.pop() else {
            return Ok(None);
        };
        self.left -= 1;
        let run = &mut self.runs[number];
        let broken = || io::Error::other("a row is cut");
        run.take(into).ok_or_else(broken)?;
        run.open_next(&mut self.decompressor)?;
        if let Some(key) = run.key() {
            self.next.push(Reverse((key.to_vec(), number)));
        }
        Ok(Some(this))
    }

    /// All rows, also those beyond the limit.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Whether there are more rows.
    pub fn has_more(&self) -> bool {
        self.left > 0 && !self.next.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn runs(limit: usize) -> Runs {
        Runs::new(Keys::new(vec!["a:asc".parse().expect("a sort")]), limit).expect("runs")
    }

    #[test]
    fn many_runs_become_few_in_the_same_order() {
        for limit in [usize::MAX, 70] {
            let mut runs = runs(limit);
            for number in 0..100 {
                let rows = (0..10).map(|row| json!({"a": row * 7 % 10, "b": number}));
                runs.add(rows.collect()).expect("added");
            }
            let few = 3 * AT_ONCE;
            assert!(
                runs.runs.len() < few,
                "{} are open at once",
                runs.runs.len()
            );
            let mut merge = runs.merge().expect("merged").expect("sorted");
            assert_eq!(merge.total(), 1000);
            let mut rows = Vec::new();
            let mut row = Vec::new();
            while merge.row(&mut row).expect("a row") {
                let row: serde_json::Value =
                    serde_json::from_slice(&std::mem::take(&mut row)).expect("JSON");
                rows.push((row["a"].as_u64(), row["b"].as_u64()));
            }
            assert_eq!(rows.len(), limit.min(1000));
            // Equal ones in the order in which they came.
            assert!(rows.is_sorted(), "{rows:?}");
        }
    }

    #[test]
    fn an_answer_without_room_is_refused() {
        let mut runs = runs(usize::MAX);
        let mut word = 1_u64;
        let mut noise = || {
            (0..1 << 17)
                .map(|_| {
                    word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    char::from(b'0' + (word >> 58) as u8)
                })
                .collect::<String>()
        };
        let refused =
            (0..1000).find_map(|row| runs.add(vec![json!({"a": row, "b": noise()})]).err());
        assert_eq!(
            refused.map(|error| error.kind()),
            Some(io::ErrorKind::FileTooLarge)
        );
    }
}
