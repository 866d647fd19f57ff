//! Event logs in a bucket: all requests for an application wait for one question.

use std::sync::Arc;
use std::time::Instant;

use axum::http::StatusCode;
use tokio::runtime::Handle;

use super::{AGAIN, Imported, Refusal, Server, Source};
use crate::log::Log;
use crate::objects::bucket::Trouble;
use crate::objects::logs::{BucketLogs, Found, Logs};
use crate::open::App;

fn refused(trouble: &Trouble) -> Refusal {
    tracing::warn!("the event logs: {trouble}");
    Refusal(
        StatusCode::SERVICE_UNAVAILABLE,
        "the event log cannot be read from its bucket now: ask again; the server's log says why"
            .to_owned(),
    )
}

/// No store has the application, and no log is there.
pub(super) fn has_no_log(name: &str) -> Refusal {
    Refusal::not_found(format!(
        "unknown app {name}: neither the store nor the folder of event logs has it"
    ))
}

impl Server {
    /// The log of an application that was imported before it ended, if it has grown since and may be imported again.
    pub(super) fn grown(&self, name: &str, app: &App) -> Option<Source> {
        let (logs, bytes) = (self.settings.event_logs.as_ref()?, app.unfinished_bytes()?);
        let again = self.again.get(name);
        if again.is_some_and(|again| Instant::now() < again) {
            return None;
        }
        match logs {
            Logs::Folder(logs) => {
                let path = Log::find(logs, name)?;
                let log = Log::at(&path).ok()?;
                (log.bytes > bytes).then_some(Source::Grown(path))
            }
            Logs::Bucket(logs) => Some(Source::Asked(Arc::clone(logs), Some(bytes))),
        }
    }

    /// The log of an application that the store does not have.
    pub(super) fn log(&self, name: &str) -> Result<Source, Refusal> {
        match &self.settings.event_logs {
            None => Err(Refusal::not_found(format!(
                "unknown app {name}: the store does not have it, and no folder of event logs is set (--event-logs)"
            ))),
            Some(Logs::Folder(logs)) => match Log::find(logs, name) {
                Some(log) => Ok(Source::Log(log)),
                None => Err(has_no_log(name)),
            },
            Some(Logs::Bucket(logs)) => Ok(Source::Asked(Arc::clone(logs), None)),
        }
    }

    /// Asks the bucket for the log of an application; `None` where what was imported before is the answer. A bucket that does
    /// not have it, or gives no answer, is asked again after [`super::FAILED`], or after [`AGAIN`].
    pub(super) async fn ask(
        &self,
        name: &str,
        logs: Arc<BucketLogs>,
        imported: Option<u64>,
    ) -> Result<Option<Source>, Refusal> {
        let found = logs.find(name).await;
        let Some(bytes) = imported else {
            return match found {
                Ok(Some(log)) => Ok(Some(Source::InBucket(logs, log, false))),
                Ok(None) => Err(has_no_log(name)),
                Err(trouble) => Err(refused(&trouble)),
            };
        };
        match found {
            Ok(Some(log)) if log.bytes() > bytes => Ok(Some(Source::InBucket(logs, log, true))),
            answer => {
                if let Err(trouble) = answer {
                    tracing::warn!("the event logs: {trouble}");
                }
                self.again.insert(name.to_owned(), Instant::now() + AGAIN.0);
                Ok(None)
            }
        }
    }

    /// Copies a log and imports it, on a thread that may wait.
    pub(super) fn import_copy(
        &self,
        name: &str,
        (logs, found): (&BucketLogs, &Found),
        replaces: bool,
    ) -> Imported {
        let copied = Handle::current().block_on(logs.copy(found));
        let copied = copied.map_err(|trouble| refused(&trouble))?;
        self.import_here(name, &copied.path, (replaces, false))
    }
}
