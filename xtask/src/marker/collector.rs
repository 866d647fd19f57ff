//! Test of the native library's `collector.rs`: a stand-in for the JVM's tool interface sends the events.

use std::ffi::{CString, c_void};
use std::path::Path;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use smtt_common::event::marker::SYMBOL_PREFIX;

/// Places in the tables of the JVM: `jni.h`, `jvmti.h`.
const GET_JAVA_VM: usize = 219;
const GET_ENV: usize = 6;
const SET_EVENT_NOTIFICATION_MODE: usize = 1;
const SET_EVENT_CALLBACKS: usize = 121;
const ADD_CAPABILITIES: usize = 141;
/// Entries of a table, more than any of the JVM has.
const ENTRIES: usize = 256;
/// `JVMTI_EVENT_GARBAGE_COLLECTION_START` and `_FINISH`, and the number of the first callback.
const START: i32 = 81;
const FINISH: i32 = 82;
const FIRST_EVENT: i32 = 50;

type Env = *const *const usize;
type Callback = unsafe extern "system" fn(Env);

/// The stand-in: a pointer to a table of functions.
static TABLE: [AtomicUsize; ENTRIES] = [const { AtomicUsize::new(0) }; ENTRIES];
static POINTER: AtomicUsize = AtomicUsize::new(0);
/// What the library asked for: events in the order in which they were switched on, and the callbacks.
static EVENTS: Mutex<Vec<i32>> = Mutex::new(Vec::new());
static CALLBACKS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

fn stand_in() -> Env {
    POINTER.as_ptr().cast_const().cast()
}

unsafe extern "system" fn get_java_vm(_env: Env, vm: *mut Env) -> i32 {
    // SAFETY: the caller has a variable there.
    unsafe { *vm = stand_in() };
    0
}

unsafe extern "system" fn get_env(_vm: Env, tools: *mut Env, _version: i32) -> i32 {
    // SAFETY: as above.
    unsafe { *tools = stand_in() };
    0
}

unsafe extern "system" fn add_capabilities(_tools: Env, _wanted: *const u32) -> i32 {
    0
}

unsafe extern "system" fn set_callbacks(_tools: Env, all: *const usize, _bytes: i32) -> i32 {
    for (at, event) in [START, FINISH].into_iter().enumerate() {
        // SAFETY: the caller's table has a place for each event up to the last of both.
        let callback = unsafe { *all.add((event - FIRST_EVENT) as usize) };
        CALLBACKS[at].store(callback, Ordering::SeqCst);
    }
    0
}

unsafe extern "C" fn set_mode(_tools: Env, _mode: i32, event: i32, _thread: *const c_void) -> i32 {
    if let Ok(mut events) = EVENTS.lock() {
        events.push(event);
    }
    0
}

/// Sends the events of collections to the library and compares the pauses that it keeps.
///
/// # Errors
/// When the library cannot be loaded, or counts otherwise.
pub fn test(library: &Path) -> Result<()> {
    let path = CString::new(library.as_os_str().as_encoded_bytes())?;
    // SAFETY: the library has no constructor.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    ensure!(!handle.is_null(), "{} cannot be loaded", library.display());
    let symbol = |name: &str| -> Result<*mut c_void> {
        let symbol = CString::new(format!("{SYMBOL_PREFIX}{name}"))?;
        // SAFETY: the handle is open, and the name ends with a zero byte.
        let address = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
        (!address.is_null())
            .then_some(address)
            .with_context(|| format!("no {name}"))
    };
    for (at, function) in [
        (GET_JAVA_VM, get_java_vm as *const () as usize),
        (GET_ENV, get_env as *const () as usize),
        (ADD_CAPABILITIES, add_capabilities as *const () as usize),
        (SET_EVENT_CALLBACKS, set_callbacks as *const () as usize),
        (SET_EVENT_NOTIFICATION_MODE, set_mode as *const () as usize),
    ] {
        TABLE[at].store(function, Ordering::SeqCst);
    }
    POINTER.store(TABLE.as_ptr() as usize, Ordering::SeqCst);
    type Follow = unsafe extern "system" fn(Env, *const c_void, i64) -> i32;
    type Count = unsafe extern "system" fn(Env, *const c_void) -> i32;
    type Pause = unsafe extern "system" fn(Env, *const c_void, i32, u8) -> i64;
    // SAFETY: these are the forms of the entry points; the library is never unloaded.
    let (follow, count, pause): (Follow, Count, Pause) = unsafe {
        (
            std::mem::transmute::<*mut c_void, Follow>(symbol("followCollections")?),
            std::mem::transmute::<*mut c_void, Count>(symbol("pauses")?),
            std::mem::transmute::<*mut c_void, Pause>(symbol("pause")?),
        )
    };
    // More than the slot file's header; it lives on, as that does.
    let header: &'static mut [u64; 512] = Box::leak(Box::new([0; 512]));
    // SAFETY: the tables and the header live for ever.
    let error = unsafe { follow(stand_in(), ptr::null(), header.as_mut_ptr() as i64) };
    ensure!(error == 0, "followCollections: {error}");
    // A collection may come between both: its end alone is nothing, a begin alone would stay open.
    let order = EVENTS.lock().map(|events| events.clone());
    let order = order.unwrap_or_default();
    ensure!(order == [FINISH, START], "switched on in order {order:?}");
    let callback = |at: usize| {
        let address = CALLBACKS[at].load(Ordering::SeqCst);
        // SAFETY: the library gave it as the callback of this event.
        unsafe { std::mem::transmute::<usize, Callback>(address) }
    };
    let (begun, ended) = (callback(0), callback(1));
    // SAFETY: the callbacks take no notice of the environment.
    let send = |events: &str| {
        for event in events.chars() {
            let callback = if event == '(' { begun } else { ended };
            // SAFETY: as the tool interface calls it.
            unsafe { callback(stand_in()) };
        }
    };
    // SAFETY: neither needs an environment.
    let counted = || unsafe { count(ptr::null(), ptr::null()) };
    // SAFETY: as above.
    let length = |number| unsafe {
        let end = pause(ptr::null(), ptr::null(), number, 1);
        end - pause(ptr::null(), ptr::null(), number, 0)
    };
    let expect = |events: &str, pauses: i32| {
        send(events);
        let counted = counted();
        ensure!(counted == pauses, "{counted} pauses after {events}");
        Ok(())
    };
    // An end without a begin; one collection; one within another, as for metadata.
    expect(")", 0)?;
    expect("()", 1)?;
    expect("(()())", 2)?;
    // An end is lost. Java code finds the begin open twice, so its pause is over: a number without times.
    expect("(()", 2)?;
    expect("", 3)?;
    expect("", 3)?;
    for pauses in 4..100 {
        expect("()", pauses)?;
        ensure!(length(pauses - 1) > 0, "pause {}", pauses - 1);
        ensure!(pauses > 60 || length(2) == 0, "it has no times");
    }
    // A pause that runs is not over while its events go on.
    expect("(", 99)?;
    expect("(", 99)?;
    expect(")", 99)?;
    expect(")", 100)
}
