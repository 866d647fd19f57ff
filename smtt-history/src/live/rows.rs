//! Rows of a part: its tasks and their SQL metrics, with the columns that this version does not know.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use smtt_store::history::batch::Cell;
use smtt_store::history::columns::{
    FIRST_METRIC, FIRST_PEAK, Kind, METRICS, PEAKS, TASK_SQL, TASKS, Table, Unknown,
};
use smtt_store::history::parts;
use smtt_store::history::read::{Reader, UNKNOWN};
use smtt_store::read::ParquetError;

use crate::event::{Peaks, TaskInfo, TaskStart, Text};
use crate::replay::tasks::End;
use crate::replay::{Replay, Trouble};

use super::part_of;

/// Rows of a part's tasks at most. The driver's have 20,000, which is what may wait.
const ROWS: u64 = 50_000;
/// Rows of SQL metrics of a part's tasks at most.
const SQL_ROWS: u64 = 4_000_000;
/// Bytes of the texts of a part's tasks at most; the driver's are as long as its events.
const TEXT_BYTES: usize = 256 << 20;
/// Values of unknown columns in a part's table at most: each takes up to 24 bytes.
const CELLS: u64 = 8 << 20;
/// Columns of a part's tasks that the application's table does not have.
const OWN: [&str; 2] = [parts::STARTED, parts::ENDED];

/// Columns of an application's parts that this version does not know: a marker of the next version wrote them.
#[derive(Default)]
pub(super) struct Unknowns {
    /// [`CELLS`].
    cells: u64,
    pub(super) tasks: Vec<Unknown>,
    pub(super) task_sql: Vec<Unknown>,
    /// Those of one part at most that cannot be kept.
    pub(super) left_out: u64,
}

impl Unknowns {
    /// Those of all parts: a table's columns are settled before its first row. A file that cannot be read is named when its
    /// part is replayed.
    pub(super) fn of(folder: &Path, numbers: &[u64], until: Instant) -> Self {
        let all = Self {
            cells: CELLS,
            ..Self::default()
        };
        all.with(folder, numbers, until)
    }

    fn with(mut self, folder: &Path, numbers: &[u64], until: Instant) -> Self {
        for &part in numbers {
            if Instant::now() > until {
                break;
            }
            let merge = |table, all: &mut _| merge((folder, part), table, all, self.cells);
            let tasks = merge((&TASKS, &OWN), &mut self.tasks);
            let task_sql = merge((&TASK_SQL, &[]), &mut self.task_sql);
            self.left_out = self.left_out.max(tasks + task_sql);
        }
        self
    }
}

/// How many unknown columns of a table have room.
fn room(reader: &Reader, cells: u64) -> usize {
    usize::try_from(cells / reader.rows().max(1)).unwrap_or(usize::MAX)
}

/// Adds the unknown columns of a part's table to those of the parts before it. Returns how many cannot be kept.
fn merge(
    (folder, part): (&Path, u64),
    (table, own): (&Table, &[&str]),
    all: &mut Vec<Unknown>,
    cells: u64,
) -> u64 {
    let Ok(reader) = part_of(folder, table, part, u64::MAX) else {
        return 0;
    };
    let (unknown, mut left_out) = reader.unknown(table, own);
    let mut kept = 0_usize;
    for column in unknown {
        match all.iter().find(|known| known.name == column.name) {
            Some(known) if known.kind == column.kind => kept += 1,
            None if all.len() < UNKNOWN => {
                all.push(column);
                kept += 1;
            }
            _ => left_out += 1,
        }
    }
    left_out + kept.saturating_sub(room(&reader, cells)) as u64
}

/// Values of an unknown column.
enum Values {
    Numbers(Vec<Option<i64>>),
    Texts(Vec<Option<String>>),
    /// This part is without the column, or has no room for it.
    Absent,
}

/// Values of the unknown columns of all parts, in one part.
#[derive(Default)]
struct Further(Vec<Values>);

