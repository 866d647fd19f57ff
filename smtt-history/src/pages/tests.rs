//! Pages of a log whose every name is markup: what they show, and that nothing of it is markup.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::{Request as Question, StatusCode, header};
use serde_json::json;
use smtt_store::history::batch::{Batch, Cell as Stored};
use smtt_store::history::workers::{Bounds as Room, REST, Whose, Workers};
use tower::ServiceExt as _;

use super::place::{Place, quoted, split};
use super::shown::Cell;
use super::table::order;
use crate::import::{Admission, import};
use crate::log::Bounds;
use crate::made::{Made, Stage, Task};
use crate::serve::{Server, Settings, router};

pub(crate) const HOSTILE: &str = r#"<script>alert(1)</script>\" onx='&amp;"#;

pub(crate) fn log(id: &str, attempt: &str) -> String {
    let info = |finish: i64, failed: bool| {
        format!(
            r#"{{"Task ID":7,"Index":0,"Attempt":0,"Launch Time":2000,"Executor ID":"{HOSTILE}","Host":"{HOSTILE}","Locality":"{HOSTILE}","Speculative":false,"Getting Result Time":0,"Finish Time":{finish},"Failed":{failed},"Killed":false,"Accumulables":[]}}"#
        )
    };
    let stage = format!(
        r#"{{"Stage ID":0,"Stage Name":"{HOSTILE}","Number of Tasks":1,"RDD Info":[{{"RDD ID":1,"Name":"{HOSTILE}","Storage Level":{{"Use Memory":true,"Replication":1}}}}],"Details":"{HOSTILE}","Submission Time":1900}}"#
    );
    [
        format!(r#"{{"Event":"SparkListenerApplicationStart","App Name":"{HOSTILE}","App ID":"{id}",{attempt}"Timestamp":1000,"User":"{HOSTILE}"}}"#),
        format!(r#"{{"Event":"SparkListenerEnvironmentUpdate","JVM Information":{{"Java Version":"{HOSTILE}"}},"Spark Properties":{{"{HOSTILE}":"{HOSTILE}"}},"Hadoop Properties":{{}},"System Properties":{{}},"Metrics Properties":{{}},"Classpath Entries":{{}}}}"#),
        format!(r#"{{"Event":"SparkListenerExecutorAdded","Timestamp":1100,"Executor ID":"{HOSTILE}","Executor Info":{{"Host":"{HOSTILE}","Total Cores":1}}}}"#),
        format!(r#"{{"Event":"org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart","executionId":0,"description":"{HOSTILE}","details":"{HOSTILE}","physicalPlanDescription":"{HOSTILE}","sparkPlanInfo":{{"nodeName":"{HOSTILE}","simpleString":"{HOSTILE}","children":[],"metadata":{{}},"metrics":[]}},"time":1200}}"#),
        format!(r#"{{"Event":"SparkListenerJobStart","Job ID":0,"Submission Time":1500,"Stage Infos":[{stage}],"Stage IDs":[0],"Properties":{{"spark.job.description":"{HOSTILE}"}}}}"#),
        format!(r#"{{"Event":"SparkListenerStageSubmitted","Stage Info":{stage}}}"#),
        format!(r#"{{"Event":"SparkListenerTaskStart","Stage ID":0,"Stage Attempt ID":0,"Task Info":{}}}"#, info(0, false)),
        format!(r#"{{"Event":"SparkListenerTaskEnd","Stage ID":0,"Stage Attempt ID":0,"Task Type":"ResultTask","Task End Reason":{{"Reason":"ExceptionFailure","Class Name":"{HOSTILE}","Description":"{HOSTILE}","Full Stack Trace":"{HOSTILE}"}},"Task Info":{},"Task Metrics":{{"Executor Run Time":600}}}}"#, info(3000, true)),
    ]
    .join("\n")
}

pub(crate) struct Site {
    server: Arc<Server>,
    _folder: tempfile::TempDir,
}

impl Site {
    pub(crate) fn new(logs: &[String]) -> Self {
        let folder = tempfile::tempdir().expect("makes a folder");
        let store = folder.path().join("store");
        for log in logs {
            let path = folder.path().join("log");
            std::fs::write(&path, log).expect("writes");
            let done = import(&store, &path, Bounds::default(), &Admission::default());
            let done = done.expect("imports");
            assert_eq!(done.damaged, 0, "{:?}", done.named);
        }
        let settings = Settings {
            store,
            event_logs: None,
            cache_bytes: 1 << 20,
            bounds: Bounds::default(),
            bucket: None,
        };
        Self {
            server: Arc::new(Server::new(settings)),
            _folder: folder,
        }
    }

    /// Imports a log in place of that of its application.
    pub(crate) fn replace(&self, log: &str) {
        let path = self.store().with_file_name("log");
        std::fs::write(&path, log).expect("writes");
        let any = Admission {
            name: None,
            replaces: true,
        };
        let done = import(&self.store(), &path, Bounds::default(), &any);
        done.expect("imports");
    }

    pub(crate) const fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Makes each file of the workers one that is no table.
    pub(crate) fn spoil_workers(&self) {
        let mut folders = vec![self.store().join(smtt_store::history::workers::FOLDER)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("lists").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|it| it == "parquet") {
                    std::fs::write(&path, "no table").expect("writes");
                }
            }
        }
    }

    pub(crate) fn store(&self) -> std::path::PathBuf {
        self.server.settings.store.clone()
    }

    pub(crate) async fn get(&self, path: &str) -> (StatusCode, String, String) {
        let question = Question::get(path)
            .body(Body::empty())
            .expect("is a question");
        let answer = router(Arc::clone(&self.server)).oneshot(question).await;
        let answer = answer.expect("answers");
        let status = answer.status();
        let (parts, body) = answer.into_parts();
        let headers = parts.headers;
        let header = |name| {
            let value = headers.get(name);
            value
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
                .to_owned()
        };
        let said = header(header::CONTENT_SECURITY_POLICY) + &header(header::LOCATION);
        let body = to_bytes(body, 8 << 20).await.expect("reads");
        (status, said, String::from_utf8_lossy(&body).into_owned())
    }
}

#[tokio::test]
async fn every_page_escapes_names_and_has_the_policy() {
    let site = Site::new(&[log("app-1", "")]);
    let parts = [
        "",
        "/timeline",
        "/timeline?executor=<b>",
        "/timeline/memory",
        "/timeline/memory?executor=<b>",
        "/findings",
        "/jobs",
        "/stages",
        "/stages/0/0",
        "/tasks",
        "/tasks/7",
        "/executors",
        "/rdds",
        "/environment",
        "/sql",
        "/sql/0",
        "/tasks?q=<script>&stage=0&from=<b>",
        "/<script>alert(1)<%2Fscript>",
    ];
    let paths = parts.map(|part| format!("/applications/app-1{part}"));
    let mut shown = 0;
    for path in paths
        .iter()
        .map(String::as_str)
        .chain(["/", "/?q=%22%3E%3Cscript%3E"])
    {
        let path = path.replace('<', "%3C").replace('>', "%3E");
        let (_, policy, text) = site.get(&path).await;
        assert_eq!(policy, super::POLICY, "{path}");
        for markup in ["<script>", "<b>", "\" onx", "style=", " onclick"] {
            assert!(!text.contains(markup), "{path} has {markup}: {text}");
        }
        shown += usize::from(text.contains("&lt;script&gt;alert(1)"));
    }
    assert!(shown >= 13, "only {shown} pages show a name");
}

#[tokio::test]
async fn the_overview_names_the_workers_that_wrote() {
    let site = Site::new(&[log("app-1", "")]);
    let only = "this store has only what Spark";
    let (_, _, page) = site.get("/applications/app-1").await;
    assert!(
        page.contains(only) && !page.contains("id=\"workers\""),
        "{page}"
    );
    let any = Room {
        bytes: 1 << 30,
        files: 1 << 20,
    };
    let write = |host: &str, uid: u32| {
        let mut workers = Workers::take(&site.store(), host, 10, None, any).expect("opens");
        let mut batch = Batch::new(&REST);
        batch.push(&[
            Stored::Text("worker"),
            Stored::Text("1"),
            Stored::Text("{}"),
        ]);
        let done = workers.add(Whose::of("app-1", uid), 0, &batch, &|uid| uid);
        done.expect("writes");
    };
    write("node-0", 7);
    let (_, _, page) = site.get("/applications/app-1").await;
    let said = "The daemons of 1 worker wrote about this application: <bdi>node-0</bdi>. What";
    assert!(page.contains(said) && !page.contains(only), "{page}");
    for to in ["timeline/memory", "findings", "tasks"] {
        let link = format!("<a href=\"../applications/app-1/{to}\">");
        let at = page.find("id=\"workers\"").expect("has workers");
        assert!(page[at..].contains(&link), "{link}: {page}");
    }
    for number in 1..10 {
        write(&format!("node-{number}"), 7);
    }
    let (_, _, page) = site.get("/applications/app-1").await;
    assert!(
        page.contains("10 workers wrote")
            && page.contains("<bdi>node-7</bdi> and 2 more.")
            && !page.contains("node-8"),
        "{page}"
    );
    // Of two users one is asked for, and the links keep the answer.
    write("node-0", 8);
    let (_, _, page) = site.get("/applications/app-1").await;
    assert!(page.contains("executors of users 7, 8 claim"), "{page}");
    let (_, _, page) = site.get("/applications/app-1?user=8").await;
    assert!(
        page.contains("1 worker wrote") && page.contains("findings?user=8\""),
        "{page}"
    );
}

#[tokio::test]
async fn findings_have_their_saving_and_lead_to_their_stage() {
    let mut tasks = vec![Task::new(2000, 1_000_000); 64];
    tasks[40].run = 60_000;
    let made = Made::new("app-1", vec![Stage::new(HOSTILE, tasks)]);
    let site = Site::new(&[made.log().0]);
    let (_, _, text) = site.get("/applications/app-1/findings").await;
    for part in [
        "1 of 64 tasks take much longer",
        "Expected saving: ",
        "spark.speculation",
        "Disproved by: ",
        "applications/app-1/stages/0/0\">0.0</a>",
        "&lt;script&gt;alert(1)",
    ] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    assert!(text.contains("No worker wrote findings"), "{text}");
    assert!(!text.contains("<script>"), "{text}");
    // A worker's findings stand beside, and all that executors claim is text.
    let finding = json!({"id": "never_read", "severity": "high", "title": HOSTILE, "window": "w", "computed": "how",
        "disproof": "what", "not_measured": [HOSTILE], "cost": {"of": "o", "estimated": false}, "numbers": [],
        "subject": {"application_id": "app-1", "executor_ids": []}, "saving": {"low": 0.25, "expected": 2.0, "high": 3.0},
        "remedies": [{"why": "free it", "lines": [HOSTILE]}]});
    let advice = json!({"application_id": "app-1", "application_name": HOSTILE, "findings": [finding], "checks": []});
    let any = Room {
        bytes: 1 << 30,
        files: 1 << 20,
    };
    let mut workers = Workers::take(&site.store(), HOSTILE, 10, None, any).expect("opens");
    let mut batch = Batch::new(&REST);
    batch.push(&[
        Stored::Text("findings"),
        Stored::Text(""),
        Stored::Text(&advice.to_string()),
    ]);
    let done = workers.add(Whose::of("app-1", 7), 0, &batch, &|uid| uid);
    done.expect("writes");
    let (_, _, text) = site.get("/applications/app-1/findings").await;
    for part in [
        "Findings of the workers",
        "250 ms",
        "3.0 s",
        "free it",
        "Computed: how.",
    ] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    assert!(!text.contains("<script>"), "{text}");
}

#[tokio::test]
async fn refusals_are_pages_with_their_status() {
    let site = Site::new(&[log("app-1", "")]);
    for (path, status) in [
        ("/applications/app-2", 404),
        ("/applications/..%2Fx/jobs", 404),
        ("/applications/app-1/stages/9/0", 404),
        ("/applications/app-1/tasks/8", 404),
        ("/applications/app-1/tasks?stage=x", 400),
        ("/applications/app-1/tasks?sort=x", 400),
        ("/applications/app-1/jobs?sort=x", 400),
        ("/files/none", 404),
        ("/smtt/v1/applications/app-1/timeline?from=x", 404),
        ("/smtt/v1/applications/app-1/tasks/8", 404),
    ] {
        assert_eq!(site.get(path).await.0.as_u16(), status, "{path}");
    }
}

#[tokio::test]
async fn tasks_are_filtered_sorted_and_paged() {
    let log = log("app-1", "");
    let mut lines: Vec<&str> = log.lines().collect();
    let (start, end) = (lines[6].to_owned(), lines[7].to_owned());
    let more: Vec<String> = (8..108)
        .flat_map(|id| {
            let number = format!("\"Task ID\":{id},");
            let input = format!(
                r#""Task Metrics":{{"Input Metrics":{{"Bytes Read":{}}},"#,
                (id * 37) % 101
            );
            let end = end.replace("\"Task Metrics\":{", &input);
            [&start, &end].map(|line| line.replace("\"Task ID\":7,", &number))
        })
        .collect();
    lines.extend(more.iter().map(String::as_str));
    let site = Site::new(&[lines.join("\n")]);
    let ids = |text: &str| -> Vec<i64> {
        let cells = text
            .split("<a href=\"../../applications/app-1/tasks/")
            .skip(1);
        let id = |cell: &str| cell.split('"').next().and_then(|id| id.parse().ok());
        cells.filter_map(id).collect()
    };
    let base = "/applications/app-1/tasks";
    let (_, _, text) = site
        .get(&format!("{base}?sort=-id&length=3&offset=3"))
        .await;
    assert_eq!(ids(&text), [104, 103, 102]);
    assert!(text.contains("4 to 6 of 101"), "{text}");
    let (_, _, text) = site
        .get(&format!(
            "{base}?sort=-input&length=2&status=FAILED&stage=0.0"
        ))
        .await;
    let expected = (8..108).max_by_key(|id| (id * 37) % 101).expect("has one");
    assert_eq!(ids(&text)[0], expected);
    let (_, _, text) = site.get(&format!("{base}?status=SUCCESS")).await;
    assert!(text.contains("0 to 0 of 0"), "{text}");
    let (_, _, text) = site.get(&format!("{base}?longer=1001")).await;
    assert!(text.contains("of 0"), "{text}");
}

#[tokio::test]
async fn an_application_with_attempts_leads_to_its_newest() {
    let attempt = |number: u32| {
        let text = log("app-1", &format!(r#""App Attempt ID":"{number}","#));
        text.replace(
            r#""Timestamp":1000"#,
            &format!(r#""Timestamp":{number}000"#),
        )
    };
    let site = Site::new(&[attempt(1), attempt(2)]);
    let (status, to, _) = site.get("/applications/app-1").await;
    assert_eq!(
        (status.as_u16(), to.ends_with("app-1/2")),
        (307, true),
        "{to}"
    );
    for part in ["", "/jobs", "/timeline"] {
        let (status, _, text) = site.get(&format!("/applications/app-1/2{part}")).await;
        assert_eq!(status, StatusCode::OK);
        assert!(text.contains("applications/app-1/2/stages\""), "{text}");
    }
    let (status, _, text) = site
        .get("/smtt/v1/applications/app-1/tasks/7?attempt=2")
        .await;
    assert_eq!(status, StatusCode::OK);
    let json: serde_json::Value = serde_json::from_str(&text).expect("is JSON");
    let parts = json["parts"].as_array().into_iter().flatten();
    let sum: u64 = parts.filter_map(|part| part["microseconds"].as_u64()).sum();
    assert_eq!((sum, &json["milliseconds"]), (1_000_000, &1000.into()));
}

#[test]
fn addresses_are_relative() {
    let place = Place::of("/applications/app-1/2/stages/3/0", "app-1", Some("2"));
    assert_eq!(place.to(""), "../../../../../");
    assert_eq!(
        place.part("jobs"),
        "../../../../../applications/app-1/2/jobs"
    );
    assert_eq!(Place::new("/").to("files/page.css"), "./files/page.css");
    assert_eq!(
        (split("2/jobs"), split("stages/0/0")),
        ((Some("2"), "jobs"), (None, "stages/0/0"))
    );
    assert_eq!(quoted("a b&\"<é"), "a%20b%26%22%3C%C3%A9");
}

#[test]
fn absent_cells_are_last_in_both_orders() {
    use std::cmp::Ordering::{Greater, Less};
    let (absent, one, two) = (Cell::Absent, Cell::Count(1), Cell::Count(2));
    for down in [true, false] {
        assert_eq!(
            (order(&absent, &one, down), order(&one, &absent, down)),
            (Greater, Less)
        );
    }
    assert_eq!(
        (order(&one, &two, false), order(&one, &two, true)),
        (Less, Greater)
    );
}

#[tokio::test]
async fn pages_of_an_application_that_runs_say_how_old_they_are() {
    let running = log("app-1", "");
    let ended = format!(
        "{}\n{}",
        log("app-2", ""),
        r#"{"Event":"SparkListenerApplicationEnd","Timestamp":4000}"#
    );
    let site = Site::new(&[running, ended]);
    for part in ["", "/jobs", "/timeline", "/tasks/7"] {
        let (_, _, page) = site
            .get(&format!("/applications/app-1{part}?refresh=10&q=a"))
            .await;
        for text in [
            "Running: its log last changed ",
            "<noscript><meta http-equiv=\"refresh\" content=\"10\"></noscript>",
            "data-refresh=\"10\"",
            "href=\"?q=a&amp;refresh=30\"",
            "href=\"?q=a\" data-every=\"0\"",
            "files/live.js",
        ] {
            assert!(page.contains(text), "{part}: {text} is missing: {page}");
        }
        let (_, _, page) = site.get(&format!("/applications/app-1{part}")).await;
        assert!(
            page.contains("id=\"live\"") && !page.contains("http-equiv=\"refresh\""),
            "{page}"
        );
        let (_, _, page) = site
            .get(&format!("/applications/app-2{part}?refresh=10"))
            .await;
        assert!(
            !page.contains("id=\"live\"") && !page.contains("http-equiv"),
            "{page}"
        );
    }
    // What an address asks for has bounds.
    for (asked, every) in [("0", 0), ("1", 5), ("99999", 3600), ("x", 0)] {
        let (_, _, page) = site
            .get(&format!("/applications/app-1?refresh={asked}"))
            .await;
        assert!(
            page.contains(&format!("data-refresh=\"{every}\"")),
            "{asked}: {page}"
        );
    }
    let age = |text: &str| {
        let json: serde_json::Value = serde_json::from_str(text).expect("is JSON");
        json["ageMs"].as_u64()
    };
    let (_, _, text) = site.get("/smtt/v1/applications/app-1/timeline").await;
    assert!(age(&text).is_some_and(|ms| ms < 600_000), "{text}");
    let (_, _, text) = site.get("/smtt/v1/applications/app-2/timeline").await;
    assert_eq!(age(&text), None, "{text}");
}
