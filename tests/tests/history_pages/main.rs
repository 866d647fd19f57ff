//! Pages in a real browser: the history's with every section, sorting, filters, the time line with its levels of detail,
//! addresses that can be shared, applications that run, hostile names and narrow screens; and the reports of `smtt-ctl`, of a
//! worker and of a cluster. What the history's pages show is compared with the REST API and with the schedule that the log
//! was made from.

mod charts;
mod cluster;
mod functions;
mod large;
mod live;
mod looks;
mod memory;
mod metrics;
mod perfetto;
mod pixels;
mod report;
mod tables;
mod timeline;
mod whole;
mod worker;
mod zoom;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_history::import::{Admission, import};
use smtt_history::log::Bounds;
use smtt_history::serve::{Listen, Settings, run};
use smtt_tests::workers;
use xtask::browser::{Browser, LIMIT};
use xtask::event_log::{self, HOSTILE, ID, Shape, Truth};
use xtask::http::get;
use xtask::paths::Paths;
use xtask::process::{free_port, wait_for};

const SHAPE: Shape = Shape {
    tasks: 20_000,
    stages: 12,
    executors: 24,
    cores: 4,
    sql_metrics: 0,
};

/// The job of the SQL execution.
const JOB: usize = 5;

struct Site {
    browser: Browser,
    port: u16,
    truth: Truth,
    store: PathBuf,
    pictures: PathBuf,
}

impl Site {
    fn start(paths: &Paths, folder: &Path, shape: &Shape) -> Result<Self> {
        let (log, store) = (folder.join(ID), folder.join("store"));
        let truth = event_log::write_with_query(&log, shape, JOB)?;
        let done = import(&store, &log, Bounds::default(), &Admission::default())?;
        ensure!(done.damaged == 0, "{:?}", done.named);
        workers::write(&store, shape.executors, truth.length)?;
        let port = free_port()?;
        let settings = Settings {
            store: store.clone(),
            event_logs: None,
            cache_bytes: 256 << 20,
            bounds: Bounds::default(),
            bucket: None,
        };
        // The server ends with the process.
        std::thread::spawn(move || run(settings, Listen::local(port)));
        wait_for("the server answers", LIMIT, || Ok(get(port, "/").ok()))?;
        let pictures = paths.target.join("pages");
        std::fs::create_dir_all(&pictures)?;
        Ok(Self {
            browser: Browser::start(paths, folder)?,
            port,
            truth,
            store,
            pictures,
        })
    }

    fn open(&self, path: &str) -> Result<()> {
        self.browser
            .open(&format!("http://127.0.0.1:{}/{path}", self.port))
    }

    fn part(&self, part: &str) -> Result<()> {
        self.open(&format!("applications/{ID}/{part}"))
    }

    fn text(&self, script: &str) -> Result<String> {
        let value = self.browser.run(&format!("return String({script})"))?;
        Ok(value.as_str().unwrap_or_default().to_owned())
    }

    fn number(&self, script: &str) -> Result<i64> {
        let text = self.text(script)?;
        text.parse().with_context(|| format!("{script}: {text:?}"))
    }

    /// The page has no script of a name, no error in its console, and does not scroll sideways.
    fn is_sound(&self, what: &str) -> Result<()> {
        let complaints = self.browser.complaints()?;
        ensure!(complaints.is_empty(), "{what}: {complaints:?}");
        ensure!(
            self.text("document.title")? != "owned",
            "{what}: a name ran"
        );
        let wide = self.text("document.documentElement.scrollWidth <= innerWidth")?;
        ensure!(wide == "true", "{what}: the page is wider than its window");
        Ok(())
    }

