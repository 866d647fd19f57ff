//! Marks each answer with the identity of the daemon, and keeps the digest of an answer whose question has an id, for
//! [`Answered`](crate::answered::Answered).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Bytes, Frame, SizeHint};
use sha2::{Digest as _, Sha256};
use smtt_model::protocol::{INSTANCE, QUESTION};

use crate::shared::Shared;

/// Characters of the id of a question.
const ID_MAX: usize = 64;

/// Adds the identity to an answer and, where the question has an id, keeps the digest of what is sent.
pub async fn remember(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let id = request
        .headers()
        .get(QUESTION)
        .filter(|id| id.len() <= ID_MAX);
    let hash = id.map(|id| {
        let path = request.uri().path_and_query();
        let path = path.map_or("", |path| path.as_str());
        let mut hash = Sha256::new();
        for part in [id.as_bytes(), b"\n", path.as_bytes(), b"\n"] {
            hash.update(part);
        }
        hash
    });
    let mut response = next.run(request).await;
    // Hexadecimal digits are always a value of a header.
    if let Ok(instance) = HeaderValue::from_str(shared.answered().instance()) {
        response
            .headers_mut()
            .insert(HeaderName::from_static(INSTANCE), instance);
    }
    match hash {
        Some(hash) if response.status().is_success() => response.map(|body| {
            Body::new(Hashed {
                body,
                hash: Some(hash),
                shared,
            })
        }),
        _ => response,
    }
}

/// A body whose digest is kept before its end reaches the client.
struct Hashed {
    body: Body,
    hash: Option<Sha256>,
    shared: Arc<Shared>,
}

impl Hashed {
    fn end(&mut self) {
        if let Some(hash) = self.hash.take() {
            self.shared.answered().keep(hash.finalize().into());
        }
    }
}

impl hyper::body::Body for Hashed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let next = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &next {
            Some(Ok(frame)) => {
                if let (Some(hash), Some(data)) = (&mut self.hash, frame.data_ref()) {
                    hash.update(data);
                }
                // A body of known length is not asked again.
                if self.body.is_end_stream() {
                    self.end();
                }
            }
            Some(Err(_)) => self.hash = None,
            None => self.end(),
        }
        Poll::Ready(next)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
