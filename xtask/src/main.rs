//! `cargo xtask`: set-up, demo, tests, benchmarks and generated files.

mod marker;

use std::path::Path;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    match (
        arguments.next().as_deref(),
        arguments.next(),
        arguments.next(),
    ) {
        (Some("marker"), Some(jars), Some(out)) => marker::build(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .parent()
                .unwrap_or(Path::new(".")),
            Path::new(&jars),
            Path::new(&out),
        ),
        _ => anyhow::bail!("usage: cargo xtask marker JARS OUT"),
    }
}
