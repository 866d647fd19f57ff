//! What stays in the kernel side's tables although its process is gone. Hooks remove rows at once, and a record reports
//! the end of an executor; but a full ring loses that record, and the daemon may add a row just after the end. A row that
//! lacks its process at two readings one after the other belongs to none: a new executor has its totals a moment before
//! its process has a row.

use std::collections::{BTreeMap, BTreeSet};

/// Most threads whose rows are removed at one reading.
const THREADS_MAX: usize = 256;

/// What lacked its process at the last reading.
#[derive(Debug, Default)]
pub struct Sweep {
    executors: BTreeSet<u64>,
    threads: BTreeMap<u32, u64>,
}

impl Sweep {
    /// The executors with totals that lack a process at this reading and lacked it at the last one.
    pub fn executors(
        &mut self,
        living: &BTreeSet<u64>,
        counted: impl Iterator<Item = u64>,
    ) -> Vec<u64> {
        let lacking: BTreeSet<u64> = counted.filter(|key| !living.contains(key)).collect();
        let gone = lacking.intersection(&self.executors).copied().collect();
        self.executors = lacking;
        gone
    }

    /// The threads, by thread id and executor, whose executor lacks a process at this reading and lacked it at the last
    /// one; at most [`THREADS_MAX`], the others come with the next readings.
    pub fn threads(&mut self, living: &BTreeSet<u64>, rows: &[(u32, u64)]) -> Vec<(u32, u64)> {
        let rows = rows.iter().copied();
        let lacking: BTreeMap<u32, u64> = rows.filter(|(_, key)| !living.contains(key)).collect();
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
    use super::*;

    #[test]
    fn an_executor_is_gone_at_the_second_reading_without_a_process() {
        let mut sweep = Sweep::default();
        let living = |keys: &[u64]| keys.iter().copied().collect();
        let mut read = |alive: &[u64]| sweep.executors(&living(alive), 1..=3);
        assert_eq!(read(&[1, 2]), [] as [u64; 0], "3 may be on its way");
        assert_eq!(read(&[1, 3]), [] as [u64; 0], "3 has come");
        assert_eq!(read(&[1, 3]), [2]);
        assert_eq!(read(&[3]), [2], "until its totals are removed");
        assert_eq!(read(&[3]), [1, 2]);
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
