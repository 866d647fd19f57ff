//! A real application asks 500 short queries, a live daemon counts, and a real Prometheus with the packaged
//! configuration, rules and alerts scrapes it: increases, series, charts and alerts are those of an operator.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use smtt_tests::application::LOCAL_CLUSTER;
use smtt_tests::faults::{at_rest, between};
use smtt_tests::json::{sum, text};
use smtt_tests::lab::{Run, SparkLab};
use smtt_tests::truth::same_faults;
use xtask::daemon::Options;
use xtask::http;
use xtask::setup::prometheus;
use xtask::spark::Application;

use crate::server::Prometheus;
use crate::{charts, settled};

const QUERIES: &str = "500";
/// Seconds of a query, at least: all of them go on for a minute and a scrape.
const QUERY_SECONDS: &str = "0.2";
/// Share by which the increases may differ from the page faults that the executors have.
const DIFFERENCE: f64 = 0.02;
/// Series of the worker that may exist, and new ones in any minute after the first.
const SERIES: u64 = 1500;
const NEW_A_MINUTE: usize = 20;
/// Scrapes after the first minute, at least, while queries run.
const SCRAPES: usize = 1;
/// Keys of the application's RDDs: fewer than lines of it that work, however often they run.
const KEYS: usize = 20;
/// Time from the moment when the unread cache can be known until its alert fires, in seconds.
const ALERT_WITHIN: f64 = 120.0;
/// Faults of a whole life by which both sides may differ, as `spark/page_faults.rs` has them.
const LIFE_TOLERANCE: u64 = 100;
const UNREAD: &str = "SmttUnreadCache";

/// Metrics that must be there, and whose charts must have series: what the application does, and what every worker has.
const CHARTED: [&str; 28] = [
    "smtt_finding",
    "smtt_rdd_page_faults_total",
    "smtt_rdd_page_faults_timed_total",
    "smtt_rdd_page_faults_timed_seconds_total",
    "smtt_rdd_blocks_stored_total",
    "smtt_rdd_block_reads_total",
    "smtt_rdd_storage_memory_bytes",
    "smtt_rdd_partitions_cached",
    "smtt_rdd_memory_node_bytes",
    "smtt_rdd_memory_swapped_bytes",
    "smtt_executor_up",
    "smtt_executor_page_faults_total",
    "smtt_executor_unattributed_page_faults_total",
    "smtt_executor_resident_bytes",
    "smtt_executor_memory_peak_bytes",
    "smtt_executor_facts_total",
    "smtt_executor_memory_limit_bytes",
    "smtt_executor_deaths_total",
    "smtt_resolver_pages_total",
    "smtt_probe_up",
    "smtt_events_attempted_total",
    "smtt_ledger_consistent",
    "smtt_rdd_keys_refused_total",
    "smtt_state_bytes",
    "smtt_bpf_memory_bytes",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "smtt_scrape_duration_seconds",
];
/// Recording rules that must have results; nothing is lost, so that of losses may have none.
const RECORDED: [&str; 5] = [
    "application_rdd:smtt_page_faults:rate5m",
    "application:smtt_page_faults:rate5m",
    "application:smtt_unattributed_page_faults:ratio_rate5m",
    "application_rdd:smtt_storage_memory_bytes:sum",
    "application_rdd:smtt_remote_reads:ratio_rate5m",
];

/// When the application reached a gate, in seconds since 1970.
fn reached(run: &Run, gate: &str) -> Result<f64> {
    let file = run.gates().join(format!("{gate}.reached"));
    let time = file.metadata()?.modified()?.duration_since(UNIX_EPOCH)?;
    Ok(time.as_secs_f64())
}

/// Labels of a series, and times and values of its samples.
type Series = (Value, Vec<(f64, f64)>);

