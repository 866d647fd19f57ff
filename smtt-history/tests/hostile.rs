//! Logs that are made to take memory or time, imported by the program. The kernel says what the program took: the peak of
//! its resident memory and its CPU time. No log is on the disk at its length.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_smtt-history");
const START: &str = r#"{"Event":"SparkListenerApplicationStart","App Name":"n","App ID":"app-1","Timestamp":1000,"User":"u"}"#;
const END: &str = r#"{"Event":"SparkListenerApplicationEnd","Timestamp":9000}"#;
const MIB: u64 = 1 << 20;
/// Bytes of the long line.
const LINE: u64 = 1 << 30;
/// Bytes of a block of lz4 and snappy.
const BLOCK: u64 = 4 * MIB;
/// Memory that an import of a long line may take: the longest line that is kept has 64 MiB, and is copied as it grows.
const LINE_MEMORY: u64 = 200 * MIB;
/// Memory of 100,000 stages in one job. The bound of what is live is 256 MiB, estimated.
const STAGES_MEMORY: u64 = 600 * MIB;

/// Memory of a server that has opened the application: its documents have 137 MB of text.
const OPEN_MEMORY: u64 = 400 * MIB;
/// The same text as an answer.
const STAGES_ANSWER: u64 = 140 * MIB;

/// What an import took.
#[derive(Clone, Copy, Debug)]
struct Took {
    is_whole: bool,
    memory: u64,
    cpu: Duration,
}

#[expect(
    clippy::zombie_processes,
    reason = "`wait4` waits for the child, and says what it took"
)]
fn import(folder: &Path, log: &Path) -> (Took, String) {
    let said = folder.join("said");
    let to = File::create(&said).expect("creates");
    let mut command = Command::new(PROGRAM);
    command.arg("import").arg("--replace").arg("--store");
    command.arg(folder.join("store")).arg(log);
    command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .stdout(to);
    let child = command.spawn().expect("starts");
    let pid = libc::pid_t::try_from(child.id()).expect("is a pid");
    let mut status = 0;
    // SAFETY: `rusage` is made of integers, for which zero is a value.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both outlive the call, and the child is this process's, which waits for it here only.
    let waited = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut used) };
    assert_eq!(waited, pid, "wait4");
    assert!(
        libc::WIFEXITED(status),
        "the import was killed: {status:#x}"
    );
    let seconds =
        |time: libc::timeval| Duration::new(time.tv_sec as u64, 1000 * time.tv_usec as u32);
    let took = Took {
        is_whole: libc::WEXITSTATUS(status) == 0,
        memory: 1024 * used.ru_maxrss as u64,
        cpu: seconds(used.ru_utime) + seconds(used.ru_stime),
    };
    (took, fs::read_to_string(said).expect("reads"))
}

/// One block of a codec's stream.
fn block(codec: &str, plain: &[u8]) -> Vec<u8> {
    match codec {
        "lz4" => {
            let packed = lz4_flex::block::compress(plain);
            let mut block = b"LZ4Block\x26".to_vec();
            block.extend((packed.len() as u32).to_le_bytes());
            block.extend((plain.len() as u32).to_le_bytes());
            let sum = twox_hash::XxHash32::oneshot(0x9747_b28c, plain) & 0x0fff_ffff;
            block.extend(sum.to_le_bytes());
            block.extend(packed);
            block
        }
        _ => {
            let mut encoder = snap::raw::Encoder::new();
            let packed = encoder.compress_vec(plain).expect("compresses");
            let mut block = (packed.len() as u32).to_be_bytes().to_vec();
            block.extend(packed);
            block
        }
    }
}

