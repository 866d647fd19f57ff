//! Queries for rows that do not exist.

use super::Daemon;

#[test]
fn what_is_not_there_is_named() {
    let daemon = Daemon::with_job();
    let said = |arguments: &[&str]| {
        let output = daemon.ctl(arguments);
        String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr)
    };
    for (arguments, expected) in [
        (
            &["rdds", "--app", "unknown"][..],
            "no RDDs match --app unknown; there are app-20260101120000-0001 (PageRank)",
        ),
        (
            &["pages", "--rdd", "nothing"],
            "no RDDs that hold memory match --rdd nothing; there are 7 (ranks of a job whose…s that go on and on)",
        ),
        (
            &["pages", "--block", "rdd_9_9"],
            "no blocks match --block rdd_9_9; there are rdd_7_0",
        ),
        (
            &["report", "--app", "unknown"],
            "no applications match --app unknown; there are app-20260101120000-0001 (PageRank)",
        ),
        (
            &["report", "--html", "--app", "unknown"],
            "no applications match --app unknown; there are app-20260101120000-0001 (PageRank)",
        ),
        (
            &["advise", "--app", "unknown"],
            "no applications match --app unknown; there are app-20260101120000-0001 (PageRank)",
        ),
        (
            &["trace", "--kind", "putt"],
            "there are put, get, drop, move, allocate, free, alive",
        ),
        (
            &["trace", "--rdd", "links"],
            "\"links\" is no id of an RDD, and records have no names: smtt-ctl rdds lists both",
        ),
        (
            &["trace", "--folder", "/nonexistent/trace"],
            "there is no folder /nonexistent/trace",
        ),
    ] {
        let said = said(arguments);
        assert!(said.contains(expected), "{arguments:?} says {said}");
        let lines = said.lines().filter(|line| line.contains("smtt-ctl: "));
        assert!(lines.count() <= 1, "{arguments:?} says {said}");
    }
    let both = daemon.ctl(&["trace", "--csv", "--json"]);
    assert_eq!(both.status.code(), Some(2), "{both:?}");
}
