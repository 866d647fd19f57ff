//! `smtt-ctl advise --cluster` as text: a finding that several workers have stands once, with the numbers of the worker
//! where it costs most.

use std::collections::{BTreeMap, BTreeSet};

use smtt_model::advise::{Advice, ApplicationAdvice, Finding, RuleOutcome};
use smtt_model::sort::small::sort_by;

use super::{WIDTH, bold, finding_text, push, same_remedies, title, wrapped};
use crate::Output;
use crate::cluster::named;

/// Findings of an application in a text, and checks that could not be made: no worker may fill the page.
const FINDINGS: usize = 100;

/// Advice of several workers as text.
pub(super) fn text(advice: &Advice, output: Output) -> String {
    let mut applications: BTreeMap<_, Vec<&ApplicationAdvice>> = BTreeMap::new();
    for of_worker in &advice.applications {
        let of = applications.entry(of_worker.application()).or_default();
        of.push(of_worker);
    }
    let texts: Vec<String> = applications
        .values()
        .map(|of_workers| application_text(of_workers, output))
        .collect();
    texts.join("\n")
}

/// A finding with the workers that have it.
pub(crate) struct Group<'a> {
    pub finding: &'a Finding,
    /// The worker of this finding, and all with such a one.
    pub worker: &'a str,
    pub workers: BTreeSet<&'a str>,
}

impl Group<'_> {
    /// The workers in words, of so many with the application.
    pub fn on(&self, all: usize) -> String {
        match self.workers.len() {
            1 => format!("on worker {}", self.worker),
            count => format!(
                "on {count} of {all} workers: {}; text and numbers are of {}",
                names(&self.workers),
                self.worker
            ),
        }
    }
}

/// Severity and cost of a finding, for comparisons.
fn weight(finding: &Finding) -> (smtt_model::advise::Severity, f64) {
    (finding.severity, finding.cost.share.unwrap_or(0.0))
}

fn is_above(left: &Finding, right: &Finding) -> bool {
    let ((left, by), (right, than)) = (weight(left), weight(right));
    left.cmp(&right).then(by.total_cmp(&than)).is_gt()
}

/// Findings of the same rule about the same RDD, or stages of the same name, the most expensive first.
pub(crate) fn groups<'a>(of_workers: &[&'a ApplicationAdvice]) -> Vec<Group<'a>> {
    let mut groups: BTreeMap<_, Group<'a>> = BTreeMap::new();
    for of_worker in of_workers {
        let worker = of_worker.worker.as_deref().unwrap_or_default();
        for finding in &of_worker.findings {
            let subject = &finding.subject;
            // Stages without a name stay apart.
            let stage_id = subject.stage_id.filter(|_| subject.stage_name.is_none());
            // The RDD of a group where it costs most may be another one on each worker.
            let is_one = subject.group.is_none();
            let key = (
                &finding.id,
                &subject.group,
                subject.rdd_id.filter(|_| is_one),
                subject.rdd_name.as_ref().filter(|_| is_one),
                &subject.stage_name,
                stage_id,
            );
            let group = groups.entry(key).or_insert_with(|| Group {
                finding,
                worker,
                workers: BTreeSet::new(),
            });
            group.workers.insert(worker);
            if is_above(finding, group.finding) {
                (group.finding, group.worker) = (finding, worker);
            }
        }
    }
    let mut groups: Vec<Group<'a>> = groups.into_values().collect();
    sort_by(&mut groups, |left, right| {
        let ((left_severity, left_cost), (right_severity, right_cost)) =
            (weight(left.finding), weight(right.finding));
        right_severity
            .cmp(&left_severity)
            .then(right_cost.total_cmp(&left_cost))
            .then(right.workers.len().cmp(&left.workers.len()))
    });
    groups
}

/// Names of workers, not too many.
fn names(workers: &BTreeSet<&str>) -> String {
    named(&workers.iter().copied().collect::<Vec<_>>())
}

fn application_text(of_workers: &[&ApplicationAdvice], output: Output) -> String {
    let width = output.width.unwrap_or(WIDTH);
    let all = of_workers.len();
    let plural = if all == 1 { "" } else { "s" };
    let mut text = String::new();
    let known = of_workers
        .first()
        .map_or_else(String::new, |one| title(one));
    for line in wrapped(&format!("{known}, on {all} worker{plural}"), width, 0) {
        text.push_str(&format!("{}\n", bold(&line, output)));
    }
    text + &findings_text(of_workers, output)
}

