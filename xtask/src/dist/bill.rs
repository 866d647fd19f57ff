//! A package's bill of materials in CycloneDX's form, and the licences: of every crate that is linked into its program,
//! and into the marker's library and the kernel side where it has them.
//!
//! `cargo tree` says which crates these are, `cargo metadata` says what they are, and the lock files have their sums.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::VERSION;
use super::product::{Beside, Product};
use super::tree::files;
use crate::process::output;
use crate::processor::Processor;

/// Rust's name of the target of the kernel side.
const KERNEL_TARGET: &str = "bpfel-unknown-none";
/// Prefixes of the names of files with a crate's licences.
const LICENCE_FILES: [&str; 6] = [
    "licen",
    "copying",
    "copyright",
    "notice",
    "unlicense",
    "apache",
];

/// What is linked into a package.
#[derive(Debug)]
pub struct Bill {
    /// The bill of materials.
    pub json: String,
    /// The licences of the crates of others.
    pub licences: String,
}

/// A crate's name and version.
type Crate = (String, String);

/// Asks cargo for the crates, and writes the bill as of `time` (seconds since 1970).
///
/// # Errors
/// When cargo fails, or a crate of others has no check sum.
pub fn bill(root: &Path, product: &Product, processor: Processor, time: u64) -> Result<Bill> {
    let target = processor.target();
    let mut workspaces = vec![(root.to_owned(), product.name, target)];
    for crate_beside in product.beside {
        workspaces.push(match crate_beside {
            Beside::Member(name) => (root.to_owned(), *name, target),
            Beside::Kernel(name) => (root.join(name), *name, KERNEL_TARGET),
        });
    }
    let mut crates = BTreeMap::new();
    for (folder, name, rust) in &workspaces {
        let linked = linked(folder, name, rust)?;
        let metadata: Value = serde_json::from_str(&output(cargo(folder).args([
            "metadata",
            "--format-version=1",
            "--locked",
        ]))?)?;
        let lock = fs::read_to_string(folder.join("Cargo.lock"))?;
        collect(&metadata, &linked, &sums(&lock), &mut crates)?;
    }
    Ok(Bill {
        json: format!("{:#}\n", document(product, &crates, time)?),
        licences: licences(&crates)?,
    })
}

fn cargo(folder: &Path) -> Command {
    let mut command = crate::process::cargo();
    command.current_dir(folder);
    command
}

/// The crates whose code is linked into `root`: neither build scripts nor procedural macros.
fn linked(folder: &Path, root: &str, target: &str) -> Result<BTreeSet<Crate>> {
    let mut tree = cargo(folder);
    tree.args(["tree", "--locked", "--edges=normal,no-proc-macro"])
        .args(["--prefix=none", "--format={p}", "--target", target])
        .args(["--package", root]);
    let text = output(&mut tree)?;
    Ok(text.lines().filter_map(named).collect())
}

/// The crate of a line `name v1.2.3 (where from)`.
fn named(line: &str) -> Option<Crate> {
    let mut words = line.split(' ');
    let name = words.next().filter(|name| !name.is_empty())?;
    let version = words.next()?.strip_prefix('v')?;
    Some((name.to_owned(), version.to_owned()))
}

/// Check sums of a lock file.
fn sums(lock: &str) -> BTreeMap<Crate, String> {
    let value = |block: &str, key: &str| {
        block.lines().find_map(|line| {
            let value = line.strip_prefix(key)?.strip_prefix(" = ")?;
            Some(value.trim_matches('"').to_owned())
        })
    };
    let blocks = lock.split("[[package]]");
    blocks
        .filter_map(|block| {
            let key = (value(block, "name")?, value(block, "version")?);
            Some((key, value(block, "checksum")?))
        })
        .collect()
}

/// What the bill says of a crate.
#[derive(Debug)]
struct Entry {
    component: Value,
    depends_on: BTreeSet<String>,
    /// Folder of its sources, and its licence, where it comes from others.
    foreign: Option<(String, String)>,
}

/// A crate's address in the registry's form, which other tools know.
fn address((name, version): &Crate) -> String {
    format!("pkg:cargo/{name}@{version}")
}

