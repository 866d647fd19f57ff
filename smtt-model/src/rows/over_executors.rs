//! The rows of one RDD on all executors of a worker, for sums.

use std::collections::BTreeMap;

use super::{PagesRow, RddRow};

/// One RDD over all executors of this worker.
#[derive(Clone, Debug, Default)]
pub struct RddOverExecutors<'a> {
    /// Id of the RDD; absent for the rows `(no RDD)` and `(overflow)`.
    pub id: Option<u32>,
    /// Row of each executor.
    pub rows: Vec<&'a RddRow>,
    /// Placement on each executor.
    pub pages: Vec<&'a PagesRow>,
}

impl<'a> RddOverExecutors<'a> {
    /// Groups rows of one application by RDD. Rows without an id are distinguished by name.
    #[must_use]
    pub fn group(rows: &'a [RddRow], pages: &'a [PagesRow]) -> Vec<Self> {
        let mut rdds: BTreeMap<(Option<u32>, Option<&str>), Self> = BTreeMap::new();
        fn key(id: Option<u32>, name: Option<&String>) -> (Option<u32>, Option<&str>) {
            (id, name.map(String::as_str).filter(|_| id.is_none()))
        }
        for row in rows {
            let rdd = rdds.entry(key(row.rdd_id, row.name.as_ref())).or_default();
            rdd.id = row.rdd_id;
            rdd.rows.push(row);
        }
        for row in pages {
            if let Some(rdd) = rdds.get_mut(&key(row.rdd_id, row.name.as_ref())) {
                rdd.pages.push(row);
            }
        }
        rdds.into_values().collect()
    }

    /// A sum over executors.
    pub fn sum(&self, of: impl Fn(&RddRow) -> u64) -> u64 {
        let rows = self.rows.iter();
        rows.map(|row| of(row)).fold(0, u64::saturating_add)
    }

    /// A sum over executors where it is measured; `None` where it is on none.
    pub fn maybe(&self, of: impl Fn(&RddRow) -> Option<u64>) -> Option<u64> {
        let rows = self.rows.iter();
        rows.filter_map(|row| of(row)).reduce(u64::saturating_add)
    }

    /// A sum over executors with examined pages; `None` without such executors.
    pub fn seen(&self, of: impl Fn(&PagesRow) -> Option<u64>) -> Option<u64> {
        let pages = self.pages.iter();
        pages.filter_map(|row| of(row)).reduce(u64::saturating_add)
    }

    /// Name of the RDD.
    #[must_use]
    pub fn name(&self) -> Option<&'a str> {
        self.rows.iter().find_map(|row| row.name.as_deref())
    }

    /// Call site that created the RDD.
    #[must_use]
    pub fn call_site(&self) -> Option<&'a str> {
        self.rows.iter().find_map(|row| row.call_site.as_deref())
    }

    /// Plan node or operation that made the RDD.
    #[must_use]
    pub fn node(&self) -> Option<&'a str> {
        self.rows.iter().find_map(|row| row.node.as_deref())
    }
}

/// Where an RDD was made: its call site, and its node where the call site does not begin with it, as in
/// `map at Job.java:7`.
#[must_use]
pub fn made_at(call_site: Option<&str>, node: Option<&str>) -> Option<String> {
    let named = |site: &str, node: &str| {
        site.strip_prefix(node)
            .is_some_and(|rest| rest.starts_with(" at "))
    };
    match (call_site, node) {
        (None, None) => None,
        (None, Some(node)) => Some(format!("node {node}")),
        (Some(site), Some(node)) if !named(site, node) => Some(format!("{site}, node {node}")),
        (Some(site), _) => Some(site.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::made_at;

    #[test]
    fn a_node_is_named_where_the_call_site_does_not_name_it() {
        let said = |site, node| made_at(site, node).unwrap_or_default();
        let site = "count at Job.scala:9";
        assert_eq!(said(Some(site), Some("count")), site);
        assert_eq!(said(Some(site), None), site);
        assert_eq!(
            said(Some(site), Some("Exchange")),
            "count at Job.scala:9, node Exchange"
        );
        // The beginning of another word.
        assert_eq!(
            said(Some(site), Some("cou")),
            "count at Job.scala:9, node cou"
        );
        assert_eq!(said(None, Some("Exchange")), "node Exchange");
        assert_eq!(made_at(None, None), None);
    }
}
