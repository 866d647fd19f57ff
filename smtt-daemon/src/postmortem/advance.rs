//! Reports in advance: a daemon that starts after a power cut, or after an end of its own, reports the executors that the
//! one before watched and that are gone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

use smtt_machine::clock::boot_id;
use smtt_machine::memory;
use smtt_model::postmortem::{InAdvance, LeftBehind, Report};
use smtt_model::state::Child;
use smtt_store::reports::{IN_ADVANCE_BYTES, length};

use super::keeper::Keeper;

/// Time between two writes.
pub const EVERY: Duration = Duration::from_secs(30);
/// Executors that have a report in advance.
const EXECUTORS: usize = 64;
/// Reports that are made for one write at most: some have no room.
const TRIES: usize = 2 * EXECUTORS;
/// How long a report of this daemon's own may take after an end.
const GONE_WAIT: Duration = Duration::from_secs(5);

/// An executor that the daemon before watched, and of which this one has no record yet.
#[derive(Debug)]
struct Left {
    report: Report,
    gone_since: Option<Instant>,
}

/// What is known from one write of reports in advance to the next.
#[derive(Debug, Default)]
pub struct Advance {
    left: Vec<Left>,
    /// When the last reports were made, and whether the file has any.
    last: Option<Instant>,
    has_any: bool,
    /// The user with the first turn.
    first: u32,
}

impl Advance {
    /// Takes over what the daemon before left; false while that is not known, and where no reports are written.
    pub fn take_over(&mut self, keeper: &Keeper) -> bool {
        let Some((left, has_any)) = keeper.left() else {
            return false;
        };
        self.has_any |= has_any;
        self.left.extend(left.into_iter().map(|report| Left {
            report,
            gone_since: None,
        }));
        true
    }

    /// Lets go of executors that are watched by now, and reports those that are gone without a report.
    pub fn see_left(&mut self, keeper: &Keeper, is_watched: impl Fn(u32) -> bool) {
        for mut left in std::mem::take(&mut self.left) {
            let runs = runs(&left.report);
            if runs && is_watched(left.report.row.who.pid) {
                continue;
            }
            if runs {
                left.gone_since = None;
                self.left.push(left);
                continue;
            }
            let since = *left.gone_since.get_or_insert_with(Instant::now);
            if since.elapsed() < GONE_WAIT {
                self.left.push(left);
            } else if !keeper.has_end_of(&left.report) {
                keeper.add(left.report.left_behind(LeftBehind::Unseen));
            }
        }
    }

    /// Reports about executors that this daemon has no record of.
    pub fn left(&self) -> impl Iterator<Item = &Report> {
        self.left.iter().map(|left| &left.report)
    }

    /// Whether the next reports are to be made. Where no executor is known, once more: the file is to have none.
    pub fn is_due(&self, has_some: bool) -> bool {
        let has_some = has_some || !self.left.is_empty();
        (has_some || self.has_any) && self.last.is_none_or(|last| last.elapsed() >= EVERY)
    }

    /// Hands the reports over, and the first turn on.
    pub fn made(&mut self, keeper: &Keeper, reports: Vec<Report>, next: u32) {
        self.has_any = !reports.is_empty() || keeper.waits();
        self.first = next;
        self.last = Some(Instant::now());
        keeper.set_in_advance(InAdvance {
            boot_id: boot_id(),
            reports,
            waiting: Vec::new(),
        });
    }

    /// The user with the first turn.
    pub const fn first(&self) -> u32 {
        self.first
    }
}

