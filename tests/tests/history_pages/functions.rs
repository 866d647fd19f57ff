//! The functions of a task: lanes by thread with spans, requests for shuffle blocks and times that add up, as a worker wrote
//! them. A click shows the numbers of a span, its address opens it again, and a narrow screen has all of it.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::workers::{Bounds, FETCHES, FUNCTIONS, TASKS, Whose, Workers};
use xtask::event_log::{HOSTILE, ID};
use xtask::http::get;

use super::Site;

/// A task whose page is opened at all widths as well.
pub(super) const TASK: i64 = 7;
const MS: i64 = 1_000_000;
/// Duration of the task on its worker.
const TOTAL: i64 = 1_000 * MS;

/// A span: thread, its id, activity, function, begin, duration and time without spans inside, in milliseconds.
type Span = (&'static str, i64, &'static str, &'static str, i64, i64, i64);

/// The second lies in the first, the fourth is of another thread. The store orders them by begin, so that one is number 0.
const SPANS: [Span; 6] = [
    (
        "task",
        100,
        "shuffle_fetch",
        "ShuffleBlockFetcherIterator.next",
        50,
        400,
        250,
    ),
    ("task", 100, HOSTILE, HOSTILE, 100, 150, 150),
    (
        "task",
        100,
        "sort",
        "ExternalSorter.insertAll",
        500,
        300,
        300,
    ),
    (
        "helper",
        200,
        "broadcast",
        "TorrentBroadcast.readBroadcastBlock",
        0,
        900,
        900,
    ),
    ("collections", 0, "collection_pause", "pause", 820, 30, 30),
    ("python worker", 300, "python_worker", "serve", 910, 60, 60),
];
/// A request: whom, begin, duration, bytes and outcome. The first two overlap.
const REQUESTS: [(&str, i64, i64, i64, &str); 3] = [
    (HOSTILE, 60, 100, 3 << 20, "complete"),
    ("node-2:7337", 100, 50, 5 << 20, "complete"),
    ("node-3:7337", 300, 20, 0, "failed"),
];

/// Shares of the samples: activity, samples, share and its 95 % interval, which is Wilson's.
const SAMPLED: [(&str, u64, f64, f64, f64); 3] = [
    ("compute", 100, 0.5, 0.4314, 0.5686),
    ("shuffle_write", 60, 0.3, 0.2409, 0.3666),
    ("cache_read", 40, 0.2, 0.1512, 0.2607),
];
const MIB: u64 = 1 << 20;
/// A series of the task's life: field, its title, its parts, its total, and the parts and the total as a person reads them.
type Series = (
    &'static str,
    &'static str,
    [u64; 12],
    Option<u64>,
    &'static str,
);
/// Its life. The third part and the last are interpolated.
const LIFE: [Series; 3] = [
    (
        "thread_page_faults",
        "page faults",
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
        Some(66),
        "66 0 1 2 3 4 5 6 7 8 9 10 11",
    ),
    (
        "resident_bytes",
        "resident memory of the executor",
        [
            64 * MIB,
            80 * MIB,
            96 * MIB,
            128 * MIB,
            128 * MIB,
            128 * MIB,
            120 * MIB,
            112 * MIB,
            100 * MIB,
            96 * MIB,
            72 * MIB,
            64 * MIB,
        ],
        None,
        "– 64.0MiB 80.0MiB 96.0MiB 128.0MiB 128.0MiB 128.0MiB 120.0MiB 112.0MiB 100.0MiB 96.0MiB 72.0MiB 64.0MiB",
    ),
    (
        "execution_memory_bytes",
        "execution memory of the task",
        [
            0,
            0,
            MIB,
            2 * MIB,
            4 * MIB,
            8 * MIB,
            8 * MIB,
            8 * MIB,
            4 * MIB,
            2 * MIB,
            MIB / 2,
            0,
        ],
        None,
        "– 0B 0B 1.0MiB 2.0MiB 4.0MiB 8.0MiB 8.0MiB 8.0MiB 4.0MiB 2.0MiB 512.0KiB 0B",
    ),
];

/// Writes what a daemon says of the task.
pub(super) fn write(site: &Site) -> Result<()> {
    let path = format!("/smtt/v1/applications/{ID}/tasks/{TASK}");
    let found: Value = serde_json::from_str(&get(site.port, &path)?)?;
    let executor = found["task"]["executorId"]
        .as_str()
        .context("no executor")?;
    let stage = Cell::Number(found["stageId"].as_i64().context("no stage")?);
    let (zero, task, ran) = (Cell::Number(0), Cell::Number(TASK), Cell::Text(executor));
    let (mut tasks, mut spans, mut requests) = (
        Batch::new(&TASKS),
        Batch::new(&FUNCTIONS),
        Batch::new(&FETCHES),
    );
    let sampled = SAMPLED.map(|(activity, samples, share, low, high)| {
        json!({"activity": activity, "samples": samples, "share": share, "share_low": low, "share_high": high})
    });
    let series = LIFE.map(|(field, _, parts, total, _)| {
        let series = json!({"parts": parts, "total": total, "measured_points": 9});
        (field.to_owned(), series)
    });
    let series = Value::Object(series.into_iter().collect());
    let interpolated: Vec<bool> = (0..12).map(|at| at == 2 || at == 11).collect();
    let row = json!({
        "executor_id": executor, "shuffle_read_records": 123_456, "page_faults": 4_321,
        "functions": {"begin_ns": 5, "duration_ns": TOTAL, "rest_ns": 300 * MS,
            "fetched": {"requests": 3, "blocks": 9, "arrived_blocks": 6, "bytes": 8 << 20, "left_out": 0},
            "paused": {"pauses": 1, "paused_ns": 30 * MS},
            "activities": [{"activity": "sort", "spans": 1, "own_ns": 300 * MS},
                {"activity": "shuffle_fetch", "spans": 1, "own_ns": 250 * MS},
                {"activity": HOSTILE, "spans": 1, "own_ns": 150 * MS}],
            "on_cpu": {"event": "cycles", "samples": 200, "activities": sampled},
            "thread": {"cpu_ns": 600 * MS, "cpu_wait_ns": 100 * MS, "disk_wait_ns": 50 * MS, "other_ns": 250 * MS}},
        "splits": {"progress_by": "time", "measured_points": 9, "interpolated": interpolated, "series": series},
    })
    .to_string();
    let state = Cell::Text("succeeded");
    let none = Cell::None;
    tasks.push(&[
        stage,
        zero,
        task,
        ran,
        state,
        none,
        none,
        none,
        none,
        none,
        Cell::Text(&row),
    ]);
    for (thread, tid, activity, function, begin, duration, own) in SPANS {
        spans.push(&[
            stage,
            zero,
            task,
            ran,
            Cell::Text(thread),
            Cell::Number(tid),
            Cell::Text(activity),
            Cell::Text(function),
            Cell::None,
            Cell::Number(begin * MS),
            Cell::Number(duration * MS),
            Cell::Number(own * MS),
            Cell::Number(3),
        ]);
    }
    for (whom, begin, duration, bytes, outcome) in REQUESTS {
        requests.push(&[
            stage,
            zero,
            task,
            ran,
            Cell::Text(whom),
            Cell::Text("9"),
            Cell::None,
            Cell::Number(begin * MS),
            Cell::Number(duration * MS),
            Cell::Number(3),
            Cell::Number(bytes),
            Cell::Text(outcome),
        ]);
    }
    let any = Bounds {
        bytes: 1 << 30,
        files: 1 << 20,
    };
    let mut workers = Workers::take(&site.store, "worker9", 1, None, any)?;
    for batch in [spans, requests, tasks] {
        workers.add(Whose::of(ID, 7), 0, &batch, &|uid| uid)?;
    }
    Ok(())
}

/// Where the spans of a lane are, in thousandths of its width: begin and length.
pub(super) fn places(site: &Site, lane: &str) -> Result<Vec<(i64, i64)>> {
    let script = format!(
        "JSON.stringify([...document.querySelectorAll('{lane} rect')].map((span) => {{
            const box = span.getBoundingClientRect(), all = span.closest('svg').getBoundingClientRect();
            return [Math.round((box.left - all.left) * 1000 / all.width), Math.round(box.width * 1000 / all.width)]; }}))"
    );
    Ok(serde_json::from_str(&site.text(&script)?)?)
}

