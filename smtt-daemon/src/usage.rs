//! Memory of the executors' processes, as the kernel counts it: read every second on a thread of its own, which holds
//! no lock while it reads. Only counts are read; no page table is walked.

use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use smtt_machine::clock::now_boot_ns;
use smtt_machine::memory;

use crate::shared::Shared;

/// Time between two readings.
const EVERY: Duration = Duration::from_secs(1);
/// Reading may take one part of the time in this many: with many executors the readings become rarer.
const SHARE: u32 = 1000;
/// Longest time between two readings: one user's many processes must not make the figures of all others old.
const EVERY_MAX: Duration = Duration::from_secs(10);
/// Children of an executor in one reading.
const CHILDREN_MAX: usize = 256;
/// Longest sleep before the thread checks whether the daemon is stopping.
const NAP: Duration = Duration::from_millis(250);

/// Starts the thread; it ends after `stopped` is true.
pub fn spawn(shared: Arc<Shared>, stopped: impl Fn() -> bool + Send + 'static) {
    let work = move || {
        let mut next = Instant::now();
        while !stopped() {
            let now = Instant::now();
            if now < next {
                sleep((next - now).min(NAP));
                continue;
            }
            read(&shared);
            next = now + (now.elapsed() * SHARE).clamp(EVERY, EVERY_MAX);
        }
    };
    let thread = std::thread::Builder::new().name("smtt-usage".into());
    if let Err(error) = thread.spawn(work) {
        tracing::error!("the memory of executors is not measured: {error}");
    }
}

fn read(shared: &Shared) {
    let targets = shared.state().memory_targets(CHILDREN_MAX);
    for target in targets {
        let read = memory::read(Path::new("/"), target.pid, &target.children);
        if let Some((read, gone)) = read {
            let mut state = shared.state();
            state.children_gone(target.executor, &gone);
            state.set_memory(target.executor, read, now_boot_ns());
        }
    }
}
