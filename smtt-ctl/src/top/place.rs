//! Places of `smtt-ctl top`: a view, what it adds up, and conditions on its rows.

use serde_json::{Map, Value};
use smtt_model::rows::ApplicationKey;

use super::{BLOCKS, EXECUTORS, RDDS, STAGES, TASKS, VIEWS};
use crate::args::{By, Filters};
use crate::cluster::WORKER;
use crate::groups::{Of, application};

/// What the display shows: a view, and conditions on its rows.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// Index of the view.
    pub view: usize,
    /// Conditions of the question.
    pub filter: Filters,
    /// What is added up, in views of RDDs and blocks.
    pub by: Option<By>,
    /// Only RDDs of this group of an application.
    pub group: Option<(ApplicationKey, String)>,
    /// Only rows of this worker.
    pub worker: Option<String>,
    /// The row that was gone into, in words.
    pub from: String,
}

impl Place {
    /// What is added up here, and by what.
    pub fn groups(&self) -> Option<(Of, By)> {
        let by = self.by.filter(|_| self.group.is_none())?;
        Some((Of::listing(VIEWS[self.view])?, by))
    }

    /// The place within a row; `None` where there is nothing in it but its fields.
    pub fn within(&self, row: &Map<String, Value>) -> Option<Self> {
        let text = |field: &str| match row.get(field)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let user = row.get("uid").and_then(Value::as_u64);
        let mut filter = Filters {
            app: text("application_id").or_else(|| self.filter.app.clone()),
            user: user
                .and_then(|uid| u32::try_from(uid).ok())
                .or(self.filter.user),
            executor: text("executor_id").or_else(|| self.filter.executor.clone()),
            ..self.filter.clone()
        };
        let group = text("group").filter(|_| self.groups().is_some());
        let group = group.map(|name| (application(row), name));
        let (view, from) = match self.view {
            EXECUTORS => (
                RDDS,
                filter.executor.clone().map(|id| format!("executor {id}")),
            ),
            STAGES => {
                let attempt = text("stage_attempt").unwrap_or_else(|| "0".to_owned());
                filter.stage = text("stage_id").map(|id| format!("{id}.{attempt}"));
                (TASKS, filter.stage.clone().map(|id| format!("stage {id}")))
            }
            RDDS if group.is_some() => (RDDS, group.clone().map(|(_, name)| name)),
            RDDS => {
                filter.rdd = text("rdd_id");
                (BLOCKS, filter.rdd.clone().map(|id| format!("RDD {id}")))
            }
            _ => (BLOCKS, None),
        };
        Some(Self {
            view,
            filter,
            // The blocks of one RDD are single ones.
            by: self.by.filter(|_| view != BLOCKS),
            group,
            worker: text(WORKER).or_else(|| self.worker.clone()),
            from: from?,
        })
    }
}
