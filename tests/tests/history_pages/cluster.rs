//! The page of an application on all workers of a cluster, in a real browser. The witnesses of its sums are each worker's
//! own answers on its socket.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_daemon::server::Web;
use xtask::browser::Browser;
use xtask::paths::Paths;

use crate::charts;
use crate::looks::{CONTRAST, TEXTS};
use crate::report::{Seen, sound};
use crate::worker::{APP, EXECUTORS, Part, Worker, client, written};

const WORKERS: u64 = 3;
const TOKEN: &str = "5f4dcc3b5aa765d61d8327deb882cf99";

fn secret(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, Permissions::from_mode(0o600))?)
}

/// Sum of a field over the rows of all workers.
fn sum(rows: &[Value], field: &str) -> u64 {
    rows.iter().filter_map(|row| row[field].as_u64()).sum()
}

/// Sum of the numbers in a table's column.
fn total(seen: &Seen<'_>, table: &str, heading: &str) -> Result<u64> {
    let script = format!(
        "(() => {{ const table = document.getElementById('{table}');
        const at = [...table.querySelectorAll('th')].findIndex((heading) => heading.textContent === '{heading}');
        return [...table.tBodies[0].rows].reduce((sum, row) => sum + Number(row.cells[at].dataset.sort || 0), 0); }})()"
    );
    let text = seen.text(&script)?;
    text.parse().with_context(|| format!("{heading}: {text}"))
}

/// Texts of the first cells of the rows that are shown.
const SHOWN: &str = "[...document.querySelectorAll('#processes tbody tr')].filter((row) => row.offsetParent).map((row) => row.cells[0].textContent).join(' ')";

#[test]
fn the_page_of_a_cluster_is_readable_and_its_sums_are_those_of_its_workers() -> Result<()> {
    let paths = Paths::find()?;
    let folder = tempfile::tempdir()?;
    let file = |name: &str| folder.path().join(name);
    secret(&file("tokens"), &format!("{TOKEN}\n"))?;
    let defaults = smtt_config::parse("", Path::new("/etc/smtt/smtt.toml"))?;
    let web = Web::load(&smtt_config::Web {
        token_file: Some(file("tokens")),
        api: true,
        ..defaults.web
    })?;
    let parts: Vec<Part> = (0..WORKERS)
        .map(|number| Part {
            number,
            of: WORKERS,
        })
        .collect();
    let workers: Result<Vec<Worker>> = parts
        .iter()
        .map(|part| Worker::start(*part, folder.path(), web.clone()))
        .collect();
    let workers = workers?;
    // And one where nothing listens.
    let dead = TcpListener::bind("127.0.0.9:0")?.local_addr()?;
    let addresses = workers.iter().map(|worker| worker.address).chain([dead]);
    let list: String = addresses.map(|address| format!("{address}\n")).collect();
    fs::write(file("hosts"), list)?;
    let page = file("cluster.html");
    let mut ctl = client(&paths)?;
    ctl.arg("--cluster").arg(file("hosts"));
    ctl.arg("--token-file").arg(file("tokens"));
    // A worker that is missing makes the answer incomplete.
    written(ctl.args(["--deadline", "60"]), &page, 3)?;
    let url = format!("file://{}", page.display());

    let pictures = paths.target.join("pages");
    fs::create_dir_all(&pictures)?;
    let browser = Browser::start(&paths, folder.path())?;
    let seen = Seen(&browser);
    for (width, is_dark) in [(400, true), (400, false), (1400, true), (1400, false)] {
        let what = format!("{width} pixels, dark: {is_dark}");
        browser.look(width, 1000, is_dark)?;
        browser.open(&url)?;
        sound(&seen, &what)?;
        // With all parts, and with what is folded at first.
        for is_open in [false, true] {
            if is_open {
                browser.run(
                    "document.querySelectorAll('details').forEach((part) => { part.open = true; })",
                )?;
                sound(&seen, &what)?;
            }
            let worst = browser.run(TEXTS)?;
            let ratio = worst[0].as_f64().unwrap_or_default();
            ensure!(ratio >= CONTRAST, "{what}: contrast {worst}");
            charts::contrast(&seen, &what)?;
        }
        let height = seen.number("document.documentElement.scrollHeight")?;
        let scheme = if is_dark { "dark" } else { "light" };
        browser.look(width, u32::try_from(height)?.min(6000), is_dark)?;
        browser.picture(&pictures.join(format!("cluster-{width}-{scheme}.png")))?;
    }

    browser.look(1400, 1000, false)?;
    browser.open(&url)?;
    // Who is missing is said on the first screen.
    let missing = "document.querySelector('.missing')";
    let text = seen.text(&format!("{missing}.textContent"))?;
    ensure!(text.contains("127.0.0.9: cannot connect"), "{text}");
    let place = seen.number(&format!("{missing}.getBoundingClientRect().bottom"))?;
    ensure!((1..1000).contains(&place), "{place}");
    seen.is(
        "the application's id",
        "document.querySelector('header p.soft bdi').textContent",
        APP,
    )?;
    executors(&seen, &paths, &workers)?;
    let mut rdds = Vec::new();
    for worker in &workers {
        rdds.extend(worker.rows(&paths, "rdds")?);
    }
    for (table, heading, field) in [
        ("holding", "Storage", "storage_memory_bytes"),
        ("costing", "Page faults", "page_faults"),
    ] {
        let (all, own) = (total(&seen, table, heading)?, sum(&rdds, field));
        ensure!(own > 0 && all == own, "{heading}: {all}, of workers {own}");
    }
    charts::agree(&seen, &parts)?;
    sound(&seen, "after all of it")
}

