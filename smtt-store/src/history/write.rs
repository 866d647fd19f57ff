//! Writes a table. It encodes the first row group in several ways, and gives each column the encoding and compression level
//! that make it smallest.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::column::writer::{ColumnCloseResult, ColumnWriter, get_column_writer};
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, KeyValue};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::file::writer::{SerializedFileWriter, SerializedPageWriter, TrackedWrite};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnDescPtr, ColumnPath, TypePtr};

use super::batch::Batch;
use super::columns::{Column, Kind, Table};
use super::derived::{self, DERIVED_KEY};
use super::{MAGIC_KEY, VERSION, VERSION_KEY, place};

/// Rows of a row group at most. An import holds one of tasks, and four times as many SQL metrics, in 100 MB.
pub const GROUP_ROWS: usize = 50_000;
/// Level of the codec where a table is written while a job runs.
const LEVEL: i32 = 9;
/// Levels that are tried for a table that is written once. A lower one is often better for numbers without order: it takes
/// fewer of the short matches that cost more than they save.
const LEVELS: [i32; 3] = [9, 3, 1];
/// The level that is tried for the best encoding of a column, and bytes of the column at most: it takes a second for 3 MB.
const LAST: (i32, u64) = (19, 512 << 10);
/// Bytes of a page of numbers at most: a column of a row group is one page, so that the codec sees all of it.
const PAGE_BYTES: usize = 8 << 20;

/// Encoding of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoded {
    Dictionary,
    Plain,
    Delta,
}

/// An encoding, and the level of the codec.
type Form = (Encoded, i32);

/// A column of a row group as it will be in the file.
struct Chunk {
    form: Form,
    bytes: Vec<u8>,
    closed: ColumnCloseResult,
}

/// The column of a row group that is to be written.
struct Source<'a> {
    column: Column<'a>,
    described: ColumnDescPtr,
    at: usize,
    batch: &'a Batch,
    order: &'a [u32],
    /// Its values follow from other columns, and are left out.
    is_derived: bool,
}

/// A finished table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Rows of the file.
    pub rows: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// A table that is being written under a temporary name. Dropped without [`Writer::finish`] it leaves no file.
pub struct Writer {
    table: &'static Table,
    temporary: PathBuf,
    finished: PathBuf,
    said: Vec<(String, String)>,
    file: Option<File>,
    writer: Option<SerializedFileWriter<File>>,
    /// Forms of the columns that have been written.
    forms: Vec<Option<Form>>,
    levels: &'static [i32],
    last: Option<(i32, u64)>,
    /// Row groups so far, and columns without values of their own in some of them.
    groups: (usize, derived::Groups),
    rows: u64,
    is_done: bool,
}

