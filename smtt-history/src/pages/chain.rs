//! The chain of a stage's RDDs: from its sources to its last RDD, as a picture and as a table.

mod measured;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};
use serde_json::Value;

use self::measured::{InStage, Measured, measured};
use super::Asked;
use super::shown::{Cell, bytes, cut};
use crate::event::shortened;
use crate::out::Kind;

/// RDDs of the picture: those that were made last. The table has all.
const DRAWN: usize = 80;
/// Stages that are searched for the RDDs that a stage reads; attempts of each; bytes of their documents.
const STAGES: usize = 50;
const ATTEMPTS: i64 = 20;
const BYTES: usize = 64 << 20;
/// Characters of a line in a box.
const LINE: usize = 25;
/// Sizes in pixels: a box, and the room between boxes.
const BOX: (i64, i64) = (228, 85);
const GAP: (i64, i64) = (24, 34);

#[derive(Debug, Default)]
struct Rdd {
    name: String,
    scopes: Vec<String>,
    call_site: String,
    level: Option<String>,
    partitions: Option<i64>,
    parents: BTreeSet<i64>,
    /// Blocks in memory and on disk when the log ended: number, bytes, executors.
    blocks: Option<(i64, i64, i64, Vec<String>)>,
    /// What the workers measured of it.
    measured: Option<Measured>,
    /// The same within the stage.
    in_stage: Option<InStage>,
    /// Stage whose shuffle it writes, for one of another stage: id, attempt.
    outside: Option<Option<(i64, i64)>>,
}

/// The RDDs of a stage, by their ids, and those of other stages that they read.
#[derive(Debug, Default)]
struct Chain {
    rdds: BTreeMap<i64, Rdd>,
    left_out: u64,
    /// What of the workers' half is missing, and why.
    missing: BTreeSet<String>,
}

fn texts(value: &Value) -> Vec<String> {
    let all = value.as_array().into_iter().flatten();
    all.filter_map(|text| text.as_str().map(str::to_owned))
        .collect()
}

impl Rdd {
    fn new(json: &Value) -> Self {
        let text = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
        let parents = json["parentIds"].as_array().into_iter().flatten();
        Self {
            name: text("name"),
            scopes: texts(&json["scopes"]),
            call_site: text("callSite"),
            level: json["storageLevel"].as_str().map(str::to_owned),
            partitions: json["numPartitions"].as_i64(),
            parents: parents.filter_map(Value::as_i64).collect(),
            ..Self::default()
        }
    }

    /// What the operation is called where the RDD has no name of its own: the innermost scope.
    fn operation(&self) -> &str {
        self.scopes.last().map_or("", String::as_str)
    }

    /// What was measured, as the last line of its box: the stage's own figures, else those of the application.
    fn line(&self) -> String {
        let own = self.in_stage.as_ref().and_then(InStage::line);
        let whole = || Some(format!("Σ {}", self.measured.as_ref()?.line()));
        own.or_else(whole).unwrap_or_default()
    }
}

fn document(asked: &Asked<'_>, id: &str) -> Option<Value> {
    serde_json::from_str(asked.app.one(Kind::StageRdds, id)?).ok()
}

fn rdds(json: &Value) -> impl Iterator<Item = (i64, Rdd)> {
    let all = json["rdds"].as_array().into_iter().flatten();
    all.filter_map(|rdd| Some((rdd["id"].as_i64()?, Rdd::new(rdd))))
}

impl Chain {
    fn read(asked: &Asked<'_>, id: &str, attempt: &str) -> Option<Self> {
        let json = document(asked, &format!("{id}.{attempt}"))?;
        let mut chain = Self {
            rdds: rdds(&json).collect(),
            left_out: json["rddsLeftOut"].as_u64().unwrap_or_default(),
            missing: BTreeSet::new(),
        };
        chain.read_stages(asked, &json);
        let number = |text: &str| text.parse().unwrap_or(-1);
        let ids = chain.rdds.keys().copied().collect();
        let mut found = measured(asked, (number(id), number(attempt)), &ids);
        for (id, rdd) in &mut chain.rdds {
            rdd.measured = found.whole.remove(id);
            rdd.in_stage = found.in_stage.remove(id);
        }
        chain.missing = found.missing;
        Some(chain)
    }

