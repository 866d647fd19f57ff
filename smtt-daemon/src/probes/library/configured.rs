//! Libraries that the configuration names, and the verdicts about all libraries.

use std::fs::{self, File, Metadata};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::differences;
use super::known::Known;
use super::state::{Configured, FileId};
use super::{KNOWN_MAX, Libraries, SIZE_MAX, bytes, id, stamp};
use crate::probes::{Verdict, VerdictState};

/// Pauses before an unchanged configured library is tried again after an error: they double from the first to the last.
/// Probes of a file's earlier bytes may still be there for a moment.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);
/// Name in verdicts of libraries that no path of the configuration names.
const OTHERS: &str = "uprobe:libsmtt_marker.so in executors";

/// Name in verdicts of libraries that are not known.
const UNKNOWN: &str = "uprobe:unknown libraries";

impl Libraries {
    /// Probes a library that the configuration names, and makes its bytes known. The file is trusted.
    ///
    /// # Errors
    /// A sentence that states why this file has no probes: it is unreadable, an entry point or its pad is missing, or
    /// the kernel refuses.
    pub fn configure(&self, path: &Path) -> anyhow::Result<()> {
        let context = || format!("{} is not probed", path.display());
        let done = File::open(path)
            .map_err(anyhow::Error::from)
            .and_then(|file| {
                let metadata = file.metadata()?;
                let done = self.probe_configured(&file, &metadata);
                Ok((stamp(&metadata), done))
            });
        let (stamp, done) = match done {
            Ok((stamp, done)) => (stamp, done.with_context(context)),
            Err(error) => {
                let stamp = stamp(&fs::metadata(path).with_context(context)?);
                (stamp, Err(error).with_context(context))
            }
        };
        let mut state = self.state();
        let pause = match state.configured.get(path) {
            Some(before) if before.stamp == stamp && before.file.is_err() => {
                (before.pause * 2).min(LAST_RETRY)
            }
            _ => FIRST_RETRY,
        };
        let configured = Configured {
            stamp,
            tried: Instant::now(),
            pause,
            file: done.as_ref().copied().map_err(|error| format!("{error:#}")),
        };
        let before = state.configured.insert(path.to_owned(), configured);
        // A replaced file keeps its probes while executors have it.
        if let Some(Configured { file: Ok(old), .. }) = before
            && !state.configured.values().any(|other| other.file == Ok(old))
            && let Some(probed) = state.files.get_mut(&old)
        {
            probed.configured = false;
            probed.idle_since = Instant::now();
        }
        done.map(|_| ())
    }

    fn probe_configured(&self, file: &File, metadata: &Metadata) -> anyhow::Result<FileId> {
        ensure!(metadata.is_file(), "this is no regular file");
        ensure!(
            metadata.len() <= SIZE_MAX,
            "it is too large to be the marker's library"
        );
        let known = Known::parse(&bytes(file, metadata.len())?)?;
        let id = id(metadata);
        {
            let mut state = self.state();
            if !state.known.iter().any(|other| other.digest == known.digest) {
                ensure!(
                    state.known.len() < KNOWN_MAX,
                    "{KNOWN_MAX} versions of it are known already: restart the daemon"
                );
                state.known.push(known.clone());
            }
            match state.files.get_mut(&id) {
                Some(probed) if probed.digest == known.digest => {
                    probed.configured = true;
                    return Ok(id);
                }
                // Other bytes were written into the same file.
                Some(_) => {
                    if let Some(probed) = state.files.remove(&id) {
                        self.close(probed);
                    }
                }
                None => {}
            }
        }
        self.attach(file, id, &known, None)
    }

    /// Tries configured libraries again that have changed, or that had an error some time ago.
    pub fn follow_configured(&self, paths: &[PathBuf]) {
        for path in paths {
            let now = fs::metadata(path).ok().map(|metadata| stamp(&metadata));
            let (due, before) = match (self.state().configured.get(path), now) {
                (_, None) => (false, None),
                (None, Some(_)) => (true, None),
                (Some(known), Some(now)) => (
                    known.stamp != now
                        || (known.file.is_err() && known.tried.elapsed() >= known.pause),
                    known.file.clone().err(),
                ),
            };
            if due {
                match self.configure(path) {
                    Ok(()) => tracing::info!(library = %path.display(), "marker library probed"),
                    Err(error) => {
                        let text = format!("{error:#}");
                        // Once for each reason.
                        if before != Some(text.clone()) {
                            tracing::warn!("{text}");
                        }
                    }
                }
            }
        }
    }

    /// One verdict per configured file, one for all others, or one that states that no library has appeared yet.
    #[must_use]
    pub fn verdicts(&self) -> Vec<Verdict> {
        use VerdictState::{Broken, NotApplicable, Ok};
        let state = self.state();
        let mut all: Vec<Verdict> = state
            .configured
            .iter()
            .map(|(path, configured)| {
                let hook = format!("uprobe:{}", path.display());
                match &configured.file {
                    Result::Ok(_) => found(&hook, Ok, ""),
                    Err(reason) => found(&hook, Broken, reason),
                }
            })
            .collect();
        let others = state.files.values().filter(|file| !file.configured).count();
        if others > 0 {
            all.push(found(OTHERS, Ok, &format!("{others} files")));
        }
        if !state.unknown.is_empty() {
            // Any user can cause this, so it does not make the daemon degraded.
            all.push(found(
                UNKNOWN,
                NotApplicable,
                &format!(
                    "{} processes have a library that is not known; the log names each: add its digest to [marker] digests, or install the same version",
                    state.unknown.len()
                ),
            ));
        }
        all.extend(differences::verdicts(&state));
        if all.is_empty() {
            all.push(found(
                "uprobe:libsmtt_marker.so",
                Ok,
                "waits for the first executor with the marker; none of the configured libraries exists yet",
            ));
        }
        all
    }
}

pub(super) fn found(hook: &str, verdict: VerdictState, reason: &str) -> Verdict {
    Verdict {
        name: "marker".into(),
        hook: hook.into(),
        verdict,
        reason: reason.into(),
    }
}
