//! Answers of the daemon against docs/API.md: every field is documented, has its documented JSON and is there where the
//! document does not let it be absent.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use smtt_ctl::client::Client;

use super::{Daemon, golden, memory, pages};

/// Field and its JSON in words, by title of the section.
type Sections = BTreeMap<String, BTreeMap<String, String>>;

/// Cells of a table's row.
fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.strip_prefix("| ")?.strip_suffix(" |")?;
    Some(inner.split(" | ").map(str::trim).collect())
}

/// The sections and the answers of the paths.
fn document() -> (Sections, BTreeMap<String, String>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/API.md");
    let text = std::fs::read_to_string(path).expect("the document");
    let (mut sections, mut paths) = (Sections::new(), BTreeMap::new());
    let mut title = "";
    for line in text.lines() {
        if let Some(next) = line.strip_prefix("### ") {
            title = next;
        }
        let Some(cells) = cells(line) else { continue };
        let name = cells[0].trim_matches('`').to_owned();
        if name.starts_with("/v1/") {
            paths.insert(name, cells[1].to_owned());
        } else if !title.is_empty() && cells[0].starts_with('`') {
            let section = sections.entry(title.to_owned()).or_default();
            section.insert(name, cells[1].to_owned());
        }
    }
    (sections, paths)
}

/// Title of the section that a text links to.
fn linked(kind: &str) -> Option<&str> {
    kind.strip_prefix('[')?.split(']').next()
}

/// Whether a field is one of the figures that depend on the CPU, which have one row together.
fn is_page_walk(name: &str) -> bool {
    name == "cycles" || name.starts_with("page_walk") || name.starts_with("dtlb_")
}

struct Check {
    sections: Sections,
    /// Documented fields that some answer had, with a value.
    seen: BTreeSet<String>,
    wrong: Vec<String>,
}

impl Check {
    fn value(&mut self, at: &str, value: &Value, kind: &str, rows: &str) {
        let kind = kind.trim_end_matches("; may be absent");
        let (kind, may_be_null) = match kind.strip_suffix(", or null") {
            Some(kind) => (kind, true),
            None => (kind, false),
        };
        let fits = match value {
            Value::Null => may_be_null,
            Value::Array(items) => match kind.strip_prefix("list of ") {
                Some("rows") => {
                    items.iter().for_each(|row| self.value(at, row, rows, rows));
                    true
                }
                Some(inner) if !inner.contains(" and ") => {
                    items
                        .iter()
                        .for_each(|item| self.value(at, item, inner, rows));
                    true
                }
                pair => pair.is_some(),
            },
            Value::Object(fields) => match kind.strip_prefix("object: ") {
                Some(inner) => {
                    let inner = inner.trim_end_matches(" by name");
                    fields
                        .values()
                        .for_each(|value| self.value(at, value, inner, rows));
                    true
                }
                None => match linked(kind) {
                    Some(title) => {
                        self.object(title, value, rows);
                        true
                    }
                    None => kind == "any",
                },
            },
            Value::String(text) => {
                let is_word = kind.starts_with('`') && kind.contains(&format!("`{text}`"));
                kind.starts_with("text") || is_word
            }
            Value::Bool(_) => kind == "true or false",
            Value::Number(number) if number.is_f64() => kind.ends_with("number"),
            Value::Number(_) => kind.starts_with("integer") || kind == "number",
        };
        if !fits && kind != "any" {
            self.wrong.push(format!("{at} is not {kind:?}: {value}"));
        }
    }

    fn object(&mut self, title: &str, value: &Value, rows: &str) {
        let Some(section) = self.sections.get(title).cloned() else {
            self.wrong.push(format!("{title} has no section"));
            return;
        };
        let fields = value.as_object().expect("an object");
        for (name, value) in fields {
            let at = format!("{title}.{name}");
            match section.get(name) {
                Some(kind) => {
                    if !value.is_null() {
                        self.seen.insert(at.clone());
                    }
                    self.value(&at, value, kind, rows);
                }
                None if section.contains_key("*") && is_page_walk(name) => {}
                None => self.wrong.push(format!("{at} is not documented")),
            }
        }
        for (name, kind) in section {
            let may_be_absent = name == "*" || kind.contains("may be absent");
            if !may_be_absent && !fields.contains_key(&name) {
                self.wrong.push(format!("{title}.{name} is absent"));
            }
        }
    }
}

fn ask(daemon: &Daemon, path: &str) -> Value {
    let client = Client::new(&daemon.socket);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(client.get(path)).expect("an answer")
}

#[test]
fn every_field_of_every_answer_is_documented() {
    let daemon = golden::daemon();
    pages::looked_at(&daemon);
    memory::measured(&daemon);
    let (sections, paths) = document();
    let mut check = Check {
        sections,
        seen: BTreeSet::new(),
        wrong: Vec::new(),
    };
    for (path, kind) in &paths {
        let others = [
            "/v1/trace/follow",
            "/v1/postmortem/report",
            "/v1/earlier/{listing}",
        ];
        if others.contains(&path.as_str()) {
            // An endless answer, one about a dead executor, and rows of the other paths.
            continue;
        }
        let answer = ask(&daemon, path);
        let rows = kind.strip_prefix("[Listing](#listing) of ");
        let kind = rows.map_or(kind.as_str(), |_| "[Listing](#listing)");
        check.value(path, &answer, kind, rows.unwrap_or_default());
    }
    check.value(
        "/v1/tasks?task=2",
        &ask(&daemon, "/v1/tasks?task=2"),
        "[Listing](#listing)",
        "[TaskRow](#taskrow)",
    );
    assert!(check.wrong.is_empty(), "{:#?}", check.wrong);
    assert!(paths.len() > 20, "{paths:?}");
    assert!(
        check.seen.len() > 250,
        "only {} documented fields were in the answers: {:?}",
        check.seen.len(),
        check.seen
    );
}
