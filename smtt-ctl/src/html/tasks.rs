//! Sections about single tasks: those that took most, and what the longest ones did, by function.

use std::collections::{BTreeMap, BTreeSet};

use smtt_model::protocol::ListQuery;
use smtt_model::rows::{TaskRow, share_interval};
use smtt_model::sort::small::{sort_by, sort_by_key};
use smtt_model::state::TaskState;
use smtt_model::units;

use super::markup::Markup;
use super::sections::executor;
use super::tables::{Cell, Column, table};
use super::{Facts, shortened};

/// Rows that the table of tasks has for each figure.
pub const TASKS: usize = 20;
/// Ended tasks whose functions are asked for: those that took longest. A task has up to 64 spans and 1,000 requests.
pub const ENDED: usize = 200;
/// Stages whose functions are shown, and functions of each.
const STAGES: usize = 8;
const FUNCTIONS: usize = 8;

/// The question for the ended tasks that took longest, of one worker.
pub fn longest(question: &ListQuery, limit: usize) -> ListQuery {
    ListQuery {
        sort: Some("duration_ns:desc".to_owned()),
        limit: Some(limit),
        // The daemon selects ended tasks by application, user and executor only.
        rdd: None,
        stage: None,
        ..question.clone()
    }
}

/// Names a stage: its id and name.
fn stage_name(facts: &Facts, id: u32) -> String {
    let mut rows = facts.stages.iter().filter(|row| row.stage_id == Some(id));
    match rows.find_map(|row| row.name.as_deref()) {
        Some(name) => format!("{id}: {}", shortened(name, 80)),
        None => id.to_string(),
    }
}

/// The tasks that are among the first [`TASKS`] by one of the figures, those with most CPU time first.
fn most(facts: &Facts) -> Vec<&TaskRow> {
    let mut chosen: BTreeSet<usize> = BTreeSet::new();
    let figures: [fn(&TaskRow) -> u64; 4] = [
        |row| row.used.cpu_ns.unwrap_or(0),
        |row| row.duration_ns.unwrap_or(0),
        |row| row.execution_memory_peak_bytes,
        |row| row.faults.page_faults.unwrap_or(0),
    ];
    for figure in figures {
        let mut order: Vec<usize> = (0..facts.tasks.len())
            .filter(|at| figure(&facts.tasks[*at]) > 0)
            .collect();
        sort_by_key(&mut order, |at| {
            std::cmp::Reverse(figure(&facts.tasks[*at]))
        });
        chosen.extend(order.into_iter().take(TASKS));
    }
    let mut rows: Vec<&TaskRow> = chosen.into_iter().map(|at| &facts.tasks[at]).collect();
    sort_by_key(&mut rows, |row| {
        std::cmp::Reverse((row.used.cpu_ns, row.duration_ns))
    });
    rows
}

const fn state(state: TaskState) -> &'static str {
    match state {
        TaskState::Running => "running",
        TaskState::Succeeded => "succeeded",
        TaskState::Failed => "failed",
        TaskState::Killed => "killed",
        TaskState::Lost => "lost",
        TaskState::Unknown => "unknown",
    }
}

/// The tasks with most CPU time, duration, execution memory and page faults.
pub fn tasks(body: &mut Markup, facts: &Facts) {
    let rows = most(facts);
    if rows.is_empty() {
        body.line("p", &[("class", "empty")], "No task is known.");
        return;
    }
    let all = units::count(facts.tasks_total);
    body.line(
        "p",
        &[("class", "soft")],
        &format!(
            "Of {all} task attempts, the {TASKS} with most CPU time, the {TASKS} that took longest, the {TASKS} with most execution memory and the {TASKS} with most page faults; most CPU time first."
        ),
    );
    let absent = table(
        body,
        "most",
        vec![
            Column::new("Task", "id of the attempt", &rows, |row| {
                Cell::maybe(row.task_attempt_id, |id| id.to_string())
            }),
            Column::new("Stage", "id and name", &rows, |row| match row.stage_id {
                Some(id) => Cell::Name(stage_name(facts, id), String::new()),
                None => Cell::Absent,
            }),
            Column::new("Partition", "that it computes", &rows, |row| {
                Cell::maybe(row.partition.map(u64::from), |id| id.to_string())
            }),
            Column::new("Executor", "id of the executor", &rows, |row| {
                executor(&row.who)
            }),
            Column::new("State", "of the attempt", &rows, |row| {
                Cell::Value(state(row.state).to_owned())
            }),
            Column::new(
                "Duration",
                "from its start to its end, or so far",
                &rows,
                |row| Cell::maybe(row.duration_ns, units::duration),
            ),
            Column::new("CPU time", "of its own thread", &rows, |row| {
                Cell::maybe(row.used.cpu_ns, units::duration)
            }),
            Column::new(
                "Waited for a CPU",
                "its thread could run and had none",
                &rows,
                |row| Cell::maybe(row.used.cpu_wait_ns, units::duration),
            ),
            Column::new("Waited for a disk", "its thread", &rows, |row| {
                Cell::maybe(row.used.disk_wait_ns, units::duration)
            }),
            Column::new(
                "Collections",
                "of its JVM between begin and end",
                &rows,
                |row| Cell::maybe(row.used.collection_ns, units::duration),
            ),
            Column::new(
                "Execution memory, at most",
                "the most that it held",
                &rows,
                |row| super::rdds::bytes_or_none(row.execution_memory_peak_bytes),
            ),
            Column::new(
                "Heap allocated",
                "bytes of objects that its thread made",
                &rows,
                |row| Cell::maybe(row.used.heap_allocated_bytes, units::bytes),
            ),
            Column::new("Page faults", "of it", &rows, |row| {
                Cell::maybe(row.faults.page_faults, units::count)
            }),
            Column::new("Major", "those that waited for a disk", &rows, |row| {
                Cell::maybe(row.faults.page_faults_major, units::count)
            }),
            Column::new(
                "Time in page faults",
                "estimated from the faults that were timed",
                &rows,
                |row| Cell::maybe(row.faults.page_fault_time_ns, units::duration),
            ),
        ],
    );
    not_measured(body, &absent);
}

