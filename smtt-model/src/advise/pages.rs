//! Rules about page placement: swapped, small pages, without memory.

use super::saving::fault_time_of;
use super::surroundings::{Process, Surroundings};
use super::{
    BYTES_WORTH, Cost, Finding, Outcome, Rdd, Remedy, Saving, Severity, View, bytes, count, part,
    remedy, share,
};
use crate::rows::{FigureRow, SampleRow};
use crate::state::FaultFigures;
use crate::units;

/// Minimum swapped bytes of an RDD for a finding.
pub(super) const SWAPPED_BYTES: u64 = 1 << 20;
/// Minimum share of the RDD's bytes that is swapped for a finding.
pub(super) const SWAPPED_SHARE: f64 = 0.01;
/// Pages below this size are small, in bytes.
pub(super) const SMALL_PAGE_BYTES: u64 = 1 << 20;
/// The smallest pages of most kernels, in bytes.
const BASE_PAGE_BYTES: u64 = 4096;
/// Minimum share of bytes on small pages for an RDD to count as on small pages.
pub(super) const SMALL_SHARE: f64 = 0.8;
/// Minimum share of the RDD's cycles in page walks for a finding.
pub(super) const WALK_SHARE: f64 = 0.05;
/// Minimum number of page faults for a finding where page walks are not measured: each page of 64 MiB once.
pub(super) const FAULTS: u64 = 16_384;
/// Minimum share of bytes without memory of their own for a finding.
pub(super) const WITHOUT_MEMORY_SHARE: f64 = 0.25;

pub(super) const NOT_EXAMINED: &str = "no page was examined: bytes have no addresses (objects are only sampled), are too new, or [placement] is switched off";

/// Label of the bytes that a sample stands for, among the numbers of a finding.
pub(super) const OF_SAMPLES: &str = "in blocks of objects, estimated from a sample";

