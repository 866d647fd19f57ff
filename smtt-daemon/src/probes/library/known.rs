//! Marker libraries whose bytes the administrator vouches for. Only they are parsed.

use anyhow::{Context as _, bail, ensure};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use sha2::{Digest as _, Sha256};
use smtt_common::context::VERSION;
use smtt_common::event::MARKER_FACTS;
use smtt_common::event::marker::{
    LATER_KINDS, LAYOUT_BEFORE, LAYOUT_SYMBOL, SYMBOL_PREFIX, UNKNOWN_FACT,
};
use smtt_model::sort::small::sort_by;

/// SHA-256 of a library.
pub type Digest = [u8; 32];

/// First instruction of every entry point: the kernel turns a probe on it into a plain call.
#[cfg(target_arch = "x86_64")]
pub const PAD: &[u8] = &[0x0f, 0x1f, 0x44, 0x00, 0x00];
#[cfg(target_arch = "aarch64")]
pub const PAD: &[u8] = &[0x1f, 0x20, 0x03, 0xd5];
#[cfg(target_arch = "riscv64")]
pub const PAD: &[u8] = &[0x13, 0x00, 0x00, 0x00];

/// What follows the pad in an entry point: a return. Other functions of the library do not begin with a pad.
#[cfg(target_arch = "x86_64")]
const RETURN: &[u8] = &[0xc3];
#[cfg(target_arch = "aarch64")]
const RETURN: &[u8] = &[0xc0, 0x03, 0x5f, 0xd6];
#[cfg(target_arch = "riscv64")]
const RETURN: &[u8] = &[0x82, 0x80];

/// Most entry points of a newer marker that are probed and named: before Linux 6.6 each takes a descriptor.
const UNKNOWN_MAX: usize = 16;

/// How a library's facts differ from those that this version knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Facts that the library of an earlier marker lacks.
    pub missing: Vec<&'static str>,
    /// Facts that only the library of a newer marker has.
    pub unknown: Vec<String>,
}

/// A library that may be probed wherever a file has its bytes.
#[derive(Clone, Debug)]
pub struct Known {
    pub digest: Digest,
    pub size: u64,
    /// Code of the fact and file offset of every entry point.
    pub entries: Vec<(u64, u64)>,
    /// What is not as in the library of this version.
    pub differences: Differences,
}

impl Known {
    /// Parses trusted bytes: a library gets either all probes of its version or none.
    ///
    /// # Errors
    /// When this is no marker library, an entry point is missing or lacks its pad, or its slot files have another layout.
    pub fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        let elf = object::File::parse(bytes).context("this is no ELF file")?;
        let layout = layout(&elf)?;
        ensure!(
            layout == VERSION,
            "its slot files have the layout {layout}, and this daemon reads the layout {VERSION}: {}",
            other_layout(layout)
        );
        let mut entries = Vec::with_capacity(MARKER_FACTS.len());
        let mut differences = Differences::default();
        for fact in MARKER_FACTS {
            let name = format!("{SYMBOL_PREFIX}{}", fact.entry);
            if LATER_KINDS.contains(&fact.kind) && symbol(&elf, &name).is_none() {
                differences.missing.push(fact.entry);
                continue;
            }
            entries.push((u64::from(fact.kind.0), pad_offset(&elf, &name)?));
        }
        for (entry, offset) in unknown_entries(&elf) {
            entries.push((u64::from(UNKNOWN_FACT.0), offset));
            differences.unknown.push(entry);
        }
        Ok(Self {
            digest: digest(bytes),
            size: bytes.len() as u64,
            entries,
            differences,
        })
    }
}

/// What to do about slot files of another layout.
pub const fn other_layout(layout: u32) -> &'static str {
    if layout > VERSION {
        "upgrade the daemon, and restart it"
    } else {
        "upgrade the marker's jar and library, and restart the applications"
    }
}

/// Layout of the slot files that a library makes.
fn layout(elf: &object::File<'_>) -> anyhow::Result<u32> {
    let Some(symbol) = symbol(elf, LAYOUT_SYMBOL) else {
        return Ok(LAYOUT_BEFORE);
    };
    let section = symbol
        .section_index()
        .with_context(|| format!("{LAYOUT_SYMBOL} is not defined"))?;
    let section = elf.section_by_index(section)?;
    let word = section.data_range(symbol.address(), size_of::<u32>() as u64)?;
    let word = word.and_then(|word| word.try_into().ok());
    let word = word.with_context(|| format!("{LAYOUT_SYMBOL} lies outside its section"))?;
    Ok(u32::from_le_bytes(word))
}

/// Entry points that this version does not know, with the file offsets of their pads.
fn unknown_entries(elf: &object::File<'_>) -> Vec<(String, u64)> {
    let known = |entry: &str| MARKER_FACTS.iter().any(|fact| fact.entry == entry);
    let mut found: Vec<(String, u64)> = elf
        .dynamic_symbols()
        .filter_map(|symbol| {
            let entry = symbol.name().ok()?.strip_prefix(SYMBOL_PREFIX)?;
            if known(entry) || entry.len() > 64 {
                return None;
            }
            let (offset, code) = code_of(elf, &symbol).ok()?;
            let after = code.strip_prefix(PAD)?;
            after
                .starts_with(RETURN)
                .then(|| (entry.to_owned(), offset))
        })
        .collect();
    sort_by(&mut found, Ord::cmp);
    found.truncate(UNKNOWN_MAX);
    found
}

/// SHA-256 of some bytes.
pub fn digest(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}

/// A digest as `sha256sum` prints it.
pub fn hex(digest: &Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn symbol<'data, 'file>(
    elf: &'file object::File<'data>,
    name: &str,
) -> Option<object::Symbol<'data, 'file>> {
    elf.dynamic_symbols()
        .find(|symbol| symbol.name() == Ok(name))
}

/// File offset of an entry point whose first instruction is the pad.
fn pad_offset(elf: &object::File<'_>, name: &str) -> anyhow::Result<u64> {
    let symbol = symbol(elf, name).with_context(|| {
        format!("entry point {name} is missing: the library is of another version; install the marker's library of the daemon's release")
    })?;
    let (offset, code) = code_of(elf, &symbol).with_context(|| name.to_owned())?;
    if !code.starts_with(PAD) {
        bail!("{name} does not start with the probe pad, so a probe on it would be slow");
    }
    Ok(offset)
}

/// File offset of a function, and its section's bytes from there on.
fn code_of<'data>(
    elf: &object::File<'data>,
    symbol: &object::Symbol<'data, '_>,
) -> anyhow::Result<(u64, &'data [u8])> {
    let section = elf.section_by_index(symbol.section_index().context("it is not defined")?)?;
    let (file_offset, _) = section.file_range().context("it has no code")?;
    let inside = symbol
        .address()
        .checked_sub(section.address())
        .context("it lies outside its section")?;
    let code = section.data()?.get(inside as usize..).unwrap_or_default();
    Ok((file_offset + inside, code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_one_of_sha256sum() {
        assert_eq!(
            hex(&digest(b"abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn text_is_no_library() {
        let refused = Known::parse(b"not a library").expect_err("text");
        assert!(format!("{refused:#}").contains("ELF"), "{refused:#}");
    }
}
