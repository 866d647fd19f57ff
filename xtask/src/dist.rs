//! `cargo xtask dist`: a Debian package with its debug symbols, and a tarball, with check sums, a bill of materials and
//! the licences of everything that is linked in.
//!
//! | module | what |
//! |---|---|
//! | [`tree`] | the files of an installation, in their places |
//! | [`deb`] | a Debian package of a tree |
//! | [`bill`] | bill of materials in CycloneDX's form, and licences |

pub mod bill;
pub mod deb;
pub mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::paths::Paths;
use crate::process::{cargo, output};
use crate::setup;
use crate::step::Steps;

/// Version of the product.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The program of the packages. It acts as the one by whose name it is called.
pub const PROGRAM: &str = "smtt";
/// The names by which users call it: links to it.
pub const LINKS: [&str; 3] = ["smtt-daemon", "smtt-ctl", "smtt-history"];
/// Bytes of the program at most, without symbols. The aim of 12 MB is not met: with the profile `dist` the daemon and its
/// client have 14.5 MB, and `smtt-history` adds 8.1 MB.
pub const PROGRAM_BYTES: u64 = 23_000_000;
/// File with the check sums of all others.
pub const SUMS: &str = "SHA256SUMS";

const BUILD_LIMIT: Duration = Duration::from_secs(7200);
const PACK_LIMIT: Duration = Duration::from_secs(900);

/// What to make, and where.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Cargo's profile of the program: `dist`, or `dev` to try the packages.
    pub profile: String,
    /// Number of this package of the version, the part after the hyphen of Debian's version.
    pub revision: u32,
    /// Folder of the results.
    pub out: PathBuf,
}

/// The results.
#[derive(Clone, Debug)]
pub struct Made {
    /// The Debian package.
    pub deb: PathBuf,
    /// The Debian package of the debug symbols.
    pub symbols: PathBuf,
    /// The tarball.
    pub tarball: PathBuf,
    /// The bill of materials.
    pub bill: PathBuf,
}

impl Plan {
    /// Debian's version of the package.
    #[must_use]
    pub fn version(&self) -> String {
        format!("{VERSION}-{}", self.revision)
    }

    /// Whether the result is for users: packed as small as possible.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.profile == "dist"
    }

    /// Cargo's folder of the programs.
    fn built(&self, paths: &Paths) -> PathBuf {
        let folder = if self.profile == "dev" {
            "debug"
        } else {
            &self.profile
        };
        paths.target.join(folder)
    }
}

/// Builds the program, the marker and the manual, and packs them.
///
/// # Errors
/// When a part does not build, or a tool of Debian is missing or fails.
pub fn dist(paths: &Paths, plan: &Plan) -> Result<Made> {
    if std::env::consts::ARCH != "x86_64" {
        bail!("packages are made for x86-64 only: run it on such a machine");
    }
    setup::for_packages(paths)?;
    let mut steps = Steps::new(4);
    setup::marker_step(paths, &mut steps)?;
    let log = |name: &str| paths.target.join("log").join(format!("dist-{name}.log"));
    let mut build = cargo();
    build.args(["build", "--locked", "--bins", "--profile", &plan.profile]);
    if plan.is_final() {
        build.args(["--package", PROGRAM]);
    } else {
        // The build of `cargo xtask test`, whose features of shared dependencies are others: tests that run meanwhile
        // keep their programs.
        build.args(["--workspace", "--tests"]);
    }
    build.current_dir(&paths.root);
    steps.always(
        &format!("program, profile {}", plan.profile),
        log("program"),
        |step| step.run(&mut build, BUILD_LIMIT),
    )?;
    let manual = paths.target.join("manual");
    let mut write = if plan.is_final() {
        let mut write = cargo();
        write.args(["run", "--locked", "--package", "smtt-manual", "--"]);
        write
    } else {
        Command::new(plan.built(paths).join("smtt-manual"))
    };
    write.arg(&manual).current_dir(&paths.root);
    steps.always("man pages and completions", log("manual"), |step| {
        fresh(&manual)?;
        step.run(&mut write, BUILD_LIMIT)
    })?;

    let mut made = None;
    steps.always("packages", log("packages"), |step| {
        fs::create_dir_all(&plan.out)
            .with_context(|| format!("cannot make {}", plan.out.display()))?;
        let time = time_of_sources(&paths.root)?;
        let bill = bill::bill(&paths.root, time)?;
        let work = plan.out.join("work");
        let trees = tree::stage(paths, plan, &bill, time, &work)?;
        let deb = deb::product(plan, &trees.installed, time, step)?;
        let symbols = deb::symbols(plan, &trees.symbols, time, step)?;
        let name = format!("smtt-{VERSION}");
        let tarball = plan.out.join(format!("{name}-linux-x86_64.tar.gz"));
        step.run(
            &mut tar(&trees.installed, &name, &tarball, time, plan.is_final()),
            PACK_LIMIT,
        )?;
        let bill_file = plan.out.join(format!("{name}.cdx.json"));
        fs::write(&bill_file, &bill.json)?;
        fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
        made = Some(Made {
            deb,
            symbols,
            tarball,
            bill: bill_file,
        });
        Ok(())
    })?;
    let made = made.context("nothing was packed")?;
    sums(&plan.out, &made.files())?;
    for file in made.files() {
        println!("{:>12}  {}", size(&file)?, file.display());
    }
    Ok(made)
}

