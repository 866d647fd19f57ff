//! Reports in advance: a daemon that starts after a power cut, or after an end of its own, reports the executors that the
//! one before watched and that are gone.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::Duration;

use smtt_machine::memory::is_there;
use smtt_model::postmortem::{InAdvance, LeftBehind, Report};
use smtt_model::state::Child;
use smtt_store::reports::{IN_ADVANCE_BYTES, length};

/// Time between two writes.
pub const EVERY: Duration = Duration::from_secs(30);
/// Executors that have a report in advance.
pub const EXECUTORS: usize = 64;

/// Takes from each user's list in turn, so that no user takes the room of another.
pub fn in_turns<T>(lists: BTreeMap<u32, VecDeque<T>>) -> impl Iterator<Item = T> {
    let mut lists: VecDeque<VecDeque<T>> = lists.into_values().collect();
    std::iter::from_fn(move || {
        loop {
            let mut list = lists.pop_front()?;
            if let Some(first) = list.pop_front() {
                lists.push_back(list);
                return Some(first);
            }
        }
    })
}

/// The first reports that have room in the file.
pub fn fitting(reports: impl Iterator<Item = Report>) -> Vec<Report> {
    let mut room = IN_ADVANCE_BYTES;
    let fits = |report: &Report| {
        let left = length(report)
            .ok()
            .and_then(|bytes| room.checked_sub(bytes));
        left.map(|left| room = left).is_some()
    };
    reports.filter(fits).collect()
}

/// The reports about executors that are gone, of those that the daemon before watched. Those of which it made a report
/// itself, in its last moments, are told by `is_known`.
pub fn left_behind(
    before: InAdvance,
    boot_id: &str,
    is_known: impl Fn(&Report) -> bool,
) -> Vec<Report> {
    let is_same_run = !boot_id.is_empty() && before.boot_id == boot_id;
    let lives = |report: &Report| {
        let process = Child {
            pid: report.row.who.pid,
            told_ns: report.died_ns,
        };
        is_same_run && is_there(Path::new("/"), &process)
    };
    let how = match is_same_run {
        true => LeftBehind::Unwatched,
        false => LeftBehind::Machine,
    };
    let reports = before.reports.into_iter();
    reports
        .filter(|report| !lives(report) && !is_known(report))
        .map(|report| report.left_behind(how))
        .collect()
}

#[cfg(test)]
mod tests {
    use smtt_model::postmortem::{Row, Verdict};

    use super::*;

    fn report(pid: u32, text: usize) -> Report {
        let mut row = Row {
            died_unix_ms: 1_000_000,
            ..Row::default()
        };
        row.who.pid = pid;
        Report {
            row,
            // Whatever runs began before.
            died_ns: u64::MAX,
            evidence: vec!["x".repeat(text)],
            ..Report::default()
        }
    }

    #[test]
    fn who_is_gone_is_reported_and_who_lives_is_not() {
        let own = std::process::id();
        let before = |boot_id: &str| InAdvance {
            boot_id: boot_id.to_owned(),
            reports: vec![report(own, 1), report(u32::MAX, 1)],
        };
        let left = |boot_id: &str, known: u32| -> Vec<(u32, Verdict)> {
            let is_known = |report: &Report| report.row.who.pid == known;
            left_behind(before(boot_id), "this", is_known)
                .into_iter()
                .map(|report| (report.row.who.pid, report.row.verdict))
                .collect()
        };
        assert_eq!(left("this", 0), [(u32::MAX, Verdict::Lost)]);
        assert_eq!(left("this", u32::MAX), []);
        let all = [own, u32::MAX].map(|pid| (pid, Verdict::LostWithMachine));
        assert_eq!(left("another", 0), all);
    }

    #[test]
    fn a_process_that_began_later_is_another_one() {
        let mut earlier = report(std::process::id(), 1);
        earlier.died_ns = 1;
        let before = InAdvance {
            boot_id: "this".to_owned(),
            reports: vec![earlier],
        };
        assert_eq!(left_behind(before, "this", |_| false).len(), 1);
    }

    #[test]
    fn no_user_takes_the_room_of_another() {
        let lists = BTreeMap::from([
            (1, VecDeque::from([10, 11, 12, 13])),
            (2, VecDeque::from([20])),
            (3, VecDeque::from([30, 31])),
        ]);
        assert_eq!(
            in_turns(lists).collect::<Vec<_>>(),
            [10, 20, 30, 11, 31, 12, 13]
        );
    }

    #[test]
    fn what_has_no_room_is_left_out() {
        let large = IN_ADVANCE_BYTES as usize;
        let all = [report(1, 1000), report(2, large), report(3, 1000)];
        let pids: Vec<u32> = fitting(all.into_iter())
            .iter()
            .map(|report| report.row.who.pid)
            .collect();
        assert_eq!(pids, [1, 3]);
    }
}
