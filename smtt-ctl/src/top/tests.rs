//! What the display shows and what keys do, on a terminal in memory.

use std::collections::HashMap;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Map, Value};
use smtt_model::protocol::SelfFigures;
use smtt_model::rows::Summary;
use smtt_model::state::{FaultFigures, Measured};

use super::*;

#[test]
fn a_key_quits_while_an_answer_is_awaited() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let mut keys = [Action::Nothing, Action::Quit].into_iter();
    let silent = beside_keys(std::future::pending::<()>(), || {
        Ok(keys.next().unwrap_or(Action::Nothing))
    });
    let heard = runtime.block_on(silent).expect("heard");
    assert_eq!(heard, Heard::Key(Action::Quit));
    let answered = beside_keys(std::future::ready(7), || Ok(Action::Quit));
    let heard = runtime.block_on(answered).expect("heard");
    assert_eq!(heard, Heard::Answer(7));
}

fn status() -> Status {
    Status {
        version: "0.1.0".to_owned(),
        ready: true,
        daemon: SelfFigures {
            cpu_seconds: Some(1.5),
            rss_bytes: Some(20 << 20),
            bpf_memory_bytes: None,
            uptime_seconds: 100.0,
        },
        ..Status::default()
    }
}

fn row(id: u32, name: &str, faults: u64, storage: u64) -> Map<String, Value> {
    let row = smtt_model::rows::RddRow {
        rdd_id: Some(id),
        name: Some(name.to_owned()),
        storage_memory_bytes: storage,
        faults: FaultFigures {
            page_faults: Some(faults),
            page_faults_read: Some(faults),
            page_faults_write: Some(0),
            ..FaultFigures::default()
        },
        ..smtt_model::rows::RddRow::default()
    };
    match serde_json::to_value(row) {
        Ok(Value::Object(row)) => row,
        _ => panic!("not an object"),
    }
}

fn answer(faults: u64) -> Answer {
    let summary = Summary {
        executors: 2,
        page_faults: Some(faults + 1000),
        unattributed_share: Some(0.25),
        measured: Measured {
            page_faults: true,
            access: true,
            major: true,
        },
        ..Summary::default()
    };
    Answer {
        status: Some(status()),
        workers: None,
        rows: Rows {
            rows: vec![
                row(3, "lines", 1000, 2 << 20),
                row(
                    7,
                    "ranks of a very long call site that goes on",
                    faults,
                    1 << 20,
                ),
            ],
            rows_total: 2,
            summary,
        },
        work: Vec::new(),
    }
}

fn drawn(screen: &Screen, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| screen.draw(frame)).expect("drawn");
    let buffer = terminal.backend().buffer();
    (0..height)
        .map(|row| {
            (0..width)
                .map(|column| buffer[(column, row)].symbol())
                .collect::<String>()
                .trim_end()
                .to_owned()
        })
        .collect()
}

fn screen() -> Screen {
    let mut screen = Screen::new(Filters::default(), None, false);
    let start = Instant::now();
    screen.apply(answer(500), start);
    screen.apply(answer(2500), start + Duration::from_secs(2));
    screen
}

#[test]
fn eighty_by_twenty_four_shows_what_matters() {
    let lines = drawn(&screen(), 80, 24);
    assert_eq!(lines[0], "smtt-daemon 0.1.0: all is well");
    assert_eq!(
        lines[2],
        "executors: 2  page faults: 3,500, 1,000/s, unattributed 25.0 %  records lost: 0"
    );
    for heading in [
        "EXEC", "RDD", "NAME", "FAULTS", "/S", "READ", "WRITE", "STORAGE",
    ] {
        assert!(lines[4].contains(heading), "{heading}: {:?}", lines[4]);
    }
    // Rows with current work come first.
    assert!(
        lines[5].contains("2,500") && lines[5].contains("1,000"),
        "{:?}",
        lines[5]
    );
    assert!(lines[6].contains("lines"), "{:?}", lines[6]);
    assert!(
        lines[23].starts_with("q quit  ? help  1* RDDs"),
        "{:?}",
        lines[23]
    );
}

#[test]
fn a_tiny_terminal_does_no_harm() {
    for (width, height) in [(1, 1), (10, 3), (20, 6), (300, 80)] {
        drawn(&screen(), width, height);
        drawn(&Screen::default(), width, height);
        let mut helped = screen();
        press(&mut helped, "?");
        drawn(&helped, width, height);
    }
}

