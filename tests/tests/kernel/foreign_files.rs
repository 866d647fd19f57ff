//! Attacks by files: an unprivileged process maps what it wishes under the names of slot file and library. The daemon's
//! discovery runs here as a library; the processes are in `tests/src/bin/attacker.rs`.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use smtt_config::{FaultHook, ProbeSettings};
use smtt_daemon::discover::{Discoverer, Found};
use smtt_daemon::probes::library::{Probing, Process};
use smtt_machine::proc::{Handle, image};
pub use smtt_tests::attackers::{Scene, UNPRIVILEGED_UID};
use smtt_tests::skip::skip;

use crate::lab::{KernelLab, Workload, lab, library, with_hook};

/// A scan waits for a second at most; the rest is a busy or emulated machine. A lease lasts 45 seconds.
const SCAN_LIMIT: Duration = Duration::from_secs(60);
/// Containers, one after the other.
const CONTAINERS: usize = 12;
/// Library files with probes at a time, in place of 256: each closing of a probe waits for a grace period of the kernel.
const FILES: usize = 8;
/// Attempts, at least, to probe a library that is swapped all the time.
const ATTEMPTS: u32 = 200;
/// How long they may take to meet both the known library and another file.
const SWAPS_AT_MOST: Duration = Duration::from_secs(30);
/// How long a process may take to be found while the kernel still closes the probes of an earlier test.
const FIND_LIMIT: Duration = Duration::from_secs(120);
/// MiB that discovery may need for the longest `maps`.
const MAPS_MIB: u64 = 32;

/// One scan, which must not take long, and its result for one process.
fn scan(discoverer: &mut Discoverer, now: Instant) -> Result<Vec<Found>> {
    let begin = Instant::now();
    let found = discoverer.scan(now);
    let took = begin.elapsed();
    ensure!(took < SCAN_LIMIT, "the scan took {took:?}");
    Ok(found)
}

