//! Bytes that the collections of the standard library take on the heap, for the bounds of tables.

/// Bytes of a vector's elements, without what these hold themselves.
pub(crate) const fn vec_bytes<T>(vec: &Vec<T>) -> usize {
    vec.capacity().saturating_mul(size_of::<T>())
}

/// Bytes of a standard B-tree with `len` entries of `entry` bytes: nodes of eleven entries, about half full.
pub(crate) const fn tree_bytes(len: usize, entry: usize) -> usize {
    let leaf = 11 * entry + 16;
    let inner = leaf + 12 * size_of::<usize>();
    len.div_ceil(6) * leaf + (len / 36) * inner
}

/// Bytes that one more entry adds to a B-tree on average.
pub(crate) const fn tree_entry_bytes(entry: usize) -> usize {
    (11 * entry + 16).div_ceil(6)
}
