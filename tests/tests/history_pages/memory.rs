//! The memory beneath the tasks: its picture is on the scale of the tasks, its values are those of the server's answer and of
//! what two workers wrote, and a table has the same without a script.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_tests::workers::{self, MIB, POINTS, RESTARTED, held};
use xtask::event_log::{ID, Truth};
use xtask::http::get;

use super::Site;

/// Time of a point on the time line.
pub(super) fn time(truth: &Truth, point: i64) -> i64 {
    workers::time(truth.length, point)
}

/// The server's answer that the picture was drawn from.
fn answer(site: &Site) -> Result<Value> {
    let asked = site.text("document.getElementById('memory').dataset.asked")?;
    let query = asked.split_once('?').context("no question")?.1;
    let path = format!("/smtt/v1/applications/{ID}/timeline/memory?{query}");
    Ok(serde_json::from_str(&get(site.port, &path)?)?)
}

/// Bytes that the legend shows of a series.
fn shown(site: &Site, key: &str) -> Result<i64> {
    site.number(&format!(
        "document.querySelector('#memory-legend li[data-key=\"{key}\"]').dataset.bytes"
    ))
}

/// Where a time is in the memory's canvas by the scale of the tasks, in pixels of the window.
fn place(site: &Site, time: i64) -> Result<(i64, i64)> {
    site.browser
        .run("document.getElementById('memory-picture').scrollIntoView({block: 'center'})")?;
    let x = site.number(&format!(
        "(() => {{ const box = document.getElementById('picture').getBoundingClientRect(), data = document.getElementById('timeline').dataset;
        const gutter = box.width < 600 ? 62 : 112;
        return Math.round(box.left + gutter + ({time} - data.viewFrom) / (data.viewTo - data.viewFrom) * (box.width - gutter)); }})()"
    ))?;
    let y = site.number(
        "Math.round(document.getElementById('memory-picture').getBoundingClientRect().top)",
    )?;
    Ok((x, y + 60))
}

/// Values at a time, in the legend: those of the answer, and of what the workers wrote.
fn values(site: &Site, executor: usize, point: i64) -> Result<()> {
    // In the middle of the time that the point stands for.
    let middle = (time(&site.truth, point) + time(&site.truth, point + 1)) / 2;
    let (x, y) = place(site, middle)?;
    site.browser.click_at(x, y)?;
    site.browser
        .until("return document.getElementById('memory').dataset.cursor !== ''")?;
    let cursor: f64 = site
        .text("document.getElementById('memory').dataset.cursor")?
        .parse()?;
    let pixel = site.number("Math.ceil((document.getElementById('timeline').dataset.viewTo - document.getElementById('timeline').dataset.viewFrom) / 900)")?;
    ensure!(
        (cursor - middle as f64).abs() <= pixel as f64 + 1.0,
        "the pointer is at {cursor}, the tasks' scale says {middle}"
    );
    let answer = answer(site)?;
    let cell_ms = answer["cellMs"].as_f64().context("no cells")?;
    let from = answer["from"].as_f64().context("no window")?;
    let cell = ((cursor - from) / cell_ms) as usize;
    let all = answer["series"].as_array().context("no series")?;
    ensure!(all.len() == 13, "{} series", all.len());
    for series in all {
        let key = series["key"].as_str().unwrap_or_default();
        let value = series["values"][cell].as_i64();
        ensure!(value == Some(shown(site, key)?), "{key}: {value:?}");
        if let Some(rdd) = key.strip_prefix("rdd.") {
            let bytes = held(executor, point, rdd.parse()?);
            ensure!(
                value == Some(bytes + bytes / 4),
                "{key} at point {point}: {value:?}, written {bytes}"
            );
        }
    }
    let limit = shown(site, "-Xmx")?;
    ensure!(limit == 1500 * MIB, "the limit is {limit}");
    Ok(())
}