fn press(screen: &mut Screen, keys: &str) -> Action {
    let mut last = Action::Nothing;
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            '\u{8}' => KeyCode::Backspace,
            key => KeyCode::Char(key),
        };
        last = screen.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
    last
}

/// Names of the rows on the screen.
fn names(screen: &Screen) -> Vec<String> {
    let lines = drawn(screen, 120, 24);
    let at = lines[4].find("NAME").expect("a heading");
    let rows = lines[5..23].iter().filter(|line| !line.is_empty());
    rows.filter_map(|line| Some(line.get(at..)?.split(' ').next()?.to_owned()))
        .collect()
}

#[test]
fn the_total_has_a_rate_only_beside_the_same_rows() {
    let rate = |screen: &Screen| {
        let lines = drawn(screen, 120, 24).join("\n");
        lines.contains("1,000/s, unattributed")
    };
    assert!(rate(&screen()));
    // The rows of another place have another total.
    let mut other = screen();
    assert_eq!(press(&mut other, "3"), Action::Ask);
    let now = Instant::now();
    other.apply(answer(1_000_000), now);
    let line = drawn(&other, 120, 24).join("\n");
    assert!(!line.contains("/s, unattributed"), "{line}");
    // So have those of another number of workers.
    let mut cluster = Screen::new(Filters::default(), None, true);
    for (at, workers) in [(0, "4 of 4"), (2, "3 of 4"), (4, "3 of 4")] {
        let mut rows = answer(500 + at * 1000);
        rows.workers = Some(workers.to_owned());
        cluster.apply(rows, now + Duration::from_secs(at));
        let line = drawn(&cluster, 120, 24).join("\n");
        assert_eq!(line.contains("/s, unattributed"), at == 4, "{line}");
    }
}

#[test]
fn keys_end_it_switch_and_choose() {
    let mut screen = screen();
    assert_eq!(press(&mut screen, "q"), Action::Quit);
    assert_eq!(press(&mut screen, "\u{1b}"), Action::Quit);
    let stop = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(screen.key(stop), Action::Quit);
    assert_eq!(press(&mut screen, "c"), Action::Nothing);
    assert_eq!(press(&mut screen, "3"), Action::Ask);
    assert_eq!(screen.place().view, TASKS);
    let back = KeyEvent::new(KeyCode::BackTab, KeyModifiers::NONE);
    assert_eq!(screen.key(back), Action::Ask);
    assert_eq!(screen.place().view, STAGES);
}

#[test]
fn a_row_that_begins_to_work_is_first_among_thousands() {
    let many = |busy: u64| {
        let mut answer = answer(2500);
        let rows = (0..3000).map(|id| row(1000 + id, "old", 1_000_000, 0));
        answer.rows.rows.extend(rows);
        answer.rows.rows.push(row(9, "new", busy, 0));
        answer
    };
    let mut screen = Screen::new(Filters::default(), None, false);
    let start = Instant::now();
    screen.apply(many(1), start);
    screen.apply(many(11), start + Duration::from_secs(1));
    assert_eq!(names(&screen)[0], "new");
    assert!(drawn(&screen, 120, 24)[3].starts_with("RDDs: 3,003"));
}

#[test]
fn rows_are_sorted_by_the_column_that_is_chosen() {
    let mut screen = screen();
    assert_eq!(names(&screen), ["ranks", "lines"]);
    let sorted_by = |screen: &Screen| drawn(screen, 120, 24)[3].clone();
    // To the right, until it is the column of storage memory.
    for _ in 0..30 {
        press(&mut screen, ">");
        if sorted_by(&screen).contains("STORAGE") {
            break;
        }
    }
    assert_eq!(sorted_by(&screen), "RDDs: 2  by STORAGE, falling");
    assert_eq!(names(&screen), ["lines", "ranks"]);
    press(&mut screen, "r");
    assert_eq!(sorted_by(&screen), "RDDs: 2  by STORAGE, rising");
    assert_eq!(names(&screen), ["ranks", "lines"]);
    // Another answer keeps the order.
    press(&mut screen, "r");
    screen.apply(answer(9000), Instant::now() + Duration::from_secs(9));
    assert_eq!(names(&screen), ["lines", "ranks"]);
    press(&mut screen, "s");
    assert_eq!(names(&screen), ["ranks", "lines"]);
}

