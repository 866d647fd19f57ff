//! Connections that carry several requests, and clients that do not read. The daemon's tests have those with one request.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream as Client};
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::*;

/// Few places, and times that a test can wait for.
const FEW: Limits = Limits {
    connections: 4,
    head: Duration::from_secs(30),
    stall: Duration::from_secs(30),
    life: Some(Duration::from_secs(60)),
    rate: None,
    kernel_bytes: 64 << 10,
    keep_alive: true,
};
/// How long the answer of `/slow` takes.
const WAIT: Duration = Duration::from_secs(4);
/// Bytes of the answer of `/long`: more than all buffers.
const LONG: usize = 64 << 20;
/// Bytes of the answer of `/kernel`: the server's kernel takes them at once, and a [`slow`] client does not.
const KERNEL: usize = 48 << 10;

/// Runs `ask` while a server with these limits has a thread of its own.
fn served(limits: Limits, ask: impl FnOnce(SocketAddr)) {
    counted(limits, &Arc::default(), ask);
}

/// The same; the server counts the requests for `/slow` that it has read.
fn counted(limits: Limits, begun: &Arc<AtomicUsize>, ask: impl FnOnce(SocketAddr)) {
    let begun = Arc::clone(begun);
    let (tell, told) = std::sync::mpsc::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
            tell.send(listener.local_addr().expect("has an address"))
                .expect("is awaited");
            let router = Router::new()
                .route("/", get(async || "hello"))
                .route("/long", get(async || vec![b'x'; LONG]))
                .route("/kernel", get(async || vec![b'x'; KERNEL]))
                .route(
                    "/slow",
                    get(move || {
                        begun.fetch_add(1, Ordering::Relaxed);
                        async {
                            sleep(WAIT).await;
                            "late"
                        }
                    }),
                );
            let until = async {
                let _ = stopped.await;
            };
            serve(listener, router, limits, None, |_| {}, until).await;
        });
    });
    ask(told.recv().expect("is served"));
    stop.send(()).expect("still serves");
    server.join().expect("no panic");
}

fn connect(address: SocketAddr) -> Client {
    let client = Client::connect(address).expect("connects");
    client
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("sets a limit");
    client
}

/// A client whose kernel takes few bytes that it has not read.
fn slow(address: SocketAddr) -> Client {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let connected = runtime.expect("a runtime").block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().expect("makes a socket");
        socket.set_recv_buffer_size(4096).expect("sets a limit");
        let stream = socket.connect(address).await.expect("connects");
        stream.into_std().expect("leaves the runtime")
    });
    connected.set_nonblocking(false).expect("may wait");
    connected
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("sets a limit");
    connected
}

