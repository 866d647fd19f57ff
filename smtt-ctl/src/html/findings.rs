//! The findings with their numbers and remedies, and what the other rules examined.

use smtt_model::advise::{Finding, RuleOutcome, RuleResult};
use smtt_model::rows::made_at;

use super::Facts;
use super::document::folded;
use super::markup::Markup;
use crate::advise;

/// Findings whose details are open at first.
const OPEN: usize = 1;

/// Findings, the most expensive first.
pub fn findings(body: &mut Markup, facts: &Facts) {
    let findings = &facts.advice.findings;
    for (index, finding) in findings.iter().enumerate() {
        let before = advise::same_remedies(findings, index);
        let hosts = facts.finding_hosts.get(index).map(String::as_str);
        card(body, index, finding, before, hosts);
    }
    if facts.advice.findings.is_empty() {
        body.line("p", &[], "Nothing was found.");
    }
    for (went, heading) in [
        (RuleOutcome::NotChecked, "Could not be checked"),
        (RuleOutcome::Nothing, "Checked, and nothing found"),
    ] {
        let of = facts
            .advice
            .checks
            .iter()
            .filter(|check| check.went == went);
        let checks: Vec<&RuleResult> = of.collect();
        if checks.is_empty() {
            continue;
        }
        let heading = format!("{heading} ({})", checks.len());
        folded(body, "h3", false, &heading, "", |body| {
            body.element("ul", &[("class", "plain")], |list| {
                for check in checks {
                    list.element("li", &[], |item| {
                        item.line("code", &[], &check.id);
                        item.text(&format!(": {} ", check.looks_for));
                        item.line("small", &[], &format!("({})", check.why));
                    });
                }
            });
        });
    }
    for check in facts
        .advice
        .checks
        .iter()
        .filter(|check| check.left_out > 0)
    {
        body.line(
            "p",
            &[],
            &format!(
                "{}: {} more findings are left out.",
                check.id, check.left_out
            ),
        );
    }
}

fn card(
    body: &mut Markup,
    index: usize,
    finding: &Finding,
    before: Option<usize>,
    hosts: Option<&str>,
) {
    let class = format!("finding {}", advise::class(finding.severity));
    let id = format!("finding-{}", index + 1);
    body.element("article", &[("class", &class), ("id", &id)], |card| {
        let open = [("open", "open")];
        let attributes: &[_] = if index < OPEN { &open } else { &[] };
        card.element("details", attributes, |details| {
            details.element("summary", &[], |summary| {
                summary.element("h3", &[], |h3| {
                    h3.line("span", &[("class", "severity")], finding.severity.word());
                    h3.text(&format!("{}. ", index + 1));
                    h3.claimed(&finding.title);
                });
            });
            subject(details, finding, hosts);
            details.element("div", &[("class", "columns")], |columns| {
                columns.element("div", &[], |left| numbers(left, finding));
                columns.element("div", &[], |right| remedies(right, finding, before));
            });
        });
    });
}

fn subject(card: &mut Markup, finding: &Finding, hosts: Option<&str>) {
    card.element("p", &[("class", "soft")], |line| {
        line.line("code", &[], &finding.id);
        line.text(", on executors ");
        line.claimed(&finding.subject.executor_ids.join(", "));
        let subject = &finding.subject;
        if let Some(place) = made_at(subject.call_site.as_deref(), subject.node.as_deref()) {
            line.text("; made at ");
            line.claimed(&place);
        }
        if let Some(hosts) = hosts {
            line.text("; ");
            line.claimed(hosts);
        }
    });
}

fn numbers(left: &mut Markup, finding: &Finding) {
    left.line("p", &[], &format!("Costs: {}.", advise::cost(finding)));
    for (name, what) in advise::saving(finding) {
        left.line("p", &[("class", "soft")], &format!("{name}: {what}."));
    }
    left.line(
        "p",
        &[("class", "soft")],
        &format!("Numbers: {}.", finding.window),
    );
    left.element("table", &[("class", "numbers")], |table| {
        for number in &finding.numbers {
            table.element("tr", &[], |row| {
                row.line("td", &[], &number.what);
                row.line("td", &[], &advise::shown(number));
            });
        }
    });
    if !finding.not_measured.is_empty() {
        let text = format!("Not measured: {}.", finding.not_measured.join("; "));
        left.line("p", &[("class", "soft")], &text);
    }
}

/// What helps; where that is the same as for an earlier finding, a link to it.
fn remedies(right: &mut Markup, finding: &Finding, before: Option<usize>) {
    if let Some(before) = before {
        right.element("p", &[], |line| {
            line.text("What helps is the same as for ");
            let target = format!("#finding-{}", before + 1);
            line.line(
                "a",
                &[("href", &target)],
                &format!("finding {}", before + 1),
            );
            line.text(".");
        });
        return;
    }
    for remedy in &finding.remedies {
        right.line("p", &[], &remedy.why);
        if !remedy.lines.is_empty() {
            right.line("pre", &[], &remedy.lines.join("\n"));
        }
    }
}
