//! Debian packages of staged trees, by Debian's own `dpkg-deb`. What a package depends on comes from the program
//! itself.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{PACK_LIMIT, PROGRAM, Plan};
use crate::elf::Elf;
use crate::process::output;
use crate::step::Step;

/// Who makes the packages.
pub(super) const MAINTAINER: &str = "SMTT maintainers <smtt@users.noreply.github.com>";
/// Scripts that dpkg runs, of the repository's folder `packaging/debian`.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];
/// Files that an upgrade leaves as the administrator changed them.
const CONFIGURATION: &str = "/etc/smtt/smtt.toml\n";

/// Debian's packages of the shared libraries that a program may need.
const LIBRARIES: [(&str, &str); 5] = [
    ("libc.so.6", "libc6"),
    ("libm.so.6", "libc6"),
    ("libdl.so.2", "libc6"),
    ("ld-linux-x86-64.so.2", "libc6"),
    ("libgcc_s.so.1", "libgcc-s1"),
];

/// Packs the product.
///
/// # Errors
/// When a program needs a library of an unknown package, or `dpkg-deb` fails.
pub fn product(plan: &Plan, tree: &Path, time: u64, step: &mut Step) -> Result<PathBuf> {
    let mut depends = depends(&needed(&tree.join("usr/bin").join(PROGRAM))?)?;
    // The scripts make the user, and reload systemd where it runs.
    depends.push("init-system-helpers (>= 1.52)".to_owned());
    depends.push("systemd | systemd-standalone-sysusers".to_owned());
    let fields = [
        ("Section", "admin".to_owned()),
        ("Depends", depends.join(", ")),
        ("Description", DESCRIPTION.to_owned()),
    ];
    let control = tree.join("DEBIAN");
    fs::create_dir_all(&control)?;
    for script in SCRIPTS {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/debian");
        let to = control.join(script);
        fs::copy(from.join(script), &to).with_context(|| format!("cannot copy {script}"))?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
    }
    write(&control.join("conffiles"), CONFIGURATION)?;
    let packed = pack("smtt", plan, tree, &fields, time, step);
    // The tarball has the same tree.
    fs::remove_dir_all(&control)?;
    packed
}

const DESCRIPTION: &str = "shows which Spark RDD makes the memory hardware work
 One small daemon per worker, on eBPF, shows for every RDD, stage and task of
 every Spark executor which page faults and page walks it caused and which
 memory it holds. Neither Spark nor the application changes.
 .
 This package has the daemon, its client smtt-ctl, smtt-history for finished
 applications, and the marker for executors.";

/// Packs the symbols.
///
/// # Errors
/// When `dpkg-deb` fails.
pub fn symbols(plan: &Plan, tree: &Path, time: u64, step: &mut Step) -> Result<PathBuf> {
    let fields = [
        ("Section", "debug".to_owned()),
        ("Depends", format!("smtt (= {})", plan.version())),
        ("Description", "debug symbols for smtt".to_owned()),
    ];
    pack("smtt-dbgsym", plan, tree, &fields, time, step)
}

fn pack(
    name: &str,
    plan: &Plan,
    tree: &Path,
    fields: &[(&str, String)],
    time: u64,
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
        if metadata.is_file()
            && !path.starts_with("DEBIAN")
            && !CONFIGURATION.contains(&*path.to_string_lossy())
        {
            sums.push(path.to_owned());
        }
    }
    write(
        &folder.join("md5sums"),
        &output(Command::new("md5sum").args(&sums).current_dir(tree))?,
    )?;
    let mut control = format!(
        "Package: {name}\nVersion: {}\nArchitecture: amd64\nMaintainer: {MAINTAINER}\nInstalled-Size: {}\n\
         Priority: optional\nHomepage: {}\n",
        plan.version(),
        bytes.div_ceil(1024),
        env!("CARGO_PKG_REPOSITORY"),
    );
    for (key, value) in fields {
        control += &format!("{key}: {value}\n");
    }
    write(&folder.join("control"), &control)?;
    let deb = plan
        .out
        .join(format!("{name}_{}_amd64.deb", plan.version()));
    let mut command = Command::new("dpkg-deb");
    command
        .env("SOURCE_DATE_EPOCH", time.to_string())
        .arg("--root-owner-group")
        .args(if plan.is_final() {
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
