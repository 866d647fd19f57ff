//! The SMTT daemon: kernel side -> ring -> decode -> state -> server, metrics, recorder. The binary is `main.rs`; tests
//! use the parts.

pub mod advice;
mod answered;
pub mod args;
mod complaints;
pub mod discover;
pub mod event_loop;
mod helpers;
pub mod history;
pub mod hotness;
pub mod journal;
pub mod metrics;
mod parts;
pub mod placement;
pub mod postmortem;
pub mod probes;
pub mod program;
pub mod progress;
pub mod recorder;
pub mod ring;
pub mod running;
pub mod server;
pub mod shared;
pub mod subordinate;
mod timed_reads;
mod usage;