/// Makes reports of each user's list in turn while there is room, so that no user takes the room of another: the next turn is
/// that of the user with the smallest part of it, in bytes or in number. Of equal parts the first one is that of the user
/// `first` or of the next one above. Also returns who would be first the next time.
pub fn in_turns<T>(
    lists: BTreeMap<u32, VecDeque<T>>,
    first: u32,
    mut make: impl FnMut(T) -> Option<Report>,
) -> (Vec<Report>, u32) {
    let (mut below, from): (Vec<_>, Vec<_>) =
        lists.into_iter().partition(|(user, _)| *user < first);
    let mut all = from;
    all.append(&mut below);
    let next = all.first().map_or(0, |(user, _)| user.wrapping_add(1));
    let mut lists: Vec<VecDeque<T>> = all.into_iter().map(|(_, list)| list).collect();
    // The part of a user, its place in the order, and its bytes and number.
    let turns = (0..lists.len()).map(|at| Reverse((0, at, 0, 0)));
    let mut turns: BinaryHeap<Reverse<(u64, usize, u64, u64)>> = turns.collect();
    let (mut reports, mut room, mut tries) = (Vec::new(), IN_ADVANCE_BYTES, 0);
    while let Some(Reverse((part, at, bytes, number))) = turns.pop() {
        if reports.len() >= EXECUTORS || tries >= TRIES {
            break;
        }
        let Some(one) = lists.get_mut(at).and_then(VecDeque::pop_front) else {
            continue;
        };
        tries += 1;
        let made = make(one).and_then(|report| Some((length(&report).ok()?, report)));
        let fits =
            made.and_then(|(length, report)| Some((room.checked_sub(length)?, length, report)));
        let Some((left, length, report)) = fits else {
            turns.push(Reverse((part, at, bytes, number)));
            continue;
        };
        room = left;
        reports.push(report);
        let (bytes, number) = (bytes + length, number + 1);
        let part = bytes.max(number * (IN_ADVANCE_BYTES / EXECUTORS as u64));
        turns.push(Reverse((part, at, bytes, number)));
    }
    (reports, next)
}

/// Whether the process of a report in advance still runs.
fn runs(report: &Report) -> bool {
    let process = Child {
        pid: report.row.who.pid,
        told_ns: report.died_ns,
    };
    memory::runs(Path::new("/"), &process)
}

/// What a daemon before left.
#[derive(Debug, Default)]
pub struct Before {
    /// Reports of the executors that are gone. Those of which it made a report itself, in its last moments, are not among
    /// them.
    pub gone: Vec<Report>,
    /// Reports in advance of those that run.
    pub running: Vec<Report>,
}

