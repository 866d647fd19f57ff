//! `smtt-ctl report --html`: one self-contained page per application, which loads nothing and reads without its script.
//! The client makes it from the daemon's responses, so that the daemon stays small.

mod chart;
mod cluster;
mod document;
mod findings;
mod jobs;
mod markup;
mod rdds;
mod sections;
mod summary;
mod tables;
mod tasks;
#[cfg(test)]
mod tests;
mod timeline;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use smtt_model::advise::surroundings::{Process, Surroundings};
use smtt_model::advise::{Advice, ApplicationAdvice};
use smtt_model::protocol::{ApplicationReport, Histories, ListQuery, Report, Status};
use smtt_model::rows::{
    ApplicationKey, ExecutorId, JobRow, Listing, PagesRow, RddRow, StageRow, TaskRow,
    WorkOverWorkersRow, work_over_workers,
};
use smtt_model::sort::small::Gather as _;

use super::args::{By, Filters};
use super::listing::no_match::no_match;
use super::report::NO_APPLICATION;
use super::{Exit, Failure, say};
use crate::client::Client;
use crate::cluster::named;

/// Inputs of a document.
#[derive(Debug)]
struct Facts {
    application: ApplicationReport,
    /// What RDDs in a row or a series have in common; `None` for their names or call sites.
    by: Option<By>,
    rdds: Vec<RddRow>,
    pages: Vec<PagesRow>,
    /// Jobs, added up over workers.
    jobs: Vec<WorkOverWorkersRow>,
    stages: Vec<StageRow>,
    tasks: Vec<TaskRow>,
    /// Task attempts of the application; `tasks` may have fewer.
    tasks_total: u64,
    /// Ended tasks with their functions: of those of the application that took longest, the ones that were asked for.
    ended: Vec<TaskRow>,
    /// How many of the application took longest, and how many are known.
    ended_longest: u64,
    ended_total: u64,
    /// What `ended` has of them: those of a stage or of an attempt.
    ended_of: &'static str,
    history: Histories,
    advice: ApplicationAdvice,
    /// Workers of each finding in words; empty on a page of one worker.
    finding_hosts: Vec<String>,
    /// What each worker reports of itself.
    workers: Vec<OfWorker>,
    /// The workers that were asked; `None` on a page of one worker.
    asked: Option<Asked>,
    /// Whether `stages` has all stages.
    has_all_stages: bool,
}

/// What one worker reports of itself.
#[derive(Debug)]
struct OfWorker {
    /// Name of the worker; `None` on a page of one worker.
    name: Option<String>,
    status: Status,
    surroundings: Surroundings,
}

/// The workers of a cluster that were asked.
#[derive(Debug)]
struct Asked {
    all: usize,
    /// Workers that did not answer, by reason.
    missing: Vec<(String, Vec<String>)>,
    /// Workers whose memory over time is not on the page.
    without_history: Vec<String>,
    /// Workers whose ended tasks are not on the page.
    without_functions: Vec<String>,
}

impl Facts {
    /// The process of an executor, as its worker sees it.
    fn process(&self, who: &ExecutorId) -> Option<&Process> {
        let mut workers = self.workers.iter();
        let worker = workers.find(|worker| worker.name == who.worker)?;
        worker.surroundings.processes.get(&who.pid)
    }

    /// A text of each worker, with the workers that have the same one.
    fn said(&self, of: impl Fn(&OfWorker) -> Vec<String>) -> Vec<(String, Vec<&str>)> {
        let mut texts: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for worker in &self.workers {
            for text in of(worker) {
                let name = worker.name.as_deref();
                texts.entry(text).or_default().extend(name);
            }
        }
        texts.into_iter().take(SAID).collect()
    }
}

/// Texts of workers of one kind on a page.
const SAID: usize = 40;

/// Workers in words, in parentheses; empty on a page of one worker.
fn on(workers: &[&str]) -> String {
    match workers {
        [] => String::new(),
        names => format!(" (on {})", named(names)),
    }
}

