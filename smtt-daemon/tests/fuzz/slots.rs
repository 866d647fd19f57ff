//! Slot files with changed content and length, read as the daemon reads them, and what comes of it in a state. The file is
//! a memfd as a marker's is; this process is the executor.

use std::collections::BTreeSet;
use std::fs::File;
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use nix::sys::memfd::{MFdFlags, memfd_create};
use smtt_common::context::{ContextWord, HEADER_SIZE, SLOT_COUNT, SLOT_SIZE, Slot};
use smtt_common::counter::{ContextCounters, ContextKey};
use smtt_common::settings::executor_key;
use smtt_daemon::discover::SlotFile;
use smtt_daemon::shared::Shared;
use smtt_machine::proc::Handle;
use smtt_model::decode::{Event, ExecutorDescribed, Fact};
use smtt_model::readings::Readings;
use smtt_model::rows::Filter;
use smtt_model::state::{SlotFileCounters, Tick};

use super::{Random, changed, corpus, limits, read_all, rounds, shared, tried};

/// Changes of an open file in one round.
const CHANGES: usize = 20;
/// Where the executor maps the file.
const MAPPED: u64 = 0x7000_0000_0000;
/// Memory of one reading: the largest file, its threads, and this process's list of threads.
const MEMORY: usize = 4 << 20;
/// Memory of all readers with full small tables.
const READ_MEMORY: usize = 16 << 20;
const SECOND: u64 = 1_000_000_000;

/// Key of an executor of this test.
fn key(number: u32) -> u64 {
    executor_key(100 + number, 1)
}

fn describe(shared: &Shared, number: u32) {
    let described = ExecutorDescribed {
        application_id: "app-1".to_owned(),
        executor_id: number.to_string(),
        ..ExecutorDescribed::default()
    };
    shared.state().apply(Event {
        time_ns: SECOND,
        executor: key(number),
        pid: 100 + number,
        tid: 100 + number,
        uid: 1000 + number,
        fact: Fact::ExecutorDescribed(Box::new(described)),
    });
}

/// The file has this content from now on.
fn fill(file: &File, bytes: &[u8]) {
    file.set_len(bytes.len() as u64).expect("a length");
    file.write_all_at(bytes, 0).expect("written");
}

/// The thread ids in some slots become those of real threads.
fn with_threads(random: &mut Random, mut bytes: Vec<u8>, tids: &[u32]) -> Vec<u8> {
    for slot in bytes
        .get_mut(HEADER_SIZE..)
        .unwrap_or_default()
        .chunks_exact_mut(SLOT_SIZE)
    {
        if random.below(2) == 0 {
            let at = offset_of!(Slot, tid);
            slot[at..at + 4].copy_from_slice(&random.of(tids).to_le_bytes());
        }
    }
    bytes
}

/// The contexts that the kernel side reads out of the slots when their threads have page faults.
fn contexts(bytes: &[u8]) -> Vec<(ContextKey, ContextCounters)> {
    let slots = bytes.get(HEADER_SIZE..).unwrap_or_default();
    let fault = ContextCounters {
        read: 1,
        ..ContextCounters::default()
    };
    let of = |slot: &[u8]| {
        let long = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().expect("8 bytes"));
        let word = |at: usize| u32::from_le_bytes(slot[at..at + 4].try_into().expect("4 bytes"));
        let hot = ContextWord(long(offset_of!(Slot, hot)));
        let key = ContextKey {
            executor: key(1),
            task_attempt_id: long(offset_of!(Slot, task_attempt_id)),
            stage_id: word(offset_of!(Slot, stage_id)),
            rdd_plus_one: hot.rdd_plus_one(),
            stage_attempt: word(offset_of!(Slot, stage_attempt)) as u16,
            activity: hot.activity().0,
            access_region: hot.access().0 | (hot.region().0 << 4),
            reserved: 0,
        };
        (key, fault)
    };
    slots.chunks_exact(SLOT_SIZE).map(of).collect()
}

