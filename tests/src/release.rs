//! Markers of neighbouring releases, made from this one's source: libraries and jars that lack something, or have more.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use smtt_common::event::marker::{LIBRARY_NAME, SYMBOL_PREFIX};
use xtask::marker;
use xtask::paths::Paths;
use xtask::process::output;

/// The entry point that only the newer marker has.
pub const UNKNOWN_ENTRY: &str = "futureTold";
/// The entry point that the older marker lacks.
pub const LACKED_ENTRY: &str = "taskMetrics";
/// A line of `pads!` after which entry points may be added.
const LAST_PAD: &str = "    Java_io_smtt_marker_Native_collectorPaused \"collectorPaused\",\n";

/// A neighbouring release of the marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Without [`LACKED_ENTRY`].
    Older,
    /// With [`UNKNOWN_ENTRY`]; its jar adds a string to each fact, and tells another fact beside each block.
    Newer,
    /// With slot files of the next layout.
    OtherLayout,
}

impl Release {
    const fn name(self) -> &'static str {
        match self {
            Self::Older => "older",
            Self::Newer => "newer",
            Self::OtherLayout => "other-layout",
        }
    }

    /// The changes: file, text, and what replaces it.
    fn changes(self) -> Vec<(&'static str, String, String)> {
        const CONTEXT: &str = "smtt-common/src/context.rs";
        const PADS: &str = "smtt-marker/native/src/pad.rs";
        // The check of the pads is of this release's facts.
        let unchecked = (
            PADS,
            "const _: () = {\n    assert!(\n".to_owned(),
            "#[cfg(any())]\nconst _: () = {\n    assert!(\n".to_owned(),
        );
        let own = |text: &str| text.to_owned();
        match self {
            Self::Older => {
                let pad = format!("    {SYMBOL_PREFIX}{LACKED_ENTRY} \"{LACKED_ENTRY}\",\n");
                vec![unchecked, (PADS, pad, String::new())]
            }
            Self::Newer => {
                let pad =
                    format!("{LAST_PAD}    {SYMBOL_PREFIX}{UNKNOWN_ENTRY} \"{UNKNOWN_ENTRY}\",\n");
                vec![
                    unchecked,
                    (PADS, own(LAST_PAD), pad),
                    (
                        "smtt-marker/java/io/smtt/marker/Native.java",
                        own("    static native void shuffleFetched("),
                        format!(
                            "    static native void {UNKNOWN_ENTRY}(long address, int length);\n\n    static native void shuffleFetched("
                        ),
                    ),
                    (
                        "smtt-marker/java/io/smtt/marker/FactWriter.java",
                        own("            form.call(buffer, at);\n"),
                        format!(
                            "            Memory.putByte(buffer + at, (byte) 2);\n            Memory.putByte(buffer + at + 1, (byte) 0);\n            Memory.putByte(buffer + at + 2, (byte) 'x');\n            Memory.putByte(buffer + at + 3, (byte) 'y');\n            form.call(buffer, at + 4);\n            if (form == FactForm.BLOCK_STORED) {{\n                owner.countFact();\n                Native.{UNKNOWN_ENTRY}(buffer, at);\n            }}\n"
                        ),
                    ),
                ]
            }
            Self::OtherLayout => vec![(
                CONTEXT,
                own("pub const VERSION: u32 = 1;"),
                own("pub const VERSION: u32 = 2;"),
            )],
        }
    }

    /// Folder of the release's source: what the marker is built from, changed. Made anew each time; files that stay the
    /// same keep their times, so that cargo has nothing to build.
    fn source(self, paths: &Paths) -> Result<PathBuf> {
        let root = paths.target.join("releases").join(self.name());
        let changes = self.changes();
        let mut changed = 0;
        for file in sources(paths)? {
            let from = paths.root.join(&file);
            let mut text =
                fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
            for (of, before, after) in &changes {
                if Path::new(of) == file {
                    let source = String::from_utf8(text)?;
                    ensure!(source.contains(before.as_str()), "{of} has no {before:?}");
                    text = source.replacen(before, after, 1).into_bytes();
                    changed += 1;
                }
            }
            if file == Path::new("Cargo.toml") {
                text = workspace(&String::from_utf8(text)?)?.into_bytes();
            }
            let to = root.join(&file);
            if !fs::read(&to).is_ok_and(|before| before == text) {
                fs::create_dir_all(to.parent().context("a file without a folder")?)?;
                fs::write(&to, text)?;
            }
        }
        ensure!(changed == changes.len(), "{changed} of {changes:?} made");
        Ok(root)
    }

    /// Builds the release's library.
    ///
    /// # Errors
    /// When this release's source is not as the changes expect, or does not build.
    pub fn library(self, paths: &Paths) -> Result<PathBuf> {
        let root = self.source(paths)?;
        // One for each release: the name of a library has no hash of its source.
        let target = root.join("target");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .current_dir(&root)
            .env("CARGO_TARGET_DIR", &target)
            .args(["build", "--quiet", "--offline", "--profile", "marker"])
            .args(["--package", "smtt-marker-native"]);
        output(&mut cargo).with_context(|| format!("the marker's library, {}", self.name()))?;
        let library = root.join(LIBRARY_NAME);
        fs::copy(target.join("marker").join(LIBRARY_NAME), &library)?;
        Ok(library)
    }

    /// Builds the release's library and a jar that has it, against the Spark whose jars are in `jars`. Returns the folder
    /// of both.
    ///
    /// # Errors
    /// As [`Self::library`], or when the jar does not build.
    pub fn jar(self, paths: &Paths, jars: &Path) -> Result<PathBuf> {
        let library = self.library(paths)?;
        let folder = library
            .parent()
            .context("the library has no folder")?
            .to_path_buf();
        let bundled = marker::Bundled {
            processor: std::env::consts::ARCH,
            marker: library,
            thread_context: None,
        };
        marker::build_jar(&folder, jars, &folder, &[bundled])?;
        Ok(folder)
    }
}

/// What the marker is built from, by paths from the root.
fn sources(paths: &Paths) -> Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = ["Cargo.toml", "Cargo.lock"].map(PathBuf::from).into();
    let mut folders: Vec<PathBuf> = ["smtt-common", "smtt-marker"].map(PathBuf::from).into();
    while let Some(folder) = folders.pop() {
        for entry in paths.root.join(&folder).read_dir()? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// The workspace's manifest with the marker's crates alone.
fn workspace(manifest: &str) -> Result<String> {
    let lines = manifest.lines().map(|line| {
        if line.starts_with("members = ") {
            "members = [\"smtt-common\", \"smtt-marker/native\"]"
        } else {
            line
        }
    });
    let text: Vec<&str> = lines.collect();
    ensure!(
        text.iter().any(|line| line.starts_with("members = ")),
        "the workspace's manifest has no members"
    );
    Ok(text.join("\n") + "\n")
}