impl Writer {
    /// Begins a table in `folder`. `said` goes into the file's own metadata. `unique` keeps two writers apart.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn create(
        table: &'static Table,
        folder: &Path,
        unique: &str,
        said: &[(&str, &str)],
    ) -> Result<Self> {
        let temporary = folder.join(format!(".{}.{unique}.inprogress", table.name));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o640)
            .open(&temporary)?;
        Ok(Self {
            table,
            temporary,
            finished: place::table(folder, table.name),
            said: said
                .iter()
                .map(|&(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            file: Some(file),
            writer: None,
            forms: vec![None; table.columns.len()],
            levels: &[LEVEL],
            last: None,
            groups: (0, derived::Groups::default()),
            rows: 0,
            is_done: false,
        })
    }

    /// A writer of the same table in another folder, which begins with the row groups that this one has so far. Both go on
    /// as one writer would.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub fn fork(&mut self, folder: &Path, unique: &str) -> Result<Self> {
        let mut fork = Self::create(self.table, folder, unique, &[])?;
        fork.said.clone_from(&self.said);
        fork.forms.clone_from(&self.forms);
        fork.groups.clone_from(&self.groups);
        (fork.levels, fork.last, fork.rows) = (self.levels, self.last, self.rows);
        let Some(writer) = &mut self.writer else {
            return Ok(fork);
        };
        writer.flush()?;
        let from = File::open(&self.temporary)?;
        let schema = writer.schema_descr().root_schema_ptr();
        if let Some(file) = fork.file.take() {
            let mut copy =
                SerializedFileWriter::new(file, schema, Arc::clone(writer.properties()))?;
            for group in writer.flushed_row_groups() {
                let rows = u64::try_from(group.num_rows()).unwrap_or_default();
                let mut into = copy.next_row_group()?;
                for column in group.columns() {
                    into.append_column(&from, closed(column, rows))?;
                }
                into.close()?;
            }
            fork.writer = Some(copy);
        }
        Ok(fork)
    }

    /// Gives the finished file this name in its folder, in place of the table's.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.finished.set_file_name(name);
        self
    }

    /// Takes more time to make the file smaller, and leaves out what follows from other columns.
    #[must_use]
    pub const fn thorough(mut self) -> Self {
        (self.levels, self.last) = (&LEVELS, Some(LAST));
        self
    }

    /// Writes the rows as one row group, in the table's order.
    ///
    /// # Errors
    /// When the file cannot be written; the writer is then unusable.
    pub fn write(&mut self, batch: &Batch) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let order = batch.order();
        if let Some(file) = self.file.take() {
            let columns: Vec<_> = batch.columns().collect();
            self.forms.resize(columns.len(), None);
            self.writer = Some(self.open(file, &columns)?);
        }
        let Some(writer) = &mut self.writer else {
            return Ok(());
        };
        let described = writer.schema_descr().columns().to_vec();
        let names = described.iter().map(|it| it.name());
        if !names.eq(batch.columns().map(|it| it.name)) {
            let what = "a row group has other columns than the first one";
            return Err(ParquetError::General(what.to_owned()));
        }
        let derived = match self.last {
            Some(_) => derived::of_batch(batch),
            None => Vec::new(),
        };
        let mut group = writer.next_row_group()?;
        for ((at, column), described) in batch.columns().enumerate().zip(described) {
            let source = Source {
                column,
                described,
                at,
                batch,
                order: &order,
                is_derived: derived.contains(&at),
            };
            let chunk = match self.forms[at] {
                _ if source.is_derived => {
                    self.groups.1.add(at, self.groups.0);
                    source.chunk((Encoded::Plain, LEVEL))?
                }
                Some(form) => source.chunk(form)?,
                None => {
                    let best = source.smallest(self.levels, self.last)?;
                    self.forms[at] = Some(best.form);
                    best
                }
            };
            group.append_column(&Bytes::from(chunk.bytes), chunk.closed)?;
        }
        group.close()?;
        self.groups.0 += 1;
        self.rows += batch.len() as u64;
        Ok(())
    }

    /// Adds to the file's own metadata what became known while rows were written.
    pub fn say(&mut self, key: &str, value: &str) {
        match &mut self.writer {
            Some(writer) => {
                writer.append_key_value_metadata(KeyValue::new(key.to_owned(), value.to_owned()))
            }
            None => self.said.push((key.to_owned(), value.to_owned())),
        }
    }

    /// Writes the footer, waits until the file is on disk and gives it its final name.
    ///
    /// # Errors
    /// When a step fails; the file is then removed.
    pub fn finish(mut self) -> Result<Written> {
        if let Some(file) = self.file.take() {
            self.writer = Some(self.open(file, self.table.columns)?);
        }
        let columns = self.table.columns;
        if let Some(text) = self.groups.1.text(|at| columns[at].name) {
            self.say(DERIVED_KEY, &text);
        }
        let mut bytes = 0;
        if let Some(mut writer) = self.writer.take() {
            // `into_inner` would keep the text of an error of the file only.
            writer.finish()?;
            let file = writer.inner();
            file.sync_all()?;
            bytes = file.metadata()?.len();
        }
        fs::rename(&self.temporary, &self.finished)?;
        self.is_done = true;
        if let Some(folder) = self.finished.parent() {
            File::open(folder)?.sync_all()?;
        }
        Ok(Written {
            rows: self.rows,
            bytes,
        })
    }

    fn open(&self, file: File, columns: &[Column<'_>]) -> Result<SerializedFileWriter<File>> {
        let mut pairs = vec![
            KeyValue::new(MAGIC_KEY.to_owned(), self.table.name.to_owned()),
            KeyValue::new(VERSION_KEY.to_owned(), VERSION.to_string()),
        ];
        for (key, value) in &self.said {
            pairs.push(KeyValue::new(key.clone(), value.clone()));
        }
        let properties = properties().set_key_value_metadata(Some(pairs));
        SerializedFileWriter::new(file, schema(columns)?, Arc::new(properties.build()))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.is_done {
            // The file may be gone with its folder.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// A column of a row group that is in a file.
fn closed(column: &ColumnChunkMetaData, rows: u64) -> ColumnCloseResult {
    ColumnCloseResult {
        bytes_written: u64::try_from(column.compressed_size()).unwrap_or_default(),
        rows_written: rows,
        metadata: column.clone(),
        bloom_filter: None,
        column_index: None,
        offset_index: None,
    }
}

/// No statistics: in a row group of some thousand rows they are larger than the data, and every reader of an application
/// asks for its stages by the sorted column.
fn properties() -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_created_by(concat!("smtt ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_statistics_enabled(EnabledStatistics::None)
        .set_data_page_row_count_limit(usize::MAX)
        .set_offset_index_disabled(true)
}

fn encoded(column: Column<'_>, (encoding, level): Form) -> Result<WriterProperties> {
    let path = ColumnPath::from(column.name);
    let codec = Compression::ZSTD(ZstdLevel::try_new(level)?);
    let properties = properties().set_compression(codec);
    // The first document of `meta` is read for each line of the list of applications, so texts have smaller pages.
    let properties = if column.kind == Kind::Text {
        properties
    } else {
        properties
            .set_column_data_page_size_limit(path.clone(), PAGE_BYTES)
            .set_column_dictionary_page_size_limit(path.clone(), PAGE_BYTES)
    };
    let plain = |properties: WriterPropertiesBuilder, encoding| {
        properties
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_encoding(path.clone(), encoding)
    };
    let properties = match encoding {
        Encoded::Dictionary => properties.set_column_dictionary_enabled(path, true),
        Encoded::Plain => plain(properties, Encoding::PLAIN),
        Encoded::Delta => plain(properties, Encoding::DELTA_BINARY_PACKED),
    };
    Ok(properties.build())
}

/// The schema in Parquet's own notation.
fn schema(columns: &[Column<'_>]) -> Result<TypePtr> {
    let mut text = String::from("message history {\n");
    for column in columns {
        let need = if column.optional {
            "optional"
        } else {
            "required"
        };
        let name = column.name;
        text.push_str(&match column.kind {
            Kind::Int => format!("  {need} int32 {name};\n"),
            Kind::Long => format!("  {need} int64 {name};\n"),
            Kind::Time => format!("  {need} int64 {name} (TIMESTAMP(MILLIS,true));\n"),
            Kind::Flag => format!("  {need} boolean {name};\n"),
            Kind::Text => format!("  {need} binary {name} (UTF8);\n"),
        });
    }
    text.push('}');
    Ok(Arc::new(parse_message_type(&text)?))
}

impl Source<'_> {
    /// The smallest of the forms that suit the column.
    fn smallest(&self, levels: &[i32], last: Option<(i32, u64)>) -> Result<Chunk> {
        let encodings: &[Encoded] = match self.column.kind {
            Kind::Flag => &[Encoded::Plain],
            Kind::Text => &[Encoded::Dictionary, Encoded::Plain],
            Kind::Int | Kind::Long | Kind::Time => {
                &[Encoded::Dictionary, Encoded::Plain, Encoded::Delta]
            }
        };
        let mut best = self.chunk((encodings[0], levels[0]))?;
        let try_form = |best: &mut Chunk, form| -> Result<()> {
            let chunk = self.chunk(form)?;
            if chunk.bytes.len() < best.bytes.len() {
                *best = chunk;
            }
            Ok(())
        };
        for &encoding in encodings {
            for &level in levels {
                if (encoding, level) != (encodings[0], levels[0]) {
                    try_form(&mut best, (encoding, level))?;
                }
            }
        }
        let bytes = u64::try_from(best.closed.metadata.uncompressed_size()).unwrap_or(u64::MAX);
        if let Some((level, _)) = last.filter(|(_, most)| bytes <= *most) {
            let form = (best.form.0, level);
            try_form(&mut best, form)?;
        }
        Ok(best)
    }

    fn chunk(&self, form: Form) -> Result<Chunk> {
        let properties = Arc::new(encoded(self.column, form)?);
        let mut sink = TrackedWrite::new(Vec::new());
        let pages = Box::new(SerializedPageWriter::new(&mut sink));
        let writer = get_column_writer(self.described.clone(), properties, pages);
        let closed = self.write(writer)?;
        let bytes = sink.into_inner()?;
        Ok(Chunk {
            form,
            bytes,
            closed,
        })
    }

    fn write(&self, writer: ColumnWriter<'_>) -> Result<ColumnCloseResult> {
        let Self {
            at, batch, order, ..
        } = *self;
        if let ColumnWriter::ByteArrayColumnWriter(mut out) = writer {
            let mut levels = Vec::new();
            let texts: Vec<ByteArray> = batch
                .texts(at, order)
                .inspect(|text| levels.push(i16::from(text.is_some())))
                .flatten()
                .map(ByteArray::from)
                .collect();
            let levels = self.column.optional.then_some(levels.as_slice());
            out.write_batch(&texts, levels, None)?;
            return out.close();
        }
        let (values, levels) = if self.is_derived {
            (Vec::new(), vec![0; order.len()])
        } else {
            batch.numbers(at, order)
        };
        let levels = self.column.optional.then_some(levels.as_slice());
        match writer {
            ColumnWriter::Int32ColumnWriter(mut out) => {
                let most = |value: i64| if value < 0 { i32::MIN } else { i32::MAX };
                let small = values
                    .iter()
                    .map(|&value| i32::try_from(value).unwrap_or_else(|_| most(value)));
                out.write_batch(&small.collect::<Vec<i32>>(), levels, None)?;
                out.close()
            }
            ColumnWriter::BoolColumnWriter(mut out) => {
                let flags: Vec<bool> = values.iter().map(|&value| value != 0).collect();
                out.write_batch(&flags, levels, None)?;
                out.close()
            }
            ColumnWriter::Int64ColumnWriter(mut out) => {
                out.write_batch(&values, levels, None)?;
                out.close()
            }
            _ => Err(ParquetError::General(format!(
                "column {} has a type that no table has",
                self.column.name
            ))),
        }
    }
}
