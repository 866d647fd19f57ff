//! What this machine is: its counters ([`perf`], [`page_walks`], [`calibrate`]), its page tables ([`pages`]), its
//! monitor of accesses ([`damon`]), its processes ([`proc`]) and threads ([`accounts`]), their memory ([`memory`]), the files that they map ([`foreign`]), their
//! cgroups ([`cgroup`]) and ends ([`deaths`]), and the checks of `smtt-ctl doctor` ([`doctor`]).
//!
//! The daemon and the client share this crate, which needs neither aya nor tokio.

pub mod accounts;
pub mod btf;
pub mod calibrate;
pub mod cgroup;
pub mod clock;
pub mod cpu;
pub mod damon;
pub mod deaths;
pub mod doctor;
pub mod foreign;
pub mod memory;
pub mod page_walks;
pub mod pages;
pub mod perf;
pub mod proc;
pub mod surroundings;
