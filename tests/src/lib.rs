//! Harness of the tests: starts the daemon and Spark, queries both, and reads independent witnesses.
//!
//! | module | what |
//! |---|---|
//! | [`attackers`] | hostile programs and their victim |
//! | [`application`] | applications that several tests run |
//! | [`cgroup`] | cgroups with a limit, and programs in a pod |
//! | [`container`] | containers of the OCI form, without a registry |
//! | [`course`] | states and times of jobs and stages, compared with Spark |
//! | [`export`] | exported applications, by Python's readers |
//! | [`faults`] | page faults of executors as both sides count them, while no task runs |
//! | [`heap`] | an application with recognisable memory of every kind, and whether it is where SMTT says |
//! | [`history`] | a server of finished applications |
//! | [`job_trace`] | an application in rumen's form, compared with Spark |
//! | [`jvm`] | small Spark applications in one JVM, here or in an emulated machine |
//! | [`lab`] | one daemon and one Spark in a folder of their own (`SparkLab`), and the gates of an application |
//! | [`memory`] | memory whose every first touch is one page fault, clocks, processors |
//! | [`node`] | CPUs and memory of one NUMA node, and where another process's pages are |
//! | [`page_walk`] | work whose page walks are known, and plain counts of it |
//! | [`records`] | accesses from the marker's own log to the trace files |
//! | [`release`] | the marker as neighbouring releases have it |
//! | [`service`] | what the systemd unit allows |
//! | [`skip`] | tests that need a feature which not every machine has |
//! | [`slot`] | the slot of a thread that a test adopts without a marker |
//! | [`steps`] | lines between a test and a program that it starts |
//! | [`task_metrics`] | what tasks read, wrote, exchanged and spilled, compared with Spark |
//! | [`thread_context`] | what threads publish for other profilers, by a reader from outside |
//! | [`truth`] | comparisons of what SMTT says with what Spark's REST API says |
//! | [`workers`] | what workers' daemons write about an application that never ran |
//! | [`workload`] | the native workload as a process |
//!
//! Processes, Spark, the daemon and the witnesses of `/proc` are shared with `cargo xtask`, in its library.

pub mod application;
pub mod attackers;
pub mod cgroup;
pub mod container;
pub mod course;
#[cfg(target_arch = "x86_64")]
pub mod export;
pub mod faults;
pub mod heap;
#[cfg(target_arch = "x86_64")]
pub mod history;
pub mod job_trace;
pub mod jvm;
pub mod lab;
pub mod memory;
pub mod node;
pub mod page_walk;
pub mod peaks;
pub mod records;
pub mod release;
pub mod service;
pub mod skip;
pub mod slot;
pub mod steps;
pub mod task_metrics;
#[cfg(target_arch = "x86_64")]
pub mod thread_context;
pub mod truth;
pub mod workers;
pub mod workload;

pub use xtask::{json, witness};
