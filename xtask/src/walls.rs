//! The boundaries between the crates, as tests: allowed dependencies of manifests, files that may name aya, functions
//! that the model may call, documents that name existing files only, and tests that are not skipped in silence.
//!
//! Each check is a function of text, so a test can also show that the check fails on a violation.

mod documents;
mod manifests;
mod skips;

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) use manifests::members;

use crate::paths::Paths;

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
