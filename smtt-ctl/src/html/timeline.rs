//! Histories of several executors on one time axis, as series that stack.

use std::collections::{BTreeMap, BTreeSet};

use smtt_model::protocol::Histories;
use smtt_model::rows::HistoryRow;
use smtt_model::sort::small::{Gather as _, sort_by};
use smtt_model::state::history::{Point, RddPoint};
use smtt_model::units;

/// Maximum number of moments in a chart, limited by the width of the page.
const MOMENTS: u64 = 160;

/// Maximum number of page sizes or nodes in a chart, more than a machine has.
const SERIES: usize = 40;

/// One series of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name of the series.
    pub label: String,
    /// CSS class of the colour.
    pub class: String,
    /// Value at each moment.
    pub values: Vec<f64>,
}

/// The moments of all charts of a page.
#[derive(Clone, Debug, Default)]
pub struct Timeline<'a> {
    /// The moments, milliseconds since 1970.
    pub times_ms: Vec<u64>,
    /// At each moment, the executors' points, by executor.
    points: Vec<Vec<Option<&'a Point>>>,
}

impl<'a> Timeline<'a> {
    /// The moments of the given histories.
    #[must_use]
    pub fn new(histories: &'a Histories) -> Self {
        let rows: Vec<&HistoryRow> = histories
            .rows
            .iter()
            .filter(|row| !row.points.is_empty())
            .collect();
        let first = rows
            .iter()
            .filter_map(|row| row.points.first())
            .map(|point| point.time_ns)
            .min();
        let last = rows
            .iter()
            .filter_map(|row| row.points.last())
            .map(|point| point.time_ns)
            .max();
        let (Some(first), Some(last)) = (first, last) else {
            return Self::default();
        };
        let widest = rows
            .iter()
            .map(|row| row.interval_ns)
            .max()
            .unwrap_or(0)
            .max(1);
        let step = widest.max((last - first).div_ceil(MOMENTS));
        let moments = (last - first).div_ceil(step) + 1;
        let times = (0..moments).map(|at| first.saturating_add(at * step));
        let unix = |time: u64| {
            let age_ms = histories.now_ns.saturating_sub(time) / 1_000_000;
            // The last moment is at most one step after the last point.
            let ahead_ms = time.saturating_sub(histories.now_ns) / 1_000_000;
            histories.now_unix_ms.saturating_sub(age_ms) + ahead_ms
        };
        let points = times
            .clone()
            .map(|time| rows.iter().map(|row| at(row, time, step)).collect());
        Self {
            points: points.collect(),
            times_ms: times.map(unix).collect(),
        }
    }

    /// Whether there is a line to draw.
    #[must_use]
    pub fn is_drawable(&self) -> bool {
        self.times_ms.len() >= 2
    }

    /// Sums the values that `of` returns for each executor's point, at each moment, by key.
    fn sums<Key: Ord + Clone>(
        &self,
        of: impl Fn(&Point, &mut dyn FnMut(Key, u64)),
    ) -> BTreeMap<Key, Vec<f64>> {
        let mut sums: BTreeMap<Key, Vec<f64>> = BTreeMap::new();
        for (moment, points) in self.points.iter().enumerate() {
            for point in points.iter().flatten() {
                of(point, &mut |key, bytes| {
                    let values = sums
                        .entry(key)
                        .or_insert_with(|| vec![0.0; self.points.len()]);
                    values[moment] += bytes as f64;
                });
            }
        }
        sums.retain(|_, values| values.iter().any(|value| *value > 0.0));
        sums
    }

    fn rdd_sums<Key: Ord + Clone>(
        &self,
        rdds: Option<&BTreeSet<u32>>,
        of: impl Fn(&RddPoint, &mut dyn FnMut(Key, u64)),
    ) -> BTreeMap<Key, Vec<f64>> {
        self.sums(|point, add| {
            for held in point.rdds.iter().filter(|held| {
                rdds.is_none_or(|rdds| held.rdd_id.is_some_and(|id| rdds.contains(&id)))
            }) {
                of(held, add);
            }
        })
    }

