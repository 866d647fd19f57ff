//! Requests to a store: it lists objects page by page, reads them in ranges and writes the pointer conditionally. The number
//! of pages, the bytes of an object and the time of a request are bounded.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use object_store::path::Path as Key;
use object_store::{Error, GetOptions, GetRange, MultipartUpload as _, PutMode, UpdateVersion};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::timeout;
use url::Url;

use super::connect::{Read, Remote, connect, line};

/// The object that names an application's tables.
pub const POINTER: &str = "tables.json";
/// Bytes of the pointer at most: it contains the application's own document, which has 4 MiB at most.
const POINTER_BYTES: u64 = 6 << 20;
/// Bytes of a range that is read, and of a piece of an upload.
pub(super) const CHUNK: u64 = 8 << 20;
/// Time limit of one request with all its retries.
pub(super) const REQUEST: Duration = Duration::from_secs(45);
/// Pages of a listing of one application at most; a page has 1,000 objects.
pub(super) const PAGES: usize = 400;
/// Bytes of an object's name at most, below the folder: names of workers' files contain the host.
const LONGEST: usize = 320;
/// Pages of the list of applications at most.
const FOLDER_PAGES: usize = 100;

/// Why the bucket gave no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Trouble {
    /// The object does not exist.
    #[error("{0} is not in the store")]
    Absent(String),
    /// Another process has replaced or written the object.
    #[error("{0} has changed meanwhile: another process wrote it")]
    Changed(String),
    /// The store does not answer, refuses the request, or gives an answer beyond the bounds.
    #[error("{0}")]
    Failed(String),
}

impl Trouble {
    fn of(what: &str, error: &Error) -> Self {
        match error {
            Error::NotFound { .. } => Self::Absent(what.to_owned()),
            Error::AlreadyExists { .. } | Error::Precondition { .. } => {
                Self::Changed(what.to_owned())
            }
            _ => Self::Failed(format!("{what}: {}", line(error))),
        }
    }
}

/// An object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its name below the folder that was listed.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// ETag, where the store has one: it changes whenever the object is written.
    pub tag: Option<String>,
    /// When it was written, in milliseconds since 1970.
    pub modified_ms: i64,
}

/// What [`POINTER`] says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pointer {
    /// The tables are `<table>.<generation>.parquet`.
    pub generation: String,
    /// Number of the last part that the tables have; parts after it were written later.
    #[serde(default)]
    pub last_part: u64,
    /// The application's own document. It stays text, because a hostile document takes many times its bytes when it is parsed.
    pub application: Box<RawValue>,
}

/// A pointer, and its version for a conditional write.
pub(super) type Pointed = (Pointer, UpdateVersion);

/// A bucket or an HDFS, with its prefix.
pub struct Bucket {
    store: Arc<dyn Remote>,
    prefix: String,
    shown: String,
}

impl Bucket {
    /// Makes the client of the bucket that an address names, without a request to it.
    ///
    /// # Errors
    /// When the environment has a wrong setting.
    pub fn open(url: &Url) -> Result<Self, Trouble> {
        let shown = url.as_str().trim_end_matches('/').to_owned();
        let (store, path) = connect(url).map_err(|error| Trouble::of(&shown, &error))?;
        let prefix = match path.as_ref() {
            "" => String::new(),
            path => format!("{path}/"),
        };
        Ok(Self {
            store,
            prefix,
            shown,
        })
    }

    /// Address of a name in the store, for messages.
    #[must_use]
    pub fn shown(&self, name: &str) -> String {
        format!("{}/{name}", self.shown)
    }

    /// Whether objects grow, so that the length of one in a listing may be more than what can be read.
    pub(super) fn grows(&self) -> bool {
        self.store.grows()
    }

