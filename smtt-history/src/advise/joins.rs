//! The rule of sort-merge joins whose smaller side has room in the memory of every executor: a broadcast of it needs neither
//! a shuffle nor a sort of the other side.
//!
//! Sizes, times and the stages are those of the plan's metrics, as Spark shows them in its SQL tab.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde_json::Value;
use smtt_model::units;

use super::Finding;
use super::read::{Attempt, Log, Task};
use super::work::{NOISE, bytes, ms, number, setting};
use crate::open::App;
use crate::out::Kind;

/// Queries whose plans are read.
const QUERIES: usize = 10_000;
/// Joins that are kept.
const JOINS: usize = 10_000;
/// Nodes between a join and the exchange of a side that are looked at.
const STEPS: usize = 8;
/// How many times the rows of the side an executor holds while it makes the table of a broadcast: the blocks that came, and
/// the table.
const COPIES: f64 = 2.0;
/// Bytes of the table's index for each row: two words in an array that is half full at most.
const INDEX_BYTES: f64 = 32.0;
/// Spark's own limit of a broadcast.
const MOST: f64 = 8.0 * 1024.0 * 1024.0 * 1024.0;
/// Bytes of broadcasts from which their times say what one costs.
const PACE_BYTES: f64 = 1024.0 * 1024.0;
/// Beyond what was measured, so that a little more data changes no plan.
const MARGIN: f64 = 1.25;
/// Spark's default of the threshold.
const DEFAULT: f64 = 10.0 * 1024.0 * 1024.0;
const THRESHOLD: &str = "spark.sql.autoBroadcastJoinThreshold";
const ADAPTIVE_THRESHOLD: &str = "spark.sql.adaptive.autoBroadcastJoinThreshold";

/// One side of a join, from its exchange and its sort.
#[derive(Clone, Debug, Default)]
struct Side {
    bytes: f64,
    records: f64,
    sort: f64,
    /// Stage attempt that wrote the shuffle; absent where it had one task.
    writer: Option<(i32, i32)>,
    /// Milliseconds that its tasks read a table; absent where the plan has no such time, or something else is between.
    scan: Option<f64>,
}

/// A sort-merge join of two shuffled sides, one of which can be broadcast.
#[derive(Clone, Debug, Default)]
struct Join {
    query: String,
    small: Side,
    large: Side,
}

/// What executors have left.
#[derive(Clone, Debug, Default)]
struct Room {
    /// Least bytes of the heap's storage and execution memory that an executor never used, and how many executors say.
    free: f64,
    executors: f64,
    /// The same memory of the driver, whatever it used.
    driver: f64,
}

/// Joins of an application, by the stage attempt that joins.
#[derive(Debug, Default)]
pub struct Joins {
    by_stage: BTreeMap<(i32, i32), Vec<Join>>,
    /// Milliseconds for each byte of the application's own broadcasts.
    pace: Option<f64>,
    room: Option<Room>,
}

#[derive(Deserialize)]
struct Query {
    #[serde(default)]
    nodes: Vec<Node>,
    #[serde(default)]
    edges: Vec<Edge>,
    #[serde(default, rename = "planDescription")]
    plan: String,
}

#[derive(Deserialize)]
struct Node {
    #[serde(rename = "nodeId")]
    id: i64,
    #[serde(rename = "nodeName")]
    name: String,
    #[serde(default)]
    metrics: Vec<Metric>,
}

#[derive(Deserialize)]
struct Metric {
    name: String,
    value: String,
}

#[derive(Deserialize)]
struct Edge {
    #[serde(rename = "fromId")]
    from: i64,
    #[serde(rename = "toId")]
    to: i64,
}

/// The sum of a metric: the first number of its last line, with its unit.
fn sum(value: &str) -> Option<(f64, &str)> {
    let line = value.lines().last()?;
    let mut words = line.split([' ', '(']);
    let number = words.next()?.replace(',', "").parse::<f64>().ok()?;
    Some((number, words.next().unwrap_or_default()))
}

fn bytes_of(value: &str) -> Option<f64> {
    let (number, unit) = sum(value)?;
    let shift = match unit {
        "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        "PiB" => 50,
        "EiB" => 60,
        _ => return None,
    };
    Some(number * (1_u64 << shift) as f64)
}

fn ms_of(value: &str) -> Option<f64> {
    let (number, unit) = sum(value)?;
    let unit = match unit {
        "ms" => 1.0,
        "s" => 1e3,
        "m" => 60e3,
        "h" => 3600e3,
        _ => return None,
    };
    Some(number * unit)
}

