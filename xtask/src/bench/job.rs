//! The cost that tracing, and sampling beside it, add to whole jobs: the demo's PageRank, and the eight workloads of
//! the paper.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use super::pairs::{Pairs, Ratios, Setting};
use super::report;
use super::sample::{CLOCK, NO_SAMPLES};
use super::trace::RECORD_BYTES;
use crate::daemon::Options;
use crate::paths::Paths;
use crate::spark::Application;
use crate::{demo, experiment};

/// Pairs of runs of the demo's job.
const PAIRS: usize = 7;
/// Pairs of runs of each of the eight workloads.
const PAIRS_OF_EACH: usize = 3;
/// Input size of the workloads: runs of several seconds each.
const SCALE: u32 = 100;
/// One executor with all cores, as the paper's one node.
const MASTER: &str = "local-cluster[1,2,1024]";
/// Limit of a traced job's time, as a multiple of the untraced job.
const TRACED_RATIO: f64 = 1.02;
/// Limit of a sampled job's time at the default rate, as a multiple of the traced job without sampling.
const SAMPLED_RATIO: f64 = 1.01;

/// Compares a job with marker and daemon with one without both.
pub(super) fn traced(paths: &Paths, folder: &Path) -> Result<()> {
    page_rank(paths, folder, &Some(Options::default()), &None)?
        .report("PageRank, traced / untraced", TRACED_RATIO);
    Ok(())
}

/// Compares a job with every option switched on with an untraced one.
pub(super) fn everything(paths: &Paths, folder: &Path) -> Result<()> {
    page_rank(paths, folder, &all(folder), &None)?
        .report("PageRank, everything on / off", TRACED_RATIO);
    Ok(())
}

/// Compares two traced jobs, one sampled by the clock: the clock is the most regular event, and every machine has it.
pub(super) fn sampled(paths: &Paths, folder: &Path) -> Result<()> {
    let with = |pmu: &str| {
        Some(Options {
            toml: format!("[page_walks]\n{pmu}\n"),
            ..Options::default()
        })
    };
    page_rank(paths, folder, &with(CLOCK), &with(NO_SAMPLES))?
        .report("PageRank, sampled / traced", SAMPLED_RATIO);
    Ok(())
}

/// Compares all options on with all off in the eight workloads of the paper, and measures the disk space of their trace
/// records.
pub(super) fn workloads(paths: &Paths, folder: &Path) -> Result<()> {
    let mut pairs = Pairs::new(paths, folder)?;
    let mut together = Ratios::default();
    let (mut records, mut bytes) = (0, 0);
    for workload in experiment::names() {
        println!("  {workload}");
        let with = all(&folder.join(workload));
        let job = || {
            let arguments = [workload, &SCALE.to_string(), "4"];
            Ok(Application::scala(paths, MASTER, "Experiment", &arguments)?
                .conf("spark.sql.shuffle.partitions", "4"))
        };
        let mut ratios = pairs.of(&job, PAIRS_OF_EACH, &with, &None)?;
        ratios.report(&format!("{workload}, everything on / off"), TRACED_RATIO);
        together.add(ratios);
        let written = written(paths, &folder.join(workload).join("trace"))?;
        println!(
            "    trace: {} records in {} files of {:.1} bytes per record",
            written.records,
            written.files,
            written.bytes as f64 / written.records.max(1) as f64
        );
        records += written.records;
        bytes += written.bytes;
    }
    together.report_means("eight workloads, everything on / off", TRACED_RATIO);
    report(
        "trace record of the eight workloads",
        bytes as f64 / records as f64,
        "bytes",
        RECORD_BYTES,
        &format!("{records} records, {bytes} bytes of files, their ends included"),
    );
    Ok(())
}

fn page_rank(paths: &Paths, folder: &Path, with: &Setting, without: &Setting) -> Result<Ratios> {
    let job = || demo::application(paths, false);
    Pairs::new(paths, folder)?.of(&job, PAIRS, with, without)
}

/// All options: trace records below a folder, sampling by the clock, and the resolver, which is on by default.
fn all(folder: &Path) -> Setting {
    Some(Options {
        toml: format!("{}\n[page_walks]\n{CLOCK}\n", super::tracing(folder)),
        ..Options::default()
    })
}

/// Disk space of trace files.
struct Written {
    records: u64,
    files: u64,
    bytes: u64,
}

/// Sums the finished files below the folder, and reads the files to count their records.
fn written(paths: &Paths, folder: &Path) -> Result<Written> {
    let mut written = Written {
        records: 0,
        files: 0,
        bytes: 0,
    };
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder)
            .with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let (path, about) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
            if about.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "parquet") {
                written.files += 1;
                written.bytes += about.len();
            }
        }
    }
    let output = std::process::Command::new(paths.target.join("release/smtt-ctl"))
        .args(["trace", "--json", "--folder"])
        .arg(folder)
        .stdin(Stdio::null())
        .output()
        .context("cannot start smtt-ctl")?;
    if !output.status.success() {
        bail!(
            "smtt-ctl trace failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    written.records = output.stdout.iter().filter(|byte| **byte == b'\n').count() as u64;
    Ok(written)
}
