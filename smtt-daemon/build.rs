//! Builds the kernel side and puts it where `probes` embeds it.
//!
//! The eBPF target has no precompiled `core`, so a compiler with its library source is needed. The first of these
//! that is there is taken, and named in `SMTT_EBPF_TOOLCHAIN` for `smtt-daemon --version`:
//!
//! 1. a finished object, named by the environment variable `SMTT_EBPF_OBJECT`;
//! 2. rustup's nightly with the component `rust-src`;
//! 3. Debian's `rustc-web` and `rust-web-src`, unpacked into the cache by `cargo xtask setup`;
//! 4. Debian's `rustc-web` and `rust-web-src`, installed in the system.
//!
//! Without a compiler an empty object is embedded, so that `cargo check`, `cargo clippy` and rust-analyzer work on a
//! fresh checkout. Such a daemon refuses to start and says why. `SMTT_EBPF_REQUIRED`, which `cargo xtask` sets, turns
//! the missing compiler into a build error.

use std::env;
use std::error::Error;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The LLVM that bpf-linker 0.10 works with; the compiler's bitcode must not be newer.
const LLVM: &str = "22";
/// The codec's level for the object.
const LEVEL: i32 = 19;
/// What to do when something is missing.
const REMEDY: &str = "run `cargo xtask setup`, or name a finished object in SMTT_EBPF_OBJECT";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() {
    if let Err(error) = run() {
        // One line: cargo prints it under the failed build script.
        eprintln!("the kernel side cannot be built: {error}");
        std::process::exit(1);
    }
}

fn run() -> Result<()> {
    let here = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(variable("OUT_DIR")?);
    let kernel_side = here.join("../smtt-ebpf");
    for path in ["src", "Cargo.toml", "Cargo.lock"] {
        println!(
            "cargo:rerun-if-changed={}",
            kernel_side.join(path).display()
        );
    }
    println!(
        "cargo:rerun-if-changed={}",
        here.join("../smtt-common/src").display()
    );
    println!("cargo:rerun-if-changed=build.rs");
    for name in ["SMTT_EBPF_OBJECT", "SMTT_CACHE", "XDG_CACHE_HOME", "HOME"] {
        println!("cargo:rerun-if-env-changed={name}");
    }

    let object = out.join("smtt.bpf.o");
    let toolchain = if let Some(finished) = env::var_os("SMTT_EBPF_OBJECT") {
        println!("cargo:rerun-if-changed={}", Path::new(&finished).display());
        fs::copy(&finished, &object).map_err(|error| {
            format!(
                "SMTT_EBPF_OBJECT={}: {error}",
                Path::new(&finished).display()
            )
        })?;
        "a finished object".to_owned()
    } else {
        match Toolchain::find() {
            Ok(toolchain) => {
                toolchain.build(&kernel_side, &out, &object)?;
                toolchain.name
            }
            Err(reason) if env::var_os("SMTT_EBPF_REQUIRED").is_none() => {
                println!("cargo:warning=built without the kernel side: {reason}");
                // Looked for again at each build: this file never exists.
                println!("cargo:rerun-if-changed={}", out.join("never").display());
                fs::write(&object, [])?;
                String::new()
            }
            Err(reason) => return Err(reason),
        }
    };
    // It is read once, at the daemon's start, and a sixth as large compressed.
    let bytes = fs::read(&object)?;
    let compressed = match bytes.as_slice() {
        [] => Vec::new(),
        bytes => zstd::bulk::compress(bytes, LEVEL)?,
    };
    fs::write(out.join("smtt.bpf.o.zst"), compressed)?;
    println!("cargo:rustc-env=SMTT_EBPF_TOOLCHAIN={toolchain}");
    Ok(())
}

/// A compiler that can build `core` for eBPF, and its LLVM.
struct Toolchain {
    name: String,
    rustc: PathBuf,
    /// Folders that the compiler's own libraries are in.
    libraries: Vec<PathBuf>,
    llvm: PathBuf,
}

impl Toolchain {
    fn find() -> Result<Self> {
        linker().ok_or_else(|| format!("bpf-linker is not installed; {REMEDY}"))?;
        let mut tried = Vec::new();
        let mut candidates = Vec::new();
        if let Some(nightly) =
            output(Command::new("rustup").args(["which", "--toolchain", "nightly", "rustc"]))
        {
            candidates.push(("rustup's nightly", PathBuf::from(nightly)));
        }
        if let Some(cache) = cache() {
            candidates.push((
                "Debian's Rust in the cache",
                cache.join("rust-web/usr/bin/rustc"),
            ));
        }
        candidates.push(("the system's Rust", PathBuf::from("/usr/bin/rustc")));
        for (name, rustc) in candidates {
            match Self::probe(name, &rustc) {
                Ok(toolchain) => return Ok(toolchain),
                Err(reason) => tried.push(format!("{name}: {reason}")),
            }
        }
        Err(format!("no compiler for eBPF ({}); {REMEDY}", tried.join("; ")).into())
    }

