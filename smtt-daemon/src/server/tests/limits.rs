//! Clients that want too much, send too slowly or do not read, on the metrics port and on the socket.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use smtt_model::decode::BlockFact;
use smtt_web::{Files, Guard};

use super::super::connections::{self, WEB};
use super::*;
use crate::metrics::Names;
use crate::progress::Step;

/// Time that a busy machine keeps too.
const LIMIT: Duration = Duration::from_secs(60);

/// Addresses of a served daemon.
pub(super) struct Served {
    pub(super) socket: PathBuf,
    pub(super) port: SocketAddr,
}

/// Runs `ask` on this thread while the server has a thread of its own, as in the daemon.
pub(super) fn both(shared: &Arc<Shared>, web: impl Into<Web>, ask: impl FnOnce(&Served)) {
    let readers = web.into();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("smtt.sock");
    let runtime = runtime();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let (port, ended) = runtime.block_on(async {
        let socket = ControlSocket::bind(&path, "").expect("bound");
        let web = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = web.local_addr().expect("an address");
        let until = || until_stopped(stopped.clone());
        let served = spawn(Arc::clone(shared), socket, web, readers, until);
        (port, served.expect("a thread"))
    });
    ask(&Served { socket: path, port });
    stop.send(true).expect("still served");
    runtime.block_on(ended).expect("no crash").expect("served");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Serves the routes of the metrics port with other limits while `ask` runs.
fn with_limits(shared: Arc<Shared>, limits: connections::Limits, ask: impl FnOnce(SocketAddr)) {
    let (address, told) = std::sync::mpsc::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = std::thread::spawn(move || {
        runtime().block_on(async move {
            let web = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            address
                .send(web.local_addr().expect("an address"))
                .expect("awaited");
            let router = web_router(shared.into(), Names::Hidden);
            let until = async {
                let _ = stopped.await;
            };
            connections::serve(web, router, limits, None, |_| {}, until).await;
        });
    });
    ask(told.recv().expect("served"));
    stop.send(()).expect("still serving");
    server.join().expect("no panic");
}

pub(super) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connected");
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("set");
    stream
}

fn question(path: &str) -> String {
    let request = if path.contains(' ') {
        path.to_owned()
    } else {
        format!("{path} HTTP/1.1")
    };
    format!("GET {request}\r\nHost: smtt\r\n\r\n")
}

/// Head and body of an answer.
pub(super) fn get(stream: impl Read + Write, path: &str) -> (String, String) {
    try_get(stream, path).expect("an answer")
}

