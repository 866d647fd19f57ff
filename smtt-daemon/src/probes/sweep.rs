//! What stays in the kernel side's tables although its process is gone. Hooks remove rows at once, and a record reports
//! the end of an executor; but a full ring loses that record, and the daemon may add a row just after the end. A row that
//! lacks its process at two readings one after the other belongs to none: a new executor has its totals a moment before
//! its process has a row.

use std::collections::{BTreeMap, BTreeSet};

use smtt_common::settings::executor_pid;
use smtt_model::sort::small::Gather as _;

/// Most threads whose rows are removed at one reading.
const THREADS_MAX: usize = 256;

/// What lacked its process at the last reading.
#[derive(Debug, Default)]
pub struct Sweep {
    executors: BTreeSet<u64>,
    threads: BTreeMap<u32, u64>,
}

impl Sweep {
    /// The executors with totals that lack a process at this reading and lacked it at the last one. Takes those out that
    /// lack it and have another key of the same process beside them: of two threads that describe their process at once,
    /// one makes a key and takes it back. Reported, that would be a later executor.
    pub fn executors<T>(
        &mut self,
        living: &BTreeSet<u64>,
        counted: &mut Vec<(u64, T)>,
    ) -> Vec<u64> {
        let mut keys: BTreeMap<u32, u32> = BTreeMap::new();
        for (key, _) in &*counted {
            *keys.entry(executor_pid(*key)).or_default() += 1;
        }
        let all = counted.iter().map(|(key, _)| *key);
        let lacking: BTreeSet<u64> = all.filter(|key| !living.contains(key)).gather();
        counted.retain(|(key, _)| !lacking.contains(key) || keys[&executor_pid(*key)] == 1);
        let gone = lacking.intersection(&self.executors).copied().collect();
        self.executors = lacking;
        gone
    }

    /// The threads, by thread id and executor, whose executor lacks a process at this reading and lacked it at the last
    /// one; at most [`THREADS_MAX`], the others come with the next readings.
    pub fn threads(&mut self, living: &BTreeSet<u64>, rows: &[(u32, u64)]) -> Vec<(u32, u64)> {
        let rows = rows.iter().copied();
        let lacking: BTreeMap<u32, u64> = rows.filter(|(_, key)| !living.contains(key)).gather();
        let before = std::mem::replace(&mut self.threads, lacking);
        let gone = self
            .threads
            .iter()
            .filter(|(tid, key)| before.get(tid) == Some(key));
        gone.map(|(tid, key)| (*tid, *key))
            .take(THREADS_MAX)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use smtt_common::settings::executor_key;

    use super::*;

    #[test]
    fn an_executor_is_gone_at_the_second_reading_without_a_process() {
        let mut sweep = Sweep::default();
        let living = |keys: &[u64]| keys.iter().copied().collect();
        let mut read = |alive: &[u64]| {
            let mut counted = vec![(1, ()), (2, ()), (3, ())];
            let gone = sweep.executors(&living(alive), &mut counted);
            assert_eq!(counted.len(), 3);
            gone
        };
        assert_eq!(read(&[1, 2]), [] as [u64; 0], "3 may be on its way");
        assert_eq!(read(&[1, 3]), [] as [u64; 0], "3 has come");
        assert_eq!(read(&[1, 3]), [2]);
        assert_eq!(read(&[3]), [2], "until its totals are removed");
        assert_eq!(read(&[3]), [1, 2]);
    }

    #[test]
    fn a_key_that_a_thread_takes_back_is_not_reported() {
        let [real, back, other, lone] =
            [(7, 100), (7, 101), (8, 100), (9, 100)].map(|(pid, second)| executor_key(pid, second));
        let reported = |living: &[u64]| -> BTreeSet<u64> {
            let mut counted = [real, back, other, lone].map(|key| (key, ())).to_vec();
            Sweep::default().executors(&living.iter().copied().collect(), &mut counted);
            counted.into_iter().map(|(key, ())| key).collect()
        };
        // The lone one may have ended already.
        assert_eq!(reported(&[real, other]), [real, other, lone].into());
        assert_eq!(
            reported(&[other]),
            [other, lone].into(),
            "neither has its process yet"
        );
    }

    #[test]
    fn threads_without_a_process_are_removed_in_portions() {
        let mut sweep = Sweep::default();
        let living = BTreeSet::from([7]);
        let mut rows: Vec<(u32, u64)> = (0..600).map(|tid| (tid, 5)).collect();
        rows.push((1000, 7));
        assert!(sweep.threads(&living, &rows).is_empty());
        // A row of another executor meanwhile.
        rows[3].1 = 6;
        for left in [600 - 256, 600 - 512, 0] {
            let gone = sweep.threads(&living, &rows);
            assert!(gone.len() <= THREADS_MAX && !gone.contains(&(1000, 7)));
            assert!(!gone.contains(&(3, 5)));
            rows.retain(|row| !gone.contains(row));
            assert_eq!(rows.len(), left + 1);
        }
    }
}
