//! The SMTT daemon: source -> decode -> attribute -> aggregate -> export.
pub mod aggregate;
pub mod attribute;
pub mod calibrate;
pub mod clock;
pub mod config;
pub mod control;
pub mod ctl;
pub mod decode;
pub mod discover;
pub mod export;
pub mod loss;
pub mod perf;
pub mod pipeline;
pub mod pmu;
pub mod probes;
pub mod source;
pub mod trace;
