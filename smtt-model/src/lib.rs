//! The pure model of SMTT: records become events ([`decode`]), events change the state ([`attribute`], [`state`]), and
//! the state becomes the listings, responses and findings that every client shows ([`rows`], [`protocol`], [`advise`]).
//!
//! No function opens a file, reads a clock or makes a system call: time and readings are arguments.

pub mod advise;
pub mod attribute;
pub mod cpu;
pub mod decode;
pub mod glob;
pub mod ledger;
pub mod log_levels;
pub mod postmortem;
pub mod protocol;
pub mod readings;
pub mod rows;
mod sizes;
pub mod sort;
pub mod state;
pub mod subordinate;
pub mod text;
pub mod time;
pub mod units;
pub mod verdict;
pub mod yaml;