    /// Bytes by region of Spark's memory, for these RDDs or for all.
    #[must_use]
    pub fn by_region(&self, rdds: Option<&BTreeSet<u32>>) -> Vec<Series> {
        const REGIONS: [(&str, &str); 4] = [
            ("storage, on the heap", "k1"),
            ("storage, off heap", "k2"),
            ("execution, on the heap", "k3"),
            ("execution, off heap", "k4"),
        ];
        let sums = self.rdd_sums(rdds, |held, add| {
            add(0, held.storage_heap_bytes);
            add(1, held.storage_off_heap_bytes);
            add(2, held.execution_heap_bytes);
            add(3, held.execution_off_heap_bytes);
        });
        let name = |(region, values): (usize, Vec<f64>)| {
            series(REGIONS[region].0, REGIONS[region].1, values)
        };
        sums.into_iter().map(name).collect()
    }

    /// Bytes by page size.
    #[must_use]
    pub fn by_page_size(&self, rdds: Option<&BTreeSet<u32>>) -> Vec<Series> {
        // Page sizes first, then bytes without one.
        const UNKNOWN: (u8, u64) = (1, 0);
        const SWAPPED: (u8, u64) = (2, 0);
        const WITHOUT: (u8, u64) = (3, 0);
        const NOT_EXAMINED: (u8, u64) = (4, 0);
        let sums = self.rdd_sums(rdds, |held, add| {
            let Some(pages) = &held.pages else {
                return add(NOT_EXAMINED, held.held_bytes());
            };
            let mut rest = pages.present_bytes;
            for size in pages.page_sizes.iter().flatten() {
                add((0, size.page_bytes), size.bytes);
                rest = rest.saturating_sub(size.bytes);
            }
            add(UNKNOWN, rest);
            add(SWAPPED, pages.swapped_bytes);
            add(WITHOUT, pages.untouched_bytes);
            let parts = [
                pages.present_bytes,
                pages.swapped_bytes,
                pages.untouched_bytes,
            ];
            let seen = parts.into_iter().fold(0, u64::saturating_add);
            add(NOT_EXAMINED, held.held_bytes().saturating_sub(seen));
        });
        let name = |(key, values): ((u8, u64), Vec<f64>)| match key {
            (0, bytes) => {
                let class = match bytes {
                    0..0x10_0000 => "small",
                    0x10_0000..0x4000_0000 => "huge",
                    _ => "giant",
                };
                series(&format!("{} pages", size_name(bytes)), class, values)
            }
            UNKNOWN => series("in memory, page size not known", "k5", values),
            SWAPPED => series("swapped out", "bad", values),
            WITHOUT => series("without memory", "none", values),
            _ => series("not examined", "unknown", values),
        };
        bounded(sums.into_iter().map(name).collect())
    }

    /// Bytes by NUMA node.
    #[must_use]
    pub fn by_node(&self, rdds: Option<&BTreeSet<u32>>) -> Vec<Series> {
        const NOWHERE: u64 = u64::MAX;
        let sums = self.rdd_sums(rdds, |held, add| {
            let mut rest = held.held_bytes();
            for node in held
                .pages
                .iter()
                .filter_map(|pages| pages.nodes.as_ref())
                .flatten()
            {
                add(u64::from(node.node), node.bytes);
                rest = rest.saturating_sub(node.bytes);
            }
            add(NOWHERE, rest);
        });
        let name = |(node, values): (u64, Vec<f64>)| match node {
            NOWHERE => series("on no node, or not examined", "unknown", values),
            node => series(
                &format!("node {node}"),
                &format!("k{}", node % 8 + 1),
                values,
            ),
        };
        bounded(sums.into_iter().map(name).collect())
    }

    /// Bytes by group of RDDs: those that held most bytes for most of the time, and the sum of the others.
    #[must_use]
    pub fn by_group(&self, group_of: impl Fn(u32) -> String) -> Vec<Series> {
        let sums = self.rdd_sums(None, |held, add| {
            let key = match (held.rdd_id, held.no_rdd) {
                (Some(id), _) => Some(Some(group_of(id))),
                (None, true) => Some(None),
                (None, false) => None,
            };
            add(key, held.held_bytes());
        });
        largest(sums, 8, |key| match key {
            Some(Some(group)) => Some(group.clone()),
            Some(None) => Some("no RDD (broadcasts and others)".to_owned()),
            None => None,
        })
    }

    /// Execution memory by stage: the largest ones, and the sum of the others.
    #[must_use]
    pub fn by_stage(&self, name_of: impl Fn(u32) -> String) -> Vec<Series> {
        let sums = self.sums(|point, add| {
            for stage in &point.stages {
                add(stage.stage_id, stage.execution_bytes);
            }
        });
        largest(sums, 8, |key| key.map(&name_of))
    }

