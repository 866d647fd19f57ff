//! smtt-ctl
fn main() {}
