//! Why executors died: samples of their memory while they live, and a report about each death.
//!
//! One thread samples once per second and judges deaths ([`Watcher`]); another one writes the reports ([`keeper`]). The
//! event loop waits for neither. Each sample is a read of `status`, of the children's `statm` and of the cgroup's use;
//! page tables are never walked.

mod advance;
pub mod keeper;
mod watch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use smtt_config::PostmortemSettings;
use smtt_machine::clock::{now_boot_ns, now_unix_ns};
use smtt_machine::deaths::{KernelLog, program};
use smtt_machine::memory::is_there;
use smtt_model::postmortem::{Case, Report, judge};
use smtt_model::sort::small::Gather as _;
use smtt_model::state::{Child, ChildEnd, Noted};

use self::advance::Advance;
use self::keeper::Keeper;
use self::watch::Watched;
use crate::complaints::{Complaints, Named};
use crate::helpers::JobLimits;
use crate::shared::Shared;
use crate::subordinate::ShareOwners;
use crate::timed_reads::TimedReads;

/// Time between two samples.
const EVERY: Duration = Duration::from_secs(1);
/// Longest sleep before the watcher checks whether the daemon is stopping.
const NAP: Duration = Duration::from_millis(250);
/// Age of a death that is judged: facts that were under way have arrived.
const SETTLED_NS: u64 = 1_000_000_000;
/// Most deaths that are judged in one round; the others wait.
const DEATHS_PER_ROUND: usize = 64;
/// Children of an executor whose memory is read.
const CHILDREN: usize = 256;
/// Readings that a process may delay, at a time, and how long a round waits for them.
const READS: JobLimits = JobLimits {
    per_user: 4,
    all: 8,
};
const READS_WAIT: Duration = Duration::from_millis(200);

/// Starts both threads. They end when `stopped` says so.
///
/// # Errors
/// When a thread cannot be made.
pub fn spawn(
    settings: PostmortemSettings,
    shared: Arc<Shared>,
    owners: Arc<ShareOwners>,
    stopped: impl Fn() -> bool + Clone + Send + 'static,
) -> std::io::Result<()> {
    let keeper = Arc::new(Keeper::new(settings.folder.clone()).sharing(owners));
    shared.set_keeper(Arc::clone(&keeper));
    keeper::spawn(settings, Arc::clone(&keeper), stopped.clone())?;
    std::thread::Builder::new()
        .name("smtt-deaths".into())
        .spawn(move || {
            let mut watcher = Watcher::new();
            while !stopped() {
                let begin = Instant::now();
                watcher.round(&shared, &keeper);
                while begin.elapsed() < EVERY && !stopped() {
                    sleep(NAP.min(EVERY.saturating_sub(begin.elapsed())));
                }
            }
        })
        .map(drop)
}

/// A living executor as a round needs it.
struct Living {
    key: u64,
    pid: u32,
    user: u32,
    children: Vec<Child>,
}

/// One that has a place among the reports in advance.
enum InList {
    /// An executor that this daemon knows, by its key.
    Own(u64),
    /// One that only the daemon before knows.
    Left(Box<Report>),
}

/// See the module.
struct Watcher {
    watched: BTreeMap<u64, Watched>,
    options: TimedReads<std::io::Result<Vec<String>>>,
    programs: TimedReads<Option<String>>,
    reports: TimedReads<Option<String>>,
    log: Option<KernelLog>,
    due: Vec<(u64, Option<Noted<ChildEnd>>)>,
    in_advance: Advance,
    /// Any user can start processes that die.
    notices: Complaints,
}

impl Watcher {
    fn new() -> Self {
        Self {
            watched: BTreeMap::new(),
            options: TimedReads::new("smtt-options", READS),
            programs: TimedReads::new("smtt-sender", READS),
            reports: TimedReads::new("smtt-hs-err", READS),
            log: KernelLog::open(),
            due: Vec::new(),
            in_advance: Advance::default(),
            notices: Complaints::default(),
        }
    }

