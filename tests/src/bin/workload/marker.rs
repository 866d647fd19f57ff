//! The marker's side of the contract: the library's entry points, the slot file, one slot per thread.

use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use anyhow::{Context as _, Result, bail};
use smtt_common::context::{
    Access, Activity, ContextWord, HEADER_SIZE, Header, Range, Region, SLOT_SIZE, Slot,
};
use smtt_common::event::marker::{LATER_KINDS, SYMBOL_PREFIX, schema};
use smtt_common::event::{Kind, MARKER_FACTS};
use smtt_model::decode::encode::payload;

use smtt_tests::release::UNKNOWN_ENTRY;

use crate::memory::thread_id;

/// Slots of the slot file.
const SLOTS: u32 = 1024;

/// An entry point: JNI environment, class, payload address, payload length.
type Entry = unsafe extern "C" fn(*const c_void, *const c_void, i64, i32);
type CreateSlots = unsafe extern "C" fn(*const c_void, *const c_void, i32) -> i64;

thread_local! {
    /// Index of this thread's slot plus one; 0 for none.
    static SLOT: Cell<u32> = const { Cell::new(0) };
}

/// The library, loaded, and the slot file.
pub struct Marker {
    entries: Vec<(Kind, Entry)>,
    /// The entry point that the library of a newer marker has.
    unknown: Option<Entry>,
    header: *mut Header,
    next_slot: AtomicU32,
    /// Facts sent, as this program counts them.
    pub told: AtomicU64,
}

// SAFETY: the header's address does not change, and each slot behind the header has one writing thread.
unsafe impl Send for Marker {}
// SAFETY: as above.
unsafe impl Sync for Marker {}

impl Marker {
    /// Loads the library and makes the slot file.
    pub fn load(path: &str) -> Result<Self> {
        let name = CString::new(path)?;
        // SAFETY: the name is NUL-terminated; the library has no initialiser.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            bail!("{path} cannot be loaded: run `cargo xtask setup`");
        }
        let optional = |name: &str| -> Result<Option<*mut c_void>> {
            let symbol = CString::new(format!("{SYMBOL_PREFIX}{name}"))?;
            // SAFETY: the handle is open and the name NUL-terminated.
            let address = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
            Ok((!address.is_null()).then_some(address))
        };
        let symbol = |name: &str| {
            optional(name)?.with_context(|| format!("{path} has no entry point {name}"))
        };
        // SAFETY: entry points have this form; see docs/design/facts.md.
        let entry = |address| unsafe { std::mem::transmute::<*mut c_void, Entry>(address) };
        let mut entries = Vec::new();
        for fact in MARKER_FACTS {
            let address = if LATER_KINDS.contains(&fact.kind) {
                optional(fact.entry)?
            } else {
                Some(symbol(fact.entry)?)
            };
            entries.extend(address.map(|address| (fact.kind, entry(address))));
        }
        let unknown = optional(UNKNOWN_ENTRY)?.map(entry);
        // SAFETY: as above.
        let create =
            unsafe { std::mem::transmute::<*mut c_void, CreateSlots>(symbol("createSlots")?) };
        // SAFETY: the entry point does not use the environment or the class.
        let header = unsafe { create(ptr::null(), ptr::null(), SLOTS as i32) };
        if header < 0 {
            bail!(
                "no slot file: {}",
                std::io::Error::from_raw_os_error(-header as i32)
            );
        }
        Ok(Self {
            entries,
            unknown,
            header: header as *mut Header,
            next_slot: AtomicU32::new(0),
            told: AtomicU64::new(0),
        })
    }

    /// Sends the description of this executor.
    pub fn describe(&self) {
        self.describe_as(&std::process::id().to_string());
    }

    /// Sends a description with another executor id.
    pub fn describe_as(&self, executor: &str) {
        let words = [self.header as u64, u64::from(SLOTS), 0, 1 << 30, 0, 0];
        self.tell(
            Kind::EXECUTOR_DESCRIBED,
            &payload(
                &words,
                &[],
                &[
                    "workload",
                    "workload",
                    executor,
                    "localhost",
                    "none",
                    "none",
                    "",
                ],
            ),
        );
    }

    /// Calls the entry point of a kind with a payload. As from the marker, nothing comes where the library has none.
    pub fn tell(&self, kind: Kind, payload: &[u8]) {
        if self.entries.iter().any(|(known, _)| *known == kind) {
            self.tell_raw(kind, payload.as_ptr() as i64, payload.len() as i32);
            self.count();
        }
    }

    /// Calls the entry point that only a newer marker has; false where the library has none.
    pub fn tell_unknown(&self, payload: &[u8]) -> bool {
        let Some(entry) = self.unknown else {
            return false;
        };
        let (address, length) = (payload.as_ptr() as i64, payload.len() as i32);
        // SAFETY: the entry points only return.
        unsafe { entry(ptr::null(), ptr::null(), address, length) };
        self.count();
        true
    }

    /// Counts a fact.
    fn count(&self) {
        // As the marker does: counts in the thread's slot, or in the header.
        let slot = SLOT.get();
        // SAFETY: inside the slot file; the counter of a slot has one writer.
        unsafe {
            if slot == 0 {
                let counter = AtomicU64::from_ptr(&raw mut (*self.header).facts_without_slot);
                counter.fetch_add(1, Ordering::Relaxed);
            } else {
                let counter = &raw mut (*self.slot(slot - 1)).facts_emitted;
                counter.write_volatile(counter.read_volatile() + 1);
            }
        }
    }

    /// Calls the entry point of a kind with any address and length, valid or not.
    pub fn tell_raw(&self, kind: Kind, address: i64, length: i32) {
        self.told.fetch_add(1, Ordering::Relaxed);
        if let Some((_, entry)) = self.entries.iter().find(|(known, _)| *known == kind) {
            // SAFETY: the entry points only return.
            unsafe { entry(ptr::null(), ptr::null(), address, length) };
        }
    }

    /// Sends the words of a fact, with test strings where the form has strings.
    pub fn tell_words(&self, kind: Kind, words: &[u64]) {
        let strings = schema(kind).map_or(0, |schema| schema.strings.len());
        self.tell(kind, &payload(words, &[], &vec!["text"; strings]));
    }

    fn slot(&self, index: u32) -> *mut Slot {
        self.header
            .cast::<u8>()
            .wrapping_add(HEADER_SIZE + index as usize * SLOT_SIZE)
            .cast()
    }

    /// Gives the calling thread a slot and registers the thread.
    pub fn register(&self) -> Result<OwnSlot> {
        self.register_with(Range::default())
    }

    /// As [`Self::register`], in a program whose Java heap has these addresses.
    pub fn register_with(&self, heap: Range) -> Result<OwnSlot> {
        let index = self.next_slot.fetch_add(1, Ordering::Relaxed);
        if index >= SLOTS {
            bail!("more than {SLOTS} threads");
        }
        let slot = self.slot(index);
        let tid = thread_id();
        // SAFETY: the index is in range and the slot is this thread's own.
        unsafe {
            (&raw mut (*slot).hot).write_volatile(0);
            (&raw mut (*slot).tid).write_volatile(tid);
            (&raw mut (*slot).heap).write_volatile(heap);
            (&raw mut (*slot).state).write_volatile(1);
        }
        SLOT.set(index + 1);
        self.tell(
            Kind::THREAD_REGISTERED,
            &payload(&[slot as u64, u64::from(tid), 1], &[], &["worker"]),
        );
        Ok(OwnSlot { slot })
    }

    /// The last resync request that was not served.
    pub fn resync_request(&self) -> Option<u64> {
        // SAFETY: the header is there for the program's life; the daemon writes this word.
        let (request, done) = unsafe {
            (
                (&raw const (*self.header).resync_request).read_volatile(),
                (&raw const (*self.header).resync_done).read_volatile(),
            )
        };
        (request != done).then_some(request)
    }

    /// Reports that a resync request was served.
    pub fn resync_done(&self, request: u64) {
        self.tell_words(Kind::RESYNC_DONE, &[request]);
        // SAFETY: as above; this word is ours.
        unsafe { (&raw mut (*self.header).resync_done).write_volatile(request) };
    }
}

