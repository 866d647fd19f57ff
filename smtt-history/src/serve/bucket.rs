//! A store in a bucket: what a request needs is copied first.

use std::path::Path;
use std::sync::Arc;

use axum::http::StatusCode;
use tokio::runtime::Handle;

use super::applications::Listing;
use super::{Imported, Refusal, Server, import_failed};
use crate::import::Admission;
use crate::objects::bucket::Trouble;
use crate::objects::mirror::Mirror;
use crate::objects::publish;
use crate::open::exists;

/// The server's log has the address and the reason.
fn refused(trouble: &Trouble) -> Refusal {
    tracing::debug!(%trouble, "no answer");
    Refusal(
        StatusCode::SERVICE_UNAVAILABLE,
        "the store gives no answer now, or the copy is still being made: ask again; the server's log says why".to_owned(),
    )
}

impl Server {
    /// Copies what is new of an application.
    pub(super) async fn bring(&self, id: &str, attempt: Option<&str>) -> Result<(), Refusal> {
        match &self.settings.bucket {
            None => Ok(()),
            Some(mirror) => {
                let brought = mirror.refresh(id, attempt).await;
                brought.map_err(|trouble| refused(&trouble))
            }
        }
    }

    /// Where the documents of all applications are.
    pub(crate) async fn listing(&self) -> Result<Listing, Refusal> {
        match &self.listed {
            None => Ok(Listing::Folder(Arc::clone(&self.folder))),
            Some(listed) => {
                let texts = listed.texts().await;
                texts
                    .map(|texts| Listing::Texts(texts, listed.left_out()))
                    .map_err(|trouble| refused(&trouble))
            }
        }
    }

    /// Imports a log into the bucket, on a thread that may wait.
    pub(super) fn import_into(
        &self,
        mirror: &Arc<Mirror>,
        name: &str,
        log: &Path,
        admission: &Admission,
    ) -> Imported {
        let bounds = self.settings.bounds;
        let handle = Handle::current();
        let done = publish::import(&handle, mirror.bucket(), log, bounds, admission);
        mirror.forget(name);
        match done {
            Ok(_) => Ok(None),
            Err(error) => {
                // Another server may have been first.
                let brought = handle.block_on(mirror.bring(name));
                if !admission.replaces && brought.is_ok() && exists(&self.settings.store.join(name))
                {
                    return Ok(None);
                }
                Err(import_failed(name, &error))
            }
        }
    }
}
