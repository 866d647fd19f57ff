//! A large file in HDFS.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use hdfs_native::Client;
use hdfs_native::file::FileWriter;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use tokio::sync::Mutex;

use super::{error, unnamed};

/// A large file, which is written piece by piece under a hidden name. It has its own name when it is whole.
pub(super) struct Upload {
    client: Client,
    file: Arc<Mutex<Option<FileWriter>>>,
    path: String,
}

impl Upload {
    /// `file` is the hidden one of the path.
    pub(super) fn new(client: Client, file: FileWriter, path: String) -> Self {
        Self {
            client,
            file: Arc::new(Mutex::new(Some(file))),
            path,
        }
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Upload")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        let (file, path) = (Arc::clone(&self.file), self.path.clone());
        async move {
            let mut file = file.lock().await;
            for bytes in payload {
                if let Some(file) = &mut *file {
                    let written = file.write_bytes(bytes).await;
                    written.map_err(|trouble| error(&path, trouble))?;
                }
            }
            Ok(())
        }
        .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let of = |trouble| error(&self.path, trouble);
        if let Some(mut file) = self.file.lock().await.take() {
            file.close().await.map_err(of)?;
            let unnamed = unnamed(&self.path);
            let named = self.client.rename(&unnamed, &self.path, false);
            named.await.map_err(of)?;
        }
        Ok(PutResult {
            e_tag: None,
            version: None,
            extensions: Default::default(),
        })
    }

    async fn abort(&mut self) -> Result<()> {
        drop(self.file.lock().await.take());
        let gone = self.client.delete(&unnamed(&self.path), false).await;
        gone.map(drop).map_err(|trouble| error(&self.path, trouble))
    }
}