/// The calling thread's slot.
pub struct OwnSlot {
    slot: *mut Slot,
}

impl OwnSlot {
    /// Address of the slot.
    pub fn address(&self) -> u64 {
        self.slot as u64
    }

    /// Sets a task: idle, cold words, then the hot word.
    pub fn set_task(&self, task_attempt_id: u64, stage_id: u32, hot: ContextWord) {
        self.enter(ContextWord(0));
        // SAFETY: this thread's own slot.
        unsafe {
            (&raw mut (*self.slot).task_attempt_id).write_volatile(task_attempt_id);
            (&raw mut (*self.slot).stage_id).write_volatile(stage_id);
            (&raw mut (*self.slot).stage_attempt).write_volatile(0);
        }
        self.enter(hot);
    }

    /// Changes the activity with one ordered store, and returns the previous one.
    pub fn enter(&self, hot: ContextWord) -> ContextWord {
        // SAFETY: this thread's own slot, aligned.
        let word = unsafe { AtomicU64::from_ptr(&raw mut (*self.slot).hot) };
        ContextWord(word.swap(hot.0, Ordering::AcqRel))
    }
}

/// Context of a read of an RDD from storage memory.
pub fn reading(rdd: u32, partition: u32) -> ContextWord {
    ContextWord::new(
        Activity::CACHE_READ,
        Access::READ,
        Region::STORAGE,
        rdd + 1,
        partition,
    )
}

/// Context of a write of an RDD to storage memory.
pub fn writing(rdd: u32, partition: u32) -> ContextWord {
    ContextWord::new(
        Activity::CACHE_WRITE,
        Access::WRITE,
        Region::STORAGE,
        rdd + 1,
        partition,
    )
}

/// Context of a task outside any RDD.
pub fn computing() -> ContextWord {
    ContextWord::new(Activity::COMPUTE, Access::NONE, Region::NONE, 0, 0)
}
