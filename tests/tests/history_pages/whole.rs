//! The report of `smtt-history report --html`: one file that opens from disk, loads nothing, and shows what the server's pages
//! show. Its script's answers are those of the server.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_history::open::App;
use smtt_history::pages::report;
use smtt_history::serve::Settings;
use xtask::event_log::ID;
use xtask::http::get;

use super::functions::{TASK, places};
use super::looks::{CONTRAST, TEXTS};
use super::{SHAPE, Site};

/// Writes the report of an application of the store; returns the address and the number of its bytes.
pub(super) fn write(store: &Path, id: &str, folder: &Path) -> Result<(String, usize)> {
    let settings = Settings {
        store: store.to_owned(),
        event_logs: None,
        cache_bytes: 256 << 20,
        bounds: smtt_history::log::Bounds::default(),
        bucket: None,
    };
    let app = App::open(&store.join(id))?;
    let report = report(settings, &app, None)?;
    for what in &report.left_out {
        println!("the report leaves out: {what}");
    }
    let file = folder.join("report.html");
    std::fs::write(&file, &report.page)?;
    Ok((format!("file://{}", file.display()), report.page.len()))
}

/// With all numbers as such of a script.
fn plain(value: Value) -> Value {
    match value {
        Value::Number(number) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        Value::Array(all) => all.into_iter().map(plain).collect(),
        Value::Object(all) => all.into_iter().map(|(key, it)| (key, plain(it))).collect(),
        other => other,
    }
}

/// The answers of the script, for windows and conditions, are the server's.
fn answers(site: &Site, length: i64) -> Result<()> {
    let windows = [
        String::new(),
        "lanes=256&width=8000".to_owned(),
        format!("from={}&to={}&width=900", length / 3, length / 2),
        format!(
            "from={}&to={}&lane=20&lanes=40",
            length / 5,
            length / 5 + 4000
        ),
        "from=-5&to=9&lane=999".to_owned(),
    ];
    let filters = [
        "",
        "status=FAILED",
        "stage=3&straggler=no",
        "host=worker2&longer=1500",
        "speculative=yes",
        "critical=yes",
    ];
    let mut tasks = 0;
    for window in &windows {
        for filter in filters {
            let query = format!("{window}&{filter}");
            let path = format!("/smtt/v1/applications/{ID}/timeline?{query}");
            let server = plain(serde_json::from_str(&get(site.port, &path)?)?);
            let script = site.text(&format!(
                "JSON.stringify(smttReport.timelineOf(new URLSearchParams('{query}')))"
            ))?;
            let script = plain(serde_json::from_str(&script)?);
            for (key, value) in server.as_object().context("no answer")? {
                ensure!(
                    script[key] == *value,
                    "{query}: {key} differs: {} {value}",
                    script[key]
                );
            }
            tasks += server["tasksTotal"].as_f64().unwrap_or_default() as i64;
        }
    }
    ensure!(
        tasks > SHAPE.tasks as i64,
        "only {tasks} tasks were compared"
    );
    Ok(())
}

/// Cells sort by all units that the pages write, and words of the language are none.
fn keys(site: &Site) -> Result<()> {
    let cells = [
        ("1023 B", 1023.0),
        ("1.5 PiB", 1.5 * 2_f64.powi(50)),
        ("2.0 EiB", 2_f64.powi(61)),
        ("12,345", 12_345.0),
        ("1.50 T", 1.5e12),
        ("1.50 P", 1.5e15),
        ("1.50 E", 1.5e18),
    ];
    for (text, key) in cells {
        let found = site
            .browser
            .run(&format!("return smttReport.keyOf('{text}')"))?;
        ensure!(found.as_f64() == Some(key), "{text}: {found}");
    }
    let word = site
        .browser
        .run("return smttReport.keyOf('7 constructor')")?;
    ensure!(word == "7 constructor", "{word}");
    Ok(())
}

