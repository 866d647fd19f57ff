//! A real Prometheus scrapes a daemon with the rules, alerts and charts of `packaging`: in `live.rs` a whole one beside a
//! real application. Here its server alone, where a replayed job has what no healthy application has: probes that are
//! down, losses, a death, applications that end before the second scrape, and a daemon that goes. What crosses the
//! connection is compressed.

mod job;
mod live;
mod readme;
mod server;

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use smtt_common::counter::FaultCounters;
use smtt_daemon::metrics::{KeyLimits, MetricsSettings, Names, accountant};
use smtt_daemon::postmortem::keeper::Keeper;
use smtt_daemon::server::Web;
use smtt_daemon::shared::{DaemonInfo, Shared};
use smtt_machine::clock::now_boot_ns;
use smtt_model::ledger::{DecodeCounts, SourceCounts};
use smtt_model::postmortem::{Report, Row, Verdict as Death};
use smtt_model::readings::Readings;
use smtt_model::rows::GroupBy;
use smtt_model::state::{CgroupMemory, KernelMemory, Limits, ProcessMemory};
use smtt_model::verdict::{Verdict, VerdictState};
use xtask::http;
use xtask::paths::Paths;
use xtask::process::{output, wait_for};
use xtask::setup::prometheus;

use job::Job;
use server::{Prometheus, Relay, Served, promtool};

/// Queries of the replayed job, and time of one.
const QUERIES: u32 = 100;
const QUERY: Duration = Duration::from_millis(40);
/// RDDs of one query, and executors.
const RDDS: u32 = 20;
const EXECUTORS: u64 = 2;
/// Applications that do all their work at once.
const SHORT: u64 = 5;
/// The daemon's `[web] scrape_interval`: four times Prometheus', so that no late scrape misses a counter's first 0.
const INTERVAL: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_secs(300);

/// Checks a scrape configuration as it is on the host of Prometheus, where the folder has another path.
fn check_installed(programs: &Path, packaging: &Path, config: &Path) -> Result<()> {
    let text = fs::read_to_string(config)?;
    let rules =
        "rule_files: [/etc/prometheus/smtt/recording.yml, /etc/prometheus/smtt/alerts.yml]\n";
    ensure!(text.contains(rules), "{}: no {rules}", config.display());
    let there = text.replace("/etc/prometheus/smtt", &packaging.display().to_string());
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("prometheus.yml");
    fs::write(&file, there)?;
    let file = file.display().to_string();
    promtool(programs, packaging, &["check", "config", &file], "")
}

fn shared(by: GroupBy) -> Arc<Shared> {
    let info = DaemonInfo {
        version: "0.1.0".to_owned(),
        kernel_side: "test".to_owned(),
        telemetry_path: "/metrics".to_owned(),
        metrics: MetricsSettings {
            keys: KeyLimits {
                all: 200,
                per_application: 100,
            },
            by,
            scrape_interval: INTERVAL,
        },
        doctor: Vec::new,
    };
    let shared = Shared::new(info, Limits::default());
    shared.set_verdicts(vec![Verdict {
        name: "fault".to_owned(),
        hook: String::new(),
        verdict: VerdictState::Ok,
        reason: String::new(),
    }]);
    Arc::new(shared)
}

/// A chart of the dashboard.
struct Chart {
    title: String,
    expression: String,
}

impl Chart {
    /// Names of the metrics that it asks for.
    fn metrics(&self) -> Vec<String> {
        let part_of_name = |sign: char| sign.is_alphanumeric() || sign == '_';
        let mut parts: Vec<&str> = self.expression.split('{').collect();
        // The last part is what follows the last selector.
        parts.pop();
        let name = |part: &str| {
            part.rsplit(|sign| !part_of_name(sign))
                .next()
                .map(str::to_owned)
        };
        parts.into_iter().filter_map(name).collect()
    }
}

/// Every expression of the dashboard, with rates over this time.
fn charts(root: &Path, rate: &str) -> Result<Vec<Chart>> {
    let text = fs::read_to_string(root.join("packaging/grafana/smtt.json"))?;
    let dashboard: Value = serde_json::from_str(&text)?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    let folded = panels.iter().filter_map(|panel| panel["panels"].as_array());
    let mut charts = Vec::new();
    for panel in panels.iter().chain(folded.flatten()) {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().context("no expression")?;
            charts.push(Chart {
                title: panel["title"].as_str().unwrap_or_default().to_owned(),
                expression: expression
                    .replace("$instance", ".*")
                    .replace("$application", ".*")
                    .replace("$__rate_interval", rate),
            });
        }
    }
    ensure!(charts.len() >= 80, "{} charts", charts.len());
    Ok(charts)
}

