//! `/metrics`: the findings of applications that were opened lately, as Prometheus reads them. A scrape opens no application
//! and looks for no findings: it has what one job in the background knows, which each scrape starts where none runs.

use std::collections::{BTreeMap, HashSet};
use std::fmt::{Display, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use smtt_model::advise::{Saving, Severity};
use smtt_store::read::ParquetError;
use tokio::sync::Semaphore;

use super::routes::{CountedText, finished, respond};
use super::{Refusal, Server};
use crate::advise::workers::Figures;
use crate::advise::{Advice, advise};
use crate::event::shortened;
use crate::open::App;
use crate::timeline::memory::read;
use crate::workers::Files;

/// Applications of a scrape at most, and how long one is shown after it was last opened.
const APPLICATIONS: (u64, Duration) = (100, Duration::from_secs(3600));
/// Pause of the job after each application, in times of what it took: the job takes a fifth of one CPU at most.
const PAUSE: u32 = 4;
/// Characters of an application's name.
const NAME: usize = 300;

/// State of an application's tables, and that of the workers' files.
type Key = ((PathBuf, (u64, i64)), u64);

/// Series of an application, as text.
#[derive(Default)]
struct Series {
    findings: String,
    savings: String,
}

/// What is known of an application.
#[derive(Clone)]
struct Known {
    /// State of what the job looked at last. As long as it is the same, the result would be the same, too.
    key: Key,
    looked: Instant,
    has_failed: bool,
    /// The last ones: a look that fails leaves them.
    series: Option<Arc<Series>>,
}

/// What the endpoint remembers.
pub(super) struct Recent {
    /// Applications that were opened lately, by their names in the cache.
    opened: Cache<String, ()>,
    known: Cache<String, Known>,
    /// Whether the job runs.
    is_looking: AtomicBool,
    /// A scrape is made at a time. It waits for no other answer.
    scrapes: Arc<Semaphore>,
    #[cfg(test)]
    probe: tests::Probe,
}

impl Default for Recent {
    fn default() -> Self {
        let opened = Cache::builder()
            .max_capacity(APPLICATIONS.0)
            .eviction_policy(EvictionPolicy::lru())
            .time_to_idle(APPLICATIONS.1);
        let known = Cache::builder().max_capacity(APPLICATIONS.0 * 2);
        Self {
            opened: opened.build(),
            known: known.eviction_policy(EvictionPolicy::lru()).build(),
            is_looking: AtomicBool::new(false),
            scrapes: Arc::new(Semaphore::new(1)),
            #[cfg(test)]
            probe: tests::Probe::default(),
        }
    }
}

impl Recent {
    /// An application was opened.
    pub(super) fn add(&self, name: &str) {
        if self.opened.get(name).is_none() {
            self.opened.insert(name.to_owned(), ());
        }
    }

    /// Applications that were opened lately and are in memory.
    fn names(&self, server: &Server) -> Vec<Arc<String>> {
        let opened = self.opened.iter().map(|(name, ())| name);
        let mut names: Vec<_> = opened
            .filter(|name| server.cache.contains_key(&**name))
            .collect();
        names.sort_unstable();
        names
    }

    /// The application that the job looked at longest ago, those first that it never looked at; none of `done`.
    fn next(&self, server: &Server, done: &HashSet<Arc<String>>) -> Option<Arc<String>> {
        let names = self.names(server).into_iter();
        names
            .filter(|name| !done.contains(name))
            .min_by_key(|name| self.known.get(&**name).map(|known| known.looked))
    }

    /// Looks for an application's findings, where its files changed since the last look.
    fn look(&self, server: &Server, name: &str) -> Result<(), ParquetError> {
        // Not with `get`, which would keep it in memory.
        let Some((_, app)) = server.cache.iter().find(|(own, _)| **own == name) else {
            return Ok(());
        };
        let files = Files::of(&server.settings.store, app.identity(), None, None);
        let state = files.as_ref().map_or(0, read::state);
        let last = self.known.get(name);
        let mut known = Known {
            key: (app.state_key(), state),
            looked: Instant::now(),
            has_failed: false,
            series: last.as_ref().and_then(|last| last.series.clone()),
        };
        let last = last.filter(|last| last.key == known.key);
        known.has_failed = last.as_ref().is_some_and(|last| last.has_failed);
        // Before the work: a failure, also a panic, is one for this state.
        self.known.insert(name.to_owned(), known.clone());
        if last.is_some() {
            return Ok(());
        }
        // Without the workers' half the rules take bounds that are wider.
        let figures = files.map_or_else(|_| Figures::default(), |files| Figures::read(&files));
        #[cfg(test)]
        self.probe.advises(name);
        let advice = match advise(&app, figures) {
            // The next question about it opens the tables that it has now.
            Err(_) if !app.is_current() => return Ok(()),
            advice => advice?,
        };
        known.series = Some(Arc::new(Series::of(&app, &advice)));
        self.known.insert(name.to_owned(), known);
        Ok(())
    }

    /// The last look at an application failed.
    fn failed(&self, name: &str, error: &dyn Display) {
        tracing::warn!(%error, "no findings of {name} for /metrics");
        if let Some(known) = self.known.get(name) {
            let has_failed = true;
            let known = Known {
                has_failed,
                ..known
            };
            self.known.insert(name.to_owned(), known);
        }
    }
}

/// The job, until it is dropped.
struct Job(Arc<Server>);

impl Drop for Job {
    fn drop(&mut self) {
        self.0.recent.is_looking.store(false, Ordering::Release);
    }
}

impl Job {
    /// Starts the job where none runs.
    fn start(server: &Arc<Server>) {
        if server.recent.is_looking.swap(true, Ordering::AcqRel) {
            return;
        }
        #[cfg(test)]
        server.recent.probe.starts();
        let job = Self(Arc::clone(server));
        tokio::spawn(async move { job.run().await });
    }

    /// Looks at each application once, with pauses. A look has the permit of an answer: it may hold as much.
    async fn run(&self) {
        let mut done = HashSet::new();
        for _ in 0..APPLICATIONS.0 {
            let (server, recent) = (Arc::clone(&self.0), &self.0.recent);
            let Some(name) = recent.next(&server, &done) else {
                return;
            };
            done.insert(Arc::clone(&name));
            let Ok(turn) = server.turn().await else {
                return;
            };
            let begun = Instant::now();
            let own = Arc::clone(&name);
            let look = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                server.recent.look(&server, &own)
            });
            match look.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => recent.failed(&name, &error),
                Err(error) => recent.failed(&name, &error),
            }
            tokio::time::sleep(begun.elapsed() * PAUSE).await;
        }
    }
}

