//! One access to Spark's memory as a record, and the columns that it has on disk.
//!
//! The columns are data: the file's schema, the writer, `smtt-ctl trace` and the table in docs/TRACE.md take names,
//! types and order from [`COLUMNS`], which follows the paper's seven columns.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value as Json, json};
use smtt_common::context::Activity;
use smtt_model::time::utc;

/// Bytes of a base page; pages of records are counted in it.
pub const PAGE_BYTES: u64 = 4096;

/// Origin of records: one executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// User of the process, as the kernel reports it; `None` where it is not known.
    pub uid: Option<u32>,
    /// User whose share of the queue the records use.
    pub share: Option<u32>,
    /// Spark's application id, as the executor claims it.
    pub application_id: String,
    /// Host, as Spark names it.
    pub host: String,
    /// Spark's executor id, as the executor claims it.
    pub executor_id: String,
    /// Folder of the executor's segments below the trace folder.
    pub partition: PathBuf,
}

/// Kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A block was stored in memory.
    Put,
    /// A cached block was read.
    Get,
    /// A block left memory.
    Drop,
    /// The collector moved a block.
    Move,
    /// Execution memory was allocated.
    Allocate,
    /// Execution memory was freed.
    Free,
    /// A block or Spark page reported again by a resync: it is alive at this address.
    Alive,
    /// A rare activity ended; the record contains the activity's name.
    Span(Activity),
}

impl Kind {
    /// Every name that a record's kind may have.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        use Kind::{Alive, Allocate, Drop, Free, Get, Move, Put};
        let facts = [Put, Get, Drop, Move, Allocate, Free, Alive].map(Self::name);
        let spans = (0..=u8::MAX).filter_map(|code| Activity(code).name());
        let unknown = [Self::Span(Activity(u8::MAX)).name()];
        facts.into_iter().chain(spans).chain(unknown).collect()
    }

    /// Name of the kind in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Drop => "drop",
            Self::Move => "move",
            Self::Allocate => "allocate",
            Self::Free => "free",
            Self::Alive => "alive",
            Self::Span(activity) => activity.name().unwrap_or("span"),
        }
    }

    /// Whether Spark's memory was read or written; `None` where neither is known.
    #[must_use]
    pub fn access(self) -> Option<&'static str> {
        match self {
            Self::Get => Some("read"),
            Self::Put | Self::Allocate => Some("write"),
            Self::Span(Activity::SPILL | Activity::MERGE | Activity::EVICT) => Some("read"),
            Self::Span(
                Activity::SORT | Activity::INSERT | Activity::HASH_GROW | Activity::SHUFFLE_WRITE,
            ) => Some("write"),
            Self::Drop | Self::Move | Self::Free | Self::Alive | Self::Span(_) => None,
        }
    }
}

/// Page placement of a block or Spark page at its last scan, over all its ranges. A field that was not measured is
/// `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Physical {
    /// Time of the scan, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Examined bytes: less than the size where the budget was short.
    pub examined_bytes: u64,
    /// Examined bytes in memory.
    pub present_bytes: u64,
    /// Examined bytes on a swap device.
    pub swapped_bytes: u64,
    /// Page frame numbers of the first pages, `None` for one that is not in memory.
    pub frames: Option<Vec<Option<u64>>>,
    /// Examined bytes in memory on pages of 2 MiB and of 1 GiB.
    pub huge_page_bytes: Option<[u64; 2]>,
    /// NUMA nodes that hold bytes, ascending.
    pub nodes: Option<Vec<u32>>,
}

