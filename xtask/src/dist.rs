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

use anyhow::{Context, Result, ensure};
use smtt_common::event::marker::LIBRARY_NAME;

use self::product::{PRODUCTS, Product, WORKER};
use self::tree::Built;
use crate::cross::{self, FOREIGN_PACKAGES, Programs};
use crate::marker::JAR_NAME;
use crate::paths::Paths;
use crate::process::{cargo, output};
use crate::processor::{PACKAGED, Processor};
use crate::setup;
use crate::step::{Step, Steps};

/// Version of the product.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Number of this package of the version: 1 had the history server in the package of workers.
pub const REVISION: u32 = 2;
/// File with the check sums of all others.
pub const SUMS: &str = "SHA256SUMS";
/// Cargo's profile of the programs for users.
const FINAL: &str = "dist";

const BUILD_LIMIT: Duration = Duration::from_secs(7200);
const PACK_LIMIT: Duration = Duration::from_secs(900);

/// What to make, and where.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Cargo's profile of the programs: `dist`, or `dev` to try the packages.
    pub profile: String,
    /// Number of this package of the version, the part after the hyphen of Debian's version.
    pub revision: u32,
    /// Folder of the results, which has nothing else.
    pub out: PathBuf,
    /// The processors.
    pub processors: Vec<Processor>,
}

/// The results: for each processor a package of each product.
#[derive(Clone, Debug)]
pub struct Made(Vec<Packed>);

/// A package in its forms.
#[derive(Clone, Debug)]
pub struct Packed {
    /// What is in it.
    pub product: &'static Product,
    /// The processor of its programs.
    pub processor: Processor,
    /// The Debian package.
    pub deb: PathBuf,
    /// The Debian package of the debug symbols.
    pub symbols: PathBuf,
    /// The tarball.
    pub tarball: PathBuf,
    /// The bill of materials.
    pub bill: PathBuf,
}

/// The folder of an unpacked package; the files are those of workers.
#[derive(Clone, Debug)]
pub struct Unpacked(PathBuf);

impl Plan {
    /// Packages of one processor with the programs of tests, in a folder of their own.
    #[must_use]
    pub fn trial(paths: &Paths, processor: Processor) -> Self {
        Self {
            profile: "dev".to_owned(),
            revision: REVISION,
            out: paths.target.join("dist-test").join(processor.debian()),
            processors: vec![processor],
        }
    }

    /// Debian's version of the package.
    #[must_use]
    pub fn version(&self) -> String {
        format!("{VERSION}-{}", self.revision)
    }

    /// Whether the result is for users: packed as small as possible.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.profile == FINAL
    }

    /// What builds the programs of a processor, with its name.
    fn builds(&self, paths: &Paths, processor: Processor) -> Result<Vec<(String, Command)>> {
        let debian = processor.debian();
        if self.is_final() {
            let linker = linker(paths)?;
            return PRODUCTS
                .iter()
                .map(|product| {
                    let name = product.name;
                    let build = cross::program(paths, processor, name, &self.profile, &linker)?;
                    Ok((format!("{name} for {debian}"), build))
                })
                .collect();
        }
        if processor.foreign() {
            let all = Programs {
                packages: FOREIGN_PACKAGES,
                binaries: &PRODUCTS.map(|product| product.name),
                ..Programs::default()
            };
            return Ok(vec![(
                format!("programs for {debian}"),
                all.command(paths, processor)?,
            )]);
        }
        // The build of `cargo xtask test`, whose features of shared dependencies are others: tests that run meanwhile
        // keep their programs.
        let mut all = cargo();
        all.args(["build", "--locked", "--profile", &self.profile])
            .args(["--bins", "--workspace", "--tests"])
            .current_dir(&paths.root);
        Ok(vec![("programs".to_owned(), all)])
    }

    /// The folder of the programs.
    fn programs(&self, paths: &Paths, processor: Processor) -> PathBuf {
        let profile = self.is_final().then_some(FINAL);
        cross::folder(paths, processor, profile)
    }
}

/// Builds the programs, the marker and the manual, and packs them.
///
/// # Errors
/// When a part does not build, a program is larger than its limit, or a tool of Debian is missing or fails.
pub fn dist(paths: &Paths, plan: &Plan) -> Result<Made> {
    ensure!(
        std::env::consts::ARCH == Processor::X86.rust(),
        "packages are made on {}, also those of other processors: this machine is {}",
        Processor::X86.rust(),
        std::env::consts::ARCH
    );
    setup::for_packages(paths)?;
    let log = |name: &str| paths.target.join("log").join(format!("dist-{name}.log"));
    let (jar, libraries) = marker(paths, plan)?;
    let mut builds = Vec::new();
    for processor in &plan.processors {
        builds.extend(plan.builds(paths, *processor)?);
    }
    let mut steps = Steps::new(2 + builds.len());
    for (name, mut build) in builds {
        let log = log(&name.replace(' ', "-"));
        steps.always(&format!("{name}, profile {}", plan.profile), log, |step| {
            step.run(&mut build, BUILD_LIMIT)
        })?;
    }
    let manual = paths.target.join("manual");
    let mut write = if plan.processors.contains(&Processor::X86) && !plan.is_final() {
        Command::new(plan.programs(paths, Processor::X86).join("smtt-manual"))
    } else {
        let mut write = cargo();
        write.args(["run", "--locked", "--package", "smtt-manual", "--"]);
        write
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
        for (processor, library) in plan.processors.iter().zip(&libraries) {
            let built = Built {
                processor: *processor,
                programs: plan.programs(paths, *processor),
                library: library.clone(),
                jar: jar.clone(),
            };
            for product in PRODUCTS {
                made.push(pack(paths, plan, product, &built, time, step)?);
            }
        }
        Ok(())
    })?;
    let made = Made(made);
    sums(&plan.out)?;
    for file in made.files() {
        println!("{:>12}  {}", size(&file)?, file.display());
    }
    Ok(made)
}

