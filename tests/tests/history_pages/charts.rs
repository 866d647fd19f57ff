//! Charts of the report as the browser draws them, beside the numbers of its tables; what else has a colour; and the page
//! without its script.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_model::units;

use crate::report::Seen;
use crate::worker::{NAME, Part, SECONDS};

/// Least contrast of parts that are no text.
const OF_PARTS: f64 = 3.0;
/// Share by which two sums over time may differ: times are whole milliseconds, and rates whole numbers.
const ROUNDED: f64 = 0.001;

/// The least contrast of what has a meaning by its colour with what is behind it, what it is, and how many there are.
const PARTS: &str = "
    const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
    const linear = (part) => { part /= 255; return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4; };
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const behind = (element) => { for (let at = element; at; at = at.parentElement) {
        const colour = parse(getComputedStyle(at).backgroundColor);
        if (colour.length === 3 || colour[3] > 0) return colour; } return [255, 255, 255]; };
    let worst = [99, '', 0];
    const judge = (selector, property) => document.querySelectorAll(selector).forEach((element) => {
        if (!element.checkVisibility()) return;
        const own = getComputedStyle(element)[property];
        const [a, b] = [light(parse(own)), light(behind(element.parentElement))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        worst[2] += 1;
        if (ratio < worst[0]) worst = [ratio, `${selector} ${element.getAttribute('class')} ${own}`, worst[2]]; });
    judge('svg .area', 'fill'); judge('svg .line', 'stroke'); judge('svg .grid', 'stroke');
    judge('.legend i:not(.line)', 'backgroundColor'); judge('.legend i.line', 'borderTopColor');
    judge('.bar i', 'backgroundColor'); judge('input', 'borderTopColor'); judge('.finding', 'borderLeftColor');
    judge('td', 'borderBottomColor');
    return worst;";

/// Nothing that has a meaning is hard to see.
pub(super) fn contrast(seen: &Seen<'_>, what: &str) -> Result<()> {
    let worst = seen.0.run(PARTS)?;
    let (ratio, count) = (worst[0].as_f64(), worst[2].as_u64());
    ensure!(
        ratio.is_some_and(|ratio| ratio >= OF_PARTS) && count.is_some_and(|count| count > 20),
        "{what}: contrast {worst}"
    );
    Ok(())
}

/// Everything on the page that says a number of memory or page faults: series of charts, cells of tables, the head.
const NUMBERS: &str = "
    document.querySelectorAll('details').forEach((part) => { part.open = true; });
    const all = (selector, root) => [...(root || document).querySelectorAll(selector)];
    const number = (text) => { const [, value, unit] = text.match(/^([\\d.,]+) ?([KMGT]?i?B)?/) || [0, '0'];
        return Number(value.replaceAll(',', '')) * 1024 ** Math.max(0, ['B', 'KiB', 'MiB', 'GiB', 'TiB'].indexOf(unit)); };
    const values = (text) => text.split(' ').flatMap((run) => { const [value, length] = run.split('*').map(Number); return Array(length || 1).fill(value); });
    const title = (figure) => figure.querySelector('figcaption').firstChild.textContent;
    const chart = (figure) => { const svg = figure.querySelector('svg'); const series = all('.legend li', figure).map((item) =>
            ({ name: item.querySelector('bdi').textContent, values: values(item.dataset.values) }));
        return { title: title(figure), seconds: (svg.dataset.to - svg.dataset.from) / 1000 / (series[0].values.length - 1), series }; };
    const find = (root, begin) => { const found = all('figure', root).find((figure) => title(figure).startsWith(begin)); return chart(found); };
    const table = (id) => { const headings = all(`#${id} th`).map((heading) => heading.textContent);
        return all(`#${id} tbody tr`).map((row) => Object.fromEntries([...row.cells].map((cell, at) =>
            [headings[at], cell.dataset.sort === undefined ? (cell.querySelector('bdi') || cell).textContent : Number(cell.dataset.sort)]))); };
    // What is drawn of each value: its middle is in the area, and the area has no more.
    const wrong = []; let drawn = 0;
    all('.plot').forEach((plot) => {
        const figure = plot.parentElement; const { series } = chart(figure); const svg = plot.querySelector('svg');
        const top = number(plot.querySelector('.scale span').textContent); const rate = svg.dataset.unit === 'rate';
        const areas = all('.area', svg); const last = series[0].values.length - 1;
        for (let moment = 0; moment < last; moment += 1) { let below = 0;
            areas.forEach((area, at) => { const value = series[at].values[moment + (rate ? 1 : 0)];
                const has = (height) => area.isPointInFill(new DOMPoint(1000 * (moment + 0.5) / last, 100 - 100 * height / top));
                const little = 0.01 * top;
                if (value > 2 * little) { drawn += 1;
                    if (!has(below + value / 2) || !has(below + value - little)) wrong.push(`${title(figure)}, ${series[at].name} at ${moment}: less than ${value}`); }
                if (has(below + value + little)) wrong.push(`${title(figure)}, ${series[at].name} at ${moment}: more than ${value}`);
                if (below > little) if (has(below - little)) wrong.push(`${title(figure)}, ${series[at].name} at ${moment}: lower than ${below}`);
                below += value; }); } });
    return { drawn, wrong: wrong.slice(0, 5),
        memory: find(document.getElementById('memory'), 'Memory held'), regions: find(document.getElementById('memory'), 'By region'),
        faults: find(document.getElementById('memory'), 'Page faults'),
        single: all('#single details details').map((part) => ({ name: part.querySelector('summary bdi').textContent,
            area: part.querySelector('summary small').textContent, regions: find(part, 'By region') })),
        holding: table('holding'), processes: table('processes'),
        head: Object.fromEntries(all('dl.facts div').map((pair) => [pair.querySelector('dt').textContent, pair.querySelector('dd').textContent])) };";

/// The values of a chart's series whose name begins so, added up moment by moment.
fn sum(chart: &Value, begin: &str) -> Result<Vec<f64>> {
    let series = chart["series"].as_array().context("no series")?;
    let mut sum: Vec<f64> = Vec::new();
    for one in series {
        if !one["name"]
            .as_str()
            .is_some_and(|name| name.starts_with(begin))
        {
            continue;
        }
        let values = one["values"].as_array().context("no values")?;
        sum.resize(values.len(), 0.0);
        for (sum, value) in sum.iter_mut().zip(values) {
            *sum += value.as_f64().context("no number")?;
        }
    }
    Ok(sum)
}

/// Values of a column.
fn column(rows: &Value, heading: &str) -> Result<Vec<f64>> {
    let rows = rows.as_array().context("no rows")?;
    let values = rows.iter().map(|row| row[heading].as_f64());
    let values: Option<_> = values.collect();
    values.with_context(|| format!("no {heading} in {rows:?}"))
}

/// What the charts draw is what the tables and the head say, and that is the job of these workers.
pub(super) fn agree(seen: &Seen<'_>, parts: &[Part]) -> Result<()> {
    let page = seen.0.run(NUMBERS)?;
    ensure!(
        page["wrong"].as_array().is_some_and(Vec::is_empty) && page["drawn"].as_u64() > Some(200),
        "{} areas are drawn; {}",
        page["drawn"],
        page["wrong"]
    );
    let single = page["single"].as_array().context("no single charts")?;
    let rows = page["holding"].as_array().context("no rows")?;
    let mut cached = 0;
    for part in single {
        let name = part["name"].as_str().context("no name")?;
        let row = rows.iter().find(|row| row["RDDs"] == name);
        let row = row.with_context(|| format!("no row of {name}: {rows:?}"))?;
        let (storage, held) = (
            sum(&part["regions"], "storage")?,
            sum(&part["regions"], "")?,
        );
        // The chart of all has the same series.
        ensure!(sum(&page["memory"], name)? == held, "{name}: {page:#}");
        let seconds = part["regions"]["seconds"].as_f64().context("seconds")?;
        let area = held[..held.len() - 1].iter().sum::<f64>() * seconds;
        let around = [1.0 - ROUNDED, 1.0, 1.0 + ROUNDED].map(|share| (area * share) as u64);
        let around = around.map(|area| format!("{}·s", units::bytes(area)));
        let said = part["area"].as_str().context("no area")?;
        ensure!(
            around.contains(&said.to_owned()),
            "{name}: {said} {around:?}"
        );
        // The cells, and the blocks that the job has stored.
        let number = match name {
            NAME => Some("0"),
            name => name.strip_prefix("ranks of step "),
        };
        let Some(number) = number else { continue };
        let id: u32 = number.parse()?;
        let stored: u64 = parts.iter().map(|part| part.storage_bytes(id)).sum();
        let most = storage.iter().copied().fold(0.0, f64::max);
        for (what, value) in [
            ("the last of the chart", storage.last().copied()),
            ("the most of the chart", Some(most)),
            ("Storage", row["Storage"].as_f64()),
            ("At most", row["At most"].as_f64()),
        ] {
            ensure!(
                value == Some(stored as f64),
                "{name}: {what} is {value:?}, stored are {stored}"
            );
        }
        cached += 1;
    }
    ensure!(cached == 5, "{cached} cached RDDs have charts");

    let storage = sum(&page["regions"], "storage")?;
    let last = storage.last().copied().context("no point")?;
    let said = &page["head"]["Storage memory now"];
    ensure!(*said == units::bytes(last as u64), "{said:?} {last}");
    for table in ["holding", "processes"] {
        let all: f64 = column(&page[table], "Storage")?.iter().sum();
        ensure!(all == last, "{table}: {all}, the chart ends with {last}");
    }
    // The chart begins with the first point; what was before it is in the table alone.
    let all: f64 = column(&page["processes"], "Page faults")?.iter().sum();
    let of = |seconds: u64| -> f64 {
        let faults = parts.iter().map(|part| part.page_faults(seconds));
        faults.sum::<u64>() as f64
    };
    let seconds = page["faults"]["seconds"].as_f64().context("seconds")?;
    let drawn = sum(&page["faults"], "")?.iter().sum::<f64>() * seconds;
    println!("page faults: {all} in the table, {drawn} in the chart; storage {last}");
    ensure!(all == of(SECONDS), "{all}");
    let more = all - of(1);
    ensure!(
        (drawn - more).abs() <= ROUNDED * more,
        "{drawn}, {more} of {all}"
    );
    let said = &page["head"]["Page faults"];
    ensure!(*said == units::count(all as u64), "{said:?} {all}");
    Ok(())
}

/// The page reads without its script: all rows, the legends' words, and parts that unfold.
pub(super) fn without_script(seen: &Seen<'_>, url: &str) -> Result<()> {
    let rows = "[...document.querySelectorAll('tbody tr')].map((row) => row.innerText).join('|')";
    seen.0.open(url)?;
    let with = seen.text(rows)?;
    seen.0.scripts(false)?;
    seen.0.open(url)?;
    let is = |what: &str, script: &str, expected: &str| seen.is(what, script, expected);
    is(
        "buttons and fields",
        "document.querySelectorAll('button, input').length",
        "0",
    )?;
    ensure!(with.len() > 1000 && seen.text(rows)? == with, "other rows");
    let words = "[...document.querySelectorAll('.legend li')].every((item) => /at most/.test(item.innerText) || !item.checkVisibility())";
    is("legends", words, "true")?;
    let open = "document.querySelector('#executors details').open";
    is("a part that is folded", open, "false")?;
    seen.0.click("#executors summary")?;
    is("the same part", open, "true")?;
    let complaints = seen.0.complaints()?;
    ensure!(complaints.is_empty(), "{complaints:?}");
    seen.0.scripts(true)
}
