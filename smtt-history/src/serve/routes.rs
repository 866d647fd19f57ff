//! Paths of the REST API, as Spark's history server has them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use smtt_store::history::place;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

use super::{BODY_KIB, Refusal, Server, applications, failed, metrics, stages, tasks, workers};
use crate::open::App;
use crate::out::Kind;

/// Attempts of an application that are looked up by their names.
const ATTEMPTS: u32 = 16;

/// Parameters of a request, in their order.
pub(crate) struct Parameters(pub Vec<(String, String)>);

impl Parameters {
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let named = self.0.iter().filter(move |(key, _)| key == name);
        named.map(|(_, value)| value.as_str())
    }

    pub(crate) fn one<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).next()
    }

    pub(crate) fn flag(&self, name: &str, default: bool) -> bool {
        self.one(name)
            .map_or(default, |value| value.eq_ignore_ascii_case("true"))
    }

    pub(crate) fn number(&self, name: &str, default: i64) -> Result<i64, Refusal> {
        self.one(name).map_or(Ok(default), |value| {
            value
                .parse()
                .map_err(|_| Refusal::not_found(format!("{name} is no number: {value:?}")))
        })
    }
}

/// The Spark whose REST API this is. Clients read the version to know which fields to expect.
const SPARK: &str = "4.0.5";

/// JSON text, or a refusal.
pub(crate) type Answer = Result<String, Refusal>;

/// Routes of the REST API, of the time line, of the pages and of the metrics.
pub fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route("/api/v1/version", get(version))
        .route("/api/v1/applications", get(list))
        .route("/api/v1/applications/{id}", get(one))
        .route("/api/v1/applications/{id}/{*rest}", get(part))
        .route("/metrics", get(metrics::metrics))
        .route("/smtt/v1/applications/{id}/import", get(import))
        .merge(crate::timeline::serve::routes())
        .merge(crate::pages::routes())
        .route("/smtt/v1/applications/{id}/{*rest}", get(workers::part))
        .fallback(async || StatusCode::NOT_FOUND)
        .with_state(server)
}

async fn version() -> Response {
    respond(Ok(Bytes::from(
        json!({"spark": SPARK, "smtt": env!("CARGO_PKG_VERSION")}).to_string(),
    )))
}

/// Number of applications that the list had no room for, whatever its filter.
const LEFT_OUT: HeaderName = HeaderName::from_static("x-smtt-applications-left-out");

pub(crate) type Raw = Query<Vec<(String, String)>>;

async fn list(State(server): State<Arc<Server>>, Query(parameters): Raw) -> Response {
    let told = Arc::new(AtomicU64::new(0));
    let left_out = Arc::clone(&told);
    let listed = {
        let ready = match server.listing().await {
            Ok(listing) => server.turn().await.map(|turn| (listing, turn)),
            Err(refusal) => Err(refusal),
        };
        ready.map(|(listing, turn)| {
            tokio::task::spawn_blocking(move || {
                let list = applications::list(&listing, &Parameters(parameters));
                left_out.store(listing.left_out(), Ordering::Relaxed);
                (list, turn)
            })
        })
    };
    let mut response = finish(&server, listed).await;
    let left_out = told.load(Ordering::Relaxed);
    if left_out > 0 {
        response.headers_mut().insert(LEFT_OUT, left_out.into());
    }
    response
}

/// The application with all its attempts. A cluster manager that counts attempts counts from 1.
async fn one(State(server): State<Arc<Server>>, Path(id): Path<String>) -> Response {
    respond(match attempts(&server, &id).await {
        Ok(all) => Ok(Bytes::from(applications::merged(all).to_string())),
        Err(refusal) => Err(refusal),
    })
}