#[test]
fn the_chosen_row_stays_the_chosen_one() {
    let mut screen = screen();
    press(&mut screen, "jjj");
    press(&mut screen, "i");
    assert!(drawn(&screen, 80, 40).join("\n").contains("rdd_id"));
    let fields = drawn(&screen, 80, 60).join("\n");
    assert!(
        fields.contains("  lines") && !fields.contains("ranks"),
        "{fields}"
    );
    press(&mut screen, "\u{1b}");
    // It comes first now, and is entered all the same.
    let mut next = answer(2500);
    next.rows.rows[0] = row(3, "lines", 90_000, 2 << 20);
    screen.apply(next, Instant::now() + Duration::from_secs(9));
    assert_eq!(names(&screen), ["lines", "ranks"]);
    assert_eq!(press(&mut screen, "\n"), Action::Ask);
    assert_eq!(screen.place().filter.rdd.as_deref(), Some("3"));
}

#[test]
fn a_filter_keeps_the_rows_that_have_a_text() {
    let mut screen = screen();
    press(&mut screen, "/LINq");
    assert!(drawn(&screen, 120, 24)[3].ends_with("/LINq_"));
    assert!(drawn(&screen, 120, 24)[4].contains("no RDDs"));
    assert_eq!(press(&mut screen, "\u{8}\n"), Action::Nothing);
    assert_eq!(names(&screen), ["lines"]);
    assert_eq!(drawn(&screen, 120, 24)[3], "RDDs: 1 of 2  /LIN");
    press(&mut screen, "\u{1b}");
    assert_eq!(names(&screen).len(), 2);
}

#[test]
fn a_row_is_gone_into_and_left_again() {
    let mut screen = screen();
    press(&mut screen, "4");
    let mut executors = answer(1);
    let mut executor = Map::new();
    for (field, value) in [
        ("application_id", Value::from("app-1")),
        ("executor_id", Value::from("5")),
        ("uid", Value::from(1000)),
        ("pid", Value::from(77)),
    ] {
        executor.insert(field.to_owned(), value);
    }
    executors.rows.rows = vec![executor];
    screen.apply(executors, Instant::now());
    assert_eq!(press(&mut screen, "\n"), Action::Ask);
    let place = screen.place();
    assert_eq!(place.view, RDDS);
    let of = (
        place.filter.executor.as_deref(),
        place.filter.app.as_deref(),
    );
    assert_eq!(
        (of, place.filter.user),
        ((Some("5"), Some("app-1")), Some(1000))
    );
    screen.apply(answer(1), Instant::now());
    assert!(drawn(&screen, 120, 24)[3].starts_with("executor 5 > RDDs: 2"));
    assert_eq!(press(&mut screen, "\n"), Action::Ask);
    assert_eq!(screen.place().view, BLOCKS);
    screen.apply(answer(1), Instant::now());
    // In a block there is nothing more: its fields.
    assert_eq!(press(&mut screen, "\n"), Action::Nothing);
    assert!(
        drawn(&screen, 80, 60)
            .join("\n")
            .contains("storage_memory_bytes")
    );
    press(&mut screen, "\u{1b}");
    assert_eq!(press(&mut screen, "\u{1b}"), Action::Ask);
    assert_eq!(screen.place().view, RDDS);
    assert_eq!(press(&mut screen, "\u{1b}"), Action::Ask);
    assert_eq!(screen.place().view, EXECUTORS);
    assert_eq!(screen.place().filter.executor, None);
}

#[test]
fn help_names_every_key() {
    let mut screen = screen();
    press(&mut screen, "?");
    let lines = drawn(&screen, 120, 24);
    for key in ["Enter", "< >", "/", "Esc", "sort by", "r  "] {
        assert!(
            lines.iter().any(|line| line.contains(key)),
            "{key}: {lines:?}"
        );
    }
    press(&mut screen, "?");
    assert_eq!(names(&screen).len(), 2);
}

#[test]
fn a_cluster_says_which_workers_are_missing() {
    let mut screen = Screen::new(Filters::default(), None, true);
    let mut of_workers = answer(10);
    of_workers.status = None;
    of_workers.workers = Some("3 of 4 workers answered".to_owned());
    for (at, row) in of_workers.rows.rows.iter_mut().enumerate() {
        row.insert("worker".to_owned(), Value::from(format!("w{at}")));
    }
    screen.apply(of_workers, Instant::now());
    let lines = drawn(&screen, 120, 24);
    assert_eq!(lines[0], "cluster: 3 of 4 workers answered");
    assert!(lines[4].starts_with("HOST"), "{:?}", lines[4]);
    // An RDD of one worker: the same id of another one is another row.
    press(&mut screen, "\n");
    let mut blocks = answer(10);
    for (at, row) in blocks.rows.rows.iter_mut().enumerate() {
        row.insert("worker".to_owned(), Value::from(format!("w{at}")));
    }
    screen.apply(blocks, Instant::now());
    assert!(drawn(&screen, 120, 24)[3].contains("blocks: 1"));
}

