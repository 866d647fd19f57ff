//! Findings of one rule about RDDs that have something in common, as one: twenty RDDs of a query that are never read are one
//! finding with their number.

use std::collections::BTreeMap;

use super::{Finding, Severity, cache, count};
use crate::rows::GroupBy;

/// Rules whose costs are shares of one whole, so that those of several RDDs add up. Other costs are shares of what belongs to
/// an RDD.
const ADDING: [&str; 1] = [cache::NEVER_READ];
/// Characters of a query or call site in a title.
const TITLE: usize = 80;

/// What the RDDs of a group have in common, in words.
fn words(by: GroupBy, group: &str) -> String {
    let what = match by {
        GroupBy::Query => "of the query ",
        GroupBy::Node => "of the plan node ",
        GroupBy::CallSite => "made at ",
        GroupBy::Name | GroupBy::Rdd => "named ",
    };
    let mut words = what.to_owned();
    words.extend(group.chars().take(TITLE));
    if group.chars().nth(TITLE).is_some() {
        words.push('…');
    }
    words
}

/// Makes one finding of those about the RDDs of a group: its words and numbers are those of the RDD where it costs most.
/// Findings without a group stay as they are. They are sorted, the most expensive first.
pub(super) fn merged(findings: Vec<Finding>, by: GroupBy) -> Vec<Finding> {
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let mut all: Vec<Finding> = Vec::new();
    for mut finding in findings {
        let group = finding.subject.group.clone();
        finding.subject.rdds = group.as_ref().map(|_| 1);
        let place = group.and_then(|group| {
            let next = all.len();
            let at = *places.entry(group).or_insert(next);
            (at < next).then_some(at)
        });
        match place {
            Some(at) => all[at].add(finding),
            None => all.push(finding),
        }
    }
    for finding in &mut all {
        finding.name_group(by);
    }
    all
}

impl Finding {
    /// Adds the finding about another RDD of the group.
    fn add(&mut self, other: Self) {
        self.subject.rdds = self.subject.rdds.map(|rdds| rdds.saturating_add(1));
        let executors = &mut self.subject.executor_ids;
        executors.extend(other.subject.executor_ids);
        executors.sort();
        executors.dedup();
        if ADDING.contains(&self.id.as_str()) {
            let more = other.cost.share.unwrap_or(0.0);
            self.cost.share = self.cost.share.map(|share| (share + more).min(1.0));
        }
        if let Some(saving) = &other.saving {
            self.saving.get_or_insert_default().add(saving);
        }
    }

    /// Says how many RDDs a finding is about.
    fn name_group(&mut self, by: GroupBy) {
        let others = self.subject.rdds.unwrap_or(1).saturating_sub(1);
        let Some(group) = self.subject.group.as_ref().filter(|_| others > 0) else {
            return;
        };
        let plural = if others == 1 { "" } else { "s" };
        let words = words(by, group);
        self.title
            .push_str(&format!("; the same of {others} more RDD{plural} {words}"));
        self.numbers
            .insert(0, count("RDDs with this finding", others + 1));
        if ADDING.contains(&self.id.as_str()) {
            self.severity = self.cost.share.map_or(self.severity, Severity::of_share);
        } else {
            self.cost.of.push_str(", of the RDD where it costs most");
        }
        if self.saving.is_some() {
            self.computed.push_str("; the sum over these RDDs");
        }
    }
}
