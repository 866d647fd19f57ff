//! Page walks: the events that `smtt_machine::page_walks` wants, opened on every CPU and sampled by the kernel side.
//!
//! | module | what |
//! |---|---|
//! | [`open`] | the open events of one CPU |
//! | [`health`] | whether an event counts what it should: pure |
//! | [`sampler`] | opens, reads and rotates the events |

mod health;
mod open;
mod sampler;

pub(super) use self::sampler::{Sampler, not_measured};
