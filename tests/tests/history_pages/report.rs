//! The page of `smtt-ctl report --html` in a real browser: as it looks in both schemes and at both widths, and what its
//! script adds. The page is of a job of 25 s that a daemon's server has seen, without the kernel side.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use smtt_common::context::Activity;
use smtt_common::counter::{ContextKey, ExecutorCounters, FaultCounters};
use smtt_common::event::marker::storage_level::{DESERIALIZED, DISK, MEMORY, REPLICATION_SHIFT};
use smtt_common::page_walk::WalkCounters;
use smtt_daemon::metrics::MetricsSettings;
use smtt_daemon::server::{ControlSocket, serve_control};
use smtt_daemon::shared::{DaemonInfo, Shared};
use smtt_model::cpu::{Quantity, Role};
use smtt_model::decode::{
    BlockFact, Event, ExecutorDescribed, Fact, JobDescribed, Outcome, PageAllocated, RddDescribed,
    Span, StageDescribed, TaskEnded, TaskStarted,
};
use smtt_model::readings::{Channel, PageWalkReadings, Readings};
use smtt_model::state::Limits;
use smtt_model::verdict::{Verdict, VerdictState};
use tokio::sync::oneshot;
use xtask::browser::Browser;
use xtask::paths::Paths;

use crate::looks::{CONTRAST, TEXTS};

const APP: &str = "app-20260101120000-0001";
const EXECUTORS: u64 = 2;
const RDDS: u32 = 30;
const SECONDS: u64 = 25;
/// Length of a job.
const JOB_SECONDS: u64 = 8;
/// Begin of the first job by the driver's clock.
const BEGIN_UNIX_MS: u64 = 1_767_225_600_000;
const S: u64 = 1_000_000_000;
/// Height of the page of such a job on a wide screen, as it opens.
const HEIGHT: i64 = 3_000;
/// A name with markup, which stays text.
const NAME: &str = "<img src=x onerror=document.title='owned'> links";

fn facts(second: u64, executor: u64) -> Vec<Fact> {
    let mut facts = Vec::new();
    if second == 0 {
        facts.push(Fact::ExecutorDescribed(Box::new(ExecutorDescribed {
            application_id: APP.to_owned(),
            application_name: "Rank pages of a crawl".to_owned(),
            executor_id: executor.to_string(),
            host: "worker-1".to_owned(),
            ..ExecutorDescribed::default()
        })));
        for rdd_id in 0..RDDS {
            let cached = rdd_id % 5 == 0;
            facts.push(Fact::RddDescribed(Box::new(RddDescribed {
                rdd_id,
                name: match rdd_id {
                    0 => NAME.to_owned(),
                    id if cached => format!("ranks of step {id}"),
                    _ => "MapPartitionsRDD".to_owned(),
                },
                call_site: format!("map at Rank.scala:{}", 20 + rdd_id % 4),
                partitions: 10,
                storage_level: match cached {
                    true => DISK | MEMORY | DESERIALIZED | 1 << REPLICATION_SHIFT,
                    false => 0,
                },
                ..RddDescribed::default()
            })));
        }
    }
    let stage_id = second as u32 / 2;
    let task = second * EXECUTORS + executor;
    if second.is_multiple_of(2) {
        facts.push(Fact::StageDescribed(StageDescribed {
            stage_id,
            job_id: Some(stage_id / 4),
            tasks: 4,
            name: format!("map at Rank.scala:{}", 20 + stage_id % 4),
            ..StageDescribed::default()
        }));
    }
    if second.is_multiple_of(JOB_SECONDS) {
        let begin = BEGIN_UNIX_MS + second * 1000;
        facts.push(Fact::JobDescribed(JobDescribed {
            job_id: stage_id / 4,
            started_unix_ms: begin,
            ended_unix_ms: Some(begin + JOB_SECONDS * 1000),
            sql_execution_id: None,
            failure: match stage_id {
                4 => NAME.to_owned(),
                _ => String::new(),
            },
        }));
    }
    facts.push(Fact::TaskStarted(TaskStarted {
        task_attempt_id: task,
        stage_id,
        job_id: Some(stage_id / 4),
        ..TaskStarted::default()
    }));
    let rdd_id = second as u32 / 5 * 5;
    facts.push(Fact::PageAllocated(PageAllocated {
        task_attempt_id: Some(task),
        page_number: Some(0),
        address: 0x1000 * (1 + task),
        size_bytes: 48 << 20,
        rdd_id: Some(rdd_id),
        ..PageAllocated::default()
    }));
    facts.push(Fact::BlockStored(Box::new(BlockFact {
        block_id: format!("rdd_{rdd_id}_{}", second % 5),
        rdd_id: Some(rdd_id),
        partition: Some(second as u32 % 5),
        size_bytes: (40 + second * 3) << 20,
        task_attempt_id: Some(task),
        ..BlockFact::default()
    })));
    if let Some(before) = task.checked_sub(EXECUTORS) {
        for (activity, after_ms, ms) in [
            (Activity::SHUFFLE_FETCH, 50, 150 + 10 * second),
            (Activity::SORT, 500, 120),
        ] {
            facts.push(Fact::Span(Span {
                task_attempt_id: Some(before),
                activity: activity.0,
                start_monotonic_ns: second * S + after_ms * S / 1000,
                duration_ns: ms * S / 1000,
                ..Span::default()
            }));
        }
        facts.push(Fact::TaskEnded(TaskEnded {
            task_attempt_id: before,
            stage_id: (second as u32 - 1) / 2,
            stage_attempt: 0,
            outcome: Outcome::Succeeded,
            execution_memory_peak_bytes: 48 << 20,
            reason: String::new(),
        }));
    }
    facts
}