/// The stage attempt with the largest value, which Spark writes behind it.
fn stage_of(value: &str) -> Option<(i32, i32)> {
    let (_, rest) = value.rsplit_once("(stage ")?;
    let (place, _) = rest.split_once(':')?;
    let (stage, attempt) = place.split_once('.')?;
    Some((stage.parse().ok()?, attempt.parse().ok()?))
}

impl Node {
    fn metric(&self, name: &str) -> Option<&str> {
        let found = self.metrics.iter().find(|it| it.name == name);
        found.map(|it| it.value.as_str())
    }

    fn is_join(&self) -> bool {
        self.name == "SortMergeJoin" || self.name.starts_with("SortMergeJoin(")
    }
}

/// A plan by its edges.
struct Plan<'a> {
    nodes: HashMap<i64, &'a Node>,
    children: HashMap<i64, Vec<i64>>,
    parents: HashMap<i64, usize>,
}

impl<'a> Plan<'a> {
    fn of(query: &'a Query) -> Self {
        let (mut children, mut parents) = (HashMap::<i64, Vec<i64>>::new(), HashMap::new());
        for edge in &query.edges {
            children.entry(edge.to).or_default().push(edge.from);
            *parents.entry(edge.from).or_default() += 1;
        }
        Self {
            nodes: query.nodes.iter().map(|node| (node.id, node)).collect(),
            children,
            parents,
        }
    }

    /// Milliseconds of the scan below a node, of which all the rows come.
    fn scan(&self, mut at: i64) -> Option<f64> {
        for _ in 0..STEPS {
            let [child] = self.children.get(&at)?[..] else {
                return None;
            };
            let node = self.nodes.get(&child)?;
            if let Some(time) = node.metric("scan time") {
                return ms_of(time);
            }
            // Any other node may do work that stays.
            let only_passes = ["Filter", "Project", "ColumnarToRow", "InputAdapter"];
            if !only_passes.contains(&node.name.as_str()) {
                return None;
            }
            at = child;
        }
        None
    }

    /// A side of a join, and the attempt that joins; `None` where the side was not shuffled for this join alone.
    fn side(&self, mut at: i64) -> Option<(Side, Option<(i32, i32)>)> {
        let (mut side, mut reader) = (Side::default(), None);
        for _ in 0..STEPS {
            let node = self.nodes.get(&at)?;
            if self.parents.get(&at).copied() != Some(1) {
                return None;
            }
            match node.name.as_str() {
                "Exchange" => {
                    side.bytes = bytes_of(node.metric("data size")?)?;
                    side.records = sum(node.metric("shuffle records written")?)?.0;
                    side.writer = node.metric("data size").and_then(stage_of);
                    side.scan = self.scan(at);
                    let read = ["local bytes read", "remote bytes read", "fetch wait time"];
                    let read = read.iter().filter_map(|name| node.metric(name));
                    reader = reader.or_else(|| read.filter_map(stage_of).next());
                    return Some((side, reader));
                }
                "Sort" => {
                    let sorted = node.metric("sort time");
                    side.sort += sorted.and_then(ms_of).unwrap_or(0.0);
                    reader = reader.or_else(|| sorted.and_then(stage_of));
                }
                "AQEShuffleRead" | "CustomShuffleReader" => {}
                _ => return None,
            }
            let [child] = self.children.get(&at)?[..] else {
                return None;
            };
            at = child;
        }
        None
    }
}

/// Types of the sort-merge joins in the text of a plan, in the order of its tree; that of the final plan where there are two.
fn types(plan: &str) -> Vec<&str> {
    let tree = plan.split("\n\n").next().unwrap_or_default();
    let tree = tree.split("== Initial Plan ==").next().unwrap_or_default();
    tree.lines().filter_map(type_of).collect()
}

/// The type of the sort-merge join in a line: `SortMergeJoin Inner (13)`, or with arguments `SortMergeJoin [a], [b], Inner`.
fn type_of(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("SortMergeJoin")?;
    let rest = rest.strip_prefix("(skew=true)").unwrap_or(rest).trim();
    match rest.rfind("], ").filter(|_| rest.starts_with('[')) {
        Some(at) => rest.get(at + 3..)?.split(',').next(),
        None => rest.split(' ').next(),
    }
}

/// Which sides can be broadcast: left, right.
fn sides(kind: &str) -> (bool, bool) {
    match kind {
        "Inner" | "Cross" => (true, true),
        "LeftOuter" | "LeftSemi" | "LeftAnti" => (false, true),
        "RightOuter" => (true, false),
        _ => (false, false),
    }
}

