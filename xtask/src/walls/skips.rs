//! Skips of tests: only `smtt_skip` writes the line that `cargo xtask test` counts, every named feature is in the list, and
//! no test prints why it does not run and then passes.

use std::path::{Path, PathBuf};

use super::{product, root, sources};
use crate::features::{ALL, SKIPPED_LINE};

/// The crate with the text of the line.
const HOME: &str = "tests/skip";
/// Files whose tests parse such lines.
const PARSERS: [&str; 2] = ["xtask/src/stages/output.rs", "xtask/src/vm/matrix.rs"];
/// Functions whose first argument is a feature.
const ASKING: [&str; 3] = ["skip(", "leave_out(", "must_have("];
/// Macros whose text libtest captures.
const CAPTURED: [&str; 2] = ["println!(", "print!("];
/// A test that prints what it has found, and then ends well.
const FINDS: &str = "tests/tests/spark/trace.rs";
/// Ends of a test that has not run.
const RETURNS: [&str; 2] = ["return;", "return Ok(());"];

/// The `.rs` files of all crates, by their paths in the checkout.
fn all_sources() -> Vec<(PathBuf, String)> {
    let root = root();
    let folders = root.read_dir().expect("lists the checkout");
    let folders = folders.map(|entry| entry.expect("an entry").path());
    let mut found = Vec::new();
    for folder in folders.chain([
        root.join("smtt-marker/native"),
        root.join("packaging/manual"),
        root.join("packaging/program"),
    ]) {
        if folder.join("Cargo.toml").is_file() {
            found.extend(sources(&folder));
        }
    }
    let relative = |path: &Path| path.strip_prefix(&root).map(Path::to_owned);
    found
        .into_iter()
        .map(|(path, text)| (relative(&path).expect("is below the root"), text))
        .collect()
}

/// Texts in quotation marks that are the first argument of a function.
fn first_texts<'a>(source: &'a str, function: &str) -> Vec<&'a str> {
    source
        .match_indices(function)
        .filter(|(at, _)| {
            let before = source[..*at].chars().next_back();
            before.is_none_or(|it| !(it.is_alphanumeric() || matches!(it, '_' | '.' | '"')))
        })
        .filter_map(|(at, _)| {
            let argument = source[at + function.len()..].trim_start();
            argument.strip_prefix('"')?.split('"').next()
        })
        .collect()
}

/// Line numbers of tests that print something and then end well. `all` is whether the whole file is a test.
fn silent(source: &str, all: bool) -> Vec<usize> {
    let product: Vec<usize> = if all {
        Vec::new()
    } else {
        product(source)
            .0
            .iter()
            .map(|(number, _)| *number)
            .collect()
    };
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let prints = |line: &str| {
        CAPTURED
            .iter()
            .any(|print| line.starts_with(print) || line.starts_with(&format!("e{print}")))
    };
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if !prints(line) || product.binary_search(&(at + 1)).is_ok() {
            continue;
        }
        let end = lines[at..].iter().position(|line| line.ends_with(");"));
        let next = end.and_then(|end| lines.get(at + end + 1));
        if next.is_some_and(|next| RETURNS.contains(next)) {
            found.push(at + 1);
        }
    }
    found
}

fn is_test(path: &Path) -> bool {
    path.components().skip(1).any(|part| {
        let part = part.as_os_str();
        part == "tests" || part == "tests.rs"
    })
}

#[test]
fn the_line_of_a_skipped_test_is_written_in_one_place() {
    let text = format!("\"{SKIPPED_LINE}");
    let (mut homes, mut others) = (0, Vec::new());
    for (path, source) in all_sources() {
        let lines = source.lines().filter(|line| line.contains(&text)).count();
        if path.starts_with(HOME) {
            homes += lines;
        } else if lines > 0 && !PARSERS.iter().any(|parser| path == Path::new(parser)) {
            others.push(path);
        }
    }
    assert_eq!(homes, 1, "the check finds nothing");
    assert!(others.is_empty(), "{others:?}: use smtt_skip::skip");
}

#[test]
fn no_test_prints_why_it_does_not_run_and_passes() {
    let mut found = Vec::new();
    for (path, source) in all_sources() {
        if path == Path::new(FINDS) {
            continue;
        }
        let lines = silent(&source, is_test(&path));
        found.extend(
            lines
                .iter()
                .map(|line| format!("{}:{line}", path.display())),
        );
    }
    assert!(found.is_empty(), "{found:?}: use smtt_skip::skip");
}

#[test]
fn every_feature_that_a_test_names_is_in_the_list() {
    let mut count = 0;
    for (path, source) in all_sources() {
        for name in ASKING.iter().flat_map(|it| first_texts(&source, it)) {
            count += 1;
            assert!(
                ALL.iter().any(|(feature, _)| *feature == name),
                "{}: {name} is not in xtask/src/features.rs",
                path.display()
            );
        }
    }
    assert!(count > 50, "{count} names found");
}

#[test]
fn skips_are_found() {
    // The texts are in parts, so that the checks do not find them here.
    let source = format!(
        "return {0}\n  \"swap\", x);\nit.{0}\"no\");\n_{0}\"no\");\n{0}name);",
        "skip("
    );
    assert_eq!(first_texts(&source, "skip("), ["swap"]);
    let print = "println!(";
    let test = format!(
        "{print}\n\"a\"\n);\nreturn;\ne{print}\"b\");\nreturn Ok(());\n{print}\"c\");\nx();\n"
    );
    assert_eq!(silent(&test, true), [1, 5]);
    assert!(silent(&test, false).is_empty());
    let inner = format!("#[cfg(test)]\nmod t {{\n    e{print}\"b\");\n    return;\n}}\n");
    assert_eq!(silent(&inner, false), [3]);
    assert!(is_test(Path::new("a/src/b/tests.rs")) && is_test(Path::new("a/tests/b.rs")));
    assert!(!is_test(Path::new("tests/src/b.rs")));
}
