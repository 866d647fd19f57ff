//! `smtt-ctl --cluster` over 500 workers: the time from its start to its end, in clear text and over TLS with a token.
//!
//! The workers are one listener on all loopback addresses: each address is a worker that gives the same listing. They
//! share the CPUs with the client, so each run is beside one of a client that only reads: what is left of the difference
//! is the client's own work. Over TLS the workers are openssl's server, and beside the time is what the client itself used
//! of the CPUs: the handshakes' other ends are on these CPUs, too.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::{BUILD_LIMIT, median, report};
use crate::paths::Paths;
use crate::process::{Running, cargo, free_port, output, wait_for};
use crate::step::Steps;
use crate::witness;

/// Workers that answer.
const WORKERS: usize = 500;
/// Rows of a worker's listing.
const ROWS: usize = 100;
/// Connections at a time of the client that only reads.
const AT_A_TIME: usize = 64;
/// Limit of the seconds of an answer: the deadline of a worker.
const ANSWER_S: f64 = 2.0;
/// Answers, the median of which counts.
const ANSWERS: usize = 7;
/// A program that was built already, to be measured instead of a release build.
const PROGRAM: &str = "SMTT_BENCH_CTL";
/// openssl's servers, which take one connection after another; each is half of the workers.
const SERVERS: usize = 2;
/// How long they may take to listen.
const START: Duration = Duration::from_secs(20);
const TOKEN: &str = "5f4dcc3b5aa765d61d8327deb882cf99";

/// Measures; needs neither root nor Spark.
pub(super) fn cluster(paths: &Paths, folder: &Path) -> Result<()> {
    let program = match std::env::var_os(PROGRAM) {
        Some(program) => program.into(),
        None => build(paths)?,
    };
    println!("measured: {}", program.display());
    fs::create_dir_all(folder)?;
    let listener = TcpListener::bind("0.0.0.0:0")?;
    let port = listener.local_addr()?.port();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let answer: Arc<str> = answer().into();
    let server = std::thread::spawn(move || serve(&listener, &answer, &stopped));
    let list: String = (0..WORKERS)
        .map(|number| format!("{}:{port}\n", address(number)))
        .collect();
    let hosts = folder.join("workers");
    fs::write(&hosts, list)?;
    let measured = measure(&program, &["--cluster".as_ref(), hosts.as_ref()], || {
        bare(port)
    });
    stop.store(true, Ordering::Relaxed);
    // The last connection ends the server.
    let _ = TcpStream::connect(("127.0.0.1", port));
    let _ = server.join();
    let (mut times, mut bare) = measured?;
    let detail = format!(
        "{WORKERS} workers of {ROWS} RDDs each, {ANSWERS} runs; a client that only reads: {:.2} s",
        median(&mut bare)
    );
    report(
        "an answer of 500 workers",
        median(&mut times),
        "s",
        ANSWER_S,
        &detail,
    );
    secured(&program, &folder.join("tls"))
}

/// Makes an authority, and one certificate for the addresses of all workers.
fn certificates(folder: &Path) -> Result<()> {
    let names = (0..WORKERS).map(|number| format!("IP:{}", address(number)));
    let names: Vec<String> = names.collect();
    let names = format!("subjectAltName={}\n", names.join(","));
    fs::write(folder.join("names"), names)?;
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for arguments in [
        format!("req -x509 {key} -keyout ca.key -out ca.crt -days 30 -subj /CN=authority"),
        format!("req {key} -keyout server.key -out server.csr -subj /CN=workers"),
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt -days 30 -extfile names".to_owned(),
    ] {
        let mut openssl = Command::new("openssl");
        output(openssl.args(arguments.split(' ')).current_dir(folder))?;
    }
    Ok(())
}

/// Measures over TLS with a token.
fn secured(program: &Path, folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    // openssl gives the file that has the name of the question.
    fs::create_dir_all(folder.join("v1"))?;
    fs::write(folder.join(format!("v1/rdds?limit={ROWS}")), answer())?;
    certificates(folder)?;
    let (mut servers, mut list) = (Vec::new(), String::new());
    for server in 0..SERVERS {
        let port = free_port()?;
        let mut command = Command::new("openssl");
        command
            .args(["s_server", "-HTTP", "-quiet", "-cert", "server.crt"])
            .args(["-key", "server.key", "-accept", &format!("0.0.0.0:{port}")])
            .current_dir(folder);
        let log = folder.join(format!("server-{server}.log"));
        servers.push(Running::start("openssl", &mut command, &log)?);
        wait_for("openssl listens", START, || {
            Ok(TcpStream::connect(("127.0.0.1", port)).ok())
        })?;
        for number in (server..WORKERS).step_by(SERVERS) {
            list += &format!("{}:{port}\n", address(number));
        }
    }
    let (hosts, token) = (folder.join("workers"), folder.join("token"));
    fs::write(&hosts, list)?;
    fs::write(&token, TOKEN)?;
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600))?;
    let authority = folder.join("ca.crt");
    let options: [&OsStr; 6] = [
        "--cluster".as_ref(),
        hosts.as_ref(),
        "--cacert".as_ref(),
        authority.as_ref(),
        "--token-file".as_ref(),
        token.as_ref(),
    ];
    let used_until_now = || witness::cpu_seconds_of_ended_children(std::process::id());
    let mut before = used_until_now()?;
    let (mut times, mut used) = measure(program, &options, || {
        // What the client of the last run used.
        let now = used_until_now()?;
        Ok(now - std::mem::replace(&mut before, now))
    })?;
    used.remove(0);
    used.push(used_until_now()? - before);
    let detail = format!(
        "{WORKERS} workers of {ROWS} RDDs each, {ANSWERS} runs; the client itself used {:.2} s of the CPUs",
        median(&mut used)
    );
    report(
        "the same over TLS with a token",
        median(&mut times),
        "s",
        ANSWER_S,
        &detail,
    );
    Ok(())
}

