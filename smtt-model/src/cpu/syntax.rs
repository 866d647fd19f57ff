//! Events in perf's notation, as in the configuration: `cpu/event=0x12,umask=0x10,cmask=1/`, `rNNN`, the relevant
//! generic names, and the kernel's software events; several, one per core-type PMU of a hybrid CPU, separated by
//! commas.

use super::encoding::{
    Bits, Encoding, PERF_TYPE_HARDWARE, PERF_TYPE_HW_CACHE, PERF_TYPE_SOFTWARE, Pmu,
};

/// Syntax error in an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}`, column {column}: {problem}")]
pub struct EventError {
    /// The given text.
    pub text: String,
    /// Position of the error, in characters from 1.
    pub column: usize,
    /// What is wrong, and what would be right.
    pub problem: String,
}

/// Generic events by perf's names: type and config.
pub const GENERIC: [(&str, u32, u64); 4] = [
    ("cycles", PERF_TYPE_HARDWARE, 0),
    ("cpu-cycles", PERF_TYPE_HARDWARE, 0),
    ("dTLB-load-misses", PERF_TYPE_HW_CACHE, 0x1_0003),
    ("dTLB-store-misses", PERF_TYPE_HW_CACHE, 0x1_0103),
];

/// The kernel's own events by perf's names, with their config. They need no counter of the processor, so a machine
/// without counters has them too.
pub const SOFTWARE: [(&str, u64); 10] = [
    ("cpu-clock", 0),
    ("task-clock", 1),
    ("page-faults", 2),
    ("faults", 2),
    ("context-switches", 3),
    ("cpu-migrations", 4),
    ("minor-faults", 5),
    ("major-faults", 6),
    ("alignment-faults", 7),
    ("emulation-faults", 8),
];

/// A generic event on one core PMU. With several core types the upper half of `config` names the PMU, or the kernel
/// would choose one.
pub fn generic(pmu: &Pmu, hybrid: bool, perf_type: u32, config: u64) -> Encoding {
    let which = pmu.perf_type.filter(|_| hybrid).map_or(0, u64::from) << 32;
    Encoding::of_type(pmu, Some(perf_type), config | which)
}

/// Parses `text`. `pmus` are the PMUs that an event may name; `cores` are the core PMUs: an event without a PMU applies
/// to each core PMU.
pub fn parse(text: &str, pmus: &[&Pmu], cores: &[&Pmu]) -> Result<Vec<Encoding>, EventError> {
    let fail = |at: usize, problem: String| EventError {
        text: text.to_owned(),
        column: text.get(..at).unwrap_or(text).chars().count() + 1,
        problem,
    };
    let mut events: Vec<Encoding> = Vec::new();
    for (at, element) in elements(text) {
        let lead = element.len() - element.trim_start().len();
        let (at, element) = (at + lead, element.trim());
        if element.is_empty() {
            return Err(fail(
                at,
                "an event is missing; write one as in cpu/event=0x12,umask=0x10,cmask=1/"
                    .to_owned(),
            ));
        }
        let found = match element.split_once('/') {
            Some((name, rest)) => {
                vec![with_pmu(name, rest, at, pmus).map_err(|(at, problem)| fail(at, problem))?]
            }
            None => without_pmu(element, at, cores).map_err(|(at, problem)| fail(at, problem))?,
        };
        if let Some(twice) = found
            .iter()
            .find(|new| events.iter().any(|event| event.pmu == new.pmu))
        {
            return Err(fail(
                at,
                format!(
                    "a second event for PMU {}; a role has one event per PMU",
                    twice.pmu
                ),
            ));
        }
        events.extend(found);
    }
    Ok(events)
}

