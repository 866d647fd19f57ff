//! Rows of RDDs added up: by query, plan node, call site, name or RDD, over executors.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{ApplicationKey, RddRow, common_name};
use crate::sort::small::sort_by_key;
use crate::state::FaultFigures;

/// What the RDDs of a group have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupBy {
    /// The description of the SQL execution: all runs of a query are one group.
    Query,
    /// The plan node or operation that made the RDDs, by its name.
    Node,
    /// The place in the application that created the RDDs.
    CallSite,
    /// The name, of a plan what runs have in common ([`common_name`]); RDDs without a name by their call site.
    #[default]
    Name,
    /// The RDD, over its executors.
    Rdd,
}

/// Sums over the RDDs of an application that have something in common.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RddGroupRow {
    /// Application id as its executors claim it.
    pub application_id: Option<String>,
    /// Attempt of the application, where its cluster manager makes several (YARN in cluster mode).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application_attempt_id: Option<String>,
    /// User of the executors, as the kernel reports it.
    pub uid: Option<u32>,
    /// Common value of the group; `(no SQL)`, `(no node)`, `(no call site)` or `(no name)` for RDDs without it.
    pub group: String,
    /// SQL executions that the RDDs worked for first.
    pub sql_executions: u64,
    /// RDDs in the sums.
    pub rdds: u64,
    /// Executors in the sums.
    pub executors: u64,
    /// Blocks of the RDDs in memory.
    pub partitions_cached: u64,
    /// Page faults in contexts that name the RDDs.
    #[serde(flatten)]
    pub faults: FaultFigures,
    /// Bytes of the RDDs' blocks in memory, as Spark accounts for them.
    pub storage_memory_bytes: u64,
    /// Bytes of live execution memory that were allocated while the RDDs were current.
    pub execution_memory_bytes: u64,
    /// Blocks stored on these executors since the daemon traces them.
    pub blocks_stored: u64,
    /// Stored blocks whose partition had been in memory before and had left it; a lower bound.
    pub blocks_stored_again: u64,
    /// Blocks that left the executors' memory.
    pub blocks_removed: u64,
    /// Blocks evicted to make room for others. Part of `blocks_removed`.
    pub blocks_evicted: u64,
    /// Reads of the blocks; absent where the marker cannot hook reads.
    pub block_reads: Option<u64>,
}

#[derive(Default)]
struct Sum {
    row: RddGroupRow,
    queries: BTreeSet<u64>,
    rdds: BTreeSet<u32>,
    /// Process ids are those of one worker.
    executors: BTreeSet<(Option<String>, u32)>,
}

/// Adds two figures, each of which may be absent.
fn add(sum: &mut Option<u64>, figure: Option<u64>) {
    if let Some(figure) = figure {
        *sum = Some(sum.unwrap_or(0).saturating_add(figure));
    }
}

impl Sum {
    fn add(&mut self, rdd: &RddRow) {
        self.queries.extend(rdd.sql_execution_id);
        self.rdds.extend(rdd.rdd_id);
        self.executors.insert((rdd.who.worker.clone(), rdd.who.pid));
        let row = &mut self.row;
        // What an earlier run of the daemon saw in memory is not there now, or is in the row of the present one.
        let now = |figure: u64| if rdd.who.earlier.is_some() { 0 } else { figure };
        for (sum, figure) in [
            (&mut row.partitions_cached, now(rdd.partitions_cached)),
            (&mut row.storage_memory_bytes, now(rdd.storage_memory_bytes)),
            (
                &mut row.execution_memory_bytes,
                now(rdd.execution_memory_bytes),
            ),
            (&mut row.blocks_stored, rdd.blocks_stored),
            (&mut row.blocks_stored_again, rdd.blocks_stored_again),
            (&mut row.blocks_removed, rdd.blocks_removed),
            (&mut row.blocks_evicted, rdd.blocks_evicted),
        ] {
            *sum = sum.saturating_add(figure);
        }
        row.faults.add(&rdd.faults);
        add(&mut row.block_reads, rdd.block_reads);
    }

    fn finish(self, application: ApplicationKey, group: String) -> RddGroupRow {
        RddGroupRow {
            application_id: application.id,
            application_attempt_id: application.attempt,
            uid: application.uid,
            group,
            sql_executions: self.queries.len() as u64,
            rdds: self.rdds.len() as u64,
            executors: self.executors.len() as u64,
            ..self.row
        }
    }
}

