//! A guest's disk: a JVM, and Spark in `/opt/spark`. For another processor both come from Debian's packages; for this
//! machine's processor the JVM is copied, and nothing is fetched.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::libraries;
use super::packages;
use super::prepare::unpacked;
use crate::cross;
use crate::paths::{DEMO_SPARK, Jdk, Paths};
use crate::processor::Processor;
use crate::step::{Step, Steps};

/// Debian packages of a JVM with Spark in a guest.
const DISK_PACKAGES: [&str; 7] = [
    "base-files",
    "bash",
    "coreutils",
    "grep",
    "sed",
    "procps",
    "openjdk-21-jre-headless",
];
/// Size of the disk: its contents and the files that a test writes.
const DISK_SIZE: &str = "2500M";
/// The parts of a JDK that a JVM needs at run time.
const JVM_PARTS: [&str; 4] = ["bin", "lib", "conf", "release"];
/// Programs and libraries of a JVM that need the system's libraries; the rest is for windows, sound and printers.
const JVM_PROGRAMS: [&str; 9] = [
    "bin/java",
    "lib/server/libjvm.so",
    "lib/libjava.so",
    "lib/libinstrument.so",
    "lib/libmanagement_ext.so",
    "lib/libnet.so",
    "lib/libnio.so",
    "lib/libzip.so",
    "lib/libextnet.so",
];
const DISK_LIMIT: Duration = Duration::from_secs(600);

/// The image of a disk for guests with that processor.
///
/// # Errors
/// When a package cannot be fetched, Spark or a JVM is not set up, or the image cannot be made.
pub fn disk(paths: &Paths, processor: Processor) -> Result<PathBuf> {
    let mut steps = Steps::new(1);
    let folder = match processor {
        Processor::X86 => own_disk(paths, &mut steps)?,
        Processor::Riscv | Processor::Arm => debian_disk(paths, &mut steps, processor)?,
    };
    Ok(folder.join("image"))
}

/// The packages' own set-up scripts do not run; this function writes the files that a JVM misses.
fn debian_disk(paths: &Paths, steps: &mut Steps, processor: Processor) -> Result<PathBuf> {
    let (architecture, suite) = (processor.debian(), processor.suite());
    let name = format!("disk-{architecture}");
    let title =
        format!("disk with a JVM and Spark for {architecture} (100 MB to fetch, 1 GB on disk)");
    let key = format!(
        "{suite} {} Spark {DEMO_SPARK} {DISK_SIZE}",
        DISK_PACKAGES.join(" ")
    );
    unpacked(paths, steps, &name, &key, &title, |step, folder| {
        let tree = folder.join("tree");
        packages::unpack(step, processor, suite, &DISK_PACKAGES, &tree)?;
        image(paths, step, &tree, folder)
    })
}

/// A copy of this machine's JVM, with the libraries that it needs.
fn own_disk(paths: &Paths, steps: &mut Steps) -> Result<PathBuf> {
    let home = Jdk::main()?.home;
    let release = fs::read_to_string(home.join("release"))
        .with_context(|| format!("cannot read {}/release", home.display()))?;
    let key = format!(
        "{} {release} Spark {DEMO_SPARK} {DISK_SIZE}",
        home.display()
    );
    let title = "disk with this machine's JVM and Spark (1 GB on disk)";
    unpacked(paths, steps, "disk-own", &key, title, |step, folder| {
        let tree = bare_tree(folder)?;
        let there = tree.join("usr/lib/jvm/java");
        fs::create_dir_all(&there).with_context(|| format!("cannot make {}", there.display()))?;
        for part in JVM_PARTS {
            copy(&home.join(part), &there.join(part))?;
        }
        let mut folders = cross::library_folders(paths, Processor::X86)?;
        folders.extend([home.join("lib"), home.join("lib/server")]);
        for program in JVM_PROGRAMS {
            for (path, library) in libraries::needed_by(&home.join(program), &folders)? {
                // The tree has the JVM's own libraries already.
                if !library.starts_with(&home) {
                    let to = tree.join(path.trim_start_matches('/'));
                    fs::create_dir_all(to.parent().unwrap_or(&tree))?;
                    copy(&library, &to)?;
                }
            }
        }
        image(paths, step, &tree, folder)
    })
}

/// Copies a file, or a folder recursively. A symbolic link is followed (distributions keep a JVM's settings elsewhere);
/// a dangling link is skipped.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
        let entries =
            fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))?;
        for entry in entries {
            let name = entry?.file_name();
            copy(&from.join(&name), &to.join(&name))?;
        }
    } else if from.exists() {
        fs::copy(from, to)
            .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    }
    Ok(())
}

/// Creates the folders to which a system's programs and libraries are copied.
fn bare_tree(folder: &Path) -> Result<PathBuf> {
    let tree = folder.join("tree");
    for part in ["usr/bin", "usr/sbin", "usr/lib", "etc"] {
        fs::create_dir_all(tree.join(part))
            .with_context(|| format!("cannot fill {}", tree.display()))?;
    }
    for part in ["bin", "sbin", "lib"] {
        symlink(format!("usr/{part}"), tree.join(part))
            .context("cannot make a link on the disk")?;
    }
    Ok(tree)
}

/// Adds mount points, the few files that describe user and machine to a JVM, and Spark; makes an image of the tree and
/// removes the tree.
fn image(paths: &Paths, step: &mut Step, tree: &Path, folder: &Path) -> Result<()> {
    for part in ["proc", "sys", "dev", "tmp", "run", "opt"] {
        fs::create_dir_all(tree.join(part))
            .with_context(|| format!("cannot fill {}", tree.display()))?;
    }
    for (file, text) in [
        ("passwd", "root:x:0:0:root:/root:/bin/bash\n"),
        ("group", "root:x:0:\n"),
        ("hosts", "127.0.0.1 localhost guest\n"),
        ("hostname", "guest\n"),
        (
            "nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files\n",
        ),
    ] {
        fs::write(tree.join("etc").join(file), text)
            .with_context(|| format!("cannot write /etc/{file}"))?;
    }
    let spark = paths.spark_home(DEMO_SPARK)?;
    step.run(
        Command::new("cp")
            .arg("-a")
            .arg(spark)
            .arg(tree.join("opt/spark")),
        DISK_LIMIT,
    )?;
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-t", "ext4", "-m", "0", "-d"])
        .arg(tree)
        .arg(folder.join("image"))
        .arg(DISK_SIZE);
    step.run(&mut make, DISK_LIMIT)?;
    fs::remove_dir_all(tree).with_context(|| format!("cannot remove {}", tree.display()))
}
