//! Tables that fit the terminal: the least important columns are dropped first, and long text is cut in the middle.

use crate::users;
use serde_json::{Map, Value};
use smtt_model::units;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Blanks between two columns.
const GAP: &str = "  ";
/// Minimum width of a text column.
const TEXT_MIN: usize = 20;
/// Maximum width of a text column, even where there is room.
const TEXT_MAX: usize = 48;
/// Placeholder for an absent value.
const ABSENT: &str = "-";
/// Placeholder for text that was cut.
const CUT: char = '…';

/// Format of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Text; may be cut.
    Text,
    /// An id or a short word; never cut.
    Word,
    /// A user, by the name in the users database.
    User,
    /// A count.
    Count,
    /// A size in bytes.
    Bytes,
    /// A duration in nanoseconds.
    Duration,
    /// A share from 0 to 1.
    Share,
    /// A small share, with two decimals.
    SmallShare,
    /// A real number that is no share.
    Real,
    /// Yes or no.
    YesNo,
    /// Number of elements of a list.
    Length,
    /// Holders of execution memory: name and size of the largest one, and the number of others.
    Holders,
}

/// One column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Field of the row.
    pub field: &'static str,
    /// Heading.
    pub heading: &'static str,
    /// Format of the values.
    pub form: Form,
    /// Columns with high numbers are dropped first where space is short; columns with 0 always stay.
    pub rank: u8,
}

impl Column {
    /// The value of a row, as text.
    #[must_use]
    pub fn cell(&self, row: &Map<String, Value>) -> String {
        let value = row.get(self.field).unwrap_or(&Value::Null);
        let whole = value.as_u64();
        match (self.form, value) {
            (_, Value::Null) => None,
            (_, Value::String(text)) if text.is_empty() => None,
            (Form::Text | Form::Word, Value::String(text)) => Some(text.clone()),
            (Form::Text | Form::Word, other) => Some(other.to_string()),
            (Form::User, _) => whole
                .and_then(|uid| u32::try_from(uid).ok())
                .map(users::name),
            (Form::Count, _) => whole.map(units::count),
            (Form::Bytes, _) => whole.map(units::bytes),
            (Form::Duration, _) => whole.map(units::duration),
            (Form::Share, _) => value.as_f64().map(units::share),
            (Form::SmallShare, _) => value.as_f64().map(units::small_share),
            (Form::Real, _) => value.as_f64().map(|value| format!("{value:.4}")),
            (Form::YesNo, _) => value
                .as_bool()
                .map(|yes| if yes { "yes" } else { "no" }.to_owned()),
            (Form::Holders, _) => holders(value),
            (Form::Length, _) => value.as_array().map(|list| units::count(list.len() as u64)),
        }
        .unwrap_or_else(|| ABSENT.to_owned())
    }

    const fn is_number(&self) -> bool {
        matches!(
            self.form,
            Form::Count
                | Form::Bytes
                | Form::Duration
                | Form::Share
                | Form::SmallShare
                | Form::Real
                | Form::Length
        )
    }
}

/// The largest holder of execution memory. An executor's row has a map by name, a task's row a list; in an ended task
/// the peak replaces the current bytes.
fn holders(value: &Value) -> Option<String> {
    let bytes = |row: &Value| {
        let of = |field: &str| row.get(field).and_then(Value::as_u64).unwrap_or(0);
        row.as_u64()
            .unwrap_or_else(|| of("bytes").max(of("peak_bytes")))
    };
    let all: Vec<(&str, u64)> = match value {
        Value::Object(map) => map
            .iter()
            .map(|(name, row)| (&**name, bytes(row)))
            .collect(),
        Value::Array(rows) => rows
            .iter()
            .filter_map(|row| Some((row.get("consumer")?.as_str()?, bytes(row))))
            .collect(),
        _ => return None,
    };
    let (name, bytes) = all.iter().max_by_key(|(_, bytes)| *bytes)?;
    let others = match all.len() - 1 {
        0 => String::new(),
        more => format!(" +{more}"),
    };
    Some(format!("{name} {}{others}", units::bytes(*bytes)))
}

/// Cuts text in the middle, so that it is at most `width` columns wide: names of Spark differ at both ends.
#[must_use]
pub fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    if width == 0 {
        return String::new();
    }
    let room = width - 1;
    let take = |characters: &mut dyn Iterator<Item = char>, room: usize| {
        let mut used = 0;
        characters
            .take_while(|character| {
                used += character.width().unwrap_or(0);
                used <= room
            })
            .collect::<Vec<char>>()
    };
    let head: String = take(&mut text.chars(), room.div_ceil(2))
        .into_iter()
        .collect();
    let tail: String = take(&mut text.chars().rev(), room / 2)
        .into_iter()
        .rev()
        .collect();
    format!("{head}{CUT}{tail}")
}

