//! Resync: the marker sends an idempotent snapshot of everything alive, and the daemon checks that all of it arrived.
//!
//! What the snapshot does not contain is removed, but only if no fact of the snapshot was lost: the marker's thread
//! reports how many facts it sent, and the daemon counts the facts of that thread that arrived. If one is missing,
//! nothing is removed and another resync is requested.

use super::fact_counts::is_reported;
use crate::decode::{Event, Fact};

/// A requested resync.
#[derive(Clone, Copy, Debug)]
struct Asked {
    request: u64,
    since_ns: u64,
}

/// A snapshot in progress.
#[derive(Clone, Copy, Debug)]
struct Telling {
    request: u64,
    tid: u32,
    begun_ns: u64,
    /// Facts of the sending thread that arrived.
    came: u64,
    /// Whether the reported number of facts equals the number that arrived.
    complete: bool,
}

/// Result of a resync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Not requested, or replaced by a newer request.
    NotAsked,
    /// Facts were lost, or the marker does not count them.
    Incomplete,
    /// Everything alive has been reported since this time, in nanoseconds since boot.
    Complete(u64),
}

/// The resyncs of one executor.
#[derive(Debug, Default)]
pub(super) struct Resync {
    asked: Option<Asked>,
    telling: Option<Telling>,
    again: bool,
}

impl Resync {
    /// A resync was requested.
    pub(super) const fn asked(&mut self, request: u64, now_ns: u64) {
        self.asked = Some(Asked {
            request,
            since_ns: now_ns,
        });
        self.again = false;
    }

    /// Facts of the executor had no effect, so it has to report all of them.
    pub(super) const fn want(&mut self) {
        self.again = true;
    }

    /// Whether a requested resync has not ended.
    pub(super) const fn is_under_way(&self) -> bool {
        self.asked.is_some()
    }

    /// Identity of the current snapshot.
    pub(super) fn id(&self) -> Option<u64> {
        let asked = self.asked.map(|asked| asked.request);
        self.telling.map_or(asked, |telling| Some(telling.request))
    }

    /// Whether facts are missing and no resync was requested since that was seen.
    pub(super) const fn is_wanted_again(&self) -> bool {
        self.again
    }

    /// Counts any fact of the executor, before the state applies it.
    pub(super) fn see(&mut self, event: &Event) {
        if let Fact::ResyncReported { request, facts } = event.fact {
            match &mut self.telling {
                _ if facts == 0 => {
                    self.telling = Some(Telling {
                        request,
                        tid: event.tid,
                        begun_ns: event.time_ns,
                        came: 0,
                        complete: false,
                    });
                }
                Some(telling) if telling.request == request && telling.tid == event.tid => {
                    telling.complete = telling.came == facts;
                }
                _ => {}
            }
        } else if let Some(telling) = &mut self.telling
            && telling.tid == event.tid
            && is_reported(&event.fact)
        {
            telling.came += 1;
        }
    }

    /// The marker reports the end of its snapshot. The snapshot of another daemon's request is as good if it began
    /// after ours: the slot file has one request, which the other daemon may have overwritten.
    pub(super) fn ended(&mut self, request: u64) -> End {
        let telling = self.telling.take_if(|telling| telling.request == request);
        let serves = |asked: &mut Asked| {
            asked.request == request || telling.is_some_and(|it| it.begun_ns >= asked.since_ns)
        };
        let Some(asked) = self.asked.take_if(serves) else {
            return End::NotAsked;
        };
        match telling {
            Some(telling) if telling.complete => End::Complete(asked.since_ns),
            counted => {
                // Where the beginning was lost too, the kernel side's count of losses shows it.
                self.again = counted.is_some();
                End::Incomplete
            }
        }
    }
}