    /// The most execution memory that one task held.
    #[must_use]
    pub fn largest_task(&self) -> Series {
        let most = |points: &Vec<Option<&Point>>| {
            let stages = points.iter().flatten().flat_map(|point| &point.stages);
            stages
                .map(|stage| stage.largest_task_bytes)
                .max()
                .unwrap_or(0) as f64
        };
        series(
            "the largest task",
            "line",
            self.points.iter().map(most).collect(),
        )
    }

    /// Page faults per second since the previous moment; `None` where page faults are not counted.
    #[must_use]
    pub fn faults_per_second(&self) -> Option<Series> {
        let mut counted = false;
        let mut values = vec![0.0; self.points.len()];
        for (moment, rate) in values.iter_mut().enumerate().skip(1) {
            for (before, now) in self.points[moment - 1].iter().zip(&self.points[moment]) {
                let Some((now, faults)) = now.and_then(|now| Some((now, now.page_faults?))) else {
                    continue;
                };
                counted = true;
                // An executor's first point has no interval before it.
                if let Some(before) = before.filter(|before| now.time_ns > before.time_ns) {
                    let seconds = (now.time_ns - before.time_ns) as f64 / 1e9;
                    let more = faults.saturating_sub(before.page_faults.unwrap_or(0));
                    *rate += more as f64 / seconds;
                }
            }
        }
        counted.then(|| series("page faults per second", "k1", values))
    }

    /// Bytes times seconds of each RDD that held memory at a moment.
    #[must_use]
    pub fn byte_seconds(&self) -> BTreeMap<u32, f64> {
        let sums = self.rdd_sums(None, |held, add| {
            if let Some(id) = held.rdd_id {
                add(id, held.held_bytes());
            }
        });
        let of = |(id, values): (u32, Vec<f64>)| {
            let spans = self.times_ms.windows(2).zip(&values);
            // A value holds until the next moment.
            let area = spans.map(|(span, bytes)| (span[1] - span[0]) as f64 / 1e3 * bytes);
            (id, area.sum())
        };
        sums.into_iter().map(of).gather()
    }
}

/// The executor's point at a moment: the last one before it, if the executor was still there.
fn at(row: &HistoryRow, time: u64, step: u64) -> Option<&Point> {
    let after = row.points.partition_point(|point| point.time_ns <= time);
    let point = row.points.get(after.checked_sub(1)?)?;
    // Points of a thinned history are up to two intervals apart, and a late tick is not the executor's end.
    let patience = row.interval_ns.saturating_mul(3).max(step);
    (time - point.time_ns <= patience).then_some(point)
}

fn series(label: &str, class: &str, values: Vec<f64>) -> Series {
    Series {
        label: label.to_owned(),
        class: class.to_owned(),
        values,
    }
}

/// What a series ranks by: the moments are equally far apart, so its sum is its bytes times time.
fn area(values: &[f64]) -> f64 {
    values.iter().sum()
}

/// At most [`SERIES`] series: those with most bytes times time, and the sum of the others.
fn bounded(mut list: Vec<Series>) -> Vec<Series> {
    if list.len() <= SERIES {
        return list;
    }
    sort_by(&mut list, |left, right| {
        area(&right.values).total_cmp(&area(&left.values))
    });
    let others = list.split_off(SERIES - 1);
    let mut sum = vec![0.0; others[0].values.len()];
    for other in &others {
        let values = sum.iter_mut().zip(&other.values);
        values.for_each(|(sum, more)| *sum += more);
    }
    list.push(series(&format!("{} others", others.len()), "unknown", sum));
    list
}

/// The series with most bytes times time under their names, and the sum of the others. Series without a name are others.
fn largest<Key: Ord>(
    sums: BTreeMap<Key, Vec<f64>>,
    room: usize,
    name_of: impl Fn(&Key) -> Option<String>,
) -> Vec<Series> {
    let mut all: Vec<(Option<String>, Vec<f64>)> = sums
        .into_iter()
        .map(|(key, values)| (name_of(&key), values))
        .collect();
    sort_by(&mut all, |left, right| {
        let named = right.0.is_some().cmp(&left.0.is_some());
        named.then(area(&right.1).total_cmp(&area(&left.1)))
    });
    let named = all.iter().filter(|(name, _)| name.is_some()).count();
    let others = all.split_off(named.min(room));
    let mut list: Vec<Series> = all
        .into_iter()
        .enumerate()
        .map(|(at, (name, values))| {
            series(
                &name.unwrap_or_default(),
                &format!("k{}", at % 8 + 1),
                values,
            )
        })
        .collect();
    if !others.is_empty() {
        let label = format!("{} others", others.len());
        let mut sum = vec![0.0; others[0].1.len()];
        for (_, values) in others {
            sum.iter_mut()
                .zip(values)
                .for_each(|(sum, more)| *sum += more);
        }
        list.push(series(&label, "unknown", sum));
    }
    list
}

