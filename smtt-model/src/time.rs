//! Times as text in UTC.

use chrono::{DateTime, Datelike as _, NaiveDateTime, Timelike as _};

/// Microseconds since 1970 as `2026-01-31T12:00:00.000000Z`; empty outside of the years 0 to 9999.
#[must_use]
pub fn utc(micros: i64) -> String {
    let time = DateTime::from_timestamp_micros(micros).map(|time| time.naive_utc());
    time.filter(in_calendar).map_or_else(String::new, |time| {
        format!(
            "{}T{}.{:06}Z",
            day(&time),
            time_of_day(&time),
            time.nanosecond() / 1000
        )
    })
}

/// Milliseconds since 1970 as `2026-01-31 12:00:00 UTC`; empty beyond the year 9999.
#[must_use]
pub fn date(unix_ms: u64) -> String {
    from_ms(unix_ms).map_or_else(String::new, |time| {
        format!("{} {} UTC", day(&time), time_of_day(&time))
    })
}

/// The time of day of milliseconds since 1970 in UTC, as `12:00:00`; empty beyond the year 9999.
#[must_use]
pub fn clock(unix_ms: u64) -> String {
    from_ms(unix_ms).map_or_else(String::new, |time| time_of_day(&time))
}

fn from_ms(unix_ms: u64) -> Option<NaiveDateTime> {
    let time = DateTime::from_timestamp_millis(i64::try_from(unix_ms).ok()?)?;
    Some(time.naive_utc()).filter(in_calendar)
}

/// Whether the year has four digits.
fn in_calendar(time: &NaiveDateTime) -> bool {
    (0..=9999).contains(&time.year())
}

// Fields and not a format of chrono, whose formatter would be linked for three formats.
fn day(time: &NaiveDateTime) -> String {
    format!("{:04}-{:02}-{:02}", time.year(), time.month(), time.day())
}

fn time_of_day(time: &NaiveDateTime) -> String {
    format!(
        "{:02}:{:02}:{:02}",
        time.hour(),
        time.minute(),
        time.second()
    )
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
            (-62_167_219_200_000_000, "0000-01-01T00:00:00.000000Z"),
            (-62_167_219_200_000_001, ""),
            (253_402_300_799_999_999, "9999-12-31T23:59:59.999999Z"),
            (253_402_300_800_000_000, ""),
            (i64::MAX, ""),
            (i64::MIN, ""),
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
