//! Checks whether this machine supports the tracer, what is missing and what to do, without a running daemon.

use std::path::Path;

use smtt_model::protocol::MachineCheck;

use crate::btf;
use crate::damon::windows::{self, Format};
use crate::damon::{Owner, owner, refusal};
use crate::page_walks::{PageWalkSettings, Wanted};
use crate::pages::{Machine, Method};

/// Checks this machine.
#[must_use]
pub fn examine() -> Vec<MachineCheck> {
    vec![
        capabilities(),
        pid_namespace(),
        type_information(),
        kernel_version(),
        tracepoints(),
        uprobes(),
        hardware_counters(),
        page_walks(),
        memory_nodes(),
        pages(),
        hotness(),
    ]
}

fn check(name: &str, required: bool, seen: Result<String, (String, &str)>) -> MachineCheck {
    let (ok, detail, remedy) = match seen {
        Ok(detail) => (true, detail, String::new()),
        Err((detail, remedy)) => (false, detail, remedy.to_owned()),
    };
    MachineCheck {
        name: name.into(),
        ok,
        required,
        detail,
        remedy,
    }
}

/// Capabilities by bit, with the reason for each.
const CAPABILITIES: &[(u32, &str, &str)] = &[
    (39, "CAP_BPF", "tables and programs"),
    (38, "CAP_PERFMON", "probes and software events"),
    (19, "CAP_SYS_PTRACE", "the slot files of executors"),
    (
        CHECKPOINT_RESTORE,
        "CAP_CHECKPOINT_RESTORE",
        "/proc/PID/map_files",
    ),
    (
        2,
        "CAP_DAC_READ_SEARCH",
        "folders of executors below /proc and in their containers",
    ),
];

/// Bit of `CAP_CHECKPOINT_RESTORE`.
const CHECKPOINT_RESTORE: u32 = 40;
/// Bit of `CAP_SYS_ADMIN`. It includes what `CAP_CHECKPOINT_RESTORE` allows, and uprobes need it before Linux 6.6.
const SYS_ADMIN: u32 = 21;
/// The first kernel with links for many uprobes.
const UPROBE_MULTI: (u32, u32) = (6, 6);

fn capabilities() -> MachineCheck {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok())
        .unwrap_or(0);
    let missing = missing_capabilities(effective, kernel_release().1);
    let seen = if missing.is_empty() {
        Ok("all that is needed".into())
    } else {
        Err((
            format!("missing: {}", missing.join(", ")),
            "run as root, or give the service these capabilities: the unit smtt.service of the package does, and its drop-in /usr/share/smtt/smtt-sys-admin.conf adds CAP_SYS_ADMIN",
        ))
    };
    check("capabilities", true, seen)
}

fn missing_capabilities(effective: u64, kernel: (u32, u32)) -> Vec<String> {
    let has = |bit: u32| effective & (1 << bit) != 0;
    let uprobes = (!has(SYS_ADMIN) && kernel < UPROBE_MULTI)
        .then(|| "CAP_SYS_ADMIN (uprobes before Linux 6.6)".to_owned());
    let others = CAPABILITIES
        .iter()
        .filter(|(bit, _, _)| !(has(*bit) || *bit == CHECKPOINT_RESTORE && has(SYS_ADMIN)))
        .map(|(_, name, why)| format!("{name} ({why})"));
    uprobes.into_iter().chain(others).collect()
}

/// What to do in a pid namespace that is not the first.
pub const PID_NAMESPACE_REMEDY: &str =
    "run it in the host's pid namespace (Kubernetes: hostPID: true; a container: --pid=host)";

fn pid_namespace() -> MachineCheck {
    let seen = if crate::proc::in_first_namespace() {
        Ok("the machine's first".into())
    } else {
        Err((
            "not the machine's first: process ids here are not those of the kernel".into(),
            PID_NAMESPACE_REMEDY,
        ))
    };
    check("pid namespace", true, seen)
}

