//! `smtt-ctl report --html --store` and `smtt-ctl advise --store`: the answers are those of `smtt-history`, byte by byte,
//! with its exit codes; without the program one line has the remedy.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use smtt_history::import::{Admission, import};
use smtt_history::log::Bounds;
use smtt_tests::lab::programs;
use xtask::event_log::{self, ID, Shape};

/// Runs a program in that folder, for which `PATH` has none.
fn ran(program: &str, folder: &Path, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(folder.join(program));
    command
        .env("PATH", "")
        .env("SMTT_CLUSTER", "nowhere.invalid");
    command.args(arguments).output().context(program.to_owned())
}

#[test]
fn the_client_hands_on_what_needs_a_whole_application() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (log, store) = (folder.path().join(ID), folder.path().join("store"));
    let shape = Shape {
        tasks: 400,
        stages: 4,
        executors: 2,
        cores: 2,
        sql_metrics: 2,
    };
    event_log::write(&log, &shape)?;
    let admission = Admission {
        name: None,
        replaces: false,
    };
    import(&store, &log, Bounds::default(), &admission)?;
    let store = store.display().to_string();
    let programs = programs()?;
    let client = |arguments: &[&str]| ran("smtt-ctl", &programs, arguments);
    let history = |arguments: &[&str]| ran("smtt-history", &programs, arguments);

    let page = history(&["report", "--store", &store, ID, "--html", "-"])?;
    ensure!(page.status.success(), "{page:?}");
    let handed = client(&["report", "--html", "--store", &store, "--app", ID])?;
    ensure!(
        handed.status.success() && handed.stdout == page.stdout,
        "not the page of smtt-history: {} and {} bytes, {}",
        handed.stdout.len(),
        page.stdout.len(),
        String::from_utf8_lossy(&handed.stderr)
    );
    let pages = folder.path().join("pages");
    fs::create_dir(&pages)?;
    let into = pages.display().to_string();
    let handed = client(&[
        "report", "--html", "--store", &store, "--app", ID, "-o", &into,
    ])?;
    ensure!(handed.status.success(), "{handed:?}");
    ensure!(
        fs::read(pages.join(format!("{ID}.html")))? == page.stdout,
        "another page in the folder"
    );

    for (ours, theirs) in [
        (&["advise"][..], &[][..]),
        (&["advise", "--json"], &["--json"]),
    ] {
        let found = history(&[&["advise", "--store", &store, ID], theirs].concat())?;
        let handed = client(&[ours, &["--store", &store, "--app", ID]].concat())?;
        ensure!(
            found.status.success() && handed.stdout == found.stdout,
            "{handed:?} {found:?}"
        );
    }

    // An id that looks like an option stays an id.
    let unknown = client(&["advise", "--store", &store, "--app=--json"])?;
    let said = String::from_utf8_lossy(&unknown.stderr);
    ensure!(
        unknown.status.code() == Some(2) && said.contains("--json"),
        "{unknown:?}"
    );
    // Beside a copy of the client there is none, and one that PATH has is not run.
    let alone = folder.path().join("alone");
    fs::create_dir(&alone)?;
    fs::copy(programs.join("smtt-ctl"), alone.join("smtt-ctl"))?;
    let mut alone = Command::new(alone.join("smtt-ctl"));
    alone.env("PATH", &programs);
    let nowhere = alone
        .args(["advise", "--store", &store, "--app", ID])
        .output()?;
    let said = String::from_utf8_lossy(&nowhere.stderr);
    ensure!(
        nowhere.status.code() == Some(1) && said.contains("install the package smtt-history"),
        "{nowhere:?}"
    );
    for wrong in [
        &["report", "--store", &store, "--app", ID][..],
        &["report", "--html", "--store", &store],
        &[
            "report", "--html", "--store", &store, "--app", ID, "--stage", "1",
        ],
        &["advise", "--store", &store, "--app", ID, "--csv"],
    ] {
        let refused = client(wrong)?;
        ensure!(refused.status.code() == Some(2), "{wrong:?}: {refused:?}");
    }
    Ok(())
}
