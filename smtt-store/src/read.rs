//! Reads records from finished segments, for `smtt-ctl trace` and the tests.

use std::cell::Cell;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::sync::Once;

use parquet::errors::Result;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, List, Row};
use serde_json::{Map, Value, json};
use smtt_model::time::utc;

use crate::footer::{self, Source};
use crate::segment::{APPLICATION_KEY, HOST_KEY, USER_KEY};

pub use parquet::errors::ParquetError;

/// Levels of a segment's columns: of a list the values are below two groups.
const LEVELS: u32 = 3;

/// A segment that is open for reading.
pub struct Reader {
    file: SerializedFileReader<Source>,
    /// User of the executors, as the kernel reported it.
    pub uid: Option<u32>,
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
        let file = guarded(|| footer::open(File::open(path)?, LEVELS))?;
        let said = |key: &str| {
            let pairs = file.metadata().file_metadata().key_value_metadata();
            pairs
                .and_then(|pairs| pairs.iter().find(|pair| pair.key == key)?.value.clone())
                .unwrap_or_default()
        };
        let (application_id, host) = (said(APPLICATION_KEY), said(HOST_KEY));
        let uid = said(USER_KEY).parse().ok();
        Ok(Self {
            file,
            uid,
            application_id,
            host,
        })
    }

    /// Records in the order in which they were written: every present column by name, user, application and host first.
    /// They end with the first error.
    ///
    /// # Errors
    /// When the file's schema cannot be read.
    pub fn records(&self) -> Result<impl Iterator<Item = Result<Map<String, Value>>> + '_> {
        let mut rows = guarded(|| self.file.get_row_iter(None))?;
        let mut damaged = false;
        Ok(std::iter::from_fn(move || {
            if damaged {
                return None;
            }
            let row = guarded(|| rows.next().transpose());
            damaged = row.is_err();
            let row = row.transpose()?;
            Some(row.map(|row| {
                let mut record = Map::new();
                if let Some(uid) = self.uid {
                    record.insert("uid".into(), json!(uid));
                }
                record.insert("application_id".into(), json!(self.application_id));
                record.insert("host".into(), json!(self.host));
                add(&mut record, &row);
                record
            }))
        }))
    }
}

thread_local! {
    /// Whether this thread reads a file, and a panic is the file's fault.
    static READS: Cell<bool> = const { Cell::new(false) };
}

/// Runs a part of the Parquet library, which panics on some damaged files. The panic becomes an error.
pub(crate) fn guarded<T>(read: impl FnOnce() -> Result<T>) -> Result<T> {
    static SILENCE: Once = Once::new();
    SILENCE.call_once(|| {
        let others = take_hook();
        set_hook(Box::new(move |panic| {
            if !READS.get() {
                others(panic);
            }
        }));
    });
    READS.set(true);
    let result = catch_unwind(AssertUnwindSafe(read));
    READS.set(false);
    result.unwrap_or_else(|_| Err(ParquetError::General("the file is damaged".to_owned())))
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
        // SMTT's columns have no other types.
        _ => Value::Null,
    }
}

fn list_value(list: &List) -> Value {
    Value::Array(list.elements().iter().map(value).collect())
}
