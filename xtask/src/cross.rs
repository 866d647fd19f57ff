//! Builds a program of the workspace for an emulated machine's processor.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::vm::Processor;

/// Builds binary `binary` of `package` and gives its path.
pub fn build(
    root: &Path,
    _cache: &Path,
    processor: Processor,
    package: &str,
    binary: &str,
) -> Result<PathBuf> {
    match processor {
        Processor::X86 => {
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let status = Command::new("nice")
                .args(["-n", "19"])
                .arg(cargo)
                .args([
                    "build",
                    "--quiet",
                    "--release",
                    "--package",
                    package,
                    "--bin",
                    binary,
                ])
                .current_dir(root)
                .status()
                .context("cannot start cargo")?;
            if !status.success() {
                bail!("building {package} failed, see above");
            }
            Ok(root.join("target/release").join(binary))
        }
        Processor::Riscv => bail!("not yet"),
    }
}
