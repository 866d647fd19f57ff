//! The graph of a plan, as Spark's SQL page draws it.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::event::sql::{Plan, PlanMetric};
use crate::json::present;

#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    nodes: Vec<Node>,
    edges: Vec<(i64, i64)>,
}

#[derive(Clone, Debug)]
struct Node {
    name: String,
    /// Index of the code-generated cluster that it is in.
    cluster: Option<usize>,
    metrics: Vec<PlanMetric>,
}

impl Graph {
    /// The graph of a plan.
    pub(super) fn of(mut plan: Plan) -> Self {
        plan.mark();
        let mut graph = Self::default();
        graph.add(&plan, None, None, &mut HashMap::new());
        graph
    }

    /// Metrics of all nodes.
    pub(super) fn metrics(&self) -> impl Iterator<Item = &PlanMetric> {
        self.nodes.iter().flat_map(|node| &node.metrics)
    }

    fn add(
        &mut self,
        plan: &Plan,
        parent: Option<usize>,
        cluster: Option<usize>,
        exchanges: &mut HashMap<u64, usize>,
    ) {
        let name = plan.name.as_str();
        let first = plan.children.first();
        match name {
            _ if name.starts_with("WholeStageCodegen") => {
                let id = self.node(plan, None);
                if let Some(first) = first {
                    self.add(first, parent, Some(id), exchanges);
                }
            }
            "InputAdapter" => {
                if let Some(first) = first {
                    self.add(first, parent, None, exchanges);
                }
            }
            "BroadcastQueryStage"
            | "ShuffleQueryStage"
            | "ResultQueryStage"
            | "TableCacheQueryStage" => {
                if let Some(first) = first
                    && !self.link(first, parent, exchanges)
                {
                    self.add(first, parent, None, exchanges);
                }
            }
            "Subquery" if cluster.is_some() => self.add(plan, parent, None, exchanges),
            "Subquery" if exchanges.contains_key(&plan.mark) => {
                self.link(plan, parent, exchanges);
            }
            "ReusedSubquery" => {
                if let Some(first) = first {
                    self.add(first, parent, cluster, exchanges);
                }
            }
            "ReusedExchange" if first.is_some_and(|it| exchanges.contains_key(&it.mark)) => {
                if let Some(first) = first {
                    self.link(first, parent, exchanges);
                }
            }
            _ => {
                let id = self.node(plan, cluster);
                if name.contains("Exchange") || name == "Subquery" {
                    exchanges.insert(plan.mark, id);
                }
                if let Some(parent) = parent {
                    self.edge(id, parent);
                }
                for child in &plan.children {
                    self.add(child, Some(id), cluster, exchanges);
                }
            }
        }
    }

    fn node(&mut self, plan: &Plan, cluster: Option<usize>) -> usize {
        self.nodes.push(Node {
            name: plan.name.clone(),
            cluster,
            metrics: plan.metrics.clone(),
        });
        self.nodes.len() - 1
    }

    /// An edge from a known exchange; whether it is known.
    fn link(
        &mut self,
        plan: &Plan,
        parent: Option<usize>,
        exchanges: &HashMap<u64, usize>,
    ) -> bool {
        let known = exchanges.get(&plan.mark).copied();
        if let (Some(known), Some(parent)) = (known, parent) {
            self.edge(known, parent);
        }
        known.is_some()
    }

    fn edge(&mut self, from: usize, to: usize) {
        self.edges.push((
            i64::try_from(from).unwrap_or(-1),
            i64::try_from(to).unwrap_or(-1),
        ));
    }

    /// Nodes with the values of their metrics, the last first.
    pub(super) fn nodes(&self, values: &HashMap<i64, String>) -> Value {
        let nodes = self.nodes.iter().enumerate().rev();
        nodes
            .map(|(id, node)| {
                let metrics = node.metrics.iter().filter_map(|metric| {
                    let value = values.get(&metric.id)?;
                    let value = value.strip_prefix('\n').unwrap_or(value);
                    Some(json!({"name": metric.name.trim(), "value": value}))
                });
                present(json!({
                    "nodeId": id,
                    "nodeName": node.name.trim(),
                    "wholeStageCodegenId": node.cluster.and_then(|at| number(&self.nodes[at].name)),
                    "metrics": metrics.collect::<Value>(),
                }))
            })
            .collect()
    }

    /// Edges from child to parent.
    pub(super) fn edges(&self) -> Value {
        let edges = self.edges.iter();
        edges
            .map(|(from, to)| json!({"fromId": from, "toId": to}))
            .collect()
    }
}

/// The number in `WholeStageCodegen (3)`.
fn number(name: &str) -> Option<i64> {
    name.trim()
        .strip_prefix("WholeStageCodegen (")?
        .strip_suffix(')')?
        .parse()
        .ok()
}
