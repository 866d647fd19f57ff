//! `smtt-ctl trace`: records of the trace files as text in the paper's column order, as CSV or as JSON.
//!
//! Reads finished segments, in the order in which they were begun; `--follow` has records as they happen from the
//! daemon, and new segments as they are finished where a folder is named or no daemon runs.

mod line;

use std::collections::HashSet;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};
use smtt_machine::clock::now_unix_ns;
use smtt_model::protocol::{FollowQuery, LOST, Status};
use smtt_model::time::utc;
use smtt_store::folder::{FinishedSegment, list_segments};
use smtt_store::read::{ParquetError, Reader};
use smtt_store::record::{COLUMNS, FOLDER_COLUMNS};

use self::line::{HEADINGS, SEPARATOR, csv, text};
use super::args::TraceQuery;
use super::output::Form;
use super::{Exit, Failure, Output, say};
use crate::client::{Client, ClientError};

/// Interval between two scans of a folder for new segments.
const LOOK: Duration = Duration::from_secs(1);

type Record = Map<String, Value>;

/// Prints the selected records.
pub(super) async fn run(
    client: &Client,
    output: Output,
    query: &TraceQuery,
) -> Result<Exit, Failure> {
    let mut printer = Printer {
        out: BufWriter::new(io::stdout().lock()),
        output,
        printed: 0,
    };
    if query.follow && query.folder.is_none() {
        match live(client, &mut printer, query).await {
            Err(Failure::Client(error @ ClientError::Unreachable { .. })) => say(&format!(
                "{error}. Segments of the trace folder are shown as they are finished"
            )),
            other => return other,
        }
    }
    let folder = match (&query.folder, &query.config) {
        (Some(folder), _) => folder.clone(),
        (None, None) => match daemons_folder(client).await? {
            Some(folder) => folder,
            None => smtt_config::load(None)?.trace_folder,
        },
        (None, config) => smtt_config::load(config.as_deref())?.trace_folder,
    };
    printer.heading()?;
    files(&mut printer, query, &folder)
}

