//! Memory of the state in bytes, counted as tables change.
//!
//! Every table whose size an executor decides is a [`Table`] or a [`FlatTable`]: each knows its bytes without a scan. An
//! insert asks [`Caps::admit`] first, so the state stays within its budget whatever the executors report. A test
//! compares the counted bytes with a recount, and a counting allocator compares them with the heap.

use std::borrow::Borrow;
use std::cell::Cell;
use std::collections::HashMap;
use std::hash::Hash;
use std::ops::{Deref, DerefMut};

use super::Limits;
pub(super) use crate::sizes::{tree_bytes, tree_entry_bytes, vec_bytes};

/// Memory that a value holds outside of itself.
pub trait HeapBytes {
    /// Bytes on the heap, without the value's own size.
    fn heap_bytes(&self) -> usize;
}

impl HeapBytes for String {
    fn heap_bytes(&self) -> usize {
        self.capacity()
    }
}

impl HeapBytes for u64 {
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// Slots of a hash table. The standard table reports a smaller capacity after removals than it holds, so the largest
/// one is kept until the table shrinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slots(usize);

impl Slots {
    fn of(capacity: usize) -> Self {
        match capacity {
            0 => Self(0),
            // Seven eighths of the slots are used at most.
            some => Self((some.saturating_mul(8) / 7).next_power_of_two().max(4)),
        }
    }

    fn grown(&mut self, capacity: usize) {
        self.0 = self.0.max(Self::of(capacity).0);
    }

    const fn bytes(self, slot: usize) -> usize {
        match self.0 {
            0 => 0,
            slots => slots.saturating_mul(slot + 1) + 16,
        }
    }

    /// Bytes that the table allocates for the next new key; the old slots stay until the rows have moved.
    fn growth(self, len: usize, capacity: usize, slot: usize) -> usize {
        if len < capacity {
            0
        } else {
            Self((self.0 * 2).max(4)).bytes(slot)
        }
    }
}

/// Whether a table of `capacity` with `len` rows should release memory.
const fn is_sparse(len: usize, capacity: usize) -> bool {
    capacity > 64 && len < capacity / 8
}

/// Rows by key, each in an allocation of its own, and their bytes.
#[derive(Debug)]
pub struct Table<K, V> {
    rows: HashMap<K, Box<V>>,
    slots: Slots,
    /// Sum of the rows, and of what keys and rows hold.
    held: usize,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self {
            rows: HashMap::new(),
            slots: Slots::default(),
            held: 0,
        }
    }
}

/// A row that may change; its table counts the change when the row is released.
pub struct RowMut<'a, V: HeapBytes> {
    row: &'a mut V,
    before: usize,
    held: &'a mut usize,
}

impl<V: HeapBytes> Deref for RowMut<'_, V> {
    type Target = V;

    fn deref(&self) -> &V {
        self.row
    }
}

impl<V: HeapBytes> DerefMut for RowMut<'_, V> {
    fn deref_mut(&mut self) -> &mut V {
        self.row
    }
}

impl<V: HeapBytes> Drop for RowMut<'_, V> {
    fn drop(&mut self) {
        *self.held = (*self.held + self.row.heap_bytes()).saturating_sub(self.before);
    }
}

impl<'a, K, V> IntoIterator for &'a Table<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Rows<'a, K, V>;

    fn into_iter(self) -> Rows<'a, K, V> {
        Rows(self.rows.iter())
    }
}

/// Iterates over the rows of a table.
#[derive(Debug)]
pub struct Rows<'a, K, V>(std::collections::hash_map::Iter<'a, K, Box<V>>);

impl<'a, K, V> Iterator for Rows<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(key, row)| (key, row.as_ref()))
    }
}

impl<K: Eq + Hash + HeapBytes, V: HeapBytes> Table<K, V> {
    /// Bytes of one slot.
    const SLOT: usize = size_of::<(K, Box<V>)>();

