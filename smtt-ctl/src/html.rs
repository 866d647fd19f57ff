//! `smtt-ctl report --html`: one self-contained page per application, without scripts and without external fonts or
//! images. The client makes it from the daemon's responses, so that the daemon stays small.

mod chart;
mod document;
mod markup;
mod rdds;
mod sections;
mod tables;
#[cfg(test)]
mod tests;
mod timeline;

use std::io::Write;
use std::path::{Path, PathBuf};

use smtt_model::advise::surroundings::Surroundings;
use smtt_model::advise::{Advice, ApplicationAdvice};
use smtt_model::protocol::{ApplicationReport, Histories, ListQuery, Report, Status};
use smtt_model::rows::{Listing, PagesRow, RddRow, StageRow, TaskRow};

use super::args::Filters;
use super::listing::nothing::nothing;
use super::report::NO_APPLICATION;
use super::{Exit, Failure, say};
use crate::client::Client;

/// Inputs of a document.
#[derive(Debug)]
struct Facts {
    application: ApplicationReport,
    rdds: Vec<RddRow>,
    pages: Vec<PagesRow>,
    stages: Vec<StageRow>,
    tasks: Vec<TaskRow>,
    history: Histories,
    advice: ApplicationAdvice,
    surroundings: Surroundings,
    status: Status,
}

/// Requests all inputs and writes the document, or one per application into a folder.
pub(super) async fn run(
    client: &Client,
    filter: &Filters,
    output: Option<&Path>,
) -> Result<Exit, Failure> {
    let report: Report = client.ask_one("/v1/report", &filter.question()).await?;
    let status: Status = client.get("/v1/status").await?;
    let folder = output.filter(|path| path.is_dir());
    let ids: Vec<&str> = report
        .applications
        .iter()
        .map(|application| application.application_id.as_deref().unwrap_or_default())
        .collect();
    if ids.is_empty() {
        let question = filter.question();
        if question != ListQuery::default() {
            return Err(nothing(client, "/v1/executors", "applications", &question).await);
        }
        return Err(Failure::Nothing(NO_APPLICATION.trim_end().to_owned()));
    }
    if ids.len() > 1 && folder.is_none() {
        return Err(Failure::Question(format!(
            "a page is about one application, and {} are known: give --app ({}), or a folder as --output",
            ids.len(),
            shortened(&ids.join(", "), 400)
        )));
    }
    let degraded = !report.degraded.is_empty();
    for application in report.applications {
        let facts = ask(client, filter, application, status.clone()).await?;
        let text = document::page(&facts);
        match (folder, output) {
            (Some(folder), _) => {
                let id = facts
                    .application
                    .application_id
                    .as_deref()
                    .unwrap_or("unknown");
                save(&folder.join(file_name(id)), &text)?;
            }
            (None, Some(file)) => save(file, &text)?,
            (None, None) => {
                let mut out = std::io::stdout().lock();
                out.write_all(text.as_bytes())?;
                out.flush()?;
            }
        }
    }
    Ok(if degraded { Exit::Degraded } else { Exit::Fine })
}

async fn ask(
    client: &Client,
    filter: &Filters,
    application: ApplicationReport,
    status: Status,
) -> Result<Facts, Failure> {
    let (id, uid) = (application.application_id.clone(), application.uid);
    let question = Filters {
        app: Some(id.clone().unwrap_or_default()),
        user: uid.or(filter.user),
        ..filter.clone()
    }
    .question();
    let rdds: Listing<RddRow> = client.ask("/v1/rdds", &question).await?;
    let pages: Listing<PagesRow> = client.ask("/v1/pages", &question).await?;
    let stages: Listing<StageRow> = client.ask("/v1/stages", &question).await?;
    let tasks: Listing<TaskRow> = client.ask("/v1/tasks", &question).await?;
    let mut history: Histories = client.ask_one("/v1/history", &question).await?;
    let advice: Advice = client.ask("/v1/advise", &question).await?;
    // If the name of one application is the id of another one, the id decides.
    let own = |who: &smtt_model::rows::ExecutorId| who.application_id == id && who.uid == uid;
    history.rows.retain(|row| own(&row.who));
    Ok(Facts {
        rdds: rdds.rows.into_iter().filter(|row| own(&row.who)).collect(),
        pages: pages.rows.into_iter().filter(|row| own(&row.who)).collect(),
        stages: stages
            .rows
            .into_iter()
            .filter(|row| own(&row.who))
            .collect(),
        tasks: tasks.rows.into_iter().filter(|row| own(&row.who)).collect(),
        advice: advice
            .applications
            .into_iter()
            .find(|advice| advice.application_id == id && advice.uid == uid)
            .unwrap_or_default(),
        surroundings: advice.surroundings,
        application,
        history,
        status,
    })
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

/// A file name for an application, whose id is untrusted.
fn file_name(id: &str) -> String {
    let safe = |letter: char| {
        if letter.is_ascii_alphanumeric() || letter == '-' || letter == '_' {
            letter
        } else {
            '_'
        }
    };
    let name: String = id.chars().take(100).map(safe).collect();
    format!("{name}.html")
}

/// A text of at most `most` characters.
fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let start: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{start}…")
}
