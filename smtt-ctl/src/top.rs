//! `smtt-ctl top`: live view of the listings.

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::pin::pin;
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::Paragraph;
use serde_json::{Map, Value};
use smtt_model::protocol::Status;
use smtt_model::sort::small::sort_by_key;
use smtt_model::units;

use super::args::Filters;
use super::columns::{self, ListingKind};
use super::listing::Rows;
use super::table::{self, Column, Form};
use super::{Exit, Failure, Output, status};
use crate::client::{Client, ClientError};

/// Maximum number of rows per request.
const ROWS: usize = 500;
/// Interval of looking for keys while an answer is awaited.
const KEYS: Duration = Duration::from_millis(50);
/// Field that `top` itself adds to rows.
const RATE: &str = "page_faults_per_second";

const VIEWS: [&ListingKind; 5] = [
    &columns::RDDS,
    &columns::STAGES,
    &columns::TASKS,
    &columns::EXECUTORS,
    &columns::BLOCKS,
];

/// State of the display.
#[derive(Debug, Default)]
pub struct Screen {
    view: usize,
    scroll: usize,
    status: Option<Status>,
    rows: Vec<Map<String, Value>>,
    summary: smtt_model::rows::Summary,
    total_rate: Option<f64>,
    error: Option<String>,
    before: HashMap<String, u64>,
    before_total: Option<u64>,
    before_at: Option<Instant>,
}

/// Runs the display until a key quits it.
pub(super) fn run(
    runtime: &tokio::runtime::Runtime,
    client: &Client,
    filter: &Filters,
    interval: Duration,
) -> Result<Exit, Failure> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let message = "top needs a terminal; for output to a file use smtt-ctl report or a listing";
        return Err(ClientError::Refused(message.to_owned()).into());
    }
    let mut screen = Screen::default();
    // An unreachable daemon is reported before the terminal changes its mode.
    screen.apply(
        runtime.block_on(ask(client, filter, screen.view))?,
        Instant::now(),
    );
    let mut terminal = ratatui::try_init()?;
    let result = live(
        runtime,
        client,
        filter,
        interval,
        &mut screen,
        &mut terminal,
    );
    ratatui::restore();
    result
}

fn live(
    runtime: &tokio::runtime::Runtime,
    client: &Client,
    filter: &Filters,
    interval: Duration,
    screen: &mut Screen,
    terminal: &mut ratatui::DefaultTerminal,
) -> Result<Exit, Failure> {
    let mut next = Instant::now() + interval;
    let mut ask_now = false;
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        if !ask_now
            && event::poll(next.saturating_duration_since(Instant::now()))?
            && let Event::Key(key) = event::read()?
        {
            match screen.key(key) {
                Action::Quit => return Ok(Exit::Fine),
                Action::Ask => ask_now = true,
                Action::Nothing => {}
            }
        }
        if ask_now || Instant::now() >= next {
            ask_now = false;
            let asked = ask(client, filter, screen.view);
            match runtime.block_on(beside_keys(asked, || pressed(screen)))? {
                Heard::Key(Action::Quit) => return Ok(Exit::Fine),
                // Another view is asked for.
                Heard::Key(_) => {
                    ask_now = true;
                    continue;
                }
                Heard::Answer(Ok(answer)) => screen.apply(answer, Instant::now()),
                // The daemon may come back.
                Heard::Answer(Err(error)) => screen.error = Some(error.to_string()),
            }
            next = Instant::now() + interval;
        }
    }
}

/// What comes first.
#[derive(Debug, PartialEq, Eq)]
enum Heard<Answer> {
    Answer(Answer),
    Key(Action),
}

/// Waits for an answer or for a key that ends the wait: in raw mode Ctrl-C is a key, too.
async fn beside_keys<Answer>(
    asked: impl Future<Output = Answer>,
    mut pressed: impl FnMut() -> io::Result<Action>,
) -> io::Result<Heard<Answer>> {
    let mut asked = pin!(asked);
    loop {
        if let Ok(answer) = tokio::time::timeout(KEYS, &mut asked).await {
            return Ok(Heard::Answer(answer));
        }
        match pressed()? {
            Action::Nothing => {}
            action => return Ok(Heard::Key(action)),
        }
    }
}

