//! One segment: a Parquet file that gets its final name only when it is complete and on disk.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type,
};
use parquet::errors::Result as ParquetResult;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, TypePtr};

use super::record::{COLUMNS, Origin, Record, Value};

/// Key of the user's number in a file's own metadata; absent where the user is not known.
pub const USER_KEY: &str = "smtt.uid";
/// Key of the application id in a file's own metadata.
pub const APPLICATION_KEY: &str = "smtt.application_id";
/// Key of the host in a file's own metadata.
pub const HOST_KEY: &str = "smtt.host";
/// Suffix of an unfinished file, whose name is hidden too, so that readers of the folder ignore it.
pub const IN_PROGRESS: &str = ".inprogress";

/// Columns with minimum and maximum, by which a reader can skip a file. Statistics of all columns would be a third of
/// the file of a short job.
const SKIPPED_BY: [&str; 8] = [
    "time",
    "kind",
    "executor_id",
    "stage_id",
    "task_attempt_id",
    "rdd_id",
    "partition",
    "block_id",
];

/// The file's schema in Parquet's own notation.
#[must_use]
pub fn message() -> String {
    let mut text = String::from("message access {\n");
    for column in COLUMNS {
        let name = column.name;
        text.push_str(&match column.value {
            Value::Time(_) => format!("  required int64 {name} (TIMESTAMP(MICROS,true));\n"),
            Value::Long(..) => format!("  optional int64 {name};\n"),
            Value::Int(_) => format!("  optional int32 {name};\n"),
            Value::Flag(_) => format!("  optional boolean {name};\n"),
            Value::Real(_) => format!("  optional double {name};\n"),
            Value::Text(_) => format!("  optional binary {name} (UTF8);\n"),
            Value::Longs(..) => format!(
                "  optional group {name} (LIST) {{ repeated group list {{ required int64 element; }} }}\n"
            ),
        });
    }
    text.push_str("}\n");
    text
}

/// Schema and writer properties, shared by all segments.
#[derive(Clone)]
pub struct Form {
    schema: TypePtr,
    properties: WriterProperties,
}

impl Form {
    /// Builds the schema and the properties of every segment.
    ///
    /// # Errors
    /// When the schema is not valid, which a test rules out.
    pub fn new() -> ParquetResult<Self> {
        let schema = Arc::new(parse_message_type(&message())?);
        let mut properties = WriterProperties::builder()
            .set_created_by(concat!("smtt-daemon ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
            .set_statistics_enabled(EnabledStatistics::None)
            .set_offset_index_disabled(true);
        for column in COLUMNS {
            let path = match column.value {
                Value::Longs(..) => {
                    ColumnPath::new([column.name, "list", "element"].map(str::to_owned).to_vec())
                }
                _ => ColumnPath::from(column.name),
            };
            if SKIPPED_BY.contains(&column.name) {
                properties = properties
                    .set_column_statistics_enabled(path.clone(), EnabledStatistics::Chunk);
            }
            let near = matches!(
                column.value,
                Value::Time(_) | Value::Long(_, true) | Value::Longs(_, true)
            );
            if near {
                properties = properties
                    .set_column_dictionary_enabled(path.clone(), false)
                    .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
            }
        }
        Ok(Self {
            schema,
            properties: properties.build(),
        })
    }

    fn properties(&self, source: &Origin) -> WriterPropertiesPtr {
        let mut builder = self.properties.clone().into_builder();
        let mut pairs = vec![
            KeyValue::new(APPLICATION_KEY.to_owned(), source.application_id.clone()),
            KeyValue::new(HOST_KEY.to_owned(), source.host.clone()),
        ];
        if let Some(uid) = source.uid {
            pairs.push(KeyValue::new(USER_KEY.to_owned(), uid.to_string()));
        }
        builder = builder.set_key_value_metadata(Some(pairs));
        Arc::new(builder.build())
    }
}

/// An unfinished segment. Dropped without [`Segment::finish`] it leaves no file.
pub struct Segment {
    writer: Option<SerializedFileWriter<File>>,
    in_progress: PathBuf,
    finished: PathBuf,
    records: u64,
}

/// A finished segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Path of the file.
    pub path: PathBuf,
    /// Records in it.
    pub records: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

impl Segment {
    /// Opens `folder/name`, hidden under another name until it is finished. `gid` is the group that may read it.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn create(
        form: &Form,
        source: &Origin,
        folder: &Path,
        name: &str,
        gid: Option<u32>,
    ) -> ParquetResult<Self> {
        let in_progress = folder.join(format!(".{name}{IN_PROGRESS}"));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o640)
            .open(&in_progress)?;
        let mut segment = Self {
            writer: None,
            in_progress,
            finished: folder.join(name),
            records: 0,
        };
        // Set the mode explicitly: the umask may hide the file from the group.
        file.set_permissions(fs::Permissions::from_mode(0o640))?;
        if let Some(gid) = gid {
            fchown(&file, None, Some(gid))?;
        }
        segment.writer = Some(SerializedFileWriter::new(
            file,
            Arc::clone(&form.schema),
            form.properties(source),
        )?);
        Ok(segment)
    }

