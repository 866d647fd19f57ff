//! The program `smtt-history`: imports event logs and serves finished applications.

use std::fs::File;
use std::io::{BufWriter, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use crate::advise;
use crate::advise::workers::Figures;
use crate::args::{Arguments, Command, StoreToRead, Targets};
use crate::diff;
use crate::export::{Counts, csv, sqlite};
use crate::fetches::OfWorkers;
use crate::import::Admission;
use crate::log::Bounds;
use crate::objects::Location;
use crate::objects::bucket::Bucket;
use crate::objects::client::Store;
use crate::objects::logs::{Logs, copied};
use crate::objects::mirror::Mirror;
use crate::open::App;
use crate::pages::{Report, report};
use crate::perfetto as trace;
use crate::serve::{Listen, ListenError, Settings, run as run_server};
use crate::timeline::memory::{Memory, read as memory};
use crate::timeline::model::Model;
use crate::workers::Files as WorkerFiles;
use anyhow::{Context as _, Result};
use clap::Parser as _;
use smtt_model::log_levels::{LOG_LEVELS, log_levels};
use smtt_web::Files;
use tracing_subscriber::filter::{self, LevelFilter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Exit code of a bad configuration, as in sysexits.
const EX_CONFIG: u8 = 78;

/// Runs the program with the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let asked = std::env::var("SMTT_LOG").ok();
    let asked = match asked.as_deref().map(|text| (text, log_levels(text))) {
        Some((text, None)) => {
            eprintln!("smtt-history: SMTT_LOG={text:?} is not one of {LOG_LEVELS}");
            return ExitCode::from(EX_CONFIG);
        }
        Some((_, asked)) => asked,
        None => None,
    };
    let layer = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    tracing_subscriber::registry()
        .with(layer)
        .with(asked.unwrap_or_else(levels))
        .init();
    match run(arguments.command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("smtt-history: {error:#}");
            // The unit does not restart what would fail again.
            ExitCode::from(if error.is::<ListenError>() {
                EX_CONFIG
            } else {
                2
            })
        }
    }
}

/// What is logged where `SMTT_LOG` says nothing else.
fn levels() -> filter::Targets {
    // The libraries say that they try again; what fails in the end is one line here.
    filter::Targets::new()
        .with_default(LevelFilter::INFO)
        .with_target("object_store", LevelFilter::WARN)
        .with_target("hdfs_native", LevelFilter::ERROR)
}

/// The application that a command line names.
fn named(store: &Store, name: &str) -> Result<App> {
    let (id, attempt) = name
        .split_once('/')
        .map_or((name, None), |(id, attempt)| (id, Some(attempt)));
    trace::open(store.with(id, attempt)?, id, attempt)
}

/// Writes an answer. A reader that has enough is no error.
fn say(text: &str) -> Result<bool> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(true),
    }
}

fn open(from: &StoreToRead) -> Result<Store> {
    Store::open(&from.store, from.copies.object_cache_bytes)
}

