//! `smtt-ctl status`: probes, losses, and the daemon's own resource usage.

mod cluster;

use serde_json::{Map, Value, json};
use smtt_model::ledger::Hop;
use smtt_model::ledger::trace::TraceStatus;
use smtt_model::protocol::{HistoryStatus, SelfFigures, Status};
use smtt_model::rows::PageWalksShown;
use smtt_model::units;
use smtt_model::verdict::Verdict;

use super::table::{self, Column, Form};
use super::{Exit, Failure, Output};
use crate::client::Client;

const PROBES: &[Column] = &[
    Column {
        field: "name",
        heading: "PROBE",
        form: Form::Word,
        rank: 0,
    },
    Column {
        field: "verdict",
        heading: "VERDICT",
        form: Form::Word,
        rank: 0,
    },
    Column {
        field: "hook",
        heading: "HOOK",
        form: Form::Text,
        rank: 1,
    },
];

const LEDGER: &[Column] = &[
    Column {
        field: "hop",
        heading: "HOP",
        form: Form::Word,
        rank: 0,
    },
    Column {
        field: "attempted",
        heading: "ATTEMPTED",
        form: Form::Count,
        rank: 0,
    },
    Column {
        field: "delivered",
        heading: "DELIVERED",
        form: Form::Count,
        rank: 0,
    },
    Column {
        field: "lost",
        heading: "LOST",
        form: Form::Count,
        rank: 0,
    },
    Column {
        field: "in_flight",
        heading: "IN FLIGHT",
        form: Form::Count,
        rank: 2,
    },
    Column {
        field: "adds_up",
        heading: "ADDS UP",
        form: Form::YesNo,
        rank: 1,
    },
];

/// Requests the status and prints it.
pub(super) async fn run(client: &Client, output: Output) -> Result<Exit, Failure> {
    if let Some(cluster) = client.cluster() {
        return cluster::run(client, cluster, output).await;
    }
    let status: Status = client.get("/v1/status").await?;
    if output.is_data() {
        output.data(&status)?;
    } else {
        output.text(&text(&status, output))?;
    }
    Ok(if status.degraded.is_empty() {
        Exit::Fine
    } else {
        Exit::Degraded
    })
}

fn objects(rows: impl Iterator<Item = Value>) -> Vec<Map<String, Value>> {
    rows.filter_map(|row| {
        if let Value::Object(row) = row {
            Some(row)
        } else {
            None
        }
    })
    .collect()
}

fn text(status: &Status, output: Output) -> String {
    let state = match (status.ready, status.degraded.is_empty()) {
        (false, _) => "starting",
        (true, true) => "all is well",
        (true, false) => "degraded",
    };
    let mut text = format!(
        "smtt-daemon {}: {state}\n{}\n\n",
        status.version,
        own_figures(&status.daemon)
    );
    text.push_str(&probes(&status.probes, output));
    text.push('\n');
    text.push_str(&ledger(&status.ledger, output));
    if let Some(walks) = &status.page_walks {
        text.push('\n');
        text.push_str(&page_walks(walks, output));
    }
    if let Some(trace) = &status.trace {
        text.push('\n');
        text.push_str(&trace_files(trace));
    }
    if let Some(history) = status.history.as_ref().and_then(history_lost) {
        text.push('\n');
        text.push_str(&history);
    }
    if !status.degraded.is_empty() {
        text.push('\n');
        for reason in &status.degraded {
            text.push_str(&format!("degraded: {reason}\n"));
        }
    }
    text
}

/// The daemon's resource usage in one line.
pub(super) fn own_figures(own: &SelfFigures) -> String {
    let mut parts = vec![format!(
        "up {}",
        units::duration((own.uptime_seconds.max(0.0) * 1e9) as u64)
    )];
    if let Some(cpu) = own.cpu_seconds {
        // A CPU share over a moment has no meaning.
        let share = (own.uptime_seconds >= 1.0).then(|| cpu / own.uptime_seconds * 100.0);
        let share = share.map_or_else(String::new, |share| format!(" ({share:.2} % of one CPU)"));
        parts.push(format!("CPU {cpu:.2} s{share}"));
    }
    parts.extend(
        own.rss_bytes
            .map(|bytes| format!("memory {}", units::bytes(bytes))),
    );
    parts.extend(
        own.bpf_memory_bytes
            .map(|bytes| format!("eBPF {}", units::bytes(bytes))),
    );
    parts.join(", ")
}

fn probes(probes: &[Verdict], output: Output) -> String {
    if probes.is_empty() {
        return "no probes yet\n".to_owned();
    }
    let rows = objects(
        probes
            .iter()
            .filter_map(|probe| serde_json::to_value(probe).ok()),
    );
    let mut text = table::render(PROBES, &rows, output);
    for probe in probes.iter().filter(|probe| !probe.reason.is_empty()) {
        text.push_str(&format!(
            "  {} ({}): {}\n",
            probe.name, probe.hook, probe.reason
        ));
    }
    text
}

