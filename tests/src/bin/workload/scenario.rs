//! The scenarios. A scenario does what its name says and returns the expected counts.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use smtt_common::context::{Access, Activity, ContextWord, Region};
use smtt_common::event::marker::BLOCK_SERIALIZED;
use smtt_common::event::{Kind, PAYLOAD_MAX};
use smtt_model::decode::encode::payload;

use crate::Options;
use crate::marker::{Marker, OwnSlot, computing, reading, writing};
use crate::memory::{Mapping, PAGE, WINDOW, thread_faults, thread_id};

/// RDD id of the scenario `blocks`.
const RDD_OF_BLOCKS: u64 = 21;
/// Stage of every task here.
pub const STAGE: u32 = 3;

/// RDD 7 reads fresh pages of a file mapping; RDD 8, nested in RDD 7, writes fresh anonymous pages; several threads run
/// in random order. Each thread's part of a round is a separate task: task attempt `round * 100 + thread`.
pub fn faults(marker: &Marker, options: &Options) -> Result<Value> {
    let rounds = options.number("rounds", 1)?;
    let threads = options.number("threads", 4)?;
    let (reads, writes) = (
        options.number("reads", 1000)?,
        options.number("writes", 500)?,
    );
    for round in 0..rounds {
        let file = Mapping::file(reads as usize)?;
        let memory = Mapping::anonymous(writes as usize)?;
        let start = Barrier::new(threads as usize);
        in_threads(threads, |thread| {
            let slot = marker.register()?;
            // Touch what the loop itself needs before the count begins.
            let warm = Mapping::anonymous(1)?;
            warm.read(0);
            warm.write(0);
            start.wait();
            slot.set_task(round * 100 + thread, STAGE, computing());
            let outer = slot.enter(reading(7, thread as u32));
            let (mut read, mut written) = (thread, thread);
            while read < reads || written < writes {
                if read < reads {
                    file.read(read as usize * WINDOW);
                    read += threads;
                }
                // Two reads for each write while both are left.
                if written < writes && (written * reads <= read * writes || read >= reads) {
                    let inner = slot.enter(writing(8, thread as u32));
                    memory.write(written as usize * PAGE);
                    slot.enter(inner);
                    written += threads;
                }
            }
            slot.enter(outer);
            slot.enter(ContextWord(0));
            Ok(())
        })?;
    }
    Ok(json!({ "rounds": rounds, "threads": threads, "reads": reads, "writes": writes }))
}

/// Facts and faults at full speed, from several threads.
pub fn storm(marker: &Marker, options: &Options) -> Result<Value> {
    let threads = options.number("threads", 4)?;
    let facts = options.number("facts", 20_000)?;
    let pages = options.number("pages", 256)?;
    let before = marker.told.load(std::sync::atomic::Ordering::Relaxed);
    in_threads(threads, |thread| {
        let slot = marker.register()?;
        slot.set_task(thread, STAGE, writing(8, 0));
        let memory = Mapping::anonymous(pages as usize)?;
        for fact in 0..facts {
            marker.tell_words(Kind::BLOCK_READ, &[8, fact, thread]);
            let page = (fact % pages) as usize;
            if page == 0 {
                memory.forget();
            }
            memory.write(page * PAGE);
        }
        slot.enter(ContextWord(0));
        Ok(())
    })?;
    let told = marker.told.load(std::sync::atomic::Ordering::Relaxed) - before;
    Ok(json!({ "told": told, "faults": threads * facts }))
}

