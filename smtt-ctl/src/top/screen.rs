//! The display of `smtt-ctl top`: what keys do, and what is drawn.

use std::collections::HashMap;
use std::time::Instant;

use clap::ValueEnum as _;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::Paragraph;
use serde_json::{Map, Value};
use smtt_model::ledger::{Hop, NEWER_MARKER, UNREGISTERED};
use smtt_model::protocol::Status;
use smtt_model::rows::Summary;
use smtt_model::units;

use super::Place;
use super::order::{Order, RATE, add_rates, add_sums, has, identity, sort};
use super::{Answer, VIEWS};
use crate::args::{By, Filters};
use crate::cluster::{WORKER, with_host};
use crate::columns::ListingKind;
use crate::groups::Of;
use crate::table::{self, Column, Form, column};
use crate::{Output, status};

/// Rows that a page key moves by.
const PAGE: usize = 10;
/// Characters of a filter.
const TYPED: usize = 100;

const HELP: &str = "\
q             quit
1 2 3 4 5     RDDs, stages, tasks, executors, blocks (Tab, left and right: the next one)
up down       choose a row (j k, PageUp, PageDown, Home, End)
Enter         go into the row: an executor's RDDs, a stage's tasks, a group's RDDs, an RDD's blocks; else all its fields
i             all fields of the row
< >           sort by the column before or after
r             turn the order around
s             back to the first order: page faults per second
b             add up RDDs, or blocks, by query, plan node, call site, name, RDD; then single rows again
/             show rows that have a text; Enter ends it, Esc shows all rows again
Esc           back
?             this help
";

/// Action of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Quit,
    Ask,
    Nothing,
}

/// State of the display.
#[derive(Debug, Default)]
pub struct Screen {
    /// The way to what is shown, which is its last place.
    way: Vec<Place>,
    of_cluster: bool,
    /// Index of the chosen row among those that are shown.
    chosen: usize,
    orders: [Option<Order>; VIEWS.len()],
    wanted: String,
    is_typing: bool,
    shows_help: bool,
    /// Identity of the row all of whose fields are shown.
    fields_of: Option<String>,
    scroll: usize,
    status: Option<Status>,
    workers: Option<String>,
    rows: Vec<Map<String, Value>>,
    summary: Summary,
    total_rate: Option<f64>,
    error: Option<String>,
    before: HashMap<String, u64>,
    before_total: Option<u64>,
    before_at: Option<Instant>,
}

impl Screen {
    /// The display of the first view, of rows with these conditions.
    pub fn new(filter: Filters, by: Option<By>, of_cluster: bool) -> Self {
        let first = Place {
            filter,
            by,
            ..Place::default()
        };
        Self {
            way: vec![first],
            of_cluster,
            ..Self::default()
        }
    }

    /// What is shown.
    pub fn place(&self) -> &Place {
        const FIRST: &Place = &Place {
            view: 0,
            filter: Filters {
                app: None,
                user: None,
                executor: None,
                rdd: None,
                stage: None,
            },
            by: None,
            group: None,
            worker: None,
            from: String::new(),
        };
        self.way.last().unwrap_or(FIRST)
    }

    #[cfg(test)]
    pub(super) fn rows(&self) -> &[Map<String, Value>] {
        &self.rows
    }

    fn kind(&self) -> ListingKind {
        let kind = VIEWS[self.place().view];
        if let Some((of, by)) = self.place().groups() {
            of.kind(by)
        } else if self.of_cluster {
            with_host(kind)
        } else {
            *kind
        }
    }

    /// Columns of the view, with the rate after the count of page faults.
    fn columns(&self) -> Vec<Column> {
        let kind = self.kind();
        let mut columns = kind.columns.to_vec();
        if kind.shows_faults {
            let faults = columns.iter().position(|it| it.field == "page_faults");
            let after = faults.map_or(columns.len(), |at| at + 1);
            columns.insert(after, column(RATE, "/S", Form::Count, 0));
        }
        columns
    }

    /// Rows that the filter leaves, in their order.
    fn shown(&self) -> Vec<&Map<String, Value>> {
        let columns = self.columns();
        let rows = self.rows.iter();
        rows.filter(|row| has(row, &columns, &self.wanted))
            .collect()
    }

