//! Debian packages of any suite and processor, in an apt state of our own: the system's lists, its package
//! database and its installed files are not touched.
//!
//! The mirror is the one that the machine's own apt sources name, with another suite; signatures are checked as
//! apt does by default.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::paths::Paths;
use crate::step::Step;

/// The suites that packages for a processor come from. They are not mixed further: a newer suite would draw the
/// emulator's libraries to itself.
fn suites(architecture: &str) -> &'static [&'static str] {
    match architecture {
        "amd64" => &["bookworm", "bookworm-backports"],
        // One of Debian's own processors since trixie only.
        _ => &["trixie"],
    }
}

const FETCH_LIMIT: Duration = Duration::from_secs(900);
const UNPACK_LIMIT: Duration = Duration::from_secs(300);

/// An apt state for one processor.
pub struct Apt {
    folder: PathBuf,
    architecture: &'static str,
}

/// Where the machine's own sources get Debian from.
#[derive(Debug, PartialEq, Eq)]
struct Mirror {
    uri: String,
    signed_by: Option<String>,
}

impl Apt {
    /// The state for `architecture`, in the cache; the lists are fetched anew.
    ///
    /// # Errors
    /// When the machine has no Debian mirror, or the mirror does not answer.
    pub fn open(paths: &Paths, step: &mut Step, architecture: &'static str) -> Result<Self> {
        let folder = paths.cache.join("vm/apt").join(architecture);
        for part in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(part))
                .with_context(|| format!("cannot make a folder in {}", folder.display()))?;
        }
        let mirror = own_mirror()?;
        let options = mirror
            .signed_by
            .as_ref()
            .map(|path| format!("[signed-by={path}] "))
            .unwrap_or_default();
        let list: String = suites(architecture)
            .iter()
            .map(|suite| format!("deb {options}{} {suite} main\n", mirror.uri))
            .collect();
        fs::write(folder.join("sources.list"), list).context("cannot write the list of sources")?;
        fs::write(folder.join("status"), "").context("cannot write the empty package database")?;
        let apt = Self {
            folder,
            architecture,
        };
        step.run(apt.command("apt-get").arg("update"), FETCH_LIMIT)?;
        Ok(apt)
    }

    /// Unpacks the packages and all that they depend on (which may come from another suite) into `into`.
    pub fn unpack_with_dependencies(
        &self,
        step: &mut Step,
        suite: &str,
        packages: &[&str],
        into: &Path,
    ) -> Result<()> {
        step.run(
            self.command("apt-get")
                .args([
                    "--yes",
                    "install",
                    "--download-only",
                    "--no-install-recommends",
                    "--target-release",
                    suite,
                ])
                .args(packages),
            FETCH_LIMIT,
        )?;
        self.unpack(step, into)
    }

    /// Unpacks the packages alone into `into`.
    pub fn unpack_alone(
        &self,
        step: &mut Step,
        suite: &str,
        packages: &[&str],
        into: &Path,
    ) -> Result<()> {
        let named = packages.iter().map(|package| format!("{package}/{suite}"));
        step.run(
            self.command("apt-get")
                .arg("download")
                .args(named)
                .current_dir(self.archives()),
            FETCH_LIMIT,
        )?;
        self.unpack(step, into)
    }

    /// The first package that `package` of `suite` depends on: a kernel's meta package names the real one so.
    pub fn first_dependency(&self, suite: &str, package: &str) -> Result<String> {
        let output = self
            .command("apt-cache")
            .args(["show", &format!("{package}/{suite}")])
            .output()
            .context("cannot start apt-cache: is apt installed?")?;
        first_dependency(&String::from_utf8_lossy(&output.stdout)).with_context(|| {
            format!(
                "the package {package} of {suite} ({}) names no kernel",
                self.architecture
            )
        })
    }

    /// Unpacks what was downloaded and gives the disk space of the packages back.
    fn unpack(&self, step: &mut Step, into: &Path) -> Result<()> {
        let mut found = false;
        for entry in fs::read_dir(self.archives()).context("cannot list the downloaded packages")? {
            let path = entry.context("cannot list the downloaded packages")?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                step.run(
                    Command::new("dpkg").arg("-x").arg(&path).arg(into),
                    UNPACK_LIMIT,
                )?;
                fs::remove_file(&path)
                    .with_context(|| format!("cannot remove {}", path.display()))?;
                found = true;
            }
        }
        if !found {
            bail!(
                "apt-get downloaded nothing into {}",
                self.archives().display()
            );
        }
        Ok(())
    }

    fn archives(&self) -> PathBuf {
        self.folder.join("cache/archives")
    }

    fn command(&self, program: &str) -> Command {
        let path = |part: &str| self.folder.join(part).display().to_string();
        let mut command = Command::new(program);
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("LC_ALL", "C");
        for option in [
            format!("Dir::Etc::sourcelist={}", path("sources.list")),
            "Dir::Etc::sourceparts=-".to_owned(),
            format!("Dir::State={}", path("state")),
            format!("Dir::State::status={}", path("status")),
            format!("Dir::Cache={}", path("cache")),
            format!("APT::Architecture={}", self.architecture),
            format!("APT::Architectures={}", self.architecture),
            "Acquire::Languages=none".to_owned(),
            "Acquire::Retries=3".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            // The folders are the user's own; apt's usual sandbox user cannot enter them.
            "APT::Sandbox::User=root".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        command
    }
}