#[test]
fn a_lost_daemon_is_said_above_the_last_figures() {
    let mut screen = screen();
    screen.fail("cannot reach smtt-daemon".to_owned());
    let lines = drawn(&screen, 80, 24);
    assert_eq!(lines[0], "smtt-daemon 0.1.0: cannot reach smtt-daemon");
    assert!(lines[5].contains("2,500"));
}

#[test]
fn rdds_are_added_up_and_a_group_is_gone_into() {
    let mut screen = screen();
    assert_eq!(press(&mut screen, "b"), Action::Ask);
    assert_eq!(screen.place().groups(), Some((Of::Rdds, By::Query)));
    let group = |name: &str, faults: u64| {
        let mut group = row(0, "", faults, 0);
        for field in ["rdd_id", "name", "pid"] {
            group.remove(field);
        }
        group.insert("group".to_owned(), name.into());
        group
    };
    let groups = |faults: u64| {
        let mut answer = answer(0);
        answer.rows.rows = vec![group("SELECT 1", 5000), group("SELECT 2", faults)];
        let rdds = [("SELECT 1", 1, 5000), ("SELECT 2", 2, faults)];
        let work = rdds.map(|(group, id, faults)| Work::of(group, &row(id, "", faults, 0)));
        answer.work = work.into_iter().flatten().collect();
        answer
    };
    let start = Instant::now();
    screen.apply(groups(100), start);
    screen.apply(groups(1100), start + Duration::from_secs(2));
    let lines = drawn(&screen, 120, 24);
    assert_eq!(lines[3], "queries with RDDs: 2");
    assert!(lines[4].contains("QUERY") && lines[4].contains("/S"));
    // It works now.
    assert!(
        lines[5].contains("SELECT 2") && lines[5].contains(" 500 "),
        "{:?}",
        lines[5]
    );
    assert_eq!(press(&mut screen, "\n"), Action::Ask);
    let place = screen.place();
    let group = place.group.as_ref().map(|(_, name)| name.as_str());
    assert_eq!(
        (place.view, place.by, group, place.groups()),
        (RDDS, Some(By::Query), Some("SELECT 2"), None)
    );
    screen.apply(answer(1), Instant::now());
    assert!(drawn(&screen, 120, 24)[3].starts_with("SELECT 2 > RDDs: 2"));
    // A group's RDDs are single ones.
    assert_eq!(press(&mut screen, "b"), Action::Nothing);
    assert_eq!(press(&mut screen, "\n"), Action::Ask);
    assert_eq!((screen.place().view, screen.place().by), (BLOCKS, None));
    press(&mut screen, "\u{1b}\u{1b}");
    assert_eq!(screen.place().groups(), Some((Of::Rdds, By::Query)));
    // Blocks are added up by the same; stages are not.
    press(&mut screen, "5");
    assert_eq!(screen.place().groups(), Some((Of::Blocks, By::Query)));
    press(&mut screen, "2");
    assert_eq!(screen.place().groups(), None);
    assert_eq!(press(&mut screen, "b"), Action::Nothing);
    press(&mut screen, "1bbbbb");
    assert_eq!(screen.place().by, None);
}

/// Rates of the groups after answers about RDDs: their groups, workers, ids and page faults, a second apart.
fn rates(answers: &[&[(&str, &str, u32, u64)]]) -> Vec<HashMap<String, u64>> {
    let mut screen = Screen::new(Filters::default(), Some(By::Query), true);
    let start = Instant::now();
    let mut all = Vec::new();
    for (at, rdds) in answers.iter().enumerate() {
        let mut answer = answer(1);
        let mut groups: HashMap<&str, u64> = HashMap::new();
        for (group, worker, id, faults) in *rdds {
            *groups.entry(group).or_default() += faults;
            let mut rdd = row(*id, "links", *faults, 0);
            rdd.insert("worker".to_owned(), (*worker).into());
            answer.work.extend(Work::of(group, &rdd));
        }
        let group = |(name, faults): (&str, u64)| {
            let mut group = row(0, "", faults, 0);
            for field in ["rdd_id", "name", "pid", "executor_id"] {
                group.remove(field);
            }
            group.insert("group".to_owned(), name.into());
            group
        };
        answer.rows.rows = groups.into_iter().map(group).collect();
        answer.workers = Some(format!("{} rows", rdds.len()));
        screen.apply(answer, start + Duration::from_secs(at as u64));
        let rate = |row: &Map<String, Value>| {
            let group = row["group"].as_str()?.to_owned();
            Some((group, row.get(order::RATE)?.as_u64()?))
        };
        all.push(screen.rows().iter().filter_map(rate).collect());
    }
    all
}

