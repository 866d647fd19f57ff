//! Reports of deaths. They have a checksum: a changed one is an error. One that is cut is an error, or whole where only the
//! checksum is missing.

use smtt_model::postmortem::{InAdvance, Report, Row};
use smtt_model::state::MemorySample;
use smtt_store::reports::{Bounds, Reports, read};

use super::{Came, damage};

const BOUNDS: Bounds = Bounds {
    bytes: 1 << 20,
    files: 10,
};

fn report() -> Report {
    let mut row = Row {
        id: "1700000000000-7".to_owned(),
        died_unix_ms: 1_700_000_000_000,
        ..Row::default()
    };
    row.who.uid = Some(1000);
    Report {
        row,
        host: Some("worker-1".to_owned()),
        heap_max_bytes: Some(1 << 30),
        evidence: vec!["a sentence of \u{201e}evidence\u{201c}".to_owned()],
        samples: vec![MemorySample {
            resident_bytes: Some(1 << 29),
            ..MemorySample::default()
        }],
        ..Report::default()
    }
}

#[test]
fn every_damaged_byte_of_a_report_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut reports = Reports::take(folder.path(), None, BOUNDS).expect("the folder");
    reports.add(&report(), &|uid| uid).expect("written");
    let path = folder.path().join("uid=1000/report-1700000000000-7.json");
    let [changed, cut] = damage(
        &path,
        |_| (0..8).collect(),
        |_| read(folder.path(), 1000, "1700000000000-7").ok(),
    );
    println!("error, intact, other: {changed:?} changed, {cut:?} cut");
    assert_eq!(changed[Came::Intact as usize], 0, "a change is seen");
    assert_eq!(changed[Came::Other as usize], 0, "no change is believed");
    // Without the line of the checksum, and with its first byte.
    assert_eq!(cut[Came::Intact as usize], 2);
    assert_eq!(cut[Came::Other as usize], 0);
    // What is damaged is counted and removed as any other.
    std::fs::write(&path, "{").expect("written");
    drop(reports);
    let reports = Reports::take(folder.path(), None, BOUNDS).expect("the folder");
    assert_eq!(reports.usage().1, 1);
    assert!(read(folder.path(), 1000, "1700000000000-7").is_err());
}

#[test]
fn every_damaged_byte_of_the_reports_in_advance_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let reports = Reports::take(folder.path(), None, BOUNDS).expect("the folder");
    let all = InAdvance {
        boot_id: "4a1c".to_owned(),
        reports: vec![report()],
        waiting: vec![report()],
    };
    reports.keep_in_advance(&all).expect("written");
    assert_eq!(reports.in_advance().expect("read"), all);
    let [changed, cut] = damage(
        &folder.path().join("living.json"),
        |_| (0..8).collect(),
        |_| reports.in_advance().ok(),
    );
    println!("error, intact, other: {changed:?} changed, {cut:?} cut");
    assert_eq!(changed[Came::Intact as usize], 0, "a change is seen");
    assert_eq!(changed[Came::Other as usize], 0, "no change is believed");
    assert_eq!(
        cut[Came::Intact as usize],
        2,
        "the text without its checksum"
    );
    assert_eq!(cut[Came::Other as usize], 0);
}
