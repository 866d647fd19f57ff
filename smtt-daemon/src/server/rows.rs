//! The body of a listing: its rows are written as the connection takes them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame};
use smtt_model::rows::Summary;

use super::runs::Merge;

/// Approximate bytes of one piece: the work between two turns of the server's thread.
const PIECE: usize = 64 << 10;

/// `{"rows": [...], "rows_total": N, "summary": {...}}`, piece by piece.
pub struct Rows {
    rows: Merge,
    summary: Option<Summary>,
    begun: bool,
}

impl Rows {
    /// The body of these rows.
    #[must_use]
    pub fn new(rows: Merge, summary: Summary) -> Self {
        Self {
            rows,
            summary: Some(summary),
            begun: false,
        }
    }

    /// The next piece; `None` after the last.
    fn piece(&mut self) -> Option<io::Result<Vec<u8>>> {
        self.summary.as_ref()?;
        Some(self.more())
    }

    fn more(&mut self) -> io::Result<Vec<u8>> {
        let mut text = Vec::with_capacity(PIECE + (PIECE >> 2));
        if !self.begun {
            text.extend_from_slice(b"{\"rows\":[");
        }
        while text.len() < PIECE {
            if !self.rows.has_more() {
                let total = format!("],\"rows_total\":{},\"summary\":", self.rows.total());
                text.extend_from_slice(total.as_bytes());
                serde_json::to_writer(&mut text, &self.summary.take())?;
                text.push(b'}');
                break;
            }
            if self.begun {
                text.push(b',');
            }
            self.begun = true;
            self.rows.row(&mut text)?;
        }
        Ok(text)
    }
}

impl Body for Rows {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let piece = self.piece();
        Poll::Ready(piece.map(|text| text.map(|text| Frame::data(text.into()))))
    }
}

#[cfg(test)]
mod tests {
    use super::super::runs::Runs;
    use super::*;
    use serde_json::{Value, json};
    use smtt_model::sort::Keys;

    /// The body of rows that come in runs, sorted by `n`, and its pieces.
    fn written(runs: &[Vec<Value>], limit: usize) -> (Value, usize) {
        let keys = Keys::new(vec!["n:asc".parse().expect("a sort")]);
        let mut sorted = Runs::new(keys, limit).expect("memory");
        for run in runs {
            sorted.add(run.clone()).expect("JSON");
        }
        let merge = sorted.merge().expect("opened").expect("all have n");
        let mut body = Rows::new(merge, Summary::default());
        let (mut pieces, mut text) = (0, Vec::new());
        while let Some(piece) = body.piece() {
            let piece = piece.expect("whole");
            assert!(piece.len() < PIECE * 2, "{} bytes", piece.len());
            pieces += 1;
            text.extend(piece);
        }
        (serde_json::from_slice(&text).expect("JSON"), pieces)
    }

    fn row(n: u64) -> Value {
        json!({"n": n, "s": "x".repeat(50)})
    }

    #[test]
    fn the_pieces_are_one_listing() {
        for count in [0, 1, 3, 5000] {
            let rows: Vec<Value> = (0..count).map(row).collect();
            let (whole, pieces) = written(std::slice::from_ref(&rows), usize::MAX);
            assert_eq!(pieces > 1, count == 5000, "{pieces} pieces");
            assert_eq!(whole["rows"], Value::Array(rows));
            assert!(whole["summary"]["executors"].is_u64(), "{whole}");
        }
    }

    #[test]
    fn rows_of_several_runs_are_merged_and_cut() {
        let run = |of: u64| (0..2000).rev().map(|n| row(n * 3 + of)).collect();
        let runs: Vec<Vec<Value>> = vec![run(1), run(0), Vec::new(), run(2)];
        let all: Vec<Value> = (0..6000).map(row).collect();
        assert_eq!(
            written(&runs, usize::MAX).0["rows"],
            Value::Array(all.clone())
        );
        let first = all[..1500].to_vec();
        assert_eq!(written(&runs, 1500).0["rows"], Value::Array(first));
        assert_eq!(written(&runs, 0).0["rows"], json!([]));
        for limit in [0, 1500, 7000] {
            assert_eq!(written(&runs, limit).0["rows_total"], 6000);
        }
    }
}
