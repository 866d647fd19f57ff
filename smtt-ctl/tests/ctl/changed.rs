//! `--cluster` beside a worker whose answers are those of a real daemon, changed at random: the program ends by itself, its
//! output has no harmful character and a bounded size, and the rows of the other worker are there. [`rounds`] has what makes
//! a run longer and different, and how a failure is repeated.

#[expect(dead_code, reason = "this fuzzer has rounds of its own")]
#[path = "../../../smtt-daemon/tests/fuzz/rounds.rs"]
mod rounds;

use std::io::Write as _;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::Value;

use self::rounds::Random;
use super::workers::{Workers, head, passed_on, rows, text, worker};

/// Time of a run without `SMTT_FUZZ_SECONDS`.
const SECONDS: u64 = 8;
/// Bytes of an output at most: the changed answers are small.
const OUTPUT: usize = 1 << 20;

/// What is asked, and whether the answer of the worker that is as it should be has its executor's id in it.
const QUESTIONS: [&[&str]; 14] = [
    &["executors", "--plain"],
    &["executors", "--json"],
    &["stages"],
    &["stages", "--summary"],
    &["stages", "--peaks"],
    &["tasks"],
    &["rdds"],
    &["rdds", "--by", "name"],
    &["blocks"],
    &["memory"],
    &["jobs"],
    &["queries"],
    &["advise"],
    &["report"],
];

/// Values that take the place of others.
const VALUES: [&[u8]; 12] = [
    b"null",
    b"-1",
    b"18446744073709551615",
    b"1e999",
    b"0.1",
    b"\"\"",
    b"[]",
    b"{}",
    b"true",
    b"\"\\u001b[2J\\u202e\"",
    b"\"\\ud800\"",
    b"9223372036854775808",
];

/// The place of a value in a text of JSON: behind a colon, up to the next comma or bracket.
fn value(random: &mut Random, bytes: &[u8]) -> Option<std::ops::Range<usize>> {
    let from = random.below(bytes.len());
    let begin = from + bytes[from..].iter().position(|byte| *byte == b':')? + 1;
    let length = bytes[begin..]
        .iter()
        .position(|byte| b",}]".contains(byte))?;
    Some(begin..begin + length)
}

fn changed(random: &mut Random, answer: &[u8]) -> Vec<u8> {
    let mut bytes = answer.to_vec();
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len());
        match random.below(12) {
            0 => bytes.truncate(at),
            1 => bytes[at] ^= 1 << random.below(8),
            2 => drop(bytes.splice(at..at, *b"\x1b]0;x\x07\xff\0")),
            3 => {
                let end = at + random.below((bytes.len() - at).min(200));
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            4 => {
                let end = at + random.below((bytes.len() - at).min(200));
                bytes.drain(at..end);
            }
            _ => {
                let other = VALUES[random.below(VALUES.len())];
                if let Some(at) = value(random, &bytes) {
                    bytes.splice(at, other.iter().copied());
                }
            }
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

/// Asks both workers, checks the output, and returns whether the changed answer was refused.
fn asked(workers: &Workers, addresses: &[SocketAddr], question: &[&str]) -> bool {
    let output = workers.ctl(addresses, question);
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    let about = format!("{question:?}: {output:?}");
    // 101 is a panic; no code is a signal.
    assert!(matches!(output.status.code(), Some(0..100)), "{about}");
    let is_harmful = |it: char| it.is_control() && !matches!(it, '\n' | '\t') || it == '\u{202e}';
    assert!(
        !out.contains(is_harmful) && !errors.contains(is_harmful),
        "{about}"
    );
    assert!(out.len() + errors.len() < OUTPUT, "{about}");
    if question == ["executors", "--json"] {
        let answer: Value = serde_json::from_str(&out).expect("JSON");
        let rows = rows(&answer["rows"]).iter();
        let good = workers.ports[0].address.to_string();
        let of_good: Vec<_> = rows.filter(|row| row["worker"] == good.as_str()).collect();
        assert_eq!(of_good.len(), 1, "{about}");
        assert_eq!(of_good[0]["executor_id"], "0", "{about}");
    }
    errors.contains("answered wrongly")
}

#[test]
fn changed_answers_of_a_worker_harm_neither_the_program_nor_the_rows_of_others() {
    let (seed, time) = (rounds::seed(), rounds::time(SECONDS));
    println!("SMTT_FUZZ_SEED={seed}");
    let workers = Workers::start();
    let real = workers.ports[1].address;
    // The numbers of the round, and the answer that was changed last.
    let round = Arc::new(Mutex::new((Random::of_round(seed), Vec::new())));
    let of_worker = Arc::clone(&round);
    let bad = worker(move |mut stream| {
        let head = head(&mut stream);
        let answer = passed_on(&head, real);
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
        let mut round = of_worker.lock().expect("locks");
        let body = changed(&mut round.0, body.as_bytes());
        round.1.clone_from(&body);
        drop(round);
        let length = body.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        let _ = stream.write_all(&[head.as_bytes(), &body].concat());
    });
    let addresses = [workers.ports[0].address, bad];
    let (start, mut done, mut wrong) = (Instant::now(), 0_u64, 0_u64);
    // Each question at least once, also on a machine that has no time.
    while start.elapsed() < time || done < QUESTIONS.len() as u64 {
        let seed = seed.wrapping_add(done);
        let question = QUESTIONS[(seed % QUESTIONS.len() as u64) as usize];
        *round.lock().expect("locks") = (Random::of_round(seed), Vec::new());
        let checked = catch_unwind(AssertUnwindSafe(|| asked(&workers, &addresses, question)));
        wrong += u64::from(checked.unwrap_or_else(|panic| {
            eprintln!("SMTT_FUZZ_SEED={seed} repeats round {done} as the first one");
            rounds::keep(&round.lock().expect("locks").1);
            resume_unwind(panic)
        }));
        done += 1;
    }
    println!("{done} rounds, the changed worker was refused in {wrong}");
    assert!(wrong > 0 && wrong < done, "{wrong} of {done}");
}
