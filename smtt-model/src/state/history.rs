//! Memory of executors over time: a point every few seconds, thinned with age, within a limit.
//!
//! A point is one moment. When a history is full, the point with less memory of each neighbouring pair is dropped and
//! the interval doubles: peaks stay, and the RDDs of a point add up to the memory at that moment. All histories
//! together also have a limit ([`BYTES_MAX`]); the longest ones are thinned first.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::bytes::Caps;
use super::figures::{NodeRow, PageSizeRow, Placed, by_rdd};
use super::{Executor, SizesBy, State, TaskState};
use crate::attribute::{RddKey, StageKey};
use crate::sort::small::sort_by_key;

/// Time between two points of a new history, in nanoseconds.
pub const INTERVAL_NS: u64 = 2_000_000_000;
/// Maximum number of points per executor. Even, so that halving leaves no remainder.
pub const POINTS_MAX: usize = 240;
/// Maximum number of RDDs of one point with figures of their own: the largest ones. The others are summed.
pub const RDDS_MAX: usize = 32;
/// Maximum number of stages of one point with figures of their own.
pub const STAGES_MAX: usize = 16;
/// Maximum number of nodes of one RDD in a point; bytes on more nodes are not listed by node.
pub const NODES_MAX: usize = 16;
/// Maximum size of all histories together, in bytes.
pub const BYTES_MAX: usize = 8 << 20;

/// Memory of one executor over time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// Time between two points, in nanoseconds; zero before the first point.
    pub interval_ns: u64,
    /// The points, the oldest first.
    pub points: Vec<Point>,
}

/// Memory of an executor at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Time of the point, in nanoseconds since boot.
    pub time_ns: u64,
    /// All page faults of the executor until then; absent where page faults are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_faults: Option<u64>,
    /// Garbage collections that had begun until then, since the marker counts them; absent where it does not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collections: Option<u64>,
    /// Memory by RDD; RDDs without memory are left out.
    pub rdds: Vec<RddPoint>,
    /// RDDs without figures of their own: they are summed in the point without `rdd_id` and `name`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rdds_folded: u64,
    /// Execution memory by stage; stages without any are left out.
    pub stages: Vec<StagePoint>,
}

/// Memory of one RDD at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RddPoint {
    /// Id of the RDD; absent for work of no RDD and for summed RDDs.
    pub rdd_id: Option<u32>,
    /// Whether the point is memory that belongs to no RDD, such as broadcasts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_rdd: bool,
    /// Bytes of blocks on the Java heap.
    pub storage_heap_bytes: u64,
    /// Bytes of blocks outside of the Java heap.
    pub storage_off_heap_bytes: u64,
    /// Bytes of execution memory on the Java heap.
    pub execution_heap_bytes: u64,
    /// Bytes of execution memory outside of the Java heap.
    pub execution_off_heap_bytes: u64,
    /// Placement of the bytes at the last scan; absent where no page was examined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<Box<PagePoint>>,
}

impl RddPoint {
    /// All bytes that the RDD holds.
    #[must_use]
    pub const fn held_bytes(&self) -> u64 {
        self.storage_heap_bytes
            .saturating_add(self.storage_off_heap_bytes)
            .saturating_add(self.execution_heap_bytes)
            .saturating_add(self.execution_off_heap_bytes)
    }
}

/// Placement of bytes at the last scan before a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagePoint {
    /// Bytes in memory.
    pub present_bytes: u64,
    /// Bytes swapped out.
    pub swapped_bytes: u64,
    /// Bytes without physical memory.
    pub untouched_bytes: u64,
    /// Bytes in memory by page size; absent where page sizes are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_sizes: Option<Vec<PageSizeRow>>,
    /// Bytes in memory by node; absent where there are more than [`NODES_MAX`] nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<NodeRow>>,
}