/// An RDD of very many blocks, reported in rounds. Each round waits for a line from the test. Then all blocks are
/// removed, in rounds again. Block `n` has `100 + n % 7` bytes.
pub fn blocks(marker: &Marker, options: &Options) -> Result<Value> {
    let rounds = options.number("rounds", 20)?;
    let per_round = options.number("per_round", 5000)?;
    let tell = |remove: bool, round: u64| {
        for partition in round * per_round..(round + 1) * per_round {
            let name = format!("rdd_{RDD_OF_BLOCKS}_{partition}");
            let bytes = 100 + partition % 7;
            let range = (0x7000_0000_0000 + partition * 128, bytes);
            let (kind, payload) = if remove {
                let words = [RDD_OF_BLOCKS, partition];
                (Kind::BLOCK_REMOVED, payload(&words, &[], &[&name, "0"]))
            } else {
                let words = [
                    RDD_OF_BLOCKS,
                    partition,
                    bytes,
                    BLOCK_SERIALIZED,
                    u64::MAX,
                    1,
                    0,
                    1,
                ];
                (Kind::BLOCK_STORED, payload(&words, &[range], &[&name]))
            };
            marker.tell(kind, &payload);
        }
    };
    for remove in [false, true] {
        for round in 0..rounds {
            tell(remove, round);
            crate::say("ROUND")?;
            crate::wait()?;
        }
    }
    Ok(json!({ "rounds": rounds }))
}

/// A program that fakes the marker: invalid lengths and addresses, slots full of garbage, endless registrations, claims
/// about other processes and threads.
pub fn garbage(marker: &Marker, options: &Options) -> Result<Value> {
    let registrations = options.number("registrations", 1_000_000)?;
    let victim = options.number("victim", 1)?;
    let faults = options.number("faults", 20_000)?;
    let kinds: Vec<Kind> = smtt_common::event::MARKER_FACTS
        .iter()
        .map(|fact| fact.kind)
        .collect();
    let fine = [0_u8; 64];
    for kind in &kinds {
        for length in [0, -1, i32::MIN, i32::MAX, PAYLOAD_MAX as i32 + 1, 1 << 20] {
            marker.tell_raw(*kind, fine.as_ptr() as i64, length);
        }
        for address in [0, 8, -1, i64::MIN, 0xffff_8880_0000_0000_u64 as i64, 0x1000] {
            marker.tell_raw(*kind, address, 64);
        }
    }
    // Claims about the victim: its process as our worker, its threads as ours, its end.
    for task in [5, u64::MAX] {
        marker.tell(
            Kind::PYTHON_WORKER,
            &payload(&[victim, task, reading(7, 0).0, 1, 0], &[], &[]),
        );
    }
    marker.tell(
        Kind::THREAD_REGISTERED,
        &payload(&[0xdead_beef, victim, 1], &[], &["forged"]),
    );
    marker.tell(
        Kind::THREAD_GONE,
        &payload(&[0xdead_beef, victim, 1], &[], &[]),
    );
    // A slot whose words change to random ones before every fault.
    let slot = marker.register()?;
    let memory = Mapping::anonymous(faults as usize)?;
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for page in 0..faults {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // Any activity but idle, so that every fault claims a context of its own.
        slot.set_task(random, random as u32, ContextWord(random | 1 << 56));
        memory.write(page as usize * PAGE);
    }
    slot.enter(ContextWord(0));
    let mut words = payload(&[slot.address(), 0, 0], &[], &["flood"]);
    for number in 0..registrations {
        words[8..16].copy_from_slice(&number.to_le_bytes());
        marker.tell_raw(
            Kind::THREAD_REGISTERED,
            words.as_ptr() as i64,
            words.len() as i32,
        );
    }
    // A slot address outside any mapping: the fault still counts.
    marker.tell(
        Kind::THREAD_REGISTERED,
        &payload(&[0x10, 0, 0], &[], &["nowhere"]),
    );
    let unreadable = Mapping::anonymous(10)?;
    (0..10).for_each(|page| unreadable.write(page * PAGE));
    Ok(json!({ "registrations": registrations, "faults": faults, "unreadable": 10 }))
}