pub(super) fn near(found: &[(i64, i64)], expected: &[(i64, i64)]) -> bool {
    let is_near = |(left, right): (&(i64, i64), &(i64, i64))| {
        (left.0 - right.0).abs() <= 2 && (left.1 - right.1).abs() <= 2
    };
    found.len() == expected.len() && found.iter().zip(expected).all(is_near)
}

/// The words of a span that was chosen.
fn chosen(site: &Site) -> Result<String> {
    site.browser
        .until("return !!document.querySelector('#span dl')")?;
    site.text("[...document.querySelectorAll('#span h3, #span dl div')].map((it) => it.innerText.replaceAll('\\n', ' ')).join('|')")
}

pub(super) fn page(site: &Site) -> Result<()> {
    site.browser.look(1400, 1000, false)?;
    site.part(&format!("tasks/{TASK}"))?;
    // A lane for the task's thread, one for its helper, one for its Python worker, one for pauses and one for the requests,
    // on one scale.
    ensure!(site.number("document.querySelectorAll('svg.lanes').length")? == 5);
    let served = places(site, "svg.lanes[aria-label=\"Spans of Python worker 300\"]")?;
    ensure!(near(&served, &[(910, 60)]), "{served:?}");
    let pauses = "svg.lanes[aria-label=\"Spans of collections: pauses of the whole executor\"]";
    let pauses = places(site, pauses)?;
    ensure!(near(&pauses, &[(820, 30)]), "{pauses:?}");
    let own = places(site, "svg.lanes[aria-label=\"Spans of task\"]")?;
    ensure!(near(&own, &[(50, 400), (100, 150), (500, 300)]), "{own:?}");
    let helper = places(site, "svg.lanes[aria-label=\"Spans of helper thread 200\"]")?;
    ensure!(near(&helper, &[(0, 900)]), "{helper:?}");
    let requests = places(site, "#fetches-lane")?;
    ensure!(
        near(&requests, &[(60, 100), (100, 50), (300, 20)]),
        "{requests:?}"
    );
    // What lies in another span, and what is asked for at the same time, lies below it.
    let tops = |lane: &str| -> Result<Vec<i64>> {
        let script = format!(
            "JSON.stringify([...document.querySelectorAll('{lane} rect')].map((span) => Math.round(span.getBoundingClientRect().top)))"
        );
        Ok(serde_json::from_str(&site.text(&script)?)?)
    };
    let rows = tops("svg.lanes[aria-label=\"Spans of task\"]")?;
    ensure!(rows[1] > rows[0] && rows[2] == rows[0], "{rows:?}");
    let rows = tops("#fetches-lane")?;
    ensure!(rows[1] > rows[0] && rows[2] == rows[0], "{rows:?}");
    // The times of the activities add up to the duration, and so do those of the thread.
    for table in ["activities", "thread"] {
        let sum = site.text(&format!(
            "document.querySelector('#{table} tbody tr:last-child').innerText.replaceAll('\\t', ' ').trim()"
        ))?;
        ensure!(sum == "together 1.0 s", "{table}: {sum:?}");
    }
    let shares = site.text("[...document.querySelectorAll('#activities tbody td:last-child')].map((it) => it.textContent).join(' ')")?;
    ensure!(shares.trim() == "30.0 % 25.0 % 15.0 % 30.0 %", "{shares}");
    ensure!(
        site.text("document.querySelector('#activities').textContent.includes(`<script>`)")?
            == "true"
    );
    pie(site)?;
    axis(site)?;
    estimate(site)?;
    life(site)?;
    click(site)?;
    request(site)?;
    tables(site)?;
    narrow(site)
}

