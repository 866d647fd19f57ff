//! The answer `/smtt/v1/applications/ID/timeline/memory`.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::Response;

use super::cells::{Answer, CELLS, answer};
use super::parts::{ALL, By};
use super::{Memory, read};
use crate::open::App;
use crate::serve::routes::{Parameters, Raw, work};
use crate::serve::{Refusal, Server};
use crate::timeline::model::Model;
use crate::timeline::serve::window;
use crate::workers::{Files, Trouble};

impl Server {
    /// The memory of an application over time, from the cache or the workers' files.
    pub(crate) fn memory(
        &self,
        app: &App,
        model: &Model,
        parameters: &Parameters,
    ) -> Result<Arc<Memory>, Refusal> {
        let user = parameters.one("user").map(str::parse).transpose();
        let user = user.map_err(|_| Refusal::bad("user is no number"))?;
        let files = Files::of(
            &self.settings.store,
            app.identity(),
            user,
            parameters.one("host"),
        )?;
        let key = (app.state_key(), read::state(&files));
        let read = || -> Result<Arc<Memory>, Refusal> {
            let memory = read::read(&files, app, model)
                .map_err(|trouble: Trouble| Refusal::from(trouble))?;
            Ok(Arc::new(memory))
        };
        let made = self.memories.try_get_with(key, read);
        made.map_err(|refusal| (*refusal).clone())
    }
}

/// By what a question divides.
pub(crate) fn by(parameters: &Parameters) -> Result<By, Refusal> {
    let name = parameters.one("by").unwrap_or("rdd");
    By::named(name).ok_or_else(|| {
        let known: Vec<&str> = ALL.iter().map(|(_, name, _)| *name).collect();
        Refusal::bad(format!("by is one of {}, not {name:?}", known.join(", ")))
    })
}

/// The executor of a question.
pub(crate) fn executor<'a>(
    memory: &'a Memory,
    parameters: &Parameters,
) -> Result<Option<&'a str>, Refusal> {
    let Some(id) = parameters.one("executor").filter(|id| !id.is_empty()) else {
        return Ok(None);
    };
    let found = memory
        .histories
        .iter()
        .find(|history| history.executor == id);
    let found = found.map(|history| Some(history.executor.as_str()));
    found.ok_or_else(|| {
        Refusal::not_found(format!(
            "no worker has written the memory of executor {id} over time"
        ))
    })
}

/// The answer to the parameters of a question, of at most `most` cells.
pub(crate) fn asked<'a>(
    memory: &'a Memory,
    model: &Model,
    parameters: &Parameters,
    most: i64,
) -> Result<Answer<'a>, Refusal> {
    let window = window(model, parameters)?;
    let executor = executor(memory, parameters)?;
    Ok(answer(
        memory,
        model,
        &window,
        (by(parameters)?, executor, most),
    ))
}

/// Serves the answer.
pub(crate) async fn memory(
    State(server): State<Arc<Server>>,
    Path(id): Path<String>,
    Query(parameters): Raw,
) -> Response {
    let parameters = Parameters(parameters);
    let attempt = parameters.one("attempt").map(str::to_owned);
    let models = Arc::clone(&server);
    work(server, id, attempt, move |app| {
        let model = models.timeline(app)?;
        let memory = models.memory(app, &model, &parameters)?;
        let answer = asked(&memory, &model, &parameters, CELLS)?;
        serde_json::to_string(&answer).map_err(Refusal::failed)
    })
    .await
}
