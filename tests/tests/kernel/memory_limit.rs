//! The daemon in a cgroup with the memory of its unit: its tables full, all attackers at work, everything asked at once by
//! many clients. What the kernel holds for it counts there too: eBPF tables, sockets, page tables.
//!
//! The witnesses are the cgroup's own count of what the OOM killer ended, and its peak.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use smtt_tests::attackers::{Attackers, PER_SECOND, Scene};
use smtt_tests::cgroup::MemoryCgroup;
use smtt_tests::skip::skip;
use smtt_tests::witness;
use xtask::daemon::{Daemon, Options};
use xtask::process::{is_root, wait_for};

use crate::lab::{Workload, daemon_alone};

/// Clients of each path that ask at the same time.
const CLIENTS: usize = 4;
/// Clients that ask and never read, for the metrics and for the records.
const SILENT: usize = 12;
/// How long an answer may take beside everything else.
const ANSWER: Duration = Duration::from_secs(120);
/// Paths whose answer never ends, or that take the id of a death.
const ENDLESS: [&str; 2] = ["/v1/trace/follow", "/v1/postmortem/report"];
/// Bytes of tasks and blocks, as JSON, that show that the tables are full.
const FULL: u64 = 32 << 20;
/// Executors that fill the tables, the rows of each kind that each reports, and the first of their users.
const EXECUTORS: u32 = 16;
const ROWS: u32 = 1600;
const FIRST_USER: u32 = 70_000;
/// Rounds of questions begin within this time.
const ASKING: Duration = Duration::from_secs(20);
/// Exit code of `smtt-ctl` where the daemon did not answer.
const NOT_ANSWERED: i32 = 69;
/// Every listing of `smtt-ctl`. `advise` and `report` read the most rows.
const LISTINGS: [&[&str]; 18] = [
    &["status"],
    &["executors"],
    &["jobs"],
    &["queries"],
    &["stages"],
    &["stages", "--summary"],
    &["stages", "--peaks"],
    &["tasks"],
    &["tasks", "--failed"],
    &["rdds", "--all"],
    &["blocks"],
    &["memory"],
    &["memory", "--peaks"],
    &["pages"],
    &["pages", "--blocks"],
    &["report"],
    &["advise", "--all"],
    &["postmortem"],
];

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// `MemoryMax=` of the unit, in bytes.
fn memory_max() -> Result<u64> {
    let unit = fs::read_to_string(repository().join("config/smtt.service"))?;
    let max = unit
        .lines()
        .find_map(|line| line.strip_prefix("MemoryMax="));
    let mebibytes = max.and_then(|max| max.strip_suffix('M'));
    let mebibytes: u64 = mebibytes.context("MemoryMax= in MiB")?.parse()?;
    Ok(mebibytes << 20)
}

/// All paths whose answers end, as docs/API.md has them.
fn paths() -> Result<Vec<String>> {
    let text = fs::read_to_string(repository().join("docs/API.md"))?;
    let paths = text.lines().filter_map(|line| line.strip_prefix("| `"));
    let paths =
        paths.filter_map(|line| Some(line.split_once('`')?.0.replace("{listing}", "tasks")));
    let ends = |path: &String| path.starts_with('/') && !ENDLESS.contains(&path.as_str());
    let paths: Vec<String> = paths.filter(ends).collect();
    ensure!(paths.len() > 20, "docs/API.md has the paths {paths:?}");
    Ok(paths)
}

fn question(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: smtt\r\nConnection: close\r\n\r\n")
}

/// Reads an answer to its end without keeping it: its status and its bytes. A connection that the server closes at once has
/// status 0: it serves no more at a time.
fn read(mut stream: impl Read + Write, path: &str) -> Result<(u16, u64)> {
    let closed = |error: &std::io::Error| {
        matches!(
            error.kind(),
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
        )
    };
    match stream.write_all(question(path).as_bytes()) {
        Err(error) if closed(&error) => return Ok((0, 0)),
        asked => asked?,
    }
    let (mut buffer, mut bytes, mut status) = ([0; 16 << 10], 0, 0);
    loop {
        let count = match stream.read(&mut buffer) {
            Err(error) if closed(&error) => return Ok((status, bytes)),
            count => count.with_context(|| path.to_owned())?,
        };
        if count == 0 {
            return Ok((status, bytes));
        }
        if bytes == 0 {
            let head = std::str::from_utf8(buffer.get(9..12).context("a status")?)?;
            status = head.parse()?;
        }
        bytes += count as u64;
    }
}

fn ask(socket: &Path, path: &str) -> Result<(u16, u64)> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER))?;
    read(stream, path)
}

