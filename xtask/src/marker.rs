//! Builds the marker: the agent's jar with `javac` and `jar`, the native library with cargo, and checks of both.

pub mod collector;
pub mod unit;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use object::elf::{EM_AARCH64, EM_RISCV, EM_X86_64, R_AARCH64_TLSDESC, R_X86_64_TLSDESC};
use smtt_common::event::MARKER_FACTS;
use smtt_common::event::marker::{LIBRARY_NAME, SYMBOL_PREFIX};

use crate::contract;
use crate::elf::Elf;
use crate::paths::Jdk;

/// File name of the agent's jar.
pub const JAR_NAME: &str = "smtt-marker.jar";

/// The library with the variable of a thread's context, in the jar only, and the name of its variable.
pub const THREAD_CONTEXT_LIBRARY: &str = "libsmtt_thread_context.so";
/// The variable by which OpenTelemetry's profilers find what a thread does.
pub const THREAD_CONTEXT: &str = "otel_thread_ctx_v1";

/// The jar's manifest, except its version: entry points of the agent at start and on attach.
const MANIFEST: &str = "Premain-Class: io.smtt.marker.Agent
Agent-Class: io.smtt.marker.Agent
Can-Retransform-Classes: true
Implementation-Title: smtt-marker
";

/// The libraries of one processor in the jar.
#[derive(Clone, Debug)]
pub struct Bundled {
    /// The processor's name, as the jar's folders have it.
    pub processor: &'static str,
    /// The marker's own library.
    pub marker: PathBuf,
    /// The library with the variable of a thread's context. Without it, the option `otel=true` says so.
    pub thread_context: Option<PathBuf>,
}

/// Builds `smtt-marker.jar` and `libsmtt_marker.so` into `out_dir`, against the Spark whose jars are in `jars`.
///
/// # Errors
/// When a tool is missing or fails, a probe pad does not begin with its nop, a hook does not fit, or a generated class
/// differs from `smtt-common`.
pub fn build(root: &Path, jars: &Path, out_dir: &Path) -> Result<()> {
    fs::create_dir_all(out_dir).with_context(|| format!("cannot make {}", out_dir.display()))?;
    let own = build_own(root, out_dir)?;
    let pads = check_pads(&own.marker)?;
    let jar = build_jar(root, jars, out_dir, std::slice::from_ref(&own))?;
    check_hooks(&jar, jars)?;
    println!(
        "marker: {} and {} ({pads} probe pads checked)",
        jar.display(),
        own.marker.display()
    );
    Ok(())
}

/// Builds a jar that also runs on other processors: with the libraries of each, under the processor's name.
///
/// # Errors
/// When a tool is missing or fails, a probe pad does not begin with its nop, or a hook does not fit.
pub fn build_jar_for(
    root: &Path,
    jars: &Path,
    out_dir: &Path,
    libraries: &[Bundled],
) -> Result<PathBuf> {
    fs::create_dir_all(out_dir).with_context(|| format!("cannot make {}", out_dir.display()))?;
    for bundled in libraries {
        check_pads(&bundled.marker)?;
    }
    let jar = build_jar(root, jars, out_dir, libraries)?;
    check_hooks(&jar, jars)?;
    Ok(jar)
}

/// Builds this machine's libraries. The marker's own gets its place in `out_dir`.
///
/// # Errors
/// When a library does not build.
pub fn build_own(root: &Path, out_dir: &Path) -> Result<Bundled> {
    let marker = build_library(root, out_dir)?;
    let folder = out_dir.join("thread-context");
    let mut compiler = Command::new("cc");
    if cfg!(target_arch = "x86_64") {
        // The form of access that the proposal recommends; on aarch64 it is the compiler's own choice.
        compiler.arg("-mtls-dialect=gnu2");
    }
    let thread_context = build_thread_context(root, &mut compiler, &folder)?;
    Ok(Bundled {
        processor: std::env::consts::ARCH,
        marker,
        thread_context: Some(thread_context),
    })
}

/// Builds the native library and copies it to its place.
///
/// # Errors
/// When the library does not build.
pub fn build_library(root: &Path, out_dir: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args([
        "build",
        "--quiet",
        "--package",
        "smtt-marker-native",
        "--profile",
        "marker",
    ]);
    run(&mut cargo, "cargo builds the native library")?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let built = target.join("marker").join(LIBRARY_NAME);
    let library = out_dir.join(LIBRARY_NAME);
    fs::create_dir_all(out_dir).with_context(|| format!("cannot make {}", out_dir.display()))?;
    let bytes = fs::read(&built).with_context(|| format!("{} was not built", built.display()))?;
    replace(&library, &bytes)?;
    Ok(library)
}