impl Further {
    fn read(
        reader: &Reader,
        (table, own): (&Table, &[&str]),
        (unknown, cells): (&[Unknown], u64),
        all: &[Range<u64>],
        mut left: usize,
    ) -> Result<Self, ParquetError> {
        let (here, _) = reader.unknown(table, own);
        let (mut values, mut room) = (Vec::new(), room(reader, cells));
        for column in unknown {
            if room == 0 || !here.contains(column) {
                values.push(Values::Absent);
                continue;
            }
            room -= 1;
            values.push(if column.kind == Kind::Text {
                let of = reader.texts_up_to(&column.name, all, left)?;
                left = left.saturating_sub(of.iter().flatten().map(String::len).sum());
                Values::Texts(of)
            } else {
                Values::Numbers(reader.numbers(&column.name, all)?)
            });
        }
        Ok(Self(values))
    }

    fn cells(&self, row: usize) -> Vec<Cell<'_>> {
        let cells = self.0.iter().map(|values| match values {
            Values::Numbers(of) => Cell::optional(of.get(row).copied().flatten()),
            Values::Texts(of) => {
                let text = of.get(row).and_then(Option::as_deref);
                text.map_or(Cell::None, Cell::Text)
            }
            Values::Absent => Cell::None,
        });
        cells.collect()
    }
}

/// Columns of a part's tasks.
pub(super) struct Rows {
    numbers: Vec<Vec<Option<i64>>>,
    texts: HashMap<&'static str, Vec<Option<String>>>,
    pub(super) started: Vec<Option<i64>>,
    pub(super) ended: Vec<Option<i64>>,
    further: Further,
}

impl Rows {
    pub(super) fn read(folder: &Path, part: u64, unknown: &Unknowns) -> Result<Self, ParquetError> {
        let tasks = part_of(folder, &TASKS, part, ROWS)?;
        let all = [0..tasks.rows()];
        let (mut numbers, mut texts) = (Vec::new(), HashMap::new());
        let mut left = TEXT_BYTES;
        for column in TASKS.columns {
            if column.kind == Kind::Text {
                let of = tasks.texts_up_to(column.name, &all, left)?;
                left = left.saturating_sub(of.iter().flatten().map(String::len).sum());
                texts.insert(column.name, of);
                numbers.push(Vec::new());
            } else {
                numbers.push(tasks.numbers(column.name, &all)?);
            }
        }
        let unknown = (&*unknown.tasks, unknown.cells);
        let further = Further::read(&tasks, (&TASKS, &OWN), unknown, &all, left)?;
        Ok(Self {
            further,
            numbers,
            texts,
            started: tasks.numbers(parts::STARTED, &all)?,
            ended: tasks.numbers(parts::ENDED, &all)?,
        })
    }

    fn number(&self, column: usize, row: usize) -> Option<i64> {
        self.numbers[column].get(row).copied().flatten()
    }

    fn int(&self, column: usize, row: usize) -> i32 {
        let number = self.number(column, row).unwrap_or_default();
        i32::try_from(number).unwrap_or_default()
    }

    fn text(&self, column: &str, row: usize) -> Option<&str> {
        self.texts.get(column)?.get(row)?.as_deref()
    }

