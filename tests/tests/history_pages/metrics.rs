//! The findings of the server's metrics: Prometheus' own tool reads the text, and they are those of the page.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_history::import::{Admission, import};
use smtt_history::log::Bounds;
use xtask::event_log::{self, ID, Shape};
use xtask::http::get;
use xtask::paths::Paths;
use xtask::process::wait_for;
use xtask::setup::prometheus::programs;

use super::Site;

const SICK: &str = "app-20260922000000-0003";
/// Until the job has looked at the applications of this site, with its pauses.
const LIMIT: Duration = Duration::from_secs(60);
const SHAPE: Shape = Shape {
    tasks: 256,
    stages: 1,
    executors: 8,
    cores: 4,
    sql_metrics: 0,
};

/// An application whose last successful task takes two minutes longer.
fn write(site: &Site, folder: &Path) -> Result<()> {
    let log = folder.join(SICK);
    event_log::write(&log, &SHAPE)?;
    let text = std::fs::read_to_string(&log)?.replace(ID, SICK);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let is_end = |line: &String| {
        line.contains("SparkListenerTaskEnd") && line.contains("\"Reason\":\"Success\"")
    };
    let at = lines.iter().rposition(is_end).context("no task succeeds")?;
    let mut event: Value = serde_json::from_str(&lines[at])?;
    for path in ["/Task Info/Finish Time", "/Task Metrics/Executor Run Time"] {
        let value = event.pointer_mut(path).context(path)?;
        *value = Value::from(value.as_i64().context(path)? + 120_000);
    }
    lines[at] = event.to_string();
    std::fs::write(&log, lines.join("\n"))?;
    let done = import(&site.store, &log, Bounds::default(), &Admission::default())?;
    ensure!(done.damaged == 0, "{:?}", done.named);
    Ok(())
}

pub(super) fn findings(paths: &Paths, site: &Site, folder: &Path) -> Result<()> {
    write(site, folder)?;
    site.open(&format!("applications/{SICK}/findings"))?;
    let rules = "[...document.querySelectorAll('#findings tbody tr')].map((row) => row.cells[1].textContent + ' ' + row.cells[2].textContent).sort().join()";
    let shown = site.text(rules)?;
    ensure!(!shown.is_empty(), "the application has no finding");
    // A scrape has what is known, and starts the job that looks for more.
    let has = |line: &str| line.starts_with("smtt_history_finding{") && line.contains(SICK);
    let text = wait_for("a scrape has the findings", LIMIT, || {
        let text = get(site.port, "/metrics")?;
        Ok(text.lines().any(has).then_some(text))
    })?;
    let own = text.lines().filter(|line| has(line));
    let mut found: Vec<String> = Vec::new();
    for line in own {
        let label = |name: &str| {
            let (_, rest) = line.split_once(&format!("{name}=\""))?;
            rest.split('"').next()
        };
        let name = label("rule").zip(label("severity"));
        let (rule, severity) = name.with_context(|| line.to_owned())?;
        let count: usize = line.rsplit(' ').next().unwrap_or_default().parse()?;
        found.extend(vec![format!("{rule} {severity}"); count]);
    }
    found.sort();
    ensure!(found.join(",") == shown, "{found:?}, the page has {shown}");
    let mut tool = Command::new(programs(paths).join("promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("promtool does not start: run `cargo xtask setup`")?;
    let stdin = tool.stdin.take();
    stdin
        .context("no standard input")?
        .write_all(text.as_bytes())?;
    let said = tool.wait_with_output()?;
    ensure!(
        said.status.success() && said.stdout.is_empty() && said.stderr.is_empty(),
        "promtool check metrics: {said:?}\n{text}"
    );
    Ok(())
}
