//! The bytes that the state counts against the heap that it uses, under hostile streams of facts.
//!
//! The allocator counts by thread: the test's harness allocates on another one.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use smtt_common::counter::{ContextKey, FaultCounters};
use smtt_common::settings::executor_key;
use smtt_model::decode::{
    BlockFact, ConsumerUsed, Event, Fact, Fetched, PageAllocated, RddDescribed, Span, TaskStarted,
};
use smtt_model::readings::Readings;
use smtt_model::state::{Limits, State};

/// Counts the bytes that each thread has allocated.
struct Counting;

thread_local! {
    static USED: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        USED.set(USED.get() + layout.size() as isize);
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        USED.set(USED.get() - layout.size() as isize);
        // SAFETY: the caller's pointer and layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SECOND: u64 = 1_000_000_000;

fn tell(state: &mut State, n: u32, fact: Fact) {
    state.apply(Event {
        time_ns: SECOND,
        executor: executor_key(100 + n, 50),
        pid: 100 + n,
        tid: 100 + n,
        uid: 1000 + n,
        fact,
    });
}

fn started(task: u64) -> Fact {
    Fact::TaskStarted(TaskStarted {
        task_attempt_id: task,
        stage_id: (task % 2000) as u32,
        stage_attempt: 0,
        partition: 0,
        attempt_number: 0,
        job_id: None,
    })
}

/// A name of a length that no executor may send.
fn name(id: u64) -> String {
    format!("{id}{}", "x".repeat(2000))
}

/// 60,000 facts about 33 consumers of each task.
fn consumers(state: &mut State, n: u32) {
    for fact in 0..60_000_u64 {
        let task = fact / 33;
        tell(state, n, started(task));
        tell(
            state,
            n,
            Fact::ConsumerUsed(ConsumerUsed {
                task_attempt_id: Some(task),
                instances: 1,
                peak_bytes: 1,
                counted_bytes: None,
                estimated: false,
                consumer: name(fact % 33),
            }),
        );
    }
}

/// A single range at the highest index of each of 8,192 blocks, then ranges in any order.
fn ranges(state: &mut State, n: u32) {
    for pass in 0..5_u64 {
        for block in 0..8192_u64 {
            let range_first = [4095, 0, 17, 2000, 1][pass as usize];
            tell(
                state,
                n,
                Fact::BlockStored(Box::new(BlockFact {
                    block_id: format!("rdd_{block}_1"),
                    rdd_id: Some(block as u32),
                    partition: Some(1),
                    size_bytes: 1,
                    range_total: 4096,
                    range_first,
                    ranges: vec![(0x1000 * (block * 5 + pass + 1), 64)],
                    ..BlockFact::default()
                })),
            );
        }
    }
}

/// 16,384 grants with long keys.
fn pages(state: &mut State, n: u32) {
    for page in 0..16_384_u64 {
        tell(
            state,
            n,
            Fact::PageAllocated(PageAllocated {
                task_attempt_id: Some(page),
                page_number: None,
                address: 0,
                size_bytes: 1,
                on_heap: true,
                reported_again: false,
                rdd_id: Some(page as u32),
                stage_id: None,
                consumer: name(page),
                activity: None,
            }),
        );
    }
}

/// Descriptions, and faults in many contexts.
fn contexts(state: &mut State, n: u32) {
    for id in 0..2000 {
        tell(
            state,
            n,
            Fact::RddDescribed(Box::new(RddDescribed {
                rdd_id: id,
                name: name(u64::from(id)),
                call_site: name(1),
                node: name(2),
                node_id: id.to_string(),
                parents: (0..300).collect(),
                ..RddDescribed::default()
            })),
        );
    }
    let growth = FaultCounters {
        read: 1,
        ..FaultCounters::default()
    };
    for round in 0..8_u32 {
        let contexts = (0..4096_u32).map(|id| {
            let context = ContextKey {
                executor: executor_key(100 + n, 50),
                task_attempt_id: u64::from(id + round * 700),
                stage_id: id % 512,
                rdd_plus_one: 1 + (id * 7 + round) % 1500,
                stage_attempt: 0,
                activity: (id % 12) as u8,
                access_region: (id % 3) as u8,
                reserved: 0,
            };
            (context, growth)
        });
        let readings = Readings {
            contexts: contexts.collect(),
            ..Readings::default()
        };
        state.add(&readings, SECOND);
    }
}

/// 100 spans of each of 600 tasks, with names of their own.
fn spans(state: &mut State, n: u32) {
    for span in 0..60_000_u64 {
        let task = span / 100;
        tell(state, n, started(task));
        let fact = Fact::Span(Span {
            task_attempt_id: Some(task),
            activity: (span % 17) as u8,
            duration_ns: span,
            name: name(span % 300),
            ..Span::default()
        });
        tell(state, n, fact);
    }
}

/// 200 requests of each of 300 tasks, to executors with names of their own.
fn requests(state: &mut State, n: u32) {
    for request in 0..60_000_u64 {
        let task = request / 200;
        tell(state, n, started(task));
        let fact = Fact::Fetched(Box::new(Fetched {
            task_attempt_id: task,
            duration_ns: request,
            requests: 1,
            blocks: request,
            arrived_bytes: u64::MAX,
            address: name(request % 5_000),
            executor_id: name(request % 7),
            ..Fetched::default()
        }));
        tell(state, n, fact);
    }
}

/// Runs hostile streams against a new state and compares its heap with what it counts.
fn measure(what: &str, limits: Limits, streams: &[fn(&mut State, u32)]) {
    let before = USED.get();
    let mut state = State::new(limits);
    for (n, stream) in (1..).zip(streams) {
        stream(&mut state, n);
    }
    let heap = USED.get() - before;
    let counted = state.bytes();
    assert!(
        heap as f64 <= counted as f64 * 1.5,
        "{what}: {heap} bytes of heap, {counted} counted"
    );
    assert!(
        counted as f64 <= heap as f64 * 2.0 + 65_536.0,
        "{what}: {counted} counted, only {heap} bytes of heap"
    );
    assert!(
        counted <= limits.state_bytes,
        "{what}: {counted} bytes of {}",
        limits.state_bytes
    );
    drop(state);
    let left = USED.get() - before;
    assert_eq!(left, 0, "{what}: bytes are left");
}

#[test]
fn the_heap_is_what_the_state_counts() {
    let small = Limits {
        state_bytes: 16 << 20,
        state_per_executor_bytes: 8 << 20,
        ..Limits::default()
    };
    measure("consumers", Limits::default(), &[consumers]);
    measure("ranges", Limits::default(), &[ranges]);
    measure("pages", Limits::default(), &[pages]);
    measure("contexts", Limits::default(), &[contexts]);
    measure("spans", Limits::default(), &[spans]);
    measure("requests", Limits::default(), &[requests]);
    let all = [consumers, ranges, pages, contexts, spans, requests];
    measure("all", small, &all);
}