fn collect(
    metadata: &Value,
    linked: &BTreeSet<Crate>,
    sums: &BTreeMap<Crate, String>,
    crates: &mut BTreeMap<Crate, Entry>,
) -> Result<()> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value, key: &str| value[key].as_str().map(str::to_owned);
    let mut by_id = BTreeMap::new();
    for package in list(&metadata["packages"]) {
        let key = (
            text(&package, "name").context("a crate without a name")?,
            text(&package, "version").context("a crate without a version")?,
        );
        if !linked.contains(&key) {
            continue;
        }
        by_id.insert(
            text(&package, "id").context("a crate without an id")?,
            key.clone(),
        );
        let licence = text(&package, "license")
            .with_context(|| format!("{} names no licence", key.0))?
            .replace('/', " OR ");
        let mut component = json!({
            "type": "library",
            "bom-ref": address(&key),
            "name": key.0,
            "version": key.1,
            "scope": "required",
            "licenses": [{ "expression": licence }],
            "purl": address(&key),
        });
        if let Some(repository) = text(&package, "repository") {
            component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
        }
        let mut foreign = None;
        if !package["source"].is_null() {
            let sum = sums
                .get(&key)
                .with_context(|| format!("the lock file has no sum of {} {}", key.0, key.1))?;
            component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
            let manifest = text(&package, "manifest_path").context("a crate without a place")?;
            foreign = Some((manifest, licence));
        }
        crates.entry(key).or_insert(Entry {
            component,
            depends_on: BTreeSet::new(),
            foreign,
        });
    }
    let found: BTreeSet<&Crate> = by_id.values().collect();
    ensure!(
        linked.iter().all(|key| found.contains(key)),
        "cargo tree lists crates that cargo metadata does not have"
    );
    for node in list(&metadata["resolve"]["nodes"]) {
        let Some(key) = node["id"].as_str().and_then(|id| by_id.get(id)) else {
            continue;
        };
        let Some(entry) = crates.get_mut(key) else {
            continue;
        };
        for dependency in list(&node["deps"]) {
            let kinds = list(&dependency["dep_kinds"]);
            let is_normal = kinds.iter().any(|kind| kind["kind"].is_null());
            if let Some(other) = dependency["pkg"].as_str().and_then(|id| by_id.get(id))
                && is_normal
            {
                entry.depends_on.insert(address(other));
            }
        }
    }
    Ok(())
}

fn document(product: &Product, crates: &BTreeMap<Crate, Entry>, time: u64) -> Result<Value> {
    let components: Vec<&Value> = crates.values().map(|entry| &entry.component).collect();
    let root = format!("pkg:generic/{}@{VERSION}", product.name);
    let beside = product.beside.iter().map(|other| other.name());
    let parts: BTreeSet<String> = [product.name]
        .into_iter()
        .chain(beside)
        .map(|name| address(&(name.to_owned(), VERSION.to_owned())))
        .collect();
    let mut dependencies = vec![json!({ "ref": root, "dependsOn": parts })];
    dependencies.extend(
        crates
            .iter()
            .map(|(key, entry)| json!({ "ref": address(key), "dependsOn": entry.depends_on })),
    );
    let date = output(
        Command::new("date")
            .args(["--utc", "+%Y-%m-%dT%H:%M:%SZ", "--date"])
            .arg(format!("@{time}")),
    )?;
    let mut document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": date.trim(),
            "tools": { "components": [{ "type": "application", "name": "cargo xtask dist", "version": VERSION }] },
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": product.name,
                "version": VERSION,
                "licenses": [{ "expression": "Apache-2.0 OR MIT" }],
            },
        },
        "components": components,
        "dependencies": dependencies,
    });
    // The same bill has the same number.
    document["serialNumber"] = json!(format!("urn:uuid:{}", uuid(&document.to_string())));
    Ok(document)
}

/// A UUID (version 8, of the maker's own) from the digest of a text.
fn uuid(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{}-{}-8{}-a{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[13..16],
        &hex[17..20],
        &hex[20..32]
    )
}

/// The texts of the licences, each once, with the crates that have it.
fn licences(crates: &BTreeMap<Crate, Entry>) -> Result<String> {
    let mut list = String::from(
        "Libraries of others in this package of SMTT, with their licences; the texts are below, each once.\n\n",
    );
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for ((name, version), entry) in crates {
        let Some((manifest, licence)) = &entry.foreign else {
            continue;
        };
        let folder = Path::new(manifest)
            .parent()
            .context("a manifest in no folder")?;
        let mut has_text = false;
        for file in files(folder)? {
            let file_name = file
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .to_lowercase();
            if !file.is_file()
                || !LICENCE_FILES
                    .iter()
                    .any(|prefix| file_name.starts_with(prefix))
            {
                continue;
            }
            let text = String::from_utf8_lossy(&fs::read(&file)?)
                .trim()
                .replace("\r\n", "\n");
            texts
                .entry(text)
                .or_default()
                .push(format!("{name} {version}"));
            has_text = true;
        }
        let note = if has_text {
            ""
        } else {
            " (its package has no text)"
        };
        list += &format!("{name} {version}: {licence}{note}\n");
    }
    for (text, of) in texts {
        list += &format!("\n{}\n{}\n\n{text}\n", "=".repeat(80), of.join(", "));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_of_a_tree() {
        assert_eq!(
            named("aya v0.14.0 (*)"),
            Some(("aya".to_owned(), "0.14.0".to_owned()))
        );
        assert_eq!(named(""), None);
    }

    #[test]
    fn sums_of_a_lock_file() {
        let lock = "version = 4\n\n[[package]]\nname = \"own\"\nversion = \"1.0.0\"\ndependencies = [\n \"other\",\n]\n\n\
                    [[package]]\nname = \"other\"\nversion = \"2.0.0\"\nsource = \"x\"\nchecksum = \"abc\"\n";
        let key = ("other".to_owned(), "2.0.0".to_owned());
        assert_eq!(sums(lock), BTreeMap::from([(key, "abc".to_owned())]));
    }

    #[test]
    fn a_number_of_the_content_has_the_form_of_a_uuid() {
        let number = uuid("x");
        let parts: Vec<usize> = number.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert_eq!(number, uuid("x"));
        assert_ne!(number, uuid("y"));
    }
}
