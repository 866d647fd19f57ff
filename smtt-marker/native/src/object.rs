//! Where Java objects are: the first element of a primitive array, the memory of a direct buffer; and handles that
//! lead to an array after the collector has moved it.
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
/// Index of `DeleteLocalRef`.
const DELETE_LOCAL_REF: usize = 23;
/// Index of `NewLocalRef`.
const NEW_LOCAL_REF: usize = 25;
/// Index of `NewWeakGlobalRef`.
const NEW_WEAK_GLOBAL_REF: usize = 226;
/// Index of `DeleteWeakGlobalRef`.
const DELETE_WEAK_GLOBAL_REF: usize = 227;
/// Release mode: do not copy back.
const JNI_ABORT: i32 = 2;

type GetCritical = unsafe extern "system" fn(Env, Ref, *mut u8) -> *mut c_void;
type ReleaseCritical = unsafe extern "system" fn(Env, Ref, *mut c_void, i32);
type NewRef = unsafe extern "system" fn(Env, Ref) -> Ref;
type DeleteRef = unsafe extern "system" fn(Env, Ref);
type BufferAddress = unsafe extern "system" fn(Env, Ref) -> *mut c_void;

/// Address of an array's first element now, 0 where the JVM only gives out a copy. A collection may move the
/// array at once: the answer is a fact about this moment.
///
/// # Safety
/// `env` is the JVM's own for this thread, and `array` a primitive array.
unsafe fn array_address(env: Env, array: Ref) -> i64 {
    let mut is_copy = 0_u8;
    // SAFETY: the caller's promise; the index names a function of exactly this type. Nothing happens between get and
    // release.
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

/// A weak handle of an object, which keeps it from nothing; 0 where the JVM has no room for one.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_smtt_marker_Native_newHandle(
    env: Env,
    _class: Ref,
    object: Ref,
) -> i64 {
    if env.is_null() || object.is_null() {
        return 0;
    }
    // SAFETY: env is the JVM's own for this thread, and the index names a function of exactly this type.
    unsafe {
        let new: NewRef = function(env, NEW_WEAK_GLOBAL_REF);
        new(env, object) as i64
    }
}

/// Gives a handle back.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_smtt_marker_Native_deleteHandle(env: Env, _class: Ref, handle: i64) {
    if env.is_null() || handle == 0 {
        return;
    }
    // SAFETY: as above; the caller in Java gives each handle back once.
    unsafe {
        let delete: DeleteRef = function(env, DELETE_WEAK_GLOBAL_REF);
        delete(env, handle as Ref);
    }
}

/// Address of the first element of the array behind a handle now, as the JVM itself reports it; 0 where the array is
/// gone.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_smtt_marker_Native_handleAddress(
    env: Env,
    _class: Ref,
    handle: i64,
) -> i64 {
    if env.is_null() || handle == 0 {
        return 0;
    }
    // SAFETY: as above, and only arrays get handles; a weak handle may be used where a reference is expected, and the reference made of it is null
    // when the object is gone.
    unsafe {
        let new: NewRef = function(env, NEW_LOCAL_REF);
        let delete: DeleteRef = function(env, DELETE_LOCAL_REF);
        let array = new(env, handle as Ref);
        if array.is_null() {
            return 0;
        }
        let address = array_address(env, array);
        delete(env, array);
        address
    }
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

/// The function at an index of a table of the JVM: JNI's, or one of the same form.
///
/// # Safety
/// `env` points to a pointer to such a table, and `F` is the pointer type of the function at that index.
pub(crate) unsafe fn function<F: Copy>(env: Env, index: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    // SAFETY: the caller's promise; the table has more entries than any index used here.
    unsafe { ptr::read((*env).add(index).cast::<F>()) }
}