/// The series that an expression selects, with the last hour's samples.
fn samples(prometheus: &Prometheus, selector: &str) -> Result<Vec<Series>> {
    let rows = prometheus.ask(&format!("{selector}[1h]"), None)?;
    let values = |row: &Value| {
        let pairs = row["values"].as_array()?.iter();
        let pair = |pair: &Value| Some((pair[0].as_f64()?, pair[1].as_str()?.parse().ok()?));
        pairs.map(pair).collect::<Option<Vec<_>>>()
    };
    let row = |row: Value| Some((row["metric"].clone(), values(&row)?));
    let all: Option<Vec<_>> = rows.into_iter().map(row).collect();
    all.with_context(|| format!("samples of {selector}"))
}

/// The increases over the keys of RDDs, and over the executors, are the page faults that the daemon attributes.
fn same_increases(prometheus: &Prometheus, id: &str, attributed: u64) -> Result<()> {
    let at = prometheus.scraped()?;
    let increase = |select: &str| {
        let expression = format!("sum(increase({select}[30m])) or vector(0)");
        prometheus.number(&expression, Some(at))
    };
    let keys = format!("smtt_rdd_page_faults_total{{application_id={id:?}");
    let all = increase(&format!("{keys}}}"))?;
    let executors = format!(
        "smtt_executor_page_faults_total{{application_id={id:?},attribution=\"attributed\"}}"
    );
    let executors = increase(&executors)?;
    let known = attributed as f64;
    let apart = |seen: f64| (seen - known).abs() / known;
    for (what, seen) in [("keys", all), ("executors", executors)] {
        ensure!(
            apart(seen) <= DIFFERENCE,
            "{attributed} page faults are attributed, the increase over {what} is {seen}"
        );
    }
    // Both are within the difference of a third number: they could be twice as far from each other.
    ensure!(
        (all - executors).abs() <= DIFFERENCE * executors,
        "the increase over keys is {all}, over executors {executors}"
    );
    let (none, other) = (
        increase(&format!("{keys},rdd=\"none\"}}"))?,
        increase(&format!("{keys},rdd=\"other\"}}"))?,
    );
    println!(
        "{attributed} page faults are attributed; increases over keys {all:.0} ({:.2} % apart; none {:.1} %, other {:.1} %), over executors {executors:.0} ({:.2} % apart)",
        100.0 * apart(all),
        100.0 * none / known,
        100.0 * other / known,
        100.0 * apart(executors),
    );
    // The sums would agree if all were in one of them.
    ensure!(none <= known * 0.5 && other <= known * 0.05);
    Ok(())
}

/// The most that came in any minute, by their times in seconds.
fn worst_minute(times: &[f64]) -> usize {
    let within = |begin: &f64| {
        let minute = *begin..*begin + 60.0;
        times.iter().filter(|time| minute.contains(time)).count()
    };
    times.iter().map(within).max().unwrap_or(0)
}

