//! The functions of a task attempt: lanes by thread, times by activity, what its thread did, and its life in parts. All of
//! it comes from the worker that ran the task.

mod axis;
mod fetches;
mod times;
mod window;

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde_json::{Value, json};
use smtt_model::rows::{
    COLLECTIONS, FunctionRow, FunctionsRow, HELPER, SplitsRow, TASK, WORKER, lane_of,
};
use smtt_model::units;

use self::axis::{axis, grid};
use self::fetches::{fetch_lanes, fetches, is_of_fetches};
use self::times::{activities, bar, sampled};
use self::window::{Window, controls};
use super::Asked;
use super::shown::{Cell, cut, facts};
use super::table::{Column, Request, documents};
use crate::functions::OfTask;
use crate::serve::Refusal;
use crate::serve::routes::Parameters;
use crate::workers::Files;

/// Colours of activities; others have the last one.
const ACTIVITIES: [(&str, &str); 17] = [
    ("compute", "s9"),
    ("shuffle_write", "s0"),
    ("insert", "s1"),
    ("sort", "s2"),
    ("merge", "s3"),
    ("shuffle_fetch", "s4"),
    ("spill", "s5"),
    ("hash_grow", "s6"),
    ("broadcast", "s7"),
    ("task_deserialize", "s8"),
    ("result_serialize", "s11"),
    ("python_exchange", "s10"),
    ("python_worker", "s10"),
    ("cache_write", "p5"),
    ("cache_read", "p6"),
    ("evict", "p2"),
    ("", "p0"),
];
/// Height of a span in the picture, and of the room between two lanes.
const ROW: usize = 14;
const GAP: usize = 6;
/// Parameters that the addresses of spans repeat, and bytes of the longest.
const PARAMETERS: usize = 8;
const LONGEST_PARAMETER: usize = 256;
/// Lanes and nested spans that the picture has at most.
const LANES: usize = 32;
const DEPTH: usize = 16;

/// A series of the task's life: field, title and how a value is written.
type Titled = (&'static str, &'static str, fn(i64) -> Cell);
const SERIES: [Titled; 8] = [
    ("cpu_ns", "CPU time", Cell::Nanoseconds),
    ("heap_allocated_bytes", "allocated on the heap", Cell::Bytes),
    ("thread_page_faults", "page faults", Cell::Count),
    ("call_read_bytes", "read by system calls", Cell::Bytes),
    ("page_walk_samples", "sampled page walks", Cell::Count),
    (
        "resident_bytes",
        "resident memory of the executor",
        Cell::Bytes,
    ),
    (
        "execution_memory_bytes",
        "execution memory of the task",
        Cell::Bytes,
    ),
    (
        "virtual_bytes",
        "virtual memory of the executor",
        Cell::Bytes,
    ),
];

fn colour(activity: &str) -> &'static str {
    let known = ACTIVITIES.iter().find(|(name, _)| *name == activity);
    known.map_or("p0", |(_, class)| class)
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn share(part: u64, of: u64) -> f64 {
    part as f64 * 100.0 / of.max(1) as f64
}

