//! Values of SQL metrics as Spark prints them.

/// Bytes, as `Utils.bytesToString`.
fn bytes(value: i128) -> String {
    const UNITS: [(u32, &str); 6] = [
        (60, "EiB"),
        (50, "PiB"),
        (40, "TiB"),
        (30, "GiB"),
        (20, "MiB"),
        (10, "KiB"),
    ];
    let (shift, unit) = UNITS
        .into_iter()
        .find(|(shift, _)| value >= 2_i128 << shift)
        .unwrap_or((0, "B"));
    // Half up, one decimal.
    let tenths = (value * 10 + ((1_i128 << shift) >> 1)) >> shift;
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// Milliseconds, as `Utils.msDurationToString`.
fn duration(milliseconds: i64) -> String {
    // Spark divides as 32-bit floats and rounds half up.
    let over = |unit: i64, scale: f64| {
        let value = f64::from(milliseconds as f32 / unit as f32);
        (value * scale + 0.5).floor() / scale
    };
    match milliseconds {
        ..1_000 => format!("{milliseconds} ms"),
        1_000..60_000 => format!("{:.1} s", over(1_000, 10.0)),
        60_000..3_600_000 => format!("{:.1} m", over(60_000, 10.0)),
        _ => format!("{:.2} h", over(3_600_000, 100.0)),
    }
}

/// An integer with commas.
fn grouped(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0 { format!("-{text}") } else { text }
}

/// Tenths, as Spark prints averages.
fn tenths(value: i64) -> String {
    let whole = grouped(value / 10);
    match value % 10 {
        0 => whole,
        rest => format!("{whole}.{}", rest.abs()),
    }
}

/// The values of one metric: those that tasks reported, and how many tasks reported none, which count as 0.
#[derive(Debug, Default)]
pub(super) struct Values {
    pub reported: Vec<i64>,
    pub zeros: u64,
}

impl Values {
    /// The value at a position of the sorted values, zeros included.
    fn at(&self, sorted: &[i64], position: u64) -> i64 {
        let negative = sorted.partition_point(|value| *value < 0) as u64;
        if position < negative {
            return sorted[position as usize];
        }
        if position < negative + self.zeros {
            return 0;
        }
        let at = usize::try_from(position - self.zeros).unwrap_or(usize::MAX);
        sorted.get(at).copied().unwrap_or_default()
    }

    /// Text of the metric; `place` says which task had the largest value.
    pub(super) fn text(mut self, kind: &str, place: Option<(i32, i32, i64)>) -> String {
        const SUFFIX: &str = "(min, med, max (stageId: taskId))";
        let place = place.map_or_else(
            || "(driver)".to_owned(),
            |(stage, attempt, task)| format!("(stage {stage}.{attempt}: task {task})"),
        );
        if kind == "sum" {
            let sum = self
                .reported
                .iter()
                .fold(0, |sum: i64, value| sum.wrapping_add(*value));
            return grouped(sum);
        }
        let is_average = kind == "average";
        if is_average {
            self.reported.retain(|value| *value > 0);
            self.zeros = 0;
        } else {
            self.reported.retain(|value| *value >= 0);
        }
        self.reported.sort_unstable();
        let sorted = std::mem::take(&mut self.reported);
        let count = sorted.len() as u64 + self.zeros;
        let [min, med, max] = [0, count / 2, count.saturating_sub(1)].map(|position| {
            if count == 0 {
                0
            } else {
                self.at(&sorted, position)
            }
        });
        let print = |value: i64| match kind {
            "size" => bytes(value.into()),
            "timing" => duration(value),
            "nsTiming" => duration(value / 1_000_000),
            "average" => tenths(value),
            _ => value.to_string(),
        };
        match (count, is_average) {
            (..=1, _) => print(max),
            (_, true) => format!(
                "{SUFFIX}:\n({}, {}, {} {place})",
                print(min),
                print(med),
                print(max)
            ),
            (_, false) => {
                let sum = sorted
                    .iter()
                    .fold(0, |sum: i64, value| sum.wrapping_add(*value));
                format!(
                    "total {SUFFIX}\n{} ({}, {}, {} {place})",
                    print(sum),
                    print(min),
                    print(med),
                    print(max)
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_printed_as_spark_prints_them() {
        assert_eq!(bytes(1185), "1185.0 B");
        assert_eq!(bytes(2048), "2.0 KiB");
        assert_eq!(bytes(1_048_976), "1024.4 KiB");
        assert_eq!(bytes(i64::MAX.into()), "8.0 EiB");
        assert_eq!(duration(999), "999 ms");
        assert_eq!(duration(10_937), "10.9 s");
        assert_eq!(duration(2_250), "2.3 s");
        assert_eq!(duration(90_000), "1.5 m");
        assert_eq!(duration(5_400_000), "1.50 h");
        assert_eq!(grouped(-1_234_567), "-1,234,567");
        assert_eq!(tenths(12), "1.2");
        assert_eq!(tenths(10), "1");
    }

    #[test]
    fn tasks_without_a_value_count_as_zero() {
        let values = |reported: &[i64], zeros| Values {
            reported: reported.to_vec(),
            zeros,
        };
        assert_eq!(
            values(&[113, 13], 6).text("timing", Some((29, 0, 101))),
            "total (min, med, max (stageId: taskId))\n126 ms (0 ms, 0 ms, 113 ms (stage 29.0: task 101))"
        );
        assert_eq!(values(&[5], 0).text("nsTiming", None), "0 ms");
        assert_eq!(values(&[-1], 0).text("size", None), "0.0 B");
        assert_eq!(values(&[], 0).text("sum", None), "0");
    }
}
