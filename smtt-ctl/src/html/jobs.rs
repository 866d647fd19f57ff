//! The section about jobs: when each ran, as bars on one axis of time, how it ended, and what it took.

use smtt_model::rows::{WorkOverWorkersRow, WorkState};
use smtt_model::sort::small::sort_by_key;
use smtt_model::time::clock;
use smtt_model::units;

use super::markup::Markup;
use super::tables::{Cell, Column, table};
use super::tasks::not_measured;
use super::{Facts, shortened};

/// Jobs in the table: those that took longest.
const JOBS: usize = 200;
/// Characters of a description.
const NAME: usize = 200;

/// The jobs that are shown, in the order of their begin.
fn chosen(facts: &Facts) -> Vec<&WorkOverWorkersRow> {
    let mut rows: Vec<&WorkOverWorkersRow> = facts.jobs.iter().collect();
    sort_by_key(&mut rows, |row| {
        let is_running = row.course.state == Some(WorkState::Running);
        std::cmp::Reverse((is_running, row.course.duration_ns, row.task_time_ns))
    });
    rows.truncate(JOBS);
    sort_by_key(&mut rows, |row| (row.course.started_unix_ms, row.job_id));
    rows
}

const fn word(state: WorkState) -> &'static str {
    match state {
        WorkState::Running => "running",
        WorkState::Succeeded => "succeeded",
        WorkState::Failed => "failed",
    }
}

/// Class of a bar's colour.
const fn class(state: Option<WorkState>) -> &'static str {
    match state {
        Some(WorkState::Running) => "k2",
        Some(WorkState::Failed) => "bad",
        Some(WorkState::Succeeded) | None => "k1",
    }
}

/// The axis of all bars, in milliseconds since 1970 by the driver's clock. A job that runs has lasted until now, or until
/// the last time that the driver named.
struct Axis {
    begin: u64,
    end: u64,
}

impl Axis {
    fn of(rows: &[&WorkOverWorkersRow], now_unix_ms: u64) -> Option<Self> {
        let begin = rows
            .iter()
            .filter_map(|row| row.course.started_unix_ms)
            .min()?;
        let ends = rows.iter().filter_map(|row| row.course.ended_unix_ms);
        let runs = rows
            .iter()
            .any(|row| row.course.state == Some(WorkState::Running));
        let now = runs.then_some(now_unix_ms);
        let end = ends.chain(now).max().unwrap_or(begin);
        Some(Self {
            begin,
            end: end.max(begin.saturating_add(1)),
        })
    }

    fn share(&self, time: u64) -> f64 {
        let within = time.clamp(self.begin, self.end) - self.begin;
        within as f64 / (self.end - self.begin).max(1) as f64
    }

    fn bar(&self, row: &WorkOverWorkersRow) -> Cell {
        let Some(started) = row.course.started_unix_ms else {
            return Cell::Absent;
        };
        Cell::Span {
            class: class(row.course.state),
            begin: self.share(started),
            end: self.share(row.course.ended_unix_ms.unwrap_or(self.end)),
        }
    }
}

/// The jobs.
pub fn jobs(body: &mut Markup, facts: &Facts) {
    let rows = chosen(facts);
    if rows.is_empty() {
        body.line("p", &[("class", "empty")], "No job is known.");
        return;
    }
    let axis = Axis::of(&rows, facts.history.now_unix_ms);
    let mut said = match facts.jobs.len() {
        all if all > rows.len() => format!(
            "Of {} jobs, the {JOBS} that took longest.",
            units::count(all as u64)
        ),
        all => format!("{} jobs.", units::count(all as u64)),
    };
    if let Some(axis) = &axis {
        said.push_str(&format!(
            " The bars go from {} to {} of the driver's clock (UTC).",
            clock(axis.begin),
            clock(axis.end)
        ));
    }
    body.line("p", &[("class", "soft")], &said);
    let absent = table(
        body,
        "jobs-table",
        vec![
            Column::new("Job", "id", &rows, |row| {
                Cell::maybe(row.job_id.map(u64::from), |id| id.to_string())
            }),
            Column::new(
                "Description",
                "as the application set it, of the SQL execution, or the name of the last stage; below, why it failed",
                &rows,
                |row| {
                    let name = shortened(row.name.as_deref().unwrap_or("–"), NAME);
                    let failure = row.course.failure.as_deref().unwrap_or_default();
                    Cell::Name(name, shortened(failure, NAME))
                },
            ),
            Column::new("State", "as the driver says", &rows, |row| {
                Cell::words(row.course.state.map(|state| word(state).to_owned()))
            }),
            Column::new("When", "from begin to end", &rows, |row| {
                axis.as_ref().map_or(Cell::Absent, |axis| axis.bar(row))
            }),
            Column::new("Time", "from begin to end", &rows, |row| {
                Cell::maybe(row.course.duration_ns, units::duration)
            }),
            Column::new(
                "Stages",
                "with tasks where it was measured; absent where workers do not name all of them",
                &rows,
                |row| Cell::maybe(row.stages, units::count),
            ),
            Column::new("Tasks", "that returned their result", &rows, |row| {
                Cell::count(row.tasks_succeeded)
            }),
            Column::new("Failed", "failed, killed or lost tasks", &rows, |row| {
                let ends = [row.tasks_failed, row.tasks_killed, row.tasks_lost].into_iter();
                Cell::count(ends.fold(0, u64::saturating_add))
            }),
            Column::new("Task time", "durations of its ended tasks", &rows, |row| {
                Cell::maybe(Some(row.task_time_ns), units::duration)
            }),
            Column::new("CPU time", "of its tasks' threads", &rows, |row| {
                Cell::maybe(row.used.cpu_ns, units::duration)
            }),
            Column::new("Page faults", "of its tasks", &rows, |row| {
                Cell::maybe(row.faults.page_faults, units::count)
            }),
            Column::new(
                "Time in page faults",
                "estimated from the faults that were timed",
                &rows,
                |row| Cell::maybe(row.faults.page_fault_time_ns, units::duration),
            ),
            Column::new("Input", "bytes that its tasks read", &rows, |row| {
                Cell::maybe(row.used.input_bytes, units::bytes)
            }),
            Column::new(
                "Execution memory, at most",
                "of a single task",
                &rows,
                |row| super::rdds::bytes_or_none(row.execution_memory_peak_bytes),
            ),
        ],
    );
    not_measured(body, &absent);
}
