//! The list of a bucket's applications. A listing gives the names page by page; the pointer of each application contains its
//! own document.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use moka::sync::Cache;
use serde::Deserialize;
use smtt_store::history::columns::META;
use smtt_store::history::{parts, place};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::bucket::{Bucket, Object, Trouble};
use super::mirror::finished;
use crate::live::{self, FILE_BYTES};
use crate::open::summary_up_to;
use crate::serve::applications::{LISTED, TEXTS, is_of, newest_first};

/// Age up to which a list is used.
const FRESH: Duration = Duration::from_secs(5);
/// Age up to which a document is used: of an application that has ended, and of one that is running.
const DOCUMENT: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(5));
/// How long a request waits for a list.
const PATIENCE: Duration = Duration::from_secs(25);
/// Time limit of making a list.
const TIME: Duration = Duration::from_secs(600);
/// Documents that are requested at a time.
const QUESTIONS: usize = 32;
/// Bytes of documents in memory at most.
const BYTES: u64 = 128 << 20;
/// KiB of tables that are copied at a time for their documents.
const TABLES_KIB: u32 = 512 << 10;

/// An application's document, and until when it is used.
type Document = (Arc<str>, Instant);
/// Documents of all applications, the last begun first as far as their ids say it.
type Texts = Arc<Vec<Arc<str>>>;
type Ended = watch::Receiver<Option<Result<Texts, Trouble>>>;

/// The list of a bucket's applications.
pub struct Applications {
    bucket: Arc<Bucket>,
    documents: Cache<String, Document>,
    /// KiB of tables that may be copied for their documents.
    tables: Semaphore,
    last: Mutex<Option<(Instant, Ended)>>,
    /// Folders that the last list had no room for.
    left_out: AtomicU64,
}

/// Copies the `meta` of a part into a folder.
pub(super) async fn fetch_meta(
    bucket: &Bucket,
    name: &str,
    objects: &[Object],
    number: u64,
    folder: &Path,
) -> Result<(), Trouble> {
    let to = parts::path(folder, META.name, number);
    let file = to
        .file_name()
        .and_then(|it| it.to_str())
        .unwrap_or_default();
    let object = objects.iter().find(|object| object.name == file);
    match object.filter(|object| object.size <= FILE_BYTES) {
        Some(object) => bucket.fetch(&format!("{name}/{file}"), object, &to).await,
        None => Ok(()),
    }
}

/// The document of an application; `None` where the folder has none. `tables` has the KiB of temporary files that are left.
async fn document(
    bucket: &Bucket,
    name: &str,
    tables: &Semaphore,
) -> Result<Option<String>, Trouble> {
    if let Some((pointer, _)) = bucket.pointer(name).await? {
        return Ok(Some(pointer.application.get().to_owned()));
    }
    let objects = bucket.list(name).await?;
    let failed = |error: std::io::Error| Trouble::Failed(error.to_string());
    let plain = format!("{}.parquet", META.name);
    let plain = objects.iter().find(|object| object.name == plain);
    let numbers = finished(&objects);
    let largest = objects
        .iter()
        .filter(|object| object.size <= FILE_BYTES && object.name.starts_with(META.name))
        .map(|object| object.size)
        .max();
    // Two parts at most.
    let kib = u32::try_from(largest.unwrap_or(0) >> 9).unwrap_or(u32::MAX);
    let _room = tables.acquire_many(kib.clamp(1, TABLES_KIB)).await;
    let folder = tempfile::tempdir().map_err(failed)?;
    if let Some(object) = plain.filter(|object| object.size <= FILE_BYTES) {
        let to = place::table(folder.path(), META.name);
        bucket
            .fetch(&format!("{name}/{}", object.name), object, &to)
            .await?;
        return Ok(summary_up_to(folder.path(), TEXTS.0).ok().flatten());
    }
    let (Some(&first), Some(&last)) = (numbers.first(), numbers.last()) else {
        return Ok(None);
    };
    fetch_meta(bucket, name, &objects, first, folder.path()).await?;
    if last != first {
        fetch_meta(bucket, name, &objects, last, folder.path()).await?;
    }
    Ok(live::summary(folder.path()))
}

/// What a document states of an attempt.
#[derive(Deserialize)]
struct Attempt {
    completed: bool,
}

/// Whether the newest attempt of a document has ended.
fn has_ended(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Own {
        attempts: Vec<Attempt>,
    }
    let own: Result<Own, _> = serde_json::from_str(text);
    own.is_ok_and(|own| own.attempts.first().is_some_and(|it| it.completed))
}

