//! The slot file: what every thread of an executor is doing now, in Spark's terms.
//!
//! The marker's native library makes one memfd named [`MAPPING_NAME`] per JVM and maps it shared; the daemon
//! finds it in `/proc/PID/maps` (also when it starts late) and opens it through `/proc/PID/map_files`. It
//! starts with a [`Header`] page; after it come the slots, [`SLOT_SIZE`] bytes each, one per thread, each
//! written by its own thread only. The kernel side reads the first words of a slot of the thread that it
//! interrupted.
//!
//! # Order of writes
//! A change of activity is one ordered (release) store of the hot word. When a task is set on a thread the
//! marker stores hot = 0, then the cold words, then the new hot word, so a reader never pairs a hot word with
//! another task's cold words: the reader is an interrupt of the writing thread itself.

/// First word of the header: `SMTTSLOT` in little-endian ASCII.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SMTTSLOT");
/// Version of this layout; a reader refuses any other.
pub const VERSION: u32 = 1;
/// Name of the memfd, as the kernel shows it: `/memfd:smtt-slots (deleted)`.
pub const MAPPING_NAME: &str = "smtt-slots";
/// Bytes of the header page; the first slot starts here.
pub const HEADER_SIZE: usize = 4096;
/// Bytes of one slot: two cache lines, because adjacent-line prefetch pairs them.
pub const SLOT_SIZE: usize = 128;
/// Slots the marker makes; threads beyond it stay unregistered and are counted in [`Header::slots_refused`].
pub const SLOT_COUNT: u32 = 4096;

/// [`Slot::state`] of a slot without a thread.
pub const SLOT_FREE: u32 = 0;
/// [`Slot::state`] of a thread's slot.
pub const SLOT_IN_USE: u32 = 1;

/// The first words of the slot file. Written by the marker, but for `resync_request`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u32,
    /// [`SLOT_SIZE`] of the writer.
    pub slot_size: u32,
    /// Slots in the file.
    pub slot_count: u32,
    /// Process id as the JVM sees it, in its own pid namespace.
    pub pid: u32,
    /// Written by the daemon: when it differs from `resync_done`, the marker reports a snapshot of everything that is
    /// alive (executor, RDDs, stages, running tasks, blocks, pages) and then stores this value to `resync_done`.
    pub resync_request: u64,
    /// The last request that was served in full.
    pub resync_done: u64,
    /// Threads that found no free slot.
    pub slots_refused: u64,
    /// Facts that the marker emitted from threads without a slot.
    pub facts_without_slot: u64,
    /// Address of this header in the JVM.
    pub address: u64,
    /// See [`HeapAddresses`].
    pub heap_addresses: u64,
    /// Collections that have begun, while they are followed. From then on addresses on the Java heap are stale.
    pub collections_begun: u64,
    /// Collections that have ended; equal to `collections_begun` while none runs.
    pub collections_ended: u64,
    /// Epoch of the addresses on the Java heap: the collection after which all of them were reported. They are valid
    /// while it is the last collection that has begun.
    pub addresses_epoch: u64,
    /// When the last collection ended, `CLOCK_MONOTONIC` in nanoseconds.
    pub collection_ended_ns: u64,
    /// When all addresses had been reported after that collection, on the same clock.
    pub addresses_told_ns: u64,
}

/// One thread's slot. Single writer: the thread itself.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// See [`Hot`].
    pub hot: u64,
    /// Spark's task attempt id (unique in the application), or all ones.
    pub task_attempt_id: u64,
    /// Stage id, or all ones.
    pub stage_id: u32,
    /// Attempt of the stage.
    pub stage_attempt: u32,
    /// Partition that the task computes.
    pub partition: u32,
    /// Attempt number of the task.
    pub attempt_number: u32,
    /// Thread id in the JVM's own pid namespace.
    pub tid: u32,
    /// Counts the registrations of this slot.
    pub generation: u32,
    /// Job id, or all ones when not known.
    pub job_id: u32,
    /// [`SLOT_FREE`] or [`SLOT_IN_USE`].
    pub state: u32,
    /// Facts that this slot's threads have emitted since the JVM started; never reset.
    pub facts_emitted: u64,
    /// Reserved addresses of the Java heap, the same in each slot: the kernel side knows only the slot of the thread that
    /// registers. Zero bytes where they are not known.
    pub heap: Range,
    /// Room for later words.
    pub reserved: [u64; 7],
}

