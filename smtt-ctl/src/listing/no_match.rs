//! The message where nothing matches: which condition excludes all rows, and what there is instead.

use serde_json::{Map, Value};
use smtt_model::protocol::ListQuery;

use super::Rows;
use crate::client::Client;
use crate::table::cut;
use crate::{Failure, users};

/// Rows that are asked for to name what there is.
const ASKED: usize = 1000;
/// Names in a message.
const NAMED: usize = 8;
/// Columns of one name.
const NAME: usize = 40;

/// A condition: how to set it, its words, and where its values are.
struct Condition {
    words: String,
    set: fn(&mut ListQuery, &ListQuery),
    /// Path and field of the possible values, and the field of their names.
    values: Option<(&'static str, &'static str, &'static str)>,
}

/// The failure of a query that selects no row of a listing. `what` are the rows.
pub(crate) async fn no_match(
    client: &Client,
    path: &'static str,
    what: &str,
    question: &ListQuery,
) -> Failure {
    match said(client, path, what, question).await {
        Ok(said) => Failure::Nothing(said),
        Err(failure) => failure,
    }
}

async fn said(
    client: &Client,
    path: &'static str,
    what: &str,
    question: &ListQuery,
) -> Result<String, Failure> {
    let mut held = ListQuery {
        limit: Some(1),
        ..ListQuery::default()
    };
    if is_empty(client, path, &held).await? {
        let wanted = words(path, question);
        return Ok(format!("no {what} match {wanted}: there are no {what}"));
    }
    for condition in conditions(path, question) {
        let before = held.clone();
        (condition.set)(&mut held, question);
        if !is_empty(client, path, &held).await? {
            continue;
        }
        let there = match condition.values {
            Some((path, field, name)) => {
                let asked = ListQuery {
                    limit: Some(ASKED),
                    ..before
                };
                let listing: Rows = client.ask(path, &asked).await?;
                values(&listing.rows, field, name)
            }
            None => String::new(),
        };
        let wanted = words(path, &held);
        return Ok(format!("no {what} match {wanted}{there}"));
    }
    Ok(format!("no {what} match {}", words(path, question)))
}

async fn is_empty(client: &Client, path: &str, question: &ListQuery) -> Result<bool, Failure> {
    let listing: Rows = client.ask(path, question).await?;
    Ok(listing.rows.is_empty())
}

fn words(path: &'static str, question: &ListQuery) -> String {
    let words = conditions(path, question).into_iter();
    words
        .map(|condition| condition.words)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Conditions of a query, the widest first.
fn conditions(path: &'static str, question: &ListQuery) -> Vec<Condition> {
    const EXECUTORS: &str = "/v1/executors";
    let own = |listing: &[&str], other: &'static str| {
        if listing.contains(&path) { path } else { other }
    };
    let stages = own(
        &["/v1/tasks", "/v1/tasks/failed", "/v1/blocks"],
        "/v1/stages",
    );
    let rdds = own(&["/v1/blocks", "/v1/pages", "/v1/pages/blocks"], "/v1/rdds");
    let mut all: Vec<Condition> = Vec::new();
    let mut add = |name: &str, value: Option<String>, set, values| {
        if let Some(value) = value {
            let words = format!("--{name} {value}");
            all.push(Condition { words, set, values });
        }
    };
    add(
        "app",
        question.app.clone(),
        |held, asked| held.app.clone_from(&asked.app),
        Some((EXECUTORS, "application_id", "application_name")),
    );
    add(
        "user",
        question.user.map(users::name),
        |held, asked| held.user = asked.user,
        Some((EXECUTORS, "uid", "")),
    );
    add(
        "executor",
        question.executor.clone(),
        |held, asked| held.executor.clone_from(&asked.executor),
        Some((EXECUTORS, "executor_id", "")),
    );
    add(
        "stage",
        question.stage.clone(),
        |held, asked| held.stage.clone_from(&asked.stage),
        Some((stages, "stage_id", "")),
    );
    add(
        "rdd",
        question.rdd.clone(),
        |held, asked| held.rdd.clone_from(&asked.rdd),
        Some((rdds, "rdd_id", "name")),
    );
    add(
        "task",
        question.task.map(|task| task.to_string()),
        |held, asked| held.task = asked.task,
        Some((path, "task_attempt_id", "")),
    );
    add(
        "block",
        question.block.clone(),
        |held, asked| held.block.clone_from(&asked.block),
        Some((path, "block_id", "")),
    );
    if question.spanning == Some(true) {
        all.push(Condition {
            words: "--spanning".to_owned(),
            set: |held, asked| held.spanning = asked.spanning,
            values: None,
        });
    }
    all
}

/// The distinct values of a field, with their names.
fn values(rows: &[Map<String, Value>], field: &str, name: &str) -> String {
    let mut seen: Vec<String> = Vec::new();
    for row in rows {
        let value = match row.get(field) {
            Some(Value::String(text)) if !text.is_empty() => text.clone(),
            Some(Value::Number(number)) if field == "uid" => {
                let uid = number.as_u64().and_then(|uid| u32::try_from(uid).ok());
                uid.map_or_else(String::new, users::name)
            }
            Some(Value::Number(number)) => number.to_string(),
            _ => continue,
        };
        let named = row.get(name).and_then(Value::as_str).unwrap_or_default();
        let value = match named {
            "" => cut(&value, NAME),
            named => format!("{} ({})", cut(&value, NAME), cut(named, NAME)),
        };
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    let more = match seen.len().saturating_sub(NAMED) {
        0 if rows.len() < ASKED => String::new(),
        0 => " and others".to_owned(),
        more => format!(" and {more} more"),
    };
    seen.truncate(NAMED);
    match seen.is_empty() {
        true => String::new(),
        false => format!("; there are {}{more}", seen.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_named_once_and_counted() {
        let row = |id: u64| json!({"rdd_id": id, "name": if id == 1 { "" } else { "links" }});
        let rows: Vec<Map<String, Value>> = [1, 1, 2]
            .into_iter()
            .chain(3..20)
            .filter_map(|id| row(id).as_object().cloned())
            .collect();
        assert_eq!(
            values(&rows[..3], "rdd_id", "name"),
            "; there are 1, 2 (links)"
        );
        assert!(values(&rows, "rdd_id", "name").ends_with("8 (links) and 11 more"));
        assert_eq!(values(&rows, "block_id", ""), "");
    }
}
