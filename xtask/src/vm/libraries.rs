//! The shared libraries that a program needs in a guest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::elf::Elf;

/// The libraries of `program`, transitively, found in `folders`, and its loader: path in the guest -> file on this
/// machine. Empty for a static program.
pub fn needed_by(program: &Path, folders: &[PathBuf]) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut waiting = vec![program.to_owned()];
    while let Some(file) = waiting.pop() {
        let bytes = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let elf = Elf::parse(&bytes).with_context(|| format!("cannot read {}", file.display()))?;
        if let Some(loader) = elf.interpreter()? {
            let name = loader.rsplit('/').next().unwrap_or_default();
            found.insert(loader.clone(), find(name, &file, folders)?);
        }
        for name in elf.needed()? {
            if seen.insert(name.clone()) {
                let path = find(&name, &file, folders)?;
                // The loader searches /lib by default.
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

#[cfg(test)]
mod tests {
    use super::needed_by;
    use std::path::{Path, PathBuf};

    #[test]
    fn a_missing_library_is_named() {
        let error = needed_by(Path::new("/bin/sh"), &[PathBuf::from("/nonexistent")])
            .expect_err("not there");
        assert!(error.to_string().contains("/bin/sh needs "), "{error}");
    }
}
