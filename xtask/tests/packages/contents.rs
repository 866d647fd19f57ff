//! What is in the packages, as `dpkg-deb`, `sha256sum`, `readelf`, `man`, `bash` and a validator of CycloneDX see it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;
use xtask::dist::deb;
use xtask::dist::product::{HISTORY, WORKER};
use xtask::dist::{Packed, REVISION, SUMS, VERSION};
use xtask::paths::Paths;
use xtask::process::output;
use xtask::processor::Processor;
use xtask::setup::validators;

use crate::{history, made, worker};

/// The package's files, unpacked by dpkg.
pub(crate) fn unpacked(deb: &Path) -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    deb::extract(deb, folder.path())?;
    Ok(folder)
}

pub(crate) fn field(deb: &Path, name: &str) -> Result<String> {
    Ok(
        output(Command::new("dpkg-deb").arg("--field").arg(deb).arg(name))?
            .trim()
            .to_owned(),
    )
}

#[test]
fn every_file_is_summed_and_the_packages_agree_on_their_version() -> Result<()> {
    let made = made()?;
    let folder = worker()?.deb.parent();
    let folder = folder.context("the package is in a folder")?;
    let checked = output(
        Command::new("sha256sum")
            .args(["--check", "--strict", SUMS])
            .current_dir(folder),
    )?;
    ensure!(
        made.files().iter().all(|file| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            checked.lines().any(|line| line == format!("{name}: OK"))
        }),
        "{checked}"
    );
    let version = format!("{VERSION}-{REVISION}");
    for packed in made.packages() {
        let product = packed.product;
        ensure!(field(&packed.deb, "Package")? == product.name);
        ensure!(field(&packed.deb, "Version")? == version);
        let depends = format!("{} (= {version})", product.name);
        ensure!(field(&packed.symbols, "Depends")? == depends);
        let listed = output(Command::new("dpkg-deb").arg("--contents").arg(&packed.deb))?;
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
    }
    Ok(())
}

#[test]
fn the_packages_have_no_file_in_common() -> Result<()> {
    let both = names_in(&worker()?.deb)?;
    let history_has = names_in(&history()?.deb)?;
    let common: Vec<_> = both
        .intersection(&history_has)
        .filter(|name| !name.ends_with('/'))
        .collect();
    ensure!(common.is_empty(), "{common:?}");
    for name in [
        "usr/bin/smtt-history",
        "usr/lib/systemd/system/smtt-history.service",
        "usr/share/bash-completion/completions/smtt-history",
        "usr/share/doc/smtt-history/HISTORY.md.gz",
        "usr/share/man/man1/smtt-history-serve.1.gz",
    ] {
        ensure!(history_has.contains(name), "{name}: {history_has:?}");
    }
    // The program was the worker's until then, so dpkg must know which package has it now.
    for field_name in ["Breaks", "Replaces"] {
        let said = field(&history()?.deb, field_name)?;
        ensure!(said == "smtt (<< 0.1.0-2)", "{said}");
    }
    Ok(())
}

/// Names of a package's files and folders, as tar has them.
fn names_in(deb: &Path) -> Result<BTreeSet<String>> {
    let stream = Command::new("sh")
        .arg("-c")
        .arg("dpkg-deb --fsys-tarfile \"$0\" | tar -t")
        .arg(deb)
        .output()?;
    Ok(names(&String::from_utf8(stream.stdout)?, "./"))
}

