//! The reports of all workers as one for each application: executors with their worker, RDDs added up, totals that
//! equal the parts.

use std::collections::BTreeMap;

use serde::Serialize;
use smtt_model::advise::{Advice, ApplicationAdvice};
use smtt_model::protocol::{ApplicationReport, ListQuery, REPORT_ROWS, Report};
use smtt_model::rows::{
    ApplicationKey, ExecutorId, ExecutorRow, GroupBy, Listing, RddGroupRow, RddRow, StageRow,
    Summary, TaskRow, rdd_groups,
};
use smtt_model::sort::small::sort_by_key;
use smtt_model::state::FaultFigures;

use super::Cluster;
use super::merge::sum;
use crate::client::{ClientError, with_query};

/// Workers whose names stand in a line.
const NAMED: usize = 8;

/// One application on all workers that answered.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OfApplication {
    /// Id of the application; absent for executors that have not described themselves.
    pub application_id: Option<String>,
    /// Attempt of the application, where its cluster manager makes several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub application_attempt_id: Option<String>,
    /// User of the application's executors.
    pub uid: Option<u32>,
    /// Name of the application.
    pub application_name: Option<String>,
    /// Workers with executors of it, in the order of the list.
    pub hosts: Vec<String>,
    /// Totals over these workers.
    pub summary: Summary,
    /// All executors, those with the most page faults first.
    pub executors: Vec<ExecutorRow>,
    /// RDDs over all executors, those with the most page faults first.
    pub rdds: Vec<RddGroupRow>,
    /// Stages with the most page faults, per executor.
    pub stages: Vec<StageRow>,
    /// Tasks with the most page faults.
    pub tasks: Vec<TaskRow>,
    /// Findings of each worker.
    pub advice: Vec<ApplicationAdvice>,
    /// The parts of `summary`, by worker.
    #[serde(skip)]
    parts: Vec<(String, Summary)>,
}

impl OfApplication {
    /// The identity of the application.
    pub fn key(&self) -> ApplicationKey {
        ApplicationKey {
            id: self.application_id.clone(),
            attempt: self.application_attempt_id.clone(),
            uid: self.uid,
        }
    }

    /// Takes out the workers that have failed to answer a later question: totals equal the parts that are left.
    pub fn keep(&mut self, cluster: &Cluster) {
        let has_answered = |who: &ExecutorId| {
            let worker = who.worker.as_deref();
            worker.is_some_and(|worker| !cluster.has_failed(worker))
        };
        self.hosts.retain(|worker| !cluster.has_failed(worker));
        self.parts.retain(|(worker, _)| !cluster.has_failed(worker));
        self.executors.retain(|row| has_answered(&row.who));
        self.stages.retain(|row| has_answered(&row.who));
        self.tasks.retain(|row| has_answered(&row.who));
        self.summary = self.total();
    }

    fn total(&self) -> Summary {
        sum(self.parts.iter().map(|(_, part)| part.clone()))
    }

    /// The report of the application without rows of RDDs, as a daemon would give it of all executors.
    pub fn report(&self) -> ApplicationReport {
        ApplicationReport {
            application_id: self.application_id.clone(),
            application_attempt_id: self.application_attempt_id.clone(),
            uid: self.uid,
            application_name: self.application_name.clone(),
            summary: self.summary.clone(),
            executors: self.executors.clone(),
            ..ApplicationReport::default()
        }
    }
}

/// The applications of all workers.
#[derive(Clone, Debug, Default)]
pub struct Reports {
    /// Those with the most page faults first.
    pub applications: Vec<OfApplication>,
    /// Reasons why figures are incomplete or less exact, with their workers.
    pub degraded: BTreeMap<String, Vec<String>>,
    /// Workers that lost something on the way, and how much.
    pub lost: Vec<(String, u64)>,
}

impl Reports {
    /// Asks all workers. A worker that fails to answer one of the questions is in no part of the answer.
    ///
    /// # Errors
    /// When no worker answers.
    pub async fn ask(cluster: &Cluster, question: &ListQuery) -> Result<Self, ClientError> {
        let parts: Vec<(String, Report)> =
            cluster.each(&with_query("/v1/report", question)?).await?;
        let rdds: Listing<RddRow> = cluster.ask("/v1/rdds", question).await?;
        let advice: Advice = cluster.ask("/v1/advise", question).await?;
        let parts = parts.into_iter();
        let parts = parts.filter(|(worker, _)| !cluster.has_failed(worker));
        let has_answered = |worker: &Option<String>| {
            worker
                .as_ref()
                .is_some_and(|worker| !cluster.has_failed(worker))
        };
        let mut rdds = rdds.rows;
        rdds.retain(|row| has_answered(&row.who.worker));
        let mut advice = advice.applications;
        advice.retain(|of_worker| has_answered(&of_worker.worker));
        Ok(Self::of(parts.collect(), &rdds, advice))
    }