    /// The row of a key.
    pub fn get<Q: ?Sized + Eq + Hash>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.rows.get(key).map(Box::as_ref)
    }

    /// The row of a key, to change it.
    pub fn get_mut<Q: ?Sized + Eq + Hash>(&mut self, key: &Q) -> Option<RowMut<'_, V>>
    where
        K: Borrow<Q>,
    {
        let row = self.rows.get_mut(key)?.as_mut();
        Some(RowMut {
            before: row.heap_bytes(),
            row,
            held: &mut self.held,
        })
    }

    /// Whether the key has a row.
    pub fn contains_key<Q: ?Sized + Eq + Hash>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.rows.contains_key(key)
    }

    /// The row of a key, created where it has none.
    pub fn row(&mut self, key: K) -> RowMut<'_, V>
    where
        K: Clone,
        V: Default,
    {
        if !self.rows.contains_key(&key) {
            self.insert(key.clone(), V::default());
        }
        let row = self.rows.entry(key).or_default().as_mut();
        RowMut {
            before: row.heap_bytes(),
            row,
            held: &mut self.held,
        }
    }

    /// Inserts a row; an earlier one of the same key is replaced.
    pub fn insert(&mut self, key: K, row: V) {
        self.remove(&key);
        self.held += size_of::<V>() + key.heap_bytes() + row.heap_bytes();
        self.rows.insert(key, Box::new(row));
        self.slots.grown(self.rows.capacity());
    }

    /// Removes a row.
    pub fn remove<Q: ?Sized + Eq + Hash>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (key, row) = self.rows.remove_entry(key)?;
        let bytes = size_of::<V>() + key.heap_bytes() + row.heap_bytes();
        self.held = self.held.saturating_sub(bytes);
        if is_sparse(self.rows.len(), self.rows.capacity()) {
            self.rows.shrink_to(self.rows.len() * 2);
            self.slots = Slots::of(self.rows.capacity());
        }
        Some(*row)
    }

    /// All keys and rows, in no order.
    pub fn iter(&self) -> Rows<'_, K, V> {
        self.into_iter()
    }

    /// All rows, in no order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.rows.values().map(Box::as_ref)
    }

    /// All keys, in no order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.rows.keys()
    }

    /// Changes every row.
    pub fn for_each(&mut self, mut change: impl FnMut(&mut V)) {
        for row in self.rows.values_mut() {
            let before = row.heap_bytes();
            change(row);
            self.held = (self.held + row.heap_bytes()).saturating_sub(before);
        }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Bytes of the table, as counted.
    pub fn bytes(&self) -> usize {
        self.held + self.slots.bytes(Self::SLOT)
    }

    /// Bytes of a new row whose key and content hold `heap` bytes.
    pub fn row_bytes(&self, heap: usize) -> usize {
        let slots = self
            .slots
            .growth(self.rows.len(), self.rows.capacity(), Self::SLOT);
        slots + size_of::<V>() + heap
    }

    /// Bytes of the table, row by row.
    #[cfg(test)]
    pub fn recount(&self) -> usize {
        let rows = self
            .rows
            .iter()
            .map(|(key, row)| size_of::<V>() + key.heap_bytes() + row.heap_bytes());
        rows.sum::<usize>() + self.slots.bytes(Self::SLOT)
    }
}

/// Small rows of a fixed size, in the slots of the table.
#[derive(Debug)]
pub struct FlatTable<K, V> {
    rows: HashMap<K, V>,
    slots: Slots,
}

impl<K, V> Default for FlatTable<K, V> {
    fn default() -> Self {
        Self {
            rows: HashMap::new(),
            slots: Slots::default(),
        }
    }
}

impl<K, V> Deref for FlatTable<K, V> {
    type Target = HashMap<K, V>;

    fn deref(&self) -> &HashMap<K, V> {
        &self.rows
    }
}

impl<K: Eq + Hash, V> FlatTable<K, V> {
    const SLOT: usize = size_of::<(K, V)>();

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.rows.get_mut(key)
    }

    pub(super) fn insert(&mut self, key: K, row: V) -> Option<V> {
        let before = self.rows.insert(key, row);
        self.slots.grown(self.rows.capacity());
        before
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let row = self.rows.remove(key);
        self.shrink();
        row
    }

    pub(super) fn retain(&mut self, keep: impl FnMut(&K, &mut V) -> bool) {
        self.rows.retain(keep);
        self.shrink();
    }

    fn shrink(&mut self) {
        if is_sparse(self.rows.len(), self.rows.capacity()) {
            self.rows.shrink_to(self.rows.len() * 2);
            self.slots = Slots::of(self.rows.capacity());
        }
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        self.slots.bytes(Self::SLOT)
    }

    /// Bytes that a row of this key adds to the table.
    pub(super) fn row_bytes(&self, key: &K) -> usize {
        if self.rows.contains_key(key) {
            return 0;
        }
        self.slots
            .growth(self.rows.len(), self.rows.capacity(), Self::SLOT)
    }
}

