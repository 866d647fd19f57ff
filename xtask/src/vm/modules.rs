//! The kernel modules that a guest's disk and its swap need, in the order in which they are loaded.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Modules for mounting an ext4 image on a virtio disk. The file system requests the last two by name, for its check
/// sum; some kernels have them built in.
const WANTED: [&str; 5] = [
    "virtio_pci",
    "virtio_blk",
    "crc32c_generic",
    "libcrc32c",
    "ext4",
];

/// The module of a RAM disk.
pub const MEMORY_DISK: &str = "brd";

/// Name and content of every module that the disk needs and the kernel has not built in.
pub fn for_disk(modules: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    named(&WANTED, modules)
}

/// Name and content of every module that swap on a RAM disk needs and the kernel has not built in.
pub fn for_swap(modules: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    named(&[MEMORY_DISK], modules)
}

/// The modules in load order, dependencies first. The package's list of dependencies is only made at installation, so
/// each module's own description is read.
fn named(names: &[&str], modules: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = BTreeMap::new();
    collect(&modules.join("kernel"), &mut files)?;
    let mut loaded = Vec::new();
    for name in names {
        add(name, &files, &mut loaded)?;
    }
    Ok(loaded)
}

/// Adds a module after its dependencies. A module without a file is built in.
fn add(
    name: &str,
    files: &BTreeMap<String, PathBuf>,
    loaded: &mut Vec<(String, Vec<u8>)>,
) -> Result<()> {
    let Some(file) = files.get(name) else {
        return Ok(());
    };
    if loaded.iter().any(|(there, _)| there == name) {
        return Ok(());
    }
    let content = read(file)?;
    for needed in needs(&content) {
        add(&needed, files, loaded)?;
    }
    loaded.push((name.to_owned(), content));
    Ok(())
}

/// Every module below `folder`: name as the kernel writes it -> file.
fn collect(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let path = entry
            .with_context(|| format!("cannot list {}", folder.display()))?
            .path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if let Some((name, _)) = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.split_once(".ko"))
        {
            files.insert(name.replace('-', "_"), path);
        }
    }
    Ok(())
}

fn read(file: &Path) -> Result<Vec<u8>> {
    if file.extension().is_none_or(|extension| extension != "xz") {
        return fs::read(file).with_context(|| format!("cannot read {}", file.display()));
    }
    let output = Command::new("xz")
        .args(["--decompress", "--stdout"])
        .arg(file)
        .output()
        .context("cannot start xz: install the package xz-utils")?;
    if !output.status.success() {
        bail!(
            "xz cannot unpack {}: {}",
            file.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(output.stdout)
}

/// The names after `depends=` in the module's own description, which is text between zero bytes.
fn needs(content: &[u8]) -> Vec<String> {
    content
        .split(|byte| *byte == 0)
        .find_map(|text| text.strip_prefix(b"depends="))
        .map(|names| String::from_utf8_lossy(names).replace('-', "_"))
        .unwrap_or_default()
        .split(',')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{for_disk, needs};
    use std::fs;

    #[test]
    fn a_modules_needs_are_read() {
        assert_eq!(
            needs(b"\x7fELF\0license=GPL\0depends=jbd2,crc16,mb-cache\0name=ext4\0"),
            ["jbd2", "crc16", "mb_cache"]
        );
        assert!(needs(b"\0depends=\0name=virtio\0").is_empty());
        assert!(needs(b"nothing").is_empty());
    }

    #[test]
    fn what_is_needed_is_loaded_first_and_once() {
        let folder = std::env::temp_dir().join(format!("smtt-modules-{}", std::process::id()));
        fs::create_dir_all(folder.join("kernel/fs")).expect("a folder");
        for (name, needed) in [
            ("ext4", "jbd2,crc16"),
            ("jbd2", "crc16"),
            ("crc16", ""),
            ("other", ""),
        ] {
            fs::write(
                folder.join(format!("kernel/fs/{name}.ko")),
                format!("\0depends={needed}\0"),
            )
            .expect("a file");
        }
        let names: Vec<_> = for_disk(&folder)
            .expect("they are there")
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        fs::remove_dir_all(&folder).expect("clean up");
        assert_eq!(names, ["crc16", "jbd2", "ext4"]);
    }
}
