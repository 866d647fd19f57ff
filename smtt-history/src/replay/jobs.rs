//! Jobs, as Spark's listener counts them.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::{Value, json};

use super::stages::Status;
use super::{ENTRY, LIVE, Replay};
use crate::event::{JobEnd, JobStart, LONGEST_TEXT, cut};
use crate::json::{date_or_none, present};
use crate::out::Kind;

#[derive(Clone, Debug, Default)]
pub(super) struct Job {
    name: String,
    description: Option<String>,
    submission: Option<i64>,
    completion: Option<i64>,
    pub stage_ids: Vec<i32>,
    group: Option<String>,
    tags: Vec<String>,
    /// `None` while it runs.
    succeeded: Option<bool>,
    tasks: i64,
    pub active: i64,
    pub completed: i64,
    pub failed: i64,
    pub killed: i64,
    skipped: i64,
    pub indices: HashSet<(i32, i32)>,
    pub active_stages: i64,
    pub completed_stages: BTreeSet<i32>,
    skipped_stages: BTreeSet<i32>,
    pub failed_stages: i64,
    pub reasons: BTreeMap<String, u64>,
    /// What is shown of a job that has ended.
    shown: Option<Figures>,
    /// Reasons that came after the figures that are shown.
    late_reasons: BTreeMap<String, u64>,
    /// Live stages that name the job.
    pub live_stages: usize,
    /// What it takes of the replay's memory.
    pub bytes: usize,
}

/// Figures of a job that its stages and tasks change.
#[derive(Clone, Copy, Debug)]
struct Figures {
    active: i64,
    completed: i64,
    skipped: i64,
    failed: i64,
    killed: i64,
    indices: usize,
    active_stages: i64,
    completed_stages: usize,
    skipped_stages: usize,
    failed_stages: i64,
}

impl Job {
    fn figures(&self) -> Figures {
        Figures {
            active: self.active,
            completed: self.completed,
            skipped: self.skipped,
            failed: self.failed,
            killed: self.killed,
            indices: self.indices.len(),
            active_stages: self.active_stages,
            completed_stages: self.completed_stages.len(),
            skipped_stages: self.skipped_stages.len(),
            failed_stages: self.failed_stages,
        }
    }

    /// Shows a job that has ended as it is now. Spark's listener writes such a job at its end, and when the last task of one of
    /// its stages ends after the stage; what comes between or later changes nothing.
    pub(super) fn show(&mut self) {
        if !self.is_live() {
            self.shown = Some(self.figures());
            for (reason, count) in std::mem::take(&mut self.late_reasons) {
                *self.reasons.entry(reason).or_default() += count;
            }
        }
    }

    /// Bytes of the job, and reasons for which tasks were killed, to which one may be added.
    pub(super) const fn current_reasons(&mut self) -> (&mut usize, &mut BTreeMap<String, u64>) {
        let reasons = if self.is_live() {
            &mut self.reasons
        } else {
            &mut self.late_reasons
        };
        (&mut self.bytes, reasons)
    }

    /// As the REST API shows it.
    pub(super) fn json(&self, id: i32) -> Value {
        let figures = self.shown.unwrap_or_else(|| self.figures());
        present(json!({
            "jobId": id,
            "name": self.name,
            "description": self.description,
            "submissionTime": date_or_none(self.submission),
            "completionTime": date_or_none(self.completion),
            "stageIds": self.stage_ids,
            "jobGroup": self.group,
            "jobTags": self.tags,
            "status": match self.succeeded {
                None => "RUNNING",
                Some(true) => "SUCCEEDED",
                Some(false) => "FAILED",
            },
            "numTasks": self.tasks,
            "numActiveTasks": figures.active,
            "numCompletedTasks": figures.completed,
            "numSkippedTasks": figures.skipped,
            "numFailedTasks": figures.failed,
            "numKilledTasks": figures.killed,
            "numCompletedIndices": figures.indices,
            "numActiveStages": figures.active_stages,
            "numCompletedStages": figures.completed_stages,
            "numSkippedStages": figures.skipped_stages,
            "numFailedStages": figures.failed_stages,
            "killedTasksSummary": self.reasons,
        }))
    }