    /// What other documents of the log add: blocks, and RDDs of other stages.
    fn read_stages(&mut self, asked: &Asked<'_>, json: &Value) {
        let chain = self;
        for (id, rdd) in &mut chain.rdds {
            // Parents are made before their children. A damaged log could have a cycle.
            rdd.parents.retain(|parent| parent < id);
            rdd.blocks = blocks(asked, *id);
        }
        let known: BTreeSet<i64> = chain.rdds.keys().copied().collect();
        let parents = chain.rdds.values().flat_map(|rdd| &rdd.parents).copied();
        let outside: BTreeSet<i64> = parents.filter(|parent| !known.contains(parent)).collect();
        if outside.is_empty() || chain.left_out > 0 {
            return;
        }
        let mut found = others(json, |id| asked.app.one(Kind::StageRdds, id));
        for id in outside {
            let (stage, rdd) = found
                .remove(&id)
                .map_or_else(|| (None, Rdd::default()), |(stage, rdd)| (Some(stage), rdd));
            let rdd = Rdd {
                parents: BTreeSet::new(),
                outside: Some(stage),
                ..rdd
            };
            chain.rdds.insert(id, rdd);
        }
    }
}

/// RDDs of the stages before, by their ids, with the newest attempt of their stage. `document` has the text of one.
fn others<'a>(
    json: &Value,
    mut document: impl FnMut(&str) -> Option<&'a str>,
) -> BTreeMap<i64, ((i64, i64), Rdd)> {
    let stages = json["parentStageIds"].as_array().into_iter().flatten();
    let stages: BTreeSet<i64> = stages.filter_map(Value::as_i64).collect();
    let (mut found, mut left) = (BTreeMap::new(), BYTES);
    for stage in stages.into_iter().take(STAGES) {
        for attempt in 0..ATTEMPTS {
            let Some(text) = document(&format!("{stage}.{attempt}")) else {
                break;
            };
            let Some(rest) = left.checked_sub(text.len()) else {
                return found;
            };
            left = rest;
            let Ok(json) = serde_json::from_str(text) else {
                break;
            };
            found.extend(rdds(&json).map(|(id, rdd)| (id, ((stage, attempt), rdd))));
        }
    }
    found
}

/// Blocks of an RDD when the log ended.
fn blocks(asked: &Asked<'_>, id: i64) -> Option<(i64, i64, i64, Vec<String>)> {
    let text = asked.app.one(Kind::Rdd, &id.to_string())?;
    let json: Value = serde_json::from_str(text).ok()?;
    let number = |name: &str| json[name].as_i64();
    let partitions = json["partitions"].as_array().into_iter().flatten();
    let executors: BTreeSet<String> = partitions
        .flat_map(|block| texts(&block["executors"]))
        .collect();
    Some((
        number("numCachedPartitions")?,
        number("memoryUsed")?,
        number("diskUsed")?,
        executors.into_iter().collect(),
    ))
}

/// Where the boxes are: column and row by id, and the size of the whole in pixels.
fn places(rdds: &BTreeMap<i64, Rdd>) -> (BTreeMap<i64, (i64, i64)>, (i64, i64)) {
    let mut rows: BTreeMap<i64, i64> = BTreeMap::new();
    for (id, rdd) in rdds {
        // Parents have smaller ids, so their rows are known.
        let above = rdd.parents.iter().filter_map(|parent| rows.get(parent));
        let row = above.max().map_or(0, |row| row + 1);
        rows.insert(*id, row);
    }
    // A source stands right above what reads it first, so that its line crosses no other box.
    let mut children: BTreeMap<i64, i64> = BTreeMap::new();
    for (id, rdd) in rdds.iter().rev() {
        if let (Some(row), Some(child)) = (rows.get_mut(id), children.get(id)) {
            *row = child - 1;
        }
        let row = rows.get(id).copied().unwrap_or_default();
        for parent in &rdd.parents {
            let child = children.entry(*parent).or_insert(row);
            *child = row.min(*child);
        }
    }
    let mut width: BTreeMap<i64, i64> = BTreeMap::new();
    let mut places = BTreeMap::new();
    for (id, row) in rows {
        let column = width.entry(row).or_default();
        places.insert(
            id,
            (*column * (BOX.0 + GAP.0) + 1, row * (BOX.1 + GAP.1) + 1),
        );
        *column += 1;
    }
    let columns = width.values().max().copied().unwrap_or(1);
    let rows = width.len() as i64;
    let size = (
        columns * (BOX.0 + GAP.0) - GAP.0 + 2,
        rows * (BOX.1 + GAP.1) - GAP.1 + 2,
    );
    (places, size)
}