fn type_information() -> MachineCheck {
    let seen = match btf::kernel_field_offsets("task_struct", &["pid", "tgid"]) {
        Ok(_) => Ok(format!("{} exists", btf::KERNEL)),
        Err(reason) => Err((
            reason,
            "use a kernel with CONFIG_DEBUG_INFO_BTF=y (all current distributions have it); without it Python workers are not followed",
        )),
    };
    check("type information (BTF)", false, seen)
}

/// The running kernel's release, and its first two numbers.
fn kernel_release() -> (String, (u32, u32)) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .unwrap_or_default()
        .trim()
        .to_owned();
    let mut parts = release
        .split(['.', '-'])
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    (release, version)
}

fn kernel_version() -> MachineCheck {
    let (release, version) = kernel_release();
    let seen = if version >= (5, 15) {
        Ok(release)
    } else {
        Err((
            release,
            "use Linux 5.15 or later: probe cookies came with it",
        ))
    };
    check("kernel", true, seen)
}

/// Paths where tracefs is usually mounted.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

fn tracepoints() -> MachineCheck {
    let mounted = TRACEFS
        .iter()
        .find(|root| Path::new(root).join("events").is_dir());
    let seen = match mounted {
        Some(root)
            if Path::new(root)
                .join("events/exceptions/page_fault_user")
                .is_dir() =>
        {
            Ok(format!("exceptions:page_fault_user is in {root}"))
        }
        Some(root) => Err((
            format!("{root} has no exceptions:page_fault_user"),
            "nothing to do: the kernel's fault handler takes their place (fexit or kprobe), or the software event, which does not distinguish reads from writes",
        )),
        None => Ok(
            "tracefs is not mounted, and not needed: raw tracepoints are attached by name".into(),
        ),
    };
    check("page-fault tracepoints", false, seen)
}

fn uprobes() -> MachineCheck {
    let kind = "/sys/bus/event_source/devices/uprobe/type";
    let seen = if Path::new(kind).exists() {
        Ok("the kernel has them".into())
    } else {
        Err((
            format!("{kind} is missing"),
            "use a kernel with CONFIG_UPROBE_EVENTS=y",
        ))
    };
    check("uprobes", true, seen)
}

fn hardware_counters() -> MachineCheck {
    let devices: Vec<String> = std::fs::read_dir("/sys/bus/event_source/devices")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    let core = devices
        .iter()
        .find(|name| name.starts_with("cpu") || name.contains("armv8") || name.contains("pmuv3"));
    let seen = match core {
        Some(name) => Ok(format!("PMU {name}")),
        None => Err((
            "this machine shows no hardware counters".into(),
            "page faults and memory are traced without it; for page walks use bare metal, a metal cloud instance, or a virtual machine with a virtual PMU switched on",
        )),
    };
    check("hardware counters", false, seen)
}

/// Which page-walk events can be measured, and which other user holds a counter.
fn page_walks() -> MachineCheck {
    const REMEDY: &str = "page faults and memory are traced without it; `smtt-ctl pmu` shows what this CPU could give";
    let wanted = Wanted::here(&PageWalkSettings::default(), Path::new("/"));
    let seen = match wanted {
        Ok(wanted) => {
            let figures: Vec<&str> = wanted
                .figures
                .iter()
                .map(|figure| {
                    figure
                        .ratio
                        .map_or(figure.name.key(), |_| figure.name.ratio_key())
                })
                .collect();
            let watchdog = std::fs::read_to_string("/proc/sys/kernel/nmi_watchdog")
                .is_ok_and(|text| text.trim() == "1");
            let watchdog = if watchdog {
                "; the kernel's watchdog holds one counter (kernel.nmi_watchdog=0 frees it)"
            } else {
                ""
            };
            Ok(format!(
                "{}: {}{watchdog}",
                wanted.uarch,
                figures.join(", ")
            ))
        }
        Err(why) => Err((why.reason, REMEDY)),
    };
    check("page walks", false, seen)
}

