//! Limits of the two listeners. A connection carries one request.

use std::time::Duration;

pub use smtt_web::connections::{Limits, serve};

/// The metrics port: any local user may connect.
pub const WEB: Limits = Limits {
    connections: 32,
    head: Duration::from_secs(5),
    stall: Duration::from_secs(10),
    life: Some(Duration::from_secs(30)),
    rate: Some(64 << 10),
    kernel_bytes: 128 << 10,
    keep_alive: false,
};

/// The control socket: its group may connect.
pub const CONTROL: Limits = Limits {
    connections: 64,
    head: Duration::from_secs(5),
    stall: Duration::from_secs(30),
    life: None,
    rate: None,
    ..WEB
};
