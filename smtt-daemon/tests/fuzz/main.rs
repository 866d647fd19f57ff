//! Changed bytes at every place where the daemon takes them from others. Where a place has a state, it is a stream:
//!
//! | module | what is changed |
//! |---|---|
//! | `facts` | records of the ring, into a state with all its readers |
//! | `slots` | the slot file of an executor, before and while it is open, with its context words |
//! | `server` | requests |
//! | `texts` | configuration, web configuration, `/etc/subuid`, `/proc` (`stat`, `status`, `maps`, `mountinfo`) |
//! | `jvm` | command lines and crash reports of JVMs, the kernel's log |
//!
//! The seeds are in tests/corpus. Each case has a limit of CPU time and memory. A run is short and the same every time;
//! [`rounds`] has what makes it longer and different, and how a failure is repeated. A failure prints the bytes; put them
//! into tests/corpus.

mod facts;
mod jvm;
mod rounds;
mod seeds;
#[path = "../served/mod.rs"]
mod served;
mod server;
mod slots;
mod texts;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use smtt_daemon::metrics::{Exporter, Format, Names, Reader};
use smtt_daemon::server::report;
use smtt_daemon::shared::{DaemonInfo, Shared};
use smtt_model::rows::{Filter, PagesBy};
use smtt_model::state::Limits;

use self::rounds::{Random, changed};

/// Seconds of one test without `SMTT_FUZZ_SECONDS`.
const SECONDS: u64 = 2;
/// CPU time of one case at most, of an unoptimised build on a busy machine.
const CASE_TIME: Duration = Duration::from_secs(2);

/// Counts what each thread has allocated, and the most.
struct Counting;

thread_local! {
    static USED: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that ends frees after its counters are gone.
    let _ = USED.try_with(|used| {
        used.set(used.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(used.get())));
    });
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's pointer and layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `case` with random numbers until the time is over.
fn rounds(case: impl FnMut(&mut Random)) {
    rounds::run(SECONDS, case);
}

/// CPU time of this thread: other programs of the machine do not count.
fn cpu_time() -> Duration {
    let clock = ClockId::CLOCK_THREAD_CPUTIME_ID;
    clock_gettime(clock).expect("a clock").into()
}

/// Runs one case, and prints its bytes if it fails, or takes more than [`CASE_TIME`] or `memory` bytes.
fn tried<T>(bytes: &[u8], memory: usize, case: impl FnOnce() -> T) -> T {
    let (begin, before) = (cpu_time(), USED.get());
    MOST.set(before);
    let result = catch_unwind(AssertUnwindSafe(|| {
        let value = case();
        let (took, most) = (cpu_time() - begin, (MOST.get() - before) as usize);
        assert!(took < CASE_TIME, "the case took {took:?}");
        assert!(most < memory, "the case took {most} bytes");
        value
    }));
    result.unwrap_or_else(|panic| {
        rounds::keep(bytes);
        std::panic::resume_unwind(panic)
    })
}

fn corpus_folder(of: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/corpus");
    folder.join(of)
}

fn corpus(of: &str) -> Vec<Vec<u8>> {
    let folder = corpus_folder(of);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("a folder of the corpus")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    let read = |path: &PathBuf| std::fs::read(path).expect("a file of the corpus");
    files.iter().map(read).collect()
}

fn shared(limits: Limits) -> Arc<Shared> {
    let info = DaemonInfo {
        version: "test".to_owned(),
        kernel_side: "test".to_owned(),
        telemetry_path: "/metrics".to_owned(),
        metrics: smtt_daemon::metrics::MetricsSettings::at_once(4),
        doctor: Vec::new,
    };
    Arc::new(Shared::new(info, limits))
}

/// Small tables, so that every one of them gets full.
fn limits() -> Limits {
    Limits {
        executors: 3,
        rdds_per_executor: 4,
        tasks_per_executor: 8,
        stages_per_executor: 4,
        blocks_per_executor: 4,
        spark_pages_per_executor: 4,
        ranges_per_executor: 8,
        ..Limits::default()
    }
}

/// Everything that a client can ask of a state.
fn read_all(shared: &Arc<Shared>) {
    let state = shared.state();
    let all = Filter::default();
    let _ = state.list_executors(&all);
    let _ = (state.list_stages(&all), state.list_tasks(&all));
    let _ = (state.list_rdds(&all), state.list_blocks(&all));
    let _ = (state.list_history(&all), state.marker_counts());
    for by in [
        PagesBy::Rdd,
        PagesBy::Block,
        PagesBy::Task,
        PagesBy::Executor,
    ] {
        let _ = state.list_pages(&all, by);
    }
    drop(state);
    let _ = (shared.status(), report(shared, &all));
    let exporter = Exporter::new(shared.info().metrics);
    for names in [Names::Shown, Names::Hidden] {
        let text = exporter.scrape(shared, Format::Text, names, Reader::Scraper);
        let text = text.expect("written");
        let mut series: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' ').map(|(series, _)| series))
            .collect();
        let count = series.len();
        series.sort_unstable();
        series.dedup();
        assert_eq!(series.len(), count, "a series comes twice:\n{text}");
    }
}
