//! Debian packages of staged trees, by Debian's own `dpkg-deb`. What a package depends on comes from the program
//! itself.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::product::Product;
use super::{PACK_LIMIT, Plan};
use crate::elf::Elf;
use crate::process::output;
use crate::processor::Processor;
use crate::step::Step;

/// Who makes the packages.
pub(super) const MAINTAINER: &str = "SMTT maintainers <smtt@users.noreply.github.com>";
/// Scripts that dpkg runs, of the package's folder below `packaging/debian`.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Debian's packages of the shared libraries that a program may need.
const LIBRARIES: [(&str, &str); 6] = [
    ("libc.so.6", "libc6"),
    ("libm.so.6", "libc6"),
    ("libdl.so.2", "libc6"),
    ("ld-linux-x86-64.so.2", "libc6"),
    ("ld-linux-aarch64.so.1", "libc6"),
    ("libgcc_s.so.1", "libgcc-s1"),
];

/// What both Debian packages of a product have in common.
#[derive(Clone, Copy, Debug)]
pub struct Debian<'a> {
    /// What to make, and where.
    pub plan: &'a Plan,
    /// The product.
    pub product: &'a Product,
    /// The processor.
    pub processor: Processor,
    /// Seconds since 1970 of the last commit.
    pub time: u64,
}

impl Debian<'_> {
    /// Packs the product.
    ///
    /// # Errors
    /// When its program needs a library of an unknown package, or `dpkg-deb` fails.
    pub fn package(&self, tree: &Path, step: &mut Step) -> Result<PathBuf> {
        let product = self.product;
        let mut depends = depends(&needed(&tree.join("usr/bin").join(product.name))?)?;
        depends.extend(product.depends.iter().map(|name| (*name).to_owned()));
        let depends = depends.join(", ");
        let mut fields = vec![("Section", product.section), ("Depends", &depends)];
        fields.extend(product.fields);
        fields.push(("Description", product.description));
        let control = tree.join("DEBIAN");
        fs::create_dir_all(&control)?;
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/debian");
        for script in SCRIPTS {
            let from = folder.join(product.name).join(script);
            let to = control.join(script);
            fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
        }
        if !product.configuration.is_empty() {
            let list = product.configuration.join("\n") + "\n";
            write(&control.join("conffiles"), &list)?;
        }
        let packed = self.pack(product.name, tree, &fields, step);
        // The tarball has the same tree.
        fs::remove_dir_all(&control)?;
        packed
    }

    /// Packs the symbols.
    ///
    /// # Errors
    /// When `dpkg-deb` fails.
    pub fn symbols(&self, tree: &Path, step: &mut Step) -> Result<PathBuf> {
        let name = self.product.name;
        let depends = format!("{name} (= {})", self.plan.version());
        let description = format!("debug symbols for {name}");
        let fields = [
            ("Section", "debug"),
            ("Depends", &depends),
            ("Description", &description),
        ];
        self.pack(&format!("{name}-dbgsym"), tree, &fields, step)
    }

    fn pack(
        &self,
        name: &str,
        tree: &Path,
        fields: &[(&str, &str)],
        step: &mut Step,
    ) -> Result<PathBuf> {
        let folder = tree.join("DEBIAN");
        fs::create_dir_all(&folder)?;
        let mut bytes = 0;
        let mut sums = Vec::new();
        for file in below(tree)? {
            let metadata = fs::symlink_metadata(&file)?;
            bytes += metadata.len();
            let path = file.strip_prefix(tree)?;
            // dpkg's sums are those of files; a link is none.
            if metadata.is_file() && !path.starts_with("DEBIAN") && !self.is_configuration(path) {
                sums.push(path.to_owned());
            }
        }
        write(
            &folder.join("md5sums"),
            &output(Command::new("md5sum").args(&sums).current_dir(tree))?,
        )?;
        let (version, processor) = (self.plan.version(), self.processor.debian());
        let mut control = format!(
            "Package: {name}\nVersion: {version}\nArchitecture: {processor}\nMaintainer: {MAINTAINER}\n\
             Installed-Size: {}\nPriority: optional\nHomepage: {}\n",
            bytes.div_ceil(1024),
            env!("CARGO_PKG_REPOSITORY"),
        );
        for (key, value) in fields {
            control += &format!("{key}: {value}\n");
        }
        write(&folder.join("control"), &control)?;
        let deb = format!("{name}_{version}_{processor}.deb");
        let deb = self.plan.out.join(deb);
        let mut command = Command::new("dpkg-deb");
        command
            .env("SOURCE_DATE_EPOCH", self.time.to_string())
            .arg("--root-owner-group")
            .args(if self.plan.is_final() {
                ["-Zxz", "-z9"]
            } else {
                ["-Zgzip", "-z1"]
            })
            .arg("--build")
            .arg(tree)
            .arg(&deb);
        step.run(&mut command, PACK_LIMIT)?;
        Ok(deb)
    }

    fn is_configuration(&self, path: &Path) -> bool {
        let mut files = self.product.configuration.iter();
        files.any(|file| Path::new("/").join(path) == Path::new(file))
    }
}

