//! From an identity to the rows of the table: exactly the published core types, or none. An unknown model never
//! borrows its neighbour's row.

use super::identity::{Cpu, CpuId, Family};
use super::pattern;
use super::table::{self, CORES, Core};

/// Core types with their PMUs; no row where nothing is published.
pub(super) struct Chosen {
    pub cores: Vec<(String, Option<&'static Core>)>,
    pub why_unknown: Option<String>,
}

pub(super) fn choose(identity: &CpuId) -> Chosen {
    let present = |name: &str| {
        identity
            .pmus
            .get(name)
            .is_some_and(|pmu| pmu.present == Some(true))
    };
    let arm_pmu = || {
        let mut names = identity
            .pmus
            .iter()
            .filter(|pmu| pmu.present == Some(true))
            .map(|pmu| pmu.name.as_str());
        names
            .find(|name| name.starts_with("armv8_") || name.starts_with("armv9_"))
            .unwrap_or("armv8_pmuv3_0")
            .to_owned()
    };
    let one = |pmu: String, row| Chosen {
        cores: vec![(pmu, Some(row))],
        why_unknown: None,
    };
    let mut why = format!(
        "no published page-walk events for {}: only the kernel's generic dTLB events are counted, and no ratio is made \
         of them; the events can be given in the configuration",
        identity.cpu
    );
    match &identity.cpu {
        Cpu::X86 { .. } => {
            let rows = x86_rows(&identity.cpu.to_string());
            match rows[..] {
                // With one core type the kernel offers the ordinary PMU, whatever the core's name.
                [row] => return one("cpu".to_owned(), row),
                [] => {
                    if stepping_decides(&identity.cpu.to_string()) {
                        why = format!(
                            "{} is several core types: add the stepping, as in {0}-4",
                            identity.cpu
                        );
                    }
                }
                _ if present("cpu") => {
                    why = format!(
                        "{} is a hybrid CPU, but the kernel offers one PMU `cpu` for its core types: which one it is cannot be told; the events can be given in the configuration",
                        identity.cpu
                    );
                }
                _ => {
                    let named =
                        |row: &'static Core| Some((row.core_type?.pmu().to_owned(), Some(row)));
                    return Chosen {
                        cores: rows.into_iter().filter_map(named).collect(),
                        why_unknown: None,
                    };
                }
            }
        }
        Cpu::Arm { midr } => {
            let part = (midr >> 4 & 0xfff) as u16;
            let row = CORES
                .iter()
                .find(|row| midr >> 24 & 0xff == 0x41 && row.arm_part == Some(part));
            if let Some(row) = row {
                return one(arm_pmu(), row);
            }
        }
        Cpu::RiscV {
            vendor,
            architecture,
            uarch,
        } => {
            let p550 = uarch.as_deref() == Some("sifive,p550")
                || (*vendor, *architecture) == (Some(0x489), Some(0x8000_0000_0000_0008));
            let name = if p550 {
                table::RISCV_P550
            } else {
                table::RISCV_GENERIC
            };
            if let Some(row) = CORES.iter().find(|row| row.uarch == name) {
                return one("cpu".to_owned(), row);
            }
        }
        Cpu::Other(_) => {}
    }
    let hybrid = ["cpu_core", "cpu_atom", "cpu_lowpower"]
        .into_iter()
        .filter(|name| present(name));
    let mut cores: Vec<_> = hybrid.map(|name| (name.to_owned(), None)).collect();
    if cores.is_empty() {
        let pmu = if identity.cpu.family() == Family::Arm {
            arm_pmu()
        } else {
            "cpu".to_owned()
        };
        cores.push((pmu, None));
    }
    Chosen {
        cores,
        why_unknown: Some(why),
    }
}

/// Rows of an x86 CPU: one, or one per core type.
fn x86_rows(cpu: &str) -> Vec<&'static Core> {
    // A pattern without a stepping is for all steppings.
    let model = cpu.splitn(4, '-').take(3).collect::<Vec<_>>().join("-");
    let fits = |row: &&Core| {
        row.cpus
            .iter()
            .any(|one| pattern::matches(one, cpu) || pattern::matches(one, &model))
    };
    let rows: Vec<&'static Core> = CORES.iter().filter(fits).collect();
    match rows.first() {
        Some(first) if first.core_type.is_none() => vec![first],
        _ => rows,
    }
}

fn stepping_decides(cpu: &str) -> bool {
    CORES.iter().flat_map(|row| row.cpus).any(|one| {
        one.strip_prefix(cpu)
            .is_some_and(|rest| rest.starts_with('-'))
    })
}