/// Threads that end without a fact, and a thread id that is used again by a thread without a slot.
pub fn threads(marker: &Marker, options: &Options) -> Result<Value> {
    let waves = options.number("waves", 20)?;
    let mut last = 0;
    for wave in 0..waves {
        in_threads(8, |thread| {
            let slot = marker.register()?;
            slot.set_task(1000 + wave, STAGE, reading(7, thread as u32));
            // The thread ends in the middle of a task: only the kernel reports the end.
            Ok(())
        })?;
    }
    let first = thread::scope(|scope| {
        scope
            .spawn(|| {
                let slot = marker.register()?;
                slot.set_task(2000, STAGE, writing(9, 0));
                Ok::<_, anyhow::Error>(thread_id())
            })
            .join()
    });
    let first = first.map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    let pages = 50;
    // The kernel allocates the id after the last one; the last one can be set. Compilers beside the test take ids too.
    for _ in 0..5_000 {
        if std::fs::write("/proc/sys/kernel/ns_last_pid", (first - 1).to_string()).is_err() {
            break;
        }
        let same = thread::scope(|scope| {
            scope
                .spawn(|| {
                    last = thread_id();
                    if last != first {
                        return Ok(false);
                    }
                    let memory = Mapping::anonymous(pages)?;
                    (0..pages).for_each(|page| memory.write(page * PAGE));
                    Ok::<_, anyhow::Error>(true)
                })
                .join()
        });
        if same.map_err(|_| anyhow::anyhow!("a thread panicked"))?? {
            break;
        }
    }
    Ok(json!({ "waves": waves, "reused": last == first, "pages": pages }))
}

/// A child process, first without a task and then with a task that it serves, as a Python worker; then a child that
/// replaces its image.
pub fn fork(marker: &Marker, options: &Options) -> Result<Value> {
    let pages = options.number("pages", 300)?;
    let worker = ContextWord::new(Activity::PYTHON_WORKER, Access::NONE, Region::NONE, 12, 0);
    let (mut told, mut telling) = (pipe()?, pipe()?);
    // SAFETY: this program has one thread now, so the child may call any function.
    let child = unsafe { libc::fork() };
    if child < 0 {
        bail!("fork: {}", std::io::Error::last_os_error());
    }
    if child == 0 {
        let touch = || {
            Mapping::anonymous(pages as usize)
                .map(|memory| (0..pages as usize).for_each(|page| memory.write(page * PAGE)))
        };
        let served =
            touch().is_ok() && telling.send().is_ok() && told.wait().is_ok() && touch().is_ok();
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!served)) };
    }
    telling.wait()?;
    marker.tell(
        Kind::PYTHON_WORKER,
        &payload(&[child as u64, 77, worker.0, u64::from(STAGE), 0], &[], &[]),
    );
    told.send()?;
    reap(child)?;
    let image = std::env::current_exe()?;
    let mut other = std::process::Command::new(image)
        .args(["none", "plain", &format!("pages={pages}")])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    let exec_pid = other.id();
    if let Some(input) = &mut other.stdin {
        use std::io::Write as _;
        input.write_all(b"go\nend\n")?;
    }
    if !other.wait()?.success() {
        bail!("the child that replaced its image failed");
    }
    Ok(json!({ "pages": pages, "child": child, "exec_child": exec_pid }))
}

/// The first thread ends before the others. Another thread continues and ends the process.
pub fn leader(marker: &Marker, options: &Options) -> Result<Value> {
    let pages = options.number("pages", 200)?;
    let marker: &'static Marker = {
        // SAFETY: the process outlives its first thread, whose frame holds the marker; that frame is never unwound.
        unsafe { &*std::ptr::from_ref(marker) }
    };
    thread::spawn(move || {
        let work = || -> Result<()> {
            let slot = marker.register()?;
            // The first thread must be gone before the pages are touched.
            let state = format!("/proc/self/task/{}/stat", std::process::id());
            while !std::fs::read_to_string(&state)?.contains(") Z ") {
                thread::sleep(Duration::from_millis(1));
            }
            let memory = Mapping::anonymous(pages as usize)?;
            warm_up(&slot)?;
            let before = thread_faults();
            slot.set_task(1, STAGE, writing(8, 0));
            (0..pages as usize).for_each(|page| memory.write(page * PAGE));
            slot.enter(ContextWord(0));
            let faults = thread_faults() - before;
            crate::say(&format!(
                "DONE {}",
                json!({ "pages": pages, "faults": faults })
            ))?;
            crate::wait()
        };
        let failed = work().is_err();
        std::process::exit(i32::from(failed));
    });
    // SAFETY: ends this thread only.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    bail!("the first thread goes on")
}

