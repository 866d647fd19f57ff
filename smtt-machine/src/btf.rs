//! Offsets of fields in the running kernel's structs, from its own type information.
//!
//! Only what is needed is read: the type section is walked once for a struct by name, then its members. The
//! format is described in the kernel's Documentation/bpf/btf.rst.

use std::path::Path;

/// File of the kernel's type information.
pub const KERNEL: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_VOLATILE: u32 = 9;
const KIND_CONST: u32 = 10;
/// Most modifiers around a type.
const MODIFIERS_MAX: u32 = 4;

/// Reads the byte offsets of fields of a struct of the running kernel.
///
/// # Errors
/// A sentence that states what is missing: the file, the struct or the field.
pub fn kernel_field_offsets(structure: &str, fields: &[&str]) -> Result<Vec<u32>, String> {
    let types = KernelTypes::read()?;
    fields
        .iter()
        .map(|field| types.offset(structure, field))
        .collect()
}

/// The type information of the running kernel, some MiB.
#[derive(Debug)]
pub struct KernelTypes(Vec<u8>);

impl KernelTypes {
    /// Reads the type information.
    ///
    /// # Errors
    /// A sentence that states why it cannot be read.
    pub fn read() -> Result<Self, String> {
        std::fs::read(Path::new(KERNEL)).map(Self).map_err(|error| {
            format!("{KERNEL} cannot be read ({error}): the kernel needs CONFIG_DEBUG_INFO_BTF")
        })
    }

    /// Byte offset of a field of a struct, or of a struct or union without a name in it.
    ///
    /// # Errors
    /// A sentence that states what is missing: the struct or the field.
    pub fn offset(&self, structure: &str, field: &str) -> Result<u32, String> {
        let members = struct_members(&self.0, structure)
            .ok_or_else(|| format!("the kernel's type information has no struct {structure}"))?;
        self.find(&members, field, NESTED_MAX)
            .map(|bits| bits / 8)
            .ok_or_else(|| format!("struct {structure} of this kernel has no field {field}"))
    }

    fn find(&self, members: &[Member], field: &str, levels: u32) -> Option<u32> {
        let named = members.iter().find(|member| member.name == field);
        if let Some(member) = named {
            return Some(member.bits);
        }
        let levels = levels.checked_sub(1)?;
        members
            .iter()
            .filter(|member| member.name.is_empty())
            .find_map(|member| {
                let inner = members_of_type(&self.0, member.of)?;
                Some(member.bits + self.find(&inner, field, levels)?)
            })
    }
}

/// Most structs without a name around a field.
const NESTED_MAX: u32 = 4;

/// A member of a struct.
#[derive(Debug, PartialEq, Eq)]
struct Member {
    /// Empty for a struct or union without a name.
    name: String,
    /// Offset in bits.
    bits: u32,
    /// Number of its type.
    of: u32,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn text(strings: &[u8], at: u32) -> Option<&str> {
    let rest = strings.get(at as usize..)?;
    std::str::from_utf8(&rest[..rest.iter().position(|byte| *byte == 0)?]).ok()
}

/// The members of the first struct with this name.
fn struct_members(bytes: &[u8], structure: &str) -> Option<Vec<Member>> {
    let (strings, mut types) = (strings(bytes)?, Types::new(bytes)?);
    types.find_map(|at| {
        let found =
            kind(bytes, at)? == KIND_STRUCT && text(strings, word(bytes, at)?) == Some(structure);
        found.then(|| members(bytes, at))?
    })
}

/// The members of the struct or union with this number, also behind modifiers such as `const`.
fn members_of_type(bytes: &[u8], mut number: u32) -> Option<Vec<Member>> {
    for _ in 0..MODIFIERS_MAX {
        // The first one has the number 1.
        let at = Types::new(bytes)?.nth(number.checked_sub(1)? as usize)?;
        match kind(bytes, at)? {
            KIND_STRUCT | KIND_UNION => return members(bytes, at),
            KIND_VOLATILE | KIND_CONST => number = word(bytes, at + 8)?,
            _ => return None,
        }
    }
    None
}

fn kind(bytes: &[u8], at: usize) -> Option<u32> {
    Some((word(bytes, at + 4)? >> 24) & 0x1f)
}

fn strings(bytes: &[u8]) -> Option<&[u8]> {
    bytes.get(word(bytes, 4)? as usize + word(bytes, 16)? as usize..)
}

/// The members of the struct or union at this place.
fn members(bytes: &[u8], at: usize) -> Option<Vec<Member>> {
    let strings = strings(bytes)?;
    let info = word(bytes, at + 4)?;
    // With the kind flag the upper byte of a member's offset is the size of its bit field.
    let mask = if info >> 31 == 1 { 0xff_ffff } else { u32::MAX };
    (0..(info & 0xffff) as usize)
        .map(|member| {
            let at = at + 12 + member * 12;
            Some(Member {
                name: text(strings, word(bytes, at)?)?.to_owned(),
                of: word(bytes, at + 4)?,
                bits: word(bytes, at + 8)? & mask,
            })
        })
        .collect()
}

/// The places of all types, in the order of their numbers.
struct Types<'a> {
    bytes: &'a [u8],
    next: usize,
    end: usize,
}

