//! The boundaries between the crates, as tests: allowed dependencies of a manifest, files that may name aya, functions
//! that the model may call, and documents that name existing files only.
//!
//! Each check is a function of text, so a test can also show that the check fails on a violation.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::paths::Paths;

/// Maximal words of docs/ARCHITECTURE.md: a newcomer reads it in ten minutes.
const ARCHITECTURE_WORDS: usize = 1200;

/// Forbidden dependencies per crate. A name covers its family: `aya` is also `aya-log`.
const WALLS: &[(&str, &[&str])] = &[
    (
        "smtt-model",
        &[
            "aya",
            "tokio",
            "nix",
            "libc",
            "procfs",
            "smtt-machine",
            "smtt-store",
            "smtt-config",
            "smtt-ctl",
            "smtt-daemon",
        ],
    ),
    (
        "smtt-machine",
        &[
            "aya",
            "tokio",
            "smtt-store",
            "smtt-config",
            "smtt-ctl",
            "smtt-daemon",
        ],
    ),
    ("smtt-store", &["aya", "smtt-ctl", "smtt-daemon"]),
    (
        "smtt-web",
        &[
            "aya",
            "smtt-common",
            "smtt-model",
            "smtt-machine",
            "smtt-store",
            "smtt-config",
            "smtt-history",
            "smtt-ctl",
            "smtt-daemon",
        ],
    ),
    (
        "smtt-history",
        &[
            "aya",
            "smtt-machine",
            "smtt-config",
            "smtt-ctl",
            "smtt-daemon",
        ],
    ),
    ("smtt-config", &["aya", "smtt-ctl", "smtt-daemon"]),
    ("smtt-ctl", &["aya", "smtt-daemon"]),
];

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

/// Packages on which a manifest depends for the build, not for tests.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut listed = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end_matches(']');
            let parts: Vec<&str> = header.rsplitn(3, '.').collect();
            let is_table = |name: &str| matches!(name, "dependencies" | "build-dependencies");
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

/// The dependencies of a manifest that a wall forbids.
fn beyond_the_wall(manifest: &str, forbidden: &[&str]) -> Vec<String> {
    let is_of = |package: &str, family: &str| {
        package
            .strip_prefix(family)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    dependencies(manifest)
        .into_iter()
        .filter(|package| forbidden.iter().any(|family| is_of(package, family)))
        .collect()
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

/// Modules that a crate's root declares for its product.
fn modules(root: &str) -> Vec<&str> {
    product(root)
        .0
        .into_iter()
        .filter_map(|(_, line)| line.strip_suffix(';'))
        .filter_map(|line| {
            line.strip_prefix("pub mod ")
                .or_else(|| line.strip_prefix("mod "))
        })
        .collect()
}

/// Texts in backticks.
fn quoted(text: &str) -> BTreeSet<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Paths of files of the checkout that a document names in backticks.
fn named_files(text: &str) -> Vec<&str> {
    const KINDS: [&str; 6] = ["rs", "java", "toml", "md", "py", "service"];
    let has_kind = |path: &str| {
        Path::new(path)
            .extension()
            .and_then(|extension| extension.to_str())
            .is_some_and(|extension| KINDS.contains(&extension))
    };
    quoted(text)
        .into_iter()
        .filter(|path| path.contains('/') && !path.starts_with(['/', '~']))
        .filter(|path| !path.contains(char::is_whitespace) && has_kind(path))
        .collect()
}

fn root() -> PathBuf {
    Paths::find().expect("finds the checkout").root
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The folders of the crates.
fn crates() -> Vec<String> {
    let entries = fs::read_dir(root()).expect("lists the checkout");
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("smtt-"))
        .collect();
    names.sort();
    names
}

#[test]
fn no_crate_depends_on_what_its_wall_forbids() {
    for (name, forbidden) in WALLS {
        let manifest = read(&format!("{name}/Cargo.toml"));
        let found = beyond_the_wall(&manifest, forbidden);
        assert!(found.is_empty(), "{name} depends on {found:?}");
        // An empty list would mean that the manifest was not parsed.
        let found = dependencies(&manifest);
        assert!(
            ["smtt-common", "smtt-store", "axum"]
                .iter()
                .any(|name| found.contains(*name)),
            "{name} has no dependency that it must have: {manifest}"
        );
    }
}

#[test]
fn the_boundary_depends_on_nothing() {
    let found = dependencies(&read("smtt-common/Cargo.toml"));
    assert!(found.is_empty(), "smtt-common depends on {found:?}");
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
fn the_architecture_is_short_and_names_every_crate_and_module() {
    let text = read("docs/ARCHITECTURE.md");
    let words = text.split_whitespace().count();
    assert!(
        words <= ARCHITECTURE_WORDS,
        "docs/ARCHITECTURE.md has {words} words, at most {ARCHITECTURE_WORDS} are allowed"
    );
    let named = quoted(&text);
    let crates = crates();
    assert!(
        crates.len() >= 9,
        "{crates:?} are not all crates of the project"
    );
    for name in &crates {
        assert!(named.contains(name.as_str()), "{name} is not named");
        let Ok(root) = fs::read_to_string(root().join(name).join("src/lib.rs")) else {
            continue;
        };
        for module in modules(&root) {
            assert!(named.contains(module), "{name}: {module} is not named");
        }
    }
}

#[test]
fn documents_name_files_that_exist() {
    let root = root();
    let mut documents = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    for folder in ["docs", "docs/design"] {
        let entries = fs::read_dir(root.join(folder)).expect("lists the documents");
        documents.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
    let mut checked = 0;
    for document in documents {
        if document
            .extension()
            .is_none_or(|extension| extension != "md")
        {
            continue;
        }
        let text = fs::read_to_string(&document).expect("reads a document");
        for path in named_files(&text) {
            checked += 1;
            assert!(
                root.join(path).exists(),
                "{}: {path} does not exist",
                document.display()
            );
        }
    }
    assert!(checked > 50, "{checked} paths found");
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
    let (name, forbidden) = WALLS[0];
    assert_eq!(name, "smtt-model");
    assert_eq!(
        beyond_the_wall(manifest, forbidden),
        ["aya-log", "nix", "procfs", "smtt-daemon", "tokio"]
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
fn files_are_found_in_documents() {
    let text = "`a/b.rs` `/etc/x.toml` `c.rs` `d/e.java x` `smtt-model/src/state` `f/g.java`";
    assert_eq!(named_files(text), ["a/b.rs", "f/g.java"]);
    assert_eq!(
        modules("pub mod a;\nmod b;\n#[cfg(test)]\nmod c;\n"),
        ["a", "b"]
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
