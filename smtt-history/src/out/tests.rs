//! What a table says about itself, and which documents stay where there is no room for all.

use smtt_store::history::read::Reader;

use super::*;

#[test]
fn a_table_of_two_row_groups_names_its_application() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut out = Out::create(folder.path()).expect("creates");
    for task in 0..=GROUP_ROWS as i64 {
        out.task(&[Cell::Number(0), Cell::Number(0), Cell::Number(task)])
            .expect("writes");
    }
    let (folder, sizes) = out
        .finish(folder.path(), "app-1", "app-1", false)
        .expect("finishes");
    assert_eq!(sizes.tasks.rows, GROUP_ROWS as u64 + 1);
    for table in ["tasks", "task_sql", "meta"] {
        let reader = Reader::open(&place::table(&folder, table), table).expect("opens");
        assert_eq!(
            reader.said(APPLICATION_KEY).as_deref(),
            Some("app-1"),
            "{table}"
        );
    }
}
