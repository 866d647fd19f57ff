//! Finished Spark applications: event logs become compact tables, and Spark's REST API is answered from the tables.
//!
//! [`import`] reads a log line by line ([`log`], [`codec`], [`mod@event`], [`replay`]) and writes an application's folder
//! ([`out`]); [`live`] reads what a driver wrote. [`serve`] opens a folder by the application's id and answers ([`open`]): REST, [`pages`] for people and the [`timeline`] of tasks. docs/HISTORY.md is the manual.

#![allow(
    clippy::single_range_in_vec_init,
    reason = "rows are asked for by ranges, one or several"
)]

pub mod advise;
pub mod args;
pub mod codec;
pub mod diff;
#[cfg(test)]
mod docs;
pub mod event;
pub mod export;
pub mod fetches;
pub mod functions;
pub mod import;
pub mod json;
pub mod live;
pub mod log;
#[cfg(test)]
mod made;
pub mod objects;
pub mod open;
pub mod out;
pub mod pages;
pub mod perfetto;
pub mod plain;
pub mod program;
pub mod replay;
pub mod serve;
pub mod timeline;
pub mod workers;