impl Joins {
    /// Reads the plans of an application.
    pub fn read(app: &App) -> Self {
        let mut joins = Self {
            room: Room::of(app),
            ..Self::default()
        };
        let (mut time, mut size, mut found) = (0.0, 0.0, 0);
        let queries = app.all(Kind::Sql).iter();
        let joined = queries.filter(|(_, text)| {
            text.contains("SortMergeJoin") || text.contains("BroadcastExchange")
        });
        for (id, text) in joined.take(QUERIES) {
            let Ok(query) = serde_json::from_str::<Query>(text) else {
                continue;
            };
            for node in &query.nodes {
                if node.name == "BroadcastExchange"
                    && let Some(bytes) = node.metric("data size").and_then(bytes_of)
                {
                    let steps = ["time to collect", "time to build", "time to broadcast"];
                    let steps = steps.iter().filter_map(|name| node.metric(name));
                    time += steps.filter_map(ms_of).sum::<f64>();
                    size += bytes;
                }
            }
            for (stage, join) in query.joins(id) {
                if found < JOINS {
                    found += 1;
                    joins.by_stage.entry(stage).or_default().push(join);
                }
            }
        }
        joins.pace = (size >= PACE_BYTES).then(|| time / size);
        joins
    }
}

impl Query {
    fn joins(&self, id: &str) -> Vec<((i32, i32), Join)> {
        let mut nodes: Vec<&Node> = self.nodes.iter().filter(|it| it.is_join()).collect();
        // Nodes are numbered as the tree is written.
        nodes.sort_by_key(|node| node.id);
        let types = types(&self.plan);
        if types.len() != nodes.len() {
            return Vec::new();
        }
        let plan = Plan::of(self);
        let join = |(node, kind): (&&Node, &str)| {
            let [left, right] = plan.children.get(&node.id)?[..] else {
                return None;
            };
            let ((left, one), (right, other)) = (plan.side(left)?, plan.side(right)?);
            let (small, large) = match sides(kind) {
                (true, true) if left.bytes < right.bytes => (left, right),
                (_, true) => (right, left),
                (true, false) => (left, right),
                (false, false) => return None,
            };
            let query = id.to_owned();
            let join = Join {
                query,
                small,
                large,
            };
            Some((one.or(other)?, join))
        };
        nodes.iter().zip(types).filter_map(join).collect()
    }
}

impl Room {
    /// `None` where an executor's peaks are not in the log.
    fn of(app: &App) -> Option<Self> {
        let mut room = Self {
            free: f64::MAX,
            ..Self::default()
        };
        for (id, text) in app.all(Kind::Executor) {
            let json: Value = serde_json::from_str(text).ok()?;
            let heap = json["memoryMetrics"]["totalOnHeapStorageMemory"].as_f64();
            if id == "driver" {
                room.driver = heap.unwrap_or(0.0);
            } else if json["totalTasks"].as_i64() > Some(0) {
                let used = json["peakMemoryMetrics"]["OnHeapUnifiedMemory"].as_f64()?;
                room.free = room.free.min(heap? - used);
                room.executors += 1.0;
            }
        }
        (room.executors > 0.0).then_some(room)
    }
}

impl Join {
    /// Bytes that an executor, and the driver, need for the table of a broadcast.
    fn need(&self) -> f64 {
        COPIES * self.small.bytes + INDEX_BYTES * self.small.records
    }

    /// Whether a broadcast has room, and moves fewer bytes than the shuffle of the other side.
    fn has_room(&self, room: &Room) -> bool {
        let need = self.need();
        need <= room.free
            && need <= room.driver
            && self.small.bytes <= MOST
            && self.small.bytes * room.executors < self.large.bytes
    }
}

/// Bytes of a property such as `10m`; Spark takes a number without a unit for bytes. Negative where it is switched off.
fn property_bytes(text: &str) -> Option<f64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.find(|letter: char| letter.is_ascii_alphabetic());
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let shift = match unit {
        "" | "b" => 0,
        "k" | "kb" => 10,
        "m" | "mb" => 20,
        "g" | "gb" => 30,
        "t" | "tb" => 40,
        _ => return None,
    };
    Some(number.trim().parse::<f64>().ok()? * (1_u64 << shift) as f64)
}

/// Name and value of the threshold that the join was held against.
fn threshold(log: &Log) -> (&'static str, f64) {
    let of = |name| Some((name, property_bytes(log.property(name)?)?));
    of(ADAPTIVE_THRESHOLD)
        .or_else(|| of(THRESHOLD))
        .unwrap_or((THRESHOLD, DEFAULT))
}

