//! The Grafana dashboard, made from the table of metrics. A test compares it with packaging/grafana/smtt.json.

use serde_json::{Value as Json, json};

use super::table::{
    EVENTS_LOST, EXECUTOR_CGROUP, EXECUTOR_CGROUP_PEAK, EXECUTOR_DEATHS, EXECUTOR_LIMIT,
    EXECUTOR_RESIDENT, FINDING, FINDING_SAVING, HISTORY_LOST, Kind, METRICS, Metric, RDD_FAULTS,
    RDD_TIMED, RDD_TIMED_SECONDS, REPORTS_LOST,
};

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
/// Counters of what is rare: a chart shows how many, not how many per second.
const RARE: [&Metric; 4] = [EXECUTOR_DEATHS, EVENTS_LOST, HISTORY_LOST, REPORTS_LOST];
/// Labels of the series of an executor.
const EXECUTOR: &str = "instance, application_id, user, executor_id";
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
        let mut charts: Vec<Json> = own
            .iter()
            .enumerate()
            .map(|(at, metric)| chart(metric, id + 2 + at, at, y + 1))
            .collect();
        if own.contains(&EXECUTOR_LIMIT) {
            let at = charts.len();
            charts.push(memory_and_limits(id + 2 + at, at, y + 1));
        }
        let grid = json!({"x": 0, "y": y, "w": COLUMNS * WIDTH, "h": 1});
        // Only the first row is unfolded: a folded one asks nothing.
        let folded = number > 0;
        panels.push(json!({
            "type": "row", "id": id + 1, "title": title, "collapsed": folded, "gridPos": grid,
            "panels": if folded { charts.clone() } else { Vec::new() },
        }));
        y += 1;
        id += 1 + charts.len();
        if !folded {
            y += charts.len().div_ceil(COLUMNS) * HEIGHT;
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

/// Selects what the variables of the dashboard name.
const SELECTED: &str = "{instance=~\"$instance\",application_id=~\"$application\"}";

/// Memory of executors and their control groups beside the limits of the same executors.
fn memory_and_limits(id: usize, at: usize, y: usize) -> Json {
    let of = |metric: &Metric| format!("{}{SELECTED}", metric.name);
    let largest = format!(
        "topk({TOP}, max by ({EXECUTOR}) ({}))",
        of(EXECUTOR_RESIDENT)
    );
    let beside =
        |by: &str, value: &str| format!("max by ({by}) ({value}) and on ({EXECUTOR}) {largest}");
    let limits = format!("{EXECUTOR}, limit");
    let targets = [
        ("A", largest.clone(), "{{instance}} {{executor_id}} JVM"),
        (
            "B",
            beside(EXECUTOR, &of(EXECUTOR_CGROUP)),
            "{{instance}} {{executor_id}} control group",
        ),
        (
            "C",
            beside(&limits, &of(EXECUTOR_LIMIT)),
            "{{instance}} {{executor_id}} {{limit}}",
        ),
        (
            "D",
            beside(EXECUTOR, &of(EXECUTOR_CGROUP_PEAK)),
            "{{instance}} {{executor_id}} peak of the control group",
        ),
    ];
    let targets = targets.map(|(name, expression, legend)| {
        json!({"refId": name, "expr": expression, "legendFormat": legend})
    });
    json!({
        "type": "timeseries", "id": id, "title": "Memory of executors beside their limits", "datasource": "$source",
        "description": "Resident memory of the JVMs with the most, memory of their control groups, and their limits by name. memory.max is the limit of the control group, with everything in it",
        "gridPos": place(at, y),
        "fieldConfig": {"defaults": {"unit": "bytes", "min": 0}, "overrides": []},
        "targets": targets,
    })
}

/// Place of a chart in its row.
fn place(at: usize, y: usize) -> Json {
    json!({"x": at % COLUMNS * WIDTH, "y": y + at / COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT})
}

/// Whether the metric is 1 where all is well, else 0.
fn is_state(metric: &Metric) -> bool {
    metric.name.ends_with("_up") || metric.name.ends_with("_consistent")
}

/// What a chart asks.
fn expression(metric: &Metric) -> String {
    let selected = if metric.labels.contains(&"application_id") {
        SELECTED
    } else {
        "{instance=~\"$instance\"}"
    };
    // RDDs are summed over workers; what belongs to a worker keeps its name.
    let by = if metric.labels.contains(&"rdd") {
        ""
    } else {
        "instance, "
    };
    let labels = format!("{by}{}", metric.labels.join(", "));
    let labels = labels.trim_end_matches(", ");
    let rate = |metric: &Metric| {
        format!(
            "sum by ({labels}) (rate({}{selected}[$__rate_interval]))",
            metric.name
        )
    };
    let now = |sum: &str| format!("{sum} by ({labels}) ({}{selected})", metric.name);
    let ratio = metric.name.ends_with("_ratio") || metric.name.ends_with("_per_cycle");
    let value = match metric.kind {
        // The counter has the measured faults alone: their mean time times all faults.
        _ if metric == RDD_TIMED_SECONDS => format!(
            "{} / ({} > 0) * {}",
            rate(metric),
            rate(RDD_TIMED),
            rate(RDD_FAULTS)
        ),
        Kind::Counter if RARE.contains(&metric) => format!(
            "sum by ({labels}) (increase({}{selected}[$__rate_interval]))",
            metric.name
        ),
        Kind::Counter => rate(metric),
        // The zeros matter, and the largest values are ones.
        Kind::Gauge | Kind::Info if is_state(metric) => {
            return format!("bottomk({TOP}, {})", now("min"));
        }
        Kind::Gauge | Kind::Info if ratio => now("max"),
        Kind::Gauge | Kind::Info => now("sum"),
    };
    format!("topk({TOP}, {value})")
}

fn chart(metric: &Metric, id: usize, at: usize, y: usize) -> Json {
    let of_rdd = metric.labels.contains(&"rdd");
    let expression = expression(metric);
    let title = match metric {
        _ if metric == RDD_TIMED_SECONDS => {
            "Time of all page faults, estimated from smtt_rdd_page_faults_timed_seconds_total"
        }
        metric => metric.name,
    };
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
        "type": "timeseries", "id": id, "title": title, "datasource": "$source",
        "description": format!("{}. No series when: {}", metric.help, if metric.absent.is_empty() { "never" } else { metric.absent }),
        "gridPos": place(at, y),
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

#[test]
fn charts_show_what_is_wrong() {
    let text = dashboard();
    let shown: Json = serde_json::from_str(&text).expect("JSON");
    let panels = shown["panels"].as_array().expect("panels");
    let folded = panels.iter().filter_map(|panel| panel["panels"].as_array());
    let asked: Vec<&str> = panels
        .iter()
        .chain(folded.flatten())
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten())
        .filter_map(|target| target["expr"].as_str())
        .collect();
    let of = |name: &str| {
        let begin = format!("({name}{{");
        let mut all = asked.iter().filter(|it| it.contains(&begin));
        *all.next().unwrap_or_else(|| panic!("no chart of {name}"))
    };
    for state in METRICS.iter().filter(|metric| is_state(metric)) {
        assert!(state.help.starts_with("Whether "), "{state:?}");
        let asked = of(state.name);
        assert!(asked.starts_with("bottomk(10, min by ("), "{asked}");
    }
    let states = METRICS.iter().filter(|it| it.help.starts_with("Whether "));
    assert!(states.clone().all(|it| is_state(it)), "a state with topk");
    assert!(states.count() >= 6);
    let deaths = of("smtt_executor_deaths_total");
    assert!(deaths.contains("increase("), "{deaths}");
    let time = of("smtt_rdd_page_faults_timed_seconds_total");
    assert!(
        time.contains("(rate(smtt_rdd_page_faults_timed_total{")
            && time.contains("(rate(smtt_rdd_page_faults_total{"),
        "{time}"
    );
    let limits = asked.iter().filter(|it| {
        it.contains("smtt_executor_memory_limit_bytes{")
            && it.contains("smtt_executor_resident_bytes{")
    });
    assert_eq!(limits.count(), 1);
}
