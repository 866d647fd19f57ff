//! Marker libraries whose bytes the administrator vouches for. Only they are parsed.

use anyhow::{Context as _, bail};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use sha2::{Digest as _, Sha256};
use smtt_common::event::MARKER_FACTS;
use smtt_common::event::marker::{LATER_KINDS, SYMBOL_PREFIX};

/// SHA-256 of a library.
pub type Digest = [u8; 32];

/// First instruction of every entry point: the kernel turns a probe on it into a plain call.
#[cfg(target_arch = "x86_64")]
pub const PAD: &[u8] = &[0x0f, 0x1f, 0x44, 0x00, 0x00];
#[cfg(target_arch = "aarch64")]
pub const PAD: &[u8] = &[0x1f, 0x20, 0x03, 0xd5];
#[cfg(target_arch = "riscv64")]
pub const PAD: &[u8] = &[0x13, 0x00, 0x00, 0x00];

/// A library that may be probed wherever a file has its bytes.
#[derive(Clone, Debug)]
pub struct Known {
    pub digest: Digest,
    pub size: u64,
    /// Code of the fact and file offset of every entry point.
    pub entries: Vec<(u64, u64)>,
}

impl Known {
    /// Parses trusted bytes: a library gets either all probes of its version or none.
    ///
    /// # Errors
    /// When this is no marker library, or an entry point lacks its pad.
    pub fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        let elf = object::File::parse(bytes).context("this is no ELF file")?;
        let mut entries = Vec::with_capacity(MARKER_FACTS.len());
        for fact in MARKER_FACTS {
            let name = format!("{SYMBOL_PREFIX}{}", fact.entry);
            if LATER_KINDS.contains(&fact.kind) && symbol(&elf, &name).is_none() {
                continue;
            }
            entries.push((u64::from(fact.kind.0), pad_offset(&elf, &name)?));
        }
        Ok(Self {
            digest: digest(bytes),
            size: bytes.len() as u64,
            entries,
        })
    }
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
        format!("entry point {name} is missing: the library is of another version")
    })?;
    let section = elf.section_by_index(
        symbol
            .section_index()
            .with_context(|| format!("{name} is not defined"))?,
    )?;
    let (file_offset, _) = section
        .file_range()
        .with_context(|| format!("{name} has no code"))?;
    let inside = symbol
        .address()
        .checked_sub(section.address())
        .with_context(|| format!("{name} lies outside its section"))?;
    let code = section.data()?.get(inside as usize..).unwrap_or_default();
    if !code.starts_with(PAD) {
        bail!("{name} does not start with the probe pad, so a probe on it would be slow");
    }
    Ok(file_offset + inside)
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