/// One access. Unknown ids and addresses are `None`, never zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Executor of the access.
    pub source: Arc<Origin>,
    /// Time in nanoseconds since 1970; for a span the time of its end.
    pub time_ns: u64,
    /// Kind of the access.
    pub kind: Kind,
    /// Stage of the task.
    pub stage_id: Option<u32>,
    /// Attempt of the stage.
    pub stage_attempt: Option<u32>,
    /// Task attempt.
    pub task_attempt_id: Option<u64>,
    /// RDD.
    pub rdd_id: Option<u32>,
    /// Partition of the block, else of the task.
    pub partition: Option<u32>,
    /// Spark's name of the block.
    pub block_id: Option<String>,
    /// `storage` or `execution`.
    pub region: Option<&'static str>,
    /// Activity of the thread, where the fact contains it.
    pub activity: Option<&'static str>,
    /// Class of the consumer that allocated execution memory, or function of a span.
    pub consumer: Option<String>,
    /// Size in bytes as Spark accounts for it.
    pub size_bytes: Option<u64>,
    /// Duration of a span in nanoseconds.
    pub duration_ns: Option<u64>,
    /// Whether the memory is on the Java heap, where the collector may move it.
    pub on_heap: Option<bool>,
    /// Whether the block holds serialised bytes instead of objects.
    pub serialized: Option<bool>,
    /// Contents of the block.
    pub contents: Option<&'static str>,
    /// Age of the address at `time_ns`, in nanoseconds: the time since it was last known to be right; 0 where it was
    /// right then.
    pub address_age_ns: Option<u64>,
    /// Address and length in bytes of the ranges in the fact, the first one first.
    pub ranges: Vec<(u64, u64)>,
    /// Index of the first range in the block: above 0 where one block takes several facts.
    pub range_first: Option<u64>,
    /// Ranges of the whole block.
    pub range_total: Option<u64>,
    /// Page placement of the memory.
    pub physical: Option<Box<Physical>>,
    /// Hotness of the block before the access, in reads per minute.
    pub hotness: Option<f64>,
}

impl Record {
    /// A record with only origin, time and kind.
    #[must_use]
    pub fn new(source: Arc<Origin>, time_ns: u64, kind: Kind) -> Self {
        Self {
            source,
            time_ns,
            kind,
            stage_id: None,
            stage_attempt: None,
            task_attempt_id: None,
            rdd_id: None,
            partition: None,
            block_id: None,
            region: None,
            activity: None,
            consumer: None,
            size_bytes: None,
            duration_ns: None,
            on_heap: None,
            serialized: None,
            contents: None,
            address_age_ns: None,
            ranges: Vec::new(),
            range_first: None,
            range_total: None,
            physical: None,
            hotness: None,
        }
    }

    /// The record as [`super::read::Reader`] returns it: user, application and host, then every present column by name.
    #[must_use]
    pub fn object(&self) -> Map<String, Json> {
        let mut object = Map::new();
        if let Some(uid) = self.source.uid {
            object.insert("uid".into(), json!(uid));
        }
        object.insert("application_id".into(), json!(self.source.application_id));
        object.insert("host".into(), json!(self.source.host));
        for column in COLUMNS {
            let value = match &column.value {
                Value::Time(of) => Some(json!(utc(of(self)))),
                Value::Long(of, _) => of(self).map(Json::from),
                Value::Int(of) => of(self).map(Json::from),
                Value::Flag(of) => of(self).map(Json::from),
                Value::Real(of) => of(self).map(Json::from),
                Value::Text(of) => of(self).map(Json::from),
                Value::Longs(of, _) => of(self).map(Json::from),
            };
            if let Some(value) = value {
                object.insert(column.name.to_owned(), value);
            }
        }
        object
    }

    fn first(&self) -> Option<(u64, u64)> {
        self.ranges.first().copied()
    }

    fn further(&self, of: fn(&(u64, u64)) -> u64) -> Option<Vec<i64>> {
        let further = self.ranges.get(1..).filter(|more| !more.is_empty())?;
        further.iter().map(|range| long(of(range))).collect()
    }

    /// Base pages that the ranges touch; `None` without an address.
    fn pages(&self) -> Option<u64> {
        let pages = |(address, length): &(u64, u64)| {
            let last = address.saturating_add(length.saturating_sub(1));
            last / PAGE_BYTES - address / PAGE_BYTES + 1
        };
        (!self.ranges.is_empty()).then(|| self.ranges.iter().map(pages).sum())
    }

    fn physical<T>(&self, of: impl FnOnce(&Physical) -> Option<T>) -> Option<T> {
        self.physical.as_deref().and_then(of)
    }

    fn bytes_in(&self, size: usize) -> Option<i64> {
        self.physical(|pages| long(pages.huge_page_bytes?[size]))
    }
}

/// Leaves out values that do not fit the file's signed numbers: they cannot be true.
fn long(value: u64) -> Option<i64> {
    i64::try_from(value).ok()
}

