//! What works beside the event loop: the kernel side's log, discovery, and files whose changes are followed.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use smtt_model::subordinate::SubordinateIds;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};

use crate::probes::KernelLog;
use crate::probes::library::Libraries;
use crate::{discover, subordinate};

/// Time between two checks whether the configured libraries have changed.
const LIBRARIES_EVERY: Duration = Duration::from_secs(1);

/// Time between two checks whether the ranges of subordinate ids have changed.
const SUBORDINATE_IDS_EVERY: Duration = Duration::from_secs(10);

/// Forwards the kernel side's log to the daemon's log.
pub(super) async fn carry_log(
    log: KernelLog,
    until: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    // SAFETY: the log owns its descriptor and hands out the same one for as long as it lives.
    let mut log =
        unsafe { AsyncFd::register(log) }.context("the kernel side's log cannot be waited for")?;
    tokio::pin!(until);
    loop {
        tokio::select! {
            () = &mut until => return Ok(()),
            ready = log.readable_mut() => {
                let mut ready = ready.context("the kernel side's log cannot be waited for")?;
                ready.get_inner_mut().flush();
                ready.clear_ready();
            }
        }
    }
}

/// Scans for executors on a thread of its own, which ends with the daemon.
pub(super) fn spawn_discovery(
    mut discoverer: discover::Discoverer,
    every: Duration,
    found: mpsc::Sender<discover::Found>,
    stopped: watch::Receiver<bool>,
) {
    let scan = move || {
        while !*stopped.borrow() {
            for executor in discoverer.scan(std::time::Instant::now()) {
                if found.blocking_send(executor).is_err() {
                    return;
                }
            }
            std::thread::sleep(every);
        }
    };
    if let Err(error) = std::thread::Builder::new()
        .name("smtt-discover".into())
        .spawn(scan)
    {
        tracing::error!(
            "executors that started before the daemon are not found: no thread for it: {error}"
        );
    }
}

/// Follows changes of the configured libraries, on a thread of its own: their file system may be slow.
pub(super) fn follow_libraries(
    libraries: Arc<Libraries>,
    paths: Vec<PathBuf>,
    stopped: watch::Receiver<bool>,
) {
    let follow = move || {
        while !*stopped.borrow() {
            std::thread::sleep(LIBRARIES_EVERY);
            libraries.follow_configured(&paths);
        }
    };
    if let Err(error) = std::thread::Builder::new()
        .name("smtt-libraries".into())
        .spawn(follow)
    {
        tracing::error!(
            "new versions of the configured libraries are not probed: no thread for it: {error}"
        );
    }
}

/// The ranges of subordinate ids at the start, and what follows their changes.
pub(super) async fn subordinate_ids()
-> anyhow::Result<(FollowedIds, watch::Receiver<Arc<SubordinateIds>>)> {
    tokio::task::spawn_blocking(|| {
        let mut file = subordinate::Follower::new(Path::new(subordinate::FILE));
        let (changed, ids) = watch::channel(Arc::new(file.changed().unwrap_or_default()));
        Ok((FollowedIds { file, changed }, ids))
    })
    .await?
}

/// The file of subordinate ids, and where its changes go.
pub(super) struct FollowedIds {
    file: subordinate::Follower,
    changed: watch::Sender<Arc<SubordinateIds>>,
}

/// Follows changes of the ranges of subordinate ids, on a thread of its own: the users database may be slow.
pub(super) fn follow_subordinate_ids(mut ids: FollowedIds, stopped: watch::Receiver<bool>) {
    let follow = move || {
        while !*stopped.borrow() {
            std::thread::sleep(SUBORDINATE_IDS_EVERY);
            if let Some(now) = ids.file.changed() {
                let _ = ids.changed.send(Arc::new(now));
            }
        }
    };
    if let Err(error) = std::thread::Builder::new()
        .name("smtt-subuid".into())
        .spawn(follow)
    {
        tracing::error!("new ranges of subordinate ids are not seen: no thread for it: {error}");
    }
}
