//! Times as text in UTC.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Microseconds since 1970 as `2026-01-31T12:00:00.000000Z`; empty outside of the years -9999 to 9999.
#[must_use]
pub fn utc(micros: i64) -> String {
    Timestamp::from_microsecond(micros).map_or_else(|_| String::new(), |time| format!("{time:.6}"))
}

/// Milliseconds since 1970 as `2026-01-31 12:00:00 UTC`; empty beyond the year 9999.
#[must_use]
pub fn date(unix_ms: u64) -> String {
    formatted(unix_ms, "%Y-%m-%d %H:%M:%S UTC")
}

/// The time of day of milliseconds since 1970 in UTC, as `12:00:00`; empty beyond the year 9999.
#[must_use]
pub fn clock(unix_ms: u64) -> String {
    formatted(unix_ms, "%H:%M:%S")
}

fn formatted(unix_ms: u64, format: &str) -> String {
    let time = i64::try_from(unix_ms)
        .ok()
        .and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.map_or_else(String::new, |time| {
        time.to_zoned(TimeZone::UTC).strftime(format).to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc_with_microseconds() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399_999_999, "2000-02-28T23:59:59.999999Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_798_761_599_000_001, "2026-12-31T23:59:59.000001Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
            (i64::MAX, ""),
        ] {
            assert_eq!(utc(micros), text);
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_400_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_795_253_445_000), "2026-11-21 09:30:45 UTC");
        assert_eq!(clock(1_795_253_445_000), "09:30:45");
        assert_eq!(date(u64::MAX), "");
    }
}
