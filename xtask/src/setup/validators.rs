//! Judges of files whose form others define: bills of materials, Kubernetes, workflows. Python packages with the schemas
//! in them, so that a check asks no server.

use std::path::PathBuf;

use anyhow::Result;

use super::python::Environment;
use crate::paths::Paths;

/// The packages, in fixed versions: another schema is another answer.
const ENVIRONMENT: Environment = Environment {
    name: "validators",
    title: "validators of forms (Python packages, 30 MB)",
    packages: &[
        "cyclonedx-python-lib[json-validation]==11.12.0",
        "kubernetes-validate==1.37.0",
        "check-jsonschema==0.39.0",
    ],
    check: "
import importlib.metadata as m
assert m.version('cyclonedx-python-lib') == '11.12.0'
assert m.version('kubernetes-validate') == '1.37.0'
assert m.version('check-jsonschema') == '0.39.0'
",
};

/// Folder of the programs of the environment.
#[must_use]
pub fn programs(paths: &Paths) -> PathBuf {
    ENVIRONMENT.programs(paths)
}

/// Step: the environment.
///
/// # Errors
/// When pip does not reach its index.
pub fn validators(paths: &Paths) -> Result<()> {
    ENVIRONMENT.step(paths)
}