/// Requests all inputs and writes the document, or one per application into a folder.
pub(super) async fn run(
    client: &Client,
    filter: &Filters,
    by: Option<By>,
    output: Option<&Path>,
) -> Result<Exit, Failure> {
    if let Some(cluster) = client.cluster() {
        return cluster::run(client, cluster, filter, by, output).await;
    }
    let report: Report = client.ask_one("/v1/report", &filter.question()).await?;
    let status: Status = client.get("/v1/status").await?;
    let known: Vec<ApplicationKey> = report
        .applications
        .iter()
        .map(ApplicationReport::application)
        .collect();
    let folder = folder(client, filter, output, &known).await?;
    let degraded = !report.degraded.is_empty();
    for (application, name) in report.applications.into_iter().zip(file_names(&known)) {
        let mut facts = ask(client, filter, application, status.clone()).await?;
        facts.by = by;
        write(&facts, folder, &name, output)?;
    }
    Ok(if degraded { Exit::Degraded } else { Exit::Fine })
}

/// The folder for the pages of these applications; `None` for one page elsewhere.
///
/// # Errors
/// When there is no application, or more than one without a folder.
async fn folder<'a>(
    client: &Client,
    filter: &Filters,
    output: Option<&'a Path>,
    known: &[ApplicationKey],
) -> Result<Option<&'a Path>, Failure> {
    let folder = output.filter(|path| path.is_dir());
    if known.is_empty() {
        let question = filter.question();
        if question != ListQuery::default() {
            return Err(no_match(client, "/v1/executors", "applications", &question).await);
        }
        return Err(Failure::Nothing(NO_APPLICATION.trim_end().to_owned()));
    }
    if known.len() > 1 && folder.is_none() {
        let ids: BTreeSet<&str> = known
            .iter()
            .map(|key| key.id.as_deref().unwrap_or_default())
            .gather();
        let of_users: BTreeSet<_> = known.iter().map(|key| (&key.id, key.uid)).gather();
        // The same id of several users is several applications.
        let user = if ids.len() < of_users.len() {
            " and --user"
        } else {
            ""
        };
        if ids.len() == 1 && of_users.len() == 1 {
            return Err(Failure::Question(format!(
                "a page is about one attempt of an application, and {} of this one are known: give a folder as --output",
                known.len()
            )));
        }
        let ids: Vec<&str> = ids.into_iter().take(100).collect();
        return Err(Failure::Question(format!(
            "a page is about one application, and {} are known: give --app ({}){user}, or a folder as --output",
            known.len(),
            shortened(&ids.join(", "), 400)
        )));
    }
    Ok(folder)
}

/// Writes a page under its name into the folder, into the file, or to standard output.
fn write(
    facts: &Facts,
    folder: Option<&Path>,
    name: &str,
    output: Option<&Path>,
) -> Result<(), Failure> {
    let text = document::page(facts);
    match (folder, output) {
        (Some(folder), _) => save(&folder.join(name), &text),
        (None, Some(file)) => save(file, &text),
        (None, None) => {
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes())?;
            Ok(out.flush()?)
        }
    }
}

async fn ask(
    client: &Client,
    filter: &Filters,
    application: ApplicationReport,
    status: Status,
) -> Result<Facts, Failure> {
    let key = application.application();
    let question = filter.of_application(key.id.as_deref(), key.uid);
    let rdds: Listing<RddRow> = client.ask("/v1/rdds", &question).await?;
    let pages: Listing<PagesRow> = client.ask("/v1/pages", &question).await?;
    let jobs: Listing<JobRow> = client.ask("/v1/jobs", &question).await?;
    let stages: Listing<StageRow> = client.ask("/v1/stages", &question).await?;
    let tasks: Listing<TaskRow> = client.ask("/v1/tasks", &question).await?;
    let longest = tasks::longest(&question, tasks::ENDED);
    let ended: Listing<TaskRow> = client.ask("/v1/tasks/ended", &longest).await?;
    let mut history: Histories = client.ask_one("/v1/history", &question).await?;
    let advice: Advice = client.ask("/v1/advise", &question).await?;
    // If the name of one application is the id of another one, the id decides.
    let own = |who: &ExecutorId| who.application() == key;
    history.rows.retain(|row| own(&row.who));
    let tasks: Vec<TaskRow> = tasks.rows.into_iter().filter(|row| own(&row.who)).collect();
    Ok(Facts {
        tasks_total: tasks.len() as u64,
        ended_total: ended.rows_total,
        ended_longest: ended.rows.len() as u64,
        ended_of: part_of(&question),
        ended: own_tasks(ended.rows, &question, own),
        rdds: rdds.rows.into_iter().filter(|row| own(&row.who)).collect(),
        pages: pages.rows.into_iter().filter(|row| own(&row.who)).collect(),
        jobs: own_jobs(&[(String::new(), jobs)], &key),
        stages: stages
            .rows
            .into_iter()
            .filter(|row| own(&row.who))
            .collect(),
        tasks,
        advice: advice
            .applications
            .into_iter()
            .find(|advice| advice.application() == key)
            .unwrap_or_default(),
        finding_hosts: Vec::new(),
        workers: vec![OfWorker {
            name: None,
            status,
            surroundings: advice.surroundings,
        }],
        asked: None,
        by: None,
        has_all_stages: true,
        application,
        history,
    })
}

