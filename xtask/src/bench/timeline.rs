//! The time line of the history server: how long an answer takes at each level of detail, for applications of 1,000 to a
//! million tasks that never ran; and in a browser without a screen, the time to the first picture, frames while the
//! picture moves, and the memory of the page.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{BUILD_LIMIT, RUN_LIMIT, median, most, report};
use crate::browser::{Browser, MOVE_TIME_LINE};
use crate::event_log::{self, ID, Shape};
use crate::http::get;
use crate::paths::Paths;
use crate::process::{Running, cargo, free_port, run, wait_for};
use crate::setup::browser;
use crate::step::Steps;
use crate::witness;

/// Limit of the milliseconds of an answer.
const ANSWER_MS: f64 = 50.0;
/// Limit of the milliseconds from the click on an address to the first picture.
const PICTURE_MS: f64 = 300.0;
/// Limit of the milliseconds of a frame: 30 a second.
const FRAME_MS: f64 = 1000.0 / 30.0;
/// Limit of the memory of the page, in MiB.
const PAGE_MIB: f64 = 200.0;
/// Times that the page is opened.
const LOADS: usize = 7;
/// Seconds of movement, all of which count.
const MOVES: u32 = 10;
/// Tasks of an application that is shown in the browser at most.
const SHOWN: usize = 100_000;
/// A program that was built already, to be measured instead of a release build.
const PROGRAM: &str = "SMTT_BENCH_HISTORY";
/// Tasks of the applications.
const TASKS: [usize; 4] = [1_000, 28_000, 100_000, 1_000_000];
/// The whole application, and parts of it.
const ZOOMS: [i64; 6] = [1, 4, 16, 64, 256, 4096];
/// Questions at each level.
const QUESTIONS: i64 = 21;
const START_LIMIT: Duration = Duration::from_secs(30);

/// Measures; needs neither root nor Spark.
pub(super) fn timeline(paths: &Paths, folder: &Path) -> Result<()> {
    browser(paths)?;
    let program = program(paths)?;
    for tasks in TASKS {
        let folder = folder.join(tasks.to_string());
        fs::create_dir_all(&folder)?;
        measure(paths, &program, &folder, tasks)?;
        fs::remove_dir_all(&folder)?;
    }
    Ok(())
}

/// The program that is measured.
pub(super) fn program(paths: &Paths) -> Result<PathBuf> {
    let program = match std::env::var_os(PROGRAM) {
        Some(program) => program.into(),
        None => build(paths)?,
    };
    println!("measured: {}", program.display());
    Ok(program)
}

fn build(paths: &Paths) -> Result<PathBuf> {
    let log = paths.logs().join("build.log");
    Steps::new(1).always("release build of smtt-history", log, |step| {
        let mut cargo = cargo();
        cargo.args(["build", "--release", "--package", "smtt-history"]);
        step.run(cargo.current_dir(&paths.root), BUILD_LIMIT)
    })?;
    Ok(paths.target.join("release/smtt-history"))
}

fn measure(paths: &Paths, program: &Path, folder: &Path, tasks: usize) -> Result<()> {
    let (log, store) = (folder.join(ID), folder.join("store"));
    let truth = event_log::write(
        &log,
        &Shape {
            tasks,
            stages: 40,
            executors: 25,
            cores: 8,
            sql_metrics: 0,
        },
    )?;
    let mut import = Command::new(program);
    import.arg("import").arg("--store").arg(&store).arg(&log);
    run(
        "the import",
        &mut import,
        &folder.join("import.log"),
        RUN_LIMIT,
    )?;
    let port = free_port()?;
    let mut serve = Command::new(program);
    serve
        .args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--store"])
        .arg(&store);
    let server = Running::start("the server", &mut serve, &folder.join("serve.log"))?;
    wait_for("the server answers", START_LIMIT, || {
        Ok(get(port, "/api/v1/version").ok())
    })?;
    let ask = |from: i64, to: i64| -> Result<(f64, usize)> {
        let path =
            format!("/smtt/v1/applications/{ID}/timeline?from={from}&to={to}&lanes=64&width=2100");
        let begin = Instant::now();
        let answer = get(port, &path)?;
        Ok((begin.elapsed().as_secs_f64() * 1000.0, answer.len()))
    };
    let (first, _) = ask(0, truth.length)?;
    for zoom in ZOOMS {
        let length = (truth.length / zoom).max(20);
        let (mut times, mut bytes) = (Vec::new(), 0);
        for question in 0..QUESTIONS {
            let from = (truth.length - length) * question / QUESTIONS;
            let (time, size) = ask(from, from + length)?;
            times.push(time);
            bytes = bytes.max(size);
        }
        report(
            &format!("time line, {tasks} tasks, 1/{zoom}"),
            median(&mut times),
            "ms",
            ANSWER_MS,
            &format!(
                "median of {QUESTIONS}, most {:.1} ms, at most {} KiB",
                most(&times),
                bytes >> 10
            ),
        );
    }
    if tasks <= SHOWN {
        show(paths, folder, port, tasks)?;
    }
    let resident = witness::resident_bytes(server.pid())? >> 20;
    println!(
        "time line, {tasks} tasks: first answer {first:.1} ms, server resident {resident} MiB"
    );
    Ok(())
}

/// What a person sees of it.
fn show(paths: &Paths, folder: &Path, port: u16, tasks: usize) -> Result<()> {
    let browser = Browser::start(paths, folder)?;
    browser.look(1400, 1000, false)?;
    let of = |what: &str| format!("time line, {tasks} tasks, {what}");
    let mut times = Vec::new();
    for _ in 0..LOADS {
        browser.open("about:blank")?;
        browser.open(&format!(
            "http://127.0.0.1:{port}/applications/{ID}/timeline"
        ))?;
        browser.until("return document.getElementById('timeline').dataset.state === 'ready'")?;
        let ms =
            browser.run("return Number(document.getElementById('timeline').dataset.pictureMs)")?;
        times.push(ms.as_f64().context("the page has no picture")?);
    }
    report(
        &of("first picture"),
        median(&mut times),
        "ms",
        PICTURE_MS,
        &format!("median of {LOADS}, most {:.0} ms", most(&times)),
    );
    let frames = browser.frames(MOVE_TIME_LINE, MOVES)?;
    let draw = browser.run("return document.getElementById('timeline').dataset.drawMs")?;
    report(
        &of("frame"),
        frames.median,
        "ms",
        FRAME_MS,
        &format!(
            "median over {MOVES} s, worst second {:.1} ms, 95 % within {:.1} ms, longest {:.1} ms; the script drew {draw} ms",
            frames.worst_second, frames.slow, frames.longest
        ),
    );
    let bytes = browser.page_bytes()?;
    report(
        &of("page"),
        bytes as f64 / f64::from(1 << 20),
        "MiB",
        PAGE_MIB,
        "memory of the renderer that no other process has",
    );
    Ok(())
}
