//! Event logs in a bucket. A log is found by its name: the folder of its parts is listed, and each name that its file could
//! have is asked for, whatever else the bucket has. It is copied before it is imported.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use object_store::path::Path as Key;
use tempfile::TempDir;
use tokio::time::timeout;
use url::Url;

use super::Location;
use super::bucket::{Bucket, Object, Trouble};
use crate::log::{ROLLING, in_order, names, spellings};

/// Parts of a log at most, and pages of the listing of its folder.
const PARTS: (usize, usize) = (10_000, 11);
/// Names of a log that are asked for at a time.
const QUESTIONS: usize = 10;
/// Time limits of finding a log, and of copying it with all its parts: others wait for both.
const TIME: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(1800));

/// Where event logs are.
#[derive(Clone)]
pub enum Logs {
    /// A folder of this machine.
    Folder(PathBuf),
    /// A bucket, perhaps with a prefix.
    Bucket(Arc<BucketLogs>),
}

impl From<PathBuf> for Logs {
    fn from(folder: PathBuf) -> Self {
        Self::Folder(folder)
    }
}

impl Logs {
    /// The logs at a location, without a request. A copy has at most `most` bytes.
    ///
    /// # Errors
    /// When the environment has a wrong setting.
    pub fn open(location: Location, most: u64) -> Result<Self, Trouble> {
        Ok(match location {
            Location::Folder(folder) => Self::Folder(folder),
            Location::Bucket(url) => Self::Bucket(Arc::new(BucketLogs::open(&url, most)?)),
        })
    }
}

/// Event logs in a bucket.
pub struct BucketLogs {
    bucket: Bucket,
    most: u64,
    /// [`TIME`].
    time: (Duration, Duration),
}

/// A log of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its name: an object, or a folder of parts.
    name: String,
    /// What it is made of; of parts the names below the folder.
    objects: Vec<Object>,
}

impl Found {
    /// Bytes of all its objects.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.size).sum()
    }

    fn is_rolling(&self) -> bool {
        self.name.starts_with(ROLLING)
    }
}

/// A copy of a log, which goes with this.
pub struct Copied {
    /// The log's file or folder.
    pub path: PathBuf,
    _folder: TempDir,
}

impl BucketLogs {
    /// The logs below an address, without a request.
    ///
    /// # Errors
    /// When the environment has a wrong setting.
    pub fn open(url: &Url, most: u64) -> Result<Self, Trouble> {
        let bucket = Bucket::open(url)?;
        Ok(Self {
            bucket,
            most,
            time: TIME,
        })
    }

    /// What a request to the bucket gives within its time limit.
    async fn within<T>(
        &self,
        (name, limit): (&str, Duration),
        request: impl Future<Output = Result<T, Trouble>>,
    ) -> Result<T, Trouble> {
        timeout(limit, request).await.unwrap_or_else(|_| {
            let (shown, limit) = (self.bucket.shown(name), limit.as_secs());
            Err(Trouble::Failed(format!(
                "{shown}: it took longer than {limit} s: the bucket is slow, or the log is too large for it"
            )))
        })
    }

    /// The log of an application, by the name of its folder in a store; `None` where there is none.
    ///
    /// # Errors
    /// When the bucket gives no answer.
    pub async fn find(&self, application: &str) -> Result<Option<Found>, Trouble> {
        let search = self.search(application);
        self.within((application, self.time.0), search).await
    }