    fn round(&mut self, shared: &Shared, keeper: &Keeper) {
        let living = living(shared);
        if let Some(log) = &mut self.log {
            log.read();
        }
        for executor in &living {
            if let std::collections::btree_map::Entry::Vacant(place) =
                self.watched.entry(executor.key)
                && let Some(new) = Watched::open(executor.pid, executor.user)
            {
                place.insert(new);
            }
        }
        let now = now_boot_ns();
        let samples: Vec<_> = living
            .iter()
            .filter_map(|executor| {
                let watched = self.watched.get_mut(&executor.key)?;
                let mut sample = watched.sample(now)?;
                let children = executor.children.iter().take(CHILDREN);
                let there = children.filter(|child| is_there(Path::new("/"), child));
                let resident = there.filter_map(|child| smtt_machine::deaths::resident(child.pid));
                sample.children_bytes = Some(resident.sum());
                Some((executor.key, sample))
            })
            .collect();
        let living_keys: BTreeSet<u64> = living.iter().map(|executor| executor.key).gather();
        for (key, watched) in &mut self.watched {
            if !living_keys.contains(key) {
                watched.see_after();
            }
        }
        let lost = {
            let mut state = shared.state();
            for (key, sample) in &samples {
                state.sample_memory(*key, sample);
            }
            if self.due.is_empty() {
                self.due = state.deaths_due(now.saturating_sub(SETTLED_NS));
            }
            state.take_deaths_lost()
        };
        keeper.lose(lost);
        self.read_options(&living);
        self.judge(shared, keeper);
        self.judge_in_advance(shared, keeper, &living);
        let known = shared.executor_keys();
        self.watched
            .retain(|key, _| known.binary_search(key).is_ok());
    }

    /// Reads the options of new executors once.
    fn read_options(&mut self, living: &[Living]) {
        let wanted = living.iter().filter_map(|executor| {
            let watched = self.watched.get(&executor.key)?;
            let pid = executor.pid;
            watched.options.is_none().then(|| {
                let read = move || smtt_machine::deaths::options(pid);
                (executor.key, executor.user, Box::new(read) as _)
            })
        });
        let wanted: Vec<_> = wanted.collect();
        if wanted.is_empty() {
            return;
        }
        for (key, options) in self.options.read(wanted, READS_WAIT) {
            if let (Some(watched), Ok(options)) = (self.watched.get_mut(&key), options) {
                watched.options = Some(options);
            }
        }
    }

    fn judge(&mut self, shared: &Shared, keeper: &Keeper) {
        let (begin, now_ns) = (Instant::now(), now_boot_ns());
        let mut due = std::mem::take(&mut self.due).into_iter();
        for _ in 0..DEATHS_PER_ROUND {
            // Processes decide how long their reading takes, and samples must not wait for them.
            if begin.elapsed() > EVERY {
                break;
            }
            let Some((key, child)) = due.next() else {
                break;
            };
            let is_child = child.is_some();
            let case = shared.state().case(key, child);
            let Some(mut case) = case else {
                // The state counts executors.
                keeper.lose(u64::from(is_child));
                continue;
            };
            if case.child.is_some() && !is_python_death(&case) {
                continue;
            }
            self.look_outside(key, &mut case);
            let age_ms = now_ns.saturating_sub(case.died_ns) / 1_000_000;
            let died_unix_ms = (now_unix_ns() / 1_000_000).saturating_sub(age_ms);
            let report = judge(&case, died_unix_ms);
            if case.who.application_id.is_none() && report.row.verdict.ended_well() {
                // A JVM that has not described itself is not known to be an executor.
                continue;
            }
            let said = |text: &Option<String>| text.clone().unwrap_or_default();
            let who = Named::of(
                &said(&case.who.application_id),
                &said(&report.row.application_name),
                &said(&case.who.executor_id),
            );
            let (verdict, sentence) = (report.row.verdict.name(), &report.row.sentence);
            let text = format!("a process of an executor died ({verdict}): {sentence}");
            self.notices.note_of(Instant::now(), &who, &text);
            keeper.add(report);
        }
        self.due = due.collect();
    }

    /// Makes a report of each executor whose end is not reported now and then, for the daemon after this one.
    fn judge_in_advance(&mut self, shared: &Shared, keeper: &Keeper, living: &[Living]) {
        if !self.in_advance.take_over(keeper) {
            return;
        }
        let is_watched = |pid| living.iter().any(|executor| executor.pid == pid);
        self.in_advance.see_left(keeper, is_watched);
        let unreported = unreported(shared);
        if !self
            .in_advance
            .is_due(!living.is_empty() || !unreported.is_empty())
        {
            return;
        }
        let living = living.iter().map(|executor| (executor.key, executor.user));
        let own = unreported.into_iter().chain(living);
        let of_users = lists(shared, self.in_advance.left(), own);
        let (now_ns, now_unix_ms) = (now_boot_ns(), now_unix_ns() / 1_000_000);
        let make = |one| match one {
            InList::Left(report) => Some(*report),
            InList::Own(key) => {
                let mut case = shared.state().case_in_advance(key, now_ns)?;
                if let Some(watched) = self.watched.get(&key) {
                    watched.describe(&mut case);
                }
                Some(judge(&case, now_unix_ms))
            }
        };
        let (reports, next) = advance::in_turns(of_users, self.in_advance.first(), make);
        self.in_advance.made(keeper, reports, next);
    }