pub(crate) async fn attempts(server: &Arc<Server>, id: &str) -> Result<Vec<Value>, Refusal> {
    let mut all = Vec::new();
    let mut unknown = None;
    for number in 0..=ATTEMPTS {
        let attempt = (number > 0).then(|| number.to_string());
        match server.app(id, attempt.as_deref()).await {
            Ok((app, _turn)) => all.push(application(&app)?),
            Err(refusal) if refusal.0 == StatusCode::NOT_FOUND => {
                unknown.get_or_insert(refusal);
            }
            Err(refusal) => return Err(refusal),
        }
    }
    match unknown {
        Some(refusal) if all.is_empty() => Err(refusal),
        _ => Ok(all),
    }
}

/// The application's own document.
pub(crate) fn application(app: &App) -> Result<Value, Refusal> {
    let text = app.all(Kind::Application).first();
    let text = text.ok_or_else(|| Refusal::failed("the tables have no application"))?;
    serde_json::from_str(&text.1).map_err(Refusal::failed)
}

/// Milliseconds since the log of an application that runs last changed; absent where it has ended.
pub(crate) fn age_ms(app: &App) -> Option<u64> {
    let json = application(app).ok()?;
    let attempt = &json["attempts"][0];
    if attempt["completed"] == true {
        return None;
    }
    let changed = attempt["lastUpdatedEpoch"].as_u64().unwrap_or_default();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX));
    Some(now.saturating_sub(changed))
}

/// How the import went, and tables that the bucket's pointer names and that do not exist.
async fn import(
    State(server): State<Arc<Server>>,
    Path(id): Path<String>,
    Query(parameters): Raw,
) -> Response {
    let parameters = Parameters(parameters);
    let attempt = parameters.one("attempt").map(str::to_owned);
    let bucket = server.settings.bucket.clone();
    let missing = bucket.zip(place::name(&id, attempt.as_deref()));
    work(server, id, attempt, move |app| {
        let text = app.one(Kind::Import, "");
        let text =
            text.ok_or_else(|| Refusal::failed("the tables do not say how they were imported"))?;
        let missing = missing.map(|(bucket, name)| bucket.missing(&name));
        let Some(missing) = missing.filter(|it| !it.is_empty()) else {
            return Ok(text.to_owned());
        };
        let mut json: Value = serde_json::from_str(text).map_err(Refusal::failed)?;
        if let Value::Object(fields) = &mut json {
            fields.insert("missingTables".to_owned(), missing.into());
        }
        Ok(json.to_string())
    })
    .await
}

async fn part(
    State(server): State<Arc<Server>>,
    Path((id, rest)): Path<(String, String)>,
    Query(parameters): Raw,
) -> Response {
    let is_part = |name: &str| {
        matches!(
            name,
            "jobs"
                | "stages"
                | "executors"
                | "allexecutors"
                | "allmiscellaneousprocess"
                | "storage"
                | "sql"
                | "environment"
        )
    };
    let (attempt, part) = match rest.split_once('/') {
        _ if is_part(rest.split('/').next().unwrap_or_default()) => (None, rest),
        Some((attempt, part)) => (Some(attempt.to_owned()), part.to_owned()),
        None => (Some(rest), String::new()),
    };
    work(server, id, attempt, move |app| {
        if part.is_empty() {
            return Ok(application(app)?["attempts"][0].to_string());
        }
        let path: Vec<&str> = part.split('/').collect();
        answer(app, &path, &Parameters(parameters))
    })
    .await
}

