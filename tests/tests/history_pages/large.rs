//! An application of 100,000 tasks in the browser: time to the first picture, frames while it moves, memory of the page.

use anyhow::{Result, ensure};
use xtask::browser::MOVE_TIME_LINE;
use xtask::event_log::Shape;
use xtask::paths::Paths;

use super::Site;

const SHAPE: Shape = Shape {
    tasks: 100_000,
    stages: 40,
    executors: 25,
    cores: 8,
    sql_metrics: 0,
};
/// Milliseconds of a frame at most: 30 frames a second.
const FRAME_MS: f64 = 1000.0 / 30.0;
/// Bytes of the page at most, without garbage.
const PAGE_BYTES: u64 = 100 << 20;

#[test]
fn a_hundred_thousand_tasks_stay_fluid() -> Result<()> {
    let paths = Paths::find()?;
    let folder = tempfile::tempdir()?;
    let site = Site::start(&paths, folder.path(), &SHAPE)?;
    site.browser.look(1400, 1000, false)?;
    site.part("timeline")?;
    site.drawn()?;
    let all = site.data("tasksTotal")?;
    // 64 of 200 lanes, which do not have equally many.
    ensure!(all >= SHAPE.tasks as i64 * 60 / 200, "{all}");
    site.browser
        .picture(&site.pictures.join("timeline-100000.png"))?;
    for (what, zoom) in [("everything", ""), ("a part", "++++")] {
        site.browser
            .run("document.getElementById('picture').focus()")?;
        site.browser.keys(zoom)?;
        site.drawn()?;
        let before = site.data("drawn")?;
        let cpu = site.browser.page_cpu_seconds()?;
        let (median, most) = site.browser.frames(MOVE_TIME_LINE, 5)?;
        let drawn = site.data("drawn")? - before;
        let cpu = (site.browser.page_cpu_seconds()? - cpu) * 1000.0 / drawn.max(1) as f64;
        println!(
            "100,000 tasks, {what}: a frame takes {median:.1} ms, 95 % at most {most:.1} ms; {drawn} pictures, {cpu:.1} ms of \
             CPU time each"
        );
        ensure!(drawn >= 20, "{what}: only {drawn} pictures");
        // Where more threads want to run than there are CPUs, the clock says nothing about the page.
        let of_page = if is_busy()? { cpu } else { median };
        ensure!(of_page <= FRAME_MS, "{what}: {of_page} ms");
    }
    let bytes = site.browser.page_bytes()?;
    println!("100,000 tasks: the page has {} MiB", bytes >> 20);
    ensure!(bytes < PAGE_BYTES, "the page has {} MiB", bytes >> 20);
    site.is_sound("100,000 tasks")
}

/// Whether other programs want more CPUs than there are.
fn is_busy() -> Result<bool> {
    let text = std::fs::read_to_string("/proc/loadavg")?;
    let load: f64 = text.split(' ').next().unwrap_or_default().parse()?;
    Ok(load > std::thread::available_parallelism()?.get() as f64)
}