/// The pie beside the table has a slice of each activity: its colour is at the middle of its share, with the clock from the top.
fn pie(site: &Site) -> Result<()> {
    let at = |share: f64| {
        let (x, y) = (share * std::f64::consts::TAU).sin_cos();
        format!(
            "(() => {{ const pie = document.querySelector('svg.pie'), point = new DOMPoint({}, {});
            const found = [...pie.querySelectorAll('path')].filter((slice) => slice.isPointInFill(point));
            return found.map((slice) => slice.textContent).join(); }})()",
            50.0 + 30.0 * x,
            50.0 - 30.0 * y
        )
    };
    // 30, 25, 15 and 30 % of the duration.
    for (share, expected) in [
        (0.15, "sort 30.0 %"),
        (0.425, "shuffle_fetch 25.0 %"),
        (0.72, "outside the spans (user code, framework) 30.0 %"),
        (0.98, "outside the spans (user code, framework) 30.0 %"),
    ] {
        let slice = site.text(&at(share))?;
        ensure!(slice == expected, "{share}: {slice:?}, not {expected:?}");
    }
    ensure!(site.text(&at(0.625))?.ends_with(" 15.0 %"));
    let beside = "(() => { const box = (it) => document.querySelector(it).getBoundingClientRect();
        return box('svg.pie').right <= box('#activities').left && box('svg.pie').top < box('#activities').bottom; })()";
    ensure!(
        site.text(beside)? == "true",
        "the pie is not beside its table"
    );
    Ok(())
}

