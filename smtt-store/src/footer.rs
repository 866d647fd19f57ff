//! Reads the footer of a Parquet file of which the writer is not trusted.
//!
//! The `parquet` library converts the schema by recursion. A hostile schema can nest so deeply that the stack overflows, which
//! ends the process. This module therefore decodes the schema itself, within bounds, and gives the library the finished one.
//! It reads the footer once and keeps it in memory: the library sees the bytes that were checked, even if the file changes.

use std::fs::File;
use std::io::{BufReader, Chain, Cursor, Read, Seek, SeekFrom, Take};
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{ConvertedType, Repetition, Type as Physical};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length, SerializedFileReader};
use parquet::file::serialized_reader::ReadOptionsBuilder;
use parquet::schema::types::{SchemaDescriptor, Type};

/// Bytes of a footer at most.
const FOOTER_BYTES: u64 = 16 << 20;
/// Bytes after the footer: its length and the magic number.
const END_BYTES: u64 = 8;
/// Elements of a schema at most.
const ELEMENTS: u64 = 4096;
/// Columns and groups of a table at most.
const COLUMNS: i32 = 1024;
/// Levels of nesting of a skipped value at most.
const SKIPPED_LEVELS: u32 = 16;

/// A file whose footer is in memory.
pub(crate) struct Source {
    file: File,
    /// Where the footer begins.
    start: u64,
    /// The bytes from `start` to the end of the file.
    footer: Bytes,
}

fn damaged(what: &str) -> ParquetError {
    ParquetError::General(format!("the footer is damaged: {what}"))
}

impl Source {
    fn new(mut file: File) -> Result<Self> {
        let length = file.metadata()?.len();
        let Some(end) = length.checked_sub(END_BYTES) else {
            return Err(damaged("the file is too short"));
        };
        let mut tail = [0; END_BYTES as usize];
        file.seek(SeekFrom::Start(end))?;
        file.read_exact(&mut tail)?;
        let [a, b, c, d, name @ ..] = tail;
        if &name != b"PAR1" {
            return Err(damaged("the file is no Parquet file"));
        }
        let bytes = u64::from(u32::from_le_bytes([a, b, c, d]));
        if bytes > FOOTER_BYTES {
            return Err(damaged(&format!("it has more than {FOOTER_BYTES} bytes")));
        }
        let Some(start) = end.checked_sub(bytes) else {
            return Err(damaged("it is longer than the file"));
        };
        file.seek(SeekFrom::Start(start))?;
        let mut footer = Vec::new();
        (&mut file).take(bytes).read_to_end(&mut footer)?;
        if footer.len() as u64 != bytes {
            return Err(damaged("the file became shorter"));
        }
        footer.extend_from_slice(&tail);
        Ok(Self {
            file,
            start,
            footer: footer.into(),
        })
    }
}

impl Length for Source {
    fn len(&self) -> u64 {
        self.start + self.footer.len() as u64
    }
}

