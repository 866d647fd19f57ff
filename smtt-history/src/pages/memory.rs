//! Memory over time: the panel beneath the time line's tasks, and the same as a table, which needs no script.

use maud::{Markup, html};

use super::application::framed;
use super::place::quoted;
use super::shown::{Cell, cut, duration};
use super::{Asked, Document};
use crate::serve::Refusal;
use crate::timeline::detail::Window;
use crate::timeline::memory::Memory;
use crate::timeline::memory::cells::{Answer, LISTED};
use crate::timeline::memory::parts::{ALL, By};
use crate::timeline::memory::serve::{asked as answer, by};
use crate::timeline::serve::window;

/// Rows of the table.
const ROWS: i64 = 40;

/// Selects by what memory divides, and whose it is.
fn choices(asked: &Asked<'_>, memory: &Memory, by: By) -> Markup {
    let ids = memory.measured();
    let wanted = asked.parameters.one("executor").unwrap_or_default();
    let is_listed = wanted.is_empty() || ids.iter().take(LISTED).any(|id| *id == wanted);
    html! {
        label { "By " select name="by" {
            @for (kind, name, title) in ALL { option value=(name) selected[kind == by] { (title) } }
        } }
        label { "Executor " select name="executor" {
            option value="" { "all" }
            @if !is_listed { option value=(wanted) selected { (cut(wanted)) } }
            @for id in ids.iter().take(LISTED) { option value=(id) selected[*id == wanted] { (cut(id)) } }
        } }
    }
}

/// The panel of the time line's page.
pub(super) fn panel(asked: &Asked<'_>, window: &Window) -> Result<Markup, Refusal> {
    let by = by(asked.parameters)?;
    let model = asked.server.timeline(asked.app)?;
    let memory = match asked.server.memory(asked.app, &model, asked.parameters) {
        Ok(memory) => memory,
        // The tasks are there without it.
        Err(refusal) => {
            asked
                .missing
                .add(format!("the memory of executors: {}", refusal.1));
            return Ok(
                html! { section id="memory" { h2 { "Memory" } p.empty { (cut(&refusal.1)) } } },
            );
        }
    };
    let table = asked.place.part("timeline/memory");
    let in_window = format!(
        "{table}?from={}&to={}&by={}&executor={}",
        window.from,
        window.to,
        by.name(),
        quoted(asked.parameters.one("executor").unwrap_or_default())
    );
    Ok(html! {
        section id="memory" data-table=(table) aria-label="Memory" {
            h2 { "Memory" }
            @if memory.histories.is_empty() {
                @for note in memory.notes() { p.empty { (note) } }
            } @else {
                form.filters id="memory-controls" {
                    (choices(asked, &memory, by))
                    a id="memory-as-table" href=(in_window) { "This memory as a table" }
                }
                canvas id="memory-picture" tabindex="0" role="img" aria-describedby="memory-said memory-help"
                    aria-label="Memory of executors over time, on the time line's scale" {}
                p id="memory-said" aria-live="off" { "Loading" }
                ul.legend id="memory-legend" aria-label="Memory in the picture" {}
                (notes(&memory.notes()))
                details { summary { "How to read the memory" }
                    p id="memory-help" {
                        "Storage and execution memory of Spark, as the workers' daemons saw it. The picture moves with the tasks; "
                        "n and p go from cell to cell and say the values, Escape ends that. Areas are means over the measured "
                        "time of a cell and add up; the line above them is the most at one moment. Hatched: not measured. "
                        "Dashed: limits, added up over the executors that were measured; a limit of which an executor has none "
                        "is not drawn, and one far above the picture is in the legend only. Marks below: garbage collections. "
                        "A vertical line: another run of a daemon began."
                    }
                    p { "Page sizes and nodes are those of the last scan of pages. Where blocks were removed since then, they are more than what is held." }
                }
            }
        }
    })
}

fn notes(all: &[String]) -> Markup {
    html! { @if !all.is_empty() { ul.notes { @for note in all { li { (note) } } } } }
}

fn bytes(value: Option<u64>) -> Cell {
    value.map_or(Cell::Absent, |value| {
        Cell::Bytes(i64::try_from(value).unwrap_or(i64::MAX))
    })
}

/// The page with the table.
pub(super) fn page(asked: &Asked<'_>) -> Document {
    let model = asked.server.timeline(asked.app)?;
    let memory = asked.server.memory(asked.app, &model, asked.parameters)?;
    let window = window(&model, asked.parameters)?;
    let by = by(asked.parameters)?;
    let picture = format!(
        "{}?from={}&to={}&by={}&executor={}",
        asked.place.part("timeline"),
        window.from,
        window.to,
        by.name(),
        quoted(asked.parameters.one("executor").unwrap_or_default())
    );
    let answer = answer(&memory, &model, asked.parameters, ROWS)?;
    let body = html! {
        form.filters method="get" {
            (choices(asked, &memory, by))
            input type="hidden" name="from" value=(window.from);
            input type="hidden" name="to" value=(window.to);
            @for name in ["user", "host"] {
                @if let Some(value) = asked.parameters.one(name) { input type="hidden" name=(name) value=(value); }
            }
            button { "Show" }
            a href=(picture) { "On the time line" }
        }
        @if memory.histories.is_empty() {
            @for note in &answer.notes { p.empty { (note) } }
        } @else {
            (table(&answer))
            (notes(&answer.notes))
        }
    };
    Ok(framed(asked, "timeline", "Memory over time", &body))
}

fn table(answer: &Answer<'_>) -> Markup {
    let at = |cell: usize| answer.from + (cell as f64 * answer.cell_ms) as i64;
    let cells = 0..answer.total.len();
    let has_collections = answer.collections.iter().any(Option::is_some);
    html! {
        div.wide tabindex="0" role="region" aria-label="Memory over time" { table.data id="memory-table" {
            caption {
                "From " (duration(answer.from)) " to " (duration(answer.to)) " after the first task or job. Each row: "
                (answer.statistic) "; the column At most: " (answer.most_statistic) "."
            }
            thead { tr {
                th { "From" } th { "Executors" }
                @for series in &answer.series { th { bdi { (cut(&series.name)) } } }
                th { "Together" } th { "At most" }
                @for line in &answer.limits { th { "Limit: " (line.title) } }
                @if has_collections { th { "Collections" } }
            } }
            tbody { @for cell in cells { tr {
                td { (duration(at(cell))) }
                td { (answer.measured[cell]) }
                @for series in &answer.series { td { (bytes(series.values[cell]).shown()) } }
                td { (bytes(answer.total[cell]).shown()) }
                td { (bytes(answer.most[cell]).shown()) }
                @for line in &answer.limits { td { (bytes(line.values[cell]).shown()) } }
                @if has_collections {
                    td { (answer.collections[cell].map_or(Cell::Absent, |count| Cell::Count(count as i64)).shown()) }
                }
            } } }
        } }
        @if !answer.gaps.is_empty() {
            div.wide tabindex="0" role="region" aria-label="Times without measurements" { table.data id="memory-gaps" {
                caption { "Times without measurements" }
                thead { tr { th.words { "Executor" } th { "From" } th { "To" } th.words { "Reason" } } }
                tbody { @for gap in &answer.gaps { tr {
                    td.words { bdi { (cut(gap.executor)) } }
                    td { (duration(gap.from)) } td { (duration(gap.to)) }
                    td.words { @if gap.reason == "restart" { "another run of the daemon began" } @else { "no points" } }
                } } }
            } }
            @if answer.gaps_left_out > 0 { p.soft { (answer.gaps_left_out) " more are not listed." } }
        }
    }
}
