//! The probe pads: one exported function per fact, a 5-byte nop and a return.
//!
//! Why a nop first: a uprobe on it costs 0.2 to 0.6 microseconds (the kernel patches a 5-byte nop into a call, or
//! emulates it), while an instruction that must be single-stepped (`ret`, `endbr64`, `sub`) costs 16 to 37. Why
//! aligned: the kernel optimises a 5-byte nop only where it does not cross a page. Naked functions are emitted as
//! assembly, so the compiler cannot merge the identical bodies; `cargo xtask` checks the finished file again.

use smtt_common::event::MARKER_FACTS;

/// Declares the pads, and checks at compile time that they are exactly the entries of [`MARKER_FACTS`].
macro_rules! pads {
    ($($symbol:ident $entry:literal),+ $(,)?) => {
        $(
            /// Probe pad of the fact with that name; third and fourth argument are the payload's address and length.
            #[cfg(target_arch = "x86_64")]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub extern "system" fn $symbol() {
                // Fixed bytes: an assembler's own `nop` of five bytes may be encoded otherwise.
                core::arch::naked_asm!(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00", "ret", ".balign 16, 0xcc")
            }

            /// Probe pad of the fact with that name; third and fourth argument are the payload's address and length.
            #[cfg(target_arch = "riscv64")]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub extern "system" fn $symbol() {
                // Fixed bytes: an assembler would take the short `nop`, and the daemon looks for the long one.
                core::arch::naked_asm!(".byte 0x13, 0x00, 0x00, 0x00", "ret", ".balign 8")
            }

            /// Probe pad of the fact with that name; third and fourth argument are the payload's address and length.
            #[cfg(target_arch = "aarch64")]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub extern "system" fn $symbol() {
                core::arch::naked_asm!("nop", "ret", ".balign 8")
            }
        )+

        const DECLARED: &[&str] = &[$($entry),+];
    };
}

pads! {
    Java_io_smtt_marker_Native_executorDescribed "executorDescribed",
    Java_io_smtt_marker_Native_threadRegistered "threadRegistered",
    Java_io_smtt_marker_Native_threadGone "threadGone",
    Java_io_smtt_marker_Native_rddDescribed "rddDescribed",
    Java_io_smtt_marker_Native_stageDescribed "stageDescribed",
    Java_io_smtt_marker_Native_jobDescribed "jobDescribed",
    Java_io_smtt_marker_Native_taskStarted "taskStarted",
    Java_io_smtt_marker_Native_taskEnded "taskEnded",
    Java_io_smtt_marker_Native_blockStored "blockStored",
    Java_io_smtt_marker_Native_blockRead "blockRead",
    Java_io_smtt_marker_Native_blockMoved "blockMoved",
    Java_io_smtt_marker_Native_blockRemoved "blockRemoved",
    Java_io_smtt_marker_Native_pageAllocated "pageAllocated",
    Java_io_smtt_marker_Native_pageFreed "pageFreed",
    Java_io_smtt_marker_Native_consumerUsed "consumerUsed",
    Java_io_smtt_marker_Native_span "span",
    Java_io_smtt_marker_Native_pythonWorker "pythonWorker",
    Java_io_smtt_marker_Native_resyncDone "resyncDone",
    Java_io_smtt_marker_Native_addressesTold "addressesTold",
    Java_io_smtt_marker_Native_resyncTold "resyncTold",
    Java_io_smtt_marker_Native_taskBegun "taskBegun",
    Java_io_smtt_marker_Native_taskHeap "taskHeap",
    Java_io_smtt_marker_Native_taskHeapSoFar "taskHeapSoFar",
    Java_io_smtt_marker_Native_resourceExhausted "resourceExhausted",
    Java_io_smtt_marker_Native_memoryTold "memoryTold",
    Java_io_smtt_marker_Native_peaksTold "peaksTold",
    Java_io_smtt_marker_Native_taskMetrics "taskMetrics",
    Java_io_smtt_marker_Native_helperBegun "helperBegun",
    Java_io_smtt_marker_Native_helperEnded "helperEnded",
    Java_io_smtt_marker_Native_shuffleFetched "shuffleFetched",
    Java_io_smtt_marker_Native_collectorPaused "collectorPaused",
}

/// Whether two names are the same; usable at compile time.
const fn same(left: &str, right: &str) -> bool {
    let (left, right) = (left.as_bytes(), right.as_bytes());
    if left.len() != right.len() {
        return false;
    }
    let mut at = 0;
    while at < left.len() {
        if left[at] != right[at] {
            return false;
        }
        at += 1;
    }
    true
}

const _: () = {
    assert!(
        DECLARED.len() == MARKER_FACTS.len(),
        "a fact has no probe pad, or a pad no fact"
    );
    let mut at = 0;
    while at < DECLARED.len() {
        assert!(
            same(DECLARED[at], MARKER_FACTS[at].entry),
            "pads and facts differ in name or order"
        );
        at += 1;
    }
};
