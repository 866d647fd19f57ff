//! Reads columns of a table, and of each only the rows that are asked for.

use std::fs::{File, OpenOptions};
use std::io::Cursor;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use nix::fcntl::OFlag;
use parquet::basic::{ConvertedType, Type};
use parquet::column::page::PageReader;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::DataType;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{
    ChunkReader, FileReader, Length, SerializedFileReader, SerializedPageReader,
};
use parquet::schema::types::ColumnDescriptor;

use super::columns::{Kind, Table, Unknown};
use super::derived::{self, DERIVED, DERIVED_KEY};
use super::{MAGIC_KEY, VERSION, VERSION_KEY};
use crate::footer::{self, Source};
use crate::read::guarded;

/// Rows of a row group at most. The writer's largest have 400,000.
const GROUP_ROWS: u64 = 4 << 20;
/// Rows of a table at most.
const ROWS: u64 = 1 << 30;
/// Rows that one call reads at most.
pub const READ_ROWS: u64 = 32 << 20;
/// Bytes of texts that one call reads at most.
const READ_BYTES: usize = 512 << 20;
/// Bytes of a column of a row group up to which it is read at once. To skip a page, only its head is then looked at in
/// memory.
const CHUNK_BYTES: u64 = 1 << 20;

/// Unknown columns of a table that are kept at most.
pub const UNKNOWN: usize = 64;

/// A table that is open for reading.
pub struct Reader {
    file: SerializedFileReader<Source>,
    /// The same file.
    bytes: File,
    groups: Vec<u64>,
    /// Row groups in which columns have no values of their own.
    derived: [Vec<bool>; DERIVED.len()],
    /// Columns of a row group that were opened.
    opened: AtomicU64,
}

impl Reader {
    /// Opens a table.
    ///
    /// # Errors
    /// When the file cannot be read, is no table of a history, or is of a version that this reader does not know.
    pub fn open(path: &Path, table: &str) -> Result<Self> {
        Self::open_up_to(path, table, u64::MAX)
    }

