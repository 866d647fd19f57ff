//! Which deaths of children are reported, and what the keeper holds.

use smtt_model::decode::{OomKilled, ProcessEnd, SignalSent};
use smtt_model::postmortem::{Report, Verdict};
use smtt_model::protocol::ListQuery;
use smtt_model::state::SignalNote;

use super::*;

fn child(name: &str, status: u32) -> Case {
    let end = ProcessEnd {
        status,
        peak_rss_bytes: 1,
        name: name.into(),
    };
    Case {
        child: Some(Noted {
            what: ChildEnd { pid: 7, end },
            ..Noted::default()
        }),
        ..Case::default()
    }
}

fn signal(signal: u32, from_own: bool) -> Noted<SignalNote> {
    let sent = SignalSent {
        target_pid: 7,
        signal,
        ..SignalSent::default()
    };
    Noted {
        what: SignalNote { sent, from_own },
        ..Noted::default()
    }
}

#[test]
fn spark_s_own_stops_of_python_workers_are_no_deaths() {
    assert!(is_python_death(&child("python3", 11)), "a crash");
    assert!(!is_python_death(&child("sh", 11)), "no Python");
    assert!(
        !is_python_death(&child("python3", 15)),
        "stopped, the sender is lost"
    );
    assert!(!is_python_death(&child("python3", 9)), "as above");
    let mut case = child("python3.12", 9);
    case.signals = vec![signal(9, true)];
    assert!(!is_python_death(&case), "Spark's daemon killed it");
    case.signals = vec![signal(9, false)];
    assert!(is_python_death(&case), "another process killed it");
    let mut case = child("python3", 9);
    case.oom = vec![Noted {
        what: OomKilled {
            victim_pid: 7,
            is_executor: false,
        },
        ..Noted::default()
    }];
    assert!(is_python_death(&case), "the OOM killer");
}

fn report(number: u64) -> Report {
    let mut report = Report::default();
    report.row.id = format!("{number:013}-7");
    report.row.verdict = Verdict::Crashed;
    report.row.who.executor_id = Some(number.to_string());
    report
}

#[test]
fn without_a_folder_the_last_reports_are_in_memory() {
    let keeper = Keeper::new(None);
    for number in 0..5000 {
        keeper.add(report(number));
    }
    let all = keeper.list(&ListQuery::default());
    assert_eq!((all.rows.len(), all.lost, all.waiting), (1024, 0, 0));
    assert_eq!(all.rows[0].id, "0000000004999-7", "the newest first");
    assert_eq!(keeper.counts()[&Verdict::Crashed], 5000);
    let ask = |executor: &str| {
        let query = ListQuery {
            executor: Some(executor.into()),
            ..ListQuery::default()
        };
        keeper.find(&query).expect("no disk is read")
    };
    assert!(ask("4999").is_some());
    assert!(ask("0000000004998-7").is_some());
    assert!(ask("1").is_none());
}

#[test]
fn deaths_of_a_user_push_out_no_report_of_another() {
    let keeper = Keeper::new(None);
    let of = |uid: u32, number: u64| {
        let mut report = report(number);
        report.row.who.uid = Some(uid);
        report
    };
    keeper.add(of(1, 0));
    for number in 1..5000 {
        keeper.add(of(2, number));
    }
    let query = ListQuery {
        user: Some(1),
        ..ListQuery::default()
    };
    assert_eq!(keeper.list(&query).rows.len(), 1);
    assert!(keeper.find(&query).expect("no disk is read").is_some());
    // Another user's executor claims the same id.
    keeper.add(of(2, 5000));
    keeper.add(of(1, 5001));
    let both = |executor: &str| ListQuery {
        executor: Some(executor.into()),
        ..ListQuery::default()
    };
    assert!(keeper.find(&both("5000")).expect("one user").is_some());
    let mut claimed = of(3, 5002);
    claimed.row.who.executor_id = Some("5000".into());
    keeper.add(claimed);
    assert!(keeper.find(&both("5000")).is_err());
}

