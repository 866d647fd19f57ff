//! The body of a listing: its rows are written as the connection takes them, so that no answer is in memory twice.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use hyper::body::{Body, Bytes, Frame};
use serde::Serialize;
use smtt_model::rows::Summary;

/// Approximate bytes of one piece: the work between two turns of the event loop.
const PIECE: usize = 64 << 10;

/// `{"rows": [...], "summary": {...}}`, piece by piece.
#[derive(Debug)]
pub struct Rows<R> {
    rows: vec::IntoIter<R>,
    summary: Option<Summary>,
    begun: bool,
}

impl<R: Serialize> Rows<R> {
    /// The body of these rows, in this order.
    #[must_use]
    pub fn new(rows: Vec<R>, summary: Summary) -> Self {
        Self {
            rows: rows.into_iter(),
            summary: Some(summary),
            begun: false,
        }
    }

    /// The next piece; `None` after the last.
    fn piece(&mut self) -> Option<Vec<u8>> {
        self.summary.as_ref()?;
        let mut text = Vec::with_capacity(PIECE + (PIECE >> 2));
        if !self.begun {
            text.extend_from_slice(b"{\"rows\":[");
        }
        while text.len() < PIECE {
            let Some(row) = self.rows.next() else {
                text.extend_from_slice(b"],\"summary\":");
                // Writing to memory cannot fail, and every row and summary has a JSON form.
                let _ = serde_json::to_writer(&mut text, &self.summary.take());
                text.push(b'}');
                break;
            };
            if self.begun {
                text.push(b',');
            }
            self.begun = true;
            let _ = serde_json::to_writer(&mut text, &row);
        }
        Some(text)
    }
}

impl<R: Serialize + Unpin> Body for Rows<R> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.piece();
        Poll::Ready(piece.map(|text| Ok(Frame::data(text.into()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn the_pieces_are_one_listing() {
        for count in [0, 1, 3, 5000] {
            let rows: Vec<Value> = (0..count)
                .map(|n| json!({"n": n, "s": "x".repeat(50)}))
                .collect();
            let mut body = Rows::new(rows.clone(), Summary::default());
            let mut pieces = Vec::new();
            while let Some(piece) = body.piece() {
                assert!(piece.len() < PIECE * 2, "{} bytes", piece.len());
                pieces.push(piece);
            }
            assert_eq!(pieces.len() > 1, count == 5000, "{} pieces", pieces.len());
            let whole: Value = serde_json::from_slice(&pieces.concat()).expect("JSON");
            assert_eq!(whole["rows"], Value::Array(rows));
            assert!(whole["summary"]["executors"].is_u64(), "{whole}");
        }
    }
}
