//! Human-readable numbers for text output; JSON keeps raw numbers.

/// A count: exact below ten million, else with a prefix.
#[must_use]
pub fn count(value: u64) -> String {
    const STEPS: [(f64, &str); 4] = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G")];
    if value < 10_000_000 {
        return grouped(value);
    }
    let value = value as f64;
    STEPS.iter().find(|(step, _)| value >= *step).map_or_else(
        || format!("{:.1} M", value / 1e6),
        |(step, prefix)| format!("{:.2} {prefix}", value / step),
    )
}

fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A size in bytes, in binary units.
#[must_use]
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if value < 1024 {
        return format!("{value} B");
    }
    let mut scaled = value as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would be written as 1024.0.
    while scaled >= 1023.95 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    format!("{scaled:.1} {}", UNITS[unit])
}

/// A duration in nanoseconds.
#[must_use]
pub fn duration(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        1_000_000_000..60_000_000_000 => format!("{:.1} s", ns as f64 / 1e9),
        60_000_000_000..3_600_000_000_000 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

/// A share from 0 to 1, as percent.
#[must_use]
pub fn share(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

/// A share from 0 to 1 as percent with two decimals, for small shares.
#[must_use]
pub fn small_share(value: f64) -> String {
    format!("{:.2} %", value * 100.0)
}

/// A share from 0 to 1 in whole percent, where parts of a whole stand side by side: a small share never reads 0 % and a
/// large one never 100 %.
#[must_use]
pub fn whole_share(value: f64) -> String {
    match value * 100.0 {
        little if little > 0.0 && little < 1.0 => "<1 %".to_owned(),
        lot if lot > 99.0 && lot < 100.0 => ">99 %".to_owned(),
        other => format!("{other:.0} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(9_999_999), "9,999,999");
        assert_eq!(count(12_345_678), "12.3 M");
        assert_eq!(count(1_234_567_890), "1.23 G");
        assert_eq!(count(u64::MAX), "18.45 E");
    }

    #[test]
    fn sizes() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1.0 KiB");
        assert_eq!(bytes(1024 * 1024 - 1), "1.0 MiB");
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
    }

    #[test]
    fn durations() {
        assert_eq!(duration(999), "999 ns");
        assert_eq!(duration(1_500_000), "1.5 ms");
        assert_eq!(duration(59_940_000_000), "59.9 s");
        assert_eq!(duration(185_000_000_000), "3m05s");
        assert_eq!(duration(7_380_000_000_000), "2h03m");
        assert_eq!(share(0.3456), "34.6 %");
        assert_eq!([whole_share(0.0), whole_share(0.002)], ["0 %", "<1 %"]);
        assert_eq!([whole_share(0.999), whole_share(1.0)], [">99 %", "100 %"]);
    }
}
