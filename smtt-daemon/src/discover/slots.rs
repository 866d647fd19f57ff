//! The slot file of an executor, as the daemon sees it. What is in it is the executor's word and not trusted: sizes
//! are checked, and everything is read by value.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, ensure};
use nix::fcntl::OFlag;
use smtt_common::context::{HEADER_SIZE, HeapAddresses, MAGIC, SLOT_SIZE, VERSION};

use smtt_machine::proc::{Handle, innermost_id};

/// Slots that are looked at in one file at most.
const SLOTS_MAX: u32 = 65_536;
/// Offsets in the header and in a slot; `smtt_common::context` asserts them.
const RESYNC_REQUEST: u64 = 24;
const RESYNC_DONE: u64 = 32;
const SLOTS_REFUSED: u64 = 40;
const FACTS_WITHOUT_SLOT: u64 = 48;
const HEAP_ADDRESSES: u64 = 64;
const COLLECTIONS_BEGUN: u64 = 72;
const SLOT_TID: usize = 32;
const SLOT_STATE: usize = 44;
const SLOT_FACTS: usize = 48;

/// A thread and where its slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadSlot {
    /// Thread id in the daemon's pid namespace.
    pub tid: u32,
    /// Address of the slot in the executor.
    pub address: u64,
}

/// A slot file, open.
#[derive(Debug)]
pub struct SlotFile {
    file: File,
    /// Where the executor has it mapped.
    address: u64,
    slot_count: u32,
}

impl SlotFile {
    /// Opens the file behind a mapping, named as in `map_files`, and checks its header.
    pub(super) fn open(handle: &Handle, range: &str) -> anyhow::Result<Self> {
        let (start, end) = range.split_once('-').context("a mapping without an end")?;
        let (start, end) = (
            u64::from_str_radix(start, 16)?,
            u64::from_str_radix(end, 16)?,
        );
        let file = handle
            .open_file(&format!("map_files/{range}"), OFlag::O_RDWR)
            .context("/proc/PID/map_files cannot be opened: the daemon needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE")?;
        let u32_at = |at: u64| read_u32(&file, at);
        ensure!(read_u64(&file, 0)? == MAGIC, "its first word is wrong");
        ensure!(
            u32_at(8)? == VERSION,
            "its version is {}, not {VERSION}: marker and daemon are of different releases",
            u32_at(8)?
        );
        ensure!(
            u32_at(12)? as usize == SLOT_SIZE,
            "its slots have another size"
        );
        let slot_count = u32_at(16)?;
        let needed = HEADER_SIZE as u64 + u64::from(slot_count) * SLOT_SIZE as u64;
        ensure!(
            slot_count <= SLOTS_MAX && needed <= end - start,
            "it claims {slot_count} slots, more than it maps"
        );
        Ok(Self {
            file,
            address: start,
            slot_count,
        })
    }

    /// Threads with a slot that exist now.
    pub(super) fn threads(&self, handle: &Handle, same_namespace: bool) -> Vec<ThreadSlot> {
        let Ok(slots) = self.slots() else {
            return Vec::new();
        };
        let host: Vec<(u32, u32)> = handle
            .list("task")
            .iter()
            .filter_map(|name| {
                let tid: u32 = name.parse().ok()?;
                let inner = if same_namespace {
                    tid
                } else {
                    innermost_id(&handle.read(&format!("task/{name}/status")).ok()?)?
                };
                Some((inner, tid))
            })
            .collect();
        slots
            .chunks_exact(SLOT_SIZE)
            .enumerate()
            .filter(|(_, slot)| word(slot, SLOT_STATE) == 1)
            .filter_map(|(index, slot)| {
                let inner = word(slot, SLOT_TID);
                let tid = host.iter().find(|(of, _)| *of == inner)?.1;
                Some(ThreadSlot {
                    tid,
                    address: self.address + (HEADER_SIZE + index * SLOT_SIZE) as u64,
                })
            })
            .collect()
    }

    /// Asks the marker to tell everything again; `request` must differ from the last one and from zero.
    ///
    /// # Errors
    /// When the executor is gone or has cut its file.
    pub fn request_resync(&self, request: u64) -> std::io::Result<()> {
        self.file
            .write_all_at(&request.to_le_bytes(), RESYNC_REQUEST)
    }

    /// The last request that the marker served in full.
    ///
    /// # Errors
    /// When the executor has cut its file.
    pub fn resync_done(&self) -> std::io::Result<u64> {
        read_u64(&self.file, RESYNC_DONE)
    }

    /// Threads of the executor that found no free slot.
    ///
    /// # Errors
    /// When the executor has cut its file.
    pub fn slots_refused(&self) -> std::io::Result<u64> {
        read_u64(&self.file, SLOTS_REFUSED)
    }

    /// How addresses on the Java heap are known, and how many collections have begun.
    ///
    /// # Errors
    /// When the executor has cut its file.
    pub fn collections(&self) -> std::io::Result<(HeapAddresses, u64)> {
        let mut words = [0; 16];
        self.file.read_exact_at(&mut words, HEAP_ADDRESSES)?;
        let [way, .., begun] = words.as_chunks::<8>().0 else {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        };
        Ok((HeapAddresses(way[0]), u64::from_le_bytes(*begun)))
    }

    /// Facts that the marker has told so far, from all threads.
    ///
    /// # Errors
    /// When the executor has cut its file.
    pub fn facts_emitted(&self) -> std::io::Result<u64> {
        let told: u64 = self
            .slots()?
            .chunks_exact(SLOT_SIZE)
            .map(|slot| {
                u64::from_le_bytes(
                    slot[SLOT_FACTS..SLOT_FACTS + 8]
                        .try_into()
                        .unwrap_or_default(),
                )
            })
            .fold(0, u64::wrapping_add);
        Ok(told.wrapping_add(read_u64(&self.file, FACTS_WITHOUT_SLOT)?))
    }

    fn slots(&self) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.slot_count as usize * SLOT_SIZE];
        self.file.read_exact_at(&mut bytes, HEADER_SIZE as u64)?;
        Ok(bytes)
    }
}

fn word(slot: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(slot[at..at + 4].try_into().unwrap_or_default())
}

fn read_u32(file: &File, at: u64) -> std::io::Result<u32> {
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, at)?;
    Ok(u32::from_le_bytes(bytes))
}

fn read_u64(file: &File, at: u64) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at)?;
    Ok(u64::from_le_bytes(bytes))
}

const _: () = {
    use std::mem::offset_of;

    use smtt_common::context::{Header, Slot};
    assert!(offset_of!(Header, resync_request) == RESYNC_REQUEST as usize);
    assert!(offset_of!(Header, resync_done) == RESYNC_DONE as usize);
    assert!(offset_of!(Header, slots_refused) == SLOTS_REFUSED as usize);
    assert!(offset_of!(Header, facts_without_slot) == FACTS_WITHOUT_SLOT as usize);
    assert!(offset_of!(Header, heap_addresses) == HEAP_ADDRESSES as usize);
    assert!(offset_of!(Header, collections_begun) == COLLECTIONS_BEGUN as usize);
    assert!(
        COLLECTIONS_BEGUN == HEAP_ADDRESSES + 8,
        "they are read as one"
    );
    assert!(offset_of!(Slot, tid) == SLOT_TID);
    assert!(offset_of!(Slot, state) == SLOT_STATE);
    assert!(offset_of!(Slot, facts_emitted) == SLOT_FACTS);
};