/// Whether no label of the axis is on another one, or beyond its end.
pub(super) const FITS: &str = "[...document.querySelectorAll('svg.axis text')].every((text, at, all) => {
        const box = text.getBoundingClientRect(), next = all[at + 1];
        return box.right <= (next ? next.getBoundingClientRect().left : text.ownerSVGElement.getBoundingClientRect().right); })";

/// The axis has round times at their places, above the lanes and in them; the lanes' links are told to a screen reader.
fn axis(site: &Site) -> Result<()> {
    let marks = site.text(
        "JSON.stringify([...document.querySelectorAll('svg.axis text')].map((text) => {
            const box = text.ownerSVGElement.getBoundingClientRect(), line = text.previousElementSibling.getBoundingClientRect();
            return [text.textContent, Math.round((line.left - box.left) * 1000 / box.width)]; }))",
    )?;
    let marks: Vec<(String, i64)> = serde_json::from_str(&marks)?;
    let expected = [
        ("0", 0),
        ("250.0 ms", 250),
        ("500.0 ms", 500),
        ("750.0 ms", 750),
    ];
    let is_near = |((text, at), (own, place)): (&(String, i64), &(&str, i64))| {
        text == own && (at - place).abs() <= 2
    };
    ensure!(
        marks.len() == expected.len() && marks.iter().zip(&expected).all(is_near),
        "{marks:?}"
    );
    let grids = site.number("[...document.querySelectorAll('svg.lanes')].filter((lane) => lane.querySelector('.grid').getBBox().x === 25).length")?;
    ensure!(grids == 5, "{grids} lanes have the axis' lines");
    ensure!(site.text(FITS)? == "true", "labels of the axis overlap");
    site.browser
        .run("document.getElementById('functions').scrollIntoView()")?;
    site.browser
        .picture(&site.pictures.join("lanes-1400-light.png"))?;
    let first = site.browser.exposed("svg.lanes")?;
    ensure!(
        first == ("group".to_owned(), "Spans of task".to_owned()),
        "{first:?}"
    );
    for (selector, name) in [
        (
            "svg.lanes a",
            "shuffle_fetch ShuffleBlockFetcherIterator.next, 400.0 ms from 50.0 ms",
        ),
        (
            "#fetches-lane a:nth-of-type(2)",
            "node-2:7337 (executor 9), 5.0 MiB, 50.0 ms from 100.0 ms, complete",
        ),
    ] {
        let told = site.browser.exposed(selector)?;
        ensure!(told == ("link".to_owned(), name.to_owned()), "{told:?}");
    }
    Ok(())
}

/// The shares of the samples are a bar beneath that of the activities, with their intervals; activities without spans are
/// named.
fn estimate(site: &Site) -> Result<()> {
    let places = places(site, "#on-cpu-bar")?;
    ensure!(
        near(&places, &[(0, 500), (500, 300), (800, 200)]),
        "{places:?}"
    );
    let above = "(() => { const box = (bar) => bar.getBoundingClientRect(), bars = document.querySelectorAll('svg.bar');
        const at = [...bars].findIndex((bar) => bar.id === 'on-cpu-bar');
        return bars[at - 1].getAttribute('aria-label') + (box(bars[at - 1]).bottom < box(bars[at]).top &&
            box(bars[at]).bottom < box(document.getElementById('activities')).top); })()";
    let above = site.text(above)?;
    ensure!(
        above == "Times by activity on the task's threadtrue",
        "{above}"
    );
    let titles = site.text(
        "[...document.querySelectorAll('#on-cpu-bar title')].map((it) => it.textContent).join('|')",
    )?;
    ensure!(
        titles
            == "compute 50.0 % (95 % interval 43.1 % to 56.9 %)|shuffle_write 30.0 % (95 % interval 24.1 % to 36.7 %)|cache_read 20.0 % (95 % interval 15.1 % to 26.1 %)",
        "{titles}"
    );
    let rows = site.text("[...document.querySelectorAll('#on-cpu tbody tr')].map((it) => it.innerText.replaceAll('\\t', ' ').trim()).join('|')")?;
    ensure!(
        rows == "compute 100 50.0 % 43.1 % to 56.9 %|shuffle_write 60 30.0 % 24.1 % to 36.7 %|cache_read 40 20.0 % 15.1 % to 26.1 %",
        "{rows}"
    );
    let page = site.text("document.querySelector('main').innerText")?;
    for part in [
        "an estimate from 200 samples: compute 50.0 % (95 % interval 43.1 % to 56.9 %)",
        "no spans of their own: compute, cache_read, cache_write, shuffle_write, insert, result_serialize and python_exchange.",
    ] {
        ensure!(page.contains(part), "{part:?} is not on the page");
    }
    Ok(())
}

