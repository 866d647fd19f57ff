//! The store that a command names: a folder of this machine or a bucket, with the same operations.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use smtt_store::history::place;
use tokio::runtime::Runtime;

use super::Location;
use super::bucket::Bucket;
use super::mirror::Mirror;
use super::publish;
use crate::import::{self, Admission, Imported};
use crate::live::{self, Compacted};
use crate::log::Bounds;
use crate::out::Times;

/// Folders of a bucket that are examined at a time.
const QUESTIONS: usize = 16;

/// Where applications are kept: a folder of this machine or a bucket.
pub enum Store {
    /// A folder of this machine.
    Folder(PathBuf),
    /// A bucket, and the copies of its applications.
    Bucket {
        /// Runs the requests to the bucket.
        runtime: Runtime,
        /// Copies of the applications that the command reads.
        mirror: Arc<Mirror>,
    },
}

impl Store {
    /// Opens a store without a request to it. Copies from a bucket have at most `copies` bytes.
    ///
    /// # Errors
    /// When the environment has a wrong setting, or no temporary folder can be made.
    pub fn open(location: &Location, copies: u64) -> Result<Self> {
        let url = match location {
            Location::Folder(folder) => return Ok(Self::Folder(folder.clone())),
            Location::Bucket(url) => url,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let bucket = {
            let _in = runtime.enter();
            Arc::new(Bucket::open(url)?)
        };
        let mirror = Mirror::keeping(bucket, copies).context("cannot make a temporary folder")?;
        Ok(Self::Bucket {
            runtime,
            mirror: Arc::new(mirror),
        })
    }

    /// A local store that has an application, named `ID` or `ID/ATTEMPT`, and the workers' files about it.
    ///
    /// # Errors
    /// When the bucket gives no answer, or the copies have no room.
    pub fn with(&self, application: &str, attempt: Option<&str>) -> Result<&Path> {
        match self {
            Self::Folder(folder) => Ok(folder),
            Self::Bucket { runtime, mirror } => {
                runtime.block_on(mirror.copied(application, attempt))?;
                Ok(mirror.folder())
            }
        }
    }

    /// The local folder that has the application: the store itself, or the copies from the bucket.
    #[must_use]
    pub fn folder(&self) -> &Path {
        match self {
            Self::Folder(folder) => folder,
            Self::Bucket { mirror, .. } => mirror.folder(),
        }
    }

    /// Imports a log.
    ///
    /// # Errors
    /// As [`import::import`].
    pub fn import(&self, log: &Path, bounds: Bounds, admission: &Admission) -> Result<Imported> {
        match self {
            Self::Folder(folder) => import::import(folder, log, bounds, admission),
            Self::Bucket { runtime, mirror } => {
                publish::import(runtime.handle(), mirror.bucket(), log, bounds, admission)
            }
        }
    }

    /// Replaces an application's parts by its tables.
    ///
    /// # Errors
    /// As [`live::compact`].
    pub fn compact(&self, name: &str, is_dead: bool, times: Times) -> Result<Compacted> {
        match self {
            Self::Folder(folder) => live::compact_with(folder, name, is_dead, times),
            Self::Bucket { runtime, mirror } => {
                publish::compact(runtime.handle(), mirror, (name, is_dead), times)
            }
        }
    }

    /// Folders whose drivers wrote their last part.
    ///
    /// # Errors
    /// When the store cannot be listed.
    pub fn names(&self) -> Result<Vec<String>> {
        let (runtime, bucket) = match self {
            Self::Folder(folder) => return live::names(folder),
            Self::Bucket { runtime, mirror } => (runtime, mirror.bucket()),
        };
        runtime.block_on(async {
            let (names, is_cut) = bucket.folders().await?;
            if is_cut {
                tracing::warn!("the store has more applications than are listed: compact again");
            }
            let names = names.into_iter().filter(|name| place::is_safe(name));
            let questions =
                names.map(|name| async move { (publish::is_over(bucket, &name).await, name) });
            let mut answers = futures_util::stream::iter(questions).buffer_unordered(QUESTIONS);
            let (mut over, mut has_answer, mut why) = (Vec::new(), false, None);
            while let Some((is_over, name)) = answers.next().await {
                match is_over {
                    Ok(is_over) => {
                        has_answer = true;
                        over.extend(is_over.then_some(name));
                    }
                    // One application that is damaged keeps no other from becoming compact.
                    Err(trouble) => {
                        tracing::warn!("{name} is left out: {trouble}");
                        why = Some(trouble);
                    }
                }
            }
            if let Some(trouble) = why.filter(|_| !has_answer) {
                return Err(trouble.into());
            }
            over.sort();
            Ok(over)
        })
    }
}
