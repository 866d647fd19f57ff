//! What one executor leaves to others: room in the queue, files of the folder.

use std::collections::BTreeMap;

use super::*;

#[test]
fn greedy_executors_leave_room_in_the_queue_for_others() {
    let ledger = Arc::new(Ledger::new("test"));
    let (records_in, waiting) = mpsc::channel();
    let queue = Queue {
        records: records_in,
        ledger: Arc::clone(&ledger),
    };
    let greedy: Vec<_> = (0..4).map(|n| source(&format!("greedy-{n}"))).collect();
    for _ in 0..100 {
        for source in &greedy {
            queue.send(records(source, 0, 1000));
        }
    }
    let before = ledger.status().counts;
    assert!(before.lost["queue_full"] > 300_000, "{before:?}");
    let victim = source("victim");
    queue.send(records(&victim, 0, 400));
    let after = ledger.status().counts;
    assert_eq!(after.queued, before.queued + 400, "the victim lost records");
    let mut by: BTreeMap<String, u64> = BTreeMap::new();
    for record in waiting.try_iter().flatten() {
        *by.entry(record.source.application_id.clone()).or_default() += 1;
    }
    assert!(by.values().all(|own| *own <= QUEUE / 2), "{by:?}");
    assert!(after.queued <= QUEUE);
}

#[test]
fn files_of_many_applications_stay_within_the_number() {
    let scratch = tempfile::tempdir().expect("scratch");
    let mut bench = Bench::new(TraceSettings {
        max_files: 100,
        ..settings(scratch.path())
    });
    for number in 0..400 {
        let source = source(&format!("churn-{number}"));
        bench.take(records(&source, 0, 1));
        let files = look(scratch.path()).expect("readable").0.len();
        assert!(files <= 100, "{files} files");
    }
    bench.finish();
    let folders = fs::read_dir(scratch.path()).expect("readable").count();
    assert!(folders <= 101, "{folders} folders");
}
