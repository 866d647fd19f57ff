//! The body of an endless answer: live trace records, one JSON object per line.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame};

use crate::recorder::follow::Answer;

/// Pieces of an answer as frames of a body; it ends with the answer.
#[derive(Debug)]
pub struct Lines(pub Answer);

impl Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.0.poll_piece(context);
        piece.map(|piece| piece.map(|text| Ok(Frame::data(text.into()))))
    }
}
