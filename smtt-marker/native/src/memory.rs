//! Memory of the marker: a thread's buffer for facts, and its words while it has no slot.
//!
//! From here and not from Java: `sun.misc.Unsafe` warns on newer JDKs, and a direct buffer counts against the
//! application's limit of direct memory.

use crate::{Env, Ref};

/// Address of new memory, all zero, or 0 where there is none.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_smtt_marker_Native_allocate(
    _env: Env,
    _class: Ref,
    bytes: i32,
) -> i64 {
    let Ok(bytes) = usize::try_from(bytes) else {
        return 0;
    };
    // SAFETY: calloc has no precondition.
    unsafe { libc::calloc(1, bytes) as i64 }
}

/// Frees memory of `allocate`.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_smtt_marker_Native_free(_env: Env, _class: Ref, address: i64) {
    // SAFETY: the caller in Java frees each address once, and only those from `allocate`; 0 is permitted.
    unsafe { libc::free(address as *mut libc::c_void) };
}
