//! What a task's own thread waited for, as the kernel of its worker counted it (columns of the workers' table of tasks), and
//! its time in spills and merges, from its spans.

use std::collections::HashMap;

use smtt_model::rows::TASK;
use smtt_store::history::read::Reader;
use smtt_store::history::workers::{FUNCTIONS, TASKS};
use smtt_store::read::ParquetError;

use super::{Files, Trouble, opened, ranges};

/// Task attempts that are kept, and spans that are read. The time line has no more tasks.
const KEPT: usize = 2_000_000;
/// Bytes of texts of a row group.
const TEXT_BYTES: usize = 64 << 20;

/// Waits of a task attempt, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Time in which its thread could run and had no CPU; absent where the kernel does not say.
    pub cpu: Option<u64>,
    /// Time of its page faults; absent where too few of them were measured.
    pub faults: Option<u64>,
    /// Time in spills and merges of 1 ms or more; absent where it has no such span.
    pub spills: Option<u64>,
}

/// Time of spills and merges on tasks' own threads in a row group, with the ids of the tasks.
fn spills(reader: &Reader, first: u64, count: u64) -> Result<Vec<(i64, u64)>, ParquetError> {
    let activities = reader.texts_up_to("activity", &[first..first + count], TEXT_BYTES)?;
    let matters = |it: &Option<String>| matches!(it.as_deref(), Some("spill" | "merge"));
    let mut rows = ranges(activities.iter().map(matters));
    for range in &mut rows {
        *range = range.start + first..range.end + first;
    }
    let ids = reader.numbers("task_id", &rows)?.into_iter();
    let own = reader.numbers("own_ns", &rows)?;
    let threads = reader.texts_up_to("thread", &rows, TEXT_BYTES)?;
    let all = ids.zip(own).zip(threads);
    let all = all.filter(|(_, thread)| thread.as_deref() == Some(TASK));
    let all = all.filter_map(|((id, own), _)| Some((id?, u64::try_from(own?).ok()?)));
    Ok(all.collect())
}

/// Waits by the ids of task attempts.
pub type WaitsOfTasks = HashMap<i64, Waits>;

impl Files {
    /// Waits of the tasks that workers wrote about, and the number of rows that had no place; what the newest daemon
    /// reports counts.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn waits(&self) -> Result<(WaitsOfTasks, u64), Trouble> {
        let (mut all, cut) = self.waits_up_to(KEPT)?;
        self.add_spills(&mut all)?;
        Ok((all, cut))
    }

    fn add_spills(&self, all: &mut WaitsOfTasks) -> Result<(), Trouble> {
        let mut newest: HashMap<i64, (u64, u64)> = HashMap::new();
        let mut left = KEPT as u64;
        for file in self.of_table(FUNCTIONS.name) {
            let Some(reader) = opened(file)? else {
                continue;
            };
            let mut start = 0;
            for &count in reader.groups() {
                let rows = count.min(left);
                left -= rows;
                for (id, ns) in spills(&reader, start, rows)? {
                    let (run, sum) = newest.entry(id).or_default();
                    if file.name.run > *run {
                        (*run, *sum) = (file.name.run, 0);
                    }
                    if file.name.run == *run {
                        *sum = sum.saturating_add(ns);
                    }
                }
                start += count;
            }
        }
        for (id, (_, ns)) in newest {
            if let Some(waits) = all.get_mut(&id) {
                waits.spills = Some(ns);
            }
        }
        Ok(())
    }

    fn waits_up_to(&self, most: usize) -> Result<(WaitsOfTasks, u64), Trouble> {
        let (mut newest, mut cut) = (HashMap::new(), 0);
        for file in self.of_table(TASKS.name) {
            let Some(reader) = opened(file)? else {
                continue;
            };
            let mut start = 0;
            for &count in reader.groups() {
                let rows = [start..start + count];
                start += count;
                let column = |name: &str| reader.numbers(name, &rows).map(Vec::into_iter);
                let ids = column("task_id")?;
                let all = column("cpu_wait_ns")?.zip(column("page_fault_time_ns")?);
                for (id, (cpu, faults)) in ids.zip(all) {
                    let Some(id) = id else {
                        continue;
                    };
                    if newest.len() >= most && !newest.contains_key(&id) {
                        cut += 1;
                        continue;
                    }
                    let of = |value: Option<i64>| value.and_then(|ns| u64::try_from(ns).ok());
                    let waits = Waits {
                        cpu: of(cpu),
                        faults: of(faults),
                        spills: None,
                    };
                    let known = newest.entry(id).or_insert((file.name.run, waits));
                    if file.name.run >= known.0 {
                        *known = (file.name.run, waits);
                    }
                }
            }
        }
        let all = newest.into_iter().map(|(id, (_, waits))| (id, waits));
        Ok((all.collect(), cut))
    }
}

