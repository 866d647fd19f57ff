//! The identity of a CPU: of the running machine, read from `/proc` and `/sys`, or of any other, given as text.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::sort::small::Gather as _;

use super::encoding::Pmus;
use super::files::Files;

/// Kinds of machines that offer their PMUs in different ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    X86,
    Amd,
    Arm,
    RiscV,
}

/// A CPU's own identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cpu {
    /// CPUID.
    X86 {
        /// Vendor string, such as `GenuineIntel`.
        vendor: String,
        /// Family, extended family added.
        family: u32,
        /// Model, extended model included.
        model: u32,
        /// Stepping, if given.
        stepping: Option<u32>,
    },
    /// Main identity register.
    Arm {
        /// `MIDR_EL1`.
        midr: u64,
    },
    /// Ids from the supervisor binary interface and the device tree.
    RiscV {
        /// `mvendorid`.
        vendor: Option<u64>,
        /// `marchid`.
        architecture: Option<u64>,
        /// `uarch` of `/proc/cpuinfo`, such as `sifive,p550`.
        uarch: Option<String>,
    },
    /// An unknown identity, with a description.
    Other(String),
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cpu::X86 {
                vendor,
                family,
                model,
                stepping,
            } => {
                write!(f, "{vendor}-{family}-{model:X}")?;
                stepping.map_or(Ok(()), |stepping| write!(f, "-{stepping:X}"))
            }
            Cpu::Arm { midr } => write!(f, "{midr:#018x}"),
            Cpu::RiscV {
                vendor: Some(vendor),
                architecture: Some(architecture),
                ..
            } => {
                write!(f, "{vendor:#x}-{architecture:#x}")
            }
            Cpu::RiscV { uarch, .. } => f.write_str(uarch.as_deref().unwrap_or("riscv")),
            Cpu::Other(what) => f.write_str(what),
        }
    }
}

/// A CPU and the circumstances that change what can be measured on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuId {
    /// Which CPU.
    pub cpu: Cpu,
    /// Whether the CPU belongs to a virtual machine; absent if unknown.
    pub virtualised: Option<bool>,
    /// Whether two hardware threads share a core; absent if unknown.
    pub hyper_threading: Option<bool>,
    /// PMUs of the machine.
    pub pmus: Pmus,
}

/// A text that is no CPU id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` names no CPU; write VENDOR-FAMILY-MODEL[-STEPPING] with a decimal family as in GenuineIntel-6-8F or \
     AuthenticAMD-25-11, an Arm MIDR as in 0x00000000410fd0c0, a RISC-V mvendorid-marchid as in \
     0x489-0x8000000000000008, or riscv"
)]
pub struct NoCpu(pub String);

impl FromStr for CpuId {
    type Err = NoCpu;

    fn from_str(text: &str) -> Result<Self, NoCpu> {
        let cpu = parse_cpu(text.trim()).ok_or_else(|| NoCpu(text.to_owned()))?;
        let pmus = Pmus::assumed(cpu.family());
        Ok(Self {
            cpu,
            virtualised: None,
            hyper_threading: None,
            pmus,
        })
    }
}

fn parse_cpu(text: &str) -> Option<Cpu> {
    let hexadecimal = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let uarch = |name: &str| Cpu::RiscV {
        vendor: None,
        architecture: None,
        uarch: Some(name.to_owned()),
    };
    if text == "riscv" {
        return Some(Cpu::RiscV {
            vendor: None,
            architecture: None,
            uarch: None,
        });
    }
    if !text.contains('-') && text.contains(',') {
        return Some(uarch(text));
    }
    let parts: Vec<&str> = text.split('-').collect();
    match parts[..] {
        [midr] => Some(Cpu::Arm {
            midr: hexadecimal(midr)?,
        }),
        [vendor, architecture] | [vendor, architecture, _] if vendor.starts_with("0x") => {
            Some(Cpu::RiscV {
                vendor: Some(hexadecimal(vendor)?),
                architecture: Some(hexadecimal(architecture)?),
                uarch: None,
            })
        }
        [vendor, family, model] | [vendor, family, model, _] => {
            let stepping = match parts.get(3) {
                Some(stepping) => Some(u32::from_str_radix(stepping, 16).ok()?),
                None => None,
            };
            let model = u32::from_str_radix(model, 16).ok()?;
            let named = !vendor.is_empty() && vendor.bytes().all(|byte| byte.is_ascii_alphabetic());
            named.then_some(Cpu::X86 {
                vendor: vendor.to_owned(),
                family: family.parse().ok()?,
                model,
                stepping,
            })
        }
        _ => None,
    }
}

impl Cpu {
    pub(super) fn family(&self) -> Family {
        match self {
            Cpu::X86 { vendor, .. } if vendor == "AuthenticAMD" => Family::Amd,
            Cpu::X86 { .. } | Cpu::Other(_) => Family::X86,
            Cpu::Arm { .. } => Family::Arm,
            Cpu::RiscV { .. } => Family::RiscV,
        }
    }
}