fn build(paths: &Paths) -> Result<PathBuf> {
    let log = paths.logs().join("build.log");
    Steps::new(1).always("release build of smtt-ctl", log, |step| {
        let mut cargo = cargo();
        cargo.args(["build", "--release", "--package", "smtt-ctl"]);
        step.run(cargo.current_dir(&paths.root), BUILD_LIMIT)
    })?;
    Ok(paths.target.join("release/smtt-ctl"))
}

/// Name of a worker's address.
fn address(number: usize) -> String {
    format!("127.1.{}.{}", number / 250, number % 250 + 1)
}

/// Seconds in which a client asks all workers, [`AT_A_TIME`] at a time, and drops what it reads.
fn bare(port: u16) -> Result<f64> {
    let begin = Instant::now();
    let next = AtomicUsize::new(0);
    let ask = || -> Result<usize> {
        let mut bytes = 0;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= WORKERS {
                return Ok(bytes);
            }
            let mut stream = TcpStream::connect((address(number).as_str(), port))?;
            stream.write_all(b"GET /v1/rdds?limit=100 HTTP/1.1\r\nHost: worker\r\n\r\n")?;
            let mut answer = Vec::new();
            bytes += stream.read_to_end(&mut answer)?;
        }
    };
    let bytes: Result<Vec<usize>> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(ask)).collect();
        let joined = started.into_iter().map(|thread| match thread.join() {
            Ok(bytes) => bytes,
            Err(_) => bail!("a thread of the client that only reads has panicked"),
        });
        joined.collect()
    });
    ensure!(
        bytes?.iter().sum::<usize>() > WORKERS * ROWS * 100,
        "answers are short"
    );
    Ok(begin.elapsed().as_secs_f64())
}

/// Seconds of each run with these options, and what `beside` gives before each.
fn measure(
    program: &Path,
    options: &[&OsStr],
    mut beside: impl FnMut() -> Result<f64>,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut times, mut others) = (Vec::new(), Vec::new());
    for _ in 0..ANSWERS {
        others.push(beside()?);
        let begin = Instant::now();
        let output = Command::new(program)
            .args(options)
            .args(["rdds", "--json", "--limit", "100"])
            .output()
            .context("smtt-ctl does not run")?;
        let time = begin.elapsed().as_secs_f64();
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let all: Value = serde_json::from_slice(&output.stdout)?;
        ensure!(
            all["rows_total"] == WORKERS * ROWS,
            "the listing has not the rows of all workers: {}",
            all["rows_total"]
        );
        ensure!(
            all["summary"]["page_faults"] == WORKERS * ROWS * 1000,
            "the sum is not that of the workers: {}",
            all["summary"]
        );
        println!("{time:.2} s; beside it {:.2} s", others[times.len()]);
        times.push(time);
    }
    Ok((times, others))
}

/// A listing as a daemon gives it.
fn answer() -> String {
    let rows: Vec<Value> = (0..ROWS)
        .map(|id| {
            json!({
                "application_id": "app-20260101120000-0001",
                "executor_id": "0",
                "pid": 4711,
                "uid": 1000,
                "rdd_id": id,
                "name": format!("MapPartitionsRDD of a job with names of some length, {id}"),
                "call_site": "count at PageRank.scala:77",
                "partitions_cached": 8,
                "page_faults": 1000,
                "page_faults_read": 400,
                "page_faults_write": 600,
                "page_faults_major": 0,
                "storage_memory_bytes": 1 << 20,
                "execution_memory_bytes": 0,
                "attributed_by": "context",
            })
        })
        .collect();
    let faults = ROWS * 1000;
    let body = json!({
        "rows": rows,
        "rows_total": ROWS,
        "summary": {
            "executors": 1,
            "drivers": 0,
            "page_faults": faults,
            "page_faults_attributed": faults,
            "page_faults_unattributed": 0,
            "unattributed_share": 0.0,
            "measured": {"page_faults": true, "access": true, "major": true},
            "executors_over_cap": 0,
        },
    })
    .to_string();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Answers each connection on a thread of its own.
fn serve(listener: &TcpListener, answer: &Arc<str>, stop: &AtomicBool) {
    for stream in listener.incoming().flatten() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let answer = Arc::clone(answer);
        std::thread::spawn(move || give(stream, &answer));
    }
}

fn give(mut stream: TcpStream, answer: &str) {
    let mut head = [0; 4096];
    if stream.read(&mut head).is_ok_and(|count| count > 0) {
        let _ = stream.write_all(answer.as_bytes());
    }
}