/// The sections of a task's page; nothing where no worker knows the task.
pub(super) fn sections(asked: &Asked<'_>, id: i64, executor: &str) -> Result<Markup, Refusal> {
    let store = &asked.server.settings.store;
    let user = asked.parameters.one("user").and_then(|it| it.parse().ok());
    let files = Files::of(
        store,
        asked.app.identity(),
        user,
        asked.parameters.one("host"),
    );
    let executor = Some(executor).filter(|it| !it.is_empty());
    let found = files.and_then(|files| files.task(id, executor));
    let found = match found.map_err(Refusal::from) {
        Ok(found) => found,
        // The page has Spark's half.
        Err(refusal) => {
            return Ok(html! { h2 id="functions" { "Functions" } p.empty { (cut(&refusal.1)) } });
        }
    };
    let Some(OfTask {
        document,
        functions,
    }) = found
    else {
        return Ok(
            html! { h2 id="functions" { "Functions" } p.empty { "No worker has written about this task." } },
        );
    };
    let row = &document.json;
    let field = |name: &str, of: fn(i64) -> Cell| Cell::number(&row[name], of);
    let splits = |name: &str| serde_json::from_value::<SplitsRow>(row[name].clone()).ok();
    let (by_time, by_input) = (splits("splits"), splits("splits_by_input"));
    Ok(html! {
        h2 id="functions" { "Functions" }
        @if functions.is_none() { p.empty { "Its worker wrote no functions of this task." } }
        @if let Some(functions) = &functions {
            (picture(asked, functions)?)
            (activities(functions))
            @if let Some(on_cpu) = &functions.on_cpu {
                (sampled(on_cpu))
            }
            @if let Some(thread) = &functions.thread {
                h2 { "What its thread did" }
                (bar("thread", "Times of the thread", functions.duration_ns, &[
                    ("on a CPU", "p5", Some(thread.cpu_ns)),
                    ("waiting for a CPU", "p1", thread.cpu_wait_ns),
                    ("waiting for a disk", "p2", thread.disk_wait_ns),
                    ("waiting for anything else", "p0", Some(thread.other_ns)),
                ], &html! {}))
                @if let Some(paused) = &functions.paused {
                    p.soft { "Pauses of the executor's collector in this time: " (Cell::Count(number(paused.pauses)).shown()) ", together "
                        (Cell::Nanoseconds(number(paused.paused_ns)).shown()) ", part of the other waiting."
                        @if paused.left_out > 0 { " The picture has the longest of them." } }
                } @else if let Some(ns) = row["collection_ns"].as_u64() {
                    p.soft { "Collections of the executor in this time: " (Cell::Nanoseconds(number(ns)).shown()) ", part of the other waiting." }
                }
            }
        }
        h2 { "In and out" }
        (facts(&[
            ("Input", field("input_bytes", Cell::Bytes)),
            ("Input records", field("input_records", Cell::Count)),
            ("Shuffle read", field("shuffle_read_bytes", Cell::Bytes)),
            ("Shuffle records read", field("shuffle_read_records", Cell::Count)),
            ("Shuffle written", field("shuffle_write_bytes", Cell::Bytes)),
            ("Shuffle records written", field("shuffle_write_records", Cell::Count)),
            ("Output", field("output_bytes", Cell::Bytes)),
            ("Output records", field("output_records", Cell::Count)),
            ("Spilled, memory", field("memory_spilled_bytes", Cell::Bytes)),
            ("Spilled, disk", field("disk_spilled_bytes", Cell::Bytes)),
            ("Peak of execution memory", field("execution_memory_peak_bytes", Cell::Bytes)),
            ("Page faults", field("page_faults", Cell::Count)),
        ]))
        @if by_time.is_some() { h2 { "Its life in parts" } }
        @for (id, splits) in [("life", &by_time), ("life-by-input", &by_input)] {
            @if let Some(splits) = splits { (life(id, splits)) }
        }
        @if let Some(functions) = &functions { (spans(asked, functions)?) (fetches(asked, functions)?) }
        p.soft { "Measured by the daemon of " bdi { (cut(&document.host)) } "." }
    })
}

/// A lane: the spans of one thread with their depths.
struct Lane<'a> {
    title: String,
    spans: Vec<(usize, usize, &'a FunctionRow)>,
}

/// Place of its lane among those of the task, and its id.
type Thread = (u8, u32);

/// Spans by thread: the task's, other threads, Python workers, and pauses of the collector. A span lies below those that
/// it lies in.
fn by_thread(spans: &[FunctionRow]) -> Vec<Lane<'_>> {
    let mut threads: BTreeMap<Thread, Vec<(usize, &FunctionRow)>> = BTreeMap::new();
    for (at, span) in spans.iter().enumerate() {
        threads
            .entry((lane_of(&span.thread), span.tid))
            .or_default()
            .push((at, span));
    }
    threads.into_iter().take(LANES).map(lane).collect()
}

fn lane<'a>(((_, tid), mut all): (Thread, Vec<(usize, &'a FunctionRow)>)) -> Lane<'a> {
    all.sort_by_key(|(at, it)| (it.begin_ns, u64::MAX - it.duration_ns, *at));
    let title = match all.first().map_or("", |(_, span)| span.thread.as_str()) {
        TASK => "task".to_owned(),
        HELPER => format!("helper thread {tid}"),
        WORKER => format!("Python worker {tid}"),
        COLLECTIONS => "collections: pauses of the whole executor".to_owned(),
        _ => format!("thread {tid}"),
    };
    let mut open: Vec<u64> = Vec::new();
    let spans = all.into_iter().map(|(at, span)| {
        open.retain(|end| *end > span.begin_ns);
        open.push(end_ns(span));
        ((open.len() - 1).min(DEPTH - 1), at, span)
    });
    Lane {
        title,
        spans: spans.collect(),
    }
}

fn end_ns(span: &FunctionRow) -> u64 {
    span.begin_ns.saturating_add(span.duration_ns)
}

