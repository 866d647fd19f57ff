//! Pages of a sorted stage are parts of the whole order, which a plain sort gives.

use std::path::Path;

use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::columns::{META, TASKS, Table};
use smtt_store::history::read::READ_ROWS;
use smtt_store::history::write::Writer;

use super::*;

/// Row groups and tasks in each; each group has two stages.
const GROUPS: (i64, i64) = (4, 1_500);
const STAGES: i64 = 2;

/// A task of the made application.
#[derive(Clone, Copy)]
struct Made {
    id: i64,
    stage: i64,
    status: &'static str,
    time: Option<i64>,
}

/// Tasks in the order of the file: few run times, so that many are equal, failed ones and ones without metrics among them.
fn tasks(group: i64) -> Vec<Made> {
    let mut state = 88_172_645_463_325_252_u64 + group as u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below) as i64
    };
    let mut ids: Vec<i64> = (0..GROUPS.1).map(|at| at * GROUPS.0 + group).collect();
    for at in 1..ids.len() {
        ids.swap(at, random(at as u64 + 1) as usize);
    }
    let task = |(at, id): (usize, i64)| Made {
        id,
        stage: at as i64 * STAGES / GROUPS.1,
        status: STATUSES[1 + random(3) as usize],
        time: Some(random(40)).filter(|time| *time != 7),
    };
    ids.into_iter().enumerate().map(task).collect()
}

fn row(task: &Made) -> Vec<Cell<'_>> {
    let mut cells = vec![Cell::None; TASKS.columns.len()];
    let mut set = |name: &str, cell| {
        let at = TASKS.columns.iter().position(|it| it.name == name);
        cells[at.expect("is a column")] = cell;
    };
    set("stage_id", Cell::Number(task.stage));
    set("stage_attempt", Cell::Number(0));
    set("task_id", Cell::Number(task.id));
    set("task_index", Cell::Number(task.id / 3));
    set("attempt", Cell::Number(0));
    set("executor_id", Cell::Text("1"));
    set("host", Cell::Text("host"));
    // The order of the file, which the writer makes.
    set("launch_time", Cell::Number(task.id));
    set("status", Cell::Text(task.status));
    set("locality", Cell::Text("ANY"));
    set("speculative", Cell::Number(0));
    set("has_metrics", Cell::Number(i64::from(task.time.is_some())));
    set("executor_run_time_ms", Cell::optional(task.time));
    set("input_bytes", Cell::Number(task.id * 1_000_003 % 65_537));
    cells
}

fn write(folder: &Path, table: &'static Table, groups: &[Vec<Vec<Cell<'_>>>]) {
    let mut writer = Writer::create(table, folder, "1", &[]).expect("creates");
    for rows in groups {
        let mut batch = Batch::new(table);
        rows.iter().for_each(|row| batch.push(row));
        writer.write(&batch).expect("writes");
    }
    writer.finish().expect("finishes");
}

/// Ids of the tasks in the whole order, by a plain sort of all.
fn sorted(all: &[Made], stage: i64, order: Option<bool>, statuses: &[&str]) -> Vec<i64> {
    let mut tasks: Vec<Made> = all.to_vec();
    tasks.retain(|it| it.stage == stage && (statuses.is_empty() || statuses.contains(&it.status)));
    tasks.sort_by_key(|it| it.id);
    let time = |it: &Made| match (it.time, it.status) {
        (None, _) => -1,
        (Some(time), "SUCCESS") => time,
        (Some(time), _) => -time - 1,
    };
    match order {
        None => {}
        Some(false) => tasks.sort_by_key(time),
        Some(true) => tasks.sort_by_key(|it| std::cmp::Reverse(time(it))),
    }
    tasks.iter().map(|it| it.id).collect()
}

