//! Builds programs of the workspace for the processors of packages and of emulated machines.
//!
//! A precompiled standard library for a foreign processor may be missing, so it is built from source, with the compiler
//! of the kernel side, which has that source. Assembler, linker and C library are Debian's, unpacked into the cache.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use smtt_common::event::marker::LIBRARY_NAME;

use crate::marker::{self, Bundled};
use crate::paths::Paths;
use crate::process::{self, output};
use crate::processor::Processor;
use crate::setup;
use crate::step::Steps;
use crate::vm::{packages, unpacked};

/// Time limit of a build.
pub(crate) const BUILD_LIMIT: Duration = Duration::from_secs(2400);

/// Profile of programs for emulated machines with a foreign processor.
const FOREIGN_PROFILE: &str = "foreign";
/// Packages with the programs of such a machine, among them those of the product: another choice would build shared
/// dependencies again, with other features.
pub const FOREIGN_PACKAGES: &[&str] = &[
    "smtt-tests",
    "smtt-daemon",
    "smtt-ctl",
    "smtt",
    "smtt-history",
];

/// Builds the marker's native library, which uses only `core` of the standard library, and returns its path.
///
/// # Errors
/// When no compiler supports the processor, or the build fails.
pub fn marker_library(paths: &Paths, processor: Processor) -> Result<PathBuf> {
    let (mut command, target) = if processor.foreign() {
        let mut command = foreign_cargo(paths, processor, "build")?;
        command.args(["-Z", "build-std=core", "--target", processor.target()]);
        // A separate folder: the programs use more of the standard library, and neither build may invalidate the
        // other.
        (command, paths.target.join("foreign-library"))
    } else {
        let mut command = cargo();
        command.arg("build");
        (command, paths.target.clone())
    };
    command
        .args(["--package", "smtt-marker-native", "--profile", "marker"])
        .arg("--target-dir")
        .arg(&target)
        .current_dir(&paths.root);
    let log = paths
        .target
        .join(format!("log/build-marker-{}.log", processor.debian()));
    let title = format!("the marker's library for {}", processor.debian());
    Steps::new(1).always(&title, log, |step| step.run(&mut command, BUILD_LIMIT))?;
    let folder = if processor.foreign() {
        target.join(processor.target())
    } else {
        target
    };
    Ok(folder.join("marker").join(LIBRARY_NAME))
}

/// Builds the marker's libraries for that processor.
///
/// # Errors
/// When no compiler supports the processor, or a library does not build.
pub fn bundled(paths: &Paths, processor: Processor) -> Result<Bundled> {
    if !processor.foreign() {
        return marker::build_own(&paths.root, &paths.marker());
    }
    let folder = paths.target.join("foreign-library").join(processor.rust());
    let mut compiler = tool(paths, processor, "gcc")?;
    Ok(Bundled {
        processor: processor.rust(),
        marker: marker_library(paths, processor)?,
        thread_context: Some(marker::build_thread_context(
            &paths.root,
            &mut compiler,
            &folder,
        )?),
    })
}

/// Builds the marker's jar with those libraries into `folder`.
///
/// # Errors
/// When Spark is not set up, or the jar does not build.
pub fn marker_jar(paths: &Paths, libraries: &[Bundled], folder: &Path) -> Result<PathBuf> {
    let jars = setup::compile_jars(paths)?;
    let log = paths.target.join("log/build-marker-jar.log");
    let mut jar = None;
    Steps::new(1).always("the marker's jar for several processors", log, |_| {
        jar = Some(marker::build_jar_for(
            &paths.root,
            &jars,
            folder,
            libraries,
        )?);
        Ok(())
    })?;
    jar.context("no jar was made")
}

/// Folders on this machine with that processor's shared libraries, against which its programs are linked.
///
/// # Errors
/// When the libraries cannot be fetched.
pub fn library_folders(paths: &Paths, processor: Processor) -> Result<Vec<PathBuf>> {
    let name = processor.gnu();
    Ok(if processor.foreign() {
        vec![linker(paths, processor)?.join(format!("usr/{name}/lib"))]
    } else {
        ["/lib", "/usr/lib"]
            .map(|folder| Path::new(folder).join(&name))
            .into()
    })
}

/// Programs of the workspace to build.
#[derive(Default)]
pub struct Programs<'a> {
    /// What they are, in the output.
    pub what: &'a str,
    /// Name of the log file, without the processor.
    pub log: &'a str,
    /// Packages to build; all of the workspace without one. Features of shared dependencies depend on the choice, and
    /// another choice builds these again.
    pub packages: &'a [&'a str],
    /// Names of test programs.
    pub tests: &'a [&'a str],
    /// Names of other programs.
    pub binaries: &'a [&'a str],
    /// Profile of the build; without one that of this machine's tests, or of programs for emulated machines.
    pub profile: Option<&'a str>,
}

