//! Rules about cached RDDs: never read, evicted and stored again.

use super::{
    Cost, Finding, Outcome, Rdd, Remedy, Saving, Severity, View, bytes, count, part, remedy, share,
    whole,
};
use crate::units;

/// Bytes of storage memory below which an RDD is not worth a finding.
pub(super) const CACHED_BYTES: u64 = 1 << 20;
/// Time for which blocks must have been in memory without a read.
pub(super) const KEPT_NS: u64 = 5_000_000_000;
/// Minimum number of blocks stored again for a finding.
pub(super) const BACK_BLOCKS: u64 = 4;
/// Minimum share of stored blocks that were stored again for a finding.
pub(super) const BACK_SHARE: f64 = 0.1;

/// Name of the rule of cached RDDs that no task reads.
pub(super) const NEVER_READ: &str = "never_read";
/// Evidence: what blocks of an RDD hold.
pub(super) const STORAGE_NOW: &str = "storage memory now";

/// Finds cached RDDs that no task has read.
pub(super) fn never_read(view: &View) -> Outcome {
    const ID: &str = NEVER_READ;
    const LOOKS_FOR: &str = "cached RDDs that no task reads";
    let rdds = view.rdds();
    let cached: Vec<_> = rdds
        .iter()
        .filter(|rdd| rdd.sum(|row| row.blocks_stored + row.blocks_found) > 0)
        .collect();
    if cached.is_empty() {
        return Outcome::checked(
            ID,
            LOOKS_FOR,
            Vec::new(),
            "no RDD was cached on this worker",
        );
    }
    if cached
        .iter()
        .all(|rdd| rdd.rows.iter().any(|row| row.block_reads.is_none()))
    {
        let why = "the marker does not see reads of cached blocks on this version of Spark";
        return Outcome::not_checked(ID, LOOKS_FOR, why);
    }
    let found_before = cached
        .iter()
        .filter(|rdd| rdd.sum(|row| row.blocks_found) > 0)
        .count();
    let all = cached
        .iter()
        .map(|rdd| rdd.sum(|row| row.storage_memory_peak_bytes));
    let all = all.fold(0, u64::saturating_add);
    let dropped = view.dropped();
    let findings = cached.iter().filter_map(|rdd| {
        let reads: Option<u64> = rdd.rows.iter().map(|row| row.block_reads).sum();
        let stored = rdd.sum(|row| row.blocks_stored);
        let peak = rdd.sum(|row| row.storage_memory_peak_bytes);
        // Since the last block was stored, at least one task per block has begun and ended while they were in memory, and
        // no block was read. What an iteration stores for the next one is soon read, or given back.
        let since = rdd.sum(|row| row.tasks_since_stored);
        let blocks = match rdd.sum(|row| row.partitions_cached) {
            0 => stored - rdd.sum(|row| row.blocks_stored_again).min(stored),
            now => now,
        };
        let kept = rdd.rows.iter().filter_map(|row| row.kept_ns);
        let kept = kept.min().unwrap_or(0);
        let wanted = reads == Some(0)
            && rdd.sum(|row| row.blocks_found) == 0
            && stored > 0
            && peak >= CACHED_BYTES
            && kept >= KEPT_NS
            && since >= blocks;
        if !wanted {
            return None;
        }
        let cost = part(peak, all);
        let now = rdd.sum(|row| row.storage_memory_bytes);
        let numbers = vec![
            count("blocks stored", stored),
            count("reads of its blocks", 0),
            bytes(STORAGE_NOW, now),
            bytes("storage memory at most", peak),
            count("tasks that began and ended on this worker since its last block was stored, at least", since),
            whole("time for which it was in memory since then", kept, "ns"),
        ];
        let mut not_measured = vec!["reads on other workers: ask their daemons as well".to_owned()];
        if dropped > 0 {
            not_measured.push(format!("{dropped} facts of these executors were dropped; reads may be among them"));
        }
        Some(Finding {
            id: ID.to_owned(),
            severity: Severity::of_share(cost),
            title: match (rdd.label(), units::bytes(peak)) {
                (label, peak) if now > 0 => format!("{label} is cached ({peak}) and was never read"),
                (label, peak) => format!("{label} was cached ({peak}) and never read"),
            },
            subject: rdd.subject(view),
            window: "since its first block was stored".to_owned(),
            numbers,
            cost: Cost {
                share: Some(cost),
                of: "the storage memory that RDDs of this application took on this worker".to_owned(),
                estimated: false,
            },
            saving: None,
            computed: "not in seconds: the remedy gives memory, which other blocks and tasks may use".to_owned(),
            disproof: "a task reads one of its blocks, on any worker, before the application ends".to_owned(),
            remedies: vec![
                remedy("Do not persist it, or free it when nothing needs it any more; in the application:", &["rdd.unpersist()"]),
                remedy("A table or DataFrame of Spark SQL:", &["df.unpersist()", "spark.catalog.uncacheTable(\"NAME\")"]),
            ],
            not_measured,
        })
    });
    let mut why = format!("{} cached RDDs", cached.len());
    if found_before > 0 {
        why.push_str(&format!(
            "; {found_before} of these were cached before the daemon traced the executors: their earlier reads are unknown"
        ));
    }
    Outcome::checked(ID, LOOKS_FOR, findings.collect(), why)
}

