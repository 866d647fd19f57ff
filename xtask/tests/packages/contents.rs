//! What is in the packages, as `dpkg-deb`, `sha256sum`, `readelf`, `man`, `bash` and a validator of CycloneDX see it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;
use xtask::dist::{LINKS, PROGRAM, SUMS, VERSION};
use xtask::paths::Paths;
use xtask::process::output;
use xtask::setup::validators;

use crate::made;

/// The package's files, unpacked by dpkg.
fn unpacked(deb: &Path) -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    output(
        Command::new("dpkg-deb")
            .arg("--extract")
            .arg(deb)
            .arg(folder.path()),
    )?;
    Ok(folder)
}

fn field(deb: &Path, name: &str) -> Result<String> {
    Ok(
        output(Command::new("dpkg-deb").arg("--field").arg(deb).arg(name))?
            .trim()
            .to_owned(),
    )
}

#[test]
fn every_file_is_summed_and_the_packages_agree_on_their_version() -> Result<()> {
    let made = made()?;
    let folder = made.deb.parent().context("the package is in a folder")?;
    let checked = output(
        Command::new("sha256sum")
            .args(["--check", "--strict", SUMS])
            .current_dir(folder),
    )?;
    ensure!(
        checked.matches(": OK").count() == made.files().len(),
        "{checked}"
    );
    let version = format!("{VERSION}-1");
    ensure!(field(&made.deb, "Version")? == version);
    ensure!(field(&made.symbols, "Depends")? == format!("smtt (= {version})"));
    let listed = output(Command::new("dpkg-deb").arg("--contents").arg(&made.deb))?;
    ensure!(
        listed.lines().all(|line| line.contains(" root/root ")),
        "a file is not root's:\n{listed}"
    );
    for line in listed.lines().filter(|line| line.starts_with('-')) {
        let is_program = line.contains(" ./usr/bin/");
        let mode = if is_program {
            "-rwxr-xr-x"
        } else {
            "-rw-r--r--"
        };
        ensure!(line.starts_with(mode), "{line}");
    }
    Ok(())
}

