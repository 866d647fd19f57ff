//! Requests for shuffle blocks as tracks below the functions of a core: as many as requests ran at the same time.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde_json::json;

use super::Trace;
use super::functions::{Place, Times, since_begin};
use crate::fetches::Fetch;

/// Thread of the first track of requests.
const FETCHES: usize = 6_000_001;
/// Tracks of a core. A request that finds none free is on the last one, after the one before it.
const TRACKS: usize = 16;

/// When a request was.
pub fn times(fetch: &Fetch) -> Times {
    let row = &fetch.row;
    (fetch.begin_unix_us, row.begin_ns, row.duration_ns)
}

/// Tracks that have slices.
#[derive(Debug, Default)]
pub struct Tracks(BTreeSet<(usize, usize, usize)>);

impl Tracks {
    /// Writes the requests of a task that ran on a core of the process `pid`.
    pub fn task<W: Write>(
        &mut self,
        trace: &mut Trace<W>,
        ((from, to), offset): Place,
        (pid, core): (usize, usize),
        fetches: &[Fetch],
    ) -> io::Result<()> {
        let mut all: Vec<&Fetch> = fetches.iter().collect();
        all.sort_by_key(|it| (it.row.begin_ns, it.row.duration_ns));
        let mut ends: Vec<i64> = Vec::new();
        for fetch in all {
            let row = &fetch.row;
            let at = since_begin(row.begin_ns);
            let begin = (at / 1000 + offset).clamp(from, to);
            let end = at.saturating_add_unsigned(row.duration_ns) / 1000 + offset;
            let free = ends.iter().position(|last| *last <= begin);
            let track = free.unwrap_or_else(|| ends.len().min(TRACKS - 1));
            let begin = ends.get(track).map_or(begin, |last| begin.max(*last));
            let end = end.clamp(begin, to.max(begin));
            match ends.get_mut(track) {
                Some(last) => *last = end,
                None => ends.push(end),
            }
            self.0.insert((pid, core, track));
            let name = row.address.as_deref().unwrap_or("unknown");
            let arguments = json!({"task": fetch.task, "executor": row.executor_id, "blocks": row.blocks, "bytes": row.bytes,
                "outcome": row.outcome, "begin_ns": row.begin_ns, "duration_ns": row.duration_ns});
            let tid = FETCHES + core * TRACKS + track;
            let length = (end - begin).unsigned_abs();
            trace.slice((pid, tid), (begin, length), ("fetch", name), &arguments)?;
        }
        Ok(())
    }

    /// Names the tracks.
    pub fn names<W: Write>(self, trace: &mut Trace<W>) -> io::Result<()> {
        for (pid, core, track) in self.0 {
            let name = match track {
                0 => format!("fetches on core {core}"),
                more => format!("fetches on core {core}, at the same time {more}"),
            };
            trace.name(pid, Some(FETCHES + core * TRACKS + track), &name)?;
        }
        Ok(())
    }
}
