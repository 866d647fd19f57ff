//! Skips of tests that need a feature of the machine, for the unit tests of every crate. `smtt_tests::skip` has the same
//! functions for tests whose errors are those of anyhow.
//!
//! A test that cannot run names the missing feature in a line that `cargo xtask test` counts. Where [`MUST_HAVE`] names
//! the feature the test fails instead: a machine that must run a test never passes without running it.
//! `xtask/src/features.rs` lists the features.

use std::fmt::{self, Debug, Display, Formatter};
use std::io::Write as _;

/// The environment variable with the required features, separated by commas.
pub const MUST_HAVE: &str = "SMTT_MUST_HAVE";

/// Prefix of the line of a skipped test; feature and reason follow.
pub const SKIPPED_LINE: &str = "skipped: ";

/// Why a test may not be skipped: this machine must have the feature, or the line cannot be written.
pub struct NotSkipped(String);

impl Display for NotSkipped {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// As [`Display`], because libtest shows the error of a test in this form.
impl Debug for NotSkipped {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(self, out)
    }
}

impl std::error::Error for NotSkipped {}

/// Whether [`MUST_HAVE`] names the feature.
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
pub fn skip(feature: &str, why: impl Display) -> Result<(), NotSkipped> {
    missing(feature, &why)?;
    // Not `println!`: libtest captures the output of a passing test, and this line must be visible.
    writeln!(std::io::stdout(), "{SKIPPED_LINE}{feature}: {why}")
        .map_err(|error| NotSkipped(format!("standard output takes no line: {error}")))
}

/// Skips one part of a test whose other parts run.
///
/// # Errors
/// When this machine must have the feature.
pub fn leave_out(feature: &str, why: impl Display) -> Result<(), NotSkipped> {
    missing(feature, &why)?;
    println!("left out: {feature}: {why}");
    Ok(())
}

fn missing(feature: &str, why: &dyn Display) -> Result<(), NotSkipped> {
    if must_have(feature) {
        return Err(NotSkipped(format!(
            "this machine must have {feature} ({MUST_HAVE}): {why}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Output};

    /// Where it is set, `is_skipped` is skipped.
    const TRY: &str = "SMTT_SKIP_TRY";

    #[test]
    fn only_whole_names_are_named() {
        assert!(named("root,swap", "swap") && named("root,swap", "root"));
        assert!(!named("root,swapped", "swap") && !named("", "swap"));
    }

    #[test]
    fn is_skipped() -> Result<(), NotSkipped> {
        if std::env::var_os(TRY).is_some() {
            return skip("swap", "as the test below asks");
        }
        Ok(())
    }

    #[test]
    fn libtest_shows_the_line_and_a_required_feature_fails() {
        let run = |must: &str| -> Output {
            Command::new(std::env::current_exe().expect("this program"))
                .args(["--exact", "tests::is_skipped"])
                .env(TRY, "")
                .env(MUST_HAVE, must)
                .output()
                .expect("runs")
        };
        let skipped = run("root");
        let said = String::from_utf8_lossy(&skipped.stdout);
        let line = format!("{SKIPPED_LINE}swap: as the test below asks\n");
        assert!(
            said.contains(&line) && skipped.status.success(),
            "{skipped:?}"
        );
        let failed = run("root,swap");
        let said = String::from_utf8_lossy(&failed.stdout);
        assert!(
            said.contains("Error: this machine must have swap (") && !failed.status.success(),
            "{failed:?}"
        );
    }
}