/// The table of executors has each worker's own, by the worker's name; it sorts, filters and folds.
fn executors(seen: &Seen<'_>, paths: &Paths, workers: &[Worker]) -> Result<()> {
    let is_open = "document.querySelector('#executors details').open";
    seen.is("at first", is_open, "false")?;
    seen.0.click("nav a[href='#executors']")?;
    seen.0.until(&format!("return {is_open}"))?;
    let (mut known, mut own) = (BTreeSet::new(), Vec::new());
    for worker in workers {
        for row in worker.rows(paths, "executors")? {
            let name = worker.address.ip().to_string();
            known.insert(format!("{name} {} {}", row["pid"], row["page_faults"]));
            own.push(row);
        }
    }
    let rows = "[...document.querySelectorAll('#processes tbody tr')].map((row) => { const at = (name) => row.cells[[...document.querySelectorAll('#processes th')].findIndex((heading) => heading.textContent === name)];
        return [at('Worker').textContent, at('Executor').textContent.match(/pid (\\d+)/)[1], at('Page faults').dataset.sort].join(' '); }).join('|')";
    let shown = seen.text(rows)?;
    let shown: BTreeSet<String> = shown.split('|').map(str::to_owned).collect();
    ensure!(shown == known, "{shown:?} {known:?}");
    ensure!(shown.len() as u64 == WORKERS * EXECUTORS, "{shown:?}");
    for (heading, field) in [
        ("Page faults", "page_faults"),
        ("Storage", "storage_memory_bytes"),
    ] {
        let (all, of) = (total(seen, "processes", heading)?, sum(&own, field));
        ensure!(of > 0 && all == of, "{heading}: {all}, of workers {of}");
    }
    // Later workers have more page faults.
    let press = "[...document.querySelectorAll('#processes th button')].find((button) => button.textContent === 'Page faults').click()";
    let falling = "127.0.0.3 127.0.0.3 127.0.0.2 127.0.0.2 127.0.0.1 127.0.0.1";
    let rising = "127.0.0.1 127.0.0.1 127.0.0.2 127.0.0.2 127.0.0.3 127.0.0.3";
    for order in [falling, rising] {
        seen.0.run(press)?;
        seen.is("the order", SHOWN, order)?;
    }
    seen.0
        .run("document.querySelector('#executors input').focus()")?;
    seen.0.keys("0.0.2")?;
    seen.is("the filter", SHOWN, "127.0.0.2 127.0.0.2")?;
    seen.0.keys(&"\u{e003}".repeat(5))?;
    seen.is("without the filter", SHOWN, rising)?;
    seen.0.click("#executors summary")?;
    seen.is("folded again", is_open, "false")
}