/// Unpacks a Debian package, or one of symbols, into a folder.
///
/// # Errors
/// When dpkg fails.
pub fn extract(deb: &Path, into: &Path) -> Result<()> {
    output(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(into)).map(drop)
}

/// All files below a folder, in the order of their names.
fn below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in super::tree::files(folder)? {
        if path.is_dir() {
            found.extend(below(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))?;
    Ok(())
}

/// Libraries that a program needs, each with a version of its symbols; empty where it names none.
fn needed(program: &Path) -> Result<BTreeSet<(String, String)>> {
    let bytes = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let elf = Elf::parse(&bytes)?;
    let mut needs: BTreeSet<_> = elf.versions()?.into_iter().collect();
    needs.extend(
        elf.needed()?
            .into_iter()
            .map(|library| (library, String::new())),
    );
    Ok(needs)
}

/// Debian's packages with those libraries; of the C library the newest version that a symbol needs.
fn depends(needs: &BTreeSet<(String, String)>) -> Result<Vec<String>> {
    let mut packages = BTreeSet::new();
    let mut newest = Vec::new();
    for (library, version) in needs {
        let Some((_, package)) = LIBRARIES.iter().find(|(name, _)| name == library) else {
            bail!(
                "no Debian package is known for {library}: add it to {}",
                file!()
            );
        };
        packages.insert(*package);
        if let Some(version) = version.strip_prefix("GLIBC_") {
            let numbers: Vec<u32> = version
                .split('.')
                .filter_map(|part| part.parse().ok())
                .collect();
            newest = newest.max(numbers);
        }
    }
    let newest: Vec<String> = newest.iter().map(u32::to_string).collect();
    Ok(packages
        .into_iter()
        .map(|package| match package {
            "libc6" if !newest.is_empty() => format!("libc6 (>= {})", newest.join(".")),
            other => other.to_owned(),
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::depends;

    fn of(needs: &[(&str, &str)]) -> anyhow::Result<Vec<String>> {
        let needs = needs
            .iter()
            .map(|(library, version)| ((*library).to_owned(), (*version).to_owned()));
        depends(&needs.collect())
    }

    #[test]
    fn the_newest_version_of_the_c_library_counts_by_number() {
        let found = of(&[
            ("libc.so.6", ""),
            ("libc.so.6", "GLIBC_2.34"),
            ("libc.so.6", "GLIBC_2.4"),
            ("libm.so.6", "GLIBC_2.29"),
            ("libgcc_s.so.1", "GCC_3.0"),
        ]);
        assert_eq!(found.expect("all known"), ["libc6 (>= 2.34)", "libgcc-s1"]);
    }

    #[test]
    fn a_library_of_no_known_package_is_an_error() {
        let error = of(&[("libssl.so.3", "")]).expect_err("unknown").to_string();
        assert!(error.contains("libssl.so.3"), "{error}");
    }
}
