//! The framings of lz4-java and snappy-java, and damage in them.

use std::io::{BufReader, Cursor, Read};

use super::{Codec, LARGEST_BLOCK, SNAPPY_MAGIC};

/// A stream of lz4-java.
pub(crate) fn lz4(blocks: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for block in blocks {
        let packed = lz4_flex::block::compress(block);
        let (method, packed) = if packed.len() < block.len() {
            (0x26, &packed[..])
        } else {
            (0x16, *block)
        };
        out.extend(b"LZ4Block");
        out.push(method);
        out.extend((packed.len() as u32).to_le_bytes());
        out.extend((block.len() as u32).to_le_bytes());
        out.extend(super::lz4_sum(block).to_le_bytes());
        out.extend(packed);
    }
    out
}

/// A stream of snappy-java.
pub(crate) fn snappy(blocks: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(SNAPPY_MAGIC);
    out.extend([0, 0, 0, 1, 0, 0, 0, 1]);
    for block in blocks {
        let packed = snap::raw::Encoder::new()
            .compress_vec(block)
            .expect("compresses");
        out.extend((packed.len() as u32).to_be_bytes());
        out.extend(packed);
    }
    out
}

fn read(codec: Codec, bytes: Vec<u8>) -> std::io::Result<Vec<u8>> {
    let mut out = Vec::new();
    codec
        .read(BufReader::new(Cursor::new(bytes)), 0)
        .read_to_end(&mut out)?;
    Ok(out)
}

#[test]
fn names_say_the_codec() {
    for (name, codec) in [
        ("app-1", Codec::Plain),
        ("app-1.zstd", Codec::Zstd),
        ("app-1.zst", Codec::Zstd),
        ("app-1.lz4.inprogress", Codec::Lz4),
        ("events_2_app-1.snappy.compact", Codec::Snappy),
        ("app-1.inprogress", Codec::Plain),
    ] {
        assert_eq!(Codec::of(name), codec, "{name}");
    }
}

#[test]
fn blocks_are_joined() {
    let long = vec![b'x'; 100_000];
    let blocks: [&[u8]; 4] = [b"abc", &long, b"", b"def"];
    let expected = blocks.concat();
    assert_eq!(read(Codec::Lz4, lz4(&blocks)).expect("reads"), expected);
    // Streams that were joined, as those of appended logs.
    let twice = [snappy(&[b"abc", &long]), snappy(&[b"def"])].concat();
    assert_eq!(read(Codec::Snappy, twice).expect("reads"), expected);
}

#[test]
fn a_changed_byte_of_an_lz4_block_is_an_error() {
    for block in [&b"{\"Job ID\":17}"[..], &[b'x'; 1000]] {
        let whole = lz4(&[block]);
        for at in 0..whole.len() {
            // The level, half of the token, says nothing about the data.
            for bit in if at == 8 { 4..8 } else { 0..8 } {
                let mut changed = whole.clone();
                changed[at] ^= 1 << bit;
                // A repetition may be written in another way.
                let plain = read(Codec::Lz4, changed).ok();
                assert!(
                    plain.is_none_or(|plain| plain == block),
                    "byte {at}, bit {bit}"
                );
            }
        }
    }
}

#[test]
fn claims_take_no_memory_and_damage_is_an_error() {
    let mut claims = lz4(&[b"abc"]);
    claims[9..13].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(read(Codec::Lz4, claims).is_err());
    let mut claims = lz4(&[&[b'x'; 1000]]);
    claims[13..17].copy_from_slice(&(LARGEST_BLOCK as u32 + 1).to_le_bytes());
    assert!(read(Codec::Lz4, claims).is_err());
    let mut claims = SNAPPY_MAGIC.to_vec();
    claims.extend([
        0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 5, 0xff, 0xff, 0xff, 0xff, 0x0f,
    ]);
    assert!(read(Codec::Snappy, claims).is_err());
    for cut in 1..20 {
        let whole = lz4(&[b"abc"]);
        assert!(read(Codec::Lz4, whole[..cut].to_vec()).is_err(), "{cut}");
    }
    assert!(read(Codec::Lz4, b"not a block of anything".to_vec()).is_err());
    assert!(read(Codec::Zstd, b"not a frame".to_vec()).is_err());
}
