//! What people expect of a command line: limits, chosen columns, patterns, forms for programs, repetition, completion.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::Value;
use smtt_daemon::recorder::counts::Ledger;
use smtt_model::decode::{Fact, Outcome, StageDescribed, TaskEnded, TaskStarted};

use super::{Daemon, ctl, golden};

fn text(daemon: &Daemon, arguments: &[&str]) -> String {
    let output = daemon.ctl(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Rows of a table about the RDDs `users by day N`.
fn users(text: &str) -> usize {
    text.lines().filter(|line| line.contains("users")).count()
}

#[test]
fn a_table_has_a_limit_and_counts_what_it_hides() {
    let daemon = golden::daemon();
    let said = text(&daemon, &["rdds"]);
    assert_eq!(users(&said), 49, "and the RDD with page faults:\n{said}");
    assert!(
        said.contains("\nhidden: 11 of 61 rows (--limit all shows them)\n"),
        "{said}"
    );
    assert!(
        said.ends_with("\nnot listed: 1 idle RDDs (--all lists them)\n"),
        "{said}"
    );
    let said = text(&daemon, &["rdds", "--limit", "all"]);
    assert_eq!(users(&said), 60);
    assert!(!said.contains(" rows ("), "{said}");
    let said = text(&daemon, &["blocks", "--limit", "2"]);
    assert!(said.contains("hidden: 59 of 61 rows"), "{said}");
    // Programs get everything, unless they ask for less.
    for form in ["--csv", "--plain"] {
        assert_eq!(users(&text(&daemon, &["rdds", form])), 60, "{form}");
    }
    let rows = daemon.json(&["rdds", "--json"]);
    assert_eq!(rows.as_array().map(Vec::len), Some(62));
    let rows = daemon.json(&["rdds", "--json", "--limit", "2"]);
    assert_eq!(rows.as_array().map(Vec::len), Some(2));
}

#[test]
fn columns_are_chosen_or_counted() {
    let daemon = golden::daemon();
    let narrow = ctl(&daemon.socket, &["tasks"], "60");
    let narrow = String::from_utf8(narrow.stdout).expect("text");
    let hidden = |text: &str| -> Option<usize> {
        let (_, rest) = text.split_once("hidden: ")?;
        rest.split_once(" column")?.0.parse().ok()
    };
    let shown = |text: &str| {
        let heading = text.lines().find(|line| line.starts_with("EXEC"));
        heading.map_or(0, |line| {
            line.split("  ").filter(|cell| !cell.is_empty()).count()
        })
    };
    let wide = ctl(&daemon.socket, &["tasks"], "1000");
    let wide = String::from_utf8(wide.stdout).expect("text");
    assert_eq!(hidden(&wide), None, "{wide}");
    assert_eq!(
        hidden(&narrow).map(|hidden| hidden + shown(&narrow)),
        Some(shown(&wide))
    );
    let all = ctl(&daemon.socket, &["tasks", "--columns", "all"], "60");
    let all = String::from_utf8(all.stdout).expect("text");
    assert_eq!((hidden(&all), all.contains("PEAK")), (None, true), "{all}");
    let said = text(
        &daemon,
        &[
            "rdds",
            "--rdd",
            "7",
            "--columns",
            "level,rdd,storage_memory_peak_bytes",
        ],
    );
    assert!(
        said.starts_with("LEVEL            RDD  STORAGE MEMORY PEAK BYTES\nMEMORY_ONLY_SER  7                      1.0 MiB\n"),
        "{said}"
    );
    let rows = daemon.json(&["rdds", "--rdd", "7", "--columns", "rdd,level", "--json"]);
    assert_eq!(
        rows,
        serde_json::json!([{"rdd_id": 7, "storage_level_name": "MEMORY_ONLY_SER"}])
    );
    let wrong = daemon.ctl(&["rdds", "--columns", "size"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}

#[test]
fn names_are_patterns() {
    let daemon = golden::daemon();
    let count = |arguments: &[&str]| {
        let rows = daemon.json(&[arguments, &["--json"]].concat());
        rows.as_array().map(Vec::len)
    };
    assert_eq!(count(&["rdds", "--rdd", "users*"]), Some(60));
    assert_eq!(count(&["rdds", "--rdd", "users by day 15?"]), Some(10));
    assert_eq!(count(&["blocks", "--rdd", "*day 107"]), Some(1));
    assert_eq!(count(&["pages", "--block", "rdd_10?_0"]), Some(10));
    assert_eq!(
        count(&["executors", "--app", "Page*", "--executor", "?"]),
        Some(1)
    );
    assert_eq!(
        daemon.nothing(&["rdds", "--rdd", "USERS*", "--json"]),
        serde_json::json!([])
    );
}

#[test]
fn comma_separated_values_are_those_of_the_json() {
    let daemon = golden::daemon();
    let asked = [
        "rdds",
        "--columns",
        "rdd_id,name,storage_memory_bytes,page_faults",
    ];
    let csv = text(&daemon, &[&asked[..], &["--csv"]].concat());
    let json = daemon.json(&[&asked[..], &["--json"]].concat());
    let mut lines = csv.lines();
    assert_eq!(
        lines.next(),
        Some("rdd_id,name,storage_memory_bytes,page_faults")
    );
    for row in json.as_array().expect("rows") {
        let cell = |name: &str| match &row[name] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let cells = ["rdd_id", "name", "storage_memory_bytes", "page_faults"].map(cell);
        assert_eq!(lines.next(), Some(&*cells.join(",")));
    }
    assert_eq!(lines.next(), None);
    for command in [
        "status",
        "doctor",
        "executors",
        "jobs",
        "queries",
        "stages",
        "tasks",
        "blocks",
        "memory",
        "pages",
        "report",
        "advise",
        "postmortem",
    ] {
        let output = daemon.ctl(&[command, "--csv"]);
        let said = String::from_utf8_lossy(&output.stdout);
        let heading = said.lines().next().unwrap_or_default();
        assert!(
            heading.contains(',') && !heading.contains(' '),
            "{command}: {output:?}"
        );
        let output = daemon.ctl(&[command, "--plain"]);
        assert!(!output.stdout.is_empty(), "{command}: {output:?}");
    }
    let plain = text(&daemon, &["blocks", "--plain"]);
    let cells: Vec<usize> = plain.lines().map(|line| line.split('\t').count()).collect();
    assert_eq!(cells, vec![13; 62], "{plain}");
}

#[test]
fn an_answer_is_repeated_until_its_reader_ends() {
    let daemon = Daemon::with_job();
    let mut child = Command::new(env!("CARGO_BIN_EXE_smtt-ctl"))
        .env("SMTT_SOCKET", &daemon.socket)
        .args(["executors", "--watch", "0.1"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("smtt-ctl runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let titles = lines
        .by_ref()
        .map_while(Result::ok)
        .filter(|line| line.ends_with(", every 0.1 s"));
    assert_eq!(titles.take(3).count(), 3);
    drop(lines);
    assert_eq!(child.wait().expect("ended").code(), Some(0));
}

#[test]
fn trace_reads_the_folder_of_the_daemon() {
    let daemon = Daemon::with_job();
    let folder = tempfile::tempdir().expect("a folder");
    let ledger = Ledger::new(&folder.path().display().to_string());
    daemon.shared.set_trace(Arc::new(ledger));
    let output = daemon.ctl(&["trace"]);
    let said = String::from_utf8_lossy(&output.stderr);
    let expected = format!("no finished trace segments in {}", folder.path().display());
    assert!(said.contains(&expected), "{output:?}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_shell_completes_commands_and_options() {
    let output = Command::new(env!("CARGO_BIN_EXE_smtt-ctl"))
        .args(["completions", "bash"])
        .output()
        .expect("smtt-ctl runs");
    assert!(output.status.success(), "{output:?}");
    let script = String::from_utf8(output.stdout).expect("text");
    let completed = |words: &str, at: usize| {
        let ask = format!(
            "{script}\nCOMP_WORDS=({words}); COMP_CWORD={at}; set -- $(complete -p smtt-ctl); while [ \"$1\" != -F ]; do shift; done; \"$2\" smtt-ctl \"${{COMP_WORDS[$COMP_CWORD]}}\" x\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let output = Command::new("bash")
            .args(["-c", &ask])
            .output()
            .expect("bash runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(completed("smtt-ctl quer", 1), "queries\n");
    assert_eq!(completed("smtt-ctl rdds --col", 2), "--columns\n");
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let output = Command::new(env!("CARGO_BIN_EXE_smtt-ctl"))
            .args(["completions", shell])
            .output()
            .expect("smtt-ctl runs");
        assert!(
            output.status.success() && !output.stdout.is_empty(),
            "{shell}"
        );
    }
}

#[test]
fn rdds_are_added_up_by_what_they_have_in_common() {
    let daemon = golden::daemon();
    let parts = daemon.json(&["rdds", "--json"]);
    let sum = |rows: &Value, field: &str| -> u64 {
        let rows = rows.as_array().expect("rows").iter();
        rows.filter_map(|row| row[field].as_u64()).sum()
    };
    for (by, rows) in [
        ("query", 1),
        ("node", 2),
        ("callsite", 2),
        ("name", 62),
        ("rdd", 62),
    ] {
        let groups = daemon.json(&["rdds", "--by", by, "--json"]);
        assert_eq!(
            groups.as_array().map(Vec::len),
            Some(rows),
            "{by}: {groups}"
        );
        for field in [
            "page_faults",
            "page_faults_read",
            "storage_memory_bytes",
            "execution_memory_bytes",
            "blocks_stored",
        ] {
            assert!(sum(&parts, field) > 0, "{field}");
            assert_eq!(sum(&groups, field), sum(&parts, field), "{by}: {field}");
        }
    }
    let said = text(&daemon, &["rdds", "--by", "callsite", "--rdd", "users*"]);
    assert!(said.contains("cache at Users.scala:7"), "{said}");
    assert!(said.contains("CALL SITE"), "{said}");
    let said = text(&daemon, &["rdds", "--by", "node", "--rdd", "users*"]);
    assert!(said.contains("WholeStageCodegen (1)"), "{said}");
    let said = text(&daemon, &["report", "--by", "node"]);
    assert!(said.contains("\nRDDs by plan node\n"), "{said}");
    let said = text(&daemon, &["report", "--by", "name"]);
    assert!(
        said.contains("\nRDDs by name\n") && said.contains("hidden: 51 of 61 rows"),
        "{said}"
    );
    let wrong = daemon.ctl(&["report", "--by", "name", "--json"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}

/// A daemon with a task that ended 90 s ago, for job 1, and one that runs since 5 s, for job 2.
fn of_two_times() -> Daemon {
    const S: u64 = 1_000_000_000;
    let daemon = Daemon::start();
    let now = smtt_machine::clock::now_boot_ns();
    let stage = |stage_id: u32| {
        Fact::StageDescribed(StageDescribed {
            stage_id,
            tasks: 1,
            name: format!("map {stage_id}"),
            job_id: Some(stage_id - 2),
            ..StageDescribed::default()
        })
    };
    let started = |task_attempt_id: u64, stage_id: u32| {
        Fact::TaskStarted(TaskStarted {
            task_attempt_id,
            stage_id,
            ..TaskStarted::default()
        })
    };
    let ended = Fact::TaskEnded(TaskEnded {
        task_attempt_id: 1,
        stage_id: 3,
        stage_attempt: 0,
        outcome: Outcome::Succeeded,
        execution_memory_peak_bytes: 0,
        reason: String::new(),
    });
    let facts = [
        (100, super::job().swap_remove(0)),
        (100, stage(3)),
        (100, started(1, 3)),
        (90, ended),
        (5, stage(4)),
        (5, started(2, 4)),
    ];
    for (age, fact) in facts {
        daemon.apply(now - age * S, 1000, fact);
    }
    daemon
}

#[test]
fn work_of_the_last_time_is_listed_alone() {
    let daemon = of_two_times();
    for (listing, id, old, new) in [
        ("tasks", "task_attempt_id", 1, 2),
        ("stages", "stage_id", 3, 4),
        ("jobs", "job_id", 1, 2),
    ] {
        let ids = |since: &str| -> Vec<u64> {
            let rows = daemon.json(&[listing, "--json", "--sort", id, "--since", since]);
            let rows = rows.as_array().cloned().unwrap_or_default();
            let mut ids: Vec<u64> = rows.iter().filter_map(|row| row[id].as_u64()).collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!(ids("10m"), [old, new], "{listing}");
        assert_eq!(ids("30s"), [new], "{listing}");
        // A limit counts the rows of the time.
        let one = daemon.json(&[listing, "--json", "--limit", "1", "--since", "30s"]);
        assert_eq!(one[0][id], new, "{listing}");
    }
    let failed = daemon.ctl(&["stages", "--peaks", "--since", "30s"]);
    assert_eq!(failed.status.code(), Some(2), "{failed:?}");
}

#[test]
fn deaths_of_the_last_time_are_listed_alone() {
    let daemon = Daemon::with_job();
    let keeper = smtt_daemon::postmortem::keeper::Keeper::new(None);
    let now_ms = smtt_machine::clock::now_unix_ns() / 1_000_000;
    for (executor, age_ms) in [("7", 7_200_000), ("8", 60_000)] {
        let mut report = super::golden::death(executor, 1);
        report.row.id = format!("id-{executor}");
        report.row.died_unix_ms = now_ms - age_ms;
        keeper.add(report);
    }
    daemon.shared.set_keeper(std::sync::Arc::new(keeper));
    let rows = |since: &str| {
        let answer = daemon.json(&["postmortem", "--json", "--since", since]);
        answer["rows"].as_array().map(Vec::len)
    };
    assert_eq!((rows("1h"), rows("1d")), (Some(1), Some(2)));
    let none = daemon.ctl(&["postmortem", "--since", "1s"]);
    assert_eq!(none.status.code(), Some(1), "{none:?}");
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(said.contains("2 have before"), "{said}");
}
