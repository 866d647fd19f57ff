//! Tables that the server sorts, filters and cuts into pages. The address has what was asked for, so it can be shared.

use std::borrow::Cow;
use std::cmp::Ordering;

use maud::{Markup, html};
use serde_json::Value;

use super::place::quoted;
use super::shown::Cell;
use crate::serve::Refusal;
use crate::serve::routes::Parameters;

/// Rows of a page, and rows of a page at most.
const ROWS: (usize, usize) = (50, 500);

/// A column's name in addresses and its title.
pub type Head = (&'static str, &'static str);

/// The part of a table that is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// Column and whether the largest is first; `None` for the table's own order.
    pub sort: Option<(String, bool)>,
    /// Rows that are skipped.
    pub offset: usize,
    /// Rows that are shown at most.
    pub length: usize,
    /// Text that a row must have.
    pub search: String,
    /// All parameters, for addresses of other parts.
    all: Vec<(String, String)>,
}

impl Request {
    /// From an address.
    pub fn new(parameters: &Parameters) -> Result<Self, Refusal> {
        let size = |number: i64| usize::try_from(number).unwrap_or(0);
        let sort = parameters.one("sort").filter(|sort| !sort.is_empty());
        Ok(Self {
            sort: sort.map(|sort| match sort.strip_prefix('-') {
                Some(column) => (column.to_owned(), true),
                None => (sort.to_owned(), false),
            }),
            offset: size(parameters.number("offset", 0)?),
            length: size(parameters.number("length", ROWS.0 as i64)?).clamp(1, ROWS.1),
            search: parameters.one("q").unwrap_or_default().to_lowercase(),
            all: parameters.0.clone(),
        })
    }

    /// The query of the same table with another value of a parameter, from its first row.
    pub fn with(&self, name: &str, value: &str) -> String {
        let kept = self
            .all
            .iter()
            .filter(|(key, value)| key != name && key != "offset" && !value.is_empty());
        let kept = kept.map(|(key, value)| (key.as_str(), value.as_str()));
        let all = kept.chain((!value.is_empty()).then_some((name, value)));
        let all: Vec<String> = all
            .map(|(key, value)| format!("{}={}", quoted(key), quoted(value)))
            .collect();
        format!("?{}", all.join("&"))
    }

    /// The parameter's value.
    pub fn value(&self, name: &str) -> &str {
        let found = self.all.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value)
    }

    /// Positions of the rows that are on the page, of so many.
    pub fn page(&self, total: usize) -> std::ops::Range<usize> {
        let first = self.offset.min(total);
        first..(first + self.length).min(total)
    }
}

/// How two cells are ordered: numbers, then texts; absent ones are last either way.
pub fn order(left: &Cell, right: &Cell, largest_first: bool) -> Ordering {
    let is_absent = |cell: &Cell| *cell == Cell::Absent;
    let by_value = match (left.key(), right.key()) {
        (Some(left), Some(right)) => left.cmp(&right),
        _ => left.words().cmp(&right.words()),
    };
    let by_value = if largest_first {
        by_value.reverse()
    } else {
        by_value
    };
    is_absent(left).cmp(&is_absent(right)).then(by_value)
}

/// A filter of a table: parameter, title and choices.
pub struct Choice<'a> {
    /// Name of the parameter.
    pub name: &'static str,
    /// Label of the field.
    pub title: &'static str,
    /// Values to choose from; empty for a field to write in.
    pub values: &'a [&'a str],
}

