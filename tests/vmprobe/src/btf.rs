//! Finds a function in the kernel's own type information.

use std::io;

/// Type number of `function` in the running kernel's BTF, and how many types there are.
pub fn function(function: &str) -> io::Result<Option<u32>> {
    find(&std::fs::read("/sys/kernel/btf/vmlinux")?, function).ok_or_else(|| {
        io::Error::other("/sys/kernel/btf/vmlinux is not BTF as this program knows it")
    })
}

/// The outer `None` is for bytes that are not BTF, the inner for "no such function".
fn find(bytes: &[u8], function: &str) -> Option<Option<u32>> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    if word(0)? & 0xffff != 0xeb9f {
        return None;
    }
    let header = word(4)? as usize;
    let (types, types_len) = (header + word(8)? as usize, word(12)? as usize);
    let (strings, strings_len) = (header + word(16)? as usize, word(20)? as usize);
    let names = bytes.get(strings..strings + strings_len)?;
    let mut at = types;
    let mut id = 0;
    while at < types + types_len {
        id += 1;
        let (name, info) = (word(at)? as usize, word(at + 4)?);
        let (kind, count) = ((info >> 24) & 0x1f, (info & 0xffff) as usize);
        if kind == 12 && names.get(name..)?.split(|byte| *byte == 0).next()? == function.as_bytes()
        {
            return Some(Some(id));
        }
        at += 12
            + match kind {
                1 | 14 | 17 => 4,
                3 => 12,
                4 | 5 | 15 | 19 => 12 * count,
                6 | 13 => 8 * count,
                2 | 7..=12 | 16 | 18 => 0,
                _ => return None,
            };
    }
    Some(None)
}

#[cfg(test)]
mod tests {
    use super::find;

    fn sample() -> Vec<u8> {
        let names = b"\0int\0handle_mm_fault\0";
        let types: Vec<u32> = vec![
            1,
            1 << 24,
            4,
            32, // int, with its four extra bytes
            0,
            13 << 24,
            1, // prototype without parameters
            5,
            12 << 24,
            2, // function
        ];
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        for word in [
            24,
            0,
            types.len() as u32 * 4,
            types.len() as u32 * 4,
            names.len() as u32,
        ] {
            bytes.extend(word.to_le_bytes());
        }
        types
            .iter()
            .for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(names);
        bytes
    }

    #[test]
    fn a_function_is_found_behind_types_of_other_sizes() {
        assert_eq!(find(&sample(), "handle_mm_fault"), Some(Some(3)));
        assert_eq!(find(&sample(), "int"), Some(None));
    }

    #[test]
    fn cut_bytes_are_refused() {
        let bytes = sample();
        assert_eq!(find(&bytes[..40], "handle_mm_fault"), None);
        assert_eq!(find(b"ELF", "handle_mm_fault"), None);
    }
}
