//! Stores in HDFS, whose files are the objects.
//!
//! HDFS has no conditional write. There an application's pointer is a file with a number, `tables-000001.json`, and the
//! highest number counts. A writer makes a hidden file, closes it, and renames it to the next number. The NameNode refuses a
//! rename to a name that exists, so of two writers one wins. A writer that stopped for so long that its number is free again
//! finds a higher one after its rename, and has lost, too. Tables are hidden files, too, until they are closed.

mod pointers;
mod service;
mod upload;
mod walk;

use std::fmt;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt as _, TryStreamExt as _};
use hdfs_native::client::FileStatus;
use hdfs_native::file::FileWriter;
use hdfs_native::{Client, HdfsError, WriteOptions};
use object_store::path::Path as Key;
use object_store::{Error, GetOptions, GetRange, MultipartUpload, PutMode, Result, UpdateVersion};
use tokio::sync::Mutex;
use url::Url;

use super::bucket::{Object, POINTER};
use super::connect::{Page, Read, Remote, line};
use super::publish::new_name;
use pointers::{Pointers, hidden, next, numbered};
use upload::Upload;
use walk::Walk;

/// Name of this kind of store in errors.
pub(super) const STORE: &str = "HDFS";
/// Port of a NameNode where neither the address nor the configuration has one.
const PORT: u16 = 8020;
/// The client's own retries. With them a NameNode that refuses connections is reported after 20 s, and another DataNode is asked
/// when one is silent for 10 s.
const SETTINGS: [(&str, &str); 4] = [
    ("dfs.client.socket-timeout", "10000"),
    ("dfs.client.failover.max.attempts", "10"),
    ("dfs.client.failover.sleep.base.millis", "500"),
    ("dfs.client.failover.sleep.max.millis", "2000"),
];
/// Modes of folders and files that are made, as in a local store.
const MODES: (u32, u32) = (0o750, 0o640);
/// Retries where another process replaces the pointer while it is read.
const TRIES: u32 = 5;
/// Characters of the NameNode's message that are shown.
const SHOWN: usize = 300;

/// An HDFS. The client is made by the first request, because its tasks run where it was made.
pub(super) struct Hdfs {
    /// Without the path.
    address: Url,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    client: Option<Client>,
    /// When no client could be made, and why.
    failed: Option<(Instant, String)>,
}

/// What the NameNode or the client said, in one line.
#[derive(Debug)]
struct Said(String);

impl fmt::Display for Said {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl std::error::Error for Said {}

/// The first line of a message, without what harms a terminal.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let kept = line.chars().filter(|it| !smtt_model::text::is_harmful(*it));
    kept.take(SHOWN).collect()
}

fn generic(said: String) -> Error {
    Error::Generic {
        store: STORE,
        source: Said(said).into(),
    }
}

/// Translates an error of the client. What it says of a Java exception is the class and a stack.
fn error(path: &str, error: HdfsError) -> Error {
    let path = path.to_owned();
    match error {
        HdfsError::FileNotFound(_) => Error::NotFound {
            path,
            source: Box::new(error),
        },
        HdfsError::AlreadyExists(_) => Error::AlreadyExists {
            path,
            source: Box::new(error),
        },
        HdfsError::RPCError(ref class, ref text)
        | HdfsError::FatalRPCError(ref class, ref text) => {
            let class = class.rsplit(['.', '$']).next().unwrap_or_default();
            match class {
                "FileNotFoundException" => Error::NotFound {
                    path,
                    source: Box::new(error),
                },
                "AccessControlException" => {
                    generic(format!("HDFS refuses access: {}", first_line(text)))
                }
                "SafeModeException" => generic(
                    "the NameNode is in safe mode, in which nothing can be written".to_owned(),
                ),
                "StandbyException" => {
                    generic("no NameNode of the name service is active".to_owned())
                }
                _ => generic(format!(
                    "the NameNode says {}: {}",
                    first_line(class),
                    first_line(text)
                )),
            }
        }
        HdfsError::IOError(error) => generic(format!(
            "no answer of the NameNode or a DataNode: check the address, and HADOOP_CONF_DIR where it is a name service ({error})"
        )),
        HdfsError::DataTransferError(_) | HdfsError::BlocksNotFound(_) => {
            generic("no DataNode gives or takes a block of it".to_owned())
        }
        error => generic(first_line(&error.to_string())),
    }
}

/// A file's path in HDFS.
fn path_of(key: &str) -> String {
    format!("/{key}")
}

/// The folder of a path, and the name in it.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// The hidden name of a file that is being written.
fn unnamed(path: &str) -> String {
    let (folder, name) = split(path);
    format!("{folder}/.{name}")
}

/// The folder of a key that is an application's pointer.
fn pointed(key: &Key) -> Option<&str> {
    let (folder, name) = split(key.as_ref());
    (name == POINTER).then_some(folder)
}

