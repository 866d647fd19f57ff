//! An executor whose rows fill the daemon's tables: names as long as they may be, all different.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use smtt_common::context::ContextWord;
use smtt_common::event::Kind;
use smtt_model::decode::encode::encode;
use smtt_model::decode::{
    BlockFact, ConsumerUsed, Event, Fact, Outcome, PageAllocated, RddDescribed, StageDescribed,
    TaskEnded, TaskStarted,
};

use crate::Options;
use crate::marker::{Marker, writing};
use crate::memory::{Mapping, PAGE, thread_faults};
use crate::scenario::{STAGE, in_threads, warm_up};

/// A name of the length that the daemon keeps, different for each number.
fn name(number: u64) -> String {
    format!("{number:020}{}", "n".repeat(236))
}

/// One more row of each kind.
fn rows(number: u64) -> [Fact; 7] {
    let id = number as u32;
    let consumer = |class: u64| {
        Fact::ConsumerUsed(ConsumerUsed {
            task_attempt_id: Some(number),
            instances: 1,
            peak_bytes: 1,
            counted_bytes: None,
            estimated: false,
            consumer: name(class),
        })
    };
    [
        Fact::TaskStarted(TaskStarted {
            task_attempt_id: number,
            stage_id: id / 8,
            ..TaskStarted::default()
        }),
        consumer(number % 4),
        consumer(number % 4 + 4),
        Fact::StageDescribed(StageDescribed {
            stage_id: id / 8,
            name: name(number),
            ..StageDescribed::default()
        }),
        Fact::RddDescribed(Box::new(RddDescribed {
            rdd_id: id / 8,
            name: name(number),
            ..RddDescribed::default()
        })),
        Fact::BlockStored(Box::new(BlockFact {
            block_id: name(number),
            rdd_id: Some(id / 8),
            partition: Some(id),
            size_bytes: 1 << 20,
            serialized: true,
            range_total: 2,
            ranges: vec![(number << 21, 4096), ((number << 21) + 8192, 4096)],
            ..BlockFact::default()
        })),
        Fact::PageAllocated(PageAllocated {
            task_attempt_id: Some(number),
            page_number: Some(number),
            address: 1 << 46 | number << 21,
            size_bytes: 1 << 20,
            consumer: name(number % 8),
            ..PageAllocated::default()
        }),
    ]
}

fn tell(marker: &Marker, fact: Fact) {
    let (header, payload) = encode(&Event {
        time_ns: 0,
        executor: 0,
        pid: 0,
        tid: 0,
        uid: 0,
        fact,
    });
    marker.tell(Kind(header.kind), &payload);
}

fn started(task: u64) -> Fact {
    Fact::TaskStarted(TaskStarted {
        task_attempt_id: task,
        stage_id: 1,
        ..TaskStarted::default()
    })
}

/// Fills the tables of RDDs and tasks with rows that all stay, then for `ms` milliseconds as fast as possible: an RDD for
/// which a row would have to go, and a task that ends for one that starts. A daemon that searched a full table for each
/// would do work that grows with its square.
pub fn turnover(marker: &Marker, options: &Options) -> Result<Value> {
    /// More than the tables have.
    const ROWS: u64 = 10_000;
    let end = Instant::now() + Duration::from_millis(options.number("ms", 15_000)?);
    for rdd in 0..1100 {
        let block = BlockFact {
            block_id: format!("rdd_{rdd}_0"),
            rdd_id: Some(rdd),
            partition: Some(0),
            size_bytes: 1 << 20,
            serialized: true,
            ..BlockFact::default()
        };
        tell(marker, Fact::BlockStored(Box::new(block)));
    }
    (0..ROWS).for_each(|task| tell(marker, started(task)));
    let mut pairs = 0;
    while Instant::now() < end {
        let described = RddDescribed {
            rdd_id: (10_000 + pairs) as u32 & 0xff_ffff,
            ..RddDescribed::default()
        };
        tell(marker, Fact::RddDescribed(Box::new(described)));
        let ended = TaskEnded {
            task_attempt_id: pairs,
            stage_id: 1,
            stage_attempt: 0,
            outcome: Outcome::Succeeded,
            execution_memory_peak_bytes: 0,
            reason: String::new(),
        };
        tell(marker, Fact::TaskEnded(ended));
        tell(marker, started(ROWS + pairs));
        pairs += 1;
    }
    Ok(json!({ "pairs": pairs }))
}

/// Reports `rows` rows of each kind in `ms` milliseconds or more, and keeps them: none ends.
pub fn fill(marker: &Marker, options: &Options) -> Result<Value> {
    let count = options.number("rows", 400)?.max(1);
    let length = Duration::from_millis(options.number("ms", 15_000)?);
    for number in 1..=count {
        for fact in rows(number) {
            tell(marker, fact);
        }
        std::thread::sleep(length / count as u32);
    }
    Ok(json!({ "rows": count }))
}

/// Fills tables as [`fill`] does, on a thread with a slot. On the next line, when the daemon may have found the executor
/// again, it works on `pages` pages and describes itself where that is requested.
pub fn evicted(marker: &Marker, options: &Options) -> Result<Value> {
    let pages = options.number("pages", 1000)?;
    let faults = AtomicU64::new(0);
    in_threads(1, |_| {
        let slot = marker.register()?;
        let memory = Mapping::anonymous(pages as usize)?;
        warm_up(&slot)?;
        fill(marker, options)?;
        crate::say("FILLED")?;
        crate::wait()?;
        if let Some(request) = marker.resync_request() {
            marker.describe();
            marker.resync_done(request);
        }
        let before = thread_faults();
        slot.set_task(1, STAGE, writing(8, 0));
        (0..pages as usize).for_each(|page| memory.write(page * PAGE));
        slot.enter(ContextWord(0));
        faults.store(thread_faults() - before, Ordering::Relaxed);
        Ok(())
    })?;
    Ok(json!({ "pages": pages, "faults": faults.into_inner() }))
}
