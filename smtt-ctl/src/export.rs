//! `smtt-ctl export`: an application in a form that other programs read.

mod job_trace;

use std::cmp::Ordering;
use std::io::Write as _;
use std::path::Path;

use smtt_model::protocol::{Histories, ListQuery};
use smtt_model::rows::{
    ApplicationKey, ExecutorId, ExecutorRow, JobRow, Listing, StageRow, TaskRow,
};
use smtt_model::sort::small::sort_by;

use super::html::save;
use super::{Exit, Failure, say};
use crate::client::Client;

/// What the daemon knows of one application.
#[derive(Debug, Default)]
struct Known {
    executors: Vec<ExecutorRow>,
    jobs: Vec<JobRow>,
    stages: Vec<StageRow>,
    tasks: Vec<TaskRow>,
    /// One moment on the clock of the tasks, nanoseconds since boot, and in milliseconds since 1970.
    now: (u64, u64),
}

/// Requests one application and writes its job trace.
pub(super) async fn run(
    client: &Client,
    app: &str,
    user: Option<u32>,
    file: &Path,
) -> Result<Exit, Failure> {
    let known = ask(client, app, user).await?;
    let (jobs, left_out) = job_trace::of(&known);
    let mut text = String::new();
    for job in &jobs {
        text.push_str(&serde_json::to_string(job).map_err(std::io::Error::from)?);
        text.push('\n');
    }
    if file == Path::new("-") {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
    } else {
        save(file, &text)?;
    }
    for words in left_out.words() {
        say(&words);
    }
    Ok(if left_out == job_trace::LeftOut::default() {
        Exit::Fine
    } else {
        Exit::Degraded
    })
}

async fn ask(client: &Client, app: &str, user: Option<u32>) -> Result<Known, Failure> {
    let mut question = ListQuery {
        app: Some(app.to_owned()),
        user,
        ..ListQuery::default()
    };
    let executors: Listing<ExecutorRow> = client.ask("/v1/executors", &question).await?;
    let mut applications: Vec<ApplicationKey> = executors
        .rows
        .iter()
        .map(|row| row.who.application())
        .collect();
    sort_by(&mut applications, newest_first);
    // Of the attempts of an application the newest.
    applications.dedup_by(|older, newer| older.id == newer.id && older.uid == newer.uid);
    let [application] = applications.as_slice() else {
        let said = which(app, &applications);
        return Err(match applications.is_empty() {
            true => Failure::Nothing(said),
            false => Failure::Question(said),
        });
    };
    // Tasks before stages: a task that ends in between is counted by its stage and reported as missing, never lost.
    question.user = application.uid.or(user);
    let tasks: Listing<TaskRow> = client.ask("/v1/tasks/ended", &question).await?;
    let stages: Listing<StageRow> = client.ask("/v1/stages", &question).await?;
    let jobs: Listing<JobRow> = client.ask("/v1/jobs", &question).await?;
    let history: Histories = client.ask_one("/v1/history", &question).await?;
    // If the name of one application is the id of another one, the id decides.
    let own = |who: &ExecutorId| who.application() == *application;
    let mut known = Known {
        executors: executors.rows,
        jobs: jobs.rows,
        stages: stages.rows,
        tasks: tasks.rows,
        now: (history.now_ns, history.now_unix_ms),
    };
    known.executors.retain(|row| own(&row.who));
    known.stages.retain(|row| own(&row.who));
    known.tasks.retain(|row| own(&row.who));
    known.jobs.retain(|row| row.application() == *application);
    Ok(known)
}

/// The order of applications, and of the attempts of each, which are numbers.
fn newest_first(left: &ApplicationKey, right: &ApplicationKey) -> Ordering {
    let number = |key: &ApplicationKey| {
        key.attempt
            .as_ref()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let same = (&left.id, left.uid).cmp(&(&right.id, right.uid));
    same.then_with(|| number(right).cmp(&number(left)))
        .then_with(|| right.attempt.cmp(&left.attempt))
}

/// Why the name selects no single application.
fn which(app: &str, applications: &[ApplicationKey]) -> String {
    if applications.is_empty() {
        return format!("no executor on this worker matches {app}: smtt-ctl executors lists them");
    }
    let name = |it: &ApplicationKey| {
        let label = it.label().unwrap_or_else(|| "-".to_owned());
        label + &crate::users::of(it.uid)
    };
    let names: Vec<String> = applications.iter().take(8).map(name).collect();
    format!(
        "{} applications match {app}: give the id of one, or --user ({})",
        applications.len(),
        names.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_several_applications_is_refused_with_their_ids() {
        let key = |id: &str| ApplicationKey {
            id: Some(id.to_owned()),
            attempt: None,
            uid: Some(0),
        };
        let text = which("Pi", &[key("app-1"), key("app-2")]);
        assert_eq!(
            text,
            "2 applications match Pi: give the id of one, or --user (app-1, user root; app-2, user root)"
        );
        assert!(which("Pi", &[]).contains("no executor"));
    }

    #[test]
    fn the_newest_attempt_comes_first() {
        let key = |id: &str, attempt: Option<&str>| ApplicationKey {
            id: Some(id.to_owned()),
            attempt: attempt.map(str::to_owned),
            uid: Some(0),
        };
        let mut all = [
            key("app-2", None),
            key("app-1", Some("9")),
            key("app-1", None),
            key("app-1", Some("10")),
        ];
        all.sort_by(newest_first);
        let order: Vec<_> = all.iter().filter_map(ApplicationKey::label).collect();
        let want = ["app-1, attempt 10", "app-1, attempt 9", "app-1", "app-2"];
        assert_eq!(order, want);
    }
}