/// Tells the executors that a daemon before watched apart. Of which it made a report itself, `is_known` tells. Where it is not
/// known whether the machine has started again, the processes decide.
pub fn left_behind(
    before: Vec<Report>,
    (boot_id, its_boot_id): (&str, &str),
    is_known: impl Fn(&Report) -> bool,
) -> Before {
    let is_other_run = !boot_id.is_empty() && !its_boot_id.is_empty() && boot_id != its_boot_id;
    let how = match is_other_run {
        true => LeftBehind::Machine,
        false => LeftBehind::Unwatched,
    };
    let (running, gone): (Vec<Report>, Vec<Report>) = before
        .into_iter()
        .partition(|report| !is_other_run && runs(report));
    let gone = gone.into_iter().filter(|report| !is_known(report));
    let gone = gone.map(|report| report.left_behind(how)).collect();
    Before { gone, running }
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

    fn pids(reports: &[Report]) -> Vec<u32> {
        reports.iter().map(|report| report.row.who.pid).collect()
    }

    #[test]
    fn who_is_gone_is_reported_and_who_lives_is_carried_on() {
        let own = std::process::id();
        let left = |now: &str, before: &str, known: u32| {
            let is_known = |report: &Report| report.row.who.pid == known;
            let all = vec![report(own, 1), report(u32::MAX, 1)];
            let left = left_behind(all, (now, before), is_known);
            let gone = left.gone.iter();
            let gone: Vec<(u32, Verdict)> = gone
                .map(|report| (report.row.who.pid, report.row.verdict))
                .collect();
            (gone, pids(&left.running))
        };
        let lost = vec![(u32::MAX, Verdict::Lost)];
        assert_eq!(left("this", "this", 0), (lost.clone(), vec![own]));
        assert_eq!(left("this", "this", u32::MAX), (vec![], vec![own]));
        let all = [own, u32::MAX].map(|pid| (pid, Verdict::LostWithMachine));
        assert_eq!(left("this", "another", 0), (all.to_vec(), vec![]));
        // It is not known which run it is.
        for (now, before) in [("", "this"), ("this", ""), ("", "")] {
            assert_eq!(left(now, before, 0), (lost.clone(), vec![own]));
        }
    }

    #[test]
    fn a_process_that_began_later_is_another_one() {
        let mut earlier = report(std::process::id(), 1);
        earlier.died_ns = 1;
        let left = left_behind(vec![earlier], ("this", "this"), |_| false);
        assert_eq!((left.gone.len(), left.running.len()), (1, 0));
    }

    /// Reports of this many users in turns: user, number and length.
    fn turns(of: &[(u32, u32, usize)], first: u32) -> (Vec<u32>, u32) {
        let list = |(user, number, text): &(u32, u32, usize)| {
            let one = |_| report(*user, *text);
            (*user, (0..*number).map(one).collect::<VecDeque<Report>>())
        };
        let (reports, next) = in_turns(of.iter().map(list).collect(), first, Some);
        (pids(&reports), next)
    }

    #[test]
    fn no_user_takes_the_room_of_another() {
        let (order, next) = turns(&[(1, 4, 9), (2, 1, 9), (3, 2, 9)], 0);
        assert_eq!((order, next), (vec![1, 2, 3, 1, 3, 1, 1], 2));
        let of = |order: &[u32], user| order.iter().filter(|one| **one == user).count();
        // By bytes: the reports of one are longer.
        let (order, _) = turns(&[(1, 60, 110_000), (2, 30, 60_000)], 0);
        assert_eq!(of(&order, 2), 30, "{order:?}");
        assert!(of(&order, 1) > 15, "{order:?}");
        // By number: those of the other are shorter.
        let (order, _) = turns(&[(1, 200, 10), (2, 20, 60_000)], 0);
        assert_eq!((of(&order, 2), order.len()), (20, EXECUTORS));
    }

    #[test]
    fn each_of_many_users_has_a_turn() {
        let many: Vec<(u32, u32, usize)> = (0..100).map(|user| (user, 3, 9)).collect();
        let (mut seen, mut first) = (std::collections::BTreeSet::new(), 0);
        for _ in 0..100 {
            let (order, next) = turns(&many, first);
            assert_eq!(order.len(), EXECUTORS);
            assert_eq!(order[0], first % 100);
            seen.extend(order);
            first = next;
        }
        assert_eq!(seen.len(), 100);
    }

    #[test]
    fn an_executor_without_a_record_is_carried_on_until_it_is_watched_or_gone() {
        let keeper = Keeper::new(Some("/nowhere".into()));
        let own = std::process::id();
        let mut advance = Advance::default();
        assert!(!advance.take_over(&keeper), "not read yet");
        let long_ago = Instant::now().checked_sub(2 * EVERY);
        for (pid, gone_since) in [(own, None), (u32::MAX, long_ago)] {
            let report = report(pid, 1);
            advance.left.push(Left { report, gone_since });
        }
        let pids = |advance: &Advance| -> Vec<u32> {
            advance.left().map(|report| report.row.who.pid).collect()
        };
        advance.see_left(&keeper, |_| false);
        assert_eq!(pids(&advance), [own]);
        let rows = keeper.list(&Default::default()).rows;
        assert_eq!((rows.len(), rows[0].verdict), (1, Verdict::Lost));
        assert!(advance.is_due(false));
        // One that just ended may have a report soon.
        let report = report(u32::MAX, 1);
        let gone_since = None;
        advance.left.push(Left { report, gone_since });
        advance.see_left(&keeper, |pid| pid == own);
        assert_eq!(pids(&advance), [u32::MAX]);
        advance.left[0].gone_since = long_ago;
        advance.see_left(&keeper, |_| false);
        assert_eq!(pids(&advance), [] as [u32; 0]);
        assert_eq!(keeper.list(&Default::default()).rows.len(), 1, "known");
    }

    #[test]
    fn a_list_that_has_nothing_left_to_tell_is_emptied_once() {
        let keeper = Keeper::new(Some("/nowhere".into()));
        let mut advance = Advance {
            has_any: true,
            ..Advance::default()
        };
        assert!(advance.is_due(false));
        keeper.add(report(7, 1));
        advance.made(&keeper, Vec::new(), 0);
        advance.last = None;
        assert!(advance.is_due(false), "a report waits");
        let empty = Keeper::new(Some("/nowhere".into()));
        advance.made(&empty, Vec::new(), 0);
        advance.last = None;
        assert!(!advance.is_due(false));
    }

    #[test]
    fn what_has_no_room_is_left_out() {
        let large = IN_ADVANCE_BYTES as usize;
        let all = VecDeque::from([report(1, 1000), report(2, large), report(3, 1000)]);
        let (reports, _) = in_turns(BTreeMap::from([(0, all)]), 0, Some);
        assert_eq!(pids(&reports), [1, 3]);
    }
}
