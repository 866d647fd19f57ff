//! SQL metrics of tasks, each with its value: where the table names a column of `tasks`, the value is from there.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context, Result};
use smtt_store::history::batch::Cell;
use smtt_store::history::columns::TASK_SQL;
use smtt_store::history::read::Reader;
use smtt_store::history::same;

use super::{Push, ROWS};
use crate::open::App;

/// Rows of `task_sql` that are read at a time: numbers and a repeated text.
const SQL_ROWS: u64 = 16 * ROWS;

/// The tasks of a stage attempt, and those of their columns that metrics repeat.
struct Tasks {
    stage: (i32, i32),
    rows: Vec<Range<u64>>,
    /// Ids, ascending, with their places among the rows.
    places: Vec<(i64, u32)>,
    columns: BTreeMap<String, Vec<Option<i64>>>,
}

impl Tasks {
    fn read(app: &App, reader: &Reader, stage: (i32, i32)) -> Result<Self> {
        let rows = app.rows(reader, stage)?;
        let ids = reader.numbers("task_id", &rows)?;
        let mut places: Vec<(i64, u32)> = ids.into_iter().flatten().zip(0..).collect();
        places.sort_unstable();
        Ok(Self {
            stage,
            rows,
            places,
            columns: BTreeMap::new(),
        })
    }

    fn value(&mut self, reader: &Reader, column: &str, task: i64) -> Result<Option<i64>> {
        if !same::is_figure(column) {
            return Ok(None);
        }
        // Of tasks with the same id the last one counts.
        let end = self.places.partition_point(|(id, _)| *id <= task);
        let Some((id, place)) = end.checked_sub(1).map(|at| self.places[at]) else {
            return Ok(None);
        };
        if id != task {
            return Ok(None);
        }
        if !self.columns.contains_key(column) {
            let values = reader.numbers(column, &self.rows)?;
            self.columns.insert(column.to_owned(), values);
        }
        let values = self.columns.get(column);
        Ok(values.and_then(|values| values.get(place as usize).copied().flatten()))
    }
}

/// Gives the rows of `task_sql` with their values.
pub(super) fn metrics(app: &App, push: &mut Push<'_>) -> Result<()> {
    let cannot = || format!("cannot read the table {}", TASK_SQL.name);
    let reader = app.table(&TASK_SQL).with_context(cannot)?;
    let tasks = app.tasks().context("cannot read the table tasks")?;
    let mut of_stage: Option<Tasks> = None;
    let mut start = 0;
    for &count in reader.groups() {
        let end = start + count;
        while start < end {
            let rows = start..end.min(start + SQL_ROWS);
            let range = std::slice::from_ref(&rows);
            let key = ["stage_id", "stage_attempt", "accumulator_id", "task_id"];
            let mut keys = Vec::new();
            for column in key {
                keys.push(reader.numbers(column, range).with_context(cannot)?);
            }
            let values = reader.numbers("value", range).with_context(cannot)?;
            let same = reader.texts("same_as", range).with_context(cannot)?;
            for (at, (value, same)) in values.into_iter().zip(same).enumerate() {
                let key = [0, 1, 2, 3].map(|column: usize| keys[column].get(at).copied().flatten());
                let value = match (value, same, key) {
                    (None, Some(column), [Some(stage), Some(attempt), _, Some(task)]) => {
                        let stage = i32::try_from(stage)?;
                        let stage = (stage, i32::try_from(attempt)?);
                        if of_stage.as_ref().is_none_or(|it| it.stage != stage) {
                            of_stage = Some(Tasks::read(app, &tasks, stage)?);
                        }
                        match &mut of_stage {
                            Some(of_stage) => of_stage.value(&tasks, &column, task)?,
                            None => None,
                        }
                    }
                    (value, ..) => value,
                };
                let [stage, attempt, accumulator, task] = key.map(Cell::optional);
                push(&[stage, attempt, accumulator, task, Cell::optional(value)])?;
            }
            start = rows.end;
        }
    }
    Ok(())
}