impl Programs<'_> {
    /// What builds the programs for that processor.
    ///
    /// # Errors
    /// When no compiler supports the processor.
    pub fn command(&self, paths: &Paths, processor: Processor) -> Result<Command> {
        let mut command = build(paths, processor, "build", self.profile)?;
        if self.packages.is_empty() {
            command.arg("--workspace");
        }
        for (option, names) in [
            ("--package", self.packages),
            ("--test", self.tests),
            ("--bin", self.binaries),
        ] {
            for name in names {
                command.args([option, name]);
            }
        }
        Ok(command)
    }

    /// Builds the programs for that processor, and returns the path of each by its name.
    ///
    /// # Errors
    /// When no compiler supports the processor, or the build fails.
    pub fn build(&self, paths: &Paths, processor: Processor) -> Result<BTreeMap<String, PathBuf>> {
        let mut command = self.command(paths, processor)?;
        command.arg("--message-format=json");
        let architecture = processor.debian();
        let log = paths
            .target
            .join(format!("log/build-{}-{architecture}.log", self.log));
        let title = format!("{} for {architecture}", self.what);
        Steps::new(1).always(&title, log.clone(), |step| {
            step.run(&mut command, BUILD_LIMIT)
        })?;
        let messages =
            fs::read_to_string(&log).with_context(|| format!("cannot read {}", log.display()))?;
        let names = self.tests.iter().chain(self.binaries);
        names
            .map(|name| {
                let built = executable(&messages, name);
                let built = built.with_context(|| format!("cargo built no {name}"))?;
                Ok(((*name).to_owned(), built))
            })
            .collect()
    }
}

/// Path of a program in cargo's messages.
fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| Some(Path::new(message["executable"].as_str()?).to_owned()))
}

/// What builds one program as packages have it, with options of rustc for its linker. Built together with others, it
/// would have the features that those need of a shared dependency.
///
/// # Errors
/// When no compiler supports the processor.
pub fn program(
    paths: &Paths,
    processor: Processor,
    name: &str,
    profile: &str,
    linker: &[String],
) -> Result<Command> {
    let mut command = build(paths, processor, "rustc", Some(profile))?;
    if !processor.foreign() {
        // A foreign target has options of its own, which these would replace.
        command.env("CARGO_ENCODED_RUSTFLAGS", short_names(paths).join("\x1f"));
    }
    command
        .args(["--package", name, "--bin", name, "--"])
        .args(linker);
    Ok(command)
}

/// Options of rustc by which the names of source files in messages begin at their crate, not at this machine's folders.
fn short_names(paths: &Paths) -> Vec<String> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| {
        let home = env::var_os("HOME")?;
        Some(Path::new(&home).join(".cargo"))
    });
    let registries = home.and_then(|home| fs::read_dir(home.join("registry/src")).ok());
    let registries = registries.into_iter().flatten().flatten();
    let folders = registries.map(|registry| registry.path());
    folders
        .chain([paths.root.clone()])
        .map(|folder| format!("--remap-path-prefix={}/=", folder.display()))
        .collect()
}

/// The folder of the programs that [`Programs`] with that profile, or [`program`], builds.
#[must_use]
pub fn folder(paths: &Paths, processor: Processor, profile: Option<&str>) -> PathBuf {
    if processor.foreign() {
        let of_processor = foreign_folder(paths).join(processor.target());
        of_processor.join(profile.unwrap_or(FOREIGN_PROFILE))
    } else {
        paths.target.join(profile.unwrap_or("debug"))
    }
}

/// Cargo's folder for foreign processors. In the cache: a new checkout has the same libraries, whose build takes most of
/// the time.
fn foreign_folder(paths: &Paths) -> PathBuf {
    paths.cache.join("foreign")
}

/// `cargo VERB`, which builds for that processor.
fn build(
    paths: &Paths,
    processor: Processor,
    verb: &str,
    profile: Option<&str>,
) -> Result<Command> {
    let mut command = if processor.foreign() {
        let mut command = foreign_cargo(paths, processor, verb)?;
        command
            .args(["-Z", "build-std=std,panic_abort,test"])
            .args(["--target", processor.target()])
            .args(["--profile", profile.unwrap_or(FOREIGN_PROFILE)])
            .arg("--target-dir")
            .arg(foreign_folder(paths));
        command
    } else {
        let mut command = cargo();
        command.args([verb, "--target-dir"]).arg(&paths.target);
        if let Some(profile) = profile {
            command.args(["--profile", profile]);
        }
        command
    };
    command.arg("--locked").current_dir(&paths.root);
    Ok(command)
}