/// A clock is sampled in place of cycles, as in most virtual machines.
fn sampled_clock() -> PageWalkReadings {
    PageWalkReadings {
        channels: vec![Channel {
            role: Role::Cycles,
            event: "cpu-clock".to_owned(),
            quantity: Quantity::Cycles,
            pass: 0,
            period: 1_000_000,
            counted: 1,
            sampled: 1,
            samples: 1,
            enabled_ns: 1,
            running_ns: 1,
            fault: String::new(),
        }],
        ..PageWalkReadings::default()
    }
}

fn watch(shared: &Shared) {
    shared.set_ready(true);
    let verdict = |name: &str| Verdict {
        name: name.to_owned(),
        hook: "exceptions:page_fault_user".to_owned(),
        verdict: VerdictState::Ok,
        reason: String::new(),
    };
    shared.set_verdicts(["fault", "fault_major", "marker"].map(verdict).to_vec());
    for second in 0..SECONDS {
        let mut readings = Readings {
            access_known: true,
            major_known: true,
            ..Readings::default()
        };
        let mut cycles = sampled_clock();
        for executor in 0..EXECUTORS {
            let key = 4711 + executor;
            for fact in facts(second, executor) {
                shared.state().apply(Event {
                    time_ns: (second + 1) * S,
                    executor: key,
                    pid: key as u32,
                    tid: key as u32,
                    uid: 0,
                    fact,
                });
            }
            let faults = FaultCounters {
                read: 900 * (second + 1),
                write: 4000,
                ..FaultCounters::default()
            };
            let context = ContextKey {
                executor: key,
                task_attempt_id: second * EXECUTORS + executor,
                stage_id: second as u32 / 2,
                rdd_plus_one: second as u32 % RDDS + 1,
                ..ContextKey::default()
            };
            readings.contexts.push((context, faults));
            for (activity, samples) in [
                (Activity::COMPUTE, 500 + 10 * second),
                (Activity::SORT, 120),
                (Activity::INSERT, 80),
                (Activity::SPILL, 30),
            ] {
                let mut sampled = WalkCounters::default();
                sampled.samples[0] = samples;
                sampled.events[0] = samples * 1_000_000;
                let context = ContextKey {
                    activity: activity.0,
                    ..context
                };
                cycles.contexts.push((context, sampled));
            }
            let mut totals = ExecutorCounters::default();
            totals.attributed.read = 900 * (second + 1) * (second + 2) / 2;
            totals.attributed.write = 4000 * (second + 1);
            readings.executors.push((key, totals));
        }
        readings.page_walks = Some(cycles);
        let now = (second + 1) * S + S / 2;
        let mut state = shared.state();
        state.add(&readings, now);
        state.record_history(now);
    }
}

