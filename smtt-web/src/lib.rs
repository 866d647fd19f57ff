//! Protects the listeners of the daemon and of the history server.
//!
//! A listener reads a web configuration in the form of Prometheus exporters ([`config`]). It speaks [`tls`], whose files may
//! be renewed while it runs, authenticates [`users`] and bearers of [`tokens`] ([`guard`]), and limits its [`connections`].
//! [`holding()`] keeps a permit until an answer is sent; [`coding`] reads which content codings a client accepts. This crate knows nothing of what is served.

mod clients;
pub mod coding;
pub mod config;
pub mod connections;
pub mod guard;
mod holding;
mod meter;
pub mod suites;
pub mod tls;
pub mod tokens;
pub mod users;

pub use guard::{Files, Guard, GuardError};
pub use holding::holding;