/// Head and body of an answer; an error where the server closes the connection.
fn try_get(mut stream: impl Read + Write, path: &str) -> std::io::Result<(String, String)> {
    stream.write_all(question(path).as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    Ok((head.to_owned(), body.to_owned()))
}

/// Status of an answer, and how long it took.
fn timed(address: SocketAddr, path: &str) -> (String, Duration) {
    let start = Instant::now();
    let (head, _) = get(connect(address), path);
    let status = head.split(' ').nth(1).expect("a status");
    (status.to_owned(), start.elapsed())
}

/// Many RDDs with long names, reported by one executor.
pub(super) fn large(rdds: u32) -> Arc<Shared> {
    larger(1, rdds)
}

/// Many RDDs with long names, reported by several executors.
fn larger(executors: u64, rdds: u32) -> Arc<Shared> {
    let info = DaemonInfo {
        version: "0.1.0".to_owned(),
        kernel_side: "test".to_owned(),
        telemetry_path: "/metrics".to_owned(),
        metrics: crate::metrics::MetricsSettings::at_once(1000 * executors as usize),
        doctor: checks,
    };
    let shared = Shared::new(info, Limits::default());
    for executor in 9..9 + executors {
        let apply = |fact| {
            shared.state().apply(Event {
                time_ns: 1,
                executor,
                pid: executor as u32,
                tid: executor as u32,
                uid: 1000,
                fact,
            })
        };
        apply(Fact::ExecutorDescribed(Box::new(ExecutorDescribed {
            application_id: "app-secret-0001".to_owned(),
            application_name: "payroll \u{1f4b0}".repeat(60),
            executor_id: (executor - 9).to_string(),
            ..ExecutorDescribed::default()
        })));
        for rdd_id in 0..rdds {
            let name = format!(
                "SELECT salary FROM people /* {rdd_id} of {executor} */ {}",
                "x".repeat(900)
            );
            apply(Fact::RddDescribed(Box::new(RddDescribed {
                rdd_id,
                name,
                ..RddDescribed::default()
            })));
            apply(Fact::BlockStored(Box::new(BlockFact {
                block_id: format!("rdd_{rdd_id}_0"),
                rdd_id: Some(rdd_id),
                partition: Some(0),
                size_bytes: 1 << 20,
                ..BlockFact::default()
            })));
        }
    }
    Arc::new(shared)
}

#[test]
fn half_sent_requests_are_closed_and_keep_no_other_client_out() {
    let begin = |address: SocketAddr, count: usize| -> Vec<TcpStream> {
        let one = |number: usize| {
            let mut stream = connect(address);
            if number.is_multiple_of(2) {
                // The server may have closed the connection.
                let _ = stream.write_all(b"GET /-/healthy HT");
            }
            stream
        };
        (0..count).map(one).collect()
    };
    let limits = |head| connections::Limits {
        head,
        life: None,
        ..WEB
    };
    with_limits(shared(), limits(LIMIT), |address| {
        let silent = begin(address, WEB.connections * 4);
        let (status, time) = timed(address, "/-/healthy");
        assert_eq!(status, "200");
        assert!(time < LIMIT, "{time:?}");
        drop(silent);
    });
    let short = limits(Duration::from_millis(700));
    with_limits(shared(), short, |address| {
        for mut stream in begin(address, WEB.connections) {
            // Closed: an end or a reset, never an answer.
            let mut byte = [0; 64];
            match stream.read(&mut byte) {
                Ok(0) => {}
                Err(error) => assert_ne!(error.kind(), ErrorKind::WouldBlock, "it is still open"),
                Ok(count) => {
                    let text = String::from_utf8_lossy(&byte[..count]);
                    assert!(text.starts_with("HTTP/1.1 408"), "{text}");
                }
            }
        }
    });
}

#[test]
fn clients_that_do_not_read_keep_no_other_client_out_for_long() {
    let limits = connections::Limits {
        stall: Duration::from_millis(500),
        life: None,
        ..WEB
    };
    with_limits(large(1000), limits, |address| {
        let (head, whole) = get(connect(address), "/metrics");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(whole.len() > 300_000, "{} bytes", whole.len());
        let greedy: Vec<TcpStream> = (0..WEB.connections + 8)
            .map(|_| {
                let mut stream = connect(address);
                stream
                    .write_all(question("/metrics").as_bytes())
                    .expect("asked");
                stream
            })
            .collect();
        let (status, time) = timed(address, "/metrics");
        assert_eq!(status, "200");
        assert!(time < LIMIT, "{time:?}");
        drop(greedy);
    });
}

#[test]
fn a_scraper_gets_its_answer_beside_slow_readers_that_come_back() {
    const SLOW: usize = 64;
    // What Prometheus waits for by default; a slow reader may stay for longer than that.
    const SCRAPE_TIMEOUT: Duration = Duration::from_secs(10);
    // More than the kernel takes for a client that does not read.
    with_limits(larger(2, 1000), WEB, |address| {
        let stop = AtomicBool::new(false);
        let connections = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let (stop, connections) = (&stop, &connections);
            for _ in 0..SLOW {
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        connections.fetch_add(1, Ordering::Relaxed);
                        read_slowly(address, stop);
                    }
                });
            }
            std::thread::sleep(Duration::from_secs(1));
            let _stop = StopAtEnd(stop);
            let (mut answered, mut failed) = (0, 0);
            let until = Instant::now() + LIMIT * 5;
            while answered < 18 {
                assert!(Instant::now() < until, "{failed} failed, not {answered}");
                let begin = Instant::now();
                let answer = try_get(connect(address), "/metrics");
                let time = begin.elapsed();
                // On a busy machine the scraper itself may be the slowest reader for a moment.
                let (head, body) = match answer {
                    Ok(answer) if time < SCRAPE_TIMEOUT => answer,
                    _ => {
                        failed += 1;
                        continue;
                    }
                };
                assert!(head.starts_with("HTTP/1.1 200"), "{head}");
                assert!(body.len() > 600_000, "{} bytes", body.len());
                answered += 1;
                std::thread::sleep(Duration::from_secs(1).saturating_sub(time));
            }
            // Of the slow readers' connections, all but those that are open were displaced.
            let slow = connections.load(Ordering::Relaxed);
            let displaced = slow.saturating_sub(SLOW);
            assert!(displaced > 0, "no connection was displaced");
            assert!(
                2 * failed * slow <= displaced * (failed + answered),
                "{failed} scrapes failed, not {answered}; {displaced} of {slow} slow readers did"
            );
        });
    });
}

