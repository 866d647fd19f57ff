//! Memory in every state of a page, reported as cached blocks.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Map, Value, json};
use smtt_common::event::Kind;
use smtt_common::event::marker::BLOCK_SERIALIZED;
use smtt_model::decode::encode::payload;
use smtt_tests::page_walk::a_processor_of_each_node;

use crate::marker::Marker;
use crate::memory::{PAGE, pin};
use crate::{Options, say, wait};

const MIB: usize = 1 << 20;
/// Size of a large page on x86-64 and on most other processors with small pages of 4 KiB.
pub(crate) const LARGE: usize = 2 * MIB;

/// Memory that stays until the program ends, between two inaccessible guard pages: the mapping never merges with a
/// neighbour.
pub(crate) fn alone(bytes: usize) -> Result<usize> {
    let start = map(bytes + 2 * PAGE)?;
    for guard in [start, start + PAGE + bytes] {
        // SAFETY: a page of the mapping made above.
        let result = unsafe { libc::mprotect(guard as *mut libc::c_void, PAGE, libc::PROT_NONE) };
        ensure!(result == 0, "mprotect: {}", std::io::Error::last_os_error());
    }
    Ok(start + PAGE)
}

/// A new mapping.
fn map(bytes: usize) -> Result<usize> {
    map_with(bytes, libc::MAP_NORESERVE)
}

fn map_with(bytes: usize, flags: i32) -> Result<usize> {
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        bail!("mmap of {bytes} bytes: {}", std::io::Error::last_os_error());
    }
    Ok(start as usize)
}

pub(crate) fn advise(start: usize, bytes: usize, advice: i32) -> std::io::Result<()> {
    // SAFETY: memory of this program; no other code uses it.
    if unsafe { libc::madvise(start as *mut libc::c_void, bytes, advice) } == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Writes one byte of each of those pages.
pub fn write(start: usize, pages: impl Iterator<Item = usize>) {
    for page in pages {
        // SAFETY: inside a mapping of this program.
        unsafe { ((start + page * PAGE) as *mut u8).write_volatile(1) };
    }
}

/// Memory on small pages only.
pub fn small(bytes: usize) -> Result<usize> {
    let start = alone(bytes)?;
    // A kernel without large pages rejects the advice and does not need it.
    let _ = advise(start, bytes, libc::MADV_NOHUGEPAGE);
    Ok(start)
}

/// Reports a block of serialised bytes, off the heap, with one range.
pub fn tell(marker: &Marker, rdd: u64, address: usize, bytes: usize) -> String {
    let name = format!("rdd_{rdd}_0");
    let words = [rdd, 0, bytes as u64, BLOCK_SERIALIZED, u64::MAX, 1, 0, 1];
    let range = (address as u64, bytes as u64);
    marker.tell(Kind::BLOCK_STORED, &payload(&words, &[range], &[&name]));
    name
}

/// Reports `times` reads of a block by a thread that runs on the given processor.
fn tell_reads(
    marker: &Marker,
    rdd: u64,
    block: &str,
    processor: usize,
    times: usize,
) -> Result<()> {
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            pin(processor)?;
            for _ in 0..times {
                marker.tell(
                    Kind::BLOCK_READ,
                    &payload(&[rdd, 0, u64::MAX], &[], &[block]),
                );
            }
            Ok(())
        });
        let told = reader.join();
        told.map_err(|_| anyhow::anyhow!("the reading thread panicked"))?
    })
}

