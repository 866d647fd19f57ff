//! The configuration file as text: its keys, their defaults and their explanations in one place.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use smtt_model::cpu::Role;

/// Default path of the configuration.
pub const DEFAULT_FILE: &str = "/etc/smtt/smtt.toml";

/// Declares a section: its fields with type, default and explanation, for the parser and for the default file.
macro_rules! section {
    ($name:ident, $path:literal, { $($(#[doc = $doc:literal])* $field:ident : $type:ty = $default:expr;)* }) => {
        #[derive(Clone, Debug, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub(super) struct $name { $(pub $field: $type,)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $name {
            fn write(text: &mut String) {
                use std::fmt::Write as _;
                let defaults = Self::default();
                let _ = writeln!(text, "\n[{}]", $path);
                $(
                    $(let _ = writeln!(text, "#{}", $doc);)*
                    let _ = writeln!(text, "{} = {}", stringify!($field), toml::Value::try_from(&defaults.$field).map(|value| value.to_string()).unwrap_or_default());
                )*
            }

            const FIELDS: &'static [&'static str] = &[$(stringify!($field)),*];
        }
    };
}

section!(Web, "web", {
    /// Address and port of the metrics page.
    listen_address: String = "127.0.0.1:10871".into();
    /// Path of the metrics.
    telemetry_path: String = "/metrics".into();
    /// Whether the metrics page shows application ids and the names of applications and RDDs: "hidden" or "shown".
    /// Every local user can read the page. The control socket always shows them to its group.
    names: String = "hidden".into();
    /// File with the users that may read the metrics, one NAME:HASH a line, as `htpasswd -nB NAME` prints it. It must not
    /// be readable for all. Empty, and no token_file: every local user may read them.
    users_file: String = String::new();
    /// File with secrets whose bearers may read the metrics (`Authorization: Bearer SECRET`), one a line, as
    /// `openssl rand -hex 32` prints it. It must not be readable for all.
    token_file: String = String::new();
    /// Web configuration of Prometheus exporters (YAML): TLS, users and headers of the port. Empty: none.
    config_file: String = String::new();
    /// Whether the port also serves the listings of the control socket, for `smtt-ctl --cluster`, with the names of
    /// applications and RDDs of all users. It needs users_file, token_file or basic_auth_users of config_file, and TLS
    /// where listen_address is not loopback.
    api: bool = false;
    /// Longest time between two scrapes of one scraper. A new counter shows 0 for this long, so that rates see its
    /// first counts; 0s for a value at once.
    scrape_interval: String = "60s".into();
});

section!(Metrics, "metrics", {
    /// What the label `rdd` of the metrics is: "name" (of the RDD, or its call site where it has no name of its own),
    /// "query" (description of the SQL execution that the RDD worked for first), "node" (plan node or operation that made
    /// it) or "callsite". RDDs without such a text have their name.
    rdds_by: String = "name".into();
});

section!(Control, "control", {
    /// Unix socket of smtt-ctl, mode 0660.
    socket: String = "/run/smtt/smtt.sock".into();
    /// Group that may use the socket. Where the daemon is not root, its user must be a member.
    group: String = "smtt".into();
});

section!(Marker, "marker", {
    /// Marker libraries that get their probes when the daemon starts. In running executors the daemon probes only
    /// libraries with the same bytes as one of these files.
    libraries: Vec<String> = vec!["/usr/lib/smtt/libsmtt_marker.so".into()];
    /// SHA-256 digests of further libraries that are probed in executors: those in jars of other versions. The daemon's
    /// log has the digest of each library that it does not know.
    digests: Vec<String> = Vec::new();
    /// Time between two scans for executors that started before the daemon.
    scan_interval: String = "1s".into();
});

section!(Fault, "probe.fault", {
    /// Hook of page faults: "auto" takes the first that works; "raw_tracepoint", "fexit" and "kprobe" distinguish
    /// reads from writes, "software" does not; "off" counts no page faults.
    hook: String = "auto".into();
    /// Every Nth page fault of a CPU is sampled with its address; 0 samples none.
    sample_every: u64 = 1024;
    /// Most page-fault samples per second and CPU. At full speed a CPU has some 700,000 faults, so 700 samples. Samples
    /// count against facts_per_second and bytes_per_second too, and leave half of a burst to facts.
    samples_per_second: u64 = 1000;
    /// Share of the time in which the page faults of executors are timed, from 0 (never) to 0.05. In such a window of 10 ms
    /// a fault takes about half as long again, for 40 ms more a tenth; outside of the windows timing costs nothing.
    timed_share: f64 = 0.005;
});

section!(MarkerProbe, "probe.marker", {
    /// Facts per second that one executor may send; more are dropped and counted.
    facts_per_second: u64 = 20_000;
    /// Bytes of the ring per second that one executor may use while the ring is busy; more facts are dropped and
    /// counted. The executors of one user may use twice that, and twice facts_per_second, together.
    bytes_per_second: String = "4MiB".into();
});

section!(OnCpu, "probe.on_cpu", {
    /// Samples per second and CPU of the kernel's clock, for the shares of a task's activities in its CPU time (`on_cpu`).
    /// They are taken while an executor lives, and only where the processor's cycles are not sampled: on most virtual
    /// machines, and with enabled = false below. 200 take 0.3 % of a CPU; 0 takes none.
    samples_per_second: u64 = 200;
});

section!(PageWalks, "page_walks", {
    /// Whether page walks are sampled where the processor can count them. `smtt-ctl pmu` shows what it counts.
    enabled: bool = true;
    /// Most samples per second of each CPU, all events together.
    max_samples_per_second: u64 = 200;
    /// Whether the daemon measures the cost of a walk when it starts, where the processor counts walks but not their
    /// cycles. It takes some tens of milliseconds. Without it there are no estimated ratios.
    calibrate: bool = true;
    /// Where not all events fit the counters at the same time, they take turns of this length.
    turn: String = "5s".into();
    /// Events by role in perf's notation; they replace the built-in ones:
    /// { load_walk_cycles = "cpu/event=0x08,umask=0x10,cmask=1/" }
    events: BTreeMap<Role, String> = BTreeMap::new();
    /// Fixed sampling periods by role, for experiments: { cycles = 10000019 }
    sample_periods: BTreeMap<Role, u64> = BTreeMap::new();
});

section!(Placement, "placement", {
    /// Pages per second whose placement is read from the kernel: in memory or swapped, page size, NUMA node. 0 reads
    /// none. An executor with more pages gets estimates from an evenly spread sample.
    pages_per_second: u64 = 10_000;
    /// CPU time per second for reading placements, in milliseconds.
    milliseconds_per_second: u64 = 2;
    /// Time from the start of one round over all executors to the next.
    interval: String = "10s".into();
});

section!(Hotness, "hotness", {
    /// How the hotness of blocks is measured: "reads" counts Spark's reads of a block per minute; "damon" also measures
    /// how often the block's pages are accessed, with the kernel's DAMON. A machine has one DAMON: while the daemon
    /// uses it, no other program can.
    method: String = "reads".into();
});

section!(Limits, "limits", {
    /// Executors at a time, living and dead. Dead ones may use three quarters.
    executors: u64 = 64;
    /// Processes of executors at a time: JVMs, Python workers and other children.
    processes: u64 = 4096;
    /// Threads with a slot at a time; one executor may use a quarter of them.
    threads: u64 = 16_384;
    /// Contexts that are counted at a time; one executor may use a quarter of them.
    contexts: u64 = 16_384;
    /// RDDs of one executor; further ones share an overflow row.
    rdds_per_executor: u64 = 1024;
    /// Task attempts of one executor; the oldest make room, those that succeeded first.
    tasks_per_executor: u64 = 8192;
    /// Stage attempts of one executor.
    stages_per_executor: u64 = 1024;
    /// Cached blocks of one executor that have rows. Up to sixteen times this number of further RDD blocks count in
    /// sums only.
    blocks_per_executor: u64 = 8192;
    /// Spark's pages and grants of execution memory of one executor.
    spark_pages_per_executor: u64 = 16_384;
    /// Address ranges of one executor.
    ranges_per_executor: u64 = 32_768;
    /// Bytes of the tables of all executors together; inserts that do not fit are refused and counted.
    state: String = "96MiB".into();
    /// Bytes of the tables of one executor.
    state_per_executor: String = "24MiB".into();
    /// RDD names and call sites with series of their own in the metrics: of all applications, and of one application.
    /// Further ones share one series. Users share them evenly.
    series: u64 = 200;
    series_per_application: u64 = 100;
    /// Size of the ring buffer between kernel and daemon, a power of two.
    ring: String = "4MiB".into();
    /// Share of each shared table that one user may hold, from 0.1 to 0.9. With more users each gets less, and some rows
    /// are always free for the next user. Of `state` a user may hold more while no other user has an executor.
    user_share: f64 = 0.75;
});

section!(Retention, "retention", {
    /// How long the rows of a dead executor are kept.
    executors: String = "15m".into();
});

section!(Trace, "trace", {
    /// Whether each access to storage and execution memory is written as a Parquet record; docs/TRACE.md.
    enabled: bool = false;
    /// Folder of the trace files, one per daemon.
    folder: String = "/var/lib/smtt/trace".into();
    /// A segment is finished, and becomes readable, after this many bytes or seconds; a crash loses unfinished ones.
    segment_bytes: String = "64MiB".into();
    segment_seconds: u64 = 60;
    /// Most disk space of all segments and their folders together; the oldest of the user with the most are removed
    /// first. At least four times segment_bytes.
    max_bytes: String = "4GiB".into();
    /// Most segments; the oldest of the user with the most are removed first.
    max_files: u64 = 65_536;
});

section!(Postmortem, "postmortem", {
    /// Folder of the reports about dead executors (smtt-ctl postmortem), one per daemon. Empty: the last reports are kept
    /// in memory only.
    folder: String = "/var/lib/smtt/postmortem".into();
    /// Most disk space of all reports together; the oldest of the user with the most are removed first.
    max_bytes: String = "256MiB".into();
    /// Most reports; the oldest of the user with the most are removed first.
    max_files: u64 = 16_384;
});

section!(History, "history", {
    /// Store of finished applications (smtt-history): what this worker knows of an application is written below its
    /// folder source=workers; docs/HISTORY.md. The store must exist. Empty: nothing is written.
    store: String = String::new();
    /// Time between two files of an application while its tasks end.
    interval: String = "30s".into();
    /// Most disk space of this worker's files together; the oldest of the user with the most are removed first.
    max_bytes: String = "1GiB".into();
    /// Most files of this worker; the oldest of the user with the most are removed first.
    max_files: u64 = 65_536;
});

section!(Log, "log", {
    /// Level of the log: off, error, warn, info, debug or trace; or levels by module (warn,smtt_daemon=debug).
    level: String = "info".into();
    /// Form of its lines: text, or json (an object with time, level and message per line).
    format: String = "text".into();
});

/// Sections below `[probe]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Probe {
    pub fault: Fault,
    pub marker: MarkerProbe,
    pub on_cpu: OnCpu,
}

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct File {
    pub tick: String,
    pub web: Web,
    pub metrics: Metrics,
    pub control: Control,
    pub marker: Marker,
    pub probe: Probe,
    pub page_walks: PageWalks,
    pub placement: Placement,
    pub hotness: Hotness,
    pub limits: Limits,
    pub retention: Retention,
    pub trace: Trace,
    pub postmortem: Postmortem,
    pub history: History,
    pub log: Log,
}

