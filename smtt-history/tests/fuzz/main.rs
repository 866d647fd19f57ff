//! Changed bytes at every place where the history takes them from others.
//!
//! | module | what is changed |
//! |---|---|
//! | `logs` | lines of event logs, and their compressed files |
//! | `store` | what drivers and workers wrote into a store: parts, tables, documents, and files of other content under their names |
//! | `requests` | paths, query strings and methods of requests to the server |
//!
//! The seeds are event logs of real Spark (tests/corpus/event_logs), and what the import and the store's writers make of
//! them. No case may panic, on any thread, or take more than its limits of CPU time and memory, which are those of the
//! whole process: the cases of all tests run one after another. `rounds` has how a run becomes longer and different, and
//! how a failure is repeated.

mod json;
mod logs;
mod requests;
#[path = "../../../smtt-daemon/tests/fuzz/rounds.rs"]
mod rounds;
mod store;

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, Once, PoisonError};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use nix::time::{ClockId, clock_gettime};
use smtt_history::log::{Bounds, Lines, Log, Next};
use smtt_history::serve::{Server, Settings, router};
use tower::ServiceExt as _;

use self::rounds::Random;

/// Seconds of one test without `SMTT_FUZZ_SECONDS`.
const SECONDS: u64 = 1;
/// CPU time of one case at most, of an unoptimised build.
const CASE_TIME: Duration = Duration::from_secs(10);
/// Bytes of an answer at most.
const ANSWER: usize = 64 << 20;
/// The application of every seed.
const ID: &str = "app-1";

/// Counts what the process has allocated, and the most.
struct Counting;

static USED: AtomicIsize = AtomicIsize::new(0);
static MOST: AtomicIsize = AtomicIsize::new(0);
/// Panics of all threads.
static PANICS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = layout.size() as isize;
        MOST.fetch_max(USED.fetch_add(size, Relaxed) + size, Relaxed);
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: the caller's pointer and layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `case` with random numbers until the time is over; other tests of this program wait meanwhile.
fn rounds(case: impl FnMut(&mut Random)) {
    static TURN: Mutex<()> = Mutex::new(());
    static COUNTED: Once = Once::new();
    COUNTED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Relaxed);
            before(panic);
        }));
    });
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    rounds::run(SECONDS, case);
}

fn cpu_time() -> Duration {
    let clock = ClockId::CLOCK_PROCESS_CPUTIME_ID;
    clock_gettime(clock).expect("a clock").into()
}

/// Runs one case, and keeps its bytes if a thread panics, or it takes more than [`CASE_TIME`] or `memory` bytes.
fn tried<T>(bytes: &[u8], memory: usize, case: impl FnOnce() -> T) -> T {
    let (begin, before, panics) = (cpu_time(), USED.load(Relaxed), PANICS.load(Relaxed));
    MOST.store(before, Relaxed);
    let result = catch_unwind(AssertUnwindSafe(|| {
        let value = case();
        let (took, most) = (cpu_time() - begin, MOST.load(Relaxed) - before);
        let panics = PANICS.load(Relaxed) - panics;
        assert_eq!(panics, 0, "threads panicked");
        assert!(took < CASE_TIME, "the case took {took:?}");
        assert!(most < memory as isize, "the case took {most} bytes");
        value
    }));
    result.unwrap_or_else(|panic| {
        rounds::keep(bytes);
        resume_unwind(panic)
    })
}

/// Compressed event logs of real Spark, with their names.
static FILES: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/corpus/event_logs");
    ["3.0.3", "3.3.4", "3.4.4"]
        .iter()
        .flat_map(|version| std::fs::read_dir(folder.join(version)).expect("a folder"))
        .map(|entry| entry.expect("an entry").path())
        .map(|path| {
            let name = path.file_name().expect("a name").to_string_lossy();
            (name.into_owned(), std::fs::read(&path).expect("a log"))
        })
        .collect()
});

/// Short lines of a real log, in their order, of an application that is called [`ID`]; of tasks only some.
static LINES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/corpus/event_logs/3.4.4/app-20261128004901-0000.zstd");
    let log = Log::at(&path).expect("a log");
    let mut lines = Lines::new(&log, Bounds::default());
    let (mut all, mut tasks) = (Vec::new(), 0);
    while lines.read() == Next::Line {
        let line = String::from_utf8(lines.line.clone()).expect("is text");
        let is_task = line.contains("\"SparkListenerTask");
        tasks += u32::from(is_task);
        if line.len() < 20_000 && (!is_task || tasks <= 12) {
            all.push(line.replace("app-20261128004901-0000", ID));
        }
    }
    assert!(all.iter().any(|line| line.contains("ApplicationStart")));
    assert!(all.len() > 20, "{} lines", all.len());
    all
});

fn server(store: &Path) -> Arc<Server> {
    Arc::new(Server::new(Settings {
        store: store.to_owned(),
        event_logs: None,
        cache_bytes: 16 << 20,
        bounds: Bounds::default(),
        bucket: None,
    }))
}

/// Asks a server; `None` where the address is none of HTTP.
fn ask(server: &Arc<Server>, method: &str, address: &str) -> Option<(StatusCode, Vec<u8>)> {
    let request = Request::builder().method(method).uri(address);
    let request = request.body(Body::empty()).ok()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    Some(runtime.block_on(async {
        let response = router(Arc::clone(server)).oneshot(request).await;
        let response = response.expect("answers");
        let status = response.status();
        let body = to_bytes(response.into_body(), ANSWER).await;
        (status, body.expect("a bounded answer").to_vec())
    }))
}
