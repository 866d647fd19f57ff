//! A server of finished applications in the test's process, and answers that it gives.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use smtt_history::log::Bounds;
use smtt_history::serve::{Listen, Settings, run};
use xtask::http::get;
use xtask::process::{free_port, wait_for};

/// Serves a store; the thread ends with the process. Returns the port.
///
/// # Errors
/// When no answer comes.
pub fn serve(store: &Path, event_logs: Option<PathBuf>) -> Result<u16> {
    let port = free_port()?;
    let settings = Settings {
        store: store.to_owned(),
        event_logs: event_logs.map(Into::into),
        cache_bytes: 64 << 20,
        bounds: Bounds::default(),
        bucket: None,
    };
    std::thread::spawn(move || run(settings, Listen::local(port)));
    wait_for("smtt-history answers", Duration::from_secs(60), || {
        Ok(get(port, "/api/v1/version").ok())
    })?;
    Ok(port)
}

/// An answer as a list.
///
/// # Errors
/// When the status is not 200, or the answer is no list.
pub fn list(port: u16, path: &str) -> Result<Vec<Value>> {
    Ok(serde_json::from_str(&get(port, path)?)?)
}