/// The part of an application that a path names.
fn answer(app: &App, path: &[&str], parameters: &Parameters) -> Answer {
    match path {
        ["jobs"] => {
            let jobs = app
                .all(Kind::Job)
                .iter()
                .rev()
                .map(|(_, text)| text.as_str());
            filtered(jobs, "status", &JOB_STATUSES, parameters)
        }
        ["jobs", id] => app
            .one(Kind::Job, id)
            .map(str::to_owned)
            .ok_or_else(|| Refusal::not_found(format!("unknown job: {id}"))),
        ["stages"] => stages::list(app, parameters),
        ["stages", "failedTasks"] => failed::tasks(app, parameters),
        ["stages", id] => stages::attempts(app, id, parameters),
        ["stages", id, attempt] => stages::one(app, id, attempt, parameters),
        ["stages", id, attempt, "taskSummary"] => stages::summary(app, id, attempt, parameters),
        ["stages", id, attempt, "executorSummary"] => {
            failed::executors(app, id, attempt, parameters)
        }
        ["stages", id, attempt, "taskList"] => tasks::list(app, id, attempt, parameters),
        ["executors"] => {
            // Spark reads them from the end of its index.
            selected(app.all(Kind::Executor).iter().rev(), |executor| {
                executor["isActive"] == true
            })
        }
        ["allexecutors"] => Ok(joined(
            app.all(Kind::Executor)
                .iter()
                .map(|(_, text)| text.as_str()),
        )),
        ["storage", "rdd"] => selected(app.all(Kind::Rdd).iter(), |rdd| {
            rdd["numCachedPartitions"].as_u64() > Some(0)
        }),
        ["storage", "rdd", id] => app
            .one(Kind::Rdd, id)
            .map(str::to_owned)
            .ok_or_else(|| Refusal::not_found(format!("no rdd found w/ id {id}"))),
        // Spark's list of processes beside the executors, which only its application master on YARN makes.
        ["allmiscellaneousprocess"] => Ok("[]".to_owned()),
        ["sql"] => sql(app, parameters),
        ["sql", id] => {
            let text = app.one(Kind::Sql, id);
            let text = text
                .ok_or_else(|| Refusal::not_found(format!("unknown query execution id: {id}")))?;
            Ok(execution(text, parameters)?.to_string())
        }
        ["environment"] => app
            .one(Kind::Environment, "")
            .map(str::to_owned)
            .ok_or_else(|| Refusal::not_found("the log has no environment")),
        _ => Err(Refusal::not_found("no such path")),
    }
}

fn sql(app: &App, parameters: &Parameters) -> Answer {
    let (offset, length) = (
        parameters.number("offset", 0)?,
        parameters.number("length", 20)?,
    );
    let size = |number: i64| usize::try_from(number).unwrap_or(0);
    let page = app
        .all(Kind::Sql)
        .iter()
        .skip(size(offset))
        .take(size(length));
    let page: Result<Vec<Value>, Refusal> =
        page.map(|(_, text)| execution(text, parameters)).collect();
    Ok(Value::from(page?).to_string())
}

/// An execution without what was not asked for.
fn execution(text: &str, parameters: &Parameters) -> Result<Value, Refusal> {
    let mut json: Value = serde_json::from_str(text).map_err(Refusal::failed)?;
    if let Value::Object(fields) = &mut json {
        fields.shift_remove("details");
        if !parameters.flag("details", true) {
            fields.insert("nodes".to_owned(), json!([]));
            fields.insert("edges".to_owned(), json!([]));
        }
        if !parameters.flag("planDescription", true) {
            fields.insert("planDescription".to_owned(), json!(""));
        }
    }
    Ok(json)
}

/// Documents that fulfil a condition, as a list. One at a time is parsed.
fn selected<'a>(
    all: impl Iterator<Item = &'a (String, String)>,
    has: impl Fn(&Value) -> bool,
) -> Answer {
    let mut texts = Vec::new();
    for (_, text) in all {
        if has(&serde_json::from_str(text).map_err(Refusal::failed)?) {
            texts.push(text.as_str());
        }
    }
    Ok(joined(texts.into_iter()))
}

/// Documents as a list, without parsing them. The list has its length from the start: a text that grows may take twice as
/// much.
pub(super) fn joined<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let texts: Vec<&str> = texts.collect();
    let bytes = texts.iter().map(|text| text.len() + 1).sum::<usize>();
    let mut all = String::with_capacity(bytes + 2);
    all.push('[');
    for (at, text) in texts.into_iter().enumerate() {
        if at > 0 {
            all.push(',');
        }
        all.push_str(text);
    }
    all.push(']');
    all
}

/// Values of a job's status.
const JOB_STATUSES: [&str; 4] = ["RUNNING", "SUCCEEDED", "FAILED", "UNKNOWN"];

