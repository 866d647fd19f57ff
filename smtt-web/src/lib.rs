//! What protects a listener of SMTT, whichever program has it: a web configuration in the form of Prometheus exporters
//! ([`config`]), [`tls`] whose files may be renewed, [`users`] and [`tokens`] ([`guard`]), limits of [`connections`], and bodies that
//! hold something until they are sent ([`holding()`]).
//!
//! It knows nothing of what is served.

pub mod config;
pub mod connections;
pub mod guard;
mod holding;
mod meter;
pub mod tls;
pub mod tokens;
pub mod users;

pub use guard::{Files, Guard, GuardError};
pub use holding::holding;
