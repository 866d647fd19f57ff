//! Debian packages, restricted to those whose programs are missing.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context, Result, bail};

use crate::paths::{Jdk, Paths};
use crate::process::is_root;
use crate::step::{Step, Steps};

/// The purpose of a package, and the check whether the machine already has its program (from this package or another
/// source).
struct Need {
    package: &'static str,
    present: fn() -> bool,
}

const NEEDS: [Need; 4] = [
    Need {
        package: "openjdk-17-jdk-headless",
        present: || Jdk::main().is_ok(),
    },
    Need {
        package: "python3-venv",
        present: || answers("python3", &["-c", "import venv, ensurepip"]),
    },
    Need {
        package: "gcc",
        present: || answers("cc", &["--version"]),
    },
    Need {
        package: "libc6-dev",
        present: || Path::new("/usr/include/stdlib.h").is_file(),
    },
];

const BINUTILS: Need = Need {
    package: "binutils",
    present: || answers("strip", &["--version"]),
};

/// Packages of the tools that make emulated machines.
const MACHINES_NEED: [Need; 4] = [
    BINUTILS,
    Need {
        package: "xz-utils",
        present: || answers("xz", &["--version"]),
    },
    Need {
        package: "e2fsprogs",
        present: || answers("mke2fs", &["-V"]),
    },
    Need {
        package: "mmdebstrap",
        present: || answers("mmdebstrap", &["--version"]),
    },
];

const INSTALL_LIMIT: Duration = Duration::from_secs(900);
const UPDATE_LIMIT: Duration = Duration::from_secs(300);
const UNPACK_LIMIT: Duration = Duration::from_secs(300);

/// Step: the packages for Java, Python and the linker.
pub(super) fn packages(paths: &Paths, steps: &mut Steps) -> Result<()> {
    let title = "Debian packages: JDK 17, Python venv, C linker";
    let remedy = "become root and run it again, or install openjdk-17-jdk-headless, python3-venv and gcc by hand";
    needed(paths, steps, &NEEDS, title, remedy)
}

/// Step: the packages for making emulated machines.
pub(super) fn for_machines(paths: &Paths, steps: &mut Steps) -> Result<()> {
    let title = "Debian packages for emulated machines: binutils, xz, e2fsprogs, mmdebstrap";
    let remedy = "become root and run it again, or install binutils, xz-utils, e2fsprogs and mmdebstrap by hand";
    needed(paths, steps, &MACHINES_NEED, title, remedy)
}

/// Step: the packages for packing programs.
pub(super) fn for_packages(paths: &Paths, steps: &mut Steps) -> Result<()> {
    let title = "Debian packages for packing: binutils, gzip, dpkg";
    let remedy = "become root and run it again, or install binutils, gzip and dpkg by hand";
    let needs = [
        BINUTILS,
        Need {
            package: "gzip",
            present: || answers("gzip", &["--version"]),
        },
        Need {
            package: "dpkg",
            present: || answers("dpkg-deb", &["--version"]),
        },
    ];
    needed(paths, steps, &needs, title, remedy)
}

fn needed(
    paths: &Paths,
    steps: &mut Steps,
    needs: &[Need],
    title: &str,
    remedy: &str,
) -> Result<()> {
    let missing = || {
        needs
            .iter()
            .filter(|need| !(need.present)())
            .map(|need| need.package)
            .collect::<Vec<_>>()
    };
    steps.step(
        title,
        paths.logs().join("apt.log"),
        remedy,
        || missing().is_empty(),
        |step| install(step, &missing()),
    )
}

/// Installs packages, and updates the package lists where necessary.
pub(super) fn install(step: &mut Step, packages: &[&str]) -> Result<()> {
    if !answers("apt-get", &["--version"]) {
        bail!(
            "this is not Debian (there is no apt-get), and these are missing: {}",
            packages.join(", ")
        );
    }
    if !is_root() {
        bail!("installing {} needs root", packages.join(", "));
    }
    if packages.iter().any(|package| !known(package)) {
        update(step)?;
    }
    let mut command = apt_get();
    command
        .args(["install", "--yes", "--no-install-recommends"])
        .args(packages);
    if step.run(&mut command, INSTALL_LIMIT).is_ok() {
        return Ok(());
    }
    // Outdated package lists name files that the mirror has removed.
    update(step)?;
    step.run(&mut command, INSTALL_LIMIT)
}

/// Unpacks packages into the folder `name` of the cache, without installing them.
pub(super) fn unpack(step: &mut Step, cache: &Path, name: &str, packages: &[&str]) -> Result<()> {
    let folder = cache.join(name);
    let (downloaded, unpacked) = (
        cache.join(format!("{name}.deb")),
        cache.join(format!("{name}.new")),
    );
    for path in [&downloaded, &unpacked, &folder] {
        remove(path)?;
    }
    fs::create_dir_all(&downloaded)?;
    fs::create_dir_all(&unpacked)?;
    download(step, packages, &downloaded)?;
    for entry in downloaded.read_dir()? {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg("-x").arg(entry?.path()).arg(&unpacked);
        step.run(&mut dpkg, UNPACK_LIMIT)?;
    }
    // The rename comes last, so a folder with the final name is complete.
    fs::rename(&unpacked, &folder).with_context(|| format!("cannot make {}", folder.display()))?;
    remove(&downloaded)
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn download(step: &mut Step, packages: &[&str], folder: &Path) -> Result<()> {
    if packages.iter().any(|package| !known(package)) {
        update(step)?;
    }
    let mut command = apt_get();
    command.arg("download").args(packages).current_dir(folder);
    if step.run(&mut command, INSTALL_LIMIT).is_ok() {
        return Ok(());
    }
    update(step)?;
    step.run(&mut command, INSTALL_LIMIT)
}

/// Updates the package lists.
pub(super) fn update(step: &mut Step) -> Result<()> {
    step.run(apt_get().arg("update"), UPDATE_LIMIT)
}

/// Whether apt knows a version of the package that can be installed.
pub(super) fn known(package: &str) -> bool {
    let policy = Command::new("apt-cache")
        .env("LC_ALL", "C")
        .args(["policy", package])
        .stdin(Stdio::null())
        .output();
    policy.is_ok_and(|output| {
        let text = String::from_utf8_lossy(&output.stdout);
        text.contains("Candidate:") && !text.contains("Candidate: (none)")
    })
}

/// apt-get in non-interactive mode.
pub(super) fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("LC_ALL", "C")
        .arg("--quiet");
    command
}

/// Whether the command can be started and succeeds.
pub(super) fn answers(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
