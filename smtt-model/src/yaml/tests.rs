//! Texts that are read, as another reader reads them, and texts that are refused.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use proptest::prelude::*;
use serde::Deserialize;

use super::{BYTES_MAX, DEPTH_MAX, NODES_MAX, from_str};

#[derive(Debug, PartialEq, Eq, Deserialize)]
enum Level {
    Low,
    #[serde(alias = "Top")]
    High,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    name: Option<String>,
    level: Option<Level>,
    is_on: Option<bool>,
    #[serde(default)]
    list: Vec<String>,
    #[serde(default)]
    texts: BTreeMap<String, String>,
}

fn read(text: &str) -> Form {
    from_str(text).expect(text)
}

fn refused(text: &str) -> (usize, String) {
    let error = from_str::<Form>(text).expect_err(text);
    (error.line, error.message)
}

/// What the library for whole types reads from a text.
fn witness(text: &str) -> Option<Form> {
    serde_saphyr::from_str(text).ok()
}

#[test]
fn forms_are_those_of_another_reader() {
    for text in [
        "name: a\nlevel: Top\nis_on: yes\nlist: [1, 'b', \"c\\td\", 0x1f]\ntexts:\n  '1': 2.50\n  k: |\n    l\n    m\n  n: >-\n    o\n    p\n",
        "name: ~\nlevel:\nis_on: null\n",
        "name: 'null'\nis_on: Off\n",
        "{name: \"\", list: []}\n",
        "---\nname: !!str 12\n...\n",
        "list: &all\n- a\n- &b b\n- *b\ntexts: {x: *b}\n",
        "texts: {k: &anchor v, l: *anchor}\n",
        "texts:\n  <<: {a: 1, b: 2}\n  b: 3\n",
        "# nothing but\nname: a # a comment\n",
        "name: a: b\n",
        "list: [a\n",
        "list: {a: b}\n",
        "name: [a]\n",
        "level: Middle\n",
        "is_on: perhaps\n",
        "unknown: a\n",
        "name: a\nname: b\n",
        "name: *none\n",
        "texts: {a: }\n",
        "name: a\n---\nname: b\n",
    ] {
        assert_eq!(from_str(text).ok(), witness(text), "{text}");
    }
}

#[test]
fn null_is_nothing_of_each_kind() {
    assert_eq!(read(""), Form::default());
    assert_eq!(read("---\n"), Form::default());
    assert_eq!(read("list:\ntexts:\n"), Form::default());
    assert_eq!(read("name: ''\n").name.as_deref(), Some(""));
}

#[test]
fn errors_name_line_and_cause() {
    for (text, line, part) in [
        ("name: a\nlevl: Low\n", 2, "unknown field `levl`"),
        ("name: a\n\nlevel: Middle\n", 3, "unknown variant `Middle`"),
        ("list:\n- a\n- [b]\n", 3, "expected a string"),
        ("texts:\n  a: b\n  c:\n", 3, "null"),
        ("texts:\n  a: b\n  a: c\n", 3, "duplicate key \"a\""),
        ("is_on: 2\n", 1, "expected a boolean"),
        ("texts:\n  [a]: b\n", 2, "a key must be text"),
        ("texts:\n  <<: a\n", 2, "<< needs a mapping"),
        ("list: &a [b, *a]\n", 1, "an alias of what it is in"),
        ("name: a\n---\nname: b\n", 2, "more than one document"),
        ("name: !!binary YQ==\n", 1, "no tag !!binary"),
        ("list: !set [a]\n", 1, "no tag !set"),
        ("name: 'a\n", 1, "unclosed quote"),
    ] {
        let (found, message) = refused(text);
        assert!(message.contains(part), "{text}: {message}");
        assert_eq!(found, line, "{text}: {message}");
    }
}

#[test]
fn a_short_text_is_no_large_tree() {
    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(super::tree(&deep(DEPTH_MAX)).is_ok());
    assert!(
        refused(&deep(DEPTH_MAX + 1))
            .1
            .contains("inside each other")
    );
    // Each list has the one before it ten times.
    let mut laughs = "- &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for at in 1..9 {
        let before = vec![format!("*a{}", at - 1); 10].join(", ");
        writeln!(laughs, "- &a{at} [{before}]").expect("a text");
    }
    assert!(refused(&laughs).1.contains("values"), "{laughs}");
    // Each list has the one before it once, so that the depth grows.
    let mut chain = "- &a0 [x]\n".to_owned();
    for at in 1..=DEPTH_MAX {
        writeln!(chain, "- &a{at} [*a{}]", at - 1).expect("a text");
    }
    assert!(refused(&chain).1.contains("inside each other"));
    let many = "- a\n".repeat(NODES_MAX);
    assert!(refused(&many).1.contains("values"));
}

#[test]
fn a_long_text_has_few_copies() {
    // Small enough that a copy of it for each alias below needs less than 400 MB.
    let long = "x".repeat(BYTES_MAX / 100);
    let copies = |count: usize| format!("list:\n- &a {long}\n{}", "- *a\n".repeat(count));
    // The text, the copy that its anchor keeps, and one for each alias.
    assert_eq!(read(&copies(97)).list.len(), 98);
    let (line, message) = refused(&copies(9_000));
    assert!(message.contains("bytes of texts"), "{message}");
    assert_eq!(line, 101, "that of the first alias beyond the bound");
    // In mappings, with the bytes of keys.
    let merged = "- {<<: *a}\n".repeat(9_000);
    let message = refused(&format!("- &a {{? {long} : b}}\n{merged}")).1;
    assert!(message.contains("bytes of texts"), "{message}");
    // A text as large as the largest file is read.
    let name = "x".repeat(BYTES_MAX);
    assert_eq!(
        read(&format!("name: {}\n", &name[4..]))
            .name
            .map(|it| it.len()),
        Some(BYTES_MAX - 4)
    );
    assert!(
        refused(&format!("name: {name}\n"))
            .1
            .contains("bytes of texts")
    );
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_in_one_line(text in "[-a-c:,&*!<>'\"\\[\\]{}|~# \n]{0,60}") {
        if let Err(error) = from_str::<Form>(&text) {
            prop_assert!(error.line >= 1, "{error}");
            prop_assert_eq!(error.to_string().lines().count(), 1);
        }
    }
}