/// Values of a parameter that has known ones, in capitals. As in Spark another one is not found.
pub(super) fn known(
    parameters: &Parameters,
    parameter: &str,
    values: &[&'static str],
) -> Result<Vec<&'static str>, Refusal> {
    let wanted = parameters.all(parameter).map(|wanted| {
        let mut values = values.iter();
        let value = values.find(|value| value.eq_ignore_ascii_case(wanted));
        value
            .copied()
            .ok_or_else(|| Refusal::not_found(format!("unknown value of {parameter}: {wanted:?}")))
    });
    wanted.collect()
}

/// Documents whose field has one of the values of the parameter `status`; all where it is not given.
pub(super) fn filtered<'a>(
    texts: impl Iterator<Item = &'a str>,
    field: &str,
    values: &[&'static str],
    parameters: &Parameters,
) -> Answer {
    let wanted = known(parameters, "status", values)?;
    if wanted.is_empty() {
        return Ok(joined(texts));
    }
    let mut kept = Vec::new();
    for text in texts {
        let json: Value = serde_json::from_str(text).map_err(Refusal::failed)?;
        if wanted.contains(&json[field].as_str().unwrap_or_default()) {
            kept.push(text);
        }
    }
    Ok(joined(kept.into_iter()))
}

/// An answer that a thread is making. The thread has the permit of the request, and returns it with the answer.
pub(crate) type Pending<T> = JoinHandle<(Result<T, Refusal>, OwnedSemaphorePermit)>;

/// Makes an answer from an application, on a thread that may read files.
pub(crate) async fn work(
    server: Arc<Server>,
    id: String,
    attempt: Option<String>,
    make: impl FnOnce(&App) -> Answer + Send + 'static,
) -> Response {
    let opened = server.app(&id, attempt.as_deref()).await;
    let made = opened
        // The permit is with the work, which goes on when the client has gone.
        .map(|(app, turn)| tokio::task::spawn_blocking(move || (make(&app), turn)));
    finish(&server, made).await
}

/// Waits for an answer, and keeps its permit until the text has room among those that wait for their readers.
pub(crate) async fn finish(server: &Server, made: Result<Pending<String>, Refusal>) -> Response {
    let (answer, _turn) = finished(made).await;
    respond(match answer {
        Ok(text) => CountedText::bytes(text, &server.bodies).await,
        Err(refusal) => Err(refusal),
    })
}

/// Waits for an answer. The caller drops the permit when the text is counted.
pub(crate) async fn finished<T>(
    made: Result<Pending<T>, Refusal>,
) -> (Result<T, Refusal>, Option<OwnedSemaphorePermit>) {
    let made = match made {
        Ok(made) => made.await.map_err(Refusal::failed),
        Err(refusal) => Err(refusal),
    };
    match made {
        Ok((answer, turn)) => (answer, Some(turn)),
        Err(refusal) => (Err(refusal), None),
    }
}

/// Text of an answer. It counts towards the bytes of all answers until the last byte is written.
pub(crate) struct CountedText {
    text: String,
    _room: OwnedSemaphorePermit,
}

impl CountedText {
    pub(crate) async fn bytes(text: String, bodies: &Arc<Semaphore>) -> Result<Bytes, Refusal> {
        let kib = u32::try_from(text.len() >> 10).unwrap_or(u32::MAX);
        let room = Arc::clone(bodies).acquire_many_owned(kib.clamp(1, BODY_KIB));
        let _room = room.await.map_err(Refusal::failed)?;
        Ok(Bytes::from_owner(Self { text, _room }))
    }
}

impl AsRef<[u8]> for CountedText {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

pub(super) fn respond(answer: Result<Bytes, Refusal>) -> Response {
    match answer {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(Refusal(status, text)) => {
            let kind = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
            let mut response = (status, kind, text).into_response();
            if status == StatusCode::SERVICE_UNAVAILABLE {
                let seconds = HeaderValue::from_static("5");
                response.headers_mut().insert(header::RETRY_AFTER, seconds);
            }
            response
        }
    }
}
