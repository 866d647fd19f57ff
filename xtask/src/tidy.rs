//! `cargo xtask tidy`: formats, regenerates generated files, and checks the rules that no compiler checks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::paths::Paths;
use crate::process::output;

/// Maximal lines of a source file, without its tests.
const MAX_LINES: usize = 600;
/// Words that mark unfinished work; split in two parts so that this file does not contain them.
const MARKERS: [&str; 5] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X:"),
    concat!("unimple", "mented!"),
    concat!("to", "do!("),
];

/// Tests that compare a generated file with the code, and write the file where `SMTT_BLESS` is set.
const GENERATED: [&str; 6] = [
    // config/smtt.toml
    "the_default_file_says_the_defaults_and_is_committed",
    // docs/METRICS.md
    "the_metrics_document_is_what_the_table_says",
    // docs/API.md
    "the_interface_is_documented_as_its_types_say",
    // docs/TRACE.md
    "the_document_lists_every_column",
    // Contract.java and FactForm.java of the marker
    "the_java_contract_is_what_smtt_common_says",
    // the last section of docs/EXPERIMENT.md, from docs/experiment/page-walks-*.json
    "the_documents_section_is_that_of_the_kept_results",
];

/// Formats, lints, regenerates and checks.
///
/// # Errors
/// When a rule is broken that a person must fix.
pub fn tidy(paths: &Paths) -> Result<()> {
    cargo(paths, &["fmt", "--all"], &[])?;
    cargo(
        paths,
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ],
        &[],
    )?;
    let mut bless = vec!["test", "--quiet", "--workspace", "--lib", "--"];
    bless.extend(GENERATED);
    cargo(paths, &bless, &[("SMTT_BLESS", "1")])?;
    let findings = check(&paths.root)?;
    if !findings.is_empty() {
        bail!(
            "{} things to mend:\n  {}",
            findings.len(),
            findings.join("\n  ")
        );
    }
    println!("tidy");
    Ok(())
}

fn cargo(paths: &Paths, arguments: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    println!("cargo {}", arguments.join(" "));
    let status = crate::process::cargo()
        .args(arguments)
        .envs(environment.iter().copied())
        .current_dir(&paths.root)
        .status()?;
    if !status.success() {
        bail!("cargo {} failed", arguments[0]);
    }
    Ok(())
}

/// Violations of the rules, one line each.
///
/// # Errors
/// When the files cannot be listed or read.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for file in files(root)? {
        let path = root.join(&file);
        // A symbolic link or a picture is not text and has no rules.
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let name = file.display();
        let extension = file
            .extension()
            .and_then(|extension| extension.to_str())
            .unwrap_or_default();
        if matches!(extension, "rs" | "java" | "py") {
            let lines = lines_without_tests(&text);
            if lines > MAX_LINES {
                findings.push(format!(
                    "{name}: {lines} lines without tests, at most {MAX_LINES} are allowed: split it"
                ));
            }
        }
        if matches!(extension, "rs" | "java" | "py" | "toml" | "service") {
            for (number, line) in text.lines().enumerate() {
                if let Some(marker) = MARKERS.iter().find(|marker| line.contains(*marker)) {
                    findings.push(format!("{name}:{}: says {marker}: finish it", number + 1));
                }
            }
        }
        if extension == "rs" && !text.trim_start().starts_with("//!") {
            findings.push(format!("{name}: does not open with //! and what it is for"));
        }
        if extension == "md" {
            for link in broken_links(&path, &text) {
                findings.push(format!("{name}: links to {link}, which does not exist"));
            }
        }
    }
    Ok(findings)
}

/// Files of the repository known to git, including new ones.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root);
    let list = output(&mut git).context("the rules are checked for the files that git lists")?;
    Ok(list
        .lines()
        .map(PathBuf::from)
        .filter(|file| root.join(file).is_file())
        .collect())
}

fn lines_without_tests(text: &str) -> usize {
    text.lines()
        .take_while(|line| *line != "#[cfg(test)]")
        .count()
}

/// Targets of relative Markdown links that do not exist.
fn broken_links(path: &Path, text: &str) -> Vec<String> {
    let folder = path.parent().unwrap_or(Path::new("."));
    text.match_indices("](")
        .filter_map(|(start, opening)| text[start + opening.len()..].split_once(')'))
        .map(|(target, _)| target.split('#').next().unwrap_or_default())
        .filter(|target| {
            !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:")
        })
        .filter(|target| !folder.join(target).exists())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_keeps_its_rules() {
        let paths = Paths::find().expect("finds the checkout");
        let findings = check(&paths.root).expect("reads the repository");
        assert!(
            findings.is_empty(),
            "{} findings:\n{}",
            findings.len(),
            findings.join("\n")
        );
    }

    #[test]
    fn the_tests_that_write_generated_files_exist() {
        let paths = Paths::find().expect("finds the checkout");
        let mut sources = String::new();
        for file in files(&paths.root).expect("lists the repository") {
            if file.extension().is_some_and(|extension| extension == "rs") {
                sources += &fs::read_to_string(paths.root.join(file)).expect("reads a source");
            }
        }
        for test in GENERATED {
            assert!(sources.contains(&format!("fn {test}()")), "{test} is gone");
        }
    }

    #[test]
    fn tests_do_not_count_as_lines() {
        assert_eq!(lines_without_tests("a\nb\n#[cfg(test)]\nmod tests {}\n"), 2);
    }

    #[test]
    fn links() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
        let text = "[a](Cargo.toml) [b](missing.md#x) [c](https://example.org/) [d](#part) [e](src/lib.rs#top)";
        assert_eq!(broken_links(&here, text), ["missing.md"]);
    }
}