    fn rest(&self, path: &str) -> Result<Value> {
        let text = get(self.port, &format!("/api/v1/applications/{ID}/{path}"))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// A number that the time line's script says of its picture.
    fn data(&self, name: &str) -> Result<i64> {
        self.number(&format!(
            "document.getElementById('timeline').dataset.{name}"
        ))
    }

    /// The time line has the pictures of the window that the page is at.
    fn drawn(&self) -> Result<()> {
        self.browser.until(
            "return ['timeline', 'memory'].every((id) => document.getElementById(id).dataset.state === 'ready')",
        )
    }
}

#[test]
fn pages_show_an_application() -> Result<()> {
    let paths = Paths::find()?;
    let folder = tempfile::tempdir()?;
    let site = Site::start(&paths, folder.path(), &SHAPE)?;
    functions::write(&site)?;
    sections(&site)?;
    tasks(&site)?;
    tables::sorted(&site)?;
    tables::filters(&site)?;
    functions::page(&site)?;
    zoom::lanes(&site)?;
    metrics::findings(&paths, &site, folder.path())?;
    live::pages(&site, folder.path())?;
    whole::page(&site, folder.path())?;
    timeline::levels(&site)?;
    timeline::pointer(&site)?;
    timeline::task_link(&site)?;
    timeline::jobs(&site)?;
    timeline::shared_addresses(&site)?;
    timeline::filters(&site)?;
    memory::panel(&site)?;
    pixels::tasks(&site)?;
    pixels::memory(&site)?;
    looks::schemes_and_widths(&site)?;
    looks::keyboard(&site)?;
    perfetto::trace(&paths, &site, folder.path())
}

fn sections(site: &Site) -> Result<()> {
    site.open("")?;
    ensure!(site.text("document.querySelector('#applications td a').textContent")? == HOSTILE);
    site.is_sound("the list")?;
    site.browser.click("#applications td a")?;
    ensure!(site.text("document.querySelector('h1').textContent")? == HOSTILE);
    let paths = [
        "",
        "jobs",
        "stages",
        "stages/3/0",
        "executors",
        "rdds",
        "environment",
        "sql",
        "sql/7",
    ];
    for part in paths {
        site.part(part)?;
        site.is_sound(part)?;
    }
    for (part, rest, id) in [
        ("jobs", "jobs", "jobs"),
        ("stages", "stages", "stages"),
        ("executors", "allexecutors", "executors"),
        ("rdds", "storage/rdd", "rdds"),
        ("sql", "sql", "sql"),
    ] {
        let all = site.rest(rest)?.as_array().map_or(0, Vec::len) as i64;
        site.part(part)?;
        let rows = site.number(&format!(
            "document.querySelectorAll('#{id} tbody tr').length"
        ))?;
        ensure!(
            rows == all && rows > 0,
            "{part}: {rows} rows, REST has {all}"
        );
    }
    site.part("stages?job=3&sort=-executorRunTime")?;
    let run = site.rest("stages/3/0?details=false")?["executorRunTime"].clone();
    ensure!(run.as_i64() > Some(0));
    ensure!(site.number("document.querySelectorAll('#stages tbody tr').length")? == 1);
    site.part("stages/3/0")?;
    // The longest of the successful tasks, which are fewer than all.
    let tasks = site.rest("stages/3/0/taskList?length=100000")?;
    let tasks = tasks.as_array().into_iter().flatten();
    let ended = tasks.filter(|task| task["status"] == "SUCCESS");
    let longest = ended.filter_map(|task| task["duration"].as_i64()).max();
    let shown =
        site.text("document.querySelector('#distribution tbody tr td:last-child').textContent")?;
    let seconds = longest.unwrap_or_default() as f64 / 1000.0;
    ensure!(
        shown == format!("{seconds:.1} s"),
        "the longest task took {longest:?} ms, the page says {shown}"
    );
    chain(site)?;
    query(site)?;
    site.part("jobs?q=job+7+")?;
    ensure!(site.number("document.querySelector('#jobs tbody td').textContent")? == 7);
    site.part("nothing")?;
    site.part("stages?sort=no")?;
    ensure!(site.text("document.querySelector('h1').textContent")? == "Bad Request");
    // The browser names refused addresses in its console.
    site.browser.complaints().map(drop)
}

/// The SQL execution: its description is text in the list, on its page and in its job's row, and each leads to the next.
fn query(site: &Site) -> Result<()> {
    let described = event_log::query();
    site.part("sql")?;
    let list = "document.querySelector('#sql tbody a')";
    ensure!(site.text(&format!("{list}.textContent"))? == described);
    site.browser.click("#sql tbody a")?;
    ensure!(site.text("document.querySelector('main p bdi').textContent")? == described);
    ensure!(site.text("document.querySelector('pre.plan').textContent")? == HOSTILE);
    let job =
        site.text("[...document.querySelectorAll('main p a')].map((it) => it.textContent)")?;
    ensure!(job == JOB.to_string(), "its jobs are {job}");
    site.is_sound("a query")?;
    site.part("jobs?sort=jobId")?;
    let cells = "document.querySelectorAll('#jobs tbody tr')[5].cells";
    let texts: Vec<String> = serde_json::from_str(&site.text(&format!(
        "JSON.stringify([...{cells}].slice(0, 3).map((cell) => cell.textContent))"
    ))?)?;
    let expected = ["5".to_owned(), format!("job 5 {HOSTILE}"), described];
    ensure!(texts == expected, "{texts:?}");
    let to = site.text(&format!("{cells}[2].querySelector('a').pathname"))?;
    ensure!(to == format!("/applications/{ID}/sql/7"), "{to}");
    site.is_sound("a job of a query")
}

/// The chain of a stage's RDDs: the table has those of the REST API, the picture shows each in a box that holds its texts.
fn chain(site: &Site) -> Result<()> {
    let rest = site.rest("stages/3/0?details=false")?;
    let mut ids: Vec<i64> = serde_json::from_value(rest["rddIds"].clone())?;
    ids.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
    // Its first RDD reads the last one of stage 2.
    ids.push(23);
    let shown = site.text(
        "[...document.querySelectorAll('#rdds-of-stage tbody th')].map((head) => head.textContent)",
    )?;
    let expected: Vec<String> = ids.iter().map(i64::to_string).collect();
    ensure!(shown == expected.join(","), "{shown}, not {expected:?}");
    ensure!(site.number("document.querySelectorAll('svg.chain .edge').length")? == 4);
    cached(site, &rest)?;
    let fits = "[...document.querySelectorAll('svg.chain g')].every((group) => { const box = group.querySelector('rect').getBBox();
        return [...group.querySelectorAll('text')].every((text) => { const own = text.getBBox();
            return own.x >= 0 && own.x + own.width <= box.width && own.y >= 0 && own.y + own.height <= box.height; }); })";
    ensure!(site.text(fits)? == "true", "a text is wider than its box");
    site.browser
        .run("document.getElementById('chain').scrollIntoView()")?;
    site.browser.picture(&site.pictures.join("chain.png"))?;
    site.browser.click("#rdds-of-stage td a")?;
    ensure!(site.text("document.querySelector('h1').textContent")? == "Stage 2, attempt 0");
    site.is_sound("the chain of RDDs")
}

