//! The message that Spark shows for the reason of a task's end.

use std::fmt::Write as _;

use crate::event::{Frame, Reason, Text};

/// The message; `None` for success. A field that the log does not have is what Spark reads in its place.
pub(super) fn message(reason: &Reason<'_>) -> Option<String> {
    let number = |number: Option<i64>| number.unwrap_or_default();
    let text = |text: &Option<Text<'_>>, absent: &str| {
        text.as_ref()
            .map_or_else(|| absent.to_owned(), |text| text.to_string())
    };
    Some(match &*reason.reason {
        "Success" => return None,
        "TaskKilled" => text(&reason.kill, "unknown reason"),
        "ExceptionFailure" => match &reason.trace {
            Some(trace) => trace.to_string(),
            None => {
                let (class, description) = (text(&reason.class, ""), text(&reason.description, ""));
                format!("{class}: {description}\n{}", frames(reason))
            }
        },
        "FetchFailed" => {
            let address = reason.address.as_ref().map_or_else(
                || "null".to_owned(),
                |it| {
                    format!(
                        "BlockManagerId({}, {}, {}, None)",
                        &*it.executor, &*it.host, it.port
                    )
                },
            );
            let index = match reason.map_index {
                None => "Unknown".to_owned(),
                Some(index) if index == i64::from(i32::MIN) => "Unknown".to_owned(),
                Some(index) => index.to_string(),
            };
            format!(
                "FetchFailed({address}, shuffleId={}, mapIndex={index}, mapId={}, reduceId={}, message=\n{}\n)",
                number(reason.shuffle),
                number(reason.map),
                number(reason.reduce),
                text(&reason.message, "Unknown reason"),
            )
        }
        "TaskCommitDenied" => format!(
            "TaskCommitDenied (Driver denied task commit) for job: {}, partition: {}, attemptNumber: {}",
            reason.job.unwrap_or(-1),
            reason.partition.unwrap_or(-1),
            reason.attempt.unwrap_or(-1),
        ),
        "ExecutorLostFailure" => {
            let behavior = if reason.by_application.unwrap_or(true) {
                "caused by one of the running tasks"
            } else {
                "unrelated to the running tasks"
            };
            let loss = reason
                .loss
                .as_ref()
                .map(|loss| format!(" Reason: {}", &**loss));
            format!(
                "ExecutorLostFailure (executor {} exited {behavior}){}",
                text(&reason.executor, "Unknown"),
                loss.unwrap_or_default(),
            )
        }
        "TaskResultLost" => "TaskResultLost (result lost from block manager)".to_owned(),
        "Resubmitted" => "Resubmitted (resubmitted due to lost executor)".to_owned(),
        _ => "UnknownReason".to_owned(),
    })
}

/// The places of a stack trace, as Java shows them.
fn frames(reason: &Reason<'_>) -> String {
    let frames = reason.frames.map(|raw| serde_json::from_str(raw.get()));
    let frames: Vec<Frame<'_>> = frames.and_then(Result::ok).unwrap_or_default();
    let mut text = String::new();
    for (at, frame) in frames.iter().enumerate() {
        let place = match (&frame.file, frame.line) {
            (_, -2) => "Native Method".to_owned(),
            (None, _) => "Unknown Source".to_owned(),
            (Some(file), line) if line < 0 => file.to_string(),
            (Some(file), line) => format!("{}:{line}", &**file),
        };
        let separator = if at == 0 { "" } else { "\n" };
        let (class, method) = (&*frame.class, &*frame.method);
        // Writing to a text does not fail.
        let _ = write!(text, "{separator}        {class}.{method}({place})");
    }
    text
}
