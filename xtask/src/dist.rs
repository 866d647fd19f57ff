//! `cargo xtask dist`: a Debian package with its debug symbols, and a tarball, for workers and for the history server,
//! with check sums, bills of materials and the licences of everything that is linked in.
//!
//! | module | what |
//! |---|---|
//! | [`product`] | the packages, and what belongs to each |
//! | [`tree`] | the files of an installation, in their places |
//! | [`deb`] | a Debian package of a tree |
//! | [`bill`] | a bill of materials in CycloneDX's form, and licences |

pub mod bill;
pub mod deb;
pub mod product;
pub mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use self::product::{PRODUCTS, Product, Target};
use crate::paths::Paths;
use crate::process::{cargo, output};
use crate::setup;
use crate::step::{Step, Steps};

/// Version of the product.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Number of this package of the version: 1 had the history server in the package of workers.
pub const REVISION: u32 = 2;
/// File with the check sums of all others.
pub const SUMS: &str = "SHA256SUMS";

const BUILD_LIMIT: Duration = Duration::from_secs(7200);
const PACK_LIMIT: Duration = Duration::from_secs(900);

/// What to make, and where.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Cargo's profile of the programs: `dist`, or `dev` to try the packages.
    pub profile: String,
    /// Number of this package of the version, the part after the hyphen of Debian's version.
    pub revision: u32,
    /// Folder of the results.
    pub out: PathBuf,
}

/// The results, in the order of [`PRODUCTS`].
#[derive(Clone, Debug)]
pub struct Made {
    /// What a worker needs.
    pub worker: Packed,
    /// The history server.
    pub history: Packed,
}

/// A package in its forms.
#[derive(Clone, Debug)]
pub struct Packed {
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

/// Builds the programs, the marker and the manual, and packs them.
///
/// # Errors
/// When a part does not build, a program is larger than its limit, or a tool of Debian is missing or fails.
pub fn dist(paths: &Paths, plan: &Plan) -> Result<Made> {
    let target = Target::host()?;
    setup::for_packages(paths)?;
    let log = |name: &str| paths.target.join("log").join(format!("dist-{name}.log"));
    let builds = builds(paths, plan, target)?;
    let mut steps = Steps::new(3 + builds.len());
    setup::marker_step(paths, &mut steps)?;
    for (name, mut build) in builds {
        steps.always(
            &format!("{name}, profile {}", plan.profile),
            log(name),
            |step| step.run(&mut build, BUILD_LIMIT),
        )?;
    }
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

    let mut made = Vec::new();
    steps.always("packages", log("packages"), |step| {
        fs::create_dir_all(&plan.out)
            .with_context(|| format!("cannot make {}", plan.out.display()))?;
        let time = time_of_sources(&paths.root)?;
        for product in PRODUCTS {
            made.push(pack(paths, plan, product, target, time, step)?);
        }
        Ok(())
    })?;
    let [worker, history] =
        <[Packed; 2]>::try_from(made).map_err(|made| anyhow!("{} packages", made.len()))?;
    let made = Made { worker, history };
    sums(&plan.out, &made.files())?;
    for file in made.files() {
        println!("{:>12}  {}", size(&file)?, file.display());
    }
    Ok(made)
}

/// What builds the programs, with its name.
fn builds(paths: &Paths, plan: &Plan, target: &Target) -> Result<Vec<(&'static str, Command)>> {
    let of = |task: &str| {
        let mut build = cargo();
        build
            .args([task, "--locked", "--profile", &plan.profile])
            .current_dir(&paths.root);
        build
    };
    if !plan.is_final() {
        // The build of `cargo xtask test`, whose features of shared dependencies are others: tests that run meanwhile
        // keep their programs.
        let mut all = of("build");
        all.args(["--bins", "--workspace", "--tests"]);
        return Ok(vec![("programs", all)]);
    }
    let linker = linker(paths, target)?;
    // One after the other: built together, each program would have the features that the others need of a shared
    // dependency.
    let one = |product: &&Product| {
        let mut build = of("rustc");
        build
            .args(["--package", product.name, "--bin", product.name, "--"])
            .args(&linker);
        (product.name, build)
    };
    Ok(PRODUCTS.iter().map(one).collect())
}

/// Options of rustc for a linker that has functions with the same machine code once. That is the linker in Rust's own
/// toolchains; a distribution's toolchain may lack it, and its programs are 1 % larger.
fn linker(paths: &Paths, target: &Target) -> Result<Vec<String>> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "sysroot"]).current_dir(&paths.root);
    let folder = format!("lib/rustlib/{}/bin/gcc-ld", target.rust);
    let folder = Path::new(output(&mut rustc)?.trim()).join(folder);
    if !folder.join("ld.lld").is_file() {
        eprintln!(
            "{} has no ld.lld: the programs will be some 1 % larger",
            folder.display()
        );
        return Ok(Vec::new());
    }
    let words = [
        format!("-B{}", folder.display()),
        "-fuse-ld=lld".to_owned(),
        "-Wl,--icf=all".to_owned(),
    ];
    Ok(words.map(|word| format!("-Clink-arg={word}")).into())
}

/// Packs one product in all forms.
fn pack(
    paths: &Paths,
    plan: &Plan,
    product: &Product,
    target: &Target,
    time: u64,
    step: &mut Step,
) -> Result<Packed> {
    let bill = bill::bill(&paths.root, product, target, time)?;
    let work = plan.out.join("work");
    let trees = tree::stage(paths, plan, product, &bill, time, &work)?;
    let debian = deb::Debian {
        plan,
        product,
        target,
        time,
    };
    let deb = debian.package(&trees.installed, step)?;
    let symbols = debian.symbols(&trees.symbols, step)?;
    let name = format!("{}-{VERSION}", product.name);
    let tarball = plan
        .out
        .join(format!("{name}-linux-{}.tar.gz", target.name));
    step.run(
        &mut tar(&trees.installed, &name, &tarball, time, plan.is_final()),
        PACK_LIMIT,
    )?;
    let bill_file = plan.out.join(format!("{name}.cdx.json"));
    fs::write(&bill_file, &bill.json)?;
    fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    Ok(Packed {
        deb,
        symbols,
        tarball,
        bill: bill_file,
    })
}

impl Made {
    /// The packages, each with what it is of.
    #[must_use]
    pub fn packages(&self) -> [(&'static Product, &Packed); 2] {
        let [worker, history] = PRODUCTS;
        [(worker, &self.worker), (history, &self.history)]
    }

    /// All files, for check sums.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let packages = self.packages();
        let files = packages
            .iter()
            .flat_map(|(_, packed)| [&packed.deb, &packed.symbols, &packed.tarball, &packed.bill]);
        files.cloned().collect()
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

/// An error where a program has become too large.
fn fits(product: &Product, bytes: u64) -> Result<()> {
    ensure!(
        bytes <= product.program_bytes,
        "{} has {} without symbols ({bytes} bytes), at most {} are allowed: find what made it larger, or change \
         program_bytes in xtask/src/dist/product.rs",
        product.name,
        megabytes(bytes),
        megabytes(product.program_bytes)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::fits;
    use super::product::WORKER;

    #[test]
    fn a_program_above_the_limit_is_an_error() {
        fits(&WORKER, WORKER.program_bytes).expect("the limit itself");
        let error = fits(&WORKER, WORKER.program_bytes + 10_000);
        let error = error.expect_err("above").to_string();
        assert!(
            error.starts_with(
                "smtt has 12.01 MB without symbols (12010000 bytes), at most 12.00 MB"
            ),
            "{error}"
        );
    }
}