const EVENTS: &[Column] = &[
    Column {
        field: "role",
        heading: "PAGE WALKS",
        form: Form::Word,
        rank: 0,
    },
    Column {
        field: "event",
        heading: "EVENT",
        form: Form::Text,
        rank: 2,
    },
    Column {
        field: "pass",
        heading: "TURN",
        form: Form::Word,
        rank: 6,
    },
    Column {
        field: "counted",
        heading: "COUNTED",
        form: Form::Count,
        rank: 0,
    },
    Column {
        field: "sampled",
        heading: "SAMPLED",
        form: Form::Count,
        rank: 0,
    },
    Column {
        field: "executors",
        heading: "EXECUTORS",
        form: Form::Count,
        rank: 1,
    },
    Column {
        field: "samples",
        heading: "SAMPLES",
        form: Form::Count,
        rank: 3,
    },
    Column {
        field: "period",
        heading: "PERIOD",
        form: Form::Count,
        rank: 5,
    },
    Column {
        field: "counted_share",
        heading: "HAD A COUNTER",
        form: Form::Share,
        rank: 4,
    },
];

/// The sampled events as a table, with faults and caveats below it.
fn page_walks(walks: &PageWalksShown, output: Output) -> String {
    let rows = objects(walks.events.iter().filter_map(|event| {
        let mut row = serde_json::to_value(event).ok()?;
        row["executors"] = json!(event.attributed + event.unattributed + event.forgotten);
        Some(row)
    }));
    let mut text = table::render(EVENTS, &rows, output);
    text.push_str(&format!("  core: {}\n", walks.uarch));
    for event in walks.events.iter().filter(|event| !event.fault.is_empty()) {
        text.push_str(&format!(
            "  {}: not published: {}\n",
            event.event, event.fault
        ));
    }
    if let Some(calibration) = &walks.calibration {
        for (what, cost) in [("read", calibration.read), ("write", calibration.write)] {
            if let Some(cost) = cost {
                text.push_str(&format!(
                    "  a walk for a {what} costs {:.1} cycles ({:.1} to {:.1}; {})\n",
                    cost.cycles, cost.low, cost.high, calibration.method
                ));
            }
        }
    }
    for note in &walks.notes {
        text.push_str(&format!("  {note}\n"));
    }
    text
}

/// What the history lost in one line; `None` where it has all.
fn history_lost(history: &HistoryStatus) -> Option<String> {
    let (tasks, executors) = (history.tasks_lost, history.executors_lost);
    (tasks + executors > 0).then(|| {
        format!(
            "history: {} tasks and the last documents of {} executors could not be written in time\n",
            units::count(tasks),
            units::count(executors)
        )
    })
}

/// The state of the trace writer in one line.
fn trace_files(trace: &TraceStatus) -> String {
    let counts = &trace.counts;
    let state = if trace.failing.is_empty() {
        "writing"
    } else {
        "cannot be written"
    };
    let mut text = format!(
        "trace files in {}: {state}, {} records in {} finished segments since the start, {} on the disk",
        trace.folder,
        units::count(counts.written),
        units::count(counts.segments),
        units::bytes(counts.disk_bytes)
    );
    for (what, count) in [
        (
            "segments removed to keep within max_bytes",
            counts.segments_removed,
        ),
        (
            "unfinished segments of a crash removed",
            counts.leftovers_removed,
        ),
    ] {
        if count > 0 {
            text.push_str(&format!(", {} {what}", units::count(count)));
        }
    }
    text.push('\n');
    text
}

/// The ledger as a table, with the causes of losses below it.
pub(super) fn ledger(hops: &[Hop], output: Output) -> String {
    let rows = objects(hops.iter().map(|hop| {
        json!({
            "hop": hop.name,
            "attempted": hop.attempted,
            "delivered": hop.delivered,
            "lost": hop.lost_total(),
            "in_flight": hop.in_flight,
            "adds_up": hop.consistent,
        })
    }));
    let mut text = table::render(LEDGER, &rows, output);
    for hop in hops {
        for (cause, lost) in &hop.lost {
            text.push_str(&format!(
                "  lost at {}: {} {cause}\n",
                hop.name,
                units::count(*lost)
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_history_lost_is_one_line_and_none_where_it_has_all() {
        let mut history = HistoryStatus::default();
        assert_eq!(history_lost(&history), None);
        history.executors_lost = 3;
        let text =
            "history: 0 tasks and the last documents of 3 executors could not be written in time\n";
        assert_eq!(history_lost(&history).as_deref(), Some(text));
    }
}
