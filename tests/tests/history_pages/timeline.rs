//! The time line: levels of detail, clicks, drags, the wheel, and addresses that restore what was shown.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_history::json::milliseconds;
use xtask::event_log::{ID, START};
use xtask::http::get;

use super::{SHAPE, Site};

/// Start of the log's first job: zero of the time line.
const ZERO: i64 = START + 990;

pub(super) fn levels(site: &Site) -> Result<()> {
    site.browser.look(1400, 1000, false)?;
    site.part("timeline")?;
    site.drawn()?;
    let everything = site.data("tasksTotal")?;
    let lanes = site.data("lanes")?;
    ensure!(
        lanes == 64 && everything > SHAPE.tasks as i64 * 60 / 96,
        "{lanes} {everything}"
    );
    site.browser
        .picture(&site.pictures.join("timeline-1400-light.png"))?;
    // Zoom by keys, then open a task.
    site.browser
        .run("document.getElementById('picture').focus()")?;
    site.browser.keys("++++++++")?;
    site.browser.until("const data = document.getElementById('timeline').dataset; return data.viewTo - data.viewFrom < 5000")?;
    site.drawn()?;
    ensure!(site.data("tasksTotal")? < everything / 20);
    site.browser.keys("n")?;
    site.browser.until("return !document.getElementById('task').hidden && !!document.getElementById('timeline').dataset.shownTask")?;
    let by_key = site.data("shownTask")?;
    let sum: f64 = parts(site)?;
    let json = described(site, by_key)?;
    // The window went to the task.
    site.drawn()?;
    let (from, to) = (site.data("viewFrom")?, site.data("viewTo")?);
    let start = json["start"].as_i64().context("no start")?;
    let end = start + json["milliseconds"].as_i64().context("no length")?;
    ensure!(
        start < to && end > from,
        "task {by_key} from {start} to {end} is not in {from} to {to}"
    );
    ensure!(
        Some(sum.round() as i64) == json["milliseconds"].as_i64(),
        "{sum}: {json}"
    );
    site.browser
        .picture(&site.pictures.join("task-1400-light.png"))?;
    site.is_sound("the time line")
}

/// What the server says of a task.
pub(super) fn described(site: &Site, task: i64) -> Result<Value> {
    let path = format!("/smtt/v1/applications/{ID}/tasks/{task}");
    Ok(serde_json::from_str(&get(site.port, &path)?)?)
}

/// Milliseconds of the parts that the panel shows.
fn parts(site: &Site) -> Result<f64> {
    let script = "[...document.querySelectorAll('#task .columns table:first-child tr')].map((row) => Number(row.cells[1].textContent.replace(' ms', '').replaceAll(',', ''))).reduce((sum, part) => sum + part, 0)";
    let text = site.text(script)?;
    text.parse().with_context(|| format!("parts: {text:?}"))
}

/// Where the picture is in the window, in pixels.
pub(super) struct Canvas {
    pub(super) left: i64,
    pub(super) top: i64,
    width: i64,
    height: i64,
}

impl Canvas {
    /// Pixels of the executors' names at the left, and of a lane.
    pub(super) const GUTTER: i64 = 112;
    const LANE: i64 = 8;

    pub(super) fn of(site: &Site) -> Result<Self> {
        site.browser
            .run("document.getElementById('picture').scrollIntoView({block: 'start'})")?;
        let side = |side: &str| {
            site.number(&format!(
                "Math.round(document.getElementById('picture').getBoundingClientRect().{side})"
            ))
        };
        Ok(Self {
            left: side("left")?,
            top: side("top")?,
            width: side("width")?,
            height: side("height")?,
        })
    }

    /// The place of a time in the middle of a lane.
    pub(super) fn place(&self, site: &Site, time: i64, lane: i64) -> Result<(i64, i64)> {
        let (from, to) = (site.data("viewFrom")?, site.data("viewTo")?);
        let wide = self.width - Self::GUTTER;
        let x = self.left + Self::GUTTER + (time - from) * wide / (to - from);
        // Below the lanes is a margin of 4 pixels.
        let lanes = self.height - 4 - Self::LANE * site.data("lanes")?;
        Ok((x, self.top + lanes + Self::LANE * lane + Self::LANE / 2))
    }
}

/// Tasks of a stage as the REST API has them: id, executor, launch and end on the time line.
pub(super) fn schedule(site: &Site, stage: i64) -> Result<Vec<(i64, i64, i64, i64)>> {
    let rest = site.rest(&format!("stages/{stage}/0/taskList?length=100000"))?;
    let tasks = rest.as_array().context("no tasks")?;
    let task = |task: &Value| -> Option<(i64, i64, i64, i64)> {
        let launch = milliseconds(task["launchTime"].as_str()?)?;
        let executor = task["executorId"].as_str()?.parse().ok()?;
        let begin = launch - ZERO;
        Some((
            task["taskId"].as_i64()?,
            executor,
            begin,
            begin + task["duration"].as_i64()?,
        ))
    };
    tasks
        .iter()
        .map(|json| task(json).with_context(|| format!("{json}")))
        .collect()
}

