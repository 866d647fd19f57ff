//! Event logs in a bucket. A log is found by its name with two or four requests, whatever the bucket has, and is copied before
//! it is imported.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use object_store::path::Path as Key;
use tempfile::TempDir;
use url::Url;

use super::Location;
use super::bucket::{Bucket, Object, Trouble};
use crate::log::{ROLLING, in_order, names, spellings};

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
        Ok(Self { bucket, most })
    }

    /// The log of an application, by the name of its folder in a store; `None` where there is none.
    ///
    /// # Errors
    /// When the bucket gives no answer.
    pub async fn find(&self, application: &str) -> Result<Option<Found>, Trouble> {
        for spelling in spellings(application) {
            if let Some(found) = self.rolling(&format!("{ROLLING}{spelling}")).await? {
                return Ok(Some(found));
            }
            let wanted = names(&spelling);
            let objects = self.bucket.beginning(&spelling, &wanted).await?;
            let first = wanted
                .iter()
                .find_map(|name| objects.iter().find(|object| object.name == *name));
            if let Some(object) = first {
                return Ok(Some(Found {
                    name: object.name.clone(),
                    objects: vec![object.clone()],
                }));
            }
        }
        Ok(None)
    }

    /// A folder of parts.
    async fn rolling(&self, name: &str) -> Result<Option<Found>, Trouble> {
        let objects = self.bucket.list(name).await?;
        // A part's name is a name in the copy, too.
        let is_name = |it: &&str| !it.contains(['/', '\\', '\0']);
        let all: BTreeSet<&str> = objects
            .iter()
            .map(|object| object.name.as_str())
            .filter(is_name)
            .collect();
        let parts = in_order(all.into_iter().map(str::to_owned));
        let of_part = |part: &String| objects.iter().find(|object| object.name == *part);
        let objects: Vec<Object> = parts.iter().filter_map(of_part).cloned().collect();
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
        let objects = self.bucket.beginning(name, &[name.to_owned()]).await?;
        Ok(objects.into_iter().next().map(|object| Found {
            name: name.to_owned(),
            objects: vec![object],
        }))
    }

    /// Copies a log.
    ///
    /// # Errors
    /// When it is larger than the bound, was replaced meanwhile, the bucket gives no answer, or the disk is full.
    pub async fn copy(&self, found: &Found) -> Result<Copied, Trouble> {
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
            format!("the bucket has no log of this name: a file, or a folder {ROLLING}* with parts")
        })?;
        Ok(logs.copy(&found).await?)
    })
}
