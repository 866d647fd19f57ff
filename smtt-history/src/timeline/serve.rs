//! Answers of the time line: `/smtt/v1/applications/ID/timeline` and `.../tasks/TASK`. That of its memory is in
//! [`super::memory::serve`].

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use axum::routing::get;
use serde::Serialize;
use serde_json::Value;

use super::detail::{Detail, LANES, Window, detail};
use super::filter::Filter;
use super::model::Model;
use super::task;
use crate::open::App;
use crate::serve::routes::{Answer, Parameters, Raw, age_ms, work};
use crate::serve::{Refusal, Server};

/// Routes of the time line's data.
pub(crate) fn routes() -> Router<Arc<Server>> {
    Router::new()
        .route("/smtt/v1/applications/{id}/timeline", get(timeline))
        .route(
            "/smtt/v1/applications/{id}/timeline/memory",
            get(super::memory::serve::memory),
        )
        .route("/smtt/v1/applications/{id}/tasks/{task}", get(one))
}

impl Server {
    /// The model of an application, from the cache or the table.
    pub(crate) fn timeline(&self, app: &App) -> Result<Arc<Model>, Refusal> {
        let read = || Model::read(app).map(Arc::new).map_err(Refusal::failed);
        let made = self.timelines.try_get_with(app.state_key(), read);
        made.map_err(|refusal| (*refusal).clone())
    }
}

fn attempt(parameters: &Parameters) -> Option<String> {
    parameters.one("attempt").map(str::to_owned)
}

async fn timeline(
    State(server): State<Arc<Server>>,
    Path(id): Path<String>,
    Query(parameters): Raw,
) -> Response {
    let parameters = Parameters(parameters);
    let models = Arc::clone(&server);
    work(server, id, attempt(&parameters), move |app| {
        answer(&*models.timeline(app)?, &parameters, age_ms(app))
    })
    .await
}

/// The window that parameters name, else the whole application.
pub(crate) fn window(model: &Model, parameters: &Parameters) -> Result<Window, Refusal> {
    let size = |number: i64| usize::try_from(number).unwrap_or(0);
    let window = Window {
        from: parameters.number("from", 0)?,
        to: parameters.number("to", i64::MAX)?,
        lane: size(parameters.number("lane", 0)?),
        lanes: size(parameters.number("lanes", LANES as i64)?),
        width: parameters.number("width", 1000)?,
    };
    Ok(window.within(model))
}

/// A window, and how old it is.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Dated<'a> {
    #[serde(flatten)]
    detail: Detail<'a>,
    /// Milliseconds since the log last changed; absent where the application has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    age_ms: Option<u64>,
}

fn answer(model: &Model, parameters: &Parameters, age_ms: Option<u64>) -> Answer {
    let detail = detail(
        model,
        &window(model, parameters)?,
        &Filter::new(parameters)?,
    );
    serde_json::to_string(&Dated { detail, age_ms }).map_err(Refusal::failed)
}

async fn one(
    State(server): State<Arc<Server>>,
    Path((id, task)): Path<(String, String)>,
    Query(parameters): Raw,
) -> Response {
    let models = Arc::clone(&server);
    let attempt = attempt(&Parameters(parameters));
    work(server, id, attempt, move |app| {
        Ok(describe(app, &*models.timeline(app)?, &task)?.to_string())
    })
    .await
}

/// The task that an id names.
pub(crate) fn describe(app: &App, model: &Model, id: &str) -> Result<Value, Refusal> {
    let found = id.parse().ok().and_then(|id| task::find(model, id));
    let found = found.ok_or_else(|| Refusal::not_found(format!("unknown task: {id}")))?;
    task::describe(app, model, found).map_err(Refusal::failed)
}
