//! The boundaries between the crates, as tests: allowed dependencies of a manifest, files that may name aya, functions
//! that the model may call, documents that name existing files only, and tests that are not skipped in silence.
//!
//! Each check is a function of text, so a test can also show that the check fails on a violation.

mod documents;
mod skips;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::paths::Paths;

/// What the manifest of a workspace member may have in the product, without dependencies of tests.
struct Wall {
    /// The member's folder.
    folder: &'static str,
    /// Packages of this workspace on which it depends; it must not depend on others.
    ours: &'static [&'static str],
    others: Others,
}

/// Packages of others. A name covers its family: `tokio` is also `tokio-rustls`.
enum Others {
    /// These at most.
    Only(&'static [&'static str]),
    /// Not these, which bring the system, the network or an event loop.
    Not(&'static [&'static str]),
}

/// The walls of all workspace members.
const WALLS: [Wall; 15] = [
    Wall {
        folder: "smtt-common",
        ours: &[],
        others: Others::Only(&[]),
    },
    Wall {
        folder: "smtt-model",
        ours: &["smtt-common"],
        others: Others::Not(&["tokio", "nix", "libc", "rustix", "procfs", "hyper", "axum"]),
    },
    Wall {
        folder: "smtt-machine",
        ours: &["smtt-common", "smtt-model"],
        others: Others::Not(&["tokio", "hyper", "axum"]),
    },
    Wall {
        folder: "smtt-store",
        ours: &["smtt-common", "smtt-model"],
        others: Others::Not(&["tokio", "hyper", "axum", "procfs"]),
    },
    Wall {
        folder: "smtt-web",
        ours: &[],
        others: Others::Not(&["procfs", "parquet", "object_store"]),
    },
    Wall {
        folder: "smtt-history",
        ours: &["smtt-model", "smtt-store", "smtt-web"],
        others: Others::Not(&["procfs", "perf-event-open-sys"]),
    },
    Wall {
        folder: "smtt-config",
        ours: &["smtt-common", "smtt-machine", "smtt-model"],
        others: Others::Not(&["tokio", "hyper", "axum"]),
    },
    Wall {
        folder: "smtt-ctl",
        ours: &[
            "smtt-common",
            "smtt-config",
            "smtt-machine",
            "smtt-model",
            "smtt-store",
        ],
        others: Others::Not(&["axum", "object_store"]),
    },
    Wall {
        folder: "smtt-daemon",
        ours: &[
            "smtt-common",
            "smtt-config",
            "smtt-machine",
            "smtt-model",
            "smtt-store",
            "smtt-web",
        ],
        others: Others::Not(&["object_store", "reqwest", "rusqlite"]),
    },
    Wall {
        folder: "smtt-marker/native",
        ours: &["smtt-common"],
        others: Others::Only(&["libc"]),
    },
    Wall {
        folder: "tests",
        ours: &[
            "smtt-common",
            "smtt-config",
            "smtt-daemon",
            "smtt-history",
            "smtt-machine",
            "smtt-model",
            "smtt-skip",
            "smtt-store",
            "xtask",
        ],
        others: Others::Not(&[]),
    },
    Wall {
        folder: "tests/skip",
        ours: &[],
        others: Others::Only(&[]),
    },
    // It builds the product, so it is there before.
    Wall {
        folder: "xtask",
        ours: &["smtt-common", "smtt-skip"],
        others: Others::Not(&["tokio", "hyper", "axum"]),
    },
    Wall {
        folder: "packaging/manual",
        ours: &["smtt-ctl", "smtt-daemon", "smtt-history"],
        others: Others::Not(&["tokio", "hyper", "axum"]),
    },
    Wall {
        folder: "packaging/program",
        ours: &["smtt-ctl", "smtt-daemon", "smtt-history"],
        others: Others::Only(&[]),
    },
];

/// The member that alone may depend on aya.
const AYA_MEMBER: &str = "smtt-daemon";
/// Files of smtt-daemon/src that may name aya.
const AYA_FILES: [&str; 2] = ["probes.rs", "ring.rs"];
/// The folder of smtt-daemon/src that may name aya.
const AYA_FOLDER: &str = "probes";
/// Prefixes of a path into aya.
const AYA_PATHS: [&str; 4] = ["aya::", "aya_log::", "aya_obj::", "use aya"];

/// Paths that smtt-model must not use: files, the network, processes, clocks, and groups at the root of `std`.
const IMPURE: [&str; 10] = [
    "std::fs",
    "std::net",
    "std::process",
    "std::env",
    "std::thread",
    "std::{",
    "Instant::now",
    "SystemTime::now",
    "Timestamp::now",
    "Zoned::now",
];

/// Paths into HTTP, and the modules at the top of smtt-daemon/src that may name them.
const HTTP: ([&str; 3], [&str; 2]) = (
    ["crate::server", "axum::", "hyper::"],
    ["server", "event_loop"],
);

