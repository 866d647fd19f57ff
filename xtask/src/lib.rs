//! The parts of `cargo xtask`, which the tests share: folders, child processes that are stopped again, a daemon per
//! test, Spark from a Python environment.
//!
//! | module | what |
//! |---|---|
//! | [`args`] | arguments of `cargo xtask` |
//! | [`paths`] | the checkout, the cache, the JDKs |
//! | [`processor`] | processors, by the names that others have for them |
//! | [`process`] | child processes with a log, a time limit and an end; Ctrl-C |
//! | [`random`] | random moments |
//! | [`step`] | set-up steps: printed, skipped when already done, timed while they run |
//! | [`setup`] | everything a fresh machine needs |
//! | [`features`] | features of machines that tests need, and those that this machine must have |
//! | [`fixture`] | the Spark applications of tests and demo, compiled |
//! | [`marker`] | the marker's jar and native library |
//! | [`contract`] | the marker's `Contract.java`, generated |
//! | [`spark`] | `spark-submit` and stand-alone clusters of one Spark version on one JDK |
//! | [`http`] | one GET request, for Spark's REST API and the daemon's metrics |
//! | [`json`] | fields of JSON answers |
//! | [`daemon`] | a daemon with a configuration of its own, and questions to it through `smtt-ctl` |
//! | [`witness`] | the kernel's view of a process: its faults, its children, its memory |
//! | [`demo`] | `cargo xtask demo` |
//! | [`stages`] | `cargo xtask test` |
//! | [`elf`] | contents of an ELF file |
//! | [`cross`] | programs for the processors of packages and of emulated machines |
//! | [`vm`] | emulated machines, `cargo xtask vm` |
//! | [`bench`] | `cargo xtask bench` |
//! | [`browser`] | a browser through WebDriver |
//! | [`event_log`] | event logs of applications that never ran |
//! | [`experiment`] | `cargo xtask experiment` |
//! | [`dist`] | `cargo xtask dist` |
//! | [`tidy`] | `cargo xtask tidy` |

#[cfg(test)]
mod api;
pub mod args;
#[cfg(test)]
mod attacks;
pub mod bench;
pub mod browser;
pub mod contract;
pub mod cross;
pub mod daemon;
pub mod demo;
pub mod dist;
pub mod elf;
pub mod event_log;
pub mod experiment;
pub mod features;
pub mod fixture;
pub mod hdfs;
pub mod http;
pub mod json;
pub mod marker;
pub mod paths;
pub mod process;
pub mod processor;
pub mod random;
pub mod setup;
pub mod spark;
pub mod stages;
pub mod step;
pub mod tidy;
#[cfg(test)]
mod troubles;
pub mod vm;
#[cfg(test)]
mod walls;
pub mod witness;
