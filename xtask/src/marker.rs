//! Builds the marker: the agent's jar with `javac` and `jar`, the native library with cargo, and checks of both.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use smtt_common::event::MARKER_FACTS;
use smtt_common::event::marker::{LIBRARY_NAME, SYMBOL_PREFIX};

use crate::paths::Jdk;

/// File name of the agent's jar.
pub const JAR_NAME: &str = "smtt-marker.jar";

/// What the jar's manifest says besides its version: entry points of the agent at start and on attach.
const MANIFEST: &str = "Premain-Class: io.smtt.marker.Agent
Agent-Class: io.smtt.marker.Agent
Can-Retransform-Classes: true
Implementation-Title: smtt-marker
";

/// Builds `smtt-marker.jar` and `libsmtt_marker.so` into `out_dir`, against the Spark whose jars are in `jars`.
///
/// # Errors
/// A tool that is missing or fails, a probe pad that does not begin with its nop, or a fact whose form differs
/// between Java and Rust.
pub fn build(root: &Path, jars: &Path, out_dir: &Path) -> Result<()> {
    fs::create_dir_all(out_dir).with_context(|| format!("cannot make {}", out_dir.display()))?;
    let library = build_library(root, out_dir)?;
    let pads = check_pads(&library)?;
    let jar = build_jar(
        root,
        jars,
        out_dir,
        &[(std::env::consts::ARCH, library.clone())],
    )?;
    check_forms(&jar)?;
    check_hooks(&jar, jars)?;
    println!(
        "marker: {} and {} ({pads} probe pads checked)",
        jar.display(),
        library.display()
    );
    Ok(())
}

/// Builds a jar that runs on other processors too: with a library for each, by its word for the processor.
///
/// # Errors
/// A tool that is missing or fails, or a probe pad that does not begin with its nop.
pub fn build_jar_for(
    root: &Path,
    jars: &Path,
    out_dir: &Path,
    libraries: &[(&str, PathBuf)],
) -> Result<PathBuf> {
    fs::create_dir_all(out_dir).with_context(|| format!("cannot make {}", out_dir.display()))?;
    for (_, library) in libraries {
        check_pads(library)?;
    }
    build_jar(root, jars, out_dir, libraries)
}

/// Builds the native library and puts it into place.
///
/// # Errors
/// When it does not build.
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

/// Writes a file by way of a new one: a JVM that has the old library mapped keeps it unharmed.
fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|before| before == bytes) {
        return Ok(());
    }
    let part = path.with_extension("part");
    fs::write(&part, bytes).with_context(|| format!("cannot write {}", part.display()))?;
    fs::rename(&part, path).with_context(|| format!("cannot replace {}", path.display()))
}