/// Cells of an RDD in the table of the chain, without its id.
fn cells(site: &Site, id: i64) -> Result<Vec<String>> {
    let cells = site.text(&format!(
        "JSON.stringify([...[...document.querySelectorAll('#rdds-of-stage tbody tr')].find((row) =>
            row.querySelector('th').textContent === '{id}').querySelectorAll('td')].map((cell) => cell.textContent))"
    ))?;
    Ok(serde_json::from_str(&cells)?)
}

/// The stage's last RDD is cached: its cells are what the REST API says of it, and its call site is that of the log. The one
/// before is not.
fn cached(site: &Site, stage: &Value) -> Result<()> {
    let storage = site.rest("storage/rdd/33")?;
    let of = |name: &str| storage[name].as_i64().context("no number");
    let (blocks, memory, disk) = (
        of("numCachedPartitions")?,
        of("memoryUsed")?,
        of("diskUsed")?,
    );
    ensure!(blocks > 0 && memory > 0 && memory < 1024, "{storage}");
    let held = storage["partitions"].as_array().into_iter().flatten();
    let mut executors: Vec<&str> = held
        .filter_map(|block| block["executors"].as_array())
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    executors.sort_unstable();
    executors.dedup();
    let level = storage["storageLevel"].as_str().context("no level")?;
    let site_of_stage = stage["details"].as_str().context("no call site")?;
    let shown = cells(site, 33)?;
    let expected = [
        HOSTILE.to_owned(),
        site_of_stage.to_owned(),
        "32".to_owned(),
        stage["numTasks"].to_string(),
        level.to_owned(),
        blocks.to_string(),
        format!("{memory} B"),
        format!("{disk} B"),
        executors.join(", "),
    ];
    let own: Vec<String> = [0, 2, 3, 4, 5, 6, 7, 8, 9]
        .map(|at: usize| shown[at].replace(',', "").trim().to_owned())
        .to_vec();
    let expected = expected.map(|cell| cell.replace(',', ""));
    ensure!(own == expected, "{own:?}, not {expected:?}");
    ensure!(level.contains("Memory") && executors == ["1"], "{storage}");
    // Absent, and no zero.
    let plain = cells(site, 32)?;
    ensure!(plain[5..9].iter().all(|cell| cell == "–"), "{plain:?}");
    Ok(())
}

fn tasks(site: &Site) -> Result<()> {
    site.part("tasks")?;
    let total = "document.querySelector('.pages span').textContent.split(' of ')[1]";
    ensure!(site.number(total)? == SHAPE.tasks as i64);
    site.browser.click("#tasks th a[href*='sort=-duration']")?;
    let (longest, ms) = site.truth.longest;
    let id = "document.querySelector('#tasks tbody td a').textContent";
    ensure!(site.number(id)? == longest as i64, "the longest task");
    site.part("tasks?status=FAILED")?;
    ensure!(site.number(total)? == site.truth.failed as i64);
    site.browser.click("a[rel=next]")?;
    site.browser
        .until("return location.search.includes('offset=50')")?;
    site.is_sound("tasks")?;
    // Sorted by a column that only the table on disk has.
    site.part("tasks?sort=-input&length=3")?;
    ensure!(site.number(id)? == SHAPE.tasks as i64 - 1);
    site.part(&format!("tasks/{longest}"))?;
    site.is_sound("a task")?;
    let page = site.text("document.querySelector('main').textContent")?;
    let rest = site.rest(&format!(
        "stages/{}/0/taskList?offset=0&length=100000",
        stage_of(site, longest)?
    ))?;
    let tasks = rest.as_array().into_iter().flatten();
    let task = tasks.into_iter().find(|task| task["taskId"] == longest);
    let task = task.context("REST does not have the longest task")?;
    ensure!(task["duration"] == ms);
    let run = task["taskMetrics"]["executorRunTime"].to_string();
    ensure!(page.contains(&run), "the run time {run} is not on the page");
    Ok(())
}

fn stage_of(site: &Site, task: usize) -> Result<i64> {
    let path = format!("/smtt/v1/applications/{ID}/tasks/{task}");
    let json: Value = serde_json::from_str(&get(site.port, &path)?)?;
    json["stageId"].as_i64().context("no stage")
}