    /// Does what a key says.
    pub fn key(&mut self, key: KeyEvent) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::Nothing;
        }
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Action::Quit;
        }
        if self.is_typing {
            self.typed(key.code);
            return Action::Nothing;
        }
        let last = self.shown().len().saturating_sub(1);
        let views = VIEWS.len();
        let view = self.place().view;
        let is_list = self.fields_of.is_none() && !self.shows_help;
        let at = if is_list {
            &mut self.chosen
        } else {
            &mut self.scroll
        };
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Esc | KeyCode::Backspace => return self.back(key.code == KeyCode::Esc),
            KeyCode::Tab | KeyCode::Right => return self.show((view + 1) % views),
            KeyCode::BackTab | KeyCode::Left => return self.show((view + views - 1) % views),
            KeyCode::Char(digit @ '1'..='5') => return self.show(digit as usize - '1' as usize),
            KeyCode::Down | KeyCode::Char('j') => *at += 1,
            KeyCode::Up | KeyCode::Char('k') => *at = at.saturating_sub(1),
            KeyCode::PageDown => *at += PAGE,
            KeyCode::PageUp => *at = at.saturating_sub(PAGE),
            KeyCode::Home => *at = 0,
            KeyCode::End => *at = last,
            KeyCode::Char('?' | 'h') => {
                self.shows_help = !self.shows_help;
                self.scroll = 0;
            }
            KeyCode::Char('/') => {
                self.is_typing = true;
                self.chosen = 0;
            }
            KeyCode::Char('>') => self.sort_by_next(true),
            KeyCode::Char('<') => self.sort_by_next(false),
            KeyCode::Char('r') => {
                let field = self
                    .order()
                    .map_or_else(|| self.first_field(), |it| it.field);
                let rises = self.order().is_none_or(|it| !it.rises);
                self.set_order(Some(Order { field, rises }));
            }
            KeyCode::Char('s') => self.set_order(None),
            KeyCode::Char('b') if is_list => return self.group_by_next(),
            KeyCode::Char('i') if is_list => self.open(),
            KeyCode::Enter if is_list => return self.enter(),
            _ => {}
        }
        self.chosen = self.chosen.min(last);
        Action::Nothing
    }

    /// A key of the filter.
    fn typed(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.wanted.clear();
            }
            KeyCode::Backspace => {
                self.wanted.pop();
            }
            KeyCode::Char(letter) if self.wanted.chars().count() < TYPED => {
                self.wanted.push(letter);
            }
            _ => {}
        }
        self.chosen = 0;
    }

    /// One step back; at the first place only Esc quits.
    fn back(&mut self, may_quit: bool) -> Action {
        if self.shows_help {
            self.shows_help = false;
        } else if self.fields_of.is_some() {
            self.fields_of = None;
        } else if !self.wanted.is_empty() {
            self.wanted.clear();
        } else if self.way.len() > 1 {
            self.way.pop();
            return self.renewed();
        } else if may_quit {
            return Action::Quit;
        }
        Action::Nothing
    }

    /// Shows a view, of the rows that the first question is about.
    fn show(&mut self, view: usize) -> Action {
        self.way.truncate(1);
        if let Some(first) = self.way.first_mut() {
            first.view = view;
        }
        self.renewed()
    }

    /// Adds rows up by what is next, or by nothing again.
    fn group_by_next(&mut self) -> Action {
        let Some(place) = self.way.last_mut() else {
            return Action::Nothing;
        };
        if place.group.is_some() || Of::listing(VIEWS[place.view]).is_none() {
            return Action::Nothing;
        }
        let all = By::value_variants();
        let next = place
            .by
            .and_then(|by| all.iter().position(|it| *it == by))
            .map_or(0, |at| at + 1);
        place.by = all.get(next).copied();
        // Groups have other columns.
        self.orders[place.view] = None;
        self.renewed()
    }

    /// Nothing is known of the rows of another place yet.
    fn renewed(&mut self) -> Action {
        self.chosen = 0;
        self.scroll = 0;
        self.wanted.clear();
        self.shows_help = false;
        self.fields_of = None;
        self.rows.clear();
        self.before.clear();
        self.before_total = None;
        Action::Ask
    }

    fn chosen_row(&self) -> Option<&Map<String, Value>> {
        self.shown().get(self.chosen).copied()
    }

    /// Shows all fields of the chosen row.
    fn open(&mut self) {
        self.fields_of = self.chosen_row().map(identity);
        self.scroll = 0;
    }

    /// Goes into the chosen row.
    fn enter(&mut self) -> Action {
        let Some(row) = self.chosen_row() else {
            return Action::Nothing;
        };
        let Some(within) = self.place().within(row) else {
            // There is nothing in a task, a block or a row without an id.
            self.open();
            return Action::Nothing;
        };
        self.way.push(within);
        self.renewed()
    }

    fn order(&self) -> Option<Order> {
        self.orders[self.place().view]
    }

    /// The field that rows are sorted by at first.
    fn first_field(&self) -> &'static str {
        let columns = self.columns();
        let first = columns.iter().find(|column| column.field == RATE);
        first.map_or("storage_memory_bytes", |column| column.field)
    }

    fn set_order(&mut self, order: Option<Order>) {
        let view = self.place().view;
        self.orders[view] = order;
        sort(&mut self.rows, order);
        self.chosen = 0;
    }

    /// Sorts by the column after that of the current order, or before it: numbers fall, text rises.
    fn sort_by_next(&mut self, is_after: bool) {
        let columns = self.columns();
        let field = self
            .order()
            .map_or_else(|| self.first_field(), |it| it.field);
        let at = columns.iter().position(|column| column.field == field);
        let at = at.unwrap_or(0);
        let next = match is_after {
            true => (at + 1) % columns.len(),
            false => (at + columns.len() - 1) % columns.len(),
        };
        let rises = matches!(
            columns[next].form,
            Form::Text | Form::Title | Form::Level | Form::Word | Form::User | Form::YesNo
        );
        let field = columns[next].field;
        self.set_order(Some(Order { field, rises }));
    }

    /// Keeps the last figures, and says why there are no newer ones.
    pub fn fail(&mut self, error: String) {
        self.error = Some(error);
    }

    /// Applies a response received at `now`.
    pub(super) fn apply(&mut self, answer: Answer, now: Instant) {
        let kept = self.chosen_row().map(identity).filter(|_| self.chosen > 0);
        let since = self
            .before_at
            .map(|before| now.saturating_duration_since(before));
        let seconds = since
            .map(|since| since.as_secs_f64())
            .filter(|it| *it > 0.0);
        let mut rows = answer.rows.rows;
        // Groups are added up from rows of that worker.
        let worker = self.place().worker.as_ref();
        if let Some(worker) = worker.filter(|_| self.place().groups().is_none()) {
            rows.retain(|row| row.get(WORKER).and_then(Value::as_str) == Some(worker));
        }
        let filter = &self.place().filter;
        let shows_all = filter.rdd.is_none() && filter.stage.is_none();
        self.before = match self.place().groups() {
            Some(_) => add_sums(&mut rows, answer.work, &self.before, seconds, shows_all),
            None => add_rates(&mut rows, &self.before, seconds),
        };
        // A worker that is missing, or back, changes the total by all of its faults.
        let are_same = answer.workers == self.workers;
        sort(&mut rows, self.order());
        self.total_rate = answer
            .rows
            .summary
            .page_faults
            .filter(|_| are_same)
            .and_then(|total| Some(total.saturating_sub(self.before_total?) as f64 / seconds?));
        self.before_total = answer.rows.summary.page_faults;
        self.before_at = Some(now);
        self.rows = rows;
        self.summary = answer.rows.summary;
        self.status = answer.status;
        self.workers = answer.workers;
        self.error = None;
        // The chosen row stays the chosen one, wherever it is now.
        let shown = self.shown();
        let last = shown.len().saturating_sub(1);
        let found = kept.and_then(|kept| shown.iter().position(|row| identity(row) == kept));
        self.chosen = found.unwrap_or(self.chosen).min(last);
    }

    fn head(&self) -> Vec<String> {
        let faults = match (self.summary.page_faults, self.summary.unattributed_share) {
            (None, _) => "page faults: not measured".to_owned(),
            (Some(all), share) => {
                let rate = self.total_rate.map_or_else(String::new, |rate| {
                    format!(", {}/s", units::count(rate.round() as u64))
                });
                let share = share.map_or_else(String::new, |share| {
                    format!(", unattributed {}", units::share(share))
                });
                format!("page faults: {}{rate}{share}", units::count(all))
            }
        };
        let executors = format!("executors: {}  {faults}", self.summary.executors);
        if let Some(workers) = &self.workers {
            let said = self.error.clone().unwrap_or_else(|| workers.clone());
            return vec![format!("cluster: {said}"), String::new(), executors];
        }
        let Some(status) = &self.status else {
            return vec!["smtt-daemon: no answer yet".to_owned()];
        };
        let state = match &self.error {
            Some(error) => error.clone(),
            None if status.degraded.is_empty() => "all is well".to_owned(),
            None => format!("degraded: {}", status.degraded.join("; ")),
        };
        let lost: u64 = status
            .ledger
            .iter()
            // Facts of processes that are no executors are no loss of an executor, and those that only a newer marker
            // tells are in no figure.
            .filter(|hop| ![UNREGISTERED, NEWER_MARKER].contains(&hop.name.as_str()))
            .map(Hop::lost_total)
            .fold(0, u64::saturating_add);
        vec![
            format!("smtt-daemon {}: {state}", status.version),
            status::own_figures(&status.daemon),
            format!("{executors}  records lost: {}", units::count(lost)),
        ]
    }

    /// What is shown: the way to it, its rows and their order.
    fn whereabouts(&self, shown: usize) -> String {
        let way = self.way.iter().skip(1);
        let way: String = way.map(|place| format!("{} > ", place.from)).collect();
        let kind = self.kind();
        let order = match self.order() {
            None => String::new(),
            Some(order) => {
                let columns = self.columns();
                let column = columns.iter().find(|column| column.field == order.field);
                let heading = column.map_or(order.field, |column| column.heading);
                let way = if order.rises { "rising" } else { "falling" };
                format!("  by {heading}, {way}")
            }
        };
        let filter = match (self.is_typing, self.wanted.is_empty()) {
            (true, _) => format!("  /{}_", self.wanted),
            (false, true) => String::new(),
            (false, false) => format!("  /{}", self.wanted),
        };
        let rows = match shown == self.rows.len() {
            true => units::count(shown as u64),
            false => format!("{shown} of {}", self.rows.len()),
        };
        format!("{way}{}: {rows}{order}{filter}", kind.what)
    }

    /// Draws everything.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let head = self.head();
        let areas = Layout::vertical([
            Constraint::Length(u16::try_from(head.len()).unwrap_or(3)),
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(1),
        ])
        .split(frame.area());
        let width = usize::from(frame.area().width);
        let cut = |line: &str| Line::raw(table::cut(line, width));
        let head: Vec<Line<'_>> = head.iter().map(|line| cut(line)).collect();
        frame.render_widget(Paragraph::new(head), areas[0]);
        let shown = self.shown();
        let place = self.whereabouts(shown.len());
        frame.render_widget(Paragraph::new(cut(&place)), areas[1]);
        let height = usize::from(areas[2].height);
        let body = self.body(&shown, width, height);
        frame.render_widget(Paragraph::new(Text::from(body)), areas[2]);
        let view = self.place().view;
        let views = VIEWS.iter().enumerate().map(|(index, kind)| {
            let mark = if index == view { "*" } else { "" };
            format!("{}{mark} {}", index + 1, kind.what)
        });
        let views: Vec<String> = views.collect();
        let keys = format!("q quit  ? help  {}", views.join("  "));
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let keys = Line::styled(table::cut(&keys, width), bold);
        frame.render_widget(Paragraph::new(keys), areas[3]);
    }

    /// The lines between head and keys.
    fn body(
        &self,
        shown: &[&Map<String, Value>],
        width: usize,
        height: usize,
    ) -> Vec<Line<'static>> {
        let plain = |lines: Vec<String>| -> Vec<Line<'static>> {
            let most = lines.len().saturating_sub(1);
            let lines = lines.into_iter().skip(self.scroll.min(most)).take(height);
            lines
                .map(|line| Line::raw(table::cut(&line, width)))
                .collect()
        };
        if self.shows_help {
            return plain(HELP.lines().map(str::to_owned).collect());
        }
        if let Some(of) = &self.fields_of {
            let row = self.rows.iter().find(|row| identity(row) == *of);
            return plain(match row {
                Some(row) => fields(row),
                None => vec!["the row is gone (Esc goes back)".to_owned()],
            });
        }
        if shown.is_empty() {
            return plain(vec![format!("no {}", self.kind().what)]);
        }
        let mut columns = self.columns();
        if let Some(order) = self.order() {
            // What rows are sorted by is in sight.
            let sorted = columns.iter_mut().filter(|it| it.field == order.field);
            sorted.for_each(|column| column.rank = 0);
        }
        let output = Output {
            width: Some(width),
            ..Output::default()
        };
        let room = height.saturating_sub(1).max(1);
        let first = (self.chosen + 1).saturating_sub(room);
        let seen: Vec<Map<String, Value>> = shown
            .iter()
            .skip(first)
            .take(room)
            .map(|row| (*row).clone())
            .collect();
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let reversed = Style::new().add_modifier(Modifier::REVERSED);
        let text = table::render(&columns, &seen, output);
        let lines = text.lines().enumerate().map(|(at, line)| {
            let line = line.to_owned();
            match at {
                0 => Line::styled(line, bold),
                at if first + at - 1 == self.chosen => Line::styled(line, reversed),
                _ => Line::raw(line),
            }
        });
        lines.collect()
    }
}

/// Fields of a row, a line each.
fn fields(row: &Map<String, Value>) -> Vec<String> {
    let width = row.keys().map(String::len).max().unwrap_or(0);
    let values = row.iter().filter(|(_, value)| !value.is_null());
    values
        .map(|(field, value)| {
            let value = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            format!("{field:width$}  {value}")
        })
        .collect()
}
