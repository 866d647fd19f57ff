//! The Grafana dashboard, made from the table of metrics. A test compares it with packaging/grafana/smtt.json.

use serde_json::{Value as Json, json};

use super::table::{FINDING, FINDING_SAVING, Kind, METRICS, Metric};

/// Rows of the dashboard: title, and beginnings of the names of its metrics.
const ROWS: [(&str, &[&str]); 4] = [
    ("RDDs", &["smtt_rdd_"]),
    ("Executors", &["smtt_executor_"]),
    (
        "Page walks and placement",
        &["smtt_page_walk_", "smtt_resolver_"],
    ),
    ("The daemons", &["smtt_", "process_"]),
];
/// Series that a chart shows at most.
const TOP: usize = 10;
/// Charts side by side, their width and height in Grafana's grid.
const COLUMNS: usize = 3;
const WIDTH: usize = 8;
const HEIGHT: usize = 7;

/// The dashboard as JSON.
pub(super) fn dashboard() -> String {
    let mut panels = vec![findings()];
    let (mut y, mut id) = (HEIGHT, 1);
    let mut left: Vec<&Metric> = METRICS
        .iter()
        .copied()
        .filter(|metric| metric.kind != Kind::Info && ![FINDING, FINDING_SAVING].contains(metric))
        .collect();
    for (number, (title, starts)) in ROWS.iter().enumerate() {
        let of_row = |metric: &&Metric| starts.iter().any(|start| metric.name.starts_with(start));
        let (own, rest): (Vec<_>, Vec<_>) = left.into_iter().partition(|metric| of_row(metric));
        left = rest;
        let charts: Vec<Json> = own
            .iter()
            .enumerate()
            .map(|(at, metric)| chart(metric, id + 2 + at, at, y + 1))
            .collect();
        let grid = json!({"x": 0, "y": y, "w": COLUMNS * WIDTH, "h": 1});
        // Only the first row is unfolded: a folded one asks nothing.
        let folded = number > 0;
        panels.push(json!({
            "type": "row", "id": id + 1, "title": title, "collapsed": folded, "gridPos": grid,
            "panels": if folded { charts.clone() } else { Vec::new() },
        }));
        y += 1;
        id += 1 + own.len();
        if !folded {
            y += own.len().div_ceil(COLUMNS) * HEIGHT;
            panels.extend(charts);
        }
    }
    assert!(left.is_empty(), "metrics without a row: {left:?}");
    let variable = |name: &str, label: &str, metric: &str| {
        json!({
            "type": "query", "name": name, "label": name, "datasource": "$source", "refresh": 2,
            "query": format!("label_values({metric}, {label})"), "includeAll": true, "allValue": ".*",
            "multi": true, "sort": 1, "current": {"text": "All", "value": "$__all"},
        })
    };
    let all = json!({
        "title": "SMTT", "uid": "smtt", "schemaVersion": 38, "editable": true, "refresh": "30s",
        "tags": ["spark", "memory"], "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [
            {"type": "datasource", "name": "source", "label": "source", "query": "prometheus"},
            variable("instance", "instance", "smtt_build_info"),
            variable("application", "application_id", "smtt_executor_info"),
        ]},
        "panels": panels,
    });
    let mut text = serde_json::to_string_pretty(&all).expect("JSON");
    text.push('\n');
    text
}

/// The table of findings.
fn findings() -> Json {
    let by = FINDING.labels.join(", ");
    let expression = format!(
        "max by (instance, {by}) ({}{{instance=~\"$instance\",application_id=~\"$application\"}})",
        FINDING.name
    );
    json!({
        "type": "table", "id": 1, "title": "Findings", "description": FINDING.help, "datasource": "$source",
        "gridPos": {"x": 0, "y": 0, "w": COLUMNS * WIDTH, "h": HEIGHT},
        "targets": [{"refId": "A", "expr": expression, "format": "table", "instant": true}],
    })
}

fn chart(metric: &Metric, id: usize, at: usize, y: usize) -> Json {
    let of_application = metric.labels.contains(&"application_id");
    let selected = if of_application {
        "{instance=~\"$instance\",application_id=~\"$application\"}"
    } else {
        "{instance=~\"$instance\"}"
    };
    let of_rdd = metric.labels.contains(&"rdd");
    // RDDs are summed over workers; what belongs to a worker keeps its name.
    let by = if of_rdd { "" } else { "instance, " };
    let ratio = metric.name.ends_with("_ratio") || metric.name.ends_with("_per_cycle");
    let (value, sum) = match metric.kind {
        Kind::Counter => (
            format!("rate({}{selected}[$__rate_interval])", metric.name),
            "sum",
        ),
        Kind::Gauge | Kind::Info if ratio => (format!("{}{selected}", metric.name), "max"),
        Kind::Gauge | Kind::Info => (format!("{}{selected}", metric.name), "sum"),
    };
    let labels = format!("{by}{}", metric.labels.join(", "));
    let expression = format!(
        "topk({TOP}, {sum} by ({}) ({value}))",
        labels.trim_end_matches(", ")
    );
    let unit = match metric.name {
        name if name.ends_with("_ratio") => "percentunit",
        name if name.ends_with("_seconds") => "s",
        name if name.ends_with("_bytes") => "bytes",
        name if name.ends_with("_bytes_total") => "Bps",
        name if name.ends_with("_seconds_total") => "percentunit",
        _ => "short",
    };
    let legend: Vec<String> = metric
        .labels
        .iter()
        .filter(|label| !matches!(**label, "application_id" | "user"))
        .map(|label| format!("{{{{{label}}}}}"))
        .collect();
    let legend = if of_rdd {
        legend.join(" ")
    } else {
        format!("{{{{instance}}}} {}", legend.join(" "))
    };
    json!({
        "type": "timeseries", "id": id, "title": metric.name, "datasource": "$source",
        "description": format!("{}. No series when: {}", metric.help, if metric.absent.is_empty() { "never" } else { metric.absent }),
        "gridPos": {"x": at % COLUMNS * WIDTH, "y": y + at / COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"refId": "A", "expr": expression, "legendFormat": legend.trim()}],
    })
}

#[test]
fn the_dashboard_is_what_the_table_says() {
    let path =
        std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../packaging/grafana/smtt.json");
    let text = dashboard();
    if std::env::var_os("SMTT_BLESS").is_some() {
        std::fs::write(&path, &text).expect("written");
    }
    let written = std::fs::read_to_string(&path).expect("packaging/grafana/smtt.json");
    assert!(
        written == text,
        "packaging/grafana/smtt.json is out of date: SMTT_BLESS=1 cargo test -p smtt-daemon"
    );
    let parsed: Json = serde_json::from_str(&text).expect("JSON");
    let panels = parsed["panels"].as_array().expect("panels");
    let folded = panels.iter().filter_map(|panel| panel["panels"].as_array());
    let all: Vec<&Json> = panels.iter().chain(folded.flatten()).collect();
    let ids: std::collections::BTreeSet<_> = all.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), all.len(), "an id comes twice");
}
