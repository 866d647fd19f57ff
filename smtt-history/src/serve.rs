//! Serves Spark's REST API. A server has no state but a cache: any number of them can answer for one store.

mod applications;
mod connections;
mod quantiles;
mod routes;
mod stages;
mod tasks;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::http::StatusCode;
use moka::sync::Cache;
use smtt_store::history::place;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::import::{Admission, import};
use crate::log::{Bounds, Log};
use crate::open::{App, exists};

pub use routes::router;

/// What a server serves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Folder of the applications.
    pub store: PathBuf,
    /// Spark's folder of event logs, from which applications are imported when they are first opened.
    pub event_logs: Option<PathBuf>,
    /// Bytes of open applications at most.
    pub cache_bytes: u64,
    /// Limits of an import.
    pub bounds: Bounds,
}

/// Answers that are made at a time. Each may hold a stage's tasks.
const ANSWERS: usize = 4;
/// Imports at a time.
const IMPORTS: usize = 2;

/// A server's settings and cache.
pub struct Server {
    settings: Settings,
    cache: Cache<String, Arc<App>>,
    answers: Semaphore,
    imports: std::sync::Mutex<usize>,
    import_ended: std::sync::Condvar,
}

/// An answer that is no success: a status and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub StatusCode, pub String);

impl Refusal {
    fn not_found(text: impl Into<String>) -> Self {
        Self(StatusCode::NOT_FOUND, text.into())
    }

    fn bad(text: impl Into<String>) -> Self {
        Self(StatusCode::BAD_REQUEST, text.into())
    }

    fn failed(error: impl std::fmt::Display) -> Self {
        Self(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
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
            settings,
            cache,
            answers: Semaphore::new(ANSWERS),
            imports: std::sync::Mutex::new(0),
            import_ended: std::sync::Condvar::new(),
        }
    }

    /// Opens an application: from the cache, else from the store, else from its event log.
    fn app(&self, id: &str, attempt: Option<&str>) -> Result<Arc<App>, Refusal> {
        let unknown = || Refusal::not_found(format!("unknown app {id}"));
        // An id that no application can have: it has a path in it, or is too long.
        let name = place::name(id, attempt).ok_or_else(unknown)?;
        if let Some(app) = self.cache.get(&name) {
            if app.is_current() {
                return Ok(app);
            }
            self.cache.invalidate(&name);
        }
        let opened = self.cache.try_get_with(name.clone(), || self.open(&name));
        opened.map_err(|refusal| (*refusal).clone())
    }

    fn open(&self, name: &str) -> Result<Arc<App>, Refusal> {
        let mut folder = self.settings.store.join(name);
        if !exists(&folder) {
            let logs = self.settings.event_logs.as_ref();
            let log = logs.and_then(|logs| Log::find(logs, name));
            let Some(log) = log else {
                return Err(Refusal::not_found(match logs {
                    Some(logs) => format!(
                        "unknown app {name}: neither the store {} nor the event logs {} have it",
                        self.settings.store.display(),
                        logs.display()
                    ),
                    None => format!(
                        "unknown app {name}: the store {} does not have it, and no folder of event logs is set (--event-logs)",
                        self.settings.store.display()
                    ),
                }));
            };
            let _turn = self.import_turn();
            tracing::info!(log = %log.display(), "importing");
            // Any request may cause it, so it brings the application that was asked for and replaces none.
            let admission = Admission {
                name: Some(name.to_owned()),
                replaces: false,
            };
            let imported = import(&self.settings.store, &log, self.settings.bounds, &admission);
            match imported {
                Ok(imported) => folder = imported.folder,
                // Another server was first.
                Err(_) if exists(&folder) => {}
                Err(error) => return Err(Refusal::failed(format!("{error:#}"))),
            }
        }
        App::open(&folder).map(Arc::new).map_err(Refusal::failed)
    }

    /// Waits until fewer than [`IMPORTS`] imports run: each may take some hundred megabytes.
    fn import_turn(&self) -> ImportTurn<'_> {
        let running = self
            .imports
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let running = self
            .import_ended
            .wait_while(running, |running| *running >= IMPORTS);
        *running.unwrap_or_else(std::sync::PoisonError::into_inner) += 1;
        ImportTurn(self)
    }
}

/// One of the imports that run.
struct ImportTurn<'a>(&'a Server);

impl Drop for ImportTurn<'_> {
    fn drop(&mut self) {
        let imports = &self.0.imports;
        *imports
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) -= 1;
        self.0.import_ended.notify_one();
    }
}

/// Serves until the process is asked to end, on threads of its own.
///
/// # Errors
/// When the address cannot be taken.
pub fn run(settings: Settings, listen: SocketAddr) -> Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(serve(settings, listen))
}

/// Serves until the process is asked to end.
///
/// # Errors
/// When the address cannot be taken.
pub async fn serve(settings: Settings, listen: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("cannot listen on {listen}"))?;
    let address = listener.local_addr()?;
    println!("http://{address}/api/v1/applications");
    connections::serve(listener, router(Arc::new(Server::new(settings)))).await;
    Ok(())
}
