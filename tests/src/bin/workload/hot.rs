//! Memory that is touched all the time beside memory that nobody touches, and a holder of the kernel's monitor.

use std::time::Duration;

use anyhow::{Result, anyhow};
use serde_json::{Value, json};
use smtt_machine::damon::{Damon, Pace};

use crate::Options;
use crate::marker::Marker;
use crate::memory::PAGE;
use crate::pages::{small, tell, write};

const MIB: usize = 1 << 20;
/// Pages whose protection is changed so that the processor forgets all of its translations: more than the kernel
/// makes it forget one by one.
const SCRATCH: usize = 64;

/// Three blocks of 8 MiB: one is touched all the time, one never again, of one the first half all the time. The
/// touching goes on until the program ends.
pub fn hot(marker: &Marker, _: &Options) -> Result<Value> {
    let bytes = 8 * MIB;
    let mut blocks = serde_json::Map::new();
    let mut block = |rdd: u64, kind: &str| -> Result<usize> {
        let start = small(bytes)?;
        write(start, 0..bytes / PAGE);
        let name = tell(marker, rdd, start, bytes);
        let told = json!({ "block": name, "rdd": rdd, "address": start, "bytes": bytes });
        blocks.insert(kind.to_owned(), told);
        Ok(start)
    };
    let (hot, _, half) = (block(30, "hot")?, block(31, "cold")?, block(32, "half")?);
    let scratch = small(SCRATCH * PAGE)?;
    write(scratch, 0..SCRATCH);
    std::thread::spawn(move || {
        loop {
            touch(hot, bytes);
            touch(half, bytes / 2);
            forget(scratch);
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    Ok(json!({ "blocks": blocks }))
}

/// Reads one byte of each page.
fn touch(start: usize, bytes: usize) {
    for page in (start..start + bytes).step_by(PAGE) {
        // SAFETY: inside a mapping of this program.
        unsafe { (page as *const u8).read_volatile() };
    }
}

/// Lets the processor forget its translations, as other programs do on a busy machine: only when it walks to a page
/// again does it mark it as accessed.
fn forget(scratch: usize) {
    for protection in [libc::PROT_NONE, libc::PROT_READ | libc::PROT_WRITE] {
        // SAFETY: memory of this program that nothing else lives in and nobody touches.
        unsafe { libc::mprotect(scratch as *mut libc::c_void, SCRATCH * PAGE, protection) };
    }
}

/// Holds the kernel's monitor, as the daemon does, until it ends: it looks at one page of the process `pid`.
pub fn monitor(_: &Marker, options: &Options) -> Result<Value> {
    let pid = options.number("pid", 1)? as u32;
    let mut damon = Damon::take()?;
    let region = [(PAGE as u64 * 16, PAGE as u64 * 17)];
    damon.start(&vec![(pid, region.as_slice())], Pace::default())?;
    let guard = damon
        .guard_pid()
        .ok_or_else(|| anyhow!("there is no guard"))?;
    // It is given back by the end of the program only, whatever end that is.
    std::mem::forget(damon);
    Ok(json!({ "guard": guard }))
}