    /// Name of what an application's pointer is in the store, for messages.
    pub(super) fn pointer_name(&self) -> &'static str {
        self.store.pointer()
    }

    fn key(&self, name: &str) -> Result<Key, Trouble> {
        Key::parse(format!("{}{name}", self.prefix))
            .map_err(|_| Trouble::Failed(format!("{name:?} is no name of an object")))
    }

    async fn asked<T>(
        &self,
        name: &str,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, Trouble> {
        let what = self.shown(name);
        match timeout(REQUEST, request).await {
            Ok(answer) => answer.map_err(|error| Trouble::of(&what, &error)),
            Err(_) => {
                self.store.unanswered();
                let limit = REQUEST.as_secs();
                Err(Trouble::Failed(format!(
                    "{what}: no answer within {limit} s"
                )))
            }
        }
    }

    /// Lists the objects below a folder. It skips names that are longer than any that a reader asks for.
    ///
    /// # Errors
    /// When the store gives no answer, or the listing has too many pages.
    pub async fn list(&self, folder: &str) -> Result<Vec<Object>, Trouble> {
        self.list_up_to(folder, PAGES).await
    }

    /// As [`Bucket::list`], with so many pages at most.
    pub(super) async fn list_up_to(
        &self,
        folder: &str,
        pages: usize,
    ) -> Result<Vec<Object>, Trouble> {
        let prefix = format!("{}{folder}/", self.prefix);
        let mut objects = Vec::new();
        let mut listing = self.store.pages(&prefix, false);
        for _ in 0..pages {
            let page = async { listing.next().await.transpose() };
            let page = self.asked(folder, page).await?.unwrap_or_default();
            objects.extend(page.objects.into_iter().filter_map(|object| {
                let name = object.name.strip_prefix(&prefix)?.to_owned();
                (name.len() <= LONGEST).then_some(Object { name, ..object })
            }));
            if !page.has_more {
                return Ok(objects);
            }
        }
        Err(Trouble::Failed(format!(
            "{}: the listing has more than {pages} pages",
            self.shown(folder)
        )))
    }

    /// The object of this name; `None` where there is none. Nothing is listed.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn object(&self, name: &str) -> Result<Option<Object>, Trouble> {
        let key = self.key(name)?;
        match self.asked(name, self.store.object(&key)).await {
            Ok(object) => Ok(Some(Object {
                name: name.to_owned(),
                ..object
            })),
            Err(Trouble::Absent(_)) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    /// Names of the folders at the store's top, and whether there are more than were listed.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn folders(&self) -> Result<(Vec<String>, bool), Trouble> {
        let mut names = Vec::new();
        match self.folders_of("", &mut names).await {
            Ok(is_cut) => return Ok((names, is_cut)),
            // Only a name that no path has ends a listing so. Others are found by their first characters.
            Err((_, false)) => {}
            Err((trouble, true)) => return Err(trouble),
        }
        names.clear();
        let mut is_cut = false;
        for first in ('0'..='9')
            .chain('A'..='Z')
            .chain('a'..='z')
            .chain(['_', '-'])
        {
            match self.folders_of(&first.to_string(), &mut names).await {
                Ok(more) => is_cut |= more,
                Err((trouble, false)) => tracing::warn!(
                    "the list of applications is without those whose names begin with {first}: {trouble}"
                ),
                Err((trouble, true)) => return Err(trouble),
            }
        }
        Ok((names, is_cut))
    }

    /// The error states whether another listing would have it, too.
    async fn folders_of(
        &self,
        first: &str,
        names: &mut Vec<String>,
    ) -> Result<bool, (Trouble, bool)> {
        let prefix = format!("{}{first}", self.prefix);
        let mut listing = self.store.pages(&prefix, true);
        for _ in 0..FOLDER_PAGES {
            let page = async { listing.next().await.transpose() };
            let page = match timeout(REQUEST, page).await {
                Ok(Ok(page)) => page.unwrap_or_default(),
                Ok(Err(error)) => {
                    let is_of_all = !matches!(error, Error::InvalidPath { .. });
                    return Err((Trouble::of(&self.shown, &error), is_of_all));
                }
                Err(_) => {
                    self.store.unanswered();
                    let what = format!("{}: no answer in time", self.shown);
                    return Err((Trouble::Failed(what), true));
                }
            };
            names.extend(page.folders.iter().filter_map(|it| {
                let name = it.strip_prefix(&self.prefix)?;
                Some(name.to_owned())
            }));
            if !page.has_more {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads a range of an object, which must have this ETag.
    async fn piece(
        &self,
        name: &str,
        tag: Option<&str>,
        range: std::ops::Range<u64>,
    ) -> Result<Vec<u8>, Trouble> {
        let key = self.key(name)?;
        let wanted = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let options = GetOptions {
            if_match: tag.map(str::to_owned),
            range: Some(GetRange::Bounded(range)),
            ..Default::default()
        };
        let read = async {
            let Read { mut bytes, .. } = self.store.read(&key, options).await?;
            let mut piece = Vec::new();
            while let Some(more) = bytes.next().await {
                piece.extend_from_slice(&more?);
                if piece.len() > wanted {
                    break;
                }
            }
            Ok(piece)
        };
        let piece = self.asked(name, read).await?;
        if piece.len() != wanted {
            return Err(Trouble::Failed(format!(
                "{}: the store sent {} bytes of {wanted}",
                self.shown(name),
                piece.len()
            )));
        }
        Ok(piece)
    }

    /// Downloads a listed object into a file.
    ///
    /// # Errors
    /// When the object was removed or replaced since the listing, the store gives no answer, or the file cannot be written.
    pub async fn fetch(&self, name: &str, object: &Object, to: &Path) -> Result<(), Trouble> {
        let local = |error: std::io::Error| Trouble::Failed(format!("{}: {error}", to.display()));
        let mut file = File::create_new(to).map_err(local)?;
        let mut at = 0;
        while at < object.size {
            let end = object.size.min(at + CHUNK);
            let piece = self.piece(name, object.tag.as_deref(), at..end).await?;
            file.write_all(&piece).map_err(local)?;
            at = end;
        }
        // The end of an application that died is the time of its last part.
        let since = Duration::from_millis(u64::try_from(object.modified_ms).unwrap_or_default());
        file.set_modified(std::time::UNIX_EPOCH + since)
            .map_err(local)
    }

    /// The pointer of an application; `None` where it has none.
    ///
    /// # Errors
    /// When the store gives no answer, or the pointer is damaged.
    pub(super) async fn pointer(&self, application: &str) -> Result<Option<Pointed>, Trouble> {
        let name = format!("{application}/{POINTER}");
        let key = self.key(&name)?;
        let read = async {
            let options = GetOptions::default();
            let Read { version, mut bytes } = self.store.read(&key, options).await?;
            let mut text = Vec::new();
            while let Some(more) = bytes.next().await {
                text.extend_from_slice(&more?);
                if text.len() as u64 > POINTER_BYTES {
                    break;
                }
            }
            Ok((text, version))
        };
        let (text, version) = match self.asked(&name, read).await {
            Err(Trouble::Absent(_)) => return Ok(None),
            read => read?,
        };
        let damaged = || Trouble::Failed(format!("{} is damaged", self.shown(&name)));
        if text.len() as u64 > POINTER_BYTES {
            return Err(damaged());
        }
        let pointer: Pointer = serde_json::from_slice(&text).map_err(|_| damaged())?;
        let is_generation =
            |it: &str| it.len() == GENERATION && it.bytes().all(|it| it.is_ascii_hexdigit());
        if !is_generation(&pointer.generation) {
            return Err(damaged());
        }
        Ok(Some((pointer, version)))
    }

    /// Writes the pointer conditionally: only over the version `instead_of`, or without one only if there is no pointer yet.
    pub(super) async fn point(
        &self,
        application: &str,
        pointer: &Pointer,
        instead_of: Option<UpdateVersion>,
    ) -> Result<(), Trouble> {
        let name = format!("{application}/{POINTER}");
        let key = self.key(&name)?;
        let text = serde_json::to_vec(pointer)
            .map_err(|error| Trouble::Failed(format!("{}: {error}", self.shown(&name))))?;
        let mode = instead_of.map_or(PutMode::Create, PutMode::Update);
        let write = self.store.write(&key, text.into(), mode);
        self.asked(&name, write).await
    }

    /// Uploads a file as an object whose name no other process uses.
    pub(super) async fn put(&self, name: &str, from: &Path) -> Result<u64, Trouble> {
        let local = |error: std::io::Error| Trouble::Failed(format!("{}: {error}", from.display()));
        let key = self.key(name)?;
        let mut file = File::open(from).map_err(local)?;
        let size = file.metadata().map_err(local)?.len();
        let mut piece = |at: u64| -> std::io::Result<Bytes> {
            let length = usize::try_from(CHUNK.min(size - at)).unwrap_or(0);
            let mut bytes = vec![0; length];
            file.seek(SeekFrom::Start(at))?;
            file.read_exact(&mut bytes)?;
            Ok(bytes.into())
        };
        if size <= CHUNK {
            let text = piece(0).map_err(local)?;
            let write = self.store.write(&key, text, PutMode::Overwrite);
            return self.asked(name, write).await.map(|()| size);
        }
        let begun = self.store.upload(&key);
        let mut upload = self.asked(name, begun).await?;
        let mut at = 0;
        while at < size {
            let more = piece(at).map_err(local)?;
            at += more.len() as u64;
            let sent = upload.put_part(more.into());
            if let Err(trouble) = self.asked(name, sent).await {
                // What cannot be ended here the bucket's own rule for unfinished uploads removes.
                let _ = self.asked(name, upload.abort()).await;
                return Err(trouble);
            }
        }
        self.asked(name, upload.complete()).await.map(|_| size)
    }

    /// Deletes an object. It is no error if the object does not exist.
    pub(super) async fn remove(&self, name: &str) -> Result<(), Trouble> {
        let key = self.key(name)?;
        match self.asked(name, self.store.remove(&key)).await {
            Err(Trouble::Absent(_)) => Ok(()),
            result => result,
        }
    }
}

/// Hexadecimal digits of a generation.
pub(super) const GENERATION: usize = 16;

#[cfg(test)]
impl Bucket {
    /// The bucket `s3://bucket/logs` of a server at an address.
    pub(super) fn at(endpoint: &str) -> Self {
        let url = Url::parse("s3://bucket/logs").expect("is one");
        let mut bucket = Self::open(&url).expect("needs no request");
        let store = object_store::aws::AmazonS3Builder::new()
            .with_url("s3://bucket/logs")
            .with_endpoint(endpoint)
            .with_allow_http(true)
            .with_access_key_id("key")
            .with_secret_access_key("secret");
        bucket.store = Arc::new(store.build().expect("is complete"));
        bucket
    }
}
