//! Programs at the entry and at the return of a kernel function.

use std::io::{Error, ErrorKind};
use std::path::Path;

use anyhow::{Context as _, bail};
use aya::programs::fexit::FExitLink;
use aya::programs::kprobe::KProbeLink;
use aya::programs::{FExit, KProbe, ProgramError};
use aya::{Btf, Ebpf};

/// Bytes at a function's entry that the function tracer owns where kprobes cannot share them (riscv64).
const TRACER_ENTRY_BYTES: u64 = 8;

/// Attaches to a function's return by its trampoline. Kernels without trampolines refuse to load the program, with
/// different errors. Every refusal counts as "this kernel does not have it", because the same object loads elsewhere.
pub fn attach_return(ebpf: &mut Ebpf, program: &str, function: &str) -> anyhow::Result<FExitLink> {
    let program: &mut FExit = ebpf
        .program_mut(program)
        .context("the object lacks the program")?
        .try_into()?;
    if program.fd().is_err() {
        let types = Btf::from_sys_fs()
            .map_err(|error| unsupported(format!("no type information of the kernel: {error}")))?;
        program.load(function, &types).map_err(|error| {
            unsupported(format!(
                "this kernel does not load programs for the return of {function}: {}",
                cause(&error)
            ))
        })?;
    }
    let link = program
        .attach()
        .with_context(|| format!("the kernel refuses the program at {function}"))?;
    Ok(program.take_link(link)?)
}

/// Attaches a kprobe to a function's entry. Where the function tracer owns the entry, the kprobe goes behind it: there
/// the arguments are still in their registers.
pub fn attach_kprobe(ebpf: &mut Ebpf, program: &str, function: &str) -> anyhow::Result<KProbeLink> {
    let kind = "/sys/bus/event_source/devices/kprobe";
    if !Path::new(kind).exists() {
        return Err(unsupported(format!(
            "{kind} is missing: the kernel was built without kprobes"
        )));
    }
    let program: &mut KProbe = ebpf
        .program_mut(program)
        .context("the object lacks the program")?
        .try_into()?;
    if program.fd().is_err() {
        program.load().context("the kernel refuses the program")?;
    }
    let link = match program.attach(function, 0) {
        Ok(link) => link,
        Err(error)
            if cfg!(target_arch = "riscv64")
                && io_cause(&error)
                    .is_some_and(|error| error.kind() == ErrorKind::InvalidInput) =>
        {
            program
                .attach(function, TRACER_ENTRY_BYTES)
                .with_context(|| format!("the kernel refuses a kprobe on {function}"))?
        }
        Err(error) => bail!(
            "the kernel refuses a kprobe on {function}: {}",
            cause(&error)
        ),
    };
    Ok(program.take_link(link)?)
}

/// An error that the verdict reports as "unsupported".
fn unsupported(reason: String) -> anyhow::Error {
    Error::new(ErrorKind::NotFound, reason).into()
}

/// The system's error, without the program's name and the verifier's empty log.
fn cause(error: &ProgramError) -> String {
    io_cause(error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn io_cause(error: &ProgramError) -> Option<&Error> {
    match error {
        ProgramError::LoadError { io_error, .. } => Some(io_error),
        ProgramError::SyscallError(error) => Some(&error.io_error),
        _ => None,
    }
}
