//! Ends of an executor and of its child, in the ways that a test asks for.

use std::ffi::CString;
use std::process::exit;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use smtt_tests::memory::{Mapping, PAGE};
use smtt_tests::steps::{say, wait};

use crate::Options;
use crate::marker::Marker;

const MIB: usize = 1 << 20;
/// Pages that are allocated at a time.
const CHUNK: usize = 1024;

/// Forks a child, touches `hold` MiB, prints `CHILD` and the child's process id, and waits for a line. Then it exits with the code of `exit`, or
/// takes memory until it is killed (`grow=own`); with `grow=child` the child does so at once. `child` names the child.
pub fn deaths(_marker: &Marker, options: &Options) -> Result<Value> {
    let grow = options.text("grow").unwrap_or_default();
    let parent = std::process::id();
    // SAFETY: this program has one thread now, so the child may call any function.
    let child = unsafe { libc::fork() };
    match child {
        ..0 => bail!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: both calls have no precondition. The child does not outlive the test.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::signal(libc::SIGUSR1, libc::SIG_DFL);
            }
            if let Some(name) = options.text("child") {
                let name = CString::new(name)?;
                // SAFETY: the text is NUL-terminated, and the call copies 16 bytes of it at most.
                unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
            }
            // The parent may have ended before this child asked for the signal.
            if std::os::unix::process::parent_id() != parent {
                exit(0);
            }
            if grow == "child" {
                // SAFETY: waits for the signal that a test sends once the cgroup has its limit.
                unsafe {
                    libc::signal(libc::SIGUSR1, woken as *const () as usize);
                    libc::pause();
                }
                take_all();
            }
            loop {
                // SAFETY: no precondition.
                unsafe { libc::pause() };
            }
        }
        _ => {}
    }
    let pages = (options.number("hold", 0)? as usize * MIB) / PAGE;
    let held = Mapping::anonymous(pages.max(1))?;
    (0..pages).for_each(|page| held.write(page * PAGE));
    say(&format!("CHILD {child}"))?;
    wait()?;
    if grow == "own" {
        take_all();
    }
    if options.text("exit").is_some() {
        exit(options.number("exit", 0)? as i32);
    }
    Ok(json!({ "child": child }))
}

extern "C" fn woken(_: i32) {}

/// Touches memory until there is none, and ends by itself where that takes too much.
fn take_all() {
    let mut held = Vec::new();
    while held.len() < 1024 {
        let Ok(memory) = Mapping::anonymous(CHUNK) else {
            break;
        };
        (0..CHUNK).for_each(|page| memory.write(page * PAGE));
        held.push(memory);
    }
    exit(99);
}