#[test]
fn pages_are_parts_of_a_full_sort() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let groups: Vec<Vec<Made>> = (0..GROUPS.0).map(tasks).collect();
    let rows: Vec<Vec<Vec<Cell<'_>>>> = groups
        .iter()
        .map(|group| group.iter().map(row).collect())
        .collect();
    write(folder.path(), &TASKS, &rows);
    write(folder.path(), &META, &[]);
    let app = App::open(folder.path()).expect("opens");
    let all = groups.concat();
    let filters: [&[&str]; 3] = [&[], &["FAILED"], &["SUCCESS", "KILLED"]];
    let orders = [
        ("ID", None),
        ("runtime", Some(false)),
        ("-runtime", Some(true)),
    ];
    for stage in 0..STAGES {
        for statuses in filters {
            for (order, down) in orders {
                let whole = sorted(&all, stage, down, statuses);
                assert!(whole.len() > 500, "{stage} {statuses:?}: {}", whole.len());
                let last = whole.len() - 50;
                for (offset, length) in [(0, 100), (1, 7), (333, 100), (last, 100), (last + 60, 9)]
                {
                    let mut query = vec![
                        ("sortBy", order.to_owned()),
                        ("offset", offset.to_string()),
                        ("length", length.to_string()),
                    ];
                    query.extend(statuses.iter().map(|it| ("status", it.to_lowercase())));
                    let pairs = query
                        .iter()
                        .map(|(key, value)| ((*key).to_owned(), value.clone()));
                    let parameters = Parameters(pairs.collect());
                    let answer = list(&app, &stage.to_string(), "0", &parameters).expect("answers");
                    let answer: Vec<Value> = serde_json::from_str(&answer).expect("is JSON");
                    let ids: Vec<i64> = answer
                        .iter()
                        .filter_map(|it| it["taskId"].as_i64())
                        .collect();
                    let end = whole.len().min(offset + length);
                    let expected = whole.get(offset..end).unwrap_or_default();
                    assert_eq!(ids, expected, "{query:?}");
                    for task in &answer {
                        let (id, metrics) = (
                            task["taskId"].as_i64().expect("is there"),
                            &task["taskMetrics"],
                        );
                        let made = all.iter().find(|it| it.id == id).expect("is known");
                        assert_eq!(task["status"], made.status);
                        assert_eq!(task["partitionId"], -1);
                        assert_eq!(metrics["executorRunTime"].as_i64(), made.time);
                        let input = made.time.map(|_| id * 1_000_003 % 65_537);
                        assert_eq!(metrics["inputMetrics"]["bytesRead"].as_i64(), input);
                    }
                }
            }
        }
    }
}

#[test]
fn ranges_of_single_rows_open_each_column_once_and_too_many_rows_none() {
    const ROWS: u64 = 200_000;
    let folder = tempfile::tempdir().expect("makes a folder");
    let task = |id| Made {
        id,
        stage: 0,
        status: "SUCCESS",
        time: Some(id % 1000),
    };
    let all: Vec<Made> = (0..ROWS as i64).map(task).collect();
    write(folder.path(), &TASKS, &[all.iter().map(row).collect()]);
    write(folder.path(), &META, &[]);
    let app = App::open(folder.path()).expect("opens");
    let tasks = app.tasks().expect("opens");
    assert_eq!(tasks.groups(), [ROWS]);
    let selection = Selection {
        statuses: &[],
        order: Some(true),
        offset: 10,
        length: 100,
    };
    // As those of a stage in a file of another writer, whose stages alternate.
    let ranges: Vec<Range<u64>> = (0..ROWS / 2).map(|at| 2 * at + 1..2 * at + 2).collect();
    let before = tasks.opened();
    let rows = ordered(&tasks, &ranges, &selection).expect("reads");
    // The id, the status, and the run time, which may be computed from others.
    let opened = tasks.opened() - before;
    assert!(opened <= TASKS.columns.len() as u64, "{opened} columns");
    let of_ranges: Vec<Made> = all.into_iter().filter(|it| it.id % 2 == 1).collect();
    let ids = sorted(&of_ranges, 0, Some(true), &[]);
    let ids: Vec<u64> = ids[10..110].iter().map(|id| *id as u64).collect();
    assert_eq!(rows, ids);

    // In pieces of which each one would be read.
    let half = READ_ROWS / 2;
    let ranges = [0..half, half + 1..READ_ROWS + 2];
    let before = tasks.opened();
    let error = ordered(&tasks, &ranges, &selection).expect_err("are too many");
    assert!(error.to_string().contains("rows are asked for"), "{error}");
    assert_eq!(tasks.opened() - before, 0);
}