/// The form of a table's filters.
pub fn form(request: &Request, search: &str, choices: &[Choice<'_>]) -> Markup {
    let sort = request.value("sort");
    let is_filter = |key: &str| key == "q" || choices.iter().any(|choice| choice.name == key);
    let others = request.all.iter().filter(|(key, value)| {
        !is_filter(key) && key != "offset" && key != "sort" && !value.is_empty()
    });
    html! {
        form.filters method="get" {
            @if !search.is_empty() {
                label { (search) " " input type="search" name="q" value=(request.value("q")) maxlength="200"; }
            }
            @for choice in choices {
                label {
                    (choice.title) " "
                    @if choice.values.is_empty() {
                        input name=(choice.name) value=(request.value(choice.name)) size="8" maxlength="200";
                    } @else {
                        select name=(choice.name) {
                            option value="" { "all" }
                            @for value in choice.values {
                                option value=(value) selected[request.value(choice.name) == *value] { (value) }
                            }
                        }
                    }
                }
            }
            @if !sort.is_empty() { input type="hidden" name="sort" value=(sort); }
            @for (key, value) in others { input type="hidden" name=(key) value=(value); }
            button { "Filter" }
            " " a href="?" { "Clear" }
        }
    }
}

/// A page of rows with its head and the addresses of other pages.
pub fn rows(
    request: &Request,
    id: &str,
    caption: &str,
    heads: &[Head],
    total: usize,
    page: &[Vec<Cell>],
) -> Markup {
    let part = request.page(total);
    // A column of texts may have rows without one.
    let is_text = |column: usize| page.iter().any(|row| row[column].is_text());
    html! {
        div.wide tabindex="0" role="region" aria-label=(caption) {
            table.data id=(id) {
                caption { (caption) }
                thead { tr {
                    @for (at, (key, title)) in heads.iter().enumerate() {
                        (head(request, key, title, is_text(at)))
                    }
                } }
                tbody {
                    @for row in page {
                        tr { @for (at, cell) in row.iter().enumerate() { td class=[is_text(at).then_some("words")] { (cell.shown()) } } }
                    }
                }
            }
        }
        @if total == 0 { p.empty { "None." } }
        nav.pages aria-label="Pages" {
            @if part.start > 0 {
                @let before = part.start.saturating_sub(request.length).to_string();
                a rel="prev" href=(at(request, &before)) { "← before" }
            }
            span { (if total == 0 { 0 } else { part.start + 1 }) " to " (part.end) " of " (total) }
            @if part.end < total {
                a rel="next" href=(at(request, &part.end.to_string())) { "after →" }
            }
        }
    }
}

fn at(request: &Request, offset: &str) -> String {
    let query = request.with("offset", "");
    let and = if query == "?" { "" } else { "&" };
    format!("{query}{and}offset={offset}")
}

fn head(request: &Request, key: &str, title: &str, is_text: bool) -> Markup {
    let sorted = request.sort.as_ref().filter(|(column, _)| column == key);
    let down = sorted.map(|(_, down)| *down);
    // Numbers are asked for with the largest first, texts with the first.
    let next = match down {
        Some(true) => key.to_owned(),
        Some(false) => format!("-{key}"),
        None if is_text => key.to_owned(),
        None => format!("-{key}"),
    };
    let direction = down.map(|down| if down { "descending" } else { "ascending" });
    html! {
        th class=[is_text.then_some("words")] scope="col" aria-sort=[direction] {
            a href=(request.with("sort", &next)) { (title) }
            @match down { Some(true) => " ▼", Some(false) => " ▲", None => "" }
        }
    }
}

/// A column of documents: its head and its value.
pub type Column<'a> = (Head, Box<dyn Fn(&Value) -> Cell + 'a>);

/// What a table has a row for: a document, or the text of one, which is parsed each time it is looked at. A parsed document
/// takes many times the bytes of its text, and an application may have 256 MiB of texts.
pub trait Row {
    /// The document.
    fn document(&self) -> Result<Cow<'_, Value>, Refusal>;
}

impl Row for Value {
    fn document(&self) -> Result<Cow<'_, Value>, Refusal> {
        Ok(Cow::Borrowed(self))
    }
}

impl Row for &str {
    fn document(&self) -> Result<Cow<'_, Value>, Refusal> {
        let parsed = serde_json::from_str(self).map_err(Refusal::failed)?;
        Ok(Cow::Owned(parsed))
    }
}

/// A table of documents: filtered by text and choices, sorted by a column, cut into pages. Of a document that is not on the
/// page the cell that it is sorted by is kept.
pub fn documents<R: Row>(
    request: &Request,
    id: &str,
    caption: &str,
    columns: &[Column<'_>],
    documents: &[R],
    keep: impl Fn(&Value) -> bool,
) -> Result<Markup, Refusal> {
    let sort = match &request.sort {
        None => None,
        Some((key, down)) => {
            let column = columns.iter().find(|((known, _), _)| known == key);
            let column =
                column.ok_or_else(|| Refusal::bad(format!("the table has no column {key}")))?;
            Some((&column.1, *down))
        }
    };
    let has = |document: &Value| {
        let finds = |cell: Cell| {
            let words = cell.words();
            words.is_some_and(|text| text.to_lowercase().contains(&request.search))
        };
        request.search.is_empty() || columns.iter().any(|(_, of)| finds(of(document)))
    };
    let mut all: Vec<(Cell, &R)> = Vec::new();
    for row in documents {
        let document = row.document()?;
        if keep(&document) && has(&document) {
            let by = sort.map_or(Cell::Absent, |(of, _)| of(&document));
            all.push((by, row));
        }
    }
    if let Some((_, down)) = sort {
        all.sort_by(|left, right| order(&left.0, &right.0, down));
    }
    let heads: Vec<Head> = columns.iter().map(|(head, _)| *head).collect();
    let cells = |row: &R| -> Result<Vec<Cell>, Refusal> {
        let document = row.document()?;
        Ok(columns.iter().map(|(_, of)| of(&document)).collect())
    };
    let shown = all[request.page(all.len())]
        .iter()
        .map(|(_, row)| cells(row));
    let shown = shown.collect::<Result<Vec<_>, _>>()?;
    Ok(rows(request, id, caption, &heads, all.len(), &shown))
}