/// Checks again until everything is right, while ticks go on: a scrape may be late or fail.
fn settled(what: &str, tick: &dyn Fn(), mut check: impl FnMut() -> Result<()>) -> Result<()> {
    let mut last = None;
    let right = wait_for(what, LIMIT, || {
        tick();
        sleep(Duration::from_millis(200));
        Ok(check().map_err(|error| last = Some(error)).ok())
    });
    right.with_context(|| format!("{last:?}"))
}

/// The increases of each application's counters are its faults. At the time of a scrape Prometheus has nothing to
/// extrapolate.
fn increases(prometheus: &Prometheus, all: &[u64], at: f64) -> Result<()> {
    for (application, faults) in all.iter().enumerate() {
        for (what, select) in [
            (
                "keys",
                format!("smtt_rdd_page_faults_total{{application_id=\"app-{application}\"}}"),
            ),
            (
                "executors",
                format!(
                    "smtt_executor_page_faults_total{{application_id=\"app-{application}\",attribution=\"attributed\"}}"
                ),
            ),
        ] {
            let increase = prometheus.number(&format!("sum(increase({select}[30m]))"), Some(at))?;
            ensure!(
                (increase - *faults as f64).abs() <= *faults as f64 * 0.02,
                "app-{application} has {faults} page faults, the increase over its {what} is {increase}"
            );
            println!("app-{application}: {faults} page faults, increase over {what} {increase:.0}");
        }
    }
    Ok(())
}

/// Alerts that [`troubles`] must make, pending or firing.
const ALERTS: [&str; 5] = [
    "SmttProbeDown",
    "SmttEventsLost",
    "SmttLedgerInconsistent",
    "SmttExecutorDiedOfMemory",
    "SmttExecutorNearMemoryLimit",
];
/// What the alerts are for: a probe that is not attached, records that are lost with and without an explanation, an
/// executor that died of memory, and one that is close to its limit.
fn troubles(shared: &Shared) {
    let mut verdicts = shared.probes();
    verdicts.push(Verdict {
        name: "fork".to_owned(),
        hook: String::new(),
        verdict: VerdictState::Broken,
        reason: "refused".to_owned(),
    });
    shared.set_verdicts(verdicts);
    let source = SourceCounts {
        taken: 100,
        malformed: 10,
    };
    let decode = DecodeCounts {
        attempted: 100,
        decoded: 90,
        ..DecodeCounts::default()
    };
    shared.tick(source, &decode);
    let keeper = Arc::new(Keeper::new(None));
    shared.set_keeper(Arc::clone(&keeper));
    keeper.add(Report {
        row: Row {
            verdict: Death::OomKilledCgroup,
            ..Row::default()
        },
        ..Report::default()
    });
    let kernel = KernelMemory {
        process: ProcessMemory {
            resident_bytes: 96 << 20,
            ..ProcessMemory::default()
        },
        cgroup: Some(CgroupMemory {
            version: 2,
            current_bytes: 97 << 20,
            limit_bytes: Some(100 << 20),
            peak_bytes: Some(98 << 20),
            ..CgroupMemory::default()
        }),
        ..KernelMemory::default()
    };
    shared.state().set_memory(1, kernel, now_boot_ns());
}

/// The metrics as curl unpacks them: those that others of the same second get as they are.
fn compressed(address: SocketAddr, file: &Path) -> Result<String> {
    for _ in 0..20 {
        let url = format!("http://{address}/metrics");
        let head = output(
            Command::new("curl")
                .args(["--silent", "--show-error", "--fail", "--compressed"])
                .args(["--dump-header", "-", "--output"])
                .arg(file)
                .arg(url),
        )?;
        ensure!(
            head.to_ascii_lowercase()
                .contains("\ncontent-encoding: gzip"),
            "{head}"
        );
        let unpacked = fs::read_to_string(file)?;
        // The time that an answer took is in it.
        if unpacked == http::get(address.port(), "/metrics")? {
            return Ok(unpacked);
        }
    }
    bail!("no compressed answer is the one that a client without compression gets");
}

