//! The stages, as data: their commands, their time limits, and what may run beside what.

use std::time::Duration;

/// Which stages may run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Before all others, one after another: both lanes need what these stages build, and the folder that cargo locks.
    First,
    /// One after another: daemons and executors on this machine's kernel, which see each other.
    Host,
    /// One after another, beside [`Lane::Host`] and at lower priority: compilers, tests of single processes, and
    /// emulated machines. None of them starts a daemon or a traced JVM on this machine.
    Beside,
    /// Only by its name: it takes long. As [`Lane::Host`], but with nothing beside it.
    ByName,
}

/// One stage: cargo commands with a time limit, which ends a hanging stage. The limit allows for other work on the
/// machine, which makes a stage several times longer.
#[derive(Debug)]
pub struct Stage {
    /// Name on the command line.
    pub name: &'static str,
    /// What it tests.
    pub about: &'static str,
    /// When it runs.
    pub lane: Lane,
    /// Whether its programs must be root.
    pub root: bool,
    /// Arguments of cargo, for each command.
    pub commands: &'static [&'static [&'static str]],
    /// Time limit of all commands together.
    pub limit: Duration,
    /// Environment of the commands, which makes tests of another stage longer.
    pub longer: &'static [(&'static str, &'static str)],
}

/// Builds every program and every test. All commands name the whole workspace: a choice of packages has features of its
/// own for shared dependencies, so cargo would build these once for each choice.
const BUILD: &[&str] = &["build", "--workspace", "--bins", "--tests"];

/// Runs the integration tests of these names, one test after another.
macro_rules! one_by_one {
    ($($name:literal)+) => {
        &[
            "test", "--no-fail-fast", "--workspace", $("--test", $name,)+ "--", "--test-threads=1",
        ]
    };
}

/// Runs some tests of one integration test, and shows what they print.
macro_rules! shown {
    ($program:literal, $filter:literal) => {
        &[
            BUILD,
            &[
                "test",
                "--workspace",
                "--test",
                $program,
                $filter,
                "--",
                "--nocapture",
            ],
        ]
    };
}

/// What most stages have; each names the rest.
const PLAIN: Stage = Stage {
    name: "",
    about: "",
    lane: Lane::Beside,
    root: false,
    commands: &[],
    limit: Duration::from_secs(3600),
    longer: &[],
};

/// All stages; those of one lane run in this order.
pub const STAGES: [Stage; 23] = [
    Stage {
        name: "format",
        about: "rustfmt has nothing to change",
        lane: Lane::First,
        commands: &[
            &["fmt", "--all", "--check"],
            &["fmt", "--check", "--manifest-path", "smtt-ebpf/Cargo.toml"],
        ],
        limit: Duration::from_secs(600),
        ..PLAIN
    },
    Stage {
        name: "build",
        about: "every program and every test",
        lane: Lane::First,
        commands: &[BUILD],
        ..PLAIN
    },
    Stage {
        name: "lint",
        about: "clippy has nothing to say, and the programs build as packages have them",
        // Beside nothing else: cargo locks the folder for minutes. In a folder of its own it would build macros and build
        // scripts once more.
        lane: Lane::First,
        commands: &[
            &[
                "clippy",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ],
            // Without the features that only tests ask for.
            &["check", "--package=smtt", "--bins"],
            &["check", "--package=smtt-history", "--bins"],
        ],
        ..PLAIN
    },
    Stage {
        name: "marker",
        about: "the marker's own tests, on each JVM",
        lane: Lane::Host,
        commands: &[&["xtask", "marker", "--test"]],
        limit: Duration::from_secs(1200),
        ..PLAIN
    },
    Stage {
        name: "kernel",
        about: "tests against this machine's kernel",
        lane: Lane::Host,
        root: true,
        commands: &[BUILD, one_by_one!("kernel" "fault_ladder")],
        ..PLAIN
    },
    Stage {
        name: "spark",
        about: "tests against real Spark",
        lane: Lane::Host,
        root: true,
        commands: &[
            BUILD,
            one_by_one!("spark" "jvm" "prometheus" "ssh" "network" "trace_crash"),
        ],
        limit: Duration::from_secs(10800),
        ..PLAIN
    },
    Stage {
        name: "unit",
        about: "tests that need neither root nor Spark",
        commands: &[
            &[
                "test",
                "--no-fail-fast",
                "--workspace",
                "--lib",
                "--bins",
                "--test",
                "ctl",
                "--test",
                "damaged",
                "--test",
                "documents",
                "--test",
                "fuzz",
                "--test",
                "heap",
                "--test",
                "hostile",
                "--test",
                "memory",
                "--test",
                "memory_of_parts",
                "--test",
                "memory_of_files",
                "--test",
                "protection",
                "--test",
                "suspend",
            ],
            &["test", "--workspace", "--doc"],
        ],
        ..PLAIN
    },
    Stage {
        name: "browser",
        about: "pages in a real browser: the history's, and the report of smtt-ctl",
        commands: &[&[
            "test",
            "--workspace",
            "--test",
            "history_pages",
            "--",
            "--nocapture",
        ]],
        limit: Duration::from_secs(1200),
        ..PLAIN
    },
    Stage {
        name: "objects",
        about: "the history's stores in buckets, against servers of S3's, Google's and Azure's protocols",
        commands: &[&["test", "--workspace", "--test", "objects"]],
        // With an empty cache it fetches the servers.
        limit: Duration::from_secs(2400),
        ..PLAIN
    },
    Stage {
        name: "packages",
        about: "the contents of the packages and the files beside them",
        root: true,
        commands: &[&[
            "test",
            "--workspace",
            "--test",
            "packages",
            "--",
            "--skip",
            "life::",
            "--skip",
            "arm64::",
            "--test-threads=1",
        ]],
        limit: Duration::from_secs(7200),
        ..PLAIN
    },
    Stage {
        name: "history",
        about: "the history of real Spark, and Spark's own history server",
        // Its drivers write with the marker's classes alone: no daemon finds them.
        root: true,
        commands: &[BUILD, one_by_one!("history")],
        limit: Duration::from_secs(7200),
        ..PLAIN
    },
    // The last of its lane: what has no time left does not run.
    Stage {
        name: "vm",
        about: "other kernels, another processor, two nodes, in emulated machines",
        commands: &[&["xtask", "vm"]],
        limit: Duration::from_secs(10800),
        ..PLAIN
    },
    Stage {
        name: "arm64",
        about: "packages for arm64, built as tests are; on an emulated machine the daemon and the marker of them, with a traced JVM",
        // Its programs are built for it alone, which takes longer than its tests.
        lane: Lane::ByName,
        root: true,
        commands: &[
            &[
                "test",
                "--workspace",
                "--test",
                "packages",
                "--",
                "--nocapture",
                "arm64::",
            ],
            &["xtask", "vm", "arm64-6.12"],
        ],
        limit: Duration::from_secs(7200),
        ..PLAIN
    },
    Stage {
        name: "demo",
        about: "the demonstration, as its first reader runs it",
        lane: Lane::ByName,
        root: true,
        commands: &[&["xtask", "demo"]],
        ..PLAIN
    },
    Stage {
        name: "dist",
        about: "the packages as users get them, for both processors: each program within its size",
        lane: Lane::ByName,
        commands: &[&["xtask", "dist"]],
        limit: Duration::from_secs(10800),
        ..PLAIN
    },
    Stage {
        name: "systemd",
        about: "a worker and a history server with their packages, in emulated machines whose init is systemd, on two kernels",
        lane: Lane::ByName,
        root: true,
        commands: shown!("packages", "life::"),
        ..PLAIN
    },
    Stage {
        name: "starts",
        about: "500 executors that begin while the daemon finds them",
        lane: Lane::ByName,
        root: true,
        commands: shown!("kernel", "executor_starts::"),
        limit: Duration::from_secs(7200),
        longer: &[("SMTT_STARTS", "500")],
    },
    Stage {
        name: "kills",
        about: "50 drivers that are killed while they write their history",
        lane: Lane::ByName,
        root: true,
        commands: shown!("history", "crash::a_driver"),
        limit: Duration::from_secs(7200),
        longer: &[("SMTT_DRIVER_KILLS", "50")],
    },
    Stage {
        name: "remedies",
        about: "sick applications before and after the history's advice: what it predicts to save, five times each",
        lane: Lane::ByName,
        root: true,
        commands: shown!("remedies", ""),
        limit: Duration::from_secs(7200),
        ..PLAIN
    },
    Stage {
        name: "deaths",
        about: "ten deaths of each kind of real executors, each with its verdict",
        lane: Lane::ByName,
        root: true,
        commands: shown!("spark", "deaths::"),
        limit: Duration::from_secs(7200),
        longer: &[("SMTT_DEATHS", "10")],
    },
    Stage {
        name: "versions",
        about: "further versions of Spark: a local cluster and a stand-alone one, and the history of an application; event logs of Spark 3.0 to 3.4",
        lane: Lane::ByName,
        root: true,
        commands: &[
            BUILD,
            &[
                "test",
                "--no-fail-fast",
                "--workspace",
                "--test",
                "spark",
                "--test",
                "history",
                "other_versions",
                "--",
                "older_versions",
                "--test-threads=1",
                "--nocapture",
            ],
        ],
        limit: Duration::from_secs(7200),
        longer: &[
            ("SMTT_SPARK_VERSIONS", "4.1.4,4.2.1"),
            ("SMTT_OLDER_SPARKS", "3.0.3,3.1.3,3.2.4,3.3.4,3.4.4"),
        ],
    },
    Stage {
        name: "soak",
        about: "ten minutes of executors that come and go",
        lane: Lane::ByName,
        root: true,
        commands: shown!("kernel", "soak::"),
        limit: Duration::from_secs(2400),
        longer: &[("SMTT_SOAK", "600")],
    },
    Stage {
        name: "fuzz",
        about: "all fuzzers for two minutes each test, with a seed that is new each time and printed; files of a store damaged at every byte",
        lane: Lane::ByName,
        commands: &[
            BUILD,
            &[
                "test",
                "--no-fail-fast",
                "--workspace",
                "--test",
                "fuzz",
                "--test",
                "damaged",
                "--",
                "--nocapture",
            ],
            &[
                "test",
                "--workspace",
                "--test",
                "ctl",
                "changed::",
                "--",
                "--nocapture",
            ],
        ],
        limit: Duration::from_secs(7200),
        longer: &[
            ("SMTT_FUZZ_SECONDS", "120"),
            ("SMTT_FUZZ_SEED", "fresh"),
            ("SMTT_DAMAGED_EVERY", "1"),
        ],
        ..PLAIN
    },
];

/// The named stages in the table's order; without names all but those that run by name only.
pub fn chosen(only: &[String]) -> Vec<&'static Stage> {
    let wanted = |stage: &&Stage| {
        if only.is_empty() {
            stage.lane != Lane::ByName
        } else {
            only.iter().any(|name| name == stage.name)
        }
    };
    STAGES.iter().filter(wanted).collect()
}