    /// Adds what only the machine knows of a death.
    fn look_outside(&mut self, key: u64, case: &mut Case) {
        let user = case.who.uid.unwrap_or_default();
        let share = self.watched.get(&key).map_or(user, |watched| watched.share);
        let subject = case.subject_pid();
        if let Some(log) = &self.log {
            case.outside.kernel_log = log.about(subject);
        }
        let decisive = case.decisive().and_then(|(_, note)| note);
        let sent = decisive.map(|note| &note.what.sent);
        if let Some(sent) = sent.filter(|sent| !sent.from_kernel) {
            let pid = sent.sender_pid;
            let read: Box<dyn FnOnce() -> _ + Send> = Box::new(move || program(pid));
            let wanted = vec![(u64::from(pid), share, read)];
            let found = self.programs.read(wanted, READS_WAIT).into_iter().next();
            case.outside.sender_program = found.and_then(|(_, program)| program);
        }
        let Some(watched) = self.watched.get(&key) else {
            return;
        };
        watched.describe(case);
        let crashed = case
            .end()
            .is_some_and(|end| end.signal().is_some_and(|signal| signal != 9));
        if let (Some(report), true, None) = (&watched.crash_report, crashed, &case.child) {
            let (report, options, since) = (
                report.clone(),
                case.outside.options.clone(),
                watched.opened_unix_s,
            );
            case.outside.crash_report_expected = report.expected(&options);
            let find: Box<dyn FnOnce() -> _ + Send> =
                Box::new(move || report.find(&options, user, since));
            let found = self.reports.read(vec![(key, share, find)], READS_WAIT);
            case.outside.crash_report = found.into_iter().next().and_then(|(_, path)| path);
        }
    }
}

/// Those that may have a report in advance, by the user whose share they use.
fn lists<'a>(
    shared: &Shared,
    left: impl Iterator<Item = &'a Report>,
    own: impl Iterator<Item = (u64, u32)>,
) -> BTreeMap<u32, VecDeque<InList>> {
    let mut of_users: BTreeMap<u32, VecDeque<InList>> = BTreeMap::new();
    for report in left {
        let share = shared.state().share_of(report.row.who.uid);
        let of_user = of_users.entry(share.unwrap_or_default()).or_default();
        of_user.push_back(InList::Left(Box::new(report.clone())));
    }
    for (key, share) in own {
        let of_user = of_users.entry(share).or_default();
        of_user.push_back(InList::Own(key));
    }
    of_users
}

/// Live executors that have sent a fact.
fn living(shared: &Shared) -> Vec<Living> {
    let state = shared.state();
    let all = state.executors().iter();
    all.filter(|(_, executor)| executor.died_ns.is_none() && executor.described.is_some())
        .map(|(key, executor)| Living {
            key: *key,
            pid: executor.pid,
            user: executor.share.or(executor.uid).unwrap_or_default(),
            children: executor.children(CHILDREN),
        })
        .collect()
}

/// Executors that are dead and not reported yet, with their users.
fn unreported(shared: &Shared) -> Vec<(u64, u32)> {
    let state = shared.state();
    let all = state.executors().iter();
    all.filter(|(_, executor)| executor.is_death_unjudged() && executor.described.is_some())
        .map(|(key, executor)| (*key, executor.share.or(executor.uid).unwrap_or_default()))
        .collect()
}

/// Whether a child that a signal ended was a Python worker that something else than Spark ended: Spark's own daemon and
/// the JVM end workers by signals too.
fn is_python_death(case: &Case) -> bool {
    const STOPS: [u32; 3] = [1, 2, 15];
    let Some(end) = case.end() else {
        return false;
    };
    let name = end.name.to_lowercase();
    let python = ["python", "pypy", "pyspark"];
    if !python.iter().any(|known| name.contains(known)) {
        return false;
    }
    let Some(signal) = end.signal() else {
        return false;
    };
    match case.signal(signal) {
        Some(note) => !note.what.from_own,
        // A crash, or the OOM killer; without a sender a stop is one of the executor's own, whose record was lost.
        None => !STOPS.contains(&signal) && (signal != 9 || case.is_oom_victim()),
    }
}

#[cfg(test)]
mod tests;
