//! `cargo xtask`: set-up, demo, tests, benchmarks and generated files.
fn main() {}