    /// The task as it ended.
    fn info(&self, row: usize) -> TaskInfo<'_> {
        let text = |column| Text(self.text(column, row).unwrap_or_default().into());
        let launch = self.number(8, row).unwrap_or_default();
        let status = self.text("status", row).unwrap_or_default();
        TaskInfo {
            id: self.number(2, row).unwrap_or_default(),
            index: self.int(3, row),
            attempt: self.int(4, row),
            partition: self.number(5, row).and_then(|it| i32::try_from(it).ok()),
            launch,
            executor: text("executor_id"),
            host: text("host"),
            locality: text("locality"),
            speculative: self.number(13, row) == Some(1),
            getting_result: self.number(10, row).unwrap_or_default(),
            finish: self
                .number(9, row)
                .map_or(0, |duration| launch.wrapping_add(duration)),
            failed: status == "FAILED",
            killed: status == "KILLED",
            accumulables: Vec::new(),
        }
    }

    pub(super) fn start(&self, row: usize, replay: &mut Replay) {
        replay.on_task_start(&TaskStart {
            stage: self.int(0, row),
            stage_attempt: self.int(1, row),
            info: self.info(row),
        });
    }

    pub(super) fn end(
        &self,
        row: usize,
        sql: &mut Metrics,
        replay: &mut Replay,
    ) -> Result<(), Trouble> {
        let info = self.info(row);
        let (metrics, of_metrics) = sql.take(info.id, replay.is_running(info.id));
        let mut values = [0; METRICS];
        for (at, value) in values.iter_mut().enumerate() {
            *value = self.number(FIRST_METRIC + at, row).unwrap_or_default();
        }
        let mut peaks = Peaks([None; PEAKS.len()]);
        for (at, peak) in peaks.0.iter_mut().enumerate() {
            *peak = self.number(FIRST_PEAK + at, row);
        }
        replay.end_task(&End {
            stage: self.int(0, row),
            stage_attempt: self.int(1, row),
            kind: self.text("task_type", row),
            reason: self.text("end_reason", row).unwrap_or_default(),
            error: self.text("error", row),
            accumulators: self.text("accumulators", row),
            values,
            heaps: [0, 1].map(|at| self.number(FIRST_METRIC + METRICS + at, row)),
            peaks,
            metrics,
            further: &self.further.cells(row),
            of_metrics: &of_metrics,
            // The driver counts them.
            unreadable: 0,
            info: &info,
        })
    }
}

/// An SQL metric of a task: accumulator, value, and that it is an SQL metric.
type Metric = (i64, i64, bool);

/// SQL metrics of a part's tasks.
#[derive(Default)]
pub(super) struct Metrics {
    /// The task of each metric and its row, sorted.
    rows: Vec<(i64, u32)>,
    /// Metrics in the order of `rows`.
    metrics: Vec<Metric>,
    /// Tasks whose metrics were taken.
    taken: HashSet<i64>,
    further: Further,
}

impl Metrics {
    pub(super) fn read(folder: &Path, part: u64, unknown: &Unknowns) -> Result<Self, ParquetError> {
        let table = part_of(folder, &TASK_SQL, part, SQL_ROWS)?;
        let all = [0..table.rows()];
        let tasks = table.numbers("task_id", &all)?;
        let ids = table.numbers("accumulator_id", &all)?;
        let values = table.numbers("value", &all)?;
        let unknown = (&*unknown.task_sql, unknown.cells);
        let further = Further::read(&table, (&TASK_SQL, &[]), unknown, &all, TEXT_BYTES)?;
        let metric = |row: u32| Some((ids[row as usize]?, values[row as usize]?, true));
        let with_task = (0_u32..).zip(tasks);
        let mut rows: Vec<(i64, u32)> = with_task
            .filter_map(|(row, task)| metric(row).and(Some((task?, row))))
            .collect();
        rows.sort_unstable();
        let metrics = rows.iter().filter_map(|(_, row)| metric(*row)).collect();
        Ok(Self {
            rows,
            metrics,
            taken: HashSet::new(),
            further,
        })
    }

    /// Metrics of a task, and of a live one the cells of unknown columns of each. A task ends once: where a damaged part has
    /// its end again, there are no metrics, and no work for them.
    fn take(&mut self, task: i64, is_live: bool) -> (&[Metric], Vec<Vec<Cell<'_>>>) {
        let begin = self.rows.partition_point(|(of, _)| *of < task);
        let count = self.rows[begin..].partition_point(|(of, _)| *of == task);
        if count == 0 || !self.taken.insert(task) {
            return (&[], Vec::new());
        }
        let own = begin..begin + count;
        let needs_cells = is_live && !self.further.0.is_empty();
        let rows = self.rows[own.clone()].iter().filter(|_| needs_cells);
        let cells = rows.map(|(_, row)| self.further.cells(*row as usize));
        (&self.metrics[own], cells.collect())
    }
}

#[cfg(test)]
mod tests;
