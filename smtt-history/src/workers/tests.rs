//! Documents of workers are bounded before they are read.

use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::workers::{Bounds, Whose, Workers};

use super::*;

/// Bytes of one document, and how many a file has: together more than a reader takes at once, in a few kilobytes on disk.
const LONG: (usize, usize) = (1 << 20, 520);

fn files(batch: &Batch) -> (tempfile::TempDir, Files) {
    let folder = tempfile::tempdir().expect("makes a folder");
    let any = Bounds {
        bytes: 1 << 30,
        files: 1 << 20,
    };
    let mut workers = Workers::take(folder.path(), "node-1", 10, None, any).expect("opens");
    let done = workers.add(Whose::of("app-1", 7), 0, batch, &|uid| uid);
    done.expect("writes");
    let files = Files::of(folder.path(), ("app-1", None), None, None).expect("lists");
    (folder, files)
}

/// The same long document in all rows.
fn long() -> (tempfile::TempDir, Files) {
    let text = "x".repeat(LONG.0);
    let mut batch = Batch::new(&REST);
    for _ in 0..LONG.1 {
        batch.push(&["memory", "1", &text].map(Cell::Text));
    }
    files(&batch)
}

#[test]
fn documents_beyond_the_bound_are_not_read() {
    let (_folder, files) = long();
    let select = |_: &Reader| -> Result<Vec<Range<u64>>, Trouble> { Ok(vec![0..LONG.1 as u64]) };
    let mut left = 10 << 20;
    let read = files.read(REST.name, "id", &mut left, select);
    // A reader that took all of them would find its own bound first.
    assert!(matches!(read, Err(Trouble::TooLarge)), "{read:?}");
    // One document fits, and is counted with its id.
    let mut left = 10 << 20;
    let read = files.read(REST.name, "id", &mut left, |_| Ok(vec![0..1, 5..6]));
    assert_eq!(read.expect("fits").len(), 2);
    let taken = 2 * (LONG.0 + 1 + size_of::<Document>());
    assert_eq!((10 << 20) - left, taken);
}

#[test]
fn ids_and_kinds_are_bounded_too() {
    let text = "x".repeat(LONG.0);
    let (mut ids, mut kinds) = (Batch::new(&REST), Batch::new(&REST));
    for _ in 0..LONG.1 {
        ids.push(&["memory", &text, "{}"].map(Cell::Text));
        kinds.push(&[&text, "1", "{}"].map(Cell::Text));
    }
    for batch in [ids, kinds] {
        let (_folder, files) = files(&batch);
        let read = files.documents("memory");
        assert!(matches!(read, Err(Trouble::TooLarge)), "{read:?}");
    }
}

#[test]
fn many_short_documents_are_bounded_in_number() {
    let mut batch = Batch::new(&REST);
    for _ in 0..1000 {
        batch.push(&["memory", "", ""].map(Cell::Text));
    }
    let (_folder, files) = files(&batch);
    let all = |_: &Reader| -> Result<Vec<Range<u64>>, Trouble> { Ok(vec![0..1000]) };
    let mut left = 999 * size_of::<Document>();
    let read = files.read(REST.name, "id", &mut left, all);
    assert!(matches!(read, Err(Trouble::TooLarge)));
    let mut left = 1000 * size_of::<Document>();
    let read = files.read(REST.name, "id", &mut left, all);
    assert_eq!(read.expect("fits").len(), 1000);
}

