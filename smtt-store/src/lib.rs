//! What is on disk: trace records ([`record`]) in Parquet segments ([`segment`], [`mod@read`]) below one folder
//! ([`folder`]). docs/TRACE.md has the columns.

pub mod folder;
pub mod read;
pub mod record;
pub mod segment;
