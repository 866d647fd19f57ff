//! Containers of the OCI form, run by Debian's runc: no registry, no image, one small Debian as the root of all
//! containers.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use xtask::paths::Paths;
use xtask::process::output;
use xtask::setup::containers;

/// First id of the users of a container that has its own.
pub const FIRST_USER: u32 = 200_000;
/// Number of its users.
const USERS: u32 = 65_536;

/// A file or folder of the host, and where the container has it.
pub type Bind<'a> = (&'a Path, &'a str);

/// What a container is.
#[derive(Debug)]
pub struct Spec<'a> {
    /// Its name, unique on this machine.
    pub name: &'a str,
    /// Namespaces of its own; with `user`, its users are those from [`FIRST_USER`].
    pub namespaces: &'a [&'a str],
    /// Command and arguments.
    pub command: &'a [&'a str],
    /// Environment, as `KEY=VALUE`.
    pub environment: &'a [String],
    /// What it sees of the host.
    pub binds: &'a [Bind<'a>],
    /// Capabilities, without `CAP_`.
    pub capabilities: &'a [&'a str],
    /// Path of its cgroup.
    pub cgroup: &'a str,
}

/// A container that has not been started, or that runs until this is dropped.
#[derive(Debug)]
pub struct Container {
    runc: PathBuf,
    state: PathBuf,
    bundle: PathBuf,
    name: String,
}

impl Container {
    /// Writes the container's description into `folder`.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn new(paths: &Paths, folder: &Path, spec: &Spec<'_>) -> Result<Self> {
        let bundle = folder.join(format!("bundle-{}", spec.name));
        fs::create_dir_all(&bundle).with_context(|| format!("cannot make {}", bundle.display()))?;
        let mut root = containers::root(paths);
        if spec.namespaces.contains(&"user") {
            // Its users cannot go into the cache, whose folders above may be root's alone.
            let own = bundle.join("root");
            output(Command::new("cp").arg("-a").arg(&root).arg(&own))?;
            for above in [folder, &bundle] {
                fs::set_permissions(above, fs::Permissions::from_mode(0o711))?;
            }
            root = own;
        }
        let file = bundle.join("config.json");
        fs::write(&file, config(&root, spec).to_string())
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Self {
            runc: containers::runc(paths),
            state: folder.join("runc"),
            bundle,
            name: spec.name.to_owned(),
        })
    }

    /// The command that runs the container until its first process ends, and forwards signals to it.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = self.runc();
        command.arg("run").arg("--bundle").arg(&self.bundle);
        command.arg(&self.name);
        command
    }

    fn runc(&self) -> Command {
        let mut command = Command::new(&self.runc);
        command.arg("--root").arg(&self.state);
        command
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // A container that was never started, or has ended, does not exist.
        drop(output(
            self.runc().args(["delete", "--force"]).arg(&self.name),
        ));
    }
}

fn config(root: &Path, spec: &Spec<'_>) -> Value {
    let has = |namespace: &str| spec.namespaces.contains(&namespace);
    let capabilities = spec.capabilities.iter().map(|name| format!("CAP_{name}"));
    let capabilities: Vec<String> = capabilities.collect();
    let tmpfs = |to: &str, mode: &str| json!({"destination": to, "type": "tmpfs", "source": "tmpfs", "options": [mode]});
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc"}),
        tmpfs("/dev", "mode=755"),
        tmpfs("/tmp", "mode=1777"),
    ];
    mounts.extend(spec.binds.iter().map(
        |(from, to)| json!({"destination": to, "type": "bind", "source": from, "options": ["rbind"]}),
    ));
    let ids = if has("user") {
        json!([{"containerID": 0, "hostID": FIRST_USER, "size": USERS}])
    } else {
        json!([])
    };
    let namespaces = spec.namespaces.iter().map(|kind| json!({"type": kind}));
    json!({
        "ociVersion": "1.0.2",
        "hostname": if has("uts") { spec.name } else { "" },
        "root": {"path": root, "readonly": true},
        "process": {
            "terminal": false,
            "user": {"uid": 0, "gid": 0},
            "args": spec.command,
            "env": spec.environment,
            "cwd": "/",
            "capabilities": {
                "bounding": capabilities, "effective": capabilities, "permitted": capabilities,
            },
        },
        "mounts": mounts,
        "linux": {
            "namespaces": namespaces.collect::<Vec<_>>(),
            "uidMappings": ids,
            "gidMappings": ids,
            "cgroupsPath": spec.cgroup,
        },
    })
}
