//! Damaged files: with bits changed or the end missing, at every byte of every file that is read back. They give rows or
//! an error and never a panic.
//!
//! What a reader cannot see, because the format has no checksum, stands in the module of the format.

mod reports;
mod segments;
mod tables;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// What came of one damaged file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Came {
    /// An error.
    Error,
    /// What was written.
    Intact,
    /// Something else, without an error.
    Other,
}

/// Reads every damaged form of a file: with each of `bits` changed in each byte (none where there are none), and cut at each
/// byte. Returns how often the
/// changes and how often the cuts came to what. Fails with the places where the reader panics.
fn damage<T: PartialEq>(
    path: &Path,
    bits: impl Fn(usize) -> Vec<u8>,
    read: impl Fn(&Path) -> Option<T>,
) -> [[usize; 3]; 2] {
    let whole = std::fs::read(path).expect("the file");
    let expected = read(path);
    assert!(expected.is_some(), "the undamaged file is read");
    let (mut came, mut panics) = ([[0; 3]; 2], Vec::new());
    let mut tried = |how: usize, at: usize, bytes: &[u8]| {
        std::fs::write(path, bytes).expect("the file can be written");
        match catch_unwind(AssertUnwindSafe(|| read(path))) {
            Ok(None) => came[how][Came::Error as usize] += 1,
            Ok(got) if got == expected => came[how][Came::Intact as usize] += 1,
            Ok(_) => came[how][Came::Other as usize] += 1,
            Err(_) => panics.push((how, at)),
        }
    };
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        for bit in bits(at) {
            changed[at] = whole[at] ^ 1 << bit;
            tried(0, at, &changed);
        }
        tried(1, at, &whole[..at]);
    }
    let few = &panics[..panics.len().min(20)];
    assert!(panics.is_empty(), "{} panics: {few:?}", panics.len());
    std::fs::write(path, whole).expect("the file can be written");
    came
}
