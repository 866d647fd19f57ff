//! The page of an application on all workers of a cluster. What workers send is bounded before it is on the page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use smtt_model::advise::{Advice, ApplicationAdvice, Finding, RuleOutcome, RuleResult};
use smtt_model::protocol::{Histories, ListQuery, Status};
use smtt_model::rows::{
    ApplicationKey, ExecutorId, HistoryRow, JobRow, Listing, PagesRow, RddRow, StageRow, TaskRow,
};
use smtt_model::sort::small::{Gather as _, sort_by_key};
use smtt_model::state::history::{INTERVAL_NS, NODES_MAX, POINTS_MAX, Point, RDDS_MAX, STAGES_MAX};

use super::tasks::{ENDED, TASKS, longest};
use super::{
    Asked, Facts, OfWorker, file_names, folder, own_jobs, own_tasks, part_of, shortened, write,
};
use crate::advise::cluster::groups;
use crate::args::{By, Filters};
use crate::client::{Client, with_query};
use crate::cluster::{Cluster, OfApplication, Reports, named};
use crate::{Exit, Failure};

/// Pages of one run.
const PAGES: usize = 50;
/// Stages that are asked for: those whose tasks held most.
const STAGES: usize = 200;
/// Ended tasks of one worker at least, whose functions are on the page.
const ENDED_EACH: usize = 4;
/// Findings on a page, and bytes of one.
const FINDINGS: usize = 100;
const FINDING_BYTES: usize = 16 << 10;
/// Results of rules on a page.
const CHECKS: usize = 100;
/// Age of the oldest point on a page.
const AGE_NS: u64 = 365 * 24 * 3_600_000_000_000;

/// Requests all inputs from all workers and writes a page per application.
pub(super) async fn run(
    client: &Client,
    cluster: &Cluster,
    filter: &Filters,
    by: Option<By>,
    output: Option<&Path>,
) -> Result<Exit, Failure> {
    let reports = Reports::ask(cluster, &filter.question()).await?;
    let known: Vec<ApplicationKey> = reports
        .applications
        .iter()
        .map(OfApplication::key)
        .collect();
    let folder = folder(client, filter, output, &known).await?;
    if known.len() > PAGES {
        return Err(Failure::Question(format!(
            "{} applications are known, and a run writes {PAGES} pages at most: give --app",
            known.len()
        )));
    }
    let statuses: Vec<(String, Status)> = cluster.each("/v1/status").await?;
    for (application, name) in reports.applications.into_iter().zip(file_names(&known)) {
        let mut facts = ask(cluster, filter, application, &statuses).await?;
        facts.by = by;
        write(&facts, folder, &name, output)?;
    }
    Ok(match reports.degraded.is_empty() {
        true => Exit::Fine,
        false => Exit::Degraded,
    })
}

