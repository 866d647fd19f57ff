//! Tables that fit the terminal: the least important columns are dropped first, and long text is cut in the middle.

use crate::earlier;
use crate::output::{self, Output};
use crate::users;
use serde_json::{Map, Value};
use smtt_model::units;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Blanks between two columns.
const GAP: &str = "  ";
/// Minimum width of a text column.
const TEXT_MIN: usize = 20;
/// Minimum width of a column that names the row.
const TITLE_MIN: usize = 32;
/// Maximum width of a text column, even where there is room.
const TEXT_MAX: usize = 48;
/// Characters of a text for each column of its width, with accents and the like.
const PER_COLUMN: usize = 4;
/// Placeholder for an absent value.
const ABSENT: &str = "-";
/// Placeholder for text that was cut.
const CUT: char = '…';

/// Format of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Text; may be cut.
    Text,
    /// Text that names the row; may be cut, but is wider.
    Title,
    /// A storage level by its name in Spark, or else by its description; may be cut.
    Level,
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
    /// An earlier run of the daemon, or the present one.
    Run,
    /// Holders of execution memory: name and size of the largest one, and the number of others.
    Holders,
}

impl Form {
    /// Whether the values are single numbers, which are aligned on the right.
    pub(super) const fn is_number(self) -> bool {
        match self {
            Self::Count
            | Self::Bytes
            | Self::Duration
            | Self::Share
            | Self::SmallShare
            | Self::Real
            | Self::Length => true,
            Self::Text
            | Self::Title
            | Self::Level
            | Self::Word
            | Self::User
            | Self::Run
            | Self::YesNo
            | Self::Holders => false,
        }
    }
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

/// A column, in one line.
pub(super) const fn column(
    field: &'static str,
    heading: &'static str,
    form: Form,
    rank: u8,
) -> Column {
    Column {
        field,
        heading,
        form,
        rank,
    }
}

impl Column {
    /// The value of a row, as text.
    #[must_use]
    pub fn cell(&self, row: &Map<String, Value>) -> String {
        let mut value = row.get(self.field).unwrap_or(&Value::Null);
        if self.form == Form::Level && value.is_null() {
            value = row.get("storage_level").unwrap_or(&Value::Null);
        }
        let whole = value.as_u64();
        match (self.form, value) {
            (Form::Run, _) => Some(earlier::word(value)),
            (_, Value::Null) => None,
            (_, Value::String(text)) if text.is_empty() => None,
            (Form::Text | Form::Title | Form::Level | Form::Word, Value::String(text)) => {
                Some(text.clone())
            }
            (Form::Text | Form::Title | Form::Level | Form::Word, other) => Some(other.to_string()),
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

    const fn is_text(&self) -> bool {
        matches!(self.form, Form::Text | Form::Title | Form::Level)
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

/// Cuts text in the middle, so that it is at most `width` columns wide: names of Spark differ at both ends. Characters
/// without a width are bounded by their number.
#[must_use]
pub fn cut(text: &str, width: usize) -> String {
    cut_to(text, width, width.saturating_mul(PER_COLUMN))
}

/// Cuts text as [`cut`], and to at most so many characters.
#[must_use]
pub fn cut_to(text: &str, width: usize, most: usize) -> String {
    if text.width() <= width && text.chars().count() <= most {
        return text.to_owned();
    }
    if width == 0 || most == 0 {
        return String::new();
    }
    let (room, most) = (width - 1, most - 1);
    let take = |characters: &mut dyn Iterator<Item = char>, room: usize, most: usize| {
        let mut used = 0;
        characters
            .take(most)
            .take_while(|character| {
                used += character.width().unwrap_or(0);
                used <= room
            })
            .collect::<Vec<char>>()
    };
    let head: String = take(&mut text.chars(), room.div_ceil(2), most.div_ceil(2))
        .into_iter()
        .collect();
    let tail: String = take(&mut text.chars().rev(), room / 2, most / 2)
        .into_iter()
        .rev()
        .collect();
    format!("{head}{CUT}{tail}")
}

/// A table as text, each line as wide as the output at most.
#[must_use]
pub fn render(columns: &[Column], rows: &[Map<String, Value>], output: Output) -> String {
    fit(columns, rows, output, false).text
}

/// A table as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Heading and rows, a line each.
    pub text: String,
    /// Columns with values that the width has no room for.
    pub hidden: usize,
}

/// A table that fits the output. With `keep` all columns stay: the lines may be wider.
#[must_use]
pub fn fit(columns: &[Column], rows: &[Map<String, Value>], output: Output, keep: bool) -> Table {
    // Columns without any value are dropped, except those that always stay.
    let mut columns: Vec<(Column, Vec<String>)> = columns
        .iter()
        .map(|column| {
            (
                *column,
                rows.iter().map(|row| column.cell(row)).collect::<Vec<_>>(),
            )
        })
        .collect();
    if output.form == output::Form::Plain {
        // Programs rely on the same columns in each answer.
        return Table {
            text: tabs(&columns, rows.len()),
            hidden: 0,
        };
    }
    let is_shown = |(column, cells): &(Column, Vec<String>)| {
        column.rank == 0 || cells.iter().any(|cell| cell != ABSENT)
    };
    columns.retain(is_shown);
    let natural = |(column, cells): &(Column, Vec<String>)| {
        let widest = cells
            .iter()
            .map(|cell| cell.width())
            .max()
            .unwrap_or(0)
            .max(column.heading.width());
        if column.is_text() {
            widest.min(TEXT_MAX)
        } else {
            widest
        }
    };
    let least = |column: &(Column, Vec<String>)| {
        if column.0.is_text() {
            let least = match column.0.form {
                Form::Title => TITLE_MIN,
                _ => TEXT_MIN,
            };
            natural(column).min(least.max(column.0.heading.width()))
        } else {
            natural(column)
        }
    };
    let limit = output.width.unwrap_or(usize::MAX);
    let all = columns.len();
    let gaps = |columns: usize| columns.saturating_sub(1) * GAP.len();
    while !keep && columns.iter().map(least).sum::<usize>() + gaps(columns.len()) > limit {
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
    let hidden = all - columns.len();
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
    let longest = if keep { usize::MAX } else { limit };
    let heading = line(
        &columns,
        &widths,
        |index| headings[index].to_owned(),
        longest,
    );
    text.push_str(&if output.styled {
        format!("\u{1b}[1m{heading}\u{1b}[0m\n")
    } else {
        format!("{heading}\n")
    });
    for row in 0..rows.len() {
        text.push_str(&line(
            &columns,
            &widths,
            |index| columns[index].1[row].clone(),
            longest,
        ));
        text.push('\n');
    }
    Table { text, hidden }
}

/// A table with a tab between two cells.
fn tabs(columns: &[(Column, Vec<String>)], rows: usize) -> String {
    // A tab in a name would begin another cell.
    let line = |cells: Vec<&str>| {
        let cells = cells
            .iter()
            .map(|cell| cell.replace(['\t', '\n', '\r'], " "));
        cells.collect::<Vec<_>>().join("\t") + "\n"
    };
    let mut text = line(columns.iter().map(|(column, _)| column.heading).collect());
    for row in 0..rows {
        text.push_str(&line(
            columns
                .iter()
                .map(|(_, cells)| cells[row].as_str())
                .collect(),
        ));
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
        text.push_str(&if column.form.is_number() {
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

    fn wide(width: Option<usize>) -> Output {
        Output {
            width,
            ..Output::default()
        }
    }

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
            for line in render(COLUMNS, &rows(), wide(Some(width))).lines() {
                assert!(line.width() <= width, "{width}: {line:?}");
            }
        }
    }

    #[test]
    fn the_least_important_column_goes_first_and_names_are_cut_in_the_middle() {
        let text = render(COLUMNS, &rows(), wide(Some(34)));
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
        let text = render(COLUMNS, &rows(), wide(None));
        assert!(text.contains("MEMORY"));
        assert!(text.contains("1.0 MiB"));
    }

    #[test]
    fn dropped_columns_are_counted_and_chosen_ones_stay() {
        let table = fit(COLUMNS, &rows(), wide(Some(34)), false);
        assert_eq!(table.hidden, 1);
        let table = fit(COLUMNS, &rows(), wide(Some(34)), true);
        assert_eq!(table.hidden, 0);
        assert!(table.text.contains("MEMORY"), "{}", table.text);
        assert!(table.text.lines().any(|line| line.width() > 34));
    }

    #[test]
    fn programs_get_tabs_and_whole_names() {
        let output = Output {
            form: output::Form::Plain,
            ..Output::default()
        };
        let text = fit(COLUMNS, &rows(), output, false).text;
        assert_eq!(
            text,
            "ID\tNAME\tMEMORY\tFAULTS\n7\tMapPartitionsRDD of a very long call site somewhere\t1.0 MiB\t1,234\n10\t-\t0 B\t-\n"
        );
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
        let accents = "e\u{301}".repeat(5);
        assert_eq!(cut(&accents, 5), accents);
        let flood = cut(&format!("a{}b", "\u{301}".repeat(10_000)), 5);
        assert!(
            flood.chars().count() <= 20 && flood.ends_with('b'),
            "{flood}"
        );
    }
}
