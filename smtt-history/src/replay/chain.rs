//! The RDDs of a stage that was submitted, with their parents: a document of its own, because Spark's REST API has only
//! their ids. Nothing of it stays in memory.

use serde_json::{Value, json};

use super::Replay;
use crate::event::{RddInfo, StageInfo, cut};
use crate::json::present;
use crate::out::Kind;

/// RDDs of a stage at most: those that were made last.
pub const RDDS: usize = 2000;
/// Parents of all RDDs of a stage at most.
const PARENTS: usize = 20_000;
/// Bytes of a name or of a call site.
const NAME: usize = 2048;
/// Scopes around one another at most.
const SCOPES: usize = 20;

/// Names of the operations that made an RDD, the outermost first.
fn scopes(text: &str) -> Vec<String> {
    let json: Value = serde_json::from_str(cut(text, 64 << 10)).unwrap_or_default();
    let mut all = Vec::new();
    let mut at = &json;
    while let Some(name) = at["name"].as_str()
        && all.len() < SCOPES
    {
        all.push(cut(name, NAME).to_owned());
        at = &at["parent"];
    }
    all.reverse();
    all
}

fn rdd(info: &RddInfo<'_>, left: &mut usize) -> Value {
    let parents = &info.parents[..info.parents.len().min(*left)];
    *left -= parents.len();
    let scopes = info.scope.as_ref().map(|text| scopes(text));
    let stored = info.level.is_valid();
    present(json!({
        "id": info.id,
        "name": cut(&info.name, NAME),
        "scopes": scopes.filter(|all| !all.is_empty()),
        "callSite": Some(cut(&info.call_site, NAME)).filter(|site| !site.is_empty()),
        "storageLevel": stored.then(|| info.level.description()),
        "numPartitions": info.partitions,
        "parentIds": parents,
    }))
}

impl Replay {
    /// Hands the chain of a stage's RDDs to the tables.
    pub(super) fn put_chain(&mut self, info: &StageInfo<'_>) {
        if info.rdds.is_empty() {
            return;
        }
        let mut all: Vec<&RddInfo<'_>> = info.rdds.iter().collect();
        all.sort_by_key(|rdd| std::cmp::Reverse(rdd.id));
        let left_out = all.len().saturating_sub(RDDS);
        all.truncate(RDDS);
        let mut room = PARENTS;
        let all: Vec<Value> = all.into_iter().map(|info| rdd(info, &mut room)).collect();
        let parents = &info.parents[..info.parents.len().min(RDDS)];
        let json = present(json!({
            "stageId": info.id,
            "attemptId": info.attempt,
            "parentStageIds": parents,
            "rdds": all,
            "rddsLeftOut": (left_out > 0).then_some(left_out),
        }));
        let id = format!("{}.{}", info.id, info.attempt);
        self.out.meta(Kind::StageRdds, &id, &json);
    }
}