/// The findings of one application, each with its workers, and what could not be checked.
pub(crate) fn findings_text(of_workers: &[&ApplicationAdvice], output: Output) -> String {
    let width = output.width.unwrap_or(WIDTH);
    let all = of_workers.len();
    let mut text = String::new();
    let mut groups = groups(of_workers);
    let left_out = groups.split_off(groups.len().min(FINDINGS)).len();
    let findings: Vec<Finding> = groups.iter().map(|group| group.finding.clone()).collect();
    for (index, group) in groups.iter().enumerate() {
        text.push('\n');
        let before = same_remedies(&findings, index);
        text.push_str(&finding_text(
            index + 1,
            group.finding,
            before,
            output,
            width,
        ));
        push(&mut text, &group.on(all), width, 3);
    }
    text.push('\n');
    if left_out > 0 {
        text.push_str(&format!("{left_out} more findings: --json has all\n"));
    }
    if groups.is_empty() {
        text.push_str("Nothing was found.\n");
    }
    let mut unchecked: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for of_worker in of_workers {
        let worker = of_worker.worker.as_deref().unwrap_or_default();
        for check in &of_worker.checks {
            if check.went == RuleOutcome::NotChecked {
                let key = (check.id.as_str(), check.why.as_str());
                unchecked.entry(key).or_default().insert(worker);
            }
        }
    }
    if !unchecked.is_empty() {
        text.push_str("Could not be checked\n");
    }
    let more = unchecked.len().saturating_sub(FINDINGS);
    for ((id, why), workers) in unchecked.into_iter().take(FINDINGS) {
        let line = format!("{id} on {}: {why}", names(&workers));
        push(&mut text, &line, width, 2);
    }
    if more > 0 {
        text.push_str(&format!("  and {more} more: --json has all\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use smtt_model::advise::{Cost, RuleResult, Severity, Subject};

    fn finding(rdd: u32, share: f64) -> Finding {
        Finding {
            id: "unread_cache".to_owned(),
            severity: Severity::Medium,
            title: format!("RDD {rdd} costs {share}"),
            subject: Subject {
                rdd_id: Some(rdd),
                ..Subject::default()
            },
            cost: Cost {
                share: Some(share),
                ..Cost::default()
            },
            ..Finding::default()
        }
    }

    fn of(app: &str, worker: &str, findings: Vec<Finding>) -> ApplicationAdvice {
        ApplicationAdvice {
            application_id: Some(app.to_owned()),
            worker: Some(worker.to_owned()),
            findings,
            checks: vec![RuleResult {
                id: "page_walks".to_owned(),
                why: "no counters".to_owned(),
                ..RuleResult::default()
            }],
            ..ApplicationAdvice::default()
        }
    }

    #[test]
    fn no_worker_fills_the_page() {
        let findings = (0..5000).map(|rdd| finding(rdd, 0.5)).collect();
        let mut one = of("app-1", "w1", findings);
        let check = |n: u32| RuleResult {
            id: format!("rule {n}"),
            ..RuleResult::default()
        };
        one.checks = (0..5000).map(check).collect();
        let text = findings_text(&[&one], Output::default());
        assert!(text.lines().count() < 1500, "{}", text.lines().count());
        assert!(text.contains("\n4900 more findings: --json has all\n"));
        assert!(
            text.ends_with("\n  and 4900 more: --json has all\n"),
            "{text}"
        );
    }

    #[test]
    fn findings_about_stages_of_different_names_stay_apart() {
        let skew = |name: &str, share: f64| Finding {
            id: "skew".to_owned(),
            subject: Subject {
                stage_name: Some(name.to_owned()),
                ..Subject::default()
            },
            ..finding(0, share)
        };
        let both = vec![skew("join", 0.3), skew("count", 0.2)];
        let (one, other) = (
            of("app-1", "w1", both),
            of("app-1", "w2", vec![skew("join", 0.4)]),
        );
        let found: Vec<_> = groups(&[&one, &other])
            .iter()
            .map(|it| {
                (
                    it.finding.subject.stage_name.clone(),
                    it.worker.to_owned(),
                    it.workers.len(),
                )
            })
            .collect();
        let wanted = [("join", "w2", 2), ("count", "w1", 1)];
        assert_eq!(
            found,
            wanted.map(|(name, worker, count)| (Some(name.to_owned()), worker.to_owned(), count))
        );
    }

    #[test]
    fn findings_about_stages_without_a_name_stay_apart() {
        let skew = |stage: u32, name: Option<&str>| Finding {
            id: "skew".to_owned(),
            subject: Subject {
                stage_id: Some(stage),
                stage_name: name.map(str::to_owned),
                ..Subject::default()
            },
            ..finding(0, 0.3)
        };
        let (one, other) = (
            of(
                "app-1",
                "w1",
                vec![skew(3, None), skew(7, None), skew(8, Some("join"))],
            ),
            of("app-1", "w2", vec![skew(7, None), skew(9, Some("join"))]),
        );
        let mut found: Vec<_> = groups(&[&one, &other])
            .iter()
            .map(|it| (it.finding.subject.stage_id, it.workers.len()))
            .collect();
        found.sort_unstable();
        assert_eq!(found, [(Some(3), 1), (Some(7), 2), (Some(8), 2)]);
    }

    #[test]
    fn a_finding_of_many_workers_stands_once() {
        let mut applications: Vec<ApplicationAdvice> = (0..20)
            .map(|n| {
                of(
                    "app-1",
                    &format!("w{n:02}"),
                    vec![finding(7, 0.1 + f64::from(n) / 100.0)],
                )
            })
            .collect();
        applications[3].findings.push(finding(8, 0.9));
        applications.push(of("app-2", "w00", Vec::new()));
        let advice = Advice {
            applications,
            ..Advice::default()
        };
        let text = text(&advice, Output::default());
        assert_eq!(text.matches("[medium]").count(), 2, "{text}");
        let first = text.find("1. [medium] RDD 8 costs 0.9").expect("the first");
        let second = text
            .find("2. [medium] RDD 7 costs 0.29")
            .expect("the second");
        assert!(first < second, "{text}");
        let words: Vec<&str> = text.split_whitespace().collect();
        let text = words.join(" ");
        assert!(text.contains("Application app-1, on 20 workers"), "{text}");
        assert!(text.contains("on worker w03"), "{text}");
        assert!(
            text.contains("on 20 of 20 workers: w00, w01, w02, w03, w04, w05, w06, w07 and 12 more; text and numbers are of w19"),
            "{text}"
        );
        assert!(
            text.contains("Application app-2, on 1 worker Nothing was found."),
            "{text}"
        );
        assert!(text.contains("page_walks on w00: no counters"), "{text}");
    }
}
