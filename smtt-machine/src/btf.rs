//! Offsets of fields in the running kernel's structs, from its own type information.
//!
//! Only what is needed is read: the type section is walked once for a struct by name, then its members. The
//! format is described in the kernel's Documentation/bpf/btf.rst.

use std::path::Path;

/// File of the kernel's type information.
pub const KERNEL: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;
const KIND_STRUCT: u32 = 4;

/// Reads the byte offsets of fields of a struct of the running kernel.
///
/// # Errors
/// A sentence that says what is missing: the file, the struct or the field.
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
    /// A sentence that says why it cannot be read.
    pub fn read() -> Result<Self, String> {
        std::fs::read(Path::new(KERNEL)).map(Self).map_err(|error| {
            format!("{KERNEL} cannot be read ({error}): the kernel needs CONFIG_DEBUG_INFO_BTF")
        })
    }

    /// Byte offset of a field of a struct.
    ///
    /// # Errors
    /// A sentence that says what is missing: the struct or the field.
    pub fn offset(&self, structure: &str, field: &str) -> Result<u32, String> {
        let members = struct_members(&self.0, structure)
            .ok_or_else(|| format!("the kernel's type information has no struct {structure}"))?;
        members
            .iter()
            .find(|(name, _)| name == field)
            .map(|(_, bits)| bits / 8)
            .ok_or_else(|| format!("struct {structure} of this kernel has no field {field}"))
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn text(strings: &[u8], at: u32) -> Option<&str> {
    let rest = strings.get(at as usize..)?;
    std::str::from_utf8(&rest[..rest.iter().position(|byte| *byte == 0)?]).ok()
}

/// Names and bit offsets of a struct's members.
fn struct_members(bytes: &[u8], structure: &str) -> Option<Vec<(String, u32)>> {
    if bytes.get(..2)? != MAGIC.to_le_bytes() {
        return None;
    }
    let header = word(bytes, 4)? as usize;
    let types = header + word(bytes, 8)? as usize;
    let types_end = types + word(bytes, 12)? as usize;
    let strings = bytes.get(header + word(bytes, 16)? as usize..)?;
    let mut at = types;
    while at < types_end {
        let name = word(bytes, at)?;
        let info = word(bytes, at + 4)?;
        let (kind, count) = ((info >> 24) & 0x1f, (info & 0xffff) as usize);
        at += 12;
        if kind == KIND_STRUCT && text(strings, name) == Some(structure) {
            // With the kind flag the upper byte of a member's offset is the size of its bit field.
            let mask = if info >> 31 == 1 { 0xff_ffff } else { u32::MAX };
            return (0..count)
                .map(|member| {
                    Some((
                        text(strings, word(bytes, at + member * 12)?)?.to_owned(),
                        word(bytes, at + member * 12 + 8)? & mask,
                    ))
                })
                .collect();
        }
        // What follows the twelve bytes of each kind.
        at += match kind {
            1 | 14 | 17 => 4,
            3 => 12,
            4 | 5 | 15 | 19 => count * 12,
            6 | 13 => count * 8,
            _ => 0,
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_fields_of_this_kernel() {
        if !Path::new(KERNEL).exists() {
            println!("skipped: this kernel has no {KERNEL} (CONFIG_DEBUG_INFO_BTF)");
            return;
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