fn int(value: u32) -> Option<i32> {
    i32::try_from(value).ok()
}

/// How a column takes its value from a record.
#[derive(Clone, Copy)]
pub enum Value {
    /// Microseconds since 1970, UTC; never absent.
    Time(fn(&Record) -> i64),
    /// Integer of 64 bits. `true`: neighbouring values are close or mostly distinct, so deltas are stored.
    Long(fn(&Record) -> Option<i64>, bool),
    /// Integer of 32 bits.
    Int(fn(&Record) -> Option<i32>),
    /// Yes or no.
    Flag(fn(&Record) -> Option<bool>),
    /// Floating point.
    Real(fn(&Record) -> Option<f64>),
    /// Text.
    Text(for<'a> fn(&'a Record) -> Option<&'a str>),
    /// List of integers of 64 bits; `true` as above.
    Longs(fn(&Record) -> Option<Vec<i64>>, bool),
}

impl Value {
    /// Type as Spark SQL writes it.
    #[must_use]
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::Time(_) => "timestamp",
            Self::Long(..) => "bigint",
            Self::Int(_) => "int",
            Self::Flag(_) => "boolean",
            Self::Real(_) => "double",
            Self::Text(_) => "string",
            Self::Longs(..) => "array<bigint>",
        }
    }
}

/// One column.
pub struct Column {
    /// Name of the column, with the unit.
    pub name: &'static str,
    /// Value of the column.
    pub value: Value,
    /// Meaning of the column.
    pub help: &'static str,
}

const fn column(name: &'static str, value: Value, help: &'static str) -> Column {
    Column { name, value, help }
}

/// Columns that are in the names of folders, and in each file's own metadata.
pub const FOLDER_COLUMNS: [&str; 3] = ["uid", "application_id", "host"];

