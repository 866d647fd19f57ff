//! The systemd unit: what it allows, as systemd itself judges it, and as docs/SECURITY.md explains it.

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use anyhow::{Context, Result, ensure};

    use crate::skip::skip;

    /// The unit's exposure by `systemd-analyze security`, at most.
    const EXPOSURE: f64 = 2.5;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    fn unit() -> Result<String> {
        std::fs::read_to_string(root().join("config/smtt.service")).context("config/smtt.service")
    }

    /// The values of a key, of all its lines.
    fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
        unit.lines()
            .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .flat_map(str::split_whitespace)
            .collect()
    }

    /// The sources of the daemon below a folder, without their tests.
    fn sources(folder: &Path, found: &mut Vec<String>) -> Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            if path.is_dir() && name != Some("tests") {
                sources(&path, found)?;
            } else if name.is_some_and(|name| name.ends_with(".rs") && name != "tests.rs") {
                let text = std::fs::read_to_string(&path)?;
                let (own, _) = text.split_once("#[cfg(test)]").unwrap_or((&text, ""));
                found.push(own.to_owned());
            }
        }
        Ok(())
    }

    #[test]
    fn the_unit_has_room_for_all_threads_that_users_can_hold() -> Result<()> {
        /// Pools of helpers, the two listeners' threads that make answers, and about twice the daemon's own.
        const POOLS: usize = 11;
        const ANSWERS: u64 = 2 * 8;
        const OWN: u64 = 40;
        let mut texts = Vec::new();
        sources(&root().join("smtt-daemon/src"), &mut texts)?;
        let mut helpers = Vec::new();
        for text in &texts {
            // A file has one set of limits, for each of its pools, whose names are texts.
            let Some((_, limits)) = text.split_once(": JobLimits = JobLimits {") else {
                continue;
            };
            let all = limits.split("all: ").nth(1).context("no limit of all")?;
            let all: u64 = all.split(',').next().unwrap_or_default().parse()?;
            let pools =
                ["TimedReads::new(\"", "Helpers::new(\""].map(|new| text.matches(new).count());
            helpers.extend(std::iter::repeat_n(all, pools.iter().sum()));
        }
        let sum = helpers.iter().sum::<u64>() + ANSWERS + OWN;
        let unit = unit()?;
        let most: u64 = values(&unit, "TasksMax").concat().parse()?;
        ensure!(
            helpers.len() == POOLS && sum <= most,
            "{helpers:?} and others are {sum}, the unit allows {most}"
        );
        Ok(())
    }

    #[test]
    fn systemd_finds_little_exposed() -> Result<()> {
        let unit = root().join("config/smtt.service");
        let analyzed = Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--no-pager"])
            .arg(&unit)
            .output();
        let output = match analyzed {
            Ok(output) => output,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return skip("systemd", "systemd-analyze is not installed");
            }
            Err(error) => return Err(error).context("systemd-analyze"),
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let Some((_, rest)) = text.split_once("Overall exposure level for smtt.service: ") else {
            let error = String::from_utf8_lossy(&output.stderr);
            return skip(
                "systemd",
                format!("systemd-analyze cannot judge a file: {error}"),
            );
        };
        let exposure: f64 = rest.split_whitespace().next().unwrap_or("").parse()?;
        ensure!(
            exposure <= EXPOSURE,
            "exposure {exposure}, at most {EXPOSURE}:\n{text}"
        );
        Ok(())
    }

    #[test]
    fn every_capability_is_explained_and_no_other_is_there() -> Result<()> {
        let unit = unit()?;
        let (bound, ambient) = (
            values(&unit, "CapabilityBoundingSet"),
            values(&unit, "AmbientCapabilities"),
        );
        ensure!(
            bound == ambient && !bound.is_empty(),
            "{bound:?} {ambient:?}"
        );
        let document = std::fs::read_to_string(root().join("docs/SECURITY.md"))?;
        for capability in &bound {
            let row = format!("| `{capability}` |");
            ensure!(document.contains(&row), "docs/SECURITY.md has no row {row}");
        }
        let rows = document.matches("\n| `CAP_").count();
        ensure!(
            rows == bound.len(),
            "{rows} rows, {} capabilities",
            bound.len()
        );
        for dropped in ["CAP_DAC_OVERRIDE", "CAP_SYS_RESOURCE", "CAP_CHOWN"] {
            ensure!(!bound.contains(&dropped), "{dropped} is not needed");
        }
        Ok(())
    }

    #[test]
    fn a_daemon_that_ends_is_started_again_without_an_end() -> Result<()> {
        let unit = unit()?;
        ensure!(values(&unit, "StartLimitIntervalSec") == ["0"]);
        ensure!(values(&unit, "Restart") == ["on-failure"]);
        ensure!(values(&unit, "RestartSec") == ["5"]);
        ensure!(values(&unit, "IPAddressDeny") == ["any"]);
        ensure!(values(&unit, "IPAddressAllow") == ["localhost"]);
        Ok(())
    }
}