impl ChunkReader for Source {
    type T = Chain<Take<BufReader<File>>, Cursor<Bytes>>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let before = self.start.saturating_sub(start);
        let after = start
            .saturating_sub(self.start)
            .min(self.footer.len() as u64);
        let footer = self.footer.slice(after as usize..);
        Ok(self
            .file
            .get_read(start)?
            .take(before)
            .chain(Cursor::new(footer)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let end = start.checked_add(length as u64);
        if end.is_none_or(|end| end > self.len()) {
            return Err(ParquetError::EOF("a page ends after the file".to_owned()));
        }
        let mut bytes = Vec::with_capacity(length);
        self.get_read(start)?
            .take(length as u64)
            .read_to_end(&mut bytes)?;
        if bytes.len() != length {
            return Err(ParquetError::EOF("the file became shorter".to_owned()));
        }
        Ok(bytes.into())
    }
}

/// Opens a file whose columns are at most `levels` below the root: 1 where none is in a group.
///
/// # Errors
/// When it is no Parquet file, or its schema is beyond the bounds.
pub(crate) fn open(file: File, levels: u32) -> Result<SerializedFileReader<Source>> {
    let source = Source::new(file)?;
    let schema = schema(&source.footer, levels)?;
    let schema = Arc::new(SchemaDescriptor::new(Arc::new(schema)));
    let options = ReadOptionsBuilder::new().with_parquet_schema(schema);
    SerializedFileReader::new_with_options(source, options.build())
}

/// An element of a schema as the file encodes it, without fields that follow from others.
#[derive(Default)]
struct Element {
    physical: Option<i32>,
    length: Option<i32>,
    repetition: Option<i32>,
    name: String,
    children: i32,
    converted: Option<i32>,
    scale: Option<i32>,
    precision: Option<i32>,
    id: Option<i32>,
}

/// The schema of a footer.
fn schema(footer: &[u8], levels: u32) -> Result<Type> {
    let elements = Walk(footer).schema();
    let elements = elements.ok_or_else(|| damaged("its schema cannot be read"))?;
    let mut elements = elements.into_iter();
    let Some(root) = elements.next() else {
        return Err(damaged("it has no schema"));
    };
    if !(0..=COLUMNS).contains(&root.children) {
        return Err(damaged(&format!("it has more than {COLUMNS} columns")));
    }
    let schema = group(root, &mut elements, levels, true)?;
    if elements.next().is_some() {
        return Err(damaged("its schema has two roots"));
    }
    Ok(schema)
}

fn group(
    own: Element,
    elements: &mut impl Iterator<Item = Element>,
    levels: u32,
    is_root: bool,
) -> Result<Type> {
    let Some(below) = levels.checked_sub(1) else {
        return Err(damaged("a column is repeated or nested"));
    };
    let mut fields = Vec::new();
    for _ in 0..own.children {
        let Some(child) = elements.next() else {
            return Err(damaged("its schema is cut"));
        };
        let field = match child.children {
            0 => column(&child)?,
            1.. => group(child, elements, below, false)?,
            _ => return Err(damaged("a group has less than no columns")),
        };
        fields.push(Arc::new(field));
    }
    let mut builder = Type::group_type_builder(&own.name)
        .with_fields(fields)
        .with_converted_type(converted(&own)?)
        .with_id(own.id);
    if !is_root {
        builder = builder.with_repetition(repetition(&own)?);
    }
    builder.build()
}

fn column(own: &Element) -> Result<Type> {
    let physical = own.physical.and_then(|it| of(Physical::VARIANTS, it));
    let physical = physical.ok_or_else(|| damaged("a column has no type"))?;
    Type::primitive_type_builder(&own.name, physical)
        .with_repetition(repetition(own)?)
        .with_converted_type(converted(own)?)
        .with_length(own.length.unwrap_or(-1))
        .with_precision(own.precision.unwrap_or(-1))
        .with_scale(own.scale.unwrap_or(-1))
        .with_id(own.id)
        .build()
}

/// The variant of an enumeration that has this number in the format.
fn of<T: Copy + Number>(all: &[T], number: i32) -> Option<T> {
    all.iter().copied().find(|it| it.number() == number)
}

/// An enumeration of the format.
trait Number {
    fn number(self) -> i32;
}

impl Number for Physical {
    fn number(self) -> i32 {
        self as i32
    }
}

impl Number for Repetition {
    fn number(self) -> i32 {
        self as i32
    }
}

impl Number for ConvertedType {
    fn number(self) -> i32 {
        self as i32
    }
}

fn repetition(own: &Element) -> Result<Repetition> {
    let known = own.repetition.and_then(|it| of(Repetition::VARIANTS, it));
    known.ok_or_else(|| damaged("a column may neither be absent nor present"))
}

fn converted(own: &Element) -> Result<ConvertedType> {
    let Some(number) = own.converted else {
        return Ok(ConvertedType::NONE);
    };
    of(ConvertedType::VARIANTS, number).ok_or_else(|| damaged("a column has an unknown type"))
}

/// Kinds of fields in Thrift's compact form.
mod kind {
    pub const STOP: u8 = 0;
    pub const TRUE: u8 = 1;
    pub const FALSE: u8 = 2;
    pub const BYTE: u8 = 3;
    pub const I16: u8 = 4;
    pub const I32: u8 = 5;
    pub const I64: u8 = 6;
    pub const DOUBLE: u8 = 7;
    pub const BINARY: u8 = 8;
    pub const LIST: u8 = 9;
    pub const SET: u8 = 10;
    pub const MAP: u8 = 11;
    pub const STRUCT: u8 = 12;
    pub const UUID: u8 = 13;
}

/// Decodes a footer from its remaining bytes. A method gives `None` where they are damaged.
struct Walk<'a>(&'a [u8]);

