//! Skips of tests that need a feature of the machine.
//!
//! A test that cannot run names the missing feature in a line that `cargo xtask test` counts. Where `SMTT_MUST_HAVE`
//! names the feature the test fails instead: a machine that must run a test never passes without running it.

use std::fmt::Display;
use std::io::Write as _;

use anyhow::{Result, bail, ensure};
use xtask::features::{self, MUST_HAVE};

/// Whether `SMTT_MUST_HAVE` names the feature.
#[must_use]
pub fn must_have(feature: &str) -> bool {
    named(&std::env::var(MUST_HAVE).unwrap_or_default(), feature)
}

fn named(must: &str, feature: &str) -> bool {
    must.split(',').any(|name| name == feature)
}

/// Ends a test without running it: `return skip("swap", "/proc/swaps is empty")`.
///
/// # Errors
/// When this machine must have the feature.
pub fn skip(feature: &str, why: impl Display) -> Result<()> {
    missing(feature, &why)?;
    // Not `println!`: libtest captures the output of a passing test, and this line must be visible.
    writeln!(
        std::io::stdout(),
        "{}{feature}: {why}",
        features::SKIPPED_LINE
    )?;
    Ok(())
}

/// Skips one part of a test whose other parts run.
///
/// # Errors
/// When this machine must have the feature.
pub fn leave_out(feature: &str, why: impl Display) -> Result<()> {
    missing(feature, &why)?;
    println!("left out: {feature}: {why}");
    Ok(())
}

fn missing(feature: &str, why: &dyn Display) -> Result<()> {
    ensure!(
        features::ALL.iter().any(|(name, _)| *name == feature),
        "{feature} is no feature that a test may need: add it to xtask/src/features.rs"
    );
    if must_have(feature) {
        bail!("this machine must have {feature} ({MUST_HAVE}): {why}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_names_are_named() {
        assert!(named("root,swap", "swap") && named("root,swap", "root"));
        assert!(!named("root,swapped", "swap") && !named("", "swap"));
    }

    #[test]
    fn a_feature_must_be_in_the_list() {
        let error = leave_out("swop", "a typing error").expect_err("it is in no list");
        assert!(error.to_string().contains("swop is no feature"), "{error}");
    }
}
