//! Divides what an executor held at a moment: by RDD, region of Spark's memory, page size or node.

use smtt_model::state::history::RddPoint;
use smtt_model::units;

use super::{Memory, Moment};

/// By what memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// The RDD whose blocks the memory has.
    Rdd,
    /// Storage and execution memory, on and off the heap.
    Region,
    /// Size of the pages behind the memory.
    PageSize,
    /// NUMA node that has the pages.
    Node,
}

/// Parameter and title of each.
pub const ALL: [(By, &str, &str); 4] = [
    (By::Rdd, "rdd", "RDD"),
    (By::Region, "region", "region"),
    (By::PageSize, "page_size", "page size"),
    (By::Node, "node", "NUMA node"),
];

impl By {
    /// The one that a parameter names.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let found = ALL.iter().find(|(_, known, _)| *known == name);
        found.map(|(by, _, _)| *by)
    }

    /// The name of the parameter.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = ALL.iter().find(|(by, _, _)| *by == self);
        found.map_or("", |(_, name, _)| name)
    }
}

/// A part of the memory that an executor held; a series of the answer is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Blocks of the RDD with this id.
    Rdd(u32),
    /// Memory that belongs to no RDD.
    NoRdd,
    /// RDDs that the daemon summed. They are always among the others.
    Summed,
    /// A region, as [`REGIONS`].
    Region(u8),
    /// Bytes on pages of a size.
    PageSize(u64),
    /// Bytes on a node.
    Node(u32),
    /// Bytes in memory, of no known page size or node.
    Present,
    /// Bytes that are swapped out.
    Swapped,
    /// Bytes without physical memory.
    Untouched,
    /// Bytes whose pages were not examined.
    NotExamined,
}

const REGIONS: [&str; 4] = [
    "storage, on the heap",
    "storage, off heap",
    "execution, on the heap",
    "execution, off heap",
];
/// Bytes of a figure at most, so that sums of hostile figures are still numbers.
const MOST: u64 = 1 << 50;

fn bytes(value: u64) -> u64 {
    value.min(MOST)
}

/// All bytes that an RDD holds.
fn held(rdd: &RddPoint) -> u64 {
    bytes(rdd.storage_heap_bytes)
        + bytes(rdd.storage_off_heap_bytes)
        + bytes(rdd.execution_heap_bytes)
        + bytes(rdd.execution_off_heap_bytes)
}

/// Bytes by where their pages are. `places` are the bytes in memory that have a place.
fn placed(rdd: &RddPoint, places: &[(Part, u64)], add: &mut dyn FnMut(Part, u64)) {
    let held = held(rdd);
    let Some(pages) = &rdd.pages else {
        return add(Part::NotExamined, held);
    };
    let mut rest = bytes(pages.present_bytes);
    let (swapped, untouched) = (bytes(pages.swapped_bytes), bytes(pages.untouched_bytes));
    let mut seen = swapped + untouched;
    for (part, value) in places {
        let value = bytes(*value);
        add(*part, value);
        rest = rest.saturating_sub(value);
        seen += value;
    }
    add(Part::Present, rest);
    add(Part::Swapped, swapped);
    add(Part::Untouched, untouched);
    add(Part::NotExamined, held.saturating_sub(seen + rest));
}

/// Calls `add` with each part of a moment and its bytes.
pub fn divide(moment: &Moment, by: By, add: &mut dyn FnMut(Part, u64)) {
    for rdd in &moment.rdds {
        match by {
            By::Rdd => {
                let part = match (rdd.rdd_id, rdd.no_rdd) {
                    (Some(id), _) => Part::Rdd(id),
                    (None, true) => Part::NoRdd,
                    (None, false) => Part::Summed,
                };
                add(part, held(rdd));
            }
            By::Region => {
                add(Part::Region(0), bytes(rdd.storage_heap_bytes));
                add(Part::Region(1), bytes(rdd.storage_off_heap_bytes));
                add(Part::Region(2), bytes(rdd.execution_heap_bytes));
                add(Part::Region(3), bytes(rdd.execution_off_heap_bytes));
            }
            By::PageSize => {
                let sizes = rdd
                    .pages
                    .iter()
                    .filter_map(|pages| pages.page_sizes.as_ref());
                let sizes = sizes
                    .flatten()
                    .map(|row| (Part::PageSize(row.page_bytes), row.bytes));
                placed(rdd, &sizes.collect::<Vec<_>>(), add);
            }
            By::Node => {
                let nodes = rdd.pages.iter().filter_map(|pages| pages.nodes.as_ref());
                let nodes = nodes.flatten().map(|row| (Part::Node(row.node), row.bytes));
                placed(rdd, &nodes.collect::<Vec<_>>(), add);
            }
        }
    }
}

impl Part {
    /// The part's id in answers.
    #[must_use]
    pub fn key(self) -> String {
        match self {
            Self::Rdd(id) => format!("rdd.{id}"),
            Self::NoRdd => "no_rdd".to_owned(),
            Self::Summed => "summed".to_owned(),
            Self::Region(at) => {
                let names = [
                    "storage_heap",
                    "storage_off_heap",
                    "execution_heap",
                    "execution_off_heap",
                ];
                names
                    .get(usize::from(at))
                    .copied()
                    .unwrap_or_default()
                    .to_owned()
            }
            Self::PageSize(size) => format!("page_size.{size}"),
            Self::Node(node) => format!("node.{node}"),
            Self::Present => "present".to_owned(),
            Self::Swapped => "swapped".to_owned(),
            Self::Untouched => "untouched".to_owned(),
            Self::NotExamined => "not_examined".to_owned(),
        }
    }

    /// The part's name for people. Names of RDDs are what applications say.
    #[must_use]
    pub fn title(self, by: By, memory: &Memory) -> String {
        match self {
            Self::Rdd(id) => match memory.names.get(&id) {
                Some(name) => format!("RDD {id} {name}"),
                None => format!("RDD {id}"),
            },
            Self::NoRdd => "no RDD: broadcasts and others".to_owned(),
            Self::Summed => "RDDs that the daemon summed".to_owned(),
            Self::Region(at) => REGIONS
                .get(usize::from(at))
                .copied()
                .unwrap_or_default()
                .to_owned(),
            Self::PageSize(size) => format!("{} pages", units::bytes(size).replace(".0 ", " ")),
            Self::Node(node) => format!("node {node}"),
            Self::Present if by == By::Node => "in memory, node not known".to_owned(),
            Self::Present => "in memory, page size not known".to_owned(),
            Self::Swapped => "swapped out".to_owned(),
            Self::Untouched => "without physical memory".to_owned(),
            Self::NotExamined => "not examined".to_owned(),
        }
    }
}