/// The picture has colours right of a time, and none left of it.
fn begins_at(site: &Site, time: i64, what: &str) -> Result<()> {
    let (x, _) = place(site, time)?;
    let colours = |by: i64| -> Result<i64> {
        site.number(&format!(
            "(() => {{ const canvas = document.getElementById('memory-picture'), box = canvas.getBoundingClientRect();
            const at = Math.round(({x} + {by} - box.left) * canvas.width / box.width);
            const column = canvas.getContext('2d').getImageData(at, 0, 1, Math.round(canvas.height * 0.8)).data;
            let seen = 0; for (let at = 0; at < column.length; at += 4) {{
                const [r, g, b] = column.slice(at, at + 3); seen += Math.max(r, g, b) - Math.min(r, g, b) > 40; }}
            return seen; }})()"
        ))
    };
    let (before, after) = (colours(-6)?, colours(6)?);
    ensure!(
        before <= 4 && after >= 20,
        "{what}: {before} coloured pixels before {time}, {after} after it"
    );
    Ok(())
}

pub(super) fn panel(site: &Site) -> Result<()> {
    let truth = &site.truth;
    site.browser.look(1400, 1000, false)?;
    site.part("timeline")?;
    site.drawn()?;
    site.is_sound("the memory")?;
    let wide = site.text("document.getElementById('memory-picture').clientWidth === document.getElementById('picture').clientWidth")?;
    ensure!(wide == "true", "the pictures are not equally wide");
    begins_at(site, time(truth, 0), "everything")?;
    let note = site.text("document.querySelector('#memory .notes').textContent")?;
    ensure!(note.contains("2 of 24 executors (23, 24)"), "{note}");
    let names = site.text("document.getElementById('memory-legend').textContent")?;
    ensure!(names.contains("<script>"), "a name is text: {names}");
    // One executor, from the address.
    let (from, to) = (time(truth, 20), time(truth, 40));
    let executor = RESTARTED + 3;
    site.part(&format!("timeline?from={from}&to={to}&executor={executor}"))?;
    site.drawn()?;
    values(site, executor, 25)?;
    // Zoom by the wheel, and pan by keys on the memory itself.
    let (x, y) = place(site, (from + to) / 2)?;
    site.browser.wheel((x, y), -120)?;
    site.browser.until(&format!(
        "const data = document.getElementById('timeline').dataset; return data.viewTo - data.viewFrom < {}",
        (to - from) * 3 / 4
    ))?;
    site.drawn()?;
    values(site, executor, 30)?;
    site.browser
        .run("document.getElementById('memory-picture').focus()")?;
    let before = site.data("viewFrom")?;
    site.browser.keys("\u{e014}")?;
    site.drawn()?;
    ensure!(
        site.data("viewFrom")? > before,
        "the arrow key moves the time line"
    );
    values(site, executor, 32)?;
    // The first measurement, near by.
    let first = time(truth, 0);
    site.part(&format!(
        "timeline?from={}&to={}",
        first - 1500,
        first + 2500
    ))?;
    site.drawn()?;
    begins_at(site, first, "near by")?;
    // A drag of the memory moves the tasks, and the tasks' buttons the memory.
    let (x, y) = place(site, first + 1000)?;
    let before = site.data("viewFrom")?;
    site.browser.pointer(&[(x, y), (x - 60, y), (x - 120, y)])?;
    site.drawn()?;
    ensure!(
        site.data("viewFrom")? > before,
        "a drag moves the time line"
    );
    begins_at(site, first, "after a drag")?;
    site.browser.click("#controls button[name=out]")?;
    site.drawn()?;
    begins_at(site, first, "after a button")?;
    restart(site)?;
    keys(site)?;
    table(site)?;
    site.browser.look(400, 900, true)?;
    site.part("timeline?by=node")?;
    site.drawn()?;
    begins_at(site, time(truth, 0), "a narrow screen")?;
    site.is_sound("the memory on a narrow screen")?;
    for (width, is_dark, by) in [
        (1400, false, "rdd"),
        (1400, true, "region"),
        (400, true, "rdd"),
        (400, false, "page_size"),
    ] {
        site.browser.look(width, 900, is_dark)?;
        site.part(&format!("timeline?by={by}"))?;
        site.drawn()?;
        site.browser
            .run("document.getElementById('memory').scrollIntoView()")?;
        let scheme = if is_dark { "dark" } else { "light" };
        let file = format!("memory-{by}-{width}-{scheme}.png");
        site.browser.picture(&site.pictures.join(file))?;
    }
    site.browser.look(1400, 1000, false)
}

