//! What tasks waited for, added up by stage attempt: waits for a CPU and time of page faults, as the kernel of a task's worker
//! counted them (columns of the workers' table of tasks), and time in spills and merges, from the spans of its own thread.

use std::sync::Arc;

use smtt_model::rows::TASK;
use smtt_store::history::read::Reader;
use smtt_store::history::workers::{FUNCTIONS, TASKS};
use smtt_store::read::ParquetError;

use super::memory::read::state;
use super::model::Model;
use crate::open::App;
use crate::serve::routes::Parameters;
use crate::serve::{Refusal, Server};
use crate::workers::{Files, Trouble, opened, ranges};

/// Spans that are looked at; the activities of further ones are not read.
const SPANS: u64 = 16_000_000;
/// Bytes of texts of a row group.
const TEXT_BYTES: usize = 64 << 20;
/// A figure that is not there.
const ABSENT: u64 = u64::MAX;

/// What workers saw of the tasks of a stage attempt or of a job, added up. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// Tasks that workers wrote about.
    pub seen: Option<i64>,
    /// Time in which their threads could run and had no CPU; absent where the kernels do not say.
    pub cpu: Option<i64>,
    /// Time of their page faults, of tasks of which enough were measured.
    pub faults: Option<i64>,
    /// Time in spills and merges of 1 ms or more, without the spans inside of them.
    pub spills: Option<i64>,
}

impl Waited {
    /// Adds what others waited.
    pub fn add(&mut self, more: Self) {
        for (sum, more) in [
            (&mut self.seen, more.seen),
            (&mut self.cpu, more.cpu),
            (&mut self.faults, more.faults),
            (&mut self.spills, more.spills),
        ] {
            if let Some(more) = more {
                *sum = Some(sum.unwrap_or(0).saturating_add(more));
            }
        }
    }
}

/// Waits of all stage attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// By the index of the stage attempt in the model.
    pub stages: Vec<Waited>,
    /// Spans that were not looked at.
    pub spans_left_out: u64,
}

impl Waits {
    /// Bytes that it takes in a cache.
    pub(crate) fn bytes(&self) -> usize {
        self.stages.len() * size_of::<Waited>() + 1024
    }
}

/// A task's figures while files are read. The newest daemon that wrote about it counts; 0 is before all of them.
#[derive(Clone, Copy)]
struct Seen {
    run: u64,
    cpu: u64,
    faults: u64,
    spills_run: u64,
    spills: u64,
}

const UNSEEN: Seen = Seen {
    run: 0,
    cpu: ABSENT,
    faults: ABSENT,
    spills_run: 0,
    spills: 0,
};

/// The model's tasks by their ids, while files are read.
struct Tasks<'a> {
    model: &'a Model,
    by_id: Vec<(i64, u32)>,
    seen: Vec<Seen>,
}

impl<'a> Tasks<'a> {
    fn new(model: &'a Model) -> Self {
        let ids = (0..).zip(&model.tasks).map(|(at, task)| (task.id, at));
        let mut by_id: Vec<(i64, u32)> = ids.collect();
        by_id.sort_unstable();
        Self {
            model,
            seen: vec![UNSEEN; by_id.len()],
            by_id,
        }
    }

    /// The task of a row. Attempts of one application whose marker names no attempt share the workers' files, and their
    /// tasks have the same ids: the executor tells them apart.
    fn of(&mut self, id: i64, executor: Option<&str>) -> Option<&mut Seen> {
        let from = self.by_id.partition_point(|(known, _)| *known < id);
        let same = self.by_id[from..]
            .iter()
            .take_while(|(known, _)| *known == id);
        let is_its = |at: &u32| {
            let own = &self.model.executor(&self.model.tasks[*at as usize]).id;
            executor.is_none_or(|executor| executor == own)
        };
        let at = same.map(|(_, at)| *at).find(is_its)?;
        self.seen.get_mut(at as usize)
    }

    fn read_tasks(&mut self, reader: &Reader, run: u64) -> Result<(), ParquetError> {
        let mut start = 0;
        for &count in reader.groups() {
            let rows = [start..start + count];
            start += count;
            let column = |name: &str| reader.numbers(name, &rows).map(Vec::into_iter);
            let who = column("task_id")?;
            let who = who.zip(reader.texts_up_to("executor_id", &rows, TEXT_BYTES)?);
            let figures = column("cpu_wait_ns")?.zip(column("page_fault_time_ns")?);
            for ((id, executor), (cpu, faults)) in who.zip(figures) {
                let Some(seen) = id.and_then(|id| self.of(id, executor.as_deref())) else {
                    continue;
                };
                if run >= seen.run {
                    let of =
                        |value: Option<i64>| value.map_or(ABSENT, |ns| ns.max(0).cast_unsigned());
                    (seen.run, seen.cpu, seen.faults) = (run, of(cpu), of(faults));
                }
            }
        }
        Ok(())
    }

