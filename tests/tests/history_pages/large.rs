//! An application of 100,000 tasks in the browser: the work of a picture while it moves, and the memory of the page.
//! `cargo xtask bench timeline` measures the times: they say more about a busy machine than about the page.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;
use xtask::browser::MOVE_TIME_LINE;
use xtask::event_log::{ID, Shape};
use xtask::http::get;
use xtask::paths::Paths;

use super::Site;

/// Its 64 lanes are all of the picture's lanes, so that the picture has all tasks.
const SHAPE: Shape = Shape {
    tasks: 100_000,
    stages: 40,
    executors: 8,
    cores: 8,
    sql_metrics: 0,
};
/// Counts the calls of every canvas of the page in `window.calls`.
const COUNT_CALLS: &str = "window.calls = 0; const all = CanvasRenderingContext2D.prototype;
    for (const name of Object.getOwnPropertyNames(all)) {
        const of = Object.getOwnPropertyDescriptor(all, name).value;
        if (typeof of === 'function') all[name] = function (...args) { window.calls++; return of.apply(this, args); };
    }";
/// Calls of the canvases for one picture at most. One rectangle for each task would be 100,000.
const CALLS: i64 = 64_000;
/// Bytes of the server's answer for the whole application at most, for the width of the page. One by one the tasks would take
/// more than twice as many: their ids and times alone are 25 bytes each.
const ANSWER_BYTES: usize = 1_000_000;
/// Bytes of the page at most, without garbage.
const PAGE_BYTES: u64 = 112 << 20;

/// Bytes of the report, and of its page, at most.
const REPORT_BYTES: usize = 16_000_000;
const REPORT_PAGE_BYTES: u64 = 200_000_000;

#[test]
fn a_hundred_thousand_tasks_stay_fluid() -> Result<()> {
    let paths = Paths::find()?;
    let folder = tempfile::tempdir()?;
    let site = Site::start(&paths, folder.path(), &SHAPE)?;
    site.browser.look(1400, 1000, false)?;
    site.part("timeline")?;
    site.drawn()?;
    let all = site.data("tasksTotal")?;
    ensure!(all == SHAPE.tasks as i64, "{all}");
    let mut sizes = Vec::new();
    for width in [2000, 400, 50] {
        let path = format!("/smtt/v1/applications/{ID}/timeline?width={width}");
        let answer = get(site.port, &path)?;
        let json: Value = serde_json::from_str(&answer)?;
        let entries = [&json["tasks"]["id"], &json["cells"]["at"]]
            .map(|it| it.as_array().map_or(0, Vec::len));
        println!(
            "100,000 tasks in {width} pixels: {} bytes, {entries:?} tasks and cells",
            answer.len()
        );
        // A cell has 2 pixels at least; all lanes have 30,000 cells at most.
        let cells = (width / 2).min(30_000 / 64);
        ensure!(
            json["tasksTotal"] == SHAPE.tasks,
            "{width}: {}",
            json["tasksTotal"]
        );
        ensure!(
            entries.iter().sum::<usize>() <= 64 * (2 * cells + 3),
            "{width}: {entries:?} entries"
        );
        sizes.push(answer.len());
    }
    ensure!(sizes[0] < ANSWER_BYTES, "{sizes:?} bytes");
    ensure!(
        sizes[1] < sizes[0] / 2 && sizes[2] < sizes[1] / 4,
        "a narrower picture has a smaller answer: {sizes:?}"
    );
    site.browser
        .picture(&site.pictures.join("timeline-100000.png"))?;
    site.browser.run(COUNT_CALLS)?;
    for (what, zoom) in [("everything", ""), ("a part", "++++")] {
        site.browser
            .run("document.getElementById('picture').focus()")?;
        site.browser.keys(zoom)?;
        site.drawn()?;
        let (before, calls_before) = (site.data("drawn")?, site.number("window.calls")?);
        let until = Instant::now() + Duration::from_secs(300);
        let (drawn, frames) = loop {
            let frames = site.browser.frames(MOVE_TIME_LINE, 5)?;
            let drawn = site.data("drawn")? - before;
            if drawn >= 20 {
                break (drawn, frames);
            }
            ensure!(Instant::now() < until, "{what}: only {drawn} pictures");
        };
        let calls = (site.number("window.calls")? - calls_before) / drawn.max(1);
        println!(
            "100,000 tasks, {what}: {drawn} pictures, {calls} calls of the canvas each; a frame takes {:.1} ms, 95 % at \
             most {:.1} ms",
            frames.median, frames.slow
        );
        ensure!((1..=CALLS).contains(&calls), "{what}: {calls} calls");
    }
    let bytes = site.browser.page_bytes()?;
    println!("100,000 tasks: the page has {} MiB", bytes >> 20);
    ensure!(bytes < PAGE_BYTES, "the page has {} MiB", bytes >> 20);
    site.is_sound("100,000 tasks")?;
    report(&site, folder.path())
}

/// The same as one file: all tasks are in it, its pictures take as little, and so does its page.
fn report(site: &Site, folder: &Path) -> Result<()> {
    let (address, bytes) = super::whole::write(&site.store, ID, folder)?;
    ensure!(bytes < REPORT_BYTES, "the report has {bytes} bytes");
    site.browser.open(&address)?;
    site.drawn()?;
    let all = site.data("tasksTotal")?;
    ensure!(all == SHAPE.tasks as i64, "{all} tasks in the report");
    let first = site.text("document.getElementById('timeline').dataset.pictureMs")?;
    site.browser.run(COUNT_CALLS)?;
    let before = site.data("drawn")?;
    site.browser
        .run("document.getElementById('picture').focus()")?;
    site.browser.keys("++++")?;
    site.drawn()?;
    let frames = site.browser.frames(MOVE_TIME_LINE, 3)?;
    let drawn = (site.data("drawn")? - before).max(1);
    let calls = site.number("window.calls")? / drawn;
    let page = site.browser.page_bytes()?;
    println!(
        "100,000 tasks in a report of {bytes} bytes: first picture after {first} ms, {calls} calls of the canvas each; a frame \
         takes {:.1} ms, 95 % at most {:.1} ms; the page has {} MiB",
        frames.median,
        frames.slow,
        page >> 20
    );
    ensure!((1..=CALLS).contains(&calls), "{calls} calls");
    ensure!(page < REPORT_PAGE_BYTES, "the page has {} MiB", page >> 20);
    site.is_sound("a report of 100,000 tasks")
}