#[test]
fn only_documents_whose_id_is_chosen_are_read() {
    let mut batch = Batch::new(&REST);
    let text = format!(r#"{{"rdds":["{}"]}}"#, "x".repeat(1000));
    let mut push = |id: &str| batch.push(&["stage", id, &text].map(Cell::Text));
    for stage in 0..200 {
        for executor in 0..5 {
            push(&format!("{stage}.0.{executor}.77"));
        }
    }
    // An attempt whose number begins as this one, an executor's name with dots, and ids that have no stage.
    let others = ["17.01x.1.1", "17.10.1.1", "17.0.a.b.1", "3.77", "", "17.0"];
    others.iter().for_each(|id| push(id));
    batch.push(&[Cell::Text("stage"), Cell::None, Cell::Text(&text)]);
    let (_folder, files) = files(&batch);
    let read = |key: [i64; 2]| {
        let mut ids = Vec::new();
        let has = |id: &str| leading(id).is_none_or(|numbers| numbers == key);
        let bytes = files.documents_with("stage", &has, &mut |it| ids.push(it.id));
        (bytes.expect("reads"), ids)
    };
    let (bytes, ids) = read([17, 0]);
    let known: Vec<String> = (0..5).map(|it| format!("17.0.{it}.77")).collect();
    let unknown = ["17.01x.1.1", "17.0.a.b.1", "3.77", "", "17.0", ""].map(str::to_owned);
    assert_eq!(ids, [&known[..], &unknown[..]].concat());
    let own: usize = ids
        .iter()
        .map(|id| id.len() + text.len() + size_of::<Document>())
        .sum();
    assert_eq!(bytes, own);
    assert_eq!(read([17, 10]).1.len(), 1 + 5);
    assert_eq!(
        files.documents("stage").expect("reads").len(),
        1001 + others.len()
    );
}

#[test]
fn an_executor_that_ended_before_a_kill_has_its_last_documents() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let any = Bounds {
        bytes: 1 << 30,
        files: 1 << 20,
    };
    let of = |executor: &str, pid: u32, says: &str| {
        format!(r#"{{"executor_id":"{executor}","pid":{pid},"says":"{says}"}}"#)
    };
    for (run, host) in [(10, "node-1"), (10, "node-2"), (20, "node-1")] {
        let mut workers = Workers::take(folder.path(), host, run, None, any).expect("opens");
        let mut add = |part: u32, documents: &[(&str, &str, String)]| {
            let mut batch = Batch::new(&REST);
            for (kind, id, text) in documents {
                batch.push(&[*kind, *id, text].map(Cell::Text));
            }
            let done = workers.add(Whose::of("app-1", 7), part, &batch, &|uid| uid);
            done.expect("writes");
        };
        let mut living = vec![("worker", "", "{}".to_owned())];
        for (executor, pid) in [("1", 11), ("2", 22)] {
            living.push(("executor", executor, of(executor, pid, "lives")));
            living.push(("stage", "3.0", of(executor, pid, "lives")));
        }
        living.push(("death", "1", of("1", 11, "died")));
        add(0, &living);
        // Only one of the daemons saw an end.
        if (run, host) == (10, "node-1") {
            add(3, &[("executor", "1.11", of("1", 11, "ended"))]);
        }
    }
    let files = Files::of(folder.path(), ("app-1", None), None, None).expect("lists");
    let found = |kind: &str| -> Vec<(String, u64, String)> {
        let all = files.documents(kind).expect("reads").into_iter();
        all.map(|it| {
            let text = |name: &str| it.json[name].as_str().unwrap_or_default().to_owned();
            let what = format!("{} {}", text("executor_id"), text("says"));
            (it.host, it.run, what)
        })
        .collect()
    };
    let row = |host: &str, run: u64, what: &str| (host.to_owned(), run, what.to_owned());
    let mut executors = found("executor");
    executors.sort();
    let expected = [
        row("node-1", 10, "1 ended"),
        row("node-1", 10, "2 lives"),
        row("node-1", 20, "1 lives"),
        row("node-1", 20, "2 lives"),
        row("node-2", 10, "1 lives"),
        row("node-2", 10, "2 lives"),
    ];
    assert_eq!(executors, expected);
    // Its stages are those of the part with its last documents: none.
    assert_eq!(found("stage").len(), 5);
    assert_eq!(found("death").len(), 3, "a death is in part 0 alone");
    assert_eq!(found("worker").len(), 3);
}