    async fn search(&self, application: &str) -> Result<Option<Found>, Trouble> {
        for spelling in spellings(application) {
            if let Some(found) = self.rolling(&format!("{ROLLING}{spelling}")).await? {
                return Ok(Some(found));
            }
            let questions = names(&spelling).into_iter().map(|name| self.file(name));
            let mut answers = futures_util::stream::iter(questions).buffered(QUESTIONS);
            while let Some(answer) = answers.next().await {
                if let Some(found) = answer? {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }

    /// A log that is one object.
    async fn file(&self, name: String) -> Result<Option<Found>, Trouble> {
        let object = self.bucket.object(&name).await?;
        Ok(object.map(|object| Found {
            name,
            objects: vec![object],
        }))
    }

    /// A folder of parts.
    async fn rolling(&self, name: &str) -> Result<Option<Found>, Trouble> {
        let mut objects = parts_of(self.bucket.list_up_to(name, PARTS.1).await?);
        if objects.len() > PARTS.0 {
            return Err(Trouble::Failed(format!(
                "{} has {} parts, and a log may have {}: let Spark compact it (spark.history.fs.eventLog.rolling.maxFilesToRetain)",
                self.bucket.shown(name),
                objects.len(),
                PARTS.0
            )));
        }
        if let Some(last) = objects.last_mut().filter(|_| self.bucket.grows()) {
            let now = self.bucket.object(&format!("{name}/{}", last.name)).await?;
            last.size = now.map_or(last.size, |now| now.size);
        }
        Ok((!objects.is_empty()).then(|| Found {
            name: name.to_owned(),
            objects,
        }))
    }

    /// The log with a name as it is.
    async fn named(&self, name: &str) -> Result<Option<Found>, Trouble> {
        if name.starts_with(ROLLING) {
            return self.rolling(name).await;
        }
        self.file(name.to_owned()).await
    }

    /// Copies a log.
    ///
    /// # Errors
    /// When it is larger than the bound, was replaced meanwhile, the bucket gives no answer or is too slow, or the disk is
    /// full.
    pub async fn copy(&self, found: &Found) -> Result<Copied, Trouble> {
        let copy = self.download(found);
        self.within((&found.name, self.time.1), copy).await
    }

    async fn download(&self, found: &Found) -> Result<Copied, Trouble> {
        let (bytes, most) = (found.bytes(), self.most);
        let shown = self.bucket.shown(&found.name);
        if bytes > most {
            return Err(Trouble::Failed(format!(
                "{shown} has {bytes} bytes, and a copy may have {most}: raise --object-cache-bytes"
            )));
        }
        let failed = |error: std::io::Error| Trouble::Failed(format!("{shown}: {error}"));
        let folder = tempfile::Builder::new().prefix("smtt-log-").tempdir();
        let folder = folder.map_err(failed)?;
        let path = folder.path().join(&found.name);
        if found.is_rolling() {
            std::fs::create_dir(&path).map_err(failed)?;
        }
        for object in &found.objects {
            let (name, to) = if found.is_rolling() {
                let name = format!("{}/{}", found.name, object.name);
                (name, path.join(&object.name))
            } else {
                (found.name.clone(), path.clone())
            };
            self.bucket.fetch(&name, object, &to).await?;
        }
        Ok(Copied {
            path,
            _folder: folder,
        })
    }
}

/// The parts of a log among the objects of its folder, in the order of their numbers.
fn parts_of(objects: Vec<Object>) -> Vec<Object> {
    let mut by_name = HashMap::new();
    for object in objects {
        // A part's name is a name in the copy, too.
        if !object.name.contains(['/', '\\', '\0']) {
            by_name.entry(object.name.clone()).or_insert(object);
        }
    }
    let parts = in_order(by_name.keys().cloned());
    let parts = parts.iter().filter_map(|part| by_name.remove(part));
    parts.collect()
}

/// Copies the log that a command names by its address.
///
/// # Errors
/// When the bucket does not have it, or as [`BucketLogs::copy`].
pub fn copied(url: &Url, most: u64) -> Result<Copied> {
    let key = Key::from_url_path(url.path())?;
    let name = key.filename().context("the address names no log")?;
    let mut parent = url.clone();
    if let Ok(mut segments) = parent.path_segments_mut() {
        segments.pop_if_empty().pop();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let logs = BucketLogs::open(&parent, most)?;
        let found = logs.named(name).await?;
        let found = found.with_context(|| {
            format!("the store has no log of this name: a file, or a folder {ROLLING}* with parts")
        })?;
        Ok(logs.copy(&found).await?)
    })
}

#[cfg(test)]
mod tests;
