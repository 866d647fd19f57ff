//! Changed bytes at every place where the daemon takes them from others: facts as streams into a state with all its
//! readers, requests, configuration, and texts of `/proc`. The seeds are in tests/corpus and in the marker's schema.
//!
//! A run is short and the same every time. `SMTT_FUZZ_SECONDS=600 SMTT_FUZZ_SEED=7` makes it longer and different. A
//! failure prints the bytes; put them into tests/corpus.

mod served;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use smtt_common::event::{MARKER_FACTS, RecordHeader};
use smtt_daemon::metrics::{Exporter, Format, Names, Reader};
use smtt_daemon::recorder::Tap;
use smtt_daemon::server;
use smtt_daemon::shared::{DaemonInfo, Shared};
use smtt_machine::proc;
use smtt_model::decode::{decode, encode};
use smtt_model::rows::{Filter, PagesBy};
use smtt_model::state::Limits;

use self::served::served;

/// Time of one test without `SMTT_FUZZ_SECONDS`.
const SECONDS: u64 = 2;

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

/// Numbers without a pattern, the same for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end.max(1)
    }
}

/// Runs `case` with random numbers until the time is over.
fn rounds(mut case: impl FnMut(&mut Random)) {
    let end = Instant::now() + Duration::from_secs(number("SMTT_FUZZ_SECONDS", SECONDS));
    let mut random = Random(number("SMTT_FUZZ_SEED", 1) | 1 << 40);
    let mut rounds = 0_u64;
    while Instant::now() < end {
        case(&mut random);
        rounds += 1;
    }
    println!("{rounds} rounds");
    assert!(rounds > 0);
}

/// Runs one case, and prints its bytes if it fails.
fn tried<T>(bytes: &[u8], case: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(case)) {
        Ok(value) => value,
        Err(panic) => {
            eprintln!("failed on {:?}", String::from_utf8_lossy(bytes));
            eprintln!("bytes {bytes:02x?}");
            std::panic::resume_unwind(panic)
        }
    }
}

/// A seed with a few changes: bits, bytes, words, cuts, repetitions, parts of another seed.
fn changed(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    const WORDS: [u64; 8] = [
        0,
        1,
        255,
        u32::MAX as u64,
        1 << 32,
        1 << 62,
        u64::MAX - 1,
        u64::MAX,
    ];
    let mut bytes = seeds[random.below(seeds.len())].clone();
    for _ in 0..random.below(6) {
        let at = random.below(bytes.len());
        let length = random.below(32).min(bytes.len() - at);
        match random.below(8) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 if !bytes.is_empty() => bytes[at] = random.next() as u8,
            2 => {
                let word = WORDS[random.below(WORDS.len())].to_le_bytes();
                let end = bytes.len().min(at + word.len());
                bytes[at..end].copy_from_slice(&word[..end - at]);
            }
            3 => bytes.truncate(at),
            4 => drop(bytes.drain(at..at + length)),
            5 => {
                let part = bytes[at..at + length].to_vec();
                let times = 1 + random.below(100);
                bytes.splice(at..at, part.repeat(times));
            }
            6 => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len());
                let to = (from + random.below(64)).min(other.len());
                bytes.splice(at..at, other[from..to].iter().copied());
            }
            _ => bytes.insert(at, b"\0\n\r :?&=%\"'[]{}/\xff\xc0"[random.below(18)]),
        }
    }
    bytes
}

fn corpus(of: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/corpus");
    let folder = folder.join(of);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("a folder of the corpus")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    let read = |path: &PathBuf| std::fs::read(path).expect("a file of the corpus");
    files.iter().map(read).collect()
}

fn shared(limits: Limits) -> Arc<Shared> {
    let info = DaemonInfo {
        version: "test".to_owned(),
        kernel_side: "test".to_owned(),
        telemetry_path: "/metrics".to_owned(),
        metrics: smtt_daemon::metrics::MetricsSettings::at_once(4),
        doctor: Vec::new,
    };
    Arc::new(Shared::new(info, limits))
}

/// Small tables, so that every one of them gets full.
fn limits() -> Limits {
    Limits {
        executors: 3,
        rdds_per_executor: 4,
        tasks_per_executor: 8,
        stages_per_executor: 4,
        blocks_per_executor: 4,
        spark_pages_per_executor: 4,
        ranges_per_executor: 8,
        ..Limits::default()
    }
}