/// The tag of a file. A log under construction grows while its time stays, and what was read of it stays as well: so its
/// length is no part of the tag.
fn tag(status: &FileStatus) -> String {
    format!("{:x}", status.modification_time)
}

/// A file as an object.
fn object(name: &str, status: &FileStatus) -> Object {
    Object {
        name: name.trim_start_matches('/').to_owned(),
        size: status.length as u64,
        tag: Some(tag(status)),
        modified_ms: i64::try_from(status.modification_time).unwrap_or_default(),
    }
}

impl Hdfs {
    /// The HDFS of an address, without a request.
    pub(super) fn open(url: &Url) -> Self {
        let mut address = url.clone();
        address.set_path("");
        Self {
            address,
            state: Mutex::default(),
        }
    }

    /// The client, which is made where there is none. All that wait for one that cannot be made have the same error.
    async fn client(&self) -> Result<Client> {
        let asked = Instant::now();
        let mut state = self.state.lock().await;
        if let Some(client) = &state.client {
            return Ok(client.clone());
        }
        if let Some((_, said)) = state.failed.as_ref().filter(|it| it.0 >= asked) {
            return Err(generic(said.clone()));
        }
        match service::connect(&self.address).await {
            Ok(client) => {
                state.client = Some(client.clone());
                Ok(client)
            }
            Err(trouble) => {
                let trouble = error("", trouble);
                state.failed = Some((Instant::now(), line(&trouble)));
                Err(trouble)
            }
        }
    }

    /// What an application's folder has of pointers.
    async fn pointers(&self, folder: &str) -> Result<Pointers> {
        let folder = path_of(folder);
        let names = self.client().await?.list_status_iter(&folder, false);
        let mut found = Pointers::default();
        while let Some(status) = names.next().await {
            match status {
                Ok(status) => found.take(status)?,
                Err(HdfsError::FileNotFound(_)) => break,
                Err(trouble) => return Err(error(&folder, trouble)),
            }
        }
        Ok(found)
    }

    /// Reads a file with this tag.
    async fn read_file(&self, path: &str, options: &GetOptions) -> Result<Read> {
        let client = self.client().await?;
        let of = |trouble| error(path, trouble);
        let status = client.get_file_info(path).await.map_err(of)?;
        if status.isdir {
            return Err(of(HdfsError::FileNotFound(path.to_owned())));
        }
        if options
            .if_match
            .as_ref()
            .is_some_and(|it| *it != tag(&status))
        {
            return Err(Error::Precondition {
                path: path.to_owned(),
                source: Said("the file is another one".to_owned()).into(),
            });
        }
        let reader = client.read(path).await.map_err(of)?;
        let (start, end) = match &options.range {
            Some(GetRange::Bounded(range)) => (range.start, range.end),
            _ => (0, u64::MAX),
        };
        let place = |at: u64| {
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            at.min(reader.file_length())
        };
        let (start, end) = (place(start), place(end));
        let (path, bytes) = (
            path.to_owned(),
            reader.read_range_stream(start, end - start),
        );
        Ok(Read {
            version: UpdateVersion {
                e_tag: Some(tag(&status)),
                version: None,
            },
            bytes: bytes
                .map(move |piece| piece.map_err(|trouble| error(&path, trouble)))
                .boxed(),
        })
    }

    /// Reads the pointer of an application's folder.
    async fn read_pointer(&self, folder: &str) -> Result<Read> {
        for _ in 0..TRIES {
            let Some(last) = self.pointers(folder).await?.last else {
                break;
            };
            match self
                .read_file(&last.status.path, &GetOptions::default())
                .await
            {
                // Another process replaced it just now.
                Err(Error::NotFound { .. }) => {}
                read => {
                    return Ok(Read {
                        version: UpdateVersion {
                            e_tag: Some(last.tag()),
                            version: Some(last.number.to_string()),
                        },
                        ..read?
                    });
                }
            }
        }
        let path = format!("{}/{POINTER}", path_of(folder));
        Err(error(&path, HdfsError::FileNotFound(path.clone())))
    }

    /// Begins a file that does not exist.
    async fn begin(&self, path: &str) -> Result<FileWriter> {
        let client = self.client().await?;
        let (folder, _) = split(path);
        let made = client.mkdirs(folder, MODES.0, true).await;
        made.map_err(|trouble| error(folder, trouble))?;
        let options = WriteOptions::default()
            .permission(MODES.1)
            .create_parent(false);
        let file = client.create(path, options).await;
        file.map_err(|trouble| error(path, trouble))
    }

    /// Makes a file that does not exist. What was begun is deleted where it cannot be finished.
    async fn make(&self, path: &str, bytes: Bytes) -> Result<()> {
        let mut file = self.begin(path).await?;
        let done = async {
            file.write_bytes(bytes).await?;
            file.close().await
        };
        if let Err(trouble) = done.await {
            drop(file);
            self.forget(path).await;
            return Err(error(path, trouble));
        }
        Ok(())
    }

