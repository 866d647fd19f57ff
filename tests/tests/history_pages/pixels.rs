//! Pixels of the pictures: a task under each choice of colour, one that failed, a job's bar, a limit's line, and marks.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use smtt_tests::workers::{MIB, RESTARTED};
use xtask::event_log::ID;
use xtask::http::get;

use super::memory::time;
use super::timeline::{Canvas, described, schedule};
use super::{SHAPE, Site};

/// A colour of the style sheet, as `#rrggbb`.
fn colour(site: &Site, name: &str) -> Result<String> {
    site.text(&format!(
        "getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()"
    ))
}

/// Colours of a rectangle of a canvas, row by row; places are in the canvas.
fn pixels(
    site: &Site,
    id: &str,
    (x, y): (i64, i64),
    (wide, tall): (i64, i64),
) -> Result<Vec<String>> {
    let script = format!(
        "(() => {{ const canvas = document.getElementById('{id}'), ratio = canvas.width / canvas.clientWidth;
        const all = canvas.getContext('2d').getImageData({x} * ratio, {y} * ratio, {wide}, {tall}).data;
        const hex = (at) => '#' + [...all.slice(at, at + 3)].map((part) => part.toString(16).padStart(2, '0')).join('');
        return JSON.stringify(Array.from({{length: all.length / 4}}, (_, at) => hex(at * 4))); }})()"
    );
    Ok(serde_json::from_str(&site.text(&script)?)?)
}

/// The colour of one pixel of the tasks' canvas, at a place in the window.
fn pixel(site: &Site, canvas: &Canvas, (x, y): (i64, i64)) -> Result<String> {
    let place = (x - canvas.left, y - canvas.top);
    let all = pixels(site, "picture", place, (1, 1))?;
    all.into_iter().next().context("no pixel")
}

/// Lane of a task, and the middle of its time.
fn middle(json: &Value) -> Option<(i64, i64)> {
    let executor: i64 = json["task"]["executorId"].as_str()?.parse().ok()?;
    let lane = (executor - 1) * 4 + json["core"].as_i64()?;
    Some((
        json["start"].as_i64()? + json["milliseconds"].as_i64()? / 2,
        lane,
    ))
}

pub(super) fn tasks(site: &Site) -> Result<()> {
    site.browser.look(1400, 1000, false)?;
    let all = schedule(site, 2)?;
    let from = all.iter().map(|task| task.2).min().context("no task")? + 500;
    let to = from + 3000;
    site.part(&format!("timeline?from={from}&to={to}"))?;
    site.drawn()?;
    let canvas = Canvas::of(site)?;
    // Of the lanes that the picture has: one that is nothing special, a straggler, and one that failed.
    let wanted = |id: i64| (id % 53 == 52, id % 97 == 96);
    let inside =
        |task: &&(i64, i64, i64, i64)| task.1 <= 16 && task.2 > from + 100 && task.3 < to - 100;
    let find = |kind: (bool, bool)| {
        let mut found = all.iter().filter(inside);
        let found = found.find(|task| wanted(task.0) == kind);
        found.map(|task| task.0).context("no such task")
    };
    let plain = described(site, find((false, false))?)?;
    let (time, lane) = middle(&plain).context("no place")?;
    let at = canvas.place(site, time, lane)?;
    let parts = plain["parts"].as_array().context("no parts")?;
    let length = |part: &usize| parts[*part]["microseconds"].as_u64();
    let part = (0..parts.len()).max_by_key(length).context("no parts")?;
    let locality = match plain["task"]["taskLocality"].as_str() {
        Some("PROCESS_LOCAL") => "l0",
        Some("ANY") => "l4",
        other => bail!("{other:?}"),
    };
    for (choice, expected) in [
        ("stage", "s2"),
        ("outcome", "o0"),
        ("locality", locality),
        ("part", &format!("p{part}")),
    ] {
        let before = site.data("drawn")?;
        site.browser.run(&format!(
            "const select = document.querySelector('#controls select'); select.value = '{choice}';
            select.dispatchEvent(new Event('change'))"
        ))?;
        site.browser.until(&format!(
            "return document.getElementById('timeline').dataset.drawn > {before}"
        ))?;
        let (seen, expected) = (pixel(site, &canvas, at)?, colour(site, expected)?);
        ensure!(seen == expected, "{choice}: {seen}, not {expected}");
    }
    // Marks are in the first row of a lane, of 8 pixels.
    let above = |(x, y): (i64, i64)| (x, y - 4);
    let below = |(x, y): (i64, i64)| (x, y + 3);
    let (bad, ink) = (colour(site, "bad")?, colour(site, "ink")?);
    let seen = pixel(site, &canvas, above(at))?;
    ensure!(seen != bad && seen != ink, "a mark above a plain task");
    let seen = pixel(site, &canvas, below(at))?;
    ensure!(seen != ink, "a mark below a plain task");
    let straggler = described(site, find((false, true))?)?;
    ensure!(straggler["isStraggler"] == true, "{straggler}");
    let (time, lane) = middle(&straggler).context("no place")?;
    let seen = pixel(site, &canvas, above(canvas.place(site, time, lane)?))?;
    ensure!(seen == ink, "a straggler's mark is {seen}");
    let failed = described(site, find((true, false))?)?;
    let (time, lane) = middle(&failed).context("no place")?;
    let at = canvas.place(site, time, lane)?;
    let seen = pixel(site, &canvas, above(at))?;
    ensure!(seen == bad, "the mark of a failed task is {seen}");
    site.part(&format!("timeline?from={from}&to={to}&colour=outcome"))?;
    site.drawn()?;
    let (seen, expected) = (pixel(site, &canvas, at)?, colour(site, "o1")?);
    ensure!(seen == expected, "a failed task is {seen}, not {expected}");
    // The job's bar right of its name, and its critical path in the bar.
    let (x, _) = canvas.place(site, from + 2250, 0)?;
    let bar = pixel(site, &canvas, (x, canvas.top + 22))?;
    ensure!(bar == colour(site, "s0")?, "a job's bar is {bar}");
    let path = pixel(site, &canvas, (x, canvas.top + 22 + 10))?;
    ensure!(path == ink, "the critical path in it is {path}");
    // The last task of a stage: here each stage is the critical path of its job.
    let (task, end) = last(site)?;
    let critical = described(site, task)?;
    ensure!(critical["isCritical"] == true, "{critical}");
    let (from, to) = (end - 2500, end + 500);
    site.part(&format!("timeline?from={from}&to={to}&colour=outcome"))?;
    site.drawn()?;
    let canvas = Canvas::of(site)?;
    let (time, lane) = middle(&critical).context("no place")?;
    let at = canvas.place(site, time.max(from + 100), lane)?;
    let (seen, bar) = (pixel(site, &canvas, below(at))?, pixel(site, &canvas, at)?);
    ensure!(
        seen == ink && bar == colour(site, "o0")?,
        "below task {task} of the critical path is {seen}, the task is {bar}"
    );
    site.is_sound("pixels of the time line")
}

