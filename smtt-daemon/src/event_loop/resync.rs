//! Requests for a snapshot (a resync): when an executor gets one, and how it is written into the slot file.

use std::time::Duration;

use crate::helpers::{Helpers, JobLimits};

/// Pause between two resync requests, in nanoseconds: losses come in bursts, and a request during a burst adds to it.
const REQUEST_PAUSE_NS: u64 = 5_000_000_000;
/// The longest such pause. The pause doubles while each resync loses facts again: an executor whose snapshot exceeds
/// the rate limit must not spend its time on reporting.
const REQUEST_PAUSE_MAX_NS: u64 = 160_000_000_000;

/// Decides when an executor is asked for a snapshot.
#[derive(Debug)]
pub(super) struct ResyncRequests {
    /// The first request is not written yet.
    first: bool,
    /// Facts lost in transit up to the last request.
    pub(super) lost_at_request: u64,
    requested_ns: u64,
    /// Shortest time from the last request to the next.
    pause_ns: u64,
}

impl ResyncRequests {
    /// The first request is due.
    pub(super) const fn new(now_ns: u64) -> Self {
        Self {
            first: true,
            lost_at_request: 0,
            requested_ns: now_ns,
            pause_ns: REQUEST_PAUSE_NS,
        }
    }

    /// Whether a request is due now that `lost` facts have been lost in total. `wanted`: the last snapshot was
    /// incomplete.
    pub(super) const fn is_due(&self, lost: u64, wanted: bool, now_ns: u64) -> bool {
        self.first
            || (wanted || lost > self.lost_at_request)
                && now_ns.saturating_sub(self.requested_ns) >= self.pause_ns
    }

    /// Records that a request was sent when `lost` facts had been lost in total. If the pause has only just passed, the
    /// resync itself caused the losses.
    pub(super) fn record_request(&mut self, lost: u64, now_ns: u64) {
        let since_ns = now_ns.saturating_sub(self.requested_ns);
        self.pause_ns = if std::mem::take(&mut self.first) {
            REQUEST_PAUSE_NS
        } else if since_ns < self.pause_ns.saturating_mul(2) {
            self.pause_ns.saturating_mul(2).min(REQUEST_PAUSE_MAX_NS)
        } else {
            REQUEST_PAUSE_NS
        };
        self.lost_at_request = lost;
        self.requested_ns = now_ns;
    }
}

/// Requests that are written at a time.
const REQUESTS: JobLimits = JobLimits {
    per_user: 4,
    all: 12,
};

/// Writes requests into slot files, on helpers: an executor can keep its file locked for seconds, by having the kernel
/// allocate or free a large part of it.
#[derive(Debug)]
pub(super) struct RequestWriter(Helpers<u64, ()>);

impl Default for RequestWriter {
    fn default() -> Self {
        Self(Helpers::new("smtt-resync", REQUESTS))
    }
}

impl RequestWriter {
    /// Starts to write a request. False where the last one to this executor is not written yet, or its user's executors
    /// have taken all places: the request has to be repeated.
    pub(super) fn write(
        &mut self,
        executor: u64,
        user: u32,
        write: impl FnOnce() -> std::io::Result<()> + Send + 'static,
    ) -> bool {
        while self.0.next(Duration::ZERO).is_some() {}
        let write = move || {
            // An executor that has ended needs no request.
            let _ = write();
        };
        !self.0.is_running(executor) && self.0.start(executor, user, write).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;
    use std::time::Instant;

    const S: u64 = 1_000_000_000;

    #[test]
    fn the_pause_doubles_while_every_resync_loses_facts() {
        let mut resync = ResyncRequests::new(0);
        assert!(resync.is_due(0, false, 0), "the first request");
        resync.record_request(0, 0);
        let (mut lost, mut pauses, mut before) = (0, Vec::new(), 0);
        for second in 1..=600 {
            lost += 1;
            if resync.is_due(lost, false, second * S) {
                resync.record_request(lost, second * S);
                pauses.push(second - before);
                before = second;
            }
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 160]);
        // Without further losses no request is due. After a long time without losses the next loss is a new burst.
        assert!(!resync.is_due(resync.lost_at_request, false, 2000 * S));
        assert!(resync.is_due(lost + 1, false, 2000 * S));
        resync.record_request(lost + 1, 2000 * S);
        assert!(resync.is_due(lost + 2, false, 2005 * S));
        // An incomplete snapshot is requested again without a further loss, but after the same pause.
        assert!(!resync.is_due(lost + 1, true, 2004 * S));
        assert!(resync.is_due(lost + 1, true, 2005 * S));
    }

    #[test]
    fn a_request_that_hangs_holds_up_no_other_executor_and_is_not_repeated_meanwhile() {
        let mut writer = RequestWriter::default();
        let (release, wait) = sync_channel::<()>(0);
        let hang = move || {
            let _ = wait.recv();
            Ok(())
        };
        assert!(writer.write(1, 1000, hang));
        assert!(
            !writer.write(1, 1000, || Ok(())),
            "the first is not written"
        );
        let (written, done) = sync_channel(100);
        for executor in 2..50 {
            let written = written.clone();
            let write = move || {
                let _ = written.send(executor);
                Ok(())
            };
            // Its user's places may be taken for a moment; the event loop repeats the request.
            let mut write = Some(write);
            let until = Instant::now() + Duration::from_secs(10);
            while let Some(now) = write.take() {
                if writer.write(executor, 1000, now.clone()) {
                    break;
                }
                assert!(Instant::now() < until, "executor {executor} waits");
                std::thread::sleep(Duration::from_millis(1));
                write = Some(now);
            }
        }
        let mut reached: Vec<u64> = (2..50)
            .map(|_| done.recv_timeout(Duration::from_secs(10)).expect("written"))
            .collect();
        reached.sort_unstable();
        assert_eq!(reached, (2..50).collect::<Vec<_>>());
        drop(release);
        let until = Instant::now() + Duration::from_secs(10);
        while !writer.write(1, 1000, || Ok(())) {
            assert!(
                Instant::now() < until,
                "the executor that came back is asked again"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