/// Execution memory of one stage at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagePoint {
    /// Id of the stage; absent for summed or unknown stages.
    pub stage_id: Option<u32>,
    /// Attempt of the stage.
    pub stage_attempt: Option<u32>,
    /// Bytes of execution memory that the stage's tasks held.
    pub execution_bytes: u64,
    /// Tasks of the stage that held execution memory.
    pub tasks: u32,
    /// Largest execution memory of a single task, in bytes.
    pub largest_task_bytes: u64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde asks with a reference"
)]
const fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl Point {
    fn held_bytes(&self) -> u64 {
        let held = self.rdds.iter().map(RddPoint::held_bytes);
        held.fold(0, u64::saturating_add)
    }

    /// Memory of the point itself, in bytes.
    fn own_bytes(&self) -> usize {
        let pages = self.rdds.iter().filter_map(|rdd| rdd.pages.as_deref());
        let pages: usize = pages
            .map(|pages| {
                let sizes = pages.page_sizes.as_ref().map_or(0, Vec::len);
                let nodes = pages.nodes.as_ref().map_or(0, Vec::len);
                size_of::<PagePoint>()
                    + sizes * size_of::<PageSizeRow>()
                    + nodes * size_of::<NodeRow>()
            })
            .sum();
        size_of::<Self>()
            + self.rdds.capacity() * size_of::<RddPoint>()
            + self.stages.capacity() * size_of::<StagePoint>()
            + pages
    }
}

impl History {
    /// Whether the next point is due.
    fn is_due(&self, now_ns: u64) -> bool {
        self.points
            .last()
            .is_none_or(|last| now_ns.saturating_sub(last.time_ns) >= self.interval_ns)
    }

    /// Adds a point.
    fn add(&mut self, point: Point) {
        self.interval_ns = self.interval_ns.max(INTERVAL_NS);
        if self.points.len() >= POINTS_MAX {
            self.thin();
        }
        self.points.push(point);
    }

    /// Halves the history: of two neighbouring points the one with more memory stays.
    fn thin(&mut self) {
        let mut kept = Vec::with_capacity(self.points.len().div_ceil(2));
        let mut old = std::mem::take(&mut self.points).into_iter();
        while let Some(first) = old.next() {
            kept.push(match old.next() {
                Some(second) if second.held_bytes() > first.held_bytes() => second,
                _ => first,
            });
        }
        self.points = kept;
        self.interval_ns = self.interval_ns.saturating_mul(2);
    }

    /// Approximate memory of the history, in bytes.
    #[must_use]
    pub fn own_bytes(&self) -> usize {
        let spare = self.points.capacity() - self.points.len();
        self.points.iter().map(Point::own_bytes).sum::<usize>() + spare * size_of::<Point>()
    }
}

/// Keeps the largest rows and sums the others.
fn fold<Row>(
    rows: &mut Vec<Row>,
    room: usize,
    size: impl Fn(&Row) -> u64,
    add: impl Fn(&mut Row, Row),
) -> u64
where
    Row: Default,
{
    if rows.len() <= room {
        return 0;
    }
    sort_by_key(rows, |row| std::cmp::Reverse(size(row)));
    let more = rows.split_off(room - 1);
    let folded = more.len() as u64;
    let mut sum = Row::default();
    for row in more {
        add(&mut sum, row);
    }
    rows.push(sum);
    folded
}

fn page_point(placed: Placed) -> Box<PagePoint> {
    Box::new(PagePoint {
        present_bytes: placed.present_bytes,
        swapped_bytes: placed.swapped_bytes,
        untouched_bytes: placed.untouched_bytes,
        page_sizes: placed.page_sizes,
        nodes: (placed.nodes.len() <= NODES_MAX).then_some(placed.nodes),
    })
}

fn rdd_points(executor: &Executor) -> Vec<RddPoint> {
    let mut held = BTreeMap::new();
    for (rdd, holds) in executor.memory.holders() {
        let sum: &mut super::MemoryHeld = held.entry(executor.row_of(rdd)).or_default();
        sum.add(holds);
    }
    let mut figures = by_rdd(executor, 0);
    let sizes_known = executor.memory.last_examined.sizes_by != SizesBy::Nothing;
    held.into_iter()
        .map(|(rdd, held)| {
            let placed = figures
                .remove(&rdd)
                .and_then(|figures| figures.placed(sizes_known));
            RddPoint {
                rdd_id: rdd.id(),
                no_rdd: rdd == RddKey::None,
                storage_heap_bytes: held.storage_bytes - held.storage_off_heap_bytes,
                storage_off_heap_bytes: held.storage_off_heap_bytes,
                execution_heap_bytes: held.execution_bytes - held.execution_off_heap_bytes,
                execution_off_heap_bytes: held.execution_off_heap_bytes,
                pages: placed.map(page_point),
            }
        })
        .collect()
}

