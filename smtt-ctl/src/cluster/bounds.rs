//! Bounds of what workers send, so that none of them can use up the memory or the share of the others.

/// Bytes of the answers of all workers to one question.
const ALL: u64 = 256 << 20;
/// Most bytes of a worker's answer.
const MOST: u64 = 16 << 20;
/// Least bytes of a worker's answer that are accepted, however many workers there are.
const LEAST: u64 = 64 << 10;
/// Bytes of the share for each object or list: parsed, one takes about 700 bytes.
const PER_OBJECT: u64 = 32;
/// Bytes of the share for each value.
const PER_VALUE: u64 = 8;

/// Bytes that one of so many workers may answer.
pub(super) fn share(workers: usize) -> u64 {
    (ALL / (workers as u64).max(1)).clamp(LEAST, MOST)
}

/// Checks that an answer of a worker with this share of bytes has no more objects, lists and values than memory is for.
///
/// # Errors
/// When it has more.
pub(super) fn check(bytes: &[u8], share: u64) -> Result<(), String> {
    let (mut objects, mut values) = (0_u64, 0_u64);
    let (mut in_text, mut is_escaped) = (false, false);
    for byte in bytes {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            b'{' | b'[' if !in_text => objects += 1,
            b',' if !in_text => values += 1,
            _ => {}
        }
    }
    match objects > share / PER_OBJECT || values > share / PER_VALUE {
        true => Err(
            "it has too many objects or values: select less, as with --app or --limit".to_owned(),
        ),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_have_equal_shares() {
        assert_eq!(share(1), 16 << 20);
        assert_eq!(share(16), 16 << 20);
        assert_eq!(share(512), 512 << 10);
        assert_eq!(share(10_000), 64 << 10);
    }

    #[test]
    fn structure_is_bounded_and_text_is_not() {
        let rows = |count: u64| vec!["{\"\":1}"; count as usize].join(",").into_bytes();
        assert_eq!(check(&rows(share(512) / PER_OBJECT), share(512)), Ok(()));
        assert!(check(&rows(share(512) / PER_OBJECT + 1), share(512)).is_err());
        let list = |count: u64| format!("[{}]", "1,".repeat(count as usize)).into_bytes();
        assert_eq!(check(&list(share(512) / PER_VALUE), share(512)), Ok(()));
        assert!(check(&list(share(512) / PER_VALUE + 1), share(512)).is_err());
        let text = format!("\"\\\"{}\"", "{,[".repeat(100_000));
        assert_eq!(check(text.as_bytes(), share(512)), Ok(()));
    }
}
