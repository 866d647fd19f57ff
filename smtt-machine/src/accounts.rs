//! The kernel's accounts of one thread, as `/proc` shows them: the same accounts that the kernel side reads from the
//! `task_struct` at the begin and at the end of a task.

use std::io;

use smtt_common::event::used::{
    ACCOUNTS, CALL_READ_BYTES, CALL_WRITTEN_BYTES, CPU_NS, CPU_WAIT_NS, DISK_READ_BYTES,
    DISK_WAIT_NS, DISK_WRITTEN_BYTES, FAULTS_MAJOR, FAULTS_MINOR, SWITCHES_INVOLUNTARY,
    SWITCHES_VOLUNTARY,
};

use crate::proc::Handle;

/// Nanoseconds of a clock tick in `/proc/PID/stat`: USER_HZ is 100 on every architecture of Linux but alpha.
const TICK_NS: u64 = 10_000_000;

/// Accounts of a thread since it began; absent where the kernel does not show one, and those of the kernel side itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accounts(pub [Option<u64>; ACCOUNTS]);

impl Accounts {
    /// Reads the accounts of a thread of a process.
    ///
    /// # Errors
    /// When the thread has ended.
    pub fn of(process: &Handle, tid: u32) -> io::Result<Self> {
        let mut all = Self::default();
        let read = |name: &str| process.read(&format!("task/{tid}/{name}"));
        all.take_stat(&read("stat")?);
        // A kernel without scheduler statistics, or a daemon that may not read another user's `io`.
        all.take_schedstat(&read("schedstat").unwrap_or_default());
        all.take_named(
            &read("status").unwrap_or_default(),
            &[
                ("voluntary_ctxt_switches:", SWITCHES_VOLUNTARY),
                ("nonvoluntary_ctxt_switches:", SWITCHES_INVOLUNTARY),
            ],
        );
        all.take_named(
            &read("io").unwrap_or_default(),
            &[
                ("rchar:", CALL_READ_BYTES),
                ("wchar:", CALL_WRITTEN_BYTES),
                ("read_bytes:", DISK_READ_BYTES),
                ("write_bytes:", DISK_WRITTEN_BYTES),
            ],
        );
        Ok(all)
    }

    fn take_stat(&mut self, text: &str) {
        // The name in brackets may hold anything; the state after it is the third field of the file.
        let Some((_, rest)) = text.rsplit_once(") ") else {
            return;
        };
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        self.0[FAULTS_MINOR] = field(10);
        self.0[FAULTS_MAJOR] = field(12);
        self.0[DISK_WAIT_NS] = field(42).map(|ticks| ticks.saturating_mul(TICK_NS));
    }

    fn take_schedstat(&mut self, text: &str) {
        let mut numbers = text.split_whitespace().map_while(|word| word.parse().ok());
        self.0[CPU_NS] = numbers.next();
        self.0[CPU_WAIT_NS] = numbers.next();
    }

    fn take_named(&mut self, text: &str, names: &[(&str, usize)]) {
        for line in text.lines() {
            for (name, account) in names {
                if let Some(number) = line.strip_prefix(name) {
                    self.0[*account] = number.trim().parse().ok();
                }
            }
        }
    }

    /// The growth since an earlier reading, which has the accounts whose bits are in `present`, and the bits of what both
    /// have. An account that fell is another one, as that of a kernel without scheduler statistics: it is absent.
    #[must_use]
    pub fn since(&self, before: &[u64; ACCOUNTS], present: u32) -> ([u64; ACCOUNTS], u32) {
        let (mut grown, mut both) = ([0; ACCOUNTS], 0);
        for account in 0..ACCOUNTS {
            let Some(now) = self.0[account].filter(|_| present & 1 << account != 0) else {
                continue;
            };
            let growth = match now.checked_sub(before[account]) {
                Some(growth) => growth,
                // Here the account is in ticks, and the earlier reading is exact.
                None if account == DISK_WAIT_NS => 0,
                None => continue,
            };
            grown[account] = growth;
            both |= 1 << account;
        }
        (grown, both)
    }
}

