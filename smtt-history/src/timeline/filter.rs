//! Which tasks the picture and the table show: by stage, host, outcome, duration and more, as an address names them.

use super::model::{LOCALITIES, Model, OUTCOMES, Task};
use crate::serve::Refusal;
use crate::serve::routes::Parameters;

/// Conditions on tasks; an empty text is none.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    stage: Option<(i32, Option<i32>)>,
    host: String,
    status: String,
    locality: String,
    speculative: String,
    straggler: String,
    critical: String,
    longer: i64,
}

impl Filter {
    /// From an address.
    ///
    /// # Errors
    /// Where a stage or a duration is no number.
    pub(crate) fn new(parameters: &Parameters) -> Result<Self, Refusal> {
        let text = |name: &str| parameters.one(name).unwrap_or_default().trim().to_owned();
        let bad = || Refusal::bad("a stage is a number, or a number, a dot and its attempt");
        let stage = match text("stage") {
            stage if stage.is_empty() => None,
            stage => {
                let (id, attempt) = stage.split_once('.').unwrap_or((&stage, ""));
                let attempt = match attempt {
                    "" => None,
                    attempt => Some(attempt.parse().map_err(|_| bad())?),
                };
                Some((id.parse().map_err(|_| bad())?, attempt))
            }
        };
        let longer = match text("longer").as_str() {
            "" => 0,
            _ => parameters.number("longer", 0)?,
        };
        Ok(Self {
            stage,
            host: text("host"),
            status: text("status"),
            locality: text("locality"),
            speculative: text("speculative"),
            straggler: text("straggler"),
            critical: text("critical"),
            longer,
        })
    }

    /// Whether a task fulfils all conditions.
    #[must_use]
    pub fn has(&self, model: &Model, task: &Task) -> bool {
        let is = |wanted: &str, value: bool| match wanted {
            "" => true,
            "yes" => value,
            _ => !value,
        };
        let named = |wanted: &str, names: &[&str], at: u8| {
            wanted.is_empty() || names[usize::from(at)] == wanted
        };
        let key = model.stages[task.stage as usize].key;
        self.stage.is_none_or(|(id, attempt)| {
            key.0 == id && attempt.is_none_or(|attempt| attempt == key.1)
        }) && (self.host.is_empty() || model.executor(task).host == self.host)
            && named(&self.status, &OUTCOMES, task.outcome)
            && named(&self.locality, &LOCALITIES, task.locality)
            && is(&self.speculative, task.speculative)
            && is(&self.straggler, task.straggler)
            && (self.critical.is_empty() || is(&self.critical, model.is_critical(task)))
            && i64::from(task.duration) >= self.longer
    }
}