impl<K: Eq + Hash, V> FromIterator<(K, V)> for FlatTable<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(rows: I) -> Self {
        let rows: HashMap<K, V> = rows.into_iter().collect();
        let slots = Slots::of(rows.capacity());
        Self { rows, slots }
    }
}

/// The limits of one executor's tables while one event or reading is applied: the limits in rows, and the bytes by which
/// its tables may still grow.
#[derive(Debug)]
pub(super) struct Caps {
    limits: Limits,
    room: Cell<usize>,
    refused: Cell<u64>,
}

impl Deref for Caps {
    type Target = Limits;

    fn deref(&self) -> &Limits {
        &self.limits
    }
}

impl Caps {
    pub(super) const fn new(limits: Limits, room: usize) -> Self {
        Self {
            limits,
            room: Cell::new(room),
            refused: Cell::new(0),
        }
    }

    /// Whether `bytes` more fit; takes them from the room.
    pub(super) fn admit(&self, bytes: usize) -> bool {
        let fits = self.fits(bytes);
        if !fits {
            self.refused.set(self.refused.get().saturating_add(1));
        }
        fits
    }

    /// As [`Caps::admit`], without counting a refusal: the caller can make room.
    pub(super) fn fits(&self, bytes: usize) -> bool {
        match self.room.get().checked_sub(bytes) {
            Some(rest) => {
                self.room.set(rest);
                true
            }
            None => false,
        }
    }

    /// Returns the bytes of removed rows to the room.
    pub(super) fn give_back(&self, bytes: usize) {
        self.room.set(self.room.get().saturating_add(bytes));
    }

    /// Inserts refused for want of bytes.
    pub(super) fn refused(&self) -> u64 {
        self.refused.get()
    }
}

/// Decides whether a full table is searched for rows to fold. A search visits every row, so one that frees few rows is
/// followed by attempts that are refused without a search: each attempt visits at most [`VISITS`] rows on average.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Search {
    wait: usize,
    /// Rows visited since the start.
    #[cfg(test)]
    pub(super) visited: u64,
}

/// Rows visited per attempt to insert into a full table, on average.
const VISITS: usize = 64;

impl Search {
    /// Whether this attempt may search.
    pub(super) const fn may(&mut self) -> bool {
        if self.wait == 0 {
            return true;
        }
        self.wait -= 1;
        false
    }

    /// A search of `rows` rows has freed `freed` of them.
    pub(super) const fn done(&mut self, rows: usize, freed: usize) {
        self.wait = (rows / VISITS).saturating_sub(freed);
        #[cfg(test)]
        {
            self.visited += rows as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_row_changes_the_sum() {
        let mut table: Table<u64, String> = Table::default();
        for key in 0..1000 {
            table.insert(key, "x".repeat(key as usize % 50));
        }
        if let Some(mut row) = table.get_mut(&7) {
            row.push_str("much longer than it was before, and on the heap");
        }
        table.for_each(|row| row.push('!'));
        assert_eq!(table.bytes(), table.recount());
        for key in 0..990 {
            assert!(table.remove(&key).is_some());
        }
        assert_eq!(table.bytes(), table.recount());
        assert!(table.bytes() < 4096, "{} bytes are kept", table.bytes());
    }

    #[test]
    fn room_is_taken_and_given_back() {
        let caps = Caps::new(Limits::default(), 100);
        assert!(caps.admit(60));
        assert!(!caps.admit(60));
        caps.give_back(20);
        assert!(caps.admit(60));
        assert_eq!(caps.refused(), 1);
    }

    #[test]
    fn fruitless_searches_become_rare_and_rich_ones_do_not() {
        let mut search = Search::default();
        let searched = (0..8192).filter(|_| {
            let may = search.may();
            if may {
                search.done(8192, 0);
            }
            may
        });
        assert_eq!(searched.count(), 8192 / 129 + 1);
        search.wait = 0;
        search.done(8192, 1024);
        assert!(search.may());
    }
}
