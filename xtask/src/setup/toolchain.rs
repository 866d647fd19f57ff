//! The compiler and the linker of the kernel side.
//!
//! The eBPF target has no precompiled `core`, so the build needs a compiler with its library source: rustup's nightly
//! with `rust-src` where the user has it, else Debian's packages, unpacked into the cache. Installed packages would
//! conflict with the user's own Rust; unpacked ones do not.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::debian;
use crate::paths::Paths;
use crate::process::output;
use crate::step::Steps;

/// Debian's Rust for its web browsers: the newest in a stable Debian, with the library's source. Its cargo is omitted:
/// it needs a dozen more libraries, and the user's own works too.
const PACKAGES: [&str; 5] = [
    "rustc-web",
    "rust-web-src",
    "libstd-rust-web-dev",
    "libstd-rust-web-1.96",
    "libllvm22",
];
/// Libraries of Debian's LLVM: ordinary packages without conflicts, so they are installed.
const LLVM_NEEDS: [(&str, &str); 3] = [
    ("libedit.so.2", "libedit2"),
    ("libz3.so.4", "libz3-4"),
    ("libxml2.so.2", "libxml2"),
];
/// The version that links bitcode of LLVM 22 and older.
const BPF_LINKER: &str = "0.10.0";

const BUILD_LIMIT: Duration = Duration::from_secs(3600);

/// Step: a compiler that can build `core` for eBPF.
pub(super) fn kernel_side(paths: &Paths, steps: &mut Steps) -> Result<()> {
    let log = paths.logs().join("toolchain.log");
    if nightly_with_source() {
        return steps.step(
            "compiler for eBPF: rustup's nightly with rust-src",
            log,
            "",
            || true,
            |_| Ok(()),
        );
    }
    let folder = paths.cache.join("rust-web");
    let title = "compiler for eBPF: Debian's Rust, unpacked into the cache";
    let remedy = "`rustup toolchain install nightly --component rust-src` does as well, where rustup can download";
    steps.step(
        title,
        log,
        remedy,
        || works(&folder),
        |step| {
            let known = output(Command::new("ldconfig").arg("-p")).unwrap_or_default();
            let missing: Vec<&str> = LLVM_NEEDS
                .iter()
                .filter(|(file, _)| !known.contains(file))
                .map(|(_, package)| *package)
                .collect();
            if !missing.is_empty() {
                debian::install(step, &missing)?;
            }
            debian::unpack(step, &paths.cache, "rust-web", &PACKAGES)
        },
    )
}

/// Whether rustup has a nightly compiler with the library's source.
fn nightly_with_source() -> bool {
    output(Command::new("rustup").args(["run", "nightly", "rustc", "--print", "sysroot"]))
        .is_ok_and(|sysroot| {
            Path::new(sysroot.trim())
                .join("lib/rustlib/src/rust/library/core")
                .is_dir()
        })
}

/// Whether Debian's compiler in `folder` answers and has the library's source.
fn works(folder: &Path) -> bool {
    let libraries = match (folder.join("usr/lib")).read_dir() {
        Ok(entries) => entries
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.join("libLLVM.so.22.1").exists()),
        Err(_) => None,
    };
    let source = folder.join("usr/src").read_dir().is_ok_and(|entries| {
        entries
            .flatten()
            .any(|entry| entry.path().join("library/core/src/lib.rs").is_file())
    });
    let Some(libraries) = libraries else {
        return false;
    };
    let mut rustc = Command::new(folder.join("usr/bin/rustc"));
    source && output(rustc.arg("--version").env("LD_LIBRARY_PATH", libraries)).is_ok()
}

/// Step: the linker of eBPF objects.
pub(super) fn bpf_linker(paths: &Paths, steps: &mut Steps) -> Result<()> {
    let folder = paths.cache.join("bpf-linker");
    let program = folder.join("bin/bpf-linker");
    let done = || {
        output(Command::new(&program).arg("--version")).is_ok_and(|text| text.contains(BPF_LINKER))
    };
    let title = format!("bpf-linker {BPF_LINKER}, built in about a minute");
    let remedy =
        "check that cargo reaches its registry (`cargo search bpf-linker`), then run it again";
    steps.step(
        &title,
        paths.logs().join("bpf-linker.log"),
        remedy,
        done,
        |step| {
            let mut command = Command::new("cargo");
            command
                .args([
                    "install",
                    "--locked",
                    "--force",
                    "--version",
                    BPF_LINKER,
                    "bpf-linker",
                    "--root",
                ])
                .arg(&folder);
            // Settings of the cargo that runs this program must not affect that build.
            for name in [
                "CARGO_TARGET_DIR",
                "RUSTFLAGS",
                "CARGO_ENCODED_RUSTFLAGS",
                "RUSTC_WRAPPER",
            ] {
                command.env_remove(name);
            }
            step.run(command.current_dir(&paths.cache), BUILD_LIMIT)
        },
    )
}
