//! Which answers this daemon has given. A client that knows the daemon by two names counts it once; a worker that only
//! claims to be this daemon is not confirmed.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Bytes, Frame, SizeHint};
use sha2::{Digest as _, Sha256};
use smtt_model::protocol::{self, INSTANCE, QUESTION};

use crate::shared::Shared;

/// Answers whose digests are kept: clients ask for them at once.
const KEPT: usize = 256;
/// Characters of the id of a question.
const ID_MAX: usize = 64;

/// The identity of this run of the daemon, and digests of its last answers.
#[derive(Debug)]
pub struct Answered {
    instance: HeaderValue,
    digests: Mutex<VecDeque<[u8; 32]>>,
}

impl Default for Answered {
    fn default() -> Self {
        let random = || RandomState::new().build_hasher().finish();
        let instance = format!("{:016x}{:016x}", random(), random());
        Self {
            instance: HeaderValue::try_from(instance).unwrap_or(HeaderValue::from_static("0")),
            digests: Mutex::default(),
        }
    }
}

impl Answered {
    /// The identity and the digests, the oldest first.
    #[must_use]
    pub fn list(&self) -> protocol::Answered {
        let digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        let hex = |digest: &[u8; 32]| digest.iter().map(|byte| format!("{byte:02x}")).collect();
        protocol::Answered {
            instance: self.instance.to_str().unwrap_or_default().to_owned(),
            digests: digests.iter().map(hex).collect(),
        }
    }

    fn keep(&self, digest: [u8; 32]) {
        let mut digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        if digests.len() >= KEPT {
            digests.pop_front();
        }
        digests.push_back(digest);
    }
}

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
    let instance = shared.answered().instance.clone();
    response
        .headers_mut()
        .insert(HeaderName::from_static(INSTANCE), instance);
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
