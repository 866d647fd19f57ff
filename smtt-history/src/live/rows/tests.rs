//! SQL metrics of a part with unknown columns: how many columns have room, and for which ends their values are read.

use std::time::Duration;

use smtt_store::history::batch::Batch;
use smtt_store::history::write::Writer;

use super::*;

/// Unknown columns of the part.
const COLUMNS: usize = 4;

/// A part with six rows: three metrics of task 7, two of task 8, and one of task 9 without a value.
fn part(folder: &Path) {
    let columns = (0..COLUMNS).map(|at| Unknown {
        name: format!("later_{at}"),
        kind: Kind::Long,
    });
    let mut batch = Batch::with(&TASK_SQL, columns.collect());
    let rows = [
        (8, 1, Some(10)),
        (7, 2, Some(20)),
        (9, 3, None),
        (7, 4, Some(40)),
        (8, 5, Some(50)),
        (7, 6, Some(60)),
    ];
    for (task, metric, value) in rows {
        let mut cells = [0, 0, metric, task].map(Cell::Number).to_vec();
        cells.extend([Cell::optional(value), Cell::None]);
        cells.extend((0..COLUMNS).map(|at| Cell::Number(100 * metric + at as i64)));
        batch.push(&cells);
    }
    let writer = Writer::create(&TASK_SQL, folder, "q", &[]).expect("creates");
    let mut writer = writer.named("task_sql-000001.parquet");
    writer.write(&batch).expect("writes");
    writer.finish().expect("finishes");
}

fn unknowns(folder: &Path, cells: u64) -> Unknowns {
    let none = Unknowns {
        cells,
        ..Unknowns::default()
    };
    none.with(folder, &[1], Instant::now() + Duration::from_secs(60))
}

#[test]
fn unknown_columns_have_room_for_so_many_values_and_further_ones_are_counted() {
    let folder = tempfile::tempdir().expect("makes a folder");
    part(folder.path());
    for (cells, kept) in [(CELLS, 4), (24, 4), (23, 3), (12, 2), (5, 0)] {
        let unknown = unknowns(folder.path(), cells);
        assert_eq!(unknown.task_sql.len(), COLUMNS);
        assert_eq!(unknown.left_out, (COLUMNS - kept) as u64, "{cells} values");
        let mut metrics = Metrics::read(folder.path(), 1, &unknown).expect("reads");
        let values = metrics.further.0.iter();
        let held: usize = values
            .map(|it| match it {
                Values::Numbers(of) => of.len(),
                Values::Texts(_) | Values::Absent => 0,
            })
            .sum();
        assert_eq!(held, 6 * kept, "{cells} values");
        let (_, cells) = metrics.take(8, true);
        let expected = |metric: i64| {
            let of = |at| match at {
                at if at < kept => Cell::Number(100 * metric + at as i64),
                _ => Cell::None,
            };
            (0..COLUMNS).map(of).collect::<Vec<_>>()
        };
        assert_eq!(
            format!("{cells:?}"),
            format!("{:?}", [expected(1), expected(5)])
        );
    }
}

#[test]
fn an_end_that_comes_again_or_without_a_start_reads_no_values_of_unknown_columns() {
    let folder = tempfile::tempdir().expect("makes a folder");
    part(folder.path());
    let unknown = unknowns(folder.path(), CELLS);
    let mut metrics = Metrics::read(folder.path(), 1, &unknown).expect("reads");
    let (of, cells) = metrics.take(8, false);
    assert_eq!((of, cells.len()), (&[(1, 10, true), (5, 50, true)][..], 0));
    let (of, cells) = metrics.take(7, true);
    assert_eq!(of, [(2, 20, true), (4, 40, true), (6, 60, true)]);
    assert_eq!(cells.len(), 3);
    // Each row of a task's end could ask for all metrics of the part.
    for task in [7, 8, 9] {
        let (of, cells) = metrics.take(task, true);
        assert_eq!((of.len(), cells.len()), (0, 0), "task {task}");
    }
}