    /// The parts of all workers as one.
    fn of(parts: Vec<(String, Report)>, rdds: &[RddRow], advice: Vec<ApplicationAdvice>) -> Self {
        let mut all = Self::default();
        let mut applications: BTreeMap<ApplicationKey, OfApplication> = BTreeMap::new();
        for (worker, part) in parts {
            for reason in part.degraded {
                let workers = all.degraded.entry(reason).or_default();
                workers.push(worker.clone());
            }
            let lost = part.ledger.iter().map(smtt_model::ledger::Hop::lost_total);
            match lost.fold(0, u64::saturating_add) {
                0 => {}
                lost => all.lost.push((worker.clone(), lost)),
            }
            for application in part.applications {
                let sum = applications.entry(application.application()).or_default();
                add(sum, application, &worker);
            }
        }
        for group in rdd_groups(rdds, GroupBy::Rdd) {
            if let Some(sum) = applications.get_mut(&group.application()) {
                sum.rdds.push(group);
            }
        }
        for of_worker in advice {
            if let Some(sum) = applications.get_mut(&of_worker.application()) {
                sum.advice.push(of_worker);
            }
        }
        let finish = |(key, application): (ApplicationKey, OfApplication)| {
            let mut application = OfApplication {
                application_id: key.id,
                application_attempt_id: key.attempt,
                uid: key.uid,
                summary: application.total(),
                ..application
            };
            let most = |faults: &FaultFigures| std::cmp::Reverse(faults.page_faults);
            sort_by_key(&mut application.executors, |row| most(&row.faults));
            sort_by_key(&mut application.stages, |row| {
                (most(&row.faults), row.stage_id, row.stage_attempt)
            });
            sort_by_key(&mut application.tasks, |row| {
                (most(&row.faults), row.task_attempt_id)
            });
            application.stages.truncate(REPORT_ROWS);
            application.tasks.truncate(REPORT_ROWS);
            application
        };
        all.applications = applications.into_iter().map(finish).collect();
        sort_by_key(&mut all.applications, |application| {
            std::cmp::Reverse(application.summary.page_faults)
        });
        all
    }
}

/// Adds the report of a worker.
fn add(sum: &mut OfApplication, part: ApplicationReport, worker: &str) {
    let of_worker = |who: ExecutorId| ExecutorId {
        worker: Some(worker.to_owned()),
        ..who
    };
    if sum.hosts.last().is_none_or(|last| last != worker) {
        sum.hosts.push(worker.to_owned());
    }
    if sum
        .application_name
        .as_deref()
        .unwrap_or_default()
        .is_empty()
    {
        sum.application_name = part.application_name;
    }
    sum.parts.push((worker.to_owned(), part.summary));
    let executors = part.executors.into_iter();
    sum.executors.extend(executors.map(|row| ExecutorRow {
        who: of_worker(row.who),
        ..row
    }));
    let stages = part.stages.into_iter();
    sum.stages.extend(stages.map(|row| StageRow {
        who: of_worker(row.who),
        ..row
    }));
    let tasks = part.tasks.into_iter();
    sum.tasks.extend(tasks.map(|row| TaskRow {
        who: of_worker(row.who),
        ..row
    }));
}

/// Names of workers, not too many.
pub fn named<Name: AsRef<str>>(workers: &[Name]) -> String {
    let first: Vec<&str> = workers.iter().take(NAMED).map(AsRef::as_ref).collect();
    let more = match workers.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", first.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_id_of_two_users_is_two_applications() {
        let of = |uid: u32, faults: u64| ApplicationReport {
            application_id: Some("app-1".to_owned()),
            uid: Some(uid),
            summary: Summary {
                executors: 1,
                page_faults: Some(faults),
                ..Summary::default()
            },
            executors: vec![ExecutorRow {
                faults: FaultFigures {
                    page_faults: Some(faults),
                    ..FaultFigures::default()
                },
                ..ExecutorRow::default()
            }],
            ..ApplicationReport::default()
        };
        let part = |worker: &str, applications| {
            let report = Report {
                applications,
                degraded: vec!["no counters".to_owned()],
                ..Report::default()
            };
            (worker.to_owned(), report)
        };
        let all = Reports::of(
            vec![
                part("w1", vec![of(1, 10)]),
                part("w2", vec![of(1, 20), of(2, 25)]),
            ],
            &[],
            Vec::new(),
        );
        let shown: Vec<_> = all
            .applications
            .iter()
            .map(|application| {
                let workers = application.executors.iter();
                let workers = workers.filter_map(|row| row.who.worker.as_deref());
                (
                    application.uid,
                    application.summary.page_faults,
                    workers.collect::<Vec<_>>(),
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                (Some(1), Some(30), vec!["w2", "w1"]),
                (Some(2), Some(25), vec!["w2"])
            ]
        );
        assert_eq!(all.degraded["no counters"], ["w1", "w2"]);
    }

    #[test]
    fn many_names_are_cut() {
        let names: Vec<String> = (0..10).map(|n| format!("w{n}")).collect();
        assert_eq!(named(&names[..2]), "w0, w1");
        assert_eq!(named(&names), "w0, w1, w2, w3, w4, w5, w6, w7 and 2 more");
    }
}