#[test]
fn reports_that_were_given_up_are_counted_where_reports_are_written() {
    let nowhere = Keeper::new(None);
    let keeper = Keeper::new(Some("/nowhere".into()));
    for number in 0..300 {
        nowhere.add(report(number));
        keeper.add(report(number));
    }
    assert_eq!(nowhere.writing(), None);
    assert_eq!(keeper.writing(), Some((true, 300 - 256)));
    // The page of each row can be opened.
    let rows = keeper.list(&ListQuery::default()).rows;
    assert_eq!(rows.len(), 256);
    for row in rows {
        let query = ListQuery {
            executor: Some(row.id),
            ..ListQuery::default()
        };
        assert!(keeper.find(&query).expect("no disk is read").is_some());
    }
}

#[test]
fn subordinate_users_take_the_room_of_their_owner() {
    let owners = Arc::new(crate::subordinate::ShareOwners::default());
    let (ids, _) = smtt_model::subordinate::SubordinateIds::parse("7:100000:65536", |_| None);
    owners.set(Arc::new(ids));
    let keeper = Keeper::new(None).sharing(owners);
    let of = |number: u64, uid: u32| {
        let mut report = report(number);
        report.row.who.uid = Some(uid);
        keeper.add(report);
    };
    // Those of another user come first and are the oldest.
    for number in 0..100 {
        of(number, 8);
    }
    for number in 0..2000_u32 {
        of(100 + u64::from(number), 100_000 + number);
    }
    let list = keeper.list(&ListQuery::default());
    let others = list.rows.iter().filter(|row| row.who.uid == Some(8));
    assert_eq!((others.count(), list.rows.len()), (100, 1024));
}

#[test]
fn names_of_any_length_do_not_make_the_list_long() {
    let keeper = Keeper::new(None);
    let long = "\u{1}".repeat(60_000);
    for number in 0..2000 {
        let mut report = report(number);
        report.row.who.application_id = Some(long.clone());
        report.row.who.executor_id = Some(long.clone());
        report.row.application_name = Some(long.clone());
        report.row.sentence = long.clone();
        keeper.add(report);
    }
    let list = keeper.list(&ListQuery::default());
    let text = serde_json::to_vec(&list).expect("it is JSON");
    assert!(text.len() <= 1 << 20, "{} bytes", text.len());
    assert!(list.rows.len() > 50, "{} rows", list.rows.len());
    assert_eq!(list.rows.len() as u64 + list.left_out, 1024);
    assert_eq!(list.rows[0].id, "0000000001999-7");
    let two = ListQuery {
        limit: Some(2),
        ..ListQuery::default()
    };
    let list = keeper.list(&two);
    assert_eq!((list.rows.len(), list.left_out), (2, 0));
}

#[test]
fn executors_of_subordinate_users_have_the_turns_of_their_owner_also_after_a_restart() {
    let info = crate::shared::DaemonInfo {
        version: String::new(),
        kernel_side: String::new(),
        telemetry_path: String::new(),
        metrics: crate::metrics::MetricsSettings::at_once(0),
        doctor: Vec::new,
    };
    let shared = Shared::new(info, smtt_model::state::Limits::default());
    let (ids, _) = smtt_model::subordinate::SubordinateIds::parse("7:100000:65536", |_| None);
    shared.state().set_subordinate_ids(Arc::new(ids));
    let left = [7, 100_001, 100_002, 8].map(|uid| {
        let mut report = report(u64::from(uid));
        report.row.who.uid = Some(uid);
        report
    });
    // An executor that this daemon knows has its share already.
    let lists = lists(&shared, left.iter(), [(1, 7)].into_iter());
    let numbers: Vec<(u32, usize)> = lists.iter().map(|(user, all)| (*user, all.len())).collect();
    assert_eq!(numbers, [(7, 4), (8, 1)]);
}
