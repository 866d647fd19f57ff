//! Serves Spark's REST API. A server has no state but a cache: any number of them can answer for one store.

pub(crate) mod applications;
mod bucket;
mod compress;
mod failed;
mod listen;
mod logs;
mod metrics;
mod quantiles;
pub(crate) mod routes;
pub(crate) mod stages;
pub(crate) mod tasks;
mod workers;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use axum::http::StatusCode;
use moka::sync::Cache;
use smtt_store::history::place;
use smtt_web::connections;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::import::follow::Logs as FollowedLogs;
use crate::import::{Admission, Before, follow, store_fault};
use crate::live::{self, is_live};
use crate::log::Bounds;
use crate::objects::list::Applications;
use crate::objects::logs::{BucketLogs, Found, Logs};
use crate::objects::mirror::Mirror;
use crate::open::{App, exists};
use crate::timeline::memory::Memory;
use crate::timeline::model::Model;
use crate::timeline::waits::Waits;

use applications::folder::Folder;

pub use listen::{Listen, ListenError};
pub use routes::router;

/// What a server serves.
#[derive(Clone)]
pub struct Settings {
    /// Folder of the applications.
    pub store: PathBuf,
    /// Spark's event logs, from which applications are imported when they are first opened.
    pub event_logs: Option<Logs>,
    /// Bytes of open applications at most.
    pub cache_bytes: u64,
    /// Limits of an import.
    pub bounds: Bounds,
    /// Copies of the bucket that is the store; `store` is their folder.
    pub bucket: Option<Arc<Mirror>>,
}

/// Answers that are made at a time, with the look for findings of [`metrics`]. Each may hold a stage's tasks.
const ANSWERS: usize = 4;
/// Imports at a time: each may take some hundred megabytes.
const IMPORTS: usize = 2;
/// Applications for whose logs a bucket is asked at a time.
const QUESTIONS: usize = 8;
/// KiB of answers that wait for their readers.
const BODY_KIB: u32 = 512 << 10;
/// How long the log of a failed import is not tried again, and how many such names are remembered.
const FAILED: (Duration, u64) = (Duration::from_secs(30), 10_000);
/// How long the log of an application that has not ended is not imported again: at least this, and so many times as long as
/// its import took.
const AGAIN: (Duration, u32) = (Duration::from_secs(30), 10);
/// Longest such time, and how many applications are remembered.
const AGAIN_BOUNDS: (Duration, u64) = (Duration::from_secs(3600), 10_000);
/// How long blocking work may delay the end of the process.
const END_TIME: Duration = Duration::from_secs(5);

/// Bytes of the waits of stages that are kept.
const WAITS_BYTES: u64 = 32 << 20;

/// A server's settings and cache.
pub struct Server {
    pub(crate) settings: Settings,
    cache: Cache<String, Arc<App>>,
    /// Tasks of applications whose time line was asked for, as long as their tables are the same.
    pub(crate) timelines: Cache<(PathBuf, (u64, i64)), Arc<Model>>,
    /// Memory over time of such applications, as long as the workers' files are the same, too.
    pub(crate) memories: Cache<MemoryKey, Arc<Memory>>,
    /// Waits of the stages of such applications, as long as the same files are.
    pub(crate) waits: Cache<MemoryKey, Arc<Waits>>,
    /// Applications whose findings are metrics.
    recent: metrics::Recent,
    answers: Arc<Semaphore>,
    pub(crate) bodies: Arc<Semaphore>,
    imports: Arc<Semaphore>,
    /// A slow bucket, or many names that it does not have, keep no import of another log waiting.
    questions: Arc<Semaphore>,
    /// Questions to a bucket and imports that run, by the application's name. All requests for one wait for the same.
    importing: Mutex<HashMap<String, watch::Receiver<Option<Imported>>>>,
    failed: Cache<String, Refusal>,
    /// When an application that was imported here may be imported again.
    again: Cache<String, Instant>,
    /// What was read of logs of applications that run.
    followed: FollowedLogs,
    /// The applications of a store that is a folder.
    folder: Arc<Folder>,
    /// The list of the bucket's applications.
    listed: Option<Arc<Applications>>,
}

/// State of an application's tables, and that of the workers' files.
type MemoryKey = ((PathBuf, (u64, i64)), u64);

/// How an import ended. Of an application that has parts it gives the application itself: the cache may have no room for it.
type Imported = Result<Option<Arc<App>>, Refusal>;

