//! Compiles the kernel side with whichever toolchain is there, and hands the object to `probes` for embedding.
//!
//! In this order: an object made elsewhere (`SMTT_EBPF_OBJECT`), a rustup nightly with the library source, Debian's
//! toolchain with its library source (in the cache that `cargo xtask setup` fills, else in the system).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR")).join("..");
    for variable in ["SMTT_EBPF_OBJECT", "SMTT_CACHE", "SMTT_EBPF_TARGET_ARCH"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    for source in ["smtt-ebpf/src", "smtt-ebpf/Cargo.toml", "smtt-ebpf/Cargo.lock", "smtt-common/src"] {
        println!("cargo:rerun-if-changed={}", root.join(source).display());
    }
    let object = out.join("smtt.bpf.o");
    let result = match env::var_os("SMTT_EBPF_OBJECT") {
        Some(made) => fs::copy(&made, &object)
            .map(|_| format!("prebuilt {}", made.to_string_lossy()))
            .map_err(|error| format!("SMTT_EBPF_OBJECT={} cannot be read: {error}", made.to_string_lossy())),
        None => compile(&root.join("smtt-ebpf"), &out, &object),
    };
    match result {
        Ok(toolchain) => println!("cargo:rustc-env=SMTT_EBPF_TOOLCHAIN={toolchain}"),
        Err(reason) => {
            eprintln!("{reason}");
            println!("cargo::error={}", reason.lines().next().unwrap_or("the kernel side does not build"));
            std::process::exit(1);
        }
    }
}

/// A compiler that can build the kernel side.
struct Toolchain {
    name: String,
    cargo: PathBuf,
    rustc: PathBuf,
    /// Folders of shared libraries that the compiler and the linker need.
    libraries: Vec<PathBuf>,
    /// The compiler is a stable one that has to be told to allow unstable options.
    bootstrap: bool,
}

/// Where `cargo xtask setup` keeps toolchains.
fn cache() -> PathBuf {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("SMTT_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("smtt")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/smtt")))
        .unwrap_or_else(|| PathBuf::from("/var/cache/smtt"))
}

fn rustup_nightly() -> Option<Toolchain> {
    let which = |tool: &str| {
        let output = Command::new("rustup").args(["which", "--toolchain", "nightly", tool]).output().ok()?;
        output.status.success().then(|| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
    };
    let rustc = which("rustc")?;
    has_library_source(&rustc).then_some(Toolchain {
        name: "rustup nightly with rust-src".into(),
        cargo: which("cargo")?,
        rustc,
        libraries: Vec::new(),
        bootstrap: false,
    })
}

fn has_library_source(rustc: &Path) -> bool {
    rustc.parent().and_then(Path::parent).is_some_and(|root| root.join("lib/rustlib/src/rust/library/core/src/lib.rs").exists())
}

/// Debian's packages: unpacked in the cache, or installed.
fn debian(root: &Path, name: &str, out: &Path) -> Option<Toolchain> {
    let rustc = root.join("usr/bin/rustc");
    if !rustc.exists() || !root.join("usr/lib/rustlib/src/rust/library/core/src/lib.rs").exists() && !has_library_source(&rustc) {
        return None;
    }
    // bpf-linker takes any libLLVM that it finds in the library path: this folder holds the compiler's own one only.
    let system = root.join("usr/lib/x86_64-linux-gnu");
    let only_llvm = out.join("llvm");
    fs::create_dir_all(&only_llvm).ok()?;
    let llvm = fs::read_dir(&system)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with("libLLVM.so.")))
        .max()?;
    let link = only_llvm.join(llvm.file_name()?);
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(&llvm, &link).ok()?;
    let mut libraries = vec![only_llvm];
    if root != Path::new("/") {
        libraries.push(system);
    }
    // The outer cargo drives this compiler well, and saves its own cargo with that one's libraries.
    Some(Toolchain { name: name.into(), cargo: PathBuf::from(env::var_os("CARGO")?), rustc, libraries, bootstrap: true })
}

fn compile(source: &Path, out: &Path, object: &Path) -> Result<String, String> {
    let cache = cache();
    let toolchain = rustup_nightly()
        .or_else(|| debian(&cache.join("rust-web"), "Debian's Rust with its library source, from the cache", out))
        .or_else(|| debian(Path::new("/"), "Debian's Rust with its library source", out))
        .ok_or("no Rust toolchain with library source for the kernel side: run `cargo xtask setup` once, which fetches one")?;
    let linker = cache.join("bpf-linker/bin");
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::iter::once(linker.clone()).chain(env::split_paths(&path)).collect();
    if !folders.iter().any(|folder| folder.join("bpf-linker").exists()) {
        return Err("bpf-linker is missing: run `cargo xtask setup` once, which installs it".into());
    }
    let target = out.join("ebpf");
    let mut command = Command::new(&toolchain.cargo);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let foreign = text.starts_with("CARGO") && !matches!(&*text, "CARGO_HOME" | "CARGO_NET_OFFLINE" | "CARGO_HTTP_CAINFO");
        if foreign || text.starts_with("RUST") && !matches!(&*text, "RUSTUP_HOME") {
            command.env_remove(&name);
        }
    }
    let joined = |folders: &[PathBuf]| env::join_paths(folders).map_err(|error| error.to_string());
    command
        .current_dir(source)
        .args(["build", "--release", "--locked", "-Z", "build-std=core", "--target", "bpfel-unknown-none", "--target-dir"])
        .arg(&target)
        .env("PATH", joined(&folders)?)
        .env("RUSTC", &toolchain.rustc)
        .env("RUSTFLAGS", "-C debuginfo=2 -C link-arg=--btf");
    if let Some(architecture) = env::var_os("SMTT_EBPF_TARGET_ARCH") {
        command.env("AYA_BPF_TARGET_ARCH", architecture);
    }
    if toolchain.bootstrap {
        command.env("RUSTC_BOOTSTRAP", "1");
    }
    if !toolchain.libraries.is_empty() {
        command.env("LD_LIBRARY_PATH", joined(&toolchain.libraries)?);
    }
    let output = command.output().map_err(|error| format!("{} cannot be started: {error}", toolchain.cargo.display()))?;
    if !output.status.success() {
        let log = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the kernel side does not build with {}; its log follows\n{log}", toolchain.name));
    }
    fs::copy(target.join("bpfel-unknown-none/release/smtt-ebpf"), object).map_err(|error| format!("the kernel side's object is missing: {error}"))?;
    Ok(toolchain.name)
}
