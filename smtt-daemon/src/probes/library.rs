//! Probes on the marker's native library: every file once, and only where each entry point starts with its pad.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use aya::Ebpf;
use aya::programs::UProbe;
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeScope};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use smtt_common::event::MARKER_FACTS;
use smtt_common::event::marker::{LATER_KINDS, SYMBOL_PREFIX};

use super::{Verdict, VerdictState};

/// Most files with probes. Each container brings its own file; a flood of files must not fill the kernel.
const LIBRARIES_MAX: usize = 128;
/// Most bytes of a library; the marker's has a few kilobytes.
const FILE_MAX: u64 = 16 << 20;

/// First instruction of every entry point: the kernel turns a probe on it into a plain call.
#[cfg(target_arch = "x86_64")]
const PAD: &[u8] = &[0x0f, 0x1f, 0x44, 0x00, 0x00];
#[cfg(target_arch = "aarch64")]
const PAD: &[u8] = &[0x1f, 0x20, 0x03, 0xd5];
#[cfg(target_arch = "riscv64")]
const PAD: &[u8] = &[0x13, 0x00, 0x00, 0x00];

/// The files that are probed, by device and inode.
pub struct Libraries {
    files: HashMap<(u64, u64), Verdict>,
    refused: u64,
}

impl Libraries {
    /// Loads the program that goes on every entry point.
    pub fn load(ebpf: &mut Ebpf) -> anyhow::Result<Self> {
        program(ebpf)?
            .load()
            .context("the kernel refuses the program for the marker's entry points")?;
        Ok(Self {
            files: HashMap::new(),
            refused: 0,
        })
    }

    /// One verdict per file, or one that says that no library has appeared yet.
    pub fn verdicts(&self) -> Vec<Verdict> {
        let mut all: Vec<Verdict> = self.files.values().cloned().collect();
        all.sort_by(|a, b| a.hook.cmp(&b.hook));
        if all.is_empty() {
            all.push(found("uprobe:libsmtt_marker.so", VerdictState::Ok, "waits for the first executor with the marker; none of the configured libraries exists yet"));
        }
        if self.refused > 0 {
            all.push(found(
                "uprobe:libsmtt_marker.so",
                VerdictState::Broken,
                &format!(
                    "{} more library files are not probed: the limit is {LIBRARIES_MAX}",
                    self.refused
                ),
            ));
        }
        all
    }

    /// Probes a file that has no probes yet.
    pub fn attach(&mut self, ebpf: &mut Ebpf, path: &Path) -> anyhow::Result<()> {
        let metadata = std::fs::metadata(path)
            .with_context(|| format!("{} cannot be read", path.display()))?;
        let file = (metadata.dev(), metadata.ino());
        if let Some(known) = self.files.get(&file) {
            if known.verdict == VerdictState::Ok {
                return Ok(());
            }
            bail!("{}", known.reason);
        }
        if self.files.len() >= LIBRARIES_MAX {
            self.refused += 1;
            bail!(
                "{} is not probed: there are {LIBRARIES_MAX} marker libraries already",
                path.display()
            );
        }
        let hook = format!("uprobe:{}", path.display());
        let attached = if metadata.len() > FILE_MAX {
            Err(anyhow::anyhow!(
                "{} is too large to be the marker's library",
                path.display()
            ))
        } else {
            attach_entries(ebpf, path)
        };
        let verdict = match &attached {
            Ok(()) => found(&hook, VerdictState::Ok, ""),
            Err(error) => found(&hook, VerdictState::Broken, &format!("{error:#}")),
        };
        self.files.insert(file, verdict);
        attached
    }
}

fn found(hook: &str, verdict: VerdictState, reason: &str) -> Verdict {
    Verdict {
        name: "marker".into(),
        hook: hook.into(),
        verdict,
        reason: reason.into(),
    }
}

fn program(ebpf: &mut Ebpf) -> anyhow::Result<&mut UProbe> {
    Ok(ebpf
        .program_mut("marker")
        .context("the object lacks the program for the marker")?
        .try_into()?)
}

/// Checks every entry point first, then attaches: a library gets either all probes of its version or none.
fn attach_entries(ebpf: &mut Ebpf, path: &Path) -> anyhow::Result<()> {
    let bytes =
        std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let elf = object::File::parse(&*bytes)
        .with_context(|| format!("{} is no ELF file", path.display()))?;
    let mut entries = Vec::with_capacity(MARKER_FACTS.len());
    for fact in MARKER_FACTS {
        let name = format!("{SYMBOL_PREFIX}{}", fact.entry);
        if LATER_KINDS.contains(&fact.kind) && symbol(&elf, &name).is_none() {
            continue;
        }
        let offset =
            pad_offset(&elf, &name).with_context(|| format!("{} is not probed", path.display()))?;
        entries.push((fact.kind, offset));
    }
    let program = program(ebpf)?;
    for (kind, offset) in entries {
        let point = UProbeAttachPoint {
            location: UProbeAttachLocation::AbsoluteOffset(offset),
            cookie: Some(u64::from(kind.0)),
        };
        program
            .attach(point, path, UProbeScope::AllProcesses)
            .with_context(|| format!("the kernel refuses a probe on {}", path.display()))?;
    }
    Ok(())
}

fn symbol<'data, 'file>(
    elf: &'file object::File<'data>,
    name: &str,
) -> Option<object::Symbol<'data, 'file>> {
    elf.dynamic_symbols()
        .find(|symbol| symbol.name() == Ok(name))
}

/// File offset of an entry point whose first instruction is the pad.
fn pad_offset(elf: &object::File<'_>, name: &str) -> anyhow::Result<u64> {
    let symbol = symbol(elf, name).with_context(|| {
        format!("entry point {name} is missing: the library is of another version")
    })?;
    let section = elf.section_by_index(
        symbol
            .section_index()
            .with_context(|| format!("{name} is not defined"))?,
    )?;
    let (file_offset, _) = section
        .file_range()
        .with_context(|| format!("{name} has no code"))?;
    let inside = symbol
        .address()
        .checked_sub(section.address())
        .with_context(|| format!("{name} lies outside its section"))?;
    let code = section.data()?.get(inside as usize..).unwrap_or_default();
    if !code.starts_with(PAD) {
        bail!("{name} does not start with the probe pad, so a probe on it would be slow");
    }
    Ok(file_offset + inside)
}