/// Asks for all paths at once, over the socket, and for the metrics over the port. Returns the answers.
fn ask_all(daemon: &Daemon, paths: &[String]) -> Result<Vec<(String, u16, u64)>> {
    thread::scope(|scope| {
        let mut asked = Vec::new();
        for path in paths {
            for _ in 0..CLIENTS {
                asked.push(scope.spawn(move || {
                    let (status, bytes) = ask(daemon.socket(), path)?;
                    Ok::<_, anyhow::Error>((path.clone(), status, bytes))
                }));
            }
        }
        for _ in 0..CLIENTS {
            asked.push(scope.spawn(move || {
                let stream = TcpStream::connect(("127.0.0.1", daemon.port))?;
                stream.set_read_timeout(Some(ANSWER))?;
                let (status, bytes) = read(stream, "/metrics")?;
                Ok(("/metrics of the port".to_owned(), status, bytes))
            }));
        }
        for listing in LISTINGS {
            asked.push(scope.spawn(move || {
                let output = daemon.command(listing).arg("--json").output()?;
                let status = match output.status.code() {
                    Some(0 | 1) => 200,
                    // The daemon had no turn or no connection for it.
                    Some(NOT_ANSWERED) => 503,
                    _ => bail!(
                        "smtt-ctl {listing:?}: {}, {}",
                        output.status,
                        String::from_utf8_lossy(&output.stderr)
                    ),
                };
                let bytes = output.stdout.len() as u64;
                Ok((format!("smtt-ctl {}", listing.join(" ")), status, bytes))
            }));
        }
        let answers = asked.into_iter().map(|answer| {
            let answer = answer.join();
            answer.map_err(|_| anyhow::anyhow!("a client panicked"))?
        });
        answers.collect()
    })
}

/// Executors of four users whose rows fill all tables, at once. They live until this is dropped.
fn fill() -> Result<Vec<Workload>> {
    let mut executors = Vec::new();
    for number in 0..EXECUTORS {
        let user = format!("uid={}", FIRST_USER + number % 4);
        let rows = format!("rows={ROWS}");
        executors.push(Workload::start("fill", &[&user, &rows, "name=java"])?);
    }
    for executor in &mut executors {
        executor.go()?;
    }
    for executor in &mut executors {
        executor.done()?;
    }
    Ok(executors)
}

#[test]
fn full_tables_and_all_questions_at_once_fit_the_memory_of_the_unit() -> Result<()> {
    if !is_root() {
        return skip("root", "the daemon needs CAP_BPF and CAP_PERFMON");
    }
    let max = memory_max()?;
    let Some(group) = MemoryCgroup::make("daemon", max)? else {
        return skip("memory_cgroup", "no cgroup with a memory limit can be made");
    };
    // The priority of the unit, as in the test of the victim.
    let priority = ["nice", "-n", "-5"].map(str::to_owned);
    let options = Options {
        launcher: priority.into_iter().chain(group.launcher()).collect(),
        ..Options::default()
    };
    let Some(daemon) = daemon_alone(&options)? else {
        return Ok(());
    };
    let paths = paths()?;
    let pid = daemon.pid();
    println!("{} MiB when it is ready", group.peak_bytes()? >> 20);

    let _executors = fill()?;
    wait_for("the tables are full", Duration::from_secs(60), || {
        let (status, bytes) = ask(daemon.socket(), "/v1/tasks")?;
        let (_, blocks) = ask(daemon.socket(), "/v1/blocks")?;
        println!(
            "/v1/tasks: {status}, {} MiB, /v1/blocks {} MiB; {} MiB at most",
            bytes >> 20,
            blocks >> 20,
            group.peak_bytes()? >> 20
        );
        Ok((bytes + blocks > FULL).then_some(()))
    })?;

    // All attackers beside them, and clients that do not read.
    let scene = Scene::new()?;
    fs::write(scene.own.join("victim"), fs::read(&scene.library)?)?;
    fs::write(scene.own.join("port"), daemon.port.to_string())?;
    let rate = format!("per_second={PER_SECOND}");
    let victim = Workload::start("victim", &[&rate, "name=java"])?;
    let mut attackers = Attackers::start(&scene, victim.pid())?;
    let mut silent = Vec::new();
    for _ in 0..SILENT {
        for path in ["/v1/trace/follow", "/v1/tasks"] {
            let mut stream = UnixStream::connect(daemon.socket())?;
            // The server may close it before.
            let _ = stream.write_all(question(path).as_bytes());
            silent.push(stream);
        }
    }
    let begin = Instant::now();
    let mut round = 0;
    while round == 0 || begin.elapsed() < ASKING {
        round += 1;
        attackers.step()?;
        for (path, status, bytes) in ask_all(&daemon, &paths)? {
            println!("{round}: {path}: {status}, {bytes} bytes");
            ensure!(matches!(status, 0 | 200 | 503), "{path}: status {status}");
        }
    }
    println!("asked for {:?}", begin.elapsed());
    drop(silent);
    attackers.all_alive()?;
    // Without the silent clients each is answered in its turn.
    for listing in LISTINGS {
        ensure!(!daemon.ask(listing)?.is_empty(), "smtt-ctl {listing:?}");
    }
    for path in &paths {
        let (status, bytes) = ask(daemon.socket(), path)?;
        ensure!(status == 200 && bytes > 0, "{path}: status {status}");
    }

    let peak = group.peak_bytes()?;
    let resident = witness::resident_peak_bytes(pid).context("the daemon has ended")?;
    println!(
        "the cgroup had {} MiB at most, the daemon's process {} MiB",
        peak >> 20,
        resident >> 20
    );
    ensure!(
        group.oom_kills()? == 0,
        "the OOM killer ended {} processes",
        group.oom_kills()?
    );
    // At the limit the kernel would have taken memory back, and the peak would show no more.
    ensure!(peak < max, "the cgroup had {peak} bytes: its limit");
    // The process that was started, not a later one.
    ensure!(daemon.pid() == pid && witness::faults(pid).is_ok());
    Ok(())
}