/// Names of the stages, in their order.
#[must_use]
pub fn names() -> Vec<&'static str> {
    STAGES.iter().map(|stage| stage.name).collect()
}

/// Names of the stages that run by their name only.
#[must_use]
pub fn names_by_name_only() -> Vec<&'static str> {
    let by_name = STAGES.iter().filter(|stage| stage.lane == Lane::ByName);
    by_name.map(|stage| stage.name).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::walls;

    #[test]
    fn long_stages_need_their_name() {
        assert_eq!(
            names_by_name_only(),
            [
                "arm64", "demo", "dist", "systemd", "starts", "kills", "remedies", "deaths",
                "versions", "soak", "fuzz"
            ]
        );
        assert!(
            chosen(&[])
                .iter()
                .all(|stage| stage.lane != Lane::ByName && stage.longer.is_empty())
        );
        assert_eq!(chosen(&["soak".to_owned()])[0].name, "soak");
    }

    /// Commands name the tests one by one, because the stages share them out: none may be forgotten.
    #[test]
    fn every_integration_test_runs_in_one_stage() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("a root");
        let mut there = BTreeSet::new();
        let manifest = std::fs::read_to_string(root.join("Cargo.toml")).expect("the manifest");
        let members = walls::members(&manifest);
        assert!(members.len() > 10, "{members:?}");
        for package in members {
            let Ok(tests) = root.join(package).join("tests").read_dir() else {
                continue;
            };
            for test in tests {
                let test = test.expect("an entry").path();
                let is_test = test.join("main.rs").is_file()
                    || test.extension().is_some_and(|suffix| suffix == "rs");
                if is_test {
                    there.insert(test.file_stem().expect("a name").to_string_lossy().into());
                }
            }
        }
        let names_of = |stage: &Stage| -> Vec<String> {
            let pairs = stage.commands.iter().flat_map(|command| command.windows(2));
            let pairs = pairs.filter(|pair| pair[0] == "--test");
            pairs.map(|pair| pair[1].to_owned()).collect()
        };
        let mut named: Vec<String> = chosen(&[]).into_iter().flat_map(names_of).collect();
        // The longer runs of tests that a usual stage has are no second place for them.
        let by_name = STAGES.iter().filter(|stage| stage.lane == Lane::ByName);
        let only_there: BTreeSet<String> = by_name
            .flat_map(names_of)
            .filter(|name| !named.contains(name))
            .collect();
        named.extend(only_there);
        // These need an emulated machine, so the stage `vm` builds and runs them.
        named.extend(["page_walks", "places"].map(str::to_owned));
        let once: BTreeSet<String> = named.iter().cloned().collect();
        assert_eq!(once.len(), named.len(), "twice: {named:?}");
        assert_eq!(once, there);
    }

    /// One set of features for all, see [`BUILD`].
    #[test]
    fn every_test_command_names_the_whole_workspace() {
        for command in STAGES.iter().flat_map(|stage| stage.commands) {
            assert!(
                !matches!(command[0], "test" | "build") || command.contains(&"--workspace"),
                "{command:?}"
            );
        }
    }
}
