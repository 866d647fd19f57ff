//! One task attempt: its numbers and where its time went.

use maud::{Markup, html};
use serde_json::Value;

use super::application::framed;
use super::place::Place;
use super::shown::{Cell, cut, facts};
use super::{Asked, Document};
use crate::timeline::serve::describe;

/// Groups of metrics nest twice in the REST API.
fn metrics(value: &Value, prefix: &str, out: &mut Vec<(String, i64)>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let name = if prefix.is_empty() {
            name.clone()
        } else {
            format!("{prefix}.{name}")
        };
        match value.as_i64() {
            Some(number) => out.push((name, number)),
            None => metrics(value, &name, out),
        }
    }
}

pub(super) fn page(asked: &Asked<'_>, id: &str) -> Document {
    let model = asked.server.timeline(asked.app)?;
    let json = describe(asked.app, &model, id)?;
    let task = &json["task"];
    let place = asked.place;
    let stage = format!("stages/{}/{}", json["stageId"], json["stageAttempt"]);
    let mut numbers = Vec::new();
    metrics(&task["taskMetrics"], "", &mut numbers);
    let text = |name: &str| Cell::text(&task[name]);
    let stage_name = json["stageName"].as_str().unwrap_or_default();
    let stage_link = Cell::Link(
        format!("{} {stage_name}", json["stageId"]),
        place.part(&stage),
    );
    let median = &json["stageMedianMilliseconds"];
    let number = task["taskId"].as_i64().unwrap_or_default();
    let executor = task["executorId"].as_str().unwrap_or_default();
    let functions = super::functions::sections(asked, number, executor)?;
    let body = html! {
        (facts(&[
            ("Stage", stage_link),
            ("Status", Cell::Status(task["status"].as_str().unwrap_or_default().to_owned())),
            ("Index", Cell::number(&task["index"], Cell::Count)),
            ("Attempt", Cell::number(&task["attempt"], Cell::Count)),
            ("Partition", Cell::number(&task["partitionId"], Cell::Count)),
            ("Executor", text("executorId")),
            ("Host", text("host")),
            ("Locality", text("taskLocality")),
            ("Launched", Cell::time(&task["launchTime"])),
            ("Duration", Cell::number(&json["milliseconds"], Cell::Duration)),
            ("Median of the stage", Cell::number(median, Cell::Duration)),
        ]))
        @if json["isStraggler"] == true { p { "A straggler: it took more than 1.5 times the median of its stage." } }
        @if json["isCritical"] == true { p { "On the critical path: the last task of a stage that bounds the end of its job." } }
        @if task["speculative"] == true { p { "A speculative attempt." } }
        @if let Some(error) = task["errorMessage"].as_str() { h2 { "Error" } pre tabindex="0" { (error) } }
        h2 { "Where the time went" }
        (parts(&json))
        p {
            a href=(address(place, &json)) { "On the time line" }
        }
        (functions)
        @if !numbers.is_empty() {
            h2 { "Spark's metrics" }
            div.wide tabindex="0" role="region" aria-label="Metrics" { table.data id="metrics" {
                tbody { @for (name, value) in &numbers { tr { th.words scope="row" { (name) } td { (value) } } } }
            } }
        }
    };
    Ok(framed(asked, "tasks", &format!("Task {}", cut(id)), &body))
}

/// The time line around a task.
fn address(place: &Place, json: &Value) -> String {
    let start = json["start"].as_i64().unwrap_or_default();
    let length = json["milliseconds"].as_i64().unwrap_or_default();
    let around = length.max(100);
    format!(
        "{}?from={}&to={}&task={}",
        place.part("timeline"),
        (start - around).max(0),
        start + length + around,
        json["task"]["taskId"]
    )
}

/// The parts as a bar and as a table.
fn parts(json: &Value) -> Markup {
    let all = json["parts"].as_array().map_or(&[][..], Vec::as_slice);
    let length = |part: &Value| part["microseconds"].as_u64().unwrap_or_default();
    let total = all.iter().map(length).sum::<u64>().max(1);
    let share = |us: u64| us as f64 * 100.0 / total as f64;
    let mut at = 0;
    let begins: Vec<u64> = all
        .iter()
        .map(|part| {
            at += length(part);
            at - length(part)
        })
        .collect();
    html! {
        @if all.is_empty() { p.empty { "Spark has no metrics of this task." } } @else {
            svg.bar viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label="Parts of the duration" {
                @for ((number, part), begin) in all.iter().enumerate().zip(&begins) {
                    rect class=(format!("p{number}")) x=(share(*begin)) y="0" height="4" width=(share(length(part))) {}
                }
            }
            div.wide tabindex="0" role="region" aria-label="Parts" { table.data id="parts" {
                thead { tr { th.words { "Part" } th { "Time" } th { "Share" } th.words { "From" } } }
                tbody {
                    @for (number, part) in all.iter().enumerate() {
                        tr {
                            th.words scope="row" {
                                svg.key viewBox="0 0 1 1" aria-hidden="true" { rect class=(format!("p{number}")) width="1" height="1" {} }
                                (part["title"].as_str().unwrap_or_default())
                            }
                            td { (smtt_model::units::duration(length(part) * 1000)) }
                            td { (format!("{:.1} %", share(length(part)))) }
                            td.words.soft { (part["source"].as_str().unwrap_or_default()) }
                        }
                    }
                }
            } }
        }
    }
}
