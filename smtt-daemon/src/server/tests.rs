//! The interface over a real Unix socket, with the client of `smtt-ctl`.

mod api;
mod compressed;
mod follow;
mod limits;

use super::*;
use serde_json::Value;
use smtt_ctl::client::{Client, ClientError};
use smtt_model::decode::{Event, ExecutorDescribed, Fact, RddDescribed};
use smtt_model::protocol::{MachineCheck, Report, Status};
use smtt_model::rows::Listing;
use smtt_model::sort::Row;
use smtt_model::state::Limits;
use smtt_model::verdict::{Verdict, VerdictState};
use tokio::sync::oneshot;

use crate::shared::DaemonInfo;

fn checks() -> Vec<MachineCheck> {
    vec![MachineCheck {
        required: true,
        name: "BTF".to_owned(),
        ok: true,
        detail: "there".to_owned(),
        remedy: String::new(),
    }]
}

fn shared() -> Arc<Shared> {
    let info = DaemonInfo {
        version: "0.1.0".to_owned(),
        kernel_side: "test".to_owned(),
        telemetry_path: "/metrics".to_owned(),
        metrics: crate::metrics::MetricsSettings::at_once(10),
        doctor: checks,
    };
    let shared = Shared::new(info, Limits::default());
    for id in 0..12 {
        let described = RddDescribed {
            rdd_id: id,
            name: format!("rdd {id}"),
            ..RddDescribed::default()
        };
        shared.state().apply(Event {
            time_ns: 1,
            executor: 9,
            pid: 9,
            tid: 9,
            uid: 1000,
            fact: Fact::RddDescribed(Box::new(described)),
        });
    }
    Arc::new(shared)
}

/// Runs `ask` against a served socket.
fn served<Answer>(shared: Arc<Shared>, ask: impl AsyncFnOnce(Client) -> Answer) -> Answer {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("smtt.sock");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let socket = ControlSocket::bind(&path, "").expect("bound");
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(serve_control(shared, socket, async {
            let _ = stopped.await;
        }));
        let answer = ask(Client::new(&path)).await;
        stop.send(()).expect("still serving");
        server.await.expect("no panic").expect("served");
        assert!(!path.exists(), "the socket's file goes with the server");
        answer
    })
}

#[test]
fn rows_of_one_application_stand_together() {
    let shared = shared();
    for (executor, app) in [(1, "app-2"), (2, "app-1")] {
        let described = ExecutorDescribed {
            application_id: app.to_owned(),
            ..ExecutorDescribed::default()
        };
        let stage = |id| {
            Fact::StageDescribed(smtt_model::decode::StageDescribed {
                stage_id: id,
                ..Default::default()
            })
        };
        for fact in [
            Fact::ExecutorDescribed(Box::new(described)),
            stage(1),
            stage(0),
        ] {
            shared.state().apply(Event {
                time_ns: 1,
                executor,
                pid: executor as u32,
                tid: 1,
                uid: 1000,
                fact,
            });
        }
    }
    let listing: Listing<Row> = served(shared, async |client| {
        client.get("/v1/stages").await.expect("an answer")
    });
    let rows = listing.rows.iter();
    let rows: Vec<_> = rows
        .map(|row| (row["application_id"].as_str(), row["stage_id"].as_u64()))
        .collect();
    assert_eq!(
        rows,
        [
            (Some("app-1"), Some(0)),
            (Some("app-1"), Some(1)),
            (Some("app-2"), Some(0)),
            (Some("app-2"), Some(1)),
        ]
    );
}

#[test]
fn a_claim_of_another_user_is_another_application_in_report_and_advice() {
    let shared = shared();
    // The other user is first, and has the victim's id as the name of its application too.
    for (executor, uid) in [(20_u64, 666_u32), (21, 1000)] {
        let described = smtt_model::decode::ExecutorDescribed {
            application_id: "app-victim".to_owned(),
            application_name: "app-victim".to_owned(),
            executor_id: "7".to_owned(),
            ..Default::default()
        };
        let rdd = RddDescribed {
            rdd_id: uid,
            name: format!("RDD of {uid}"),
            ..RddDescribed::default()
        };
        for fact in [
            Fact::ExecutorDescribed(Box::new(described)),
            Fact::RddDescribed(Box::new(rdd)),
        ] {
            shared.state().apply(Event {
                time_ns: u64::from(uid),
                executor,
                pid: executor as u32,
                tid: 1,
                uid,
                fact,
            });
        }
    }
    let (report, advice, rows): (Report, smtt_model::advise::Advice, Listing<Row>) =
        served(shared, async |client| {
            (
                client
                    .get("/v1/report?app=app-victim")
                    .await
                    .expect("a report"),
                client
                    .get("/v1/advise?app=app-victim")
                    .await
                    .expect("advice"),
                client
                    .get("/v1/rdds?app=app-victim&user=1000")
                    .await
                    .expect("rows"),
            )
        });
    let users: Vec<_> = report.applications.iter().map(|of| of.uid).collect();
    assert_eq!(users, [Some(666), Some(1000)]);
    for application in &report.applications {
        assert_eq!(
            (application.executors.len(), application.summary.executors),
            (1, 1)
        );
        let own = |who: &smtt_model::rows::ExecutorId| who.uid == application.uid;
        assert!(application.rdds_by_faults.iter().all(|row| own(&row.who)));
    }
    let users: Vec<_> = advice.applications.iter().map(|of| of.uid).collect();
    assert_eq!(users, [Some(666), Some(1000)]);
    let names: Vec<_> = rows.rows.iter().map(|row| row["name"].as_str()).collect();
    assert_eq!(names, [Some("RDD of 1000")]);
}

