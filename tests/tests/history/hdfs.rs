//! A driver that writes its history and its event log to HDFS, by Hadoop's client of its own Spark. What it wrote is read
//! from there, and the tables that the parts become are those of an import of the log.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use smtt_history::import::Admission;
use smtt_history::log::Bounds;
use smtt_history::objects::Location;
use smtt_history::objects::client::Store;
use smtt_history::objects::logs::copied;
use smtt_history::out::Times;
use smtt_tests::lab::{LIMIT, SparkLab};
use xtask::hdfs::Hdfs;
use xtask::process::wait_for;

use crate::application::application_with;
use crate::live::same_tables;

/// Bytes of copies, more than there are.
const COPIES: u64 = 1 << 30;

#[test]
fn a_driver_writes_to_hdfs_what_its_event_log_there_has() -> Result<()> {
    let lab = SparkLab::new("3.5.9")?;
    let hdfs = Hdfs::start(&lab.paths, &lab.folder().join("hdfs"))?;
    let address = |name: &str| format!("hdfs://127.0.0.1:{}/{name}", hdfs.port);
    let (store, logs) = (address("history"), address("logs"));
    hdfs.ask(&["mkdir", "/logs"])?;
    let control = lab.folder().join("control");
    fs::create_dir(&control)?;
    let arguments = [control.display().to_string(), format!("hdfs={store}")];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let application = application_with(&lab, lab.folder(), "stores.py", "local[2]", &arguments)?
        .conf("spark.eventLog.dir", &logs);
    let mut driver = lab.run_through(&application)?;
    let remote =
        |name: &str| -> Result<Location> { address(name).parse().map_err(anyhow::Error::msg) };
    let reader = Store::open(&remote("history")?, COPIES)?;
    // Parts are there while the application runs.
    wait_for("the first job has ended", LIMIT, || {
        ensure!(
            driver.running.alive(),
            "the driver ended{}",
            driver.running.hint()
        );
        Ok(control.join("hdfs.1").exists().then_some(()))
    })?;
    let part = wait_for("a part is there", LIMIT, || {
        let files = hdfs.list("/history")?;
        let found = files
            .into_iter()
            .find(|it| it.path.ends_with("/meta-000001.parquet"));
        Ok(found.filter(|it| it.is_closed))
    })?;
    let id = part.path.split('/').nth(2).context("no folder")?.to_owned();
    reader.with(&id, None)?;
    for gate in ["hdfs.1", "hdfs.2"] {
        wait_for(gate, LIMIT, || {
            Ok(control.join(gate).exists().then_some(()))
        })?;
        fs::write(control.join(format!("{gate}.go")), "")?;
    }
    driver.result(LIMIT)?;
    // Its event log, read from HDFS.
    let log = remote(&format!("logs/{id}"))?;
    let Location::Bucket(url) = &log else {
        anyhow::bail!("{log} is no address");
    };
    let imported = lab.folder().join("imported");
    let copy = copied(url, COPIES)?;
    let into = Store::open(&Location::Folder(imported.clone()), COPIES)?;
    into.import(&copy.path, Bounds::default(), &Admission::default())?;
    // The parts, made tables in HDFS.
    reader.compact(&id, false, Times::Complete)?;
    let files = hdfs.list(&format!("/history/{id}"))?;
    ensure!(
        files.len() == 4 && files.iter().all(|it| it.is_closed),
        "{files:?}"
    );
    let fresh = Store::open(&remote("history")?, COPIES)?;
    let copy = fresh.with(&id, None)?;
    same_tables(&copy.join(&id), &imported.join(&id))?;
    lab.passed()
}
