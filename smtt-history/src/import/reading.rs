//! The state of an import between two lines.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use super::{Imported, short_message};
use crate::log::{Bounds, Lines, Log, Next};
use crate::out::{Kind, Out};
use crate::replay::{Replay, Trouble};

/// Damaged lines that are named; the others are only counted.
const NAMED: usize = 20;

/// Says which folder an application has, by its id and attempt.
pub(super) type Admit<'a> = dyn FnMut(&str, Option<&str>) -> Result<String> + 'a;

/// What was read of a log.
pub(super) struct Reading {
    pub replay: Replay,
    /// The application's folder, once its start was read.
    name: Option<String>,
    damaged: u64,
    too_long: u64,
    named: Vec<(u64, String)>,
}

impl Reading {
    /// Nothing was read yet.
    pub(super) fn new(out: Out) -> Self {
        Self {
            replay: Replay::new(out),
            name: None,
            damaged: 0,
            too_long: 0,
            named: Vec::new(),
        }
    }

    /// The same with tables of its own in a store.
    pub(super) fn fork(&mut self, store: &Path) -> Result<Self> {
        Ok(Self {
            replay: self.replay.fork(store)?,
            name: self.name.clone(),
            damaged: self.damaged,
            too_long: self.too_long,
            named: self.named.clone(),
        })
    }

    /// Takes all lines, but for the end of a log that may go on there.
    pub(super) fn lines(
        &mut self,
        lines: &mut Lines,
        path: &Path,
        bounds: Bounds,
        admit: &mut Admit<'_>,
    ) -> Result<Option<Next>> {
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
            match lines.read() {
                Next::End => return Ok(None),
                Next::TooLarge => bail!(
                    "{} has more than {} bytes: import it with a larger --max-bytes",
                    path.display(),
                    bounds.log_bytes
                ),
                end if lines.is_open_end => return Ok(Some(end)),
                next => self.take(next, lines, path, admit)?,
            }
        }
    }

    /// Takes what was read last.
    pub(super) fn take(
        &mut self,
        next: Next,
        lines: &Lines,
        path: &Path,
        admit: &mut Admit<'_>,
    ) -> Result<()> {
        match next {
            Next::Line if !lines.line.trim_ascii().is_empty() => {
                match self.replay.line(&lines.line) {
                    Ok(()) => {}
                    Err(Trouble::Line(what)) => self.trouble(lines.number, &what),
                    Err(error) => {
                        return Err(error).with_context(|| format!("importing {}", path.display()));
                    }
                }
                // The rest of a log that is not admitted is not read.
                if self.name.is_none()
                    && let Some((id, attempt)) = self.replay.identity()
                {
                    self.name = Some(admit(id, attempt)?);
                }
            }
            Next::TooLong => self.too_long += 1,
            Next::Damaged(what) => self.trouble(lines.number, &what),
            Next::Line | Next::TooLarge | Next::End => {}
        }
        Ok(())
    }

    fn trouble(&mut self, number: u64, what: &str) {
        self.damaged += 1;
        if self.named.len() < NAMED {
            self.named.push((number, short_message(what)));
        }
    }

    /// Finishes the tables.
    pub(super) fn finish(
        self,
        store: &Path,
        path: &Path,
        log: &Log,
        lines: &Lines,
        replaces: bool,
    ) -> Result<Imported> {
        let Self {
            mut replay,
            name,
            damaged,
            too_long,
            named,
        } = self;
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
        let (folder, sizes) = replay.out.finish(store, &id, &name, replaces)?;
        Ok(Imported {
            id,
            folder,
            sizes,
            lines: lines.number,
            bytes: lines.bytes,
            damaged,
            too_long,
            named,
        })
    }
}
