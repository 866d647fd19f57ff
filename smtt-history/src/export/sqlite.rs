//! An SQLite database. Texts are as the application said them; a flag is 0 or 1.

use std::path::Path;

use anyhow::{Context, Result, bail};
use rusqlite::Connection;
use rusqlite::types::{Null, ToSqlOutput, Value, ValueRef};
use smtt_store::history::batch::Cell;
use smtt_store::history::columns::Kind;

use super::{Column, Counts, Fill, Sink, beside, is_taken, permissions, write};
use crate::fetches::OfWorkers;
use crate::open::App;

/// Nothing reads the file before it has its name, so it needs no journal.
const BEGIN: &str = "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN";
/// No index is unique: a damaged log may have an id twice.
const END: &str = "
    CREATE INDEX tasks_by_stage ON tasks (stage_id, stage_attempt);
    CREATE INDEX tasks_by_id ON tasks (task_id);
    CREATE INDEX task_sql_by_task ON task_sql (task_id);
    CREATE INDEX stages_by_id ON stages (stage_id, attempt_id);
    CREATE INDEX job_stages_by_stage ON job_stages (stage_id);
    CREATE INDEX functions_by_task ON functions (task_id);
    CREATE INDEX details_by_id ON details (kind, id);
    COMMIT";

struct Database(Connection);

impl Sink for Database {
    fn table(&mut self, name: &str, columns: &[Column], fill: &mut Fill<'_>) -> Result<()> {
        // Names of tables and columns are constants of this program.
        let declared: Vec<String> = columns
            .iter()
            .map(|column| {
                let kind = if column.kind == Kind::Text {
                    "TEXT"
                } else {
                    "INTEGER"
                };
                format!("\"{}\" {kind}", column.name)
            })
            .collect();
        let create = format!("CREATE TABLE {name} ({})", declared.join(", "));
        self.0.execute_batch(&create)?;
        let values = vec!["?"; columns.len()].join(", ");
        let mut insert = self
            .0
            .prepare(&format!("INSERT INTO {name} VALUES ({values})"))?;
        fill(&mut |row| {
            let values = row.iter().map(|cell| match cell {
                Cell::None => ToSqlOutput::from(Null),
                Cell::Number(number) => ToSqlOutput::Owned(Value::Integer(*number)),
                Cell::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            });
            insert.execute(rusqlite::params_from_iter(values))?;
            Ok(())
        })
    }
}

/// Writes an application's tables to a new file. The file gets its name when all tables are whole.
///
/// # Errors
/// When the file exists, or a table cannot be read or written.
pub fn export(app: &App, workers: &OfWorkers, target: &Path) -> Result<Counts> {
    let cannot = || format!("cannot write {}", target.display());
    if is_taken(target).with_context(cannot)? || target.is_dir() {
        bail!("{} exists already: name a new file", target.display());
    }
    let (parent, mut builder) = beside(target)?;
    let file = builder
        .permissions(permissions(0o666))
        .tempfile_in(parent)
        .with_context(cannot)?;
    let mut database = Database(Connection::open(file.path()).with_context(cannot)?);
    database.0.execute_batch(BEGIN).with_context(cannot)?;
    let counts = write(app, workers, &mut database).with_context(cannot)?;
    database.0.execute_batch(END).with_context(cannot)?;
    database
        .0
        .close()
        .map_err(|(_, error)| error)
        .with_context(cannot)?;
    file.as_file().sync_all().with_context(cannot)?;
    file.persist_noclobber(target).with_context(cannot)?;
    Ok(counts)
}
