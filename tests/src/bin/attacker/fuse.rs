//! A file system with one file that answers what it wishes. Only what the kernel asks to open, map and read a file.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Result, ensure};

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
/// A request for bytes of a file.
pub const READ: u32 = 15;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
/// Node number of the folder and of the file.
const FOLDER: u64 = 1;
const FILE: u64 = 2;

/// Mounts the file system for all users.
pub fn mount(device: &File, folder: &Path) -> Result<()> {
    let target = CString::new(folder.as_os_str().as_bytes())?;
    let data = CString::new(format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
        device.as_raw_fd()
    ))?;
    // SAFETY: all texts are NUL-terminated and outlive the calls.
    let done = unsafe {
        // Mounts of this namespace must not show up in others.
        let private = libc::MS_REC | libc::MS_PRIVATE;
        let (none, root) = (std::ptr::null(), c"/".as_ptr());
        let done = libc::mount(none, root, none, private, none.cast());
        ensure!(done == 0, "mount: {}", std::io::Error::last_os_error());
        libc::mount(
            c"smtt-test".as_ptr(),
            target.as_ptr(),
            c"fuse.smtt".as_ptr(),
            libc::MS_NOSUID | libc::MS_NODEV,
            data.as_ptr().cast(),
        )
    };
    ensure!(done == 0, "mount: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Answers requests about a file with these bytes, except the operations to which it is silent.
pub fn serve(mut device: &File, bytes: &[u8], silent: impl Fn(u32) -> bool) {
    let mut request = vec![0; 1 << 18];
    while let Ok(length) = device.read(&mut request) {
        let word =
            |at: usize| u64::from_le_bytes(request[at..at + 8].try_into().unwrap_or_default());
        let half =
            |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().unwrap_or_default());
        if length < 40 {
            continue;
        }
        let (operation, ticket, node) = (half(4), word(8), word(16));
        if silent(operation) {
            continue;
        }
        let (error, answer) = match operation {
            INIT => (0, init(half(44))),
            LOOKUP => (
                0,
                [words(&[FILE, 0, 0, 0, 0]), attributes(FILE, bytes.len())].concat(),
            ),
            GETATTR => (0, [words(&[0, 0]), attributes(node, bytes.len())].concat()),
            OPEN | OPENDIR => (0, words(&[1, 0])),
            READ => {
                let (from, size) = (word(48) as usize, half(56) as usize);
                let end = (from + size).min(bytes.len());
                (0, bytes.get(from..end).unwrap_or_default().to_vec())
            }
            _ => (-libc::ENOSYS, Vec::new()),
        };
        let mut text = Vec::new();
        text.extend((16 + answer.len() as u32).to_le_bytes());
        text.extend(error.to_le_bytes());
        text.extend(ticket.to_le_bytes());
        text.extend(answer);
        // A request that needs no answer is refused; that is no harm.
        let _ = device.write(&text);
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The answer to the greeting: version 7.31 and the least of everything.
fn init(minor: u32) -> Vec<u8> {
    let mut answer = Vec::new();
    for half in [7, minor.min(31), 0, 0, 0, 4096, 1, 0] {
        answer.extend(half.to_le_bytes());
    }
    answer.resize(64, 0);
    answer
}

/// `struct fuse_attr`.
fn attributes(node: u64, size: usize) -> Vec<u8> {
    let (mode, size) = if node == FOLDER {
        (libc::S_IFDIR | 0o755, 0)
    } else {
        (libc::S_IFREG | 0o755, size as u64)
    };
    let mut answer = words(&[node, size, size.div_ceil(512), 0, 0, 0]);
    for half in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
        answer.extend(half.to_le_bytes());
    }
    answer
}
