//! The configuration as written: values by key, each with the place that it came from.

use super::keys::{KEYS, default_text};
use std::collections::BTreeMap;
use std::fmt;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Where a value was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// File or option.
    pub origin: String,
    /// Line of the file, from 1.
    pub line: Option<usize>,
}

/// What is wrong with one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Where it was written.
    pub place: Place,
    /// The key, as `section.key`; empty where the file is no TOML.
    pub key: String,
    /// What is wrong, and what is allowed.
    pub message: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:", self.place.origin)?;
        if let Some(line) = self.place.line {
            write!(out, "{line}:")?;
        }
        if !self.key.is_empty() {
            write!(out, " {}", self.key)?;
        }
        write!(out, " {}", self.message)
    }
}

/// A value as written.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Text(String),
    Integer(i64),
    List(Vec<String>),
    /// Of another type, by name.
    Other(&'static str),
}

impl Value {
    const fn type_name(&self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::Integer(_) => "a number",
            Self::List(_) => "a list",
            Self::Other(name) => name,
        }
    }
}

/// Values by `section.key`; starts with the defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawConfig {
    values: BTreeMap<String, (Value, Place)>,
}

impl RawConfig {
    /// What config/smtt.toml says.
    #[must_use]
    pub fn defaults() -> Self {
        let mut raw = Self {
            values: BTreeMap::new(),
        };
        let wrong = raw.read(&default_text(), "default");
        debug_assert!(wrong.is_empty(), "{wrong:?}");
        raw
    }

    /// Takes in a file. Returns everything that is no known key.
    pub(super) fn read(&mut self, text: &str, file: &str) -> Vec<Wrong> {
        let line_of = |offset: usize| {
            1 + text
                .bytes()
                .take(offset)
                .filter(|byte| *byte == b'\n')
                .count()
        };
        let place = |offset: Option<usize>| Place {
            origin: file.to_owned(),
            line: offset.map(line_of),
        };
        let table = match DeTable::parse(text) {
            Ok(table) => table,
            Err(error) => {
                let message = format!(
                    "not TOML: {}",
                    error.message().lines().next().unwrap_or("unreadable")
                );
                return vec![Wrong {
                    place: place(error.span().map(|span| span.start)),
                    key: String::new(),
                    message,
                }];
            }
        };
        let mut wrong = Vec::new();
        self.walk("", table.get_ref(), &place, &mut wrong);
        wrong
    }

    fn walk(
        &mut self,
        prefix: &str,
        table: &DeTable<'_>,
        place: &dyn Fn(Option<usize>) -> Place,
        wrong: &mut Vec<Wrong>,
    ) {
        for (name, value) in table {
            let key = if prefix.is_empty() {
                name.get_ref().to_string()
            } else {
                format!("{prefix}.{}", name.get_ref())
            };
            let here = place(Some(name.span().start));
            let is_section = KEYS.iter().any(|known| {
                known
                    .key
                    .strip_prefix(&key)
                    .is_some_and(|rest| rest.starts_with('.'))
            });
            match value.get_ref() {
                DeValue::Table(table) if is_section => self.walk(&key, table, place, wrong),
                _ if is_section => {
                    wrong.push(Wrong {
                        place: here,
                        message: format!("is a section: write [{key}]"),
                        key,
                    });
                }
                _ if !KEYS.iter().any(|known| known.key == key) => {
                    wrong.push(Wrong {
                        place: here,
                        message: unknown(&key),
                        key,
                    });
                }
                value => {
                    self.values.insert(key, (convert(value), here));
                }
            }
        }
    }

    /// Sets one key from an option of the command line.
    pub(super) fn set(&mut self, key: &str, value: &str, option: &str) -> Result<(), Wrong> {
        let place = Place {
            origin: option.to_owned(),
            line: None,
        };
        if !KEYS.iter().any(|known| known.key == key) {
            return Err(Wrong {
                place,
                key: key.to_owned(),
                message: unknown(key),
            });
        }
        let value = match self.values.get(key) {
            Some((Value::Integer(_), _)) => value
                .parse()
                .map_or_else(|_| Value::Text(value.to_owned()), Value::Integer),
            Some((Value::List(_), _)) => Value::List(value.split(',').map(str::to_owned).collect()),
            _ => Value::Text(value.to_owned()),
        };
        self.values.insert(key.to_owned(), (value, place));
        Ok(())
    }