/// Length of the pictures.
fn total_ns(functions: &FunctionsRow) -> u64 {
    let spans = functions.spans.iter().map(end_ns);
    let fetches = functions.fetches.iter();
    let fetches = fetches.map(|it| it.begin_ns.saturating_add(it.duration_ns));
    let ends = spans.chain(fetches).chain([functions.duration_ns, 1]);
    ends.max().unwrap_or(1)
}

/// The address of the page with a span or a request chosen, by the name of its parameter and its number.
fn choice(asked: &Asked<'_>, name: &'static str) -> impl Fn(usize) -> String {
    let all = asked.parameters.0.iter();
    // Each span repeats them.
    let others = all.filter(|(key, value)| {
        key != "span" && key != "fetch" && key.len() + value.len() <= LONGEST_PARAMETER
    });
    let others = others.take(PARAMETERS);
    let request = Request::new(&Parameters(others.cloned().collect())).ok();
    move |number| {
        let query = request
            .as_ref()
            .map(|it| it.with(name, &number.to_string()));
        query.unwrap_or_default() + "#span"
    }
}

/// The number of the span or of the request that the address has.
fn chosen(asked: &Asked<'_>, name: &str) -> Option<usize> {
    asked.parameters.one(name).and_then(|it| it.parse().ok())
}

/// The lanes of all threads and of the requests in the window that the address has, with addresses of other windows.
fn picture(asked: &Asked<'_>, functions: &FunctionsRow) -> Result<Markup, Refusal> {
    let window = Window::new(asked.parameters, total_ns(functions))?;
    let spans = functions.spans.iter();
    let spans = spans.map(|it| (it.begin_ns, it.duration_ns));
    let fetches = functions.fetches.iter();
    let all = spans.chain(fetches.map(|it| (it.begin_ns, it.duration_ns)));
    let shown = all.clone().filter(|(begin, ns)| window.has(*begin, *ns));
    Ok(html! {
        div.lane-set id="lanes" tabindex="0" role="region" aria-label="Lanes of the functions: + and - zoom, ← and → move, Home shows all"
            data-from=(window.from) data-to=(window.to) data-total=(window.total) {
            (controls(asked, &window, shown.count(), all.count()))
            (lanes(asked, functions, &window))
            (fetch_lanes(asked, functions, &window))
        }
        script type="module" src=(asked.place.to("files/lanes.js")) {}
    })
}

/// The rectangle of a span or of a request in its row. `lanes.js` reads its times.
fn rectangle(
    window: &Window,
    class: &str,
    (begin, ns): (u64, u64),
    (y, height): (usize, usize),
) -> Markup {
    let (x, width) = window.rectangle(begin, ns);
    html! {
        rect class=(class) x=(x) y=(y) height=(height) width=(width) data-begin=(begin) data-ns=(ns) {}
    }
}

fn lanes(asked: &Asked<'_>, functions: &FunctionsRow, window: &Window) -> Markup {
    let all = by_thread(&functions.spans);
    let (chosen, to) = (chosen(asked, "span"), choice(asked, "span"));
    html! {
        p { (Cell::Nanoseconds(number(functions.duration_ns)).shown()) " from the begin of the executor's task runner to its end. "
            "A span is a call of 1 ms or more, the service of a Python worker, or a pause of the collector; a click shows its numbers." }
        (axis(window))
        @for lane in &all {
            @let depth = lane.spans.iter().map(|(depth, _, _)| depth + 1).max().unwrap_or(1);
            p.soft.lane { (lane.title) }
            svg.lanes viewBox=(format!("0 0 100 {}", depth * ROW + GAP)) height=(depth * ROW + GAP) preserveAspectRatio="none"
                role="group" aria-label=(format!("Spans of {}", lane.title)) {
                (grid(window, depth * ROW + GAP))
                @for (depth, number, span) in &lane.spans {
                    @let class = format!("{}{}", colour(&span.activity), if chosen == Some(*number) { " chosen" } else { "" });
                    @let times = (span.begin_ns, span.duration_ns);
                    a href=(to(*number)) class=[(!window.has(times.0, times.1)).then_some("out")] {
                        title { (cut(&span.activity)) " " (cut(span.function.as_deref().unwrap_or_default())) ", "
                            (units::duration(span.duration_ns)) " from " (units::duration(span.begin_ns)) }
                        (rectangle(window, &class, times, (depth * ROW, ROW - 1)))
                    }
                }
            }
        }
        @if all.is_empty() { p.empty { "No function took 1 ms or more." } }
        @if functions.spans_left_out > 0 {
            p.soft { (Cell::Count(number(functions.spans_left_out)).shown()) " shorter spans, together "
                (Cell::Nanoseconds(number(functions.spans_left_out_ns)).shown()) ", are in the sums only." }
        }
        @if let Some(span) = chosen.and_then(|at| functions.spans.get(at)) {
            div id="span" {
                h3 { (cut(span.function.as_deref().unwrap_or(&span.activity))) }
                (facts(&[
                    ("Activity", Cell::Text(span.activity.clone())),
                    ("Begin", Cell::Nanoseconds(number(span.begin_ns))),
                    ("End", Cell::Nanoseconds(number(end_ns(span)))),
                    ("Duration", Cell::Nanoseconds(number(span.duration_ns))),
                    ("Without spans inside", Cell::Nanoseconds(number(span.own_ns))),
                    ("Thread", Cell::Text(format!("{} {}", span.thread, span.tid))),
                    ("RDD", span.rdd_id.map_or(Cell::Absent, |id| Cell::Id(i64::from(id), None))),
                ]))
            }
        }
    }
}