fn names(text: &str, prefix: &str) -> BTreeSet<String> {
    let names = text.lines().filter_map(|line| line.strip_prefix(prefix));
    names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_tarballs_have_the_files_of_the_packages() -> Result<()> {
    for packed in made()?.packages() {
        let product = packed.product;
        let tarball = output(Command::new("tar").arg("-tzf").arg(&packed.tarball))?;
        let tarball = names(&tarball, &format!("{}-{VERSION}/", product.name));
        let package = names_in(&packed.deb)?;
        ensure!(package.len() > 25, "{package:?}");
        ensure!(
            tarball == package,
            "{:?}",
            tarball.symmetric_difference(&package)
        );
    }
    Ok(())
}

#[test]
fn symbols_are_apart_and_belong_to_the_program() -> Result<()> {
    for packed in made()?.packages() {
        let product = packed.product;
        let (files, symbols) = (unpacked(&packed.deb)?, unpacked(&packed.symbols)?);
        let path = files.path().join("usr/bin").join(product.name);
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
    }
    Ok(())
}

#[test]
fn a_program_acts_as_the_one_by_whose_name_it_is_called() -> Result<()> {
    for packed in made()?.packages() {
        let product = packed.product;
        let files = unpacked(&packed.deb)?;
        let folder = files.path().join("usr/bin");
        let found: BTreeSet<String> = fs::read_dir(&folder)?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        let wanted = product.links.iter().chain([&product.name]);
        ensure!(
            found == wanted.map(|name| (*name).to_owned()).collect(),
            "{found:?}"
        );
        for link in product.links {
            let target = fs::read_link(folder.join(link))?;
            ensure!(target == Path::new(product.name), "{link}");
        }
        for name in found {
            let said = output(Command::new(folder.join(&name)).arg("--version"))?;
            ensure!(said.trim() == format!("{name} {VERSION}"), "{said}");
        }
    }
    Ok(())
}

#[test]
fn the_worker_has_its_programs_as_arguments_too() -> Result<()> {
    let files = unpacked(&worker()?.deb)?;
    let program = files.path().join("usr/bin/smtt");
    for (words, said) in [
        (["daemon", "--version"], format!("smtt-daemon {VERSION}")),
        (["ctl", "--version"], format!("smtt-ctl {VERSION}")),
    ] {
        let answer = output(Command::new(&program).args(words))?;
        ensure!(answer.trim() == said, "{answer}");
    }
    let usage = output(Command::new(&program).args(["ctl", "rdds", "--help"]))?;
    ensure!(usage.contains("Usage: smtt ctl rdds"), "{usage}");
    let help = output(Command::new(&program).arg("--help"))?;
    ensure!(
        WORKER.links.iter().all(|link| help.contains(link)),
        "{help}"
    );
    let refused = Command::new(&program).arg("history").output()?;
    let said = String::from_utf8_lossy(&refused.stderr);
    ensure!(refused.status.code() == Some(2), "{:?}", refused.status);
    ensure!(said.contains("install the package smtt-history"), "{said}");
    Ok(())
}

#[test]
fn the_library_of_the_jar_is_the_one_that_the_daemon_knows() -> Result<()> {
    let product = unpacked(&worker()?.deb)?;
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
fn the_bills_of_materials_are_valid_and_name_every_crate_whose_code_is_there() -> Result<()> {
    let paths = Paths::find()?;
    validators::validators(&paths)?;
    let made = made()?;
    for packed in made.packages() {
        let product = packed.product;
        check_bill(&paths, packed, &OF_THE_WORKSPACE).with_context(|| product.name)?;
    }
    let (of_worker, of_history) = (bill(&worker()?.bill)?, bill(&history()?.bill)?);
    for (name, worker_has, history_has) in [
        ("aya", true, false),
        ("aya-ebpf", true, false),
        ("smtt-marker-native", true, false),
        ("ratatui", true, false),
        ("zstd", true, true),
        ("object_store", false, true),
        ("rusqlite", false, true),
        ("clap_derive", false, false),
        ("clap_mangen", false, false),
    ] {
        let has = |bill: &BTreeSet<(String, String)>| bill.iter().any(|(found, _)| found == name);
        ensure!(
            (has(&of_worker), has(&of_history)) == (worker_has, history_has),
            "{name}: {of_worker:?} {of_history:?}"
        );
    }
    Ok(())
}

/// Names and versions of a bill's crates.
fn bill(file: &Path) -> Result<BTreeSet<(String, String)>> {
    let bill: Value = serde_json::from_str(&fs::read_to_string(file)?)?;
    let components = bill["components"].as_array().context("components")?;
    let text =
        |component: &Value, key: &str| component[key].as_str().unwrap_or_default().to_owned();
    Ok(components
        .iter()
        .map(|component| (text(component, "name"), text(component, "version")))
        .collect())
}

/// Crates that only the packages of tests have: their programs are built with the whole workspace, whose features of
/// shared dependencies are more than a program's own.
pub(crate) const OF_THE_WORKSPACE: [&str; 6] = [
    "allocator-api2",
    "anstream",
    "anstyle-parse",
    "colorchoice",
    "futures-channel",
    "h2",
];

/// Checks the form of a package's bill of materials, and that it and the licences name the crates that are in the
/// program, but those `beside` it.
pub(crate) fn check_bill(paths: &Paths, packed: &Packed, beside: &[&str]) -> Result<()> {
    let judge = "
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_5).validate_str(open(sys.argv[1]).read())
sys.exit(str(error) if error else 0)";
    output(
        Command::new(validators::programs(paths).join("python"))
            .args(["-c", judge])
            .arg(&packed.bill),
    )?;
    let named = bill(&packed.bill)?;
    // Messages of panics name the source file: crates of others that are in the program for certain.
    let files = unpacked(&packed.deb)?;
    let bytes = fs::read(files.path().join("usr/bin").join(packed.product.name))?;
    let seen = crates_in(&String::from_utf8_lossy(&bytes));
    ensure!(seen.len() > 40, "{seen:?}");
    let (named_too, missing): (Vec<_>, Vec<_>) =
        seen.iter().partition(|&linked| named.contains(linked));
    let others: Vec<_> = missing
        .iter()
        .filter(|(name, _)| !beside.contains(&name.as_str()))
        .collect();
    ensure!(others.is_empty(), "the bill does not name {others:?}");
    let licences = format!("usr/share/doc/{}/THIRD-PARTY.txt.gz", packed.product.name);
    let licences = output(
        Command::new("gzip")
            .arg("-dc")
            .arg(files.path().join(licences)),
    )?;
    for (name, version) in named_too {
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
    for (product, sections, wanted, at_least) in [
        (
            &WORKER,
            ["man1", "man8"].as_slice(),
            [
                "smtt.1.gz",
                "smtt-ctl.1.gz",
                "smtt-ctl-rdds.1.gz",
                "smtt-daemon.8.gz",
            ]
            .as_slice(),
            20,
        ),
        (
            &HISTORY,
            &["man1"],
            &["smtt-history.1.gz", "smtt-history-serve.1.gz"],
            6,
        ),
    ] {
        let files = unpacked(&made()?.of(product, Processor::X86)?.deb)?;
        let mut pages = BTreeSet::new();
        for section in sections {
            for page in fs::read_dir(files.path().join("usr/share/man").join(section))? {
                let page = page?;
                read_page(&page.path())?;
                pages.insert(page.file_name().to_string_lossy().into_owned());
            }
        }
        ensure!(
            wanted.iter().all(|page| pages.contains(*page)) && pages.len() > at_least,
            "{pages:?}"
        );
    }
    Ok(())
}

fn read_page(page: &Path) -> Result<()> {
    let read = Command::new("man")
        .env("LC_ALL", "C.UTF-8")
        .env("MANROFFSEQ", "")
        .env("MANWIDTH", "80")
        .args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8"])
        .arg(page)
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
    let product = unpacked(&worker()?.deb)?;
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
