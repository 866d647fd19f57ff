//! Rows of the kernel side's tables, changed without the kernel side: for a state that only a rare race leaves behind.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use anyhow::{Context as _, Result, ensure};

const LOOKUP: libc::c_int = 1;
const UPDATE: libc::c_int = 2;
const DELETE: libc::c_int = 3;
const NEXT_MAP: libc::c_int = 12;
const MAP_BY_ID: libc::c_int = 14;
const INFO: libc::c_int = 15;

/// A command of bpf(2), whose attribute is made of words.
fn bpf(command: libc::c_int, attribute: &mut [u64]) -> std::io::Result<i64> {
    // SAFETY: the attribute outlives the call; what it points to lives in the callers.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            attribute.as_mut_ptr(),
            size_of_val(attribute),
        )
    };
    if done < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(done)
}

/// A table of the probes that were loaded last.
pub struct Table(OwnedFd);

impl Table {
    /// The newest table of this name.
    pub fn newest(name: &str) -> Result<Self> {
        let (mut id, mut found) = (0_u64, None);
        loop {
            let mut next = [id];
            if bpf(NEXT_MAP, &mut next).is_err() {
                break;
            }
            // Two words of 32 bits: where to begin, and what was found.
            id = next[0] >> 32;
            let Ok(fd) = bpf(MAP_BY_ID, &mut [id]) else {
                continue;
            };
            // SAFETY: the kernel just gave this descriptor.
            let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
            // Six numbers of 32 bits, then the name.
            let mut info = [0_u64; 16];
            let about = (size_of_val(&info) as u64) << 32 | fd.as_raw_fd() as u64;
            bpf(INFO, &mut [about, info.as_mut_ptr() as u64])?;
            let text: Vec<u8> = info[3..5]
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .collect();
            let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
            if text == name.as_bytes() {
                found = Some(fd);
            }
        }
        found.map(Self).with_context(|| format!("no table {name}"))
    }

    fn element<K, V>(&self, command: libc::c_int, key: &K, value: *mut V) -> std::io::Result<()> {
        bpf(
            command,
            &mut [
                self.0.as_raw_fd() as u64,
                std::ptr::from_ref(key) as u64,
                value as u64,
                0,
            ],
        )
        .map(drop)
    }

    /// Adds or replaces a row.
    pub fn set<K, V>(&self, key: K, mut value: V) -> Result<()> {
        Ok(self.element(UPDATE, &key, &raw mut value)?)
    }

    /// A row; `None` where there is none.
    pub fn get<K, V: Default>(&self, key: K) -> Option<V> {
        let mut value = V::default();
        self.element(LOOKUP, &key, &raw mut value).ok()?;
        Some(value)
    }

    /// Removes a row.
    pub fn remove<K>(&self, key: K) -> Result<()> {
        let removed = self.element(DELETE, &key, std::ptr::null_mut::<u64>());
        ensure!(removed.is_ok(), "no such row: {removed:?}");
        Ok(())
    }
}
