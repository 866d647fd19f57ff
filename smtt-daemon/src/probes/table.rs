//! Every probe as a row: its name, its hook, its program, what is lost without it and which rows can replace it.

use smtt_model::verdict::FIRST_TOUCH;

/// How a row is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// A raw tracepoint by name.
    RawTracepoint(&'static str),
    /// The return of a kernel function, by its trampoline.
    FunctionReturn(&'static str),
    /// The entry of a kernel function, by a kprobe.
    Kprobe(&'static str),
    /// A software event of the kernel, once per occurrence, on every CPU.
    Software(SoftwareEvent),
    /// The entry points of the marker's native library, wherever it is found.
    Marker,
}

/// The kernel's software events that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftwareEvent {
    /// Minor page faults.
    PageFaultsMinor,
    /// Major page faults.
    PageFaultsMajor,
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Name in status, metrics and configuration.
    pub probe: &'static str,
    /// Where it is attached.
    pub hook: Hook,
    /// Function in the kernel side.
    pub program: &'static str,
    /// Rung of the probe's ladder; the first rung that attaches wins. Rows of one rung belong together.
    pub rung: &'static str,
    /// What is lost without it, for the reader of a verdict.
    pub without: &'static str,
}

impl Row {
    /// The hook in the notation of verdicts.
    #[must_use]
    pub fn hook_name(&self) -> String {
        match self.hook {
            Hook::RawTracepoint(name) => format!("raw_tracepoint:{name}"),
            Hook::FunctionReturn(name) => format!("fexit:{name}"),
            Hook::Kprobe(name) => format!("kprobe:{name}"),
            Hook::Software(SoftwareEvent::PageFaultsMinor) => "perf:software/minor-faults/".into(),
            Hook::Software(SoftwareEvent::PageFaultsMajor) => "perf:software/major-faults/".into(),
            Hook::Marker => "uprobe:libsmtt_marker.so".into(),
        }
    }
}

/// The rung of `fault` at the processor's exception.
pub const RUNG_RAW_TRACEPOINT: &str = "raw_tracepoint";
/// The rung of `fault` at the return of the kernel's fault handler, by fexit.
pub const RUNG_FEXIT: &str = "fexit";
/// The rung of `fault` at the entry of the kernel's fault handler, by a kprobe.
pub const RUNG_KPROBE: &str = "kprobe";
/// The rung of `fault` that works everywhere, and the only one that does not distinguish reads from writes.
pub const RUNG_SOFTWARE: &str = "software";

/// The function that every page fault of a process goes through, on every architecture.
const FAULT_HANDLER: &str = "handle_mm_fault";

const ONLY: &str = "";

/// Every probe, in the order in which they are attached.
pub const TABLE: &[Row] = &[
    Row {
        probe: "marker",
        hook: Hook::Marker,
        program: "marker",
        rung: ONLY,
        without: "no executor is seen",
    },
    Row {
        probe: "fork",
        hook: Hook::RawTracepoint("sched_process_fork"),
        program: "fork",
        rung: ONLY,
        without: "faults of Python workers are not counted",
    },
    Row {
        probe: "exec",
        hook: Hook::RawTracepoint("sched_process_exec"),
        program: "exec",
        rung: ONLY,
        without: "a JVM that replaces its image stays listed",
    },
    Row {
        probe: "exit",
        hook: Hook::RawTracepoint("sched_process_exit"),
        program: "exit",
        rung: ONLY,
        without: "a process id that is used again would be taken for the old one",
    },
    Row {
        probe: "signal",
        hook: Hook::RawTracepoint("signal_generate"),
        program: "signal",
        rung: ONLY,
        without: "who killed an executor is not known",
    },
    Row {
        probe: "oom",
        hook: Hook::RawTracepoint("mark_victim"),
        program: "oom",
        rung: ONLY,
        without: "the kernel's OOM killer looks like any other sender of SIGKILL",
    },
    Row {
        probe: "fault",
        hook: Hook::RawTracepoint("page_fault_user"),
        program: "fault_user",
        rung: RUNG_RAW_TRACEPOINT,
        without: "page faults are not counted",
    },
    Row {
        probe: "fault",
        hook: Hook::RawTracepoint("page_fault_kernel"),
        program: "fault_kernel",
        rung: RUNG_RAW_TRACEPOINT,
        without: "page faults are not counted",
    },
    Row {
        probe: "fault",
        hook: Hook::FunctionReturn(FAULT_HANDLER),
        program: "fault_fexit",
        rung: RUNG_FEXIT,
        without: "page faults are not counted",
    },
    Row {
        probe: "fault",
        hook: Hook::Kprobe(FAULT_HANDLER),
        program: "fault_kprobe",
        rung: RUNG_KPROBE,
        without: "page faults are not counted",
    },
    Row {
        probe: "fault",
        hook: Hook::Software(SoftwareEvent::PageFaultsMinor),
        program: "fault_software",
        rung: RUNG_SOFTWARE,
        without: "page faults are not counted",
    },
    Row {
        probe: "fault",
        hook: Hook::Software(SoftwareEvent::PageFaultsMajor),
        program: "fault_software_major",
        rung: RUNG_SOFTWARE,
        without: "page faults are not counted",
    },
    Row {
        probe: "fault_major",
        hook: Hook::Software(SoftwareEvent::PageFaultsMajor),
        program: "fault_major",
        rung: ONLY,
        without: "major faults are not distinguished",
    },
    Row {
        probe: FIRST_TOUCH,
        hook: Hook::FunctionReturn("do_huge_pmd_anonymous_page"),
        program: "large_page",
        rung: ONLY,
        without: "a large page counts as one small page in the memory that tasks touched first",
    },
    Row {
        probe: FIRST_TOUCH,
        hook: Hook::FunctionReturn("do_swap_page"),
        program: "swapped_out",
        rung: ONLY,
        without: "pages that come back from swap are in the memory that tasks touched first",
    },
    Row {
        probe: FIRST_TOUCH,
        hook: Hook::FunctionReturn("task_numa_fault"),
        program: "numa_hint",
        rung: ONLY,
        without: "hint faults of the kernel's NUMA balancing are in the memory that tasks touched first",
    },
];