/// A payload of each kind of the marker's facts, with small numbers, so that facts speak of the same things.
fn facts() -> Vec<(u16, Vec<u8>)> {
    let fact = |seed: u64| {
        MARKER_FACTS.iter().map(move |schema| {
            let mut words = vec![seed % 3; schema.words.len()];
            let ranges = [(seed << 20, 4096), ((seed + 1) << 20, 1)];
            if let (true, Some(count)) = (schema.ranges, words.last_mut()) {
                *count = ranges.len() as u64;
            }
            let text = format!("rdd_{}_{}", seed % 4, seed % 2);
            let strings = vec![text.as_str(); schema.strings.len()];
            let ranges = if schema.ranges { &ranges[..] } else { &[] };
            let payload = encode::payload(&words, ranges, &strings);
            (schema.kind.0, payload)
        })
    };
    (0..6).flat_map(fact).collect()
}

#[test]
fn streams_of_changed_facts_leave_a_state_that_all_readers_can_read() {
    let seeds = facts();
    let payloads: Vec<Vec<u8>> = seeds.iter().map(|(_, payload)| payload.clone()).collect();
    rounds(|random| {
        let shared = shared(limits());
        let mut tap = Tap::new(None, Arc::clone(shared.followers()));
        for step in 0..200 {
            let (kind, honest) = &seeds[random.below(seeds.len())];
            let payload = match random.below(3) {
                0 => honest.clone(),
                _ => changed(random, &payloads),
            };
            let kind = match random.below(50) {
                0 => random.next() as u16,
                _ => *kind,
            };
            let mut header = RecordHeader {
                kind,
                payload_bytes: payload.len() as u32,
                time_ns: match random.below(20) {
                    0 => random.next(),
                    _ => step * 1_000_000,
                },
                executor: random.below(5) as u64,
                pid: random.below(5) as u32,
                tid: random.below(9) as u32,
                ..RecordHeader::default()
            };
            header.node_plus_one = random.below(3) as u16;
            tried(&payload, || {
                let Ok(event) = decode(&header, &payload) else {
                    return;
                };
                let mut state = shared.state();
                tap.record_access(&state, &event);
                state.apply(event);
            });
        }
        let state = shared.state();
        let all = Filter::default();
        let _ = state.list_executors(&all);
        let _ = (state.list_stages(&all), state.list_tasks(&all));
        let _ = (state.list_rdds(&all), state.list_blocks(&all));
        let _ = (state.list_history(&all), state.marker_counts());
        for by in [
            PagesBy::Rdd,
            PagesBy::Block,
            PagesBy::Task,
            PagesBy::Executor,
        ] {
            let _ = state.list_pages(&all, by);
        }
        drop(state);
        let _ = (shared.status(), server::report(&shared, &all));
        let exporter = Exporter::new(shared.info().metrics);
        for names in [Names::Shown, Names::Hidden] {
            let text = exporter.scrape(&shared, Format::Text, names, Reader::Scraper);
            let text = text.expect("written");
            let mut series: Vec<&str> = text
                .lines()
                .filter(|line| !line.starts_with('#'))
                .filter_map(|line| line.rsplit_once(' ').map(|(series, _)| series))
                .collect();
            let count = series.len();
            series.sort_unstable();
            series.dedup();
            assert_eq!(series.len(), count, "a series comes twice:\n{text}");
        }
    });
}

#[test]
fn changed_requests_leave_the_server_answering() {
    served(&shared(limits()), ask_changed);
}

fn ask_changed(path: &Path, port: SocketAddr) {
    let seeds = corpus("http");
    let ask = |bytes: &[u8], unix: bool| -> String {
        let mut answer = Vec::new();
        // The server may close at any time: that is its right.
        if unix {
            let mut stream = UnixStream::connect(path).expect("connected");
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
            let _ = stream.read_to_end(&mut answer);
        } else {
            let mut stream = TcpStream::connect(port).expect("connected");
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
            let _ = stream.read_to_end(&mut answer);
        }
        String::from_utf8_lossy(&answer).into_owned()
    };
    rounds(|random| {
        let bytes = changed(random, &seeds);
        tried(&bytes, || {
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

#[test]
fn changed_configurations_are_refused_with_a_line_or_are_good() {
    let seeds = corpus("config");
    rounds(|random| {
        let bytes = changed(random, &seeds);
        let text = String::from_utf8_lossy(&bytes);
        tried(&bytes, || {
            if let Err(error) = smtt_config::parse(&text, Path::new("x.toml")) {
                assert!(error.to_string().contains("x.toml, line "), "{error}");
            }
        });
    });
}

#[test]
fn changed_texts_of_proc_are_read_or_refused() {
    let seeds = corpus("proc");
    rounds(|random| {
        let bytes = changed(random, &seeds);
        tried(&bytes, || {
            let text = String::from_utf8_lossy(&bytes);
            let _ = (proc::stat(&bytes), proc::start_ticks(&text));
            let _ = proc::innermost_id(&text);
            for line in text.lines() {
                if let Some((range, name)) = proc::mapping(line) {
                    assert!(name.starts_with('/') && !range.contains(' '));
                }
            }
        });
    });
}
