//! Executors that started before the daemon, and libraries that imitate the marker's.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use smtt_common::event::Kind;
use smtt_common::event::marker::{LIBRARY_NAME, SYMBOL_PREFIX};
use smtt_config::FaultHook;
use smtt_daemon::discover::{Discoverer, Found};
use smtt_daemon::probes::library::Probing;
use smtt_model::verdict::VerdictState;
use smtt_tests::lab::LIMIT;
use xtask::process::wait_for;

use crate::foreign_files::find;
use crate::lab::{Workload, all, lab, library, with_hook};

#[test]
fn an_executor_that_was_there_first_is_found_and_counted() -> Result<()> {
    // Discovery examines processes whose command name is java.
    let mut workload = Workload::start("late", &["name=java"])?;
    workload.go()?;
    workload.expect("REGISTERED")?;
    let Some(mut lab) = lab(&with_hook(FaultHook::Auto))? else {
        return Ok(());
    };
    lab.read()?;
    ensure!(
        lab.executor(workload.pid()).is_err(),
        "it was described before the probes were there"
    );
    let found = find(&mut Discoverer::new(lab.probes.libraries()), workload.pid())?;
    ensure!(
        found.library == Some(Probing::Probed),
        "{:?}",
        found.library
    );
    let marker = lab
        .probes
        .verdicts()
        .iter()
        .filter(|verdict| verdict.name == "marker")
        .count();
    ensure!(
        marker == 1,
        "the same file by another path is probed {marker} times"
    );
    ensure!(
        found.threads().len() == 1 && found.namespace.is_none(),
        "{found:?}"
    );
    ensure!(
        found.slots.facts_emitted()? == 2,
        "it has told that it exists and one thread: {}",
        found.slots.facts_emitted()?
    );
    let executor = lab.probes.adopt_executor(found.pid)?;
    for thread in found.threads() {
        lab.probes
            .adopt_thread(executor, thread.tid, thread.address, thread.heap)?;
    }
    ensure!(
        lab.probes.adopt_executor(found.pid)? == executor,
        "it is adopted twice under two keys"
    );
    found.slots.request_resync(41)?;
    let said = workload.run()?;
    lab.read()?;
    let faults = all(&lab.faults(executor, |key| {
        key.rdd_plus_one == 9 && key.task_attempt_id == 1
    }));
    ensure!(
        Some(faults) == said["faults"].as_u64(),
        "{faults} faults, the kernel counted {} of {} pages",
        said["faults"],
        said["pages"]
    );
    ensure!(
        found.slots.resync_done()? == 41,
        "it has not told everything again"
    );
    ensure!(
        lab.executor(workload.pid())? == executor,
        "describing itself again gave it another key"
    );
    ensure!(
        lab.of_kind(executor, Kind::RESYNC_DONE).len() == 1,
        "the end of the snapshot is reported"
    );
    let (rows, budget) = (
        lab.probes.rows(executor)?,
        lab.probes.budget(executor)?.context("it has a budget")?,
    );
    ensure!(
        (rows.threads, budget.rows.threads) == (0, 0),
        "the adopted thread ended: {rows:?} {budget:?}"
    );
    workload.end()
}

#[test]
fn an_executor_that_could_not_be_adopted_is_found_again_after_a_pause() -> Result<()> {
    let mut workload = Workload::start("late", &["name=java"])?;
    workload.go()?;
    workload.expect("REGISTERED")?;
    let Some(lab) = lab(&with_hook(FaultHook::Off))? else {
        return Ok(());
    };
    let mut discoverer = Discoverer::new(lab.probes.libraries());
    let begin = Instant::now();
    let mut scan = |after| {
        let found = discoverer.scan(begin + Duration::from_secs(after));
        found.into_iter().find(|found| found.pid == workload.pid())
    };
    // An inspection may take longer than a scan waits for it.
    let until_found = |scan: &mut dyn FnMut(u64) -> Option<Found>, after| {
        wait_for("it is found", LIMIT, || Ok(scan(after)))
    };
    let mut found = until_found(&mut scan, 0)?;
    ensure!(scan(300).is_none(), "it is adopted and found again");
    for (soon, later) in [(300, 310), (310, 320)] {
        found.adoption().failed();
        ensure!(scan(soon).is_none(), "it is tried again without a pause");
        found = until_found(&mut scan, later).context("a failed adoption is final")?;
    }
    workload.run()?;
    workload.end()
}

