//! Memory that is touched continuously beside memory that is never touched, and a process that holds DAMON.

use std::time::Duration;

use anyhow::{Result, anyhow};
use serde_json::{Value, json};
use smtt_machine::damon::{Damon, Pace};

use crate::Options;
use crate::marker::Marker;
use crate::memory::PAGE;
use crate::pages::{small, tell, write};

const MIB: usize = 1 << 20;
/// Pages whose protection is changed, so that the kernel flushes the whole TLB: it flushes fewer pages one by one.
const SCRATCH: usize = 64;

/// Three blocks of 8 MiB: the first is touched continuously, the second never again, the third in its first half. The
/// scenario touches memory until the program ends.
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

/// Flushes the TLB, as other programs do on a busy machine: the processor sets a page's accessed bit only in a page
/// walk.
fn forget(scratch: usize) {
    for protection in [libc::PROT_NONE, libc::PROT_READ | libc::PROT_WRITE] {
        // SAFETY: memory of this program; no other code uses or touches it.
        unsafe { libc::mprotect(scratch as *mut libc::c_void, SCRATCH * PAGE, protection) };
    }
}

/// Holds DAMON, as the daemon does, until the program ends: DAMON monitors one page of the process `pid`.
pub fn monitor(_: &Marker, options: &Options) -> Result<Value> {
    let pid = options.number("pid", 1)? as u32;
    let mut damon = Damon::take()?;
    let region = [(PAGE as u64 * 16, PAGE as u64 * 17)];
    damon.start(&vec![(pid, region.as_slice())], Pace::default())?;
    let guard = damon
        .guard_pid()
        .ok_or_else(|| anyhow!("there is no guard"))?;
    // Not released here: only the end of the program releases DAMON, whatever the cause of the end.
    std::mem::forget(damon);
    Ok(json!({ "guard": guard }))
}
