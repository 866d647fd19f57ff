//! The files of an installation, in their places: the program without symbols, its links, the symbols apart, and what
//! else belongs to the package: the marker as it was built, unit and configuration, manual, completions, rules and
//! dashboards, licences.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use smtt_common::event::marker::LIBRARY_NAME;

use super::bill::Bill;
use super::product::Product;
use super::{Plan, bytes, fits, fresh, size};
use crate::cross;
use crate::marker::JAR_NAME;
use crate::paths::Paths;
use crate::process::output;
use crate::processor::Processor;

/// Folders of the manual's output, and their places; the last part of a name states whether files change theirs.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions"),
    ("zsh", "usr/share/zsh/vendor-completions"),
    ("fish", "usr/share/fish/vendor_completions.d"),
];
/// Folder of the marker.
pub(super) const MARKER: &str = "usr/lib/smtt";
/// Folder of the documents of packages.
const DOCUMENTS: &str = "usr/share/doc";

/// The staged trees.
#[derive(Debug)]
pub struct Trees {
    /// What is installed.
    pub installed: PathBuf,
    /// Symbols of the program, where debuggers look for them.
    pub symbols: PathBuf,
}

/// What was built for a processor.
#[derive(Debug)]
pub struct Built {
    /// The processor.
    pub processor: Processor,
    /// Folder of the programs.
    pub programs: PathBuf,
    /// The marker's library, which has [`LIBRARY_NAME`].
    pub library: PathBuf,
    /// The marker's jar, with the libraries of one processor or more.
    pub jar: PathBuf,
}

/// Stages both trees below `work`.
///
/// # Errors
/// When a file is missing, a tool fails, or the program is larger than its limit.
pub fn stage(
    paths: &Paths,
    plan: &Plan,
    product: &Product,
    built: &Built,
    bill: &Bill,
    time: u64,
    work: &Path,
) -> Result<Trees> {
    fresh(work)?;
    let name = product.name;
    let trees = Trees {
        installed: work.join(name),
        symbols: work.join(format!("{name}-dbgsym")),
    };
    let tree = &trees.installed;
    for (from, to) in product.copied {
        copy(&paths.root.join(from), &tree.join(to))?;
    }
    let program = built.programs.join(name);
    let there = tree.join("usr/bin").join(name);
    let tools = Tools {
        paths,
        processor: built.processor,
        is_small: plan.is_final(),
    };
    tools.split(&program, &there, &trees.symbols)?;
    println!(
        "{:>12}  {name} for {} without symbols, {} as it was built",
        size(&there)?,
        built.processor.debian(),
        size(&program)?
    );
    if plan.is_final() {
        fits(product, bytes(&there)?)?;
    }
    for link in product.links {
        let link = there.with_file_name(link);
        symlink(name, &link).with_context(|| format!("cannot make {}", link.display()))?;
    }
    if product.has_marker {
        // The marker stays as it is: the daemon knows the library by its bytes, also the copy in the jar.
        for (file, name) in [(&built.library, LIBRARY_NAME), (&built.jar, JAR_NAME)] {
            let there = tree.join(MARKER).join(name);
            copy(file, &there)?;
            println!("{:>12}  {name}", size(&there)?);
        }
    }
    manual(&paths.target.join("manual"), product, tree)?;
    let documents = Documents {
        root: &paths.root,
        product,
        bill,
        time,
        version: plan.version(),
    };
    documents.write(&tree.join(DOCUMENTS).join(name), work)?;
    modes(tree)?;
    modes(&trees.symbols)?;
    Ok(trees)
}

/// Man pages and completions of the product's program.
fn manual(from: &Path, product: &Product, tree: &Path) -> Result<()> {
    let name = |file: &Path| {
        let name = file.file_name().context("a file without a name")?;
        anyhow::Ok(name.to_string_lossy().into_owned())
    };
    for page in files(&from.join("man"))? {
        if !product.has_page(&name(&page)?) {
            continue;
        }
        let section = page.extension().context("a page without a section")?;
        let folder = format!("man{}", section.to_string_lossy());
        packed(&page, &tree.join("usr/share/man").join(folder))?;
    }
    for (shell, place) in COMPLETIONS {
        for file in files(&from.join(shell))? {
            let name = name(&file)?;
            if !product.has_page(&name) {
                continue;
            }
            // bash finds a program's completions by the program's name.
            let name = if shell == "bash" {
                name.trim_end_matches(".bash")
            } else {
                &name
            };
            copy(&file, &tree.join(place).join(name))?;
        }
    }
    Ok(())
}

/// Licences, bill of materials, changes and what there is to read.
struct Documents<'a> {
    root: &'a Path,
    product: &'a Product,
    bill: &'a Bill,
    time: u64,
    version: String,
}

