//! A report: the pages of an application in one file that needs no server and loads nothing. It has the pages that the
//! server has, with their addresses turned into places of the file; the script of the time line asks the file.

mod script;

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, anyhow};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::Serialize;
use serde_json::Value;

use self::script::{POLICY, digest, script};
use super::application::name;
use super::place::Place;
use super::shown::cut;
use super::{Asked, Missing, route};
use crate::open::App;
use crate::serve::routes::{Parameters, age_ms};
use crate::serve::{Refusal, Server, Settings};
use crate::timeline::memory::cells::CELLS;
use crate::timeline::memory::parts::ALL;
use crate::timeline::memory::serve::asked as memory;
use crate::timeline::model::Model;
use crate::timeline::whole::{TASKS, Whole};
use crate::workers::Files;

/// Pages of stages and of tasks at most: those that took most time.
const STAGES: usize = 100;
const LONGEST: usize = 20;
/// Bytes of pages of stages, and of tasks, beyond which no further one comes; of any other page.
const BYTES: usize = 16 << 20;
/// Rows of a table.
const ROWS: &str = "500";
/// Sections: path, title, and whether it is open.
const SECTIONS: [(&str, &str, bool); 8] = [
    ("timeline", "Time line", true),
    ("findings", "Findings", true),
    ("jobs", "Jobs", true),
    ("stages", "Stages", false),
    ("tasks", "Tasks: the longest", false),
    ("executors", "Executors", false),
    ("rdds", "RDDs", false),
    ("timeline/memory", "Memory over time as a table", false),
];

/// What the script of the report reads.
#[derive(Serialize)]
struct Data {
    timeline: Whole,
    /// Memory of all executors over all of the time, by what it is divided.
    memory: serde_json::Map<String, Value>,
}

/// A report.
#[derive(Clone, Debug)]
pub struct Report {
    /// The document.
    pub page: String,
    /// What it leaves out, and what could not be read, in sentences.
    pub left_out: Vec<String>,
}

/// A server for the one application of a report, whose pages read it once.
fn server(settings: Settings) -> Server {
    Server::new(Settings {
        cache_bytes: u64::MAX,
        ..settings
    })
}

/// The report of an application in a store, of one user's executors where one is given.
///
/// # Errors
/// When the tables of the application cannot be read.
pub fn report(settings: Settings, app: &App, user: Option<u32>) -> Result<Report> {
    let server = server(settings);
    let (id, attempt) = app.identity();
    let place = Place::of("/applications/", id, attempt);
    let failed = |refusal: Refusal| anyhow!(refusal.1);
    let model = server.timeline(app).map_err(failed)?;
    let report = Making {
        server: &server,
        app,
        place: &place,
        user,
        missing: Missing::default(),
    };
    let stages = stages(&model);
    let with_spans = Files::of(&server.settings.store, app.identity(), user, None)
        .and_then(|files| files.tasks_with_spans())
        .map_err(Refusal::from);
    let with_spans = with_spans.unwrap_or_else(|refusal| {
        report
            .missing
            .add(format!("functions of tasks: {}", refusal.1));
        BTreeSet::new()
    });
    let tasks = longest(&model, &with_spans);
    let own = SECTIONS.iter().map(|(path, _, _)| (*path).to_owned());
    let known: BTreeSet<String> = own.chain(stages.clone()).chain(tasks.clone()).collect();
    let (stages, stages_left_out) = report.parts(&stages, &known, model.stages.len());
    let (tasks, tasks_left_out) = report.parts(&tasks, &known, tasks.len());
    let data = Data {
        timeline: Whole::of(&model, TASKS),
        memory: report.memory(&model),
    };
    let overview = report.page("", &known);
    let sections = SECTIONS.map(|(path, title, is_open)| {
        let page = report.page(path, &known);
        (path, title, is_open, page)
    });
    let counts = [
        (
            data.timeline.left_out,
            "tasks, the shortest, are not on the time line",
        ),
        (
            data.timeline.jobs_left_out as u64,
            "jobs are not on the time line",
        ),
        (
            data.timeline.paths_left_out as u64,
            "jobs on the time line are without their critical path",
        ),
        (
            data.timeline.texts_left_out as u64,
            "names and hosts on the time line have no room",
        ),
        (
            stages_left_out as u64,
            "stage attempts, those with least task time, have no page",
        ),
        (tasks_left_out as u64, "of the longest tasks have no page"),
    ];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    // What a name has cannot end the element.
    let json = serde_json::to_string(&data)
        .context("no data")?
        .replace('<', "\\u003c");
    let (script, style) = (script(!model.tasks.is_empty()), script::style());
    let policy = POLICY
        .replace("SCRIPT", &digest(&script))
        .replace("STYLE", &digest(&style));
    let title = name(app, id);
    let body = html! {
        header {
            p.path { bdi { (cut(&title)) } span.soft { " " (id) @if let Some(attempt) = attempt { ", attempt " (attempt) } } }
            nav.sections aria-label="Sections" {
                @for (path, title, _) in SECTIONS { a href=(format!("#p/{path}")) { (title) } }
                @if !stages.is_empty() { a href="#stages" { "Stages with their RDDs" } }
                @if !tasks.is_empty() { a href="#functions" { "Functions of tasks" } }
            }
            @if age_ms(app).is_some() { p.soft { "The application was running when this was written." } }
        }
        main {
            h1 { (cut(&title)) }
            (overview)
            @for what in &counts { p.soft { (what) "." } }
            @for (path, title, is_open, page) in &sections {
                details.part id=(format!("p/{path}")) open[*is_open] {
                    summary { h2 { (title) } }
                    (page)
                }
            }
            (group("stages", "Stages with their RDDs", &stages))
            (group("functions", "Functions of the longest tasks", &tasks))
        }
        script type="application/json" id="report-data" { (PreEscaped(json)) }
        script type="module" { (PreEscaped(script)) }
    };
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (cut(&title)) " · SMTT report" }
                style { (PreEscaped(style)) }
            }
            body { (body) }
        }
    };
    Ok(Report {
        page: page.into_string(),
        left_out: counts
            .into_iter()
            .chain(report.missing.0.into_inner())
            .collect(),
    })
}