    /// Reads so many spans at most, and takes them from `left`. Returns the number of the others.
    fn read_spans(
        &mut self,
        reader: &Reader,
        run: u64,
        left: &mut u64,
    ) -> Result<u64, ParquetError> {
        let (mut start, mut left_out) = (0, 0);
        for &count in reader.groups() {
            let looked = count.min(*left);
            *left -= looked;
            left_out += count - looked;
            let group = [start..start + looked];
            let matters = |activity: &[u8]| matches!(activity, b"spill" | b"merge");
            let matters = reader.texts_as("activity", &group, &matters)?;
            let mut rows = ranges(matters.into_iter().map(|it| it == Some(true)));
            for range in &mut rows {
                *range = range.start + start..range.end + start;
            }
            start += count;
            let texts = |name: &str| reader.texts_up_to(name, &rows, TEXT_BYTES);
            let who = reader.numbers("task_id", &rows)?.into_iter();
            let who = who.zip(texts("executor_id")?).zip(texts("thread")?);
            let own = reader.numbers("own_ns", &rows)?;
            for (((id, executor), thread), own) in who.zip(own) {
                if thread.as_deref() != Some(TASK) {
                    continue;
                }
                let Some(seen) = id.and_then(|id| self.of(id, executor.as_deref())) else {
                    continue;
                };
                if run > seen.spills_run {
                    (seen.spills_run, seen.spills) = (run, 0);
                }
                if run == seen.spills_run {
                    let own = own.unwrap_or(0).max(0).cast_unsigned();
                    seen.spills = seen.spills.saturating_add(own);
                }
            }
        }
        Ok(left_out)
    }

    /// Sums over the tasks of each stage attempt.
    fn sums(&self) -> Vec<Waited> {
        let figure = |ns: u64| (ns != ABSENT).then(|| i64::try_from(ns).unwrap_or(i64::MAX));
        let mut all = vec![Waited::default(); self.model.stages.len()];
        for (task, seen) in self.model.tasks.iter().zip(&self.seen) {
            // A task without a row has no spans that anybody asked for.
            if seen.run > 0 {
                all[task.stage as usize].add(Waited {
                    seen: Some(1),
                    cpu: figure(seen.cpu),
                    faults: figure(seen.faults),
                    spills: (seen.spills_run > 0)
                        .then_some(seen.spills)
                        .and_then(figure),
                });
            }
        }
        all
    }
}

/// Waits of the tasks that workers wrote about.
///
/// # Errors
/// When a file cannot be read.
pub fn read(files: &Files, model: &Model) -> Result<Waits, Trouble> {
    read_up_to(SPANS, files, model)
}

fn read_up_to(mut left: u64, files: &Files, model: &Model) -> Result<Waits, Trouble> {
    if files.all().is_empty() {
        return Ok(Waits {
            stages: vec![Waited::default(); model.stages.len()],
            spans_left_out: 0,
        });
    }
    let mut tasks = Tasks::new(model);
    for file in files.of_table(TASKS.name) {
        if let Some(reader) = opened(file)? {
            tasks.read_tasks(&reader, file.name.run)?;
        }
    }
    let mut spans_left_out = 0;
    for file in files.of_table(FUNCTIONS.name) {
        if let Some(reader) = opened(file)? {
            spans_left_out += tasks.read_spans(&reader, file.name.run, &mut left)?;
        }
    }
    Ok(Waits {
        stages: tasks.sums(),
        spans_left_out,
    })
}

