//! Heavy answers take turns: each may hold all rows of a listing until its client has read them.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use smtt_web::holding;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;

/// Heavy answers at a time, from the question to the last byte.
pub const AT_A_TIME: usize = 2;
/// How long a heavy answer waits for its turn.
const WAIT: Duration = Duration::from_secs(5);

/// The turns of heavy answers.
#[derive(Clone, Debug)]
pub struct Turns {
    answers: Arc<Semaphore>,
    /// Held while rows are collected, which takes more memory than to send them.
    making: Arc<Mutex<()>>,
}

impl Turns {
    /// Turns of one listener. Listeners share `making`, and none has the turns of another one.
    pub fn new(making: Arc<Mutex<()>>) -> Self {
        Self {
            answers: Arc::new(Semaphore::new(AT_A_TIME)),
            making,
        }
    }

    /// Makes an answer on another thread when its turn has come. The turn ends with the last byte of the body.
    pub async fn answer(&self, make: impl FnOnce() -> Response + Send + 'static) -> Response {
        let Ok(Ok(turn)) = timeout(WAIT, Arc::clone(&self.answers).acquire_owned()).await else {
            return busy();
        };
        let making = Arc::clone(&self.making).lock_owned().await;
        // A client that hangs up does not stop the thread: turn and lock stay with it.
        super::routes::off_loop(move || {
            let answer = make().map(|body| holding(body, turn));
            drop(making);
            answer
        })
        .await
    }
}

/// There was no turn in time.
fn busy() -> Response {
    let error = format!("{AT_A_TIME} other large answers are on their way: ask again in a moment");
    let retry = [(header::RETRY_AFTER, WAIT.as_secs().to_string())];
    let answer = (retry, Json(json!({ "error": error })));
    (StatusCode::SERVICE_UNAVAILABLE, answer).into_response()
}