/// A block in each state. Every second page of one block is touched, and that block is read twice from the first node.
/// `node=N` adds a block that is bound to that node, and is read three times from the first node and once from the
/// last. `large=GIB` adds a block of that size whose first 256 MiB are written. With `free=yes` the scenario prints
/// `HELD` and the blocks, waits for a line, frees the large block and reports its removal.
pub fn pages(marker: &Marker, options: &Options) -> Result<Value> {
    let processors = a_processor_of_each_node();
    let (first, last) = (
        *processors.first().context("no node has a processor")?,
        *processors.last().context("no node has a processor")?,
    );
    let mut blocks = Map::new();
    let mut block = |rdd: u64, kind: &str, address: usize, bytes: usize| {
        let name = tell(marker, rdd, address, bytes);
        let told = json!({ "block": name, "rdd": rdd, "address": address, "bytes": bytes });
        blocks.insert(kind.to_owned(), told);
    };

    let huge = alone(8 * MIB + LARGE)?.next_multiple_of(LARGE);
    let large_pages = advise(huge, 8 * MIB, libc::MADV_HUGEPAGE).is_ok();
    write(huge, 0..8 * MIB / PAGE);
    block(20, "huge", huge, 8 * MIB);

    // Every second page, in a range that begins and ends within pages.
    let half = small(4 * MIB)?;
    write(half, (0..4 * MIB / PAGE).step_by(2));
    block(21, "half", half + 100, 4 * MIB - 300);
    tell_reads(marker, 21, "rdd_21_0", first, 2)?;

    let zero = small(MIB)?;
    for page in 0..MIB / PAGE {
        // SAFETY: inside the mapping.
        unsafe { ((zero + page * PAGE) as *const u8).read_volatile() };
    }
    block(22, "zero", zero, MIB);

    let swapped = small(MIB)?;
    write(swapped, 0..MIB / PAGE);
    let paged_out = advise(swapped, MIB, libc::MADV_PAGEOUT).is_ok();
    block(23, "swapped", swapped, MIB);

    let nowhere = map(MIB)?;
    // SAFETY: exactly the mapping made above, which nothing uses.
    unsafe { libc::munmap(nowhere as *mut libc::c_void, MIB) };
    block(24, "nowhere", nowhere, MIB);

    if let Some(node) = options.text("node") {
        let node: u32 = node.parse().context("node=N is no number")?;
        let bound = small(4 * MIB)?;
        let mask = 1_u64 << node;
        // SAFETY: memory of this program; the mask has the number of bits that the call gets.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                bound,
                4 * MIB,
                libc::MPOL_BIND,
                &raw const mask,
                64,
                0,
            )
        };
        ensure!(result == 0, "mbind: {}", std::io::Error::last_os_error());
        write(bound, 0..4 * MIB / PAGE);
        block(25, "bound", bound, 4 * MIB);
        tell_reads(marker, 25, "rdd_25_0", first, 3)?;
        tell_reads(marker, 25, "rdd_25_0", last, 1)?;
    }

    // Pages of hugetlbfs, where the administrator has reserved some.
    for (rdd, kind, shift) in [(27, "hugetlb", 21), (28, "giant", 30)] {
        let flags = libc::MAP_HUGETLB | shift << libc::MAP_HUGE_SHIFT;
        if let Ok(start) = map_with(1 << shift, flags) {
            write(start, 0..1);
            block(rdd, kind, start, 1 << shift);
        }
    }

    let large = (options.number("large", 0)? as usize) << 30;
    let mut given_back = None;
    if large > 0 {
        let start = small(large)?;
        write(start, 0..256 * MIB / PAGE);
        block(26, "large", start, large);
        given_back = options.text("free").map(|_| start);
    }
    let done = json!({ "blocks": blocks, "large_pages": large_pages, "paged_out": paged_out });
    if let Some(start) = given_back {
        say(&format!("HELD {done}"))?;
        wait()?;
        // SAFETY: exactly the mapping made above, which nothing uses any more.
        unsafe { libc::munmap(start as *mut libc::c_void, large) };
        let removed = payload(&[26, 0], &[], &["rdd_26_0", "0"]);
        marker.tell(Kind::BLOCK_REMOVED, &removed);
    }
    Ok(done)
}

/// Involuntary context switches of the calling thread.
fn preempted() -> i64 {
    // SAFETY: all zeros are a value of this plain structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the place is valid.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nivcsw
}

/// A thread that maps and faults repeatedly for `seconds` seconds while the program holds a large block. Returns the
/// duration of the slowest steps: one step maps 64 KiB, writes its 16 pages and unmaps them. Steps with an involuntary
/// context switch are left out: they measure the load of the machine. A wait for a lock is a voluntary switch and stays
/// in.
pub fn latency(marker: &Marker, options: &Options) -> Result<Value> {
    let seconds = options.number("seconds", 10)?;
    let bytes = (options.number("large", 12)? as usize) << 30;
    let start = small(bytes)?;
    write(start, 0..256 * MIB / PAGE);
    tell(marker, 26, start, bytes);
    // The resolver needs time to learn of the block.
    std::thread::sleep(Duration::from_secs(2));
    let stop = AtomicBool::new(false);
    let (mut steps, disturbed) = std::thread::scope(|scope| {
        let faulting = scope.spawn(|| -> Result<(Vec<u32>, u64)> {
            let (mut steps, mut disturbed) = (Vec::with_capacity(8 << 20), 0_u64);
            let mut before = preempted();
            while !stop.load(Ordering::Relaxed) {
                let begin = Instant::now();
                let memory = map(16 * PAGE)?;
                write(memory, 0..16);
                // SAFETY: exactly the mapping made above, which nothing uses.
                unsafe { libc::munmap(memory as *mut libc::c_void, 16 * PAGE) };
                let nanoseconds = begin.elapsed().as_nanos();
                let after = preempted();
                if after != before {
                    before = after;
                    disturbed += 1;
                } else if steps.len() < steps.capacity() {
                    steps.push(u32::try_from(nanoseconds).unwrap_or(u32::MAX));
                }
            }
            Ok((steps, disturbed))
        });
        std::thread::sleep(Duration::from_secs(seconds));
        stop.store(true, Ordering::Relaxed);
        faulting
            .join()
            .map_err(|_| anyhow::anyhow!("the faulting thread panicked"))?
    })?;
    ensure!(!steps.is_empty(), "no step was taken");
    steps.sort_unstable();
    let at = |share: f64| steps[((steps.len() - 1) as f64 * share) as usize];
    Ok(json!({
        "steps": steps.len(),
        "preempted": disturbed,
        "p50_ns": at(0.5),
        "p99_ns": at(0.99),
        "p999_ns": at(0.999),
        "max_ns": at(1.0),
    }))
}