fn stage_points(executor: &Executor) -> Vec<StagePoint> {
    let mut stages: BTreeMap<Option<StageKey>, StagePoint> = BTreeMap::new();
    let tasks = executor.tasks.tasks.values();
    for task in tasks.filter(|task| task.live_bytes > 0 && task.state == TaskState::Running) {
        let point = stages.entry(task.stage).or_insert_with(|| StagePoint {
            stage_id: task.stage.map(|stage| stage.id),
            stage_attempt: task.stage.map(|stage| u32::from(stage.attempt)),
            ..StagePoint::default()
        });
        point.execution_bytes = point.execution_bytes.saturating_add(task.live_bytes);
        point.tasks = point.tasks.saturating_add(1);
        point.largest_task_bytes = point.largest_task_bytes.max(task.live_bytes);
    }
    stages.into_values().collect()
}

fn point(executor: &Executor, faults_counted: bool, now_ns: u64) -> Point {
    let mut rdds = rdd_points(executor);
    let rdds_folded = fold(&mut rdds, RDDS_MAX, RddPoint::held_bytes, |sum, more| {
        for (sum, more) in [
            (&mut sum.storage_heap_bytes, more.storage_heap_bytes),
            (&mut sum.storage_off_heap_bytes, more.storage_off_heap_bytes),
            (&mut sum.execution_heap_bytes, more.execution_heap_bytes),
            (
                &mut sum.execution_off_heap_bytes,
                more.execution_off_heap_bytes,
            ),
        ] {
            *sum = sum.saturating_add(more);
        }
    });
    let mut stages = stage_points(executor);
    fold(
        &mut stages,
        STAGES_MAX,
        |stage| stage.execution_bytes,
        |sum, more| {
            sum.execution_bytes = sum.execution_bytes.saturating_add(more.execution_bytes);
            sum.tasks = sum.tasks.saturating_add(more.tasks);
            sum.largest_task_bytes = sum.largest_task_bytes.max(more.largest_task_bytes);
        },
    );
    let faults = super::total(&executor.counters.attributed)
        .saturating_add(super::total(&super::unattributed(&executor.counters)));
    Point {
        time_ns: now_ns,
        page_faults: (faults_counted || faults > 0).then_some(faults),
        collections: executor.heap.collections(),
        rdds,
        rdds_folded,
        stages,
    }
}

impl Executor {
    /// Adds a point to the history. Without room the history is thinned; without room even then the point is left out.
    fn record_point(&mut self, faults_counted: bool, now_ns: u64, caps: &Caps) {
        let point = point(self, faults_counted, now_ns);
        // The list of points may double.
        let bytes = point.own_bytes() + self.history.points.capacity() * 2 * size_of::<Point>();
        if !caps.fits(bytes) {
            let before = self.history_bytes;
            self.history.thin();
            caps.give_back(before.saturating_sub(self.history.own_bytes()));
            if !caps.admit(bytes) {
                self.history_bytes = self.history.own_bytes();
                return;
            }
        }
        self.history.add(point);
        self.history_bytes = self.history.own_bytes();
    }
}

impl State {
    /// Adds a point to the history of every living executor whose next point is due.
    pub fn record_history(&mut self, now_ns: u64) {
        let counted = self.measured().page_faults;
        let mut added = false;
        for key in self.keys() {
            let due = self.change_known(key, |executor, caps| {
                let due = executor.died_ns.is_none()
                    && executor.described.is_some()
                    && executor.history.is_due(now_ns);
                if due {
                    executor.record_point(counted, now_ns, caps);
                }
                due
            });
            added |= due == Some(true);
        }
        while added && self.history_bytes() > BYTES_MAX {
            let longest = self
                .executors
                .iter()
                .filter(|(_, executor)| executor.history.points.len() > 1)
                .max_by_key(|(_, executor)| executor.history_bytes)
                .map(|(key, _)| *key);
            let Some(longest) = longest else { return };
            self.change_known(longest, |executor, _| {
                executor.history.thin();
                executor.history_bytes = executor.history.own_bytes();
            });
        }
    }

    /// Memory of all histories, in bytes.
    #[must_use]
    pub fn history_bytes(&self) -> usize {
        let all = self.executors().values();
        all.map(|executor| executor.history_bytes).sum()
    }
}
