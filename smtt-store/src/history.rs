//! Tables of one application's history: `tasks`, `task_sql` and `meta`, each one Parquet file in the application's folder.
//!
//! A row is what Spark reported; nothing is rounded. docs/HISTORY.md lists the columns.

#![allow(
    clippy::single_range_in_vec_init,
    reason = "rows are asked for by ranges, one or several"
)]

pub mod batch;
pub mod columns;
pub mod derived;
pub mod parts;
pub mod place;
pub mod read;
pub mod same;
pub mod workers;
pub mod write;

#[cfg(test)]
mod tests;

/// Key of the format's name in a file's own metadata.
pub const MAGIC_KEY: &str = "smtt.history";
/// Key of the format's version in a file's own metadata.
pub const VERSION_KEY: &str = "smtt.history.version";
/// Version that this crate writes. A reader accepts its neighbours: an unknown column or kind of document has no part in an
/// answer and is kept by a merge, a missing column is absent.
pub const VERSION: u32 = 2;
