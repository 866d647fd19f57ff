//! Overlay mounts of one lower folder, as containers of one image have them: each shows a file of its own, and the kernel
//! probes the one inode behind all of them. The witness is the number of facts that each process sends.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use smtt_common::event::Kind;
use smtt_common::event::marker::LIBRARY_NAME;
use smtt_config::FaultHook;
use smtt_daemon::discover::{Discoverer, Found};
use smtt_daemon::probes::library::Probing;
use smtt_tests::skip::skip;
use tempfile::TempDir;

use crate::foreign_files::find;
use crate::lab::{KernelLab, Workload, lab, library, with_hook};

/// The instruction that a probe replaces.
const PAD: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
/// Containers of one image.
const CONTAINERS: usize = 3;
/// Longer than a file keeps its probes without a process.
const IDLE: Duration = Duration::from_secs(6);
const LIMIT: Duration = Duration::from_secs(60);

/// An overlay with an upper folder of its own; it is unmounted when this is dropped.
struct Overlay {
    merged: PathBuf,
}

impl Overlay {
    /// `None` where the kernel has no overlays.
    fn mount(folder: &Path, number: usize, lower: &Path) -> Result<Option<Self>> {
        let [upper, work, merged] =
            ["upper", "work", "merged"].map(|name| folder.join(format!("{name}{number}")));
        for path in [&upper, &work, &merged] {
            fs::create_dir(path)?;
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.display(),
            upper.display(),
            work.display()
        );
        let (target, options) = (c_path(&merged)?, CString::new(options)?);
        // SAFETY: all texts are NUL-terminated and outlive the call.
        let done = unsafe {
            libc::mount(
                c"overlay".as_ptr(),
                target.as_ptr(),
                c"overlay".as_ptr(),
                0,
                options.as_ptr().cast(),
            )
        };
        if done != 0 {
            let error = io::Error::last_os_error();
            ensure!(
                error.raw_os_error() == Some(libc::ENODEV),
                "an overlay cannot be mounted: {error}"
            );
            return Ok(None);
        }
        Ok(Some(Self { merged }))
    }

    fn library(&self) -> PathBuf {
        self.merged.join(LIBRARY_NAME)
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        if let Ok(target) = c_path(&self.merged) {
            // SAFETY: the path is NUL-terminated.
            unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        }
    }
}

fn c_path(path: &Path) -> Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// A lower folder with the library, and overlays of it.
struct Image {
    overlays: Vec<Overlay>,
    _folder: TempDir,
}

fn image() -> Result<Option<Image>> {
    let folder = tempfile::tempdir()?;
    let lower = folder.path().join("lower");
    fs::create_dir(&lower)?;
    fs::copy(library()?, lower.join(LIBRARY_NAME))?;
    let mut overlays = Vec::new();
    for number in 0..CONTAINERS {
        let Some(overlay) = Overlay::mount(folder.path(), number, &lower)? else {
            skip("overlay", "this kernel has no overlays")?;
            return Ok(None);
        };
        overlays.push(overlay);
    }
    let files: Vec<_> = overlays
        .iter()
        .map(|overlay| fs::metadata(overlay.library()).map(|file| (file.dev(), file.ino())))
        .collect::<io::Result<_>>()?;
    ensure!(
        files.windows(2).all(|pair| pair[0] != pair[1]),
        "the overlays show one file: {files:?}"
    );
    Ok(Some(Image {
        overlays,
        _folder: folder,
    }))
}

/// An executor with this library, found and probed.
fn executor(discoverer: &mut Discoverer, library: &Path) -> Result<(Workload, Found)> {
    let mut workload = Workload::start_with(library, "late", &["name=java"])?;
    workload.go()?;
    workload.expect("REGISTERED")?;
    let found = find(discoverer, workload.pid())?;
    ensure!(
        found.library == Some(Probing::Probed),
        "{:?}",
        found.library
    );
    Ok((workload, found))
}

/// Checks that each fact of an executor came once. An executor that began after its library was probed sends two facts
/// more: its description and its thread.
fn check(lab: &mut KernelLab, workload: &Workload, from_its_start: bool) -> Result<()> {
    let key = lab.executor(workload.pid())?;
    let kinds = [Kind::EXECUTOR_DESCRIBED, Kind::RESYNC_DONE];
    let counts = kinds.map(|kind| lab.of_kind(key, kind).len());
    let seen = lab.totals(key)?.facts_seen;
    let expected = if from_its_start {
        ([2, 1], 4)
    } else {
        ([1, 1], 2)
    };
    ensure!(
        (counts, seen) == expected,
        "facts came {counts:?} times, {seen} in all; expected {expected:?}"
    );
    Ok(())
}

