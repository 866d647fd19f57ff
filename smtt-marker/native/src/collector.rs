//! When the collector runs, as the JVM's tool interface (JVMTI) reports it: two counts in the slot file's header, begin
//! and end of the last pauses, and a wake of the threads that wait for the end of a collection. And what the same
//! interface knows of an object: its size.
//!
//! The events come on the JVM's own thread while the application stands still, so they only store and wake. They can
//! be switched on in a running JVM, without any option of the JVM.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use smtt_common::context::Header;

use crate::object::function;
use crate::{Env, Ref};

/// Index of `GetJavaVM` in the JNI function table.
const GET_JAVA_VM: usize = 219;
/// Index of `GetEnv` in the invocation table.
const GET_ENV: usize = 6;
/// The tool interface as of Java 7.
const JVMTI_VERSION: i32 = 0x3001_0200;
/// Indices in the tool interface's table: its numbers count from one.
const SET_EVENT_NOTIFICATION_MODE: usize = 1;
const SET_EVENT_CALLBACKS: usize = 121;
const DISPOSE_ENVIRONMENT: usize = 126;
pub const ADD_CAPABILITIES: usize = 141;
const GET_OBJECT_SIZE: usize = 153;
/// Bit of `can_generate_garbage_collection_events` in the first word of the capabilities.
const CAN_GENERATE_COLLECTION_EVENTS: u32 = 1 << 31;
/// Numbers of the events; callbacks are counted from the first event's.
const FIRST_EVENT: usize = 50;
const COLLECTION_START: usize = 81;
const COLLECTION_FINISH: usize = 82;
/// `JVMTI_ENABLE`.
const ENABLE: i32 = 1;

type GetJavaVm = unsafe extern "system" fn(Env, *mut Env) -> i32;
type GetEnv = unsafe extern "system" fn(Env, *mut Env, i32) -> i32;
pub type AddCapabilities = unsafe extern "system" fn(Env, *const [u32; 4]) -> i32;
type SetEventCallbacks = unsafe extern "system" fn(Env, *const Callbacks, i32) -> i32;
pub type SetEventMode = unsafe extern "C" fn(Env, i32, i32, Ref, ...) -> i32;
type GetObjectSize = unsafe extern "system" fn(Env, Ref, *mut i64) -> i32;
pub type DisposeEnvironment = unsafe extern "system" fn(Env) -> i32;
type Callback = unsafe extern "system" fn(Env);
type Callbacks = [Option<Callback>; COLLECTION_FINISH - FIRST_EVENT + 1];

/// Where the counts are; null until they are wanted.
static HEADER: AtomicPtr<Header> = AtomicPtr::new(ptr::null_mut());
/// The environment that the events were switched on in; null without one. It lives as long as the JVM.
static TOOLS: AtomicPtr<*const usize> = AtomicPtr::new(ptr::null_mut());
/// Ends of collections, the word that is waited for: not in the slot file, which others can write.
static ENDED: AtomicU32 = AtomicU32::new(0);

/// Pauses whose times are kept.
const KEPT: usize = 64;
/// Begin and end of the last pauses, a pause at its number modulo [`KEPT`]; `CLOCK_MONOTONIC` in nanoseconds.
static PAUSES: [[AtomicU64; 2]; KEPT] = [const { [const { AtomicU64::new(0) }; 2] }; KEPT];
/// Pauses that have ended.
static PAUSED: AtomicU32 = AtomicU32::new(0);
/// A pause went without its times: the next number is nobody's.
static MISSED: AtomicU32 = AtomicU32::new(0);
/// Begins without an end: a collection for metadata has one within another (JDK 17). The outermost two are a pause. Above
/// [`DEPTH_BITS`] the number of events, so that a value is never seen twice.
static DEPTH: AtomicU64 = AtomicU64::new(0);
const DEPTH_BITS: u64 = 16;
/// [`DEPTH`] as the last question for pauses found it.
static DEPTH_SEEN: AtomicU64 = AtomicU64::new(0);
/// Begin of the pause that runs.
static BEGAN: AtomicU64 = AtomicU64::new(0);

/// Counts collections in the header at `address` from now on. 0, or an error of the JVM where it does not report them.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_smtt_marker_Native_followCollections(
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
    // SAFETY: tools is an environment that was made for us.
    unsafe {
        let error = enable(tools);
        if error != 0 {
            let dispose: DisposeEnvironment = function(tools, DISPOSE_ENVIRONMENT);
            dispose(tools);
        } else {
            TOOLS.store(tools.cast_mut(), Ordering::Release);
        }
        error
    }
}

