//! Page walks: the events that `smtt_machine::page_walks` wants, opened on every CPU and sampled by the kernel side.
//!
//! | module | what |
//! |---|---|
//! | [`open`] | the open events of one CPU |
//! | [`clock`] | the kernel's clock, in place of cycles that are not sampled |
//! | [`health`] | whether an event counts what it should: pure |
//! | [`sampler`] | opens, reads and rotates the events |

mod clock;
mod health;
mod open;
mod sampler;

pub(super) use self::clock::Clock;
pub(super) use self::sampler::{Sampler, not_measured};
