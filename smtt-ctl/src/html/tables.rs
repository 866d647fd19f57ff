//! Tables of the document. As in the terminal's tables, columns without any value are left out.

use smtt_model::units;

use super::markup::Markup;

/// One value of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Nothing was measured.
    Absent,
    /// A number: as it is sorted, and as it is shown.
    Number(f64, String),
    /// A trusted word.
    Value(String),
    /// An untrusted name, with details below.
    Name(String, String),
    /// Parts of a whole: class of the colour, size, name.
    Parts(Vec<(String, u64, String)>),
    /// A part of an axis: class of the colour, begin and end as shares of it.
    Span {
        /// Class of the colour.
        class: &'static str,
        /// Begin, from 0 to 1.
        begin: f64,
        /// End, from `begin` to 1.
        end: f64,
    },
}

impl Cell {
    /// A whole number that may be absent.
    pub fn maybe(value: Option<u64>, shown: impl FnOnce(u64) -> String) -> Self {
        value.map_or(Self::Absent, |value| {
            Self::Number(value as f64, shown(value))
        })
    }

    /// A real number that may be absent.
    pub fn real(value: Option<f64>, shown: impl FnOnce(f64) -> String) -> Self {
        value.map_or(Self::Absent, |value| Self::Number(value, shown(value)))
    }

    /// Trusted words that may be absent.
    pub fn words(words: Option<String>) -> Self {
        words.map_or(Self::Absent, Self::Value)
    }

    /// A count.
    pub fn count(value: u64) -> Self {
        Self::Number(value as f64, units::count(value))
    }
}

/// One column.
#[derive(Clone, Debug)]
pub struct Column {
    /// Heading of the column.
    pub heading: String,
    /// Explanation of the column.
    pub means: String,
    /// Values, one for each row.
    pub cells: Vec<Cell>,
}

impl Column {
    /// A column of one value for each of the rows.
    pub fn new<Row>(heading: &str, means: &str, rows: &[Row], cell: impl Fn(&Row) -> Cell) -> Self {
        Self {
            heading: heading.to_owned(),
            means: means.to_owned(),
            cells: rows.iter().map(cell).collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.cells.iter().all(|cell| match cell {
            Cell::Absent => true,
            Cell::Parts(parts) => parts.is_empty(),
            Cell::Number(..) | Cell::Value(_) | Cell::Name(..) | Cell::Span { .. } => false,
        })
    }

    fn class(&self) -> &'static str {
        match self.cells.first() {
            Some(Cell::Name(..) | Cell::Parts(_) | Cell::Span { .. }) => "words",
            _ => "",
        }
    }
}

/// Writes a table and returns the headings of the columns that had no value.
pub fn table(markup: &mut Markup, id: &str, columns: Vec<Column>) -> Vec<String> {
    let rows = columns
        .iter()
        .map(|column| column.cells.len())
        .max()
        .unwrap_or(0);
    let (absent, columns): (Vec<Column>, Vec<Column>) =
        columns.into_iter().partition(Column::is_empty);
    let frame = [
        ("class", "wide"),
        // A part of the page that scrolls can be reached without a mouse.
        ("tabindex", "0"),
    ];
    markup.element("div", &frame, |wide| {
        wide.element("table", &[("class", "data"), ("id", id)], |table| {
            table.element("thead", &[], |head| {
                head.element("tr", &[], |row| {
                    for column in &columns {
                        let attributes = [
                            ("class", column.class()),
                            ("title", column.means.as_str()),
                            ("scope", "col"),
                        ];
                        row.line("th", &attributes, &column.heading);
                    }
                });
            });
            table.element("tbody", &[], |body| {
                for at in 0..rows {
                    body.element("tr", &[], |row| {
                        for column in &columns {
                            cell(row, &column.cells[at]);
                        }
                    });
                }
            });
        });
    });
    absent.into_iter().map(|column| column.heading).collect()
}

fn cell(row: &mut Markup, cell: &Cell) {
    match cell {
        Cell::Absent => row.line("td", &[("class", "soft"), ("title", "not measured")], "–"),
        Cell::Number(number, shown) => row.line("td", &[("data-sort", &number.to_string())], shown),
        Cell::Value(value) => row.line("td", &[], value),
        Cell::Name(name, more) => row.element("td", &[("class", "name")], |inside| {
            inside.claimed(name);
            if !more.is_empty() {
                inside.line("small", &[], more);
            }
        }),
        Cell::Span { class, begin, end } => {
            let sort = begin.to_string();
            row.element(
                "td",
                &[("class", "words"), ("data-sort", &sort)],
                |inside| {
                    inside.element("span", &[("class", "bar axis")], |bar| {
                        let place = format!(
                            "margin-left:{:.2}%;width:{:.2}%",
                            100.0 * begin,
                            100.0 * (end - begin).max(0.0)
                        );
                        bar.element("i", &[("class", class), ("style", &place)], |_| {});
                    });
                },
            )
        }
        Cell::Parts(parts) => row.element("td", &[("class", "words")], |inside| {
            let all: u64 = parts
                .iter()
                .map(|(_, size, _)| *size)
                .fold(0, u64::saturating_add);
            inside.element("span", &[("class", "bar")], |bar| {
                for (class, size, _) in parts {
                    let width = format!("width:{:.1}%", 100.0 * *size as f64 / all.max(1) as f64);
                    bar.element("i", &[("class", class), ("style", &width)], |_| {});
                }
            });
            let words: Vec<String> = parts
                .iter()
                // Keeps a share and its name on one line.
                .map(|(_, size, name)| {
                    format!(
                        "{name} {}",
                        units::whole_share(*size as f64 / all.max(1) as f64)
                    )
                    .replace(' ', "\u{a0}")
                })
                .collect();
            inside.line("span", &[("class", "said")], &words.join(", "));
        }),
    };
}