/// Compiles the classes and packs them with the libraries.
fn build_jar(
    root: &Path,
    jars: &Path,
    out_dir: &Path,
    libraries: &[(&str, PathBuf)],
) -> Result<PathBuf> {
    ensure!(
        jars.is_dir(),
        "{} is no folder with Spark's jars; run `cargo xtask setup`",
        jars.display()
    );
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

    for (processor, library) in libraries {
        let bundled = classes.join("native").join(format!("linux-{processor}"));
        fs::create_dir_all(&bundled)?;
        fs::copy(library, bundled.join(LIBRARY_NAME))
            .with_context(|| format!("cannot copy {}", library.display()))?;
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

/// Refuses a jar whose idea of the facts differs from the contract.
fn check_forms(jar: &Path) -> Result<()> {
    let output = Command::new(tool("java")?)
        .arg("-cp")
        .arg(jar)
        .arg("io.smtt.marker.FactForm")
        .output()
        .context("cannot run java")?;
    ensure!(
        output.status.success(),
        "FactForm failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let told = String::from_utf8_lossy(&output.stdout);
    let wanted: Vec<String> = MARKER_FACTS
        .iter()
        .map(|fact| {
            format!(
                "{} | {} | {} | {}",
                fact.entry,
                fact.words.join(" "),
                fact.ranges,
                fact.strings.join(" ")
            )
            .trim_end()
            .to_owned()
        })
        .collect();
    let seen: Vec<String> = told
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    for (at, want) in wanted.iter().enumerate() {
        let have = seen.get(at).map_or("nothing", String::as_str);
        ensure!(
            have == want,
            "FactForm.java differs from the contract:\n  contract: {want}\n  Java:     {have}"
        );
    }
    ensure!(
        seen.len() == wanted.len(),
        "FactForm.java has {} facts, the contract {}",
        seen.len(),
        wanted.len()
    );
    Ok(())
}

/// Refuses a jar whose hooks do not fit the Spark in `jars`: rewritten classes must verify and find their callbacks.
///
/// # Errors
/// The hooks or callbacks that do not fit, one per line.
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

/// Checks in the finished file that every entry point is exported, has an address of its own and begins with the pad.
fn check_pads(library: &Path) -> Result<usize> {
    let bytes = fs::read(library)?;
    let symbols = exported(&bytes).with_context(|| {
        format!(
            "{} is no 64-bit little-endian shared object",
            library.display()
        )
    })?;
    let pad: &[u8] = match machine(&bytes) {
        Some(62) => &[0x0f, 0x1f, 0x44, 0x00, 0x00],
        Some(183) => &[0x1f, 0x20, 0x03, 0xd5],
        // The long form: the daemon looks for it, and a probe needs four bytes.
        Some(243) => &[0x13, 0x00, 0x00, 0x00],
        other => bail!("no probe pad is known for ELF machine {other:?}"),
    };
    let mut seen = BTreeMap::new();
    for fact in MARKER_FACTS {
        let name = format!("{SYMBOL_PREFIX}{}", fact.entry);
        let &offset = symbols
            .get(&name)
            .with_context(|| format!("{name} is not exported"))?;
        let code = bytes
            .get(offset..offset + pad.len())
            .with_context(|| format!("{name} lies outside the file"))?;
        ensure!(
            code == pad,
            "{name} begins with {code:02x?}, not with the probe pad {pad:02x?}"
        );
        if let Some(other) = seen.insert(offset, fact.entry) {
            bail!("{other} and {} were folded into one function", fact.entry);
        }
    }
    Ok(seen.len())
}

/// ELF machine of a file.
fn machine(elf: &[u8]) -> Option<u16> {
    number(elf, 18, 2)?.try_into().ok()
}

/// Little-endian number of `bytes` bytes.
fn number(elf: &[u8], at: usize, bytes: usize) -> Option<usize> {
    let mut value = 0;
    for (place, &byte) in elf.get(at..at + bytes)?.iter().enumerate() {
        value |= usize::from(byte) << (8 * place);
    }
    Some(value)
}

/// Exported functions and their place in the file.
fn exported(elf: &[u8]) -> Option<BTreeMap<String, usize>> {
    const DYNSYM: usize = 11;
    const LOAD: usize = 1;
    if elf.get(..6)? != [0x7f, b'E', b'L', b'F', 2, 1] {
        return None;
    }
    let (segments, segment_size, segment_count) = (
        number(elf, 32, 8)?,
        number(elf, 54, 2)?,
        number(elf, 56, 2)?,
    );
    let in_file = |address: usize| {
        (0..segment_count)
            .map(|at| segments + at * segment_size)
            .find_map(|at| {
                let (kind, offset, start, length) = (
                    number(elf, at, 4)?,
                    number(elf, at + 8, 8)?,
                    number(elf, at + 16, 8)?,
                    number(elf, at + 32, 8)?,
                );
                (kind == LOAD && (start..start + length).contains(&address))
                    .then(|| address - start + offset)
            })
    };
    let (sections, section_size, section_count) = (
        number(elf, 40, 8)?,
        number(elf, 58, 2)?,
        number(elf, 60, 2)?,
    );
    let header = |index: usize| sections + index * section_size;
    let mut found = BTreeMap::new();
    for at in (0..section_count).map(header) {
        if number(elf, at + 4, 4)? != DYNSYM {
            continue;
        }
        let strings = number(elf, header(number(elf, at + 40, 4)?) + 24, 8)?;
        let (start, length) = (number(elf, at + 24, 8)?, number(elf, at + 32, 8)?);
        for symbol in (start..start + length).step_by(24) {
            let name = elf.get(strings + number(elf, symbol, 4)?..)?;
            let name = std::str::from_utf8(name.split(|&byte| byte == 0).next()?).ok()?;
            if let Some(offset) = in_file(number(elf, symbol + 8, 8)?) {
                found.insert(name.to_owned(), offset);
            }
        }
    }
    Some(found)
}

/// A program of the JDK that the marker is built with, whichever one is first on the PATH.
fn tool(name: &str) -> Result<PathBuf> {
    Ok(Jdk::main()?.tool(name))
}

/// Runs a tool; its output is shown only when it fails.
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
    use super::*;

    #[test]
    fn a_file_that_is_no_elf_has_no_exports() {
        assert!(exported(b"#!/bin/sh").is_none());
        assert!(exported(&[]).is_none());
    }

    #[test]
    fn numbers_are_little_endian_and_bounded() {
        assert_eq!(number(&[1, 2, 3], 1, 2), Some(0x0302));
        assert_eq!(number(&[1, 2, 3], 2, 2), None);
    }
}
