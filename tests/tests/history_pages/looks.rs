//! Dark and light, narrow and wide, and without a mouse.

use anyhow::{Context, Result, ensure};
use xtask::event_log::ID;

use super::Site;

/// Pages under test.
const PARTS: [&str; 14] = [
    "",
    "findings",
    "timeline",
    "timeline/memory",
    "jobs",
    "stages",
    "stages/3/0",
    "tasks",
    "tasks/7",
    "executors",
    "rdds",
    "sql",
    "sql/7",
    "environment",
];
/// The list of applications.
const LIST: &str = "applications";
/// Least contrast of text: level AA of WCAG 2.2.
pub(super) const CONTRAST: f64 = 4.5;

/// The least contrast of the page's texts with what is behind them, and whose it is.
pub(super) const TEXTS: &str = "
    const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
    const linear = (part) => { part /= 255; return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4; };
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const behind = (element) => { for (let at = element; at; at = at.parentElement) {
        const colour = parse(getComputedStyle(at).backgroundColor);
        if (colour.length === 3 || colour[3] > 0) return colour; } return [255, 255, 255]; };
    let worst = [99, ''];
    for (const element of document.querySelectorAll('body *')) {
        const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
        if (!own || element.closest('svg') || !element.checkVisibility()) continue;
        const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < worst[0]) worst = [ratio, element.tagName + '.' + element.className + ' ' + element.textContent.slice(0, 40)];
    }
    return worst;";

pub(super) fn schemes_and_widths(site: &Site) -> Result<()> {
    for (width, is_dark) in [
        (400, true),
        (400, false),
        (700, false),
        (1000, true),
        (2000, true),
        (2000, false),
        (1400, true),
        (1400, false),
    ] {
        site.browser.look(width, 900, is_dark)?;
        for part in PARTS.into_iter().map(Some).chain([None]) {
            match part {
                Some(part) => site.part(part)?,
                None => site.open("")?,
            }
            let part = part.unwrap_or(LIST);
            let name = part.replace('/', "-");
            let what = format!("{part:?}, {width} pixels, dark: {is_dark}");
            if part == "timeline" {
                site.drawn()?;
            }
            if part == "findings" {
                let rows = "document.querySelectorAll('#worker-findings tbody tr').length";
                ensure!(site.number(rows)? == 2, "the workers' findings");
            }
            site.is_sound(&what)?;
            let beyond = site.number(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth",
            )?;
            ensure!(beyond <= 0, "{what}: {beyond} pixels beyond the window");
            let worst = site.browser.run(TEXTS)?;
            let ratio = worst[0].as_f64().unwrap_or_default();
            ensure!(ratio >= CONTRAST, "{what}: contrast {worst}");
            let is_ground_dark = site.text("(getComputedStyle(document.body).backgroundColor.match(/\\d+/g) || []).every((part) => part < 80)")?;
            ensure!(is_ground_dark == is_dark.to_string(), "{what}: the ground");
            let scheme = if is_dark { "dark" } else { "light" };
            let file = format!(
                "{}-{width}-{scheme}.png",
                if name.is_empty() { "overview" } else { &name }
            );
            site.browser.picture(&site.pictures.join(file))?;
        }
        // The canvas follows the scheme: most of its pixels are as dark as the page.
        site.part("timeline")?;
        site.drawn()?;
        let light = site.number(
            "(() => { const canvas = document.getElementById('picture'); const all = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            let sum = 0; for (let at = 0; at < all.length; at += 4) sum += all[at + 1]; return Math.round(sum * 4 / all.length); })()",
        )?;
        ensure!(
            (light < 130) == is_dark,
            "{width}: the picture's mean green is {light}"
        );
    }
    // The picture changes its colours with the scheme, without a new load.
    site.browser.look(1400, 1000, true)?;
    site.browser.until("const data = document.getElementById('picture').getContext('2d').getImageData(2, 2, 1, 1).data; return data[0] < 80")?;
    site.browser.look(1400, 1000, false)
}

/// Where the focus is.
const FOCUS: &str = "document.activeElement.id || document.activeElement.tagName";
const TAB: &str = "\u{e004}";

