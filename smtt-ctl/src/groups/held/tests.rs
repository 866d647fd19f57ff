//! Sums of blocks and of page placement.

use smtt_model::rows::{
    BlockRow, ExecutorId, HotnessMethod, NodeRow, NodeShare, PageSizeRow, PagesRow, SampleRow,
};

use super::*;
use crate::args::By;
use clap::ValueEnum as _;

fn who(worker: Option<&str>, pid: u32) -> ExecutorId {
    ExecutorId {
        application_id: Some("app-1".to_owned()),
        pid,
        uid: Some(1000),
        worker: worker.map(str::to_owned),
        ..ExecutorId::default()
    }
}

/// RDD number `id` of a run of a query, on one executor.
fn rdd(who: &ExecutorId, id: u32, query: Option<(u64, &str)>) -> RddRow {
    RddRow {
        who: who.clone(),
        rdd_id: Some(id),
        name: Some("MapPartitionsRDD".to_owned()),
        sql_execution_id: query.map(|(id, _)| id),
        sql_description: query.map(|(_, said)| said.to_owned()),
        ..RddRow::default()
    }
}

fn rows<R: serde::Serialize>(rows: &[R]) -> Vec<Row> {
    let row = |row| match serde_json::to_value(row) {
        Ok(Value::Object(row)) => row,
        other => panic!("{other:?}"),
    };
    rows.iter().map(row).collect()
}

fn pages(who: &ExecutorId, id: Option<u32>, mib: u64) -> PagesRow {
    PagesRow {
        who: who.clone(),
        rdd_id: id,
        name: id.is_none().then(|| "(no RDD)".to_owned()),
        held_bytes: mib << 20,
        ..PagesRow::default()
    }
}

#[test]
fn a_hundred_runs_of_a_query_are_one_row() {
    let executor = who(None, 7);
    let ids = (0..100_u32).flat_map(|run| (0..20).map(move |rdd| (run, run * 20 + rdd)));
    let rdds: Vec<RddRow> = ids
        .clone()
        .map(|(run, id)| rdd(&executor, id, Some((u64::from(run), "SELECT 1"))))
        .collect();
    let blocks: Vec<BlockRow> = ids
        .clone()
        .map(|(run, id)| BlockRow {
            who: executor.clone(),
            rdd_id: Some(id),
            size_bytes: 10,
            serialized: id % 2 == 0,
            on_heap: id % 4 > 0,
            reads: u64::from(id % 5),
            age_ns: u64::from(run),
            ..BlockRow::default()
        })
        .collect();
    let all = add_up(rows(&blocks), &rdds, Of::Blocks, GroupBy::Query);
    let [row] = &all[..] else {
        panic!("{all:?}");
    };
    let seen = |field: &str| row[field].clone();
    assert_eq!(seen("group"), "SELECT 1");
    for (field, value) in [
        ("sql_executions", 100_u64),
        ("rdds", 2000),
        ("executors", 1),
        ("blocks", 2000),
        ("size_bytes", 20_000),
        ("off_heap_bytes", 5_000),
        ("object_bytes", 10_000),
        ("reads", 4000),
        ("blocks_unread", 400),
        ("age_ns", 99),
    ] {
        assert_eq!(seen(field), value, "{field}");
    }
    // Each RDD for itself: as many rows.
    let each = add_up(rows(&blocks), &rdds, Of::Blocks, GroupBy::Rdd);
    assert_eq!(each.len(), 2000);
}