    /// Opens a table of at most `most` bytes.
    ///
    /// # Errors
    /// As [`Reader::open`], and when the file is larger.
    pub fn open_up_to(path: &Path, table: &str, most: u64) -> Result<Self> {
        let damaged = |what: &str| ParquetError::General(format!("{}: {what}", path.display()));
        // A link could lead anywhere, and the open of a pipe would wait for its writer.
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let mut options = OpenOptions::new();
        let file = options.read(true).custom_flags(flags.bits()).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(damaged("no regular file"));
        }
        if metadata.len() > most {
            return Err(damaged(&format!("the file has more than {most} bytes")));
        }
        let bytes = file.try_clone()?;
        let file = guarded(|| footer::open(file, 1))?;
        let mut groups = Vec::new();
        let mut rows = 0_u64;
        for group in file.metadata().row_groups() {
            let count = u64::try_from(group.num_rows()).unwrap_or(u64::MAX);
            if count > GROUP_ROWS || group.columns().iter().any(|it| it.num_values() < 0) {
                return Err(damaged("a row group claims too many rows"));
            }
            rows += count;
            if rows > ROWS {
                return Err(damaged("the table claims too many rows"));
            }
            groups.push(count);
        }
        // A level above 1 is a list or a group: its values are not its rows.
        let schema = file.metadata().file_metadata().schema_descr();
        let is_flat =
            |column: &ColumnDescriptor| column.max_rep_level() == 0 && column.max_def_level() <= 1;
        if !schema.columns().iter().all(|column| is_flat(column)) {
            return Err(damaged("a column is repeated or nested"));
        }
        let mut reader = Self {
            file,
            bytes,
            groups,
            derived: Default::default(),
            opened: AtomicU64::new(0),
        };
        if reader.said(MAGIC_KEY).as_deref() != Some(table) {
            return Err(damaged(&format!("no table {table} of a history")));
        }
        let version = reader.said(VERSION_KEY);
        let version = version.and_then(|version| version.parse::<u32>().ok());
        if version.is_none_or(|version| version.abs_diff(VERSION) > 1) {
            return Err(damaged(&format!(
                "format version {version:?}, this program reads {VERSION} and its neighbours"
            )));
        }
        if let Some(text) = reader.said(DERIVED_KEY) {
            reader.derived = derived::parsed(&text, reader.groups.len());
        }
        Ok(reader)
    }

    /// The value of a key in the file's own metadata.
    #[must_use]
    pub fn said(&self, key: &str) -> Option<String> {
        let metadata = self.file.metadata().file_metadata();
        let mut pairs = metadata.key_value_metadata()?.iter();
        pairs.find(|pair| pair.key == key)?.value.clone()
    }

    /// Names of the file's columns.
    #[must_use]
    pub fn columns(&self) -> Vec<&str> {
        let schema = self.file.metadata().file_metadata().schema_descr();
        schema
            .columns()
            .iter()
            .map(|column| column.name())
            .collect()
    }

    /// Columns that neither the table nor `others` have, and how many of these cannot be kept: they are of a type that no
    /// version has, or their names are no plain words.
    #[must_use]
    pub fn unknown(&self, table: &Table, others: &[&str]) -> (Vec<Unknown>, u64) {
        let schema = self.file.metadata().file_metadata().schema_descr();
        let (mut unknown, mut left_out) = (Vec::new(), 0);
        for column in schema.columns() {
            let name = column.name();
            if others.contains(&name) || table.columns.iter().any(|it| it.name == name) {
                continue;
            }
            match kind_of(column).filter(|_| is_word(name) && unknown.len() < UNKNOWN) {
                Some(kind) => unknown.push(Unknown {
                    name: name.to_owned(),
                    kind,
                }),
                None => left_out += 1,
            }
        }
        (unknown, left_out)
    }

    /// Rows of each row group.
    #[must_use]
    pub fn groups(&self) -> &[u64] {
        &self.groups
    }

    /// Rows of the table.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.groups.iter().sum()
    }

    /// How often a column of a row group was opened so far: the cost of a call, beside the rows that it reads.
    #[must_use]
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Numbers of a column in ascending, disjoint ranges of rows; `None` for an absent value or a column that the file
    /// does not have. Where the values of a row group follow from other columns, they are computed.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn numbers(&self, column: &str, rows: &[Range<u64>]) -> Result<Vec<Option<i64>>> {
        let mut values = self.own_numbers(column, rows)?;
        let known = DERIVED.iter().zip(&self.derived);
        let mut known = known.filter(|((name, _), groups)| *name == column && !groups.is_empty());
        let Some(((_, of), groups)) = known.next() else {
            return Ok(values);
        };
        let mut sources = Vec::new();
        for column in *of {
            sources.push(self.own_numbers(column, rows)?);
        }
        let (mut start, mut place) = (0, 0);
        for (at, &count) in self.groups.iter().enumerate() {
            let end = start + count;
            let here = within(rows, start..end).map(|range| range.end - range.start);
            let next = place + usize::try_from(here.sum::<u64>()).unwrap_or(usize::MAX);
            if groups.get(at) == Some(&true) {
                let rows = (place..).zip(values.iter_mut().take(next).skip(place));
                for (row, value) in rows {
                    let of_row = sources.iter().map(|it| it.get(row).copied().flatten());
                    *value = derived::sum(of_row);
                }
            }
            (start, place) = (end, next);
        }
        Ok(values)
    }

    /// Numbers of a column as they are in the file.
    pub(super) fn own_numbers(
        &self,
        column: &str,
        rows: &[Range<u64>],
    ) -> Result<Vec<Option<i64>>> {
        self.column(column, rows, &mut |reader, ranges, out| match reader {
            ColumnReader::Int32ColumnReader(reader) => {
                read(reader, ranges, out, |value| Some(i64::from(*value)))
            }
            ColumnReader::Int64ColumnReader(reader) => {
                read(reader, ranges, out, |value| Some(*value))
            }
            ColumnReader::BoolColumnReader(reader) => {
                read(reader, ranges, out, |value| Some(i64::from(*value)))
            }
            _ => Err(wrong_type(column)),
        })
    }

    /// Texts of a column, as [`Reader::numbers`].
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn texts(&self, column: &str, rows: &[Range<u64>]) -> Result<Vec<Option<String>>> {
        self.texts_up_to(column, rows, READ_BYTES)
    }

    /// Texts of a column, of at most `most` bytes together.
    ///
    /// # Errors
    /// As [`Reader::texts`], and when there are more.
    pub fn texts_up_to(
        &self,
        column: &str,
        rows: &[Range<u64>],
        most: usize,
    ) -> Result<Vec<Option<String>>> {
        self.texts_within(column, rows, most)?.ok_or_else(|| {
            ParquetError::General(format!(
                "column {column} has more than {most} bytes in these rows"
            ))
        })
    }

    /// Texts of a column; `None` where they have more than `most` bytes together. No text beyond is kept.
    ///
    /// # Errors
    /// As [`Reader::texts`].
    pub fn texts_within(
        &self,
        column: &str,
        rows: &[Range<u64>],
        most: usize,
    ) -> Result<Option<Vec<Option<String>>>> {
        let (mut left, mut is_beyond) = (most, false);
        let texts = self.column(column, rows, &mut |reader, ranges, out| match reader {
            ColumnReader::ByteArrayColumnReader(reader) => read(reader, ranges, out, |value| {
                match left.checked_sub(value.len()) {
                    Some(rest) => left = rest,
                    None => is_beyond = true,
                }
                (!is_beyond).then(|| String::from_utf8_lossy(value.data()).into_owned())
            }),
            _ => Err(wrong_type(column)),
        });
        if is_beyond {
            return Ok(None);
        }
        texts.map(Some)
    }

    /// What `of` makes of each text of a column, as [`Reader::numbers`]. No text is kept.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn texts_as<V>(
        &self,
        column: &str,
        rows: &[Range<u64>],
        of: &dyn Fn(&[u8]) -> V,
    ) -> Result<Vec<Option<V>>> {
        self.column(column, rows, &mut |reader, ranges, out| match reader {
            ColumnReader::ByteArrayColumnReader(reader) => {
                read(reader, ranges, out, |value| Some(of(value.data())))
            }
            _ => Err(wrong_type(column)),
        })
    }

    #[expect(clippy::type_complexity, reason = "used by the functions above")]
    fn column<V>(
        &self,
        column: &str,
        rows: &[Range<u64>],
        read: &mut dyn FnMut(ColumnReader, &[Range<u64>], &mut Vec<Option<V>>) -> Result<()>,
    ) -> Result<Vec<Option<V>>> {
        let wanted = counted(rows)?;
        let mut out = Vec::new();
        let schema = self.file.metadata().file_metadata().schema_descr_ptr();
        let index = schema
            .columns()
            .iter()
            .position(|known| known.name() == column);
        let Some(index) = index else {
            let absent = wanted.min(self.rows());
            out.resize_with(usize::try_from(absent).unwrap_or(0), || None);
            return Ok(out);
        };
        let mut start = 0;
        for (at, &count) in self.groups.iter().enumerate() {
            let end = start + count;
            let here: Vec<Range<u64>> = within(rows, start..end)
                .map(|range| range.start - start..range.end - start)
                .collect();
            if !here.is_empty() {
                // The list of applications asks for the first row only, which is in the first page.
                let is_first = here.iter().all(|range| range.end == 1);
                guarded(|| {
                    let pages = self.pages(at, index, count, is_first)?;
                    let reader = get_column_reader(schema.column(index), pages);
                    read(reader, &here, &mut out)
                })?;
            }
            start = end;
        }
        Ok(out)
    }

    /// Pages of a column of a row group.
    fn pages(
        &self,
        group: usize,
        column: usize,
        rows: u64,
        is_first: bool,
    ) -> Result<Box<dyn PageReader>> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let described = self.file.metadata().row_group(group).column(column);
        if !is_first && let Some(chunk) = Chunk::read(&self.bytes, described)? {
            let rows = usize::try_from(rows).unwrap_or(usize::MAX);
            let pages = SerializedPageReader::new(Arc::new(chunk), described, rows, None)?;
            return Ok(Box::new(pages));
        }
        self.file
            .get_row_group(group)?
            .get_column_page_reader(column)
    }
}