impl Default for File {
    fn default() -> Self {
        Self {
            tick: "1s".into(),
            web: Web::default(),
            metrics: Metrics::default(),
            control: Control::default(),
            marker: Marker::default(),
            probe: Probe::default(),
            page_walks: PageWalks::default(),
            placement: Placement::default(),
            hotness: Hotness::default(),
            limits: Limits::default(),
            retention: Retention::default(),
            trace: Trace::default(),
            postmortem: Postmortem::default(),
            history: History::default(),
            log: Log::default(),
        }
    }
}

/// The default configuration with its explanations: the text of `config/smtt.toml`.
#[must_use]
pub fn default_text() -> String {
    let mut text = String::from(
        "# Configuration of smtt-daemon. Every value here is the default; delete what you do not change.\n# `smtt-daemon --check --config FILE` checks a file.\n\n# Time between two reads of the counters.\n",
    );
    text.push_str(&format!("tick = {:?}\n", File::default().tick));
    Web::write(&mut text);
    Metrics::write(&mut text);
    Control::write(&mut text);
    Marker::write(&mut text);
    Fault::write(&mut text);
    MarkerProbe::write(&mut text);
    OnCpu::write(&mut text);
    PageWalks::write(&mut text);
    Placement::write(&mut text);
    Hotness::write(&mut text);
    Limits::write(&mut text);
    Retention::write(&mut text);
    Trace::write(&mut text);
    Postmortem::write(&mut text);
    History::write(&mut text);
    Log::write(&mut text);
    text
}

