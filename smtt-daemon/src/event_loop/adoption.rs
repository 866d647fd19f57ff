//! Adoption of executors that started before the daemon. The event loop adds the executor's row to the kernel side's
//! tables; a helper reads the slot file and the threads after that, because the executor decides how long it takes; the
//! event loop adds the rows of the threads.

use std::io;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::discover::{Found, SlotFile, ThreadSlot};
use crate::helpers::{Helpers, JobLimits};
use crate::probes::Probes;

/// Adoptions at a time.
const PLACES: JobLimits = JobLimits {
    per_user: 4,
    all: 12,
};

/// An executor with a row in the kernel side's tables, and what was read of it since.
#[derive(Debug)]
pub struct Adopted {
    /// Key of the executor.
    pub executor: u64,
    /// The executor as it was found.
    pub found: Found,
    /// Threads with a slot.
    pub threads: Vec<ThreadSlot>,
    /// Facts that the marker reported before its probes were attached.
    pub reported_before: u64,
}

/// Adoptions whose reads are not done.
#[derive(Debug)]
pub struct Adoptions {
    helpers: Helpers<u64, ()>,
    adopted: mpsc::Sender<Adopted>,
}

impl Adoptions {
    /// Adopted executors are sent to `adopted`.
    pub fn new(adopted: mpsc::Sender<Adopted>) -> Self {
        Self {
            helpers: Helpers::new("smtt-adopt", PLACES),
            adopted,
        }
    }

    /// Adds the executor's row to the kernel side's tables and starts the reads.
    ///
    /// # Errors
    /// When there is no row for it, or its user has too many adoptions that have not come back.
    pub fn begin(&mut self, probes: &mut Probes, found: Found) -> anyhow::Result<()> {
        self.give_back();
        let executor = probes.adopt_found(found.pid, found.handle())?;
        let seen = probes.facts_seen_reader(executor)?;
        let adopted = self.adopted.clone();
        let user = found.user;
        let read = move || {
            // Not before the executor has its row: a thread that registers between this list and the probes would
            // stay without a row.
            let threads = found.threads();
            let reported_before = reported_before(&seen, &found.slots);
            // Without a receiver the daemon is ending.
            let _ = adopted.blocking_send(Adopted {
                executor,
                found,
                threads,
                reported_before,
            });
        };
        match self.helpers.start(executor, user, read) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                anyhow::bail!("other executors of user {user} have not answered yet")
            }
            started => Ok(started?),
        }
    }

    /// Takes back the places of adoptions that are done.
    pub fn give_back(&mut self) {
        while self.helpers.next(Duration::ZERO).is_some() {}
    }

    /// Number of adoptions that hang.
    pub fn hanging(&self) -> usize {
        self.helpers.hanging().count()
    }
}

/// Facts that an executor reported before its probes were attached: the marker's count minus the kernel side's count.
/// The difference is valid only if the kernel side's count did not change between the two reads, so the reads are
/// retried.
fn reported_before(facts_seen: &dyn Fn() -> u64, slots: &SlotFile) -> u64 {
    const TRIES: usize = 20;
    let mut seen = facts_seen();
    for _ in 0..TRIES {
        let reported = slots.facts_emitted().unwrap_or(0);
        let now = facts_seen();
        if now == seen {
            return reported.saturating_sub(seen);
        }
        seen = now;
    }
    0
}