/// The task's life in parts: a picture and the same numbers.
fn life(id: &str, splits: &SplitsRow) -> Markup {
    let parts = splits.interpolated.len().min(LANES);
    let all = SERIES.iter().filter_map(|(field, title, of)| {
        let series = splits.series.get(*field)?;
        (series.parts.len() == parts).then_some((title, of, series))
    });
    html! {
        p.soft { (parts) " parts of equal " (cut(&splits.progress_by)) "; " (splits.measured_points)
            " readings, a part without one is interpolated." }
        div.wide tabindex="0" role="region" aria-label="Life in parts" { table.data id=(id) {
            thead { tr { th.words { "Series" } th { "Picture" } th { "Total" }
                @for part in 1..=parts { th { (part) } } } }
            tbody {
                @for (title, of, series) in all {
                    @let most = series.parts.iter().copied().max().unwrap_or(0).max(1);
                    tr {
                        th.words scope="row" { (title) }
                        td { svg.life viewBox=(format!("0 0 {parts} 100")) preserveAspectRatio="none" aria-hidden="true" {
                            @for (at, part) in series.parts.iter().enumerate() {
                                @let height = share(*part, most);
                                rect class=(if splits.interpolated[at] { "p1" } else { "s0" }) x=(at) y=(100.0 - height) width="0.9" height=(height) {}
                            }
                        } }
                        td { (series.total.map_or(Cell::Absent, |total| of(number(total))).shown()) }
                        @for part in &series.parts { td { (of(number(*part)).shown()) } }
                    }
                }
            }
        } }
    }
}

/// The spans as a table.
fn spans(asked: &Asked<'_>, functions: &FunctionsRow) -> Result<Markup, Refusal> {
    let mut request = Request::new(asked.parameters)?;
    // The other table of the page has pages, and columns of its own; the few spans of a task are one page.
    request.offset = 0;
    request.length = functions.spans.len().max(1);
    request.sort = request.sort.filter(|(key, _)| !is_of_fetches(key));
    let rows: Vec<Value> = functions.spans.iter().map(|span| json!(span)).collect();
    let ns = |key: &'static str, name: &'static str, title: &'static str| -> Column<'_> {
        let of = move |row: &Value| Cell::number(&row[name], Cell::Nanoseconds);
        ((key, title), Box::new(of))
    };
    let text = |name: &'static str, title: &'static str| -> Column<'_> {
        (
            (name, title),
            Box::new(move |row: &Value| Cell::text(&row[name])),
        )
    };
    let id = |name: &'static str, title: &'static str| -> Column<'_> {
        let of = move |row: &Value| Cell::number(&row[name], |id| Cell::Id(id, None));
        ((name, title), Box::new(of))
    };
    let columns = [
        text("thread", "Thread"),
        id("tid", "Thread id"),
        text("activity", "Activity"),
        text("function", "Function"),
        ns("begin", "begin_ns", "Begin"),
        ns("duration", "duration_ns", "Duration"),
        ns("own", "own_ns", "Without spans inside"),
        id("rdd_id", "RDD"),
    ];
    let table = documents(
        &request,
        "spans",
        "Spans of 1 ms and more, Python workers and pauses",
        &columns,
        &rows,
        |_| true,
    )?;
    Ok(html! { h2 { "Spans" } (table) })
}

#[cfg(test)]
mod tests;