async fn ask(
    cluster: &Cluster,
    filter: &Filters,
    mut application: OfApplication,
    statuses: &[(String, Status)],
) -> Result<Facts, Failure> {
    let key = application.key();
    let question = filter.of_application(key.id.as_deref(), key.uid);
    let most = |figure: &str, limit| ListQuery {
        sort: Some(format!("{figure}:desc")),
        limit: Some(limit),
        ..question.clone()
    };
    let memory = "execution_memory_peak_bytes";
    let rdds: Listing<RddRow> = cluster.ask("/v1/rdds", &question).await?;
    let pages: Listing<PagesRow> = cluster.ask("/v1/pages", &question).await?;
    let (mut jobs, _) = cluster
        .optional::<Listing<JobRow>>(&with_query("/v1/jobs", &question)?)
        .await;
    let stages: Listing<StageRow> = cluster.ask("/v1/stages", &most(memory, STAGES)).await?;
    let mut tasks: Listing<TaskRow> = cluster.ask("/v1/tasks", &most(memory, TASKS)).await?;
    let mut known: BTreeSet<_> = tasks.rows.iter().map(identity).gather();
    // A worker that does not measure a figure cannot sort by it.
    for figure in ["cpu_ns", "duration_ns", "page_faults"] {
        let asked = with_query("/v1/tasks", &most(figure, TASKS))?;
        for row in of_each(cluster.optional(&asked).await.0, TASKS) {
            if known.insert(identity(&row)) {
                tasks.rows.push(row);
            }
        }
    }
    let advice: Vec<(String, Advice)> = cluster.each(&with_query("/v1/advise", &question)?).await?;
    let (histories, mut without_history) = cluster
        .optional::<Histories>(&with_query("/v1/history", &question)?)
        .await;
    let each = (ENDED / application.hosts.len().max(1)).max(ENDED_EACH);
    let asked = with_query("/v1/tasks/ended", &longest(&question, each))?;
    let (mut longest_of, mut without_functions) =
        cluster.optional::<Listing<TaskRow>>(&asked).await;
    // A worker that failed to answer one question is in no part of the page.
    application.keep(cluster);
    without_history.retain(|worker| application.hosts.contains(worker));
    without_functions.retain(|worker| application.hosts.contains(worker));
    let own = |who: &ExecutorId| {
        let worker = who.worker.as_deref();
        who.application() == key && worker.is_some_and(|worker| !cluster.has_failed(worker))
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_unix_ms = now.map_or(0, |now| now.as_millis() as u64);
    let mut history = on_one_clock(histories, now_unix_ms);
    history.rows.retain(|row| own(&row.who));
    let mut known: BTreeMap<String, Advice> = advice.into_iter().gather();
    let workers: Vec<OfWorker> = statuses
        .iter()
        .filter(|(name, _)| application.hosts.contains(name))
        .map(|(name, status)| OfWorker {
            name: Some(name.clone()),
            status: status.clone(),
            surroundings: known
                .get_mut(name)
                .map(|advice| std::mem::take(&mut advice.surroundings))
                .unwrap_or_default(),
        })
        .collect();
    let of_workers: Vec<&ApplicationAdvice> = known
        .values()
        .flat_map(|advice| &advice.applications)
        .filter(|of_worker| of_worker.application() == key)
        .filter(|of_worker| {
            let worker = of_worker.worker.as_ref();
            worker.is_some_and(|worker| application.hosts.contains(worker))
        })
        .collect();
    let (advice, finding_hosts) = together(&of_workers);

    jobs.retain(|(worker, _)| !cluster.has_failed(worker));
    longest_of.retain(|(worker, _)| !cluster.has_failed(worker));
    let totals = longest_of.iter().map(|(_, part)| part.rows_total);
    let ended_total = totals.fold(0, u64::saturating_add);
    let ended = of_each(longest_of, each);
    Ok(Facts {
        tasks_total: tasks.rows_total,
        ended_longest: ended.len() as u64,
        ended_of: part_of(&question),
        ended: own_tasks(ended, &question, own),
        ended_total,
        has_all_stages: stages.rows.len() as u64 == stages.rows_total,
        rdds: rdds.rows.into_iter().filter(|row| own(&row.who)).collect(),
        pages: pages.rows.into_iter().filter(|row| own(&row.who)).collect(),
        jobs: own_jobs(&jobs, &key),
        stages: stages
            .rows
            .into_iter()
            .filter(|row| own(&row.who))
            .collect(),
        tasks: tasks.rows.into_iter().filter(|row| own(&row.who)).collect(),
        application: application.report(),
        history,
        advice,
        finding_hosts,
        workers,
        by: None,
        asked: Some(Asked {
            all: cluster.missing().1,
            missing: cluster.failures(),
            without_history,
            without_functions,
        }),
    })
}

/// The rows of several workers, at most so many of each.
fn of_each(parts: Vec<(String, Listing<TaskRow>)>, most: usize) -> Vec<TaskRow> {
    let mut rows = Vec::new();
    for (worker, part) in parts {
        rows.extend(part.rows.into_iter().take(most).map(|mut row| {
            row.who.worker = Some(worker.clone());
            row
        }));
    }
    rows
}

/// What tells a task attempt from others.
fn identity(row: &TaskRow) -> (Option<String>, u32, Option<u64>) {
    (row.who.worker.clone(), row.who.pid, row.task_attempt_id)
}

/// Histories of several workers with all points on the clock of this machine: what a worker's own clock says does not
/// move the points of others. Points with more parts than a daemon gives are left out.
fn on_one_clock(parts: Vec<(String, Histories)>, now_unix_ms: u64) -> Histories {
    let now_ns = now_unix_ms.saturating_mul(1_000_000);
    let mut rows: Vec<HistoryRow> = Vec::new();
    for (worker, part) in parts {
        for mut row in part.rows {
            row.who.worker = Some(worker.clone());
            row.points.retain(is_sound);
            row.points.truncate(2 * POINTS_MAX);
            for point in &mut row.points {
                let age = part.now_ns.saturating_sub(point.time_ns).min(AGE_NS);
                point.time_ns = now_ns.saturating_sub(age);
            }
            sort_by_key(&mut row.points, |point| point.time_ns);
            let first = row.points.first().map_or(0, |point| point.time_ns);
            let last = row.points.last().map_or(0, |point| point.time_ns);
            // A history of a daemon has at least half of its points.
            let widest = (last - first) / (POINTS_MAX as u64 / 4);
            row.interval_ns = row.interval_ns.min(widest.max(4 * INTERVAL_NS));
            rows.push(row);
        }
    }
    Histories {
        now_ns,
        now_unix_ms,
        rows,
    }
}

/// Whether a point has no more parts than a daemon gives it.
fn is_sound(point: &Point) -> bool {
    let pages = point.rdds.iter().filter_map(|rdd| rdd.pages.as_deref());
    let mut parts = pages.map(|pages| {
        let sizes = pages.page_sizes.as_ref().map_or(0, Vec::len);
        let nodes = pages.nodes.as_ref().map_or(0, Vec::len);
        sizes.max(nodes)
    });
    point.rdds.len() <= RDDS_MAX + 2
        && point.stages.len() <= STAGES_MAX + 2
        && parts.all(|parts| parts <= NODES_MAX)
}

/// The advice of several workers as one, and the workers of each finding in words.
fn together(of_workers: &[&ApplicationAdvice]) -> (ApplicationAdvice, Vec<String>) {
    let mut all = ApplicationAdvice::default();
    let mut hosts = Vec::new();
    let mut left_out = 0_u64;
    for group in groups(of_workers) {
        if all.findings.len() >= FINDINGS || !is_short(group.finding) {
            left_out += 1;
            continue;
        }
        all.findings.push(group.finding.clone());
        hosts.push(group.on(of_workers.len()));
    }
    all.checks = checks(of_workers);
    if left_out > 0 {
        all.checks.push(RuleResult {
            id: "all rules".to_owned(),
            went: RuleOutcome::Found,
            left_out,
            ..RuleResult::default()
        });
    }
    (all, hosts)
}

fn is_short(finding: &Finding) -> bool {
    serde_json::to_vec(finding).is_ok_and(|bytes| bytes.len() <= FINDING_BYTES)
}

/// Results of the rules without findings: what was not checked, with the workers, and what was checked on all.
fn checks(of_workers: &[&ApplicationAdvice]) -> Vec<RuleResult> {
    let mut results: BTreeMap<(RuleOutcome, String, String), (RuleResult, BTreeSet<&str>)> =
        BTreeMap::new();
    let mut other: BTreeSet<&str> = BTreeSet::new();
    for of_worker in of_workers {
        let worker = of_worker.worker.as_deref().unwrap_or_default();
        for check in &of_worker.checks {
            if check.went != RuleOutcome::Nothing {
                other.insert(&check.id);
            }
            let why = match check.went {
                RuleOutcome::Found => continue,
                RuleOutcome::Nothing => String::new(),
                RuleOutcome::NotChecked => shortened(&check.why, 400),
            };
            let short = || RuleResult {
                id: shortened(&check.id, 60),
                looks_for: shortened(&check.looks_for, 400),
                went: check.went,
                why: shortened(&check.why, 400),
                left_out: 0,
            };
            let key = (check.went, check.id.clone(), why);
            let (_, workers) = results
                .entry(key)
                .or_insert_with(|| (short(), BTreeSet::new()));
            workers.insert(worker);
        }
    }
    results
        .into_iter()
        .filter(|((went, id, _), _)| *went != RuleOutcome::Nothing || !other.contains(id.as_str()))
        .take(CHECKS)
        .map(|(_, (check, workers))| match check.went {
            RuleOutcome::NotChecked => {
                let workers: Vec<&str> = workers.into_iter().collect();
                let why = format!("{}; on {}", check.why, named(&workers));
                RuleResult { why, ..check }
            }
            // What was examined differs from worker to worker.
            _ => RuleResult {
                why: "on all workers".to_owned(),
                ..check
            },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use smtt_model::rows::{NodeRow, PageSizeRow};
    use smtt_model::state::history::{PagePoint, RddPoint};

    use super::*;
    use crate::html::timeline::Timeline;

    const S: u64 = 1_000_000_000;

    fn history(now_ns: u64, times: &[u64]) -> Histories {
        let point = |time: &u64| Point {
            time_ns: *time,
            rdds: vec![RddPoint {
                rdd_id: Some(7),
                storage_heap_bytes: 100,
                ..RddPoint::default()
            }],
            ..Point::default()
        };
        Histories {
            now_ns,
            now_unix_ms: 5,
            rows: vec![HistoryRow {
                interval_ns: 2 * S,
                points: times.iter().map(point).collect(),
                ..HistoryRow::default()
            }],
        }
    }

    #[test]
    fn points_of_machines_with_other_clocks_add_up() {
        let parts = vec![
            (
                "w1".to_owned(),
                history(100 * S, &[80 * S, 90 * S, 100 * S]),
            ),
            ("w2".to_owned(), history(7 * S, &[0, 2 * S, 7 * S])),
        ];
        let all = on_one_clock(parts, 1_700_000_000_000);
        let timeline = Timeline::new(&all);
        assert_eq!(timeline.times_ms.first(), Some(&1_699_999_980_000));
        let region = timeline.by_region(Some(&BTreeSet::from([7])));
        let last = region[0].values.last().copied();
        assert_eq!((region[0].values[0], last), (100.0, Some(200.0)));
    }

    #[test]
    fn a_worker_that_lies_about_time_breaks_no_chart() {
        let mut liar = history(u64::MAX, &[u64::MAX, 0, u64::MAX / 2]);
        liar.rows[0].interval_ns = u64::MAX;
        liar.now_unix_ms = u64::MAX;
        let many = Point {
            rdds: vec![RddPoint {
                pages: Some(Box::new(PagePoint {
                    page_sizes: Some(vec![PageSizeRow::default(); 1000]),
                    nodes: Some(vec![NodeRow::default(); 1000]),
                    ..PagePoint::default()
                })),
                ..RddPoint::default()
            }],
            ..Point::default()
        };
        liar.rows[0].points.push(many);
        let parts = vec![
            ("w1".to_owned(), history(100 * S, &[80 * S, 100 * S])),
            ("w2".to_owned(), liar),
        ];
        let all = on_one_clock(parts, 1_700_000_000_000);
        assert_eq!(all.rows[1].points.len(), 3, "the last one is no daemon's");
        let timeline = Timeline::new(&all);
        let now = timeline.times_ms.last().copied().expect("moments");
        let year_ms = AGE_NS / 1_000_000;
        assert!(now >= 1_700_000_000_000 && now < 1_700_000_000_000 + year_ms);
        assert!(
            timeline.times_ms.len() <= 162,
            "{}",
            timeline.times_ms.len()
        );
        assert!(!timeline.by_region(None).is_empty());
    }

    #[test]
    fn findings_are_bounded_and_what_is_left_out_is_counted() {
        let finding = |rdd: u32, title: String| Finding {
            id: "never_read".to_owned(),
            title,
            subject: smtt_model::advise::Subject {
                rdd_id: Some(rdd),
                ..Default::default()
            },
            ..Finding::default()
        };
        let mut findings: Vec<Finding> = (0..FINDINGS as u32 + 5)
            .map(|rdd| finding(rdd, format!("RDD {rdd}")))
            .collect();
        findings.push(finding(9999, "x".repeat(FINDING_BYTES)));
        let check = |went: RuleOutcome, id: &str| RuleResult {
            id: id.to_owned(),
            went,
            why: format!("why {}", "y".repeat(5000)),
            ..RuleResult::default()
        };
        let of = |worker: &str, findings, checks| ApplicationAdvice {
            worker: Some(worker.to_owned()),
            findings,
            checks,
            ..ApplicationAdvice::default()
        };
        let (one, two) = (
            of(
                "w1",
                findings,
                vec![
                    check(RuleOutcome::Nothing, "swap"),
                    check(RuleOutcome::Nothing, "nodes"),
                ],
            ),
            of(
                "w2",
                Vec::new(),
                vec![
                    check(RuleOutcome::NotChecked, "swap"),
                    check(RuleOutcome::Nothing, "nodes"),
                ],
            ),
        );
        let (all, hosts) = together(&[&one, &two]);
        assert_eq!((all.findings.len(), hosts.len()), (FINDINGS, FINDINGS));
        assert_eq!(hosts[0], "on worker w1");
        let left: u64 = all.checks.iter().map(|check| check.left_out).sum();
        assert_eq!(left, 6);
        let shown: Vec<_> = all
            .checks
            .iter()
            .map(|check| (check.id.as_str(), check.went))
            .collect();
        assert_eq!(
            shown,
            [
                ("swap", RuleOutcome::NotChecked),
                ("nodes", RuleOutcome::Nothing),
                ("all rules", RuleOutcome::Found)
            ]
        );
        assert!(
            all.checks[0].why.ends_with("; on w2"),
            "{:?}",
            all.checks[0]
        );
        assert!(all.checks[0].why.chars().count() < 420);
    }
}
