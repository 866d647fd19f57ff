//! Tasks that touch a known number of pages first, of memory that is declared as the Java heap and of other memory.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::ptr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use smtt_common::context::{ContextWord, Range};
use smtt_common::event::Kind;
use smtt_common::event::used::Helper;

use crate::Options;
use crate::accounts::{begin, end};
use crate::fault_kinds::handle;
use crate::marker::{Marker, computing};
use crate::memory::{Mapping, PAGE, WINDOW, map_code, thread_faults};
use crate::pages::{LARGE, advise, alone, small, write};
use crate::scenario::STAGE;

/// Small pages of a large one.
const OF_LARGE: usize = LARGE / PAGE;
/// Large pages that a task touches.
const LARGE_PAGES: usize = 4;
/// Pages of the heap: small ones, then [`LARGE_PAGES`] large ones.
const HEAP_SMALL: usize = 2 * OF_LARGE;
const HEAP_PAGES: usize = HEAP_SMALL + LARGE_PAGES * OF_LARGE;

/// Memory that begins with a large page, on small pages until it is advised.
fn aligned(pages: usize) -> Result<usize> {
    let start = alone(pages * PAGE + LARGE)?.next_multiple_of(LARGE);
    let _ = advise(start, pages * PAGE, libc::MADV_NOHUGEPAGE);
    Ok(start)
}

/// Which pages of a range are in memory: a witness that does not know of faults.
struct Resident {
    start: usize,
    pages: usize,
    states: Vec<u8>,
}

impl Resident {
    fn of(start: usize, pages: usize) -> Self {
        Self {
            start,
            pages,
            states: vec![0; pages],
        }
    }

    fn count(&mut self) -> Result<u64> {
        // SAFETY: the range is mapped, and the vector has a byte for each of its pages.
        let error = unsafe {
            libc::mincore(
                self.start as *mut libc::c_void,
                self.pages * PAGE,
                self.states.as_mut_ptr(),
            )
        };
        ensure!(error == 0, "mincore: {}", std::io::Error::last_os_error());
        Ok(self.states.iter().map(|state| u64::from(state & 1)).sum())
    }
}

/// Makes the touched page accessible. Calls nothing but a system call.
extern "C" fn allow(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes the signal's description, and the address is of a page of this scenario.
    let done = unsafe {
        let page = ((*info).si_addr() as usize) & !(PAGE - 1);
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        libc::mprotect(page as *mut libc::c_void, PAGE, rights) == 0
    };
    if !done {
        // SAFETY: ends the program at once: the access would fault again and again.
        unsafe { libc::_exit(98) };
    }
}

/// A child that has a copy of all memory until it is dropped.
struct Child {
    id: libc::pid_t,
    gate: Option<std::io::PipeWriter>,
}

impl Child {
    fn fork() -> Result<Self> {
        let (wait, gate) = std::io::pipe()?;
        // SAFETY: the child only makes system calls.
        let id = unsafe {
            let id = libc::fork();
            if id == 0 {
                libc::close(gate.as_raw_fd());
                let mut byte = 0_u8;
                libc::read(wait.as_raw_fd(), (&raw mut byte).cast(), 1);
                libc::_exit(0);
            }
            id
        };
        ensure!(id > 0, "fork: {}", std::io::Error::last_os_error());
        Ok(Self {
            id,
            gate: Some(gate),
        })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.gate = None;
        // SAFETY: a child of this program that it has not waited for.
        unsafe { libc::waitpid(self.id, ptr::null_mut(), 0) };
    }
}

/// Makes all memory of the program resident, its code above all: which task is the first to run a page of code depends
/// on the layout of the program.
fn resident() -> Result<()> {
    // SAFETY: both calls have no memory as argument.
    let result = unsafe { libc::mlockall(libc::MCL_CURRENT) };
    ensure!(result == 0, "mlockall: {}", std::io::Error::last_os_error());
    // SAFETY: as above. The pages stay, and may be paged out again.
    unsafe { libc::munlockall() };
    Ok(())
}