/// Writes the page by the real client.
fn page(paths: &Paths, folder: &Path, more: &[&str]) -> Result<std::path::PathBuf> {
    let ctl = paths.target.join("debug/smtt-ctl");
    ensure!(ctl.is_file(), "run `cargo build -p smtt-ctl`");
    let socket = folder.join("smtt.sock");
    let info = DaemonInfo {
        version: "0.1.0".to_owned(),
        kernel_side: "none".to_owned(),
        telemetry_path: "/metrics".to_owned(),
        metrics: MetricsSettings::at_once(100),
        doctor: Vec::new,
    };
    let shared = Arc::new(Shared::new(info, Limits::default()));
    watch(&shared);
    let (stop, stopped) = oneshot::channel::<()>();
    let (ready, bound) = std::sync::mpsc::channel();
    let path = socket.clone();
    let thread = std::thread::spawn(move || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let socket = ControlSocket::bind(&path, "")?;
            ready.send(())?;
            let until = async {
                let _ = stopped.await;
            };
            serve_control(shared, socket, until).await?;
            Ok(())
        })
    });
    bound.recv().context("the socket is not served")?;
    let file = folder.join("report.html");
    let made = Command::new(ctl)
        .env("SMTT_SOCKET", &socket)
        .args(["report", "--html", "--output"])
        .arg(&file)
        .args(more)
        .output()?;
    let _ = stop.send(());
    let served = thread.join();
    served.map_err(|_| anyhow::anyhow!("the server panicked"))??;
    ensure!(made.status.success(), "{made:?}");
    Ok(file)
}

struct Seen<'a>(&'a Browser);

impl Seen<'_> {
    fn text(&self, script: &str) -> Result<String> {
        let value = self.0.run(&format!("return String({script})"))?;
        Ok(value.as_str().unwrap_or_default().to_owned())
    }

    fn number(&self, script: &str) -> Result<i64> {
        let text = self.text(&format!("Math.round({script})"))?;
        text.parse().with_context(|| format!("{script}: {text:?}"))
    }

    fn is(&self, what: &str, script: &str, expected: &str) -> Result<()> {
        let seen = self.text(script)?;
        ensure!(seen == expected, "{what}: {seen:?}, expected {expected:?}");
        Ok(())
    }
}

#[test]
fn the_report_of_a_worker_is_readable_everywhere() -> Result<()> {
    let paths = Paths::find()?;
    let folder = tempfile::tempdir()?;
    let file = page(&paths, folder.path(), &[])?;
    let url = format!("file://{}", file.display());
    let pictures = paths.target.join("pages");
    std::fs::create_dir_all(&pictures)?;
    let browser = Browser::start(&paths, folder.path())?;
    let seen = Seen(&browser);
    let mut sizes = Vec::new();
    for (width, is_dark) in [(400, true), (400, false), (1400, true), (1400, false)] {
        let what = format!("{width} pixels, dark: {is_dark}");
        browser.look(width, 1000, is_dark)?;
        browser.open(&url)?;
        sound(&seen, &what)?;
        let worst = browser.run(TEXTS)?;
        let ratio = worst[0].as_f64().unwrap_or_default();
        ensure!(ratio >= CONTRAST, "{what}: contrast {worst}");
        let ground = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every((part) => part < 80)";
        seen.is(&what, ground, &is_dark.to_string())?;
        let of_texts = "['.scale span', '.times span', '.legend li', 'td', 'p'].map((part) => getComputedStyle(document.querySelector(part)).fontSize).join(' ')";
        sizes.push(seen.text(of_texts)?);
        seen.is(&what, "document.querySelectorAll('svg text').length", "0")?;
        let height = seen.number("document.documentElement.scrollHeight")?;
        ensure!(
            width == 400 || height <= HEIGHT,
            "{what}: {height} pixels high, at most {HEIGHT}"
        );
        let scheme = if is_dark { "dark" } else { "light" };
        browser.look(width, u32::try_from(height)?.min(6000), is_dark)?;
        browser.picture(&pictures.join(format!("report-{width}-{scheme}.png")))?;
        work(&seen, width, is_dark)?;
        let worst = browser.run(TEXTS)?;
        let ratio = worst[0].as_f64().unwrap_or_default();
        ensure!(ratio >= CONTRAST, "{what}, of tasks: contrast {worst}");
        browser.picture(&pictures.join(format!("report-tasks-{width}-{scheme}.png")))?;
    }
    ensure!(
        sizes.iter().all(|size| *size == sizes[0]),
        "texts change their size with the width: {sizes:?}"
    );
    browser.look(1400, 1000, false)?;
    browser.open(&url)?;
    tables(&seen)?;
    jobs(&seen)?;
    folds(&seen)?;
    cursor(&seen)?;
    sound(&seen, "after all of it")
}

