//! What a user and an executor leave to others: room in the queue, files of the folder.

use std::collections::BTreeMap;

use super::*;

/// A queue that no writer empties.
fn queue() -> (Queue, Arc<Ledger>, mpsc::Receiver<Vec<Record>>) {
    let ledger = Arc::new(Ledger::new("test"));
    let (records, waiting) = mpsc::channel();
    let queue = Queue {
        records,
        ledger: Arc::clone(&ledger),
    };
    (queue, ledger, waiting)
}

#[test]
fn many_executors_of_a_user_leave_room_in_the_queue_for_another_user() {
    let (queue, ledger, waiting) = queue();
    for round in 0..3 {
        for executor in 0..500 {
            let source = source_of(666, &format!("{round}-{executor}"));
            queue.send(records(&source, 0, 100));
        }
    }
    let before = ledger.status().counts;
    let most = QUEUE / 4 * 3 + 1;
    assert!(before.queued <= most, "{before:?}");
    assert!(before.queued >= QUEUE / 2, "{before:?}");
    // As much as the greedy user leaves by the rule: three quarters of the rest.
    let victim = source_of(1000, "victim");
    queue.send(records(&victim, 0, 2000));
    let after = ledger.status().counts;
    assert_eq!(
        after.queued,
        before.queued + 2000,
        "the victim lost records"
    );
    // What leaves the queue makes room again.
    let left: Vec<Record> = waiting.try_iter().flatten().collect();
    ledger.taken(&left);
    ledger.lock().counts.queued = 0;
    queue.send(records(&victim, 0, 2000));
    assert_eq!(ledger.status().counts.queued, 2000);
}

#[test]
fn greedy_executors_leave_room_in_the_queue_for_others() {
    let (queue, ledger, waiting) = queue();
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
        let files = list_segments(scratch.path()).expect("readable").0.len();
        assert!(files <= 100, "{files} files");
    }
    bench.finish();
    let of_user = scratch.path().join("uid=1000");
    let folders = fs::read_dir(of_user).expect("readable").count();
    assert!(folders <= 100, "{folders} folders");
}

#[test]
fn a_flood_of_one_user_removes_no_trace_of_another() {
    let scratch = tempfile::tempdir().expect("scratch");
    let mut bench = Bench::new(TraceSettings {
        max_files: 40,
        ..settings(scratch.path())
    });
    for number in 0..10 {
        bench.take(records(&source_of(1000, &format!("job-{number}")), 0, 1));
        bench.writer.finish_all();
    }
    for number in 0..200 {
        bench.take(records(&source_of(666, &format!("flood-{number}")), 0, 1));
        bench.writer.finish_all();
    }
    let counts = bench.finish();
    assert_eq!(counts.segments_removed, 170, "{counts:?}");
    for (user, kept) in [(1000, 10), (666, 30)] {
        let folder = scratch.path().join(format!("uid={user}"));
        let folders = fs::read_dir(folder).expect("readable").count();
        assert_eq!(folders, kept, "user {user}");
    }
}
