//! Values as people read them.

use maud::{Markup, html};
use serde_json::Value;
use smtt_model::units;

use crate::event::shortened;
use crate::json::milliseconds;

/// Characters of a text on a page, where it is not the page's subject.
const TEXT: usize = 300;

/// The first 300 characters of a text.
pub fn cut(text: &str) -> String {
    shortened(text, TEXT, "…")
}

/// Milliseconds since 1970 as a date.
pub fn date(unix_ms: i64) -> String {
    u64::try_from(unix_ms)
        .ok()
        .map(smtt_model::time::date)
        .unwrap_or_default()
}

/// A duration in milliseconds.
pub fn duration(ms: i64) -> String {
    let ms = u64::try_from(ms).unwrap_or_default();
    if ms == 0 {
        return "0 ms".to_owned();
    }
    units::duration(ms.saturating_mul(1_000_000))
}

/// A value in a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A value that is not known.
    Absent,
    /// A text from the log.
    Text(String),
    /// A text with the address of its page.
    Link(String, String),
    /// A number that is a name.
    Id(i64, Option<String>),
    Count(i64),
    Bytes(i64),
    /// A duration in milliseconds.
    Duration(i64),
    /// A duration in nanoseconds.
    Nanoseconds(i64),
    /// Milliseconds since 1970.
    Time(i64),
    /// A status word of Spark's.
    Status(String),
}

impl Cell {
    /// A field of a document as text.
    pub fn text(value: &Value) -> Self {
        match value {
            Value::String(text) if !text.is_empty() => Self::Text(text.clone()),
            _ => Self::Absent,
        }
    }

    /// A field of a document as a number.
    pub fn number(value: &Value, of: fn(i64) -> Self) -> Self {
        value.as_i64().map_or(Self::Absent, of)
    }

    /// A field of a document as a time.
    pub fn time(value: &Value) -> Self {
        let time = value.as_str().and_then(milliseconds);
        time.map_or(Self::Absent, Self::Time)
    }

    /// The number by which it sorts.
    pub fn key(&self) -> Option<i64> {
        match self {
            Self::Id(number, _)
            | Self::Count(number)
            | Self::Bytes(number)
            | Self::Duration(number)
            | Self::Nanoseconds(number)
            | Self::Time(number) => Some(*number),
            Self::Absent | Self::Text(_) | Self::Link(..) | Self::Status(_) => None,
        }
    }

    /// The text by which it sorts and is searched.
    pub fn words(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Link(text, _) | Self::Status(text) => Some(text),
            _ => None,
        }
    }

    /// Whether it stands at the left.
    pub fn is_text(&self) -> bool {
        matches!(self, Self::Text(_) | Self::Link(..) | Self::Status(_))
    }

    /// As it is written.
    pub fn shown(&self) -> Markup {
        html! {
            @match self {
                Self::Absent => span.soft title="not measured, or not yet" { "–" },
                Self::Text(text) => bdi { (cut(text)) },
                Self::Link(text, to) => a href=(to) { bdi { (cut(text)) } },
                Self::Id(number, Some(to)) => a href=(to) { (number) },
                Self::Id(number, None) => (number),
                Self::Count(number) => (count(*number)),
                Self::Bytes(number) => (bytes(*number)),
                Self::Duration(ms) => (duration(*ms)),
                Self::Nanoseconds(ns) => (units::duration(u64::try_from(*ns).unwrap_or_default())),
                Self::Time(ms) => (date(*ms)),
                Self::Status(text) => span class=(status(text)) { (cut(text)) },
            }
        }
    }
}

/// A count; negative ones come from damaged logs.
pub fn count(number: i64) -> String {
    u64::try_from(number).map_or_else(|_| number.to_string(), units::count)
}

/// Bytes; negative ones come from damaged logs.
pub fn bytes(number: i64) -> String {
    u64::try_from(number).map_or_else(|_| number.to_string(), units::bytes)
}

/// The class of a status word.
fn status(text: &str) -> &'static str {
    match text {
        "FAILED" => "status bad",
        "KILLED" | "SKIPPED" => "status none",
        "RUNNING" | "GET RESULT" | "ACTIVE" | "PENDING" => "status now",
        _ => "status",
    }
}

/// Pairs of names and values.
pub fn facts(pairs: &[(&str, Cell)]) -> Markup {
    html! {
        dl.facts {
            @for (name, value) in pairs {
                @if *value != Cell::Absent { div { dt { (name) } dd { (value.shown()) } } }
            }
        }
    }
}
