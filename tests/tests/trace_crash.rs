//! A writer of trace files that is killed at any moment leaves only readable files, with whole records.
//!
//! Needs a finished `cargo xtask setup` for PyArrow; `cargo xtask test spark` sees to it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use smtt_store::folder::list_segments;
use xtask::paths::{DEMO_SPARK, Paths};
use xtask::process::output;

/// How often the writer is killed.
const KILLS: u64 = 50;

/// Opens every file that has a final name and checks every record. Prints the numbers of files and records.
const CHECK: &str = "
import datetime, pathlib, sys
import pyarrow.parquet
files = records = 0
EPOCH = datetime.datetime.fromtimestamp(0, datetime.timezone.utc)
COLUMNS = 'time access kind executor_id rdd_id partition block_id task_attempt_id size_bytes virtual_address'.split()
COLUMNS += 'length_bytes further_addresses further_lengths first_page'.split()
for path in sorted(pathlib.Path(sys.argv[1]).rglob('*.parquet')):
    if path.name.startswith('.'):
        continue
    table = pyarrow.parquet.ParquetFile(path).read(columns=COLUMNS)
    for row in table.to_pylist():
        n = row['task_attempt_id']
        rdd, partition = n % 1000, n // 7 % 1000
        expected = dict(
            time=EPOCH + n // 1000 * datetime.timedelta(microseconds=1), access='write', kind='put', executor_id='0', rdd_id=rdd, partition=partition,
            block_id=f'rdd_{rdd}_{partition}', task_attempt_id=n, size_bytes=3 * n, virtual_address=4096 * n + 8,
            length_bytes=n + 1, further_addresses=[n], further_lengths=[1], first_page=n,
        )
        seen = {name: row[name] for name in expected}
        assert seen == expected, f'{path}: {seen}, expected {expected}'
    files += 1
    records += table.num_rows
print(files, records)
";

/// Milliseconds from the writer's start to its end, different in each round: small and large, in no order.
fn lifetime(round: u64) -> Duration {
    let scattered = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    Duration::from_micros(2_000 + scattered % 500_000)
}

#[test]
fn a_writer_that_is_killed_leaves_only_files_that_open() -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let folder = scratch.path().join("trace");
    let writer = Path::new(env!("CARGO_BIN_EXE_trace_writer"));
    let mut left_over = 0;
    for round in 0..KILLS {
        let mut child = Command::new(writer)
            .arg(&folder)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", writer.display()))?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
        assert_eq!(line, "writing\n", "round {round}");
        // The unfinished files of the previous round have been removed.
        let (_, unfinished) = list_segments(&folder)?;
        assert!(unfinished.len() <= 2, "round {round}: {unfinished:?}");
        std::thread::sleep(lifetime(round));
        child.kill()?;
        child.wait()?;
        left_over += list_segments(&folder)?.1.len();
    }
    let python = Paths::find()?.spark_env(DEMO_SPARK).join("bin/python");
    let checked = output(Command::new(python).args(["-c", CHECK]).arg(&folder))?;
    println!(
        "files and records: {}; the kills left {left_over} unfinished files",
        checked.trim()
    );
    let mut figures = checked.split_whitespace();
    let mut figure = || -> Result<u64> { Ok(figures.next().context("no figure")?.parse()?) };
    let (files, records) = (figure()?, figure()?);
    assert_eq!(files as usize, list_segments(&folder)?.0.len());
    assert!(files >= KILLS / 2, "only {files} files were finished");
    assert!(records >= 10_000, "only {records} records");
    assert!(
        left_over > 0,
        "no kill met a segment that was being written"
    );
    Ok(())
}