/// Opens the section of tasks and functions, which folds, by its link; closes the others.
fn work(seen: &Seen<'_>, width: u32, is_dark: bool) -> Result<()> {
    let what = format!("tasks and functions, {width} pixels");
    seen.0.look(width, 1000, is_dark)?;
    seen.0.click("nav a[href='#attempts']")?;
    seen.0
        .until("return document.querySelector('#attempts details').open")?;
    seen.0.run(
        "document.querySelectorAll('section > details').forEach((part) => { part.open = part.closest('#attempts') !== null; })",
    )?;
    let rows = |id: &str| format!("document.querySelectorAll('#{id} tbody tr').length");
    // Some have most of several figures, and some of none.
    let tasks = seen.number(&rows("most"))?;
    ensure!(
        (20..(SECONDS * EXECUTORS) as i64).contains(&tasks),
        "{what}: {tasks} tasks"
    );
    let functions = seen.number(&rows("functions-of-stages"))?;
    ensure!(functions == 8 * 6, "{what}: {functions} functions");
    let row = |name: &str| {
        format!(
            "[...document.querySelectorAll('#functions-of-stages tbody tr')].find((row) => row.textContent.includes('{name}')).innerText.replace(/\\s+/g, ' ')"
        )
    };
    for name in ["compute", "shuffle_fetch", "outside the spans"] {
        let text = seen.text(&row(name))?;
        println!("{what}: {text}");
    }
    sound(seen, &what)
}

/// The page's own script ran, no other one did, and nothing is beyond the window.
fn sound(seen: &Seen<'_>, what: &str) -> Result<()> {
    let complaints = seen.0.complaints()?;
    ensure!(complaints.is_empty(), "{what}: {complaints:?}");
    seen.is(what, "document.title === 'owned'", "false")?;
    let beyond =
        seen.number("document.documentElement.scrollWidth - document.documentElement.clientWidth")?;
    ensure!(beyond <= 0, "{what}: {beyond} pixels beyond the window");
    seen.is(
        what,
        "document.querySelectorAll('th button').length > 0",
        "true",
    )
}

/// Values of the column with this heading, in the order of the rows that are shown.
fn column(seen: &Seen<'_>, heading: &str) -> Result<Vec<f64>> {
    let script = format!(
        "(() => {{ const table = document.getElementById('holding');
        const at = [...table.querySelectorAll('th')].findIndex((heading) => heading.textContent === '{heading}');
        return [...table.tBodies[0].rows].filter((row) => row.offsetParent).map((row) => row.cells[at].dataset.sort); }})()"
    );
    let text = seen.text(&script)?;
    let values = text.split(',').map(|value| Ok(value.parse()?));
    values.collect::<Result<_>>().with_context(|| text.clone())
}

fn tables(seen: &Seen<'_>) -> Result<()> {
    let heading = "Storage";
    let press = format!(
        "[...document.querySelectorAll('#holding th button')].find((button) => button.textContent === '{heading}').click()"
    );
    seen.0.run(&press)?;
    let falling = column(seen, heading)?;
    ensure!(
        falling.len() >= 5 && falling.is_sorted_by(|left, right| left >= right),
        "{falling:?}"
    );
    seen.0.run(&press)?;
    let mut rising = column(seen, heading)?;
    ensure!(rising.is_sorted() && rising[0] < falling[0], "{rising:?}");
    rising.reverse();
    ensure!(rising == falling, "{rising:?} {falling:?}");
    let field = "document.querySelector('#rdds input')";
    seen.0.run(&format!("{field}.focus()"))?;
    seen.0.keys("STEP 10")?;
    ensure!(column(seen, heading)?.len() == 1, "the filter");
    let found = "document.querySelector('#holding tbody tr:not([hidden])').textContent";
    let text = seen.text(found)?;
    ensure!(text.contains("ranks of step 10"), "{text}");
    ensure!(text.contains("MEMORY_AND_DISK"), "{text}");
    seen.0.keys(&"\u{e003}".repeat(7))?;
    ensure!(column(seen, heading)?.len() == falling.len());
    Ok(())
}