fn group(id: &str, title: &str, pages: &[(String, Markup)]) -> Markup {
    html! {
        @if !pages.is_empty() {
            section id=(id) {
                h2 { (title) }
                @for (path, page) in pages { details.part id=(format!("p/{path}")) { summary { (path) } (page) } }
            }
        }
    }
}

/// Paths of the stage attempts with most task time, by their ids.
fn stages(model: &Model) -> Vec<String> {
    let mut all: Vec<(u64, (i32, i32))> = model.stages.iter().map(|it| (0, it.key)).collect();
    for task in &model.tasks {
        all[task.stage as usize].0 += u64::from(task.duration);
    }
    all.sort_unstable_by_key(|(ms, key)| (std::cmp::Reverse(*ms), *key));
    all.truncate(STAGES);
    all.sort_unstable_by_key(|(_, key)| *key);
    let path = |(_, (id, attempt)): (u64, (i32, i32))| format!("stages/{id}/{attempt}");
    all.into_iter().map(path).collect()
}

/// Paths of the longest tasks, of those with spans where any has them.
fn longest(model: &Model, with_spans: &BTreeSet<i64>) -> Vec<String> {
    let own = model
        .tasks
        .iter()
        .filter(|task| with_spans.is_empty() || with_spans.contains(&task.id));
    let mut all: Vec<_> = own.map(|it| (it.duration, it.id)).collect();
    all.sort_unstable_by_key(|(ms, id)| (std::cmp::Reverse(*ms), *id));
    let path = |(_, id): &(u32, i64)| format!("tasks/{id}");
    all.iter().take(LONGEST).map(path).collect()
}

/// An application whose report is made.
struct Making<'a> {
    server: &'a Server,
    app: &'a App,
    place: &'a Place,
    user: Option<u32>,
    missing: Missing,
}

