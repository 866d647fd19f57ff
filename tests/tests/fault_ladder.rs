//! Every rung of the page-fault ladder, forced in turn, counts the same for the same workload; and every call of the
//! marker's probe pads hits the probe on this kernel.
//!
//! Needs root, and the marker's native library in `target/marker`. The test process is its own executor: the probes
//! adopt it, so the test needs no JVM and also runs in emulated machines (`cargo xtask vm`), where `SMTT_MUST_HAVE`
//! lists the rungs that must exist. Run with `--test-threads=1`: a process is one executor at a time.

use std::ffi::{CStr, CString};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use smtt_common::context::{Access, Activity, ContextWord, Range, Region};
use smtt_common::counter::FaultCounters;
use smtt_common::event::marker::{LIBRARY_NAME, SYMBOL_PREFIX};
use smtt_config::{FaultHook, ProbeSettings};
use smtt_daemon::probes::Probes;
use smtt_model::readings::Readings;
use smtt_model::verdict::VerdictState;
use smtt_tests::memory::{Mapping, PAGE, pin, thread_faults, thread_id};
use smtt_tests::skip::{leave_out, must_have, skip};
use smtt_tests::slot::OwnSlot;
use xtask::paths::Paths;

/// The RDD that is read and the RDD that is written.
const READ_RDD: u32 = 7;
const WRITTEN_RDD: u32 = 8;
/// Pages of each RDD, per thread. Odd, so that a count of one fault per pair of pages would show.
const READ_PAGES: usize = 1501;
const WRITTEN_PAGES: usize = 701;
const THREADS: u64 = 2;
const PAD_CALLS: u64 = 5000;
/// Faults of one RDD that may enter the kernel's handler twice.
const ENTERED_AGAIN: u64 = 4;

/// The forced rungs, with their names in the configuration.
const RUNGS: [(&str, FaultHook); 4] = [
    ("raw_tracepoint", FaultHook::RawTracepoint),
    ("fexit", FaultHook::Fexit),
    ("kprobe", FaultHook::Kprobe),
    ("software", FaultHook::Software),
];

#[test]
fn every_rung_counts_the_same() {
    let mut tried = 0;
    for (name, hook) in RUNGS {
        let mut probes = load(hook);
        let verdicts: Vec<_> = probes
            .verdicts()
            .into_iter()
            .filter(|row| row.name == "fault")
            .collect();
        let refused = verdicts
            .iter()
            .find(|row| !matches!(row.verdict, VerdictState::Ok | VerdictState::NotApplicable));
        if let Some(row) = refused {
            assert_eq!(row.verdict, VerdictState::Unsupported, "{row:?}");
            leave_out(name, format!("{} is missing: {}", row.hook, row.reason))
                .expect("every rung that this machine must have");
            continue;
        }
        let attached: Vec<_> = verdicts
            .iter()
            .filter(|row| row.verdict == VerdictState::Ok)
            .collect();
        assert!(
            !attached.is_empty() && attached.iter().all(|row| kind_of(&row.hook) == name),
            "{verdicts:?}"
        );

        let (readings, minflt) = workload(&mut probes);
        let sums = |rdd: u32| {
            let rows = readings
                .contexts
                .iter()
                .filter(|(key, _)| key.rdd_plus_one == rdd + 1);
            rows.fold(FaultCounters::default(), |sum, (_, row)| FaultCounters {
                read: sum.read + row.read,
                write: sum.write + row.write,
                unknown: sum.unknown + row.unknown,
                major: sum.major + row.major,
                ..FaultCounters::default()
            })
        };
        let (read, written) = (sums(READ_RDD), sums(WRITTEN_RDD));
        println!(
            "{name}: RDD {READ_RDD} {read:?}, RDD {WRITTEN_RDD} {written:?}, {minflt} by the kernel's own count"
        );
        let all = |row: &FaultCounters| row.read + row.write + row.unknown;
        let exact = [THREADS * READ_PAGES as u64, THREADS * WRITTEN_PAGES as u64];
        let counted = [all(&read), all(&written)];
        // A probe at the handler's entry may count a few faults twice: those that release the mapping's lock and enter
        // again.
        let again = if name == "kprobe" { ENTERED_AGAIN } else { 0 };
        for (counted, exact) in counted.into_iter().zip(exact) {
            assert!(
                (exact..=exact + again).contains(&counted),
                "{name}: {counted} counted, {exact} pages were touched"
            );
        }
        if name == "software" {
            assert!(!readings.access_known);
            assert_eq!(
                (read.read, written.write),
                (0, 0),
                "the software event cannot tell"
            );
        } else {
            assert!(readings.access_known);
            assert_eq!(
                (read.write, written.read),
                (0, 0),
                "{name} takes reads for writes"
            );
        }
        assert!(
            minflt + 2 * again >= all(&read) + all(&written),
            "{name} counts more than there were: {minflt}"
        );
        tried += 1;
    }
    assert!(
        tried >= 2,
        "fewer than two rungs work here: nothing was compared"
    );
}

#[test]
fn pads_are_hit_as_often_as_they_are_called() {
    let library = Paths::find()
        .expect("a home folder")
        .marker()
        .join(LIBRARY_NAME);
    assert!(
        library.is_file(),
        "{} is missing: run `cargo xtask setup`",
        library.display()
    );
    let mut probes = load(FaultHook::Off);
    probes
        .attach_library(&library)
        .expect("every entry point has its pad");
    let executor = probes
        .adopt_executor(std::process::id())
        .expect("a row for this process");
    let entry = entry_point(&library, "threadGone");
    let payload = [0_u64; 4];
    let before = probes.facts_seen(std::process::id());
    for _ in 0..PAD_CALLS {
        // SAFETY: the entry point only returns; its arguments are for the probe, and live until it returns.
        unsafe {
            entry(
                std::ptr::null(),
                std::ptr::null(),
                payload.as_ptr() as i64,
                size_of_val(&payload) as i32,
            )
        };
    }
    let seen = probes.facts_seen(std::process::id()) - before;
    probes.forget_executor(executor).expect("the row is there");
    assert_eq!(seen, PAD_CALLS);
}

