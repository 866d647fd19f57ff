//! Makes the names in the kernel side's type information (BTF) such as the kernel accepts.
//!
//! bpf-linker 0.10 rewrites Rust's names of structs (`A<B>` becomes `A_3C_B_3E_`) but not those of unions, of which
//! `MaybeUninit` is one. The kernel then refuses the whole of the types, and with them every program that needs some:
//! those at the entry of a kernel function.

use object::{Object, ObjectSection};

/// Kinds of types that are followed by more bytes: (kind, bytes, bytes per member).
const TRAILERS: [(u32, usize, usize); 11] = [
    (1, 4, 0),
    (3, 12, 0),
    (4, 0, 12),
    (5, 0, 12),
    (6, 0, 8),
    (13, 0, 8),
    (14, 4, 0),
    (15, 0, 12),
    (17, 4, 0),
    (18, 0, 0),
    (19, 0, 12),
];
const UNION: u32 = 5;

/// Replaces what no C name has in the names of unions, in place.
pub fn name_unions(object: &mut [u8]) -> Result<(), &'static str> {
    let section = {
        let elf = object::File::parse(&*object).map_err(|_| "the object is no ELF file")?;
        let section = elf.section_by_name(".BTF").ok_or("the object has no type information")?;
        section.file_range().ok_or("the object's type information is empty")?
    };
    let (start, length) = (section.0 as usize, section.1 as usize);
    let types = object.get_mut(start..start + length).ok_or("the object is cut short")?;
    rewrite(types).ok_or("the object's type information has an unknown form")
}

fn rewrite(bytes: &mut [u8]) -> Option<()> {
    fn word(bytes: &[u8], at: usize) -> Option<usize> {
        Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize)
    }
    let header = word(bytes, 4)?;
    let (mut at, end) = (header + word(bytes, 8)?, header + word(bytes, 8)? + word(bytes, 12)?);
    let names = header + word(bytes, 16)?;
    while at < end {
        let (name, info) = (names + word(bytes, at)?, word(bytes, at + 4)?);
        let (kind, members) = ((info >> 24) as u32 & 0x1f, info & 0xffff);
        if kind == UNION {
            for byte in bytes.get_mut(name..)?.iter_mut().take_while(|byte| **byte != 0) {
                if !byte.is_ascii_alphanumeric() {
                    *byte = b'_';
                }
            }
        }
        let (_, fixed, each) = TRAILERS.iter().find(|row| row.0 == kind).copied().unwrap_or_default();
        at += 12 + fixed + each * members;
    }
    Some(())
}
