//! The slot file of an executor, as the daemon reads it. The executor writes it, so it is untrusted: sizes are checked,
//! and everything is read by value.

use std::collections::HashMap;
use std::fs::File;
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, ensure};
use nix::fcntl::OFlag;
use smtt_common::context::{
    HEADER_SIZE, Header, HeapAddresses, MAGIC, Range as Addresses, SLOT_COUNT, SLOT_IN_USE,
    SLOT_SIZE, Slot, VERSION,
};
use smtt_machine::foreign::Mapped;
use smtt_machine::proc::{Handle, innermost_id};

/// A thread and where its slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadSlot {
    /// Thread id in the daemon's pid namespace.
    pub tid: u32,
    /// Address of the slot in the executor.
    pub address: u64,
    /// Addresses of the Java heap; zero bytes where they are not known.
    pub heap: Addresses,
}

/// A slot file of a marker whose layout this version does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "its layout is {0}, and this daemon reads the layout {VERSION}: marker and daemon are of different releases"
)]
pub struct OtherLayout(pub u32);

/// A slot file, open.
#[derive(Debug)]
pub struct SlotFile {
    file: File,
    /// Address of the mapping in the executor.
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
        let mapped = Mapped::open(handle, range)
            .context("/proc/PID/map_files cannot be opened: the daemon needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE")?;
        // A file system of the user could let every read wait; the kernel's own memory does not.
        ensure!(mapped.is_memfd()?, "it is no memfd");
        let file = mapped
            .reopen(OFlag::O_RDWR)
            .context("it cannot be opened")?;
        Self::of(file, &(start..end))
    }

    /// Checks the header of a file that an executor maps at these addresses.
    ///
    /// # Errors
    /// When no marker of this version has written it.
    pub fn of(file: File, mapped: &Range<u64>) -> anyhow::Result<Self> {
        ensure!(
            read_u64(&file, offset_of!(Header, magic))? == MAGIC,
            "its first word is wrong"
        );
        let version = read_u32(&file, offset_of!(Header, version))?;
        if version != VERSION {
            return Err(OtherLayout(version).into());
        }
        ensure!(
            read_u32(&file, offset_of!(Header, slot_size))? as usize == SLOT_SIZE,
            "its slots have another size"
        );
        let slot_count = read_u32(&file, offset_of!(Header, slot_count))?;
        let needed = HEADER_SIZE as u64 + u64::from(slot_count) * SLOT_SIZE as u64;
        ensure!(
            slot_count <= SLOT_COUNT && needed <= mapped.end.saturating_sub(mapped.start),
            "it claims {slot_count} slots, more than it maps or than a marker makes ({SLOT_COUNT})"
        );
        Ok(Self {
            file,
            address: mapped.start,
            slot_count,
        })
    }

    /// Threads with a slot that exist now.
    #[must_use]
    pub fn threads(&self, handle: &Handle, same_namespace: bool) -> Vec<ThreadSlot> {
        let Ok(slots) = self.slots() else {
            return Vec::new();
        };
        let host: HashMap<u32, u32> = handle
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
            .filter(|(_, slot)| word(slot, offset_of!(Slot, state)) == SLOT_IN_USE)
            .filter_map(|(index, slot)| {
                let inner = word(slot, offset_of!(Slot, tid));
                Some(ThreadSlot {
                    tid: *host.get(&inner)?,
                    address: self.address + (HEADER_SIZE + index * SLOT_SIZE) as u64,
                    heap: Addresses {
                        start: long(slot, offset_of!(Slot, heap.start)),
                        bytes: long(slot, offset_of!(Slot, heap.bytes)),
                    },
                })
            })
            .collect()
    }

    /// Asks the marker for a snapshot; `request` must differ from the last one and from zero.
    ///
    /// # Errors
    /// When the executor has ended or has truncated its file.
    pub fn request_resync(&self, request: u64) -> std::io::Result<()> {
        self.file.write_all_at(
            &request.to_le_bytes(),
            offset_of!(Header, resync_request) as u64,
        )
    }

    /// The last request that the marker served in full.
    ///
    /// # Errors
    /// When the executor has truncated its file.
    pub fn resync_done(&self) -> std::io::Result<u64> {
        read_u64(&self.file, offset_of!(Header, resync_done))
    }

    /// Threads of the executor that found no free slot.
    ///
    /// # Errors
    /// When the executor has truncated its file.
    pub fn slots_refused(&self) -> std::io::Result<u64> {
        read_u64(&self.file, offset_of!(Header, slots_refused))
    }

    /// How the marker tracks addresses on the Java heap, and how many collections have begun.
    ///
    /// # Errors
    /// When the executor has truncated its file.
    pub fn collections(&self) -> std::io::Result<(HeapAddresses, u64)> {
        let mut words = [0; 16];
        self.file
            .read_exact_at(&mut words, offset_of!(Header, heap_addresses) as u64)?;
        let [known, .., begun] = words.as_chunks::<8>().0 else {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        };
        Ok((HeapAddresses(known[0]), u64::from_le_bytes(*begun)))
    }

    /// Facts that the marker has reported so far, from all threads.
    ///
    /// # Errors
    /// When the executor has truncated its file.
    pub fn facts_emitted(&self) -> std::io::Result<u64> {
        let reported: u64 = self
            .slots()?
            .chunks_exact(SLOT_SIZE)
            .map(|slot| long(slot, offset_of!(Slot, facts_emitted)))
            .fold(0, u64::wrapping_add);
        let without_slot = read_u64(&self.file, offset_of!(Header, facts_without_slot))?;
        Ok(reported.wrapping_add(without_slot))
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

fn long(slot: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(slot[at..at + 8].try_into().unwrap_or_default())
}

fn read_u32(file: &File, at: usize) -> std::io::Result<u32> {
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, at as u64)?;
    Ok(u32::from_le_bytes(bytes))
}

fn read_u64(file: &File, at: usize) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at as u64)?;
    Ok(u64::from_le_bytes(bytes))
}

// `collections` reads the two words as one.
const _: () =
    assert!(offset_of!(Header, collections_begun) == offset_of!(Header, heap_addresses) + 8);