#[test]
fn increases_have_every_fault_and_troubles_are_alerts() -> Result<()> {
    let paths = Paths::find()?;
    let programs = prometheus::programs(&paths);
    let packaging = paths.root.join("packaging/prometheus");
    promtool(
        &programs,
        &packaging,
        &["check", "rules", "recording.yml", "alerts.yml"],
        "",
    )?;
    promtool(&programs, &packaging, &["test", "rules", "tests.yml"], "")?;
    for entry in packaging.join("scrape").read_dir()? {
        let path: PathBuf = entry?.path();
        if path.is_file() {
            check_installed(&programs, &packaging, &path)?;
        }
    }

    let folder = tempfile::tempdir()?;
    let shared = shared(GroupBy::Name);
    let served = Served::start(&shared, folder.path(), Names::Shown)?;
    let (exporter, address) = (Arc::clone(&served.exporter), served.address);
    let ended = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&ended);
    accountant::spawn(exporter, Arc::clone(&shared), move || {
        until.load(Ordering::Relaxed)
    });
    let relay = Relay::start(address)?;
    let prometheus = Prometheus::start(&programs, &packaging, folder.path(), relay.address, "")?;

    let mut job = Job {
        shared: &shared,
        faults: Vec::new(),
    };
    for executor in 1..=EXECUTORS {
        job.executor(executor, 0);
    }
    // Quiet, but ticks go on.
    let tick = || {
        let readings = Readings {
            access_known: true,
            major_known: true,
            ..Readings::default()
        };
        shared.state().add(&readings, now_boot_ns());
    };
    for query in 0..QUERIES {
        job.query(query);
        sleep(QUERY);
    }
    // A death is an increase of a counter that was there before.
    settled("Prometheus has scraped once", &tick, || {
        prometheus.scraped().map(|_| ())
    })?;
    troubles(&shared);
    // Applications that end before the second scrape.
    for application in 1..=SHORT {
        let executor = 10 + application;
        job.executor(executor, application);
        job.rdd(executor, 1, "once", "");
        let growth = FaultCounters {
            read: 1000 * application,
            ..FaultCounters::default()
        };
        job.faults(executor, application, 1, growth);
    }
    // Until the counters show their values, and Prometheus has scraped them twice.
    let mut right = None;
    settled("the increases have every fault", &tick, || {
        let at = prometheus.scraped()?;
        if let Err(error) = increases(&prometheus, &job.faults, at) {
            right = None;
            return Err(error);
        }
        ensure!(*right.get_or_insert(at) < at, "one scrape only");
        Ok(())
    })?;
    settled("the rules have results", &tick, || {
        for alert in ALERTS {
            let rows = prometheus.ask(&format!("ALERTS{{alertname={alert:?}}}"), None)?;
            ensure!(!rows.is_empty(), "no alert {alert}");
        }
        let lost = prometheus.ask("instance:smtt_events_lost:rate5m > 0", None)?;
        ensure!(!lost.is_empty(), "the rule of losses has no result");
        Ok(())
    })?;

    let text = compressed(address, &folder.path().join("compressed"))?;
    let passed = relay.passed();
    let mean = passed.bytes as f64 / passed.scrapes as f64;
    println!(
        "{} of {} scrapes were compressed; {mean:.0} bytes on average, the last text has {}",
        passed.compressed,
        passed.scrapes,
        text.len()
    );
    ensure!(passed.scrapes > 5, "{passed:?}");
    ensure!(passed.compressed == passed.scrapes, "{passed:?}");
    ensure!(3.0 * mean < text.len() as f64, "{passed:?}");
    promtool(&programs, &packaging, &["check", "metrics"], &text)?;
    ended.store(true, Ordering::Relaxed);
    served.stop()?;
    settled("a daemon that is gone is an alert", &|| {}, || {
        let down = prometheus.ask("ALERTS{alertname=\"SmttDaemonDown\"}", None)?;
        ensure!(!down.is_empty(), "no alert for the daemon");
        Ok(())
    })?;
    drop(prometheus);
    Ok(())
}

/// Runs of one query, and the RDDs of each.
const RUNS: u32 = 100;

