//! Page faults of every kind, many of each, with the kernel's own counts of them.

use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Map, Value, json};
use smtt_common::context::ContextWord;
use smtt_machine::perf::{Event, Of, Opening};
use smtt_model::cpu::Encoding;

use crate::Options;
use crate::marker::{Marker, writing};
use crate::memory::{Mapping, PAGE, thread_faults, thread_id};
use crate::scenario::STAGE;

/// The RDD of the first kind; each further one has the next number.
const FIRST_RDD: u32 = 30;
/// Software events of the kernel for all, minor and major page faults.
const EVENTS: [(&str, u64); 3] = [("perf_all", 2), ("perf_minor", 5), ("perf_major", 6)];

/// What the handler of signals does with the page that was touched.
static MEND: AtomicI32 = AtomicI32::new(0);
const ALLOW: i32 = 1;
const MAP: i32 = 2;
const EXTEND: i32 = 3;
/// The file that [`EXTEND`] makes longer, and the address of its first page.
static FILE: AtomicI32 = AtomicI32::new(-1);
static FILE_START: AtomicUsize = AtomicUsize::new(0);
/// Signals so far.
static SIGNALS: AtomicU32 = AtomicU32::new(0);

/// Makes the touched page accessible. Calls nothing but system calls.
extern "C" fn mend(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel passes the signal's description, and the address is of a page that this scenario owns.
    let done = unsafe {
        let page = ((*info).si_addr() as usize) & !(PAGE - 1);
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        match MEND.load(Ordering::Relaxed) {
            ALLOW => libc::mprotect(page as *mut libc::c_void, PAGE, rights) == 0,
            MAP => {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                libc::mmap(page as *mut libc::c_void, PAGE, rights, flags, -1, 0)
                    != libc::MAP_FAILED
            }
            EXTEND => {
                let bytes = page - FILE_START.load(Ordering::Relaxed) + PAGE;
                libc::ftruncate(FILE.load(Ordering::Relaxed), bytes as libc::off_t) == 0
            }
            _ => false,
        }
    };
    if !done {
        // SAFETY: ends the program at once: the access would fault again and again.
        unsafe { libc::_exit(98) };
    }
}

extern "C" fn nothing(_: i32) {}

pub(crate) fn handle(signal: i32, handler: usize, flags: i32) -> Result<()> {
    // SAFETY: a valid action of plain data, whose handlers only make system calls.
    let set = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaction(signal, &raw const action, ptr::null_mut())
    };
    ensure!(set == 0, "sigaction: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Reads or writes one byte at the address.
pub(crate) fn touch(address: usize, write: bool) {
    // SAFETY: a page of this scenario, which the handler of signals makes accessible.
    unsafe {
        if write {
            (address as *mut u8).write_volatile(1);
        } else {
            (address as *const u8).read_volatile();
        }
    }
}

/// Addresses that stay free of other mappings.
fn reserved(pages: usize) -> Result<usize> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(ptr::null_mut(), pages * PAGE, libc::PROT_NONE, flags, -1, 0)
    };
    ensure!(
        start != libc::MAP_FAILED,
        "{}",
        std::io::Error::last_os_error()
    );
    Ok(start as usize)
}

fn unmap(start: usize, pages: usize) {
    // SAFETY: memory of this scenario, which nothing uses any more.
    unsafe { libc::munmap(start as *mut libc::c_void, pages * PAGE) };
}