#[test]
fn a_worker_that_is_back_is_no_work_of_a_group() {
    let all = rates(&[
        &[("q", "a", 1, 100)],
        &[("q", "a", 1, 200), ("q", "b", 1, 9000)],
        &[("q", "a", 1, 300), ("q", "b", 1, 9050)],
        &[("q", "b", 1, 9060)],
        &[("q", "a", 1, 800), ("q", "b", 1, 9080)],
    ]);
    let rates: Vec<Option<u64>> = all.iter().map(|of| of.get("q").copied()).collect();
    assert_eq!(rates, [None, Some(100), Some(150), Some(10), Some(20)]);
}

/// All that an RDD did before its query was known is no work of the interval in which it became known.
#[test]
fn a_query_that_is_learned_late_has_the_rate_of_its_rdds() {
    let all = rates(&[
        &[("(no SQL)", "a", 1, 9000), ("(no SQL)", "a", 2, 10)],
        &[("SELECT 1", "a", 1, 9100), ("(no SQL)", "a", 2, 15)],
        // Each run has RDDs of its own, which begin with none.
        &[
            ("SELECT 1", "a", 1, 9100),
            ("SELECT 1", "a", 3, 70),
            ("(no SQL)", "a", 2, 15),
        ],
    ]);
    assert_eq!(all[0], HashMap::new());
    let of = |rate, other| {
        HashMap::from([
            ("SELECT 1".to_owned(), rate),
            ("(no SQL)".to_owned(), other),
        ])
    };
    assert_eq!(all[1], of(100, 5));
    assert_eq!(all[2], of(70, 0));
}

/// Groups within an executor or an RDD of a cluster name no worker: they are of the worker that was gone into.
#[test]
fn groups_within_a_worker_are_shown() {
    let mut screen = Screen::new(Filters::default(), Some(By::Query), true);
    press(&mut screen, "4");
    let mut executors = answer(1);
    let mut executor = Map::new();
    executor.insert("executor_id".to_owned(), "5".into());
    executor.insert("worker".to_owned(), "w1".into());
    executors.rows.rows = vec![executor];
    screen.apply(executors, Instant::now());
    assert_eq!(press(&mut screen, "\n"), Action::Ask);
    let place = screen.place();
    assert_eq!(place.groups(), Some((Of::Rdds, By::Query)));
    assert_eq!(place.worker.as_deref(), Some("w1"));
    let mut groups = answer(1);
    let mut group = row(0, "", 5, 0);
    group.insert("group".to_owned(), "SELECT 1".into());
    groups.rows.rows = vec![group];
    screen.apply(groups, Instant::now());
    let lines = drawn(&screen, 120, 24);
    assert!(lines[3].ends_with("queries with RDDs: 1"), "{}", lines[3]);
    assert!(lines[5].contains("SELECT 1"), "{}", lines[5]);
}

#[test]
fn rates_of_users_and_attempts_are_their_own() {
    let rows = |faults: [u64; 3]| {
        let groups = [(1000, "1"), (1000, "2"), (1001, "1")];
        let groups = groups.iter().zip(faults).map(|((uid, attempt), faults)| {
            let mut group = Map::new();
            group.insert("application_id".to_owned(), "app-1".into());
            group.insert("application_attempt_id".to_owned(), (*attempt).into());
            group.insert("uid".to_owned(), (*uid).into());
            group.insert("group".to_owned(), "links".into());
            group.insert("page_faults".to_owned(), faults.into());
            group
        });
        groups.collect::<Vec<_>>()
    };
    let before = order::add_rates(&mut rows([10, 2000, 300]), &HashMap::new(), None);
    let mut now = rows([20, 2200, 3300]);
    order::add_rates(&mut now, &before, Some(1.0));
    let rates: Vec<Option<u64>> = now.iter().map(|row| row[order::RATE].as_u64()).collect();
    assert_eq!(rates, [Some(10), Some(200), Some(3000)]);
}