/// A page size as text.
#[must_use]
pub fn size_name(bytes: u64) -> String {
    units::bytes(bytes).replace(".0 ", " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use smtt_model::rows::{NodeRow, PageSizeRow};
    use smtt_model::state::history::PagePoint;

    const S: u64 = 1_000_000_000;

    fn point(second: u64, bytes: u64) -> Point {
        Point {
            time_ns: second * S,
            page_faults: Some(second * 100),
            rdds: vec![RddPoint {
                rdd_id: Some(7),
                storage_heap_bytes: bytes,
                pages: Some(Box::new(PagePoint {
                    present_bytes: bytes / 2,
                    swapped_bytes: bytes / 4,
                    page_sizes: Some(vec![PageSizeRow {
                        page_bytes: 4096,
                        bytes: bytes / 2,
                    }]),
                    nodes: Some(vec![NodeRow {
                        node: 1,
                        bytes: bytes / 2,
                    }]),
                    ..PagePoint::default()
                })),
                ..RddPoint::default()
            }],
            ..Point::default()
        }
    }

    fn histories() -> Histories {
        let row = |points: Vec<Point>| HistoryRow {
            interval_ns: 2 * S,
            points,
            ..HistoryRow::default()
        };
        Histories {
            now_ns: 20 * S,
            now_unix_ms: 1_000_000,
            rows: vec![
                row((0..=10).map(|at| point(at * 2, 400)).collect()),
                // Begins later and ends earlier.
                row((3..=4).map(|at| point(at * 2, 800)).collect()),
                row(Vec::new()),
            ],
        }
    }

    #[test]
    fn executors_are_added_up_while_they_live() {
        let histories = histories();
        let timeline = Timeline::new(&histories);
        assert_eq!(
            (timeline.times_ms.len(), timeline.times_ms[0]),
            (11, 980_000)
        );
        assert_eq!(timeline.times_ms[10], 1_000_000);
        let region = timeline.by_region(Some(&BTreeSet::from([7])));
        assert_eq!(region.len(), 1, "what was never held is no series");
        assert_eq!(region[0].values[2], 400.0);
        assert_eq!(region[0].values[3], 1200.0);
        assert_eq!(region[0].values[10], 400.0, "the second one is dead");
        assert!(timeline.by_region(Some(&BTreeSet::from([8]))).is_empty());
        // 400 bytes for 20 s, and 800 bytes for 4 s and the 6 s in which a late point is awaited.
        assert_eq!(timeline.byte_seconds(), BTreeMap::from([(7, 16_000.0)]));
        let faults = timeline.faults_per_second().expect("counted");
        assert_eq!(
            (faults.values[0], faults.values[1], faults.values[4]),
            (0.0, 100.0, 200.0)
        );
    }

    #[test]
    fn sizes_and_nodes_add_up_to_what_is_held() {
        let histories = histories();
        let timeline = Timeline::new(&histories);
        for list in [
            timeline.by_page_size(None),
            timeline.by_node(None),
            timeline.by_region(None),
        ] {
            let sum: f64 = list.iter().map(|series| series.values[0]).sum();
            assert_eq!(sum, 400.0, "{list:?}");
        }
        let labels: Vec<String> = timeline
            .by_page_size(None)
            .into_iter()
            .map(|series| series.label)
            .collect();
        assert_eq!(labels, ["4 KiB pages", "swapped out", "not examined"]);
    }

    #[test]
    fn more_than_have_a_colour_are_added_up() {
        let sums = (0..12_u32)
            .map(|key| (key, vec![f64::from(key), 1.0]))
            .collect();
        let list = largest(sums, 8, |key| Some(format!("s{key}")));
        assert_eq!(list.len(), 9);
        assert_eq!(
            (list[0].label.as_str(), list[8].label.as_str()),
            ("s11", "4 others")
        );
        assert_eq!(list[8].values, [6.0, 4.0]);
    }

    #[test]
    fn nothing_is_nothing_to_draw() {
        let nothing = Histories::default();
        let timeline = Timeline::new(&nothing);
        assert!(!timeline.is_drawable());
        assert!(timeline.by_region(None).is_empty() && timeline.faults_per_second().is_none());
    }
}
