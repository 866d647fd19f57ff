//! The packages for arm64, which are built on this machine: what is in them is for that processor. They run in an emulated
//! machine, by `cargo xtask vm arm64-6.12`.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use tempfile::TempDir;
use xtask::dist::Plan;
use xtask::dist::product::WORKER;
use xtask::paths::Paths;
use xtask::process::output;
use xtask::processor::{PACKAGED, Processor};
use xtask::setup::validators;

use crate::contents::{OF_THE_WORKSPACE, check_bill, field};
use crate::make;

/// Crates of Rust's standard library, which is built from its sources here. No bill has them: compiled in advance, it
/// does not say what is in it.
const OF_THE_STANDARD_LIBRARY: [&str; 5] = [
    "addr2line",
    "gimli",
    "hashbrown",
    "miniz_oxide",
    "rustc-demangle",
];

/// The processor of an ELF file, in readelf's words.
fn machine(file: &Path) -> Result<String> {
    let header = output(Command::new("readelf").arg("--file-header").arg(file))?;
    let machine = header
        .lines()
        .find_map(|line| line.trim().strip_prefix("Machine:"));
    Ok(machine.unwrap_or_default().trim().to_owned())
}

#[test]
fn the_packages_are_for_the_processor_and_their_jar_for_all() -> Result<()> {
    let paths = Paths::find()?;
    validators::validators(&paths)?;
    let mut plan = Plan::trial(&paths, Processor::Arm);
    plan.processors = PACKAGED.to_vec();
    plan.out.set_file_name("both");
    let made = make(&paths, &plan)?;
    ensure!(made.packages().len() == 4, "{made:?}");
    let mut jars = Vec::new();
    for processor in PACKAGED {
        let folder = TempDir::new()?;
        let worker = made.of(&WORKER, processor)?.unpack(folder.path())?;
        jars.push(std::fs::read(worker.jar())?);
    }
    ensure!(jars[0] == jars[1], "the packages have different jars");
    let beside = [
        OF_THE_WORKSPACE.as_slice(),
        OF_THE_STANDARD_LIBRARY.as_slice(),
    ]
    .concat();
    let of_arm = made
        .packages()
        .iter()
        .filter(|packed| packed.processor == Processor::Arm);
    for packed in of_arm {
        for deb in [&packed.deb, &packed.symbols] {
            ensure!(field(deb, "Architecture")? == "arm64", "{}", deb.display());
        }
        let depends = field(&packed.deb, "Depends")?;
        ensure!(depends.contains("libc6 (>= 2."), "{depends}");
        let folder = TempDir::new()?;
        let unpacked = packed.unpack(folder.path())?;
        let program = folder.path().join("usr/bin").join(packed.product.name);
        ensure!(machine(&program)? == "AArch64", "{}", machine(&program)?);
        check_bill(&paths, packed, &beside)?;
        if !packed.product.has_marker {
            continue;
        }
        ensure!(machine(&unpacked.library())? == "AArch64");
        let libraries = TempDir::new()?;
        output(
            Command::new("python3")
                .args(["-m", "zipfile", "--extract"])
                .arg(unpacked.jar())
                .arg(libraries.path()),
        )?;
        let of = |processor: Processor, name: &str| {
            let folder = format!("native/linux-{}", processor.rust());
            libraries.path().join(folder).join(name)
        };
        for processor in PACKAGED {
            for name in ["libsmtt_marker.so", "libsmtt_thread_context.so"] {
                let found = machine(&of(processor, name))?;
                let wanted = match processor {
                    Processor::Arm => "AArch64",
                    _ => "Advanced Micro Devices X86-64",
                };
                ensure!(found == wanted, "{name} for {processor:?}: {found}");
            }
        }
        // The daemon knows the marker by its bytes.
        ensure!(
            std::fs::read(of(Processor::Arm, "libsmtt_marker.so"))?
                == std::fs::read(unpacked.library())?,
            "the jar's library has other bytes"
        );
    }
    Ok(())
}
