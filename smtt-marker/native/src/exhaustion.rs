//! When the JVM runs out of something, as its tool interface (JVMTI) reports it: heap, metaspace, threads.
//!
//! The event comes on the thread to which it happens, where no Java code may allocate: the fact is written on the stack
//! and the probe pad is called from here. An environment of its own: the events of the collector may be off.

use core::ffi::{CStr, c_char};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use smtt_common::context::Header;
use smtt_common::event::marker::{EXHAUSTED_BY_JVM, EXHAUSTED_TEXT_MAX};

use crate::collector::{
    ADD_CAPABILITIES, AddCapabilities, DisposeEnvironment, SetEventMode, environment,
};
use crate::object::function;
use crate::pad::Java_io_smtt_marker_Native_resourceExhausted as pad;
use crate::{Env, Ref};

/// Bits of `can_generate_resource_exhaustion_heap_events` and of `..._threads_events` in the second word.
static CAPABILITIES: [u32; 4] = [0, 1 << 7 | 1 << 8, 0, 0];
/// Number of the event `ResourceExhausted`; callbacks are counted from the first event's.
const RESOURCE_EXHAUSTED: usize = 80;
const FIRST_EVENT: usize = 50;
/// Indices in the tool interface's table, and `JVMTI_ENABLE`.
const SET_EVENT_NOTIFICATION_MODE: usize = 1;
const SET_EVENT_CALLBACKS: usize = 121;
const DISPOSE_ENVIRONMENT: usize = 126;
const ENABLE: i32 = 1;

type Callback = unsafe extern "system" fn(Env, Env, i32, *const u8, *const c_char);
type Callbacks = [Option<Callback>; RESOURCE_EXHAUSTED - FIRST_EVENT + 1];
type SetEventCallbacks = unsafe extern "system" fn(Env, *const Callbacks, i32) -> i32;
type Pad = unsafe extern "system" fn(Env, Ref, *const u8, i64);

/// The slot file's header, which counts facts of threads without a slot.
static HEADER: AtomicPtr<Header> = AtomicPtr::new(ptr::null_mut());

/// Bytes of a fact with the longest text: two words, the text's length, the text.
const FACT_MAX: usize = 2 * size_of::<u64>() + size_of::<u16>() + EXHAUSTED_TEXT_MAX;

/// Reports from now on what the JVM runs out of; facts are counted in the header at `address`. 0, or an error of the JVM
/// where it does not report it.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_smtt_marker_Native_followExhaustion(
    env: Env,
    _class: Ref,
    address: i64,
) -> i32 {
    if env.is_null() || address == 0 {
        return -1;
    }
    HEADER.store(address as *mut Header, Ordering::Release);
    // SAFETY: env is the JVM's own for this thread.
    let tools = unsafe { environment(env) };
    if tools.is_null() {
        return -1;
    }
    let mut callbacks: Callbacks = [None; RESOURCE_EXHAUSTED - FIRST_EVENT + 1];
    callbacks[RESOURCE_EXHAUSTED - FIRST_EVENT] = Some(exhausted);
    // SAFETY: tools is an environment that was made for us; the indices name functions of exactly these types, which copy
    // what they are given.
    unsafe {
        let add: AddCapabilities = function(tools, ADD_CAPABILITIES);
        let mut error = add(tools, &raw const CAPABILITIES);
        if error == 0 {
            let set: SetEventCallbacks = function(tools, SET_EVENT_CALLBACKS);
            error = set(tools, &raw const callbacks, size_of::<Callbacks>() as i32);
        }
        if error == 0 {
            let mode: SetEventMode = function(tools, SET_EVENT_NOTIFICATION_MODE);
            error = mode(tools, ENABLE, RESOURCE_EXHAUSTED as i32, ptr::null());
        }
        if error != 0 {
            let dispose: DisposeEnvironment = function(tools, DISPOSE_ENVIRONMENT);
            dispose(tools);
        }
        error
    }
}

/// The JVM ran out of something. The thread's slot belongs to Java, so the fact counts as one without a slot.
unsafe extern "system" fn exhausted(
    _tools: Env,
    env: Env,
    flags: i32,
    _reserved: *const u8,
    description: *const c_char,
) {
    let text = if description.is_null() {
        &[][..]
    } else {
        // SAFETY: the JVM passes text that ends with NUL and lives for the call.
        unsafe { CStr::from_ptr(description) }.to_bytes()
    };
    let length = text.len().min(EXHAUSTED_TEXT_MAX);
    let mut fact = [0_u8; FACT_MAX];
    let mut at = 0;
    let words = EXHAUSTED_BY_JVM
        .to_le_bytes()
        .into_iter()
        .chain(u64::from(flags as u32).to_le_bytes());
    let parts = words.chain((length as u16).to_le_bytes());
    let parts = parts.chain(text.iter().copied().take(length));
    for (place, byte) in fact.iter_mut().zip(parts) {
        *place = byte;
        at += 1;
    }
    let header = HEADER.load(Ordering::Acquire);
    if !header.is_null() {
        // SAFETY: the header stays mapped for the JVM's life, and the word is aligned.
        unsafe { AtomicU64::from_ptr(&raw mut (*header).facts_without_slot) }
            .fetch_add(1, Ordering::SeqCst);
    }
    // SAFETY: the pad takes what every entry point takes, and does nothing but return.
    unsafe {
        let tell: Pad = core::mem::transmute::<extern "system" fn(), Pad>(pad);
        tell(env, ptr::null(), fact.as_ptr(), at as i64);
    }
}