#[test]
fn listings_are_filtered_sorted_and_cut() {
    let rows: Value = served(shared(), async |client| {
        client
            .get("/v1/rdds?sort=rdd_id:asc&limit=3")
            .await
            .expect("an answer")
    });
    let ids: Vec<_> = rows["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| row["rdd_id"].clone())
        .collect();
    assert_eq!(ids, [0, 1, 2]);
    assert!(rows["summary"]["measured"]["page_faults"] == false);
    for listing in ["executors", "stages", "tasks", "rdds", "blocks"] {
        let path = format!("/v1/{listing}?app=x&executor=1&rdd=7&stage=3.0");
        let rows: Value = served(shared(), async |client| {
            client.get(&path).await.expect("an answer")
        });
        assert_eq!(rows["rows"], Value::Array(Vec::new()), "{listing}");
    }
    let rows: Value = served(shared(), async |client| {
        client.get("/v1/rdds?rdd=rdd%207").await.expect("an answer")
    });
    assert_eq!(rows["rows"][0]["rdd_id"], 7);
}

#[test]
fn a_wrong_question_says_what_is_wrong() {
    for (path, expected) in [
        (
            "/v1/rdds?sort=nonsense",
            "cannot sort by \"nonsense\"; the columns are: application_id, executor_id",
        ),
        ("/v1/rdds?sort=rdd_id:up", "cannot sort \"rdd_id:up\""),
        ("/v1/rdds?shape=round", "unknown field `shape`"),
        ("/v1/report?limit=x", "limit"),
    ] {
        let error = served(shared(), async |client| {
            client.get::<Value>(path).await.expect_err("refused")
        });
        assert!(matches!(error, ClientError::Refused(_)), "{error:?}");
        assert!(error.to_string().contains(expected), "{path}: {error}");
    }
}

#[test]
fn status_says_why_it_is_degraded() {
    let shared = shared();
    shared.set_verdicts(vec![Verdict {
        name: "fault".to_owned(),
        hook: "raw_tracepoint:page_fault_user".to_owned(),
        verdict: VerdictState::Broken,
        reason: "no permission".to_owned(),
    }]);
    shared.set_ready(true);
    let status: Status = served(Arc::clone(&shared), async |client| {
        client.get("/v1/status").await.expect("an answer")
    });
    assert_eq!(
        status.degraded,
        ["probe fault (raw_tracepoint:page_fault_user) is broken: no permission"]
    );
    assert_eq!(
        (
            status.probes[0].name.as_str(),
            status.probes[0].verdict.name()
        ),
        ("fault", "broken")
    );
    assert!(status.daemon.rss_bytes > Some(0));
    let raw: Value = served(shared, async |client| {
        client.get("/v1/status").await.expect("an answer")
    });
    assert!(
        raw["daemon"]["cpu_seconds"].is_number() && raw["daemon"]["bpf_memory_bytes"].is_null()
    );
    for field in ["name", "attempted", "delivered", "lost"] {
        assert!(raw["ledger"][0].get(field).is_some(), "{field}");
    }
}

#[test]
fn doctor_and_report_answer() {
    let checked: Vec<MachineCheck> = served(shared(), async |client| {
        client.get("/v1/doctor").await.expect("an answer")
    });
    assert_eq!(checked, checks());
    let report: Report = served(shared(), async |client| {
        client.get("/v1/report").await.expect("an answer")
    });
    assert_eq!(
        (
            report.applications.len(),
            report.applications[0].application_id.as_deref()
        ),
        (1, None)
    );
    assert_eq!(
        report.applications[0].executors.len(),
        1,
        "an executor that has not described itself is in it too"
    );
    let shared = shared();
    let described = ExecutorDescribed {
        application_id: "app-1".to_owned(),
        ..ExecutorDescribed::default()
    };
    shared.state().apply(Event {
        time_ns: 1,
        executor: 9,
        pid: 9,
        tid: 9,
        uid: 1000,
        fact: Fact::ExecutorDescribed(Box::new(described)),
    });
    let report: Report = served(shared, async |client| {
        client.get("/v1/report?app=app-1").await.expect("an answer")
    });
    assert_eq!(
        report.applications[0].application_id.as_deref(),
        Some("app-1")
    );
}

#[test]
fn readiness_follows_the_daemon() {
    let shared = shared();
    let state = |shared: &Arc<Shared>, path: &'static str| {
        served(Arc::clone(shared), async |client| {
            client
                .get_bytes(path, "*/*")
                .await
                .expect("an answer")
                .0
                .as_u16()
        })
    };
    assert_eq!(
        (state(&shared, "/-/ready"), state(&shared, "/-/healthy")),
        (503, 200)
    );
    shared.set_ready(true);
    assert_eq!(
        (
            state(&shared, "/-/ready"),
            state(&shared, "/metrics"),
            state(&shared, "/")
        ),
        (200, 200, 200)
    );
    assert_eq!(state(&shared, "/v2/rdds"), 404);
}

#[test]
fn an_absent_daemon_is_its_own_error() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let client = Client::new(std::path::Path::new("/nonexistent/smtt.sock"));
    let error = runtime
        .block_on(client.get::<Value>("/v1/status"))
        .expect_err("no daemon");
    assert!(
        matches!(error, ClientError::Unreachable { .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("Is it running"), "{error}");
}
