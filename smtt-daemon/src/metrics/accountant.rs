//! The thread that counts for the metrics between scrapes, and looks for findings.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use smtt_machine::clock::thread_cpu_time;

use super::Exporter;
use crate::shared::Shared;

/// Time between two counts: RDDs that are forgotten sooner than that count for `rdd="other"`.
const ACCOUNT_EVERY: Duration = Duration::from_secs(5);
/// Time between two searches for findings, at least.
pub const FIND_EVERY: Duration = Duration::from_secs(15);
/// The same, at most.
const FIND_EVERY_MAX: Duration = Duration::from_secs(300);
/// A search may take one part in so many of a CPU's time. That is no time of a clock: where executors keep all CPUs busy, a
/// search waits for one, and must not come later for it.
const SHARE: u32 = 200;
/// Longest time after which the thread sees that the daemon stops.
const NAP: Duration = Duration::from_millis(200);

/// Starts the thread.
pub fn spawn(
    exporter: Arc<Exporter>,
    shared: Arc<Shared>,
    stopped: impl Fn() -> bool + Send + 'static,
) {
    let work = move || {
        let (mut account, mut find) = (Instant::now(), Instant::now() + ACCOUNT_EVERY);
        while !stopped() {
            let now = Instant::now();
            if now >= find {
                let start = thread_cpu_time();
                exporter.find(&shared);
                let took = thread_cpu_time().saturating_sub(start);
                let pause = (took * SHARE).clamp(FIND_EVERY, FIND_EVERY_MAX);
                find = Instant::now() + pause;
            } else if now >= account {
                exporter.account(&shared);
                account = now + ACCOUNT_EVERY;
            } else {
                sleep((find.min(account) - now).min(NAP));
            }
        }
    };
    let thread = std::thread::Builder::new().name("smtt-metrics".into());
    if let Err(error) = thread.spawn(work) {
        tracing::error!("nothing is counted between scrapes, and findings are no metrics: {error}");
    }
}