/// A table as text, each line at most `width` columns wide.
#[must_use]
pub fn render(
    columns: &[Column],
    rows: &[Map<String, Value>],
    width: Option<usize>,
    styled: bool,
) -> String {
    // Columns without any value are dropped, except those that always stay.
    let mut columns: Vec<(Column, Vec<String>)> = columns
        .iter()
        .map(|column| {
            (
                *column,
                rows.iter().map(|row| column.cell(row)).collect::<Vec<_>>(),
            )
        })
        .filter(|(column, cells)| column.rank == 0 || cells.iter().any(|cell| cell != ABSENT))
        .collect();
    let natural = |(column, cells): &(Column, Vec<String>)| {
        let widest = cells
            .iter()
            .map(|cell| cell.width())
            .max()
            .unwrap_or(0)
            .max(column.heading.width());
        if column.form == Form::Text {
            widest.min(TEXT_MAX)
        } else {
            widest
        }
    };
    let least = |column: &(Column, Vec<String>)| {
        if column.0.form == Form::Text {
            natural(column).min(TEXT_MIN.max(column.0.heading.width()))
        } else {
            natural(column)
        }
    };
    let limit = width.unwrap_or(usize::MAX);
    let gaps = |columns: usize| columns.saturating_sub(1) * GAP.len();
    while columns.iter().map(least).sum::<usize>() + gaps(columns.len()) > limit {
        let Some((last, _)) = columns
            .iter()
            .enumerate()
            .filter(|(_, (column, _))| column.rank > 0)
            .max_by_key(|(_, (column, _))| column.rank)
        else {
            break;
        };
        columns.remove(last);
    }
    // The remaining width goes to the text columns, in their order.
    let mut widths: Vec<usize> = columns.iter().map(least).collect();
    let mut left = limit.saturating_sub(widths.iter().sum::<usize>() + gaps(columns.len()));
    for (width, column) in widths.iter_mut().zip(&columns) {
        let more = (natural(column) - *width).min(left);
        *width += more;
        left -= more;
    }
    let mut text = String::new();
    let headings: Vec<&str> = columns.iter().map(|(column, _)| column.heading).collect();
    let heading = line(&columns, &widths, |index| headings[index].to_owned(), limit);
    text.push_str(&if styled {
        format!("\u{1b}[1m{heading}\u{1b}[0m\n")
    } else {
        format!("{heading}\n")
    });
    for row in 0..rows.len() {
        text.push_str(&line(
            &columns,
            &widths,
            |index| columns[index].1[row].clone(),
            limit,
        ));
        text.push('\n');
    }
    text
}

fn line(
    columns: &[(Column, Vec<String>)],
    widths: &[usize],
    cell: impl Fn(usize) -> String,
    limit: usize,
) -> String {
    let mut text = String::new();
    for (index, ((column, _), width)) in columns.iter().zip(widths).enumerate() {
        if index > 0 {
            text.push_str(GAP);
        }
        let cell = cut(&cell(index), *width);
        let blanks = " ".repeat(width.saturating_sub(cell.width()));
        text.push_str(&if column.is_number() {
            format!("{blanks}{cell}")
        } else {
            format!("{cell}{blanks}")
        });
    }
    // If even the columns that always stay are too wide, the line is cut so that the terminal does not wrap it.
    cut(text.trim_end(), limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const COLUMNS: &[Column] = &[
        Column {
            field: "id",
            heading: "ID",
            form: Form::Word,
            rank: 0,
        },
        Column {
            field: "name",
            heading: "NAME",
            form: Form::Text,
            rank: 1,
        },
        Column {
            field: "bytes",
            heading: "MEMORY",
            form: Form::Bytes,
            rank: 2,
        },
        Column {
            field: "faults",
            heading: "FAULTS",
            form: Form::Count,
            rank: 0,
        },
    ];

    fn rows() -> Vec<Map<String, Value>> {
        [
            json!({"id": 7, "name": "MapPartitionsRDD of a very long call site somewhere", "bytes": 1_048_576, "faults": 1234}),
            json!({"id": 10, "name": null, "bytes": 0, "faults": null}),
        ]
        .into_iter()
        .filter_map(|row| row.as_object().cloned())
        .collect()
    }

    #[test]
    fn every_line_fits() {
        for width in 1..120 {
            for line in render(COLUMNS, &rows(), Some(width), false).lines() {
                assert!(line.width() <= width, "{width}: {line:?}");
            }
        }
    }

    #[test]
    fn the_least_important_column_goes_first_and_names_are_cut_in_the_middle() {
        let text = render(COLUMNS, &rows(), Some(34), false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "ID  NAME                    FAULTS",
                "7   MapPartitio… somewhere   1,234",
                "10  -                            -"
            ]
        );
    }

    #[test]
    fn without_a_limit_nothing_is_dropped() {
        let text = render(COLUMNS, &rows(), None, false);
        assert!(text.contains("MEMORY"));
        assert!(text.contains("1.0 MiB"));
    }

    #[test]
    fn the_largest_holder_is_named() {
        let executor = serde_json::json!({"Sorter": 2048, "Map": 1024});
        assert_eq!(holders(&executor).as_deref(), Some("Sorter 2.0 KiB +1"));
        let task = serde_json::json!([{"consumer": "Map", "bytes": 0, "peak_bytes": 4096}]);
        assert_eq!(holders(&task).as_deref(), Some("Map 4.0 KiB"));
        assert_eq!(holders(&serde_json::json!([])), None);
    }

    #[test]
    fn cutting_keeps_both_ends() {
        assert_eq!(cut("abcdefghij", 5), "ab…ij");
        assert_eq!(cut("abc", 5), "abc");
        assert_eq!(cut("日本語日本語", 5), "日…語");
        assert_eq!(cut("abc", 0), "");
    }
}
