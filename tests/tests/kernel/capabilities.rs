//! The daemon as the unit runs it: no root, and the unit's capabilities. It finds and counts another user's executor whose
//! copy of the library no path of the configuration names. The witness is the kernel's count of the thread's faults.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use smtt_tests::json::number;
use smtt_tests::lab::programs;
use smtt_tests::skip::skip;
use xtask::daemon::{Daemon, Options};
use xtask::paths::Paths;

use crate::lab::{Workload, alone, library};

/// Users that own no file.
const DAEMON: u32 = 65_534;
const EXECUTOR: u32 = 65_533;
/// How long the daemon may take to find the executor, and to read the last counters.
const LIMIT: Duration = Duration::from_secs(120);

/// The capabilities of the unit in the form of setpriv(1), such as `+bpf`.
fn of_the_unit() -> Result<String> {
    let unit =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/smtt.service"))?;
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("AmbientCapabilities="))
        .context("the unit has no capabilities")?;
    let names = line.split_whitespace().map(|name| {
        let name = name.strip_prefix("CAP_").unwrap_or(name);
        format!("+{}", name.to_lowercase())
    });
    Ok(names.collect::<Vec<_>>().join(","))
}

#[test]
fn the_capabilities_of_the_unit_are_enough_for_other_users_executors() -> Result<()> {
    let Some(_turn) = alone()? else {
        return Ok(());
    };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let version: Vec<u32> = release
        .split(['.', '-'])
        .map_while(|part| part.parse().ok())
        .collect();
    if version < vec![6, 6] {
        return skip("uprobe_multi", format!("Linux {} has none", release.trim()));
    }
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    for program in ["smtt-daemon", "smtt-ctl"] {
        fs::copy(programs()?.join(program), folder.path().join(program))?;
    }
    let copy = folder.path().join("copy.so");
    fs::copy(library()?, &copy)?;
    let own = folder.path().join("daemon");
    fs::create_dir(&own)?;
    chown(&own, Some(DAEMON), Some(DAEMON))?;

    let user = format!("uid={EXECUTOR}");
    let mut workload = Workload::start_with(&copy, "late", &["name=java", &user])?;
    workload.go()?;
    workload.expect("REGISTERED")?;
    let capabilities = of_the_unit()?;
    let mut launcher = vec!["setpriv".to_owned(), "--clear-groups".to_owned()];
    launcher.extend(["--reuid", "--regid"].map(|option| format!("{option}={DAEMON}")));
    launcher.extend(
        ["--bounding-set", "--inh-caps", "--ambient-caps"]
            .map(|option| format!("{option}=-all,{capabilities}")),
    );
    let daemon = Daemon::start(
        &Paths::find()?,
        folder.path(),
        &own,
        &Options {
            without_library: true,
            launcher,
            ..Options::default()
        },
    )?;
    let row = || -> Result<Option<serde_json::Value>> {
        let pid = u64::from(workload.pid());
        let rows = daemon.rows(&["executors"])?;
        Ok(rows.into_iter().find(|row| row["pid"] == pid))
    };
    let start = Instant::now();
    while row()?.is_none() {
        ensure!(
            start.elapsed() < LIMIT,
            "the executor is not found, see {}",
            fs::read_to_string(daemon.log())?
        );
        thread::sleep(Duration::from_millis(100));
    }
    let pid = u64::from(workload.pid());
    let said = workload.run()?;
    let faults = number(&said, "faults")?;
    let start = Instant::now();
    loop {
        let rows = daemon.rows(&["executors"])?;
        let row = rows
            .iter()
            .find(|row| row["pid"] == pid)
            .context("no row")?;
        let attributed = row["page_faults_attributed"].as_u64().unwrap_or(0);
        if attributed == faults {
            break;
        }
        ensure!(
            start.elapsed() < LIMIT,
            "{attributed} faults are attributed, the kernel counted {faults}"
        );
        thread::sleep(Duration::from_millis(100));
    }
    workload.end()
}
