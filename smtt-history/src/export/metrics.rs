//! SQL metrics of tasks, each with its value: where the table names a column of `tasks`, the value is from there.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use smtt_store::history::batch::Cell;
use smtt_store::history::columns::TASK_SQL;
use smtt_store::history::read::Reader;
use smtt_store::history::same;

use super::{Push, ROWS};
use crate::open::App;

/// Rows of `task_sql` that are read at a time: numbers and a repeated text.
const SQL_ROWS: u64 = 16 * ROWS;

/// A stage and its attempt.
type Stage = (i32, i32);

/// Tasks of some stage attempts, and those of their columns that metrics repeat. One reading has all stages that some rows
/// name, so that rows whose stages alternate cost no more than others.
#[derive(Default)]
struct Tasks {
    stages: BTreeSet<Stage>,
    rows: Vec<std::ops::Range<u64>>,
    /// Stages and ids, ascending, with the tasks' places among the rows.
    places: Vec<(Stage, i64, u32)>,
    columns: BTreeMap<String, Vec<Option<i64>>>,
    /// How often tasks were read.
    readings: usize,
}

impl Tasks {
    /// Reads the tasks of these stages, unless it has them.
    fn read(&mut self, app: &App, reader: &Reader, stages: BTreeSet<Stage>) -> Result<()> {
        if self.stages.is_superset(&stages) {
            return Ok(());
        }
        let mut rows = Vec::new();
        for &stage in &stages {
            let of_stage = app.rows(reader, stage)?;
            rows.extend(of_stage.into_iter().map(|range| (range, stage)));
        }
        // Those of one stage are in several row groups, between those of others.
        rows.sort_unstable_by_key(|(range, _)| range.start);
        let stages_of_rows = rows.iter().flat_map(|(range, stage)| {
            let count = usize::try_from(range.end - range.start).unwrap_or(0);
            std::iter::repeat_n(*stage, count)
        });
        let stages_of_rows: Vec<Stage> = stages_of_rows.collect();
        let rows: Vec<_> = rows.into_iter().map(|(range, _)| range).collect();
        let ids = reader.numbers("task_id", &rows)?;
        let of_row = stages_of_rows.into_iter().zip(ids).zip(0..);
        let mut places: Vec<(Stage, i64, u32)> = of_row
            .filter_map(|((stage, id), place)| Some((stage, id?, place)))
            .collect();
        places.sort_unstable();
        *self = Self {
            stages,
            rows,
            places,
            columns: BTreeMap::new(),
            readings: self.readings + 1,
        };
        Ok(())
    }

    fn value(&mut self, reader: &Reader, column: &str, of: (Stage, i64)) -> Result<Option<i64>> {
        if !same::is_figure(column) {
            return Ok(None);
        }
        // Of tasks with the same id the last one counts.
        let end = self
            .places
            .partition_point(|(stage, id, _)| (*stage, *id) <= of);
        let Some((stage, id, place)) = end.checked_sub(1).map(|at| self.places[at]) else {
            return Ok(None);
        };
        if (stage, id) != of {
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

/// The stage attempt of a row.
fn stage(stage: Option<i64>, attempt: Option<i64>) -> Result<Option<Stage>> {
    let (Some(stage), Some(attempt)) = (stage, attempt) else {
        return Ok(None);
    };
    Ok(Some((i32::try_from(stage)?, i32::try_from(attempt)?)))
}

/// Gives the rows of `task_sql` with their values, and says how often tasks were read.
pub(super) fn metrics(app: &App, push: &mut Push<'_>) -> Result<usize> {
    let cannot = || format!("cannot read the table {}", TASK_SQL.name);
    let reader = app.table(&TASK_SQL).with_context(cannot)?;
    let tasks = app.tasks().context("cannot read the table tasks")?;
    let mut known = Tasks::default();
    let (mut start, end) = (0, reader.rows());
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
        let mut stages = BTreeSet::new();
        for (at, same) in same.iter().enumerate() {
            if same.is_some() {
                let [of, attempt] = [0, 1].map(|key: usize| keys[key].get(at).copied().flatten());
                stages.extend(stage(of, attempt)?);
            }
        }
        known.read(app, &tasks, stages)?;
        for (at, (value, same)) in values.into_iter().zip(same).enumerate() {
            let key = [0, 1, 2, 3].map(|column: usize| keys[column].get(at).copied().flatten());
            let value = match (value, same, key) {
                (None, Some(column), [of, attempt, _, Some(task)]) => match stage(of, attempt)? {
                    Some(stage) => known.value(&tasks, &column, (stage, task))?,
                    None => None,
                },
                (value, ..) => value,
            };
            let [stage, attempt, accumulator, task] = key.map(Cell::optional);
            push(&[stage, attempt, accumulator, task, Cell::optional(value)])?;
        }
        start = rows.end;
    }
    Ok(known.readings)
}

#[cfg(test)]
mod tests {
    use smtt_store::history::batch::Batch;
    use smtt_store::history::columns::{FIRST_METRIC, META, TASKS};
    use smtt_store::history::write::Writer;

    use super::*;

    /// Row groups of which each has a metric of one stage: first one, then the other.
    const GROUPS: i64 = 200;

    #[test]
    fn stages_that_alternate_are_read_once() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let mut meta = Batch::new(&META);
        meta.push(&["application", "", r#"{"id":"app-1"}"#].map(Cell::Text));
        let mut writer = Writer::create(&META, folder.path(), "1", &[])?;
        writer.write(&meta)?;
        writer.finish()?;
        let mut tasks = Writer::create(&TASKS, folder.path(), "1", &[])?;
        let mut metrics_of = Writer::create(&TASK_SQL, folder.path(), "1", &[])?;
        for task in 0..GROUPS {
            let (stage, zero) = (Cell::Number(task % 2), Cell::Number(0));
            let mut row = vec![stage, zero, Cell::Number(task)];
            row.resize(FIRST_METRIC, Cell::None);
            row.push(Cell::Number(1000 + task));
            let mut batch = Batch::new(&TASKS);
            batch.push(&row);
            tasks.write(&batch)?;
            let column = Cell::Text(TASKS.columns[FIRST_METRIC].name);
            let mut batch = Batch::new(&TASK_SQL);
            batch.push(&[stage, zero, Cell::Number(7), row[2], Cell::None, column]);
            metrics_of.write(&batch)?;
        }
        tasks.finish()?;
        metrics_of.finish()?;
        let app = App::open(folder.path())?;
        let mut found = Vec::new();
        let readings = metrics(&app, &mut |row| {
            let [Cell::Number(task), Cell::Number(value)] = row[3..] else {
                anyhow::bail!("no value: {row:?}");
            };
            found.push((task, value));
            Ok(())
        })?;
        let expected: Vec<_> = (0..GROUPS).map(|task| (task, 1000 + task)).collect();
        assert_eq!(found, expected);
        assert_eq!(readings, 1);
        Ok(())
    }
}
