//! A part of a task's time in its lanes: by an address, by the links above the lanes, by keys, the wheel and drags, without a
//! new load of the page. The address, and those of spans and tables, have it.

use anyhow::{Result, ensure};

use super::Site;
use super::functions::{FITS, TASK, near, places};

/// The spans of the task's thread that are shown.
const OWN: &str = "svg.lanes[aria-label=\"Spans of task\"] a:not(.out)";

/// Waits until the lanes show a window, in milliseconds, and the address has it.
fn shows(site: &Site, from: i64, to: i64) -> Result<()> {
    site.browser.until(&format!(
        "const data = document.getElementById('lanes').dataset;
        return data.state === 'ready' && Math.abs(data.from / 1e6 - {from}) <= 1 && Math.abs(data.to / 1e6 - {to}) <= 1"
    ))?;
    let asked = |name: &str| {
        site.text(&format!(
            "(new URL(location.href).searchParams.get('{name}') || document.getElementById('lanes').dataset.{name}) === document.getElementById('lanes').dataset.{name}"
        ))
    };
    ensure!(
        asked("from")? == "true" && asked("to")? == "true",
        "the lanes show {from} to {to}, the address is {}",
        site.text("location.href")?
    );
    Ok(())
}

fn has(site: &Site, expected: &[(i64, i64)], what: &str) -> Result<()> {
    let own = places(site, OWN)?;
    ensure!(near(&own, expected), "{what}: {own:?}, not {expected:?}");
    Ok(())
}

pub(super) fn lanes(site: &Site) -> Result<()> {
    site.browser.look(1400, 1000, false)?;
    // 50 to 450, 100 to 250 and 500 to 800 ms of a second.
    let all = [(50, 400), (100, 150), (500, 300)];
    site.part(&format!("tasks/{TASK}?from=400000000&to=900000000"))?;
    shows(site, 400, 900)?;
    has(site, &[(0, 100), (200, 600)], "an address")?;
    let requests = places(site, "#fetches-lane a:not(.out)")?;
    ensure!(requests.is_empty(), "{requests:?}");
    let said = "document.getElementById('lanes-said').textContent";
    ensure!(site.text(said)? == "From 400.0 ms to 900.0 ms, 4 of 9 spans and requests");
    let labels =
        "[...document.querySelectorAll('svg.axis text')].map((it) => it.textContent).join()";
    ensure!(
        site.text(labels)? == "0.4 s,0.5 s,0.6 s,0.7 s,0.8 s",
        "{}",
        site.text(labels)?
    );
    site.browser
        .run("document.getElementById('functions').scrollIntoView()")?;
    site.browser
        .picture(&site.pictures.join("lanes-zoom-1400-light.png"))?;
    // The links draw without a new load.
    site.browser.run("window.isSame = true")?;
    site.browser.click("#lanes-window a[data-do=all]")?;
    shows(site, 0, 1000)?;
    has(site, &all, "everything")?;
    ensure!(site.text("location.search")?.is_empty());
    ensure!(site.text(labels)? == "0,250.0 ms,500.0 ms,750.0 ms");
    let grid = "document.querySelector('svg.lanes .grid').getAttribute('d')";
    ensure!(
        site.text(grid)?.starts_with("M25.000 0V"),
        "{}",
        site.text(grid)?
    );
    site.browser.click("#lanes-window a[data-do=in]")?;
    shows(site, 250, 750)?;
    has(site, &[(0, 400), (0, 2), (500, 500)], "a link")?;
    // Keys, on the lanes and on a span's link.
    site.browser
        .run("document.getElementById('lanes').focus()")?;
    site.browser.keys("\u{e014}")?;
    shows(site, 375, 875)?;
    has(site, &[(0, 150), (250, 600)], "a key")?;
    site.browser.keys("\u{e012}-")?;
    shows(site, 0, 1000)?;
    site.browser
        .run("document.querySelector('svg.lanes a').focus()")?;
    site.browser.keys("+")?;
    shows(site, 250, 750)?;
    site.browser.keys("\u{e011}")?;
    shows(site, 0, 1000)?;
    // The wheel with Ctrl: the time below the pointer stays.
    let side = |side: &str| {
        site.number(&format!(
            "Math.round(document.querySelector('svg.lanes').getBoundingClientRect().{side})"
        ))
    };
    let (left, top, wide) = (side("left")?, side("top")?, side("width")?);
    let (x, y) = (left + wide * 65 / 100, top + 4);
    site.browser.wheel((x, y), -120)?;
    site.browser.until(
        "const data = document.getElementById('lanes').dataset; return data.state === 'ready' && data.to - data.from < 6e8",
    )?;
    let data = |name: &str| {
        site.number(&format!(
            "Math.round(document.getElementById('lanes').dataset.{name} / 1e6)"
        ))
    };
    let (from, to) = (data("from")?, data("to")?);
    let below = from + (to - from) * 65 / 100;
    ensure!(
        (below - 650).abs() <= 3,
        "{from} to {to}: {below} is below the pointer"
    );
    // A drag by a quarter moves by a quarter, and chooses no span.
    site.browser
        .pointer(&[(x, y), (x - wide / 8, y), (x - wide / 4, y)])?;
    let by = ((to - from) / 4).min(1000 - to);
    shows(site, from + by, to + by)?;
    ensure!(
        site.text("window.isSame")? == "true",
        "the page was loaded again"
    );
    ensure!(
        !site.text("location.search")?.contains("span="),
        "a drag chose a span"
    );
    // A click on a span keeps the window; so does a table's order, and another load of the address.
    site.browser
        .run("document.querySelectorAll('svg.lanes a:not(.out)')[0].focus()")?;
    site.browser.keys("\u{e007}")?;
    site.browser.until(
        "return !window.isSame && location.search.includes('span=') && document.readyState === 'complete'",
    )?;
    shows(site, from + by, to + by)?;
    site.browser.click("#spans th a[href*=duration]")?;
    site.browser.until(
        "return location.search.includes('sort=-duration') && document.readyState === 'complete'",
    )?;
    shows(site, from + by, to + by)?;
    let (address, shown) = (site.text("location.href")?, places(site, OWN)?);
    site.open("")?;
    site.browser.open(&address)?;
    shows(site, from + by, to + by)?;
    has(site, &shown, "the address again")?;
    site.is_sound("a part of a task's time")?;
    // The server alone draws the same.
    let drawn = "JSON.stringify([...document.querySelectorAll('svg.lanes a:not(.out) rect')].map((it) => [it.getAttribute('x') * 10, it.getAttribute('width') * 10].map(Math.round)))";
    let by_server = site.text(drawn)?;
    site.browser
        .run("document.getElementById('lanes').focus()")?;
    site.browser.keys("+-")?;
    shows(site, from + by, to + by)?;
    ensure!(
        site.text(drawn)? == by_server,
        "{} by the script, {by_server} by the server",
        site.text(drawn)?
    );
    site.browser.look(400, 900, true)?;
    site.part(&format!("tasks/{TASK}?from=400000000&to=401000000"))?;
    shows(site, 400, 401)?;
    ensure!(site.text(FITS)? == "true", "labels of the axis overlap");
    site.is_sound("a part of a task's time on a narrow screen")?;
    site.browser
        .run("document.getElementById('functions').scrollIntoView()")?;
    site.browser
        .picture(&site.pictures.join("lanes-zoom-400-dark.png"))?;
    site.browser.look(1400, 1000, false)
}
