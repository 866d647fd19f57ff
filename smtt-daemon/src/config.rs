//! Configuration: as written in /etc/smtt/smtt.toml ([`raw::RawConfig`]) -> as checked ([`Config`]).
//!
//! Every key, its default and its explanation are in [`keys::KEYS`]; config/smtt.toml is generated from there. All
//! checks are in this file, and each error names the file, the line, the key and what is allowed.

pub mod keys;
pub mod raw;
mod units;

use crate::aggregate::Limits;
use raw::{RawConfig, Wrong};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the configuration is looked for.
pub const DEFAULT_PATH: &str = "/etc/smtt/smtt.toml";

/// The configuration, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The metrics port.
    pub web: Web,
    /// The control socket.
    pub control: Control,
    /// Where the marker is.
    pub marker: Marker,
    /// The page fault probe.
    pub fault: FaultProbe,
    /// Facts per second that one executor may send; more are dropped and counted.
    pub facts_per_second: u32,
    /// Caps of all tables.
    pub limits: TableLimits,
    /// How long a dead executor is kept.
    pub retention_executors: Duration,
    /// Filter of the log, as `tracing` takes it.
    pub log_level: String,
}

/// The metrics port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Web {
    /// Address and port; `None` where switched off.
    pub listen_address: Option<SocketAddr>,
    /// Path of the metrics.
    pub telemetry_path: String,
}

/// The control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// Its path.
    pub socket: PathBuf,
    /// Group that may use it; empty for root only.
    pub group: String,
}

/// Where the marker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Native libraries that get probes at the start, before any executor runs.
    pub libraries: Vec<PathBuf>,
    /// How often new processes are looked for.
    pub scan_interval: Duration,
}

/// Which hook counts page faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultHook {
    /// The best one that this kernel has.
    Auto,
    /// The raw tracepoints, or nothing.
    RawTracepoint,
    /// The software event, which cannot tell reads from writes.
    Software,
    /// None.
    Off,
}

/// The page fault probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultProbe {
    /// Which hook.
    pub hook: FaultHook,
    /// Every this-manieth fault per CPU is sent with its address; 0 for none.
    pub sample_every: u32,
    /// Samples per second and CPU at most.
    pub samples_per_second: u32,
}

/// Caps of all tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLimits {
    /// Executors, living and dead.
    pub executors: u32,
    /// RDDs of one executor.
    pub rdds_per_executor: u32,
    /// Task attempts of one executor.
    pub tasks_per_executor: u32,
    /// Stage attempts of one executor.
    pub stages_per_executor: u32,
    /// Blocks of one executor.
    pub blocks_per_executor: u32,
    /// Pages and grants of execution memory of one executor.
    pub pages_per_executor: u32,
    /// Address ranges of one executor.
    pub ranges_per_executor: u32,
    /// Contexts in the kernel side's table.
    pub contexts: u32,
    /// Of them, contexts of one executor.
    pub contexts_per_executor: u32,
    /// Threads in the kernel side's table.
    pub threads: u32,
    /// Of them, threads of one executor.
    pub threads_per_executor: u32,
    /// Processes in the kernel side's table: executors and their children.
    pub processes: u32,
    /// Bytes of the ring.
    pub ring_bytes: u32,
    /// RDDs with series of their own, over all executors.
    pub series: u32,
}

/// Why there is no configuration. `smtt-daemon` ends with 78 then.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {error}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// What it says is wrong. All that is wrong, not only the first.
    #[error("{}", Lines(.0))]
    Wrong(Vec<Wrong>),
}

/// One line per error.
struct Lines<'a>(&'a [Wrong]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, wrong) in self.0.iter().enumerate() {
            if index > 0 {
                out.write_str("\n")?;
            }
            write!(out, "{wrong}")?;
        }
        Ok(())
    }
}

