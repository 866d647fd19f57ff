//! Reads columns of a table: the rows that are asked for, and no others.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::DataType;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::{MAGIC_KEY, VERSION, VERSION_KEY};
use crate::read::guarded;

/// A table that is open for reading.
pub struct Reader {
    file: SerializedFileReader<File>,
    groups: Vec<u64>,
}

impl Reader {
    /// Opens a table.
    ///
    /// # Errors
    /// When the file cannot be read, is no table of a history, or is of a version that this reader does not know.
    pub fn open(path: &Path, table: &str) -> Result<Self> {
        let file = guarded(|| SerializedFileReader::new(File::open(path)?))?;
        let said = |key: &str| {
            let pairs = file.metadata().file_metadata().key_value_metadata()?;
            pairs.iter().find(|pair| pair.key == key)?.value.clone()
        };
        if said(MAGIC_KEY).as_deref() != Some(table) {
            return Err(ParquetError::General(format!(
                "{} is no table {table} of a history",
                path.display()
            )));
        }
        let version = said(VERSION_KEY).and_then(|version| version.parse::<u32>().ok());
        if version.is_none_or(|version| version.abs_diff(VERSION) > 1) {
            return Err(ParquetError::General(format!(
                "{} has format version {version:?}, this program reads {VERSION} and its neighbours",
                path.display()
            )));
        }
        let groups = file.metadata().row_groups();
        let groups = groups
            .iter()
            .map(|group| u64::try_from(group.num_rows()).unwrap_or(0))
            .collect();
        Ok(Self { file, groups })
    }

    /// Rows of the table.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.groups.iter().sum()
    }

    /// Numbers of a column in ascending, disjoint ranges of rows; `None` for an absent value or a column that the file
    /// does not have.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn numbers(&self, column: &str, rows: &[Range<u64>]) -> Result<Vec<Option<i64>>> {
        self.column(column, rows, &mut |reader, ranges, out| match reader {
            ColumnReader::Int32ColumnReader(reader) => {
                read(reader, ranges, out, |value| i64::from(*value))
            }
            ColumnReader::Int64ColumnReader(reader) => read(reader, ranges, out, |value| *value),
            ColumnReader::BoolColumnReader(reader) => {
                read(reader, ranges, out, |value| i64::from(*value))
            }
            _ => Err(wrong_type(column)),
        })
    }

    /// Texts of a column, as [`Reader::numbers`].
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn texts(&self, column: &str, rows: &[Range<u64>]) -> Result<Vec<Option<String>>> {
        self.column(column, rows, &mut |reader, ranges, out| match reader {
            ColumnReader::ByteArrayColumnReader(reader) => read(reader, ranges, out, |value| {
                String::from_utf8_lossy(value.data()).into_owned()
            }),
            _ => Err(wrong_type(column)),
        })
    }

    #[expect(clippy::type_complexity, reason = "used by the two functions above")]
    fn column<V>(
        &self,
        column: &str,
        rows: &[Range<u64>],
        read: &mut dyn FnMut(ColumnReader, &[Range<u64>], &mut Vec<Option<V>>) -> Result<()>,
    ) -> Result<Vec<Option<V>>> {
        let mut out = Vec::new();
        let schema = self.file.metadata().file_metadata().schema_descr_ptr();
        let index = schema
            .columns()
            .iter()
            .position(|known| known.name() == column);
        let Some(index) = index else {
            let absent = rows
                .iter()
                .map(|range| range.end - range.start)
                .sum::<u64>();
            out.resize_with(
                usize::try_from(absent.min(self.rows())).unwrap_or(0),
                || None,
            );
            return Ok(out);
        };
        let mut start = 0;
        for (at, &count) in self.groups.iter().enumerate() {
            let end = start + count;
            let here: Vec<Range<u64>> = rows
                .iter()
                .map(|range| range.start.max(start)..range.end.min(end))
                .filter(|range| range.start < range.end)
                .map(|range| range.start - start..range.end - start)
                .collect();
            if !here.is_empty() {
                guarded(|| {
                    let group = self.file.get_row_group(at)?;
                    read(group.get_column_reader(index)?, &here, &mut out)
                })?;
            }
            start = end;
        }
        Ok(out)
    }
}

fn wrong_type(column: &str) -> ParquetError {
    ParquetError::General(format!("column {column} has an unexpected type"))
}

fn read<T: DataType, V>(
    mut reader: ColumnReaderImpl<T>,
    ranges: &[Range<u64>],
    out: &mut Vec<Option<V>>,
    of: impl Fn(&T::T) -> V,
) -> Result<()> {
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    let mut at = 0;
    for range in ranges {
        skip(&mut reader, range.start - at)?;
        at = range.start;
        while at < range.end {
            values.clear();
            levels.clear();
            let wanted = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            let (records, present, of_levels) =
                reader.read_records(wanted, Some(&mut levels), None, &mut values)?;
            if records == 0 {
                return Err(ParquetError::EOF(
                    "a column ends before its rows".to_owned(),
                ));
            }
            at += records as u64;
            if of_levels == 0 || levels.is_empty() {
                out.extend(values[..present].iter().map(|value| Some(of(value))));
            } else {
                let mut present = values.iter();
                out.extend(levels.iter().map(|&level| {
                    if level > 0 {
                        present.next().map(&of)
                    } else {
                        None
                    }
                }));
            }
        }
    }
    Ok(())
}

fn skip<T: DataType>(reader: &mut ColumnReaderImpl<T>, mut rows: u64) -> Result<()> {
    while rows > 0 {
        let skipped = reader.skip_records(usize::try_from(rows).unwrap_or(usize::MAX))?;
        if skipped == 0 {
            return Err(ParquetError::EOF(
                "a column ends before its rows".to_owned(),
            ));
        }
        rows -= skipped as u64;
    }
    Ok(())
}
