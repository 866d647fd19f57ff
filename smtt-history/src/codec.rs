//! Compressed event logs: the two framings of Spark's own that no library reads, and the choice by content and suffix.

mod frames;

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;

/// Largest block of a frame. Spark's default is 32 KiB; a larger claim is damage or an attack.
const LARGEST_BLOCK: usize = 32 << 20;
/// How a log is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Not at all.
    Plain,
    /// Frames of zstd-jni's output stream.
    Zstd,
    /// Blocks of `LZ4BlockOutputStream` (lz4-java).
    Lz4,
    /// Chunks of `SnappyOutputStream` (snappy-java).
    Snappy,
}

/// Suffixes that state how a log is compressed.
pub const SUFFIXES: [(&str, Codec); 4] = [
    (".zstd", Codec::Zstd),
    (".zst", Codec::Zstd),
    (".lz4", Codec::Lz4),
    (".snappy", Codec::Snappy),
];

impl Codec {
    /// The codec that a file's name states.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let name = name.strip_suffix(".compact").unwrap_or(name);
        let name = name.strip_suffix(".inprogress").unwrap_or(name);
        SUFFIXES
            .iter()
            .find(|(suffix, _)| name.ends_with(suffix))
            .map_or(Self::Plain, |(_, codec)| *codec)
    }

    /// The codec of a file: that of its first bytes, else the one that its name states. Spark's history server compacts a
    /// rolling log with its own settings for compression, under a name that has the codec of the log.
    #[must_use]
    pub fn of_file(name: &str, file: &File) -> Self {
        let mut first = [0; 8];
        let read = file.read_at(&mut first, 0).unwrap_or_default();
        let first = &first[..read];
        let known = [
            (&b"{"[..], Self::Plain),
            (&ZSTD_MAGIC, Self::Zstd),
            (LZ4_MAGIC, Self::Lz4),
            (&SNAPPY_MAGIC, Self::Snappy),
        ];
        let mut known = known.iter();
        known
            .find(|(magic, _)| first.starts_with(magic))
            .map_or_else(|| Self::of(name), |(_, codec)| *codec)
    }

    /// Reads a file from a place on.
    ///
    /// # Errors
    /// When the file cannot be read, or ends before the place.
    pub fn read_from(self, mut file: File, place: Place) -> io::Result<Box<dyn Unpack>> {
        let begin = match self {
            Self::Plain => place.block + place.skip,
            _ => place.block,
        };
        file.seek(SeekFrom::Start(begin))?;
        let file = BufReader::with_capacity(256 << 10, file);
        let mut from = self.read(file, begin);
        if self != Self::Plain
            && io::copy(&mut (&mut from).take(place.skip), &mut io::sink())? < place.skip
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(from)
    }

    /// Reads what was compressed. `at` is the offset in the file of the first byte.
    pub fn read(self, from: impl BufRead + Send + 'static, at: u64) -> Box<dyn Unpack> {
        match self {
            Self::Plain => Box::new(Plain { from, at, last: at }),
            Self::Zstd => match frames::Frames::new(from, at) {
                Ok(frames) => Box::new(frames),
                Err(error) => Box::new(Failed(Some(error))),
            },
            Self::Lz4 => Box::new(Blocks::new(from, at, lz4_block)),
            Self::Snappy => Box::new(Blocks::new(from, at, snappy_chunk)),
        }
    }
}

/// A place in a log's file from which on it can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Offset of a block, or of a frame of zstd. 0 in a file that is not compressed.
    pub block: u64,
    /// Bytes after it, decompressed.
    pub skip: u64,
}

/// Reads what was compressed. One read gives bytes of one block.
pub trait Unpack: Read + Send {
    /// Where the bytes of the last read begin.
    fn place(&self) -> Place;
}

/// A file that is not compressed.
struct Plain<R> {
    from: R,
    at: u64,
    last: u64,
}

impl<R: Read> Read for Plain<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let some = self.from.read(out)?;
        self.last = self.at;
        self.at += some as u64;
        Ok(some)
    }
}

impl<R: Read + Send> Unpack for Plain<R> {
    fn place(&self) -> Place {
        Place {
            block: 0,
            skip: self.last,
        }
    }
}

/// Opens a regular file. The folder of logs belongs to others: a link could name any file of the server, and a pipe or a
/// device would block it.
///
/// # Errors
/// When the file cannot be opened, or is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} is no regular file", path.display()),
        ));
    }
    Ok(file)
}

/// A reader that gives one error.
struct Failed(Option<io::Error>);

impl Read for Failed {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

impl Unpack for Failed {
    fn place(&self) -> Place {
        Place::default()
    }
}

/// A reader that counts its bytes.
struct Counted<R> {
    from: R,
    at: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let some = self.from.read(out)?;
        self.at += some as u64;
        Ok(some)
    }
}

/// Reads the next block into the second argument; `false` at the end.
type Next<R> = fn(&mut R, &mut Vec<u8>, &mut Vec<u8>) -> io::Result<bool>;

