//! What SMTT knows, and what follows from it: records become events ([`decode`]), events become rows of a state
//! ([`attribute`], [`state`]), and rows become what every face shows ([`rows`], [`protocol`], [`advise`]).
//!
//! Nothing here opens a file, reads a clock or asks the kernel: time and readings are arguments.

pub mod advise;
pub mod attribute;
pub mod cpu;
pub mod decode;
pub mod ledger;
pub mod protocol;
pub mod readings;
pub mod rows;
pub mod sort;
pub mod state;
pub mod time;
pub mod units;
pub mod verdict;
