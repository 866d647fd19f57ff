//! Judges of files whose form others define: bills of materials, Kubernetes, workflows. Python packages with the schemas
//! in them, so that a check asks no server.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::paths::Paths;
use crate::process::output;
use crate::step::Steps;

/// The packages, in fixed versions: another schema is another answer.
const PACKAGES: [&str; 3] = [
    "cyclonedx-python-lib[json-validation]==11.12.0",
    "kubernetes-validate==1.37.0",
    "check-jsonschema==0.39.0",
];
const CHECK: &str = "
import importlib.metadata as m
assert m.version('cyclonedx-python-lib') == '11.12.0'
assert m.version('kubernetes-validate') == '1.37.0'
assert m.version('check-jsonschema') == '0.39.0'
";
const LIMIT: Duration = Duration::from_secs(600);

/// Folder of the programs of the environment.
#[must_use]
pub fn programs(paths: &Paths) -> PathBuf {
    paths.cache.join("validators/bin")
}

/// Step: the environment.
///
/// # Errors
/// When pip does not reach its index.
pub fn validators(paths: &Paths) -> Result<()> {
    let python = programs(paths).join("python");
    let done = || output(Command::new(&python).args(["-c", CHECK])).is_ok();
    Steps::new(1).step(
        "validators of forms (Python packages, 30 MB)",
        paths.logs().join("validators.log"),
        "check that pip reaches its index, then run it again",
        done,
        |step| {
            let folder = paths.cache.join("validators");
            let mut venv = Command::new("python3");
            step.run(venv.args(["-m", "venv", "--clear"]).arg(folder), LIMIT)?;
            let mut pip = Command::new(&python);
            pip.args([
                "-m",
                "pip",
                "install",
                "--no-input",
                "--disable-pip-version-check",
            ]);
            step.run(pip.args(PACKAGES), LIMIT)
        },
    )
}
