//! Documents against the checkout: docs/ARCHITECTURE.md names each crate and module at its place, and no document names a
//! file that does not exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{product, read, root};

/// Maximal words of docs/ARCHITECTURE.md: a newcomer reads it in ten minutes.
const ARCHITECTURE_WORDS: usize = 1200;

/// Modules that a crate's root declares for its product.
fn modules(root: &str) -> Vec<&str> {
    product(root)
        .0
        .into_iter()
        .filter_map(|(_, line)| line.strip_suffix(';'))
        .filter_map(|line| {
            let (before, module) = line.split_once("mod ")?;
            let is_declared = before.is_empty() || before.starts_with("pub");
            is_declared.then_some(module)
        })
        .collect()
}

/// Texts in backticks.
fn quoted(text: &str) -> BTreeSet<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Paths of files of the checkout that a document names in backticks.
fn named_files(text: &str) -> Vec<&str> {
    const KINDS: [&str; 6] = ["rs", "java", "toml", "md", "py", "service"];
    let has_kind = |path: &str| {
        Path::new(path)
            .extension()
            .and_then(|extension| extension.to_str())
            .is_some_and(|extension| KINDS.contains(&extension))
    };
    quoted(text)
        .into_iter()
        .filter(|path| path.contains('/') && !path.starts_with(['/', '~']))
        .filter(|path| !path.contains(char::is_whitespace) && has_kind(path))
        .collect()
}

/// Targets of links within the checkout: path and heading, either of which may be empty.
fn links(text: &str) -> Vec<(&str, &str)> {
    let targets = text.split("](").skip(1);
    targets
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
        .filter(|target| !target.contains("://") && !target.contains(char::is_whitespace))
        .map(|target| target.split_once('#').unwrap_or((target, "")))
        .collect()
}

/// The names by which links reach the headings of a document.
fn headings(text: &str) -> BTreeSet<String> {
    let mut in_block = false;
    text.lines()
        .filter(|line| {
            in_block ^= line.starts_with("```");
            !in_block && line.starts_with('#')
        })
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            title
                .chars()
                .filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'))
                .map(|letter| if letter == ' ' { '-' } else { letter })
                .collect()
        })
        .collect()
}

/// The folders of the crates.
fn crates() -> Vec<String> {
    let entries = fs::read_dir(root()).expect("lists the checkout");
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("smtt-"))
        .collect();
    names.sort();
    names
}

/// The section of a crate in docs/ARCHITECTURE.md: what follows its heading up to the next one.
fn section<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, section) = text.split_once(&format!("\n### `{name}`"))?;
    Some(section.split("\n##").next().unwrap_or(section))
}

/// Names in backticks in the list of a section: an invariant may name what the list lacks.
fn listed(section: &str) -> BTreeSet<&str> {
    section
        .lines()
        .filter(|line| line.starts_with("* "))
        .flat_map(quoted)
        .collect()
}

#[test]
fn the_architecture_is_short_and_names_every_crate_and_module() {
    let text = read("docs/ARCHITECTURE.md");
    let words = text.split_whitespace().count();
    assert!(
        words <= ARCHITECTURE_WORDS,
        "docs/ARCHITECTURE.md has {words} words, at most {ARCHITECTURE_WORDS} are allowed"
    );
    let crates = crates();
    assert!(
        crates.len() >= 9,
        "{crates:?} are not all crates of the project"
    );
    let mut missing = Vec::new();
    for name in &crates {
        let section = section(&text, name);
        let section = section.unwrap_or_else(|| panic!("{name} has no section"));
        // Without one, the crate is no library of Rust modules.
        let Ok(root) = fs::read_to_string(root().join(name).join("src/lib.rs")) else {
            continue;
        };
        let (modules, named) = (modules(&root), listed(section));
        assert!(modules.len() > 3, "{name}: {modules:?}");
        let gone = modules.iter().filter(|module| !named.contains(*module));
        missing.extend(gone.map(|module| format!("{name}: {module}")));
    }
    assert!(missing.is_empty(), "not in their sections: {missing:?}");
}

/// README.md, CONTRIBUTING.md and all of docs/.
fn documents() -> Vec<PathBuf> {
    let root = root();
    let mut documents = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    for folder in ["docs", "docs/design"] {
        let entries = fs::read_dir(root.join(folder)).expect("lists the documents");
        documents.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
    let is_text = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    documents.retain(is_text);
    documents
}

#[test]
fn links_reach_a_file_and_a_heading() {
    let mut checked = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).expect("reads a document");
        let folder = document.parent().expect("a folder");
        for (path, heading) in links(&text) {
            checked += 1;
            let target = match path {
                "" => document.clone(),
                path => folder.join(path),
            };
            let at = format!("{}: {path}#{heading}", document.display());
            assert!(target.exists(), "{at} does not exist");
            if !heading.is_empty() {
                let there = fs::read_to_string(&target).expect("reads a document");
                assert!(headings(&there).contains(heading), "{at} is no heading");
            }
        }
    }
    assert!(checked > 100, "{checked} links found");
}

#[test]
fn documents_name_files_that_exist() {
    let root = root();
    let mut checked = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).expect("reads a document");
        for path in named_files(&text) {
            checked += 1;
            assert!(
                root.join(path).exists(),
                "{}: {path} does not exist",
                document.display()
            );
        }
    }
    assert!(checked > 50, "{checked} paths found");
}

#[test]
fn files_are_found_in_documents() {
    let text = "`a/b.rs` `/etc/x.toml` `c.rs` `d/e.java x` `smtt-model/src/state` `f/g.java`";
    assert_eq!(named_files(text), ["a/b.rs", "f/g.java"]);
}

#[test]
fn links_and_headings_are_found() {
    let text = "# A `b`: c\n```\n# no\n```\n[x](y.md#a-b-c) [z](https://e.x/) [w](#q)\n";
    assert_eq!(links(text), [("y.md", "a-b-c"), ("", "q")]);
    assert_eq!(Vec::from_iter(headings(text)), ["a-b-c"]);
}

#[test]
fn a_module_is_looked_for_in_the_section_of_its_crate() {
    assert_eq!(
        modules("pub mod a;\nmod b;\npub(crate) mod d;\n#[cfg(test)]\nmod c;\nlet mod e;\n"),
        ["a", "b", "d"]
    );
    let text = "\n### `x`: one\n* `a`: `b`.\n**Invariant:** `c`.\n### `y`\n* `d`.\n## End\n* `e`\n";
    let found = |name| section(text, name).map(|section| Vec::from_iter(listed(section)));
    assert_eq!(found("x"), Some(vec!["a", "b"]));
    assert_eq!(found("y"), Some(vec!["d"]));
    assert_eq!(found("z"), None);
}