/// Series of the worker and keys of its RDDs stay few while queries run, from `begin` to `end`. Other executors of the
/// machine, which do not say whose they are, are no part of that.
fn few_series(prometheus: &Prometheus, id: &str, begin: f64, end: f64) -> Result<()> {
    let (active, made) = prometheus.series()?;
    let own = format!(
        "{{job=\"smtt\",__name__!~\"ALERTS.*\",application_id=~\"{id}|\",executor_id!~\"pid .*\"}}"
    );
    // By the seconds of their first scrape since the begin.
    let (mut new, mut scrapes) = (Vec::new(), BTreeSet::new());
    for (labels, samples) in samples(prometheus, &own)? {
        let (first, _) = samples.first().context("a series without samples")?;
        new.push((first - begin, labels.to_string()));
        scrapes.extend(samples.iter().map(|(time, _)| (time - begin) as i64));
    }
    let (first_minute, later): (Vec<_>, Vec<_>) =
        new.into_iter().partition(|(time, _)| *time <= 60.0);
    let times: Vec<f64> = later.iter().map(|(time, _)| *time).collect();
    let most = worst_minute(&times);
    // Scrapes after the first minute that may have had a new series of a query.
    let while_queries = |time: &&i64| (61..(end - begin) as i64).contains(*time);
    let scrapes = scrapes.iter().filter(while_queries).count();
    println!(
        "{active} series, {made} were made; {} of the application and the daemon in the first minute of {:.0} s, at most {most} in a later one, seen by {scrapes} scrapes before the end of the queries: {later:#?}",
        first_minute.len(),
        end - begin,
    );
    let keys = format!("count by (rdd) (smtt_rdd_page_faults_total{{application_id={id:?}}})");
    let keys = prometheus.ask(&keys, None)?;
    let names: Result<BTreeSet<String>> =
        keys.iter().map(|row| text(&row["metric"], "rdd")).collect();
    let names = names?;
    println!("{} keys: {names:#?}", names.len());
    ensure!(
        scrapes >= SCRAPES,
        "the queries took {:.0} s: {scrapes} scrapes after the first minute show nothing",
        end - begin
    );
    ensure!(active <= made && made < SERIES, "{made} series were made");
    ensure!(most < NEW_A_MINUTE, "{most} new series in a minute");
    ensure!((8..KEYS).contains(&names.len()), "{} keys", names.len());
    Ok(())
}

#[test]
fn a_minute_with_many_new_series_is_not_hidden_by_quiet_ones() {
    let mut times: Vec<f64> = (0..19).map(|at| 100.0 + f64::from(at)).collect();
    assert_eq!(worst_minute(&times), 19);
    times.extend([159.9, 400.0, 10_000.0]);
    assert_eq!(worst_minute(&times), 20);
    // As an RDD for each query would make them.
    let each_query: Vec<f64> = (0..500).map(|query| f64::from(query) * 0.2).collect();
    assert!(worst_minute(&each_query) >= NEW_A_MINUTE);
    assert_eq!(worst_minute(&[]), 0);
}

/// Each rule is evaluated without an error; names of alerts and their states.
fn rules(prometheus: &Prometheus) -> Result<BTreeMap<String, String>> {
    let answer: Value = serde_json::from_str(&http::get(prometheus.port, "/api/v1/rules")?)?;
    let groups = answer["data"]["groups"].as_array().context("no groups")?;
    let mut alerts = BTreeMap::new();
    for rule in groups
        .iter()
        .flat_map(|group| group["rules"].as_array())
        .flatten()
    {
        ensure!(
            rule["health"] == "ok" && rule["lastError"].as_str().is_none_or(str::is_empty),
            "{rule}"
        );
        if rule["type"] == "alerting" {
            alerts.insert(text(rule, "name")?, text(rule, "state")?);
        }
    }
    ensure!(alerts.len() >= 15, "{alerts:?}");
    Ok(alerts)
}

/// The alert for the unread cache fires in time, and no other one does.
fn alerts(prometheus: &Prometheus, known: f64) -> Result<()> {
    let mut fired = None;
    for (labels, samples) in samples(prometheus, "ALERTS")? {
        println!("alert: {labels}");
        let (alert, first) = (text(&labels, "alertname")?, samples[0].0);
        if alert != UNREAD {
            ensure!(labels["alertstate"] == "pending", "{labels}");
            continue;
        }
        ensure!(labels["rdd"] == "unread", "{labels}");
        if labels["alertstate"] == "firing" {
            fired = Some(first - known);
        }
    }
    let fired = fired.context("no alert for the unread cache")?;
    println!("the alert for the unread cache fired after {fired:.1} s");
    ensure!(fired <= ALERT_WITHIN, "after {fired} s");
    let states = rules(prometheus)?;
    let firing = states.iter().filter(|(_, state)| *state == "firing");
    let firing: Vec<&String> = firing.map(|(alert, _)| alert).collect();
    ensure!(firing == [UNREAD], "{states:?}");
    Ok(())
}