/// Runs a task for each way to touch memory. The results have the pages of the heap and of other memory that it touches
/// first and, where one range has them all, by how many pages that range grew.
pub fn touched(marker: &Marker, _: &Options) -> Result<Value> {
    resident()?;
    let heap = aligned(HEAP_PAGES)?;
    let range = Range {
        start: heap as u64,
        bytes: (HEAP_PAGES * PAGE) as u64,
    };
    let native = small(1000 * PAGE)?;
    let (touched_large, populated, read) = (
        aligned(LARGE_PAGES * OF_LARGE)?,
        aligned(2 * OF_LARGE)?,
        aligned(OF_LARGE)?,
    );
    let heap_large = heap + HEAP_SMALL * PAGE;
    for (start, pages) in [
        (heap_large, LARGE_PAGES),
        (touched_large, LARGE_PAGES),
        (populated, 2),
        (read, 1),
    ] {
        let _ = advise(start, pages * LARGE, libc::MADV_HUGEPAGE);
    }
    handle(libc::SIGSEGV, allow as *const () as usize, libc::SA_SIGINFO)?;
    let forbidden = small(32 * PAGE)?;
    // SAFETY: memory of this scenario.
    let error =
        unsafe { libc::mprotect(forbidden as *mut libc::c_void, 32 * PAGE, libc::PROT_NONE) };
    ensure!(error == 0, "mprotect: {}", std::io::Error::last_os_error());
    let zeros = File::open("/dev/zero")?;
    let file = Mapping::file(40)?;

    map_code()?;

    let slot = marker.register_with(range)?;
    let mut tasks = Vec::new();
    let mut task = |name: &str,
                    expected: (u64, u64),
                    grown: Option<(usize, usize)>,
                    run: &mut dyn FnMut() -> Result<()>|
     -> Result<()> {
        let id = tasks.len() as u64 + 1;
        let mut resident = grown.map(|(start, pages)| Resident::of(start, pages));
        let mut count = || resident.as_mut().map(Resident::count).transpose();
        slot.set_task(id, STAGE, computing());
        let before = count()?;
        begin(marker, id);
        let done = run();
        end(marker, id);
        let after = count()?;
        slot.enter(ContextWord(0));
        done.with_context(|| format!("task {name}"))?;
        tasks.push(json!({
            "task": id,
            "name": name,
            "heap": expected.0,
            "native": expected.1,
            "resident": after.zip(before).map(|(after, before)| after - before),
        }));
        Ok(())
    };
    // What the reports themselves need is touched in the first one.
    for name in ["warm", "nothing"] {
        task(name, (0, 0), None, &mut || Ok(()))?;
    }
    task("heap", (500, 0), Some((heap, HEAP_PAGES)), &mut || {
        write(heap, 0..500);
        Ok(())
    })?;
    task("native", (0, 300), Some((native, 1000)), &mut || {
        write(native, 0..300);
        Ok(())
    })?;
    task("both", (100, 50), None, &mut || {
        write(heap, 500..600);
        write(native, 300..350);
        Ok(())
    })?;
    task("again", (0, 0), Some((native, 1000)), &mut || {
        write(heap, 0..600);
        write(native, 0..350);
        Ok(())
    })?;
    task("system_call", (0, 64), Some((native, 1000)), &mut || {
        let bytes = 64 * PAGE;
        // SAFETY: memory of this scenario.
        let read = unsafe {
            libc::read(
                zeros.as_raw_fd(),
                (native + 350 * PAGE) as *mut libc::c_void,
                bytes,
            )
        };
        ensure!(read == bytes as isize, "{read} bytes of /dev/zero");
        Ok(())
    })?;
    task("file", (0, 40), None, &mut || {
        (0..40).for_each(|window| file.read(window * WINDOW));
        Ok(())
    })?;
    let child = Child::fork()?;
    task("copies", (0, 0), Some((native, 1000)), &mut || {
        write(native, 0..200);
        Ok(())
    })?;
    drop(child);
    task("signals", (0, 32), Some((forbidden, 32)), &mut || {
        write(forbidden, 0..32);
        Ok(())
    })?;
    task("returned", (0, 100), Some((native, 1000)), &mut || {
        write(native, 600..700);
        Ok(())
    })?;
    let _ = advise(native + 600 * PAGE, 100 * PAGE, libc::MADV_DONTNEED);
    task("touched_again", (0, 100), Some((native, 1000)), &mut || {
        write(native, 600..700);
        Ok(())
    })?;
    // Comes back from swap, where there is one.
    let _ = advise(native, 300 * PAGE, libc::MADV_PAGEOUT);
    task("paged_out", (0, 0), None, &mut || {
        write(native, 0..300);
        Ok(())
    })?;
    // The memory that a system call makes resident has no exception, also after one.
    task("populated", (0, 1), None, &mut || {
        write(native, 800..801);
        let _ = advise(populated, 2 * LARGE, libc::MADV_POPULATE_WRITE);
        Ok(())
    })?;
    let all = LARGE_PAGES * OF_LARGE;
    task(
        "large_heap",
        (all as u64, 0),
        Some((heap, HEAP_PAGES)),
        &mut || {
            write(heap_large, 0..all);
            Ok(())
        },
    )?;
    // Memory without large pages has small ones.
    task(
        "large_native",
        (0, all as u64),
        Some((touched_large, all)),
        &mut || {
            write(touched_large, (0..all).step_by(OF_LARGE));
            Ok(())
        },
    )?;
    task("large_read", (0, 1), None, &mut || {
        // SAFETY: memory of this scenario.
        unsafe { (read as *const u8).read_volatile() };
        Ok(())
    })?;
    let next = tasks.len() as u64 + 1;
    without_a_heap(marker, next, native + 850 * PAGE)?;
    helper(
        marker,
        next + 2,
        range,
        (heap + 700 * PAGE, native + 900 * PAGE),
    )?;
    Ok(json!({ "tasks": tasks, "without_a_heap": next + 1, "helped": next + 2 }))
}