/// Whether everything was done and nothing was damaged.
fn run(command: Command) -> Result<bool> {
    match command {
        Command::Import {
            store,
            max_bytes,
            replace,
            times,
            copies,
            logs,
        } => {
            let admission = Admission {
                name: None,
                replaces: replace,
            };
            let bounds = Bounds {
                log_bytes: max_bytes,
                times: times.times(),
                ..Bounds::default()
            };
            // An import copies nothing of the store.
            let store = Store::open(&store, 0)?;
            let mut is_whole = true;
            for log in logs {
                let done = match &log {
                    Location::Folder(path) => {
                        // Who names a log by a link means its target.
                        let target = std::fs::canonicalize(path);
                        let target = target.as_deref().unwrap_or(path);
                        store.import(target, bounds, &admission)
                    }
                    Location::Bucket(url) => copied(url, copies.object_cache_bytes)
                        .and_then(|copy| store.import(&copy.path, bounds, &admission))
                        .with_context(|| log.to_string()),
                };
                match done {
                    Ok(done) => {
                        let bytes = done.sizes.tasks.bytes
                            + done.sizes.task_sql.bytes
                            + done.sizes.meta.bytes;
                        println!(
                            "{}: {} tasks, {} lines of {} bytes, now {} bytes in {}",
                            done.id,
                            done.sizes.tasks.rows,
                            done.lines,
                            done.bytes,
                            bytes,
                            done.folder.display()
                        );
                        for (line, what) in &done.named {
                            eprintln!("{log}, line {line}: {what}");
                        }
                        is_whole &= done.damaged == 0 && done.too_long == 0;
                    }
                    Err(error) => {
                        eprintln!("smtt-history: {error:#}");
                        is_whole = false;
                    }
                }
            }
            Ok(is_whole)
        }
        Command::Compact {
            from,
            dead,
            times,
            apps,
        } => {
            let store = open(&from)?;
            let mut is_whole = true;
            let all = if apps.is_empty() {
                store.names()?
            } else {
                apps
            };
            for app in all {
                match store.compact(&app, dead, times.times()) {
                    Ok(done) => {
                        let sizes = [done.sizes.tasks, done.sizes.task_sql, done.sizes.meta];
                        println!(
                            "{app}: {} tasks, {} parts of {} bytes, now {} bytes in {}",
                            done.sizes.tasks.rows,
                            done.parts.0,
                            done.parts.1,
                            sizes.iter().map(|it| it.bytes).sum::<u64>(),
                            done.folder.display()
                        );
                        is_whole &= done.lost == 0;
                    }
                    Err(error) => {
                        eprintln!("smtt-history: {error:#}");
                        is_whole = false;
                    }
                }
            }
            Ok(is_whole)
        }
        Command::Export {
            from,
            app,
            attempt,
            to,
        } => {
            let store = open(&from)?;
            let folder = store.with(&app, attempt.as_deref())?;
            let opened = trace::open(folder, &app, attempt.as_deref())?;
            // Without a workers' half there are none.
            let files = WorkerFiles::of(folder, opened.identity(), None, None);
            let (of_tasks, left_out) = match &files {
                Ok(files) => files.of_tasks(),
                Err(trouble) => {
                    let all =
                        "the functions, requests and memory of tasks and executors are left out";
                    (OfWorkers::default(), vec![format!("{all}: {trouble}")])
                }
            };
            for what in &left_out {
                eprintln!("smtt-history: {what}");
            }
            let is_whole = export(&opened, &of_tasks, files.as_ref().ok(), &to)?;
            Ok(is_whole && left_out.is_empty())
        }
        Command::Report {
            from,
            app,
            html,
            user,
        } => {
            let store = open(&from)?;
            let app = named(&store, &app)?;
            let settings = Settings {
                store: store.folder().to_owned(),
                event_logs: None,
                cache_bytes: 256 << 20,
                bounds: Bounds::default(),
                bucket: None,
            };
            let Report { page, left_out } = report(settings, &app, user)?;
            for what in &left_out {
                eprintln!("smtt-history: {what}");
            }
            if html.as_os_str() == "-" {
                return Ok(say(&page)? && left_out.is_empty());
            }
            std::fs::write(&html, page)
                .with_context(|| format!("cannot write {}", html.display()))?;
            println!("{}", html.display());
            Ok(left_out.is_empty())
        }
        Command::Advise { from, app, json } => {
            let store = open(&from)?;
            let app = named(&store, &app)?;
            let workers = Figures::in_store(store.folder(), &app, None);
            let found = advise::advise(&app, workers)?;
            say(&if json {
                serde_json::to_string_pretty(&found)? + "\n"
            } else {
                advise::text::text(&found)
            })
        }
        Command::Diff {
            from,
            first,
            second,
            json,
        } => {
            let store = open(&from)?;
            let (left, right) = (named(&store, &first)?, named(&store, &second)?);
            let found = diff::diff(store.folder(), &left, &right)?;
            say(&if json {
                serde_json::to_string_pretty(&found)? + "\n"
            } else {
                diff::text::text(&found)
            })
        }
        Command::Serve {
            store,
            event_logs,
            listen,
            protection,
            cache_bytes,
            copies,
        } => {
            let files = Files {
                config: protection.web_config.as_deref(),
                tokens: protection.token_file.as_deref(),
                users: None,
            };
            let listen = Listen::load(listen, files, protection.behind_proxy)?;
            let (store, bucket) = match store {
                Location::Folder(folder) => (folder, None),
                Location::Bucket(url) => {
                    let bucket = Arc::new(Bucket::open(&url)?);
                    let mirror = Mirror::new(bucket, copies.object_cache_bytes);
                    let mirror = mirror.context("cannot make a temporary folder")?;
                    (mirror.folder().to_owned(), Some(Arc::new(mirror)))
                }
            };
            let settings = Settings {
                store,
                event_logs: event_logs
                    .map(|it| Logs::open(it, copies.object_cache_bytes))
                    .transpose()?,
                cache_bytes,
                bounds: Bounds::default(),
                bucket,
            };
            run_server(settings, listen)?;
            Ok(true)
        }
    }
}