/// Applies the keys that were pressed until now, up to the first that asks or quits.
fn pressed(screen: &mut Screen) -> io::Result<Action> {
    while event::poll(Duration::ZERO)? {
        if let Event::Key(key) = event::read()? {
            match screen.key(key) {
                Action::Nothing => {}
                action => return Ok(action),
            }
        }
    }
    Ok(Action::Nothing)
}

async fn ask(
    client: &Client,
    filter: &Filters,
    view: usize,
) -> Result<(Status, Rows), ClientError> {
    let status = client.get("/v1/status").await?;
    let kind = VIEWS[view];
    let sort = kind.shows_faults.then_some("page_faults:desc");
    let rows = client
        .ask(
            kind.path,
            &filter.ordered(sort.map(str::to_owned), Some(ROWS)),
        )
        .await?;
    Ok((status, rows))
}

/// Action of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Quit,
    Ask,
    Nothing,
}

/// Identity of a row between two refreshes.
fn identity(row: &Map<String, Value>) -> String {
    [
        "pid",
        "rdd_id",
        "stage_id",
        "stage_attempt",
        "task_attempt_id",
        "block_id",
        "name",
    ]
    .iter()
    .map(|field| row.get(*field).map(Value::to_string).unwrap_or_default())
    .collect::<Vec<_>>()
    .join("/")
}