/// The twelve parts of its life: every number, and every bar as high as its part of the largest one.
fn life(site: &Site) -> Result<()> {
    let rows = site.text(
        "JSON.stringify([...document.querySelectorAll('#life tbody tr')].map((row) => {
            const [head, picture, ...cells] = row.cells, all = picture.firstChild.getBoundingClientRect();
            return [head.textContent, cells.map((cell) => cell.textContent.replaceAll(' ', '')).join(' '),
                [...picture.querySelectorAll('rect')].map((bar) => { const box = bar.getBoundingClientRect();
                    return [Math.round(box.height * 1000 / all.height), Math.round((all.bottom - box.bottom) * 1000 / all.height), bar.getAttribute('class')]; })]; }))",
    )?;
    type Row = (String, String, Vec<(i64, i64, String)>);
    let rows: Vec<Row> = serde_json::from_str(&rows)?;
    ensure!(rows.len() == LIFE.len(), "{rows:?}");
    for ((title, cells, bars), (_, name, parts, _, words)) in rows.iter().zip(LIFE) {
        ensure!(title == name && cells == words, "{title}: {cells}");
        let most = parts.into_iter().max().unwrap_or(1);
        for (at, ((height, below, class), part)) in bars.iter().zip(parts).enumerate() {
            let expected = (part * 1000 / most) as i64;
            let colour = if at == 2 || at == 11 { "p1" } else { "s0" };
            ensure!(
                (height - expected).abs() <= 2 && below.abs() <= 2 && class == colour,
                "{title}, part {at}: {height} and {below} of {expected} thousandths, {class}"
            );
        }
        ensure!(bars.len() == 12, "{title}: {bars:?}");
    }
    Ok(())
}

/// The middle of a rectangle of a lane in the window.
fn middle(site: &Site, lane: &str, number: usize) -> Result<(i64, i64)> {
    let script = format!(
        "(() => {{ const lane = document.querySelector('{lane}'); lane.scrollIntoView({{block: 'center'}});
        const box = lane.querySelectorAll('rect')[{number}].getBoundingClientRect();
        return JSON.stringify([Math.round(box.left + box.width / 2), Math.round(box.top + box.height / 2)]); }})()"
    );
    Ok(serde_json::from_str(&site.text(&script)?)?)
}

/// A click on a request shows its numbers in place of a span's; the address has it.
fn request(site: &Site) -> Result<()> {
    site.part(&format!("tasks/{TASK}?span=0"))?;
    let (x, y) = middle(site, "#fetches-lane", 1)?;
    site.browser.click_at(x, y)?;
    site.browser
        .until("return location.search === '?fetch=1' && document.readyState === 'complete'")?;
    let said = chosen(site)?;
    let expected = "Request for shuffle blocks|From node-2:7337 (executor 9)|Begin 100.0 ms|End 150.0 ms|Duration 50.0 ms|Blocks 3|Bytes 5.0 MiB|Outcome complete";
    ensure!(said == expected, "{said}");
    let marked = site.text("[...document.querySelectorAll('.lanes rect')].filter((it) => it.classList.contains('chosen')).map((it) => it.closest('svg').id).join()")?;
    ensure!(marked == "fetches-lane", "{marked}");
    site.browser
        .picture(&site.pictures.join("fetch-1400-light.png"))?;
    // By key, and the name of a host is text.
    site.browser
        .run("document.querySelector('#fetches-lane a').focus()")?;
    site.browser.keys("\u{e007}")?;
    site.browser
        .until("return location.search === '?fetch=0' && document.readyState === 'complete'")?;
    let said = chosen(site)?;
    ensure!(said.contains("Bytes 3.0 MiB"), "{said}");
    ensure!(
        said.contains(&format!("From {HOSTILE} (executor 9)")),
        "{said}"
    );
    site.is_sound("a request with a hostile name")
}

