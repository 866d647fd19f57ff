//! Paths: the checkout, the cache that outlives it, the JDKs of the machine.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Spark versions that the tests cover, oldest first.
pub const SPARK_VERSIONS: [&str; 3] = ["3.5.9", "4.0.5", "4.3.0"];
/// The Spark version of the demo.
pub const DEMO_SPARK: &str = "4.0.5";
/// The Spark version whose jars Java code is compiled against: bytecode for the oldest runs on all versions.
pub const COMPILE_SPARK: &str = "3.5.9";

/// The base folders of all other paths.
#[derive(Clone, Debug)]
pub struct Paths {
    /// The checkout.
    pub root: PathBuf,
    /// Downloads and builds of set-up, once per user: `$SMTT_CACHE`, `$XDG_CACHE_HOME/smtt` or `~/.cache/smtt`.
    pub cache: PathBuf,
    /// Cargo's target folder.
    pub target: PathBuf,
}

impl Paths {
    /// Finds the folders from the environment.
    ///
    /// # Errors
    /// When neither a home folder nor `SMTT_CACHE` exists.
    pub fn find() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("the xtask package has no parent folder")?
            .to_path_buf();
        let cache = if let Some(path) = set("SMTT_CACHE") {
            path
        } else if let Some(path) = set("XDG_CACHE_HOME") {
            path.join("smtt")
        } else {
            let home = set("HOME").context(
                "neither SMTT_CACHE nor HOME is set: set SMTT_CACHE to a folder with 3 GB of room",
            )?;
            home.join(".cache/smtt")
        };
        let target = set("CARGO_TARGET_DIR").unwrap_or_else(|| root.join("target"));
        Ok(Self {
            root,
            cache,
            target,
        })
    }

    /// Folder of the log files of set-up steps.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.cache.join("log")
    }

    /// Folder of the Python environment of one Spark version.
    #[must_use]
    pub fn spark_env(&self, version: &str) -> PathBuf {
        self.cache.join(format!("spark-{version}"))
    }

    /// `SPARK_HOME` of one version: the `pyspark` package is a whole Spark distribution.
    ///
    /// # Errors
    /// When set-up has not made the environment yet.
    pub fn spark_home(&self, version: &str) -> Result<PathBuf> {
        let lib = self.spark_env(version).join("lib");
        let entries = lib
            .read_dir()
            .map(|entries| entries.flatten().collect::<Vec<_>>())
            .unwrap_or_default();
        entries
            .into_iter()
            .map(|entry| entry.path().join("site-packages/pyspark"))
            .find(|path| path.join("jars").is_dir())
            .with_context(|| {
                format!(
                    "Spark {version} is not set up in {}: run `cargo xtask setup`",
                    lib.display()
                )
            })
    }

    /// The browser of tests.
    #[must_use]
    pub fn chromium(&self) -> Chromium {
        Chromium {
            folder: self.cache.join("chromium"),
        }
    }

    /// Folder of the marker's jar and native library.
    #[must_use]
    pub fn marker(&self) -> PathBuf {
        self.target.join("marker")
    }

    /// Jar of the compiled Spark applications of tests and demo.
    #[must_use]
    pub fn fixture_jar(&self) -> PathBuf {
        self.target.join("fixture/smtt-fixture.jar")
    }

    /// Jar of the compiled workloads of the experiment.
    #[must_use]
    pub fn scala_jar(&self) -> PathBuf {
        self.target.join("fixture/smtt-experiment.jar")
    }
}

fn set(name: &str) -> Option<PathBuf> {
    env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// Debian's Chromium without a screen and its WebDriver, unpacked.
#[derive(Clone, Debug)]
pub struct Chromium {
    /// Root of the packages' files.
    pub folder: PathBuf,
}

impl Chromium {
    /// The WebDriver.
    #[must_use]
    pub fn driver(&self) -> Command {
        self.command("usr/bin/chromedriver")
    }

    /// The browser.
    #[must_use]
    pub fn browser(&self) -> Command {
        self.command("usr/lib/chromium/chromium-headless-shell")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.folder.join(program));
        let libraries = self
            .folder
            .join("usr/lib")
            .join(format!("{}-linux-gnu", env::consts::ARCH));
        let found = [libraries.join("pulseaudio"), libraries];
        if let Ok(found) = env::join_paths(found) {
            command.env("LD_LIBRARY_PATH", found);
        }
        command
    }
}

/// A Java development kit of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jdk {
    /// `JAVA_HOME`.
    pub home: PathBuf,
    /// The JDK's feature release, for example 17.
    pub release: u32,
}

impl Jdk {
    /// All JDKs under `/usr/lib/jvm`, each once, oldest first.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        let entries = Path::new("/usr/lib/jvm")
            .read_dir()
            .map(|entries| entries.flatten().collect::<Vec<_>>());
        for entry in entries.unwrap_or_default() {
            let Ok(home) = entry.path().canonicalize() else {
                continue;
            };
            if found.iter().any(|jdk| jdk.home == home) || !home.join("bin/javac").is_file() {
                continue;
            }
            if let Some(release) = std::fs::read_to_string(home.join("release"))
                .ok()
                .as_deref()
                .and_then(feature_release)
            {
                found.push(Self { home, release });
            }
        }
        found.sort_by_key(|jdk| jdk.release);
        found
    }

    /// The JDK 17, which set-up, demo and most tests use: every supported Spark version runs on it.
    ///
    /// # Errors
    /// When JDK 17 is not installed.
    pub fn main() -> Result<Self> {
        match Self::all().into_iter().find(|jdk| jdk.release == 17) {
            Some(jdk) => Ok(jdk),
            None => bail!(
                "there is no JDK 17 under /usr/lib/jvm: run `cargo xtask setup` as root, or install openjdk-17-jdk-headless"
            ),
        }
    }

    /// Path of a program of the JDK.
    #[must_use]
    pub fn tool(&self, name: &str) -> PathBuf {
        self.home.join("bin").join(name)
    }
}

/// Feature release from the text of a JDK's `release` file.
fn feature_release(text: &str) -> Option<u32> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("JAVA_VERSION="))?;
    let version = line.trim_matches('"');
    let mut numbers = version
        .split(['.', '+', '-', '_'])
        .map_while(|number| number.parse::<u32>().ok());
    match numbers.next()? {
        // Java 8 calls itself 1.8.
        1 => numbers.next(),
        release => Some(release),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feature_releases() {
        assert_eq!(
            feature_release("IMPLEMENTOR=\"x\"\nJAVA_VERSION=\"17.0.15\"\n"),
            Some(17)
        );
        assert_eq!(feature_release("JAVA_VERSION=\"1.8.0_402\""), Some(8));
        assert_eq!(feature_release("JAVA_VERSION=\"25\""), Some(25));
        assert_eq!(feature_release("SEMANTIC_VERSION=\"25.0.3+9\""), None);
    }
}