pub(super) fn broadcast(log: &Log, attempt: &Attempt) -> Option<Finding> {
    let joins = log.joins.by_stage.get(&attempt.key)?;
    let room = log.joins.room.as_ref()?;
    let with_room = joins.iter().filter(|join| join.has_room(room));
    let join = with_room.max_by(|left, right| left.large.bytes.total_cmp(&right.large.bytes))?;
    let (name, now) = threshold(log);
    let run = attempt.sum(|task| task.run).max(1.0);
    // The plan has the time of sorts as a sum over the tasks.
    let sorts = (join.large.sort + join.small.sort).min(run);
    let without = |task: &Task| {
        let sorted = sorts * task.run / run;
        (task.duration - task.fetch - sorted).max(0.0)
    };
    let writer = join.large.writer.and_then(|key| log.attempt(key));
    let written = writer.map_or(0.0, |it| it.saved(|task| task.duration - task.write));
    // Spark's time of writing has neither serialisation nor compression of the rows. All but the scan is the upper end.
    let scanned = writer.zip(join.large.scan).map_or(written, |(it, scan)| {
        let other = 1.0 - (scan / it.sum(|task| task.run).max(1.0)).min(1.0);
        let most = |task: &Task| task.duration - (task.run * other).max(task.write);
        it.saved(most).max(written)
    });
    // What else the stage does is also reading and merging rows, which goes, and work on the joined ones, which stays.
    let (named, most) = (
        written + attempt.saved(without),
        scanned + attempt.saved(|_| 0.0),
    );
    let cost = log.joins.pace.map(|pace| pace * join.small.bytes / 1e3);
    let low = cost.map_or(0.0, |cost| named - cost);
    let expected = f64::midpoint(named, most) - cost.unwrap_or(0.0);
    let mut saving = attempt.saving(low, expected, most);
    if let Some(writer) = writer {
        // Its time is no part of the joining stage's, by which the saving is bounded.
        let more = (most - saving.high).clamp(0.0, writer.window / 1e3);
        saving.high += more;
        saving.expected = expected.clamp(saving.low, saving.high);
    }
    let title = format!(
        "a join shuffles and sorts {} although its other side, of {}, has room in every executor",
        bytes(join.large.bytes),
        bytes(join.small.bytes)
    );
    let mut finding = attempt.finding("broadcast", saving, title);
    finding.computed = format!(
        "the middle of two simulations on {} cores: the stage's tasks without their fetches and sorts, and no such stage, because \
         how much of it is work on the joined rows, which stays, is not measured; the tasks that wrote the larger side do not \
         write it in the first{}; {}{NOISE}",
        attempt.slots,
        match join.large.scan {
            Some(_) =>
                ", and only read their table in the second, because Spark's time of writing has no serialisation",
            None => " nor in the second",
        },
        match cost {
            Some(cost) => format!(
                "less {} for the broadcast at the pace of this application's own",
                ms(cost * 1e3)
            ),
            None => "nothing for the lower end, because what a broadcast costs here is not known"
                .to_owned(),
        }
    );
    "the side grows with the data beyond the value, or the rows of the other side cost as much where they are joined without a \
     shuffle: a run with the setting in which the stages before and the join take as long together"
        .clone_into(&mut finding.disproof);
    finding.numbers = vec![
        number("SQL query", join.query.clone()),
        number(
            "rows of the smaller side, as shuffled",
            format!(
                "{} in {}",
                units::count(join.small.records as u64),
                bytes(join.small.bytes)
            ),
        ),
        number("the larger side, as shuffled", bytes(join.large.bytes)),
        number("sorting both sides, over the tasks", ms(sorts)),
        number(
            "waiting for fetches, over the tasks",
            ms(attempt.sum(|task| task.fetch)),
        ),
        number(
            "writing the larger side, over the tasks",
            writer.map_or_else(
                || "not known: Spark names no stage of one task".to_owned(),
                |it| ms(it.sum(|task| task.write)),
            ),
        ),
        number(
            "an executor needs (twice the rows, and 32 bytes for each)",
            bytes(join.need()),
        ),
        number(
            "storage and execution memory that no executor ever used, at least",
            bytes(room.free),
        ),
    ];
    let wanted = (MARGIN * join.small.bytes / f64::from(1 << 20)).ceil();
    if join.small.bytes > now {
        let now = match now < 0.0 {
            true => "switched off".to_owned(),
            false => bytes(now),
        };
        finding.settings.push(setting(
            name,
            format!("{wanted:.0}m (1.25 times the side; now {now})"),
        ));
    }
    finding.settings.push(setting(
        "in the program: broadcast(the smaller side)",
        "for this join alone, whatever the threshold is",
    ));
    finding.not_measured = vec![format!(
        "how much memory the driver has left, which collects the side: of {} that storage and execution have there, it \
             needs {}",
        bytes(room.driver),
        bytes(join.need())
    )];
    if cost.is_none() {
        finding
            .not_measured
            .push("what a broadcast costs here: the application made none of 1 MiB".to_owned());
    }
    Some(finding)
}

#[cfg(test)]
mod tests;