/// A thread of a program whose heap is not known touches 50 pages first, in the task after `warm`.
fn without_a_heap(marker: &Marker, warm: u64, start: usize) -> Result<()> {
    own_thread(|| {
        marker.register()?;
        begin(marker, warm);
        end(marker, warm);
        begin(marker, warm + 1);
        write(start, 0..50);
        end(marker, warm + 1);
        Ok(())
    })
}

/// A thread helps a task and touches 30 pages of the heap and 20 others first.
fn helper(marker: &Marker, task: u64, heap: Range, (start, native): (usize, usize)) -> Result<()> {
    own_thread(|| {
        marker.register_with(heap)?;
        let words = [task, Helper::PYTHON_WRITER.0.into()];
        let ended = [words[0], words[1], 7];
        for pages in [0, 1] {
            marker.tell_words(Kind::HELPER_BEGUN, &words);
            write(start, 0..30 * pages);
            write(native, 0..20 * pages);
            marker.tell_words(Kind::HELPER_ENDED, &ended);
        }
        Ok(())
    })
}

/// A task that writes pages which are there again and again, until 100 of them had a fault or 30 seconds have passed: the
/// kernel hides pages where it balances NUMA nodes.
pub fn hidden(marker: &Marker, _: &Options) -> Result<Value> {
    resident()?;
    const PAGES: usize = 4096;
    let memory = small(PAGES * PAGE)?;
    let heap = Range {
        start: memory as u64,
        bytes: (PAGES / 2 * PAGE) as u64,
    };
    let slot = marker.register_with(heap)?;
    write(memory, 0..PAGES);
    slot.set_task(1, STAGE, computing());
    // What the reports themselves need is touched before, and the clocks.
    begin(marker, 1);
    end(marker, 1);
    let (over, wait) = std::sync::mpsc::channel::<()>();
    let mut faults = 0;
    std::thread::scope(|scope| {
        // The kernel hides no page of a program with one thread on the page's node.
        scope.spawn(move || wait.recv());
        write(memory, 0..PAGES);
        let (start, before) = (Instant::now(), thread_faults());
        begin(marker, 2);
        while faults < 100 && start.elapsed() < Duration::from_secs(30) {
            write(memory, 0..PAGES);
            faults = thread_faults() - before;
        }
        end(marker, 2);
        drop(over);
    });
    slot.enter(ContextWord(0));
    Ok(json!({ "faults": faults }))
}

fn own_thread(work: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(work);
        thread
            .join()
            .map_err(|_| anyhow::anyhow!("a thread panicked"))?
    })
}