/// The events of a list with their byte offsets; commas between slashes belong to an event.
fn elements(text: &str) -> Vec<(usize, &str)> {
    let mut inside = false;
    let mut start = 0;
    let mut list = Vec::new();
    for (at, character) in text.char_indices() {
        match character {
            '/' => inside = !inside,
            ',' if !inside => {
                list.push((start, &text[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    list.push((start, &text[start..]));
    list
}

type Problem = (usize, String);

fn with_pmu(name: &str, rest: &str, at: usize, pmus: &[&Pmu]) -> Result<Encoding, Problem> {
    let Some(pmu) = pmus.iter().find(|pmu| pmu.name == name) else {
        let known: Vec<&str> = pmus.iter().map(|pmu| pmu.name.as_str()).collect();
        return Err((
            at,
            format!(
                "no PMU `{name}` for this event; there are: {}",
                known.join(", ")
            ),
        ));
    };
    let start = at + name.len() + 1;
    let Some((terms, modifiers)) = rest.split_once('/') else {
        return Err((
            start + rest.len(),
            format!("the `/` that ends the terms of `{name}` is missing"),
        ));
    };
    let mut event = Encoding::raw(pmu, 0);
    let mut term_at = start;
    for term in terms.split(',') {
        if !term.is_empty() {
            put_term(term, term_at, pmu, &mut event)?;
        } else if !terms.is_empty() {
            return Err((term_at, "a term is missing".to_owned()));
        }
        term_at += term.len() + 1;
    }
    put_modifiers(modifiers, start + terms.len() + 1, &mut event)?;
    Ok(event)
}

fn put_term(term: &str, at: usize, pmu: &Pmu, event: &mut Encoding) -> Result<(), Problem> {
    let (name, value) = term.split_once('=').unwrap_or((term, "1"));
    let number = |value: &str| match value
        .strip_prefix("0x")
        .or_else(|| value.strip_prefix("0X"))
    {
        Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16).ok(),
        None => value.parse().ok(),
    };
    let bits = match (pmu.terms.get(name), name) {
        (Some(bits), _) => bits.clone(),
        (None, "config" | "config1" | "config2") => Bits::whole(name),
        (None, "period" | "freq") => {
            let problem =
                format!("`{name}` is not taken here; the sampling rate is a setting of its own");
            return Err((at, problem));
        }
        (None, _) => {
            let terms: Vec<&str> = pmu.terms.keys().map(String::as_str).collect();
            let (pmu, terms) = (&pmu.name, terms.join(", "));
            let problem = format!(
                "`{name}` is no term of PMU {pmu}; it has: {terms}, config, config1, config2"
            );
            return Err((at, problem));
        }
    };
    let value_at = at + term.find('=').map_or(0, |equals| equals + 1);
    let Some(number) = number(value) else {
        return Err((
            value_at,
            format!("`{value}` is no number; write {name}=18 or {name}=0x12"),
        ));
    };
    if !bits.put(number, event) {
        let problem = format!(
            "{value} does not fit `{name}`, which has {} bits",
            bits.width()
        );
        return Err((value_at, problem));
    }
    Ok(())
}

/// `u` and `k` leave only those modes in, each `p` raises the precision.
fn put_modifiers(text: &str, at: usize, event: &mut Encoding) -> Result<(), Problem> {
    let modes = text.strip_prefix(':').unwrap_or(text);
    for (offset, modifier) in modes.char_indices() {
        match modifier {
            'p' if event.precise_ip < 3 => event.precise_ip += 1,
            'u' | 'k' => {}
            _ => {
                let problem =
                    format!("`{modifier}` is no modifier here; there are u, k, p, pp and ppp");
                return Err((at + text.len() - modes.len() + offset, problem));
            }
        }
    }
    let (user, kernel) = (modes.contains('u'), modes.contains('k'));
    event.exclude_kernel = user && !kernel;
    event.exclude_user = kernel && !user;
    Ok(())
}

fn without_pmu(text: &str, at: usize, cores: &[&Pmu]) -> Result<Vec<Encoding>, Problem> {
    let (name, modifiers) = text.split_at(text.find(':').unwrap_or(text.len()));
    let known = GENERIC.iter().find(|(known, ..)| *known == name);
    let software = SOFTWARE.iter().find(|(known, _)| *known == name);
    let raw = name
        .strip_prefix('r')
        .filter(|_| known.is_none() && software.is_none())
        .map(|digits| u64::from_str_radix(digits, 16));
    cores
        .iter()
        .map(|pmu| {
            let mut event = match (known, &raw) {
                (Some(&(_, perf_type, config)), _) => {
                    generic(pmu, cores.len() > 1, perf_type, config)
                }
                (None, None) if software.is_some() => {
                    let config = software.map_or(0, |(_, config)| *config);
                    Encoding::of_type(pmu, Some(PERF_TYPE_SOFTWARE), config)
                }
                (None, Some(Ok(config))) => Encoding::raw(pmu, *config),
                (None, Some(Err(_))) => {
                    return Err((
                        at + 1,
                        format!(
                            "`{name}` is no raw event; write r and up to 16 hexadecimal digits"
                        ),
                    ));
                }
                (None, None) => {
                    let names: Vec<&str> = GENERIC
                        .iter()
                        .map(|(name, ..)| *name)
                        .chain(SOFTWARE.iter().map(|(name, _)| *name))
                        .collect();
                    let problem = format!(
                        "`{name}` is no event; write PMU/term=value,.../, rNNN, or one of: {}",
                        names.join(", ")
                    );
                    return Err((at, problem));
                }
            };
            put_modifiers(modifiers, at + name.len(), &mut event)?;
            Ok(event)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use crate::cpu::Pmus;
    use crate::cpu::identity::{CpuId, Family};

    fn x86(text: &str) -> Result<Vec<Encoding>, EventError> {
        let pmus = Pmus::assumed(Family::X86);
        parse(
            text,
            &pmus.iter().collect::<Vec<_>>(),
            &[pmus.get("cpu").expect("cpu")],
        )
    }

    #[test]
    fn terms_raw_codes_and_names_are_packed() {
        for (text, perf_type, config, config1) in [
            ("cpu/event=0x12,umask=0x10,cmask=1/", 4, 0x100_1012, 0),
            ("cpu/event=18,umask=16,cmask=1/", 4, 0x100_1012, 0),
            ("cpu/event=0xcd,umask=1,ldlat=4/pp", 4, 0x1cd, 4),
            ("cpu/event=0x3c,any,inv=0/", 4, 0x20_003c, 0),
            ("cpu/config=0x1001012,config1=0x5/", 4, 0x100_1012, 5),
            ("r1001012", 4, 0x100_1012, 0),
            ("dTLB-load-misses:u", 3, 0x1_0003, 0),
            ("cpu-clock", 1, 0, 0),
            ("page-faults:k", 1, 2, 0),
            (" cycles ", 0, 0, 0),
        ] {
            let events = x86(text).expect(text);
            let event = &events[0];
            assert_eq!(
                (event.perf_type, event.perf_config, event.config1),
                (Some(perf_type), config, config1),
                "{text}"
            );
        }
        let event = &x86("cpu/event=1/kpp").expect("modifiers")[0];
        assert_eq!(
            (event.precise_ip, event.exclude_user, event.exclude_kernel),
            (2, true, false)
        );
    }

    #[test]
    fn errors_name_the_term_and_where_it_is() {
        for (text, column, says) in [
            (
                "cpu/evnt=0x12/",
                5,
                "`evnt` is no term of PMU cpu; it has: any, cmask",
            ),
            (
                "cpu/event=0x12,umask=0x1ff/",
                22,
                "0x1ff does not fit `umask`, which has 8 bits",
            ),
            ("cpu/event=0x12,umask=zz/", 22, "`zz` is no number"),
            ("cpu/event=0x12,,umask=1/", 16, "a term is missing"),
            ("cpu/event=0x12,period=100/", 16, "sampling rate"),
            (
                "cpu/event=0x12",
                15,
                "the `/` that ends the terms of `cpu` is missing",
            ),
            ("cpu/event=0x12/ux", 17, "`x` is no modifier"),
            (
                "cpu_gpu/event=1/",
                1,
                "no PMU `cpu_gpu` for this event; there are: cpu, cpu_core",
            ),
            ("cpu_core/event=1/,cpu_atom/vent=1/", 28, "`vent`"),
            (
                "cpu/event=1/,cpu/event=2/",
                14,
                "a second event for PMU cpu",
            ),
            ("rxyz", 2, "no raw event"),
            ("dtlb-misses", 1, "dTLB-load-misses"),
            ("", 1, "an event is missing"),
            ("cpu/event=1/,", 14, "an event is missing"),
        ] {
            let error = x86(text).expect_err(text);
            assert_eq!(error.column, column, "{error}");
            assert!(error.problem.contains(says), "{error}");
            assert!(error.to_string().contains(text));
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_an_event_or_an_error_with_a_place_in_it(
            text in "(cpu/|cpu_atom/|[a-z]{0,4})?((event|umask|cmask|any|ldlat|\\PC{0,3})(=(0x)?[0-9a-f]{0,20})?[,/:]){0,4}\\PC{0,4}"
        ) {
            if let Err(error) = x86(&text) {
                proptest::prop_assert!((1..=text.chars().count() + 1).contains(&error.column), "{error}");
            }
        }
    }

    #[test]
    fn the_layout_of_the_machine_wins_over_the_assumed_one() {
        let mut files = BTreeMap::new();
        let mut file = |path: &str, text: &str| {
            files.insert(path.to_owned(), text.to_owned());
        };
        file(
            "proc/cpuinfo",
            "vendor_id : GenuineIntel\ncpu family : 6\nmodel : 189\n",
        );
        let devices = "sys/bus/event_source/devices";
        for (pmu, perf_type) in [("cpu_core", "4\n"), ("cpu_atom", "10\n")] {
            file(&format!("{devices}/{pmu}/type"), perf_type);
            file(&format!("{devices}/{pmu}/format/event"), "config:0-7\n");
            file(
                &format!("{devices}/{pmu}/format/umask"),
                "config:8-15,40-47\n",
            );
        }
        let pmus = CpuId::read(&files).pmus;
        let cores: Vec<&Pmu> = ["cpu_core", "cpu_atom"]
            .iter()
            .map(|name| pmus.get(name).expect(name))
            .collect();
        let wide = parse("cpu_core/event=0x3c,umask=0x1ff/", &cores, &cores).expect("wide umask");
        assert_eq!(wide[0].perf_config, 0x100_0000_ff3c);
        assert_eq!(
            parse("cpu_core/cmask=1/", &cores, &cores)
                .expect_err("no cmask")
                .column,
            10
        );
        let both = parse("r1008", &cores, &cores).expect("raw on each core type");
        assert_eq!(
            both.iter().map(|event| event.perf_type).collect::<Vec<_>>(),
            [Some(4), Some(10)]
        );
        let both = parse("cpu-clock", &cores, &cores).expect("the clock on each core type");
        assert!(
            both.len() == 2 && both.iter().all(|event| event.perf_config == 0),
            "a clock is the same on each: {both:?}"
        );
        let both = parse("cycles", &cores, &cores).expect("cycles on each core type");
        assert_eq!(
            both.iter()
                .map(|event| event.perf_config)
                .collect::<Vec<_>>(),
            [4 << 32, 10 << 32]
        );
    }
}
