//! What the writer leaves on the disk, whatever the disk takes.

use std::fs;
use std::path::Path;

use super::*;

fn report(pid: u32) -> Report {
    let mut report = Report::default();
    report.row.id = format!("{:013}-{pid}", 5_000_000);
    report.row.died_unix_ms = 5_000_000;
    report.row.verdict = Verdict::Crashed;
    (report.row.who.pid, report.row.who.uid) = (pid, Some(1));
    // Whatever runs began before.
    report.died_ns = u64::MAX;
    report
}

fn in_advance(pids: &[u32]) -> InAdvance {
    InAdvance {
        boot_id: smtt_machine::clock::boot_id(),
        reports: pids.iter().map(|pid| report(*pid)).collect(),
        waiting: Vec::new(),
    }
}

fn open(folder: &Path) -> (Keeper, Reports) {
    let bounds = Bounds {
        bytes: 1 << 20,
        files: 100,
    };
    let reports = Reports::take(folder, None, bounds).expect("taken");
    (Keeper::new(Some(folder.to_owned())), reports)
}

/// No process has it.
const GONE: u32 = u32::MAX;

#[test]
fn a_report_that_waits_is_not_lost_with_the_list_that_its_executor_leaves() {
    let scratch = tempfile::tempdir().expect("a folder");
    let (keeper, mut reports) = open(scratch.path());
    reports
        .keep_in_advance(&in_advance(&[GONE]))
        .expect("written");
    // The folder of the user cannot be made.
    fs::write(scratch.path().join("uid=1"), "").expect("written");
    keeper.kept().left = Some(Default::default());
    keeper.add(report(GONE));
    keeper.set_in_advance(in_advance(&[]));
    assert!(!keeper.turn(&mut reports));
    assert_eq!(keeper.writing(), Some((false, 0)));
    let left = reports.in_advance().expect("read");
    assert_eq!((left.reports.len(), left.waiting), (0, vec![report(GONE)]));
    drop((keeper, reports));

    // After a crash the report is the same, once, and counted by the daemon before.
    fs::remove_file(scratch.path().join("uid=1")).expect("removed");
    let (keeper, mut reports) = open(scratch.path());
    assert!(keeper.turn(&mut reports));
    let all = keeper.list(&ListQuery::default());
    assert_eq!((all.rows.len(), all.waiting), (1, 0));
    assert_eq!(all.rows[0].verdict, Verdict::Crashed);
    assert_eq!(keeper.counts(), BTreeMap::new());
    assert!(reports.has(&report(GONE)));
    drop((keeper, reports));
    let (keeper, mut reports) = open(scratch.path());
    load(&keeper, &reports, scratch.path());
    assert!(keeper.turn(&mut reports));
    assert_eq!(keeper.list(&ListQuery::default()).rows.len(), 1);
    assert_eq!(keeper.left(), Some((Vec::new(), true)), "to be emptied");
}

#[test]
fn a_report_that_is_written_does_not_hide_that_those_in_advance_are_not() {
    let scratch = tempfile::tempdir().expect("a folder");
    let (keeper, mut reports) = open(scratch.path());
    let part = scratch.path().join(".living.json.part");
    fs::create_dir(&part).expect("made");
    keeper.set_in_advance(in_advance(&[GONE]));
    for number in 1..4 {
        keeper.add(report(number));
        assert!(keeper.turn(&mut reports), "is written");
        assert_eq!(keeper.writing(), Some((false, 0)));
    }
    let failing = keeper.list(&ListQuery::default()).failing;
    assert!(
        failing.contains("living executors cannot be written"),
        "{failing}"
    );
    fs::remove_dir(&part).expect("removed");
    keeper.set_in_advance(in_advance(&[GONE]));
    assert!(keeper.turn(&mut reports));
    assert_eq!(keeper.writing(), Some((true, 0)));
}

#[test]
fn a_report_that_made_room_for_one_that_cannot_be_written_is_not_listed() {
    let scratch = tempfile::tempdir().expect("a folder");
    let bounds = Bounds {
        bytes: 1 << 20,
        files: 1,
    };
    let mut reports = Reports::take(scratch.path(), None, bounds).expect("taken");
    let keeper = Keeper::new(Some(scratch.path().to_owned()));
    keeper.add(report(1));
    assert!(keeper.turn(&mut reports));
    let mut other = report(2);
    other.row.who.uid = Some(2);
    // The folder of its user cannot be made.
    fs::write(scratch.path().join("uid=2"), "").expect("written");
    keeper.add(other);
    assert!(!keeper.turn(&mut reports));
    assert!(!reports.has(&report(1)), "it made room");
    let rows = keeper.list(&ListQuery::default()).rows;
    let pids: Vec<u32> = rows.iter().map(|row| row.who.pid).collect();
    assert_eq!(pids, [2]);
}

#[test]
fn what_cannot_be_read_for_a_while_is_read_later() {
    let scratch = tempfile::tempdir().expect("a folder");
    let (keeper, mut reports) = open(scratch.path());
    let own = std::process::id();
    reports
        .keep_in_advance(&in_advance(&[own, GONE]))
        .expect("written");
    let (file, aside) = (
        scratch.path().join("living.json"),
        scratch.path().join("aside"),
    );
    fs::rename(&file, &aside).expect("renamed");
    // A folder opens, and cannot be read.
    fs::create_dir(&file).expect("made");
    assert!(keeper.turn(&mut reports));
    assert_eq!(keeper.left(), None, "no list is made before");
    assert_eq!(keeper.writing(), Some((false, 0)));
    fs::remove_dir(&file).expect("removed");
    fs::rename(&aside, &file).expect("renamed");
    assert!(keeper.turn(&mut reports));
    assert_eq!(keeper.left(), Some((vec![report(own)], true)));
    assert_eq!(keeper.left(), Some((Vec::new(), false)), "once");
    assert_eq!(keeper.writing(), Some((true, 0)));
    let rows = keeper.list(&ListQuery::default()).rows;
    let rows: Vec<(u32, Verdict)> = rows.iter().map(|row| (row.who.pid, row.verdict)).collect();
    assert_eq!(rows, [(GONE, Verdict::Lost)]);
}
