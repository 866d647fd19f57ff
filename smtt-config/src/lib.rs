//! Configuration: the text of the file ([`file`]) -> the checked [`Config`]. Every limit is checked here, once. An
//! error names the file, the line, the key and the allowed values.

mod file;
mod history;
mod probes;
mod values;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use smtt_machine::damon::Pace;
use smtt_machine::page_walks::PageWalkSettings;
use smtt_model::cpu::{Overrides, describe};
use smtt_model::log_levels::{LOG_LEVELS, log_levels};
use smtt_model::rows::GroupBy;
use smtt_model::state::Limits;

pub use self::file::{DEFAULT_FILE, default_text};
use self::values::{
    Problem, absolute, bytes, count, duration, file_or_none, rdds_by, sha256, within,
};

pub use self::history::HistorySettings;
pub use self::probes::{FAULT_WINDOW, FaultHook, ProbeSettings};

/// Limits of the resolver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementSettings {
    /// Pages per second; 0 switches the resolver off.
    pub pages_per_second: u64,
    /// CPU time per second, in milliseconds.
    pub milliseconds_per_second: u64,
    /// Time from the start of a round to the start of the next.
    pub interval: Duration,
    /// Whether the frames of first pages are also read, for trace records.
    pub frames: bool,
}

impl Default for PlacementSettings {
    fn default() -> Self {
        Self {
            pages_per_second: 10_000,
            milliseconds_per_second: 2,
            interval: Duration::from_secs(10),
            frames: false,
        }
    }
}

/// Folder and limits of trace files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSettings {
    /// The trace folder.
    pub folder: PathBuf,
    /// Bytes after which a segment is finished.
    pub segment_bytes: u64,
    /// Time after which a segment is finished.
    pub segment_time: Duration,
    /// Disk space of all segments and their folders together, in bytes.
    pub max_bytes: u64,
    /// Most segments.
    pub max_files: u64,
    /// Group that may read the files.
    pub gid: Option<u32>,
}

/// Where reports about dead executors are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostmortemSettings {
    /// The folder; `None` where they are kept in memory only.
    pub folder: Option<PathBuf>,
    /// Disk space of all reports, in bytes.
    pub max_bytes: u64,
    /// Most reports.
    pub max_files: u64,
    /// Group that may read the files.
    pub gid: Option<u32>,
}

/// The checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The metrics port.
    pub web: Web,
    /// The Unix socket of `smtt-ctl`.
    pub control: Control,
    /// The marker in executors.
    pub marker: Marker,
    /// Settings with which the kernel side is loaded.
    pub probes: ProbeSettings,
    /// Capacities of the tables, and the retention of dead executors.
    pub limits: Limits,
    /// What RDDs of one key of the metrics have in common.
    pub rdds_by: GroupBy,
    /// Keys of RDDs in the metrics, of all applications.
    pub series: usize,
    /// Keys of RDDs in the metrics, of one application.
    pub series_per_application: usize,
    /// Time between two reads of the counters.
    pub tick: Duration,
    /// Limits of the placement of pages.
    pub placement: PlacementSettings,
    /// How often DAMON checks; `None` where it is not used.
    pub hotness: Option<Pace>,
    /// Trace files; `None` where none are written.
    pub trace: Option<TraceSettings>,
    /// Folder of trace files, also where none are written.
    pub trace_folder: PathBuf,
    /// Reports about dead executors.
    pub postmortem: PostmortemSettings,
    /// Files of this worker in a store of finished applications; `None` where none are written.
    pub history: Option<HistorySettings>,
    /// The log.
    pub log: Log,
}

/// See [`Config::web`].
#[derive(Clone, Debug)]
pub struct Web {
    /// Address and port.
    pub listen_address: SocketAddr,
    /// Path of the metrics.
    pub telemetry_path: String,
    /// Whether the metrics show names of applications and RDDs to every local user.
    pub names_shown: bool,
    /// File with the users that may read the metrics; `None` where all may.
    pub users_file: Option<PathBuf>,
    /// File with the tokens whose bearers may read the metrics.
    pub token_file: Option<PathBuf>,
    /// Web configuration in the form of Prometheus exporters.
    pub config_file: Option<PathBuf>,
    /// Whether the listings of the control socket are served too.
    pub api: bool,
    /// How long new counters show 0.
    pub scrape_interval: Duration,
}

/// See [`Config::control`].
#[derive(Clone, Debug)]
pub struct Control {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Group that may use it.
    pub group: String,
}

