//! Bodies that own a value, such as a permit, until their last byte is handed over or they are dropped.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use hyper::body::{Bytes, Frame, SizeHint};

/// A body and the value that is dropped with it.
struct Holding<T> {
    body: Body,
    _held: T,
}

/// Wraps a body so that it owns `held`. The frames and the size stay the same; `held` is dropped with the body.
pub fn holding<T: Unpin + Send + 'static>(body: Body, held: T) -> Body {
    Body::new(Holding { body, _held: held })
}

impl<T: Unpin> hyper::body::Body for Holding<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Weak};

    use hyper::body::Body as _;

    use super::*;

    fn held(text: &'static str) -> (Body, Weak<()>) {
        let held = Arc::new(());
        let weak = Arc::downgrade(&held);
        (holding(Body::from(text), held), weak)
    }

    #[test]
    fn what_is_held_goes_with_the_body_and_the_body_is_the_same() {
        let (mut body, held) = held("text");
        assert_eq!(
            (body.size_hint().exact(), body.is_end_stream()),
            (Some(4), false)
        );
        let mut context = Context::from_waker(std::task::Waker::noop());
        let frame = Pin::new(&mut body).poll_frame(&mut context);
        let Poll::Ready(Some(Ok(frame))) = frame else {
            panic!("no frame: {frame:?}");
        };
        assert_eq!(frame.into_data().ok().as_deref(), Some(&b"text"[..]));
        assert!(body.is_end_stream());
        assert_eq!(held.strong_count(), 1, "the server still has the body");
        drop(body);
        assert_eq!(held.strong_count(), 0);
    }

    #[test]
    fn a_body_that_is_given_up_holds_nothing() {
        let (body, held) = held("text");
        drop(body);
        assert_eq!(held.strong_count(), 0);
    }
}