/// Stops the other threads of a test also when it fails.
struct StopAtEnd<'test>(&'test AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Asks for the metrics and reads a byte now and then, until the connection is closed.
fn read_slowly(address: SocketAddr, stop: &AtomicBool) {
    let Ok(mut stream) = TcpStream::connect(address) else {
        return;
    };
    if stream.write_all(question("/metrics").as_bytes()).is_err() {
        return;
    }
    let mut byte = [0];
    while !stop.load(Ordering::Relaxed) {
        // Bytes that arrived before the reset would hide it from a read.
        let is_reset = !matches!(stream.take_error(), Ok(None));
        if is_reset || !matches!(stream.read(&mut byte), Ok(1)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_client_below_the_least_rate_is_closed_and_leaves_nothing_in_the_kernel() {
    let limits = connections::Limits {
        rate: Some(1 << 20),
        stall: LIMIT * 2,
        life: None,
        ..WEB
    };
    with_limits(larger(2, 1000), limits, |address| {
        let mut stream = connect(address);
        stream
            .write_all(question("/metrics").as_bytes())
            .expect("asked");
        let begin = Instant::now();
        // The server closes with a reset, so that the kernel keeps nothing for this client.
        let closed = loop {
            if let Some(error) = stream.take_error().expect("asked") {
                break error;
            }
            assert!(begin.elapsed() < limits.stall, "it is still open");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(closed.kind(), std::io::ErrorKind::ConnectionReset);
        assert!(
            begin.elapsed() > Duration::from_secs(1),
            "{:?}",
            begin.elapsed()
        );
    });
}

#[test]
fn a_long_head_is_refused() {
    with_limits(shared(), WEB, |address| {
        let mut stream = connect(address);
        let line = format!("X-Long: {}\r\n", "x".repeat(1000));
        // The server may close before everything is sent.
        let _ = stream.write_all(b"GET / HTTP/1.1\r\n");
        for _ in 0..1000 {
            if stream.write_all(line.as_bytes()).is_err() {
                break;
            }
        }
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer);
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
        let (status, _) = timed(address, "/-/healthy");
        assert_eq!(status, "200");
    });
}

#[test]
fn scrapers_of_one_moment_share_one_answer() {
    with_limits(large(1000), WEB, |address| {
        let scrapers: Vec<_> = (0..20)
            .map(|_| std::thread::spawn(move || get(connect(address), "/metrics").1))
            .collect();
        let answers: std::collections::BTreeSet<String> = scrapers
            .into_iter()
            .map(|scraper| scraper.join().expect("scraped"))
            .collect();
        // The time that it took is in each answer. A slow machine may need more than a second for all.
        assert!(answers.len() <= 3, "{} different answers", answers.len());
    });
}

#[test]
fn the_port_hides_what_only_the_group_may_read() {
    let shared = large(3);
    both(&shared, Names::Hidden, |served| {
        for path in [
            "/metrics",
            "/",
            "/-/healthy",
            "/-/ready",
            "/v1/executors",
            "/v1/status",
        ] {
            let (_, text) = get(connect(served.port), path);
            for secret in ["app-secret", "payroll", "salary"] {
                assert!(!text.contains(secret), "{secret} in {path}: {text}");
            }
        }
        let (_, text) = get(connect(served.port), "/metrics");
        let series = text
            .lines()
            .find(|line| line.starts_with("smtt_rdd_storage_memory_bytes{"))
            .expect("there are series");
        assert!(series.contains("application_id=\"hidden-"), "{series}");
        let other = UnixStream::connect(&served.socket).expect("connected");
        let (_, text) = get(other, "/metrics");
        assert!(text.contains("app-secret-0001") && text.contains("SELECT salary"));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.len() < 1000, "{line}");
        }
    });
    both(&shared, Names::Shown, |served| {
        let (_, text) = get(connect(served.port), "/metrics");
        assert!(text.contains("app-secret-0001"), "{text}");
    });
}

#[test]
fn with_users_the_port_shows_names_only_to_those_who_authenticate() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let hash = bcrypt::hash("secret", 4).expect("hashed");
    std::fs::write(file.path(), format!("ann:{hash}\n")).expect("written");
    let web = Web {
        names: Names::Shown,
        guard: Guard::load(Files {
            users: Some(file.path()),
            ..Files::default()
        })
        .expect("users"),
        ..Web::from(Names::Shown)
    };
    both(&large(3), web, |served| {
        for path in ["/metrics", "/"] {
            for credentials in ["", "Authorization: Basic YW5uOndyb25n\r\n"] {
                let request = format!("{path} HTTP/1.1\r\n{credentials}Accept: text/plain");
                let (head, text) = get(connect(served.port), &request);
                assert!(head.starts_with("HTTP/1.1 401"), "{head}");
                let asks = "www-authenticate: basic realm=\"smtt\"";
                assert!(head.to_lowercase().contains(asks), "{head}");
                assert!(!text.contains("app-secret") && !text.contains("smtt_"));
            }
        }
        let request =
            "/metrics HTTP/1.1\r\nAuthorization: Basic YW5uOnNlY3JldA==\r\nAccept: text/plain";
        let (head, text) = get(connect(served.port), request);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(text.contains("app-secret-0001") && text.contains("SELECT salary"));
        // Health shows nothing, and the control socket has its own permissions.
        assert_eq!(timed(served.port, "/-/healthy").0, "200");
        let socket = UnixStream::connect(&served.socket).expect("connected");
        assert!(get(socket, "/metrics").0.starts_with("HTTP/1.1 200"));
    });
}