    fn size(&self) -> usize {
        let texts = [&self.description, &self.group].into_iter().flatten();
        let texts: usize = texts
            .chain([&self.name])
            .chain(&self.tags)
            .map(String::len)
            .sum();
        // A stage's id is also in the sets of completed or skipped stages.
        ENTRY + texts + 64 * (self.stage_ids.len() + self.tags.len())
    }

    /// Whether its end was read.
    pub(super) const fn is_live(&self) -> bool {
        self.succeeded.is_none()
    }

    /// Counts a stage that did not have to run.
    pub(super) fn skip(&mut self, stage: i32, tasks: i32) {
        self.skipped_stages.insert(stage);
        self.skipped += i64::from(tasks);
    }
}

impl Replay {
    pub(super) fn on_job_start(&mut self, event: &JobStart<'_>) {
        self.sql.on_job_start(event, &mut self.dropped);
        if self.jobs.len() >= LIVE {
            self.drop_one("jobs");
            return;
        }
        let missing = event
            .stages
            .iter()
            .filter(|stage| stage.completion.is_none());
        let last = event.stages.iter().max_by_key(|stage| stage.id);
        let properties = event.properties.as_ref();
        let text = |text: Option<&crate::event::Text<'_>>| text.map(crate::event::Text::kept);
        let mut tags: Vec<String> = properties
            .and_then(|properties| properties.tags.as_ref())
            .map(|tags| {
                cut(tags, LONGEST_TEXT)
                    .split(',')
                    .filter(|tag| !tag.is_empty())
                    .map(str::to_owned)
                    .collect()
            })
            .unwrap_or_default();
        tags.sort();
        let mut job = Job {
            name: last.map(|stage| stage.name.kept()).unwrap_or_default(),
            description: text(properties.and_then(|it| it.description.as_ref())),
            submission: (event.time > 0).then_some(event.time),
            stage_ids: event.stage_ids.clone(),
            group: text(properties.and_then(|it| it.group.as_ref())),
            tags,
            tasks: missing.map(|stage| i64::from(stage.tasks)).sum(),
            ..Job::default()
        };
        job.bytes = job.size();
        if !self.held.take(job.bytes) {
            self.drop_one("jobs");
            return;
        }
        // A second start with the same id is another job for Spark too.
        if let Some(old) = self.jobs.insert(event.id, job) {
            self.held.give(old.bytes);
            self.out
                .meta(Kind::Job, &event.id.to_string(), &old.json(event.id));
        }
        for info in &event.stages {
            if let Some(stage) = self.stage(info)
                && stage.jobs.insert(event.id)
                && let Some(job) = self.jobs.get_mut(&event.id)
            {
                job.live_stages += 1;
            }
        }
    }

    pub(super) fn on_job_end(&mut self, event: &JobEnd<'_>) {
        let has_succeeded = &*event.result.result == "JobSucceeded";
        self.sql
            .on_job_end(event.id, has_succeeded, &mut self.dropped);
        let Some(mut job) = self.jobs.remove(&event.id) else {
            return;
        };
        if !job.is_live() {
            self.jobs.insert(event.id, job);
            return;
        }
        let mut pending = BTreeSet::new();
        for &id in &job.stage_ids {
            let attempts = self.stages.range((id, i32::MIN)..=(id, i32::MAX));
            pending.extend(
                attempts
                    .filter(|(_, stage)| stage.status == Status::Pending)
                    .map(|(key, _)| *key),
            );
        }
        for key in pending {
            if let Some(stage) = self.stages.get_mut(&key) {
                stage.status = Status::Skipped;
                job.skip(key.0, stage.tasks);
                if stage.jobs.len() > 1 && self.awaited.len() < LIVE {
                    self.awaited.insert(key.0);
                }
            }
            self.jobs.insert(event.id, job);
            self.remove_stage(key);
            job = self.jobs.remove(&event.id).unwrap_or_default();
        }
        job.succeeded = Some(has_succeeded);
        job.completion = (event.time > 0).then_some(event.time);
        job.show();
        self.jobs.insert(event.id, job);
        self.settle_job(event.id);
    }

    /// Writes a job that nothing can change any more.
    pub(super) fn settle_job(&mut self, id: i32) {
        if self
            .jobs
            .get(&id)
            .is_some_and(|job| !job.is_live() && job.live_stages == 0)
            && let Some(job) = self.jobs.remove(&id)
        {
            self.held.give(job.bytes);
            self.out.meta(Kind::Job, &id.to_string(), &job.json(id));
        }
    }
}
