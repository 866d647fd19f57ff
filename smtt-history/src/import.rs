//! Event log to tables.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::json;
use smtt_store::history::place;

use crate::event::shortened;
use crate::live::is_live;
use crate::log::{Bounds, Lines, Log, Next};
use crate::open::exists;
use crate::out::{Kind, Out, Sizes};
use crate::replay::{Replay, Trouble};

/// Damaged lines that are named; the others are only counted.
const NAMED: usize = 20;
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
        import_here(&store, &path, bounds, &admission, is_there)
    })
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
) -> Result<Imported> {
    let mut is_there = Some(is_there);
    let log = Log::at(path).with_context(|| format!("cannot read {}", path.display()))?;
    let out = Out::create(store)
        .with_context(|| format!("cannot write to the store {}", store.display()))?;
    let mut replay = Replay::new(out.with_times(bounds.times));
    let mut lines = Lines::new(&log, bounds);
    let (mut damaged, mut too_long, mut named) = (0, 0, Vec::new());
    let mut name = None;
    let begun = Instant::now();
    loop {
        if begun.elapsed() > bounds.time {
            bail!(
                "{}: the import took longer than {} s, at line {}",
                path.display(),
                bounds.time.as_secs(),
                lines.number
            );
        }
        let mut trouble = |number: u64, what: String| {
            damaged += 1;
            if named.len() < NAMED {
                named.push((number, short_message(&what)));
            }
        };
        match lines.read() {
            Next::Line => {
                if lines.line.trim_ascii().is_empty() {
                    continue;
                }
                match replay.line(&lines.line) {
                    // The rest of a log that is not admitted is not read.
                    Ok(()) if name.is_none() => {
                        if let Some((id, attempt)) = replay.identity() {
                            let admitted = admitted(store, path, id, attempt, admission)?;
                            if let Some(is_there) = is_there.take()
                                && is_there(&admitted)?
                                && !admission.replaces
                            {
                                return Err(has_already(path, &admitted));
                            }
                            name = Some(admitted);
                        }
                    }
                    Ok(()) => {}
                    Err(Trouble::Line(what)) => trouble(lines.number, what),
                    Err(error) => {
                        return Err(error).with_context(|| format!("importing {}", path.display()));
                    }
                }
            }
            Next::TooLong => too_long += 1,
            Next::Damaged(what) => trouble(lines.number, what),
            Next::TooLarge => bail!(
                "{} has more than {} bytes: import it with a larger --max-bytes",
                path.display(),
                bounds.log_bytes
            ),
            Next::End => break,
        }
    }
    let (Some((id, _)), Some(name)) = (replay.identity(), name) else {
        bail!(
            "{} has no start of an application with an id: it is no event log of Spark, or its beginning is damaged",
            path.display()
        );
    };
    let id = id.to_owned();
    replay
        .finish(log.modified_ms)
        .with_context(|| format!("importing {}", path.display()))?;
    let told: Vec<_> = named
        .iter()
        .map(|(line, what)| json!({"line": line, "problem": what}))
        .collect();
    let mut about = json!({
        "importer": env!("CARGO_PKG_VERSION"),
        "lines": lines.number,
        "bytes": lines.bytes,
        "logBytes": log.bytes,
        "damagedLines": damaged,
        "damaged": told,
        "linesTooLong": too_long,
        "dropped": replay.dropped,
        "droppedDocuments": replay.out.dropped,
    });
    if let Some(times) = replay.out.lossy_times() {
        about["lossyTimes"] = times.into();
    }
    replay.out.meta(Kind::Import, "", &about);
    let (lines, bytes) = (lines.number, lines.bytes);
    let (folder, sizes) = replay.out.finish(store, &id, &name, admission.replaces)?;
    Ok(Imported {
        id,
        folder,
        sizes,
        lines,
        bytes,
        damaged,
        too_long,
        named,
    })
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