/// Writes a log with a line of [`LINE`] bytes between two events.
fn long_line(log: &Path, codec: &str) {
    let (before, after) = (format!("{START}\n"), format!("\n{END}\n"));
    let mut out = BufWriter::new(File::create(log).expect("creates"));
    let line = vec![b'['; BLOCK as usize];
    match codec {
        "plain" => {
            // A hole: a line of zeros that has no room on the disk.
            out.write_all(before.as_bytes()).expect("writes");
            out.seek(SeekFrom::Current(LINE as i64)).expect("seeks");
            out.write_all(after.as_bytes()).expect("writes");
        }
        "zstd" => {
            let mut packed = zstd::stream::write::Encoder::new(&mut out, 1).expect("begins");
            packed.write_all(before.as_bytes()).expect("compresses");
            for _ in 0..LINE / BLOCK {
                packed.write_all(&line).expect("compresses");
            }
            packed.write_all(after.as_bytes()).expect("compresses");
            packed.finish().expect("ends");
        }
        _ => {
            if codec == "snappy" {
                out.write_all(b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01")
                    .expect("writes");
            }
            let same = block(codec, &line);
            out.write_all(&block(codec, before.as_bytes()))
                .expect("writes");
            for _ in 0..LINE / BLOCK {
                out.write_all(&same).expect("writes");
            }
            out.write_all(&block(codec, after.as_bytes()))
                .expect("writes");
        }
    }
    out.into_inner().expect("writes").sync_all().expect("syncs");
}

#[test]
fn a_line_of_a_gibibyte_takes_no_more_memory_than_the_longest_line_that_is_kept() {
    for codec in ["plain", "zstd", "lz4", "snappy"] {
        let folder = tempfile::tempdir().expect("makes a folder");
        let log = match codec {
            "plain" => folder.path().join("log"),
            codec => folder.path().join(format!("log.{codec}")),
        };
        long_line(&log, codec);
        let on_disk = {
            use std::os::unix::fs::MetadataExt as _;
            512 * fs::metadata(&log).expect("is there").blocks()
        };
        assert!(on_disk < 64 * MIB, "{codec}: {on_disk} bytes on the disk");
        let (took, said) = import(folder.path(), &log);
        println!("{codec}: {took:?}, {on_disk} bytes on the disk");
        // Two events and the long line between them, which makes the import an incomplete one.
        assert!(
            said.contains(": 0 tasks, 3 lines of 1"),
            "{codec}: {said:?}"
        );
        assert!(!took.is_whole, "{codec}: the long line is not named");
        assert!(took.memory < LINE_MEMORY, "{codec}: {took:?}");
        assert!(took.cpu < Duration::from_secs(120), "{codec}: {took:?}");
    }
}

/// Writes a log with one job of so many stages, each submitted and completed.
fn stages(log: &Path, count: u32) {
    let mut out = BufWriter::new(File::create(log).expect("creates"));
    let stage = |id: u32| {
        format!(
            r#"{{"Stage ID":{id},"Stage Attempt ID":0,"Stage Name":"s","Number of Tasks":1,"RDD Info":[],"Details":"","Submission Time":2000,"Completion Time":3000,"Accumulables":[]}}"#
        )
    };
    let mut line = |text: &str| writeln!(out, "{text}").expect("writes");
    line(START);
    let infos: Vec<String> = (0..count).map(stage).collect();
    let ids: Vec<u32> = (0..count).collect();
    line(&format!(
        r#"{{"Event":"SparkListenerJobStart","Job ID":0,"Submission Time":1500,"Stage Infos":[{}],"Stage IDs":{ids:?},"Properties":{{}}}}"#,
        infos.join(",")
    ));
    for id in 0..count {
        let info = stage(id);
        line(&format!(
            r#"{{"Event":"SparkListenerStageSubmitted","Stage Info":{info},"Properties":{{}}}}"#
        ));
        line(&format!(
            r#"{{"Event":"SparkListenerStageCompleted","Stage Info":{info}}}"#
        ));
    }
    line(END);
    out.flush().expect("writes");
}

#[test]
fn ten_times_as_many_stages_take_ten_times_the_time_and_memory() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let took = [10_000_u32, 100_000].map(|count| {
        let log = folder.path().join(format!("log-{count}"));
        stages(&log, count);
        let (took, said) = import(folder.path(), &log);
        let lines = format!(": 0 tasks, {} lines", 2 * count + 3);
        assert!(took.is_whole && said.contains(&lines), "{took:?} {said:?}");
        println!("{count} stages: {took:?}");
        took
    });
    let [few, many] = took;
    // Linear work is ten times as much, quadratic work a hundred times. CPU time does not depend on other processes' load.
    assert!(many.cpu < 20 * few.cpu, "{few:?}, then {many:?}");
    assert!(many.memory < 15 * few.memory, "{few:?}, then {many:?}");
    assert!(many.memory < STAGES_MEMORY, "{many:?}");

    // The store has the application of 100,000 stages now.
    let server = Server::start(&folder.path().join("store"));
    for (path, most) in [
        ("/applications/app-1/stages", OPEN_MEMORY),
        ("/applications/app-1/stages?sort=-duration", OPEN_MEMORY),
        ("/applications/app-1/stages?q=nothing", OPEN_MEMORY),
        (
            "/api/v1/applications/app-1/stages",
            OPEN_MEMORY + STAGES_ANSWER,
        ),
    ] {
        let bytes = server.ask(path);
        let memory = server.memory();
        println!("{path}: {bytes} bytes, peak {} MiB", memory / MIB);
        assert!(memory < most, "{path}: {} MiB", memory / MIB);
    }
}

/// A running server; it is killed when this is dropped.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(store: &Path) -> Self {
        let mut command = Command::new(PROGRAM);
        command.arg("serve").arg("--store").arg(store);
        command.args(["--listen", "127.0.0.1:0"]);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("an output");
        BufReader::new(output)
            .read_line(&mut line)
            .expect("an address");
        let port = line.trim().trim_end_matches('/').rsplit(':').next();
        let port = port.and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("no port: {line:?}"));
        Self { child, port }
    }

    /// Asks for a path, and returns the bytes of the answer.
    fn ask(&self, path: &str) -> u64 {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("connects");
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        )
        .expect("asks");
        let mut head = [0; 12];
        stream.read_exact(&mut head).expect("answers");
        assert_eq!(&head, b"HTTP/1.1 200", "{path}");
        std::io::copy(&mut stream, &mut std::io::sink()).expect("answers")
    }

    /// The largest resident memory so far.
    fn memory(&self) -> u64 {
        let status = format!("/proc/{}/status", self.child.id());
        let status = fs::read_to_string(status).expect("lives");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        1024 * kib.expect("a figure")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
