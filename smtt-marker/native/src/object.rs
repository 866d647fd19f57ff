//! Where Java objects are: the first element of a primitive array, the memory of a direct buffer.
//!
//! The JVM's own function table is called by index (the JNI specification fixes the order), so no binding crate
//! is needed and no layout of any collector is assumed.

use core::ffi::c_void;
use core::ptr;

use crate::{Env, Ref};

/// Index of `GetPrimitiveArrayCritical` in the JNI function table.
const GET_PRIMITIVE_ARRAY_CRITICAL: usize = 222;
/// Index of `ReleasePrimitiveArrayCritical`.
const RELEASE_PRIMITIVE_ARRAY_CRITICAL: usize = 223;
/// Index of `GetDirectBufferAddress`.
const GET_DIRECT_BUFFER_ADDRESS: usize = 230;
/// Release mode: do not copy back.
const JNI_ABORT: i32 = 2;

type GetCritical = unsafe extern "system" fn(Env, Ref, *mut u8) -> *mut c_void;
type ReleaseCritical = unsafe extern "system" fn(Env, Ref, *mut c_void, i32);
type BufferAddress = unsafe extern "system" fn(Env, Ref) -> *mut c_void;

/// Address of an array's first element now, 0 where the JVM only gives out a copy. A collection may move the
/// array at once: the answer is a fact about this moment.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_smtt_marker_Native_arrayAddress(
    env: Env,
    _class: Ref,
    array: Ref,
) -> i64 {
    if env.is_null() || array.is_null() {
        return 0;
    }
    let mut is_copy = 0_u8;
    // SAFETY: env is the JVM's own for this thread; the index names a function of exactly this type, and array is
    // a primitive array, as the caller in Java takes care of. Nothing happens between get and release.
    let address = unsafe {
        let get: GetCritical = function(env, GET_PRIMITIVE_ARRAY_CRITICAL);
        let release: ReleaseCritical = function(env, RELEASE_PRIMITIVE_ARRAY_CRITICAL);
        let address = get(env, array, &raw mut is_copy);
        if !address.is_null() {
            release(env, array, address, JNI_ABORT);
        }
        address
    };
    if is_copy == 0 { address as i64 } else { 0 }
}

/// Address of a direct buffer's first byte, 0 where it has none.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_smtt_marker_Native_bufferAddress(
    env: Env,
    _class: Ref,
    buffer: Ref,
) -> i64 {
    if env.is_null() || buffer.is_null() {
        return 0;
    }
    // SAFETY: as above; the JVM answers null for a buffer that is not direct.
    unsafe {
        let address: BufferAddress = function(env, GET_DIRECT_BUFFER_ADDRESS);
        address(env, buffer) as i64
    }
}

/// The function at an index of the JNI table.
///
/// # Safety
/// `env` is a JNI environment and `F` the pointer type of the function at that index.
unsafe fn function<F: Copy>(env: Env, index: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    // SAFETY: the caller's promise; the table has more entries than any index used here.
    unsafe { ptr::read((*env).add(index).cast::<F>()) }
}
