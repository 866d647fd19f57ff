//! Where and how to print: tables, text for programs, comma-separated values or JSON.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use serde_json::{Map, Value};

use super::Failure;
use super::args::{Args, TABLE_ROWS};

/// Lines around a table that is shown again and again: its title, headings and footer.
const AROUND: usize = 8;

/// Form of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Tables and text for people.
    #[default]
    Text,
    /// Text for programs: tabs between cells, nothing cut.
    Plain,
    /// Comma-separated values.
    Csv,
    /// JSON.
    Json,
}

/// Where and how to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Columns of the terminal; `None` where lines have no maximum length.
    pub width: Option<usize>,
    /// Whether headings may be bold.
    pub styled: bool,
    /// Form of the answer.
    pub form: Form,
    /// Rows of a table without `--limit`; `None` for all.
    pub rows: Option<usize>,
}

impl Output {
    /// The form that the arguments ask for, and the size of the terminal. A table that is shown again and again fits it.
    pub(super) fn detect(args: &Args) -> Self {
        let terminal = io::stdout().is_terminal();
        let asked = std::env::var("COLUMNS")
            .ok()
            .and_then(|columns| columns.parse().ok());
        let size = terminal.then(|| crossterm::terminal::size().unwrap_or((80, 24)));
        let width = asked.or_else(|| size.map(|(columns, _)| usize::from(columns)));
        let form = match (args.json, args.csv, args.plain) {
            (true, ..) => Form::Json,
            (_, true, _) => Form::Csv,
            (.., true) => Form::Plain,
            _ => Form::Text,
        };
        let repeated = args.command.watch().is_some();
        let rows = match size {
            Some((_, lines)) if repeated => usize::from(lines).saturating_sub(AROUND).max(5),
            _ => TABLE_ROWS,
        };
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            width: width
                .map(|width: usize| width.max(20))
                .filter(|_| form == Form::Text),
            styled: terminal && !plain && form == Form::Text,
            form,
            rows: (form == Form::Text).then_some(rows),
        }
    }

    /// Whether raw values are asked for.
    pub(super) const fn is_data(&self) -> bool {
        matches!(self.form, Form::Csv | Form::Json)
    }

    /// Prints a value as JSON or as comma-separated values.
    pub(super) fn data(&self, value: &impl Serialize) -> Result<(), Failure> {
        if self.form == Form::Csv {
            let value = serde_json::to_value(value).map_err(io::Error::from)?;
            return self.text(&of_value(&value));
        }
        // Standard output alone writes each line on its own.
        let mut out = io::BufWriter::new(io::stdout().lock());
        serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
        writeln!(out)?;
        out.flush()?;
        Ok(())
    }

    /// Prints text.
    pub(super) fn text(&self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(())
    }
}

/// A field of comma-separated values, quoted where necessary (RFC 4180).
pub(super) fn field(value: &Value) -> String {
    let is_scalar = |item: &Value| !item.is_array() && !item.is_object();
    let text = match value {
        Value::Null => return String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.iter().all(is_scalar) => {
            let items: Vec<String> = items.iter().map(Value::to_string).collect();
            items.join(" ")
        }
        other => other.to_string(),
    };
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

/// Rows as comma-separated values with a header.
pub(super) fn rows(fields: &[&str], rows: &[Map<String, Value>]) -> String {
    let mut text = fields.join(",") + "\n";
    for row in rows {
        let cells = fields
            .iter()
            .map(|name| row.get(*name).map_or_else(String::new, field));
        text.push_str(&cells.collect::<Vec<_>>().join(","));
        text.push('\n');
    }
    text
}

/// An answer as comma-separated values: a list of objects has a line for each, any other answer a line for each value
/// with its path.
fn of_value(value: &Value) -> String {
    let objects: Option<Vec<Map<String, Value>>> = value
        .as_array()
        .and_then(|items| items.iter().map(|item| item.as_object().cloned()).collect());
    if let Some(objects) = objects {
        let mut fields: Vec<&str> = Vec::new();
        for name in objects.iter().flat_map(Map::keys) {
            if !fields.contains(&name.as_str()) {
                fields.push(name);
            }
        }
        return rows(&fields, &objects);
    }
    let mut text = "field,value\n".to_owned();
    paths("", value, &mut text);
    text
}

fn paths(path: &str, value: &Value, text: &mut String) {
    let below = |name: &str| match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                paths(&below(name), value, text);
            }
        }
        Value::Array(items) => {
            for (number, value) in items.iter().enumerate() {
                paths(&below(&number.to_string()), value, text);
            }
        }
        value => {
            let path = field(&Value::String(path.to_owned()));
            text.push_str(&format!("{path},{}\n", field(value)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lists_have_a_header_and_quotes() {
        let list = json!([{"id": 1, "name": "a,b", "ranges": [1, 2]}, {"id": 2, "note": "say \"x\"\n", "part": {"a": [1]}}]);
        assert_eq!(
            of_value(&list),
            "id,name,ranges,note,part\n1,\"a,b\",1 2,,\n2,,,\"say \"\"x\"\"\n\",\"{\"\"a\"\":[1]}\"\n"
        );
    }

    #[test]
    fn other_answers_have_a_line_for_each_value() {
        assert_eq!(
            of_value(&json!({"ready": true, "hops": [{"lost": {"full": 3}}], "none": null})),
            "field,value\nready,true\nhops.0.lost.full,3\nnone,\n"
        );
    }
}