/// All known keys, for suggestions.
fn known_keys() -> impl Iterator<Item = &'static str> {
    const SECTIONS: &[&str] = &[
        "tick",
        "web",
        "metrics",
        "control",
        "marker",
        "probe",
        "fault",
        "on_cpu",
        "page_walks",
        "placement",
        "hotness",
        "limits",
        "retention",
        "trace",
        "postmortem",
        "history",
        "log",
    ];
    [
        SECTIONS,
        Web::FIELDS,
        Metrics::FIELDS,
        Control::FIELDS,
        Marker::FIELDS,
        Fault::FIELDS,
        MarkerProbe::FIELDS,
        OnCpu::FIELDS,
        PageWalks::FIELDS,
        Placement::FIELDS,
        Hotness::FIELDS,
        Limits::FIELDS,
        Retention::FIELDS,
        Trace::FIELDS,
        Postmortem::FIELDS,
        History::FIELDS,
        Log::FIELDS,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// Parses the text; an error has its line.
pub(super) fn parse(text: &str) -> Result<File, (usize, String)> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text[..at.min(text.len())].matches('\n').count() + 1;
        let message = error.message();
        let unknown = message
            .strip_prefix("unknown field `")
            .and_then(|rest| rest.split('`').next());
        let message = match unknown {
            Some(key) => match nearest(key) {
                Some(known) => format!("unknown key {key:?}: did you mean {known:?}?"),
                None => format!(
                    "unknown key {key:?}: {}",
                    message.split_once(", ").map_or("", |(_, rest)| rest)
                ),
            },
            None => message.to_owned(),
        };
        (line, message)
    })
}