#[test]
fn every_processor_that_comes_back_is_counted() {
    if !must_have("processor_switch") {
        skip("processor_switch", "only emulated machines lend one").expect("a line is written");
        return;
    }
    let processors = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // The workload's second thread is pinned to the last one.
    let switch = format!("/sys/devices/system/cpu/cpu{}/online", processors - 1);
    let mut probes = load(FaultHook::Software);
    // The last time it goes and comes between two readings.
    for states in [&["0"][..], &["1"], &["0", "1"]] {
        for state in states {
            std::fs::write(&switch, state).unwrap_or_else(|error| panic!("{switch}: {error}"));
        }
        probes.readings().expect("the tables can be read");
    }
    let (readings, _) = workload(&mut probes);
    let of = |rdd: u32| {
        readings
            .contexts
            .iter()
            .filter(|(key, _)| key.rdd_plus_one == rdd + 1)
            .map(|(_, row)| row.unknown)
            .sum::<u64>()
    };
    assert_eq!(
        (of(READ_RDD), of(WRITTEN_RDD)),
        (THREADS * READ_PAGES as u64, THREADS * WRITTEN_PAGES as u64)
    );
}

type Entry = unsafe extern "C" fn(*const (), *const (), i64, i32);

fn entry_point(library: &Path, name: &str) -> Entry {
    let path =
        CString::new(library.as_os_str().as_encoded_bytes()).expect("no zero byte in a path");
    let symbol = CString::new(format!("{SYMBOL_PREFIX}{name}")).expect("no zero byte in a name");
    // SAFETY: the marker's library has no constructors; both texts end with a zero byte.
    let address =
        unsafe { libc::dlsym(libc::dlopen(path.as_ptr(), libc::RTLD_NOW), symbol.as_ptr()) };
    assert!(
        !address.is_null(),
        "{library:?} has no {name}: {}",
        loader_says()
    );
    // SAFETY: every entry point has this form; the library is never unloaded.
    unsafe { std::mem::transmute::<*mut libc::c_void, Entry>(address) }
}

fn loader_says() -> String {
    // SAFETY: the text, if there is one, lives until the next call of the loader in this thread.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            String::new()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

fn load(hook: FaultHook) -> Probes {
    Probes::load(&ProbeSettings {
        fault_hook: hook,
        ..ProbeSettings::default()
    })
    .expect("run as root")
}

/// `raw_tracepoint:page_fault_user` -> `raw_tracepoint`.
fn kind_of(hook: &str) -> &str {
    match hook.split_once(':').map_or(hook, |(kind, _)| kind) {
        "perf" => "software",
        kind => kind,
    }
}

/// Runs the threads, each pinned to a processor (on a machine with several nodes: of different nodes), and returns the
/// daemon's readings and the kernel's own count of the threads' faults.
fn workload(probes: &mut Probes) -> (Readings, u64) {
    let executor = probes
        .adopt_executor(std::process::id())
        .expect("a row for this process");
    let (tell, told) = channel();
    let (mut starts, mut threads) = (Vec::new(), Vec::new());
    let processors = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    for number in 0..THREADS {
        let (start, started) = channel::<()>();
        let tell: Sender<(u32, u64)> = tell.clone();
        starts.push(start);
        let processor = number as usize * (processors - 1) / (THREADS as usize - 1);
        threads.push(thread::spawn(move || {
            pin(processor).expect("the processor is online");
            let slot = OwnSlot::of_task(number);
            tell.send((thread_id(), slot.address()))
                .expect("the test listens");
            started.recv().expect("the test says when");
            let before = thread_faults();
            touch(&slot);
            thread_faults() - before
        }));
    }
    for _ in 0..THREADS {
        let (tid, slot) = told.recv().expect("the threads tell");
        probes
            .adopt_thread(executor, tid, slot, Range::default())
            .expect("a row for the thread");
    }
    starts
        .iter()
        .for_each(|start| start.send(()).expect("the threads listen"));
    let minflt = threads
        .into_iter()
        .map(|thread| thread.join().expect("the thread ends"))
        .sum();
    let readings = probes.readings().expect("the tables can be read");
    probes.forget_executor(executor).expect("the row is there");
    (readings, minflt)
}

/// Touches fresh pages of two RDDs in turns, in the context of each.
fn touch(slot: &OwnSlot) {
    let fresh = |pages| Mapping::anonymous(pages).expect("memory");
    let (read, written) = (fresh(READ_PAGES), fresh(WRITTEN_PAGES));
    let word =
        |rdd: u32, access| ContextWord::new(Activity::COMPUTE, access, Region::STORAGE, rdd + 1, 0);
    for page in 0..READ_PAGES.max(WRITTEN_PAGES) {
        if page < READ_PAGES {
            slot.publish(word(READ_RDD, Access::READ));
            read.read(page * PAGE);
        }
        if page < WRITTEN_PAGES {
            slot.publish(word(WRITTEN_RDD, Access::WRITE));
            written.write(page * PAGE);
        }
        slot.clear();
    }
}