/// The value that an RDD has in common with others; `None` for RDDs without it.
pub(crate) fn common(rdd: &RddRow, by: GroupBy) -> Option<String> {
    // Rows without an id stand for work without an RDD and for RDDs beyond the limit.
    let name = rdd.name.as_deref();
    let special = name.filter(|_| rdd.rdd_id.is_none());
    let site = rdd.call_site.as_deref();
    match by {
        GroupBy::Query => match (rdd.sql_execution_id, rdd.sql_description.as_deref()) {
            (Some(_), Some(description)) => Some(description.to_owned()),
            (Some(id), None) => Some(format!("query {id}")),
            (None, _) => special.map(str::to_owned),
        },
        GroupBy::Node => special.or(rdd.node.as_deref()).map(str::to_owned),
        GroupBy::CallSite => special.or(site).map(str::to_owned),
        GroupBy::Name => name
            .map(|name| common_name(name).into_owned())
            .or(site.map(str::to_owned)),
        GroupBy::Rdd => match (rdd.rdd_id, name.or(site)) {
            (Some(id), Some(name)) => Some(format!("{id} {name}")),
            (Some(id), None) => Some(id.to_string()),
            (None, name) => name.map(str::to_owned),
        },
    }
}

/// Common value of the group that an RDD belongs to.
#[must_use]
pub fn rdd_group(rdd: &RddRow, by: GroupBy) -> String {
    common(rdd, by).unwrap_or_else(|| {
        match by {
            GroupBy::Query => "(no SQL)",
            GroupBy::Node => "(no node)",
            GroupBy::CallSite => "(no call site)",
            GroupBy::Name | GroupBy::Rdd => "(no name)",
        }
        .to_owned()
    })
}

/// The same of each row. Where one executor does not know an RDD's name yet, it has the one that another executor knows.
#[must_use]
pub fn rdd_groups_of(rows: &[RddRow], by: GroupBy) -> Vec<String> {
    let mut known: BTreeMap<(ApplicationKey, u32), String> = BTreeMap::new();
    if by == GroupBy::Rdd {
        for row in rows.iter().filter(|row| row.name.is_some()) {
            if let Some(id) = row.rdd_id {
                let of = (row.who.application(), id);
                known.entry(of).or_insert_with(|| rdd_group(row, by));
            }
        }
    }
    let group = |row: &RddRow| {
        let of = row.rdd_id.map(|id| (row.who.application(), id));
        let named = of.and_then(|of| known.get(&of).cloned());
        named.unwrap_or_else(|| rdd_group(row, by))
    };
    rows.iter().map(group).collect()
}

