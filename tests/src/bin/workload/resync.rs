//! Reports all blocks again on request: first in one burst that overflows a small ring, then in steps.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use smtt_common::event::Kind;
use smtt_common::event::marker::{BLOCK_SERIALIZED, REPORTED_AGAIN};
use smtt_model::decode::encode::payload;

use crate::Options;
use crate::marker::Marker;

/// RDD id of the blocks.
const RDD: u64 = 22;
/// Bytes of a block.
const BYTES: u64 = 100;

/// Reports `blocks` blocks, in steps of `step`, and waits for a line from the test after each. At the first resync
/// request the scenario reports all blocks in one burst. At the second it has dropped the first block without a fact,
/// and reports the others in steps.
pub fn resync(marker: &Marker, options: &Options) -> Result<Value> {
    let blocks = options.number("blocks", 200)?;
    let step = options.number("step", 40)?;
    let tell = |block: u64, again: u64| {
        let words = [
            RDD,
            block,
            BYTES,
            BLOCK_SERIALIZED | again,
            u64::MAX,
            0,
            0,
            0,
        ];
        let name = format!("rdd_{RDD}_{block}");
        marker.tell(Kind::BLOCK_STORED, &payload(&words, &[], &[&name]));
    };
    let in_steps = |from: u64, again: u64| -> Result<()> {
        for block in from..blocks {
            tell(block, again);
            if (block + 1) % step == 0 {
                crate::say("STEP")?;
                crate::wait()?;
            }
        }
        crate::say("TOLD")?;
        crate::wait()
    };
    in_steps(0, 0)?;

    let request = marker.resync_request().context("no resync is requested")?;
    marker.tell_words(Kind::RESYNC_TOLD, &[request, 0]);
    (0..blocks).for_each(|block| tell(block, REPORTED_AGAIN));
    crate::say("TOLD")?;
    crate::wait()?;
    marker.tell_words(Kind::RESYNC_TOLD, &[request, blocks]);
    marker.resync_done(request);
    crate::say("DONE_ONCE")?;
    crate::wait()?;

    let request = marker
        .resync_request()
        .context("no second resync is requested")?;
    marker.tell_words(Kind::RESYNC_TOLD, &[request, 0]);
    in_steps(1, REPORTED_AGAIN)?;
    marker.tell_words(Kind::RESYNC_TOLD, &[request, blocks - 1]);
    marker.resync_done(request);
    Ok(json!({ "blocks": blocks }))
}
