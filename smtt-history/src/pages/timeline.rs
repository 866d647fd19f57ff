//! The page of the time line: canvases that a script draws, their controls, and the same as tables.

use maud::html;

use super::application::framed;
use super::place::quoted;
use super::shown::{Cell, duration};
use super::{Asked, Document};
use crate::serve::Refusal;
use crate::timeline::detail::Window;
use crate::timeline::filter::Filter;
use crate::timeline::model::{JOB_ROWS, Model, OUTCOMES};
use crate::timeline::parts::ALL;
use crate::timeline::serve::window;

/// What the colour of a task can say: parameter and title.
const COLOURS: [(&str, &str); 4] = [
    ("part", "where most of the time went"),
    ("stage", "stage"),
    ("outcome", "outcome"),
    ("locality", "locality"),
];
/// What the picture's tasks are filtered by: parameter, title and choices, as in the table of tasks.
const FILTERS: [(&str, &str, &[&str]); 6] = [
    ("stage", "Stage", &[]),
    ("host", "Host", &[]),
    (
        "status",
        "Outcome",
        &["SUCCESS", "FAILED", "KILLED", "RUNNING"],
    ),
    ("longer", "At least (ms)", &[]),
    ("straggler", "Straggler", &["yes", "no"]),
    ("speculative", "Speculative", &["yes", "no"]),
];
/// Executors in the table below the picture.
const EXECUTORS: usize = 500;

/// The window of a stage attempt, where the address names one.
fn of_stage(model: &Model, name: &str) -> Option<(i64, i64)> {
    let (id, attempt) = name.split_once('.').unwrap_or((name, "0"));
    let key = (id.parse().ok()?, attempt.parse().ok()?);
    let stage = model.stages.iter().position(|stage| stage.key == key)?;
    let tasks = || {
        let tasks = model.tasks.iter();
        tasks.filter(move |task| task.stage as usize == stage)
    };
    let from = tasks().map(|task| task.launch).min()?;
    let to = tasks().map(crate::timeline::model::Task::end).max()?;
    Some((from, to))
}

pub(super) fn page(asked: &Asked<'_>) -> Document {
    let model = asked.server.timeline(asked.app)?;
    let mut window = window(&model, asked.parameters)?;
    let asks = |name: &'static str| asked.parameters.one(name).filter(|it| !it.is_empty());
    // A stage alone has a window; an address that was shared has its own.
    if let Some(stage) = asks("stage").filter(|_| asks("from").is_none()) {
        let (from, to) = of_stage(&model, stage)
            .ok_or_else(|| Refusal::not_found(format!("unknown stage: {stage}")))?;
        window = Window { from, to, ..window }.within(&model);
    }
    let colour = asked.parameters.one("colour").unwrap_or("part");
    let place = asked.place;
    let api = place.to(&format!("smtt/v1/applications/{}", place.id()));
    Filter::new(asked.parameters)?;
    let field = |name: &'static str| asked.parameters.one(name).unwrap_or_default();
    let filters = FILTERS
        .iter()
        .filter(|(name, _, _)| !field(name).is_empty());
    let filters: String = filters
        .map(|(name, _, _)| format!("&{name}={}", quoted(field(name))))
        .collect();
    let in_window = format!(
        "{}?from={}&to={}{filters}",
        place.part("tasks"),
        window.from,
        window.to
    );
    let body = html! {
        @if model.tasks.is_empty() { p.empty { "The log has no tasks." } } @else {
            form.filters id="controls" {
                label { "Colour " select name="colour" {
                    @for (name, title) in COLOURS { option value=(name) selected[name == colour] { (title) } }
                } }
                span.buttons {
                    button type="button" name="out" title="Zoom out (-)" { "−" }
                    button type="button" name="in" title="Zoom in (+)" { "+" }
                    button type="button" name="left" title="Earlier (←)" { "←" }
                    button type="button" name="right" title="Later (→)" { "→" }
                    button type="button" name="up" title="Lanes above (↑)" { "↑" }
                    button type="button" name="down" title="Lanes below (↓)" { "↓" }
                    button type="button" name="all" title="Everything (Home)" { "All" }
                }
                @for (name, title, values) in FILTERS {
                    label { (title) " "
                        @if values.is_empty() {
                            input name=(name) value=(field(name)) size="8" maxlength="200";
                        } @else {
                            select name=(name) {
                                option value="" { "all" }
                                @for value in values { option value=(value) selected[field(name) == *value] { (value) } }
                            }
                        }
                    }
                }
                a id="as-table" href=(in_window) { "These tasks as a table" }
            }
            noscript { p.finding { "The picture needs a script of this server. The tables do not." } }
            div id="timeline" data-api=(api) data-attempt=(place.attempt().unwrap_or_default())
                data-from=(window.from) data-to=(window.to) data-lane=(window.lane)
                data-task=(asked.parameters.one("task").unwrap_or_default())
                data-tasks=(place.part("tasks")) data-stages=(place.part("stages")) data-job-rows=(JOB_ROWS) {
                canvas id="picture" tabindex="0" role="img" aria-describedby="said help"
                    aria-label="Time line of tasks: executors and their cores from top to bottom, time from left to right" {}
                p id="said" role="status" { "Loading" }
                p.said { span id="jobs-said" {} a id="jobs-as-table" href=(place.part("jobs")) { "All jobs as a table" } }
            }
            ul.legend id="legend" aria-label="Colours" {}
            section id="task" aria-live="polite" hidden {}
            (super::memory::panel(asked, &window)?)
            details { summary { "How to read and to use it" }
                p id="help" {
                    "Drag or use the arrow keys to move, the wheel with Ctrl or + and − to zoom, Home for everything, "
                    "Page Up and Page Down for other lanes, n and p for the next and previous task, a click or Enter for "
                    "a task's numbers, with a link to the functions, fetches and spans that a worker's daemon measured of it. "
                    "A click on a job's bar opens its stages, as the table of jobs does. "
                    "A lane is a core of an executor, as far as launch and finish times show it."
                }
                p { "Tasks that are shorter than a few pixels are drawn together: the height is the share of the time in "
                    "which the lane was busy, the colour is that of most of the time. A dark mark above a task: it is a "
                    "straggler; it took longer than 1.5 times the median of its stage's successful tasks (of at least "
                    "four), and at least 100 ms longer. A red one: it did not succeed. A dark mark below a task with an arrow at its "
                    "end: it is the last task of a stage on the critical path of a job. The lines in a job's bar are the stages of "
                    "that path: the one that ended last, before it the parent that ended last, and so on." }
                p { "Spark's metrics have lengths and no beginnings: the order of the parts within a task is not measured." }
                dl { @for part in &ALL { dt { (part.title) } dd { (part.source) } } }
            }
            (executors(asked, &model))
            script type="module" src=(place.to("files/timeline.js")) {}
        }
    };
    Ok(framed(asked, "timeline", "Time line", &body))
}