#[cfg(test)]
mod tests {
    use smtt_store::history::batch::{Batch, Cell};
    use smtt_store::history::workers::{Bounds, Whose, Workers};

    use super::*;

    #[test]
    fn the_newest_daemon_counts_and_rows_are_bounded() {
        let folder = tempfile::tempdir().expect("makes a folder");
        let any = Bounds {
            bytes: 1 << 30,
            files: 1 << 20,
        };
        for (run, cpu) in [(20, 5), (10, 4), (30, 6)] {
            let mut workers = Workers::take(folder.path(), "node-1", run, None, any);
            let workers = workers.as_mut().expect("opens");
            let mut batch = Batch::new(&TASKS);
            let (none, zero) = (Cell::None, Cell::Number(0));
            for task in 0..3 {
                let who = [zero, zero, Cell::Number(task), none, Cell::Text("lost")];
                let what = [none, none, none, none, none, Cell::Text("{}")];
                let waits = [Cell::Number(cpu + task), none, none, none];
                batch.push(&[&who[..], &what[..], &waits[..]].concat());
            }
            let done = workers.add(Whose::of("app-1", 7), 0, &batch, &|uid| uid);
            done.expect("writes");
        }
        // Two spans count; one of a helper, one of another activity and those of an older run do not.
        let spans = [
            (30, 1, TASK, "spill", 5_000_000),
            (30, 1, TASK, "merge", 2_000_000),
            (30, 1, "helper", "spill", 1 << 30),
            (30, 1, TASK, "sort", 1 << 30),
            (20, 1, TASK, "spill", 1 << 30),
            (20, 99, TASK, "spill", 1 << 30),
        ];
        for run in [20, 30] {
            let mut batch = Batch::new(&FUNCTIONS);
            for (_, task, thread, activity, own) in spans.iter().filter(|it| it.0 == run) {
                let (none, zero) = (Cell::None, Cell::Number(0));
                let who = [
                    zero,
                    zero,
                    Cell::Number(*task),
                    none,
                    Cell::Text(thread),
                    zero,
                ];
                let what = [
                    Cell::Text(activity),
                    none,
                    none,
                    zero,
                    zero,
                    Cell::Number(*own),
                    none,
                ];
                batch.push(&[&who[..], &what[..]].concat());
            }
            let mut workers =
                Workers::take(folder.path(), "node-1", run, None, any).expect("opens");
            let done = workers.add(Whose::of("app-1", 7), 0, &batch, &|uid| uid);
            done.expect("writes");
        }
        let files = Files::of(folder.path(), ("app-1", None), None, None).expect("lists");
        let (all, cut) = files.waits().expect("reads");
        let spills: Vec<_> = (0..3).map(|id| all[&id].spills).collect();
        assert_eq!(spills, [None, Some(7_000_000), None]);
        let cpu = |id: i64| all.get(&id).map(|it| (it.cpu, it.faults));
        assert_eq!(
            (cpu(0), cpu(2)),
            (Some((Some(6), None)), Some((Some(8), None)))
        );
        assert_eq!((all.len(), cut), (3, 0));
        let (all, cut) = files.waits_up_to(2).expect("reads");
        assert_eq!((all.len(), cut), (2, 3));
    }
}
