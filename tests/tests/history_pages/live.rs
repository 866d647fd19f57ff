//! Pages of an application that runs: they say how old they are and bring what came since, and keep window and filter. The log
//! grows between the questions, as an import of more of it.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_history::import::{Admission, import};
use smtt_history::log::Bounds;
use xtask::event_log::{self, ID, Shape};
use xtask::http::get;

use super::Site;

const RUNNING: &str = "app-20260922000000-0002";
const SHAPE: Shape = Shape {
    tasks: 2_000,
    stages: 4,
    executors: 8,
    cores: 4,
    sql_metrics: 0,
};

/// Imports so many hundredths of the log's lines.
fn grow(site: &Site, folder: &Path, hundredths: usize) -> Result<()> {
    let whole = folder.join(RUNNING);
    if !whole.exists() {
        event_log::write(&whole, &SHAPE)?;
    }
    let text = std::fs::read_to_string(&whole)?.replace(ID, RUNNING);
    let lines: Vec<&str> = text.lines().collect();
    let lines = &lines[..lines.len() * hundredths / 100];
    let log = folder.join(format!("{RUNNING}.inprogress"));
    std::fs::write(&log, lines.join("\n") + "\n")?;
    // As if it was written at the time of its last event.
    let ends = lines
        .iter()
        .flat_map(|line| line.split("\"Finish Time\":").skip(1));
    let ends = ends.filter_map(|rest| rest.split([',', '}']).next()?.parse().ok());
    let last = UNIX_EPOCH + Duration::from_millis(ends.max().context("no task ended")?);
    std::fs::File::options()
        .append(true)
        .open(&log)?
        .set_modified(last)?;
    let any = Admission {
        name: None,
        replaces: true,
    };
    let done = import(&site.store, &log, Bounds::default(), &any)?;
    ensure!(done.damaged == 0, "{:?}", done.named);
    Ok(())
}

fn drawn(site: &Site) -> Result<()> {
    site.browser
        .until("return document.getElementById('timeline').dataset.state === 'ready'")
}

/// Waits until an answer came in place of the page.
fn refreshed(site: &Site, before: i64) -> Result<()> {
    site.browser.until(&format!(
        "return Number(document.getElementById('live').dataset.refreshed || 0) > {before}"
    ))?;
    drawn(site)
}

fn count(site: &Site) -> Result<i64> {
    site.number("document.getElementById('live').dataset.refreshed || 0")
}

/// Successful tasks of the lanes that the picture has, by the server.
fn successful(site: &Site, more: &str) -> Result<i64> {
    let path = format!("/smtt/v1/applications/{RUNNING}/timeline?lanes=64&status=SUCCESS{more}");
    let answer: Value = serde_json::from_str(&get(site.port, &path)?)?;
    ensure!(answer["ageMs"].is_u64(), "the answer has no age");
    answer["tasksTotal"].as_i64().context("no tasks")
}

pub(super) fn pages(site: &Site, folder: &Path) -> Result<()> {
    site.browser.look(1400, 1000, false)?;
    grow(site, folder, 50)?;
    site.open(&format!("applications/{RUNNING}/timeline?status=SUCCESS"))?;
    drawn(site)?;
    let line = site.text("document.getElementById('live').innerText")?;
    ensure!(line.starts_with("Running: its log last changed "), "{line}");
    site.is_sound("an application that runs")?;
    site.browser
        .picture(&site.pictures.join("live-1400-light.png"))?;
    site.browser.run("window.isSame = true")?;
    let (tasks, end) = (site.data("tasksTotal")?, site.data("viewTo")?);
    ensure!(tasks == successful(site, "")?);
    // A view that ends with the application goes on with it, by a key.
    grow(site, folder, 75)?;
    site.browser.keys("r")?;
    site.browser.until(&format!(
        "const data = document.getElementById('timeline').dataset; return data.tasksTotal > {tasks} && data.viewTo > {end}"
    ))?;
    drawn(site)?;
    ensure!(site.data("tasksTotal")? == successful(site, "")?);
    ensure!(site.data("viewFrom")? == 0);
    // One within it stays, with its filter, and so does its address.
    for _ in 0..3 {
        site.browser.click("#controls button[name=in]")?;
    }
    site.browser
        .until("return new URL(location.href).searchParams.get('to') === document.getElementById('timeline').dataset.viewTo")?;
    drawn(site)?;
    let state = |site: &Site| -> Result<(i64, i64, String)> {
        let (from, to) = (site.data("viewFrom")?, site.data("viewTo")?);
        Ok((from, to, site.text("location.search")?))
    };
    let (before, shown) = (count(site)?, state(site)?);
    ensure!(shown.2.contains("status=SUCCESS"), "{shown:?}");
    grow(site, folder, 90)?;
    site.browser.click("#live-now")?;
    refreshed(site, before)?;
    ensure!(state(site)? == shown, "{shown:?} became {:?}", state(site)?);
    // A letter in a field is a letter.
    let before = count(site)?;
    site.browser
        .run("document.querySelector('#controls [name=host]').focus()")?;
    site.browser.keys("r\u{e003}")?;
    ensure!(
        count(site)? == before,
        "a letter in a field brought a new answer"
    );
    // Every so many seconds, from the address, which keeps the rest.
    site.browser.click("#live a[data-every='10']")?;
    let search = site.text("location.search")?;
    ensure!(search == format!("{}&refresh=10", shown.2), "{search}");
    let address = site
        .text("location.href")?
        .replace("refresh=10", "refresh=5");
    ensure!(
        site.text("window.isSame")? == "true",
        "the page was loaded again"
    );
    site.browser.open(&address)?;
    drawn(site)?;
    ensure!(state(site)?.0 == shown.0 && state(site)?.1 == shown.1);
    let before = count(site)?;
    refreshed(site, before)?;
    let now = state(site)?;
    ensure!(
        (now.0, now.1) == (shown.0, shown.1),
        "{now:?} after {shown:?}"
    );
    // A page without a picture is loaded again.
    site.open(&format!("applications/{RUNNING}/jobs?sort=-duration"))?;
    site.browser.run("window.isSame = true")?;
    site.browser.keys("r")?;
    site.browser
        .until("return !window.isSame && document.readyState === 'complete' && location.search === '?sort=-duration'")?;
    // After the end no page is old.
    site.open(&format!("applications/{RUNNING}/timeline"))?;
    drawn(site)?;
    grow(site, folder, 100)?;
    site.browser.keys("r")?;
    site.browser
        .until("return document.getElementById('live').textContent.includes('has ended')")?;
    site.part("timeline")?;
    ensure!(site.number("document.querySelectorAll('#live').length")? == 0);
    site.is_sound("an application that has ended")
}