    /// Whether that compiler will do.
    fn probe(name: &str, rustc: &Path) -> Result<Self> {
        if !rustc.is_file() {
            return Err("not there".into());
        }
        let prefix = rustc
            .parent()
            .and_then(Path::parent)
            .ok_or("not in a bin folder")?;
        let mut libraries = vec![prefix.join("lib")];
        libraries.extend(
            entries(&prefix.join("lib"))
                .into_iter()
                .filter(|path| named(path, "-linux-gnu")),
        );
        let llvm = libraries
            .iter()
            .flat_map(|folder| entries(folder))
            .find(|path| {
                let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
                name.starts_with(&format!("libLLVM.so.{LLVM}"))
            })
            .ok_or_else(|| format!("has no libLLVM of version {LLVM}"))?;
        let search = env::join_paths(&libraries)?;
        let ask = |what: &[&str]| {
            output(
                Command::new(rustc)
                    .args(what)
                    .env("LD_LIBRARY_PATH", &search),
            )
            .ok_or("does not run")
        };
        let sysroot = PathBuf::from(ask(&["--print", "sysroot"])?);
        if !sysroot
            .join("lib/rustlib/src/rust/library/core/src/lib.rs")
            .is_file()
        {
            return Err("has no library source".into());
        }
        let version = ask(&["--version"])?;
        let version = version.split_whitespace().nth(1).unwrap_or_default();
        Ok(Self {
            name: format!("{name} {version}"),
            rustc: rustc.to_owned(),
            libraries,
            llvm,
        })
    }

    /// Builds the object in a target folder of its own, which all profiles of the daemon share.
    fn build(&self, kernel_side: &Path, out: &Path, object: &Path) -> Result<()> {
        let linker = linker().ok_or_else(|| format!("bpf-linker is not installed; {REMEDY}"))?;
        // OUT_DIR is TARGET/PROFILE/build/PACKAGE/out.
        let target = out
            .ancestors()
            .nth(4)
            .ok_or("OUT_DIR is not inside a target folder")?
            .join("ebpf");
        // bpf-linker loads any libLLVM that it finds: show it only the compiler's own, for another would read
        // newer bitcode wrongly.
        let only_llvm = out.join("llvm");
        fs::create_dir_all(&only_llvm)?;
        for old in entries(&only_llvm) {
            fs::remove_file(old)?;
        }
        let name = self.llvm.file_name().ok_or("libLLVM has no name")?;
        symlink(&self.llvm, only_llvm.join(name))?;
        let libraries = [&only_llvm].into_iter().chain(&self.libraries);

        let mut cargo = Command::new(variable("CARGO")?);
        for (name, _) in env::vars_os() {
            if of_the_outer_build(&name.to_string_lossy()) {
                cargo.env_remove(&name);
            }
        }
        let mut path = vec![linker];
        path.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
        let status = cargo
            .current_dir(kernel_side)
            .args([
                "build",
                "--release",
                "--quiet",
                "-Z",
                "build-std=core",
                "--target",
                "bpfel-unknown-none",
            ])
            .arg("--target-dir")
            .arg(&target)
            .env("RUSTC", &self.rustc)
            // Debian's compiler is a stable one, and building `core` is not a stable feature.
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", "-C debuginfo=0 -C target-cpu=v3")
            .env("AYA_BPF_TARGET_ARCH", variable("CARGO_CFG_TARGET_ARCH")?)
            .env("LD_LIBRARY_PATH", env::join_paths(libraries)?)
            .env("PATH", env::join_paths(path)?)
            .status()?;
        if !status.success() {
            return Err(format!(
                "{} failed on {}: {status}",
                self.name,
                kernel_side.display()
            )
            .into());
        }
        fs::copy(target.join("bpfel-unknown-none/release/smtt-ebpf"), object)?;
        Ok(())
    }
}

/// Whether a variable describes the build that this script is part of. What says where packages come from stays.
fn of_the_outer_build(name: &str) -> bool {
    let stays = [
        "CARGO_HOME",
        "CARGO_HTTP_",
        "CARGO_NET_",
        "CARGO_REGISTR",
        "CARGO_SOURCE_",
    ];
    let goes = [
        "CARGO",
        "RUSTC",
        "RUSTFLAGS",
        "RUSTDOC",
        "RUSTUP_TOOLCHAIN",
        "TARGET",
        "HOST",
        "OUT_DIR",
        "PROFILE",
    ];
    goes.iter().any(|prefix| name.starts_with(prefix))
        && !stays.iter().any(|prefix| name.starts_with(prefix))
}

/// The folder of bpf-linker: on the path, or in the cache.
fn linker() -> Option<PathBuf> {
    let mut folders: Vec<PathBuf> =
        env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect();
    folders.extend(cache().map(|cache| cache.join("bpf-linker/bin")));
    folders
        .into_iter()
        .find(|folder| folder.join("bpf-linker").is_file())
}

/// Where `cargo xtask setup` puts things.
fn cache() -> Option<PathBuf> {
    let folder = |name: &str| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    folder("SMTT_CACHE")
        .or_else(|| folder("XDG_CACHE_HOME").map(|path| path.join("smtt")))
        .or_else(|| folder("HOME").map(|path| path.join(".cache/smtt")))
}

fn variable(name: &str) -> Result<String> {
    env::var(name).map_err(|error| format!("{name}: {error}").into())
}

/// What a command prints on one line, if it runs and succeeds.
fn output(command: &mut Command) -> Option<String> {
    let output = command
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default()
}

fn named(path: &Path, part: &str) -> bool {
    path.file_name()
        .and_then(OsStr::to_str)
        .is_some_and(|name| name.contains(part))
}
