//! Debian packages of any suite and processor, unpacked or installed into a folder by mmdebstrap. The system's lists, its
//! package database and its installed files do not change. Where packages are unpacked, no program of a package runs.
//!
//! The mirror, its key and the route to it (a proxy, for example) are those of the machine's own apt, with another
//! suite; signatures are checked as apt does by default.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process::{output, tail};
use crate::processor::Processor;
use crate::step::Step;

const LIMIT: Duration = Duration::from_secs(1200);
/// The other names of releases on a mirror. While a mirror takes over a point release, the lists under one name may not
/// be those that the release file names, and the lists under the other still are.
const OTHER_NAMES: [&str; 2] = ["stable", "oldstable"];
const BACKPORTS: &str = "-backports";
/// Lines at the end of a failed run's log that are read.
const LINES: usize = 40;
/// What apt says of such lists.
const MIRROR_SYNC: &str = "Mirror sync in progress";

/// The Debian mirror of the machine's own sources.
struct Mirror {
    uri: String,
    /// File with the key of the mirror's signature, where the source names one.
    key: Option<String>,
}

/// Unpacks packages of `suite` and their dependencies into the empty folder `into`. Backports take missing packages
/// from their own release, and never the other way round: no newer package than wanted is unpacked. Where the mirror is
/// being updated, the release's other name is tried; apt refuses it if that is another release.
///
/// # Errors
/// When the machine has no Debian mirror, the mirror does not answer, or a package is missing or not signed.
pub fn unpack(
    step: &mut Step,
    processor: Processor,
    suite: &str,
    packages: &[&str],
    into: &Path,
) -> Result<()> {
    // Works without root too: nothing is mounted, and no program runs in the folder.
    let wanted = Wanted {
        how: ["--variant=extract", "--mode=chrootless"],
        processor,
        suite,
        packages,
    };
    wanted.bring(step, into)
}

/// Installs a small Debian of `suite` for this machine's processor, with `packages`, into the empty folder `into`:
/// their scripts run there. Needs root.
///
/// # Errors
/// As [`unpack`], and when a package cannot be set up.
pub fn install(step: &mut Step, suite: &str, packages: &[&str], into: &Path) -> Result<()> {
    let wanted = Wanted {
        how: ["--variant=minbase", "--mode=root"],
        processor: Processor::X86,
        suite,
        packages,
    };
    wanted.bring(step, into)
}

/// What mmdebstrap makes.
struct Wanted<'a> {
    how: [&'a str; 2],
    processor: Processor,
    suite: &'a str,
    packages: &'a [&'a str],
}

impl Wanted<'_> {
    fn bring(&self, step: &mut Step, into: &Path) -> Result<()> {
        let release = self.suite.strip_suffix(BACKPORTS).unwrap_or(self.suite);
        let mirror = own_mirror()?;
        let first = self.bring_as(step, release, into, &mirror);
        let log = tail(&step.log, LINES);
        if first.is_ok() || !log.iter().any(|line| line.contains(MIRROR_SYNC)) {
            return first;
        }
        for name in OTHER_NAMES {
            fs::remove_dir_all(into).ok();
            fs::create_dir_all(into).with_context(|| format!("cannot make {}", into.display()))?;
            if self.bring_as(step, name, into, &mirror).is_ok() {
                return Ok(());
            }
        }
        first
    }

    /// [`Self::bring`] with the release under a `name` of the mirror.
    fn bring_as(&self, step: &mut Step, name: &str, into: &Path, mirror: &Mirror) -> Result<()> {
        let suite = self.suite;
        let options = mirror
            .key
            .as_ref()
            .map(|key| format!("[signed-by={key}] "))
            .unwrap_or_default();
        let mut command = Command::new("mmdebstrap");
        command
            .env("LC_ALL", "C")
            .args(self.how)
            .arg(format!("--architectures={}", self.processor.debian()))
            .arg(format!("--include={}", self.packages.join(",")))
            .arg(format!("--aptopt=APT::Default-Release \"{suite}\""))
            .arg("--aptopt=Acquire::Retries \"3\"");
        for setting in own_settings()? {
            command.arg(format!("--aptopt={setting}"));
        }
        command.arg(name).arg(into);
        let mut names = vec![name];
        if suite.ends_with(BACKPORTS) {
            names.push(suite);
        }
        for suite in names {
            command.arg(format!("deb {options}{} {suite} main", mirror.uri));
        }
        step.run(&mut command, LIMIT)
    }
}