/// An application with tables, or what they can be made of.
enum AppOrSource {
    App(Arc<App>),
    /// Only its log or its parts are there, or an import of it is old: the application's name, and where it is.
    Source(String, Source),
}

/// What tables are made of.
enum Source {
    Log(PathBuf),
    /// A log that has grown since the application was imported, before it ended.
    Grown(PathBuf),
    /// A bucket that may have the log, and the bytes of the log that was imported before.
    Asked(Arc<BucketLogs>, Option<u64>),
    /// A log in a bucket, and whether it has grown since an import.
    InBucket(Arc<BucketLogs>, Found, bool),
    /// Parts in the store.
    Parts,
}

/// An answer that is no success: a status and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub StatusCode, pub String);

impl Refusal {
    pub(crate) fn not_found(text: impl Into<String>) -> Self {
        Self(StatusCode::NOT_FOUND, text.into())
    }

    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Self(StatusCode::BAD_REQUEST, text.into())
    }

    /// The error goes to the server's log: it may name paths of the machine.
    pub(crate) fn failed(error: impl std::fmt::Display) -> Self {
        tracing::warn!(%error, "no answer");
        Self(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the tables cannot be read: the server's log says why".to_owned(),
        )
    }

    fn busy() -> Self {
        Self(
            StatusCode::SERVICE_UNAVAILABLE,
            "other applications are being looked up or imported: ask again".to_owned(),
        )
    }
}

fn unknown(id: &str, attempt: Option<&str>) -> Refusal {
    match attempt {
        Some(attempt) => Refusal::not_found(format!("unknown app {id}, attempt {attempt}")),
        None => Refusal::not_found(format!("unknown app {id}")),
    }
}

