//! The time line of the history server: how long answers about tasks and about memory take at each level of detail, for
//! applications of 1,000 to a million tasks that never ran; and in a browser without a screen, the time to the first
//! picture, frames while the picture moves, and the memory of the page.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{BUILD_LIMIT, RUN_LIMIT, median, most, report};
use crate::browser::{Browser, MOVE_TIME_LINE};
use crate::event_log::{self, ID, Shape, Truth};
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
/// Limit of the memory of the page, in MB.
const PAGE_MB: f64 = 200.0;
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
/// What is asked, and the beginning of the question.
const PARTS: [(&str, &str); 2] = [
    ("time line", "timeline?lanes=64&"),
    ("memory", "timeline/memory?"),
];
/// Both pictures are there, and the memory has something to show.
const DRAWN: &str = "return ['timeline', 'memory'].every((id) => document.getElementById(id).dataset.state === 'ready') &&
    document.querySelectorAll('#memory-legend li').length > 0";
/// Questions at each level.
const QUESTIONS: i64 = 21;
const START_LIMIT: Duration = Duration::from_secs(30);

/// Measures; needs neither root nor Spark.
pub(super) fn timeline(paths: &Paths, folder: &Path) -> Result<()> {
    browser(paths)?;
    let program = program(paths)?;
    let workers = workers(paths)?;
    for tasks in TASKS {
        let folder = folder.join(tasks.to_string());
        fs::create_dir_all(&folder)?;
        measure(paths, (&program, &workers), &folder, tasks)?;
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

/// The program that writes what workers know of an application. It is not measured, so it is as tests have it.
fn workers(paths: &Paths) -> Result<PathBuf> {
    let log = paths.logs().join("build.log");
    Steps::new(1).always("build of workers", log, |step| {
        let mut cargo = cargo();
        // Without the kernel side it does the same.
        cargo.env_remove("SMTT_EBPF_REQUIRED");
        cargo.args(["build", "--workspace", "--bins"]);
        step.run(cargo.current_dir(&paths.root), BUILD_LIMIT)
    })?;
    Ok(paths.target.join("debug/workers"))
}

/// Imports an application, and writes what workers know of it.
fn store(
    (program, workers): (&Path, &Path),
    folder: &Path,
    tasks: usize,
) -> Result<(PathBuf, Truth)> {
    let (log, store) = (folder.join(ID), folder.join("store"));
    let shape = Shape {
        tasks,
        stages: 40,
        executors: 25,
        cores: 8,
        sql_metrics: 0,
    };
    let truth = event_log::write(&log, &shape)?;
    let mut import = Command::new(program);
    import.arg("import").arg("--store").arg(&store).arg(&log);
    run(
        "the import",
        &mut import,
        &folder.join("import.log"),
        RUN_LIMIT,
    )?;
    let mut write = Command::new(workers);
    write
        .arg(&store)
        .args([shape.executors.to_string(), truth.length.to_string()]);
    run(
        "the workers' files",
        &mut write,
        &folder.join("workers.log"),
        RUN_LIMIT,
    )?;
    Ok((store, truth))
}

fn measure(paths: &Paths, programs: (&Path, &Path), folder: &Path, tasks: usize) -> Result<()> {
    let (store, truth) = store(programs, folder, tasks)?;
    let port = free_port()?;
    let mut serve = Command::new(programs.0);
    serve
        .args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--store"])
        .arg(&store);
    let server = Running::start("the server", &mut serve, &folder.join("serve.log"))?;
    wait_for("the server answers", START_LIMIT, || {
        Ok(get(port, "/api/v1/version").ok())
    })?;
    let ask = |part: &str, from: i64, to: i64| -> Result<(f64, String)> {
        let path = format!("/smtt/v1/applications/{ID}/{part}from={from}&to={to}&width=2100");
        let begin = Instant::now();
        let answer = get(port, &path)?;
        Ok((begin.elapsed().as_secs_f64() * 1000.0, answer))
    };
    let mut firsts = Vec::new();
    for (name, part) in PARTS {
        let (first, answer) = ask(part, 0, truth.length)?;
        let answer: Value = serde_json::from_str(&answer)?;
        // Without workers' files the memory would be answered at once.
        let series = answer["series"].as_array().map_or(0, Vec::len);
        ensure!(
            name == PARTS[0].0 || series > 0,
            "the answer about memory has none"
        );
        firsts.push(format!("{first:.1} ms ({name})"));
        for zoom in ZOOMS {
            let length = (truth.length / zoom).max(20);
            let (mut times, mut bytes) = (Vec::new(), 0);
            for question in 0..QUESTIONS {
                let from = (truth.length - length) * question / QUESTIONS;
                let (time, answer) = ask(part, from, from + length)?;
                times.push(time);
                bytes = bytes.max(answer.len());
            }
            let what = format!("{name}, {tasks} tasks, 1/{zoom}");
            let detail = format!("median of {QUESTIONS}, at most {} KiB", bytes >> 10);
            report(&what, median(&mut times), "ms", ANSWER_MS, &detail);
            let detail = format!("of {QUESTIONS}");
            report(
                &format!("{what}, longest"),
                most(&times),
                "ms",
                ANSWER_MS,
                &detail,
            );
        }
    }
    if tasks <= SHOWN {
        show(paths, folder, port, tasks)?;
    }
    let resident = witness::resident_bytes(server.pid())? >> 20;
    println!(
        "time line, {tasks} tasks: first answers {}, server resident {resident} MiB",
        firsts.join(", ")
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
        browser.until(DRAWN)?;
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
            "median over {MOVES} s, 95 % within {:.1} ms, longest {:.1} ms; the script drew {draw} ms",
            frames.slow, frames.longest
        ),
    );
    report(
        &of("frame of the worst second"),
        frames.worst_second,
        "ms",
        FRAME_MS,
        &format!("the longest median of {MOVES} seconds"),
    );
    let bytes = browser.page_bytes()?;
    report(
        &of("page"),
        bytes as f64 / 1e6,
        "MB",
        PAGE_MB,
        "memory of the renderer that no other process has",
    );
    Ok(())
}