/// Nodes that are online; those without memory, and those without a CPU, are named.
fn memory_nodes() -> MachineCheck {
    let said = |name: &str| {
        std::fs::read_to_string(Path::new("/sys/devices/system/node").join(name))
            .ok()
            .map(|text| text.trim().to_owned())
    };
    let seen = said("online").map(|online| {
        let of = |name, what| match said(name) {
            Some(list) if list != online => format!(", {what} in {list}"),
            _ => String::new(),
        };
        format!(
            "{online}{}{}",
            of("has_memory", "memory"),
            of("has_cpu", "CPUs")
        )
    });
    let seen = seen.unwrap_or_else(|| "one: the kernel shows no nodes".to_owned());
    check("memory nodes", false, Ok(seen))
}

fn pages() -> MachineCheck {
    let machine = Machine::find();
    let seen = match (machine.method, machine.frame_flags.is_some()) {
        (Method::Scan, _) => Ok("inspected with PAGEMAP_SCAN".into()),
        (Method::Entries, true) => {
            Ok("inspected with /proc/PID/pagemap and /proc/kpageflags".into())
        }
        (Method::Entries, false) => Err((
            "neither PAGEMAP_SCAN nor /proc/kpageflags: page sizes are unavailable".into(),
            "use Linux 6.7 or later, or CONFIG_PROC_PAGE_MONITOR=y and root",
        )),
    };
    check("where pages are", false, seen)
}

/// Whether DAMON is available and free. Changes nothing.
fn hotness() -> MachineCheck {
    let owner = owner(Path::new("/"));
    let seen = match (&owner, refusal(&owner)) {
        (Owner::LivingDaemon(pid), _) => {
            Ok(format!("the smtt-daemon with process id {pid} uses DAMON"))
        }
        (_, None) => {
            let folders = windows::folders(Path::new("/"));
            match Format::read(&folders) {
                Ok(_) => Ok("DAMON is free: [hotness] method = \"damon\" uses it".into()),
                Err(why) => Err((why, "mount -t tracefs tracefs /sys/kernel/tracing")),
            }
        }
        (_, Some(why)) => Err((
            why.to_string(),
            "nothing to do: hotness comes from Spark's reads of blocks",
        )),
    };
    check("how hot memory is", false, seen)
}

#[cfg(test)]
mod tests {
    #[test]
    fn sys_admin_is_needed_before_the_link_for_many_uprobes_only() {
        use super::missing_capabilities;
        let bits = |bits: &[u32]| bits.iter().map(|bit| 1_u64 << bit).sum::<u64>();
        let unit = bits(&[39, 38, 19, 40, 2]);
        assert!(missing_capabilities(unit, (6, 6)).is_empty());
        assert_eq!(
            missing_capabilities(unit, (6, 1)),
            ["CAP_SYS_ADMIN (uprobes before Linux 6.6)"]
        );
        assert!(missing_capabilities(bits(&[39, 38, 19, 21, 2]), (6, 1)).is_empty());
        let missing = missing_capabilities(bits(&[39, 38, 19, 40]), (6, 6));
        assert_eq!(missing.len(), 1);
        assert!(
            missing[0].starts_with("CAP_DAC_READ_SEARCH "),
            "{missing:?}"
        );
        assert_eq!(missing_capabilities(bits(&[39, 38, 19]), (6, 1)).len(), 3);
    }

    #[test]
    fn the_capabilities_are_those_of_the_unit() {
        let unit = include_str!("../../config/smtt.service");
        let given = unit
            .lines()
            .find_map(|line| line.strip_prefix("AmbientCapabilities="));
        let mut given: Vec<&str> = given.expect("is there").split_whitespace().collect();
        let mut asked: Vec<&str> = super::CAPABILITIES.iter().map(|it| it.1).collect();
        given.sort_unstable();
        asked.sort_unstable();
        assert_eq!(asked, given);
    }

    #[test]
    fn every_failed_check_says_what_to_do() {
        for check in super::examine() {
            assert!(check.ok || !check.remedy.is_empty(), "{check:?}");
            assert!(!check.detail.is_empty(), "{check:?}");
        }
    }
}