impl Config {
    /// Reads and checks the configuration. Without a path it is [`DEFAULT_PATH`], where a missing file means the
    /// defaults. `overrides` are keys with values as TOML would have them, for example
    /// `("web.listen_address", "127.0.0.1:10999")`, and the option that they came with.
    ///
    /// # Errors
    /// When the file cannot be read, or anything in it or in the overrides is wrong.
    pub fn load(
        path: Option<&Path>,
        overrides: &[(&str, &str, &str)],
    ) -> Result<Self, ConfigError> {
        let file = path.unwrap_or_else(|| Path::new(DEFAULT_PATH));
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if path.is_none() && error.kind() == io::ErrorKind::NotFound => {
                String::new()
            }
            Err(error) => {
                return Err(ConfigError::Read {
                    path: file.to_owned(),
                    error,
                });
            }
        };
        Self::parse(&text, &file.display().to_string(), overrides)
    }

    /// Checks the configuration in `text`, which came from `file`.
    ///
    /// # Errors
    /// When anything in it or in the overrides is wrong.
    pub fn parse(
        text: &str,
        file: &str,
        overrides: &[(&str, &str, &str)],
    ) -> Result<Self, ConfigError> {
        let mut raw = RawConfig::defaults();
        let mut wrong = raw.read(text, file);
        for (key, value, option) in overrides {
            wrong.extend(raw.set(key, value, option).err());
        }
        if !wrong.is_empty() {
            return Err(ConfigError::Wrong(wrong));
        }
        check(&raw).map_err(ConfigError::Wrong)
    }

    /// Caps of the state.
    #[must_use]
    pub fn state_limits(&self) -> Limits {
        let limits = &self.limits;
        Limits {
            executors: limits.executors as usize,
            rdds_per_executor: limits.rdds_per_executor as usize,
            tasks_per_executor: limits.tasks_per_executor as usize,
            stages_per_executor: limits.stages_per_executor as usize,
            blocks_per_executor: limits.blocks_per_executor as usize,
            pages_per_executor: limits.pages_per_executor as usize,
            ranges_per_executor: limits.ranges_per_executor as usize,
            retention_ns: u64::try_from(self.retention_executors.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// Takes values out of a [`RawConfig`] and collects what is wrong with them.
struct Checker<'a> {
    raw: &'a RawConfig,
    wrong: Vec<Wrong>,
}

impl Checker<'_> {
    fn refuse(&mut self, key: &str, message: impl Into<String>) {
        self.wrong.push(self.raw.wrong(key, message));
    }

    fn text(&mut self, key: &str) -> String {
        match self.raw.text(key) {
            Ok(text) => text,
            Err(wrong) => {
                self.wrong.push(wrong);
                String::new()
            }
        }
    }

    fn absolute(&mut self, key: &str) -> PathBuf {
        let path = PathBuf::from(self.text(key));
        if !path.is_absolute() {
            self.refuse(key, "must be an absolute path");
        }
        path
    }

    fn number(&mut self, key: &str, least: u32, most: u32) -> u32 {
        match self.raw.integer(key) {
            Ok(value) => match u32::try_from(value) {
                Ok(value) if (least..=most).contains(&value) => return value,
                _ => self.refuse(
                    key,
                    format!("is {value}, but must be from {least} to {most}"),
                ),
            },
            Err(wrong) => self.wrong.push(wrong),
        }
        least
    }

    fn duration(&mut self, key: &str, least: Duration, most: Duration) -> Duration {
        let text = self.text(key);
        match units::duration(&text) {
            Some(value) if (least..=most).contains(&value) => return value,
            Some(_) => self.refuse(key, format!("is {text:?}, but must be from {least:?} to {}s", most.as_secs())),
            None => self.refuse(key, format!("is {text:?}, but must be a duration such as \"500ms\", \"2s\", \"10m\" or \"1h\"")),
        }
        least
    }

    fn size(&mut self, key: &str) -> u64 {
        let text = self.text(key);
        units::size(&text).unwrap_or_else(|| {
            self.refuse(
                key,
                format!("is {text:?}, but must be a size such as \"512KiB\", \"4MiB\" or \"1GiB\""),
            );
            0
        })
    }
}

/// All checks.
fn check(raw: &RawConfig) -> Result<Config, Vec<Wrong>> {
    let mut checker = Checker {
        raw,
        wrong: Vec::new(),
    };
    let config = Config {
        web: web(&mut checker),
        control: Control {
            socket: checker.absolute("control.socket"),
            group: checker.text("control.group"),
        },
        marker: Marker {
            libraries: libraries(&mut checker),
            scan_interval: checker.duration(
                "marker.scan_interval",
                Duration::from_millis(100),
                Duration::from_secs(3600),
            ),
        },
        fault: FaultProbe {
            hook: fault_hook(&mut checker),
            sample_every: checker.number("probe.fault.sample_every", 0, u32::MAX),
            samples_per_second: checker.number("probe.fault.samples_per_second", 0, 1_000_000),
        },
        facts_per_second: checker.number("probe.marker.facts_per_second", 1, 10_000_000),
        limits: limits(&mut checker),
        retention_executors: checker.duration(
            "retention.executors",
            Duration::ZERO,
            Duration::from_secs(30 * 86_400),
        ),
        log_level: log_level(&mut checker),
    };
    if config.control.socket.as_os_str().len() > 107 {
        checker.refuse(
            "control.socket",
            "is too long: the kernel takes 107 bytes for the path of a socket",
        );
    }
    for (part, whole) in [
        ("contexts_per_executor", "contexts"),
        ("threads_per_executor", "threads"),
    ] {
        let of = |name: &str| raw.integer(&format!("limits.{name}")).unwrap_or(0);
        if of(part) > of(whole) {
            checker.refuse(
                &format!("limits.{part}"),
                format!("is {}, more than {whole} ({})", of(part), of(whole)),
            );
        }
    }
    if config.limits.processes < config.limits.executors {
        checker.refuse(
            "limits.processes",
            format!(
                "is {}, less than executors ({})",
                config.limits.processes, config.limits.executors
            ),
        );
    }
    if checker.wrong.is_empty() {
        Ok(config)
    } else {
        Err(checker.wrong)
    }
}

fn web(checker: &mut Checker<'_>) -> Web {
    let (listen, path) = (
        checker.text("web.listen_address"),
        checker.text("web.telemetry_path"),
    );
    // ":PORT" is every address, as other exporters take it.
    let full = if listen.starts_with(':') {
        format!("0.0.0.0{listen}")
    } else {
        listen.clone()
    };
    let listen_address = if listen == "off" {
        None
    } else {
        full.parse().ok()
    };
    if listen_address.is_none() && listen != "off" {
        checker.refuse(
            "web.listen_address",
            format!("is {listen:?}, but must be an address and port such as \"127.0.0.1:10871\" or \"[::1]:10871\", or \"off\""),
        );
    }
    let reserved = ["/", "/-/healthy", "/-/ready"];
    let plain = path
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte));
    if !path.starts_with('/')
        || !plain
        || reserved.contains(&path.as_str())
        || path.starts_with("/v1")
    {
        checker.refuse(
            "web.telemetry_path",
            format!("is {path:?}, but must start with / and hold only letters, digits, / - _ . (and not /, /-/... or /v1...)"),
        );
    }
    Web {
        listen_address,
        telemetry_path: path,
    }
}

