//! Changed requests to a server whose store has a real application.

use std::fs;
use std::sync::LazyLock;

use axum::http::StatusCode;
use smtt_history::import::{Admission, import};
use smtt_history::log::Bounds;

use super::rounds::changed;
use super::{ID, LINES, ask, rounds, server, tried};

/// Memory of one answer, with what is kept of the application.
const MEMORY: usize = 96 << 20;
/// Parameters of all routes.
const PARAMETERS: [&str; 24] = [
    "attempt",
    "by",
    "details",
    "executor",
    "from",
    "height",
    "host",
    "lanes",
    "length",
    "limit",
    "maxDate",
    "minDate",
    "offset",
    "q",
    "quantiles",
    "refresh",
    "sort",
    "sortBy",
    "stage",
    "status",
    "taskStatus",
    "to",
    "user",
    "width",
];
const VALUES: [&str; 20] = [
    "0",
    "1",
    "-1",
    "2147483648",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551616",
    "1e308",
    "NaN",
    "",
    "true",
    "SUCCESS",
    "-duration",
    "runtime",
    "0.0,0.5,1.0,2,-1,NaN",
    "2020-01-01T00:00:00.000GMT",
    "9999-99-99",
    "%00%ff%f0%9f",
    "..%2F..",
    "3.0.0.0",
];

/// Addresses of all routes.
pub fn paths() -> &'static [String] {
    static PATHS: LazyLock<Vec<String>> = LazyLock::new(|| {
        let rest = [
            "",
            "/jobs",
            "/jobs/0",
            "/stages",
            "/stages/0",
            "/stages/0/0",
            "/stages/0/0/taskList",
        ]
        .into_iter()
        .chain([
            "/stages/0/0/taskSummary",
            "/stages/failedTasks",
            "/executors",
            "/allexecutors",
        ])
        .chain([
            "/environment",
            "/storage/rdd",
            "/storage/rdd/0",
            "/sql",
            "/sql/0",
            "/logs",
        ]);
        let smtt = [
            "advice",
            "import",
            "workers",
            "timeline",
            "timeline/memory",
            "tasks/0",
            "stages",
            "stages/0/0/tasks",
            "tasks",
            "worker",
            "executor",
            "memory",
            "stage",
            "rdd",
            "places",
            "history",
            "death",
            "findings",
        ];
        let pages = [
            "",
            "/",
            "/jobs",
            "/stages",
            "/stages/0/0",
            "/stages/0/0/tasks",
            "/tasks",
            "/tasks/0",
            "/executors",
            "/environment",
            "/storage",
            "/sql",
            "/sql/0",
            "/findings",
            "/timeline",
            "/timeline/memory",
            "/memory",
            "/rdds",
            "/compare",
        ];
        let mut all: Vec<String> = [
            "/",
            "/metrics",
            "/api/v1/version",
            "/api/v1/applications",
            "/files/page.js",
        ]
        .map(str::to_owned)
        .into();
        all.extend(rest.map(|it| format!("/api/v1/applications/{ID}{it}")));
        all.extend(
            smtt.iter()
                .map(|it| format!("/smtt/v1/applications/{ID}/{it}")),
        );
        all.extend(pages.iter().map(|it| format!("/applications/{ID}{it}")));
        all
    });
    &PATHS
}

#[test]
fn changed_requests_are_answered_or_refused_and_never_fail() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    fs::write(&log, LINES.join("\n")).expect("written");
    let store = folder.path().join("store");
    import(&store, &log, Bounds::default(), &Admission::default()).expect("imports");
    let server = server(&store);
    let found = paths()
        .iter()
        .filter(|path| ask(&server, "GET", path).is_some_and(|it| it.0 == StatusCode::OK))
        .count();
    println!("{found} of {} addresses are found", paths().len());
    assert!(found * 2 > paths().len(), "{found} of {}", paths().len());
    rounds(|random| {
        let mut path = random.of(paths()).clone();
        for at in 0..random.below(5) {
            let name = *random.of(&PARAMETERS);
            let value = *random.of(&VALUES);
            path.push(if at == 0 { '?' } else { '&' });
            path.push_str(&format!("{name}={value}"));
        }
        let address = if random.below(3) == 0 {
            let seeds = [path.into_bytes(), random.of(paths()).clone().into_bytes()];
            String::from_utf8_lossy(&changed(random, &seeds)).into_owned()
        } else {
            path
        };
        let method = *random.of(&["GET", "GET", "GET", "GET", "HEAD", "POST", "DELETE"]);
        let line = format!("{method} {address}");
        tried(line.as_bytes(), MEMORY, || {
            let Some((status, body)) = ask(&server, method, &address) else {
                return;
            };
            assert!(
                !status.is_server_error(),
                "{status}: {}",
                String::from_utf8_lossy(&body)
            );
        });
    });
}