/// The kernel's counts of the calling thread.
struct Counts(Vec<(&'static str, Event)>);

impl Counts {
    fn open() -> Result<Self> {
        let open = |(name, config)| {
            let event = Encoding::software(config);
            let event = Event::open(Opening {
                event: &event,
                of: Of::ThisThread,
                period: 0,
                addresses: false,
                leader: None,
            })?;
            event.enable()?;
            Ok((name, event))
        };
        Ok(Self(EVENTS.into_iter().map(open).collect::<Result<_>>()?))
    }

    /// `getrusage`, then the events.
    fn read(&self) -> Result<[u64; 4]> {
        let mut counts = [thread_faults(), 0, 0, 0];
        for (count, (_, event)) in counts[1..].iter_mut().zip(&self.0) {
            *count = event.read()?.value;
        }
        Ok(counts)
    }
}

/// Pages whose faults this program serves itself after a pause: a fault waits, and the kernel begins it again when it is
/// served. With `signal` the thread that waits gets a signal first, and faults again behind its handler.
pub(crate) fn served_here(
    pages: usize,
    signal: bool,
    pause: Duration,
    touch_all: impl FnOnce(usize),
) -> Result<()> {
    const API: libc::c_ulong = 0xc018_aa3f;
    const REGISTER: libc::c_ulong = 0xc020_aa00;
    const ZEROPAGE: libc::c_ulong = 0xc020_aa04;
    // SAFETY: a system call without pointers; the descriptor is new.
    let file = unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC);
        ensure!(fd >= 0, "userfaultfd: {}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd as i32)
    };
    let fd = file.as_raw_fd();
    let call = move |request: libc::c_ulong, words: &mut [u64]| {
        // SAFETY: the words are as many as the request has.
        unsafe { libc::ioctl(fd, request, words.as_mut_ptr()) }
    };
    let start = reserved(pages)?;
    // SAFETY: exactly the mapping made above.
    unsafe {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        libc::mprotect(start as *mut libc::c_void, pages * PAGE, rights);
        libc::madvise(
            start as *mut libc::c_void,
            pages * PAGE,
            libc::MADV_NOHUGEPAGE,
        );
    }
    ensure!(call(API, &mut [0xaa, 0, 0]) == 0, "UFFDIO_API");
    let range = [start as u64, (pages * PAGE) as u64];
    ensure!(
        call(REGISTER, &mut [range[0], range[1], 1, 0]) == 0,
        "UFFDIO_REGISTER"
    );
    let (waiting, pid) = (thread_id(), std::process::id());
    let server = thread::spawn(move || {
        let mut last = None;
        for _ in 0..pages * (1 + usize::from(signal)) {
            let mut message = [0_u64; 4];
            // SAFETY: the place is as large as a message.
            let read = unsafe { libc::read(fd, message.as_mut_ptr().cast(), 32) };
            let page = message[2] & !(PAGE as u64 - 1);
            if read != 32 {
                break;
            }
            if signal && last != Some(page) {
                last = Some(page);
                // SAFETY: no pointers.
                unsafe { libc::syscall(libc::SYS_tgkill, pid, waiting, libc::SIGUSR1) };
            } else {
                thread::sleep(pause);
                call(ZEROPAGE, &mut [page, PAGE as u64, 0, 0]);
            }
        }
    });
    touch_all(start);
    let served = server.join();
    drop(file);
    unmap(start, pages);
    ensure!(served.is_ok(), "the serving thread panicked");
    Ok(())
}

/// Each kind of fault `rounds` times, in the context of an RDD of its own. Returns by kind the RDD, the signals and what
/// the kernel counted.
pub fn fault_kinds(marker: &Marker, options: &Options) -> Result<Value> {
    let rounds = options.number("rounds", 500)? as usize;
    let slot = options.text("slot") != Some("no");
    let slot = slot.then(|| marker.register()).transpose()?;
    let counts = Counts::open()?;
    let handler = mend as *const () as usize;
    handle(libc::SIGSEGV, handler, libc::SA_SIGINFO)?;
    handle(libc::SIGBUS, handler, libc::SA_SIGINFO)?;
    handle(libc::SIGUSR1, nothing as *const () as usize, 0)?;
    let mut kinds = Map::new();
    let mut kind = |name: &str, run: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        let rdd = FIRST_RDD + kinds.len() as u32;
        let signals = SIGNALS.load(Ordering::Relaxed);
        // What the reading itself touches is touched before.
        counts.read()?;
        let before = counts.read()?;
        if let Some(slot) = &slot {
            slot.set_task(1, STAGE, writing(rdd, 0));
        }
        run()?;
        if let Some(slot) = &slot {
            slot.enter(ContextWord(0));
        }
        let after = counts.read()?;
        let grown = |at: usize| after[at] - before[at];
        let counted = json!({
            "rdd": rdd,
            "signals": SIGNALS.load(Ordering::Relaxed) - signals,
            "kernel": grown(0),
            EVENTS[0].0: grown(1),
            EVENTS[1].0: grown(2),
            EVENTS[2].0: grown(3),
        });
        kinds.insert(name.to_owned(), counted);
        Ok(())
    };
    let all = |start: usize, write: bool| {
        (0..rounds).for_each(|page| touch(start + page * PAGE, write));
    };

    let memory = Mapping::anonymous(rounds)?;
    kind("plain", &mut || {
        (0..rounds).for_each(|page| memory.write(page * PAGE));
        Ok(())
    })?;
    // A file without pages in the cache: the fault reads them without the lock of its mapping and begins again.
    let file = Mapping::file(rounds)?;
    kind("file", &mut || {
        (0..rounds).for_each(|window| file.read(window * crate::memory::WINDOW));
        Ok(())
    })?;
    let zero = File::open("/dev/zero")?;
    let read_into = |address: usize| {
        // SAFETY: the kernel writes one byte where the address is this program's, and refuses it elsewhere.
        unsafe { libc::read(zero.as_raw_fd(), address as *mut libc::c_void, 1) }
    };
    memory.forget();
    let start = memory.address();
    kind("by_the_kernel", &mut || {
        let read = (0..rounds).filter(|page| read_into(start + page * PAGE) == 1);
        ensure!(read.count() == rounds, "/dev/zero cannot be read");
        Ok(())
    })?;
    kind("served_by_the_program", &mut || {
        served_here(rounds, false, Duration::ZERO, |start| all(start, true))
    })?;
    MEND.store(ALLOW, Ordering::Relaxed);
    // SAFETY: exactly that mapping, whose pages the handler makes accessible again.
    unsafe { libc::mprotect(start as *mut libc::c_void, rounds * PAGE, libc::PROT_NONE) };
    kind("without_the_right", &mut || {
        all(start, true);
        Ok(())
    })?;
    MEND.store(MAP, Ordering::Relaxed);
    let nowhere = reserved(rounds)?;
    unmap(nowhere, rounds);
    kind("without_a_mapping", &mut || {
        all(nowhere, true);
        Ok(())
    })?;
    MEND.store(EXTEND, Ordering::Relaxed);
    let growing = tempfile::tempfile()?;
    let mapped = Mapping::of_file(&growing, rounds * PAGE)?;
    FILE.store(growing.as_raw_fd(), Ordering::Relaxed);
    FILE_START.store(mapped.address(), Ordering::Relaxed);
    kind("behind_the_end", &mut || {
        all(mapped.address(), false);
        Ok(())
    })?;
    kind("interrupted", &mut || {
        served_here(rounds, true, Duration::ZERO, |start| all(start, true))
    })?;
    memory.forget();
    kind("populated", &mut || {
        // SAFETY: exactly that mapping.
        let done = unsafe {
            libc::madvise(
                start as *mut libc::c_void,
                rounds * PAGE,
                libc::MADV_POPULATE_WRITE,
            )
        };
        ensure!(done == 0, "madvise: {}", std::io::Error::last_os_error());
        Ok(())
    })?;
    let nowhere = reserved(1)?;
    kind("refused_to_the_kernel", &mut || {
        let refused = (0..rounds).filter(|_| read_into(nowhere) < 0);
        ensure!(
            refused.count() == rounds,
            "memory without rights was written"
        );
        Ok(())
    })?;
    Ok(json!({ "rounds": rounds, "kinds": kinds }))
}