impl<'a> Walk<'a> {
    /// Elements of the schema, which is the file's second field.
    fn schema(mut self) -> Option<Vec<Element>> {
        let mut last = 0;
        loop {
            let (kind, id) = self.field(last)?;
            match (kind, id) {
                (kind::STOP, _) => return None,
                (kind::LIST, 2) => break,
                (_, 2) => return None,
                _ => self.skip(kind, SKIPPED_LEVELS)?,
            }
            last = id;
        }
        let (kind, count) = self.list()?;
        if kind != kind::STRUCT || count > ELEMENTS {
            return None;
        }
        (0..count).map(|_| self.element()).collect()
    }

    fn element(&mut self) -> Option<Element> {
        let mut element = Element::default();
        let mut last = 0;
        loop {
            let (kind, id) = self.field(last)?;
            last = id;
            match (kind, id) {
                (kind::STOP, _) => return Some(element),
                (kind::I32, 1) => element.physical = Some(self.int()?),
                (kind::I32, 2) => element.length = Some(self.int()?),
                (kind::I32, 3) => element.repetition = Some(self.int()?),
                (kind::BINARY, 4) => {
                    element.name = str::from_utf8(self.bytes()?).ok()?.to_owned();
                }
                (kind::I32, 5) => element.children = self.int()?,
                (kind::I32, 6) => element.converted = Some(self.int()?),
                (kind::I32, 7) => element.scale = Some(self.int()?),
                (kind::I32, 8) => element.precision = Some(self.int()?),
                (kind::I32, 9) => element.id = Some(self.int()?),
                (_, 1..=9) => return None,
                _ => self.skip(kind, SKIPPED_LEVELS)?,
            }
        }
    }

    fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let count = self.unsigned()?;
        self.take(count)
    }

    fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn signed(&mut self) -> Option<i64> {
        let value = self.unsigned()?;
        Some((value >> 1).cast_signed() ^ -((value & 1).cast_signed()))
    }

    fn int(&mut self) -> Option<i32> {
        self.signed()?.try_into().ok()
    }

    /// Kind and id of the next field.
    fn field(&mut self, last: i16) -> Option<(u8, i16)> {
        let byte = self.byte()?;
        let (delta, kind) = (byte >> 4, byte & 0xf);
        let id = match (kind, delta) {
            (kind::STOP, _) => 0,
            (_, 0) => self.signed()?.try_into().ok()?,
            (_, delta) => last.checked_add(delta.into())?,
        };
        Some((kind, id))
    }

    /// Kind and number of a list's elements.
    fn list(&mut self) -> Option<(u8, u64)> {
        let byte = self.byte()?;
        let count = match byte >> 4 {
            15 => self.unsigned()?,
            few => few.into(),
        };
        Some((byte & 0xf, count))
    }

    /// Skips a value. Each step consumes a byte at least, except a flag, whose value is in its field's head.
    fn skip(&mut self, kind: u8, levels: u32) -> Option<()> {
        let below = levels.checked_sub(1)?;
        match kind {
            kind::TRUE | kind::FALSE => {}
            kind::BYTE => drop(self.take(1)?),
            kind::I16 | kind::I32 | kind::I64 => drop(self.unsigned()?),
            kind::DOUBLE => drop(self.take(8)?),
            kind::UUID => drop(self.take(16)?),
            kind::BINARY => drop(self.bytes()?),
            kind::LIST | kind::SET => {
                let (kind, count) = self.list()?;
                for _ in 0..count {
                    self.skip_element(kind, below)?;
                }
            }
            kind::MAP => {
                let count = self.unsigned()?;
                let kinds = if count > 0 { self.byte()? } else { 0 };
                for _ in 0..count {
                    self.skip_element(kinds >> 4, below)?;
                    self.skip_element(kinds & 0xf, below)?;
                }
            }
            kind::STRUCT => loop {
                // The ids do not matter.
                match self.field(0)? {
                    (kind::STOP, _) => break,
                    (kind, _) => self.skip(kind, below)?,
                }
            },
            _ => return None,
        }
        Some(())
    }

    fn skip_element(&mut self, kind: u8, levels: u32) -> Option<()> {
        match kind {
            kind::TRUE | kind::FALSE => self.byte().map(drop),
            _ => self.skip(kind, levels),
        }
    }
}

#[cfg(test)]
mod tests;