/// Replaces the image of the program by one that does not know the marker.
pub fn exec(marker: &Marker, options: &Options) -> Result<Value> {
    use std::os::unix::process::CommandExt as _;
    let slot = marker.register()?;
    slot.set_task(1, STAGE, writing(8, 0));
    let pages = options.number("pages", 400)?;
    let error = std::process::Command::new(std::env::current_exe()?)
        .args(["none", "plain", &format!("pages={pages}")])
        .exec();
    Err(error).context("exec")
}

/// Touches pages and does nothing else.
pub fn plain(options: &Options) -> Result<Value> {
    let pages = options.number("pages", 100)?;
    let memory = Mapping::anonymous(pages as usize)?;
    (0..pages as usize).for_each(|page| memory.write(page * PAGE));
    Ok(json!({ "pages": pages }))
}

/// Registers a thread before a daemon runs; at the resync request reports everything again, and then works.
pub fn late(marker: &Marker, options: &Options) -> Result<Value> {
    let pages = options.number("pages", 200)?;
    let faults = AtomicU64::new(0);
    in_threads(1, |_| {
        let slot = marker.register()?;
        let memory = Mapping::anonymous(pages as usize)?;
        warm_up(&slot)?;
        // Registered: the test may start the daemon now.
        crate::say("REGISTERED")?;
        crate::wait()?;
        let before = thread_faults();
        slot.set_task(1, STAGE, writing(8, 0));
        (0..pages as usize).for_each(|page| memory.write(page * PAGE));
        slot.enter(ContextWord(0));
        faults.store(thread_faults() - before, Ordering::Relaxed);
        if let Some(request) = marker.resync_request() {
            marker.describe();
            marker.resync_done(request);
        }
        Ok(())
    })?;
    Ok(json!({ "pages": pages, "faults": faults.into_inner() }))
}

/// Touches the code and memory of a loop over contexts once, so that the first context has no faults of them.
pub fn warm_up(slot: &OwnSlot) -> Result<()> {
    let memory = Mapping::anonymous(1)?;
    slot.set_task(0, STAGE, ContextWord(0));
    slot.enter(ContextWord(0));
    memory.read(0);
    memory.write(0);
    Ok(())
}

/// Runs the work in `threads` threads and waits for every thread.
pub fn in_threads(threads: u64, work: impl Fn(u64) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        running.into_iter().try_for_each(|thread| {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))?
        })
    })
}

/// Both ends of a pipe; one byte is one signal between parent and child.
struct Pipe {
    read: std::io::PipeReader,
    write: std::io::PipeWriter,
}

fn pipe() -> Result<Pipe> {
    let (read, write) = std::io::pipe()?;
    Ok(Pipe { read, write })
}

impl Pipe {
    fn send(&mut self) -> std::io::Result<()> {
        std::io::Write::write_all(&mut self.write, b"x")
    }

    fn wait(&mut self) -> std::io::Result<()> {
        std::io::Read::read_exact(&mut self.read, &mut [0])
    }
}

fn reap(child: i32) -> Result<()> {
    let mut status = 0;
    // SAFETY: the status is a valid place.
    if unsafe { libc::waitpid(child, &raw mut status, 0) } != child || status != 0 {
        bail!("the child failed with status {status}");
    }
    Ok(())
}
