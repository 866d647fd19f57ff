//! A build that a later stage needs, at low priority beside stages that wait much.

use std::time::Duration;

use anyhow::Result;

use crate::paths::Paths;
use crate::process::{Running, cargo, check_interrupt, tail};

/// The stage that needs the build.
const NEEDED_BY: &str = "vm";
/// Stages beside which it runs: the tests against the kernel wait most of their time, those with Spark a third.
const BESIDE: [&str; 2] = ["kernel", "spark"];
/// The build. It has target folders of its own, so it neither changes nor locks the programs of the other stages.
const BUILD: [&str; 4] = ["xtask", "vm", "riscv64", "--only-build"];
/// Time limit of the rest of the build, once the stage that needs it waits.
const REST_LIMIT: Duration = Duration::from_secs(2400);

/// The running build; dropping this value stops it.
#[derive(Debug)]
pub struct Ahead(Running);

/// Whether the build runs beside `stage`, when those stages run.
fn is_beside(stage: &str, chosen: &[&str]) -> bool {
    BESIDE.contains(&stage) && chosen.contains(&NEEDED_BY)
}

impl Ahead {
    /// Starts the build, if it may run beside `stage` and a later one of the chosen needs it.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(paths: &Paths, stage: &str, chosen: &[&str]) -> Result<Option<Self>> {
        if !is_beside(stage, chosen) {
            return Ok(None);
        }
        let log = paths.target.join("log/build-ahead.log");
        let mut command = cargo();
        command.args(BUILD).current_dir(&paths.root);
        let running = Running::start("the build for riscv64", &mut command, &log)?;
        println!(
            "from here on the programs of the stage {NEEDED_BY} are built for riscv64 beside the tests; the output goes to {}",
            log.display()
        );
        Ok(Some(Self(running)))
    }

    /// Waits for the build if `stage` needs it; returns the build's own report of its time, or why there is none. After a
    /// failed build the stage builds again, and its error is the stage's.
    ///
    /// # Errors
    /// When the user pressed Ctrl-C.
    pub fn finish(&mut self, stage: &str) -> Result<Option<String>> {
        if stage != NEEDED_BY {
            return Ok(None);
        }
        let ended = self.0.wait(REST_LIMIT, || Ok(()));
        check_interrupt()?;
        let last = || tail(self.0.output(), 1).pop().unwrap_or_default();
        let report = match ended {
            Ok(status) if status.success() => last(),
            Ok(status) => format!("the build failed ({status}): {}", last()),
            Err(problem) => format!("{problem:#}"),
        };
        Ok(Some(format!(
            "for riscv64, beside earlier stages: {report}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_runs_ahead_only_where_both_stages_run() {
        assert!(is_beside("kernel", &["unit", "kernel", "spark", "vm"]));
        assert!(is_beside("spark", &["spark", "vm"]));
        assert!(!is_beside("unit", &["unit", "vm"]));
        assert!(!is_beside("spark", &["kernel", "spark"]));
        let stages = crate::stages::names();
        let at = |name| stages.iter().position(|stage| *stage == name);
        for stage in BESIDE {
            assert!(at(stage).is_some() && at(stage) < at(NEEDED_BY), "{stage}");
        }
    }
}
