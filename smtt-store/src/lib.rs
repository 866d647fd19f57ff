//! Trace records on disk: records ([`record`]) in Parquet segments ([`segment`], [`mod@read`]) below one folder
//! ([`folder`]). docs/TRACE.md lists the columns. Reports of deaths are in a folder of their own ([`reports`]).
//! [`history`] has the tables of a finished application.

pub mod folder;
pub(crate) mod footer;
pub mod history;
pub mod read;
pub mod record;
pub mod reports;
pub mod segment;
