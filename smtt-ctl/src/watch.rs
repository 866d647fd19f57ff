//! `--watch`: the same answer again and again, until Ctrl-C or until its reader ends.

use std::io::{self, IsTerminal};
use std::time::Duration;

use smtt_machine::clock::now_unix_ns;
use smtt_model::time;

use super::output::{Form, Output};
use super::{Exit, Failure, ended, say};
use crate::client::ClientError;

/// Moves the cursor to the first line and clears what is below.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Repeats an answer. A daemon that does not answer may come back, and rows that do not exist may come.
pub(super) fn repeat(
    output: Output,
    interval: Duration,
    answer: impl Fn() -> Result<Exit, Failure>,
) -> Exit {
    loop {
        if let Err(error) = title(output, interval) {
            return ended(Err(error));
        }
        match answer() {
            Ok(_) => {}
            Err(
                failure @ (Failure::Nothing(_)
                | Failure::Client(
                    ClientError::Unreachable { .. }
                    | ClientError::NoSsh { .. }
                    | ClientError::Busy(_)
                    | ClientError::NoWorker(_)
                    | ClientError::TooLarge(_)
                    | ClientError::Broken { .. },
                )),
            ) => say(&failure.to_string()),
            Err(failure) => return ended(Err(failure)),
        }
        std::thread::sleep(interval);
    }
}

/// The time above a table; JSON and comma-separated values have none.
fn title(output: Output, interval: Duration) -> Result<(), Failure> {
    if output.is_data() || output.form == Form::Plain {
        return Ok(());
    }
    let clear = if io::stdout().is_terminal() {
        CLEAR
    } else {
        ""
    };
    let now = time::clock(now_unix_ns() / 1_000_000);
    let every = interval.as_secs_f64();
    output.text(&format!("{clear}{now}, every {every} s\n"))
}
