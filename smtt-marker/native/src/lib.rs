//! JNI side of the marker: probe pads, the slot file, and where arrays and buffers are.
//!
//! The class `io.smtt.marker.Native` declares every function here. It does no work of its own that Java could
//! do: each entry point of [`smtt_common::event::MARKER_FACTS`] is only a pad for a probe, and what remains are
//! the things that Java cannot say: a memfd, an address of an array, of a buffer, a thread id, memory without a warning,
//! which
//! parts of the process are resident, and when the collector runs.
//!
//! The library is loaded into foreign JVMs, so the profile `marker` builds it without the standard library (a
//! few KB, needs libc only). Any other profile unwinds and therefore builds it with the standard library; that
//! is only for checks and lints.
#![cfg_attr(panic = "abort", no_std)]

mod collector;
mod exhaustion;
mod memory;
mod object;
mod pad;
mod publish;
mod resident;
mod slots;
mod vm_structs;

/// Opaque `JNIEnv*`: a pointer to the JVM's function table.
pub type Env = *const *const usize;
/// Opaque `jclass` or `jobject`.
pub type Ref = *const core::ffi::c_void;

/// Nothing here panics (there is no arithmetic that can overflow and no indexing); the language still wants a
/// handler, and a process that is not ours must not spin.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: abort has no precondition.
    unsafe { libc::abort() }
}