/// A new environment of the tool interface; null where the JVM has none.
///
/// # Safety
/// `env` is the JVM's own for this thread.
pub unsafe fn environment(env: Env) -> Env {
    let (mut vm, mut tools): (Env, Env) = (ptr::null(), ptr::null());
    // SAFETY: the caller's promise; the indices name functions of exactly these types.
    unsafe {
        let get_vm: GetJavaVm = function(env, GET_JAVA_VM);
        if get_vm(env, &raw mut vm) != 0 || vm.is_null() {
            return ptr::null();
        }
        let get_env: GetEnv = function(vm, GET_ENV);
        if get_env(vm, &raw mut tools, JVMTI_VERSION) != 0 {
            return ptr::null();
        }
    }
    tools
}

/// Bytes of an object, header and padding included, as the JVM reports it; 0 where collections are not followed.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_smtt_marker_Native_objectSize(
    _env: Env,
    _class: Ref,
    object: Ref,
) -> i64 {
    let tools: Env = TOOLS.load(Ordering::Acquire);
    if tools.is_null() || object.is_null() {
        return 0;
    }
    let mut bytes = 0;
    // SAFETY: the environment is never disposed of once it is stored; the index names a function of exactly this type,
    // which writes to a variable of its own and needs no capability.
    let error = unsafe {
        let size: GetObjectSize = function(tools, GET_OBJECT_SIZE);
        size(tools, object, &raw mut bytes)
    };
    if error == 0 { bytes } else { 0 }
}

/// Switches both events on; 0, or the JVM's error. A collection may come between both, so the end is first: one without a
/// begin is ignored, a begin without an end would stay open.
///
/// # Safety
/// `tools` is an environment of the tool interface.
unsafe fn enable(tools: Env) -> i32 {
    let capabilities = [CAN_GENERATE_COLLECTION_EVENTS, 0, 0, 0];
    let mut callbacks: Callbacks = [None; COLLECTION_FINISH - FIRST_EVENT + 1];
    callbacks[COLLECTION_START - FIRST_EVENT] = Some(begun);
    callbacks[COLLECTION_FINISH - FIRST_EVENT] = Some(ended);
    // SAFETY: the caller's promise; the indices name functions of exactly these types, which copy what they are given.
    unsafe {
        let add: AddCapabilities = function(tools, ADD_CAPABILITIES);
        let mut error = add(tools, &raw const capabilities);
        if error == 0 {
            let set: SetEventCallbacks = function(tools, SET_EVENT_CALLBACKS);
            error = set(tools, &raw const callbacks, size_of::<Callbacks>() as i32);
        }
        let mode: SetEventMode = function(tools, SET_EVENT_NOTIFICATION_MODE);
        for event in [COLLECTION_FINISH, COLLECTION_START] {
            if error == 0 {
                error = mode(tools, ENABLE, event as i32, ptr::null());
            }
        }
        error
    }
}

/// A collection begins: the reported heap addresses are stale. Only one runs at a time.
unsafe extern "system" fn begun(_tools: Env) {
    let header = HEADER.load(Ordering::Acquire);
    if header.is_null() {
        return;
    }
    // SAFETY: the header stays mapped for the JVM's life; the word is aligned and only this event writes it.
    unsafe { count(&raw mut (*header).collections_begun) };
    if depth_of(DEPTH.fetch_add(EVENT + 1, Ordering::SeqCst)) == 0 {
        BEGAN.store(monotonic_ns(), Ordering::Relaxed);
    }
}

