//! Clients that begin and do not go on, in great number, beside one that asks.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::server::{Server, curl};
use super::{ANN, PROTECTED, secured};

/// What such a client sends: nothing, a part of a handshake, another protocol, or the beginning of a request.
const BEGINNINGS: [&[u8]; 4] = [
    b"",
    // The head of a record of 256 bytes with a ClientHello, and a part of it.
    b"\x16\x03\x01\x01\x00\x01\x00\x00\xfc\x03\x03",
    b"GET /api/v1/applications HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nX-Slow: ",
];

/// Time that the server gives a handshake and the head of a request.
const HEAD: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(600);

fn begin(port: u16, number: usize) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("sets a limit");
    // The server may have closed the connection.
    let _ = stream.write_all(BEGINNINGS[number % BEGINNINGS.len()]);
    Some(stream)
}

/// A connection was closed: an end or a reset, at most with an alert of TLS or a refusal, never with an answer.
fn is_closed_without_answer(mut stream: TcpStream, is_tls: bool) {
    let mut bytes = Vec::new();
    let error = stream.read_to_end(&mut bytes).err();
    let is_open = error.as_ref().is_some_and(|error| {
        let kind = error.kind();
        matches!(
            kind,
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
        )
    });
    assert!(!is_open, "a connection stays open");
    let said = String::from_utf8_lossy(&bytes);
    if is_tls {
        assert!(bytes.len() < 64 && !said.starts_with("HTTP"), "{said}");
    } else {
        assert!(bytes.is_empty() || said.starts_with("HTTP/1.1 4"), "{said}");
    }
}

#[test]
fn thousands_of_half_handshakes_hold_up_no_other_client() {
    let folder = secured("");
    let server = Server::start(folder.path(), &PROTECTED);
    let (port, made, stop) = (server.port(), AtomicUsize::new(0), AtomicBool::new(false));
    let slowest = std::thread::scope(|scope| {
        scope.spawn(|| {
            // More at a time than the server has places.
            let mut held = VecDeque::new();
            for number in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                held.extend(begin(port, number % 3));
                if held.len() > 400 {
                    held.pop_front();
                }
                made.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let _stop = StopAtEnd(&stop);
        let until = Instant::now() + LIMIT;
        let (mut times, mut late) = (Vec::new(), 0);
        while times.len() < 10 || made.load(Ordering::Relaxed) < 3000 {
            assert!(
                Instant::now() < until,
                "{} connections, {} answers, {late} late ones",
                made.load(Ordering::Relaxed),
                times.len()
            );
            let begin = Instant::now();
            let url = format!("{}api/v1/applications", server.url);
            // A handshake that takes longer than 256 new connections may be displaced, and is tried again.
            loop {
                let output = curl(folder.path(), &[&ANN[..], &["--fail", &url]].concat());
                if output.status.success() {
                    break;
                }
                assert!(Instant::now() < until, "{output:?}");
            }
            // On a busy machine some come after the time of a half handshake.
            match begin.elapsed() {
                time if time < HEAD => times.push(time),
                _ => late += 1,
            }
        }
        assert!(late <= times.len(), "{late} late ones, {}", times.len());
        times.into_iter().max().unwrap_or_default()
    });
    let made = made.into_inner();
    println!("{made} connections; the slowest answer in time took {slowest:?}");
    // Those that are left end by themselves.
    let left: Vec<_> = (0..30)
        .filter_map(|number| begin(port, number % 3))
        .collect();
    assert!(left.len() > 20, "{} connections", left.len());
    for stream in left {
        is_closed_without_answer(stream, true);
    }
}

#[test]
fn requests_that_do_not_end_hold_up_no_other_client() {
    let folder = secured("");
    let server = Server::start(folder.path(), &[]);
    let port = server.port();
    let beginnings = [0, 3];
    let until = Instant::now() + LIMIT;
    // On a busy machine the answer may come after the time of the half requests, which then proves nothing.
    let half = loop {
        let half: Vec<_> = (0..400)
            .filter_map(|number| begin(port, beginnings[number % 2]))
            .collect();
        assert!(half.len() > 300, "{} connections", half.len());
        let begin = Instant::now();
        let answer = server.ask_all(&["api/v1/applications"], &[]).remove(0);
        assert_eq!(answer.status, 200);
        let time = begin.elapsed();
        if time < HEAD {
            break half;
        }
        assert!(Instant::now() < until, "{time:?}");
    };
    for stream in half {
        is_closed_without_answer(stream, false);
    }
}

/// Stops the other thread of a test also when it fails.
struct StopAtEnd<'test>(&'test AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