/// A click shows the numbers of a span; the address has it.
fn click(site: &Site) -> Result<()> {
    let (x, y) = middle(site, "svg.lanes", 2)?;
    site.browser.click_at(x, y)?;
    site.browser
        .until("return location.search.includes('span=')")?;
    let said = chosen(site)?;
    let expected = "ExternalSorter.insertAll|Activity sort|Begin 500.0 ms|End 800.0 ms|Duration 300.0 ms|Without spans inside 300.0 ms|Thread task 100|RDD 3";
    ensure!(said == expected, "{said}");
    ensure!(site.number("document.querySelectorAll('.lanes .chosen').length")? == 1);
    let address = site.text("location.href")?;
    site.open("")?;
    site.browser.open(&address)?;
    ensure!(
        chosen(site)? == said,
        "the address does not open the span again"
    );
    // By key: the spans are links.
    site.browser
        .run("document.querySelectorAll('svg.lanes a')[0].focus()")?;
    site.browser.keys("\u{e007}")?;
    site.browser.until(
        "return location.search.includes('span=') && document.readyState === 'complete' &&
        document.querySelector('#span h3').textContent.startsWith('ShuffleBlock')",
    )?;
    let said = chosen(site)?;
    ensure!(
        said.contains("Duration 400.0 ms|Without spans inside 250.0 ms"),
        "{said}"
    );
    site.browser
        .picture(&site.pictures.join("functions-1400-light.png"))?;
    // A hostile name is text, also as the title of the numbers.
    site.part(&format!("tasks/{TASK}?span=2#span"))?;
    ensure!(chosen(site)?.starts_with(HOSTILE), "{}", chosen(site)?);
    site.is_sound("a span with a hostile name")
}

/// The same as tables, which sort.
fn tables(site: &Site) -> Result<()> {
    site.part(&format!("tasks/{TASK}"))?;
    ensure!(
        site.number("document.querySelectorAll('#spans tbody tr').length")? == SPANS.len() as i64
    );
    let first = "document.querySelector('#fetches tbody td').textContent";
    ensure!(
        site.text(first)? == HOSTILE,
        "the first request comes first"
    );
    site.browser.click("#fetches th a[href*=bytes]")?;
    site.browser.until(
        "return location.search.includes('sort=-bytes') && document.readyState === 'complete'",
    )?;
    ensure!(
        site.text(first)? == "node-2:7337",
        "the largest request comes first"
    );
    let row =
        site.text("document.querySelector('#fetches tbody tr').innerText.replaceAll('\\t', '|')")?;
    ensure!(
        row == "node-2:7337|9|100.0 ms|50.0 ms|3|5.0 MiB|complete",
        "{row}"
    );
    let page = site.text("document.querySelector('main').innerText")?;
    for part in [
        "123,456",
        "4,321",
        "Measured by the daemon of worker9",
        "12 parts of equal time",
        "Pauses of the executor's collector in this time: 1, together 30.0 ms",
    ] {
        ensure!(page.contains(part), "{part:?} is not on the page");
    }
    site.is_sound("the tables of functions")
}

/// On 400 pixels the lanes have the width of the page, and wide tables scroll in themselves.
fn narrow(site: &Site) -> Result<()> {
    for is_dark in [false, true] {
        site.browser.look(400, 900, is_dark)?;
        site.part(&format!("tasks/{TASK}?span=3#span"))?;
        let wide = site.number(
            "Math.round(document.querySelector('svg.lanes').getBoundingClientRect().width)",
        )?;
        ensure!((300..=400).contains(&wide), "a lane has {wide} pixels");
        let own = places(site, "svg.lanes[aria-label=\"Spans of task\"]")?;
        ensure!(near(&own, &[(50, 400), (100, 150), (500, 300)]), "{own:?}");
        ensure!(chosen(site)?.contains("Duration 300.0 ms"));
        ensure!(site.text(FITS)? == "true", "labels of the axis overlap");
        site.is_sound("functions on a narrow screen")?;
        let scheme = if is_dark { "dark" } else { "light" };
        site.browser
            .run("document.getElementById('functions').scrollIntoView()")?;
        site.browser
            .picture(&site.pictures.join(format!("lanes-400-{scheme}.png")))?;
        site.browser
            .run("document.getElementById('span').scrollIntoView()")?;
        site.browser
            .picture(&site.pictures.join(format!("functions-400-{scheme}.png")))?;
    }
    site.browser.look(1400, 1000, false)
}
