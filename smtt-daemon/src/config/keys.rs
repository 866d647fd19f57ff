//! Every key of the configuration as data; config/smtt.toml is written from here.

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// `section.key`.
    pub key: &'static str,
    /// Its default, as TOML.
    pub default: &'static str,
    /// What it does, one line per element.
    pub help: &'static [&'static str],
}

/// Every key, in the order of config/smtt.toml.
pub const KEYS: &[Key] = &[
    Key {
        key: "web.listen_address",
        default: "\"127.0.0.1:10871\"",
        help: &[
            "Address and port of the metrics for Prometheus (\":10871\" for every address), or \"off\".",
            "Anybody who can reach it can read the names of applications and RDDs.",
        ],
    },
    Key {
        key: "web.telemetry_path",
        default: "\"/metrics\"",
        help: &["Path of the metrics."],
    },
    Key {
        key: "control.socket",
        default: "\"/run/smtt/smtt.sock\"",
        help: &["Socket that smtt-ctl asks."],
    },
    Key {
        key: "control.group",
        default: "\"smtt\"",
        help: &["Group whose members may use the socket, besides root; \"\" for root only."],
    },
    Key {
        key: "marker.libraries",
        default: "[\"/usr/lib/smtt/libsmtt_marker.so\"]",
        help: &[
            "Native libraries of the marker that get probes when the daemon starts, so that executors are seen from",
            "their first moment. Libraries in other places (containers) are found in running executors.",
        ],
    },
    Key {
        key: "marker.scan_interval",
        default: "\"1s\"",
        help: &[
            "How often new processes are looked for that may be executors. From \"100ms\" to \"1h\".",
        ],
    },
    Key {
        key: "probe.fault.hook",
        default: "\"auto\"",
        help: &[
            "Which hook counts page faults: \"raw_tracepoint\" tells reads from writes, \"software\" does not but is",
            "there on every kernel, \"auto\" takes the best one that is there, \"off\" counts none.",
        ],
    },
    Key {
        key: "probe.fault.sample_every",
        default: "64",
        help: &[
            "Every this-manieth page fault of an executor per CPU is sent with its address; 0 for none.",
        ],
    },
    Key {
        key: "probe.fault.samples_per_second",
        default: "200",
        help: &["Addresses per second and CPU at most."],
    },
    Key {
        key: "probe.marker.facts_per_second",
        default: "20000",
        help: &["Facts per second that one executor may tell; more are dropped and counted."],
    },
    Key {
        key: "limits.executors",
        default: "64",
        help: &["Executors, with those that died within the retention."],
    },
    Key {
        key: "limits.rdds_per_executor",
        default: "1024",
        help: &[
            "RDDs, tasks, stages, blocks, pages of execution memory and address ranges of one executor. When a table",
            "is full the oldest rows that are done with are folded into an overflow row; nothing is lost from the sums.",
        ],
    },
    Key {
        key: "limits.tasks_per_executor",
        default: "8192",
        help: &[],
    },
    Key {
        key: "limits.stages_per_executor",
        default: "1024",
        help: &[],
    },
    Key {
        key: "limits.blocks_per_executor",
        default: "8192",
        help: &[],
    },
    Key {
        key: "limits.pages_per_executor",
        default: "16384",
        help: &[],
    },
    Key {
        key: "limits.ranges_per_executor",
        default: "32768",
        help: &[],
    },
    Key {
        key: "limits.contexts",
        default: "65536",
        help: &[
            "Contexts (task x RDD x activity) in the kernel side's table, and how many of them one executor may use.",
        ],
    },
    Key {
        key: "limits.contexts_per_executor",
        default: "16384",
        help: &[],
    },
    Key {
        key: "limits.threads",
        default: "16384",
        help: &["Threads in the kernel side's table, and how many of them one executor may use."],
    },
    Key {
        key: "limits.threads_per_executor",
        default: "4096",
        help: &[],
    },
    Key {
        key: "limits.processes",
        default: "4096",
        help: &["Executors and their child processes (Python workers) in the kernel side's table."],
    },
    Key {
        key: "limits.ring",
        default: "\"1MiB\"",
        help: &["Size of the ring between kernel and daemon, a power of two."],
    },
    Key {
        key: "limits.series",
        default: "500",
        help: &[
            "RDDs that have series of their own in the metrics, over all executors; the others share rdd_id=\"other\".",
        ],
    },
    Key {
        key: "retention.executors",
        default: "\"15m\"",
        help: &["How long the figures of a dead executor are kept."],
    },
    Key {
        key: "log.level",
        default: "\"info\"",
        help: &[
            "error, warn, info, debug or trace, or a filter such as \"info,smtt_daemon=debug\".",
        ],
    },
];

/// The text of config/smtt.toml.
#[must_use]
pub fn default_text() -> String {
    let mut text = String::from(
        "# Configuration of smtt-daemon, with its defaults. Every key may be left out.\n\
         # Durations are \"500ms\", \"2s\", \"10m\", \"1h\"; sizes are \"512KiB\", \"4MiB\".\n\
         # Check it with: smtt-ctl doctor --config FILE\n",
    );
    let mut section = "";
    for key in KEYS {
        let (of, name) = key.key.rsplit_once('.').unwrap_or(("", key.key));
        if of != section {
            section = of;
            text.push_str(&format!("\n[{section}]\n"));
        }
        for line in key.help {
            text.push_str(&format!("# {line}\n"));
        }
        text.push_str(&format!("{name} = {}\n", key.default));
    }
    text
}
