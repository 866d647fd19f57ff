//! Writes a table: the encoding of each column is the one that makes the first row group smallest.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::Result;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, TypePtr};

use super::batch::Batch;
use super::columns::{Column, Kind, Table};
use super::{MAGIC_KEY, VERSION, VERSION_KEY, place};

/// Rows of a row group at most.
pub const GROUP_ROWS: usize = 100_000;
/// Rows with which encodings are tried.
const TRIED_ROWS: usize = 100_000;
/// Bytes of a page of numbers at most: a column of a row group is one page, so that the codec sees all of it.
const PAGE_BYTES: usize = 8 << 20;

/// How a column is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Dictionary,
    Plain,
    Delta,
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
            rows: 0,
            is_done: false,
        })
    }

    /// Gives the finished file this name in its folder, in place of the table's.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.finished.set_file_name(name);
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
            let forms = choose(batch, &order)?;
            self.writer = Some(self.open(file, &forms)?);
        }
        if let Some(writer) = &mut self.writer {
            let mut group = writer.next_row_group()?;
            for (at, column) in self.table.columns.iter().enumerate() {
                let Some(mut out) = group.next_column()? else {
                    break;
                };
                write_column(&mut out, column, at, batch, &order)?;
                out.close()?;
            }
            group.close()?;
            self.rows += batch.len() as u64;
        }
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
            let forms = vec![Form::Plain; self.table.columns.len()];
            self.writer = Some(self.open(file, &forms)?);
        }
        let mut bytes = 0;
        if let Some(writer) = self.writer.take() {
            let file = writer.into_inner()?;
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

    fn open(&self, file: File, forms: &[Form]) -> Result<SerializedFileWriter<File>> {
        let mut pairs = vec![
            KeyValue::new(MAGIC_KEY.to_owned(), self.table.name.to_owned()),
            KeyValue::new(VERSION_KEY.to_owned(), VERSION.to_string()),
        ];
        for (key, value) in &self.said {
            pairs.push(KeyValue::new(key.clone(), value.clone()));
        }
        let mut properties = properties()?.set_key_value_metadata(Some(pairs));
        for (column, form) in self.table.columns.iter().zip(forms) {
            properties = encoded(properties, column, *form);
        }
        SerializedFileWriter::new(
            file,
            schema(self.table.columns)?,
            Arc::new(properties.build()),
        )
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

/// No statistics: in a row group of some thousand rows they are larger than the data, and every reader of an application
/// asks for its stages by the sorted column.
fn properties() -> Result<WriterPropertiesBuilder> {
    Ok(WriterProperties::builder()
        .set_created_by(concat!("smtt ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(9)?))
        .set_statistics_enabled(EnabledStatistics::None)
        .set_data_page_row_count_limit(usize::MAX)
        .set_offset_index_disabled(true))
}

fn encoded(
    properties: WriterPropertiesBuilder,
    column: &Column,
    form: Form,
) -> WriterPropertiesBuilder {
    let path = ColumnPath::from(column.name);
    // The first document of `meta` is read for each line of the list of applications, so texts have smaller pages.
    let properties = if column.kind == Kind::Text {
        properties
    } else {
        properties
            .set_column_data_page_size_limit(path.clone(), PAGE_BYTES)
            .set_column_dictionary_page_size_limit(path.clone(), PAGE_BYTES)
    };
    match form {
        Form::Dictionary => properties.set_column_dictionary_enabled(path, true),
        Form::Plain => properties
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_encoding(path, Encoding::PLAIN),
        Form::Delta => properties
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED),
    }
}

/// The schema in Parquet's own notation.
fn schema(columns: &[Column]) -> Result<TypePtr> {
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

/// For each column the form that gives the fewest bytes for the first rows.
fn choose(batch: &Batch, order: &[u32]) -> Result<Vec<Form>> {
    let tried = &order[..order.len().min(TRIED_ROWS)];
    let mut forms = Vec::new();
    for (at, column) in batch.table().columns.iter().enumerate() {
        let candidates: &[Form] = match column.kind {
            Kind::Flag => &[],
            Kind::Text => &[Form::Dictionary, Form::Plain],
            Kind::Int | Kind::Long | Kind::Time => &[Form::Dictionary, Form::Plain, Form::Delta],
        };
        let mut best = (usize::MAX, Form::Plain);
        for &form in candidates {
            let bytes = encoded_bytes(batch, at, tried, form)?;
            if bytes < best.0 {
                best = (bytes, form);
            }
        }
        forms.push(best.1);
    }
    Ok(forms)
}

fn encoded_bytes(batch: &Batch, at: usize, order: &[u32], form: Form) -> Result<usize> {
    let column = &batch.table().columns[at..=at];
    let properties = encoded(properties()?, &column[0], form).build();
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema(column)?, Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    if let Some(mut out) = group.next_column()? {
        write_column(&mut out, &column[0], at, batch, order)?;
        out.close()?;
    }
    group.close()?;
    writer.close()?;
    bytes.flush()?;
    Ok(bytes.len())
}

fn write_column(
    out: &mut SerializedColumnWriter<'_>,
    column: &Column,
    at: usize,
    batch: &Batch,
    order: &[u32],
) -> Result<()> {
    if column.kind == Kind::Text {
        let mut levels = Vec::new();
        let texts: Vec<ByteArray> = batch
            .texts(at, order)
            .inspect(|text| levels.push(i16::from(text.is_some())))
            .flatten()
            .map(ByteArray::from)
            .collect();
        let levels = column.optional.then_some(levels.as_slice());
        out.typed::<ByteArrayType>()
            .write_batch(&texts, levels, None)?;
        return Ok(());
    }
    let (values, levels) = batch.numbers(at, order);
    let levels = column.optional.then_some(levels.as_slice());
    match column.kind {
        Kind::Int => {
            let small: Vec<i32> = values
                .iter()
                .map(|&value| {
                    i32::try_from(value).unwrap_or(if value < 0 { i32::MIN } else { i32::MAX })
                })
                .collect();
            out.typed::<Int32Type>().write_batch(&small, levels, None)?;
        }
        Kind::Flag => {
            let flags: Vec<bool> = values.iter().map(|&value| value != 0).collect();
            out.typed::<BoolType>().write_batch(&flags, levels, None)?;
        }
        _ => {
            out.typed::<Int64Type>()
                .write_batch(&values, levels, None)?;
        }
    }
    Ok(())
}
