//! Programs that an unprivileged user may run beside the daemon. Each does what one attack needs, within bounds: it takes
//! no more than a moment and a few MiB, and ends at the end of its input.
//!
//! `attacker NAME LIBRARY FOLDER`: LIBRARY is the marker's library, FOLDER may be written to. It prints `READY` when the
//! attack stands, and each line of its input makes the next step.

#[path = "attacker/beside.rs"]
mod beside;
#[path = "attacker/elf.rs"]
mod elf;
#[path = "attacker/fuse.rs"]
mod fuse;
#[path = "attacker/hang.rs"]
mod hang;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use smtt_common::context::{HEADER_SIZE, MAGIC, SLOT_COUNT, SLOT_SIZE, VERSION};
use smtt_common::event::marker::LIBRARY_NAME;
use smtt_tests::memory;
use smtt_tests::steps::{say, wait};

/// Slots of a slot file.
const SLOTS: u32 = 64;
/// Mappings of the floods; a process may have 65,530.
const MAPPINGS: usize = 60_000;
const PAGE: usize = 4096;

struct Place {
    library: PathBuf,
    folder: PathBuf,
}

impl Place {
    /// An own copy of the library, with its name, in a folder `of` its own.
    fn copy(&self, of: &str) -> Result<PathBuf> {
        let folder = self.folder.join(of);
        fs::create_dir_all(&folder)?;
        let copy = folder.join(LIBRARY_NAME);
        fs::copy(&self.library, &copy)?;
        Ok(copy)
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, name, library, folder] = arguments.as_slice() else {
        bail!("attacker NAME LIBRARY FOLDER");
    };
    let place = Place {
        library: library.into(),
        folder: folder.into(),
    };
    memory::set_name("java");
    match name.as_str() {
        "container" => container(&place),
        "exec" => exec(&place, name),
        "swap" => swap(&place),
        "giant-elf" => giant_elf(&place),
        "lease-library" => lease_library(&place),
        "lease-slots" => lease_slots(),
        "long-maps" => long_maps(&place),
        "many-slots" => many_slots(),
        "wide-slots" => wide_slots(),
        "fuse" => fuse_library(&place),
        "hang" => hang(&place),
        "garbage-slots" => garbage_slots(&place),
        "slow-readers" => slow_readers(place),
        other => bail!("there is no attack {other}"),
    }
}

/// Stays as it is until the end of input.
fn stay() -> Result<()> {
    say("READY")?;
    loop {
        wait()?;
    }
}

/// Maps a whole file, or a part of it, at an address of the kernel's choice or at `at`.
fn map(file: &File, length: usize, protection: i32, flags: i32, at: usize) -> Result<usize> {
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
    // SAFETY: with an address of the kernel's choice nothing is overwritten; fixed addresses are of earlier mappings of
    // this program that nothing else uses.
    let address = unsafe {
        libc::mmap(
            at as *mut libc::c_void,
            length,
            protection,
            flags | fixed,
            file.as_raw_fd(),
            0,
        )
    };
    ensure!(
        address != libc::MAP_FAILED,
        "mmap: {}",
        std::io::Error::last_os_error()
    );
    Ok(address as usize)
}

/// Maps a file as the loader maps a library's code.
fn map_code(path: &Path) -> Result<(File, usize)> {
    let file = File::open(path).with_context(|| format!("{}", path.display()))?;
    let length = file.metadata()?.len() as usize;
    let address = map(
        &file,
        length,
        libc::PROT_READ | libc::PROT_EXEC,
        libc::MAP_PRIVATE,
        0,
    )?;
    Ok((file, address))
}

fn memfd(magic: u64) -> Result<File> {
    memfd_of(magic, SLOTS)
}

fn memfd_of(magic: u64, slots: u32) -> Result<File> {
    // SAFETY: the name is NUL-terminated; the descriptor is new and owned by the file.
    let file = unsafe {
        let fd = libc::memfd_create(c"smtt-slots".as_ptr(), libc::MFD_CLOEXEC);
        ensure!(fd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
        File::from_raw_fd(fd)
    };
    file.set_len((HEADER_SIZE + slots as usize * SLOT_SIZE) as u64)?;
    let mut header = Vec::new();
    header.extend(magic.to_le_bytes());
    for word in [VERSION, SLOT_SIZE as u32, slots, std::process::id()] {
        header.extend(word.to_le_bytes());
    }
    (&file).write_all(&header)?;
    Ok(file)
}

/// A slot file as the marker makes it.
fn slots() -> Result<File> {
    let file = memfd(MAGIC)?;
    let length = HEADER_SIZE + SLOTS as usize * SLOT_SIZE;
    map(
        &file,
        length,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED,
        0,
    )?;
    Ok(file)
}

/// No attack: an executor with a library file of its own, as in a container.
fn container(place: &Place) -> Result<()> {
    let _slots = slots()?;
    let copy = place.copy(&std::process::id().to_string())?;
    let _library = map_code(&copy)?;
    // Nothing but the mapping keeps the file.
    fs::remove_file(copy)?;
    stay()
}

/// An executor that replaces its program by itself at each line.
fn exec(place: &Place, name: &str) -> Result<()> {
    let _slots = slots()?;
    let _library = map_code(&place.library)?;
    say("READY")?;
    wait()?;
    let error = Command::new(std::env::current_exe()?)
        .arg(name)
        .arg(&place.library)
        .arg(&place.folder)
        .exec();
    Err(error).context("exec")
}

/// The library's mapping becomes one of a file of root's, and then one of another copy of the library, all the time. The
/// file of root's is `victim` in the folder.
fn swap(place: &Place) -> Result<()> {
    let _slots = slots()?;
    let victim = File::open(place.folder.join("victim"))?;
    let copy = place.copy("swap")?;
    let (first, address) = map_code(&copy)?;
    let length = first.metadata()?.len() as usize;
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    let ends: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let (library, again) = (place.library.clone(), copy.clone());
    let swaps = std::thread::spawn(move || -> Result<()> {
        // The pauses differ, so that the exchange happens at each step of the daemon.
        let mut pause = 1;
        while !ends.load(Ordering::Relaxed) {
            // A new file, so that the daemon has to judge it anew.
            fs::remove_file(&again)?;
            fs::copy(&library, &again)?;
            let file = File::open(&again)?;
            map(&file, length, protection, libc::MAP_PRIVATE, address)?;
            std::thread::sleep(Duration::from_micros(pause));
            pause = (pause * 7 + 13) % 700;
            map(&victim, length, protection, libc::MAP_PRIVATE, address)?;
        }
        Ok(())
    });
    let end = (address + length).next_multiple_of(PAGE);
    say(&format!("READY {address:x}-{end:x}"))?;
    let mut line = String::new();
    while std::io::stdin().lock().read_line(&mut line)? > 0 {}
    ends.store(true, Ordering::Relaxed);
    swaps
        .join()
        .map_err(|_| anyhow::anyhow!("the thread panicked"))?
}

/// A library whose symbols take minutes to parse.
fn giant_elf(place: &Place) -> Result<()> {
    let _slots = slots()?;
    let folder = place.folder.join("giant");
    fs::create_dir_all(&folder)?;
    let path = folder.join(LIBRARY_NAME);
    fs::write(&path, elf::giant())?;
    let _library = map_code(&path)?;
    stay()
}

/// Takes a lease that lets each open by another process wait.
fn lease(file: &File) -> Result<()> {
    // The breaking of the lease is announced by a signal, which is ignored.
    // SAFETY: the calls take numbers only.
    unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
        ensure!(
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0,
            "F_SETLEASE: {}",
            std::io::Error::last_os_error()
        );
    }
    Ok(())
}