/// The settings of the machine's own apt: proxies, certificates, date checks.
fn own_settings() -> Result<Vec<String>> {
    let text = output(Command::new("apt-config").args(["dump", "Acquire"]))?;
    let wanted = ["Acquire::http", "Acquire::Check-"];
    let lines = text.lines().map(str::to_owned);
    Ok(lines
        .filter(|line| wanted.iter().any(|name| line.starts_with(name)))
        .collect())
}

/// The mirror of the machine's own release, according to apt.
fn own_mirror() -> Result<Mirror> {
    let os = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    let value = |key: &str| {
        os.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .map(|value| value.trim_matches('"'))
    };
    let (Some("debian"), Some(codename)) = (value("ID"), value("VERSION_CODENAME")) else {
        bail!(
            "the emulated machines are made of Debian packages, and this is not Debian: run this on Debian 12 or later"
        );
    };
    let mut targets = Command::new("apt-get");
    targets
        .args(["indextargets", "--no-release-info"])
        .args(["--format", "$(REPO_URI) $(SOURCESENTRY)"])
        .args(["Created-By: Packages", "Component: main"])
        .arg(format!("Release: {codename}"));
    let text = output(&mut targets)?;
    let (uri, file) = text
        .lines()
        .find_map(|line| {
            let (uri, entry) = line.split_once(' ')?;
            Some((uri, entry.rsplit_once(':')?.0))
        })
        .with_context(|| {
            format!("no source of {codename} main in /etc/apt: add the Debian mirror to /etc/apt/sources.list")
        })?;
    let entries = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    Ok(Mirror {
        uri: uri.to_owned(),
        key: key_file(&entries, uri),
    })
}

/// The key that the entry with that address names: `[signed-by=FILE]` in a line, `Signed-By: FILE` in a paragraph. A
/// key that is inlined in the entry is left out: Debian's keyring has it as well.
fn key_file(entries: &str, uri: &str) -> Option<String> {
    let lines: Vec<_> = entries
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    let entries: Vec<String> = if lines.iter().any(|line| line.starts_with("deb")) {
        lines.iter().map(|line| (*line).to_owned()).collect()
    } else {
        let paragraphs = lines.split(|line| line.trim().is_empty());
        paragraphs.map(|lines| lines.join("\n")).collect()
    };
    let uri = uri.trim_end_matches('/');
    let entry = entries.iter().find(|entry| {
        let mut words = entry.split_ascii_whitespace();
        words.any(|word| word.trim_end_matches('/') == uri)
    })?;
    let at = entry.to_ascii_lowercase().find("signed-by")?;
    entry[at + "signed-by".len()..]
        .trim_start_matches([':', '=', ' ', '\t'])
        .split([' ', ']', '\n'])
        .next()
        .filter(|key| key.starts_with('/'))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::key_file;

    #[test]
    fn the_key_is_found_in_lines() {
        let text = "# deb [signed-by=/old.gpg] http://mirror.example/debian bookworm main\n\
                    deb [signed-by=/tools.gpg] https://tools.example/apt sdk main\n\
                    deb [arch=amd64 signed-by=/a.gpg] http://mirror.example/debian bookworm contrib main\n";
        let key = |uri| key_file(text, uri);
        assert_eq!(
            key("http://mirror.example/debian/").as_deref(),
            Some("/a.gpg")
        );
        assert_eq!(
            key("https://tools.example/apt").as_deref(),
            Some("/tools.gpg")
        );
        assert_eq!(key("http://elsewhere.example/"), None);
        assert_eq!(
            key_file("deb http://a.example bookworm main\n", "http://a.example"),
            None
        );
    }

    #[test]
    fn the_key_is_found_in_paragraphs() {
        let text = "Types: deb\nURIs: http://mirror.example/debian-security\nSigned-By: /tools.gpg\n\n\
                    Types: deb\n# a comment\nURIs: http://mirror.example/debian\nSuites: bookworm\n\
                    Signed-By: /a.gpg\n";
        assert_eq!(
            key_file(text, "http://mirror.example/debian/").as_deref(),
            Some("/a.gpg")
        );
        let inline = "URIs: http://a.example\nSigned-By:\n -----BEGIN PGP-----\n";
        assert_eq!(key_file(inline, "http://a.example/"), None);
    }
}
