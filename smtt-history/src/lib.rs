//! Finished Spark applications: event logs become compact tables, and Spark's REST API is answered from the tables.
//!
//! [`import`] reads a log line by line ([`log`], [`codec`], [`mod@event`], [`replay`]) and writes an application's folder
//! ([`out`]). [`serve`] opens a folder by the application's id and answers ([`open`]). docs/HISTORY.md is the manual.

#![allow(
    missing_docs,
    reason = "fields of events have the name that Spark gives them"
)]
#![allow(
    clippy::single_range_in_vec_init,
    reason = "rows are asked for by ranges, one or several"
)]

pub mod codec;
#[cfg(test)]
mod docs;
pub mod event;
pub mod import;
pub mod json;
pub mod log;
pub mod open;
pub mod out;
pub mod replay;
pub mod serve;
