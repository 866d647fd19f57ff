//! The message that Spark shows for the reason of a task's end.

use crate::event::Reason;

/// The message; `None` for success.
pub(super) fn message(reason: &Reason<'_>) -> Option<String> {
    let number = |number: Option<i64>| number.unwrap_or_default();
    let text = |text: &Option<crate::event::Text<'_>>| {
        text.as_ref()
            .map(|text| text.to_string())
            .unwrap_or_default()
    };
    Some(match &*reason.reason {
        "Success" => return None,
        "TaskKilled" => text(&reason.kill),
        "ExceptionFailure" => match &reason.trace {
            Some(trace) => trace.to_string(),
            None => format!("{}: {}", text(&reason.class), text(&reason.description)),
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
                text(&reason.message),
            )
        }
        "TaskCommitDenied" => format!(
            "TaskCommitDenied (Driver denied task commit) for job: {}, partition: {}, attemptNumber: {}",
            number(reason.job),
            number(reason.partition),
            number(reason.attempt),
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
                text(&reason.executor),
                loss.unwrap_or_default(),
            )
        }
        "TaskResultLost" => "TaskResultLost (result lost from block manager)".to_owned(),
        "Resubmitted" => "Resubmitted (resubmitted due to lost executor)".to_owned(),
        _ => "UnknownReason".to_owned(),
    })
}
