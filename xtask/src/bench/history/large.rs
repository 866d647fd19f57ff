//! Generated applications that are too large to run in a benchmark: a million tasks in one stage, and a log of some
//! gigabytes, which is compressed while it is written.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{Bench, IMPORT_MB, OPEN_MB, OPEN_MS, PAGES, PAIRS, TASKS};
use crate::bench::{median, most, report};
use crate::event_log::{self, ID, Shape};
use crate::process::{Running, output, wait_for};
use crate::witness;

/// Tasks of the stage that is opened and sorted.
pub(super) const MILLION: usize = 1_000_000;
const MILLION_PAGE_MS: f64 = 150.0;
/// Tasks of the log that is imported: with SQL metrics and copies each has 5.7 KB.
pub(super) const RAW_TASKS: usize = 500_000;
/// Time limit of an import, on a busy machine.
const IMPORT_LIMIT: Duration = Duration::from_secs(1200);
/// Pause between two samples of the memory of an import.
const LOOK: Duration = Duration::from_millis(5);

/// One stage with all tasks, as the page of 29,000 has it.
fn one_stage(tasks: usize) -> Shape {
    Shape {
        tasks,
        stages: 1,
        executors: 25,
        cores: 8,
        sql_metrics: 0,
    }
}

impl Bench<'_> {
    /// Imports a log, and returns its seconds and the most of its resident memory in MB.
    fn import_watched(&self, store: &Path, log: &Path) -> Result<(f64, f64)> {
        let mut import = Command::new(&self.program);
        import.arg("import").arg("--store").arg(store).arg(log);
        let begun = Instant::now();
        let mut running =
            Running::start("the import", &mut import, &self.folder.join("import.log"))?;
        let mut most = 0;
        let status = loop {
            // Its memory is gone before its status is there; the last sample counts then.
            most = witness::resident_peak_bytes(running.pid()).map_or(most, |it| most.max(it));
            if let Some(status) = running.poll()? {
                break status;
            }
            ensure!(begun.elapsed() < IMPORT_LIMIT, "the import takes too long");
            std::thread::sleep(LOOK);
        };
        ensure!(status.success(), "the import failed: {}", running.hint());
        Ok((begun.elapsed().as_secs_f64(), most as f64 / 1e6))
    }

    /// First open and sorted pages of a million tasks, beside those of an application that is 34 times smaller.
    pub(super) fn million(&self, million: usize) -> Result<()> {
        let mut opened = Vec::new();
        for tasks in [TASKS, million] {
            let (log, store) = ["million.log", "million"]
                .map(|it| self.folder.join(it))
                .into();
            event_log::write(&log, &one_stage(tasks))?;
            let bytes = fs::metadata(&log)?.len() as f64;
            let (seconds, memory) = self.import_watched(&store, &log)?;
            fs::remove_file(&log)?;
            println!(
                "{tasks} tasks without SQL metrics: log of {:.0} MB imported in {seconds:.1} s with {memory:.1} MB",
                bytes / 1e6
            );
            let (mut times, mut resident) = (vec![], 0.0_f64);
            for _ in 0..PAIRS {
                let server = self.ours(&store, false)?;
                times.push(server.ask(&format!("applications/{ID}/stages"))?);
                resident = resident.max(server.most_resident_mb()?);
            }
            let detail = format!(
                "/stages, median of {PAIRS} new servers, most {:.1} ms",
                most(&times)
            );
            let what = format!("first open, {tasks} tasks");
            report(&what, median(&mut times), "ms", OPEN_MS, &detail);
            report(&what, resident, "MB", OPEN_MB, "VmHWM");
            opened.push(resident);
            if tasks == million {
                self.million_pages(&store, million)?;
            }
            fs::remove_dir_all(&store)?;
        }
        // Flat: what a million tasks take more is their share of the index, and no table.
        let [few, many] = opened[..] else {
            return Ok(());
        };
        let detail = format!("{few:.1} MB with {TASKS} tasks, {many:.1} MB with {million}");
        report("first open, growth", many / few, "x", 1.5, &detail);
        Ok(())
    }

    fn million_pages(&self, store: &Path, million: usize) -> Result<()> {
        let server = self.ours(store, false)?;
        let mut times = vec![];
        for page in 0..PAGES {
            times.push(server.ask(&format!(
                "applications/{ID}/stages/0/0/taskList?sortBy=-runtime&length=100&offset={}",
                page * (million / PAGES)
            ))?);
        }
        let detail = format!(
            "100 of {million}, median of {PAGES}, first {:.1} ms, most {:.1} ms, {:.1} MB resident",
            times[0],
            most(&times),
            server.most_resident_mb()?
        );
        report(
            "taskList, sorted page",
            median(&mut times),
            "ms",
            MILLION_PAGE_MS,
            &detail,
        );
        Ok(())
    }

    /// The memory of an import of a log of gigabytes. On the disk is only what zstd makes of it.
    pub(super) fn raw(&self, tasks: usize) -> Result<()> {
        let (pipe, log, store) = ["raw.pipe", "raw.zstd", "raw-store"]
            .map(|it| self.folder.join(it))
            .into();
        output(Command::new("mkfifo").arg(&pipe))?;
        // A shell opens the pipe: it waits for the writer.
        let mut zstd = Command::new("sh");
        zstd.args(["-c", "exec zstd -q -1 <\"$0\" >\"$1\""]);
        let mut zstd = Running::start(
            "zstd",
            zstd.arg(&pipe).arg(&log),
            &self.folder.join("zstd.log"),
        )?;
        let shape = Shape {
            tasks,
            stages: 50,
            executors: 25,
            cores: 8,
            sql_metrics: 8,
        };
        event_log::write(&pipe, &shape)?;
        let status = wait_for("zstd ends", IMPORT_LIMIT, || zstd.poll())?;
        ensure!(status.success(), "zstd failed: {}", zstd.hint());
        let (seconds, memory) = self.import_watched(&store, &log)?;
        let about = fs::read_to_string(self.folder.join("import.log"))?;
        let bytes = about
            .split(" lines of ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok())
            .with_context(|| format!("the import says nothing of bytes: {about}"))?;
        let detail = format!(
            "{tasks} tasks, {:.2} GB raw, {:.0} MB as zstd, {seconds:.0} s, {:.0} MB/s",
            bytes / 1e9,
            fs::metadata(&log)?.size() as f64 / 1e6,
            bytes / 1e6 / seconds
        );
        report(
            "import, raw log, resident",
            memory,
            "MB",
            IMPORT_MB,
            &detail,
        );
        fs::remove_dir_all(&store)?;
        fs::remove_file(&log)?;
        Ok(())
    }
}
