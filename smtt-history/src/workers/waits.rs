//! What a task's own thread waited for, as the kernel of its worker counted it: columns of the workers' table of tasks.

use std::collections::HashMap;

use smtt_store::history::workers::TASKS;

use super::{Files, Trouble, opened};

/// Task attempts that are kept. The time line has no more.
const KEPT: usize = 2_000_000;

/// Waits of a task attempt, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Time in which its thread could run and had no CPU; absent where the kernel does not say.
    pub cpu: Option<u64>,
    /// Time of its page faults; absent where too few of them were measured.
    pub faults: Option<u64>,
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
        self.waits_up_to(KEPT)
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
        let files = Files::of(folder.path(), ("app-1", None), None, None).expect("lists");
        let (all, cut) = files.waits().expect("reads");
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
