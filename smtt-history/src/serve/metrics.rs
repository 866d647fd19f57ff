//! `/metrics`: the findings of applications that were opened lately, as Prometheus reads them, with the names and labels of
//! the daemons' findings where these fit. A scrape opens no application.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use smtt_model::advise::{Saving, Severity};

use super::routes::{CountedText, finished, respond};
use super::{Refusal, Server};
use crate::advise::advise;
use crate::advise::workers::Figures;
use crate::event::shortened;
use crate::open::App;
use crate::timeline::memory::read;
use crate::workers::Files;

/// Applications of a scrape at most, and how long one is shown after it was last opened.
const APPLICATIONS: (u64, Duration) = (100, Duration::from_secs(3600));
/// Time of a scrape in which it looks for findings: those of further applications come with later scrapes.
const TIME: Duration = Duration::from_secs(1);
/// Characters of an application's name.
const NAME: usize = 300;

/// Findings of one rule and severity: their number, and what they save together.
type Same = BTreeMap<(&'static str, &'static str), (u64, Saving)>;

/// State of an application's tables, and that of the workers' files.
type Key = ((PathBuf, (u64, i64)), u64);

/// What the endpoint remembers.
pub(super) struct Recent {
    /// Applications that were opened lately, by their names in the cache.
    opened: Cache<String, ()>,
    /// Findings by the application's name, with the state of what they come from.
    found: Cache<String, (Key, Arc<Same>)>,
}

