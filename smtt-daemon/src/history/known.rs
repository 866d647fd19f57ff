//! What waits for the store of one application, and which of it is written.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use smtt_model::rows::{
    ApplicationKey, COLLECTIONS, ExecutorState, FetchRow, FunctionRow, FunctionsRow, TaskRow,
};
use smtt_store::history::batch::{Batch, Cell};
use smtt_store::history::workers::{FETCHES, FUNCTIONS, TASKS, can_have_files};

/// Bytes of a function or of a fetch that waits, without texts.
const FUNCTION_BYTES: usize = 104;
/// Rounds in which an executor was dead: what the kernel and the marker report of its end has arrived then.
const SETTLED_ROUNDS: u32 = 2;

/// Bytes that wait for the store, by the user whose share they use.
#[derive(Debug, Default)]
pub struct Waiting {
    by_share: BTreeMap<u32, usize>,
    total: usize,
}

impl Waiting {
    /// Adds bytes of a user.
    pub fn add(&mut self, share: u32, bytes: usize) {
        *self.by_share.entry(share).or_default() += bytes;
        self.total += bytes;
    }

    /// Whether a user may have more where all together are to have `limit`: up to its even part always.
    pub fn has_room(&self, share: u32, limit: usize) -> bool {
        let own = self.by_share.get(&share).copied().unwrap_or(0);
        self.total <= limit || own < limit / self.by_share.len().max(1)
    }
}

/// What is known of one application.
pub struct Known {
    /// Whether it can have files: nothing of others is missing in the history.
    pub has_history: bool,
    /// Tasks of each executor that are written or wait, as far as the state has them.
    pub tasks: BTreeMap<u64, BTreeSet<u64>>,
    /// Dead executors, with the rounds that found them dead.
    dead: BTreeMap<u64, u32>,
    /// Executors whose last documents are written.
    pub ended: BTreeSet<u64>,
    pub waiting: Batch,
    /// Number of the part that they become, once it was tried: another try replaces what the first one left.
    pub part: Option<u32>,
    /// The same of the last documents of ended executors.
    pub ended_part: Option<u32>,
    /// Functions of those that wait.
    pub functions: Batch,
    /// Requests for shuffle blocks of those that wait.
    pub fetches: Batch,
    pub rows: u64,
    pub lost: u64,
    /// Executors that went before their last documents were written.
    pub executors_lost: u64,
    /// Last documents of ended executors that had no room.
    pub left_out: u64,
    /// Executors with their states, and deaths, at the last write.
    pub written: Option<(BTreeMap<u64, ExecutorState>, usize)>,
    pub last: Option<Instant>,
    /// How long the last write took.
    pub took: Duration,
    pub is_here: bool,
}

impl Known {
    pub fn of(application: &ApplicationKey) -> Self {
        let id = application.id.as_deref().unwrap_or_default();
        Self {
            has_history: can_have_files(id, application.attempt.as_deref()),
            tasks: BTreeMap::new(),
            waiting: Batch::new(&TASKS),
            part: None,
            ended_part: None,
            functions: Batch::new(&FUNCTIONS),
            fetches: Batch::new(&FETCHES),
            dead: BTreeMap::new(),
            ended: BTreeSet::new(),
            rows: 0,
            lost: 0,
            executors_lost: 0,
            left_out: 0,
            written: None,
            last: None,
            took: Duration::ZERO,
            is_here: true,
        }
    }

    /// Takes in the states of the executors that are here, once a round. Returns how many have gone, so that `is_there` is
    /// false, without their last documents.
    pub fn see(
        &mut self,
        states: &BTreeMap<u64, ExecutorState>,
        is_there: impl Fn(u64) -> bool,
    ) -> u64 {
        let gone = self.tasks.keys();
        let gone = gone.filter(|key| self.has_history && !is_there(**key));
        let lost = gone.filter(|key| !self.ended.contains(key)).count() as u64;
        self.executors_lost += lost;
        self.tasks.retain(|key, _| states.contains_key(key));
        self.ended.retain(|key| states.contains_key(key));
        self.dead.retain(|key, _| states.contains_key(key));
        for (key, state) in states {
            if *state == ExecutorState::Dead {
                *self.dead.entry(*key).or_default() += 1;
            }
        }
        lost
    }

    /// Dead executors whose last documents are not written: their rows will not change any more.
    pub fn settled(&self) -> BTreeSet<u64> {
        let settled = self.dead.iter();
        let settled = settled.filter(|(_, rounds)| **rounds > SETTLED_ROUNDS);
        let keys = settled.map(|(key, _)| *key);
        keys.filter(|key| !self.ended.contains(key)).collect()
    }

    /// Bytes of what waits, nearly.
    pub fn waiting_bytes(&self) -> usize {
        let parts = [&self.functions, &self.fetches];
        let parts = parts.map(|it| it.text_bytes() + it.len() * FUNCTION_BYTES);
        self.waiting.text_bytes() + parts.iter().sum::<usize>()
    }

    /// Adds an ended task with its functions and fetches.
    pub fn push(&mut self, mut row: TaskRow, boot_unix_ns: u64) {
        let (spans, fetches) = match &mut row.functions {
            Some(functions) => (
                std::mem::take(&mut functions.spans),
                std::mem::take(&mut functions.fetches),
            ),
            None => (Vec::new(), Vec::new()),
        };
        let begin = row.functions.as_ref().map_or(0, |it| it.begin_ns);
        let begin_ns = boot_unix_ns.saturating_add(begin);
        for span in &spans {
            push_function(&mut self.functions, &row, span, begin_ns);
        }
        for fetch in &fetches {
            push_fetch(&mut self.fetches, &row, fetch, begin_ns);
        }
        push(&mut self.waiting, &row);
    }

