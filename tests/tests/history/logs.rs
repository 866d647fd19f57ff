//! Event logs in the forms that Spark itself writes: compressed with each codec that has a name of its own, and rolling, as
//! written and as Spark's history server compacts them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use smtt_history::import::{Admission, import};
use smtt_history::live::compact;
use smtt_history::log::Bounds;
use smtt_tests::history::serve;
use smtt_tests::lab::{LIMIT, SparkLab};
use xtask::process::wait_for;

use crate::answers::{Api, compare_all};
use crate::application::application_with;
use crate::lists;
use crate::live::{names, same_tables};

/// Codecs, with the end of a log's name, and first bytes of a compressed log.
const CODECS: [(&str, &str, &[u8]); 3] = [
    ("lz4", ".lz4", b"LZ4Block"),
    ("snappy", ".snappy", b"\x82SNAPPY\0"),
    ("zstd", ".zstd", b"\x28\xb5\x2f\xfd"),
];
const ROLLING: &str = "rolling";

/// Spark's history server looks at the logs each second, and compacts all parts of a rolling log but the last one. It compacts
/// with its own settings: with those of Spark 4 it cannot read what it made of a log that is not compressed.
const COMPACTS: &str = "-Dspark.history.fs.update.interval=1s \
    -Dspark.history.fs.eventLog.rolling.maxFilesToRetain=1 -Dspark.eventLog.compress=false";

#[test]
fn logs_of_each_codec_and_rolling_ones_are_read_as_spark_wrote_them() -> Result<()> {
    let lab = SparkLab::new("4.0.5")?;
    let store = lab.folder().join("store");
    let mut arguments: Vec<&str> = CODECS.iter().map(|it| it.0).collect();
    arguments.push(ROLLING);
    let application = application_with(&lab, &store, "logs.py", "local[2]", &arguments)?;
    let mut running = lab.run_through(&application)?;
    running.result(LIMIT)?;
    let printed = fs::read_to_string(running.running.output())?;
    let lines = printed.lines().filter_map(|line| {
        let (name, id) = line.strip_prefix("APPLICATION ")?.split_once(' ')?;
        Some((name.to_owned(), id.to_owned()))
    });
    let ids: BTreeMap<String, String> = lines.collect();
    ensure!(ids.len() == arguments.len(), "{printed}");

    let logs = lab.folder().join("logs");
    let rolling = logs.join(format!("eventlog_v2_{}", ids[ROLLING]));
    let imported = lab.folder().join("imported");
    let mut all = vec![(&ids[ROLLING], rolling.clone())];
    for (codec, end, magic) in CODECS {
        let log = logs.join(format!("{}{end}", ids[codec]));
        let bytes = fs::read(&log).with_context(|| format!("{codec}: {:?}", names(&logs)))?;
        ensure!(bytes.starts_with(magic), "{codec}: {:?}", &bytes[..16]);
        all.push((&ids[codec], log));
    }
    let parts = names(&rolling);
    let events = parts.iter().filter(|it| it.starts_with("events_"));
    ensure!(events.count() >= 3, "{parts:?}");
    for (id, log) in &all {
        let done = import(&imported, log, Bounds::default(), &Admission::default())?;
        ensure!(done.damaged == 0, "{:?}", done.named);
        compact(&store, id, false)?;
        same_tables(&store.join(id), &imported.join(id))?;
    }

    let server = lab.spark.history_server_with(&logs, COMPACTS)?;
    let spark = Api { port: server.port };
    wait_for("Spark compacts the rolling log", LIMIT, || {
        let parts = names(&rolling);
        let compacted = parts.iter().any(|it| it.ends_with(".compact"));
        let events = parts.iter().filter(|it| it.starts_with("events_"));
        Ok((compacted && events.count() == 2).then_some(()))
    })?;
    let opened = lab.folder().join("opened");
    let ours = Api {
        port: serve(&opened, Some(logs.clone()))?,
    };
    let mut compared = 0;
    for (id, _) in &all {
        wait_for("Spark's history server lists them", LIMIT, || {
            Ok((spark.get(&format!("applications/{id}"))?.0 == 200).then_some(()))
        })?;
        // Only what was opened is listed.
        ensure!(ours.get(&format!("applications/{id}"))?.0 == 200, "{id}");
    }
    for (id, _) in &all {
        compared += compare_all(&spark, &ours, id, |_| ())?;
    }
    let listed = lists::applications(&spark, &ours, |_| ())?;
    let left = tasks(&opened, &ids[ROLLING])?;
    let whole = tasks(&imported, &ids[ROLLING])?;
    println!(
        "{compared} answers of {} applications compared, {listed} lists; of {whole} tasks of the rolling log {left} after compaction",
        all.len()
    );
    ensure!(left < whole, "the compaction left {left} of {whole} tasks");
    lab.passed()
}

fn tasks(store: &Path, id: &str) -> Result<u64> {
    let app = smtt_history::open::App::open(&store.join(id))?;
    Ok(app.tasks()?.rows())
}
