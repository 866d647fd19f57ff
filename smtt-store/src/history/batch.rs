//! Buffers the rows of the next row group, column by column.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use super::columns::{Column, Kind, Table, Unknown};
use smtt_model::sort::small::sort_by;

/// One value of a row.
#[derive(Clone, Copy, Debug)]
pub enum Cell<'a> {
    /// No value.
    None,
    /// An integer, a time or a flag (0 or 1).
    Number(i64),
    /// Text.
    Text(&'a str),
}

impl Cell<'_> {
    /// An integer that may be absent.
    #[must_use]
    pub fn optional(value: Option<i64>) -> Self {
        value.map_or(Self::None, Self::Number)
    }
}

/// Index of an absent text.
const ABSENT: u32 = u32::MAX;

/// A value for each row. It takes no room as long as all are equal, as in most columns of an application that has no use for
/// them.
#[derive(Clone, Debug, Default)]
struct PerRow<T> {
    rows: usize,
    first: T,
    /// All of them, from the first one on that is another.
    all: Vec<T>,
}

impl<T: Copy + Default + PartialEq> PerRow<T> {
    fn push(&mut self, value: T) {
        if self.rows == 0 {
            self.first = value;
        }
        if !self.all.is_empty() {
            self.all.push(value);
        } else if value != self.first {
            self.write_out();
            self.all.push(value);
        }
        self.rows += 1;
    }

    fn set(&mut self, row: usize, value: T) {
        if self.get(row) == Some(value) {
            return;
        }
        if self.all.is_empty() {
            self.write_out();
        }
        if let Some(place) = self.all.get_mut(row) {
            *place = value;
        }
    }

    fn write_out(&mut self) {
        self.all = vec![self.first; self.rows];
    }

    fn get(&self, row: usize) -> Option<T> {
        if self.all.is_empty() {
            return (row < self.rows).then_some(self.first);
        }
        self.all.get(row).copied()
    }

    fn at(&self, row: usize) -> T {
        self.get(row).unwrap_or_default()
    }

    const fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<T>()
    }
}

/// Values of one column.
#[derive(Clone, Debug)]
enum Values {
    /// `there` has no rows in a required column.
    Numbers {
        values: PerRow<i64>,
        there: PerRow<bool>,
    },
    /// Texts by dictionary: each row has an index into the distinct ones.
    Texts {
        rows: PerRow<u32>,
        texts: Vec<Arc<str>>,
        index: HashMap<Arc<str>, u32>,
    },
}

/// Index of a text among the distinct ones, which it joins where it is new, and the bytes that this takes.
fn place(
    texts: &mut Vec<Arc<str>>,
    index: &mut HashMap<Arc<str>, u32>,
    text: &str,
) -> (u32, usize) {
    if let Some(known) = index.get(text) {
        return (*known, 0);
    }
    let new = u32::try_from(texts.len()).unwrap_or(ABSENT);
    let shared: Arc<str> = text.into();
    texts.push(Arc::clone(&shared));
    index.insert(shared, new);
    (new, 2 * text.len())
}

/// Rows of one table.
#[derive(Clone, Debug)]
pub struct Batch {
    table: &'static Table,
    /// Columns after those of the table.
    unknown: Vec<Unknown>,
    columns: Vec<Values>,
    rows: usize,
    text_bytes: usize,
}

impl Batch {
    /// An empty buffer for the rows of a table.
    #[must_use]
    pub fn new(table: &'static Table) -> Self {
        Self::with(table, Vec::new())
    }

    /// As [`Batch::new`], with further columns after those of the table.
    #[must_use]
    pub fn with(table: &'static Table, unknown: Vec<Unknown>) -> Self {
        let kinds = table.columns.iter().map(|column| column.kind);
        let kinds = kinds.chain(unknown.iter().map(|column| column.kind));
        let columns = kinds.map(|kind| match kind {
            Kind::Text => Values::Texts {
                rows: PerRow::default(),
                texts: Vec::new(),
                index: HashMap::new(),
            },
            _ => Values::Numbers {
                values: PerRow::default(),
                there: PerRow::default(),
            },
        });
        Self {
            table,
            columns: columns.collect(),
            unknown,
            rows: 0,
            text_bytes: 0,
        }
    }

