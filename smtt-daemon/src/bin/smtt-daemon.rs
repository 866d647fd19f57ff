//! smtt-daemon
fn main() {}
