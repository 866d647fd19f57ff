//! Durations and sizes as people write them.

use std::time::Duration;

/// Number and unit of a text such as `10m`; whole numbers only, at most one blank between.
fn split(text: &str) -> Option<(u64, &str)> {
    let end = text
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.strip_prefix(' ').unwrap_or(unit)))
}

/// A duration: `500ms`, `2s`, `10m`, `1h`, `7d`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text)?;
    let ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(ms).map(Duration::from_millis)
}

/// A size in bytes: `4096B`, `512KiB`, `4MiB`, `1GiB`.
pub(super) fn size(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let factor = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration("10m"), Some(Duration::from_secs(600)));
        assert_eq!(duration("500 ms"), Some(Duration::from_millis(500)));
        for wrong in [
            "",
            "10",
            "m",
            "-1s",
            "1.5s",
            "10 minutes",
            "99999999999999999999s",
            "9999999999999999999d",
        ] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(size("4MiB"), Some(4 << 20));
        for wrong in ["4", "4MB", "4 mib", "18446744073709551615GiB"] {
            assert_eq!(size(wrong), None, "{wrong}");
        }
    }
}