/// The folder of a running daemon that writes trace files.
async fn daemons_folder(client: &Client) -> Result<Option<PathBuf>, Failure> {
    match client.get::<Status>("/v1/status").await {
        Ok(status) => Ok(status.trace.map(|trace| PathBuf::from(trace.folder))),
        // Trace files are read without a daemon, too.
        Err(ClientError::Unreachable { .. } | ClientError::NoPermission(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Prints records as they happen, until the daemon ends.
async fn live(
    client: &Client,
    printer: &mut Printer<impl Write>,
    query: &TraceQuery,
) -> Result<Exit, Failure> {
    if query.since.is_some() {
        return Err(Failure::Question(
            "--follow shows what happens from now on: ask for --since without it, or follow files with --folder"
                .to_owned(),
        ));
    }
    let (stage, attempt) = query
        .stage
        .map_or((None, None), |(id, attempt)| (Some(id), attempt));
    let question = FollowQuery {
        app: query.app.clone(),
        user: query.user,
        executor: query.executor.clone(),
        rdd: query.rdd,
        stage,
        attempt,
        kind: query.kind.clone(),
    };
    let mut answer = client.lines("/v1/trace/follow", &question).await?;
    printer.heading()?;
    let mut exit = Exit::Fine;
    while let Some(lines) = answer.next().await? {
        for line in lines.lines() {
            let record = answer.record(line).map_err(Failure::Question)?;
            if let Some(lost) = number(&record, LOST) {
                exit = Exit::Degraded;
                say(&format!(
                    "{lost} records are missing here: they came faster than they were read"
                ));
            } else if printer.output.form == Form::Json {
                // Printed as received: a parsed and reformatted number may differ in its last digit.
                writeln!(printer.out, "{line}")?;
            } else {
                printer.print(&record)?;
            }
        }
        printer.out.flush()?;
    }
    say("smtt-daemon has ended");
    Ok(exit)
}

/// Prints finished segments, and new ones if requested.
fn files(
    printer: &mut Printer<impl Write>,
    query: &TraceQuery,
    folder: &Path,
) -> Result<Exit, Failure> {
    let since_ns = query
        .since
        .map(|age| now_unix_ns().saturating_sub(age.as_nanos() as u64));
    let mut exit = Exit::Fine;
    let mut seen: HashSet<PathBuf> = HashSet::new();
    loop {
        let (finished, _) = list_segments(folder).map_err(|error| unreadable(folder, error))?;
        if finished.is_empty() && seen.is_empty() && !query.follow {
            let shown = folder.display();
            say(&if folder.is_dir() {
                format!(
                    "no finished trace segments in {shown}: is [trace] enabled, and has a segment's time passed?"
                )
            } else {
                format!(
                    "there is no folder {shown}: is [trace] enabled? --folder names another one, --config the daemon's configuration"
                )
            });
            return Ok(Exit::Failed);
        }
        // Removed segments need not be kept.
        let there: HashSet<&PathBuf> = finished.iter().map(|found| &found.path).collect();
        seen.retain(|path| there.contains(path));
        for found in &finished {
            if seen.contains(&found.path) || is_older(found, since_ns) {
                continue;
            }
            seen.insert(found.path.clone());
            if let Err(failure) = segment(printer, query, since_ns, found) {
                match failure {
                    Failure::Write(error) => return Err(Failure::Write(error)),
                    other => {
                        say(&other.to_string());
                        exit = Exit::Degraded;
                    }
                }
            }
        }
        printer.out.flush()?;
        if !query.follow {
            if printer.printed == 0 {
                say(&format!(
                    "none of the records in {} is one that was asked for",
                    folder.display()
                ));
                return Ok(Exit::Failed);
            }
            return Ok(exit);
        }
        std::thread::sleep(LOOK);
    }
}

/// Output format of the records.
struct Printer<Out> {
    out: Out,
    output: Output,
    /// Records so far.
    printed: u64,
}

impl<Out: Write> Printer<Out> {
    fn heading(&mut self) -> io::Result<()> {
        if self.output.form == Form::Csv {
            let names = COLUMNS.iter().map(|column| column.name);
            let names: Vec<&str> = FOLDER_COLUMNS.into_iter().chain(names).collect();
            writeln!(self.out, "{}", names.join(","))?;
        } else if self.output.form != Form::Json {
            writeln!(self.out, "{}", HEADINGS.join(SEPARATOR))?;
        }
        self.out.flush()
    }

    fn print(&mut self, record: &Record) -> io::Result<()> {
        self.printed += 1;
        if self.output.form == Form::Csv {
            writeln!(self.out, "{}", csv(record))
        } else if self.output.form == Form::Json {
            serde_json::to_writer(&mut self.out, record).map_err(io::Error::from)?;
            writeln!(self.out)
        } else {
            writeln!(self.out, "{}", text(record))
        }
    }
}

fn unreadable(folder: &Path, error: io::Error) -> Failure {
    let help = if error.kind() == io::ErrorKind::PermissionDenied {
        ": be root, or in the group of the control socket"
    } else {
        ""
    };
    Failure::Trace {
        path: folder.to_owned(),
        error,
        help,
    }
}

/// Whether a whole segment is older than requested.
fn is_older(found: &FinishedSegment, since_ns: Option<u64>) -> bool {
    let written = std::fs::metadata(&found.path).and_then(|metadata| metadata.modified());
    let written = written
        .ok()
        .and_then(|written| written.duration_since(SystemTime::UNIX_EPOCH).ok());
    match (written, since_ns) {
        (Some(written), Some(since)) => (written.as_nanos() as u64) < since,
        _ => false,
    }
}

fn segment(
    printer: &mut Printer<impl Write>,
    query: &TraceQuery,
    since_ns: Option<u64>,
    found: &FinishedSegment,
) -> Result<(), Failure> {
    let wrong = |error: ParquetError| Failure::Trace {
        path: found.path.clone(),
        error: io::Error::other(error),
        help: "",
    };
    let reader = Reader::open(&found.path).map_err(wrong)?;
    if !of_application(query, reader.uid, &reader.application_id) {
        return Ok(());
    }
    let since = since_ns.map(|since| utc((since / 1000) as i64));
    for record in reader.records().map_err(wrong)? {
        let record = record.map_err(wrong)?;
        if wanted(query, since.as_deref(), &record) {
            printer.print(&record)?;
        }
    }
    Ok(())
}

/// Whether records of this user's application are selected.
fn of_application(query: &TraceQuery, uid: Option<u32>, application_id: &str) -> bool {
    query.app.as_ref().is_none_or(|app| app == application_id)
        && (query.user.is_none() || query.user == uid)
}

fn number(record: &Record, name: &str) -> Option<u64> {
    record.get(name)?.as_u64()
}

fn word<'a>(record: &'a Record, name: &str) -> Option<&'a str> {
    record.get(name)?.as_str()
}

/// Whether a record is selected. Times are compared as text, which always has the same form.
fn wanted(query: &TraceQuery, since: Option<&str>, record: &Record) -> bool {
    let same = |asked: Option<u32>, name| {
        asked.is_none_or(|asked| number(record, name) == Some(u64::from(asked)))
    };
    let is = |asked: &Option<String>, name| {
        asked
            .as_deref()
            .is_none_or(|asked| word(record, name) == Some(asked))
    };
    let (stage, attempt) = query
        .stage
        .map_or((None, None), |(id, attempt)| (Some(id), attempt));
    is(&query.executor, "executor_id")
        && is(&query.kind, "kind")
        && same(query.rdd, "rdd_id")
        && same(stage, "stage_id")
        && same(attempt, "stage_attempt")
        && since.is_none_or(|since| word(record, "time").is_some_and(|time| time >= since))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(value: Value) -> Record {
        match value {
            Value::Object(record) => record,
            other => panic!("no object: {other}"),
        }
    }

    #[test]
    fn an_application_is_an_id_of_a_user() {
        let query = |user| TraceQuery {
            app: Some("app-1".to_owned()),
            user,
            ..TraceQuery::default()
        };
        assert!(of_application(&query(None), Some(1000), "app-1"));
        assert!(of_application(&query(Some(1000)), Some(1000), "app-1"));
        assert!(!of_application(&query(Some(1001)), Some(1000), "app-1"));
        assert!(!of_application(&query(Some(1000)), None, "app-1"));
        assert!(!of_application(&query(Some(1000)), Some(1000), "app-2"));
    }

    #[test]
    fn filters_hold_together() {
        let row = record(
            json!({"time": utc(100), "kind": "get", "rdd_id": 7, "stage_id": 3, "stage_attempt": 1}),
        );
        let query = |rdd, stage| TraceQuery {
            rdd,
            stage,
            ..TraceQuery::default()
        };
        assert!(wanted(&query(Some(7), Some((3, None))), None, &row));
        assert!(wanted(
            &query(None, Some((3, Some(1)))),
            Some(&utc(100)),
            &row
        ));
        assert!(!wanted(&query(None, Some((3, Some(0)))), None, &row));
        assert!(!wanted(&query(Some(8), None), None, &row));
        assert!(!wanted(&query(None, None), Some(&utc(101)), &row));
    }
}