fn libraries(checker: &mut Checker<'_>) -> Vec<PathBuf> {
    let key = "marker.libraries";
    match checker.raw.list(key) {
        Ok(list) => {
            let paths: Vec<PathBuf> = list.into_iter().map(PathBuf::from).collect();
            if let Some(path) = paths.iter().find(|path| !path.is_absolute()) {
                checker.refuse(
                    key,
                    format!("has {path:?}, but every path must be absolute"),
                );
            }
            paths
        }
        Err(wrong) => {
            checker.wrong.push(wrong);
            Vec::new()
        }
    }
}

fn fault_hook(checker: &mut Checker<'_>) -> FaultHook {
    let hook = checker.text("probe.fault.hook");
    match hook.as_str() {
        "auto" => FaultHook::Auto,
        "raw_tracepoint" => FaultHook::RawTracepoint,
        "software" => FaultHook::Software,
        "off" => FaultHook::Off,
        _ => {
            let message = format!(
                "is {hook:?}, but must be \"auto\", \"raw_tracepoint\", \"software\" or \"off\""
            );
            checker.refuse("probe.fault.hook", message);
            FaultHook::Auto
        }
    }
}

fn limits(checker: &mut Checker<'_>) -> TableLimits {
    let mut number = |name: &str, most| checker.number(&format!("limits.{name}"), 1, most);
    let mut limits = TableLimits {
        executors: number("executors", 4096),
        rdds_per_executor: number("rdds_per_executor", 1 << 20),
        tasks_per_executor: number("tasks_per_executor", 1 << 20),
        stages_per_executor: number("stages_per_executor", 1 << 20),
        blocks_per_executor: number("blocks_per_executor", 1 << 20),
        pages_per_executor: number("pages_per_executor", 1 << 20),
        ranges_per_executor: number("ranges_per_executor", 1 << 22),
        contexts: number("contexts", 1 << 24),
        contexts_per_executor: number("contexts_per_executor", 1 << 24),
        threads: number("threads", 1 << 22),
        threads_per_executor: number("threads_per_executor", 1 << 22),
        processes: number("processes", 1 << 22),
        ring_bytes: 0,
        series: number("series", 1 << 20),
    };
    let ring = checker.size("limits.ring");
    match u32::try_from(ring) {
        Ok(bytes) if bytes.is_power_of_two() && (4096..=1 << 30).contains(&bytes) => {
            limits.ring_bytes = bytes
        }
        _ if ring > 0 => checker.refuse(
            "limits.ring",
            format!("is {ring} bytes, but must be a power of two from \"4KiB\" to \"1GiB\""),
        ),
        // Not a size at all, which has been said.
        _ => {}
    }
    limits
}

fn log_level(checker: &mut Checker<'_>) -> String {
    let level = checker.text("log.level");
    if level.is_empty() || tracing_subscriber::EnvFilter::try_new(&level).is_err() {
        checker.refuse(
            "log.level",
            format!("is {level:?}, but must be error, warn, info, debug or trace, or a filter such as \"info,smtt_daemon=debug\""),
        );
    }
    level
}

#[cfg(test)]
mod tests;