pub(super) fn pointer(site: &Site) -> Result<()> {
    let all = schedule(site, 2)?;
    let from = all.iter().map(|task| task.2).min().context("no task")? + 500;
    // A window of three seconds has every task of this log one by one.
    site.part(&format!("timeline?from={from}&to={}", from + 3000))?;
    site.drawn()?;
    let canvas = Canvas::of(site)?;
    // A click on any of the four cores of an executor shows a task that this executor ran at that time.
    for (executor, time) in [(1, from + 700), (7, from + 1500), (16, from + 2300)] {
        let lane = (executor - 1) * 4 + executor % 4;
        let (x, y) = canvas.place(site, time, lane)?;
        site.browser
            .run("delete document.getElementById('timeline').dataset.shownTask")?;
        site.browser.click_at(x, y)?;
        site.browser.until(
            "return !!document.getElementById('timeline').dataset.shownTask && !document.getElementById('task').hidden",
        )?;
        let shown = site.data("shownTask")?;
        let task = all.iter().find(|task| task.0 == shown);
        let &(_, by, begin, end) =
            task.with_context(|| format!("task {shown} is of another stage"))?;
        let slack = 10;
        ensure!(
            by == executor && begin - slack <= time && time <= end + slack,
            "a click at {time} on executor {executor} shows task {shown} of {by}, {begin} to {end}"
        );
        let link = site.text("document.querySelector('#task h2 a').textContent")?;
        ensure!(link == format!("Task {shown}"), "{link}");
        let took =
            site.text("document.querySelector('#task .columns > :last-child td').textContent")?;
        ensure!(
            took.replace(',', "") == format!("{} ms", end - begin),
            "the panel says {took}, REST {}",
            end - begin
        );
    }
    // A drag by a quarter of the lanes' width moves the window by a quarter.
    let quarter = (canvas.width - Canvas::GUTTER) / 4;
    let (x, y) = (canvas.left + canvas.width - 50, canvas.top + 200);
    let before = (site.data("viewFrom")?, site.data("viewTo")?);
    site.browser
        .pointer(&[(x, y), (x - quarter / 2, y), (x - quarter, y)])?;
    site.drawn()?;
    let by = (before.1 - before.0) / 4;
    let moved = (
        site.data("viewFrom")? - before.0,
        site.data("viewTo")? - before.1,
    );
    ensure!(
        (moved.0 - by).abs() <= 12 && (moved.1 - by).abs() <= 12,
        "the window moved by {moved:?}, not by {by}"
    );
    // The wheel with Ctrl zooms around the pointer: the time below it stays.
    let (left, right) = (site.data("viewFrom")?, site.data("viewTo")?);
    let (x, y) = canvas.place(site, (left + right) / 2, 20)?;
    site.browser.wheel((x, y), 120)?;
    site.browser.until(&format!(
        "const data = document.getElementById('timeline').dataset; return data.viewTo - data.viewFrom > {}",
        (right - left) * 3 / 2
    ))?;
    let (low, high) = (site.data("viewFrom")?, site.data("viewTo")?);
    ensure!(
        ((low + high) - (left + right)).abs() < (right - left) / 20,
        "from {left} to {right} the wheel went to {low} to {high}"
    );
    site.is_sound("the time line after a drag")
}

/// The panel of a task leads to its functions.
pub(super) fn task_link(site: &Site) -> Result<()> {
    site.part(&format!("timeline?task={}", super::functions::TASK))?;
    site.drawn()?;
    site.browser
        .until("return !!document.getElementById('timeline').dataset.shownTask")?;
    let link = "#task p a[href$='#functions']";
    let text = site.text(&format!("document.querySelector(\"{link}\").textContent"))?;
    ensure!(
        text == "Functions, fetches and spans of this task",
        "{text}"
    );
    site.browser.click(link)?;
    site.browser.until(&format!(
        "return location.pathname.endsWith('/tasks/{}') && location.hash === '#functions' && document.readyState === 'complete'",
        super::functions::TASK
    ))?;
    ensure!(
        site.number("document.querySelectorAll('#functions ~ div svg.lanes rect').length")? > 0,
        "the page has no functions where the link leads"
    );
    site.is_sound("functions from the time line")
}