/// Each job is a bar where its time is on the axis, and the failed one has its reason.
fn jobs(seen: &Seen<'_>) -> Result<()> {
    seen.0.click("nav a[href='#jobs']")?;
    seen.0
        .until("return document.querySelector('#jobs details').open")?;
    let states = "[...document.querySelectorAll('#jobs-table tbody tr')].map((row) => row.cells[2].textContent).join(' ')";
    seen.is("states", states, "succeeded failed succeeded succeeded")?;
    let failure = "document.querySelector('#jobs-table td.name small').textContent";
    seen.is("the reason", failure, NAME)?;
    let begins = "[...document.querySelectorAll('#jobs-table .axis i')].map((bar) => { const [axis, own] = [bar.parentElement, bar].map((part) => part.getBoundingClientRect()); return [(own.left - axis.left) / axis.width, own.width / axis.width].map((part) => Math.round(part * 100)).join('+') }).join(' ')";
    seen.is("bars", begins, "0+25 25+25 50+25 75+25")?;
    seen.0.click("#jobs summary")?;
    Ok(())
}

fn folds(seen: &Seen<'_>) -> Result<()> {
    let height = "document.documentElement.scrollHeight";
    let is_open = |id: &str| format!("document.querySelector('#{id} details').open");
    let before = seen.number(height)?;
    seen.is("the executors at first", &is_open("executors"), "false")?;
    seen.0.click("#executors summary")?;
    seen.is("the executors", &is_open("executors"), "true")?;
    let opened = seen.number(height)?;
    ensure!(opened > before, "{before} {opened}");
    seen.0.click("#executors summary")?;
    seen.is("the executors again", &is_open("executors"), "false")?;
    // A link to a folded part opens it.
    seen.0.click("nav a[href='#single']")?;
    seen.0
        .until("return document.querySelector('#single details').open")?;
    Ok(())
}

fn cursor(seen: &Seen<'_>) -> Result<()> {
    let legend = "[...document.querySelectorAll('#memory .large .legend small')].map((value) => value.textContent).join('|')";
    let before = seen.text(legend)?;
    ensure!(before.contains("at most"), "{before}");
    let focus = "document.querySelector('#memory .large svg').focus()";
    seen.0.run(focus)?;
    // To the right once: the first point.
    seen.0.keys("\u{e014}")?;
    let first = seen.text(legend)?;
    ensure!(!first.contains("at most"), "{first}");
    seen.0.keys(&"\u{e014}".repeat(SECONDS as usize))?;
    let last = seen.text(legend)?;
    // The last point is what the legend says at first.
    let said: Vec<String> = before
        .split('|')
        .filter_map(|text| Some(text.strip_prefix("last ")?.split(',').next()?.to_owned()))
        .collect();
    ensure!(last.split('|').eq(said.iter()), "{last} {said:?}");
    let when = seen.text("document.querySelector('#memory .large .when').textContent")?;
    ensure!(when.len() == 8, "{when}");
    // By the pointer, and back to the words when it leaves.
    seen.0.run(
        "const svg = document.querySelector('#memory .large svg'); svg.blur(); const box = svg.getBoundingClientRect();
        svg.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + 1, clientY: box.top + 9}));",
    )?;
    ensure!(
        seen.text(legend)? == first,
        "the pointer at the first point"
    );
    seen.0.run("document.querySelector('#memory .large svg').dispatchEvent(new PointerEvent('pointerleave'))")?;
    ensure!(seen.text(legend)? == before);
    Ok(())
}