/// Writes the exports; false where the workers' memory is missing.
fn export(
    app: &App,
    workers: &OfWorkers,
    files: Option<&WorkerFiles>,
    to: &Targets,
) -> Result<bool> {
    let to_output = to.perfetto.as_ref().is_some_and(|it| it.as_os_str() == "-");
    // The trace has the standard output for itself.
    let say = |line: &str| {
        if to_output {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
    };
    let tables = |counts: Counts, target: &Path| {
        let Counts {
            jobs,
            stages,
            tasks,
        } = counts;
        let target = target.display();
        say(&format!(
            "{jobs} jobs, {stages} stages, {tasks} tasks in {target}"
        ));
    };
    if let Some(folder) = &to.csv {
        tables(csv::export(app, workers, folder)?, folder);
    }
    if let Some(file) = &to.sqlite {
        tables(sqlite::export(app, workers, file)?, file);
    }
    let Some(path) = &to.perfetto else {
        return Ok(true);
    };
    let model = Model::read(app)?;
    let memory = files.map(|files| memory::read(files, app, &model));
    let (memory, is_whole) = match memory.transpose() {
        Ok(memory) => (memory.unwrap_or_default(), true),
        Err(trouble) => {
            eprintln!("smtt-history: the memory of executors is left out: {trouble}");
            (Memory::default(), false)
        }
    };
    let of = (app, &model);
    if to_output {
        let out = BufWriter::new(std::io::stdout().lock());
        trace::write(of, workers, &memory, out)?;
    } else {
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let tasks = trace::write(of, workers, &memory, BufWriter::new(file))?;
        say(&format!("{tasks} tasks in {}", path.display()));
    }
    Ok(is_whole)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use clap::Parser as _;

    use super::*;
    use crate::args::Arguments;
    use crate::made::{Made, Stage, Task};

    #[test]
    fn a_report_that_leaves_something_out_is_not_whole() {
        let folder = tempfile::tempdir().expect("makes a folder");
        let file = folder.path().join("app.html");
        let stages = |count: usize| (0..count).map(|_| Stage::new("map", vec![Task::new(9, 1)]));
        for (id, count, is_whole) in [("app-1", 100, true), ("app-2", 101, false)] {
            Made::new(id, stages(count).collect()).open(folder.path());
            let store = folder.path().join("store");
            let arguments: [&OsStr; 7] = [
                "smtt-history".as_ref(),
                "report".as_ref(),
                "--store".as_ref(),
                store.as_ref(),
                id.as_ref(),
                "--html".as_ref(),
                file.as_ref(),
            ];
            let arguments = Arguments::try_parse_from(arguments).expect("is a command");
            assert_eq!(run(arguments.command).expect("writes"), is_whole, "{id}");
            let page = std::fs::read_to_string(&file).expect("is written");
            let note = page.contains("1 stage attempts, those with least task time, have no page.");
            assert_eq!(note, !is_whole, "{id}");
        }
    }
}