impl Making<'_> {
    fn parameters(&self, path: &str) -> Parameters {
        let mut all = Vec::new();
        let mut add = |name: &str, value: &str| all.push((name.to_owned(), value.to_owned()));
        add("length", ROWS);
        if path == "tasks" {
            add("sort", "-duration");
        }
        if let Some(user) = self.user {
            add("user", &user.to_string());
        }
        Parameters(all)
    }

    /// A page of the server without its frame, with the file's addresses.
    fn page(&self, path: &str, known: &BTreeSet<String>) -> Markup {
        let asked = Asked {
            server: self.server,
            app: self.app,
            place: self.place,
            parameters: &self.parameters(path),
            missing: &self.missing,
        };
        let page = route(&asked, path).map(Markup::into_string);
        let page = page.and_then(|page| {
            let is_small = page.len() <= BYTES;
            let most = BYTES >> 20;
            let refusal = || Refusal::bad(format!("this page has more than {most} MiB"));
            is_small.then_some(page).ok_or_else(refusal)
        });
        let page = match page {
            Ok(page) => page,
            Err(refusal) => {
                let part = if path.is_empty() { "overview" } else { path };
                self.missing.add(format!("{part}: {}", refusal.1));
                return html! { p.empty { (cut(&refusal.1)) } };
            }
        };
        let main = page.split_once("<main>").map_or("", |(_, rest)| rest);
        let main = main.rsplit_once("</main>").map_or("", |(main, _)| main);
        // The section has the title.
        let main = main.split_once("</h1>").map_or(main, |(_, rest)| rest);
        PreEscaped(placed(main, path, &self.place.part(""), known))
    }

    /// Pages until they have too many bytes, and how many of so many are missing.
    fn parts(
        &self,
        paths: &[String],
        known: &BTreeSet<String>,
        total: usize,
    ) -> (Vec<(String, Markup)>, usize) {
        let (mut all, mut left) = (Vec::new(), BYTES);
        for path in paths {
            let page = self.page(path, known);
            let Some(rest) = left.checked_sub(page.0.len()) else {
                break;
            };
            left = rest;
            all.push((path.clone(), page));
        }
        let missing = total - all.len();
        (all, missing)
    }

    fn memory(&self, model: &Model) -> serde_json::Map<String, Value> {
        let mut all = serde_json::Map::new();
        let mut parameters = self.parameters("timeline");
        let read = match self.server.memory(self.app, model, &parameters) {
            Ok(read) => read,
            Err(refusal) => {
                self.missing
                    .add(format!("the memory of executors: {}", refusal.1));
                return all;
            }
        };
        for (_, by, _) in ALL {
            parameters
                .0
                .retain(|(name, _)| name != "by" && name != "width");
            parameters.0.push(("by".to_owned(), by.to_owned()));
            parameters.0.push(("width".to_owned(), "4000".to_owned()));
            let answer = memory(&read, model, &parameters, CELLS);
            if let Some(json) = answer.ok().and_then(|it| serde_json::to_value(it).ok()) {
                all.insert(by.to_owned(), json);
            }
        }
        all
    }
}

/// The part of an address before its parameters and its place, and its place.
fn split(address: &str) -> (&str, Option<&str>) {
    let (rest, place) = match address.split_once('#') {
        Some((rest, place)) => (rest, Some(place)),
        None => (address, None),
    };
    (rest.split('?').next().unwrap_or_default(), place)
}

/// A page's text with addresses and ids of the file. Names are escaped, so no text has a quotation mark: what follows
/// ` href="` is an attribute.
fn placed(text: &str, path: &str, base: &str, known: &BTreeSet<String>) -> String {
    let is_timeline = path == "timeline";
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    // What is looked for, up to the value.
    let marks = [
        " href=\"",
        " id=\"",
        "<form",
        "<script",
        " data-api=\"",
        " data-tasks=\"",
        " data-stages=\"",
        " data-table=\"",
    ];
    while let Some((at, mark)) = marks
        .iter()
        .filter_map(|mark| Some((rest.find(mark)?, *mark)))
        .min()
    {
        out.push_str(&rest[..at]);
        rest = &rest[at + mark.len()..];
        if mark.starts_with('<') {
            let end = if mark == "<form" {
                "</form>"
            } else {
                "</script>"
            };
            if mark == "<form" && is_timeline {
                out.push_str(mark);
            } else {
                rest = rest.split_once(end).map_or("", |(_, rest)| rest);
            }
            continue;
        }
        let (value, after) = rest.split_once('"').unwrap_or((rest, ""));
        rest = after;
        match mark {
            " id=\"" if is_timeline => out.push_str(&format!(" id=\"{value}\"")),
            " id=\"" => out.push_str(&format!(" id=\"p/{path}:{value}\"")),
            " href=\"" => {
                if let Some(to) = target(value, path, base, known) {
                    out.push_str(&format!(" href=\"#{to}\""));
                }
            }
            " data-api=\"" => out.push_str(" data-api=\"\""),
            other => {
                let (part, _) = split(value);
                let part = part.strip_prefix(base).unwrap_or_default();
                out.push_str(&format!("{other}#p{part}\""));
            }
        }
    }
    out.push_str(rest);
    out
}

/// The place in the file of an address; absent where the file does not have it.
fn target(address: &str, path: &str, base: &str, known: &BTreeSet<String>) -> Option<String> {
    let (to, place) = split(address);
    if to.is_empty() {
        // A place of the page itself; other parameters need the server.
        let place = place.filter(|_| address.starts_with('#'))?;
        return Some(format!("p/{path}:{place}"));
    }
    let part = to.strip_prefix(base)?.trim_start_matches('/');
    known.contains(part).then(|| format!("p/{part}"))
}

#[cfg(test)]
mod tests;