/// Blocks, one in memory at a time.
struct Blocks<R> {
    from: Counted<R>,
    next: Next<Counted<R>>,
    packed: Vec<u8>,
    block: Vec<u8>,
    at: usize,
    last: Place,
}

impl<R: Read> Blocks<R> {
    fn new(from: R, at: u64, next: Next<Counted<R>>) -> Self {
        Self {
            from: Counted { from, at },
            next,
            packed: Vec::new(),
            block: Vec::new(),
            at: 0,
            last: Place::default(),
        }
    }
}

impl<R: Read + Send> Unpack for Blocks<R> {
    fn place(&self) -> Place {
        self.last
    }
}

impl<R: Read> Read for Blocks<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.at == self.block.len() {
            self.block.clear();
            self.at = 0;
            self.last.block = self.from.at;
            if !(self.next)(&mut self.from, &mut self.packed, &mut self.block)? {
                return Ok(0);
            }
        }
        let some = out.len().min(self.block.len() - self.at);
        out[..some].copy_from_slice(&self.block[self.at..self.at + some]);
        self.last.skip = self.at as u64;
        self.at += some;
        Ok(some)
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Fills `out`; `false` when the input ends before its first byte.
fn fill(from: &mut impl Read, out: &mut [u8]) -> io::Result<bool> {
    let mut at = 0;
    while at < out.len() {
        match from.read(&mut out[at..]) {
            Ok(0) if at == 0 => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(some) => at += some,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Reads `length` bytes as they arrive, so that a claim alone takes no memory.
fn take(from: &mut impl Read, length: usize, out: &mut Vec<u8>) -> io::Result<()> {
    if length > LARGEST_BLOCK {
        return Err(damaged("a block is larger than 32 MiB"));
    }
    out.clear();
    if from.take(length as u64).read_to_end(out)? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

/// First bytes of each block of lz4-java.
const LZ4_MAGIC: &[u8] = b"LZ4Block";
/// First bytes of a frame of zstd.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The check sum in a block of lz4-java, of its plain bytes.
fn lz4_sum(plain: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    twox_hash::XxHash32::oneshot(SEED, plain) & 0x0fff_ffff
}

/// Magic, token (method and level), packed and plain length, check sum, data. A block of no bytes ends a stream; another
/// stream may follow.
fn lz4_block(from: &mut impl Read, packed: &mut Vec<u8>, block: &mut Vec<u8>) -> io::Result<bool> {
    loop {
        let mut header = [0; 21];
        if !fill(from, &mut header)? {
            return Ok(false);
        }
        let number = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
                as usize
        };
        if &header[..8] != LZ4_MAGIC {
            return Err(damaged("no LZ4 block where one should begin"));
        }
        let (method, packed_length, length) = (header[8] & 0xf0, number(9), number(13));
        if length == 0 {
            continue;
        }
        if length > LARGEST_BLOCK {
            return Err(damaged("a block is larger than 32 MiB"));
        }
        take(from, packed_length, packed)?;
        match method {
            0x10 if packed_length == length => std::mem::swap(packed, block),
            0x20 => {
                block.resize(length, 0);
                let unpacked = lz4_flex::block::decompress_into(packed, block)
                    .map_err(|error| damaged(&error.to_string()))?;
                if unpacked != length {
                    return Err(damaged("an LZ4 block has another length than it says"));
                }
            }
            _ => return Err(damaged("an LZ4 block of unknown method")),
        }
        if lz4_sum(block) as usize != number(17) {
            return Err(damaged("an LZ4 block has another check sum than it says"));
        }
        return Ok(true);
    }
}

/// First bytes of a snappy-java stream; two version numbers follow them.
const SNAPPY_MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];

fn snappy_chunk(
    from: &mut impl Read,
    packed: &mut Vec<u8>,
    block: &mut Vec<u8>,
) -> io::Result<bool> {
    loop {
        let mut head = [0; 4];
        if !fill(from, &mut head)? {
            return Ok(false);
        }
        // The magic can be in the middle too, where streams were joined. As a length it would be negative.
        if head == SNAPPY_MAGIC[..4] {
            let mut rest = [0; 12];
            if !fill(from, &mut rest)? || rest[..4] != SNAPPY_MAGIC[4..] {
                return Err(damaged("a damaged header of snappy-java"));
            }
            continue;
        }
        take(from, u32::from_be_bytes(head) as usize, packed)?;
        let length =
            snap::raw::decompress_len(packed).map_err(|error| damaged(&error.to_string()))?;
        if length > LARGEST_BLOCK {
            return Err(damaged("a block is larger than 32 MiB"));
        }
        block.resize(length, 0);
        let unpacked = snap::raw::Decoder::new()
            .decompress(packed, block)
            .map_err(|error| damaged(&error.to_string()))?;
        block.truncate(unpacked);
        return Ok(true);
    }
}

#[cfg(test)]
pub(crate) mod tests;
