//! Finished segments -> records again, for `smtt-ctl trace` and the tests.

use std::fs::File;
use std::path::Path;

use parquet::errors::Result;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, List, Row};
use serde_json::{Map, Value, json};

use super::segment::{APPLICATION_KEY, HOST_KEY};

/// A segment that is open for reading.
pub struct Reader {
    file: SerializedFileReader<File>,
    /// Application id, as the executor claimed it.
    pub application_id: String,
    /// Host, as Spark names it.
    pub host: String,
}

impl Reader {
    /// Opens a segment.
    ///
    /// # Errors
    /// When it cannot be read or is no Parquet file.
    pub fn open(path: &Path) -> Result<Self> {
        let file = SerializedFileReader::new(File::open(path)?)?;
        let said = |key: &str| {
            let pairs = file.metadata().file_metadata().key_value_metadata();
            pairs
                .and_then(|pairs| pairs.iter().find(|pair| pair.key == key)?.value.clone())
                .unwrap_or_default()
        };
        let (application_id, host) = (said(APPLICATION_KEY), said(HOST_KEY));
        Ok(Self {
            file,
            application_id,
            host,
        })
    }

    /// Its records in the order in which they were written: every column that is not absent, by name. Application
    /// and host come first.
    ///
    /// # Errors
    /// When the file's schema cannot be read.
    pub fn records(&self) -> Result<impl Iterator<Item = Result<Map<String, Value>>> + '_> {
        let rows = self.file.get_row_iter(None)?;
        Ok(rows.map(|row| {
            let mut record = Map::new();
            record.insert("application_id".into(), json!(self.application_id));
            record.insert("host".into(), json!(self.host));
            add(&mut record, &row?);
            Ok(record)
        }))
    }
}

fn add(record: &mut Map<String, Value>, row: &Row) {
    for (name, field) in row.get_column_iter() {
        let value = value(field);
        if !value.is_null() {
            record.insert(name.clone(), value);
        }
    }
}

fn value(field: &Field) -> Value {
    match field {
        Field::Bool(flag) => json!(flag),
        Field::Int(number) => json!(number),
        Field::Long(number) => json!(number),
        Field::Double(number) => json!(number),
        Field::Str(text) => json!(text),
        Field::TimestampMicros(micros) => json!(utc(*micros)),
        Field::ListInternal(list) => list_value(list),
        // No column of ours has another type.
        _ => Value::Null,
    }
}

fn list_value(list: &List) -> Value {
    Value::Array(list.elements().iter().map(value).collect())
}

/// Microseconds since 1970 as `2026-01-31T12:00:00.000000Z`.
#[must_use]
pub fn utc(micros: i64) -> String {
    let (seconds, micros) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days in eras of 400 years that begin on a 1 March, so that a leap day ends its year.
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399_999_999, "2000-02-28T23:59:59.999999Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_798_761_599_000_001, "2026-12-31T23:59:59.000001Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(utc(micros), text);
        }
    }
}
