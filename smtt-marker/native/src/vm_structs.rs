//! Where the JVM keeps its heap and its code cache: HotSpot exports a table of its own fields, for its debugger.
//!
//! Every HotSpot has the table; fields that a version lacks, or other JVMs, give "unknown". What is read are fields that
//! are set once at the JVM's start.

use core::ffi::{CStr, c_char};

use crate::resident::word;

/// Most entries of the table: HotSpot has some 2,000.
const ENTRIES_MAX: usize = 1 << 14;

/// Start and end of the heap's reserved addresses. Unknown for collectors that do not keep it in one range.
pub(crate) fn heap() -> Option<(u64, u64)> {
    let table = Table::find()?;
    let heap = table.pointer(c"Universe", c"_collectedHeap")?;
    let region = heap.checked_add(table.offset(c"CollectedHeap", c"_reserved")?)?;
    // SAFETY: places in the heap's object, which lives as long as the JVM, by the JVM's own offsets.
    let (start, words) = unsafe {
        (
            word(region.checked_add(table.offset(c"MemRegion", c"_start")?)?)?,
            word(region.checked_add(table.offset(c"MemRegion", c"_word_size")?)?)?,
        )
    };
    let end = start.checked_add(words.checked_mul(size_of::<usize>() as u64)?)?;
    (start != 0 && end > start).then_some((start, end))
}

/// Start and end of the code cache's reserved addresses.
pub(crate) fn code_cache() -> Option<(u64, u64)> {
    let table = Table::find()?;
    let start = table.pointer(c"CodeCache", c"_low_bound")?;
    let end = table.pointer(c"CodeCache", c"_high_bound")?;
    (end > start).then_some((start, end))
}

/// The exported table.
struct Table {
    entries: u64,
    stride: u64,
    type_name: u64,
    field_name: u64,
    offset: u64,
    address: u64,
}

impl Table {
    fn find() -> Option<Self> {
        Some(Self {
            entries: exported(c"gHotSpotVMStructs")?,
            stride: exported(c"gHotSpotVMStructEntryArrayStride").filter(|stride| *stride > 0)?,
            type_name: exported(c"gHotSpotVMStructEntryTypeNameOffset")?,
            field_name: exported(c"gHotSpotVMStructEntryFieldNameOffset")?,
            offset: exported(c"gHotSpotVMStructEntryOffsetOffset")?,
            address: exported(c"gHotSpotVMStructEntryAddressOffset")?,
        })
    }

    /// The entry of a field.
    fn entry(&self, of: &CStr, field: &CStr) -> Option<u64> {
        let mut entry = self.entries;
        for _ in 0..ENTRIES_MAX {
            // SAFETY: the table ends with an entry without names, and the offsets are the JVM's own.
            let (type_name, name) = unsafe {
                (
                    word(entry.checked_add(self.type_name)?)?,
                    word(entry.checked_add(self.field_name)?)?,
                )
            };
            if type_name == 0 || name == 0 {
                return None;
            }
            // SAFETY: both are names in the JVM's read-only data.
            let same = unsafe {
                CStr::from_ptr(type_name as *const c_char) == of
                    && CStr::from_ptr(name as *const c_char) == field
            };
            if same {
                return Some(entry);
            }
            entry = entry.checked_add(self.stride)?;
        }
        None
    }

    /// Offset of a field in its object.
    fn offset(&self, of: &CStr, field: &CStr) -> Option<u64> {
        // SAFETY: a word of an entry.
        unsafe { word(self.entry(of, field)?.checked_add(self.offset)?) }
    }

    /// Content of a static field, if it is not null.
    fn pointer(&self, of: &CStr, field: &CStr) -> Option<u64> {
        // SAFETY: a word of an entry, and the static field that it leads to.
        let content = unsafe {
            let place = word(self.entry(of, field)?.checked_add(self.address)?)?;
            word(place)?
        };
        (content != 0).then_some(content)
    }
}

/// Content of a 64-bit variable that the JVM's library exports.
fn exported(name: &CStr) -> Option<u64> {
    // SAFETY: the name is NUL-terminated; the variable lives as long as the JVM.
    unsafe {
        let place = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        word(place.expose_provenance() as u64)
    }
}