/// Calls that pin a kernel object, so that it outlives the daemon.
const PINS: [&str; 5] = [
    ".pin(",
    "from_pin(",
    "PinnedLink",
    "::pinned(",
    "BPF_OBJ_PIN",
];

/// The ring of the kernel side, and the files of smtt-ebpf/src that may name it.
const RING: (&[&str], [&str; 2]) = (&["RING.", "maps::RING", "RING,"], ["maps.rs", "emit.rs"]);
/// Functions that add and remove executors, processes and threads, and the file of smtt-ebpf/src that may call them.
const TABLES: (&[&str], &str) = (
    &[
        "PROCESSES.insert(",
        "PROCESSES.remove(",
        "THREADS.insert(",
        "THREADS.remove(",
        "EXECUTORS.insert(",
        "EXECUTORS.remove(",
    ],
    "tables.rs",
);

/// Tables of a manifest with the dependencies of the product, and of its tests.
const PRODUCT: [&str; 2] = ["dependencies", "build-dependencies"];
const TESTS: [&str; 1] = ["dev-dependencies"];

/// Packages on which a manifest depends, in these tables.
fn dependencies(manifest: &str, tables: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut listed = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end_matches(']');
            let parts: Vec<&str> = header.rsplitn(3, '.').collect();
            let is_table = |name: &str| tables.contains(&name);
            listed = is_table(parts[0]);
            if let Some(table) = parts.get(1)
                && is_table(table)
            {
                found.insert(parts[0].to_owned());
            }
        } else if listed
            && !line.starts_with('#')
            && let Some((key, value)) = line.split_once('=')
        {
            let key = key.split('.').next().unwrap_or(key);
            found.insert(key.trim().trim_matches('"').to_owned());
            // A renamed package is the package.
            if let Some((_, renamed)) = value.split_once("package = \"") {
                found.extend(renamed.split('"').next().map(str::to_owned));
            }
        }
    }
    found
}

/// Whether a package is the family's or of its name with a suffix.
fn is_of(package: &str, family: &str) -> bool {
    package
        .strip_prefix(family)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

fn is_ours(package: &str) -> bool {
    package == "xtask" || package.starts_with("smtt-")
}

impl Wall {
    /// The dependencies of a manifest that this wall forbids, and its own packages that the manifest lacks.
    fn wrong(&self, manifest: &str) -> Vec<String> {
        let (ours, others): (BTreeSet<String>, BTreeSet<String>) = dependencies(manifest, &PRODUCT)
            .into_iter()
            .partition(|package| is_ours(package));
        let forbidden = |package: &String| match self.others {
            Others::Only(families) => !families.contains(&package.as_str()),
            Others::Not(families) => families.iter().any(|family| is_of(package, family)),
        };
        let allowed: BTreeSet<String> = self.ours.iter().map(|name| (*name).to_owned()).collect();
        // A manifest that was not parsed lacks them, too.
        let lacks = allowed.difference(&ours).map(|name| format!("no {name}"));
        let mut wrong: Vec<String> = ours.difference(&allowed).cloned().collect();
        wrong.extend(others.into_iter().filter(forbidden));
        wrong.extend(lacks);
        wrong
    }
}

/// Folders of the members in the manifest of a workspace.
pub(crate) fn members(manifest: &str) -> BTreeSet<&str> {
    let list = manifest
        .split_once("\nmembers = [")
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or("", |(list, _)| list);
    list.split('"').skip(1).step_by(2).collect()
}

/// Source lines without tests and comments, and the names of modules that are declared for tests only.
fn product(source: &str) -> (Vec<(usize, &str)>, Vec<&str>) {
    let mut kept = Vec::new();
    let mut test_modules = Vec::new();
    let mut lines = source.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let code = line.trim_start();
        if code.starts_with("//") {
            continue;
        }
        if code != "#[cfg(test)]" {
            kept.push((number + 1, line));
            continue;
        }
        // rustfmt closes an item at the column where it began.
        let end = format!("{}}}", &line[..line.len() - code.len()]);
        let mut is_first = true;
        for (_, line) in lines.by_ref() {
            let code = line.trim_start();
            if code.starts_with("#[") || code.starts_with("//") {
                continue;
            }
            if is_first && code.ends_with(';') {
                let module = code.trim_end_matches(';').rsplit_once("mod ");
                test_modules.extend(module.map(|(_, name)| name));
                break;
            }
            if line == end || (is_first && code.ends_with('}')) {
                break;
            }
            is_first = false;
        }
    }
    (kept, test_modules)
}