#[test]
fn the_tarball_has_the_files_of_the_package() -> Result<()> {
    let made = made()?;
    let names = |text: String, prefix: &str| -> BTreeSet<String> {
        let names = text.lines().filter_map(|line| line.strip_prefix(prefix));
        names
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let tarball = names(
        output(Command::new("tar").arg("-tzf").arg(&made.tarball))?,
        &format!("smtt-{VERSION}/"),
    );
    let stream = Command::new("sh")
        .arg("-c")
        .arg("dpkg-deb --fsys-tarfile \"$0\" | tar -t")
        .arg(&made.deb)
        .output()?;
    let package = names(String::from_utf8(stream.stdout)?, "./");
    ensure!(package.len() > 60, "{package:?}");
    ensure!(
        tarball == package,
        "{:?}",
        tarball.symmetric_difference(&package)
    );
    Ok(())
}

#[test]
fn symbols_are_apart_and_belong_to_the_program() -> Result<()> {
    let made = made()?;
    let (product, symbols) = (unpacked(&made.deb)?, unpacked(&made.symbols)?);
    let path = product.path().join("usr/bin").join(PROGRAM);
    let sections = output(Command::new("readelf").args(["-SW"]).arg(&path))?;
    ensure!(
        !sections.contains(".symtab") && !sections.contains(".debug_info"),
        "the program has symbols:\n{sections}"
    );
    let notes = output(Command::new("readelf").arg("-n").arg(&path))?;
    let id = notes
        .lines()
        .find_map(|line| line.trim().strip_prefix("Build ID: "))
        .context("a build id")?;
    let file = symbols.path().join(format!(
        "usr/lib/debug/.build-id/{}/{}.debug",
        &id[..2],
        &id[2..]
    ));
    let sections = output(Command::new("readelf").args(["-SW"]).arg(&file))?;
    ensure!(
        sections.contains(".symtab") && sections.contains(".debug_line"),
        "{sections}"
    );
    Ok(())
}

#[test]
fn the_program_acts_as_the_one_by_whose_name_it_is_called() -> Result<()> {
    let product = unpacked(&made()?.deb)?;
    let folder = product.path().join("usr/bin");
    let found: BTreeSet<String> = fs::read_dir(&folder)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    let wanted = LINKS.iter().chain([&PROGRAM]);
    ensure!(
        found == wanted.map(|name| (*name).to_owned()).collect(),
        "{found:?}"
    );
    for name in LINKS {
        let link = folder.join(name);
        ensure!(fs::read_link(&link)? == Path::new(PROGRAM), "{name}");
        let said = output(Command::new(&link).arg("--version"))?;
        ensure!(said.trim() == format!("{name} {VERSION}"), "{said}");
    }
    // By its own name it is none of them, and names them.
    let refused = Command::new(folder.join(PROGRAM))
        .arg("--version")
        .output()?;
    let said = String::from_utf8_lossy(&refused.stderr);
    ensure!(refused.status.code() == Some(2), "{:?}", refused.status);
    ensure!(LINKS.iter().all(|name| said.contains(name)), "{said}");
    Ok(())
}

#[test]
fn the_library_of_the_jar_is_the_one_that_the_daemon_knows() -> Result<()> {
    let product = unpacked(&made()?.deb)?;
    let library = fs::read(product.path().join("usr/lib/smtt/libsmtt_marker.so"))?;
    let jar = product.path().join("usr/lib/smtt/smtt-marker.jar");
    let copy = Command::new("python3")
        .args(["-c", "import sys, zipfile; sys.stdout.buffer.write(zipfile.ZipFile(sys.argv[1]).read('native/linux-x86_64/libsmtt_marker.so'))"])
        .arg(&jar)
        .output()?;
    ensure!(
        copy.status.success(),
        "{}",
        String::from_utf8_lossy(&copy.stderr)
    );
    ensure!(copy.stdout == library, "the jar's library has other bytes");
    Ok(())
}

#[test]
fn the_bill_of_materials_is_valid_and_names_every_crate_whose_code_is_there() -> Result<()> {
    let paths = Paths::find()?;
    validators::validators(&paths)?;
    let made = made()?;
    let judge = "
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(open(sys.argv[1]).read())
sys.exit(str(error) if error else 0)";
    output(
        Command::new(validators::programs(&paths).join("python"))
            .args(["-c", judge])
            .arg(&made.bill),
    )?;
    let bill: Value = serde_json::from_str(&fs::read_to_string(&made.bill)?)?;
    let components = bill["components"].as_array().context("components")?;
    let text =
        |component: &Value, key: &str| component[key].as_str().unwrap_or_default().to_owned();
    let named: BTreeSet<(String, String)> = components
        .iter()
        .map(|component| (text(component, "name"), text(component, "version")))
        .collect();
    let crates = |from: &str| named.iter().any(|(name, _)| name == from);
    ensure!(
        crates("aya") && crates("aya-ebpf") && crates("smtt-marker-native"),
        "{named:?}"
    );
    ensure!(
        !crates("clap_derive") && !crates("clap_mangen"),
        "{named:?}"
    );

    // Messages of panics name the source file: crates of others that are in the program for certain.
    let symbols = unpacked(&made.deb)?;
    let bytes = fs::read(symbols.path().join("usr/bin").join(PROGRAM))?;
    let seen = crates_in(&String::from_utf8_lossy(&bytes));
    ensure!(seen.len() > 40, "{seen:?}");
    let missing: Vec<_> = seen.difference(&named).collect();
    ensure!(missing.is_empty(), "the bill does not name {missing:?}");
    let licences = output(
        Command::new("gzip")
            .arg("-dc")
            .arg(symbols.path().join("usr/share/doc/smtt/THIRD-PARTY.txt.gz")),
    )?;
    for (name, version) in &seen {
        let line = format!("\n{name} {version}: ");
        ensure!(licences.contains(&line), "no licence of {name} {version}");
    }
    Ok(())
}

/// Crates of a registry whose source files a program's text names: `/registry/src/INDEX/NAME-VERSION/`.
fn crates_in(text: &str) -> BTreeSet<(String, String)> {
    let paths = text.split("/registry/src/").skip(1);
    let folders = paths.filter_map(|path| path.split('/').nth(1));
    folders
        .filter_map(|folder| {
            // A hyphen before a number and a dot begins the version: `foreign-types-0.3.2`, `md-5-0.11.0`.
            let (at, _) = folder.match_indices('-').find(|(at, _)| {
                let number = folder[at + 1..].split_once('.').map(|(number, _)| number);
                number.is_some_and(|number| number.parse::<u32>().is_ok())
            })?;
            Some((folder[..at].to_owned(), folder[at + 1..].to_owned()))
        })
        .collect()
}

#[test]
fn man_reads_every_page_without_a_complaint() -> Result<()> {
    let product = unpacked(&made()?.deb)?;
    let mut pages = 0;
    for section in ["man1", "man8"] {
        for page in fs::read_dir(product.path().join("usr/share/man").join(section))? {
            let page = page?.path();
            let read = Command::new("man")
                .env("LC_ALL", "C.UTF-8")
                .env("MANROFFSEQ", "")
                .env("MANWIDTH", "80")
                .args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8"])
                .arg(&page)
                .output()
                .context("cannot run man: install man-db")?;
            let complaint = String::from_utf8_lossy(&read.stderr);
            ensure!(
                read.status.success() && complaint.is_empty(),
                "{}: {complaint}",
                page.display()
            );
            let text = without_emphasis(&String::from_utf8_lossy(&read.stdout));
            ensure!(text.contains("NAME") && text.contains("SYNOPSIS"), "{text}");
            pages += 1;
        }
    }
    let ctl = fs::read_dir(product.path().join("usr/share/man/man1"))?
        .filter_map(|page| page.ok()?.file_name().into_string().ok())
        .collect::<BTreeSet<_>>();
    for page in [
        "smtt-ctl.1.gz",
        "smtt-ctl-rdds.1.gz",
        "smtt-history-serve.1.gz",
    ] {
        ensure!(ctl.contains(page), "{ctl:?}");
    }
    ensure!(pages > 20, "{pages} pages");
    Ok(())
}

/// Text in which man overstrikes letters (`N\u{8}N`), plain.
fn without_emphasis(text: &str) -> String {
    let mut plain = String::new();
    for letter in text.chars() {
        if letter == '\u{8}' {
            plain.pop();
        } else {
            plain.push(letter);
        }
    }
    plain
}

#[test]
fn bash_completes_commands_and_options() -> Result<()> {
    let product = unpacked(&made()?.deb)?;
    let file = product
        .path()
        .join("usr/share/bash-completion/completions/smtt-ctl");
    let complete = |words: &str, at: u32| -> Result<String> {
        let script = format!(
            "source '{}'; COMP_WORDS=({words}); COMP_CWORD={at}; \
             $(complete -p smtt-ctl | sed 's/.*-F \\([^ ]*\\).*/\\1/') smtt-ctl \"${{COMP_WORDS[{at}]}}\" \"${{COMP_WORDS[{}]}}\"; echo \"${{COMPREPLY[@]}}\"",
            file.display(),
            at - 1
        );
        output(Command::new("bash").args(["--norc", "-c", &script]))
    };
    ensure!(complete("smtt-ctl postm", 1)?.trim() == "postmortem");
    let options = complete("smtt-ctl rdds --a", 2)?;
    ensure!(
        options.contains("--all") && options.contains("--app"),
        "{options}"
    );
    Ok(())
}
