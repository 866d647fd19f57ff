//! Tables that sort and filter, against the REST API: which rows they have, and which is first and last.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_history::json::milliseconds;
use xtask::event_log::ID;
use xtask::http::get;

use super::{SHAPE, Site};

/// Number of rows of all pages of a table.
const TOTAL: &str = "document.querySelector('.pages span').textContent.split(' of ')[1]";

/// Ids in the first cells of a table's first and last row, and the number of rows.
fn ends(site: &Site, table: &str) -> Result<(i64, i64, i64)> {
    let rows = format!("document.querySelectorAll('#{table} tbody tr')");
    let cell = |row: &str| site.number(&format!("[...{rows}].at({row}).cells[0].textContent"));
    Ok((
        cell("0")?,
        cell("-1")?,
        site.number(&format!("{rows}.length"))?,
    ))
}

/// Sorts by a click on a head, and by another one the other way.
fn sorts(site: &Site, part: &str, column: &str, values: &[(i64, i64)]) -> Result<()> {
    site.part(part)?;
    for down in [true, false] {
        let sign = if down { "-" } else { "" };
        // The head of a column that is sorted downwards leads to the other order.
        site.browser
            .click(&format!("#{part} th a[href*='sort={sign}{column}']"))?;
        site.browser.until(&format!(
            "return location.search.endsWith('sort={sign}{column}') && document.readyState === 'complete'"
        ))?;
        let (first, last, rows) = ends(site, part)?;
        let value = |id: i64| {
            let found = values.iter().find(|it| it.0 == id);
            found
                .map(|it| it.1)
                .with_context(|| format!("REST has no {id}"))
        };
        let least = values.iter().map(|it| it.1).min();
        let most = values.iter().map(|it| it.1).max();
        let (top, bottom) = if down { (most, least) } else { (least, most) };
        ensure!(
            rows == values.len() as i64 && rows > 1 && most > least,
            "{part}: {rows} rows of {}",
            values.len()
        );
        ensure!(
            Some(value(first)?) == top && Some(value(last)?) == bottom,
            "{part} by {sign}{column}: {first} is first and {last} last of {values:?}"
        );
    }
    site.is_sound(part)
}

/// Jobs and stages by their durations and times.
pub(super) fn sorted(site: &Site) -> Result<()> {
    let all =
        |path: &str, id: &str, of: &dyn Fn(&Value) -> Option<i64>| -> Result<Vec<(i64, i64)>> {
            let rest = site.rest(path)?;
            let all = rest.as_array().into_iter().flatten();
            all.map(|it| Some((it[id].as_i64()?, of(it)?)))
                .collect::<Option<_>>()
                .with_context(|| format!("{path}: {rest}"))
        };
    let jobs = all("jobs", "jobId", &|job| {
        let time = |name: &str| job[name].as_str().and_then(milliseconds);
        Some(time("completionTime")? - time("submissionTime")?)
    })?;
    sorts(site, "jobs", "duration", &jobs)?;
    let stages = all("stages", "stageId", &|stage| {
        stage["executorRunTime"].as_i64()
    })?;
    sorts(site, "stages", "executorRunTime", &stages)
}

/// Conditions on tasks: the table and the picture have those of the REST API's list of a stage.
pub(super) fn filters(site: &Site) -> Result<()> {
    let list = site.rest("stages/3/0/taskList?length=100000")?;
    let list = list.as_array().context("no tasks")?;
    let end = |task: &Value| -> Option<i64> {
        Some(milliseconds(task["launchTime"].as_str()?)? + task["duration"].as_i64()?)
    };
    let ended = list.iter().filter(|task| task["status"] == "SUCCESS");
    let last = ended.max_by_key(|task| end(task)).context("no task")?;
    let count = |has: &dyn Fn(&Value) -> bool| list.iter().filter(|task| has(task)).count();
    let conditions = [
        (
            "speculative",
            "yes",
            count(&|task| task["speculative"] == true),
        ),
        (
            "speculative",
            "no",
            count(&|task| task["speculative"] == false),
        ),
        ("host", "worker2", count(&|task| task["host"] == "worker2")),
        ("host", "worker3", count(&|task| task["host"] == "worker3")),
        // The last task of the stage: each job has one stage.
        ("critical", "yes", 1),
        ("critical", "no", list.len() - 1),
    ];
    for (name, value, expected) in conditions {
        let what = format!("{name}={value}");
        ensure!(expected > 0 && expected < list.len(), "{what}: {expected}");
        site.part(&format!("tasks?stage=3&{what}"))?;
        let rows = site.number(TOTAL)?;
        ensure!(rows == expected as i64, "{what}: {rows} rows of {expected}");
        let field = site.text(&format!(
            "document.querySelector('.filters [name={name}]').value"
        ))?;
        ensure!(field == value, "the field {name} has {field:?}");
        let path = format!("/smtt/v1/applications/{ID}/timeline?lanes=256&stage=3&{what}");
        let answer: Value = serde_json::from_str(&get(site.port, &path)?)?;
        ensure!(
            answer["tasksTotal"] == expected,
            "{what}: {} in the picture of {expected}",
            answer["tasksTotal"]
        );
    }
    let critical = "document.querySelector('#tasks tbody td a').textContent";
    site.part("tasks?stage=3&critical=yes")?;
    let shown = site.number(critical)?;
    let shown = list.iter().find(|task| task["taskId"] == shown);
    ensure!(shown.and_then(end) == end(last), "{shown:?}, not {last}");
    site.part("tasks?critical=yes")?;
    ensure!(site.number(TOTAL)? == SHAPE.stages as i64);
    // The fields above the picture.
    for (name, value) in [("speculative", "yes"), ("host", "worker2")] {
        site.part("timeline?stage=3")?;
        site.drawn()?;
        site.browser.run(&format!(
            "const field = document.querySelector('#controls [name={name}]'); field.value = '{value}';
            field.dispatchEvent(new Event('change', {{bubbles: true}}))"
        ))?;
        site.browser.until(&format!(
            "return new URL(location.href).searchParams.get('{name}') === '{value}'"
        ))?;
        site.drawn()?;
        let path = format!("/smtt/v1/applications/{ID}/timeline?stage=3&{name}={value}");
        let answer: Value = serde_json::from_str(&get(site.port, &path)?)?;
        let (shown, all) = (site.data("tasksTotal")?, list.len() as i64);
        ensure!(
            answer["tasksTotal"] == shown && shown > 0 && shown < all / 2,
            "{name}: {shown} of {all} tasks"
        );
    }
    site.is_sound("filters of tasks")
}