#[test]
fn each_fact_comes_once_through_several_overlays_of_one_file() -> Result<()> {
    let settings = with_hook(FaultHook::Off);
    let Some(mut lab) = lab(&settings)? else {
        return Ok(());
    };
    let Some(image) = image()? else {
        return Ok(());
    };
    let mut discoverer = Discoverer::new(lab.probes.libraries());
    let mut executors = Vec::new();
    for overlay in &image.overlays {
        executors.push(executor(&mut discoverer, &overlay.library())?);
    }
    ensure!(
        lab.probes.libraries().files() == 2,
        "one inode, and that of the configuration"
    );
    // Another daemon, for which the first one's breakpoints are no probes.
    let mut other = lab.another(&settings)?;
    let mut others = Discoverer::new(other.probes.libraries());
    let (begin, mut missing) = (Instant::now(), executors.len());
    while missing > 0 {
        for found in others.scan(Instant::now()) {
            if executors
                .iter()
                .any(|(workload, _)| workload.pid() == found.pid)
            {
                ensure!(found.library == Some(Probing::Probed), "{found:?}");
                missing -= 1;
            }
        }
        ensure!(begin.elapsed() < LIMIT, "{missing} executors are not found");
        thread::sleep(Duration::from_millis(20));
    }
    for (number, (workload, found)) in executors.iter_mut().enumerate() {
        found.slots.request_resync(41)?;
        workload.run()?;
        check(&mut lab, workload, number > 0)?;
        check(&mut other, workload, false)?;
    }
    // The inode keeps its probes when the process is gone that brought it, and a file without processes is probed again.
    let (first, _) = executors.remove(0);
    first.end()?;
    wait_for(&lab, &mut discoverer, 2)?;
    let (mut last, found) = executor(&mut discoverer, &image.overlays[0].library())?;
    found.slots.request_resync(41)?;
    last.run()?;
    check(&mut lab, &last, true)?;
    last.end()?;
    for (workload, _) in executors {
        workload.end()?;
    }
    wait_for(&lab, &mut discoverer, 1)
}

/// Waits until idle files have been given back, and this number of files is probed.
fn wait_for(lab: &KernelLab, discoverer: &mut Discoverer, files: usize) -> Result<()> {
    let begin = Instant::now();
    loop {
        discoverer.scan(Instant::now());
        let probed = lab.probes.libraries().files();
        if begin.elapsed() > IDLE && probed == files {
            return Ok(());
        }
        ensure!(
            begin.elapsed() < LIMIT,
            "{probed} files are probed, not {files}"
        );
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_file_that_a_change_made_another_inode_is_probed_again() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Off))? else {
        return Ok(());
    };
    let Some(image) = image()? else {
        return Ok(());
    };
    let library = image.overlays[0].library();
    let mut discoverer = Discoverer::new(lab.probes.libraries());
    let (before, _) = executor(&mut discoverer, &library)?;
    let numbers = |file: fs::Metadata| (file.dev(), file.ino());
    let shown = numbers(fs::metadata(&library)?);
    // The first change copies the file to the upper folder.
    fs::set_permissions(&library, fs::Permissions::from_mode(0o700))?;
    println!(
        "the same numbers after the change: {}",
        numbers(fs::metadata(&library)?) == shown
    );
    let (mut after, found) = executor(&mut discoverer, &library)?;
    found.slots.request_resync(41)?;
    after.run()?;
    check(&mut lab, &after, false)?;
    before.end()?;
    after.end()
}

/// Copies of the library that other processes have and that are rewritten all the time.
const REWRITTEN: usize = 6;

#[test]
fn a_file_that_is_rewritten_is_not_taken_for_an_overlays() -> Result<()> {
    let Some(mut lab) = lab(&with_hook(FaultHook::Off))? else {
        return Ok(());
    };
    let Some(image) = image()? else {
        return Ok(());
    };
    let mut discoverer = Discoverer::new(lab.probes.libraries());
    let folder = tempfile::tempdir()?;
    let bytes = fs::read(library()?)?;
    let pads: Vec<usize> = (0..bytes.len() - PAD.len())
        .filter(|at| bytes[*at..].starts_with(&PAD))
        .collect();
    let (mut attackers, mut files) = (Vec::new(), Vec::new());
    for number in 0..REWRITTEN {
        let own = folder.path().join(number.to_string());
        fs::create_dir(&own)?;
        let path = own.join(LIBRARY_NAME);
        fs::write(&path, &bytes)?;
        attackers.push(executor(&mut discoverer, &path)?);
        let file = fs::OpenOptions::new().write(true).open(&path)?;
        // No process has a copy of a page that was cut off.
        file.set_len(0)?;
        file.write_all_at(&bytes, 0)?;
        files.push(file);
    }
    let (first, _) = executor(&mut discoverer, &image.overlays[0].library())?;
    let end = AtomicBool::new(false);
    let second = thread::scope(|scope| {
        scope.spawn(|| {
            let mut byte = 0_u8;
            while !end.load(Ordering::Relaxed) {
                byte = byte.wrapping_add(1);
                for file in &files {
                    for pad in &pads {
                        // A write that fails changes nothing.
                        let _ = file.write_all_at(&[byte], (pad + PAD.len()) as u64);
                    }
                }
            }
        });
        let second = executor(&mut discoverer, &image.overlays[1].library());
        end.store(true, Ordering::Relaxed);
        second
    });
    let (mut second, found) = second?;
    // The probes stay while the second one lives.
    first.end()?;
    wait_for(&lab, &mut discoverer, 2 + REWRITTEN)?;
    found.slots.request_resync(41)?;
    second.run()?;
    check(&mut lab, &second, true)?;
    second.end()
}