/// Writes a new file and renames it: a JVM that has the old library mapped keeps it unchanged.
fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|before| before == bytes) {
        return Ok(());
    }
    let part = path.with_extension("part");
    fs::write(&part, bytes).with_context(|| format!("cannot write {}", part.display()))?;
    fs::rename(&part, path).with_context(|| format!("cannot replace {}", path.display()))
}

/// Compiles the classes below `root` and packs them with the libraries.
///
/// # Errors
/// When a tool is missing or fails, or a generated class differs from `smtt-common`.
pub fn build_jar(
    root: &Path,
    jars: &Path,
    out_dir: &Path,
    libraries: &[Bundled],
) -> Result<PathBuf> {
    ensure!(
        jars.is_dir(),
        "{} is no folder with Spark's jars; run `cargo xtask setup`",
        jars.display()
    );
    contract::check(root)?;
    let marker = root.join("smtt-marker");
    let work = out_dir.join("marker-classes");
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| format!("cannot empty {}", work.display()))?;
    }
    let (stubs, classes) = (work.join("stubs"), work.join("classes"));
    for folder in [&stubs, &classes] {
        fs::create_dir_all(folder)?;
    }

    let mut stub = Command::new(tool("javac")?);
    stub.args(["--release", "8", "-nowarn", "-Xlint:-options", "-d"])
        .arg(&stubs)
        .args(sources(&marker.join("stub"))?);
    run(&mut stub, "javac compiles the stand-ins")?;
    let mut javac = Command::new(tool("javac")?);
    javac.args([
        "--release",
        "8",
        "-g",
        "-Xlint:all,-options,-serial,-processing,-classfile,-path",
        "-Werror",
        "-proc:none",
        "-cp",
    ]);
    javac
        .arg(format!("{}:{}/*", stubs.display(), jars.display()))
        .arg("-d")
        .arg(&classes);
    javac.args(sources(&marker.join("java"))?);
    run(&mut javac, "javac compiles the marker")?;

    for bundled in libraries {
        let folder = classes
            .join("native")
            .join(format!("linux-{}", bundled.processor));
        fs::create_dir_all(&folder)?;
        let thread_context = bundled.thread_context.iter();
        for (library, name) in [(&bundled.marker, LIBRARY_NAME)]
            .into_iter()
            .chain(thread_context.map(|library| (library, THREAD_CONTEXT_LIBRARY)))
        {
            fs::copy(library, folder.join(name))
                .with_context(|| format!("cannot copy {}", library.display()))?;
        }
    }
    let manifest = work.join("MANIFEST.MF");
    fs::write(
        &manifest,
        format!(
            "{MANIFEST}Implementation-Version: {}\n",
            env!("CARGO_PKG_VERSION")
        ),
    )?;
    let part = work.join(JAR_NAME);
    let mut jar = Command::new(tool("jar")?);
    jar.arg("cfm")
        .arg(&part)
        .arg(&manifest)
        .arg("-C")
        .arg(&classes)
        .arg(".");
    run(&mut jar, "jar packs the marker")?;
    let jar = out_dir.join(JAR_NAME);
    fs::rename(&part, &jar).with_context(|| format!("cannot replace {}", jar.display()))?;
    Ok(jar)
}

/// Compiles the library with the variable of a thread's context into `folder`, and checks that readers will find the
/// variable. `compiler` is the processor's own.
///
/// # Errors
/// When the compiler is missing or fails, or readers would not find the variable.
pub fn build_thread_context(root: &Path, compiler: &mut Command, folder: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let library = folder.join(THREAD_CONTEXT_LIBRARY);
    compiler.args([
        "-std=c99",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fPIC",
        "-shared",
        "-nostdlib",
        "-fvisibility=hidden",
        "-ftls-model=global-dynamic",
        "-Wl,-z,now",
        "-Wl,-soname,libsmtt_thread_context.so",
    ]);
    compiler
        .arg("-o")
        .arg(&library)
        .arg(root.join("smtt-marker/native/thread_context.c"));
    run(
        compiler,
        "a compiler makes the library of threads' contexts",
    )?;
    let bytes = fs::read(&library)?;
    let elf = Elf::parse(&bytes).with_context(|| format!("cannot read {}", library.display()))?;
    ensure!(
        elf.thread_local(THREAD_CONTEXT).is_some(),
        "{} does not export {THREAD_CONTEXT} as a variable of each thread",
        library.display()
    );
    let descriptor = match elf.machine() {
        EM_X86_64 => Some(R_X86_64_TLSDESC),
        EM_AARCH64 => Some(R_AARCH64_TLSDESC),
        _ => None,
    };
    if let Some(descriptor) = descriptor {
        ensure!(
            elf.relocation(THREAD_CONTEXT, descriptor).is_some(),
            "{} does not access {THREAD_CONTEXT} by a TLS descriptor",
            library.display()
        );
    }
    Ok(library)
}