/// Scans until a process is found. Attaching takes the kernel longer than a scan waits where it is still closing others.
pub fn find(discoverer: &mut Discoverer, pid: u32) -> Result<Found> {
    let until = Instant::now() + FIND_LIMIT;
    while Instant::now() < until {
        let found = scan(discoverer, Instant::now())?;
        if let Some(found) = found.into_iter().find(|found| found.pid == pid) {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    anyhow::bail!("process {pid} is not found in {FIND_LIMIT:?}")
}

/// Scans until an honest executor, which starts now, is found with its library probed. Returns what else was found.
fn honest_is_found(discoverer: &mut Discoverer) -> Result<Vec<Found>> {
    let mut honest = Workload::start("late", &["name=java"])?;
    honest.go()?;
    honest.expect("REGISTERED")?;
    let mut others = Vec::new();
    for _ in 0..10 {
        let (own, more): (Vec<Found>, Vec<Found>) = scan(discoverer, Instant::now())?
            .into_iter()
            .partition(|found| found.pid == honest.pid());
        others.extend(more);
        if let Some(found) = own.first() {
            ensure!(
                found.library == Some(Probing::Probed),
                "the honest executor: {:?}",
                found.library
            );
            return Ok(others);
        }
    }
    anyhow::bail!("the honest executor is not found in ten scans")
}

fn prepared() -> Result<Option<(KernelLab, Scene, Discoverer)>> {
    prepared_with(&with_hook(FaultHook::Off))
}

fn prepared_with(settings: &ProbeSettings) -> Result<Option<(KernelLab, Scene, Discoverer)>> {
    let Some(lab) = lab(settings)? else {
        return Ok(None);
    };
    let discoverer = Discoverer::new(lab.probes.libraries());
    Ok(Some((lab, Scene::new()?, discoverer)))
}

/// Open descriptors of this process.
fn descriptors() -> Result<usize> {
    Ok(fs::read_dir("/proc/self/fd")?.count())
}

/// A private mapping of a file's code, as a program has it.
struct Code {
    address: *const u8,
    length: usize,
}

impl Code {
    fn map(path: &Path) -> Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len() as usize;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_EXEC,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        ensure!(address != libc::MAP_FAILED, "mmap failed");
        Ok(Self {
            address: address.cast(),
            length,
        })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for as long as this value lives; nothing writes the file.
        unsafe { std::slice::from_raw_parts(self.address, self.length) }
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and its bytes are borrowed from this value only.
        unsafe { libc::munmap(self.address.cast_mut().cast(), self.length) };
    }
}

#[test]
fn a_swapped_library_puts_no_breakpoint_into_another_file() -> Result<()> {
    let Some((lab, scene, _)) = prepared()? else {
        return Ok(());
    };
    // The library with one more byte: all probes would fit, and it is not a known one.
    let victim = scene.own.join("victim");
    let mut bytes = fs::read(library()?)?;
    bytes.push(0);
    fs::write(&victim, &bytes)?;
    let code = Code::map(&victim)?;
    ensure!(code.bytes() == bytes, "the victim is mapped as it is");
    let attacker = scene.attack("swap")?;
    let process = Process {
        pid: attacker.pid(),
        image: image(attacker.pid()).context("it has ended")?,
        share: UNPRIVILEGED_UID,
    };
    let handle = Handle::open(attacker.pid())?;
    let libraries = lab.probes.libraries();
    let (mut probed, mut unknown, mut attaching) = (0_u32, 0_u32, Duration::ZERO);
    let (start, mut attempts) = (Instant::now(), 0);
    while start.elapsed() < SWAPS_AT_MOST && (attempts < ATTEMPTS || probed == 0 || unknown == 0) {
        attempts += 1;
        let begin = Instant::now();
        match libraries.probe(process, &handle, &attacker.ready) {
            Probing::Probed => {
                probed += 1;
                attaching += begin.elapsed();
            }
            Probing::Unknown(_) => unknown += 1,
            Probing::Failed(_) => {}
        }
        libraries.process_ended(process.pid, process.image);
        ensure!(
            code.bytes() == bytes,
            "attempt {attempts} changed the code of a file of root's"
        );
    }
    println!(
        "{probed} attempts met a copy of the library ({:.1} ms each), {unknown} the victim",
        attaching.as_secs_f64() * 1e3 / f64::from(probed.max(1))
    );
    ensure!(
        probed > 0 && unknown > 0,
        "the swaps were too slow or too fast: {probed} and {unknown}"
    );
    Ok(())
}

#[test]
fn a_library_that_takes_minutes_to_parse_is_not_parsed() -> Result<()> {
    let Some((lab, scene, mut discoverer)) = prepared()? else {
        return Ok(());
    };
    let attacker = scene.attack("giant-elf")?;
    let begin = Instant::now();
    let found = find(&mut discoverer, attacker.pid())?;
    let took = begin.elapsed();
    ensure!(
        matches!(found.library, Some(Probing::Unknown(_))),
        "{:?} after {took:?}",
        found.library
    );
    let verdicts = lab.probes.verdicts();
    ensure!(
        smtt_model::protocol::degraded(true, &verdicts, &[]).is_empty(),
        "a hostile library makes the daemon degraded: {verdicts:?}"
    );
    Ok(())
}

#[test]
fn a_lease_lets_no_one_wait_and_its_file_is_probed_later() -> Result<()> {
    let Some((_lab, scene, mut discoverer)) = prepared()? else {
        return Ok(());
    };
    let _slots = scene.attack("lease-slots")?;
    let mut attacker = scene.attack("lease-library")?;
    let others = honest_is_found(&mut discoverer)?;
    let first = others
        .iter()
        .find(|found| found.pid == attacker.pid())
        .context("the attacker has a slot file without a lease")?;
    ensure!(
        matches!(first.library, Some(Probing::Failed(_))),
        "a leased library: {:?}",
        first.library
    );
    // The failure is not remembered: without the lease the same file is probed.
    attacker.go()?;
    attacker.expect("RELEASED")?;
    let later = Instant::now() + Duration::from_secs(120);
    let again = scan(&mut discoverer, later)?;
    let again = again.iter().find(|found| found.pid == attacker.pid());
    ensure!(
        again.and_then(|found| found.library.as_ref()) == Some(&Probing::Probed),
        "after the lease: {again:?}"
    );
    Ok(())
}

#[test]
fn a_file_system_without_answers_is_not_asked() -> Result<()> {
    let Some((_lab, scene, mut discoverer)) = prepared()? else {
        return Ok(());
    };
    if !Path::new("/dev/fuse").exists() {
        return skip("fuse", "there is no /dev/fuse");
    }
    // Root mounts it, so that the test does not depend on the setuid program that does it for users.
    let attacker = scene.start("fuse", 0)?;
    let others = honest_is_found(&mut discoverer)?;
    let found = others.iter().find(|found| found.pid == attacker.pid());
    let refused = match found.and_then(|found| found.library.as_ref()) {
        Some(Probing::Unknown(why)) => why.contains("fuse"),
        _ => false,
    };
    ensure!(refused, "the library in a dead file system: {found:?}");
    Ok(())
}

#[test]
fn sixty_thousand_mappings_take_little_memory() -> Result<()> {
    let Some((_lab, scene, mut discoverer)) = prepared()? else {
        return Ok(());
    };
    let attacker = scene.attack("long-maps")?;
    let flood = scene.attack("many-slots")?;
    // Writing 5 sets the highest resident size back to the current one.
    fs::write("/proc/self/clear_refs", "5")?;
    let before = high_water()?;
    let others = honest_is_found(&mut discoverer)?;
    let grown = high_water()? - before;
    println!(
        "the inspection of 60,000 long mappings took {} KiB",
        grown >> 10
    );
    ensure!(
        grown < MAPS_MIB << 20,
        "resident memory grew by {} MiB",
        grown >> 20
    );
    ensure!(
        !others
            .iter()
            .any(|found| [attacker.pid(), flood.pid()].contains(&found.pid)),
        "neither is an executor: {others:?}"
    );
    Ok(())
}

#[test]
fn a_slot_file_of_more_slots_than_a_marker_makes_is_never_read() -> Result<()> {
    let Some((_lab, scene, mut discoverer)) = prepared()? else {
        return Ok(());
    };
    let attackers = (0..8)
        .map(|_| scene.attack("wide-slots"))
        .collect::<Result<Vec<_>>>()?;
    let others = honest_is_found(&mut discoverer)?;
    let theirs = |found: &&Found| attackers.iter().any(|attacker| attacker.pid() == found.pid);
    let taken: Vec<u32> = others
        .iter()
        .filter(theirs)
        .map(|found| found.pid)
        .collect();
    ensure!(
        taken.is_empty(),
        "each tick would read 8 MiB of each of the processes {taken:?}"
    );
    Ok(())
}

/// Highest resident size of this process so far, in bytes.
fn high_water() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kilobytes.context("no VmHWM")?.parse::<u64>()? << 10)
}

