//! PMUs and their bit layouts: which bits of `config`, `config1` and `config2` a term such as `umask` sets. The running
//! machine reports the layout in sysfs (`/sys/bus/event_source/devices/PMU/format`); for a missing PMU the kernel's
//! documented layout is assumed, so that any CPU can be described on any machine.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, Serializer};

use super::files::Files;
use crate::sort::small::{Gather as _, sort_by};

/// `perf_event_attr.type` of the kernel's generic hardware events.
pub const PERF_TYPE_HARDWARE: u32 = 0;
/// `perf_event_attr.type` of the kernel's own events.
pub const PERF_TYPE_SOFTWARE: u32 = 1;
/// `perf_event_attr.type` of the kernel's generic cache events.
pub const PERF_TYPE_HW_CACHE: u32 = 3;
/// `perf_event_attr.type` of raw events of the core's PMU.
pub const PERF_TYPE_RAW: u32 = 4;

/// Fields of `perf_event_attr` for one event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Encoding {
    /// Name in sysfs of the PMU that counts the event.
    pub pmu: String,
    /// `type`; absent where the PMU's number is known only on a machine with the PMU.
    pub perf_type: Option<u32>,
    /// `config`.
    #[serde(serialize_with = "hexadecimal")]
    pub perf_config: u64,
    /// `config1`.
    #[serde(
        rename = "perf_config1",
        serialize_with = "hexadecimal",
        skip_serializing_if = "is_zero"
    )]
    pub config1: u64,
    /// `config2`.
    #[serde(
        rename = "perf_config2",
        serialize_with = "hexadecimal",
        skip_serializing_if = "is_zero"
    )]
    pub config2: u64,
    /// `precise_ip`.
    pub precise_ip: u8,
    /// `exclude_kernel`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exclude_kernel: bool,
    /// `exclude_user`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exclude_user: bool,
}

impl Encoding {
    /// An event of `pmu` with nothing set but `config`.
    pub fn raw(pmu: &Pmu, config: u64) -> Self {
        Self::of_type(pmu, pmu.perf_type, config)
    }

    /// A software event of the kernel, by its number in `enum perf_sw_ids`.
    #[must_use]
    pub fn software(number: u64) -> Self {
        Self {
            pmu: "software".into(),
            perf_type: Some(PERF_TYPE_SOFTWARE),
            perf_config: number,
            config1: 0,
            config2: 0,
            precise_ip: 0,
            exclude_kernel: false,
            exclude_user: false,
        }
    }

    /// An event of `pmu` of another `type`, as the kernel's generic events are.
    pub fn of_type(pmu: &Pmu, perf_type: Option<u32>, perf_config: u64) -> Self {
        let (config1, config2, precise_ip) = (0, 0, 0);
        let (exclude_kernel, exclude_user) = (false, false);
        Self {
            pmu: pmu.name.clone(),
            perf_type,
            perf_config,
            config1,
            config2,
            precise_ip,
            exclude_kernel,
            exclude_user,
        }
    }
}

fn hexadecimal<S: Serializer>(value: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&format!("{value:#x}"))
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// Bits of a term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits {
    /// 0 for `config`, 1 for `config1`, 2 for `config2`.
    pub word: u8,
    /// First and last bit of each piece, lowest bits of the value first.
    pub pieces: Vec<(u8, u8)>,
}

impl Bits {
    /// Reads the kernel's form, such as `config:0-7,32-35`.
    pub fn parse(text: &str) -> Option<Self> {
        let (word, pieces) = text.trim().split_once(':')?;
        let word = match word {
            "config" => 0,
            "config1" => 1,
            "config2" => 2,
            _ => return None,
        };
        let pieces = pieces
            .split(',')
            .map(|piece| {
                let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
                let (first, last) = (first.parse().ok()?, last.parse().ok()?);
                (first <= last && last < 64).then_some((first, last))
            })
            .collect::<Option<_>>()?;
        Some(Self { word, pieces })
    }

    /// All of the word that `name` names; `config` for any other name.
    pub fn whole(name: &str) -> Self {
        let word = match name {
            "config1" => 1,
            "config2" => 2,
            _ => 0,
        };
        Self {
            word,
            pieces: vec![(0, 63)],
        }
    }

    /// Maximum number of bits of a value.
    pub fn width(&self) -> u32 {
        self.pieces
            .iter()
            .map(|&(first, last)| u32::from(last - first) + 1)
            .sum()
    }

    /// Puts `value` into the term's bits; returns false and leaves `into` unchanged if the value has too many bits.
    pub fn put(&self, mut value: u64, into: &mut Encoding) -> bool {
        if self.width() < 64 && value >> self.width() != 0 {
            return false;
        }
        let word = match self.word {
            0 => &mut into.perf_config,
            1 => &mut into.config1,
            _ => &mut into.config2,
        };
        for &(first, last) in &self.pieces {
            let mask = u64::MAX >> (63 - (last - first));
            *word = *word & !(mask << first) | (value & mask) << first;
            value = value.checked_shr(u32::from(last - first) + 1).unwrap_or(0);
        }
        true
    }
}

/// One PMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pmu {
    /// Name of the PMU in sysfs.
    pub name: String,
    /// `type` of the PMU's events, where known.
    pub perf_type: Option<u32>,
    /// Whether this machine has it; absent if another machine is described.
    pub present: Option<bool>,
    /// Terms of the PMU's events.
    pub terms: BTreeMap<String, Bits>,
    /// Events that the kernel names for this PMU; empty where it names none.
    pub events: BTreeSet<String>,
}

/// The PMUs of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pmus(Vec<Pmu>);