/// See [`Config::marker`].
#[derive(Clone, Debug)]
pub struct Marker {
    /// Libraries that get their probes at the start, before any executor loads them.
    pub libraries: Vec<PathBuf>,
    /// SHA-256 digests of further libraries that may be probed.
    pub digests: Vec<[u8; 32]>,
    /// Time between two scans for executors that started before the daemon.
    pub scan_interval: Duration,
}

pub use values::LogFormat;

/// See [`Config::log`].
#[derive(Clone, Debug)]
pub struct Log {
    /// Level, or levels by module: `warn,smtt_daemon=debug`.
    pub level: String,
    /// Form of the lines.
    pub format: LogFormat,
}

/// Error in a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("configuration {} cannot be read: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The file has an invalid key or value.
    #[error("configuration {}, line {line}: {message}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The error, and what is allowed.
        message: String,
    },
}

/// Reads the configuration: from `path`, else from [`DEFAULT_FILE`] where that exists, else the defaults.
///
/// # Errors
/// When the file cannot be read or has an invalid key or value.
pub fn load(path: Option<&Path>) -> Result<Config, ConfigError> {
    let (path, must_exist) = path.map_or((Path::new(DEFAULT_FILE), false), |path| (path, true));
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text, path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_exist => {
            parse("", path)
        }
        Err(error) => Err(ConfigError::Unreadable {
            path: path.to_owned(),
            error,
        }),
    }
}

/// Checks the text of a configuration; `path` is for messages.
///
/// # Errors
/// When the text has an invalid key or value.
pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
    let wrong = |line, message| ConfigError::Wrong {
        path: path.to_owned(),
        line,
        message,
    };
    let file = file::parse(text).map_err(|(line, message)| wrong(line, message))?;
    check(&file)
        .map_err(|(key, message)| wrong(file::line_of(text, key), format!("{key}: {message}")))
}

/// Reads a duration as configurations write it, as `10m`.
#[must_use]
pub fn duration_of(text: &str) -> Option<Duration> {
    file::duration(text)
}

/// Checked also where no trace files are written, so that an error shows before it matters.
fn trace(file: &file::Trace) -> Result<(bool, TraceSettings), Problem> {
    let segment_bytes = bytes(
        "trace.segment_bytes",
        &file.segment_bytes,
        64 << 10,
        16 << 30,
    )?;
    let settings = TraceSettings {
        folder: absolute("trace.folder", &file.folder)?,
        segment_bytes,
        segment_time: Duration::from_secs(within(
            "trace.segment_seconds",
            file.segment_seconds,
            1,
            86_400,
        )?),
        max_bytes: bytes(
            "trace.max_bytes",
            &file.max_bytes,
            segment_bytes.saturating_mul(4),
            1 << 60,
        )?,
        max_files: within("trace.max_files", file.max_files, 64, 1 << 32)?,
        gid: None,
    };
    Ok((file.enabled, settings))
}

fn postmortem(file: &file::Postmortem) -> Result<PostmortemSettings, Problem> {
    Ok(PostmortemSettings {
        folder: match file.folder.as_str() {
            "" => None,
            path => Some(absolute("postmortem.folder", path)?),
        },
        max_bytes: bytes("postmortem.max_bytes", &file.max_bytes, 1 << 20, 1 << 60)?,
        max_files: within("postmortem.max_files", file.max_files, 16, 1 << 20)?,
        gid: None,
    })
}