    /// Writes records as one row group.
    ///
    /// # Errors
    /// When the file cannot be written; the segment is then unusable.
    pub fn write(&mut self, records: &[Record]) -> ParquetResult<()> {
        let Some(writer) = &mut self.writer else {
            return Ok(());
        };
        let mut group = writer.next_row_group()?;
        for column in COLUMNS {
            let Some(mut out) = group.next_column()? else {
                break;
            };
            write_column(&mut out, &column.value, records)?;
            out.close()?;
        }
        group.close()?;
        self.records += records.len() as u64;
        Ok(())
    }

    /// Bytes written so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.writer
            .as_ref()
            .map_or(0, |writer| writer.bytes_written() as u64)
    }

    /// Records written so far.
    #[must_use]
    pub const fn records(&self) -> u64 {
        self.records
    }

    /// Finishes the file, waits until it is on disk, and gives it its final name.
    ///
    /// # Errors
    /// When a step fails; the file is then removed.
    pub fn finish(mut self) -> ParquetResult<Option<Finished>> {
        let Some(writer) = self.writer.take() else {
            return Ok(None);
        };
        let ended = (|| -> ParquetResult<u64> {
            let file = writer.into_inner()?;
            file.sync_all()?;
            let bytes = file.metadata()?.len();
            fs::rename(&self.in_progress, &self.finished)?;
            if let Some(folder) = self.finished.parent() {
                File::open(folder)?.sync_all()?;
            }
            Ok(bytes)
        })();
        match ended {
            Ok(bytes) => Ok(Some(Finished {
                path: self.finished.clone(),
                records: self.records,
                bytes,
            })),
            Err(error) => {
                // The file may be gone with its folder.
                let _ = fs::remove_file(&self.in_progress);
                Err(error)
            }
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if self.writer.is_some() {
            // The file may be gone with its folder.
            let _ = fs::remove_file(&self.in_progress);
        }
    }
}

/// One column of a row group: its present values, and for each record whether it has one.
fn write_column(
    out: &mut SerializedColumnWriter<'_>,
    value: &Value,
    records: &[Record],
) -> ParquetResult<()> {
    match value {
        Value::Time(of) => {
            let values: Vec<i64> = records.iter().map(of).collect();
            out.typed::<Int64Type>().write_batch(&values, None, None)?;
        }
        Value::Long(of, _) => optional::<Int64Type>(out, records.iter().map(of))?,
        Value::Int(of) => optional::<Int32Type>(out, records.iter().map(of))?,
        Value::Flag(of) => optional::<BoolType>(out, records.iter().map(of))?,
        Value::Real(of) => optional::<DoubleType>(out, records.iter().map(of))?,
        Value::Text(of) => {
            let texts = records.iter().map(|record| of(record).map(ByteArray::from));
            optional::<ByteArrayType>(out, texts)?;
        }
        Value::Longs(of, _) => {
            let (mut values, mut there, mut repeated) = (Vec::new(), Vec::new(), Vec::new());
            for list in records.iter().map(of) {
                let before = values.len();
                values.extend(list.iter().flatten());
                repeated.push(0);
                match (list.is_some(), values.len() - before) {
                    (false, _) => there.push(0),
                    (true, 0) => there.push(1),
                    (true, more) => {
                        there.extend(std::iter::repeat_n(2, more));
                        repeated.extend(std::iter::repeat_n(1, more - 1));
                    }
                }
            }
            out.typed::<Int64Type>()
                .write_batch(&values, Some(&there), Some(&repeated))?;
        }
    }
    Ok(())
}

fn optional<T: DataType>(
    out: &mut SerializedColumnWriter<'_>,
    values: impl Iterator<Item = Option<T::T>>,
) -> ParquetResult<()> {
    let mut there = Vec::new();
    let present: Vec<T::T> = values
        .inspect(|value| there.push(i16::from(value.is_some())))
        .flatten()
        .collect();
    out.typed::<T>().write_batch(&present, Some(&there), None)?;
    Ok(())
}
