//! Everything that a guest needs to boot: the emulator, its kernel and a shell. All files are unpacked into the cache;
//! nothing is installed into the system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::guest::Guest;
use super::packages;
use crate::cross;
use crate::paths::Paths;
use crate::processor::Processor;
use crate::step::{Stamp, Step, Steps};

/// The emulator's suite: older ones hang with two nodes on riscv64.
const EMULATOR_SUITE: &str = "bookworm-backports";

const REMEDY: &str = "see that the Debian mirror in /etc/apt can be reached (`apt-get update`), then run it again; \
                      what was done is kept";

/// Paths in the cache.
#[derive(Debug)]
pub struct Prepared {
    /// A root folder with the emulator, all its libraries and its firmware.
    emulator: PathBuf,
    /// The kernel image.
    pub kernel: PathBuf,
    /// The kernel's modules.
    pub modules: PathBuf,
    /// A static busybox for the guest's processor.
    pub busybox: PathBuf,
    /// Folders with the shared libraries of the guest's programs.
    pub libraries: Vec<PathBuf>,
}

impl Prepared {
    /// The emulator's command. It uses the libraries unpacked with it, independent of the system's.
    pub fn emulator(&self, processor: Processor) -> Command {
        let at = |part: &str| self.emulator.join(part);
        let libraries = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"]
            .map(|part| at(part).display().to_string());
        let mut command = Command::new(at("lib64/ld-linux-x86-64.so.2"));
        command.args(["--library-path", &libraries.join(":")]);
        command.arg(at("usr/bin").join(processor.emulator()));
        for folder in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(at(folder));
        }
        command.env("QEMU_MODULE_DIR", at("usr/lib/x86_64-linux-gnu/qemu"));
        command
    }
}

/// Prepares `guest`; existing files are kept.
///
/// # Errors
/// When a package cannot be fetched or unpacked; the message says what to do.
pub fn prepare(paths: &Paths, guest: &Guest) -> Result<Prepared> {
    let mut steps = Steps::new(3);
    let architecture = guest.processor.debian();
    // A folder of its own for the emulator that a usual run does not need.
    let (name, title, names): (_, _, &[&str]) = match guest.processor {
        Processor::X86 | Processor::Riscv => (
            "emulator",
            "emulator (90 MB to fetch, 350 MB unpacked)",
            &["qemu-system-x86", "qemu-system-misc"],
        ),
        Processor::Arm => (
            "emulator-arm64",
            "emulator of arm64 (40 MB to fetch, 160 MB unpacked)",
            &["qemu-system-arm"],
        ),
    };
    let emulator = unpacked(
        paths,
        &mut steps,
        name,
        EMULATOR_SUITE,
        title,
        |step, folder| packages::unpack(step, Processor::X86, EMULATOR_SUITE, names, folder),
    )?;
    let kernel = unpacked(
        paths,
        &mut steps,
        &format!("kernel-{}", guest.name),
        &format!("{} {}", guest.suite, guest.kernel),
        &format!(
            "kernel of {} (100 MB to fetch, 500 MB unpacked)",
            guest.name
        ),
        |step, folder| {
            packages::unpack(step, guest.processor, guest.suite, &[guest.kernel], folder)
        },
    )?;
    let shell = unpacked(
        paths,
        &mut steps,
        &format!("shell-{architecture}"),
        guest.processor.suite(),
        &format!("shell for {architecture}"),
        |step, folder| {
            let suite = guest.processor.suite();
            packages::unpack(step, guest.processor, suite, &["busybox-static"], folder)
        },
    )?;
    Ok(Prepared {
        emulator,
        // Not every architecture compresses its kernel image.
        kernel: first_in(&kernel.join("boot"), "vmlinu")?,
        // Debian's packages moved from /lib to /usr/lib between the suites.
        modules: ["lib/modules", "usr/lib/modules"]
            .iter()
            .find_map(|part| first_in(&kernel.join(part), "").ok())
            .with_context(|| again("modules", &kernel))?,
        busybox: ["bin/busybox", "usr/bin/busybox"]
            .iter()
            .map(|part| shell.join(part))
            .find(|path| path.exists())
            .with_context(|| again("busybox", &shell))?,
        libraries: cross::library_folders(paths, guest.processor)?,
    })
}

/// A step that fills the folder `name` of the emulated machines' cache, once per `key` (the inputs of the content). An
/// interrupted step starts again with an empty folder.
///
/// # Errors
/// When the step fails.
pub fn unpacked(
    paths: &Paths,
    steps: &mut Steps,
    name: &str,
    key: &str,
    title: &str,
    work: impl FnOnce(&mut Step, &Path) -> Result<()>,
) -> Result<PathBuf> {
    let folder = paths.cache.join("vm").join(name);
    let stamp = Stamp::new(paths.cache.join("vm/stamp").join(name), key.to_owned());
    let log = paths.logs().join(format!("vm-{name}.log"));
    let done = || stamp.valid() && folder.is_dir();
    steps.step(title, log, REMEDY, done, |step| {
        stamp.remove()?;
        if folder.exists() {
            fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        work(step, &folder)?;
        stamp.write()
    })?;
    Ok(folder)
}

/// The first entry of a folder whose name has the prefix.
fn first_in(folder: &Path, prefix: &str) -> Result<PathBuf> {
    fs::read_dir(folder)
        .with_context(|| format!("cannot list {}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(prefix))
        })
        .with_context(|| again(prefix, folder))
}

fn again(what: &str, folder: &Path) -> String {
    format!(
        "no {what} in {}: remove that folder and run it again",
        folder.display()
    )
}