/// Every chart of the dashboard is answered, and those of [`CHARTED`] and of metrics that the page has have series.
fn dashboard(prometheus: &Prometheus, root: &Path, page: &str) -> Result<()> {
    let there: BTreeSet<&str> = page
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    let missing: Vec<_> = CHARTED
        .iter()
        .filter(|metric| !there.contains(*metric))
        .collect();
    ensure!(missing.is_empty(), "not on the page: {missing:?}");
    let (all, mut without) = (charts(root, "2m")?, Vec::new());
    for chart in &all {
        let rows = prometheus.ask(&chart.expression, None)?;
        if rows.is_empty() {
            let asked = chart.metrics();
            let known = asked.iter().all(|metric| there.contains(metric.as_str()));
            ensure!(
                !known,
                "{} has no series: {}",
                chart.title,
                chart.expression
            );
            without.push(asked.join(" and "));
        }
    }
    println!("{} charts; without series: {without:#?}", all.len());
    Ok(())
}

/// The dashboard's variables, asked as Grafana does it, offer this worker and this application.
fn variables(prometheus: &Prometheus, root: &Path, worker: &str, id: &str) -> Result<()> {
    let text = std::fs::read_to_string(root.join("packaging/grafana/smtt.json"))?;
    let dashboard: Value = serde_json::from_str(&text)?;
    let list = dashboard["templating"]["list"]
        .as_array()
        .context("no variables")?;
    let mut offered = Vec::new();
    for query in list
        .iter()
        .filter_map(|variable| variable["query"].as_str())
    {
        let Some(inside) = query.strip_prefix("label_values(") else {
            continue;
        };
        let (metric, label) = inside
            .trim_end_matches(')')
            .split_once(", ")
            .context("a label")?;
        let path = format!("/api/v1/label/{label}/values?match%5B%5D={metric}");
        let answer: Value = serde_json::from_str(&http::get(prometheus.port, &path)?)?;
        offered.push(answer["data"].clone());
    }
    let [workers, applications] = &offered[..] else {
        bail!("{offered:?}");
    };
    ensure!(*workers == json!([worker]), "{offered:?}");
    // Another executor of the machine may be there, too.
    let applications = applications.as_array().context("no values")?;
    ensure!(applications.contains(&json!(id)), "{offered:?}");
    Ok(())
}

