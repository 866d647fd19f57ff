//! Emulated machines: other kernels, another processor with a dTLB counter, several NUMA nodes.
//!
//! | module | what |
//! |---|---|
//! | [`guest`] | the machines there are: processor, kernel package, what each must be able to do |
//! | [`step`] | a piece of preparation that is done once |
//! | [`apt`] | Debian packages of any suite and processor, without touching the system's own packages |
//! | [`prepare`] | emulator, kernels and the guests' shell, kept in the cache |
//! | [`archive`] | the guest's first file system |
//! | [`libraries`] | the shared libraries that a program needs in a guest |
//! | [`modules`] | the kernel modules that a guest's disk needs |
//! | [`machine`] | boots one, runs a script in it, brings output and exit status back |
//! | [`matrix`] | one line per kernel and probe, and whether it is as it must be |

mod apt;
mod archive;
mod guest;
mod libraries;
mod machine;
mod matrix;
mod modules;
mod prepare;
mod step;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

pub use guest::{Guest, Processor};
use machine::{GuestFile, Machine};
use prepare::Prepared;

use crate::cross;

/// Probing takes about a minute in the slowest guest on a busy machine; beyond this something hangs.
const PROBE_TIME_OUT: Duration = Duration::from_secs(300);

/// Runs the probe matrix in the given guests, one after the other (emulation wants all processors). Says
/// whether nothing is broken.
pub fn test(root: &Path, guests: &[&'static Guest]) -> Result<bool> {
    let cache = cache_dir()?;
    let mut whole = true;
    let mut times = Vec::new();
    for guest in guests {
        let mut timed = |stage: &str, since: Instant| {
            times.push((guest.name, stage.to_owned(), since.elapsed()))
        };
        let since = Instant::now();
        let prepared = prepare::prepare(&cache, guest)?;
        timed("prepare", since);

        let since = Instant::now();
        let probe = cross::build(
            root,
            &cache,
            guest.processor,
            "smtt-vmprobe",
            "smtt-vmprobe",
        )?;
        timed("build", since);

        let since = Instant::now();
        whole &= probe_guest(&cache, guest, &prepared, &probe)?;
        timed("boot and probe", since);
    }
    println!();
    for (guest, stage, time) in times {
        println!("{guest:<10} {stage:<16} {:>6.1} s", time.as_secs_f64());
    }
    println!(
        "emulated machines: {}",
        if whole {
            "nothing is broken"
        } else {
            "something is broken, see above"
        }
    );
    Ok(whole)
}

/// Boots one guest and prints its rows of the matrix.
fn probe_guest(cache: &Path, guest: &Guest, prepared: &Prepared, probe: &Path) -> Result<bool> {
    let machine = Machine {
        guest,
        prepared,
        files: vec![GuestFile {
            here: probe.to_owned(),
            there: "/bin/smtt-vmprobe".to_owned(),
        }],
        disk: None,
        time_out: PROBE_TIME_OUT,
        log: cache
            .join("vm/log")
            .join(format!("console-{}.log", guest.name)),
    };
    let mut matrix = matrix::Matrix::new(guest);
    let ran = machine.run("/bin/smtt-vmprobe", |line| matrix.line(line))?;
    println!(
        "{:<10} up in {:.1} s, probed in {:.1} s",
        guest.name,
        ran.boot.as_secs_f64(),
        ran.script.as_secs_f64()
    );
    Ok(matrix.finish(ran.status))
}

/// The folder that holds what was downloaded and unpacked: `$SMTT_CACHE`, or `smtt` in the user's cache.
fn cache_dir() -> Result<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    set("SMTT_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("smtt")))
        .or_else(|| set("HOME").map(|folder| folder.join(".cache/smtt")))
        .context("no cache folder: set SMTT_CACHE or HOME")
}
