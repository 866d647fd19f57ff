//! `smtt-ctl pages`.

use smtt_model::decode::{BlockFact, Fact, TaskStarted};
use smtt_model::state::{Resolved, Seen, SizesBy};

use super::{Daemon, KEY, ctl, job};

/// Sets a result of the resolver: all blocks and Spark pages are in memory, two thirds on large pages.
pub fn looked_at(daemon: &Daemon) {
    let mut state = daemon.shared.state();
    let owners = state.targets(KEY).owners;
    let seen = |_| {
        let mut seen = Seen {
            pages: 3,
            examined_pages: 3,
            examined_bytes: 12_288,
            present_bytes: 12_288,
            ..Seen::default()
        };
        seen.add_page_size(4096, 4096);
        seen.add_page_size(2 << 20, 8192);
        seen.add_node(0, 12_288);
        seen
    };
    let owners = owners.into_iter().map(|mark| (mark, seen(mark))).collect();
    state.resolved(
        KEY,
        Resolved {
            time_ns: 15_000_000,
            page_bytes: 4096,
            sizes_by: SizesBy::PageTables,
            owners,
        },
    );
}

#[test]
fn pages_say_where_bytes_are_once_they_were_looked_at() {
    let daemon = Daemon::with_job();
    let before = daemon.ctl(&["pages", "--rdd", "7"]);
    assert_eq!(before.status.code(), Some(0), "{before:?}");
    assert!(String::from_utf8_lossy(&before.stderr).contains("no page of it was examined"));
    // No row has a value yet.
    for by in [&[][..], &["--by", "name"]] {
        let sorted = [&["pages", "--sort", "present", "--json"], by].concat();
        assert_eq!(daemon.json(&sorted).as_array().map(Vec::len), Some(1));
    }
    looked_at(&daemon);
    let rows = daemon.json(&["pages", "--rdd", "7", "--json"]);
    assert_eq!(rows[0]["present_bytes"].as_u64(), Some((1 << 20) + 4096));
    assert_eq!(rows[0]["nodes"][0]["node"], 0);
    assert_eq!(rows[0]["age_ns"], 5_000_000);
    let text = String::from_utf8(ctl(&daemon.socket, &["pages"], "80").stdout).expect("text");
    assert!(text.contains("4 KiB 33 %, 2 MiB 67 %"), "{text}");
    for (by, field) in [("--blocks", "block_id"), ("--tasks", "task_attempt_id")] {
        let rows = daemon.json(&["pages", by, "--json"]);
        assert_eq!(rows.as_array().map(Vec::len), Some(1), "{by}: {rows}");
        assert!(!rows[0][field].is_null(), "{by}: {rows}");
    }
    let groups = daemon.json(&["pages", "--by", "name", "--json"]);
    let [group] = groups.as_array().map_or(&[][..], Vec::as_slice) else {
        panic!("{groups}");
    };
    for field in ["held_bytes", "present_bytes", "page_sizes", "nodes"] {
        let of_rdds = daemon.json(&["pages", "--json"]);
        assert_eq!(group[field], of_rdds[0][field], "{field}");
    }
    assert_eq!(
        (&group["rdds"], &group["executors"]),
        (&1.into(), &1.into())
    );
    let spanning = daemon.nothing(&["pages", "--by", "name", "--spanning", "--json"]);
    assert_eq!(spanning.as_array().map(Vec::len), Some(0));
    let sorted = ["blocks", "--by", "rdd", "--sort", "size:asc", "--csv"];
    let csv = String::from_utf8(daemon.ctl(&sorted).stdout).expect("text");
    assert!(
        csv.contains("group,sql_executions,rdds,executors,blocks,size_bytes"),
        "{csv}"
    );
    let rows = daemon.nothing(&["pages", "--by", "query", "--json", "--rdd", "8"]);
    assert_eq!(rows.as_array().map(Vec::len), Some(0));
    let rows = daemon.nothing(&["pages", "--executors", "--json", "--app", "unknown"]);
    assert_eq!(rows.as_array().map(Vec::len), Some(0));
}

/// An RDD that a stage stores blocks of, but has no page faults in, has its name all the same.
#[test]
fn blocks_of_a_stage_have_the_names_of_their_rdds() {
    let mut facts = job();
    facts.push(Fact::TaskStarted(TaskStarted {
        task_attempt_id: 3,
        stage_id: 5,
        ..TaskStarted::default()
    }));
    facts.push(Fact::BlockStored(Box::new(BlockFact {
        block_id: "rdd_99_0".to_owned(),
        rdd_id: Some(99),
        partition: Some(0),
        size_bytes: 1000,
        serialized: true,
        task_attempt_id: Some(3),
        ..BlockFact::default()
    })));
    let daemon = Daemon::with(&facts, 1000);
    for (listing, bytes) in [("blocks", "size_bytes"), ("pages", "held_bytes")] {
        let rows = daemon.json(&[listing, "--by", "name", "--stage", "5", "--json"]);
        assert_eq!(rows.as_array().map(Vec::len), Some(1), "{rows}");
        let of = (&rows[0]["group"], rows[0][bytes].as_u64());
        assert_eq!(of, (&"by-the-way".into(), Some(1000)), "{listing}");
    }
}