    /// Makes a file that has its name when it is whole: a reader of all tables finds no half of one.
    async fn make_named(&self, path: &str, bytes: Bytes) -> Result<()> {
        let unnamed = unnamed(path);
        self.make(&unnamed, bytes).await?;
        let client = self.client().await?;
        if let Err(trouble) = client.rename(&unnamed, path, false).await {
            self.forget(&unnamed).await;
            return Err(error(path, trouble));
        }
        Ok(())
    }

    /// Deletes a file that no reader asks for: that it stays does no harm.
    async fn forget(&self, path: &str) {
        if let Ok(client) = self.client().await {
            let _ = client.delete(path, false).await;
        }
    }

    /// Makes the pointer that follows the one with a number.
    async fn point(&self, folder: &str, bytes: Bytes, after: u64) -> Result<()> {
        let number = next(after)?;
        let above = path_of(folder);
        let unnamed = format!("{above}/{}{}", hidden(), new_name());
        let own = format!("{above}/{}", numbered(number));
        self.make(&unnamed, bytes).await?;
        let client = self.client().await?;
        if let Err(trouble) = client.rename(&unnamed, &own, false).await {
            let trouble = error(&own, trouble);
            // Without an answer the rename may still be done.
            if matches!(trouble, Error::AlreadyExists { .. }) {
                self.forget(&unnamed).await;
            }
            return Err(trouble);
        }
        let found = self.pointers(folder).await?;
        if found.last.is_none_or(|last| last.number != number) {
            // Others wrote this number before, and higher ones, and deleted it.
            self.forget(&own).await;
            return Err(Error::Precondition {
                path: own,
                source: Said("another process was first".to_owned()).into(),
            });
        }
        for path in found.old.iter().chain(&found.orphans) {
            self.forget(path).await;
        }
        Ok(())
    }
}

#[async_trait]
impl Remote for Hdfs {
    fn pages<'a>(&'a self, prefix: &str, is_flat: bool) -> BoxStream<'a, Result<Page>> {
        let prefix = prefix.to_owned();
        let begun = async move {
            let client = self.client().await?;
            let walk = Walk::new(client, &prefix, is_flat);
            Ok::<_, Error>(stream::try_unfold(Some(walk), |walk| async move {
                let Some(mut walk) = walk else {
                    return Ok(None);
                };
                let page = walk.page().await?;
                let walk = page.has_more.then_some(walk);
                Ok(Some((page, walk)))
            }))
        };
        stream::once(begun).try_flatten().boxed()
    }

    async fn object(&self, key: &Key) -> Result<Object> {
        let path = path_of(key.as_ref());
        let of = |trouble| error(&path, trouble);
        let client = self.client().await?;
        let status = client.get_file_info(&path).await.map_err(of)?;
        if status.isdir {
            return Err(of(HdfsError::FileNotFound(path.clone())));
        }
        // A length may count bytes of a block that is being written, which cannot be read yet.
        let whole = client.read(&path).await.map_err(of)?.file_length() as u64;
        let object = object(key.as_ref(), &status);
        Ok(Object {
            size: object.size.min(whole),
            ..object
        })
    }

    async fn read(&self, key: &Key, options: GetOptions) -> Result<Read> {
        match pointed(key) {
            Some(folder) => self.read_pointer(folder).await,
            None => self.read_file(&path_of(key.as_ref()), &options).await,
        }
    }

    async fn write(&self, key: &Key, bytes: Bytes, mode: PutMode) -> Result<()> {
        let after = match mode {
            PutMode::Overwrite => return self.make_named(&path_of(key.as_ref()), bytes).await,
            PutMode::Create => Some(0),
            PutMode::Update(version) => version.version.and_then(|it| it.parse().ok()),
        };
        match pointed(key).zip(after) {
            Some((folder, after)) => self.point(folder, bytes, after).await,
            None => Err(generic(
                "only a pointer is written under a condition".to_owned(),
            )),
        }
    }

    async fn upload(&self, key: &Key) -> Result<Box<dyn MultipartUpload>> {
        let path = path_of(key.as_ref());
        let file = self.begin(&unnamed(&path)).await?;
        let client = self.client().await?;
        Ok(Box::new(Upload::new(client, file, path)))
    }

    async fn remove(&self, key: &Key) -> Result<()> {
        let path = path_of(key.as_ref());
        let gone = self.client().await?.delete(&path, false).await;
        gone.map(drop).map_err(|trouble| error(&path, trouble))
    }

    fn unanswered(&self) {
        // Who holds it makes a new one.
        if let Ok(mut state) = self.state.try_lock() {
            state.client = None;
        }
    }

    fn grows(&self) -> bool {
        true
    }

    fn pointer(&self) -> &'static str {
        "tables-*.json"
    }
}

#[cfg(test)]
mod tests;