/// Every whole number of the rows is in the sums; the oldest age is that of the group.
#[test]
fn sums_of_pages_equal_the_parts() {
    let mut next = 0;
    let mut number = || {
        next += 1;
        next * next
    };
    let executors = [who(None, 1), who(None, 2), who(None, 3)];
    let mut parts = Vec::new();
    let mut rdds = Vec::new();
    for at in 0..120_u32 {
        let executor = &executors[at as usize % 3];
        let query = (at % 4 > 0).then_some((u64::from(at / 12), "SELECT 1"));
        rdds.push(rdd(executor, at / 3, query));
        let mut row = rows(&[pages(executor, Some(at / 3), 0)]).remove(0);
        for (field, fold) in PAGES {
            if matches!(fold, Fold::Sum | Fold::Most) && at % 7 > 0 {
                row.insert((*field).to_owned(), number().into());
            }
        }
        parts.push(row);
    }
    let groups = add_up(parts.clone(), &rdds, Of::Pages, GroupBy::Query);
    assert!(groups.len() > 1 && groups.len() < 20, "{}", groups.len());
    for (field, fold) in PAGES {
        let of = |rows: &[Row]| {
            let all = rows.iter().filter_map(|row| row.get(*field)?.as_u64());
            match fold {
                Fold::Most => all.max(),
                _ => Some(all.sum()),
            }
        };
        if matches!(fold, Fold::Sum | Fold::Most) {
            assert_eq!(of(&groups), of(&parts), "{field}");
        }
    }
    assert!(
        groups
            .iter()
            .all(|row| !row.contains_key("reads_per_minute"))
    );
}

#[test]
fn shares_are_computed_of_sums_and_states_are_the_worst() {
    let executor = who(None, 1);
    let one = PagesRow {
        read_local_bytes: Some(900),
        read_remote_bytes: Some(100),
        remote_access_ratio: Some(0.1),
        hotness: Some(1.0),
        hotness_method: Some(HotnessMethod::Damon),
        checked_bytes: Some(100),
        addresses: serde_json::from_value(json!("fixed")).ok(),
        nodes: Some(vec![NodeRow {
            node: 0,
            bytes: 300,
        }]),
        page_sizes: Some(vec![PageSizeRow {
            page_bytes: 4096,
            bytes: 300,
        }]),
        sample: Some(SampleRow {
            held_bytes: 100,
            present_share: 1.0,
            nodes: vec![NodeShare {
                node: 0,
                share: 1.0,
            }],
            ..SampleRow::default()
        }),
        ..pages(&executor, Some(1), 1)
    };
    let other = PagesRow {
        read_local_bytes: Some(0),
        read_remote_bytes: Some(3000),
        remote_access_ratio: Some(1.0),
        hotness: Some(0.0),
        hotness_method: Some(HotnessMethod::Damon),
        checked_bytes: Some(300),
        addresses: serde_json::from_value(json!("stale")).ok(),
        nodes: Some(vec![
            NodeRow {
                node: 0,
                bytes: 100,
            },
            NodeRow { node: 1, bytes: 50 },
        ]),
        sample: Some(SampleRow {
            held_bytes: 300,
            present_share: 0.5,
            swapped_share: 0.5,
            nodes: vec![NodeShare {
                node: 1,
                share: 1.0,
            }],
            ..SampleRow::default()
        }),
        ..pages(&executor, Some(2), 1)
    };
    let rdds = [rdd(&executor, 1, None), rdd(&executor, 2, None)];
    let both = |workers: [Option<&str>; 2]| {
        let (mut one, mut other) = (one.clone(), other.clone());
        let mut rdds = rdds.clone();
        one.who.worker = workers[0].map(str::to_owned);
        rdds[0].who.worker = one.who.worker.clone();
        other.who.worker = workers[1].map(str::to_owned);
        rdds[1].who.worker = other.who.worker.clone();
        add_up(rows(&[one, other]), &rdds, Of::Pages, GroupBy::Query).remove(0)
    };
    let row = both([None, None]);
    assert_eq!(row["group"], "(no SQL)");
    assert_eq!(row["remote_access_ratio"], 3100.0 / 4000.0);
    assert_eq!(row["hotness"], 0.25);
    assert_eq!(row["addresses"], "stale");
    assert_eq!(
        row["nodes"],
        json!([{"node": 0, "bytes": 400}, {"node": 1, "bytes": 50}])
    );
    assert_eq!(
        row["page_sizes"],
        json!([{"page_bytes": 4096, "bytes": 300}])
    );
    let sample = &row["sample"];
    assert_eq!(sample["swapped_share"], 0.375);
    assert_eq!(
        sample["nodes"],
        json!([{"node": 0, "share": 0.4}, {"node": 1, "share": 0.6}])
    );
    // Node 0 of one worker is not that of another one.
    let row = both([Some("w1"), Some("w2")]);
    assert!(row["nodes"].is_null() && row["sample"].get("nodes").is_none());
    assert_eq!(
        (row["executors"].as_u64(), row["rdds"].as_u64()),
        (Some(2), Some(2))
    );
}

