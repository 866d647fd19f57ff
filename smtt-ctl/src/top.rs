//! `smtt-ctl top`: live view of the listings.

mod order;
mod place;
mod screen;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::pin::pin;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event};
use smtt_model::protocol::Status;

use self::order::Work;
use self::place::Place;
use self::screen::{Action, Screen};
use super::args::{By, Filters};
use super::columns::{self, ListingKind};
use super::groups::{self, Of, Parts};
use super::listing::Rows;
use super::{Exit, Failure};
use crate::client::{Client, ClientError};

/// Interval of looking for keys while an answer is awaited.
const KEYS: Duration = Duration::from_millis(50);
/// An answer with all rows may take long: the pause after it is at least so many times as long.
const REST: u32 = 3;

const VIEWS: [&ListingKind; 5] = [
    &columns::RDDS,
    &columns::STAGES,
    &columns::TASKS,
    &columns::EXECUTORS,
    &columns::BLOCKS,
];
/// Places of the views in [`VIEWS`].
const RDDS: usize = 0;
const STAGES: usize = 1;
const TASKS: usize = 2;
const EXECUTORS: usize = 3;
const BLOCKS: usize = 4;

/// An answer to all questions of a refresh.
struct Answer {
    /// The daemon's own state; `None` of a cluster.
    status: Option<Status>,
    /// What of a cluster is missing, in words.
    workers: Option<String>,
    rows: Rows,
    /// The page faults of the RDDs of groups.
    work: Vec<Work>,
}

/// Runs the display until a key quits it.
pub(super) fn run(
    runtime: &tokio::runtime::Runtime,
    client: &Client,
    filter: &Filters,
    by: Option<By>,
    interval: Duration,
) -> Result<Exit, Failure> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let message = "top needs a terminal; for output to a file use smtt-ctl report or a listing";
        return Err(ClientError::Refused(message.to_owned()).into());
    }
    let mut screen = Screen::new(filter.clone(), by, client.cluster().is_some());
    // An unreachable daemon is reported before the terminal changes its mode.
    let first = runtime.block_on(ask(client, screen.place().clone()))?;
    screen.apply(first, Instant::now());
    let mut terminal = ratatui::try_init()?;
    let result = live(runtime, client, interval, &mut screen, &mut terminal);
    ratatui::restore();
    result
}

fn live(
    runtime: &tokio::runtime::Runtime,
    client: &Client,
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
            let begun = Instant::now();
            let asked = ask(client, screen.place().clone());
            let keys = || {
                let action = pressed(screen)?;
                terminal.draw(|frame| screen.draw(frame))?;
                Ok(action)
            };
            match runtime.block_on(beside_keys(asked, keys))? {
                Heard::Key(Action::Quit) => return Ok(Exit::Fine),
                // Another view is asked for.
                Heard::Key(_) => {
                    ask_now = true;
                    continue;
                }
                Heard::Answer(Ok(answer)) => screen.apply(answer, Instant::now()),
                // The daemon may come back.
                Heard::Answer(Err(error)) => screen.fail(error.to_string()),
            }
            next = Instant::now() + interval.max(begun.elapsed() * REST);
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

/// Requests the rows of a place, and the work of the RDDs of groups.
async fn rows(client: &Client, place: &Place) -> Result<(Rows, Vec<Work>), ClientError> {
    let question = place.filter.question();
    let rows = match (place.groups(), place.by, &place.group) {
        (Some((of, by)), ..) => {
            let mut parts = Parts::ask(client, of, &question, None).await?;
            if let Some(worker) = &place.worker {
                // A group names no worker, and executors of all workers have the same ids.
                parts.retain_worker(worker);
            }
            let rdds = match of {
                Of::Rdds => parts.rdds(by),
                _ => Vec::new(),
            };
            let work = rdds.iter().filter_map(|(group, row)| Work::of(group, row));
            let work = work.collect();
            return Ok((parts.add_up(of, by), work));
        }
        (None, Some(by), Some(group)) => groups::members(client, &question, by, group).await?,
        _ => client.ask(VIEWS[place.view].path, &question).await?,
    };
    Ok((rows, Vec::new()))
}

/// Asks for all rows: which of them work now is known only here, from the growth since the last answer.
async fn ask(client: &Client, place: Place) -> Result<Answer, ClientError> {
    let Some(cluster) = client.cluster() else {
        let status = client.get("/v1/status").await?;
        let (rows, work) = rows(client, &place).await?;
        return Ok(Answer {
            status: Some(status),
            workers: None,
            rows,
            work,
        });
    };
    // A worker that did not answer may come back.
    cluster.begin();
    let (rows, work) = rows(client, &place).await?;
    let (missing, all) = cluster.missing();
    let incomplete = cluster.incomplete();
    Ok(Answer {
        status: None,
        workers: Some(format!(
            "{} of {all} workers answered  {}",
            all - missing,
            incomplete.trim_end()
        )),
        rows,
        work,
    })
}