impl Rdd<'_> {
    /// Time of the tasks that stored blocks again, where it is known on each executor.
    fn again_ns(&self) -> Option<u64> {
        let rows = self.rows.iter().filter(|row| row.blocks_stored_again > 0);
        let times: Option<Vec<u64>> = rows.map(|row| row.blocks_stored_again_ns).collect();
        times.map(|times| times.into_iter().fold(0, u64::saturating_add))
    }
}

/// More memory for blocks: room for the RDD's blocks that left memory here and are not back, at the mean size of those in
/// memory. Blocks were pushed out, so what the executors held at most is the room that their heaps give.
fn more_storage(rdd: &Rdd<'_>, view: &View) -> Remedy {
    let partitions = rdd.rows.iter().filter_map(|row| row.partitions).max();
    let cached = rdd.sum(|row| row.partitions_cached);
    let held = rdd.sum(|row| row.storage_memory_bytes);
    let gone = rdd.sum(|row| row.blocks_evicted);
    let gone = gone.saturating_sub(rdd.sum(|row| row.blocks_stored_again));
    let missing = partitions
        .filter(|_| cached > 0)
        .map(|all| (held / cached).saturating_mul(all.saturating_sub(cached).min(gone)));
    let room = view
        .executors
        .iter()
        .map(|row| row.storage_memory_peak_bytes);
    let room = room.fold(0, u64::saturating_add);
    let heap = view.executors.iter().filter_map(|row| row.heap_max_bytes);
    match (missing.filter(|missing| *missing > 0), heap.max()) {
        (Some(missing), Some(heap)) if room > 0 => {
            let wanted = heap as f64 * (1.0 + part(missing, room));
            let wanted = (wanted / f64::from(1 << 20)).ceil() as u64;
            remedy(
                &format!(
                    "More memory for blocks, or more executors: its blocks that left memory here and are not back would take {} \
                     at the mean size of those in memory, and the {} executors here had room for {} in heaps of {}:",
                    units::bytes(missing),
                    view.executors.len(),
                    units::bytes(room),
                    units::bytes(heap)
                ),
                &[&format!("spark.executor.memory  {wanted}m")],
            )
        }
        _ => remedy(
            "More memory for blocks: a larger spark.memory.fraction or spark.executor.memory, or more executors. How much is \
             not known: no block of it is in memory now, all are back, or the number of its partitions did not come",
            &[],
        ),
    }
}