impl Server {
    /// Waits of an application's stages, from the cache or the workers' files.
    pub(crate) fn waits(
        &self,
        app: &App,
        model: &Model,
        parameters: &Parameters,
    ) -> Result<Arc<Waits>, Refusal> {
        let user = parameters.one("user").map(str::parse).transpose();
        let user = user.map_err(|_| Refusal::bad("user is no number"))?;
        let host = parameters.one("host");
        let files = Files::of(&self.settings.store, app.identity(), user, host)?;
        let key = (app.state_key(), state(&files));
        let made = self.waits.try_get_with(key, || -> Result<_, Refusal> {
            Ok(Arc::new(read(&files, model)?))
        });
        made.map_err(|refusal| (*refusal).clone())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use smtt_store::history::batch::{Batch, Cell};
    use smtt_store::history::workers::{Bounds, Whose, Workers};

    use super::*;
    use crate::made::{Made, Stage, Task};

    const MS: i64 = 1_000_000;

    /// Writes a table of one run of a daemon.
    fn write(store: &Path, run: u64, batch: &Batch) {
        let any = Bounds {
            bytes: 1 << 30,
            files: 1 << 20,
        };
        let workers = Workers::take(store, "node-1", run, None, any);
        let done = workers
            .expect("opens")
            .add(Whose::of("app-1", 7), 0, batch, &|uid| uid);
        done.expect("writes");
    }

    /// Rows of tasks: id, executor and wait for a CPU.
    fn tasks(rows: &[(i64, &str, i64)]) -> Batch {
        let mut batch = Batch::new(&TASKS);
        let (none, zero) = (Cell::None, Cell::Number(0));
        for (task, executor, cpu) in rows {
            let id = Cell::Number(*task);
            let who = [zero, zero, id, Cell::Text(executor), Cell::Text("lost")];
            let what = [none, none, none, none, none, Cell::Text("{}")];
            let waits = [Cell::Number(*cpu), none, none, none];
            batch.push(&[&who[..], &what[..], &waits[..]].concat());
        }
        batch
    }

    /// Rows of spans: task, executor, thread, activity and own time.
    fn spans(rows: &[(i64, &str, &str, &str, i64)]) -> Batch {
        let mut batch = Batch::new(&FUNCTIONS);
        let (none, zero) = (Cell::None, Cell::Number(0));
        for (task, executor, thread, activity, own) in rows {
            let (id, thread) = (Cell::Number(*task), Cell::Text(thread));
            let who = [zero, zero, id, Cell::Text(executor), thread, zero];
            let activity = Cell::Text(activity);
            let what = [activity, none, none, zero, zero, Cell::Number(*own), none];
            batch.push(&[&who[..], &what[..]].concat());
        }
        batch
    }

    #[test]
    fn the_newest_daemon_and_the_executor_of_the_attempt_count() {
        let folder = tempfile::tempdir().expect("makes a folder");
        let stages = vec![
            Stage::new("map", vec![Task::new(100, 1); 3]),
            Stage::new("collect", vec![Task::new(100, 1)]),
        ];
        let app = Made::new("app-1", stages).open(folder.path());
        let model = Model::read(&app).expect("reads");
        let of = |id: i64| {
            let task = model.tasks.iter().find(|task| task.id == id);
            model.executor(task.expect("is there")).id.clone()
        };
        let executors = [0, 1, 2, 3].map(of);
        let [first, second, third, last] = executors.each_ref().map(String::as_str);
        let store = tempfile::tempdir().expect("makes a folder");
        for run in [20, 10, 30] {
            let ms = i64::try_from(run).expect("is small") * MS;
            let mut rows = vec![(0, first, ms), (1, second, ms), (2, third, ms)];
            // Another attempt of the application, whose workers share the folder: other executors, the same ids.
            rows.extend([(0, "other", 900 * MS), (3, "other", 900 * MS)]);
            write(store.path(), run, &tasks(&rows));
        }
        write(
            store.path(),
            20,
            &spans(&[
                (1, second, TASK, "spill", 400 * MS),
                (2, third, TASK, "merge", 3 * MS),
            ]),
        );
        let newest = [
            (1, second, TASK, "spill", 5 * MS),
            (1, second, TASK, "merge", 2 * MS),
            (1, second, "helper", "spill", 500 * MS),
            (1, second, TASK, "sort", 500 * MS),
            (1, "other", TASK, "spill", 500 * MS),
            (99, second, TASK, "spill", 500 * MS),
            (3, last, TASK, "spill", 500 * MS),
        ];
        write(store.path(), 30, &spans(&newest));
        let files = Files::of(store.path(), ("app-1", None), None, None).expect("lists");
        let waits = read(&files, &model).expect("reads");
        let map = Waited {
            seen: Some(3),
            cpu: Some(90 * MS),
            faults: None,
            spills: Some(10 * MS),
        };
        // No worker wrote about the task of the second stage: its span alone is no task that was seen.
        assert_eq!(waits.stages, [map, Waited::default()]);
        assert_eq!(waits.spans_left_out, 0);
        let waits = read_up_to(4, &files, &model).expect("reads");
        assert_eq!(waits.spans_left_out, 5, "of nine");
    }
}
