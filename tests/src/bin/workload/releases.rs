//! A marker of a neighbouring release: its facts lack the last strings, or have one more, and it tells facts and
//! activities that this version does not know.

use anyhow::{Result, bail};
use serde_json::{Value, json};
use smtt_common::context::{Access, Activity, ContextWord, Region};
use smtt_common::event::Kind;
use smtt_common::event::marker::{BLOCK_SERIALIZED, LATER_STRINGS, outcome, schema};
use smtt_model::decode::encode::payload;

use crate::Options;
use crate::marker::{Marker, writing};
use crate::memory::{Mapping, PAGE, thread_faults};
use crate::scenario::STAGE;

/// RDD of the work.
const RDD: u32 = 8;
/// RDD of the work in an activity without a name.
const NEW_RDD: u32 = 9;
/// An activity that no version has yet.
const NEW_ACTIVITY: Activity = Activity(200);
/// The task.
const TASK: u64 = 41;
/// Facts of a kind that this version does not know, and the bytes of each.
const UNKNOWN: u64 = 5000;
const UNKNOWN_BYTES: usize = 1500;

/// The payload of a fact, as a marker of that release sends it.
fn form(release: &str, kind: Kind, words: &[u64], strings: &[&str]) -> Result<Vec<u8>> {
    let mut strings = strings.to_vec();
    match release {
        "newer" => strings.push("a field of a later release"),
        "older" => {
            let later = LATER_STRINGS.iter().find(|(later, _)| *later == kind);
            strings.truncate(strings.len() - later.map_or(0, |(_, count)| *count));
        }
        "own" => {}
        other => bail!("there is no release {other}"),
    }
    Ok(payload(words, &[], &strings))
}

/// One task writes `pages` pages for an RDD and as many in an activity without a name, stores `blocks` blocks of
/// `100 + n` bytes, and ends. Returns what was told and the thread's page faults by the kernel's count.
pub fn releases(marker: &Marker, options: &Options) -> Result<Value> {
    let release = options.text("release").unwrap_or("own");
    let (pages, blocks) = (
        options.number("pages", 2000)?,
        options.number("blocks", 100)?,
    );
    let tell = |kind: Kind, words: &[u64], strings: &[&str]| -> Result<()> {
        debug_assert!(schema(kind).is_some_and(|form| form.words.len() == words.len()));
        marker.tell(kind, &form(release, kind, words, strings)?);
        Ok(())
    };
    // The daemon may have found the library only now.
    marker.describe();
    let slot = marker.register()?;
    let memory = Mapping::anonymous(2 * pages as usize)?;
    for (rdd, name) in [(RDD, "links"), (NEW_RDD, "ranks")] {
        let strings = [name, "map at Job.scala:7", "", "", "map", "1"];
        tell(Kind::RDD_DESCRIBED, &[u64::from(rdd), blocks, 0], &strings)?;
    }
    let stage = u64::from(STAGE);
    let described = ["map at Job.scala:7", "5", "SELECT 1", "", "1000", "", ""];
    tell(
        Kind::STAGE_DESCRIBED,
        &[stage, 0, 1, 2, u64::from(RDD)],
        &described,
    )?;
    tell(Kind::TASK_BEGUN, &[TASK, 0], &[])?;
    tell(Kind::TASK_STARTED, &[TASK, stage, 0, 0, 0, 2], &[])?;

    slot.set_task(TASK, STAGE, writing(RDD, 0));
    let faults = thread_faults();
    for page in 0..pages as usize {
        memory.write(page * PAGE);
    }
    let known_faults = thread_faults() - faults;
    let newer = ContextWord::new(NEW_ACTIVITY, Access::WRITE, Region::STORAGE, NEW_RDD + 1, 0);
    slot.enter(newer);
    let faults = thread_faults();
    for page in pages as usize..2 * pages as usize {
        memory.write(page * PAGE);
    }
    let new_faults = thread_faults() - faults;

    slot.enter(ContextWord(0));
    let bytes = [7_u8; UNKNOWN_BYTES];
    let unknown = (0..UNKNOWN).filter(|_| marker.tell_unknown(&bytes)).count();
    for block in 0..blocks {
        let words = [
            u64::from(RDD),
            block,
            100 + block,
            BLOCK_SERIALIZED,
            TASK,
            0,
            0,
            0,
        ];
        tell(Kind::BLOCK_STORED, &words, &[&format!("rdd_{RDD}_{block}")])?;
    }
    let mut metrics = [0; 15];
    metrics[..2].copy_from_slice(&[TASK, 12_345]);
    tell(Kind::TASK_METRICS, &metrics, &[])?;
    tell(
        Kind::TASK_ENDED,
        &[TASK, stage, 0, outcome::SUCCESS, 0],
        &[""],
    )?;
    Ok(json!({
        "unknown": unknown,
        "faults": known_faults,
        "new_faults": new_faults,
        "block_bytes": (0..blocks).map(|block| 100 + block).sum::<u64>(),
    }))
}