/// A click on a job's bar opens its stages; a link to the table of jobs is the way by key; what is not drawn is counted.
pub(super) fn jobs(site: &Site) -> Result<()> {
    site.browser.look(1400, 1000, false)?;
    let rest = site.rest("jobs")?;
    let job = rest.as_array().into_iter().flatten();
    let job = job.into_iter().find(|it| it["jobId"] == 5);
    let job = job.context("REST has no job 5")?;
    let time = |name: &str| job[name].as_str().and_then(milliseconds);
    let begin = time("submissionTime").context("no begin")? - ZERO;
    let end = time("completionTime").context("no end")? - ZERO;
    site.part("timeline")?;
    site.drawn()?;
    let canvas = Canvas::of(site)?;
    let (x, _) = canvas.place(site, (begin + end) / 2, 0)?;
    // Below the axis of 22 pixels.
    site.browser.click_at(x, canvas.top + 22 + 6)?;
    let opened = |job: i64| {
        site.browser.until(&format!(
            "return location.pathname.endsWith('/stages') && location.search === '?job={job}' && document.readyState === 'complete'"
        ))
    };
    opened(5)?;
    let id = "document.querySelector('#stages tbody td').textContent";
    ensure!(site.number(id)? == 5);
    ensure!(site.number("document.querySelectorAll('#stages tbody tr').length")? == 1);
    // By key: the table of jobs, then the job.
    site.part("timeline")?;
    site.drawn()?;
    ensure!(
        site.text("document.getElementById('jobs-said').textContent")?
            .is_empty(),
        "all jobs are drawn"
    );
    site.browser
        .run("document.getElementById('jobs-as-table').focus()")?;
    site.browser.keys("\u{e007}")?;
    site.browser.until(
        "return location.pathname.endsWith('/jobs') && document.readyState === 'complete'",
    )?;
    site.browser
        .run("document.querySelector('#jobs td a[href$=\"job=3\"]').focus()")?;
    site.browser.keys("\u{e007}")?;
    opened(3)?;
    // An answer without some jobs and paths, as a server gives it of thousands.
    site.part("timeline")?;
    site.drawn()?;
    site.browser.run("const real = window.fetch; window.fetch = async (...all) => { const answer = await real(...all);
        if (!String(all[0]).includes('/timeline?')) return answer;
        return new Response(JSON.stringify({...await answer.json(), jobsLeftOut: 1234, pathsLeftOut: 1})); };")?;
    site.browser.click("#controls button[name=in]")?;
    site.browser
        .until("return document.getElementById('jobs-said').textContent !== ''")?;
    let said = site.text("document.getElementById('jobs-said').parentElement.textContent")?;
    ensure!(
        said == "1,234 jobs not drawn (short, or more than 6 at a time); 1 job without a critical path (no room for it): All jobs as a table",
        "{said}"
    );
    site.browser
        .picture(&site.pictures.join("timeline-jobs-1400-light.png"))?;
    site.is_sound("jobs on the time line")
}

/// What the time line shows, and what its address says.
fn state(site: &Site) -> Result<[String; 8]> {
    let data = "document.getElementById('timeline').dataset";
    let asked = |name: &str| format!("new URL(location.href).searchParams.get('{name}')");
    Ok([
        site.text(&format!("{data}.viewFrom"))?,
        site.text(&format!("{data}.viewTo"))?,
        site.text(&asked("lane"))?,
        site.text(&asked("colour"))?,
        site.text(&asked("task"))?,
        site.text(&format!("{data}.tasksTotal"))?,
        site.text("document.querySelector('#task h2').textContent")?,
        site.text("document.getElementById('legend').textContent")?,
    ])
}

pub(super) fn shared_addresses(site: &Site) -> Result<()> {
    site.part("timeline")?;
    site.drawn()?;
    let first = site.text("location.href")?;
    site.browser.click("#controls button[name=in]")?;
    site.browser.click("#controls button[name=in]")?;
    site.browser.click("#controls button[name=in]")?;
    site.browser.click("#controls button[name=right]")?;
    site.browser.click("#controls button[name=down]")?;
    site.browser
        .run("const select = document.querySelector('#controls select'); select.value = 'locality'; select.dispatchEvent(new Event('change'))")?;
    site.browser
        .run("document.getElementById('picture').focus()")?;
    site.drawn()?;
    site.browser.keys("n")?;
    site.browser
        .until("return !document.getElementById('task').hidden")?;
    // The address follows when the picture rests.
    site.browser.until(
        "const said = new URL(location.href).searchParams, data = document.getElementById('timeline').dataset;
        return said.get('task') === data.shownTask && said.get('from') === data.viewFrom && said.get('to') === data.viewTo",
    )?;
    site.drawn()?;
    let (address, shown) = (site.text("location.href")?, state(site)?);
    ensure!(
        address != first && shown[3] == "locality" && shown[2] != "0",
        "{address} {shown:?}"
    );
    // Another window of the browser opens the address.
    site.open("")?;
    site.browser.open(&address)?;
    site.drawn()?;
    site.browser
        .until("return !document.getElementById('task').hidden")?;
    let restored = state(site)?;
    ensure!(
        restored == shown,
        "{address} showed {shown:?}, then {restored:?}"
    );
    // The table of these tasks has those of the window, on all lanes.
    site.browser.click("#as-table")?;
    let table = "document.querySelector('.pages span').textContent.split(' of ')[1]";
    let (rows, seen) = (site.number(table)?, shown[5].parse::<i64>()?);
    ensure!(
        rows >= seen / 2,
        "{rows} rows, {seen} tasks in the picture and beside"
    );
    site.is_sound("a shared address")
}