/// The known key with the smallest edit distance, if a typo is likely.
fn nearest(key: &str) -> Option<&'static str> {
    known_keys()
        .map(|known| (distance(key, known), known))
        .min()
        .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
        .map(|(_, known)| known)
}

/// Edit distance of two words.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let changed = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

/// The line on which a dotted key is set, or 1 where it is not found.
pub(super) fn line_of(text: &str, key: &str) -> usize {
    let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
    let mut at = String::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            at = header
                .trim_end_matches(|letter| letter != ']')
                .trim_end_matches(']')
                .replace(' ', "");
        } else if at == section && line.split('=').next().map(str::trim) == Some(name) {
            return index + 1;
        }
    }
    1
}

/// `250ms`, `10s`, `5m`, `2h`, `1d`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let split = text.find(|letter: char| !letter.is_ascii_digit())?;
    let number: u64 = text[..split].parse().ok()?;
    let unit = match text[split..].trim() {
        "ms" => return Some(Duration::from_millis(number)),
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    number.checked_mul(unit).map(Duration::from_secs)
}

/// `4096`, `64KiB`, `1MiB`, `1GiB`.
pub(super) fn size(text: &str) -> Option<u64> {
    let split = text
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..split].parse().ok()?;
    let unit = match text[split..].trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(unit)
}