impl Server {
    /// A server that has opened nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let cache = Cache::builder()
            .max_capacity(settings.cache_bytes)
            .weigher(|name: &String, app: &Arc<App>| {
                u32::try_from(name.len() + app.bytes()).unwrap_or(u32::MAX)
            })
            .build();
        Self {
            cache,
            timelines: Cache::builder()
                .max_capacity(settings.cache_bytes)
                .weigher(|_, model: &Arc<Model>| u32::try_from(model.bytes()).unwrap_or(u32::MAX))
                .build(),
            memories: Cache::builder()
                .max_capacity(settings.cache_bytes)
                .weigher(|_, memory: &Arc<Memory>| {
                    u32::try_from(memory.bytes + 1024).unwrap_or(u32::MAX)
                })
                .build(),
            waits: Cache::builder()
                .max_capacity(WAITS_BYTES)
                .weigher(|_, waits: &Arc<Waits>| u32::try_from(waits.bytes()).unwrap_or(u32::MAX))
                .build(),
            listed: settings
                .bucket
                .as_ref()
                .map(|mirror| Arc::new(Applications::new(Arc::clone(mirror.bucket())))),
            followed: FollowedLogs::new(
                usize::try_from(settings.cache_bytes).unwrap_or(usize::MAX),
            ),
            folder: Arc::new(Folder::new(settings.store.clone())),
            recent: metrics::Recent::default(),
            settings,
            answers: Arc::new(Semaphore::new(ANSWERS)),
            bodies: Arc::new(Semaphore::new(BODY_KIB as usize)),
            imports: Arc::new(Semaphore::new(IMPORTS)),
            questions: Arc::new(Semaphore::new(QUESTIONS)),
            importing: Mutex::default(),
            failed: Cache::builder()
                .time_to_live(FAILED.0)
                .max_capacity(FAILED.1)
                .build(),
            again: Cache::builder()
                .time_to_live(AGAIN_BOUNDS.0)
                .max_capacity(AGAIN_BOUNDS.1)
                .build(),
        }
    }

    /// Opens an application: from the cache, else from the store, else from its event log. The permit is for the answer.
    pub(crate) async fn app(
        self: &Arc<Self>,
        id: &str,
        attempt: Option<&str>,
    ) -> Result<(Arc<App>, OwnedSemaphorePermit), Refusal> {
        let opened = self.opened(id, attempt).await;
        if opened.is_ok()
            && let Some(name) = place::name(id, attempt)
        {
            self.recent.add(&name);
        }
        opened
    }

    async fn opened(
        self: &Arc<Self>,
        id: &str,
        attempt: Option<&str>,
    ) -> Result<(Arc<App>, OwnedSemaphorePermit), Refusal> {
        let mut has_imported = false;
        loop {
            // Without a turn: a store that is slow for one application delays no other.
            self.bring(id, attempt).await?;
            let turn = self.turn().await?;
            let server = Arc::clone(self);
            let (wanted, number) = (id.to_owned(), attempt.map(str::to_owned));
            // The permit is with the work, which goes on when the client has gone.
            let find = move || (server.find(&wanted, number.as_deref(), !has_imported), turn);
            let (found, turn) = tokio::task::spawn_blocking(find)
                .await
                .map_err(Refusal::failed)?;
            match found? {
                AppOrSource::App(app) => return Ok((app, turn)),
                AppOrSource::Source(name, _) if has_imported => {
                    return Err(Refusal::failed(format!("{name} went with its import")));
                }
                AppOrSource::Source(name, source) => {
                    drop(turn);
                    let is_there = matches!(source, Source::Grown(_) | Source::Asked(_, Some(_)));
                    let imported = self.import(name, source).await;
                    // The server's log reports why it failed. What was imported before is still an answer.
                    if !is_there && let Some(app) = imported? {
                        if !app.is_of(id, attempt) {
                            return Err(unknown(id, attempt));
                        }
                        return Ok((app, self.turn().await?));
                    }
                    has_imported = true;
                }
            }
        }
    }

    /// Waits until fewer than [`ANSWERS`] answers are being made.
    pub(crate) async fn turn(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let turn = Arc::clone(&self.answers).acquire_owned().await;
        turn.map_err(Refusal::failed)
    }

    fn find(
        &self,
        id: &str,
        attempt: Option<&str>,
        may_import_again: bool,
    ) -> Result<AppOrSource, Refusal> {
        let unknown = || unknown(id, attempt);
        // An id that no application can have: it has a path in it, or is too long.
        let name = place::name(id, attempt).ok_or_else(unknown)?;
        // The folder `a_1` may be the first attempt of `a`.
        let checked = |app: Arc<App>| {
            if !app.is_of(id, attempt) {
                return Err(unknown());
            }
            let grown = self.grown(&name, &app).filter(|_| may_import_again);
            Ok(match grown {
                Some(source) => AppOrSource::Source(name.clone(), source),
                None => AppOrSource::App(app),
            })
        };
        if let Some(app) = self.cache.get(&name) {
            if app.is_current() {
                return checked(app);
            }
            self.cache.invalidate(&name);
        }
        let folder = self.settings.store.join(&name);
        if exists(&folder) {
            let open = || App::open(&folder).map(Arc::new).map_err(Refusal::failed);
            let opened = self.cache.try_get_with(name.clone(), open);
            return checked(opened.map_err(|refusal| (*refusal).clone())?);
        }
        if let Some(refusal) = self.failed.get(&name) {
            return Err(refusal);
        }
        if is_live(&folder) {
            return Ok(AppOrSource::Source(name, Source::Parts));
        }
        let source = self.log(&name)?;
        Ok(AppOrSource::Source(name, source))
    }

    /// Waits until tables are made, and begins it where that does not run.
    async fn import(self: &Arc<Self>, name: String, source: Source) -> Imported {
        let mut ended = self.begin_import(name, source)?;
        let ended = ended.wait_for(Option::is_some).await;
        ended
            .map_err(Refusal::failed)?
            .clone()
            .unwrap_or_else(|| Err(Refusal::busy()))
    }

    fn begin_import(
        self: &Arc<Self>,
        name: String,
        source: Source,
    ) -> Result<watch::Receiver<Option<Imported>>, Refusal> {
        let mut importing = self
            .importing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(ended) = importing.get(&name) {
            return Ok(ended.clone());
        }
        let turns = match &source {
            Source::Asked(..) => &self.questions,
            _ => &self.imports,
        };
        let turn = turn_of(turns)?;
        let (end, ended) = watch::channel(None);
        importing.insert(name.clone(), ended.clone());
        let server = Arc::clone(self);
        tokio::spawn(async move {
            let result = server.make(&name, source, turn).await;
            // Whoever found no turn may ask again at once.
            if let Err(refusal) = &result
                && *refusal != Refusal::busy()
            {
                server.failed.insert(name.clone(), refusal.clone());
            }
            let importing = server.importing.lock();
            importing
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&name);
            // Those who waited may have gone.
            let _ = end.send(Some(result));
        });
        Ok(ended)
    }

    /// Asks the bucket, where the source is there, and makes the tables.
    async fn make(
        self: &Arc<Self>,
        name: &str,
        source: Source,
        mut turn: OwnedSemaphorePermit,
    ) -> Imported {
        let source = match source {
            Source::Asked(logs, imported) => {
                let Some(source) = self.ask(name, logs, imported).await? else {
                    return Ok(None);
                };
                turn = turn_of(&self.imports)?;
                source
            }
            source => source,
        };
        let (server, name) = (Arc::clone(self), name.to_owned());
        let work = move || {
            let _turn = turn;
            let begun = Instant::now();
            let result = match source {
                Source::Log(log) => server.import_here(&name, &log, (false, true)),
                Source::Grown(log) => server.import_here(&name, &log, (true, true)),
                Source::InBucket(logs, log, replaces) => {
                    server.import_copy(&name, (&logs, &log), replaces)
                }
                // It was asked before this.
                Source::Asked(..) => Err(logs::has_no_log(&name)),
                Source::Parts => server.read_parts(&name),
            };
            let pause = AGAIN.0.max(begun.elapsed() * AGAIN.1);
            server.again.insert(name, Instant::now() + pause);
            result
        };
        let made = tokio::task::spawn_blocking(work).await;
        made.map_err(Refusal::failed)?
    }

    fn read_parts(&self, name: &str) -> Imported {
        match live::open(&self.settings.store, name) {
            Ok(app) => {
                let app = Arc::new(app);
                self.cache.insert(name.to_owned(), Arc::clone(&app));
                Ok(Some(app))
            }
            // Another server was first.
            Err(_) if exists(&self.settings.store.join(name)) => Ok(None),
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "the parts of {name} cannot be read"
                );
                Err(Refusal(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    format!("the parts of {name} cannot be read: the server's log says why"),
                ))
            }
        }
    }

    /// Imports a log. It may replace an application of the store, and may be read on later.
    fn import_here(&self, name: &str, log: &Path, (replaces, grows): (bool, bool)) -> Imported {
        tracing::info!(log = %log.display(), "importing");
        // Any request may cause it, so it brings the application that was asked for, and replaces only an earlier import of
        // an application that had not ended.
        let admission = Admission {
            name: Some(name.to_owned()),
            replaces,
        };
        let store = &self.settings.store;
        if let Some(mirror) = &self.settings.bucket {
            return self.import_into(mirror, name, log, &admission);
        }
        let before = Before {
            followed: self.followed.take(name),
            most: if grows { self.followed.most() } else { 0 },
        };
        match follow(store, log, self.settings.bounds, &admission, before) {
            Ok((_, followed)) => {
                if let Some(followed) = followed {
                    self.followed.put(name, followed);
                }
                Ok(None)
            }
            // Another server was first.
            Err(_) if !replaces && exists(&store.join(name)) => Ok(None),
            Err(error) => Err(import_failed(name, &error)),
        }
    }
}