#[test]
fn the_next_container_is_traced_after_more_than_have_room() -> Result<()> {
    let settings = ProbeSettings {
        library_files: FILES,
        ..with_hook(FaultHook::Off)
    };
    let Some((mut lab, scene, mut discoverer)) = prepared_with(&settings)? else {
        return Ok(());
    };
    let before = descriptors()?;
    let (mut attaching, mut most) = (Duration::ZERO, 0);
    for number in 0..CONTAINERS {
        let container = scene.attack("container")?;
        let begin = Instant::now();
        let found = find(&mut discoverer, container.pid())?;
        attaching += begin.elapsed();
        ensure!(
            found.library == Some(Probing::Probed),
            "container {number}: {found:?}"
        );
        most = most.max(descriptors()?);
    }
    println!(
        "{CONTAINERS} containers: {:.1} ms each, {most} descriptors at most, {before} before",
        attaching.as_secs_f64() * 1e3 / CONTAINERS as f64
    );
    let mut last = Workload::start_with(&scene.library, "late", &["name=java"])?;
    last.go()?;
    last.expect("REGISTERED")?;
    let found = find(&mut discoverer, last.pid())?;
    ensure!(
        found.library == Some(Probing::Probed),
        "{:?}",
        found.library
    );
    found.slots.request_resync(41)?;
    last.run()?;
    lab.executor(last.pid())?;
    // Everything but the files of the configuration and of the last container is given back.
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        scan(&mut discoverer, Instant::now())?;
        let (files, open) = (lab.probes.libraries().files(), descriptors()?);
        if files == 2 && open < before + 40 {
            break;
        }
        ensure!(
            Instant::now() < until,
            "{files} files are probed, {open} descriptors are open, {before} were before"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    last.end()
}

#[test]
fn an_executor_that_replaces_its_program_is_found_again() -> Result<()> {
    let Some((_lab, scene, mut discoverer)) = prepared()? else {
        return Ok(());
    };
    let mut executor = scene.attack("exec")?;
    for round in 0..3 {
        find(&mut discoverer, executor.pid())?;
        let again = scan(&mut discoverer, Instant::now() + Duration::from_secs(120))?;
        ensure!(
            !again.iter().any(|found| found.pid == executor.pid()),
            "it is found twice in round {round}"
        );
        executor.go()?;
        executor.expect("READY")?;
    }
    drop(scene.folder);
    Ok(())
}