impl Screen {
    fn key(&mut self, key: KeyEvent) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::Nothing;
        }
        let page = 10;
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Action::Quit;
            }
            KeyCode::Tab | KeyCode::Right => return self.show((self.view + 1) % VIEWS.len()),
            KeyCode::BackTab | KeyCode::Left => {
                return self.show((self.view + VIEWS.len() - 1) % VIEWS.len());
            }
            KeyCode::Char(digit @ '1'..='5') => return self.show(digit as usize - '1' as usize),
            KeyCode::Down | KeyCode::Char('j') => self.scroll += 1,
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown => self.scroll += page,
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(page),
            KeyCode::Home => self.scroll = 0,
            _ => {}
        }
        self.scroll = self.scroll.min(self.rows.len().saturating_sub(1));
        Action::Nothing
    }

    fn show(&mut self, view: usize) -> Action {
        self.view = view;
        self.scroll = 0;
        self.rows.clear();
        self.before.clear();
        Action::Ask
    }

    /// Applies a response received at `now`.
    fn apply(&mut self, (status, listing): (Status, Rows), now: Instant) {
        let seconds = self
            .before_at
            .map(|before| now.saturating_duration_since(before).as_secs_f64())
            .filter(|s| *s > 0.0);
        let rate =
            |before: Option<u64>, after: u64| Some(after.saturating_sub(before?) as f64 / seconds?);
        let mut rows = listing.rows;
        let mut seen = HashMap::new();
        for row in &mut rows {
            let Some(faults) = row.get("page_faults").and_then(Value::as_u64) else {
                continue;
            };
            let key = identity(row);
            if let Some(rate) = rate(self.before.get(&key).copied(), faults) {
                row.insert(RATE.to_owned(), Value::from(rate.round() as u64));
            }
            seen.insert(key, faults);
        }
        // Rows with current work come first; the others follow in the daemon's order.
        sort_by_key(&mut rows, |row| {
            std::cmp::Reverse(row.get(RATE).and_then(Value::as_u64))
        });
        self.total_rate = listing
            .summary
            .page_faults
            .and_then(|total| rate(self.before_total, total));
        self.before_total = listing.summary.page_faults;
        self.before = seen;
        self.before_at = Some(now);
        self.rows = rows;
        self.summary = listing.summary;
        self.status = Some(status);
        self.error = None;
        self.scroll = self.scroll.min(self.rows.len().saturating_sub(1));
    }

    fn head(&self) -> Vec<String> {
        let Some(status) = &self.status else {
            return vec!["smtt-daemon: no answer yet".to_owned()];
        };
        let state = match &self.error {
            Some(error) => error.clone(),
            None if status.degraded.is_empty() => "all is well".to_owned(),
            None => format!("degraded: {}", status.degraded.join("; ")),
        };
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
        let lost: u64 = status
            .ledger
            .iter()
            // Facts of processes that are no executors are no loss of an executor.
            .filter(|hop| hop.name != smtt_model::ledger::UNREGISTERED)
            .map(smtt_model::ledger::Hop::lost_total)
            .fold(0, u64::saturating_add);
        vec![
            format!("smtt-daemon {}: {state}", status.version),
            status::own_figures(&status.daemon),
            format!(
                "executors: {}  {faults}  records lost: {}",
                self.summary.executors,
                units::count(lost)
            ),
        ]
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
        let head: Vec<Line<'_>> = head
            .iter()
            .map(|line| Line::raw(table::cut(line, width)))
            .collect();
        frame.render_widget(Paragraph::new(head), areas[0]);
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let lines = self.lines(width);
        let (heading, rows) = lines
            .split_first()
            .map_or((String::new(), &[][..]), |(first, rest)| {
                (first.clone(), rest)
            });
        let body_height = usize::from(areas[2].height);
        let mut body = vec![Line::styled(heading, bold)];
        body.extend(
            rows.iter()
                .skip(self.scroll)
                .take(body_height.saturating_sub(1))
                .map(|line| Line::raw(line.as_str())),
        );
        frame.render_widget(Paragraph::new(Text::from(body)), areas[2]);
        let keys = format!(
            "q quit  {}  up/down scroll",
            VIEWS
                .iter()
                .enumerate()
                .map(|(index, kind)| {
                    let mark = if index == self.view { "*" } else { "" };
                    format!("{}{mark} {}", index + 1, kind.what)
                })
                .collect::<Vec<_>>()
                .join("  ")
        );
        frame.render_widget(
            Paragraph::new(Line::styled(table::cut(&keys, width), bold)),
            areas[3],
        );
    }

    /// The table's lines, its heading first.
    fn lines(&self, width: usize) -> Vec<String> {
        let kind = VIEWS[self.view];
        if self.rows.is_empty() {
            return vec![format!("no {}", kind.what)];
        }
        let mut columns: Vec<Column> = kind.columns.to_vec();
        if kind.shows_faults {
            let after = columns
                .iter()
                .position(|column| column.field == "page_faults")
                .map_or(columns.len(), |index| index + 1);
            columns.insert(
                after,
                Column {
                    field: RATE,
                    heading: "/S",
                    form: Form::Count,
                    rank: 0,
                },
            );
        }
        let output = Output {
            width: Some(width),
            ..Output::default()
        };
        table::render(&columns, &self.rows, output)
            .lines()
            .map(str::to_owned)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use smtt_model::protocol::SelfFigures;
    use smtt_model::rows::Summary;
    use smtt_model::state::{FaultFigures, Measured};

    #[test]
    fn a_key_quits_while_an_answer_is_awaited() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let mut keys = [Action::Nothing, Action::Quit].into_iter();
        let silent = beside_keys(std::future::pending::<()>(), || {
            Ok(keys.next().unwrap_or(Action::Nothing))
        });
        let heard = runtime.block_on(silent).expect("heard");
        assert_eq!(heard, Heard::Key(Action::Quit));
        let answered = beside_keys(std::future::ready(7), || Ok(Action::Quit));
        let heard = runtime.block_on(answered).expect("heard");
        assert_eq!(heard, Heard::Answer(7));
    }

    fn answer(faults: u64) -> (Status, Rows) {
        let status = Status {
            trace: None,
            version: "0.1.0".to_owned(),
            kernel_side: String::new(),
            ready: true,
            degraded: Vec::new(),
            probes: Vec::new(),
            ledger: Vec::new(),
            daemon: SelfFigures {
                cpu_seconds: Some(1.5),
                rss_bytes: Some(20 << 20),
                bpf_memory_bytes: None,
                uptime_seconds: 100.0,
            },
            summary: Summary::default(),
            page_walks: None,
        };
        let row = |id: u32, name: &str, faults: u64| {
            let row = smtt_model::rows::RddRow {
                rdd_id: Some(id),
                name: Some(name.to_owned()),
                faults: FaultFigures {
                    page_faults: Some(faults),
                    page_faults_read: Some(faults),
                    page_faults_write: Some(0),
                    ..FaultFigures::default()
                },
                ..smtt_model::rows::RddRow::default()
            };
            match serde_json::to_value(row) {
                Ok(Value::Object(row)) => row,
                _ => panic!("not an object"),
            }
        };
        let summary = Summary {
            executors: 2,
            page_faults: Some(faults + 1000),
            unattributed_share: Some(0.25),
            measured: Measured {
                page_faults: true,
                access: true,
                major: true,
            },
            ..Summary::default()
        };
        (
            status,
            Rows {
                rows: vec![
                    row(3, "lines", 1000),
                    row(7, "ranks of a very long call site that goes on", faults),
                ],
                rows_total: 2,
                summary,
            },
        )
    }

    fn drawn(screen: &Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| screen.draw(frame)).expect("drawn");
        let buffer = terminal.backend().buffer();
        (0..height)
            .map(|row| {
                (0..width)
                    .map(|column| buffer[(column, row)].symbol())
                    .collect::<String>()
                    .trim_end()
                    .to_owned()
            })
            .collect()
    }

    fn screen() -> Screen {
        let mut screen = Screen::default();
        let start = Instant::now();
        screen.apply(answer(500), start);
        screen.apply(answer(2500), start + Duration::from_secs(2));
        screen
    }

    #[test]
    fn eighty_by_twenty_four_shows_what_matters() {
        let lines = drawn(&screen(), 80, 24);
        assert_eq!(lines[0], "smtt-daemon 0.1.0: all is well");
        assert_eq!(
            lines[2],
            "executors: 2  page faults: 3,500, 1,000/s, unattributed 25.0 %  records lost: 0"
        );
        for heading in [
            "EXEC", "RDD", "NAME", "FAULTS", "/S", "READ", "WRITE", "STORAGE",
        ] {
            assert!(lines[4].contains(heading), "{heading}: {:?}", lines[4]);
        }
        // Rows with current work come first.
        assert!(
            lines[5].contains("2,500") && lines[5].contains("1,000"),
            "{:?}",
            lines[5]
        );
        assert!(lines[6].contains("lines"), "{:?}", lines[6]);
        assert!(lines[23].starts_with("q quit  1* RDDs"), "{:?}", lines[23]);
    }

    #[test]
    fn a_tiny_terminal_does_no_harm() {
        for (width, height) in [(1, 1), (10, 3), (20, 6), (300, 80)] {
            drawn(&screen(), width, height);
            drawn(&Screen::default(), width, height);
        }
    }

    #[test]
    fn keys_end_it_switch_and_scroll() {
        let mut screen = screen();
        let press = |code| KeyEvent::new(code, KeyModifiers::NONE);
        assert_eq!(screen.key(press(KeyCode::Char('q'))), Action::Quit);
        assert_eq!(screen.key(press(KeyCode::Esc)), Action::Quit);
        assert_eq!(
            screen.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)),
            Action::Quit
        );
        assert_eq!(screen.key(press(KeyCode::Char('c'))), Action::Nothing);
        for _ in 0..5 {
            screen.key(press(KeyCode::Down));
        }
        assert_eq!(screen.scroll, 1);
        assert_eq!(screen.key(press(KeyCode::Char('3'))), Action::Ask);
        assert_eq!((screen.view, screen.scroll), (2, 0));
        assert_eq!(screen.key(press(KeyCode::BackTab)), Action::Ask);
        assert_eq!(screen.view, 1);
    }

    #[test]
    fn a_lost_daemon_is_said_above_the_last_figures() {
        let mut screen = screen();
        screen.error = Some("cannot reach smtt-daemon".to_owned());
        let lines = drawn(&screen, 80, 24);
        assert_eq!(lines[0], "smtt-daemon 0.1.0: cannot reach smtt-daemon");
        assert!(lines[5].contains("2,500"));
    }
}