/// A collection has ended. A start that was not seen, because the events were switched on in the middle of one, is made
/// up for, so that the counts agree whenever none runs.
unsafe extern "system" fn ended(_tools: Env) {
    let header = HEADER.load(Ordering::Acquire);
    if header.is_null() {
        return;
    }
    let when = monotonic_ns();
    // Only one thread at a time runs these events. Of a pause that began before they were switched on nothing is kept.
    let mut before = DEPTH.load(Ordering::SeqCst);
    while let Err(now) = DEPTH.compare_exchange(
        before,
        before.wrapping_add(EVENT) - u64::from(depth_of(before) > 0),
        Ordering::SeqCst,
        Ordering::SeqCst,
    ) {
        before = now;
    }
    if depth_of(before) == 1 {
        let mut number = PAUSED.load(Ordering::Relaxed);
        if MISSED.swap(0, Ordering::SeqCst) > 0 {
            keep(number, 0, 0);
            number = number.wrapping_add(1);
        }
        keep(number, BEGAN.load(Ordering::Relaxed), when);
        PAUSED.store(number.wrapping_add(1), Ordering::SeqCst);
    }
    // SAFETY: as above.
    unsafe {
        let begun = AtomicU64::from_ptr(&raw mut (*header).collections_begun);
        let ended = AtomicU64::from_ptr(&raw mut (*header).collections_ended);
        if ended.load(Ordering::Relaxed) == begun.load(Ordering::Relaxed) {
            begun.fetch_add(1, Ordering::SeqCst);
        }
        AtomicU64::from_ptr(&raw mut (*header).collection_ended_ns).store(when, Ordering::Relaxed);
        ended.store(begun.load(Ordering::Relaxed), Ordering::SeqCst);
    }
    ENDED.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the word is ours and lives as long as the library.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            ENDED.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            1,
        );
    }
}

/// One event in [`DEPTH`].
const EVENT: u64 = 1 << DEPTH_BITS;

const fn depth_of(depth: u64) -> u64 {
    depth % EVENT
}

fn keep(number: u32, begin: u64, end: u64) {
    let [at_begin, at_end] = &PAUSES[number as usize % KEPT];
    at_begin.store(begin, Ordering::Relaxed);
    at_end.store(end, Ordering::Relaxed);
}

/// `CLOCK_MONOTONIC` in nanoseconds, as `System.nanoTime` has it.
fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock's answer goes to a variable of its own.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Pauses that have ended.
///
/// Only Java code calls this, which stands still from a pause's begin to its end. So a begin that two calls find open,
/// without an event in between, has lost its end: it is closed, and its number stays without times.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_smtt_marker_Native_pauses(_env: Env, _class: Ref) -> i32 {
    let depth = DEPTH.load(Ordering::SeqCst);
    let seen = DEPTH_SEEN.swap(depth, Ordering::SeqCst);
    if depth_of(depth) > 0 && depth == seen {
        let closed = depth.wrapping_add(EVENT) - depth_of(depth);
        let open = DEPTH.compare_exchange(depth, closed, Ordering::SeqCst, Ordering::SeqCst);
        if open.is_ok() {
            MISSED.store(1, Ordering::SeqCst);
        }
    }
    let missed = MISSED.load(Ordering::SeqCst);
    PAUSED.load(Ordering::SeqCst).wrapping_add(missed) as i32
}

/// Begin or end of a pause; 0 where another one has its place.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_smtt_marker_Native_pause(
    _env: Env,
    _class: Ref,
    number: i32,
    end: u8,
) -> i64 {
    let number = number as u32;
    let when = PAUSES[number as usize % KEPT][usize::from(end != 0)].load(Ordering::SeqCst);
    // A pause that ends now may write to the place of the oldest one before it counts.
    let age = PAUSED.load(Ordering::SeqCst).wrapping_sub(number);
    if (1..KEPT as u32).contains(&age) {
        when as i64
    } else {
        0
    }
}

/// Adds one to a word that others read.
///
/// # Safety
/// The word is aligned, and mapped.
unsafe fn count(word: *mut u64) {
    // SAFETY: the caller's promise.
    unsafe { AtomicU64::from_ptr(word) }.fetch_add(1, Ordering::SeqCst);
}

/// Waits until more collections have ended than `seen` of them, or for `milliseconds`; returns how many have.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_smtt_marker_Native_waitForCollection(
    _env: Env,
    _class: Ref,
    seen: i32,
    milliseconds: i32,
) -> i32 {
    let limit = libc::timespec {
        tv_sec: libc::time_t::from(milliseconds.max(0) / 1000),
        tv_nsec: libc::c_long::from(milliseconds.max(0) % 1000 * 1_000_000),
    };
    // An early return (a signal, a word that changed meanwhile) is as good as any: the caller checks the count.
    // SAFETY: the word is ours and lives as long as the library; the limit lives for the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            ENDED.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            seen,
            &raw const limit,
            ptr::null::<c_void>(),
            0,
        );
    }
    ENDED.load(Ordering::SeqCst) as i32
}