/// Names the columns that a table has no value for.
pub fn not_measured(body: &mut Markup, absent: &[String]) {
    if !absent.is_empty() {
        body.line(
            "p",
            &[("class", "soft")],
            &format!("Not measured, so without a column: {}.", absent.join(", ")),
        );
    }
}

/// What a function took in the tasks of a stage.
#[derive(Clone, Debug, Default, PartialEq)]
struct Function {
    samples: u64,
    /// Share of each task's sampled events times the task's samples, added up.
    weighted: f64,
    spans: u64,
    own_ns: u64,
}

/// The functions of a stage's tasks.
#[derive(Debug, Default)]
struct OfStage {
    tasks: u64,
    duration_ns: u64,
    samples: u64,
    /// Time outside of all spans of the tasks' own threads.
    rest_ns: Option<u64>,
    by_name: BTreeMap<String, Function>,
}

impl OfStage {
    fn add(&mut self, row: &TaskRow) {
        self.tasks += 1;
        self.duration_ns = self
            .duration_ns
            .saturating_add(row.duration_ns.unwrap_or(0));
        let Some(functions) = &row.functions else {
            return;
        };
        for activity in &functions.activities {
            let known = self.by_name.entry(shortened(&activity.activity, 40));
            let known = known.or_default();
            known.spans = known.spans.saturating_add(activity.spans);
            known.own_ns = known.own_ns.saturating_add(activity.own_ns);
        }
        if let Some(rest) = functions.rest_ns {
            self.rest_ns = Some(self.rest_ns.unwrap_or(0).saturating_add(rest));
        }
        let Some(on_cpu) = &functions.on_cpu else {
            return;
        };
        self.samples = self.samples.saturating_add(on_cpu.samples);
        for activity in &on_cpu.activities {
            let known = self.by_name.entry(shortened(&activity.activity, 40));
            let known = known.or_default();
            known.samples = known.samples.saturating_add(activity.samples);
            known.weighted += activity.share * on_cpu.samples as f64;
        }
    }

    /// Share of a function in the sampled CPU time; `None` without samples.
    fn share(&self, function: &Function) -> Option<f64> {
        (self.samples > 0).then(|| (function.weighted / self.samples as f64).clamp(0.0, 1.0))
    }

    /// The functions, those with most of the CPU time first, then those with most time in spans.
    fn functions(&self) -> Vec<(&str, &Function)> {
        let all = self.by_name.iter();
        let mut all: Vec<(&str, &Function)> = all.map(|(name, of)| (name.as_str(), of)).collect();
        sort_by(&mut all, |(_, a), (_, b)| {
            let weights = b.weighted.total_cmp(&a.weighted);
            weights.then(b.own_ns.cmp(&a.own_ns))
        });
        all
    }
}

/// The functions of the ended tasks by stage, the stage with most task time first.
fn by_stage(facts: &Facts) -> Vec<(u32, OfStage)> {
    let mut stages: BTreeMap<u32, OfStage> = BTreeMap::new();
    for row in &facts.ended {
        if let Some(id) = row.stage_id {
            stages.entry(id).or_default().add(row);
        }
    }
    let mut stages: Vec<(u32, OfStage)> = stages.into_iter().collect();
    stages.retain(|(_, stage)| !stage.by_name.is_empty() || stage.rest_ns.is_some());
    sort_by_key(&mut stages, |(_, stage)| {
        std::cmp::Reverse(stage.duration_ns)
    });
    stages
}

/// One line of the table: a function of a stage; without a name the time outside of all spans.
struct Line<'a> {
    id: u32,
    stage: &'a OfStage,
    function: Option<(&'a str, &'a Function)>,
}

