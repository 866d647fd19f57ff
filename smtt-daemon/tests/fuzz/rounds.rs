//! Rounds of a fuzzer, each with random numbers of its own, which the round's seed alone gives.
//!
//! `SMTT_FUZZ_SECONDS=600` makes each test longer, `SMTT_FUZZ_SEED=7` different; `SMTT_FUZZ_SEED=fresh` takes a seed from
//! the clock. Each test prints its seed. A failing round prints its own: with that as `SMTT_FUZZ_SEED` it is the first
//! round. The bytes of the failing case are printed, and kept in the folder for tests' files below `target`, where a test
//! that was killed leaves the seed of its round.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant, UNIX_EPOCH};

/// Bytes of a failing case that are printed; the file has all of them.
const PRINTED: usize = 8 << 10;

thread_local! {
    /// Seed of the round that this thread runs.
    static ROUND: Cell<u64> = const { Cell::new(0) };
}

/// A number of the environment.
fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

/// Seed of the first round.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| match std::env::var("SMTT_FUZZ_SEED") {
        Ok(text) if text == "fresh" => {
            let now = UNIX_EPOCH.elapsed().expect("a clock after 1970");
            now.as_nanos() as u64
        }
        _ => number("SMTT_FUZZ_SEED", 1),
    })
}

/// Time of one test, which is so many seconds unless the environment says another number.
pub fn time(seconds: u64) -> Duration {
    Duration::from_secs(number("SMTT_FUZZ_SECONDS", seconds))
}

/// Numbers without a pattern, the same for the same seed.
pub struct Random(u64);

impl Random {
    /// Numbers of a round. Neighbouring seeds have nothing in common (SplitMix64's output function).
    pub fn of_round(seed: u64) -> Self {
        ROUND.set(seed);
        let mut state = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((state ^ (state >> 31)).max(1))
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end.max(1)
    }

    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Runs `case` until the time is over, each round with the next seed.
pub fn run(seconds: u64, mut case: impl FnMut(&mut Random)) {
    let (first, end) = (seed(), Instant::now() + time(seconds));
    println!("SMTT_FUZZ_SEED={first}");
    // A stack that overflows ends the process without a word.
    let running = file("running");
    let mut rounds = 0_u64;
    while Instant::now() < end || rounds == 0 {
        let seed = first.wrapping_add(rounds);
        std::fs::write(&running, seed.to_string()).expect("the seed is written");
        let done = catch_unwind(AssertUnwindSafe(|| case(&mut Random::of_round(seed))));
        if let Err(panic) = done {
            eprintln!("round {rounds} failed; SMTT_FUZZ_SEED={seed} repeats it as the first round");
            resume_unwind(panic);
        }
        rounds += 1;
    }
    std::fs::remove_file(&running).expect("the seed is removed");
    println!("{rounds} rounds");
}

/// A file of this thread's test, among the files of tests.
fn file(what: &str) -> PathBuf {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("test").replace("::", "-");
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{test}-{what}"))
}

/// Prints the bytes of the case that failed in this thread's round, and keeps them in a file that has the round's seed in
/// its name.
pub fn keep(bytes: &[u8]) {
    let few = &bytes[..bytes.len().min(PRINTED)];
    eprintln!("failed on {:?}", String::from_utf8_lossy(few));
    eprintln!("the first of {} bytes {few:02x?}", bytes.len());
    let path = file(&ROUND.get().to_string());
    match std::fs::write(&path, bytes) {
        Ok(()) => eprintln!("the bytes are in {}", path.display()),
        Err(error) => eprintln!("the bytes are not kept: {}: {error}", path.display()),
    }
}

/// A seed with a few changes: bits, bytes, words, cuts, repetitions, parts of another seed.
pub fn changed(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
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
    let mut bytes = random.of(seeds).clone();
    for _ in 0..random.below(6) {
        let at = random.below(bytes.len());
        let length = random.below(32).min(bytes.len() - at);
        match random.below(8) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 if !bytes.is_empty() => bytes[at] = random.next() as u8,
            2 => {
                let word = random.of(&WORDS).to_le_bytes();
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
