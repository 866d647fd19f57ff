//! Skips of tests that need a feature of the machine: those of `smtt_skip`, with the errors of these tests. A feature
//! must be in the list of [`xtask::features`].

use std::fmt::Display;

use anyhow::{Result, ensure};
pub use smtt_skip::must_have;
use xtask::features;

/// Ends a test without running it: `return skip("swap", "/proc/swaps is empty")`.
///
/// # Errors
/// When this machine must have the feature.
pub fn skip(feature: &str, why: impl Display) -> Result<()> {
    listed(feature)?;
    Ok(smtt_skip::skip(feature, why)?)
}

/// Skips one part of a test whose other parts run.
///
/// # Errors
/// When this machine must have the feature.
pub fn leave_out(feature: &str, why: impl Display) -> Result<()> {
    listed(feature)?;
    Ok(smtt_skip::leave_out(feature, why)?)
}

fn listed(feature: &str) -> Result<()> {
    ensure!(
        features::ALL.iter().any(|(name, _)| *name == feature),
        "{feature} is no feature that a test may need: add it to xtask/src/features.rs"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_must_be_in_the_list() {
        let error = listed("swop").expect_err("it is in no list");
        assert!(error.to_string().contains("swop is no feature"), "{error}");
    }
}