fn lease_library(place: &Place) -> Result<()> {
    let _slots = slots()?;
    let (file, _) = map_code(&place.copy("lease")?)?;
    lease(&file)?;
    say("READY")?;
    wait()?;
    // SAFETY: takes numbers only.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    say("RELEASED")?;
    loop {
        wait()?;
    }
}

fn lease_slots() -> Result<()> {
    let mut leased = Vec::new();
    for _ in 0..8 {
        let file = slots()?;
        // The kernel grants a lease to the only opening of a file; the one that made the memfd does not count.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        lease(&file)?;
        leased.push(file);
    }
    stay()
}

/// As many mappings as possible of a file with a long path, so that `maps` has some 200 MB.
fn long_maps(place: &Place) -> Result<()> {
    let mut folder = place.folder.clone();
    while folder.as_os_str().len() < 3500 {
        folder.push("x".repeat(200));
    }
    fs::create_dir_all(&folder)?;
    let path = folder.join("file");
    fs::write(&path, [0; PAGE])?;
    let file = File::open(path)?;
    for _ in 0..MAPPINGS {
        map(&file, PAGE, libc::PROT_READ, libc::MAP_PRIVATE, 0)?;
    }
    stay()
}

/// As many mappings as possible with the names of slot file and library, none of them right.
fn many_slots() -> Result<()> {
    let file = memfd(!MAGIC)?;
    for _ in 0..MAPPINGS {
        map(&file, PAGE, libc::PROT_READ, libc::MAP_PRIVATE, 0)?;
    }
    stay()
}

/// An executor whose slot file has sixteen times the slots of a marker's, all mapped: each reading of it would take as much
/// more time and memory.
fn wide_slots() -> Result<()> {
    let file = memfd_of(MAGIC, 16 * SLOT_COUNT)?;
    let length = file.metadata()?.len() as usize;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    map(&file, length, protection, libc::MAP_SHARED, 0)?;
    stay()
}

/// An executor whose slot file has other content and another length all the time.
fn garbage_slots(place: &Place) -> Result<()> {
    let file = slots()?;
    let _library = map_code(&place.library)?;
    std::thread::spawn(move || beside::spoil(&file, SLOTS));
    stay()
}

/// Clients of the metrics port that read slowly.
fn slow_readers(place: Place) -> Result<()> {
    std::thread::spawn(move || beside::read_slowly(&place.folder));
    stay()
}

/// A library in a file system that answers no more once the library is mapped. Needs root for the mount only.
fn fuse_library(place: &Place) -> Result<()> {
    let bytes = fs::read(&place.library)?;
    let folder = place.folder.join("fuse");
    fs::create_dir_all(&folder)?;
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")?;
    // In a namespace of its own: the mount ends with this process, and no other process runs into it.
    // SAFETY: takes numbers only.
    let alone = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    ensure!(alone == 0, "unshare: {}", std::io::Error::last_os_error());
    fuse::mount(&device, &folder)?;
    let silent: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    std::thread::spawn(move || fuse::serve(&device, &bytes, |_| silent.load(Ordering::Relaxed)));
    let _slots = slots()?;
    let (library, _) = map_code(&folder.join(LIBRARY_NAME))?;
    // Its closing asks the file system; the mapping stays.
    drop(library);
    silent.store(true, Ordering::Relaxed);
    stay()
}

/// A slot file, without a library, behind a memory lock that is never released.
fn hang(place: &Place) -> Result<()> {
    let _slots = slots()?;
    let folder = place.folder.join("hang");
    fs::create_dir_all(&folder)?;
    let held = hang::hold(&place.folder.join("device"), &folder)?;
    say("READY")?;
    while std::io::stdin().lock().read_line(&mut String::new())? > 0 {}
    drop(held);
    Ok(())
}