/// Reads the file as the daemon does in a tick.
fn read(slots: &SlotFile, mapped: &Range<u64>, own: &Handle, tids: &[u32]) -> Tick {
    let mut tick = Tick::default();
    let threads = slots.threads(own, true);
    assert!(threads.len() <= SLOT_COUNT as usize);
    for thread in threads {
        let after = thread.address + SLOT_SIZE as u64;
        assert!(
            thread.address >= mapped.start + HEADER_SIZE as u64 && after <= mapped.end,
            "{thread:?} is outside of {mapped:x?}"
        );
        // Threads of other tests come and go meanwhile.
        let own = tids.contains(&thread.tid) || own.list("task").contains(&thread.tid.to_string());
        assert!(own, "{thread:?} is no thread of this process");
    }
    if let (Ok(facts_emitted), Ok(slots_refused)) = (slots.facts_emitted(), slots.slots_refused()) {
        let counters = SlotFileCounters {
            facts_emitted,
            slots_refused,
        };
        tick.slots.push((key(1), counters));
    }
    match slots.collections() {
        Ok((tracking, begun)) => tick.collections.push((key(1), tracking, begun)),
        Err(_) => tick.unread.push(key(1)),
    }
    if let Ok(done) = slots.resync_done() {
        tick.requests.push((key(1), done));
    }
    tick
}

#[test]
fn changed_slot_files_spoil_what_is_said_of_their_executor_only() {
    let seeds = corpus("slots");
    let own = Handle::open(std::process::id()).expect("this process");
    let tid = nix::unistd::gettid().as_raw() as u32;
    let tids = [std::process::id(), tid];
    rounds(|random| {
        let file: File = memfd_create(c"smtt-slots", MFdFlags::MFD_CLOEXEC)
            .expect("a memfd")
            .into();
        let mut bytes = changed(random, &seeds);
        bytes = with_threads(random, bytes, &tids);
        fill(&file, &bytes);
        let length = match random.below(10) {
            0 => random.next(),
            _ => bytes.len() as u64,
        };
        let mapped = MAPPED..MAPPED.saturating_add(length);
        let copy = file.try_clone().expect("a descriptor");
        let Ok(slots) = tried(&bytes, MEMORY, || SlotFile::of(copy, &mapped)) else {
            return;
        };
        let shared = shared(limits());
        for number in [1, 2] {
            describe(&shared, number);
        }
        let other = |shared: &Arc<Shared>| {
            let rows = shared.state().list_executors(&Filter::default());
            let of = rows.rows.into_iter().filter(|row| row.who.pid == 102);
            let of: Vec<_> = of.collect();
            assert_eq!(of.len(), 1, "the other executor is listed");
            let row = serde_json::to_value(&of[0]).expect("a row");
            let mut row = row.as_object().expect("an object").clone();
            // Its age grows.
            row.retain(|name, _| !name.ends_with("_ns") && !name.contains("seconds"));
            row
        };
        let (before, mut attempted) = (other(&shared), 0);
        for step in 1..=CHANGES as u64 {
            match random.below(6) {
                0 => file
                    .set_len(random.below(bytes.len() + 1) as u64)
                    .expect("a length"),
                1 => file
                    .set_len((HEADER_SIZE + SLOT_COUNT as usize * SLOT_SIZE) as u64)
                    .expect("a length"),
                _ => {
                    let next = changed(random, &[bytes, seeds[0].clone()]);
                    bytes = with_threads(random, next, &tids);
                    fill(&file, &bytes);
                }
            }
            let mut tick = tried(&bytes, MEMORY, || read(&slots, &mapped, &own, &tids));
            tick.readings = Readings {
                contexts: contexts(&bytes),
                ..Readings::default()
            };
            tried(&bytes, MEMORY, || {
                shared.state().take_in(&tick, (step + 1) * SECOND);
                let counts = shared.state().marker_counts();
                let now = counts.map_or(0, |(attempted, _)| attempted);
                assert!(
                    now >= attempted,
                    "facts attempted fell from {attempted} to {now}"
                );
                attempted = now;
            });
            let request = step << 8;
            if slots.request_resync(request).is_ok() {
                let resyncs: BTreeSet<u64> = shared.state().resyncs_wanted();
                assert!(resyncs.iter().all(|of| [key(1), key(2)].contains(of)));
            }
        }
        tried(&bytes, READ_MEMORY, || read_all(&shared));
        assert_eq!(other(&shared), before, "the other executor's row");
    });
}