/// The marker's jar, and its library for each processor of the plan. One jar serves all processors for which packages
/// are made, because a driver hands its own to every executor; in a trial on this processor it has this one only.
fn marker(paths: &Paths, plan: &Plan) -> Result<(PathBuf, Vec<PathBuf>)> {
    if !plan.is_final() && plan.processors == [Processor::X86] {
        setup::marker_step(paths, &mut Steps::new(1))?;
        let folder = paths.marker();
        return Ok((folder.join(JAR_NAME), vec![folder.join(LIBRARY_NAME)]));
    }
    let mut all = Vec::new();
    for processor in PACKAGED {
        all.push(cross::bundled(paths, processor)?);
    }
    let jar = cross::marker_jar(paths, &all, &paths.target.join("dist-marker"))?;
    let library = |processor: &Processor| {
        let bundled = all.iter().find(|one| one.processor == processor.rust());
        let bundled = bundled.with_context(|| {
            let name = processor.debian();
            format!("no packages are made for {name}")
        });
        bundled.map(|bundled| bundled.marker.clone())
    };
    let libraries = plan.processors.iter().map(library).collect::<Result<_>>()?;
    Ok((jar, libraries))
}

/// Options of rustc for a linker that has functions with the same machine code once. That is the linker in Rust's own
/// toolchains; a distribution's toolchain may lack it, and its programs are 1 % larger.
fn linker(paths: &Paths) -> Result<Vec<String>> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "sysroot"]).current_dir(&paths.root);
    let folder = format!("lib/rustlib/{}/bin/gcc-ld", Processor::X86.target());
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
    product: &'static Product,
    built: &Built,
    time: u64,
    step: &mut Step,
) -> Result<Packed> {
    let processor = built.processor;
    let bill = bill::bill(&paths.root, product, processor, time)?;
    let work = plan.out.join("work");
    let trees = tree::stage(paths, plan, product, built, &bill, time, &work)?;
    let debian = deb::Debian {
        plan,
        product,
        processor,
        time,
    };
    let deb = debian.package(&trees.installed, step)?;
    let symbols = debian.symbols(&trees.symbols, step)?;
    let name = format!("{}-{VERSION}", product.name);
    let for_processor = format!("{name}-linux-{}", processor.rust());
    let tarball = plan.out.join(format!("{for_processor}.tar.gz"));
    step.run(
        &mut tar(&trees.installed, &name, &tarball, time, plan.is_final()),
        PACK_LIMIT,
    )?;
    let bill_file = plan.out.join(format!("{for_processor}.cdx.json"));
    fs::write(&bill_file, &bill.json)?;
    fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    Ok(Packed {
        product,
        processor,
        deb,
        symbols,
        tarball,
        bill: bill_file,
    })
}

impl Packed {
    /// Unpacks the Debian package into an empty folder.
    ///
    /// # Errors
    /// When dpkg fails.
    pub fn unpack(&self, into: &Path) -> Result<Unpacked> {
        fresh(into)?;
        deb::extract(&self.deb, into)?;
        Ok(Unpacked(into.to_owned()))
    }
}

impl Unpacked {
    /// The program of workers.
    #[must_use]
    pub fn program(&self) -> PathBuf {
        self.0.join("usr/bin").join(WORKER.name)
    }

    /// The marker's library.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.0.join(tree::MARKER).join(LIBRARY_NAME)
    }

    /// The marker's jar.
    #[must_use]
    pub fn jar(&self) -> PathBuf {
        self.0.join(tree::MARKER).join(JAR_NAME)
    }
}

impl Made {
    /// All packages.
    #[must_use]
    pub fn packages(&self) -> &[Packed] {
        &self.0
    }

    /// The package of a product for a processor.
    ///
    /// # Errors
    /// Where none was made for it.
    pub fn of(&self, product: &Product, processor: Processor) -> Result<&Packed> {
        let is_it =
            |packed: &&Packed| packed.product.name == product.name && packed.processor == processor;
        self.0
            .iter()
            .find(is_it)
            .with_context(|| format!("no package {} for {}", product.name, processor.debian()))
    }

    /// All files, for check sums.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let files = self
            .0
            .iter()
            .flat_map(|packed| [&packed.deb, &packed.symbols, &packed.tarball, &packed.bill]);
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

/// Writes the check sums in the form of `sha256sum --check`: of all files of the folder, also those of another call.
fn sums(out: &Path) -> Result<()> {
    let files = tree::files(out)?;
    let files = files.iter().filter(|file| file.is_file());
    let names = files.filter_map(|file| file.file_name());
    let names: Vec<_> = names.filter(|name| *name != SUMS).collect();
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
