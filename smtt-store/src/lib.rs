//! Trace records on disk: records ([`record`]) in Parquet segments ([`segment`], [`mod@read`]) below one folder
//! ([`folder`]). docs/TRACE.md lists the columns.

pub mod folder;
pub mod read;
pub mod record;
pub mod segment;