impl<'a> Types<'a> {
    fn new(bytes: &'a [u8]) -> Option<Self> {
        if bytes.get(..2)? != MAGIC.to_le_bytes() {
            return None;
        }
        let start = word(bytes, 4)? as usize + word(bytes, 8)? as usize;
        Some(Self {
            bytes,
            next: start,
            end: start + word(bytes, 12)? as usize,
        })
    }
}

impl Iterator for Types<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.next >= self.end {
            return None;
        }
        let at = self.next;
        let info = word(self.bytes, at + 4)?;
        let count = (info & 0xffff) as usize;
        // What follows the twelve bytes of each kind.
        self.next = at
            + 12
            + match kind(self.bytes, at)? {
                1 | 14 | 17 => 4,
                3 => 12,
                KIND_STRUCT | KIND_UNION | 15 | 19 => count * 12,
                6 | 13 => count * 8,
                _ => 0,
            };
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smtt_skip::{NotSkipped, skip};

    fn without_types() -> Result<(), NotSkipped> {
        skip(
            "btf",
            format!("this kernel has no {KERNEL} (CONFIG_DEBUG_INFO_BTF)"),
        )
    }

    #[test]
    fn finds_the_fields_of_this_kernel() -> Result<(), NotSkipped> {
        if !Path::new(KERNEL).exists() {
            return without_types();
        }
        let offsets =
            kernel_field_offsets("task_struct", &["pid", "tgid"]).expect("fields of task_struct");
        assert_eq!(
            offsets[1],
            offsets[0] + 4,
            "pid and tgid stand side by side in every kernel"
        );
        assert!(
            kernel_field_offsets("task_struct", &["no_such_field"])
                .expect_err("no such field")
                .contains("no_such_field")
        );
        Ok(())
    }

    #[test]
    fn finds_a_field_in_a_struct_without_a_name() -> Result<(), NotSkipped> {
        let Ok(types) = KernelTypes::read() else {
            return without_types();
        };
        // Since Linux 4.10 these are the first words; the first ones are in such a struct since 5.12.
        assert_eq!(types.offset("vm_fault", "vma"), Ok(0));
        assert_eq!(types.offset("vm_fault", "address"), Ok(24));
        assert!(types.offset("vm_fault", "no_such_field").is_err());
        Ok(())
    }

    #[test]
    fn garbage_is_no_type_information() {
        assert_eq!(struct_members(&[0; 64], "task_struct"), None);
        assert_eq!(
            struct_members(
                &[
                    0x9f, 0xeb, 1, 0, 24, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255
                ],
                "task_struct"
            ),
            None
        );
    }
}