impl Applications {
    /// An empty list of a bucket's applications. The first question fills it.
    #[must_use]
    pub fn new(bucket: Arc<Bucket>) -> Self {
        Self {
            bucket,
            documents: Cache::builder()
                .max_capacity(BYTES)
                .weigher(|name: &String, (text, _): &Document| {
                    u32::try_from(name.len() + text.len()).unwrap_or(u32::MAX)
                })
                .build(),
            tables: Semaphore::new(TABLES_KIB as usize),
            last: Mutex::new(None),
            left_out: AtomicU64::new(0),
        }
    }

    /// Documents of all applications.
    ///
    /// # Errors
    /// When the store gives no answer, or the documents are still being read.
    pub async fn texts(self: &Arc<Self>) -> Result<Texts, Trouble> {
        let mut ended = self.begin();
        let waiting = ended.wait_for(Option::is_some);
        match timeout(PATIENCE, waiting).await {
            Ok(Ok(texts)) => texts.clone().unwrap_or_else(|| Ok(Texts::default())),
            Ok(Err(_)) => Err(Trouble::Failed("the listing stopped".to_owned())),
            Err(_) => Err(Trouble::Failed(
                "the applications are still being listed".to_owned(),
            )),
        }
    }

    /// Begins a new listing, unless one is running or the last one is recent.
    fn begin(self: &Arc<Self>) -> Ended {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((begun, ended)) = &*last
            && (ended.borrow().is_none() || begun.elapsed() < FRESH)
            && begun.elapsed() < TIME
        {
            return ended.clone();
        }
        let (end, ended) = watch::channel(None);
        *last = Some((Instant::now(), ended.clone()));
        let list = Arc::clone(self);
        tokio::spawn(async move {
            let result = match timeout(TIME, list.read()).await {
                Ok(result) => result,
                Err(_) => Err(Trouble::Failed(format!(
                    "listing the applications took longer than {} s",
                    TIME.as_secs()
                ))),
            };
            if let Err(trouble) = &result {
                tracing::warn!("{trouble}");
            }
            // Those who waited may have gone.
            let _ = end.send(Some(result));
        });
        ended
    }

    /// Folders that the last list had no room for; at least one where nobody knows their number.
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    async fn read(&self) -> Result<Texts, Trouble> {
        let (names, is_cut) = self.bucket.folders().await?;
        let names: HashSet<String> = names.into_iter().filter(|it| place::is_safe(it)).collect();
        let mut names: Vec<String> = names.into_iter().collect();
        newest_first(&mut names);
        if is_cut || names.len() > LISTED {
            // Of a list that the bucket cut nobody knows the rest: at least one.
            let left_out = names.len().saturating_sub(LISTED).max(1);
            tracing::warn!(left_out, "the list of applications is cut");
            self.left_out.store(left_out as u64, Ordering::Relaxed);
        } else {
            self.left_out.store(0, Ordering::Relaxed);
        }
        names.truncate(LISTED);
        let all = names.len();
        let questions = names.into_iter().map(|name| self.document(name));
        let mut answers = futures_util::stream::iter(questions).buffered(QUESTIONS);
        let (mut texts, mut failed, mut why) = (Vec::new(), 0, None);
        let (mut bytes, mut too_large) = (0, 0);
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(Some(text)) if text.len() > TEXTS.0 || bytes + text.len() > TEXTS.1 => {
                    too_large += 1;
                }
                Ok(Some(text)) => {
                    bytes += text.len();
                    texts.push(text);
                }
                Ok(None) => {}
                Err(trouble) => {
                    failed += 1;
                    why.get_or_insert(trouble);
                }
            }
        }
        if too_large > 0 {
            tracing::warn!(
                "the list is without {too_large} applications: their documents are too large"
            );
        }
        match why {
            Some(why) if failed == all => Err(why),
            Some(why) => {
                tracing::warn!("the list is without {failed} applications: {why}");
                Ok(Arc::new(texts))
            }
            None => Ok(Arc::new(texts)),
        }
    }

    async fn document(&self, name: String) -> Result<Option<Arc<str>>, Trouble> {
        if let Some((text, until)) = self.documents.get(&name)
            && Instant::now() < until
        {
            return Ok(Some(text));
        }
        let Some(text) = document(&self.bucket, &name, &self.tables).await? else {
            return Ok(None);
        };
        if !is_of(&text, &name) {
            tracing::debug!(name, "the document is of another application");
            return Ok(None);
        }
        let has_ended = has_ended(&text);
        let good = if has_ended { DOCUMENT.0 } else { DOCUMENT.1 };
        let text: Arc<str> = text.into();
        self.documents
            .insert(name, (Arc::clone(&text), Instant::now() + good));
        Ok(Some(text))
    }
}