/// The picture's tasks are filtered; the address and the table have the filter, and a stage stays in the address.
pub(super) fn filters(site: &Site) -> Result<()> {
    site.part("timeline?stage=3")?;
    site.drawn()?;
    let of_stage = schedule(site, 3)?;
    let last = of_stage
        .iter()
        .map(|task| task.3)
        .max()
        .context("no task")?;
    let (from, to) = (site.data("viewFrom")?, site.data("viewTo")?);
    let begin = of_stage
        .iter()
        .map(|task| task.2)
        .min()
        .context("no task")?;
    ensure!(
        (from - begin).abs() <= 1 && (to - last).abs() <= 1,
        "{from} to {to}, the stage has {begin} to {last}"
    );
    // 64 of 96 lanes.
    let shown = site.data("tasksTotal")?;
    let all = of_stage.len() as i64;
    ensure!(shown > 0 && shown <= all, "{shown} of {all}");
    // A move keeps the stage in the address.
    site.browser.click("#controls button[name=in]")?;
    site.browser
        .until("return new URL(location.href).searchParams.get('to') === document.getElementById('timeline').dataset.viewTo")?;
    site.drawn()?;
    let (address, near) = (site.text("location.href")?, site.data("tasksTotal")?);
    ensure!(address.contains("stage=3"), "{address}");
    site.open("")?;
    site.browser.open(&address)?;
    site.drawn()?;
    ensure!(
        site.data("tasksTotal")? == near,
        "{address} showed {near} tasks"
    );
    ensure!(site.text("document.querySelector('#controls [name=stage]').value")? == "3");
    // Two conditions, on everything that the lanes have: failed tasks of the stage.
    site.browser.click("#controls button[name=all]")?;
    site.drawn()?;
    site.browser
        .run("const select = document.querySelector('#controls [name=status]'); select.value = 'FAILED'; select.dispatchEvent(new Event('change', {bubbles: true}))")?;
    site.browser
        .until("return new URL(location.href).searchParams.get('status') === 'FAILED'")?;
    site.drawn()?;
    let failed = site.data("tasksTotal")?;
    let path = format!("/smtt/v1/applications/{ID}/timeline?lanes=64&stage=3&status=FAILED");
    let answer: Value = serde_json::from_str(&get(site.port, &path)?)?;
    ensure!(
        answer["tasksTotal"] == failed && failed < shown,
        "{failed} failed tasks, {}",
        answer["tasksTotal"]
    );
    let said = site.text("document.getElementById('said').textContent")?;
    ensure!(said.contains("tasks of the filter"), "{said}");
    site.browser
        .picture(&site.pictures.join("timeline-filter-1400-light.png"))?;
    // The table has the same conditions, on all lanes.
    site.browser.click("#as-table")?;
    site.browser
        .until("return location.pathname.endsWith('/tasks')")?;
    let table = "document.querySelector('.pages span').textContent.split(' of ')[1]";
    let rest = site.rest("stages/3/0/taskList?length=100000&status=failed")?;
    let rows = site.number(table)?;
    ensure!(
        Some(rows as usize) == rest.as_array().map(Vec::len),
        "{rows} rows"
    );
    // A time in milliseconds by a key, then none: what is no filter leaves the address.
    site.part("timeline")?;
    site.drawn()?;
    let everything = site.data("tasksTotal")?;
    site.browser
        .run("document.querySelector('#controls [name=longer]').focus()")?;
    site.browser.keys("2000\u{e007}")?;
    site.browser
        .until("return new URL(location.href).searchParams.get('longer') === '2000'")?;
    site.drawn()?;
    let longer = site.data("tasksTotal")?;
    ensure!(
        longer < everything,
        "{longer} of {everything} tasks take 2 s"
    );
    site.browser
        .keys("\u{e003}\u{e003}\u{e003}\u{e003}\u{e007}")?;
    site.browser
        .until("return !location.search.includes('longer')")?;
    site.drawn()?;
    ensure!(site.data("tasksTotal")? == everything);
    site.is_sound("filters of the time line")
}