impl Default for Recent {
    fn default() -> Self {
        let opened = Cache::builder()
            .max_capacity(APPLICATIONS.0)
            .eviction_policy(EvictionPolicy::lru())
            .time_to_idle(APPLICATIONS.1);
        let found = Cache::builder().max_capacity(APPLICATIONS.0 * 2);
        Self {
            opened: opened.build(),
            found: found.eviction_policy(EvictionPolicy::lru()).build(),
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

    /// Findings of an application: the last ones that are known where there is no time to look for others, or where its
    /// tables are others now. Then the next question about it opens it again.
    fn of(&self, server: &Server, name: &str, app: &App, has_time: bool) -> Option<Arc<Same>> {
        let last = self.found.get(name);
        if !app.is_current() {
            return last.map(|(_, all)| all);
        }
        let files = Files::of(&server.settings.store, app.identity(), None, None);
        let state = files.as_ref().map_or(0, read::state);
        let key = (app.state_key(), state);
        let is_same = last.as_ref().is_some_and(|(known, _)| *known == key);
        if is_same || !has_time {
            return last.map(|(_, all)| all);
        }
        // Without the workers' half the rules take bounds that are wider.
        let figures = files.map_or_else(|_| Figures::default(), |files| Figures::read(&files));
        let advice = advise(app, figures).ok()?;
        let mut all = Same::new();
        for finding in advice.findings {
            let severity = Severity::word(finding.severity);
            let (count, saving) = all.entry((finding.rule, severity)).or_default();
            *count += 1;
            saving.add(&finding.saving);
        }
        let all = Arc::new(all);
        self.found.insert(name.to_owned(), (key, Arc::clone(&all)));
        Some(all)
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

/// The text of a scrape.
fn text(server: &Server) -> String {
    let begun = Instant::now();
    let open: HashMap<Arc<String>, Arc<App>> = server.cache.iter().collect();
    let recent = server.recent.opened.iter();
    let mut all: Vec<(Arc<String>, Arc<App>)> = recent
        .filter_map(|(name, ())| open.get(&*name).map(|app| (name, Arc::clone(app))))
        .collect();
    all.sort_by(|left, right| left.0.cmp(&right.0));
    let (mut findings, mut savings, mut unknown) = (String::new(), String::new(), 0);
    let count = all.len();
    for (own, app) in all {
        let has_time = begun.elapsed() < TIME;
        let Some(found) = server.recent.of(server, &own, &app, has_time) else {
            unknown += 1;
            continue;
        };
        let (id, name) = (quoted(app.id()), name(&app));
        let attempt = app.attempt().map(quoted);
        let attempt = attempt.map_or_else(String::new, |it| {
            format!(",application_attempt_id=\"{it}\"")
        });
        for ((rule, severity), (count, saving)) in &*found {
            let labels = format!(
                "rule=\"{rule}\",severity=\"{severity}\",application_id=\"{id}\",application_name=\"{name}\"{attempt}"
            );
            let _ = writeln!(findings, "smtt_finding{{{labels}}} {count}");
            for (end, seconds) in [
                ("low", saving.low),
                ("expected", saving.expected),
                ("high", saving.high),
            ] {
                let _ = writeln!(
                    savings,
                    "smtt_finding_saving_seconds{{{labels},end=\"{end}\"}} {seconds}"
                );
            }
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
            format!("smtt_history_applications_recent {count}\n"),
        ),
        (
            "smtt_history_applications_unchecked",
            "Those of smtt_history_applications_recent whose findings are not known yet: a scrape looks for some of them",
            format!("smtt_history_applications_unchecked {unknown}\n"),
        ),
        (
            "smtt_finding",
            "Findings of smtt-history advise with these labels (docs/HISTORY.md), of recent applications",
            findings,
        ),
        (
            "smtt_finding_saving_seconds",
            "Seconds that the remedies of these findings would save: expected, and the low and high end of their interval",
            savings,
        ),
    ]
    .into_iter()
    .filter(|(_, _, series)| !series.is_empty())
    .map(|(name, help, series)| format!("# HELP {name} {help}\n# TYPE {name} gauge\n{series}"))
    .collect()
}

/// Answers a scrape.
pub(super) async fn metrics(State(server): State<Arc<Server>>) -> Response {
    let turn = server.turn().await;
    let made = turn.map(|turn| {
        let server = Arc::clone(&server);
        tokio::task::spawn_blocking(move || (Ok::<_, Refusal>(text(&server)), turn))
    });
    let (text, _turn) = finished(made).await;
    let text = match text {
        Ok(text) => CountedText::bytes(text, &server.bodies).await,
        Err(refusal) => Err(refusal),
    };
    match text {
        Ok(text) => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(refusal) => respond(Err(refusal)),
    }
}

#[cfg(test)]
mod tests {
    use crate::made::{Made, Stage, Task};
    use crate::pages::tests::{HOSTILE, Site, log};

    /// An application with one task that is far longer than the others.
    fn sick(id: &str) -> String {
        let mut tasks = vec![Task::new(2000, 1_000_000); 64];
        tasks[40].run = 60_000;
        let mut made = Made::new(id, vec![Stage::new("map", tasks)]);
        made.name = format!("{HOSTILE}\n\\");
        made.log().0
    }

    #[tokio::test]
    async fn findings_of_opened_applications_are_series_and_a_scrape_opens_none() {
        let site = Site::new(&[sick("app-1"), sick("app-2"), log("app-3", "")]);
        let (status, _, text) = site.get("/metrics").await;
        assert_eq!(status.as_u16(), 200);
        assert!(
            text.contains("smtt_history_applications_recent 0\n"),
            "{text}"
        );
        assert!(!text.contains("smtt_finding"), "{text}");
        // Of those that were opened, by any path.
        site.get("/applications/app-1/jobs").await;
        site.get("/api/v1/applications/app-3/stages").await;
        let (_, _, text) = site.get("/metrics").await;
        assert!(
            text.contains("smtt_history_applications_recent 2\n"),
            "{text}"
        );
        assert!(
            text.contains("smtt_history_applications_unchecked 0\n"),
            "{text}"
        );
        let found = |name: &str| -> Vec<&str> {
            let all = text.lines().filter(|line| line.starts_with(name));
            all.collect()
        };
        let name = "<script>alert(1)</script>\\\\\\\" onx='&amp;\\n\\\\";
        let labels = format!("application_id=\"app-1\",application_name=\"{name}\"");
        let one = found("smtt_finding{rule=\"skew\",severity=\"high\"");
        assert_eq!(one.len(), 1, "{text}");
        assert!(
            one[0].contains(&labels) && one[0].ends_with("} 1"),
            "{text}"
        );
        // As the findings of the REST API say.
        let (_, _, json) = site.get("/smtt/v1/applications/app-1/advice").await;
        let json: serde_json::Value = serde_json::from_str(&json).expect("is JSON");
        let saving = &json["findings"][0]["saving"];
        assert_eq!(json["findings"][0]["rule"], "skew");
        for end in ["low", "expected", "high"] {
            let series = found("smtt_finding_saving_seconds{rule=\"skew\"");
            let series = series
                .iter()
                .find(|it| it.contains(&format!("end=\"{end}\"}}")));
            let value = series
                .and_then(|it| it.rsplit(' ').next())
                .expect("is a series");
            let value: f64 = value.parse().expect("is a number");
            assert!(
                (value - saving[end].as_f64().unwrap_or(-1.0)).abs() < 1e-9,
                "{end}: {text}"
            );
        }
        assert!(!text.contains("app-2"), "{text}");
        assert!(
            !text.contains("smtt_finding{rule=\"skew\",severity=\"high\",application_id=\"app-3\""),
            "{text}"
        );
    }
    #[tokio::test]
    async fn what_is_known_of_an_application_stays_until_it_is_opened_again() {
        let site = Site::new(&[sick("app-1")]);
        site.get("/api/v1/applications/app-1/jobs").await;
        let (_, _, text) = site.get("/metrics").await;
        assert!(text.contains("smtt_finding{rule=\"skew\""), "{text}");
        // Its log went on, and nothing is late any more.
        let healthy = Made::new(
            "app-1",
            vec![Stage::new("map", vec![Task::new(2000, 1); 64])],
        );
        site.replace(&healthy.log().0);
        let (_, _, text) = site.get("/metrics").await;
        assert!(text.contains("smtt_finding{rule=\"skew\""), "{text}");
        site.get("/api/v1/applications/app-1/jobs").await;
        let (_, _, text) = site.get("/metrics").await;
        assert!(!text.contains("rule=\"skew\""), "{text}");
        assert!(
            text.contains("smtt_history_applications_unchecked 0\n"),
            "{text}"
        );
    }
}
