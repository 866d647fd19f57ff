//! The attacks of docs/SECURITY.md against the tests: every test that the table names exists, and the table has every
//! hostile program.

use std::fs;

use crate::paths::Paths;

/// Rows of the table: attack, file and test.
fn rows(document: &str) -> Vec<[&str; 3]> {
    let (_, rest) = document
        .split_once("| attack | file | test |\n|---|---|---|\n")
        .expect("the table of attacks");
    let lines = rest.lines().take_while(|line| line.starts_with('|'));
    lines
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [_, attack, file, test, _] = cells[..] else {
                panic!("three cells: {line}");
            };
            [attack, file.trim_matches('`'), test.trim_matches('`')]
        })
        .collect()
}

/// Names of the programs of attacks: those that `attacker` knows, and the hostile ones of `workload` beside the victim.
fn programs(attacker: &str, attackers: &str) -> Vec<String> {
    let arms = attacker.lines().filter_map(|line| {
        let (name, _) = line.trim().strip_prefix('"')?.split_once("\" => ")?;
        Some(name.to_owned())
    });
    let (_, facts) = attackers.split_once("const FACTS").expect("the floods");
    let (facts, _) = facts.split_once("];\n").expect("their end");
    let facts = facts.lines().filter_map(|line| {
        let (name, _) = line.trim().strip_prefix("(\"")?.split_once('"')?;
        Some(name.to_owned())
    });
    arms.chain(facts).collect()
}

#[test]
fn each_attack_of_the_table_is_a_test_and_each_hostile_program_is_in_it() {
    let root = Paths::find().expect("the checkout").root;
    let read = |file: &str| {
        fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    };
    let document = read("docs/SECURITY.md");
    let rows = rows(&document);
    assert!(rows.len() > 40, "{} attacks", rows.len());
    for [attack, file, test] in &rows {
        let source = read(file);
        let is_there = source.match_indices(&format!("fn {test}(")).any(|(at, _)| {
            let before = source[..at].trim_end_matches("async ").trim_end();
            before.ends_with(']')
                && before
                    .lines()
                    .last()
                    .is_some_and(|line| line.contains("test"))
        });
        assert!(is_there, "{attack}: {file} has no test {test}");
    }
    let programs = programs(
        &read("tests/src/bin/attacker.rs"),
        &read("tests/src/attackers.rs"),
    );
    assert!(programs.len() > 15, "{programs:?}");
    for program in programs {
        let name = format!("`{program}`");
        assert!(
            rows.iter().any(|[attack, ..]| attack.contains(&name)),
            "docs/SECURITY.md has no attack by {name}"
        );
    }
}

#[test]
fn a_row_and_a_program_are_found() {
    let document = "| attack | file | test |\n|---|---|---|\n| a flood (`flood`) | `a.rs` | `b` |\n\n| other | x | y |\n";
    assert_eq!(rows(document), [["a flood (`flood`)", "a.rs", "b"]]);
    let attackers =
        "const FACTS: [(&str, &[&str]); 1] = [\n    (\"flood\", &[]),\n];\n    (\"other\", 1)\n";
    assert_eq!(
        programs("    match name {\n        \"swap\" => swap(),\n", attackers),
        ["swap", "flood"]
    );
}
