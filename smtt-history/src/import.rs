//! Event log to tables.

pub mod follow;
mod reading;

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use smtt_store::history::place;

use crate::event::shortened;
use crate::live::is_live;
use crate::log::{Bounds, Lines, Log};
use crate::open::exists;
use crate::out::Sizes;

use follow::Followed;

/// Characters of a message about a line at most.
const LONGEST_MESSAGE: usize = 200;
/// Stack of an import, for plans that nest deeply.
const STACK: usize = 256 << 20;

/// An imported application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The application's id.
    pub id: String,
    /// Folder of its tables, or the address of its objects in a bucket.
    pub folder: PathBuf,
    /// Rows and bytes of its tables.
    pub sizes: Sizes,
    /// Lines of the log.
    pub lines: u64,
    /// Bytes of the log, decompressed.
    pub bytes: u64,
    /// Lines that were damaged or half-written.
    pub damaged: u64,
    /// Lines over the bound.
    pub too_long: u64,
    /// What the first damaged lines had, with their numbers.
    pub named: Vec<(u64, String)>,
}

/// Which application a log may bring into a store. Its own fields are claims of its writer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// The folder that the application must have; `None` for any.
    pub name: Option<String>,
    /// Whether an application of the store may be replaced.
    pub replaces: bool,
}

/// Imports a log into a store. Damaged lines are counted and named; the rest is imported.
///
/// # Errors
/// When the log cannot be opened, has no application or one that is not admitted, or is larger than the bound; or the
/// store cannot be written.
pub fn import(store: &Path, log: &Path, bounds: Bounds, admission: &Admission) -> Result<Imported> {
    import_unless(store, log, bounds, admission, |_| Ok(false))
}

/// As [`import`], into a folder that is a part of a store only: `is_there` says whether the store has an application.
pub(crate) fn import_unless(
    store: &Path,
    log: &Path,
    bounds: Bounds,
    admission: &Admission,
    is_there: impl FnOnce(&str) -> Result<bool> + Send + 'static,
) -> Result<Imported> {
    let (store, path, admission) = (store.to_owned(), log.to_owned(), admission.clone());
    on_deep_stack("import", move || {
        let done = import_here(
            &store,
            &path,
            bounds,
            &admission,
            is_there,
            Before::default(),
        );
        done.map(|(imported, _)| imported)
            .map_err(|error| of_store(&store, error))
    })
}

/// What an import begins with, and what it may keep.
#[derive(Default)]
pub struct Before {
    /// What an earlier one read.
    pub followed: Option<Followed>,
    /// Bytes of what is kept for a later one at most.
    pub most: usize,
}

/// As [`import`], of a log that may grow: it begins where the import before ended, where the log still has what that read.
/// The result is that of an import of the whole log, and what a later import can begin with, unless the application has
/// ended.
///
/// # Errors
/// As [`import`].
pub fn follow(
    store: &Path,
    log: &Path,
    bounds: Bounds,
    admission: &Admission,
    before: Before,
) -> Result<(Imported, Option<Followed>)> {
    let (store, path, admission) = (store.to_owned(), log.to_owned(), admission.clone());
    on_deep_stack("import", move || {
        let nothing = |_: &str| Ok(false);
        import_here(&store, &path, bounds, &admission, nothing, before)
            .map_err(|error| of_store(&store, error))
    })
}

/// What the store lacks by an error of a write, with what helps; `None` for an error that may have another cause.
pub(crate) fn store_fault(error: &anyhow::Error) -> Option<(ErrorKind, &'static str)> {
    let mut kinds = error
        .chain()
        .filter_map(|cause| Some(cause.downcast_ref::<io::Error>()?.kind()));
    kinds.find_map(|kind| {
        let fault = match kind {
            ErrorKind::StorageFull => "is full: make room there",
            ErrorKind::QuotaExceeded => "is at the quota of this user: make room there",
            ErrorKind::ReadOnlyFilesystem => "is read-only: mount it for writing",
            _ => return None,
        };
        Some((kind, fault))
    })
}

/// Names the store in an error that [`store_fault`] knows, and leaves out what its causes repeat.
fn of_store(store: &Path, error: anyhow::Error) -> anyhow::Error {
    match store_fault(&error) {
        Some((kind, fault)) => {
            io::Error::new(kind, format!("the store {} {fault}", store.display())).into()
        }
        None => error,
    }
}

/// Works on a thread whose stack is large enough for plans.
pub(crate) fn on_deep_stack<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let work = std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK)
        .spawn(work)
        .context("cannot start a thread")?;
    match work.join() {
        Ok(result) => result,
        Err(_) => bail!("it stopped in the middle: please report it"),
    }
}

fn import_here(
    store: &Path,
    path: &Path,
    bounds: Bounds,
    admission: &Admission,
    is_there: impl FnOnce(&str) -> Result<bool>,
    before: Before,
) -> Result<(Imported, Option<Followed>)> {
    let log = Log::at(path).with_context(|| format!("cannot read {}", path.display()))?;
    let followed = before.followed.filter(|followed| followed.is_of(&log));
    let mut followed = match followed {
        Some(followed) => followed,
        None => Followed::begin(store, bounds)?,
    };
    let mut is_there = Some(is_there);
    let mut admit = |id: &str, attempt: Option<&str>| {
        let admitted = admitted(store, path, id, attempt, admission)?;
        if let Some(is_there) = is_there.take()
            && is_there(&admitted)?
            && !admission.replaces
        {
            return Err(has_already(path, &admitted));
        }
        Ok(admitted)
    };
    let mut lines = Lines::after(&log, bounds, followed.mark);
    let end = followed
        .reading
        .lines(&mut lines, path, bounds, &mut admit)?;
    followed.have_read(&lines, path)?;
    let goes_on = !followed.reading.replay.has_ended() && followed.bytes() <= before.most;
    let (mut reading, followed) = if goes_on {
        (followed.reading.fork(store)?, Some(followed))
    } else {
        (followed.reading, None)
    };
    // A line without an end may be half of one, so that it is read again when the log has grown.
    if let Some(end) = end {
        reading.take(end, &lines, path, &mut admit)?;
    }
    let followed = followed.filter(|_| !reading.replay.has_ended());
    let imported = reading.finish(store, path, &log, &lines, admission.replaces)?;
    Ok((imported, followed))
}

/// The folder of an application that a log may bring.
fn admitted(
    store: &Path,
    path: &Path,
    id: &str,
    attempt: Option<&str>,
    admission: &Admission,
) -> Result<String> {
    let (log, id_shown) = (path.display(), short_message(id));
    let Some(name) = place::name(id, attempt) else {
        bail!("{log}: application id {id_shown:?} cannot name a folder");
    };
    if admission
        .name
        .as_ref()
        .is_some_and(|wanted| *wanted != name)
    {
        bail!("{log}: the log says that it is of {name}, which its own name does not");
    }
    let folder = store.join(&name);
    if !admission.replaces && (exists(&folder) || is_live(&folder)) {
        return Err(has_already(path, &name));
    }
    Ok(name)
}

fn has_already(log: &Path, name: &str) -> anyhow::Error {
    let log = log.display();
    anyhow!("{log}: the store has {name} already; --replace replaces it")
}

/// The beginning of a message, which may quote the whole line that it is about.
pub(crate) fn short_message(text: &str) -> String {
    shortened(text, LONGEST_MESSAGE, "...")
}