#[test]
fn a_library_without_pads_is_refused_and_a_copy_is_probed() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Off))? else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let copy = folder.path().join(LIBRARY_NAME);
    std::fs::copy(library()?, &copy)?;
    lab.probes.attach_library(&copy)?;
    let mut bytes = std::fs::read(&copy)?;
    // The pad and the return behind it; with the other first byte it is no pad.
    let (pad, other): (&[u8], u8) = match std::env::consts::ARCH {
        "x86_64" => (&[0x0f, 0x1f, 0x44, 0x00, 0x00, 0xc3], 0x90),
        "riscv64" => (&[0x13, 0x00, 0x00, 0x00, 0x82, 0x80], 0x93),
        "aarch64" => (&[0x1f, 0x20, 0x03, 0xd5, 0xc0, 0x03, 0x5f, 0xd6], 0x3f),
        other => bail!("no pad is known for {other}"),
    };
    let pads: Vec<usize> = bytes
        .windows(pad.len())
        .enumerate()
        .filter(|(_, window)| *window == pad)
        .map(|(at, _)| at)
        .collect();
    ensure!(pads.len() >= 16, "the library has {} pads", pads.len());
    for at in pads {
        bytes[at] = other;
    }
    let wrong = folder.path().join("wrong.so");
    std::fs::write(&wrong, &bytes)?;
    let refused = lab
        .probes
        .attach_library(&wrong)
        .err()
        .context("a library with a wrong pad is probed")?;
    ensure!(format!("{refused:#}").contains("pad"), "{refused:#}");
    // An older marker has fewer entry points; the oldest ones must exist.
    let library = std::fs::read(&copy)?;
    for (entry, needed) in [("resyncTold", false), ("resyncDone", true)] {
        let name = format!("{SYMBOL_PREFIX}{entry}");
        let at = library
            .windows(name.len())
            .position(|window| window == name.as_bytes())
            .with_context(|| format!("no {name}"))?;
        let mut without = library.clone();
        without[at + SYMBOL_PREFIX.len()] = b'R';
        let path = folder.path().join(format!("without-{entry}.so"));
        std::fs::write(&path, &without)?;
        let refused = lab.probes.attach_library(&path).err();
        ensure!(
            refused.is_some() == needed,
            "a library without {entry}: {refused:?}"
        );
    }
    let text = folder.path().join("text.so");
    std::fs::write(&text, "not a library")?;
    let refused = lab
        .probes
        .attach_library(&text)
        .err()
        .context("a text file is probed")?;
    ensure!(format!("{refused:#}").contains("ELF"), "{refused:#}");
    Ok(())
}

#[test]
fn a_configured_library_that_is_rewritten_in_place_has_its_probes_within_seconds() -> Result<()> {
    let Some(lab) = lab(&with_hook(FaultHook::Off))? else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let path = folder.path().join(LIBRARY_NAME);
    std::fs::copy(library()?, &path)?;
    let libraries = lab.probes.libraries();
    let paths = [path.clone()];
    libraries.follow_configured(&paths);
    // Another version, written over the bytes that have probes.
    let mut bytes = std::fs::read(&path)?;
    bytes.push(0);
    std::fs::write(&path, &bytes)?;
    let start = Instant::now();
    let hook = format!("uprobe:{}", path.display());
    loop {
        libraries.follow_configured(&paths);
        let verdict = libraries
            .verdicts()
            .into_iter()
            .find(|one| one.hook == hook);
        let verdict = verdict.context("no verdict")?;
        if verdict.verdict == VerdictState::Ok {
            break;
        }
        println!("{:?}: {}", start.elapsed(), verdict.reason);
        ensure!(start.elapsed() < Duration::from_secs(300), "{verdict:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
    // The other one is that of the workloads.
    ensure!(libraries.files() == 2, "{} files", libraries.files());
    Ok(())
}

#[test]
fn a_library_on_a_mount_without_programs_is_refused_with_the_remedy_and_probed_after_it()
-> Result<()> {
    let Some(lab) = lab(&with_hook(FaultHook::Off))? else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let target = CString::new(folder.path().as_os_str().as_bytes())?;
    let mount = |flags| {
        // SAFETY: all texts are NUL-terminated and outlive the call.
        let done = unsafe {
            libc::mount(
                c"tmpfs".as_ptr(),
                target.as_ptr(),
                c"tmpfs".as_ptr(),
                flags,
                std::ptr::null(),
            )
        };
        ensure!(done == 0, "mount: {}", std::io::Error::last_os_error());
        Ok(())
    };
    mount(libc::MS_NOEXEC)?;
    let outcome = (|| {
        let path = folder.path().join(LIBRARY_NAME);
        std::fs::copy(library()?, &path)?;
        let libraries = lab.probes.libraries();
        let hook = format!("uprobe:{}", path.display());
        let look = || {
            libraries.follow_configured(std::slice::from_ref(&path));
            let verdict = libraries
                .verdicts()
                .into_iter()
                .find(|one| one.hook == hook);
            verdict.context("no verdict")
        };
        let refused = look()?;
        ensure!(
            refused.verdict == VerdictState::Broken
                && refused.reason.contains("noexec")
                && refused.reason.contains("install it elsewhere"),
            "{refused:?}"
        );
        // The file itself does not change.
        mount(libc::MS_REMOUNT)?;
        let start = Instant::now();
        while look()?.verdict != VerdictState::Ok {
            ensure!(start.elapsed() < Duration::from_secs(300), "{:?}", look()?);
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    })();
    // The daemon maps a page of the file as long as it has probes.
    // SAFETY: the path is NUL-terminated.
    unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
    outcome
}

#[test]
fn tables_are_accounted_and_gone_with_the_probes() -> Result<()> {
    let Some(lab) = lab(&with_hook(FaultHook::Auto))? else {
        return Ok(());
    };
    let bytes = lab.probes.bpf_memory_bytes();
    println!("tables and programs: {} KiB", bytes >> 10);
    ensure!(
        (1 << 20..64 << 20).contains(&bytes),
        "{bytes} bytes of tables and programs"
    );
    ensure!(
        smtt_model::protocol::degraded(true, &lab.probes.verdicts(), &[]).is_empty(),
        "{:?}",
        lab.probes.verdicts()
    );
    Ok(())
}
