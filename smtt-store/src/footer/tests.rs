//! Schemas beyond the bounds are refused before the library sees them.

use std::fs;
use std::path::Path;

use super::*;
use crate::history::read::Reader;

/// A number without sign, as Thrift has it.
fn unsigned(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A file with a version and a list of so many elements of a schema.
fn write(path: &Path, count: u64, elements: &[u8]) {
    let mut footer = vec![0x15, 2, 0x19, 0xfc];
    footer.extend(unsigned(count));
    footer.extend(elements);
    let mut file = b"PAR1".to_vec();
    file.extend(&footer);
    file.extend((footer.len() as u32).to_le_bytes());
    file.extend(b"PAR1");
    fs::write(path, file).expect("writes");
}

/// Why a table of a history and a segment are refused.
fn refused(path: &Path) -> [String; 2] {
    let table = Reader::open(path, "meta").err().expect("is refused");
    let segment = crate::read::Reader::open(path).err().expect("is refused");
    [table.to_string(), segment.to_string()]
}

/// A group `g` of so many children.
fn group_of(children: u64) -> Vec<u8> {
    let mut bytes = vec![0x35, 0, 0x18, 1, b'g', 0x15];
    bytes.extend(unsigned(2 * children));
    bytes.push(0);
    bytes
}

#[test]
fn a_deep_schema_is_an_error() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let path = folder.path().join("meta.parquet");
    // On a thread with a small stack a recursion of this depth would end the process.
    let deep = |count: u64| {
        write(&path, count, &group_of(1).repeat(count as usize));
        refused(&path)
    };
    for why in deep(200_000) {
        assert!(why.contains("cannot be read"), "{why}");
    }
    for count in [4, ELEMENTS] {
        for why in deep(count) {
            assert!(why.contains("nested"), "{why}");
        }
    }
}

#[test]
fn a_group_of_many_columns_is_an_error() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let path = folder.path().join("meta.parquet");
    for children in [1025, (1 << 31) - 1] {
        write(&path, 1, &group_of(children));
        for why in refused(&path) {
            assert!(why.contains("more than 1024 columns"), "{why}");
        }
    }
    let below = [group_of(1), group_of((1 << 31) - 1)].concat();
    write(&path, 2, &below);
    let [table, segment] = refused(&path);
    assert!(table.contains("nested"), "{table}");
    assert!(segment.contains("cut"), "{segment}");
}

#[test]
fn a_footer_of_many_bytes_is_not_read() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let path = folder.path().join("meta.parquet");
    let file = File::create(&path).expect("makes a file");
    file.set_len(1 << 32).expect("has holes");
    for (bytes, why) in [
        (u32::MAX, "more than 16777216 bytes"),
        ((16 << 20) + 1, "more than 16777216 bytes"),
        (16 << 20, "cannot be read"),
    ] {
        let mut file = File::options().write(true).open(&path).expect("opens");
        file.seek(SeekFrom::Start((1 << 32) - END_BYTES))
            .expect("seeks");
        let tail = [bytes.to_le_bytes(), *b"PAR1"].concat();
        std::io::Write::write_all(&mut file, &tail).expect("writes");
        for said in refused(&path) {
            assert!(said.contains(why), "{said}");
        }
    }
}

#[test]
fn values_are_skipped_to_a_depth_and_to_the_end() {
    let skip = |bytes: &[u8]| {
        let mut walk = Walk(bytes);
        walk.skip(kind::STRUCT, SKIPPED_LEVELS)
            .map(|()| walk.0.len())
    };
    // A flag, a number, a text, a list of two flags, an empty map, a struct; one byte is left.
    let all = [
        0x11, 0x15, 2, 0x18, 1, b'x', 0x19, 0x21, 1, 2, 0x1b, 0, 0x1c, 0, 0, 9,
    ];
    assert_eq!(skip(&all), Some(1));
    assert_eq!(skip(&all[..13]), None);
    let deep = |levels: usize| [vec![0x1c; levels], vec![0; levels + 1]].concat();
    assert_eq!(skip(&deep(15)), Some(0));
    assert_eq!(skip(&deep(16)), None);
    assert_eq!(skip(&deep(1 << 20)), None);
    // A list of 2^62 elements in a few bytes.
    let many = [vec![0x19, 0xf1], unsigned(1 << 62), vec![0; 9]].concat();
    assert_eq!(skip(&many), None);
}