impl Made {
    /// All files, for check sums.
    #[must_use]
    pub fn files(&self) -> [PathBuf; 4] {
        [&self.deb, &self.symbols, &self.tarball, &self.bill].map(Clone::clone)
    }
}

/// An empty folder in the place of what was there.
pub(crate) fn fresh(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// Seconds since 1970 of the last commit: packages of the same sources have the same bytes.
fn time_of_sources(root: &Path) -> Result<u64> {
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"]).current_dir(root);
    output(&mut git)?
        .trim()
        .parse()
        .context("git names no time of the last commit")
}

fn tar(tree: &Path, name: &str, to: &Path, time: u64, is_small: bool) -> Command {
    let mut command = Command::new("tar");
    command
        .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
        .arg(format!("--mtime=@{time}"))
        .arg(format!("--transform=s,^\\.,{name},"))
        .arg(format!(
            "--use-compress-program=gzip -n{}",
            if is_small { 9 } else { 1 }
        ))
        .args(["--create", "--file"])
        .arg(to)
        .arg("--directory")
        .arg(tree)
        .arg(".");
    command
}

/// Writes the check sums in the form of `sha256sum --check`.
fn sums(out: &Path, files: &[PathBuf]) -> Result<()> {
    let names: Vec<_> = files.iter().filter_map(|file| file.file_name()).collect();
    let text = output(Command::new("sha256sum").args(names).current_dir(out))?;
    fs::write(out.join(SUMS), text)
        .with_context(|| format!("cannot write {SUMS} in {}", out.display()))
}

/// A file's size, in MB as download pages show it.
fn size(file: &Path) -> Result<String> {
    Ok(megabytes(bytes(file)?))
}

fn bytes(file: &Path) -> Result<u64> {
    let metadata = fs::metadata(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(metadata.len())
}

fn megabytes(bytes: u64) -> String {
    format!("{:.2} MB", bytes as f64 / 1e6)
}

/// An error where the program has become too large.
fn fits(bytes: u64) -> Result<()> {
    ensure!(
        bytes <= PROGRAM_BYTES,
        "{PROGRAM} has {} without symbols ({bytes} bytes), at most {} are allowed: find what made it larger, or change \
         PROGRAM_BYTES in {}",
        megabytes(bytes),
        megabytes(PROGRAM_BYTES),
        file!()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{PROGRAM_BYTES, fits};

    #[test]
    fn a_program_above_the_limit_is_an_error() {
        fits(PROGRAM_BYTES).expect("the limit itself");
        let error = fits(PROGRAM_BYTES + 10_000).expect_err("above").to_string();
        assert!(
            error.starts_with(
                "smtt has 23.01 MB without symbols (23010000 bytes), at most 23.00 MB"
            ),
            "{error}"
        );
    }
}