fn turn_of(turns: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Refusal> {
    let turn = Arc::clone(turns).try_acquire_owned();
    turn.map_err(|_| Refusal::busy())
}

fn import_failed(name: &str, error: &anyhow::Error) -> Refusal {
    tracing::warn!(error = format!("{error:#}"), "import failed");
    // No path of the machine leaves with it.
    let (status, why) = match store_fault(error) {
        Some((_, fault)) => (
            StatusCode::INSUFFICIENT_STORAGE,
            format!("the store {fault}"),
        ),
        None => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "the server's log says why".to_owned(),
        ),
    };
    Refusal(status, format!("the import of {name} failed: {why}"))
}

/// Serves until the process is asked to end, on threads of its own.
///
/// # Errors
/// When the address cannot be taken.
pub fn run(settings: Settings, listen: Listen) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(serve(settings, listen));
    runtime.shutdown_timeout(END_TIME);
    result
}

/// Serves until the process is asked to end.
///
/// # Errors
/// When the address cannot be taken.
pub async fn serve(settings: Settings, listen: Listen) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let listener = TcpListener::bind(listen.address)
        .await
        .with_context(|| format!("cannot listen on {}", listen.address))?;
    println!("{}://{}/", listen.scheme(), listener.local_addr()?);
    let router = listen.protect(router(Arc::new(Server::new(settings))));
    let until = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let tls = listen.guard.tls;
    connections::serve(listener, router, listen.limits, tls, |_| {}, until).await;
    Ok(())
}
