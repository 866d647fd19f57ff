//! Stores SQL metrics that repeat a figure of their task without their value: `task_sql` names the column of `tasks`.
//!
//! Spark counts bytes, records and times of a shuffle twice, as a metric of the task and as one of the query's plan. Half of
//! the bytes of `task_sql` were such copies. A metric of a stage is a copy if all its values in a row group are those of one
//! column. One whose values are all equal takes no room, and keeps them.

use std::collections::HashMap;

use super::batch::{Batch, Cell};
use super::columns::{FIRST_METRIC, METRICS, SQL_SAME_AS, SQL_VALUE, TASK_SQL, TASKS, Unknown};

/// Stage, its attempt and the accumulator.
type Metric = [i64; 3];

/// The columns of `tasks` that all values of a metric so far are equal to.
#[derive(Clone, Copy)]
struct Common {
    first: i64,
    is_constant: bool,
    /// A bit for each column that has all the values.
    columns: u64,
}

const _: () = assert!(METRICS <= u64::BITS as usize, "each column needs a bit");

/// Buffers rows of `task_sql` for their row group, and finds the metrics that repeat a column of `tasks`.
#[derive(Clone)]
pub struct Rows {
    batch: Batch,
    common: HashMap<Metric, Common>,
}

impl Default for Rows {
    fn default() -> Self {
        Self::with(Vec::new())
    }
}

impl Rows {
    /// No rows yet, of a table with further columns.
    #[must_use]
    pub fn with(unknown: Vec<Unknown>) -> Self {
        Self {
            batch: Batch::with(&TASK_SQL, unknown),
            common: HashMap::new(),
        }
    }

    /// The rows so far, as they were given.
    #[must_use]
    pub const fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Bytes in memory, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.batch.bytes() + self.common.capacity() * size_of::<(Metric, Common)>()
    }

    /// Adds a metric of a task: `figures` are the task's own, in the order of the columns, and `further` has the metric's
    /// further columns.
    pub fn push(
        &mut self,
        [stage, attempt, task]: [i64; 3],
        figures: &[i64; METRICS],
        (accumulator, value): (i64, i64),
        further: &[Cell<'_>],
    ) {
        let equal = figures.iter().enumerate();
        let columns = equal.fold(0, |bits, (at, figure)| {
            bits | u64::from(*figure == value) << at
        });
        let metric = [stage, attempt, accumulator];
        let common = self.common.entry(metric).or_insert(Common {
            first: value,
            is_constant: true,
            columns,
        });
        common.is_constant &= common.first == value;
        common.columns &= columns;
        let known = [stage, attempt, accumulator, task, value].map(Cell::Number);
        if further.is_empty() {
            self.batch.push(&known);
            return;
        }
        let mut cells = known.to_vec();
        cells.resize(TASK_SQL.columns.len(), Cell::None);
        cells.extend_from_slice(further);
        self.batch.push(&cells);
    }

    /// All rows, with the names of columns in place of copies.
    #[must_use]
    pub fn finish(mut self) -> Batch {
        let rows: Vec<u32> = (0..u32::try_from(self.batch.len()).unwrap_or(u32::MAX)).collect();
        let [stages, attempts, ids] = [0, 1, 2].map(|at| self.batch.numbers(at, &rows).0);
        for (row, ((stage, attempt), id)) in stages.into_iter().zip(attempts).zip(ids).enumerate() {
            let Some(column) = self.common.get(&[stage, attempt, id]).and_then(column) else {
                continue;
            };
            self.batch.set(row, SQL_VALUE, Cell::None);
            self.batch.set(row, SQL_SAME_AS, Cell::Text(column));
        }
        self.batch
    }
}

fn column(common: &Common) -> Option<&'static str> {
    let first = common.columns.trailing_zeros() as usize;
    let is_copy = !common.is_constant && first < METRICS;
    is_copy.then(|| TASKS.columns[FIRST_METRIC + first].name)
}

/// Whether `same_as` may name this column.
#[must_use]
pub fn is_figure(column: &str) -> bool {
    let figures = &TASKS.columns[FIRST_METRIC..FIRST_METRIC + METRICS];
    figures.iter().any(|it| it.name == column)
}
