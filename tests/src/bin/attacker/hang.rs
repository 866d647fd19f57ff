//! A process that holds its own memory lock for as long as it wishes, without any privilege.
//!
//! It maps a page of a file system that never answers a read. A thread reads that page through `/proc/self/mem`: the
//! kernel takes the memory lock for reading and waits for the page without releasing it. Another thread asks for a
//! mapping: it waits for the lock, and every later reader of the lock waits behind it.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use smtt_common::event::marker::LIBRARY_NAME;
use smtt_tests::memory::{set_name, thread_id};

use super::fuse;

const PAGE: usize = 4096;
/// How long a thread may take until it waits in the kernel.
const LIMIT: Duration = Duration::from_secs(20);
/// How often in a row it is seen there, a millisecond apart.
const TIMES: u32 = 20;

/// The held lock. It is released when this is dropped or the thread that holds it ends.
pub struct Held {
    server: libc::pid_t,
}

impl Drop for Held {
    fn drop(&mut self) {
        // The last descriptor of the device is the server's: without it every request of the file system fails.
        // SAFETY: kills a child of this process that nothing else waits for.
        unsafe {
            libc::kill(self.server, libc::SIGKILL);
            libc::waitpid(self.server, std::ptr::null_mut(), 0);
        }
    }
}

/// Enters namespaces of its own, as any user may.
pub fn enter() -> Result<()> {
    // SAFETY: takes numbers only.
    let (uid, gid, alone) = unsafe {
        // A program that changed its user may not write its maps of ids otherwise.
        libc::prctl(libc::PR_SET_DUMPABLE, 1);
        let (uid, gid) = (libc::getuid(), libc::getgid());
        (
            uid,
            gid,
            libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS),
        )
    };
    ensure!(
        alone == 0,
        "no namespaces: {}",
        std::io::Error::last_os_error()
    );
    for (file, content) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("0 {uid} 1")),
        ("gid_map", format!("0 {gid} 1")),
    ] {
        fs::write(format!("/proc/self/{file}"), content)
            .with_context(|| format!("/proc/self/{file}"))?;
    }
    Ok(())
}

/// Holds the memory lock of this process, which has one thread. `device` is the device of file systems, which any user
/// may open where a distribution made it; the file system is mounted on `folder`.
pub fn hold(device: &Path, folder: &Path) -> Result<Held> {
    enter()?;
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open(device)
        .with_context(|| format!("{}", device.display()))?;
    fuse::mount(&device, folder)?;
    let held = serve(device)?;
    let file = File::open(folder.join(LIBRARY_NAME))?;
    let (write, begin_writing) = sync_channel::<()>(0);
    let (read, begin_reading) = sync_channel::<()>(0);
    let writer = thread(begin_writing, || {
        // SAFETY: a new mapping at an address of the kernel's choice.
        unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
        }
    })?;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PAGE,
            libc::PROT_READ,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            0,
        )
    };
    ensure!(
        page != libc::MAP_FAILED,
        "mmap: {}",
        std::io::Error::last_os_error()
    );
    let (memory, page) = (File::open("/proc/self/mem")?, page as u64);
    let reader = thread(begin_reading, move || {
        let _ = memory.read_exact_at(&mut [0; 8], page);
    })?;
    read.send(())?;
    stands_in(libc::SYS_pread64, reader)?;
    // From here on this process changes none of its mappings.
    write.send(())?;
    stands_in(libc::SYS_mmap, writer)?;
    Ok(held)
}

/// Starts the file system's server: a process that ends with the calling thread.
fn serve(device: File) -> Result<Held> {
    // SAFETY: this process has one thread, so the child may call any function.
    match unsafe { libc::fork() } {
        -1 => bail!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: takes numbers only.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            set_name("server");
            fuse::serve(&device, &[0; PAGE], |operation| operation == fuse::READ);
            std::process::exit(0);
        }
        server => Ok(Held { server }),
    }
}

/// A thread that waits for a message and then does its work; its id.
fn thread(begin: Receiver<()>, work: impl FnOnce() + Send + 'static) -> Result<u32> {
    let (told, id) = sync_channel(0);
    std::thread::Builder::new().spawn(move || {
        if told.send(thread_id()).is_ok() && begin.recv().is_ok() {
            work();
        }
    })?;
    Ok(id.recv()?)
}

/// Returns when a thread of this process stands in a system call.
fn stands_in(call: libc::c_long, thread: u32) -> Result<()> {
    let until = Instant::now() + LIMIT;
    let path = format!("/proc/self/task/{thread}/syscall");
    let mut times = 0;
    while times < TIMES {
        let now = fs::read_to_string(&path)?;
        let stands = now.split(' ').next() == Some(call.to_string().as_str());
        times = if stands { times + 1 } else { 0 };
        ensure!(Instant::now() < until, "the thread does not wait: {now}");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
