//! `smtt-ctl advise` and `smtt-ctl report --html`.

use serde_json::Value;
use smtt_model::decode::{
    BlockFact, Event, ExecutorDescribed, Fact, Outcome, RddDescribed, TaskEnded, TaskStarted,
};

use super::Daemon;

/// Another application, whose name contains markup.
fn another(daemon: &Daemon) {
    daemon.shared.state().apply(Event {
        time_ns: 30_000_000,
        executor: 4712,
        pid: 4712,
        tid: 4712,
        uid: 1000,
        fact: Fact::ExecutorDescribed(Box::new(ExecutorDescribed {
            application_id: "../app <2>".to_owned(),
            application_name: "<script>alert(1)</script>".to_owned(),
            executor_id: "0".to_owned(),
            ..ExecutorDescribed::default()
        })),
    });
}

#[test]
fn advice_says_what_was_checked_and_what_could_not_be() {
    let daemon = Daemon::with_job();
    let output = daemon.ctl(&["advise"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(
        text.starts_with("Application app-20260101120000-0001 (PageRank)"),
        "{text}"
    );
    for part in [
        "Nothing was found.",
        "Could not be checked\n  ",
        "small_pages:",
        "never_read:",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let json = daemon.json(&["advise", "--json", "--app", "PageRank"]);
    assert_eq!(json["applications"].as_array().map(Vec::len), Some(1));
    assert!(
        json["applications"][0]["checks"][0]["why"].is_string(),
        "{json}"
    );
    let unknown = daemon.nothing(&["advise", "--json", "--app", "unknown"]);
    assert_eq!(unknown["applications"].as_array().map(Vec::len), Some(0));
}

/// So many RDDs of one call site, cached, and read by none of the tasks that follow.
fn unread(daemon: &Daemon, rdds: std::ops::Range<u32>) {
    for (at, rdd_id) in rdds.enumerate() {
        let time_ns = 20_000_000 + at as u64;
        let described = Fact::RddDescribed(Box::new(RddDescribed {
            rdd_id,
            call_site: "cache at Users.scala:7".to_owned(),
            ..RddDescribed::default()
        }));
        let stored = Fact::BlockStored(Box::new(BlockFact {
            block_id: format!("rdd_{rdd_id}_0"),
            rdd_id: Some(rdd_id),
            partition: Some(0),
            size_bytes: 2 << 20,
            ..BlockFact::default()
        }));
        daemon.apply(time_ns, 1000, described);
        daemon.apply(time_ns, 1000, stored);
    }
    (100..120).for_each(|task| later_task(daemon, task));
}

/// A task of the job begins and ends, seconds after its blocks were stored.
pub(super) fn later_task(daemon: &Daemon, task_attempt_id: u64) {
    let started = TaskStarted {
        task_attempt_id,
        stage_id: 3,
        ..TaskStarted::default()
    };
    daemon.apply(6_000_000_000, 1000, Fact::TaskStarted(started));
    let ended = TaskEnded {
        task_attempt_id,
        stage_id: 3,
        stage_attempt: 0,
        outcome: Outcome::Succeeded,
        execution_memory_peak_bytes: 0,
        reason: String::new(),
    };
    daemon.apply(7_000_000_000, 1000, Fact::TaskEnded(ended));
}

#[test]
fn findings_about_rdds_of_one_call_site_are_one() {
    let daemon = Daemon::with_job();
    unread(&daemon, 200..220);
    let findings = |arguments: &[&str]| {
        let json = daemon.json(&[&["advise", "--json"], arguments].concat());
        let all = json["applications"][0]["findings"].clone();
        let of_rule = |it: &&Value| it["id"] == "never_read";
        let all = all.as_array().expect("findings").iter();
        all.filter(of_rule).cloned().collect::<Vec<_>>()
    };
    assert_eq!(findings(&[]).len(), 5);
    let grouped = findings(&["--by", "callsite"]);
    // The job's own RDD has no call site.
    let [one, _] = &grouped[..] else {
        panic!("{grouped:?}");
    };
    assert_eq!(one["subject"]["rdds"], 20);
    assert_eq!(one["subject"]["group"], "cache at Users.scala:7");
    let said = daemon.ctl(&["advise", "--by", "callsite"]).stdout;
    let said = String::from_utf8(said).expect("text");
    let words: Vec<&str> = said.split_whitespace().collect();
    let words = words.join(" ");
    let wanted = "the same of 19 more RDDs made at cache at Users.scala:7";
    assert_eq!(words.matches(wanted).count(), 1, "{said}");
}

#[test]
fn a_page_is_written_for_one_application_and_a_folder_takes_all() {
    let daemon = Daemon::with_job();
    let output = daemon.ctl(&["report", "--html"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let page = String::from_utf8(output.stdout).expect("text");
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    assert!(page.contains("ranks of a job whose author"), "{page}");
    let by_rdd = daemon.ctl(&["report", "--html", "--by", "rdd"]);
    let by_rdd = String::from_utf8(by_rdd.stdout).expect("text");
    assert!(by_rdd.contains("7: ranks of a job"), "{by_rdd}");
    assert!(by_rdd.contains("MEMORY_ONLY_SER") && !by_rdd.contains("1x Replicated"));
    another(&daemon);
    let output = daemon.ctl(&["report", "--html"]);
    assert_eq!(output.status.code(), Some(2), "which one? {output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("give --app"),
        "{output:?}"
    );
    let unknown = daemon.ctl(&["report", "--html", "--app", "unknown"]);
    assert_eq!(unknown.status.code(), Some(1), "{unknown:?}");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().display().to_string();
    let output = daemon.ctl(&["report", "--html", "--output", &path]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let mut names: Vec<String> = std::fs::read_dir(folder.path())
        .expect("a folder")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    assert_eq!(names, ["___app__2_.html", "app-20260101120000-0001.html"]);
    let page = std::fs::read_to_string(folder.path().join(&names[0])).expect("a page");
    assert_eq!(page.matches("<script").count(), 1, "{page}");
    let file = folder.path().join("one.html").display().to_string();
    let output = daemon.ctl(&["report", "--html", "--app", "PageRank", "-o", &file]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let missing = format!("{path}/nowhere/one.html");
    let output = daemon.ctl(&["report", "--html", "--app", "PageRank", "-o", &missing]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("cannot write"),
        "{output:?}"
    );
}