/// A range of addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// The words of a slot that the kernel side reads, as one copy.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotHead {
    /// See [`Slot::hot`].
    pub hot: u64,
    /// See [`Slot::task_attempt_id`].
    pub task_attempt_id: u64,
    /// See [`Slot::stage_id`].
    pub stage_id: u32,
    /// See [`Slot::stage_attempt`].
    pub stage_attempt: u32,
}

/// The hot word: `activity:8 | access:2 | region:2 | flags:4 | rdd+1:24 | partition:24`, highest bits first.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextWord(pub u64);

/// Bit position of the activity in the hot word.
pub const HOT_ACTIVITY_SHIFT: u32 = 56;
/// Bit position of the access in the hot word.
pub const HOT_ACCESS_SHIFT: u32 = 54;
/// Bit position of the region in the hot word.
pub const HOT_REGION_SHIFT: u32 = 52;
/// Bit position of the flags in the hot word.
pub const HOT_FLAGS_SHIFT: u32 = 48;
/// Bit position of the RDD id plus one in the hot word.
pub const HOT_RDD_SHIFT: u32 = 24;
/// Mask of a 24-bit field. An RDD id that does not fit is stored as this value and listed as "overflow".
pub const HOT_FIELD_MASK: u64 = 0xff_ffff;

impl ContextWord {
    /// Packs a hot word. `rdd_plus_one` is 0 for "no RDD"; ids that do not fit saturate.
    #[must_use]
    pub const fn new(
        activity: Activity,
        access: Access,
        region: Region,
        rdd_plus_one: u32,
        partition: u32,
    ) -> Self {
        let rdd = if rdd_plus_one as u64 > HOT_FIELD_MASK {
            HOT_FIELD_MASK
        } else {
            rdd_plus_one as u64
        };
        Self(
            ((activity.0 as u64) << HOT_ACTIVITY_SHIFT)
                | (((access.0 & 3) as u64) << HOT_ACCESS_SHIFT)
                | (((region.0 & 3) as u64) << HOT_REGION_SHIFT)
                | (rdd << HOT_RDD_SHIFT)
                | (partition as u64 & HOT_FIELD_MASK),
        )
    }

    /// What the thread does.
    #[must_use]
    pub const fn activity(self) -> Activity {
        Activity((self.0 >> HOT_ACTIVITY_SHIFT) as u8)
    }

    /// Whether Spark reads or writes the RDD.
    #[must_use]
    pub const fn access(self) -> Access {
        Access(((self.0 >> HOT_ACCESS_SHIFT) & 3) as u8)
    }

    /// Which memory of Spark it concerns.
    #[must_use]
    pub const fn region(self) -> Region {
        Region(((self.0 >> HOT_REGION_SHIFT) & 3) as u8)
    }

    /// RDD id plus one; 0 is "no RDD".
    #[must_use]
    pub const fn rdd_plus_one(self) -> u32 {
        ((self.0 >> HOT_RDD_SHIFT) & HOT_FIELD_MASK) as u32
    }

    /// Partition of the RDD, its low 24 bits.
    #[must_use]
    pub const fn partition(self) -> u32 {
        (self.0 & HOT_FIELD_MASK) as u32
    }
}

coded! {
    /// What a thread is doing, in Spark's terms. docs/ATTRIBUTION.md lists which code counts as what.
    Activity: u8 {
        /// No Spark work on this thread; its faults are unattributed.
        IDLE = 0 "idle",
        /// User code and the narrow transformations between the cached input and the stage's end.
        COMPUTE = 1 "compute",
        /// A shuffle writer outside its pulls from the pipeline.
        SHUFFLE_WRITE = 2 "shuffle_write",
        /// Sorting of records or pointers.
        SORT = 3 "sort",
        /// Writing execution memory to disk.
        SPILL = 4 "spill",
        /// Merging spills or partitions into the map output.
        MERGE = 5 "merge",
        /// Waiting for and opening shuffle blocks.
        SHUFFLE_FETCH = 6 "shuffle_fetch",
        /// Deserialising the task, its RDD and its closure.
        TASK_DESERIALIZE = 7 "task_deserialize",
        /// Reading a cached block.
        CACHE_READ = 8 "cache_read",
        /// Unrolling and storing a block.
        CACHE_WRITE = 9 "cache_write",
        /// Serialising the task's result.
        RESULT_SERIALIZE = 10 "result_serialize",
        /// Reading or writing a broadcast.
        BROADCAST = 11 "broadcast",
        /// Dropping a block from memory to make room.
        EVICT = 12 "evict",
        /// The JVM's side of the exchange with a Python worker.
        PYTHON_EXCHANGE = 13 "python_exchange",
        /// A Python worker process itself.
        PYTHON_WORKER = 14 "python_worker",
        /// Inserting records into an aggregation or a sorter.
        INSERT = 15 "insert",
        /// Growing a hash map of execution memory.
        HASH_GROW = 16 "hash_grow",
    }
}

