//! The shared libraries that a program needs in a guest.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The libraries of `program`, of their libraries and so on, found in `folders`, and its loader: path in the guest
/// -> file here. Empty for a static program.
pub fn needed_by(program: &Path, folders: &[PathBuf]) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut waiting = vec![program.to_owned()];
    while let Some(file) = waiting.pop() {
        let (loader, names) = parse(&read_elf(&file)?);
        if let Some(loader) = loader {
            let name = loader.rsplit('/').next().unwrap_or_default();
            found.insert(loader.clone(), find(name, &file, folders)?);
        }
        for name in names {
            if seen.insert(name.clone()) {
                let path = find(&name, &file, folders)?;
                // The loader looks in /lib without being told.
                found
                    .entry(format!("/lib/{name}"))
                    .or_insert_with(|| path.clone());
                waiting.push(path);
            }
        }
    }
    Ok(found)
}

fn find(name: &str, wanted_by: &Path, folders: &[PathBuf]) -> Result<PathBuf> {
    folders
        .iter()
        .map(|folder| folder.join(name))
        .find(|path| path.exists())
        .with_context(|| {
            format!(
                "{} needs {name}, which is in none of {folders:?}",
                wanted_by.display()
            )
        })
}

fn read_elf(file: &Path) -> Result<String> {
    let output = Command::new("readelf")
        .args(["--wide", "--dynamic", "--program-headers"])
        .arg(file)
        .env("LC_ALL", "C")
        .output()
        .context("cannot start readelf: install the package binutils")?;
    if !output.status.success() {
        bail!(
            "readelf cannot read {}: {}",
            file.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The loader and the needed libraries in readelf's output.
fn parse(text: &str) -> (Option<String>, Vec<String>) {
    let between = |line: &str, before: &str| {
        line.split_once(before)?
            .1
            .split_once(']')
            .map(|(inner, _)| inner.to_owned())
    };
    (
        text.lines()
            .find_map(|line| between(line, "[Requesting program interpreter: ")),
        text.lines()
            .filter(|line| line.contains("(NEEDED)"))
            .filter_map(|line| between(line, "Shared library: ["))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::{needed_by, parse};
    use std::path::{Path, PathBuf};

    #[test]
    fn loader_and_libraries_are_read() {
        let text = "  INTERP 0x1 0x2\n      [Requesting program interpreter: /lib64/ld-linux-x86-64.so.2]\n \
                    0x0001 (NEEDED)  Shared library: [libgcc_s.so.1]\n 0x0001 (NEEDED)  Shared library: [libc.so.6]\n";
        let (loader, names) = parse(text);
        assert_eq!(loader.as_deref(), Some("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(names, ["libgcc_s.so.1", "libc.so.6"]);
        assert_eq!(parse(""), (None, vec![]));
    }

    #[test]
    fn a_missing_library_is_named() {
        let error = needed_by(Path::new("/bin/sh"), &[PathBuf::from("/nonexistent")])
            .expect_err("not there");
        assert!(error.to_string().contains("/bin/sh needs "), "{error}");
    }
}
