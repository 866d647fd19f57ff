//! Changed lines of event logs, imported and asked for; and changed compressed files.

use std::fs;

use smtt_history::import::{Admission, import};
use smtt_history::log::{Bounds, Lines, Log, Next};

use super::json::changed_json;
use super::requests::paths;
use super::rounds::changed;
use super::{FILES, LINES, ask, rounds, server, tried};

/// Memory of an import and some answers.
const MEMORY: usize = 192 << 20;
/// Memory of a reader: the longest line, its buffers, and the window that a frame of zstd may have.
const READER_MEMORY: usize = 64 << 20;
/// Bounds of the reader of compressed files.
const BOUNDS: Bounds = Bounds {
    line_bytes: 1 << 20,
    log_bytes: 32 << 20,
    time: std::time::Duration::from_secs(3600),
    times: smtt_history::out::Times::Complete,
};

#[test]
fn changed_lines_give_an_application_that_is_served_or_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut good, mut bad) = (0, 0);
    rounds(|random| {
        let mut lines: Vec<String> = LINES.clone();
        for _ in 0..1 + random.below(6) {
            let at = random.below(lines.len());
            match random.below(10) {
                0 => drop(lines.remove(at)),
                1 => lines.swap(at, 0),
                2 => lines.insert(at, lines[at].clone()),
                3 => lines.truncate(at.max(2)),
                _ => lines[at] = changed_json(random, &lines[at], &LINES),
            }
        }
        let log = folder.path().join("log");
        let text = lines.join("\n");
        fs::write(&log, &text).expect("written");
        let store = folder.path().join("store");
        let admission = Admission {
            name: None,
            replaces: true,
        };
        let asked: Vec<&String> = (0..4).map(|_| random.of(paths())).collect();
        tried(text.as_bytes(), MEMORY, || {
            match import(&store, &log, Bounds::default(), &admission) {
                Ok(done) => {
                    good += 1;
                    assert!(done.folder.starts_with(&store), "{:?}", done.folder);
                    assert!(done.lines <= lines.len() as u64 + text.matches('\n').count() as u64);
                }
                Err(_) => bad += 1,
            }
            let server = server(&store);
            for path in asked {
                ask(&server, "GET", path);
            }
        });
    });
    println!("{good} imported, {bad} refused");
    assert!(good > bad, "{good} imported, {bad} refused");
}

#[test]
fn changed_compressed_files_give_lines_within_the_bounds() {
    let folder = tempfile::tempdir().expect("a folder");
    rounds(|random| {
        let (name, whole) = random.of(&FILES);
        // Names whose codec is another one, too.
        let (_, other) = random.of(&FILES);
        let cut = 16 + random.below(whole.len());
        let seeds = [whole.clone(), whole[..cut.min(whole.len())].to_vec()];
        let mut bytes = changed(random, &seeds);
        // Heads of blocks and frames are at the begin.
        if random.below(2) == 0 && bytes.len() > 64 {
            let at = random.below(32);
            bytes[at] = random.next() as u8;
        }
        if random.below(10) == 0 {
            bytes.extend_from_slice(other);
        }
        let path = folder.path().join(name);
        fs::write(&path, &bytes).expect("written");
        tried(&bytes, READER_MEMORY, || {
            let log = Log::at(&path).expect("a log");
            let mut lines = Lines::new(&log, BOUNDS);
            let mut reads = 0_u64;
            loop {
                match lines.read() {
                    Next::End | Next::TooLarge => break,
                    Next::Line => assert!(lines.line.len() <= BOUNDS.line_bytes),
                    Next::TooLong | Next::Damaged(_) => {}
                }
                reads += 1;
                assert!(reads <= BOUNDS.log_bytes, "the log has no end");
            }
        });
        fs::remove_file(&path).expect("removed");
    });
}
