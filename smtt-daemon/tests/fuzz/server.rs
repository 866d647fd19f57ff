//! Changed requests, over the socket and over the port.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::served::served;
use super::{changed, corpus, limits, rounds, shared, tried};

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(20);
/// Memory that the client of a case takes: the answer.
const MEMORY: usize = 16 << 20;
/// Memory of this process, with all its tests, in KiB: that of the systemd unit.
const RESIDENT_MAX: u64 = 256 << 10;

#[test]
fn changed_requests_leave_the_server_answering() {
    served(&shared(limits()), ask_changed);
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc/self/status");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let most = most.and_then(|most| most.trim().strip_suffix(" kB"));
    let most: u64 = most.and_then(|kib| kib.parse().ok()).expect("a figure");
    assert!(most < RESIDENT_MAX, "the process had {most} KiB");
}

/// Sends the bytes and reads the answer to its end. The server may close at any time: that is its right.
fn answer(mut stream: impl Read + Write, bytes: &[u8], shut: impl FnOnce()) -> String {
    let mut answer = Vec::new();
    let _ = stream.write_all(bytes);
    shut();
    if let Err(error) = stream.read_to_end(&mut answer) {
        let kind = error.kind();
        assert_ne!(
            kind,
            std::io::ErrorKind::WouldBlock,
            "no answer in {ANSWER:?}"
        );
    }
    String::from_utf8_lossy(&answer).into_owned()
}

fn ask_changed(path: &Path, port: SocketAddr) {
    let seeds = corpus("http");
    let ask = |bytes: &[u8], unix: bool| -> String {
        if unix {
            let stream = UnixStream::connect(path).expect("connected");
            let _ = stream.set_read_timeout(Some(ANSWER));
            answer(&stream, bytes, || drop(stream.shutdown(Shutdown::Write)))
        } else {
            let stream = TcpStream::connect(port).expect("connected");
            let _ = stream.set_read_timeout(Some(ANSWER));
            answer(&stream, bytes, || drop(stream.shutdown(Shutdown::Write)))
        }
    };
    rounds(|random| {
        let bytes = changed(random, &seeds);
        tried(&bytes, MEMORY, || {
            let answer = ask(&bytes, random.below(2) == 0);
            assert!(
                answer.is_empty() || answer.starts_with("HTTP/1."),
                "{answer}"
            );
            assert!(!answer.starts_with("HTTP/1.1 500"), "{answer}");
        });
    });
    // A whole request stays open for its answer: one whose client has shut down may be given up.
    let mut stream = TcpStream::connect(port).expect("connected");
    let request = b"GET /-/healthy HTTP/1.1\r\nHost: smtt\r\nConnection: close\r\n\r\n";
    stream.write_all(request).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
