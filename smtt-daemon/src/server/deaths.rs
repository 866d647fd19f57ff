//! Answers about dead executors.

use axum::Json;
use axum::response::{IntoResponse, Response};
use smtt_model::protocol::ListQuery;

use super::routes::{failed, unknown};
use crate::shared::Shared;

/// The list of deaths.
pub(super) fn deaths(shared: &Shared, query: &ListQuery) -> Response {
    let list = shared.keeper().map(|keeper| keeper.list(query));
    Json(list.unwrap_or_default()).into_response()
}

/// The report of one death, read from the disk.
pub(super) fn death(shared: &Shared, query: &ListQuery) -> Response {
    let found = shared.keeper().map(|keeper| keeper.find(query));
    match found {
        Some(Ok(Some(report))) => Json(&*report).into_response(),
        Some(Err(error)) => failed(&format!("the report cannot be read: {error}")),
        Some(Ok(None)) | None => {
            unknown("no such executor has died here: smtt-ctl postmortem lists those that have")
        }
    }
}