/// Virtual and resident memory of a process, in bytes; absent where it has none.
#[must_use]
pub fn memory(process: &Handle) -> (Option<u64>, Option<u64>) {
    let text = process.read("statm").unwrap_or_default();
    let page_bytes = procfs::page_size();
    let mut pages = text
        .split_whitespace()
        .map_while(|word| word.parse::<u64>().ok())
        .map(|pages| pages.saturating_mul(page_bytes));
    (pages.next(), pages.next())
}

#[cfg(test)]
mod tests {
    use smtt_common::event::used::KERNEL_ACCOUNTS;

    use super::*;

    fn own() -> (Handle, u32) {
        let process = Handle::open(std::process::id()).expect("this process");
        // SAFETY: gettid(2) has no arguments and cannot fail.
        (process, unsafe { libc::gettid() } as u32)
    }

    #[test]
    fn the_accounts_of_the_own_thread_grow_with_its_work() {
        let (process, tid) = own();
        let before = Accounts::of(&process, tid).expect("read");
        let (kernel, own) = before.0.split_at(KERNEL_ACCOUNTS);
        assert!(kernel.iter().all(Option::is_some), "{before:?}");
        assert!(own.iter().all(Option::is_none), "{before:?}");
        let begin = before.0.map(Option::unwrap_or_default);
        let memory = vec![1_u8; 64 << 20];
        std::fs::read("/proc/self/maps").expect("read");
        std::thread::sleep(std::time::Duration::from_millis(2));
        let all = (1 << ACCOUNTS) - 1;
        let after = Accounts::of(&process, tid).expect("read");
        let (grown, both) = after.since(&begin, all);
        assert_eq!(both, (1 << KERNEL_ACCOUNTS) - 1);
        assert!(grown[CPU_NS] > 100_000, "{grown:?}");
        assert!(grown[FAULTS_MINOR] > 10, "{grown:?}");
        assert!(grown[CALL_READ_BYTES] > 1000, "{grown:?}");
        assert!(grown[SWITCHES_VOLUNTARY] > 0, "{grown:?}");
        assert!(memory.iter().all(|byte| *byte == 1));
    }

    #[test]
    fn what_was_absent_at_the_begin_or_fell_is_absent() {
        let mut now = Accounts([Some(10); ACCOUNTS]);
        now.0[CPU_WAIT_NS] = None;
        let mut before = [4; ACCOUNTS];
        (before[FAULTS_MINOR], before[DISK_WAIT_NS]) = (11, 12_000);
        let present = ((1 << ACCOUNTS) - 1) & !(1 << DISK_READ_BYTES);
        let (grown, both) = now.since(&before, present);
        let absent = [CPU_WAIT_NS, FAULTS_MINOR, DISK_READ_BYTES];
        for (account, growth) in grown.into_iter().enumerate() {
            let there = !absent.contains(&account);
            assert_eq!(both & 1 << account != 0, there, "{account}");
            let expected = if there && account != DISK_WAIT_NS {
                6
            } else {
                0
            };
            assert_eq!(growth, expected, "{account}");
        }
    }

    #[test]
    fn a_name_may_look_like_fields() {
        let mut all = Accounts::default();
        all.take_stat("7 (x) 1 2 3 ) R 1 1 1 0 -1 4194560 55 0 6 0 1 1 0");
        assert_eq!(
            (all.0[FAULTS_MINOR], all.0[FAULTS_MAJOR]),
            (Some(55), Some(6))
        );
        assert_eq!(all.0[DISK_WAIT_NS], None);
    }

    #[test]
    fn the_memory_of_a_process_is_read() {
        let (virtual_bytes, resident_bytes) = memory(&own().0);
        assert!(virtual_bytes > resident_bytes && resident_bytes > Some(1 << 20));
    }
}