pub(super) fn keyboard(site: &Site) -> Result<()> {
    site.part("timeline")?;
    site.drawn()?;
    // The tabulator reaches every control, and the focus can be seen.
    let mut seen = Vec::new();
    for _ in 0..40 {
        site.browser.keys(TAB)?;
        seen.push(site.text(FOCUS)?);
        let outline = site.text("getComputedStyle(document.activeElement).outlineStyle")?;
        ensure!(outline != "none", "{seen:?}: the focus is not visible");
        if seen.last().is_some_and(|last| last == "picture") {
            break;
        }
    }
    ensure!(
        seen.last().is_some_and(|last| last == "picture"),
        "the tabulator does not reach the picture: {seen:?}"
    );
    let view =
        |site: &Site| -> Result<(i64, i64)> { Ok((site.data("viewFrom")?, site.data("viewTo")?)) };
    let all = view(site)?;
    site.browser.keys("++")?;
    site.drawn()?;
    let near = view(site)?;
    ensure!(
        (near.1 - near.0 - (all.1 - all.0) / 4).abs() <= 2,
        "{all:?} {near:?}"
    );
    // Right and left.
    site.browser.keys("\u{e014}")?;
    site.drawn()?;
    let right = view(site)?;
    ensure!(
        (right.0 - near.0 - (near.1 - near.0) / 4).abs() <= 2,
        "{near:?} {right:?}"
    );
    site.browser.keys("\u{e012}")?;
    site.drawn()?;
    ensure!((view(site)?.0 - near.0).abs() <= 2);
    // `-` and `=` zoom around the middle.
    for (key, long) in [("-", (all.1 - all.0) / 2), ("=", (all.1 - all.0) / 4)] {
        site.browser.keys(key)?;
        site.drawn()?;
        let now = view(site)?;
        ensure!((now.1 - now.0 - long).abs() <= 2, "{key}: {near:?} {now:?}");
    }
    ensure!((view(site)?.0 - near.0).abs() <= 2);
    // Lanes by half a picture: down and up by arrows, down and up by pages.
    for (key, expected) in [
        ("\u{e015}", 32),
        ("\u{e013}", 0),
        ("\u{e00f}", 32),
        ("\u{e00e}", 0),
        ("\u{e00f}", 32),
    ] {
        site.browser.keys(key)?;
        site.browser
            .until(&format!(
                "return new URL(location.href).searchParams.get('lane') === '{expected}'"
            ))
            .with_context(|| format!("{key:?} does not lead to lane {expected}"))?;
        site.drawn()?;
    }
    // A task, the next one, the first one again by `p`, its numbers by Enter, and back to everything.
    site.browser.keys("+++++n")?;
    let shown = |site: &Site| -> Result<i64> {
        site.browser.until(
            "return !document.getElementById('task').hidden && !!document.getElementById('timeline').dataset.shownTask",
        )?;
        site.data("shownTask")
    };
    let other = |site: &Site, task: i64| {
        site.browser.until(&format!(
            "return document.getElementById('timeline').dataset.shownTask !== '{task}'"
        ))?;
        site.drawn()?;
        shown(site)
    };
    let first = shown(site)?;
    site.browser.keys("n")?;
    let second = other(site, first)?;
    site.browser.keys("p")?;
    ensure!(
        other(site, second)? == first,
        "p after n leads back from {second} to {first}"
    );
    site.browser.run(
        "document.getElementById('task').replaceChildren(); delete document.getElementById('timeline').dataset.shownTask",
    )?;
    site.browser.keys("\u{e007}")?;
    ensure!(
        shown(site)? == first,
        "Enter shows the numbers of the chosen task"
    );
    let head = site.text("document.querySelector('#task h2 a').textContent")?;
    ensure!(head == format!("Task {first}"), "{head}");
    site.browser.keys("\u{e00c}")?;
    site.browser
        .until("return document.getElementById('task').hidden")?;
    site.browser.keys("\u{e011}")?;
    site.drawn()?;
    ensure!(view(site)? == all, "Home shows everything");
    // A table's order without a mouse.
    site.part("stages")?;
    site.browser
        .run("document.querySelector('#stages th a[href*=numTasks]').focus()")?;
    site.browser.keys("\u{e007}")?;
    site.browser
        .until("return location.search.includes('numTasks')")?;
    ensure!(site.text("location.pathname")? == format!("/applications/{ID}/stages"));
    site.is_sound("the keyboard")
}
