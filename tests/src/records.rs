//! Accesses on their way from the marker to the trace files: the facts in the marker's own log, the records in finished
//! segments, and an independent reader of the segments.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use xtask::daemon::{Daemon, Options};

/// Options of a daemon that writes trace records into a folder, in segments of one second; `toml` adds settings.
#[must_use]
pub fn tracing(folder: &Path, more: &str) -> Options {
    Options {
        toml: format!(
            "[trace]\nenabled = true\nfolder = {:?}\nsegment_seconds = 1\n\n{more}",
            folder.display().to_string()
        ),
        ..Options::default()
    }
}

/// Counts records by kind with an independent reader. Fails at a file that does not open.
pub const COUNT: &str = "
import collections, sys
import pyarrow.dataset
traces = pyarrow.dataset.dataset(sys.argv[1], format='parquet', partitioning='hive')
table = traces.to_table(filter=pyarrow.dataset.field('application_id') == sys.argv[2])
for kind, count in sorted(collections.Counter(table['kind'].to_pylist()).items()):
    print(f'{kind}={count}')
";

/// Facts that are accesses; each access is a trace record.
pub const ACCESSES: [&str; 7] = [
    "blockStored",
    "blockMoved",
    "blockRead",
    "blockRemoved",
    "pageAllocated",
    "pageFreed",
    "span",
];

/// Facts by kind.
pub type Kinds = BTreeMap<String, u64>;

/// Facts of one process by kind, from the log that the process's marker writes.
///
/// # Errors
/// When the log cannot be read.
pub fn told(log: &Path) -> Result<Kinds> {
    let mut kinds = Kinds::new();
    let text = String::from_utf8_lossy(&std::fs::read(log)?).into_owned();
    for line in whole_lines(&text) {
        let kind = line.split(' ').nth(1).context("no kind")?;
        *kinds.entry(kind.to_owned()).or_default() += 1;
    }
    Ok(kinds)
}

/// The fact that a record stands for.
fn fact_of(kind: &str, on_page: bool) -> &'static str {
    match kind {
        "alive" if on_page => "pageAllocated",
        "put" | "alive" => "blockStored",
        "move" => "blockMoved",
        "get" => "blockRead",
        "drop" => "blockRemoved",
        "allocate" => "pageAllocated",
        "free" => "pageFreed",
        _ => "span",
    }
}

/// Records in finished segments, by executor and fact.
///
/// # Errors
/// When the daemon's client does not answer, or answers in another form.
pub fn written(
    daemon: &Daemon,
    folder: &Path,
    application: &str,
) -> Result<BTreeMap<String, Kinds>> {
    let folder = folder.display().to_string();
    let lines = daemon.ask(&["trace", "--folder", &folder, "--app", application, "--json"])?;
    let mut all: BTreeMap<String, Kinds> = BTreeMap::new();
    for line in lines.lines() {
        let record: serde_json::Value = serde_json::from_str(line)?;
        let kind = record["kind"].as_str().context("no kind")?;
        // A block of many ranges takes several records per access; only the first one counts.
        if matches!(kind, "get" | "drop") && record["range_first"].as_u64() > Some(0) {
            continue;
        }
        let executor = record["executor_id"].as_str().context("no executor")?;
        let fact = fact_of(kind, record["region"] == "execution");
        let kinds = all.entry(executor.to_owned()).or_default();
        *kinds.entry(fact.to_owned()).or_default() += 1;
    }
    Ok(all)
}

/// Sum of the facts that are accesses, or of the others.
#[must_use]
pub fn sum(kinds: &Kinds, accesses: bool) -> u64 {
    let wanted = kinds
        .iter()
        .filter(|(kind, _)| ACCESSES.contains(&kind.as_str()) == accesses);
    wanted.map(|(_, count)| count).sum()
}

/// Lines with a line end: the last line of the file may be incomplete.
pub fn whole_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'))
}

/// The value of a key in a line of the marker's log.
#[must_use]
pub fn word<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(' ')
        .find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

/// Parses counts by kind, as the reader of [`COUNT`] prints them.
///
/// # Errors
/// When the counts have another form.
pub fn parse(words: &str) -> Result<Kinds> {
    words
        .split_whitespace()
        .map(|word| {
            let (kind, count) = word
                .split_once('=')
                .with_context(|| format!("no kind and count in {word:?}"))?;
            Ok((kind.to_owned(), count.parse()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_being_written_is_not_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        std::fs::write(&log, "1 blockStored a=1\n2 span a=2\n3 blockRea").expect("writes");
        let kinds = told(&log).expect("reads");
        assert_eq!(parse("blockStored=1 span=1").expect("counts"), kinds);
        assert_eq!((sum(&kinds, true), sum(&kinds, false)), (2, 0));
    }

    #[test]
    fn words_are_found_by_their_whole_name() {
        assert_eq!(word("1 span xa=2 a=3", "a"), Some("3"));
        assert_eq!(word("1 span ab=2", "a"), None);
    }
}