/// The number of rows in ranges.
///
/// # Errors
/// When there are more than [`READ_ROWS`].
pub fn counted(rows: &[Range<u64>]) -> Result<u64> {
    let wanted = rows.iter().try_fold(0_u64, |sum, range| {
        sum.checked_add(range.end.saturating_sub(range.start))
    });
    let wanted = wanted.filter(|wanted| *wanted <= READ_ROWS);
    wanted.ok_or_else(|| {
        ParquetError::General(format!("more than {READ_ROWS} rows are asked for at once"))
    })
}

/// The parts of ascending, disjoint ranges that are in `part`. A table may have half a million ranges and many parts.
pub fn within(rows: &[Range<u64>], part: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
    let first = rows.partition_point(|range| range.end <= part.start);
    rows.iter()
        .skip(first)
        .take_while(move |range| range.start < part.end)
        .map(move |range| range.start.max(part.start)..range.end.min(part.end))
        .filter(|range| range.start < range.end)
}

/// A column of a row group, in memory as it is in the file.
struct Chunk {
    start: u64,
    bytes: Bytes,
}

impl Chunk {
    /// Reads it; `None` where it has more than [`CHUNK_BYTES`].
    fn read(file: &File, described: &ColumnChunkMetaData) -> Result<Option<Self>> {
        let (start, length) = described.byte_range();
        if length > CHUNK_BYTES {
            return Ok(None);
        }
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        file.read_exact_at(&mut bytes, start)?;
        let bytes = bytes.into();
        Ok(Some(Self { start, bytes }))
    }