/// The section of a stage's page; nothing where the log has no RDDs.
pub(super) fn section(asked: &Asked<'_>, id: &str, attempt: &str) -> Markup {
    let Some(chain) = Chain::read(asked, id, attempt) else {
        return html! {};
    };
    let skip = chain.rdds.len().saturating_sub(DRAWN);
    for what in &chain.missing {
        asked
            .missing
            .add(format!("stage {id}, attempt {attempt}: {what}"));
    }
    html! {
        h2 id="chain" { "Chain of RDDs" }
        p.soft {
            "From the sources to the last RDD of the stage, which its tasks compute. An edge is a call: " code { "compute" }
            " of the RDD below calls " code { "iterator" } " of the one above for its records, which calls its own "
            code { "compute" } ". At an RDD with a storage level the calls end where the block is there. "
            "Dashed: an RDD of an earlier stage, read through a shuffle. Framed: with a storage level. Σ: measured in the whole "
            "application."
        }
        (picture(&chain, skip))
        @if skip > 0 { p.soft { "The picture has the last " (DRAWN) " RDDs, the table all." } }
        @if chain.left_out > 0 { p.soft { (chain.left_out) " earlier RDDs are left out." } }
        (table(asked, &chain))
        @for what in &chain.missing { p.empty { (cut(what)) } }
        @if chain.rdds.values().any(|rdd| rdd.measured.is_some() || rdd.in_stage.is_some()) { (measured::notes()) }
    }
}

fn picture(chain: &Chain, skip: usize) -> Markup {
    let first = chain.rdds.keys().nth(skip).copied().unwrap_or_default();
    let (places, (width, height)) = places_from(chain, first);
    let middle =
        |(x, y): (i64, i64), below: bool| (x + BOX.0 / 2, if below { y + BOX.1 } else { y });
    html! {
        div.wide tabindex="0" role="region" aria-label="Picture of the chain of RDDs" {
            svg.chain role="img" aria-label=(format!("{} RDDs; the table below has the same", places.len()))
                width=(width) height=(height) viewBox=(format!("0 0 {width} {height}")) {
                @for (id, at) in &places {
                    @for parent in &chain.rdds[id].parents {
                        @if let Some(from) = places.get(parent) {
                            @let (x, y) = middle(*from, true);
                            @let (to_x, to_y) = middle(*at, false);
                            @let half = (to_y - y).max(24) / 2;
                            path class=(if chain.rdds[parent].outside.is_some() { "edge shuffle" } else { "edge" })
                                d=(format!("M{x} {y}C{x} {} {to_x} {} {to_x} {to_y}", y + half, to_y - half)) {}
                        }
                    }
                }
                @for (id, (x, y)) in &places {
                    (one(*id, &chain.rdds[id], *x, *y))
                }
            }
        }
    }
}

fn places_from(chain: &Chain, first: i64) -> (BTreeMap<i64, (i64, i64)>, (i64, i64)) {
    let kept: BTreeMap<i64, Rdd> = chain
        .rdds
        .range(first..)
        .map(|(id, rdd)| {
            let parents = rdd.parents.range(first..).copied().collect();
            (
                *id,
                Rdd {
                    parents,
                    ..Rdd::default()
                },
            )
        })
        .collect();
    places(&kept)
}

