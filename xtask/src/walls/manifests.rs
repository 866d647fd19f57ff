//! What the manifests of the workspace's members may name: packages of this workspace, and packages of others.

use std::collections::BTreeSet;

use super::read;

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
        ours: &["smtt-model"],
        others: Others::Not(&["procfs", "parquet", "object_store", "hdfs-native"]),
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
        others: Others::Not(&["axum", "object_store", "hdfs-native"]),
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
        others: Others::Not(&["object_store", "reqwest", "rusqlite", "hdfs-native"]),
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
            "smtt-ctl",
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
        ours: &["smtt-ctl", "smtt-daemon"],
        others: Others::Only(&[]),
    },
];

/// The member that alone may depend on aya.
const AYA_MEMBER: &str = "smtt-daemon";

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