#[test]
fn rows_without_an_rdd_and_of_unknown_ones_have_names() {
    let executor = who(None, 1);
    let rdds = [rdd(&executor, 1, Some((3, "SELECT 1")))];
    // The same process id on another worker is another executor.
    let elsewhere = who(Some("w"), 1);
    let parts = [
        pages(&executor, Some(1), 8),
        pages(&executor, None, 4),
        pages(&executor, Some(9), 2),
        pages(&elsewhere, Some(1), 1),
    ];
    let groups = add_up(rows(&parts), &rdds, Of::Pages, GroupBy::Query);
    let seen: Vec<(&str, Option<u64>)> = groups
        .iter()
        .map(|row| (text(row, "group"), number(row, "held_bytes")))
        .collect();
    assert_eq!(
        seen,
        [
            ("SELECT 1", Some(8 << 20)),
            ("(no RDD)", Some(4 << 20)),
            (OVERFLOW, Some(3 << 20)),
        ]
    );
}

/// Fields that this module reads are fields of the rows: another name would be a column without values.
#[test]
fn every_sum_is_of_a_field_of_its_rows() {
    let fields = rows(&[PagesRow::default()]).remove(0);
    for (field, _) in PAGES {
        assert!(fields.contains_key(*field), "{field}");
    }
    let mut fields = rows(&[BlockRow::default()]).remove(0);
    block(&mut fields);
    for (field, _) in BLOCKS {
        assert!(fields.contains_key(*field), "{field}");
    }
}

/// A row of a place that was not looked at yet has all fields, too: columns can be sorted by.
#[test]
fn every_column_is_a_field_of_its_row() {
    let executor = who(None, 1);
    let block = BlockRow {
        who: executor.clone(),
        ..BlockRow::default()
    };
    let pages = |worker| rows(&[pages(&who(worker, 1), Some(1), 1)]).remove(0);
    for (of, rows) in [
        (Of::Pages, vec![pages(None)]),
        (Of::Pages, vec![pages(Some("w1")), pages(Some("w2"))]),
        (Of::Blocks, rows(&[block])),
    ] {
        let row = add_up(rows, &[], of, GroupBy::Name).remove(0);
        for by in By::value_variants() {
            for column in of.kind(*by).columns {
                // It is computed for the table.
                let is_there = row.contains_key(column.field) || column.field == "examined_share";
                assert!(is_there, "{of:?} {}", column.field);
            }
        }
    }
}

/// Process ids are used again: a dead executor has the one of an executor of another application, attempt or user.
#[test]
fn executors_with_one_process_id_are_several() {
    let first = who(None, 7);
    let of_attempt = |attempt: &str| ExecutorId {
        application_attempt_id: Some(attempt.to_owned()),
        ..first.clone()
    };
    let executors = [
        first.clone(),
        ExecutorId {
            application_id: Some("app-2".to_owned()),
            ..first.clone()
        },
        ExecutorId {
            uid: Some(1001),
            ..first.clone()
        },
        of_attempt("1"),
        of_attempt("2"),
    ];
    let queries = ["SELECT 0", "SELECT 1", "SELECT 2", "SELECT 3", "SELECT 4"];
    let each = || executors.iter().zip(queries);
    let rdds: Vec<RddRow> = each()
        .map(|(executor, query)| rdd(executor, 3, Some((1, query))))
        .collect();
    let held: Vec<PagesRow> = each()
        .map(|(executor, _)| pages(executor, Some(3), 1))
        .collect();
    let groups = add_up(rows(&held), &rdds, Of::Pages, GroupBy::Query);
    let seen: BTreeSet<&str> = groups.iter().map(|row| text(row, "group")).collect();
    assert_eq!(seen, BTreeSet::from(queries));
}