/// Lines of product code that contain one of the words; a match of a word that begins with a letter does not start
/// inside another word.
fn lines_with(source: &str, words: &[&str]) -> Vec<usize> {
    let is_letter = |letter: char| letter.is_alphanumeric() || letter == '_';
    let begins = |line: &str, word: &str| {
        line.match_indices(word)
            .any(|(at, _)| !(word.starts_with(is_letter) && line[..at].ends_with(is_letter)))
    };
    product(source)
        .0
        .into_iter()
        .filter(|(_, line)| words.iter().any(|word| begins(line, word)))
        .map(|(number, _)| number)
        .collect()
}

/// Path of a module that a file declares, without `.rs`.
fn module_path(file: &Path, module: &str) -> PathBuf {
    let stem = file
        .file_stem()
        .and_then(|stem| stem.to_str())
        .unwrap_or_default();
    if matches!(stem, "lib" | "main" | "mod") {
        file.with_file_name(module)
    } else {
        file.with_extension("").join(module)
    }
}

/// The `.rs` files below a folder with their text.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("lists a folder of sources") {
            let path = entry.expect("reads an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("reads a source");
                found.push((path, text));
            }
        }
    }
    found.sort();
    found
}

/// The `.rs` files below a folder with their text, without files that are compiled for tests only.
fn product_sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let all = sources(folder);
    let for_tests: Vec<PathBuf> = all
        .iter()
        .flat_map(|(path, text)| {
            let modules = product(text).1.into_iter();
            modules.map(move |module| module_path(path, module))
        })
        .collect();
    all.into_iter()
        .filter(|(path, _)| {
            !for_tests
                .iter()
                .any(|module| path.with_extension("").starts_with(module))
        })
        .collect()
}