    /// The table of the rows.
    #[must_use]
    pub const fn table(&self) -> &'static Table {
        self.table
    }

    /// Columns after those of the table.
    #[must_use]
    pub fn unknown(&self) -> &[Unknown] {
        &self.unknown
    }

    /// All columns.
    pub fn columns(&self) -> impl Iterator<Item = Column<'_>> {
        let known = self.table.columns.iter().copied();
        known.chain(self.unknown.iter().map(Unknown::column))
    }

    /// Rows so far.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.rows
    }

    /// Whether there is no row.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Bytes of the distinct texts so far.
    #[must_use]
    pub const fn text_bytes(&self) -> usize {
        self.text_bytes
    }

    /// Bytes in memory, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let columns = self.columns.iter().map(|column| match column {
            Values::Numbers { values, there } => values.bytes() + there.bytes(),
            // A text is in a list and in an index.
            Values::Texts { rows, texts, .. } => {
                rows.bytes() + texts.capacity() * 4 * size_of::<Arc<str>>()
            }
        });
        columns.sum::<usize>() + self.text_bytes
    }

    /// Adds a row. A cell that is missing or of another type becomes an absent value, and in a required column 0 or "".
    pub fn push(&mut self, row: &[Cell<'_>]) {
        for (at, column) in self.columns.iter_mut().enumerate() {
            let known = self.table.columns.get(at);
            let is_optional = known.is_none_or(|it| it.optional);
            let cell = row.get(at).copied().unwrap_or(Cell::None);
            match column {
                Values::Numbers { values, there } => {
                    let value = match cell {
                        Cell::Number(value) => Some(value),
                        _ => None,
                    };
                    values.push(value.unwrap_or_default());
                    if is_optional {
                        there.push(value.is_some());
                    }
                }
                Values::Texts { rows, texts, index } => {
                    let text = match cell {
                        Cell::Text(text) => Some(text),
                        _ if is_optional => None,
                        _ => Some(""),
                    };
                    rows.push(match text {
                        None => ABSENT,
                        Some(text) => {
                            let (place, bytes) = place(texts, index, text);
                            self.text_bytes += bytes;
                            place
                        }
                    });
                }
            }
        }
        self.rows += 1;
    }

    /// Replaces a value of an optional column. A cell of another type becomes an absent value. In a required column it does
    /// nothing.
    pub fn set(&mut self, row: usize, column: usize, cell: Cell<'_>) {
        if row >= self.rows || !self.table.columns[column].optional {
            return;
        }
        match &mut self.columns[column] {
            Values::Numbers { values, there } => {
                let value = match cell {
                    Cell::Number(value) => Some(value),
                    _ => None,
                };
                values.set(row, value.unwrap_or_default());
                there.set(row, value.is_some());
            }
            Values::Texts { rows, texts, index } => {
                let place = match cell {
                    Cell::Text(text) => {
                        let (place, bytes) = place(texts, index, text);
                        self.text_bytes += bytes;
                        place
                    }
                    _ => ABSENT,
                };
                rows.set(row, place);
            }
        }
    }

    /// Row numbers in the table's order. Equal rows keep the order in which they came.
    #[must_use]
    pub fn order(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..u32::try_from(self.rows).unwrap_or(u32::MAX)).collect();
        sort_by(&mut order, |&left, &right| {
            self.table
                .order
                .iter()
                .map(|&column| self.compare(column, left as usize, right as usize))
                .find(|order| order.is_ne())
                .unwrap_or(Ordering::Equal)
        });
        order
    }

    fn compare(&self, column: usize, left: usize, right: usize) -> Ordering {
        match &self.columns[column] {
            Values::Numbers { values, .. } => values.at(left).cmp(&values.at(right)),
            Values::Texts { rows, texts, .. } => {
                let text = |row: usize| texts.get(rows.at(row) as usize);
                if rows.at(left) == rows.at(right) {
                    Ordering::Equal
                } else {
                    text(left).cmp(&text(right))
                }
            }
        }
    }

    /// The number of a column in a row.
    #[must_use]
    pub fn number(&self, column: usize, row: usize) -> Option<i64> {
        match &self.columns[column] {
            Values::Numbers { values, there } if there.get(row).unwrap_or(true) => values.get(row),
            _ => None,
        }
    }

    /// Present numbers of a column, and for each row whether it has one (empty where every row has one).
    #[must_use]
    pub fn numbers(&self, column: usize, order: &[u32]) -> (Vec<i64>, Vec<i16>) {
        let Values::Numbers { values, there } = &self.columns[column] else {
            return (Vec::new(), vec![0; order.len()]);
        };
        if there.rows == 0 {
            let all = order.iter().map(|&row| values.at(row as usize)).collect();
            return (all, Vec::new());
        }
        let is_there = |row: u32| there.at(row as usize);
        let levels = order.iter().map(|&row| i16::from(is_there(row)));
        let present = order.iter().filter(|&&row| is_there(row));
        (
            present.map(|&row| values.at(row as usize)).collect(),
            levels.collect(),
        )
    }

    /// Texts of a column, `None` for an absent one.
    pub fn texts<'a>(
        &'a self,
        column: usize,
        order: &'a [u32],
    ) -> impl Iterator<Item = Option<&'a str>> {
        let (rows, texts): (Option<&PerRow<u32>>, &[Arc<str>]) = match &self.columns[column] {
            Values::Texts { rows, texts, .. } => (Some(rows), texts),
            Values::Numbers { .. } => (None, &[]),
        };
        order.iter().map(move |&row| {
            let index = rows?.get(row as usize)?;
            texts.get(index as usize).map(AsRef::as_ref)
        })
    }
}
