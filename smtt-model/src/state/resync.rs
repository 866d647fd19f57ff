//! Telling everything again, and whether all of it came.
//!
//! What an executor does not tell again is gone. That can only be said when nothing that it told was lost on the way:
//! the thread that tells says how many facts it told, and those of that thread that came are counted. If one is
//! missing nothing is taken away, and the executor is asked once more.

use super::fact_counts::is_told;
use crate::decode::{Event, Fact};

/// A resync that was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    request: u64,
    since_ns: u64,
}

/// A thread is telling everything again.
#[derive(Clone, Copy, Debug)]
struct Telling {
    request: u64,
    tid: u32,
    /// Its facts that came.
    came: u64,
    /// It has said how many it told, and that many came.
    complete: bool,
}

/// What the end of a resync means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Nobody asked for it, or something newer was asked for since.
    NotAsked,
    /// Facts of it were lost on the way, or the marker does not count them.
    Incomplete,
    /// Everything alive has been told since then, nanoseconds since boot.
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
    /// A resync was asked for.
    pub(super) const fn asked(&mut self, request: u64, now_ns: u64) {
        self.asked = Some(Asked {
            request,
            since_ns: now_ns,
        });
        self.again = false;
    }

    /// Whether one was asked for and has not ended.
    pub(super) const fn is_under_way(&self) -> bool {
        self.asked.is_some()
    }

    /// What tells one telling from the next.
    pub(super) fn id(&self) -> Option<u64> {
        let asked = self.asked.map(|asked| asked.request);
        self.telling.map_or(asked, |telling| Some(telling.request))
    }

    /// Whether the last one was seen to have lost facts, and none was asked for since.
    pub(super) const fn is_wanted_again(&self) -> bool {
        self.again
    }

    /// Takes in any fact of the executor, before it counts for anything else.
    pub(super) fn see(&mut self, event: &Event) {
        if let Fact::ResyncTold { request, facts } = event.fact {
            match &mut self.telling {
                _ if facts == 0 => {
                    self.telling = Some(Telling {
                        request,
                        tid: event.tid,
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
            && is_told(&event.fact)
        {
            telling.came += 1;
        }
    }

    /// The marker says that it has told everything again.
    pub(super) fn ended(&mut self, request: u64) -> End {
        let telling = self.telling.take_if(|telling| telling.request == request);
        let Some(asked) = self.asked.take_if(|asked| asked.request == request) else {
            return End::NotAsked;
        };
        match telling {
            Some(telling) if telling.complete => End::Complete(asked.since_ns),
            counted => {
                // Where the beginning was lost too, the kernel side's count of losses says so.
                self.again = counted.is_some();
                End::Incomplete
            }
        }
    }
}
