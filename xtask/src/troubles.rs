//! docs/TROUBLESHOOTING.md against the sources: every message that it quotes exists, and it has every error of the client
//! and of the configuration, every check of `smtt-ctl doctor` and what each missing probe means.

use std::fs;
use std::path::Path;

use crate::paths::Paths;

/// Folders with the messages.
const SOURCES: [&str; 11] = [
    "smtt-config/src",
    "smtt-ctl/src",
    "smtt-daemon/src",
    "smtt-machine/src",
    "smtt-model/src",
    "smtt-store/src",
    "smtt-web/src",
    "smtt-history/src",
    "packaging/program/src",
    "smtt-marker/java",
    "smtt-daemon/build.rs",
];
/// What differs from case to case in a quoted message.
const GAP: char = '…';

/// Every source, without the line breaks inside of its texts.
fn sources(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for folder in SOURCES {
        collect(&root.join(folder), &mut found);
    }
    assert!(found.len() > 200, "{} sources", found.len());
    found
}

fn collect(path: &Path, found: &mut Vec<String>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("lists the sources") {
            collect(&entry.expect("an entry").path(), found);
        }
    } else if let Ok(text) = fs::read_to_string(path) {
        found.push(joined(&text));
    }
}

/// A text that goes on in the next line, as one line.
fn joined(text: &str) -> String {
    let mut parts = text.split("\\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |joined, part| joined + part.trim_start())
}

/// Messages in the first column of tables that begin with `message`, `reason` or `check`, and in the second of
/// `without it`.
fn quoted(document: &str) -> Vec<&str> {
    let mut column = None;
    let mut found = Vec::new();
    for line in document.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        match cells.get(1) {
            None => column = None,
            Some(&("message" | "reason" | "check")) => column = Some(1),
            Some(&"probe") => column = Some(2),
            Some(_) => {
                let cell = column.and_then(|column| cells.get(column));
                let words = cell.map(|cell| cell.split('`').skip(1).step_by(2));
                found.extend(words.into_iter().flatten());
            }
        }
    }
    found
}

/// Whether one source has all parts of a message, in their order.
fn exists(message: &str, sources: &[String]) -> bool {
    let parts: Vec<&str> = message
        .split(GAP)
        .map(|part| part.trim_matches([' ', ':', ';', ',']))
        .filter(|part| !part.is_empty())
        .collect();
    let has = |source: &&String| {
        let mut rest = source.as_str();
        parts.iter().all(|part| {
            let Some(at) = rest.find(part) else {
                return false;
            };
            rest = &rest[at + part.len()..];
            true
        })
    };
    !parts.is_empty() && sources.iter().any(|source| has(&source))
}

/// The texts between quotation marks after a word in a source.
fn after<'a>(source: &'a str, word: &str) -> Vec<&'a str> {
    let places = source.split(word).skip(1);
    places
        .filter_map(|rest| rest.split('"').next())
        // An error that shows another one alone.
        .filter(|text| *text != "{0}")
        .collect()
}

fn read(root: &Path, file: &str) -> String {
    joined(&fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}")))
}

#[test]
fn every_quoted_message_exists() {
    let root = Paths::find().expect("finds the checkout").root;
    let document = read(&root, "docs/TROUBLESHOOTING.md");
    let sources = sources(&root);
    let quoted = quoted(&document);
    assert!(quoted.len() > 70, "{} messages", quoted.len());
    let missing: Vec<_> = quoted
        .iter()
        .filter(|message| !exists(message, &sources))
        .collect();
    assert!(missing.is_empty(), "no source has {missing:#?}");
}

#[test]
fn every_error_check_and_probe_is_there() {
    let root = Paths::find().expect("finds the checkout").root;
    let document = read(&root, "docs/TROUBLESHOOTING.md");
    let quoted = quoted(&document);
    let mut wanted = 0;
    for (file, word) in [
        ("smtt-ctl/src/client.rs", "#[error(\""),
        ("smtt-ctl/src/lib.rs", "#[error(\""),
        ("smtt-config/src/lib.rs", "#[error(\""),
        ("smtt-web/src/users.rs", "#[error(\""),
        ("smtt-daemon/src/placement/inspect.rs", "#[error(\""),
        ("smtt-machine/src/doctor.rs", " check(\""),
        ("smtt-daemon/src/probes/table.rs", "without: \""),
    ] {
        let source = read(&root, file);
        for text in after(&source, word) {
            wanted += 1;
            let text = [text.to_owned()];
            assert!(
                quoted.iter().any(|message| exists(message, &text)),
                "docs/TROUBLESHOOTING.md does not have {text:?} of {file}"
            );
        }
    }
    assert!(wanted > 30, "{wanted} messages");
}

#[test]
fn a_message_that_no_source_has_is_found() {
    let sources = [joined("\"cannot read {}: \\\n    {error}, mend it\"")];
    assert!(exists("cannot read …: …, mend it", &sources));
    assert!(!exists("cannot write …: …", &sources));
    assert!(!exists("mend it … cannot read", &sources));
    assert!(!exists("…", &sources));
}

#[test]
fn messages_are_read_from_the_right_columns() {
    let table = "| message | cause |\n|---|---|\n| `a …`, `b` (1) | `c` |\n\n| probe | without it |\n|---|---|\n| `d` | `e` |\n\n`f`\n";
    assert_eq!(quoted(table), ["a …", "b", "e"]);
}
