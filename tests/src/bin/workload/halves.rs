//! A task whose first half uses the CPU and whose second half holds memory.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use smtt_common::context::ContextWord;
use smtt_common::event::Kind;

use crate::Options;
use crate::accounts::{Accounts, begin, difference, end};
use crate::marker::{Marker, computing};
use crate::memory::{Mapping, PAGE};
use crate::scenario::STAGE;

/// Id of the task.
const TASK: u64 = 7;
/// Pages that the second half holds: 128 MiB.
const PAGES: usize = 128 << 8;

/// Each half takes `half_ms`. Then the thread waits for a line; its accounts at that moment are in the results.
pub fn halves(marker: &Marker, options: &Options) -> Result<Value> {
    let half = Duration::from_millis(options.number("half_ms", 400)?);
    let slot = marker.register()?;
    let mut accounts = Accounts::new();
    // What the readings themselves need is touched before.
    accounts.at_the_begin_of_a_reading()?;
    accounts.at_the_end_of_a_reading()?;
    slot.set_task(TASK, STAGE, computing());
    marker.tell_words(Kind::TASK_STARTED, &[TASK, u64::from(STAGE), 0, 0, 0, 0]);
    let outer = accounts.at_the_end_of_a_reading()?;
    begin(marker, TASK);
    let inner = accounts.at_the_begin_of_a_reading()?;
    // By the clock, so that halves are halves of time on a busy machine too.
    let start = Instant::now();
    while start.elapsed() < half {
        std::hint::spin_loop();
    }
    let memory = Mapping::anonymous(PAGES)?;
    (0..PAGES).for_each(|page| memory.write(page * PAGE));
    std::thread::sleep(half);
    let held = accounts.at_the_end_of_a_reading()?;
    crate::say("HELD")?;
    crate::wait()?;
    let after = accounts.at_the_begin_of_a_reading()?;
    drop(memory);
    end(marker, TASK);
    slot.enter(ContextWord(0));
    Ok(json!({
        "least": difference(&held, &inner),
        "most": difference(&after, &outer),
    }))
}