    /// Nothing waits any more.
    pub fn clear(&mut self) {
        self.waiting = Batch::new(&TASKS);
        self.functions = Batch::new(&FUNCTIONS);
        self.fetches = Batch::new(&FETCHES);
    }
}

/// Leaves out the requests and the pauses of a task; their sums stay, and say how many are missing.
pub fn leave_out(functions: &mut FunctionsRow) {
    let requests = std::mem::take(&mut functions.fetches).len() as u64;
    if let Some(fetched) = &mut functions.fetched {
        fetched.left_out += requests;
    }
    let spans = functions.spans.len();
    functions.spans.retain(|span| span.thread != COLLECTIONS);
    if let Some(paused) = &mut functions.paused {
        paused.left_out += (spans - functions.spans.len()) as u64;
    }
}

fn number(value: Option<u64>) -> Cell<'static> {
    Cell::optional(value.map(|value| i64::try_from(value).unwrap_or(i64::MAX)))
}

fn optional(text: Option<&str>) -> Cell<'_> {
    text.map_or(Cell::None, Cell::Text)
}

/// Adds a span of a task that began at `begin_ns` since 1970 as a row of [`FUNCTIONS`].
fn push_function(batch: &mut Batch, row: &TaskRow, span: &FunctionRow, begin_ns: u64) {
    batch.push(&[
        number(row.stage_id.map(u64::from)),
        number(row.stage_attempt.map(u64::from)),
        number(row.task_attempt_id),
        optional(row.who.executor_id.as_deref()),
        Cell::Text(&span.thread),
        number(Some(span.tid.into())),
        Cell::Text(&span.activity),
        optional(span.function.as_deref()),
        number(Some(begin_ns.saturating_add(span.begin_ns) / 1000)),
        number(Some(span.begin_ns)),
        number(Some(span.duration_ns)),
        number(Some(span.own_ns)),
        number(span.rdd_id.map(u64::from)),
    ]);
}

/// Adds a request of a task that began at `begin_ns` since 1970 as a row of [`FETCHES`].
fn push_fetch(batch: &mut Batch, row: &TaskRow, fetch: &FetchRow, begin_ns: u64) {
    batch.push(&[
        number(row.stage_id.map(u64::from)),
        number(row.stage_attempt.map(u64::from)),
        number(row.task_attempt_id),
        optional(row.who.executor_id.as_deref()),
        optional(fetch.address.as_deref()),
        optional(fetch.executor_id.as_deref()),
        number(Some(begin_ns.saturating_add(fetch.begin_ns) / 1000)),
        number(Some(fetch.begin_ns)),
        number(Some(fetch.duration_ns)),
        number(Some(fetch.blocks)),
        number(Some(fetch.bytes)),
        Cell::Text(&fetch.outcome),
    ]);
}

/// Adds a task as a row of [`TASKS`].
fn push(batch: &mut Batch, row: &TaskRow) {
    let Ok(json) = serde_json::to_string(row) else {
        return;
    };
    let state = serde_json::to_value(row.state).unwrap_or_default();
    batch.push(&[
        number(row.stage_id.map(u64::from)),
        number(row.stage_attempt.map(u64::from)),
        number(row.task_attempt_id),
        optional(row.who.executor_id.as_deref()),
        Cell::Text(state.as_str().unwrap_or_default()),
        number(row.duration_ns),
        number(row.faults.page_faults),
        number(Some(row.execution_memory_peak_bytes)),
        number(row.used.cpu_ns),
        number(row.used.heap_allocated_bytes),
        Cell::Text(&json),
        number(row.used.cpu_wait_ns),
        number(row.faults.page_faults_major),
        number(row.faults.page_fault_time_ns),
        number(row.faults.page_fault_time_error_ns),
    ]);
}

#[cfg(test)]
mod tests {
    use smtt_model::rows::{FetchedRow, PausedRow};

    use super::*;

    #[test]
    fn what_is_left_out_of_a_task_is_counted() {
        let span = |thread: &str| FunctionRow {
            thread: thread.to_owned(),
            ..FunctionRow::default()
        };
        let mut functions = FunctionsRow {
            spans: vec![span("task"), span(COLLECTIONS), span(COLLECTIONS)],
            fetches: vec![FetchRow::default()],
            fetched: Some(FetchedRow {
                left_out: 4,
                ..FetchedRow::default()
            }),
            paused: Some(PausedRow {
                pauses: 7,
                left_out: 5,
                ..PausedRow::default()
            }),
            ..FunctionsRow::default()
        };
        leave_out(&mut functions);
        assert_eq!(functions.spans, [span("task")]);
        assert_eq!(functions.fetches, []);
        assert_eq!(functions.fetched.map(|it| it.left_out), Some(5));
        assert_eq!(functions.paused.map(|it| it.left_out), Some(7));
    }

    #[test]
    fn users_that_wait_leave_others_their_even_part() {
        let mut waiting = Waiting::default();
        waiting.add(1, 1_000);
        assert!(waiting.has_room(1, 1_000) && waiting.has_room(2, 1_000));
        waiting.add(1, 1);
        assert!(!waiting.has_room(1, 1_000), "it has more than the limit");
        assert!(waiting.has_room(2, 1_000), "another one has nothing");
        waiting.add(2, 499);
        assert!(waiting.has_room(2, 1_000) && !waiting.has_room(1, 1_000));
        waiting.add(2, 1);
        assert!(!waiting.has_room(2, 1_000), "both have at least their part");
    }
}