fn one(id: i64, rdd: &Rdd, x: i64, y: i64) -> Markup {
    let class = match (&rdd.outside, &rdd.level) {
        (Some(_), _) => "outside",
        (None, Some(_)) => "stored",
        (None, None) => "plain",
    };
    let name = if rdd.name.is_empty() {
        "of another stage"
    } else {
        &rdd.name
    };
    let title = format!("RDD {id}: {}", cut(name));
    let held = match (&rdd.blocks, &rdd.level) {
        (Some((blocks, memory, disk, _)), _) => {
            format!("{blocks} blocks, {}", bytes(memory.saturating_add(*disk)))
        }
        (None, Some(_)) => "stored, no blocks at the end".to_owned(),
        (None, None) => cut(rdd.operation()),
    };
    let lines = [
        ("name", format!("{id} {}", cut(name))),
        ("soft", cut(&rdd.call_site)),
        ("soft", held),
        ("soft", rdd.line()),
    ];
    html! {
        g class=(class) {
            title { (title) @if let Some(measured) = &rdd.measured { "; in the whole application: " (measured.words()) } }
            rect x=(x) y=(y) width=(BOX.0) height=(BOX.1) rx="4" {}
            // Cuts off what is wider than the box.
            svg x=(x) y=(y) width=(BOX.0 - 4) height=(BOX.1) {
                @for (at, (class, text)) in (0_i64..).zip(&lines) {
                    text class=(class) x="8" y=(18 + at * 19) { (shortened(text, LINE, "…")) }
                }
            }
        }
    }
}

fn table(asked: &Asked<'_>, chain: &Chain) -> Markup {
    let stage = |stage: &Option<(i64, i64)>| match stage {
        Some((id, attempt)) => {
            let to = asked.place.part(&format!("stages/{id}/{attempt}"));
            Cell::Link(format!("stage {id}"), to).shown()
        }
        None => html! { "another stage" },
    };
    html! {
        div.wide tabindex="0" role="region" aria-label="RDDs of the stage" { table.data id="rdds-of-stage" {
            caption { "The RDDs of the picture, the last one first" }
            thead {
                tr {
                    th colspan="11" {}
                    th.words colspan=(measured::IN_STAGE.len()) scope="colgroup" { "Measured in this stage" }
                    th.words colspan=(measured::COLUMNS.len()) scope="colgroup" { "Measured in the whole application" }
                }
                tr {
                th { "RDD" } th.words { "Name" } th.words { "Operation" } th.words { "Call site" } th.words { "Reads" }
                th { "Partitions" } th.words { "Storage level" } th { "Blocks at the end" } th { "Memory" } th { "Disk" }
                th.words { "On executors" }
                @for (title, _) in measured::IN_STAGE { th { (title) } }
                @for (title, _) in measured::COLUMNS { th { (title) } }
                }
            }
            tbody {
                @for (id, rdd) in chain.rdds.iter().rev() {
                    tr {
                        th scope="row" { (id) }
                        td.words { @if let Some(of) = &rdd.outside { (stage(of)) " " } bdi { (cut(&rdd.name)) } }
                        td.words { bdi { (cut(&rdd.scopes.join(" / "))) } }
                        td.words { bdi { (cut(&rdd.call_site)) } }
                        td.words { @for (at, parent) in rdd.parents.iter().enumerate().take(20) { @if at > 0 { ", " } (parent) }
                            @if rdd.parents.len() > 20 { ", …" } }
                        td { (rdd.partitions.map_or(Cell::Absent, Cell::Count).shown()) }
                        td.words { (rdd.level.clone().map_or(Cell::Absent, Cell::Text).shown()) }
                        @let blocks = rdd.blocks.as_ref();
                        td { (blocks.map_or(Cell::Absent, |it| Cell::Count(it.0)).shown()) }
                        td { (blocks.map_or(Cell::Absent, |it| Cell::Bytes(it.1)).shown()) }
                        td { (blocks.map_or(Cell::Absent, |it| Cell::Bytes(it.2)).shown()) }
                        td.words { @if let Some(it) = blocks { bdi { (cut(&it.3.join(", "))) } } }
                        @for (_, of) in measured::IN_STAGE {
                            td { (rdd.in_stage.as_ref().map_or(Cell::Absent, of).shown()) }
                        }
                        @for (_, of) in measured::COLUMNS {
                            td { (rdd.measured.as_ref().map_or(Cell::Absent, of).shown()) }
                        }
                    }
                }
            }
        } }
    }
}