/// Asks without reading, until the server cannot send more.
fn ask_without_reading(socket: &Path, path: &str) -> UnixStream {
    let mut stream = UnixStream::connect(socket).expect("connected");
    stream.write_all(question(path).as_bytes()).expect("asked");
    stream
}

#[test]
fn large_answers_take_turns_and_a_free_turn_is_used() {
    let shared = large(1000);
    both(&shared, Names::Hidden, |served| {
        let held: Vec<UnixStream> = (0..2)
            .map(|_| ask_without_reading(&served.socket, "/v1/rdds"))
            .collect();
        // Until both have their turns, others get one.
        let until = Instant::now() + Duration::from_secs(60);
        let (head, body, took) = loop {
            let asked = Instant::now();
            let third = UnixStream::connect(&served.socket).expect("connected");
            let (head, body) = get(third, "/v1/rdds");
            if !head.starts_with("HTTP/1.1 200") || Instant::now() > until {
                break (head, body, asked.elapsed());
            }
        };
        // It waits for a turn for seconds, not for the end of the others.
        assert!(took < Duration::from_secs(30), "{took:?}");
        assert!(head.starts_with("HTTP/1.1 503"), "{head}");
        assert!(head.to_lowercase().contains("retry-after: 5"), "{head}");
        assert!(body.contains("ask again"), "{body}");
        assert_eq!(body.lines().count(), 1, "{body}");
        // Small answers need no turn.
        let status = UnixStream::connect(&served.socket).expect("connected");
        assert!(get(status, "/v1/status").0.starts_with("HTTP/1.1 200"));
        drop(held);
        let next = UnixStream::connect(&served.socket).expect("connected");
        assert!(get(next, "/v1/rdds").0.starts_with("HTTP/1.1 200"));
    });
}

/// Health is answered without the wait of a second for the state. On a busy machine not every answer shows that.
fn is_healthy_at_once(port: SocketAddr) {
    let until = Instant::now() + LIMIT;
    loop {
        let (status, time) = timed(port, "/-/healthy");
        assert_eq!(status, "200");
        if time < Duration::from_millis(500) {
            return;
        }
        assert!(Instant::now() < until, "{time:?}");
    }
}

#[test]
fn health_is_answered_whatever_holds_the_locks() {
    let shared = shared();
    both(&shared, Names::Hidden, |served| {
        let state = shared.state();
        shared.progress().enter(Step::Apply);
        for _ in 0..5 {
            is_healthy_at_once(served.port);
        }
        // All threads that make answers wait for the state now.
        let waiting: Vec<UnixStream> = (0..20)
            .map(|_| ask_without_reading(&served.socket, "/v1/history"))
            .collect();
        let scrapes: Vec<TcpStream> = (0..20)
            .map(|_| {
                let mut stream = connect(served.port);
                stream
                    .write_all(question("/metrics").as_bytes())
                    .expect("asked");
                stream
            })
            .collect();
        std::thread::sleep(Duration::from_millis(2100));
        is_healthy_at_once(served.port);
        let start = Instant::now();
        let stream = UnixStream::connect(&served.socket).expect("connected");
        let (head, body) = get(stream, "/v1/status");
        let time = start.elapsed();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(time < LIMIT, "{time:?}");
        assert!(
            body.contains("the event loop has been applying events for"),
            "{body}"
        );
        assert!(body.contains("the state has been locked"), "{body}");
        drop((state, waiting, scrapes));
    });
}