/// Whether any page of an RDD was examined.
pub(super) fn any_page_examined(rdds: &[Rdd<'_>]) -> bool {
    rdds.iter()
        .any(|rdd| rdd.seen(|row| row.resolved_bytes) > Some(0))
}

/// Whether any page of an RDD, or any object of a sample, was examined.
pub(super) fn any_examined_or_sampled(rdds: &[Rdd<'_>]) -> bool {
    any_page_examined(rdds)
        || rdds
            .iter()
            .any(|rdd| rdd.pages.iter().any(|row| row.sample.is_some()))
}

/// Bytes of blocks of objects that the sample's `share` stands for, and the size of these blocks; `None` without a
/// sample.
pub(super) fn estimated(rdd: &Rdd<'_>, share: impl Fn(&SampleRow) -> f64) -> Option<(u64, u64)> {
    let samples = rdd.pages.iter().filter_map(|row| row.sample.as_ref());
    let parts = samples.map(|sample| {
        let part = sample.held_bytes as f64 * share(sample).clamp(0.0, 1.0);
        (part.round() as u64, sample.held_bytes)
    });
    parts.reduce(|sum, more| (sum.0.saturating_add(more.0), sum.1.saturating_add(more.1)))
}

/// Caveats of a finding about pages whose sampled objects stand for `sampled` bytes.
pub(super) fn caveats(rdd: &Rdd<'_>, sampled: u64) -> Vec<String> {
    let mut lines = Vec::new();
    let held = rdd.seen(|row| Some(row.held_bytes)).unwrap_or(0);
    let resolved = rdd.seen(|row| row.resolved_bytes).unwrap_or(0);
    let known = resolved.saturating_add(sampled);
    if known < held {
        lines.push(format!(
            "{} of {} have no examined address{}",
            units::bytes(held - known),
            units::bytes(held),
            if sampled == 0 {
                " (objects are only sampled)"
            } else {
                ""
            }
        ));
    }
    let objects = rdd.seen(|row| row.sampled_objects);
    if let Some(objects) = objects.filter(|_| sampled > 0) {
        lines.push(format!(
            "{objects} objects were examined in blocks of objects that hold {}: the placement of the others is extrapolated",
            units::bytes(sampled)
        ));
    }
    if rdd.pages.iter().any(|row| row.estimated == Some(true)) {
        lines.push("figures are estimated from a sample of the pages".to_owned());
    }
    lines
}

/// Settings that keep executors out of swap: each living one gives back as much as is swapped out of it.
pub(super) fn out_of_swap(view: &View, around: &Surroundings) -> Vec<Remedy> {
    let alive = view
        .executors
        .iter()
        .filter(|row| row.state == crate::rows::ExecutorState::Alive);
    // The setting is one for all executors: the one that needs most decides.
    let heaps = alive.filter_map(|row| {
        let out = around.processes.get(&row.who.pid)?.swapped_bytes?;
        Some((row.heap_max_bytes?, out))
    });
    let least = heaps
        .filter(|(heap, out)| *out > 0 && out < heap)
        .max_by_key(|(_, out)| *out);
    let mut remedies = vec![match least {
        Some((heap, out)) => remedy(
            &format!(
                "Ask for less, so that heaps, overhead and the page cache fit into the machine's memory: {} of one executor are \
                 swapped out, and its heap has {}:",
                units::bytes(out),
                units::bytes(heap)
            ),
            &[&format!("spark.executor.memory  {}m", (heap - out) >> 20)],
        ),
        None => remedy(
            "Ask for less, so that heaps, overhead and the page cache fit into the machine's memory: a smaller \
             spark.executor.memory or spark.executor.memoryOverhead. How much smaller is not known: what is swapped out of \
             each executor could not be read",
            &[],
        ),
    }];
    if around.swappiness.is_none_or(|value| value > 1) {
        remedies.push(remedy(
            "Swap only in need, on each worker as root:",
            &["sysctl vm.swappiness=1"],
        ));
    }
    remedies.push(remedy(
        "Or keep executors out of swap by their cgroup (version 2), here for a systemd unit:",
        &["MemorySwapMax=0"],
    ));
    remedies
}

/// Seconds that page faults of an RDD's tasks waited for swap so far, and how they were computed. When a page that is out
/// is next used cannot be known; what such uses have cost can.
fn waits_for_swap(rdd: &Rdd<'_>) -> (Option<Saving>, String) {
    let mut sum = FaultFigures::default();
    for row in &rdd.rows {
        sum.add(&row.faults);
    }
    let why = match (
        sum.page_faults_major,
        sum.page_faults,
        sum.page_fault_time_ns,
    ) {
        (Some(major), Some(faults), Some(time)) if major > 0 => {
            let most = time.saturating_add(sum.page_fault_time_error_ns.unwrap_or(0));
            let computed = format!(
                "between nothing and all of the time of the page faults while tasks worked on it, the upper end of its interval \
                 ({}): {} of {} were major, also those of files",
                units::duration(most),
                units::count(major),
                units::count(faults)
            );
            return (Some(Saving::up_to(most)), computed);
        }
        (Some(0), ..) => "no page fault of a task that worked on it has waited for a disk so far",
        (None, ..) => "major faults are not counted on this machine (smtt-ctl status)",
        (Some(_), ..) => "too few of its page faults were timed",
    };
    (None, format!("not in seconds: {why}"))
}

/// Finds RDDs whose bytes are in swap.
pub(super) fn swapped(view: &View, around: &Surroundings) -> Outcome {
    const ID: &str = "swapped";
    const LOOKS_FOR: &str = "bytes of RDDs in swap";
    let rdds = view.rdds();
    if around.swap_bytes == Some(0) {
        return Outcome::checked(ID, LOOKS_FOR, Vec::new(), "this machine has no swap");
    }
    if !any_examined_or_sampled(&rdds) {
        return Outcome::not_checked(ID, LOOKS_FOR, NOT_EXAMINED);
    }
    let alive = || {
        view.executors
            .iter()
            .filter(|row| row.state == crate::rows::ExecutorState::Alive)
    };
    let heaps = alive()
        .filter_map(|row| row.heap_max_bytes)
        .fold(0, u64::saturating_add);
    let findings = rdds.iter().filter_map(|rdd| {
        let seen = rdd
            .seen(|row| row.swapped_bytes)
            .zip(rdd.seen(|row| row.resolved_bytes));
        let sampled = estimated(rdd, |sample| sample.swapped_share);
        let (sampled_out, sampled_held) = sampled.unwrap_or((0, 0));
        let (swapped, resolved) = seen.or(sampled.map(|_| (0, 0)))?;
        let swapped = swapped.saturating_add(sampled_out);
        let resolved = resolved.saturating_add(sampled_held);
        let cost = part(swapped, resolved);
        if swapped < SWAPPED_BYTES || cost < SWAPPED_SHARE {
            return None;
        }
        let mut numbers = vec![
            bytes("swapped out", swapped),
            bytes("examined", resolved),
            share("swapped", cost),
            bytes(
                "largest heaps of this application's executors here, together",
                heaps,
            ),
        ];
        if sampled_held > 0 {
            numbers.insert(2, bytes(OF_SAMPLES, sampled_held));
        }
        numbers.extend(
            around
                .memory_bytes
                .map(|memory| bytes("memory of the machine", memory)),
        );
        numbers.extend(
            around
                .swap_used_bytes
                .map(|used| bytes("swap in use on the machine", used)),
        );
        numbers.extend(
            around
                .swappiness
                .map(|value| count("vm.swappiness", u64::from(value))),
        );
        let remedies = out_of_swap(view, around);
        let (saving, computed) = waits_for_swap(rdd);
        Some(Finding {
            id: ID.to_owned(),
            severity: Severity::High,
            title: format!(
                "{} of {} are swapped out ({})",
                units::bytes(swapped),
                rdd.label(),
                units::share(cost)
            ),
            subject: rdd.subject(view),
            window: "at the last scan of its pages".to_owned(),
            numbers,
            cost: Cost {
                share: Some(cost),
                of: "its bytes, each page read from disk when it is next used".to_owned(),
                estimated: sampled_out > 0,
            },
            saving,
            computed,
            disproof:
                "the kernel reads no swapped page (pswpin in /proc/vmstat) while tasks use the RDD"
                    .to_owned(),
            remedies,
            not_measured: caveats(rdd, sampled_held),
        })
    });
    Outcome::checked(
        ID,
        LOOKS_FOR,
        findings.collect(),
        "RDDs whose pages were examined",
    )
}

/// The page-walk figure with the highest ratio to the RDD's own cycles, and its executor's row.
fn walks<'a>(rdd: &Rdd<'a>) -> Option<(&'a str, &'a FigureRow)> {
    let figures = rdd.rows.iter().flat_map(|row| &row.walks.page_walks);
    figures
        .filter(|(_, figure)| matches!(figure.ratio_is.as_deref(), Some("fraction" | "estimated")))
        .filter(|(_, figure)| figure.ratio.is_some())
        .map(|(name, figure)| (name.as_str(), figure))
        .max_by(|(_, left), (_, right)| {
            let ratio = |figure: &FigureRow| figure.ratio.map_or(0.0, |ratio| ratio.value);
            ratio(left).total_cmp(&ratio(right))
        })
}

/// Seconds of page walks for an RDD by one figure, over its executors whose CPU time can be read; `None` for none.
fn walk_seconds(rdd: &Rdd<'_>, name: &str, around: &Surroundings) -> Option<Saving> {
    let of_executors = rdd.rows.iter().filter_map(|row| {
        let ratio = row.walks.page_walks.get(name)?.ratio_of_executor?;
        let process = around.processes.get(&row.who.pid)?;
        let cpu_ns = process.user_ns?.saturating_add(process.system_ns?);
        let all = Saving::new(ratio.low, ratio.value, ratio.high?);
        Some(all.times(cpu_ns as f64 / 1e9))
    });
    of_executors.reduce(|mut sum, more| {
        sum.add(&more);
        sum
    })
}

/// Finds RDDs on small pages whose page walks cost time.
pub(super) fn small_pages(view: &View, around: &Surroundings) -> Outcome {
    const ID: &str = "small_pages";
    const LOOKS_FOR: &str = "RDDs on pages of 4 KiB that page walks cost time";
    let rdds = view.rdds();
    if !any_page_examined(&rdds) {
        return Outcome::not_checked(ID, LOOKS_FOR, NOT_EXAMINED);
    }
    if !rdds
        .iter()
        .any(|rdd| rdd.pages.iter().any(|row| row.page_sizes.is_some()))
    {
        let why = "the kernel does not report page sizes (this needs Linux 6.7, or root for /proc/kpageflags)";
        return Outcome::not_checked(ID, LOOKS_FOR, why);
    }
    let findings = rdds
        .iter()
        .filter_map(|rdd| small(rdd, view, around))
        .collect();
    let mut why = "RDDs whose pages were examined".to_owned();
    if !view.no_walks.is_empty() {
        why.push_str(&format!(
            "; by page faults, because page walks were not measured: {}",
            view.no_walks
        ));
    }
    Outcome::checked(ID, LOOKS_FOR, findings, why)
}

fn small(rdd: &Rdd<'_>, view: &View, around: &Surroundings) -> Option<Finding> {
    let sizes = || {
        rdd.pages
            .iter()
            .filter_map(|row| row.page_sizes.as_ref())
            .flatten()
    };
    let all = sizes().map(|size| size.bytes).fold(0, u64::saturating_add);
    let small = sizes().filter(|size| size.page_bytes < SMALL_PAGE_BYTES);
    let small = small.map(|size| size.bytes).fold(0, u64::saturating_add);
    let small_share = part(small, all);
    if all < BYTES_WORTH || small_share < SMALL_SHARE {
        return None;
    }
    let faults = rdd
        .rows
        .iter()
        .filter_map(|row| row.faults.page_faults)
        .reduce(u64::saturating_add);
    let mut numbers = vec![
        bytes("in memory, with known page size", all),
        share("on small pages", small_share),
    ];
    numbers.extend(faults.map(|faults| count("page faults for it", faults)));
    let mut not_measured = caveats(rdd, 0);
    let (severity, cost, saving, computed, title) = match walks(rdd) {
        Some((name, figure)) => {
            let ratio = figure.ratio?;
            if ratio.low < WALK_SHARE {
                return None;
            }
            let cost = figure.ratio_of_executor.map_or(0.0, |ratio| ratio.value);
            let words = name.replace('_', " ");
            numbers.push(share(&format!("{words}, of its own cycles"), ratio.value));
            numbers.push(share("lower end of the 95 % interval", ratio.low));
            numbers.push(count("samples", figure.samples));
            let of = Cost {
                share: Some(cost),
                of: "the cycles of its executor, in page walks for it".to_owned(),
                estimated: figure.ratio_is.as_deref() == Some("estimated"),
            };
            let title = format!(
                "{} spends {} of its cycles in page walks, {} of it on small pages",
                rdd.label(),
                units::share(ratio.value),
                units::share(small_share)
            );
            let saving = walk_seconds(rdd, name, around).map(|all| all.times(small_share));
            let computed = match saving {
                Some(_) => {
                    "CPU time of the executors times its share in page walks for the RDD (95 % interval), for the part on \
                     small pages: as if no walk remained on huge ones"
                }
                None => {
                    "not in seconds: too few samples for an interval, or the CPU time of the executors cannot be read"
                }
            };
            (
                Severity::of_share(cost),
                of,
                saving,
                computed.to_owned(),
                title,
            )
        }
        None if view.no_walks.is_empty() => return None,
        None => {
            let faults = faults.filter(|faults| *faults >= FAULTS)?;
            not_measured.insert(
                0,
                format!("page walks, which huge pages are for: {}", view.no_walks),
            );
            let time = fault_time_of(rdd, view);
            let of = Cost {
                share: view
                    .cpu_ns(around)
                    .map(|(all, _)| part(time.all(faults), all)),
                of: format!(
                    "the CPU time of the executors, by page faults of {}; page walks come on top",
                    time.words()
                ),
                estimated: true,
            };
            let computed = format!(
                "{} page faults of {}: a huge page has one for 512; clearing memory takes 0.1 to 0.2 us of each and remains. \
                 Nothing is saved where huge pages are not free, or a virtual machine's host gives memory only as it is \
                 touched. Page walks come on top",
                units::count(faults),
                time.words()
            );
            let title = format!(
                "{} of {} lie on small pages, with {} page faults",
                units::share(small_share),
                rdd.label(),
                units::count(faults)
            );
            // The cost in page walks is unknown, so the severity is low.
            let is_known = sizes().all(|size| {
                size.page_bytes == BASE_PAGE_BYTES || size.page_bytes >= SMALL_PAGE_BYTES
            });
            let (saving, computed) = if is_known {
                (Some(time.saved_by_huge_pages(faults)), computed)
            } else {
                let other = "not in seconds: pages between 4 KiB and 1 MiB save a part of the faults, and how many is not known";
                (None, other.to_owned())
            };
            (Severity::Low, of, saving, computed, title)
        }
    };
    Some(Finding {
        id: "small_pages".to_owned(),
        severity,
        title,
        subject: rdd.subject(view),
        window: "pages: at the last scan; faults and walks: since the RDD was first seen"
            .to_owned(),
        numbers,
        cost,
        saving,
        computed,
        disproof: "with the RDD on huge pages its tasks take as long, and its page faults and walks are as many".to_owned(),
        remedies: huge_pages(rdd, view, around),
        not_measured,
    })
}

/// Settings that give huge pages to the memory of an RDD.
fn huge_pages(rdd: &Rdd<'_>, view: &View, around: &Surroundings) -> Vec<Remedy> {
    let both = |storage: u64, execution| storage.saturating_add(execution);
    let off = rdd.sum(|row| {
        both(
            row.storage_memory_off_heap_bytes,
            row.execution_memory_off_heap_bytes,
        )
    });
    let all = rdd.sum(|row| both(row.storage_memory_bytes, row.execution_memory_bytes));
    let on = all.saturating_sub(off);
    let mode = around.transparent_huge_pages.as_deref();
    let processes: Vec<&Process> = view
        .executors
        .iter()
        .filter_map(|row| around.processes.get(&row.who.pid))
        .collect();
    let asked = processes
        .iter()
        .any(|process| process.switch("UseTransparentHugePages") == Some(true));
    let mut remedies = Vec::new();
    if mode == Some("never") {
        remedies.push(remedy(
            "Transparent huge pages are switched off on this worker; as root (and transparent_hugepage=madvise on the kernel's command line to keep it):",
            &["echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"],
        ));
    }
    if part(on, all) >= 0.1 || all == 0 {
        if !asked && mode != Some("always") {
            remedies.push(remedy(
                "Let the JVM ask for huge pages for its heap; add to what is configured:",
                &["spark.executor.extraJavaOptions  -XX:+UseTransparentHugePages"],
            ));
        } else {
            let heaps = view
                .executors
                .iter()
                .filter(|row| row.state == crate::rows::ExecutorState::Alive);
            let heaps = heaps
                .filter_map(|row| row.heap_max_bytes)
                .fold(0, u64::saturating_add);
            let pages = heaps.div_ceil(2 << 20);
            remedies.push(remedy(
                "The heap may have huge pages but got none: memory is fragmented, or was given page by page. Have it given at the start:",
                &["spark.executor.extraJavaOptions  -XX:+AlwaysPreTouch -XX:+UseTransparentHugePages"],
            ));
            remedies.push(remedy(
                &format!(
                    "Or reserve huge pages, for executors of this application alone ({} of heap):",
                    units::bytes(heaps)
                ),
                &[
                    &format!("sysctl vm.nr_hugepages={pages}"),
                    "spark.executor.extraJavaOptions  -XX:+UseLargePages",
                ],
            ));
        }
    }
    if off > 0 && part(off, all) >= 0.1 && mode != Some("always") {
        remedies.push(remedy(
            "Memory outside of the heap comes from malloc, which no JVM option reaches: have glibc (2.35 or newer) ask, or set the mode to always:",
            &["spark.executorEnv.GLIBC_TUNABLES  glibc.malloc.hugetlb=1", "echo always > /sys/kernel/mm/transparent_hugepage/enabled"],
        ));
    }
    remedies
}

/// Finds RDDs whose memory Spark accounts for but which is not backed by pages.
pub(super) fn without_memory(view: &View) -> Outcome {
    const ID: &str = "without_memory";
    const LOOKS_FOR: &str = "memory that Spark accounts for but that was never written";
    let rdds = view.rdds();
    if !any_page_examined(&rdds) {
        return Outcome::not_checked(ID, LOOKS_FOR, NOT_EXAMINED);
    }
    let zero_known = view.pages.iter().any(|row| row.zero_page_bytes.is_some());
    let findings = rdds.iter().filter_map(|rdd| {
        let resolved = rdd.seen(|row| row.resolved_bytes)?;
        let untouched = rdd.seen(|row| row.untouched_bytes)?;
        let zero = rdd.seen(|row| row.zero_page_bytes);
        let without = untouched.saturating_add(zero.unwrap_or(0));
        let cost = part(without, resolved);
        if without < BYTES_WORTH || cost < WITHOUT_MEMORY_SHARE {
            return None;
        }
        let mut numbers = vec![bytes("examined", resolved), bytes("never touched, or given back", untouched)];
        numbers.extend(zero.map(|zero| bytes("read and never written (the kernel's zero page)", zero)));
        let mut not_measured = caveats(rdd, 0);
        if zero.is_none() {
            not_measured.push("bytes that were read and never written".to_owned());
        }
        let execution = rdd.sum(|row| row.execution_memory_bytes) > rdd.sum(|row| row.storage_memory_bytes);
        Some(Finding {
            id: ID.to_owned(),
            severity: Severity::Low,
            title: format!("{} of {} have never been written", units::bytes(without), rdd.label()),
            subject: rdd.subject(view),
            window: "at the last scan of its pages".to_owned(),
            numbers,
            cost: Cost {
                share: Some(cost),
                of: "its memory in Spark's accounts, which other RDDs and tasks cannot use".to_owned(),
                estimated: false,
            },
            saving: None,
            computed: "not in seconds: the remedy gives memory, which other blocks and tasks may use".to_owned(),
            disproof: "the pages are written before the RDD's next use: a later look finds them in memory".to_owned(),
            remedies: vec![if execution {
                remedy("Tasks take execution memory in pages larger than they fill: a smaller spark.buffer.pageSize (the default follows heap and cores). How small is not known: how full single pages are was not measured", &[])
            } else {
                remedy("Blocks hold buffers that are larger than their contents, or zeros: allocate what is needed, or store it sparse.", &[])
            }],
            not_measured,
        })
    });
    let mut why = "RDDs whose pages were examined".to_owned();
    if !zero_known {
        why.push_str("; the zero page cannot be detected on this machine");
    }
    Outcome::checked(ID, LOOKS_FOR, findings.collect(), why)
}