impl Documents<'_> {
    fn read(&self, name: &str) -> Result<String> {
        fs::read_to_string(self.root.join(name)).with_context(|| format!("cannot read {name}"))
    }

    /// Writes them into a folder, by way of a folder for work.
    fn write(&self, folder: &Path, work: &Path) -> Result<()> {
        let name = self.product.name;
        let text = work.join("text");
        fs::create_dir_all(&text)?;
        fs::create_dir_all(folder)?;
        fs::write(
            folder.join("copyright"),
            copyright(
                &self.read(&format!("packaging/debian/{name}/copyright"))?,
                &self.read("LICENSE-MIT")?,
            ),
        )?;
        let date = output(
            Command::new("date")
                .args(["--utc", "--rfc-email", "--date"])
                .arg(format!("@{}", self.time)),
        )?;
        let changes = format!(
            "{name} ({}) unstable; urgency=medium\n\n  * changelog.gz has the changes.\n\n -- {}  {date}\n",
            self.version,
            super::deb::MAINTAINER,
            date = date.trim(),
        );
        let mut texts = vec![
            ("changelog", self.read("CHANGELOG.md")?),
            ("changelog.Debian", changes),
            ("THIRD-PARTY.txt", self.bill.licences.clone()),
            ("sbom.cdx.json", self.bill.json.clone()),
        ];
        for path in self.product.documents {
            let (_, name) = path.rsplit_once('/').unwrap_or(("", path));
            texts.push((name, self.read(path)?));
        }
        for (name, content) in texts {
            let file = text.join(name);
            fs::write(&file, content)?;
            packed(&file, folder)?;
        }
        for licence in self.product.licences {
            copy(&self.root.join(licence), &folder.join(licence))?;
        }
        Ok(())
    }
}

/// The copyright file with the text of the licence that Debian has no copy of.
fn copyright(form: &str, mit: &str) -> String {
    // Without its title and its copyright line, which other fields of the form have.
    let (_, text) = mit.split_once("Permission is").unwrap_or(("", mit));
    let lines: Vec<String> = format!("Permission is{text}")
        .trim_end()
        .lines()
        .map(|line| match line {
            "" => " .".to_owned(),
            line => format!(" {line}"),
        })
        .collect();
    form.replace("@MIT@", &lines.join("\n"))
}

/// What takes a program's symbols apart.
struct Tools<'a> {
    paths: &'a Paths,
    processor: Processor,
    is_small: bool,
}

impl Tools<'_> {
    fn tool(&self, name: &str) -> Result<Command> {
        cross::tool(self.paths, self.processor, name)
    }

    /// Copies a program without its symbols; they go to a file that debuggers find by the program's build id.
    fn split(&self, built: &Path, there: &Path, symbols: &Path) -> Result<()> {
        let notes = output(self.tool("readelf")?.args(["--notes"]).arg(built))?;
        let id = notes
            .lines()
            .find_map(|line| line.trim().strip_prefix("Build ID: "))
            .with_context(|| {
                format!("{} has no build id: link with --build-id", built.display())
            })?;
        let (first, rest) = id.split_at_checked(2).context("a build id is longer")?;
        let folder = symbols.join("usr/lib/debug/.build-id").join(first);
        fs::create_dir_all(&folder)?;
        output(
            self.tool("objcopy")?
                .arg("--only-keep-debug")
                .args(self.is_small.then_some("--compress-debug-sections"))
                .arg(built)
                .arg(folder.join(format!("{rest}.debug"))),
        )?;
        if let Some(folder) = there.parent() {
            fs::create_dir_all(folder)?;
        }
        output(
            self.tool("strip")?
                .args(["--strip-unneeded", "--remove-section=.comment", "-o"])
                .arg(there)
                .arg(built),
        )?;
        Ok(())
    }
}

/// Compresses a file into a folder, without name and time in it.
fn packed(file: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    output(
        Command::new("gzip")
            .args(["-9n", "--force", "--keep"])
            .arg(file),
    )?;
    let name = file.file_name().context("a file without a name")?;
    let name = format!("{}.gz", name.to_string_lossy());
    fs::rename(file.with_file_name(&name), folder.join(&name))
        .with_context(|| format!("cannot move {name} to {}", folder.display()))
}

/// The files of a folder, in the order of their names.
pub(super) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    files.sort();
    Ok(files)
}

/// Copies a file, or a folder with everything in it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        for file in files(from)? {
            copy(&file, &to.join(file.file_name().unwrap_or_default()))?;
        }
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

/// Folders and programs 0755, other files 0644, whatever the checkout's own modes are.
fn modes(path: &Path) -> Result<()> {
    let is_program = path
        .parent()
        .is_some_and(|folder| folder.ends_with("usr/bin"));
    let mode = if path.is_dir() || is_program {
        0o755
    } else {
        0o644
    };
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    if path.is_dir() {
        for file in files(path)? {
            modes(&file)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::copyright;

    #[test]
    fn the_licence_becomes_a_field() {
        let mit = "MIT License\n\nCopyright (c) 2026\n\nPermission is granted\n\nAS IS.\n";
        let text = copyright("License: Expat\n@MIT@\n", mit);
        assert_eq!(
            text,
            "License: Expat\n Permission is granted\n .\n AS IS.\n"
        );
    }
}
