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