/// The gap between two runs of a daemon is there and named.
fn restart(site: &Site) -> Result<()> {
    site.part("timeline?executor=2")?;
    site.drawn()?;
    let answer = answer(site)?;
    ensure!(
        answer["gaps"][0]["reason"] == "restart",
        "{}",
        answer["gaps"]
    );
    begins_at(site, time(&site.truth, POINTS * 6 / 10), "the second run")?;
    site.browser
        .run("document.getElementById('memory').scrollIntoView()")?;
    site.browser
        .picture(&site.pictures.join("memory-restart-1400-light.png"))?;
    site.part("timeline/memory?executor=2")?;
    let reasons = site.text("document.querySelector('#memory-gaps tbody').textContent")?;
    ensure!(reasons.contains("another run of the daemon"), "{reasons}");
    site.is_sound("the gap")
}

/// Without a mouse: another division, values cell by cell.
fn keys(site: &Site) -> Result<()> {
    site.part("timeline")?;
    site.drawn()?;
    site.browser
        .run("document.querySelector('#memory-controls select').focus()")?;
    site.browser
        .run("const select = document.activeElement; select.value = 'region'; select.dispatchEvent(new Event('change', {bubbles: true}))")?;
    site.browser.until("return new URL(location.href).searchParams.get('by') === 'region' && !!document.querySelector('#memory-legend li[data-key=storage_heap]')")?;
    site.drawn()?;
    // The tabulator goes on to the picture.
    for _ in 0..4 {
        site.browser.keys("\u{e004}")?;
        if site.text("document.activeElement.id")? == "memory-picture" {
            break;
        }
    }
    ensure!(site.text("document.activeElement.id")? == "memory-picture");
    site.browser.keys("n")?;
    let first: f64 = site
        .text("document.getElementById('memory').dataset.cursor")?
        .parse()?;
    let begin = time(&site.truth, 0) as f64;
    let cell = answer(site)?["cellMs"].as_f64().unwrap_or_default();
    ensure!(
        (first - begin).abs() <= cell,
        "the first measured cell is at {first}, not at {begin}"
    );
    let said = site.text("document.getElementById('memory-said').textContent")?;
    ensure!(
        said.contains("storage, on the heap") && said.contains("22 executors"),
        "{said}"
    );
    site.browser.keys("nnp")?;
    let next: f64 = site
        .text("document.getElementById('memory').dataset.cursor")?
        .parse()?;
    ensure!(
        (next - first - cell).abs() < 1.0,
        "{first} {next}, a cell has {cell}"
    );
    site.browser.keys("\u{e00c}")?;
    ensure!(
        site.text("document.getElementById('memory').dataset.cursor")?
            .is_empty()
    );
    site.is_sound("keys on the memory")
}

/// The table has the numbers of the answer, without a script.
fn table(site: &Site) -> Result<()> {
    site.browser.click("#memory-as-table")?;
    site.browser
        .until("return location.pathname.endsWith('/timeline/memory')")?;
    ensure!(site.number("document.scripts.length")? == 0);
    ensure!(site.text("new URL(location.href).searchParams.get('by')")? == "region");
    ensure!(site.number("document.querySelectorAll('#memory-table tbody tr').length")? == 40);
    let first = site.text("document.querySelector('#memory-table tbody tr').textContent")?;
    ensure!(
        first.contains('–'),
        "the first tenth was not measured: {first}"
    );
    site.is_sound("the table of the memory")?;
    site.browser
        .run("document.querySelector('select[name=by]').value = 'page_size'; document.querySelector('form button').click()")?;
    site.browser.until(
        "return location.search.includes('by=page_size') && document.readyState === 'complete'",
    )?;
    let head = site.text("document.querySelector('#memory-table thead').textContent")?;
    ensure!(
        head.contains("4 KiB pages") && head.contains("swapped out"),
        "{head}"
    );
    site.browser
        .picture(&site.pictures.join("memory-table-1400-light.png"))
}