/// A value of a label.
fn quoted(text: &str) -> String {
    let text = shortened(text, NAME, "…");
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// The name that an application gave itself.
fn name(app: &App) -> String {
    let json = super::routes::application(app).ok();
    let name = json.as_ref().and_then(|json| json["name"].as_str());
    quoted(name.unwrap_or_default())
}

impl Series {
    /// Those of the findings of an application.
    fn of(app: &App, advice: &Advice) -> Self {
        // Findings of one rule and severity: their number, and what they save together.
        let mut all: BTreeMap<(&str, &str), (u64, Saving)> = BTreeMap::new();
        for finding in &advice.findings {
            let severity = Severity::word(finding.severity);
            let (count, saving) = all.entry((finding.rule, severity)).or_default();
            *count += 1;
            saving.add(&finding.saving);
        }
        let (id, name) = (quoted(app.id()), name(app));
        let attempt = app.attempt().map(quoted);
        let attempt = attempt.map_or_else(String::new, |it| {
            format!(",application_attempt_id=\"{it}\"")
        });
        let mut series = Self::default();
        for ((rule, severity), (count, saving)) in all {
            let labels = format!(
                "rule=\"{rule}\",severity=\"{severity}\",application_id=\"{id}\",application_name=\"{name}\"{attempt}"
            );
            let findings = &mut series.findings;
            let _ = writeln!(findings, "smtt_history_finding{{{labels}}} {count}");
            for (end, seconds) in [
                ("low", saving.low),
                ("expected", saving.expected),
                ("high", saving.high),
            ] {
                let _ = writeln!(
                    series.savings,
                    "smtt_history_finding_saving_seconds{{{labels},end=\"{end}\"}} {seconds}"
                );
            }
        }
        series
    }
}

/// The text of a scrape.
fn text(server: &Server) -> String {
    let names = server.recent.names(server);
    let mut all = Series::default();
    let (mut failed, mut unchecked) = (0, 0);
    for name in &names {
        let known = server.recent.known.get(&**name);
        let has_failed = known.as_ref().is_some_and(|known| known.has_failed);
        failed += usize::from(has_failed);
        match known.and_then(|known| known.series) {
            Some(series) => {
                all.findings.push_str(&series.findings);
                all.savings.push_str(&series.savings);
            }
            None => unchecked += usize::from(!has_failed),
        }
    }
    let version = env!("CARGO_PKG_VERSION");
    [
        (
            "smtt_history_build_info",
            "The version of this server",
            format!("smtt_history_build_info{{version=\"{version}\"}} 1\n"),
        ),
        (
            "smtt_history_applications_recent",
            "Applications that were opened within the last hour and are still in memory, at most 100",
            format!("smtt_history_applications_recent {}\n", names.len()),
        ),
        (
            "smtt_history_applications_unchecked",
            "Those of smtt_history_applications_recent whose findings are not known yet: a job in the background looks for them",
            format!("smtt_history_applications_unchecked {unchecked}\n"),
        ),
        (
            "smtt_history_applications_failed",
            "Those of smtt_history_applications_recent whose tables could not be read at the last look: findings of before stay",
            format!("smtt_history_applications_failed {failed}\n"),
        ),
        (
            "smtt_history_finding",
            "Findings of smtt-history advise with these labels (docs/HISTORY.md), of recent applications",
            all.findings,
        ),
        (
            "smtt_history_finding_saving_seconds",
            "Seconds that the remedies of these findings would save: expected, and the low and high end of their interval",
            all.savings,
        ),
    ]
    .into_iter()
    .filter(|(_, _, series)| !series.is_empty())
    .map(|(name, help, series)| format!("# HELP {name} {help}\n# TYPE {name} gauge\n{series}"))
    .collect()
}

/// Answers a scrape.
pub(super) async fn metrics(State(server): State<Arc<Server>>) -> Response {
    let turn = Arc::clone(&server.recent.scrapes).acquire_owned().await;
    let made = turn.map_err(Refusal::failed).map(|turn| {
        let server = Arc::clone(&server);
        tokio::task::spawn_blocking(move || (Ok::<_, Refusal>(text(&server)), turn))
    });
    let (text, turn) = finished(made).await;
    Job::start(&server);
    let text = match text {
        Ok(text) => CountedText::bytes(text, &server.bodies).await,
        Err(refusal) => Err(refusal),
    };
    drop(turn);
    match text {
        Ok(text) => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(refusal) => respond(Err(refusal)),
    }
}

#[cfg(test)]
mod tests;