/// Every Java source below a folder.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path
            .extension()
            .is_some_and(|extension| extension == "java")
        {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Refuses a jar whose hooks do not fit the Spark in `jars`: rewritten classes must verify and find their callbacks.
///
/// # Errors
/// When hooks or callbacks do not fit; lists them, one per line.
pub fn check_hooks(jar: &Path, jars: &Path) -> Result<()> {
    let class_path = format!("{}:{}/*", jar.display(), jars.display());
    let output = Command::new(tool("java")?)
        .arg("-cp")
        .arg(class_path)
        .arg("io.smtt.marker.HookCheck")
        .output()
        .context("cannot run java")?;
    ensure!(
        output.status.success(),
        "the hooks do not fit the Spark in {}:\n{}{}",
        jars.display(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Checks in the finished file that every entry point is exported, has a unique address and begins with the pad.
fn check_pads(library: &Path) -> Result<usize> {
    let bytes = fs::read(library)?;
    let elf = Elf::parse(&bytes).with_context(|| format!("cannot read {}", library.display()))?;
    let pad: &[u8] = match elf.machine() {
        EM_X86_64 => &[0x0f, 0x1f, 0x44, 0x00, 0x00],
        EM_AARCH64 => &[0x1f, 0x20, 0x03, 0xd5],
        // The long form of the nop: the daemon checks for it, and a probe needs four bytes.
        EM_RISCV => &[0x13, 0x00, 0x00, 0x00],
        other => bail!("no probe pad is known for ELF machine {other}"),
    };
    let symbols = elf.exported();
    let mut seen = BTreeMap::new();
    for fact in MARKER_FACTS {
        let name = format!("{SYMBOL_PREFIX}{}", fact.entry);
        let symbol = symbols
            .get(&name)
            .with_context(|| format!("{name} is not exported"))?;
        let code = elf
            .bytes(symbol.value, pad.len() as u64)
            .with_context(|| format!("{name} lies outside the file"))?;
        ensure!(
            code == pad,
            "{name} begins with {code:02x?}, not with the probe pad {pad:02x?}"
        );
        if let Some(other) = seen.insert(symbol.value, fact.entry) {
            bail!("{other} and {} were folded into one function", fact.entry);
        }
    }
    Ok(seen.len())
}

/// A program of the JDK that builds the marker, independent of the PATH.
fn tool(name: &str) -> Result<PathBuf> {
    Ok(Jdk::main()?.tool(name))
}

/// Runs a tool; prints its output only when the tool fails.
fn run(command: &mut Command, what: &str) -> Result<()> {
    let tool = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot run {tool}; run `cargo xtask setup`"))?;
    if !output.status.success() {
        bail!(
            "{what}: {tool} failed\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::paths::Paths;

    /// Classes that the table of a `package-info.java` lists.
    fn listed(package_info: &str) -> BTreeSet<&str> {
        package_info
            .lines()
            .filter_map(|line| line.strip_prefix(" *   "))
            .filter_map(|row| row.split_once(' '))
            .filter(|(_, purpose)| !purpose.trim().is_empty())
            .map(|(class, _)| class)
            .collect()
    }

    #[test]
    fn the_table_of_classes_names_every_class_and_no_other() {
        let root = Paths::find().expect("finds the checkout").root;
        let sources = sources(&root.join("smtt-marker/java")).expect("lists the classes");
        let table = "package-info";
        let info = sources
            .iter()
            .find(|path| path.file_stem().is_some_and(|stem| stem == table))
            .expect("the package has a table");
        let text = fs::read_to_string(info).expect("reads the table");
        let classes: BTreeSet<&str> = sources
            .iter()
            .filter_map(|path| path.file_stem()?.to_str())
            .filter(|class| *class != table)
            .collect();
        assert_eq!(listed(&text), classes, "table (left) and classes (right)");
    }

    #[test]
    fn rows_of_the_table() {
        let text = "/**\n * Text.\n * Group\n *   One   what it is\n *   Two\n */\n";
        assert_eq!(listed(text), BTreeSet::from(["One"]));
    }
}
