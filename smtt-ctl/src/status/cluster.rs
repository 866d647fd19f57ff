//! `smtt-ctl status --cluster`: a row for each worker, and what is degraded where.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use smtt_model::protocol::{ListQuery, Status};
use smtt_model::rows::{Listing, Summary};
use smtt_model::sort::small::Gather as _;
use smtt_model::units;

use crate::client::Client;
use crate::cluster::{Cluster, Merge as _};
use crate::output::Form as OutputForm;
use crate::report::cluster::degraded;
use crate::table::{self, Column, Form, column};
use crate::{Exit, Failure, Output};

/// A worker's daemon.
const COLUMNS: &[Column] = &[
    column("worker", "HOST", Form::Text, 0),
    column("state", "STATE", Form::Word, 0),
    column("version", "VERSION", Form::Word, 2),
    column("uptime_ns", "UP", Form::Duration, 3),
    column("rss_bytes", "MEMORY", Form::Bytes, 3),
    column("executors", "EXECS", Form::Count, 1),
    column("page_faults", "FAULTS", Form::Count, 1),
    column("unattributed_share", "UNATTR", Form::Share, 2),
    column("lost", "LOST", Form::Count, 1),
];

/// Requests the status of all workers and prints it.
pub(super) async fn run(
    client: &Client,
    cluster: &Cluster,
    output: Output,
) -> Result<Exit, Failure> {
    let all: Vec<(String, Status)> = cluster.each("/v1/status").await?;
    let is_degraded = all.iter().any(|(_, status)| !status.degraded.is_empty());
    let summary = total(&all)?;
    match output.form {
        OutputForm::Json => output.data(&json!({
            "summary": summary,
            "complete": cluster.missing().0 == 0,
            "workers": beside(client, &all),
        }))?,
        OutputForm::Csv => {
            let rows: Vec<_> = all.iter().map(|(name, status)| row(name, status)).collect();
            output.data(&rows)?;
        }
        OutputForm::Text | OutputForm::Plain => output.text(&text(&all, &summary, output))?,
    }
    Ok(match is_degraded {
        true => Exit::Degraded,
        false => Exit::Fine,
    })
}

/// Totals over all workers.
fn total(all: &[(String, Status)]) -> Result<Summary, Failure> {
    let part = |(_, status): &(String, Status)| Listing::<()> {
        summary: status.summary.clone(),
        ..Listing::default()
    };
    let whole = Listing::merge(all.iter().map(part).collect(), "", &ListQuery::default())?;
    Ok(whole.summary)
}

/// The workers of a cluster as JSON, each with its status.
fn beside(client: &Client, all: &[(String, Status)]) -> Value {
    let known: BTreeMap<&str, &Status> = all
        .iter()
        .map(|(name, status)| (name.as_str(), status))
        .gather();
    let mut workers = client.cluster().map_or(Value::Null, Cluster::workers);
    for worker in workers.as_array_mut().into_iter().flatten() {
        let status = worker
            .get("host")
            .and_then(Value::as_str)
            .and_then(|name| known.get(name));
        if let Some(status) = status {
            worker["status"] = serde_json::to_value(status).unwrap_or_default();
        }
    }
    workers
}

fn row(name: &str, status: &Status) -> Map<String, Value> {
    let state = match (status.ready, status.degraded.is_empty()) {
        (false, _) => "starting",
        (true, true) => "fine",
        (true, false) => "degraded",
    };
    let lost = status
        .ledger
        .iter()
        .fold(0_u64, |sum, hop| sum.saturating_add(hop.lost_total()));
    let row = json!({
        "worker": name,
        "state": state,
        "version": status.version,
        "uptime_ns": (status.daemon.uptime_seconds.max(0.0) * 1e9) as u64,
        "rss_bytes": status.daemon.rss_bytes,
        "executors": status.summary.executors,
        "page_faults": status.summary.page_faults,
        "unattributed_share": status.summary.unattributed_share,
        "lost": lost,
    });
    match row {
        Value::Object(row) => row,
        _ => Map::new(),
    }
}

fn text(all: &[(String, Status)], summary: &Summary, output: Output) -> String {
    let rows: Vec<_> = all.iter().map(|(name, status)| row(name, status)).collect();
    let mut text = table::render(COLUMNS, &rows, output);
    if output.form == OutputForm::Plain {
        return text;
    }
    let faults = summary.page_faults.map_or_else(String::new, |faults| {
        format!(", {} page faults", units::count(faults))
    });
    text.push_str(&format!(
        "{} workers, {} executors{faults}\n",
        units::count(all.len() as u64),
        units::count(summary.executors),
    ));
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, status) in all {
        for reason in &status.degraded {
            reasons.entry(reason).or_default().push(name);
        }
    }
    text.push_str(&degraded(&reasons, output));
    text
}

#[cfg(test)]
mod tests {
    use smtt_model::protocol::SelfFigures;

    use super::*;

    #[test]
    fn reasons_of_workers_do_not_fill_the_terminal() {
        let status = Status {
            degraded: (0..5000).map(|n| format!("{n:05} why")).collect(),
            version: "0.1.0".to_owned(),
            kernel_side: String::new(),
            ready: true,
            probes: Vec::new(),
            ledger: Vec::new(),
            trace: None,
            history: None,
            daemon: SelfFigures::default(),
            summary: Summary::default(),
            page_walks: None,
        };
        let all = [("w1".to_owned(), status)];
        let text = text(&all, &Summary::default(), Output::default());
        assert!(text.lines().count() < 200, "{text}");
        assert!(text.contains("degraded on w1: 00000 why\n"), "{text}");
        assert!(
            text.ends_with("4980 more reasons: --json has all\n"),
            "{text}"
        );
    }
}