/// What the picture shows, as a table of executors.
fn executors(asked: &Asked<'_>, model: &Model) -> maud::Markup {
    let length = (model.end.max(1)) as f64;
    let rows = model.executors.iter().take(EXECUTORS).map(|executor| {
        let lanes = &model.lanes[executor.lanes.start as usize..executor.lanes.end as usize];
        let tasks = || lanes.iter().flat_map(|lane| model.of_lane(lane));
        let busy: u64 = tasks().map(|task| u64::from(task.duration)).sum();
        let count = |has: &dyn Fn(&crate::timeline::model::Task) -> bool| {
            tasks().filter(|task| has(task)).count()
        };
        (
            executor,
            lanes.len(),
            tasks().count(),
            count(&|task| OUTCOMES[usize::from(task.outcome)] == "FAILED"),
            count(&|task| task.straggler),
            busy,
            busy as f64 * 100.0 / (length * lanes.len().max(1) as f64),
        )
    });
    html! {
        div.wide tabindex="0" role="region" aria-label="Executors" { table.data id="lanes" {
            caption { "The same by executor, over " (duration(model.end)) }
            thead { tr {
                th.words { "Executor" } th.words { "Host" } th { "Cores seen" } th { "Tasks" } th { "Failed" }
                th { "Stragglers" } th { "Task time" } th { "Cores busy" }
            } }
            tbody {
                @for (executor, lanes, tasks, failed, stragglers, busy, share) in rows {
                    tr {
                        td.words { a href=(format!("{}?executor={}", asked.place.part("tasks"), super::place::quoted(&executor.id))) { bdi { (super::shown::cut(&executor.id)) } } }
                        td.words { bdi { (super::shown::cut(&executor.host)) } }
                        td { (lanes) } td { (tasks) } td { (failed) } td { (stragglers) }
                        td { (Cell::Duration(busy as i64).shown()) } td { (format!("{share:.0} %")) }
                    }
                }
            }
        } }
        @if model.executors.len() > EXECUTORS { p.soft { (model.executors.len() - EXECUTORS) " executors more: see Executors." } }
    }
}