/// Every column of the file, in the paper's order; [`FOLDER_COLUMNS`] come before them.
pub const COLUMNS: &[Column] = &[
    column(
        "time",
        Value::Time(|r| (r.time_ns / 1000) as i64),
        "when, UTC; of a span its end",
    ),
    column(
        "access",
        Value::Text(|r| r.kind.access()),
        "`read` or `write` of Spark's memory; absent where it is neither",
    ),
    column(
        "kind",
        Value::Text(|r| Some(r.kind.name())),
        "what was done, see the kinds above",
    ),
    column(
        "executor_id",
        Value::Text(|r| Some(&r.source.executor_id)),
        "Spark's id of the executor, as it claims it",
    ),
    column(
        "stage_id",
        Value::Int(|r| r.stage_id.and_then(int)),
        "stage of the task",
    ),
    column(
        "stage_attempt",
        Value::Int(|r| r.stage_attempt.and_then(int)),
        "attempt of the stage",
    ),
    column(
        "task_attempt_id",
        Value::Long(|r| r.task_attempt_id.and_then(long), true),
        "task attempt that did it; of a `drop` the one that had stored it",
    ),
    column(
        "rdd_id",
        Value::Int(|r| r.rdd_id.and_then(int)),
        "RDD of the block, or the one that was current",
    ),
    column(
        "partition",
        Value::Int(|r| r.partition.and_then(int)),
        "partition of the block, else of the task",
    ),
    column(
        "block_id",
        Value::Text(|r| r.block_id.as_deref()),
        "Spark's name of the block",
    ),
    column(
        "region",
        Value::Text(|r| r.region),
        "`storage` or `execution` memory",
    ),
    column(
        "activity",
        Value::Text(|r| r.activity),
        "activity of the thread, where known",
    ),
    column(
        "consumer",
        Value::Text(|r| r.consumer.as_deref()),
        "class that asked for execution memory, or function of a span",
    ),
    column(
        "size_bytes",
        Value::Long(|r| r.size_bytes.and_then(long), false),
        "size as Spark accounts for it; an estimate where `serialized` is false",
    ),
    column(
        "duration_ns",
        Value::Long(|r| r.duration_ns.and_then(long), true),
        "duration of a span",
    ),
    column(
        "on_heap",
        Value::Flag(|r| r.on_heap),
        "on the Java heap, where the collector may move it",
    ),
    column(
        "serialized",
        Value::Flag(|r| r.serialized),
        "serialised bytes, else objects",
    ),
    column(
        "contents",
        Value::Text(|r| r.contents),
        "what the block is made of: `bytes`, `columns`, `array`, or `objects`: then each range is one object of a sample, and what was seen of its pages stands for the sample",
    ),
    column(
        "address_age_ms",
        Value::Long(|r| long(r.address_age_ns? / 1_000_000), true),
        "how many milliseconds before the access the address was last known to be right; 0 where it was right then",
    ),
    column(
        "virtual_address",
        Value::Long(|r| long(r.first()?.0), false),
        "address of the first range; absent where there are no contiguous bytes",
    ),
    column(
        "length_bytes",
        Value::Long(|r| long(r.first()?.1), false),
        "length of the first range",
    ),
    column(
        "further_addresses",
        Value::Longs(|r| r.further(|range| range.0), true),
        "addresses of further ranges that were reported with this record",
    ),
    column(
        "further_lengths",
        Value::Longs(|r| r.further(|range| range.1), false),
        "their lengths in bytes",
    ),
    column(
        "range_first",
        Value::Long(|r| r.range_first.and_then(long), false),
        "index of the first range in its block: above 0 where one block takes several records",
    ),
    column(
        "range_total",
        Value::Long(|r| r.range_total.and_then(long), false),
        "ranges of the whole block",
    ),
    column(
        "first_page",
        Value::Long(|r| long(r.first()?.0 / PAGE_BYTES), false),
        "number of the first page of 4096 bytes",
    ),
    column(
        "pages",
        Value::Long(|r| r.pages().and_then(long), false),
        "pages of 4096 bytes that the record's ranges touch",
    ),
    column(
        "crosses_pages",
        Value::Flag(|r| r.pages().map(|pages| pages > r.ranges.len() as u64)),
        "whether a range crosses a page's end",
    ),
    column(
        "examined_age_ms",
        Value::Long(
            |r| r.physical(|p| long(r.time_ns.saturating_sub(p.time_ns) / 1_000_000)),
            true,
        ),
        "how many milliseconds before the access its pages were last examined; what follows is of that time and of all ranges together",
    ),
    column(
        "examined_bytes",
        Value::Long(|r| r.physical(|p| long(p.examined_bytes)), false),
        "examined bytes; fewer than there are where the resolver's budget was short",
    ),
    column(
        "present_bytes",
        Value::Long(|r| r.physical(|p| long(p.present_bytes)), false),
        "of them, bytes in memory",
    ),
    column(
        "swapped_bytes",
        Value::Long(|r| r.physical(|p| long(p.swapped_bytes)), false),
        "of them, bytes on a swap device",
    ),
    column(
        "frames",
        Value::Longs(
            |r| {
                r.physical(|p| {
                    let frames = p.frames.as_ref()?.iter();
                    Some(
                        frames
                            .map(|frame| frame.and_then(long).unwrap_or(-1))
                            .collect(),
                    )
                })
            },
            false,
        ),
        "page frame numbers of the first pages, at most 16, -1 for one that is not in memory; the physical address is the frame times 4096",
    ),
    column(
        "bytes_in_2mib_pages",
        Value::Long(|r| r.bytes_in(0), false),
        "of those in memory, bytes in pages of 2 MiB; what is in neither huge size is in base pages",
    ),
    column(
        "bytes_in_1gib_pages",
        Value::Long(|r| r.bytes_in(1), false),
        "of those in memory, bytes in pages of 1 GiB",
    ),
    column(
        "nodes",
        Value::Longs(
            |r| r.physical(|p| Some(p.nodes.as_ref()?.iter().map(|n| i64::from(*n)).collect())),
            false,
        ),
        "NUMA nodes that hold bytes",
    ),
    column(
        "spans_nodes",
        Value::Flag(|r| r.physical(|p| Some(p.nodes.as_ref()?.len() > 1))),
        "whether more than one node holds bytes",
    ),
    column(
        "hotness",
        // Further digits have no meaning and take space.
        Value::Real(|r| r.hotness.map(|heat| (heat * 10.0).round() / 10.0)),
        "how hot the block was before the access: reads per minute, a running value, to a tenth",
    ),
    column(
        "hotness_method",
        Value::Text(|r| r.hotness.map(|_| "block reads")),
        "how the hotness was found",
    ),
];