pub(super) fn page(site: &Site, folder: &Path) -> Result<()> {
    let (address, bytes) = write(&site.store, ID, folder)?;
    println!("a report of {} tasks has {bytes} bytes", SHAPE.tasks);
    site.browser.look(1400, 1000, false)?;
    site.browser.complaints()?;
    // A place that is no encoded text.
    site.browser.open(&format!("{address}#100%"))?;
    site.drawn()?;
    site.is_sound("the report at #100%")?;
    keys(site)?;
    site.browser.open(&address)?;
    site.drawn()?;
    site.is_sound("the report")?;
    ensure!(
        site.number("performance.getEntriesByType('resource').length")? == 0,
        "the report loaded something"
    );
    site.browser
        .picture(&site.pictures.join("whole-1400-light.png"))?;
    answers(site, site.truth.length)?;
    // Zoom, a task and its numbers, as on the server's page.
    site.browser
        .run("document.getElementById('picture').focus()")?;
    site.browser.keys("++++++++n")?;
    site.browser
        .until("return !document.getElementById('task').hidden && !!document.getElementById('timeline').dataset.shownTask")?;
    site.drawn()?;
    let shown = site.data("shownTask")?;
    let found = super::timeline::described(site, shown)?;
    let took =
        site.text("document.querySelector('#task .columns > :last-child td').textContent")?;
    ensure!(
        took.replace(',', "") == format!("{} ms", found["milliseconds"]),
        "{took}: {found}"
    );
    // Memory by another division.
    site.browser.run("const field = document.querySelector('#memory-controls [name=by]'); field.value = 'region'; field.dispatchEvent(new Event('change', {bubbles: true}))")?;
    site.browser
        .until("return document.getElementById('memory').dataset.asked.includes('by=region')")?;
    site.drawn()?;
    let legend = site.text("document.getElementById('memory-legend').textContent")?;
    ensure!(legend.contains("storage"), "{legend}");
    // Every table has the rows of the server's, and sorts.
    let jobs = site.rest("jobs")?.as_array().map_or(0, Vec::len) as i64;
    let rows = "[...document.querySelectorAll('#p\\\\/jobs table.data tbody tr')]";
    ensure!(site.number(&format!("{rows}.length"))? == jobs);
    let column = "[...document.querySelectorAll('#p\\\\/jobs thead th')].findIndex((head) => head.textContent === 'Duration')";
    let press = format!("document.querySelectorAll('#p\\\\/jobs thead th')[{column}].click()");
    let lengths = format!(
        "JSON.stringify({rows}.map((row) => parseFloat(row.cells[{column}].textContent) * (row.cells[{column}].textContent.includes('m') ? 60 : 1)))"
    );
    for down in [true, false] {
        site.browser.run(&press)?;
        let all: Vec<f64> = serde_json::from_str(&site.text(&lengths)?)?;
        let is_sorted =
            all.is_sorted_by(|left, right| if down { left >= right } else { left <= right });
        ensure!(is_sorted && all.first() != all.last(), "{all:?}");
    }
    // A text leaves the rows that have it: job 7 of twelve.
    site.browser.run("const field = document.querySelector('#p\\\\/jobs input[type=search]'); field.value = 'Job 7 '; field.dispatchEvent(new Event('input'))")?;
    let left = format!(
        "{rows}.filter((row) => !row.hidden).map((row) => row.cells[0].textContent).join()"
    );
    ensure!(site.text(&left)? == "7", "{}", site.text(&left)?);
    // Addresses lead within the file: from the list of stages to the chain of one, and to a task's functions.
    site.browser.run("location.hash = '#p/stages'")?;
    site.browser
        .until("return document.getElementById('p/stages').open")?;
    site.browser.click("#p\\/stages a[href='#p/stages/3/0']")?;
    site.browser
        .until("return document.getElementById('p/stages/3/0').open")?;
    let boxes = "document.querySelectorAll('#p\\\\/stages\\\\/3\\\\/0 svg.chain g').length";
    ensure!(site.number(boxes)? == 5);
    site.browser
        .run(&format!("location.hash = '#p/tasks/{TASK}#functions'"))?;
    site.browser.until(&format!(
        "return document.getElementById('p/tasks/{TASK}').open"
    ))?;
    let lane = "svg.lanes[aria-label=\"Spans of task\"] a:not(.out)";
    ensure!(places(site, lane)?.len() == 3);
    site.browser
        .run("document.querySelector('.lane-set').focus()")?;
    site.browser.keys("+")?;
    site.browser
        .until("return document.querySelector('.lane-set').dataset.from === '250000000'")?;
    // A task that the file does not have leads to the table.
    site.browser.run("location.hash = '#p/tasks/999999'")?;
    site.browser
        .until("return document.getElementById('p/tasks').open")?;
    site.is_sound("the report's parts")?;
    for (width, is_dark) in [(400, true), (400, false), (2000, true)] {
        site.browser.look(width, 900, is_dark)?;
        site.browser.open(&address)?;
        site.drawn()?;
        site.browser.run(
            "document.querySelectorAll('details.part').forEach((part) => { part.open = true; })",
        )?;
        let what = format!("the report, {width} pixels, dark: {is_dark}");
        site.is_sound(&what)?;
        let worst = site.browser.run(TEXTS)?;
        let ratio = worst[0].as_f64().unwrap_or_default();
        ensure!(ratio >= CONTRAST, "{what}: contrast {worst}");
        let scheme = if is_dark { "dark" } else { "light" };
        site.browser
            .picture(&site.pictures.join(format!("whole-{width}-{scheme}.png")))?;
    }
    site.browser.look(1400, 1000, false)
}