fn root() -> PathBuf {
    Paths::find().expect("finds the checkout").root
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn every_member_has_a_wall_and_keeps_it() {
    let manifest = read("Cargo.toml");
    let walls: BTreeSet<&str> = WALLS.iter().map(|wall| wall.folder).collect();
    assert_eq!(members(&manifest), walls);
    for wall in &WALLS {
        let wrong = wall.wrong(&read(&format!("{}/Cargo.toml", wall.folder)));
        assert!(wrong.is_empty(), "{} depends on {wrong:?}", wall.folder);
    }
}

#[test]
fn only_the_daemon_depends_on_aya() {
    let manifest = read("Cargo.toml");
    let tables = [&PRODUCT[..], &TESTS].concat();
    let with_aya = members(&manifest).into_iter().filter(|folder| {
        dependencies(&read(&format!("{folder}/Cargo.toml")), &tables)
            .iter()
            .any(|package| is_of(package, "aya"))
    });
    assert_eq!(with_aya.collect::<Vec<_>>(), [AYA_MEMBER]);
}

#[test]
fn only_the_probes_and_the_ring_name_aya() {
    let folder = root().join("smtt-daemon/src");
    let mut allowed = 0;
    for (path, text) in sources(&folder) {
        let lines = lines_with(&text, &AYA_PATHS);
        let file = path.strip_prefix(&folder).expect("is below the folder");
        if file.starts_with(AYA_FOLDER) || AYA_FILES.iter().any(|name| file == Path::new(name)) {
            allowed += lines.len();
        } else {
            assert!(
                lines.is_empty(),
                "{}: names aya in lines {lines:?}",
                file.display()
            );
        }
    }
    assert!(allowed > 0, "no file names aya: the check finds nothing");
}

#[test]
fn nothing_is_pinned_in_the_kernel() {
    for folder in ["smtt-daemon/src", "smtt-ebpf/src"] {
        for (path, text) in sources(&root().join(folder)) {
            let lines = lines_with(&text, &PINS);
            assert!(lines.is_empty(), "{}: lines {lines:?}", path.display());
        }
    }
}

#[test]
fn tables_and_ring_of_the_kernel_side_have_one_writer() {
    let folder = root().join("smtt-ebpf/src");
    let (mut ring, mut tables) = (0, 0);
    for (path, text) in sources(&folder) {
        let file = path.strip_prefix(&folder).expect("is below the folder");
        let lines = lines_with(&text, RING.0);
        if RING.1.iter().any(|name| file == Path::new(name)) {
            ring += lines.len();
        } else {
            assert!(
                lines.is_empty(),
                "{}: names the ring in lines {lines:?}",
                file.display()
            );
        }
        let lines = lines_with(&text, TABLES.0);
        if file == Path::new(TABLES.1) {
            tables += lines.len();
        } else {
            assert!(
                lines.is_empty(),
                "{}: changes a table in lines {lines:?}",
                file.display()
            );
        }
    }
    assert!(ring > 0 && tables > 0, "the check finds nothing");
}

#[test]
fn the_model_opens_no_file_and_reads_no_clock() {
    let folder = root().join("smtt-model/src");
    let sources = product_sources(&folder);
    assert!(sources.len() > 50, "{} files found", sources.len());
    for (path, text) in sources {
        let lines = lines_with(&text, &IMPURE);
        assert!(
            lines.is_empty(),
            "{}: lines {lines:?} are not pure",
            path.display()
        );
    }
}

#[test]
fn every_form_of_a_dependency_is_seen() {
    let manifest = "\
[package]
name = \"aya\"
[dependencies]
# libc = \"0.2\"
smtt-common = { path = \"../smtt-common\" }
aya-log.workspace = true
runtime = { package = \"tokio\", version = \"1\" }
[target.'cfg(unix)'.dependencies]
nix = \"0.31\"
[build-dependencies]
procfs = \"0.18\"
[dependencies.smtt-daemon]
path = \"../smtt-daemon\"
[dev-dependencies]
libc = \"0.2\"
[dev-dependencies.smtt-machine]
path = \"../smtt-machine\"
";
    let [common, model] = [&WALLS[0], &WALLS[1]];
    assert_eq!(model.folder, "smtt-model");
    assert_eq!(
        model.wrong(manifest),
        ["smtt-daemon", "nix", "procfs", "tokio"]
    );
    assert_eq!(
        common.wrong(manifest)[..4],
        ["smtt-common", "smtt-daemon", "aya-log", "nix"]
    );
    assert_eq!(model.wrong(""), ["no smtt-common"]);
    assert_eq!(
        Vec::from_iter(dependencies(manifest, &TESTS)),
        ["libc", "smtt-machine"]
    );
    assert_eq!(
        Vec::from_iter(members("\nmembers = [\"a\", \n\"b/c\"]\nexclude = [\"d\"]")),
        ["a", "b/c"]
    );
}

#[test]
fn tests_and_comments_are_no_product() {
    let source = "\
use std::fs;
// std::net
use my_std::process;
#[cfg(test)]
mod tests;
fn now() -> Instant { Instant::now() }
#[cfg(test)]
mod inner {
    fn read() {
        std::fs::read(\"x\")
    }
}
use std::{env, net};
";
    assert_eq!(lines_with(source, &IMPURE), [1, 6, 13]);
    assert_eq!(product(source).1, ["tests"]);
    assert_eq!(
        lines_with("let x = aya::maps::X;\nlet maya::y = 1;\n", &AYA_PATHS),
        [1]
    );
    assert_eq!(
        lines_with("link.pin(path)?;\nBox::pin(x);\nPinnedLink::new()\n", &PINS),
        [1, 3]
    );
    assert_eq!(lines_with("RING.query(0);\nSPRING.x();\n", RING.0), [1]);
    assert_eq!(
        lines_with("THREADS.remove(1);\nTHREADS.get(1);\n", TABLES.0),
        [1]
    );
    assert_eq!(
        module_path(Path::new("src/lib.rs"), "tests"),
        Path::new("src/tests")
    );
    assert_eq!(
        module_path(Path::new("src/a.rs"), "tests"),
        Path::new("src/a/tests")
    );
}

#[test]
fn only_the_server_and_the_event_loop_know_of_http() {
    let folder = root().join("smtt-daemon/src");
    let mut allowed = 0;
    for (path, text) in product_sources(&folder) {
        let lines = lines_with(&text, &HTTP.0);
        let file = path.strip_prefix(&folder).expect("is below the folder");
        let room = file.iter().next().and_then(|name| name.to_str());
        let room = room.map_or("", |name| name.trim_end_matches(".rs"));
        if HTTP.1.contains(&room) {
            allowed += lines.len();
        } else {
            assert!(
                lines.is_empty(),
                "{}: names HTTP in lines {lines:?}",
                file.display()
            );
        }
    }
    assert!(allowed > 0, "no file names HTTP: the check finds nothing");
    let source = "use crate::server::parts;\nuse smtt_daemon::server;\nlet x = axum::body::Body;\n";
    assert_eq!(lines_with(source, &HTTP.0), [1, 3]);
}

/// What presents the state, which the state must not import: listings, findings, answers.
const ABOVE_THE_STATE: [&str; 3] = ["crate::rows", "crate::advise", "crate::protocol"];

#[test]
fn the_state_does_not_import_what_lists_it() {
    let folder = root().join("smtt-model/src");
    let is_of_the_state = |path: &Path| {
        path == folder.join("state.rs").as_path() || path.starts_with(folder.join("state"))
    };
    let sources = product_sources(&folder);
    let of_the_state = sources.iter().filter(|(path, _)| is_of_the_state(path));
    let mut checked = 0;
    for (path, text) in of_the_state {
        checked += 1;
        let lines = lines_with(text, &ABOVE_THE_STATE);
        assert!(lines.is_empty(), "{}: lines {lines:?}", path.display());
    }
    assert!(checked > 30, "{checked} files found");
    assert_eq!(
        lines_with("use crate::rows::Filter;\n", &ABOVE_THE_STATE),
        [1]
    );
}
