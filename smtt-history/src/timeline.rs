//! The time line of an application's tasks: executors and their cores as lanes, levels of detail of bounded size, and
//! the parts of a task's time; beneath them the memory of executors over time.
//!
//! [`model`] reads the table of tasks once and keeps what a picture needs; [`detail`] makes the answer for a window of
//! time and lanes, of the tasks that a [`filter`] has; [`parts`] divides a task's duration; [`task`] describes one task;
//! [`critical`] finds what bounds the end of jobs and stages; [`waits`] adds up what tasks waited for; [`whole`] has all of it
//! for a page without a server; [`memory`] has the memory over time.

pub mod critical;
pub mod detail;
pub mod filter;
pub mod memory;
pub mod model;
pub mod parts;
pub mod serve;
pub mod task;
#[cfg(test)]
mod tests;
pub mod waits;
pub mod whole;
