//! A disk with an installed Debian, whose init is systemd, with a JVM and Spark: packages are installed there as on a
//! worker.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::packages;
use super::prepare::unpacked;
use crate::paths::{DEMO_SPARK, Paths};
use crate::process::is_root;
use crate::step::Steps;

/// Debian suite of the disk.
const SUITE: &str = "bookworm";
/// What is installed beside the smallest Debian.
const PACKAGES: [&str; 9] = [
    "systemd",
    "systemd-sysv",
    "init-system-helpers",
    "procps",
    "iproute2",
    "openjdk-17-jre-headless",
    // What docs/SECURITY.md makes certificates and passwords with, and what asks a port as Prometheus does.
    "openssl",
    "apache2-utils",
    "curl",
];
/// Size of the disk: its contents, packages of the product, and what they write.
const DISK_SIZE: &str = "3G";
const LIMIT: Duration = Duration::from_secs(900);

/// Folder of the guest's first file system with the files for the disk.
pub(super) const FILES: &str = "/files";
/// The script's service.
const SERVICE: &str = "smtt-script.service";

/// The image of the disk.
///
/// # Errors
/// Without root, when a package cannot be fetched or installed, or Spark is not set up.
pub fn disk(paths: &Paths) -> Result<PathBuf> {
    let key = format!(
        "{SUITE} {} Spark {DEMO_SPARK} {DISK_SIZE}",
        PACKAGES.join(" ")
    );
    let title = "disk with an installed Debian and its systemd (150 MB to fetch, 1 GB on disk)";
    let mut steps = Steps::new(1);
    let folder = unpacked(
        paths,
        &mut steps,
        "disk-systemd",
        &key,
        title,
        |step, folder| {
            ensure!(is_root(), "installing a Debian into a folder needs root");
            let tree = folder.join("tree");
            packages::install(step, SUITE, &PACKAGES, &tree)?;
            for (file, text) in [
                ("hostname", "guest\n"),
                ("hosts", "127.0.0.1 localhost guest\n"),
                // A machine that has been set up: systemd asks no question.
                ("machine-id", "5d8a35b0f1c34b0b8a6f0c2c7d3e9a11\n"),
            ] {
                fs::write(tree.join("etc").join(file), text)
                    .with_context(|| format!("cannot write /etc/{file}"))?;
            }
            let spark = paths.spark_home(DEMO_SPARK)?;
            fs::create_dir_all(tree.join("opt"))?;
            step.run(
                Command::new("cp")
                    .arg("-a")
                    .arg(spark)
                    .arg(tree.join("opt/spark")),
                LIMIT,
            )?;
            let mut make = Command::new("mke2fs");
            make.args(["-q", "-t", "ext4", "-m", "0", "-d"])
                .arg(&tree)
                .arg(folder.join("image"))
                .arg(DISK_SIZE);
            step.run(&mut make, LIMIT)?;
            fs::remove_dir_all(&tree).with_context(|| format!("cannot remove {}", tree.display()))
        },
    )?;
    Ok(folder.join("image"))
}

/// The guest's first program: moves to the disk, where systemd is the init and the script a service.
pub(super) fn init(begin: &str, end: &str) -> String {
    format!(
        "#!/bin/sh\n\
         /bin/busybox --install -s /bin\n\
         export PATH=/bin\n\
         mount -t devtmpfs dev /dev\n\
         mount -t proc proc /proc\n\
         mount -t sysfs sys /sys\n\
         for module in /modules/*; do insmod $module; done\n\
         mount -t ext4 /dev/vda /disk\n\
         cp -r {FILES}/. /disk/\n\
         cp /script /disk/smtt-script\n\
         cat > /disk/smtt-script-service <<'EOF'\n\
         echo '{begin}'\n\
         bash /smtt-script 2>&1\n\
         echo '{end}'$?\n\
         systemctl --force --force poweroff\n\
         EOF\n\
         cat > /disk/etc/systemd/system/{SERVICE} <<'EOF'\n\
         [Service]\n\
         Type=idle\n\
         Environment=HOME=/root\n\
         ExecStart=/bin/sh /smtt-script-service\n\
         StandardOutput=tty\n\
         TTYPath=/dev/ttyS0\n\
         EOF\n\
         mkdir -p /disk/etc/systemd/system/multi-user.target.wants\n\
         ln -s /etc/systemd/system/{SERVICE} /disk/etc/systemd/system/multi-user.target.wants/{SERVICE}\n\
         for part in dev proc sys; do mount --move /$part /disk/$part; done\n\
         exec switch_root /disk /lib/systemd/systemd\n"
    )
}
