//! A folder of CSV files: one for each table, with a line of column names.
//!
//! <https://www.rfc-editor.org/rfc/rfc4180>, but lines end with a line feed. Every text is in quotes; an absent value is an
//! empty field without quotes. A spreadsheet computes a text that begins with `=`, `+`, `-`, `@`, a tab or a carriage
//! return, so such a text gets an apostrophe before it, and one that begins with an apostrophe gets another: to have the
//! text again, take one away.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use smtt_store::history::batch::Cell;
use smtt_store::history::columns::Kind;

use super::{Column, Counts, Fill, Sink, beside, is_taken, permissions, write};
use crate::fetches::OfWorkers;
use crate::open::App;

/// Beginnings of texts that get an apostrophe.
const MARKED: [u8; 7] = *b"=+-@\t\r'";

struct Folder<'a>(&'a Path);

impl Sink for Folder<'_> {
    fn table(&mut self, name: &str, columns: &[Column], fill: &mut Fill<'_>) -> Result<()> {
        let mut out = BufWriter::new(File::create_new(self.0.join(format!("{name}.csv")))?);
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        writeln!(out, "{}", names.join(","))?;
        fill(&mut |row| {
            for (at, (cell, column)) in row.iter().zip(columns).enumerate() {
                if at > 0 {
                    out.write_all(b",")?;
                }
                field(&mut out, *cell, column.kind)?;
            }
            Ok(out.write_all(b"\n")?)
        })?;
        out.into_inner()
            .map_err(io::IntoInnerError::into_error)?
            .sync_all()?;
        Ok(())
    }
}

fn field(out: &mut impl Write, cell: Cell<'_>, kind: Kind) -> io::Result<()> {
    match (cell, kind) {
        (Cell::None, _) => Ok(()),
        (Cell::Number(number), Kind::Flag) => write!(out, "{}", number != 0),
        (Cell::Number(number), _) => write!(out, "{number}"),
        (Cell::Text(text), _) => {
            let begin = text.bytes().next();
            let is_marked = begin.is_some_and(|begin| MARKED.contains(&begin));
            out.write_all(if is_marked { b"\"'" } else { b"\"" })?;
            // Readers end a field, or the file, at a NUL.
            let text = text.replace('\0', "\u{fffd}").replace('"', "\"\"");
            out.write_all(text.as_bytes())?;
            out.write_all(b"\"")
        }
    }
}

/// Writes an application's tables to a folder that is new or empty. The folder gets its name when all tables are whole.
///
/// # Errors
/// When the folder has files, or a table cannot be read or written.
pub fn export(app: &App, workers: &OfWorkers, target: &Path) -> Result<Counts> {
    let cannot = || format!("cannot write the folder {}", target.display());
    if is_taken(target).with_context(cannot)? {
        bail!("{} has files already: name a new folder", target.display());
    }
    let (parent, mut builder) = beside(target)?;
    let folder = builder
        .permissions(permissions(0o777))
        .tempdir_in(parent)
        .with_context(cannot)?;
    let counts = write(app, workers, &mut Folder(folder.path())).with_context(cannot)?;
    fs::rename(folder.path(), target).with_context(cannot)?;
    // It has another name now.
    let _ = folder.keep();
    Ok(counts)
}