fn check(file: &file::File) -> Result<Config, Problem> {
    let listen_address: SocketAddr = file.web.listen_address.parse().map_err(|_| {
        (
            "web.listen_address",
            format!(
                "{:?} is no address and port, as in \"127.0.0.1:10871\"",
                file.web.listen_address
            ),
        )
    })?;
    if !file.web.telemetry_path.starts_with('/')
        || matches!(
            file.web.telemetry_path.as_str(),
            "/" | "/-/healthy" | "/-/ready"
        )
    {
        return Err((
            "web.telemetry_path",
            format!(
                "{:?} is no path of its own: it starts with / and is none of /, /-/healthy, /-/ready",
                file.web.telemetry_path
            ),
        ));
    }
    let names_shown = match file.web.names.as_str() {
        "hidden" => false,
        "shown" => true,
        other => {
            let message = format!("{other:?} is none of \"hidden\", \"shown\"");
            return Err(("web.names", message));
        }
    };
    let hook = match file.probe.fault.hook.as_str() {
        "auto" => FaultHook::Auto,
        "raw_tracepoint" => FaultHook::RawTracepoint,
        "fexit" => FaultHook::Fexit,
        "kprobe" => FaultHook::Kprobe,
        "software" => FaultHook::Software,
        "off" => FaultHook::Off,
        other => {
            return Err((
                "probe.fault.hook",
                format!(
                    "{other:?} is none of \"auto\", \"raw_tracepoint\", \"fexit\", \"kprobe\", \"software\", \"off\""
                ),
            ));
        }
    };
    let ring = file::size(&file.limits.ring).ok_or_else(|| {
        (
            "limits.ring",
            format!(
                "{:?} is no size: write a number and KiB, MiB or GiB, as in \"1MiB\"",
                file.limits.ring
            ),
        )
    })?;
    if !ring.is_power_of_two() || !(4096..=1 << 28).contains(&ring) {
        return Err((
            "limits.ring",
            format!(
                "{:?} is no power of two from 4KiB to 256MiB",
                file.limits.ring
            ),
        ));
    }
    if log_levels(&file.log.level).is_none() {
        return Err((
            "log.level",
            format!("{:?} is none of {LOG_LEVELS}", file.log.level),
        ));
    }
    let limits = &file.limits;
    let executors = count("limits.executors", limits.executors, 4096)?;
    let contexts = count("limits.contexts", limits.contexts, 1 << 22)?;
    let threads = count("limits.threads", limits.threads, 1 << 22)?;
    let retention = duration(
        "retention.executors",
        &file.retention.executors,
        Duration::ZERO,
        Duration::from_secs(7 * 86_400),
    )?;
    let defaults = ProbeSettings::default();
    let mut settings = defaults.settings;
    settings.fault_sample_every = within(
        "probe.fault.sample_every",
        file.probe.fault.sample_every,
        0,
        1 << 30,
    )? as u32;
    settings.fault_samples_per_second = count(
        "probe.fault.samples_per_second",
        file.probe.fault.samples_per_second,
        1_000_000,
    )?;
    let timed_share = file.probe.fault.timed_share;
    if !(0.0..=0.05).contains(&timed_share) {
        return Err((
            "probe.fault.timed_share",
            format!("{timed_share} is not from 0 to 0.05"),
        ));
    }
    settings.facts_per_second = count(
        "probe.marker.facts_per_second",
        file.probe.marker.facts_per_second,
        10_000_000,
    )?;
    settings.bytes_per_second = bytes(
        "probe.marker.bytes_per_second",
        &file.probe.marker.bytes_per_second,
        64 << 10,
        1 << 30,
    )? as u32;
    if !(0.1..=0.9).contains(&limits.user_share) {
        return Err((
            "limits.user_share",
            format!("{} is not from 0.1 to 0.9", limits.user_share),
        ));
    }
    settings.user_share_permille = (limits.user_share * 1000.0) as u32;
    // One executor may use a quarter of a table, so that it cannot displace the others.
    settings.threads_per_executor = (threads / 4).max(1);
    settings.contexts_per_executor = (contexts / 4).max(1);
    let (enabled, trace) = trace(&file.trace)?;
    Ok(Config {
        web: Web {
            listen_address,
            telemetry_path: file.web.telemetry_path.clone(),
            names_shown,
            users_file: file_or_none("web.users_file", &file.web.users_file)?,
            token_file: file_or_none("web.token_file", &file.web.token_file)?,
            config_file: file_or_none("web.config_file", &file.web.config_file)?,
            api: file.web.api,
            scrape_interval: duration(
                "web.scrape_interval",
                &file.web.scrape_interval,
                Duration::ZERO,
                Duration::from_secs(3600),
            )?,
        },
        control: Control {
            socket: absolute("control.socket", &file.control.socket)?,
            group: file.control.group.clone(),
        },
        marker: Marker {
            libraries: file
                .marker
                .libraries
                .iter()
                .map(|path| absolute("marker.libraries", path))
                .collect::<Result<_, _>>()?,
            digests: file
                .marker
                .digests
                .iter()
                .map(|digest| sha256(digest))
                .collect::<Result<_, _>>()?,
            scan_interval: duration(
                "marker.scan_interval",
                &file.marker.scan_interval,
                Duration::from_millis(100),
                Duration::from_secs(3600),
            )?,
        },
        probes: ProbeSettings {
            fault_hook: hook,
            fault_idle: defaults.fault_idle,
            fault_windows: (timed_share > 0.0).then(|| FAULT_WINDOW.div_f64(timed_share.max(1e-4))),
            settings,
            ring_bytes: ring as u32,
            contexts,
            executors,
            processes: count("limits.processes", limits.processes, 1 << 20)?,
            threads,
            library_files: defaults.library_files,
            page_walks: page_walks(&file.page_walks)?,
            clock_samples_per_second: within(
                "probe.on_cpu.samples_per_second",
                file.probe.on_cpu.samples_per_second,
                0,
                100_000,
            )? as u32,
        },
        limits: Limits {
            executors: executors as usize,
            rdds_per_executor: count(
                "limits.rdds_per_executor",
                limits.rdds_per_executor,
                1 << 20,
            )? as usize,
            tasks_per_executor: count(
                "limits.tasks_per_executor",
                limits.tasks_per_executor,
                1 << 22,
            )? as usize,
            stages_per_executor: count(
                "limits.stages_per_executor",
                limits.stages_per_executor,
                1 << 20,
            )? as usize,
            blocks_per_executor: count(
                "limits.blocks_per_executor",
                limits.blocks_per_executor,
                1 << 22,
            )? as usize,
            spark_pages_per_executor: count(
                "limits.spark_pages_per_executor",
                limits.spark_pages_per_executor,
                1 << 22,
            )? as usize,
            ranges_per_executor: count(
                "limits.ranges_per_executor",
                limits.ranges_per_executor,
                1 << 22,
            )? as usize,
            state_bytes: bytes("limits.state", &limits.state, 1 << 20, 1 << 40)? as usize,
            state_per_executor_bytes: bytes(
                "limits.state_per_executor",
                &limits.state_per_executor,
                1 << 18,
                1 << 40,
            )? as usize,
            user_share: limits.user_share,
            facts_per_second: u64::from(settings.facts_per_second),
            retention_ns: u64::try_from(retention.as_nanos()).unwrap_or(u64::MAX),
        },
        rdds_by: rdds_by("metrics.rdds_by", &file.metrics.rdds_by)?,
        series: count("limits.series", limits.series, 1 << 16)? as usize,
        series_per_application: count(
            "limits.series_per_application",
            limits.series_per_application,
            1 << 16,
        )? as usize,
        tick: duration(
            "tick",
            &file.tick,
            Duration::from_millis(100),
            Duration::from_secs(60),
        )?,
        placement: PlacementSettings {
            pages_per_second: within(
                "placement.pages_per_second",
                file.placement.pages_per_second,
                0,
                100_000_000,
            )?,
            milliseconds_per_second: within(
                "placement.milliseconds_per_second",
                file.placement.milliseconds_per_second,
                1,
                1000,
            )?,
            interval: duration(
                "placement.interval",
                &file.placement.interval,
                Duration::from_millis(100),
                Duration::from_secs(3600),
            )?,
            // Only trace records have them.
            frames: enabled,
        },
        hotness: match file.hotness.method.as_str() {
            "reads" => None,
            "damon" => Some(Pace::default()),
            other => {
                return Err((
                    "hotness.method",
                    format!("{other:?} is none of \"reads\", \"damon\""),
                ));
            }
        },
        trace: enabled.then_some(trace.clone()),
        trace_folder: trace.folder,
        postmortem: postmortem(&file.postmortem)?,
        history: history::check(&file.history)?,
        log: Log {
            level: file.log.level.clone(),
            format: file.log.format.parse().map_err(|why| ("log.format", why))?,
        },
    })
}

/// How page walks are sampled. Events are checked against this machine's PMUs, which define their terms.
fn page_walks(file: &file::PageWalks) -> Result<PageWalkSettings, (&'static str, String)> {
    let overrides = Overrides(file.events.clone());
    describe(
        &smtt_machine::cpu::of_this_machine(Path::new("/")),
        &overrides,
    )
    .map_err(|error| ("page_walks.events", error.to_string()))?;
    if let Some((role, _)) = file.sample_periods.iter().find(|(_, period)| **period == 0) {
        return Err((
            "page_walks.sample_periods",
            format!("{role} = 0 takes no samples: at least 1"),
        ));
    }
    Ok(PageWalkSettings {
        enabled: file.enabled,
        calibrate: file.calibrate,
        max_samples_per_second: count(
            "page_walks.max_samples_per_second",
            file.max_samples_per_second,
            100_000,
        )?,
        sample_periods: file.sample_periods.clone(),
        turn: duration(
            "page_walks.turn",
            &file.turn,
            Duration::from_secs(1),
            Duration::from_secs(3600),
        )?,
        overrides,
    })
}

#[cfg(test)]
mod tests;