#[test]
fn an_operator_sees_a_job_of_500_short_queries() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let packaging = lab.paths.root.join("packaging/prometheus");
    let programs = prometheus::programs(&lab.paths);
    // The default of the daemon, which tests do not have otherwise.
    let daemon = lab.daemon_with(&Options {
        scrape_interval: Some("60s".to_owned()),
        ..Options::default()
    })?;
    let address = format!("127.0.0.1:{}", daemon.port).parse()?;
    let prometheus = Prometheus::installed(&programs, &packaging, lab.folder(), address)?;
    let application = Application::python(
        &lab.paths,
        LOCAL_CLUSTER,
        "short_queries.py",
        &[QUERIES, QUERY_SECONDS],
    )?;
    // A heap in which no finding about first touches comes a minute after the begin.
    let application = application.conf("spark.executor.memory", "640m");
    let mut run = lab.run(application.with_marker(&lab.paths))?;
    run.reach("begin")?;
    let id = run.submitted.application_id()?;
    let begin = at_rest(&daemon, &run)?;
    for gate in ["begin", "unread"] {
        run.open(gate)?;
    }
    run.reach("end")?;
    let end = at_rest(&daemon, &run)?;

    // The executors' counts are the kernel's, of the job and of the whole life.
    for (executor, pair) in between(&begin, &end) {
        same_faults(&format!("executor {executor}"), &pair)?;
        let (end, before) = (&end[&executor], begin[&executor].before);
        ensure!(
            end.process.abs_diff(end.counted + before) <= LIFE_TOLERANCE + end.idle,
            "executor {executor}: {end:?}, {before} before tracing"
        );
    }
    let attributed: u64 = end.values().map(|pair| pair.attributed).sum();
    let rdds = sum(&run.rows(&daemon, &["rdds"])?, "page_faults");
    ensure!(
        rdds.abs_diff(attributed) <= attributed / 100,
        "{rdds} page faults of RDDs, {attributed} of executors"
    );
    settled("the increases have every fault", &|| {}, || {
        same_increases(&prometheus, &id, attributed)
    })?;
    let known = reached(&run, "unread")?;
    settled("the alert for the unread cache fires", &|| {}, || {
        let state = format!("ALERTS{{alertname={UNREAD:?},alertstate=\"firing\"}}");
        ensure!(!prometheus.ask(&state, None)?.is_empty(), "it does not");
        Ok(())
    })?;
    alerts(&prometheus, known)?;
    // A rate needs two scrapes, and Prometheus evaluates the rules once a minute by default.
    settled("the recording rules have results", &|| {}, || {
        for rule in RECORDED {
            let rows = prometheus.ask(rule, None)?;
            ensure!(!rows.is_empty(), "the recording rule {rule} has no result");
        }
        Ok(())
    })?;
    // What comes and goes may be on the page and in no scrape yet.
    settled("the charts have series", &|| {}, || {
        dashboard(&prometheus, &lab.paths.root, &daemon.metrics()?)
    })?;
    let worker = format!("127.0.0.1:{}", daemon.port);
    settled(
        "the dashboard can be set to the application",
        &|| {},
        || variables(&prometheus, &lab.paths.root, &worker, &id),
    )?;
    let began = reached(&run, "begin")?;
    settled("half a minute after the first is known", &|| {}, || {
        let after = prometheus.scraped()? - began;
        ensure!(after > 90.0, "{after:.0} s");
        Ok(())
    })?;
    few_series(&prometheus, &id, began, reached(&run, "end")?)?;
    let result = run.finish(&["end"])?;
    ensure!(result.starts_with("RESULT short queries 500 "), "{result}");
    drop(prometheus);
    drop(daemon);
    lab.passed()
}

/// The longest time until the alert for an unread cache fires, by the packaged files: `tests.yml` has the times of the
/// alert itself.
#[test]
fn by_the_packaged_files_an_unread_cache_is_an_alert_within_two_minutes() -> Result<()> {
    let paths = xtask::paths::Paths::find()?;
    let packaging = paths.root.join("packaging/prometheus");
    let seconds = |text: &str, key: &str| -> Result<u64> {
        let value = text.lines().find_map(|line| line.trim().strip_prefix(key));
        let value = value.and_then(|value| value.split_whitespace().next());
        let value = value.with_context(|| format!("no {key} in {text}"))?;
        let number = value.strip_suffix('s').with_context(|| value.to_owned())?;
        Ok(number.parse()?)
    };
    let rules = std::fs::read_to_string(packaging.join("alerts.yml"))?;
    let group = rules
        .split("\n  - name: ")
        .find(|group| group.contains(UNREAD));
    let group = group.context("no group")?;
    let (_, alert) = group.split_once(UNREAD).context("no alert")?;
    for entry in packaging.join("scrape").read_dir()? {
        let path = entry?.path();
        if !path.is_file() {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        // A reader takes the job alone into a configuration of their own.
        let (_, job) = text.split_once("job_name: smtt\n").context("no job")?;
        let find = smtt_daemon::metrics::accountant::FIND_EVERY.as_secs();
        let parts = [
            find,
            seconds(job, "scrape_interval:")?,
            seconds(group, "interval:")?,
            seconds(alert, "for:")?,
        ];
        println!("{}: {parts:?}", path.display());
        let longest = Duration::from_secs(parts.iter().sum());
        ensure!(longest.as_secs_f64() < ALERT_WITHIN, "{longest:?}");
    }
    Ok(())
}
