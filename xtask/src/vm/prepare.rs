//! What every guest needs before it can boot: the emulator, its kernel and a shell. All of it is unpacked into
//! the cache; nothing is installed into the system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::apt::Apt;
use super::guest::{Guest, Processor};
use super::step::Steps;

/// The emulator's suite: older ones hang with two nodes on riscv64.
const EMULATOR_SUITE: &str = "bookworm-backports";

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
}

impl Prepared {
    /// The emulator's command. It runs with the libraries that it was unpacked with, whatever the system has,
    /// and after everything else that wants the processors.
    pub fn emulator(&self, processor: Processor) -> Command {
        let at = |part: &str| self.emulator.join(part);
        let mut command = Command::new("nice");
        command.args(["-n", "19"]);
        command
            .arg(at("lib64/ld-linux-x86-64.so.2"))
            .arg("--library-path");
        command.arg(format!(
            "{}:{}",
            at("lib/x86_64-linux-gnu").display(),
            at("usr/lib/x86_64-linux-gnu").display()
        ));
        command.arg(at("usr/bin").join(processor.emulator()));
        for folder in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(at(folder));
        }
        command.env("QEMU_MODULE_DIR", at("usr/lib/x86_64-linux-gnu/qemu"));
        command
    }
}

/// Prepares `guest`; what is there already is kept.
pub fn prepare(cache: &Path, guest: &Guest) -> Result<Prepared> {
    let steps = Steps::new(cache.join("vm"))?;
    let architecture = guest.processor.debian();
    let emulator = steps.run(
        "emulator",
        EMULATOR_SUITE,
        "fetching the emulator (about 90 MB; 350 MB unpacked)",
        |step| {
            let apt = Apt::open(step, steps.folder(), "amd64")?;
            let packages = ["qemu-system-x86", "qemu-system-misc"];
            apt.unpack_with_dependencies(step, EMULATOR_SUITE, &packages, &step.folder)
        },
    )?;
    let kernel = steps.run(
        &format!("kernel-{}", guest.name),
        &format!("{} {}", guest.suite, guest.kernel),
        &format!(
            "fetching the kernel of {} (about 100 MB; 500 MB unpacked)",
            guest.name
        ),
        |step| {
            let apt = Apt::open(step, steps.folder(), architecture)?;
            let package = apt.first_dependency(guest.suite, guest.kernel)?;
            apt.unpack_alone(step, guest.suite, &[&package], &step.folder)
        },
    )?;
    let shell_suite = if guest.processor == Processor::Riscv {
        "trixie"
    } else {
        "bookworm"
    };
    let shell = steps.run(
        &format!("shell-{architecture}"),
        shell_suite,
        &format!("fetching a shell for {architecture}"),
        |step| {
            let apt = Apt::open(step, steps.folder(), architecture)?;
            apt.unpack_alone(step, shell_suite, &["busybox-static"], &step.folder)
        },
    )?;
    Ok(Prepared {
        emulator,
        // Not every architecture's image is compressed.
        kernel: first_in(&kernel.join("boot"), "vmlinu")?,
        // Debian's packages moved from /lib to /usr/lib between the suites.
        modules: ["lib/modules", "usr/lib/modules"]
            .iter()
            .find_map(|part| first_in(&kernel.join(part), "").ok())
            .with_context(|| {
                format!(
                    "no modules in {}: remove the folder and run again",
                    kernel.display()
                )
            })?,
        busybox: ["bin/busybox", "usr/bin/busybox"]
            .iter()
            .map(|part| shell.join(part))
            .find(|path| path.exists())
            .with_context(|| {
                format!(
                    "no busybox in {}: remove the folder and run again",
                    shell.display()
                )
            })?,
    })
}

/// The first entry of a folder whose name begins so.
fn first_in(folder: &Path, prefix: &str) -> Result<PathBuf> {
    fs::read_dir(folder)
        .with_context(|| format!("cannot list {}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(prefix))
        })
        .with_context(|| {
            format!(
                "no {prefix}* in {}: remove the folder and run again",
                folder.display()
            )
        })
}