/// Cargo without the environment of the cargo that runs this program.
fn cargo() -> Command {
    let mut command = process::cargo();
    command.stdin(Stdio::null());
    for name in [
        "CARGO",
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTC_WRAPPER",
        "CARGO_TARGET_DIR",
    ] {
        command.env_remove(name);
    }
    command
}

/// `cargo VERB` with a compiler that can build the standard library, and a linker for the foreign processor.
fn foreign_cargo(paths: &Paths, processor: Processor, verb: &str) -> Result<Command> {
    let linker = linker(paths, processor)?;
    let mut libraries = vec![linker.join("usr/lib/x86_64-linux-gnu")];
    let mut command = cargo();
    if nightly_with_source() {
        // The user's cargo may not be rustup's, so `+nightly` may be unknown.
        command = Command::new("rustup");
        command
            .args(["run", "nightly", "cargo"])
            .stdin(Stdio::null());
    } else {
        let debian = paths.cache.join("rust-web/usr");
        if !debian.join("bin/rustc").is_file() {
            bail!("no compiler with the standard library's source: run `cargo xtask setup`");
        }
        command
            .env("RUSTC", debian.join("bin/rustc"))
            .env("RUSTC_BOOTSTRAP", "1");
        libraries.push(debian.join("lib/x86_64-linux-gnu"));
    }
    let target = processor.target().replace('-', "_").to_uppercase();
    let variable = format!("CARGO_TARGET_{target}");
    command
        .arg(verb)
        .env(
            "LD_LIBRARY_PATH",
            std::env::join_paths(&libraries).context("the cache's path has a colon in it")?,
        )
        .env(
            format!("{variable}_LINKER"),
            linker.join(format!("usr/bin/{}-gcc", processor.gnu())),
        )
        .env(
            format!("{variable}_RUSTFLAGS"),
            format!("-C link-arg=--sysroot={}", linker.display()),
        );
    Ok(command)
}

/// A tool of Debian's cross compiler for a foreign processor, such as `gcc` or `strip`; this machine's own otherwise.
///
/// # Errors
/// When the tools cannot be fetched.
pub fn tool(paths: &Paths, processor: Processor, name: &str) -> Result<Command> {
    if !processor.foreign() {
        return Ok(Command::new(name));
    }
    let folder = linker(paths, processor)?;
    let path = format!("usr/bin/{}-{name}", processor.gnu());
    let mut command = Command::new(folder.join(path));
    command.env("LD_LIBRARY_PATH", folder.join("usr/lib/x86_64-linux-gnu"));
    if name == "gcc" {
        command.arg(format!("--sysroot={}", folder.display()));
    }
    Ok(command)
}

/// Assembler, linker and C library. Every build calls this; the step of a processor runs and prints once.
fn linker(paths: &Paths, processor: Processor) -> Result<PathBuf> {
    static PREPARED: Mutex<BTreeMap<&str, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut prepared = PREPARED.lock().unwrap_or_else(PoisonError::into_inner);
    let architecture = processor.debian();
    if let Some(folder) = prepared.get(architecture) {
        return Ok(folder.clone());
    }
    let folder = unpacked(
        paths,
        &mut Steps::new(1),
        &format!("linker-{architecture}"),
        "bookworm",
        &format!("linker for {architecture} (45 MB to fetch, 180 MB unpacked)"),
        |step, folder| {
            let compiler = format!("gcc-{}", processor.gnu());
            let library = format!("libc6-dev-{architecture}-cross");
            let names = [&*compiler, &*library];
            packages::unpack(step, Processor::X86, "bookworm", &names, folder)
        },
    )?;
    prepared.insert(architecture, folder.clone());
    Ok(folder)
}

/// Whether rustup has a nightly compiler with the library's source.
fn nightly_with_source() -> bool {
    output(Command::new("rustup").args(["run", "nightly", "rustc", "--print", "sysroot"]))
        .is_ok_and(|sysroot| {
            Path::new(sysroot.trim())
                .join("lib/rustlib/src/rust/library/std")
                .is_dir()
        })
}

#[cfg(test)]
mod tests {
    use super::executable;
    use std::path::PathBuf;

    #[test]
    fn a_program_is_found_among_cargos_messages() {
        let messages = "   Compiling a v1\n{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"a\"},\"executable\":null}\n\
                        {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"kernel\"},\"executable\":\"/t/kernel-1\"}\n";
        assert_eq!(
            executable(messages, "kernel"),
            Some(PathBuf::from("/t/kernel-1"))
        );
        assert_eq!(executable(messages, "a"), None);
    }
}