/// Rows of RDDs added up, those with the most page faults first.
#[must_use]
pub fn rdd_groups(rows: &[RddRow], by: GroupBy) -> Vec<RddGroupRow> {
    let mut sums: BTreeMap<(ApplicationKey, String), Sum> = BTreeMap::new();
    for (row, group) in rows.iter().zip(rdd_groups_of(rows, by)) {
        let application = row.who.application();
        sums.entry((application, group)).or_default().add(row);
    }
    let finish = |((application, group), sum): (_, Sum)| sum.finish(application, group);
    let mut groups: Vec<RddGroupRow> = sums.into_iter().map(finish).collect();
    sort_by_key(&mut groups, |row| {
        let most = (row.faults.page_faults, row.storage_memory_bytes);
        std::cmp::Reverse(most)
    });
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::ExecutorId;
    use serde_json::Value;

    /// Rows of two applications on three executors, with every figure another number.
    fn rows() -> Vec<RddRow> {
        let mut next = 0;
        let mut number = || {
            next += 1;
            next * next
        };
        (0..300_u32)
            .map(|index| RddRow {
                who: ExecutorId {
                    application_attempt_id: None,
                    application_id: Some(format!("app-{}", index % 2)),
                    executor_id: None,
                    pid: 100 + index % 3,
                    uid: Some(1000),
                    worker: (index % 2 > 0).then(|| "w".to_owned()),
                    earlier: None,
                },
                rdd_id: (index % 7 > 0).then_some(index / 3),
                name: (index % 5 > 0).then(|| format!("name {}", index % 4)),
                call_site: (index % 3 > 0).then(|| format!("site {}", index % 6)),
                node: (index % 5 > 1).then(|| format!("node {}", index % 9)),
                sql_execution_id: (index % 4 > 0).then_some(u64::from(index / 20)),
                sql_description: (index % 8 > 1).then(|| format!("query {}", index / 100)),
                partitions_cached: number(),
                faults: FaultFigures {
                    page_faults: (index % 11 > 0).then(&mut number),
                    page_faults_read: Some(number()),
                    page_faults_write: Some(number()),
                    page_faults_major: Some(number()),
                    page_faults_unknown_access: (index % 13 == 0).then(&mut number),
                    ..FaultFigures::default()
                },
                storage_memory_bytes: number(),
                execution_memory_bytes: number(),
                blocks_stored: number(),
                blocks_stored_again: number(),
                blocks_removed: number(),
                blocks_evicted: number(),
                block_reads: (index % 2 > 0).then(&mut number),
                ..RddRow::default()
            })
            .collect()
    }

    fn sum(rows: &[Value], field: &str) -> u64 {
        rows.iter().filter_map(|row| row[field].as_u64()).sum()
    }

    #[test]
    fn what_an_earlier_run_saw_in_memory_is_not_there_now() {
        let row = |earlier| RddRow {
            who: ExecutorId {
                earlier,
                ..ExecutorId::default()
            },
            rdd_id: Some(1),
            storage_memory_bytes: 100,
            execution_memory_bytes: 10,
            partitions_cached: 2,
            blocks_stored: 2,
            ..RddRow::default()
        };
        let before = row(Some(crate::rows::EarlierRun::default()));
        let groups = rdd_groups(&[before, row(None)], GroupBy::Rdd);
        let [group] = &groups[..] else {
            panic!("{groups:?}");
        };
        let now = (
            group.storage_memory_bytes,
            group.execution_memory_bytes,
            group.partitions_cached,
        );
        assert_eq!(now, (100, 10, 2));
        assert_eq!(group.blocks_stored, 4, "counters add up");
    }

    #[test]
    fn sums_equal_the_parts() {
        let rows = rows();
        let parts: Vec<Value> = rows
            .iter()
            .map(|row| serde_json::to_value(row).expect("JSON"))
            .collect();
        for by in [
            GroupBy::Query,
            GroupBy::Node,
            GroupBy::CallSite,
            GroupBy::Name,
            GroupBy::Rdd,
        ] {
            let groups: Vec<Value> = rdd_groups(&rows, by)
                .iter()
                .map(|row| serde_json::to_value(row).expect("JSON"))
                .collect();
            assert!(groups.len() > 2 && groups.len() < rows.len(), "{by:?}");
            let fields = groups[0].as_object().expect("an object");
            let mut checked = 0;
            for field in fields.keys() {
                let counted = ["uid", "sql_executions", "rdds", "executors"];
                if !parts[1][field].is_u64() || counted.contains(&field.as_str()) {
                    continue;
                }
                assert_eq!(sum(&groups, field), sum(&parts, field), "{by:?}: {field}");
                checked += 1;
            }
            assert!(checked >= 12, "{by:?}: {checked} figures");
        }
    }

    #[test]
    fn a_hundred_runs_of_a_query_are_one_row() {
        let run = |execution: u64, rdd: u64| RddRow {
            rdd_id: u32::try_from(execution * 20 + rdd).ok(),
            name: Some("MapPartitionsRDD".to_owned()),
            sql_execution_id: Some(execution),
            sql_description: Some("SELECT count(*) FROM users".to_owned()),
            faults: FaultFigures {
                page_faults: Some(10),
                ..FaultFigures::default()
            },
            ..RddRow::default()
        };
        let rows: Vec<RddRow> = (0..100)
            .flat_map(|execution| (0..20).map(move |rdd| run(execution, rdd)))
            .collect();
        let groups = rdd_groups(&rows, GroupBy::Query);
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].group, "SELECT count(*) FROM users");
        assert_eq!((groups[0].sql_executions, groups[0].rdds), (100, 2000));
        assert_eq!(groups[0].faults.page_faults, Some(20_000));
    }

    #[test]
    fn the_rdds_of_a_plan_node_are_one_row_and_those_without_one_another() {
        let rdd = |id: u32, node: Option<&str>, faults| RddRow {
            rdd_id: Some(id),
            name: Some("MapPartitionsRDD".to_owned()),
            node: node.map(str::to_owned),
            faults: FaultFigures {
                page_faults: Some(faults),
                ..FaultFigures::default()
            },
            ..RddRow::default()
        };
        let none = RddRow {
            name: Some("(no RDD)".to_owned()),
            ..RddRow::default()
        };
        let rows = [
            rdd(1, Some("Exchange"), 5),
            rdd(2, Some("Exchange"), 7),
            rdd(3, Some("WholeStageCodegen (1)"), 3),
            rdd(4, None, 2),
            none,
        ];
        let groups = rdd_groups(&rows, GroupBy::Node);
        let seen: Vec<(&str, u64, Option<u64>)> = groups
            .iter()
            .map(|row| (row.group.as_str(), row.rdds, row.faults.page_faults))
            .collect();
        assert_eq!(
            seen,
            [
                ("Exchange", 2, Some(12)),
                ("WholeStageCodegen (1)", 1, Some(3)),
                ("(no node)", 1, Some(2)),
                ("(no RDD)", 0, None),
            ]
        );
    }

    #[test]
    fn an_rdd_is_one_row_even_where_one_executor_does_not_know_its_name() {
        let on = |pid, name: Option<&str>| RddRow {
            who: ExecutorId {
                pid,
                ..ExecutorId::default()
            },
            rdd_id: Some(7),
            name: name.map(str::to_owned),
            ..RddRow::default()
        };
        let groups = rdd_groups(&[on(1, None), on(2, Some("links"))], GroupBy::Rdd);
        assert_eq!(groups.len(), 1);
        assert_eq!(
            (groups[0].group.as_str(), groups[0].executors),
            ("7 links", 2)
        );
    }
}