const X86: &[(&str, &str)] = &[
    ("event", "config:0-7"),
    ("umask", "config:8-15"),
    ("edge", "config:18"),
    ("pc", "config:19"),
    ("any", "config:21"),
    ("inv", "config:23"),
    ("cmask", "config:24-31"),
    ("ldlat", "config1:0-15"),
];
const AMD: &[(&str, &str)] = &[
    ("event", "config:0-7,32-35"),
    ("umask", "config:8-15"),
    ("edge", "config:18"),
    ("inv", "config:23"),
    ("cmask", "config:24-31"),
];
const IBS_OP: &[(&str, &str)] = &[("cnt_ctl", "config:19"), ("l3missonly", "config:16")];
const ARM: &[(&str, &str)] = &[("event", "config:0-15"), ("long", "config1:0")];
const ARM_SPE: &[(&str, &str)] = &[
    ("ts_enable", "config:0"),
    ("pa_enable", "config:1"),
    ("pct_enable", "config:2"),
    ("jitter", "config:16"),
    ("branch_filter", "config:32"),
    ("load_filter", "config:33"),
    ("store_filter", "config:34"),
    ("event_filter", "config1:0-63"),
    ("min_latency", "config2:0-11"),
];
const RISCV: &[(&str, &str)] = &[("event", "config:0-55"), ("firmware", "config:62-63")];

/// Name, type where it is fixed, and layout.
type Assumed = (
    &'static str,
    Option<u32>,
    &'static [(&'static str, &'static str)],
);

impl Pmus {
    /// PMUs that a machine of another kind would have. `family` is `intel`, `amd`, `arm` or `riscv`.
    pub(super) fn assumed(family: super::identity::Family) -> Self {
        use super::identity::Family;
        let list: &[Assumed] = match family {
            Family::Amd => &[("cpu", Some(PERF_TYPE_RAW), AMD), ("ibs_op", None, IBS_OP)],
            Family::Arm => &[
                ("armv8_pmuv3_0", Some(PERF_TYPE_RAW), ARM),
                ("arm_spe_0", None, ARM_SPE),
            ],
            Family::RiscV => &[("cpu", Some(PERF_TYPE_RAW), RISCV)],
            Family::X86 => &[
                ("cpu", Some(PERF_TYPE_RAW), X86),
                ("cpu_core", Some(PERF_TYPE_RAW), X86),
                ("cpu_atom", None, X86),
                ("cpu_lowpower", None, X86),
            ],
        };
        Self(
            list.iter()
                .map(|&(name, perf_type, terms)| Pmu {
                    name: name.to_owned(),
                    perf_type,
                    present: None,
                    terms: terms
                        .iter()
                        .filter_map(|&(term, bits)| Some((term.to_owned(), Bits::parse(bits)?)))
                        .gather(),
                    events: BTreeSet::new(),
                })
                .collect(),
        )
    }

    /// The PMUs in a machine's files, and the assumed ones marked as not present. Unreadable files count as absent:
    /// opening the event will show whether the PMU exists.
    pub(super) fn read(files: &impl Files, family: super::identity::Family) -> Self {
        let mut pmus = Self::assumed(family);
        pmus.0.iter_mut().for_each(|pmu| pmu.present = Some(false));
        const DEVICES: &str = "sys/bus/event_source/devices";
        for name in files.names(DEVICES) {
            let perf_type = files
                .text(&format!("{DEVICES}/{name}/type"))
                .and_then(|text| text.trim().parse().ok());
            let formats = format!("{DEVICES}/{name}/format");
            let terms = files.names(&formats).into_iter();
            let mut terms: BTreeMap<String, Bits> = terms
                .filter_map(|term| {
                    let text = files.text(&format!("{formats}/{term}"))?;
                    Some((term, Bits::parse(&text)?))
                })
                .gather();
            let assumed = pmus
                .0
                .iter()
                .position(|pmu| pmu.name == name)
                .map(|at| pmus.0.remove(at));
            if terms.is_empty() {
                terms = assumed.map(|pmu| pmu.terms).unwrap_or_default();
            }
            let events = files.names(&format!("{DEVICES}/{name}/events"));
            pmus.0.push(Pmu {
                name,
                perf_type,
                present: Some(true),
                terms,
                events: events.into_iter().collect(),
            });
        }
        sort_by(&mut pmus.0, |a, b| a.name.cmp(&b.name));
        pmus
    }

    /// The PMU of that name.
    pub fn get(&self, name: &str) -> Option<&Pmu> {
        self.0.iter().find(|pmu| pmu.name == name)
    }

    /// All PMUs: those of this machine and the assumed ones.
    pub fn iter(&self) -> impl Iterator<Item = &Pmu> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::identity::Family;

    #[test]
    fn bits_are_packed_piece_by_piece_and_never_cut() {
        let bits = Bits::parse("config:0-7,32-35\n").expect("two pieces");
        let mut event = Encoding::raw(Pmus::assumed(Family::X86).get("cpu").expect("cpu"), 0xff00);
        assert!(bits.put(0x1c7, &mut event));
        assert_eq!(event.perf_config, 0x1_0000_ffc7);
        assert!(!bits.put(0x1000, &mut event), "13 bits into 12");
        assert_eq!(
            event.perf_config, 0x1_0000_ffc7,
            "a refused value changes nothing"
        );
        let whole = Bits::parse("config1:0-63").expect("whole word");
        assert!(whole.put(u64::MAX, &mut event));
        assert_eq!(event.config1, u64::MAX);
    }

    #[test]
    fn layouts_that_are_not_the_kernels_are_refused() {
        for text in [
            "",
            "config",
            "config9:0",
            "config:7-0",
            "config:0-64",
            "config:x",
        ] {
            assert_eq!(Bits::parse(text), None, "{text:?}");
        }
    }
}
