//! Rows of a large listing in the order of their keys, without all of them in memory: each executor's rows are a sorted
//! run, compressed in pieces, and the answer merges the runs piece by piece.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::VecDeque;
use std::io;

use serde::Serialize;
use smtt_model::sort::Keys;
use zstd::bulk::{Compressor, Decompressor};

/// Approximate bytes of one piece before it is compressed.
const PIECE: usize = 32 << 10;
/// Compression costs time of the daemon; rows of one executor repeat so much that the fastest level is enough.
const LEVEL: i32 = 1;

/// One executor's rows.
#[derive(Debug, Default)]
struct Run {
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

/// Takes in the rows of one executor after the other.
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

    /// Adds the rows of one executor.
    ///
    /// # Errors
    /// When a row has no JSON form or cannot be compressed.
    pub fn add<R: Serialize>(&mut self, rows: Vec<R>) -> io::Result<()> {
        self.total += rows.len() as u64;
        let mut keyed: Vec<(Vec<u8>, R)> = rows
            .into_iter()
            .map(|row| (self.keys.of(&row), row))
            .collect();
        keyed.sort_by(|left, right| left.0.cmp(&right.0));
        keyed.truncate(self.limit);
        let mut run = Run::default();
        let (mut piece, mut row) = (Vec::with_capacity(PIECE * 2), Vec::new());
        for (key, fields) in keyed {
            row.clear();
            serde_json::to_writer(&mut row, &fields)?;
            for field in [&key, &row] {
                let length = u32::try_from(field.len()).map_err(io::Error::other)?;
                piece.extend_from_slice(&length.to_le_bytes());
                piece.extend_from_slice(field);
            }
            if piece.len() >= PIECE {
                run.pieces.push_back(self.compressed(&piece)?);
                piece.clear();
            }
        }
        if !piece.is_empty() {
            run.pieces.push_back(self.compressed(&piece)?);
        }
        self.runs.push(run);
        Ok(())
    }

    /// A piece and its length before compression.
    fn compressed(&mut self, piece: &[u8]) -> io::Result<(Vec<u8>, usize)> {
        let mut compressed = self.compressor.compress(piece)?;
        // The compressor reserves room for a piece that does not get smaller.
        compressed.shrink_to_fit();
        Ok((compressed, piece.len()))
    }

    /// All rows in the order of their keys.
    ///
    /// # Errors
    /// The outer one when a run cannot be opened, the inner one when no row has a field to sort by.
    pub fn merge(mut self) -> io::Result<Result<Merge, smtt_model::sort::SortError>> {
        if let Err(error) = self.keys.check() {
            return Ok(Err(error));
        }
        let mut decompressor = Decompressor::new()?;
        let mut next = BinaryHeap::new();
        for (number, run) in self.runs.iter_mut().enumerate() {
            run.open_next(&mut decompressor)?;
            if let Some(key) = run.key() {
                next.push(Reverse((key.to_vec(), number)));
            }
        }
        Ok(Ok(Merge {
            runs: self.runs,
            next,
            left: self.limit,
            total: self.total,
            decompressor,
        }))
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
    /// Appends the next row as JSON. Returns whether there was one.
    ///
    /// # Errors
    /// When a piece cannot be opened.
    pub fn row(&mut self, into: &mut Vec<u8>) -> io::Result<bool> {
        if self.left == 0 {
            return Ok(false);
        }
        let Some(Reverse((_, number))) = self.next.pop() else {
            return Ok(false);
        };
        self.left -= 1;
        let run = &mut self.runs[number];
        let broken = || io::Error::other("a row is cut");
        run.take(into).ok_or_else(broken)?;
        run.open_next(&mut self.decompressor)?;
        if let Some(key) = run.key() {
            self.next.push(Reverse((key.to_vec(), number)));
        }
        Ok(true)
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
