//! Events of SQL executions. Plans nest as deep as queries do, deeper than the JSON library's default limit.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Deserialize;

/// Deepest nesting of a line with a plan. The importer's stack has room for it.
pub const DEEPEST: usize = 4000;

/// Nesting of a JSON text, at most.
#[must_use]
pub fn depth(line: &[u8]) -> usize {
    let (mut depth, mut deepest, mut is_text) = (0_usize, 0, false);
    let mut bytes = line.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' if is_text => {
                bytes.next();
            }
            b'"' => is_text = !is_text,
            b'{' | b'[' if !is_text => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !is_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Parses a line whose nesting may exceed the library's limit.
///
/// # Errors
/// When it is no such event, or nests deeper than [`DEEPEST`].
pub fn parse<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, String> {
    if depth(line) > DEEPEST {
        return Err(format!("nests deeper than {DEEPEST} levels"));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(line);
    deserializer.disable_recursion_limit();
    let event = T::deserialize(&mut deserializer).map_err(|error| error.to_string())?;
    deserializer.end().map_err(|error| error.to_string())?;
    Ok(event)
}

#[derive(Clone, Debug, Deserialize)]
pub struct PlanMetric {
    pub name: String,
    #[serde(rename = "accumulatorId")]
    pub id: i64,
    #[serde(rename = "metricType")]
    pub kind: String,
}

#[derive(Debug, Deserialize)]
pub struct Plan {
    #[serde(rename = "nodeName")]
    pub name: String,
    #[serde(rename = "simpleString", default)]
    pub text: String,
    #[serde(default)]
    pub children: Vec<Plan>,
    #[serde(default)]
    pub metrics: Vec<PlanMetric>,
    /// Equal for equal plans, set by [`Plan::mark`].
    #[serde(skip)]
    pub mark: u64,
}

impl Plan {
    /// Sets [`Plan::mark`] of all nodes.
    pub fn mark(&mut self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.name, &self.text).hash(&mut hasher);
        for child in &mut self.children {
            child.mark().hash(&mut hasher);
        }
        self.mark = hasher.finish();
        self.mark
    }
}

#[derive(Debug, Deserialize)]
pub struct ExecutionStart {
    #[serde(rename = "executionId")]
    pub id: i64,
    #[serde(rename = "rootExecutionId")]
    pub root: Option<i64>,
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub details: String,
    #[serde(rename = "physicalPlanDescription", default)]
    pub plan_text: String,
    #[serde(rename = "sparkPlanInfo")]
    pub plan: Plan,
    pub time: i64,
    #[serde(rename = "queryId")]
    pub query: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct AdaptiveUpdate {
    #[serde(rename = "executionId")]
    pub id: i64,
    #[serde(rename = "physicalPlanDescription", default)]
    pub plan_text: String,
    #[serde(rename = "sparkPlanInfo")]
    pub plan: Plan,
}

#[derive(Debug, Deserialize)]
pub struct AdaptiveMetrics {
    #[serde(rename = "executionId")]
    pub id: i64,
    #[serde(rename = "sqlPlanMetrics", default)]
    pub metrics: Vec<PlanMetric>,
}

#[derive(Debug, Deserialize)]
pub struct DriverUpdates {
    #[serde(rename = "executionId")]
    pub id: i64,
    #[serde(rename = "accumUpdates", default)]
    pub updates: Vec<(i64, i64)>,
}

#[derive(Debug, Deserialize)]
pub struct ExecutionEnd {
    #[serde(rename = "executionId")]
    pub id: i64,
    pub time: i64,
    #[serde(rename = "errorMessage")]
    pub error: Option<String>,
}