coded! {
    /// Whether Spark reads or writes the RDD that the context names.
    Access: u8 {
        /// Neither.
        NONE = 0 "none",
        /// Reads it.
        READ = 1 "read",
        /// Writes it.
        WRITE = 2 "write",
    }
}

coded! {
    /// Which memory of Spark a context concerns.
    Region: u8 {
        /// Neither.
        NONE = 0 "none",
        /// Cached blocks and broadcasts.
        STORAGE = 1 "storage",
        /// Pages of sorters, shuffles, joins and aggregations.
        EXECUTION = 2 "execution",
    }
}

coded! {
    /// How the marker tracks addresses on the Java heap, where a collection moves objects.
    HeapAddresses: u8 {
        /// Unknown: the last reported addresses are used.
        UNVERIFIED = 0 "unverified",
        /// Reported again at once after each collection.
        FOLLOWED = 1 "followed",
        /// Reported again at once after each collection, by a query of the JVM for each address: reads through handles
        /// did not agree with the JVM.
        FOLLOWED_SLOWLY = 2 "followed slowly",
        /// Reported again when a poll finds that a collection has happened; stale addresses are not detected until
        /// then.
        POLLED = 3 "polled",
        /// Not reported: the collector moves objects while the application runs, as ZGC and Shenandoah do, or the
        /// marker's options switch addresses off.
        REFUSED = 4 "refused",
    }
}

const _: () = {
    assert!(size_of::<Slot>() == SLOT_SIZE);
    assert!(core::mem::offset_of!(Slot, task_attempt_id) == 8);
    assert!(core::mem::offset_of!(Slot, stage_id) == 16);
    assert!(core::mem::offset_of!(Slot, partition) == 24);
    assert!(core::mem::offset_of!(Slot, tid) == 32);
    assert!(core::mem::offset_of!(Slot, job_id) == 40);
    assert!(core::mem::offset_of!(Slot, facts_emitted) == 48);
    assert!(size_of::<SlotHead>() == 24);
    assert!(size_of::<Header>() == 112);
    assert!(core::mem::offset_of!(Header, slot_count) == 16);
    assert!(core::mem::offset_of!(Header, resync_request) == 24);
    assert!(core::mem::offset_of!(Header, address) == 56);
    assert!(core::mem::offset_of!(Header, heap_addresses) == 64);
    assert!(core::mem::offset_of!(Header, collections_begun) == 72);
    assert!(core::mem::offset_of!(Header, collections_ended) == 80);
    assert!(core::mem::offset_of!(Header, addresses_epoch) == 88);
    assert!(core::mem::offset_of!(Header, collection_ended_ns) == 96);
    assert!(core::mem::offset_of!(Header, addresses_told_ns) == 104);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_word_keeps_every_field() {
        let hot = ContextWord::new(
            Activity::CACHE_READ,
            Access::READ,
            Region::STORAGE,
            8,
            0x12_3456,
        );
        assert_eq!(hot.activity(), Activity::CACHE_READ);
        assert_eq!(hot.access(), Access::READ);
        assert_eq!(hot.region(), Region::STORAGE);
        assert_eq!(hot.rdd_plus_one(), 8);
        assert_eq!(hot.partition(), 0x12_3456);
        assert_eq!(hot.0, 0x0850_0000_0812_3456);
    }

    #[test]
    fn an_rdd_id_that_does_not_fit_saturates() {
        let hot = ContextWord::new(
            Activity::COMPUTE,
            Access::NONE,
            Region::NONE,
            0xffff_ffff,
            0,
        );
        assert_eq!(u64::from(hot.rdd_plus_one()), HOT_FIELD_MASK);
    }
}