/// The ended tasks that were asked for: those of the application that took longest.
fn longest_of(facts: &Facts) -> String {
    let (longest, total) = (facts.ended_longest, facts.ended_total);
    let text = units::count(longest);
    match longest < total {
        true => format!(
            "the {text} ended tasks of the application that took longest (of {})",
            units::count(total)
        ),
        false => format!("all {text} ended tasks of the application that the daemon keeps"),
    }
}

/// The ended tasks whose functions are shown, after "Of".
fn ended_tasks(facts: &Facts) -> String {
    let (ended, longest) = (facts.ended.len() as u64, facts.ended_longest);
    let total = units::count(facts.ended_total);
    if ended < longest {
        let verb = if ended == 1 { "is" } else { "are" };
        let (all, of) = (longest_of(facts), facts.ended_of);
        return format!("{all}, {} {verb} of {of}", units::count(ended));
    }
    match longest < facts.ended_total {
        true => format!(
            "the {} of {total} ended tasks that took longest",
            units::count(ended)
        ),
        false => format!("all {total} ended tasks that the daemon keeps"),
    }
}

/// Where the time of each stage's tasks went, by function.
pub fn functions(body: &mut Markup, facts: &Facts) {
    let stages = by_stage(facts);
    if stages.is_empty() {
        let of_part = facts.ended.is_empty() && facts.ended_longest > 0;
        let text = match of_part {
            true => format!("None of {} is of {}.", longest_of(facts), facts.ended_of),
            false => "No ended task with functions is known: a function of less than 1 ms has no span, and no CPU time was sampled.".to_owned(),
        };
        body.line("p", &[("class", "empty")], &text);
        return;
    }
    let tasks = ended_tasks(facts);
    body.line(
        "p",
        &[("class", "soft")],
        &format!(
            "Of {tasks}. Shares are of the CPU time of all threads that worked for them, from samples, with 95 % intervals; a function's spans are its calls of 1 ms and more on the task's own thread, without the spans inside them, and also have waits."
        ),
    );
    let mut lines: Vec<Line<'_>> = Vec::new();
    let mut left_out = 0;
    for (id, stage) in stages.iter().take(STAGES) {
        let line = |function| Line {
            id: *id,
            stage,
            function,
        };
        let all = stage.functions();
        left_out += all.len().saturating_sub(FUNCTIONS);
        lines.extend(all.into_iter().take(FUNCTIONS).map(|it| line(Some(it))));
        lines.extend(stage.rest_ns.map(|_| line(None)));
    }
    let of = |line: &Line<'_>, figure: fn(&Function) -> u64| {
        let function = line.function.map(|(_, function)| figure(function));
        function.filter(|value| *value > 0)
    };
    let interval = |line: &Line<'_>| {
        let (_, function) = line.function?;
        let share = line.stage.share(function).filter(|share| *share > 0.0)?;
        let (low, high) = share_interval(share, line.stage.samples as f64);
        Some((share, low, high))
    };
    let absent = table(
        body,
        "functions-of-stages",
        vec![
            Column::new("Stage", "id and name", &lines, |line| {
                let (tasks, time) = (line.stage.tasks, line.stage.duration_ns);
                Cell::Name(
                    stage_name(facts, line.id),
                    match tasks {
                        1 => format!("1 task, {}", units::duration(time)),
                        _ => format!("{} tasks, {}", units::count(tasks), units::duration(time)),
                    },
                )
            }),
            Column::new(
                "Function",
                "as docs/ATTRIBUTION.md names it",
                &lines,
                |line| match line.function {
                    Some((name, _)) => Cell::Name(name.to_owned(), String::new()),
                    None => Cell::Name("outside the spans".to_owned(), String::new()),
                },
            ),
            Column::new(
                "CPU time",
                "share of the sampled CPU time",
                &lines,
                |line| Cell::real(interval(line).map(|(share, ..)| share), units::share),
            ),
            Column::new("at least", "lower end of the interval", &lines, |line| {
                Cell::real(interval(line).map(|(_, low, _)| low), units::share)
            }),
            Column::new("at most", "upper end of the interval", &lines, |line| {
                Cell::real(interval(line).map(|(.., high)| high), units::share)
            }),
            Column::new("Samples", "that saw it on a CPU", &lines, |line| {
                Cell::maybe(of(line, |it| it.samples), units::count)
            }),
            Column::new(
                "In spans",
                "time in calls of 1 ms and more, waits included",
                &lines,
                |line| {
                    let time = match line.function {
                        Some(_) => of(line, |it| it.own_ns),
                        None => line.stage.rest_ns,
                    };
                    Cell::maybe(time, units::duration)
                },
            ),
            Column::new("Spans", "calls of 1 ms and more", &lines, |line| {
                Cell::maybe(of(line, |it| it.spans), units::count)
            }),
        ],
    );
    not_measured(body, &absent);
    let more = stages.len().saturating_sub(STAGES);
    if more > 0 || left_out > 0 {
        body.line(
            "p",
            &[("class", "soft")],
            &format!(
                "{more} stages with less task time and {left_out} functions with less of it are left out; smtt-ctl task ID has those of a task."
            ),
        );
    }
}