    /// An error about a key.
    pub(super) fn wrong(&self, key: &str, message: impl Into<String>) -> Wrong {
        let place = self
            .values
            .get(key)
            .map(|(_, place)| place.clone())
            .unwrap_or_default();
        Wrong {
            place,
            key: key.to_owned(),
            message: message.into(),
        }
    }

    fn get(&self, key: &str) -> Result<&Value, Wrong> {
        self.values
            .get(key)
            .map(|(value, _)| value)
            .ok_or_else(|| self.wrong(key, "is not set"))
    }

    pub(super) fn text(&self, key: &str) -> Result<String, Wrong> {
        match self.get(key)? {
            Value::Text(text) => Ok(text.clone()),
            other => Err(self.wrong(
                key,
                format!("is {}, but must be text in quotes", other.type_name()),
            )),
        }
    }

    pub(super) fn integer(&self, key: &str) -> Result<i64, Wrong> {
        match self.get(key)? {
            Value::Integer(value) => Ok(*value),
            other => Err(self.wrong(
                key,
                format!(
                    "is {}, but must be a whole number without quotes",
                    other.type_name()
                ),
            )),
        }
    }

    pub(super) fn list(&self, key: &str) -> Result<Vec<String>, Wrong> {
        match self.get(key)? {
            Value::List(list) => Ok(list.clone()),
            other => Err(self.wrong(
                key,
                format!(
                    "is {}, but must be a list of texts such as [\"/one\", \"/two\"]",
                    other.type_name()
                ),
            )),
        }
    }
}

fn convert(value: &DeValue<'_>) -> Value {
    let texts = |list: &toml::de::DeArray<'_>| -> Option<Vec<String>> {
        list.iter()
            .map(|item: &Spanned<DeValue<'_>>| item.get_ref().as_str().map(str::to_owned))
            .collect()
    };
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(digits) => i64::from_str_radix(digits.as_str(), digits.radix())
            .map_or(Value::Other("a number that is too large"), Value::Integer),
        DeValue::Array(list) => texts(list).map_or(
            Value::Other("a list of other things than texts"),
            Value::List,
        ),
        DeValue::Float(_) => Value::Other("a number with a fraction"),
        DeValue::Boolean(_) => Value::Other("true or false"),
        DeValue::Datetime(_) => Value::Other("a date"),
        DeValue::Table(_) => Value::Other("a table"),
    }
}

/// What is said about a key that is not known, with the nearest one that is.
fn unknown(key: &str) -> String {
    // A right name in a wrong section is nearer than any spelling.
    let last = |key: &str| key.rsplit('.').next().map(str::to_owned);
    let nearest = KEYS
        .iter()
        .map(|known| {
            (
                if last(known.key) == last(key) {
                    1
                } else {
                    distance(known.key, key)
                },
                known.key,
            )
        })
        .min_by_key(|(distance, _)| *distance);
    match nearest {
        Some((distance, near)) if distance <= key.len().div_ceil(2) => {
            format!("is not a known key; did you mean {near}?")
        }
        _ => {
            let section = key.split_once('.').map_or(key, |(section, _)| section);
            let mut known: Vec<&str> = KEYS
                .iter()
                .map(|known| known.key)
                .filter(|known| known.starts_with(&format!("{section}.")))
                .collect();
            if known.is_empty() {
                known = KEYS
                    .iter()
                    .filter_map(|known| known.key.rsplit_once('.'))
                    .map(|(section, _)| section)
                    .collect();
                known.dedup();
                return format!(
                    "is not a known section; the sections are {}",
                    known.join(", ")
                );
            }
            format!(
                "is not a known key; the keys of this section are {}",
                known.join(", ")
            )
        }
    }
}

/// Edits that lead from one text to the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, character) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for column in 1..=to.len() {
            let replaced = diagonal + usize::from(character != to[column - 1]);
            diagonal = row[column];
            row[column] = replaced.min(diagonal + 1).min(row[column - 1] + 1);
        }
    }
    row[to.len()]
}
