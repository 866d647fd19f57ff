//! The page of `smtt-ctl report --html` in a real browser: as it looks in both schemes and at both widths, and what its
//! script adds. The page is of a job of 25 s that a daemon's server has seen, without the kernel side.

use anyhow::{Context, Result, ensure};
use smtt_daemon::metrics::Names;
use xtask::browser::Browser;
use xtask::paths::Paths;

use crate::charts;
use crate::looks::{CONTRAST, TEXTS};
use crate::worker::{EXECUTORS, NAME, Part, SECONDS, Worker};

/// Height of the page of such a job on a wide screen, as it opens.
const HEIGHT: i64 = 3_000;

pub(super) struct Seen<'a>(pub(super) &'a Browser);

impl Seen<'_> {
    pub(super) fn text(&self, script: &str) -> Result<String> {
        let value = self.0.run(&format!("return String({script})"))?;
        Ok(value.as_str().unwrap_or_default().to_owned())
    }

    pub(super) fn number(&self, script: &str) -> Result<i64> {
        let text = self.text(&format!("Math.round({script})"))?;
        text.parse().with_context(|| format!("{script}: {text:?}"))
    }

    pub(super) fn is(&self, what: &str, script: &str, expected: &str) -> Result<()> {
        let seen = self.text(script)?;
        ensure!(seen == expected, "{what}: {seen:?}, expected {expected:?}");
        Ok(())
    }
}

#[test]
fn the_report_of_a_worker_is_readable_everywhere() -> Result<()> {
    let paths = Paths::find()?;
    let folder = tempfile::tempdir()?;
    let worker = Worker::start(Part::ALONE, folder.path(), Names::Hidden)?;
    let file = folder.path().join("report.html");
    worker.page(&paths, &file)?;
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
        charts::contrast(&seen, &what)?;
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
        charts::contrast(&seen, &what)?;
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
    charts::agree(&seen, &[Part::ALONE])?;
    sound(&seen, "after all of it")?;
    charts::without_script(&seen, &url)
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
pub(super) fn sound(seen: &Seen<'_>, what: &str) -> Result<()> {
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
