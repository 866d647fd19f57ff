//! A daemon in the process of a test, whose memory the test measures.
#![allow(dead_code, reason = "each test uses some of it")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use smtt_daemon::shared::{DaemonInfo, Shared};
use smtt_model::decode::{Event, ExecutorDescribed, Fact};
use smtt_model::state::{Limits, Outcome as Applied};

/// `MemoryMax=` of config/smtt.service.
const MEMORY_MAX: u64 = 256 << 20;

pub fn shared(limits: Limits) -> Arc<Shared> {
    let info = DaemonInfo {
        version: "test".to_owned(),
        kernel_side: "test".to_owned(),
        telemetry_path: "/metrics".to_owned(),
        metrics: smtt_daemon::metrics::MetricsSettings::at_once(1000),
        doctor: Vec::new,
    };
    Arc::new(Shared::new(info, limits))
}

pub fn apply(shared: &Shared, executor: u64, fact: Fact) -> Applied {
    shared.state().apply(Event {
        time_ns: 1_000_000,
        executor: executor << 32 | 1,
        pid: executor as u32,
        tid: 1,
        uid: 1000,
        fact,
    })
}

pub fn described(shared: &Shared, executor: u64) {
    let described = ExecutorDescribed {
        application_id: "app-20260101120000-0001".to_owned(),
        application_name: "An application with a name of usual length".to_owned(),
        executor_id: executor.to_string(),
        host: "worker-3.cluster.example".to_owned(),
        ..ExecutorDescribed::default()
    };
    apply(
        shared,
        executor,
        Fact::ExecutorDescribed(Box::new(described)),
    );
}

/// The largest resident memory of this process so far, in bytes.
pub fn peak() -> u64 {
    figure("VmHWM:")
}

pub fn figure(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc/self/status");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.trim().parse::<u64>().ok())
        .expect("a figure in kB")
        * 1024
}

/// Reads an answer to its end without keeping it: its status, and its bytes.
pub fn read(mut stream: impl Read + Write, path: &str) -> (u16, u64) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: smtt\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("asked");
    let (mut buffer, mut bytes, mut status) = ([0; 16 << 10], 0, 0);
    loop {
        let count = stream.read(&mut buffer).expect("an answer");
        if count == 0 {
            return (status, bytes);
        }
        if bytes == 0 {
            let head = std::str::from_utf8(&buffer[9..12]).expect("a status");
            status = head.parse().expect("a number");
        }
        bytes += count as u64;
    }
}

/// Runs a test in a process of its own, one at a time: it measures the memory of its process, and what earlier tests freed
/// stays with the process that they ran in.
pub fn alone(name: &str, test: impl FnOnce()) {
    const ALONE: &str = "SMTT_TEST_ALONE";
    static ONE: Mutex<()> = Mutex::new(());
    if std::env::var_os(ALONE).is_some() {
        test();
        return;
    }
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let own = std::env::current_exe().expect("this program");
    let output = Command::new(own)
        .args([name, "--exact", "--nocapture"])
        .env(ALONE, "1")
        .output()
        .expect("the test is started again");
    let (told, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    println!("{told}");
    // A name that no test has would run none, and pass.
    assert!(
        output.status.success() && told.contains("1 passed"),
        "in a process of its own: {}: {errors}",
        output.status
    );
}

pub fn within_memory() {
    let peak = peak();
    println!("peak {} MiB", peak >> 20);
    assert!(peak < MEMORY_MAX, "the peak is {} MiB", peak >> 20);
}

/// Asks for all paths at once, `times` each, over the socket; and for metrics over the port.
pub fn ask_all(
    socket: &Path,
    port: SocketAddr,
    paths: &[&str],
    times: usize,
) -> Vec<(String, u16, u64)> {
    std::thread::scope(|scope| {
        let mut asked = Vec::new();
        for path in paths.iter().copied() {
            for _ in 0..times {
                asked.push(scope.spawn(move || {
                    let stream = UnixStream::connect(socket).expect("connected");
                    let (status, bytes) = read(stream, path);
                    (path.to_owned(), status, bytes)
                }));
            }
        }
        for _ in 0..times {
            asked.push(scope.spawn(move || {
                let stream = TcpStream::connect(port).expect("connected");
                let (status, bytes) = read(stream, "/metrics");
                ("port /metrics".to_owned(), status, bytes)
            }));
        }
        let answers = asked
            .into_iter()
            .map(|answer| answer.join().expect("asked"));
        answers.collect()
    })
}