/// The successful task that ended last of a stage, and its end: of a stage in which one in the picture's lanes did.
fn last(site: &Site) -> Result<(i64, i64)> {
    for stage in 0..SHAPE.stages as i64 {
        let mut all = schedule(site, stage)?;
        all.retain(|task| task.0 % 53 != 52);
        let end = all.iter().map(|task| task.3).max().context("no task")?;
        all.retain(|task| task.3 == end);
        if let [task] = all.as_slice()
            && task.1 <= 16
        {
            return Ok((task.0, end));
        }
    }
    bail!("no stage ends in the lanes of the picture")
}

/// The line of a limit at its height, and a mark for each collection.
pub(super) fn memory(site: &Site) -> Result<()> {
    let (from, to) = (time(&site.truth, 20), time(&site.truth, 40));
    site.part(&format!(
        "timeline?from={from}&to={to}&executor={}",
        RESTARTED + 3
    ))?;
    site.drawn()?;
    let top = site.number("document.getElementById('memory').dataset.top")?;
    // 190 pixels, of which 8 are above the picture and 30 below it.
    let y = 160 - (1500 * MIB * 152 + top / 2) / top;
    let bad = colour(site, "bad")?;
    // Names of limits are at the right.
    let red = |y: i64| -> Result<usize> {
        let row = pixels(site, "memory-picture", (Canvas::GUTTER, y), (600, 1))?;
        Ok(row.iter().filter(|it| **it == bad).count())
    };
    // Dashes of 5 pixels with gaps of 4.
    let dashes = [red(y - 1)?, red(y)?, red(y + 1)?];
    ensure!(
        dashes.iter().any(|seen| (250..=400).contains(seen)),
        "{dashes:?} red pixels at the limit of -Xmx"
    );
    ensure!(red(y - 6)? == 0 && red(y + 6)? == 0, "another line is near");
    // The marks are below the picture; a daemon counted one collection for nine points.
    let ink = colour(site, "ink")?;
    let width = site.number("document.getElementById('memory-picture').clientWidth")?;
    let lanes = width - Canvas::GUTTER;
    let row = pixels(site, "memory-picture", (Canvas::GUTTER, 163), (lanes, 1))?;
    let begins: Vec<i64> = (1..row.len())
        .filter(|at| row[*at] == ink && row[*at - 1] != ink)
        .map(|at| at as i64)
        .collect();
    let expected = [27, 36].map(|point| (time(&site.truth, point) - from) * lanes / (to - from));
    // A point has a twentieth of the width.
    let is_near = |(seen, at): (&i64, &i64)| (seen - at).abs() <= lanes / 20 + 3;
    ensure!(
        begins.len() == expected.len() && begins.iter().zip(&expected).all(is_near),
        "collections at {begins:?}, not at {expected:?} of {lanes} pixels"
    );
    let path = format!(
        "/smtt/v1/applications/{ID}/timeline/memory?from={from}&to={to}&executor={}",
        RESTARTED + 3
    );
    let answer: Value = serde_json::from_str(&get(site.port, &path)?)?;
    let counted = answer["collections"].as_array().into_iter().flatten();
    let counted: i64 = counted.filter_map(Value::as_i64).sum();
    ensure!(counted == 2, "{counted} collections");
    site.is_sound("pixels of the memory")
}