impl CpuId {
    /// The machine that describes itself in these files.
    pub fn read(files: &impl Files) -> Self {
        let cpuinfo = files.text("proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            cpuinfo.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            })
        };
        let decimal = |name: &str| field(name).and_then(|text| text.parse().ok());
        let hexadecimal = |name: &str| {
            field(name).and_then(|text| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok())
        };
        let cpu = if let (Some(vendor), Some(family), Some(model)) =
            (field("vendor_id"), decimal("cpu family"), decimal("model"))
        {
            Cpu::X86 {
                vendor,
                family,
                model,
                stepping: decimal("stepping"),
            }
        } else if let Some(arm) = arm(files) {
            arm
        } else if field("hart").is_some() || field("mvendorid").is_some() {
            let (vendor, architecture) = (hexadecimal("mvendorid"), hexadecimal("marchid"));
            Cpu::RiscV {
                vendor,
                architecture,
                uarch: field("uarch"),
            }
        } else {
            Cpu::Other("a CPU that neither /proc/cpuinfo nor midr_el1 identifies".to_owned())
        };
        let virtualised =
            field("flags").map(|flags| flags.split(' ').any(|flag| flag == "hypervisor"));
        let hyper_threading = files
            .text("sys/devices/system/cpu/smt/active")
            .map(|text| text.trim() == "1");
        let pmus = Pmus::read(files, cpu.family());
        Self {
            cpu,
            virtualised,
            hyper_threading,
            pmus,
        }
    }
}

/// The machine's only kind of Arm core; `None` for a machine with several kinds.
fn arm(files: &impl Files) -> Option<Cpu> {
    const CPUS: &str = "sys/devices/system/cpu";
    let cpus = files.names(CPUS).into_iter();
    let midrs: BTreeSet<u64> = cpus
        .filter_map(|cpu| files.text(&format!("{CPUS}/{cpu}/regs/identification/midr_el1")))
        .filter_map(|text| u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok())
        .gather();
    match midrs.len() {
        0 => None,
        1 => midrs.into_iter().next().map(|midr| Cpu::Arm { midr }),
        _ => {
            let list: Vec<String> = midrs.iter().map(|midr| format!("{midr:#018x}")).collect();
            Some(Cpu::Other(format!(
                "Arm cores of several kinds ({})",
                list.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn machine(files: &[(&str, &str)]) -> CpuId {
        let files = files.iter();
        let files: BTreeMap<String, String> = files
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
            .collect();
        CpuId::read(&files)
    }

    #[test]
    fn texts_and_machines_give_the_same_identity() {
        for (text, files) in [
            (
                "GenuineIntel-6-8F-6",
                &[(
                    "proc/cpuinfo",
                    "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: X\nstepping\t: 6\n",
                )][..],
            ),
            (
                "0x00000000413fd0c1",
                &[(
                    "sys/devices/system/cpu/cpu0/regs/identification/midr_el1",
                    "0x00000000413fd0c1\n",
                )],
            ),
            (
                "0x489-0x8000000000000008",
                &[(
                    "proc/cpuinfo",
                    "hart\t: 0\nmvendorid\t: 0x489\nmarchid\t: 0x8000000000000008\n",
                )],
            ),
            (
                "sifive,p550",
                &[("proc/cpuinfo", "hart\t: 0\nuarch\t\t: sifive,p550\n")],
            ),
            (
                "riscv",
                &[("proc/cpuinfo", "hart\t: 2\nisa\t: rv64imafdch\n")],
            ),
        ] {
            let told: CpuId = text.parse().expect(text);
            assert_eq!(machine(files).cpu, told.cpu);
            assert_eq!(told.cpu.to_string(), text);
        }
    }

    #[test]
    fn circumstances_come_from_flags_and_sysfs() {
        let guest = machine(&[
            (
                "proc/cpuinfo",
                "vendor_id : AuthenticAMD\ncpu family : 26\nmodel : 2\nflags : fpu hypervisor sse\n",
            ),
            ("sys/devices/system/cpu/smt/active", "1\n"),
            ("sys/bus/event_source/devices/ibs_op/type", "11\n"),
            (
                "sys/bus/event_source/devices/ibs_op/format/cnt_ctl",
                "config:19\n",
            ),
        ]);
        assert_eq!(
            (guest.virtualised, guest.hyper_threading),
            (Some(true), Some(true))
        );
        assert_eq!(
            guest.pmus.get("cpu").and_then(|pmu| pmu.present),
            Some(false)
        );
        let ibs = guest.pmus.get("ibs_op").expect("ibs_op");
        assert_eq!((ibs.present, ibs.perf_type), (Some(true), Some(11)));
    }

    #[test]
    fn arm_cores_of_several_kinds_are_taken_for_none_of_them() {
        let file =
            |cpu: u32| format!("sys/devices/system/cpu/cpu{cpu}/regs/identification/midr_el1");
        let mixed = machine(&[
            (&file(0), "0x00000000410fd0c0"),
            (&file(1), "0x00000000410fd400"),
        ]);
        assert!(
            matches!(mixed.cpu, Cpu::Other(what) if what.contains("410fd0c0") && what.contains("410fd400"))
        );
    }

    #[test]
    fn a_text_that_names_no_cpu_is_refused_with_the_form_to_write() {
        for text in [
            "",
            "Intel",
            "GenuineIntel-6",
            "GenuineIntel-x-8F",
            "GenuineIntel-6-ZZ",
            "GenuineIntel-6-55-4-1",
            "0xzz",
        ] {
            let error = text.parse::<CpuId>().expect_err(text).to_string();
            assert!(error.contains("GenuineIntel-6-8F"), "{error}");
        }
    }
}