/// Reads the answer of `/kernel`, in pieces with pauses.
fn read_kernel(client: &mut Client) -> usize {
    let (mut all, mut bytes) = (Vec::new(), [0; 4096]);
    loop {
        let count = client.read(&mut bytes).expect("the answer is whole");
        assert!(count > 0, "closed after {} bytes", all.len());
        all.extend_from_slice(&bytes[..count]);
        let head = all.windows(4).position(|it| it == b"\r\n\r\n");
        if let Some(head) = head
            && all.len() >= head + 4 + KERNEL
        {
            return all.len() - head - 4;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn ask(client: &mut Client, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    client.write_all(request.as_bytes()).expect("asks");
}

/// Reads until the answer ends with these words.
fn read(client: &mut Client, end: &str) {
    let (mut text, mut bytes) = (String::new(), [0; 1024]);
    while !text.ends_with(end) {
        let count = client.read(&mut bytes).expect("is answered");
        assert!(count > 0, "closed after {text:?}");
        text.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
}

/// Returns when the server knows that clients have the answers which they read before: it has run after its next check of
/// the kernel's queues.
fn settle(run: impl FnOnce()) {
    std::thread::sleep(CHECK * 5);
    run();
}

/// Waits for the end of a connection, and gives the bytes before it.
fn ended(client: &mut Client) -> (usize, Duration) {
    let (begin, mut all, mut bytes) = (Instant::now(), 0, [0; 1 << 16]);
    loop {
        match client.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => all += count,
            Err(error) => {
                let kind = error.kind();
                assert_eq!(kind, io::ErrorKind::ConnectionReset, "it is still open");
                break;
            }
        }
    }
    (all, begin.elapsed())
}

#[test]
fn a_connection_carries_requests_and_rests_make_room_for_new_ones() {
    served(FEW, |address| {
        let mut resting: Vec<Client> = (0..FEW.connections)
            .map(|_| {
                let mut client = connect(address);
                for _ in 0..3 {
                    ask(&mut client, "/");
                    read(&mut client, "hello");
                }
                // The server finds that the client has its answer when it checks the kernel's queue.
                std::thread::sleep(CHECK * 5);
                client
            })
            .collect();
        // The first one rests for the longest time when the last one has just been answered.
        ask(&mut resting[3], "/");
        read(&mut resting[3], "hello");
        std::thread::sleep(Duration::from_millis(100));
        let begin = Instant::now();
        let mut new = connect(address);
        ask(&mut new, "/");
        read(&mut new, "hello");
        let time = begin.elapsed();
        // Without room it would wait until the others have stalled.
        assert!(time < FEW.stall - Duration::from_secs(5), "{time:?}");
        assert_eq!(ended(&mut resting[0]).0, 0);
        for client in &mut resting[1..] {
            ask(client, "/");
            read(client, "hello");
        }
    });
}

#[test]
fn a_connection_between_two_requests_makes_room_before_an_answer_that_is_read_slowly() {
    served(FEW, |address| {
        let mut reading: Vec<Client> = (1..FEW.connections)
            .map(|_| {
                let mut client = connect(address);
                ask(&mut client, "/long");
                client
            })
            .collect();
        let mut resting = connect(address);
        ask(&mut resting, "/");
        read(&mut resting, "hello");
        // The server goes on only when it is read more than the kernel has.
        settle(|| {
            let mut some = vec![0; LONG / 4];
            reading[0].read_exact(&mut some).expect("it is answered");
        });
        // Those that read do so slowly: nothing can be written to them now.
        std::thread::sleep(Duration::from_millis(500));
        let mut new = connect(address);
        ask(&mut new, "/");
        read(&mut new, "hello");
        assert_eq!(ended(&mut resting).0, 0);
        for client in &mut reading {
            let mut some = vec![0; LONG / 4];
            client.read_exact(&mut some).expect("it goes on");
        }
    });
}

#[test]
fn a_client_that_still_reads_its_last_answer_from_the_kernel_does_not_rest() {
    served(FEW, |address| {
        let mut reading = slow(address);
        ask(&mut reading, "/kernel");
        // Complete for the server, and longer ago than the last answers of the others.
        std::thread::sleep(Duration::from_millis(300));
        let mut resting: Vec<Client> = (1..FEW.connections)
            .map(|_| {
                let mut client = connect(address);
                ask(&mut client, "/");
                read(&mut client, "hello");
                client
            })
            .collect();
        settle(|| {
            let last = resting.last_mut().expect("some rest");
            ask(last, "/");
            read(last, "hello");
        });
        let mut new = connect(address);
        ask(&mut new, "/");
        read(&mut new, "hello");
        assert_eq!(ended(&mut resting[0]).0, 0, "the first that rests goes");
        assert_eq!(read_kernel(&mut reading), KERNEL);
        // Then it rests as the others do, and carries another request.
        ask(&mut reading, "/");
        read(&mut reading, "hello");
    });
}

#[test]
fn the_time_for_the_next_request_begins_when_the_last_answer_is_with_the_client() {
    let limits = Limits {
        head: Duration::from_millis(500),
        ..FEW
    };
    served(limits, |address| {
        let mut reading = slow(address);
        ask(&mut reading, "/kernel");
        std::thread::sleep(limits.head * 4);
        assert_eq!(read_kernel(&mut reading), KERNEL);
        let (bytes, time) = ended(&mut reading);
        assert_eq!(bytes, 0);
        assert!(time < Duration::from_secs(15), "{time:?}");
    });
}

#[test]
fn a_client_that_ends_its_side_has_the_whole_answer() {
    served(FEW, |address| {
        let mut reading = slow(address);
        ask(&mut reading, "/kernel");
        std::thread::sleep(Duration::from_millis(300));
        reading.shutdown(std::net::Shutdown::Write).expect("ends");
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(read_kernel(&mut reading), KERNEL);
        assert_eq!(ended(&mut reading).0, 0);
    });
}

#[test]
fn a_client_that_does_not_read_from_the_kernel_is_closed() {
    let limits = Limits {
        stall: Duration::from_millis(500),
        ..FEW
    };
    served(limits, |address| {
        let mut client = slow(address);
        ask(&mut client, "/kernel");
        std::thread::sleep(Duration::from_secs(3));
        let (bytes, _) = ended(&mut client);
        assert!(bytes < KERNEL, "{bytes} bytes");
    });
}

#[test]
fn a_client_that_waits_for_its_second_answer_keeps_its_place() {
    let begun = Arc::<AtomicUsize>::default();
    counted(FEW, &begun, |address| {
        let mut waiting: Vec<Client> = (1..FEW.connections)
            .map(|_| {
                let mut client = connect(address);
                ask(&mut client, "/");
                read(&mut client, "hello");
                ask(&mut client, "/slow");
                client
            })
            .collect();
        let until = Instant::now() + Duration::from_secs(60);
        while begun.load(Ordering::Relaxed) < waiting.len() {
            assert!(Instant::now() < until, "the server has not read all");
            std::thread::sleep(Duration::from_millis(5));
        }
        let silent: Vec<Client> = (0..20).map(|_| connect(address)).collect();
        for client in &mut waiting {
            read(client, "late");
        }
        drop(silent);
    });
}

#[test]
fn a_second_request_has_the_time_of_a_head_too() {
    let limits = Limits {
        head: Duration::from_millis(500),
        ..FEW
    };
    served(limits, |address| {
        let mut half = connect(address);
        ask(&mut half, "/");
        read(&mut half, "hello");
        half.write_all(b"GET / HT").expect("sends");
        let mut resting = connect(address);
        ask(&mut resting, "/");
        read(&mut resting, "hello");
        for client in [&mut half, &mut resting] {
            let (_, time) = ended(client);
            assert!(time < Duration::from_secs(15), "{time:?}");
        }
    });
}

#[test]
fn a_client_that_does_not_read_is_closed_and_loses_what_the_kernel_has() {
    let limits = Limits {
        stall: Duration::from_millis(500),
        ..FEW
    };
    served(limits, |address| {
        let mut client = connect(address);
        ask(&mut client, "/long");
        std::thread::sleep(Duration::from_secs(3));
        let (bytes, _) = ended(&mut client);
        assert!(bytes < LONG / 2, "{bytes} bytes");
    });
}

#[test]
fn clients_that_do_not_read_make_room_for_one_that_does() {
    served(FEW, |address| {
        let greedy: Vec<Client> = (0..FEW.connections * 3)
            .map(|_| {
                let mut client = connect(address);
                ask(&mut client, "/long");
                client
            })
            .collect();
        std::thread::sleep(Duration::from_millis(300));
        let begin = Instant::now();
        let mut client = connect(address);
        ask(&mut client, "/");
        read(&mut client, "hello");
        let time = begin.elapsed();
        // Without room it would wait until the others have stalled.
        assert!(time < FEW.stall - Duration::from_secs(5), "{time:?}");
        drop(greedy);
    });
}

#[test]
fn the_time_of_a_connection_ends_between_two_requests() {
    let life = Duration::from_secs(16);
    let limits = Limits {
        life: Some(life),
        ..FEW
    };
    served(limits, |address| {
        let begin = Instant::now();
        let (mut rests, mut asks) = (connect(address), connect(address));
        for client in [&mut rests, &mut asks] {
            ask(client, "/");
            read(client, "hello");
        }
        // The answer begins before the half of the time, and ends after it, also on a busy machine.
        std::thread::sleep(life / 2 - WAIT * 3 / 4);
        ask(&mut asks, "/slow");
        read(&mut asks, "late");
        for client in [&mut asks, &mut rests] {
            assert_eq!(ended(client).0, 0);
        }
        assert!(begin.elapsed() < life - Duration::from_secs(1));
    });
}
