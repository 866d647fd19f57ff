//! Settings with which the kernel side is loaded.

use std::time::Duration;

use smtt_common::settings::Settings;
use smtt_machine::page_walks::PageWalkSettings;

/// Which rung of the page-fault ladder to attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultHook {
    /// The first that attaches.
    #[default]
    Auto,
    /// The raw tracepoints only.
    RawTracepoint,
    /// The trampoline at the kernel's fault handler only.
    Fexit,
    /// The kprobe at the kernel's fault handler only.
    Kprobe,
    /// The software event only; it does not distinguish reads from writes.
    Software,
    /// No page faults.
    Off,
}

/// Settings with which the kernel side is loaded.
#[derive(Clone, Debug)]
pub struct ProbeSettings {
    /// Rung of the fault ladder.
    pub fault_hook: FaultHook,
    /// Time without a living executor after which the hooks of page faults are detached.
    pub fault_idle: Duration,
    /// Mean time from one window in which page faults are timed to the next; `None` times none.
    pub fault_windows: Option<Duration>,
    /// Settings that the kernel side reads; the offsets are filled in here.
    pub settings: Settings,
    /// Size of the ring in bytes: a power of two, at least a page.
    pub ring_bytes: u32,
    /// Rows of the context table.
    pub contexts: u32,
    /// Executors at a time.
    pub executors: u32,
    /// Processes at a time.
    pub processes: u32,
    /// Threads at a time.
    pub threads: u32,
    /// Library files of executors that have probes at a time; executors of one user have half of them at most.
    pub library_files: usize,
    /// Page walks.
    pub page_walks: PageWalkSettings,
    /// Samples per second and CPU of the kernel's clock where cycles are not sampled; 0 takes none.
    pub clock_samples_per_second: u32,
}

/// Length of a window in which page faults are timed.
pub const FAULT_WINDOW: Duration = Duration::from_millis(10);

impl Default for ProbeSettings {
    fn default() -> Self {
        Self {
            fault_hook: FaultHook::Auto,
            fault_idle: Duration::from_secs(30),
            fault_windows: None,
            settings: Settings {
                fault_sample_every: 1024,
                fault_samples_per_second: 1000,
                facts_per_second: 20_000,
                bytes_per_second: 4 << 20,
                user_share_permille: 750,
                threads_per_executor: 4096,
                processes_per_executor: 1024,
                contexts_per_executor: 4096,
                ..Settings::default()
            },
            ring_bytes: 4 << 20,
            contexts: 16_384,
            executors: 64,
            processes: 4096,
            threads: 16_384,
            library_files: 256,
            page_walks: PageWalkSettings::default(),
            clock_samples_per_second: 200,
        }
    }
}