/// The jobs of an application, added up over workers.
fn own_jobs(parts: &[(String, Listing<JobRow>)], key: &ApplicationKey) -> Vec<WorkOverWorkersRow> {
    let of_worker: Vec<(&str, &[JobRow])> = parts
        .iter()
        .map(|(worker, part)| (worker.as_str(), part.rows.as_slice()))
        .collect();
    let mut rows = work_over_workers(&of_worker, false);
    rows.retain(|row| {
        row.application_id == key.id
            && row.application_attempt_id == key.attempt
            && row.uid == key.uid
    });
    rows
}

/// What [`own_tasks`] chooses by, beside the application.
const fn part_of(question: &ListQuery) -> &'static str {
    match question.stage {
        Some(_) => "this stage",
        None => "this attempt of the application",
    }
}

/// Of these ended tasks, those of the application and of the stage that was asked for.
fn own_tasks(
    rows: Vec<TaskRow>,
    question: &ListQuery,
    own: impl Fn(&ExecutorId) -> bool,
) -> Vec<TaskRow> {
    let stage = question.stage.as_deref();
    let is_wanted = |row: &TaskRow| {
        let (id, attempt) = (row.stage_id, row.stage_attempt.unwrap_or(0));
        stage.is_none_or(|stage| {
            id.is_some_and(|id| stage == id.to_string() || stage == format!("{id}.{attempt}"))
        })
    };
    let rows = rows.into_iter();
    rows.filter(|row| own(&row.who) && is_wanted(row)).collect()
}

/// Writes a temporary file and renames it, so that readers never see half a document.
pub(super) fn save(path: &Path, text: &str) -> Result<(), Failure> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".inprogress");
    let beside: PathBuf = path.with_file_name(name);
    std::fs::write(&beside, text)
        .and_then(|()| std::fs::rename(&beside, path))
        .map_err(|error| Failure::Page {
            path: path.to_owned(),
            error,
        })?;
    say(&format!("wrote {}", path.display()));
    Ok(())
}

/// File names of the pages of applications, no two of them equal: an executor may claim an id that gives the name of
/// another application's page. Such applications have the user in the name, and a number where that is not enough. An
/// attempt is part of the name, as of Spark's own event logs.
fn file_names(known: &[ApplicationKey]) -> Vec<String> {
    let stem = |key: &ApplicationKey| {
        let id = key.id.as_deref().unwrap_or("unknown");
        match &key.attempt {
            Some(attempt) => stem(&format!("{id}_{attempt}")),
            None => stem(id),
        }
    };
    let mut stems: BTreeMap<String, usize> = BTreeMap::new();
    for key in known {
        *stems.entry(stem(key)).or_default() += 1;
    }
    let is_alone = |stem: &str| stems.get(stem) == Some(&1);
    let mut taken: BTreeSet<String> = known.iter().map(stem).filter(|one| is_alone(one)).gather();
    let mut name = |key: &ApplicationKey| {
        let stem = stem(key);
        if is_alone(&stem) {
            return format!("{stem}.html");
        }
        let with_user = match key.uid {
            Some(uid) => format!("{stem}-user{uid}"),
            None => stem,
        };
        let mut name = with_user.clone();
        let mut number = 1;
        while !taken.insert(name.clone()) {
            number += 1;
            name = format!("{with_user}-{number}");
        }
        format!("{name}.html")
    };
    known.iter().map(&mut name).collect()
}

/// A file name without its end for an application, whose id is untrusted.
pub(super) fn stem(id: &str) -> String {
    let safe = |letter: char| {
        if letter.is_ascii_alphanumeric() || letter == '-' || letter == '_' {
            letter
        } else {
            '_'
        }
    };
    id.chars().take(100).map(safe).collect()
}

/// A text of at most `most` characters.
fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let start: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{start}…")
}
