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
