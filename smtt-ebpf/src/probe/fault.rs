//! Page faults. The ladder: raw tracepoints of the processor's exception, else the entry of the kernel's fault handler
//! (fentry, else kprobe), all of which tell reads from writes; else the software event, which does not.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::bpf_perf_event_data;
use aya_ebpf::macros::{fentry, kprobe, perf_event, raw_tracepoint};
use aya_ebpf::programs::{FEntryContext, PerfEventContext, ProbeContext, RawTracePointContext};

use crate::count::{self, Fault};

/// Bit of x86's page-fault error code: the access was a write.
const ERROR_CODE_WRITE: u64 = 1 << 1;
/// First address that belongs to the kernel on every 64-bit machine with four or five levels of page tables.
const KERNEL_HALF: u64 = 1 << 63;

/// `exceptions:page_fault_user(address, regs, error_code)`: the process touched memory.
#[raw_tracepoint(tracepoint = "page_fault_user")]
pub fn fault_user(context: RawTracePointContext) -> i32 {
    exception(&context)
}

/// `exceptions:page_fault_kernel`: the kernel touched the process's memory on its behalf, in a system call.
#[raw_tracepoint(tracepoint = "page_fault_kernel")]
pub fn fault_kernel(context: RawTracePointContext) -> i32 {
    exception(&context)
}

#[inline(always)]
fn exception(context: &RawTracePointContext) -> i32 {
    let address: u64 = context.arg(0);
    if address & KERNEL_HALF == 0 {
        let error_code: u64 = context.arg(2);
        count::fault(if error_code & ERROR_CODE_WRITE != 0 { Fault::Write } else { Fault::Read }, address);
    }
    0
}

/// `FAULT_FLAG_WRITE` of the kernel's `enum fault_flag`.
const FLAG_WRITE: u32 = 1;
/// `FAULT_FLAG_TRIED`: the fault was begun before, and had to wait.
const FLAG_TRIED: u32 = 1 << 5;

/// `handle_mm_fault(vma, address, flags, regs)` by its trampoline.
#[fentry(function = "handle_mm_fault")]
pub fn fault_fentry(context: FEntryContext) -> i32 {
    handled(context.arg(1), context.arg(2), context.arg(3));
    0
}

/// The same by a breakpoint or the function tracer.
#[kprobe]
pub fn fault_kprobe(context: ProbeContext) -> u32 {
    if let (Some(address), Some(flags), Some(registers)) = (context.arg(1), context.arg(2), context.arg(3)) {
        handled(address, flags, registers);
    }
    0
}

/// Counts as the exception would have: not memory that the kernel touches without one (no registers then, as for
/// `/proc/PID/mem`), and not the second try of a fault that was counted.
#[inline(always)]
fn handled(address: u64, flags: u32, registers: u64) {
    if registers != 0 && flags & FLAG_TRIED == 0 {
        count::fault(if flags & FLAG_WRITE != 0 { Fault::Write } else { Fault::Read }, address);
    }
}

/// The software event for page faults, one overflow per fault.
#[perf_event]
pub fn fault_software(context: PerfEventContext) -> u32 {
    count::fault(Fault::Unknown, address(&context));
    0
}

/// The software event for major faults, one overflow per fault.
#[perf_event]
pub fn fault_major(_context: PerfEventContext) -> u32 {
    count::fault(Fault::Major, 0);
    0
}

#[inline(always)]
fn address(context: &PerfEventContext) -> u64 {
    let data: *const bpf_perf_event_data = context.as_ptr().cast();
    // SAFETY: the context of a perf event program, whose fields the verifier lets it read.
    unsafe { (*data).addr }
}