/// Finds RDDs whose blocks leave memory and are stored again.
pub(super) fn evicted_and_stored_again(view: &View) -> Outcome {
    const ID: &str = "evicted_and_stored_again";
    const LOOKS_FOR: &str = "cached RDDs whose blocks leave memory and are stored again";
    let rdds = view.rdds();
    let cached: Vec<_> = rdds
        .iter()
        .filter(|rdd| rdd.sum(|row| row.blocks_stored) > 0)
        .collect();
    let findings = cached.iter().filter_map(|rdd| {
        let (stored, back) = (rdd.sum(|row| row.blocks_stored), rdd.sum(|row| row.blocks_stored_again));
        let cost = part(back, stored);
        if back < BACK_BLOCKS || cost < BACK_SHARE {
            return None;
        }
        let evicted = rdd.sum(|row| row.blocks_evicted);
        let level = rdd.rows.iter().find_map(|row| row.storage_level.as_deref()).unwrap_or("unknown");
        let objects = rdd.rows.iter().any(|row| row.storage_memory_estimated) || level.contains("Deserialized");
        // Columns of a cached DataFrame and arrays of numbers have addresses as a whole, objects only for a sample.
        let compact = rdd.seen(|row| row.resolved_bytes) > Some(0) && rdd.seen(|row| row.sampled_objects).is_none();
        let mut remedies = Vec::new();
        if objects && !compact {
            remedies.push(remedy(
                "Serialised blocks take a fraction of the room of objects (and let Kryo help); in the application:",
                &["rdd.persist(StorageLevel.MEMORY_ONLY_SER)", "spark.serializer  org.apache.spark.serializer.KryoSerializer"],
            ));
        }
        if !level.contains("Disk") {
            remedies.push(remedy(
                if objects {
                    "Keep what does not fit on disk instead of computing it again; in the application:"
                } else {
                    "Keep what does not fit on disk instead of computing it again; in the application (in Python MEMORY_AND_DISK, \
                     which serialises there):"
                },
                &[if objects { "rdd.persist(StorageLevel.MEMORY_AND_DISK)" } else { "rdd.persist(StorageLevel.MEMORY_AND_DISK_SER)" }],
            ));
        }
        remedies.push(more_storage(rdd, view));
        let again = rdd.again_ns();
        Some(Finding {
            id: ID.to_owned(),
            severity: Severity::of_share(cost),
            title: format!(
                "{} of {} blocks that {} stored had been in memory before",
                units::count(back),
                units::count(stored),
                rdd.label()
            ),
            subject: rdd.subject(view),
            window: "since its first block was stored".to_owned(),
            numbers: vec![
                count("blocks stored", stored),
                count("of them, of partitions that had left memory (at least)", back),
                count("blocks that left memory", rdd.sum(|row| row.blocks_removed)),
                count("of them, evicted because others needed the room", evicted),
                bytes(STORAGE_NOW, rdd.sum(|row| row.storage_memory_bytes)),
                bytes("storage memory at most", rdd.sum(|row| row.storage_memory_peak_bytes)),
                share("stored again", cost),
            ],
            cost: Cost {
                share: Some(cost),
                of: "the blocks that were made for it, each computed or read from disk once more".to_owned(),
                estimated: false,
            },
            saving: again.map(Saving::up_to),
            computed: match again {
                Some(_) => {
                    "between nothing and all of the time of tasks that stored a block again: what such a task did before \
                     belongs to it, and a block on disk is read instead; but making room and collections slow what follows"
                }
                None => "not in seconds: the begin of tasks that stored blocks again is not known",
            }
            .to_owned(),
            disproof: "the application itself unpersists the RDD between its uses; or with its blocks kept, its tasks take as \
                       long"
                .to_owned(),
            remedies,
            not_measured: if evicted > 0 {
                Vec::new()
            } else {
                vec!["whether the application itself unpersisted it in between: no eviction was seen".to_owned()]
            },
        })
    });
    Outcome::checked(
        ID,
        LOOKS_FOR,
        findings.collect(),
        format!("{} RDDs that stored blocks", cached.len()),
    )
}