fn first_dependency(record: &str) -> Option<String> {
    let depends = record
        .lines()
        .find_map(|line| line.strip_prefix("Depends:"))?;
    depends
        .split_ascii_whitespace()
        .next()
        .map(|name| name.trim_end_matches(',').to_owned())
}

/// The mirror of the machine's own release.
fn own_mirror() -> Result<Mirror> {
    let release = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    let value = |key: &str| {
        release
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .map(|value| value.trim_matches('"'))
    };
    let (Some("debian"), Some(codename)) = (value("ID"), value("VERSION_CODENAME")) else {
        bail!(
            "the emulated machines are made of Debian packages, and this is not Debian: run this on Debian 12 or later"
        );
    };
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        let mut more: Vec<_> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        more.sort();
        files.extend(more);
    }
    files
        .iter()
        .filter_map(|path| {
            let text = fs::read_to_string(path).ok()?;
            match path.extension()?.to_str()? {
                "list" => mirror_in_lines(&text, codename),
                "sources" => mirror_in_paragraphs(&text, codename),
                _ => None,
            }
        })
        .next()
        .with_context(|| {
            format!("no source of {codename} main in /etc/apt: add the Debian mirror to /etc/apt/sources.list")
        })
}

/// One line per source: `deb [options] URI SUITE COMPONENT...`.
fn mirror_in_lines(text: &str, codename: &str) -> Option<Mirror> {
    text.lines().find_map(|line| {
        let rest = line.trim().strip_prefix("deb")?;
        let rest = rest.strip_prefix([' ', '\t'])?.trim_start();
        let (options, rest) = match rest.strip_prefix('[') {
            Some(bracketed) => bracketed.split_once(']')?,
            None => ("", rest),
        };
        let mut words = rest.split_ascii_whitespace();
        let (uri, suite) = (words.next()?, words.next()?);
        let signed_by = options
            .split_ascii_whitespace()
            .find_map(|option| option.strip_prefix("signed-by="));
        (suite == codename && words.any(|component| component == "main")).then(|| Mirror {
            uri: uri.to_owned(),
            signed_by: signed_by.map(str::to_owned),
        })
    })
}

/// One paragraph per source, with fields. A key that stands in the file itself is left out: the machine's
/// Debian keyring has it as well.
fn mirror_in_paragraphs(text: &str, codename: &str) -> Option<Mirror> {
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    lines
        .split(|line| line.trim().is_empty())
        .find_map(|paragraph| {
            let field = |key: &str| {
                paragraph.iter().find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.trim().eq_ignore_ascii_case(key).then(|| value.trim())
                })
            };
            let has = |key: &str, word: &str| {
                field(key).is_some_and(|value| value.split_ascii_whitespace().any(|w| w == word))
            };
            let enabled = !field("Enabled").is_some_and(|value| value.eq_ignore_ascii_case("no"));
            if !(enabled
                && has("Types", "deb")
                && has("Suites", codename)
                && has("Components", "main"))
            {
                return None;
            }
            Some(Mirror {
                uri: field("URIs")?.split_ascii_whitespace().next()?.to_owned(),
                signed_by: field("Signed-By")
                    .filter(|value| value.starts_with('/'))
                    .map(str::to_owned),
            })
        })
}

#[cfg(test)]
mod tests {
    use super::{Mirror, first_dependency, mirror_in_lines, mirror_in_paragraphs};

    #[test]
    fn the_mirror_is_found_in_lines() {
        let text = "# deb http://old.example/debian bookworm main\n\
                    deb https://tools.example/apt sdk main\n\
                    deb [arch=amd64 signed-by=/usr/share/keyrings/a.gpg] http://mirror.example/debian bookworm contrib main\n";
        let found = mirror_in_lines(text, "bookworm");
        let signed_by = Some("/usr/share/keyrings/a.gpg".to_owned());
        assert_eq!(
            found,
            Some(Mirror {
                uri: "http://mirror.example/debian".into(),
                signed_by
            })
        );
        assert_eq!(mirror_in_lines(text, "trixie"), None);
        assert_eq!(
            mirror_in_lines(
                "deb-src http://mirror.example/debian bookworm main",
                "bookworm"
            ),
            None
        );
    }

    #[test]
    fn the_mirror_is_found_in_paragraphs() {
        let text = "Types: deb\nURIs: http://tools.example\nSuites: nodistro\nComponents: main\n\n\
                    Types: deb deb-src\n# a comment\nURIs: http://mirror.example/debian\n\
                    Suites: bookworm bookworm-updates\nComponents: main\nSigned-By:\n -----BEGIN PGP-----\n";
        let found = mirror_in_paragraphs(text, "bookworm");
        assert_eq!(
            found,
            Some(Mirror {
                uri: "http://mirror.example/debian".into(),
                signed_by: None
            })
        );
        let off =
            "Enabled: no\nTypes: deb\nURIs: http://a.example\nSuites: bookworm\nComponents: main\n";
        assert_eq!(mirror_in_paragraphs(off, "bookworm"), None);
    }

    #[test]
    fn a_kernels_meta_package_names_the_kernel() {
        let record = "Package: linux-image-amd64\nDepends: linux-image-6.1.0-50-amd64 (= 6.1.176-1), other\n";
        assert_eq!(
            first_dependency(record).as_deref(),
            Some("linux-image-6.1.0-50-amd64")
        );
        assert_eq!(first_dependency(""), None);
    }
}