    /// Its bytes from a position of the file on.
    fn from(&self, start: u64) -> Result<Bytes> {
        let at = start.checked_sub(self.start);
        let at = at.and_then(|at| usize::try_from(at).ok());
        match at.filter(|at| *at <= self.bytes.len()) {
            Some(at) => Ok(self.bytes.slice(at..)),
            None => Err(ParquetError::EOF("a page is not in its column".to_owned())),
        }
    }
}

impl Length for Chunk {
    fn len(&self) -> u64 {
        self.start.saturating_add(self.bytes.len() as u64)
    }
}

impl ChunkReader for Chunk {
    type T = Cursor<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(Cursor::new(self.from(start)?))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let bytes = self.from(start)?;
        if length > bytes.len() {
            return Err(ParquetError::EOF("a page ends after its column".to_owned()));
        }
        Ok(bytes.slice(..length))
    }
}

/// What a column holds, if a table can have such a column.
fn kind_of(column: &ColumnDescriptor) -> Option<Kind> {
    let is_plain = column.logical_type_ref().is_none();
    match (column.physical_type(), column.converted_type()) {
        (Type::INT32, ConvertedType::INT_32) => Some(Kind::Int),
        (Type::INT32, ConvertedType::NONE) if is_plain => Some(Kind::Int),
        (Type::INT64, ConvertedType::INT_64) => Some(Kind::Long),
        (Type::INT64, ConvertedType::NONE) if is_plain => Some(Kind::Long),
        (Type::INT64, ConvertedType::TIMESTAMP_MILLIS) => Some(Kind::Time),
        (Type::BOOLEAN, _) => Some(Kind::Flag),
        (Type::BYTE_ARRAY, ConvertedType::UTF8) => Some(Kind::Text),
        _ => None,
    }
}

fn is_word(name: &str) -> bool {
    let mut bytes = name.bytes();
    name.len() <= 64
        && bytes.next().is_some_and(|it| it.is_ascii_lowercase())
        && bytes.all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'_')
}

fn wrong_type(column: &str) -> ParquetError {
    ParquetError::General(format!("column {column} has an unexpected type"))
}

/// Reads the rows of ranges. `of` returns `None` for a value beyond the caller's bound: that is an error, and the rest is not
/// read.
fn read<T: DataType, V>(
    mut reader: ColumnReaderImpl<T>,
    ranges: &[Range<u64>],
    out: &mut Vec<Option<V>>,
    mut of: impl FnMut(&T::T) -> Option<V>,
) -> Result<()> {
    let enough = || ParquetError::General("the values are beyond their bound".to_owned());
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
                for value in &values[..present] {
                    out.push(Some(of(value).ok_or_else(enough)?));
                }
            } else {
                let mut present = values.iter();
                for &level in &levels {
                    let value = if level > 0 { present.next() } else { None };
                    out.push(match value {
                        Some(value) => Some(of(value).ok_or_else(enough)?),
                        None => None,
                    });
                }
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