#[test]
fn a_hundred_runs_of_a_query_are_one_series_whose_increase_has_every_fault() -> Result<()> {
    let paths = Paths::find()?;
    let programs = prometheus::programs(&paths);
    let packaging = paths.root.join("packaging/prometheus");
    let folder = tempfile::tempdir()?;
    let shared = shared(GroupBy::Query);
    let served = Served::start(&shared, folder.path(), Names::Shown)?;
    let ended = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&ended);
    accountant::spawn(
        Arc::clone(&served.exporter),
        Arc::clone(&shared),
        move || until.load(Ordering::Relaxed),
    );
    let prometheus = Prometheus::start(&programs, &packaging, folder.path(), served.address, "")?;
    let mut job = Job {
        shared: &shared,
        faults: Vec::new(),
    };
    for executor in 1..=EXECUTORS {
        job.executor(executor, 0);
    }
    let tick = || {
        let readings = Readings {
            access_known: true,
            major_known: true,
            ..Readings::default()
        };
        shared.state().add(&readings, now_boot_ns());
    };
    for run in 0..RUNS {
        // Other ids of RDDs, stages and executions, and another value in the text.
        job.sql_query(
            run,
            &format!("SELECT count(*)\nFROM users WHERE id = {run}"),
        );
        sleep(QUERY);
    }
    let series = "smtt_rdd_page_faults_total{access=\"write\",rdd!~\"none|other\"}";
    settled("the increase has every fault", &tick, || {
        let at = prometheus.scraped()?;
        let count = prometheus.number(&format!("count({series})"), Some(at))?;
        ensure!(count == 1.0, "{count} series");
        let query = "smtt_rdd_page_faults_total{rdd=\"SELECT count(*) FROM users WHERE id = ?\"}";
        let increase = prometheus.number(&format!("sum(increase({query}[30m]))"), Some(at))?;
        let all = job.faults[0] as f64;
        ensure!(
            (increase - all).abs() <= all * 0.02,
            "{all} page faults, the increase is {increase}"
        );
        println!("{RUNS} runs: {count} series, {all} page faults, increase {increase:.0}");
        Ok(())
    })?;
    ended.store(true, Ordering::Relaxed);
    drop(prometheus);
    served.stop()
}

/// A password of the user `prometheus`, and its bcrypt hash.
const PASSWORD: &str = "of prometheus";
const HASH: &str = "$2b$04$abcdefghijklmnopqrstuusnI7L1HSYPtZYMtMSGhPX9ThORE6qP2";

/// Writes a file that only its owner reads.
fn secret(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, Permissions::from_mode(0o600))?)
}

/// A certificate for 127.0.0.1 that is its own authority, with its key.
fn certificate(folder: &Path) -> Result<()> {
    let arguments = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=smtt \
                     -addext subjectAltName=IP:127.0.0.1 -keyout server.key -out server.crt";
    output(
        Command::new("openssl")
            .args(arguments.split_whitespace())
            .current_dir(folder),
    )?;
    Ok(())
}

#[test]
fn a_web_configuration_of_exporters_serves_prometheus_and_who_has_no_password_gets_nothing()
-> Result<()> {
    let paths = Paths::find()?;
    let programs = prometheus::programs(&paths);
    let packaging = paths.root.join("packaging/prometheus");
    let folder = tempfile::tempdir()?;
    let file = |name: &str| folder.path().join(name);
    certificate(folder.path())?;
    let exporters = format!(
        "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\nbasic_auth_users:\n  prometheus: {HASH}\n"
    );
    secret(&file("web.yml"), &exporters)?;
    let defaults = smtt_config::parse("", Path::new("/etc/smtt/smtt.toml"))?;
    let web = Web::load(&smtt_config::Web {
        config_file: Some(file("web.yml")),
        ..defaults.web
    })?;
    let shared = shared(GroupBy::Name);
    let served = Served::start(&shared, folder.path(), web)?;
    let address = served.address;
    let tls = format!("    tls_config: {{ca_file: {:?}}}\n", file("server.crt"));
    let job = |name: &str, keys: &str| {
        format!("  - job_name: {name}\n    static_configs: [{{targets: [\"{address}\"]}}]\n{keys}")
    };
    let user = |password: &str| {
        format!(
            "    basic_auth: {{username: prometheus, password: {password:?}}}\n    scheme: https\n"
        )
    };
    let more = [
        user(PASSWORD) + &tls,
        job("wrong", &(user("of another") + &tls)),
        job("nobody", &("    scheme: https\n".to_owned() + &tls)),
        job("stranger", &user(PASSWORD)),
        job("clear", ""),
    ];
    let prometheus = Prometheus::start(
        &programs,
        &packaging,
        folder.path(),
        address,
        &more.concat(),
    )?;
    settled("one of the scrapers is admitted", &|| {}, || {
        for (name, up) in [
            ("smtt", 1.0),
            ("wrong", 0.0),
            ("nobody", 0.0),
            ("stranger", 0.0),
            ("clear", 0.0),
        ] {
            let seen = prometheus.number(&format!("up{{job={name:?}}}"), None)?;
            ensure!(seen == up, "{name}: up is {seen}");
            let series = prometheus.ask(&format!("smtt_build_info{{job={name:?}}}"), None)?;
            ensure!(series.is_empty() == (up == 0.0), "{name}: {series:?}");
        }
        Ok(())
    })?;
    let folder = folder.path();
    readme::commands_load_rules_and_scrape(&paths, &programs, folder, address, PASSWORD)?;
    served.stop()
}
