//! Memory of executors and their page faults as counters of their processes, from the points of the workers' histories.
//!
//! A counter of the format keeps its last value, and cannot be absent: the counter `measured` is 0 where no point stands for
//! the time.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::{APPLICATION, Trace, us};
use crate::timeline::memory::{History, Memory, Moment};
use crate::timeline::model::Model;

/// Writes the counters of all executors.
pub fn write<W: Write>(trace: &mut Trace<W>, model: &Model, memory: &Memory) -> io::Result<()> {
    let mut by_executor: BTreeMap<&str, Vec<&History>> = BTreeMap::new();
    for history in &memory.histories {
        let of = by_executor.entry(&history.executor).or_default();
        of.push(history);
    }
    let mut without_tasks = model.executors.len();
    for (id, histories) in by_executor {
        let known = model.executors.iter().position(|it| it.id == id);
        let number = known.unwrap_or_else(|| {
            without_tasks += 1;
            without_tasks - 1
        });
        let pid = APPLICATION + 1 + number;
        if known.is_none() {
            trace.name(pid, None, &format!("executor {id}"))?;
        }
        one(trace, pid, &histories)?;
    }
    Ok(())
}

/// The counters of one executor. A later process with its id follows the earlier one.
fn one<W: Write>(trace: &mut Trace<W>, pid: usize, histories: &[&History]) -> io::Result<()> {
    let all = histories.iter().flat_map(|history| {
        let moments = history.moments.iter();
        moments.map(|moment| (moment, history.pid, history.run))
    });
    let mut all: Vec<(&Moment, u32, u64)> = all.collect();
    all.sort_by_key(|(moment, ..)| moment.at);
    all.dedup_by_key(|(moment, ..)| moment.at);
    let mut until = i64::MIN;
    for (at, (moment, process, run)) in all.iter().enumerate() {
        let time = us(moment.at);
        if moment.at > until {
            if at > 0 && until > all[at - 1].0.at {
                trace.counter((pid, us(until)), "measured", &json!({"points": 0}))?;
            }
            trace.counter((pid, time), "measured", &json!({"points": 1}))?;
        }
        until = until.max(moment.until);
        let next = all.get(at + 1).filter(|(next, of, by)| {
            (of, by) == (process, run) && next.at <= moment.until.saturating_add(1)
        });
        trace.counter((pid, time), "memory of Spark", &held(moment))?;
        if let Some(pages) = pages(moment) {
            trace.counter((pid, time), "pages of that memory", &pages)?;
        }
        // A point has all page faults until then: between two of them is their rate.
        if let Some((next, ..)) = next
            && let Some((before, after)) = moment.page_faults.zip(next.page_faults)
            && next.at > moment.at
        {
            let rate = after.saturating_sub(before).saturating_mul(1000);
            let rate = rate / (next.at - moment.at).unsigned_abs();
            trace.counter(
                (pid, time),
                "page faults per second",
                &json!({"faults": rate}),
            )?;
        }
    }
    if let Some((last, ..)) = all.last() {
        trace.counter(
            (pid, us(until.max(last.at + 1))),
            "measured",
            &json!({"points": 0}),
        )?;
    }
    Ok(())
}

fn held(moment: &Moment) -> Value {
    let mut sums = [0_u64; 4];
    for rdd in &moment.rdds {
        let parts = [
            rdd.storage_heap_bytes,
            rdd.storage_off_heap_bytes,
            rdd.execution_heap_bytes,
            rdd.execution_off_heap_bytes,
        ];
        for (sum, part) in sums.iter_mut().zip(parts) {
            *sum = sum.saturating_add(part);
        }
    }
    json!({"storage heap": sums[0], "storage off heap": sums[1], "execution heap": sums[2], "execution off heap": sums[3]})
}

/// Where that memory was at the last scan of pages; nothing where none was examined.
fn pages(moment: &Moment) -> Option<Value> {
    let pages = || moment.rdds.iter().filter_map(|rdd| rdd.pages.as_deref());
    pages().next()?;
    let sum = |of: fn(&smtt_model::state::history::PagePoint) -> u64| {
        pages().map(of).fold(0, u64::saturating_add)
    };
    Some(
        json!({"resident": sum(|it| it.present_bytes), "swapped": sum(|it| it.swapped_bytes),
        "untouched": sum(|it| it.untouched_bytes)}),
    )
}
