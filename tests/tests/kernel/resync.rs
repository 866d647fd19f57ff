//! A resync through a ring that is too small: records lost in it do not count as removed blocks.

use anyhow::{Context as _, Result, ensure};
use smtt_config::FaultHook;
use smtt_daemon::discover::Discoverer;
use smtt_machine::clock::now_boot_ns;
use smtt_model::decode::decode;
use smtt_model::state::{Limits, State};

use crate::foreign_files::find;
use crate::lab::{KernelLab, Workload, lab, with_hook};

/// Bytes of a ring that holds about ninety block records.
const SMALL_RING: u32 = 16 << 10;
/// Far more blocks than the ring holds.
const BLOCKS: u64 = 200;
/// Far fewer blocks than the ring holds.
const STEP: u64 = 40;

/// The probes and a state that applies their records.
struct Both {
    lab: KernelLab,
    state: State,
    taken: usize,
}

impl Both {
    fn take(&mut self) -> Result<()> {
        self.lab.read()?;
        for record in self.lab.records.iter().skip(self.taken) {
            self.state.apply(decode(&record.header, &record.payload)?);
        }
        self.taken = self.lab.records.len();
        Ok(())
    }

    /// Lets the workload report in steps, and reads the ring after each.
    fn take_steps(&mut self, workload: &mut Workload) -> Result<()> {
        for _ in 0..BLOCKS / STEP {
            workload.expect("STEP")?;
            self.take()?;
            workload.go()?;
        }
        workload.expect("TOLD")?;
        self.take()
    }

    /// Blocks of the workload, and whether the state wants another resync.
    fn blocks(&self, executor: u64) -> Result<(u64, bool)> {
        let row = self.state.executors().get(&executor);
        let blocks = row.context("it has no row")?.memory.blocks.len();
        let wanted = self.state.resyncs_wanted().contains(&executor);
        Ok((blocks as u64, wanted))
    }

    fn lost(&self, executor: u64) -> Result<u64> {
        Ok(self.lab.totals(executor)?.facts_ring_full)
    }
}

#[test]
fn what_was_lost_while_it_was_told_again_stays_until_all_of_it_comes() -> Result<()> {
    let mut settings = with_hook(FaultHook::Off);
    settings.ring_bytes = SMALL_RING;
    let Some(lab) = lab(&settings)? else {
        return Ok(());
    };
    let mut both = Both {
        lab,
        state: State::new(Limits::default()),
        taken: 0,
    };
    // Discovery examines processes whose command name is java.
    let options = [
        "name=java".to_owned(),
        format!("blocks={BLOCKS}"),
        format!("step={STEP}"),
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let mut workload = Workload::start("resync", &options)?;
    let executor = both.lab.executor(workload.pid())?;
    workload.go()?;
    both.take_steps(&mut workload)?;
    ensure!(both.lost(executor)? == 0, "something was lost already");
    ensure!(both.blocks(executor)? == (BLOCKS, false));

    let found = find(
        &mut Discoverer::new(both.lab.probes.libraries()),
        workload.pid(),
    )?;
    let ask = |both: &mut Both, workload: &mut Workload, request: u64| -> Result<()> {
        found.slots.request_resync(request)?;
        let now = now_boot_ns();
        both.state.resync_requested(executor, request, now);
        workload.go()
    };

    // No reader drains the ring during the resync.
    ask(&mut both, &mut workload, 41)?;
    workload.expect("TOLD")?;
    both.take()?;
    workload.go()?;
    workload.expect("DONE_ONCE")?;
    both.take()?;
    let lost = both.lost(executor)?;
    println!("{lost} of {BLOCKS} facts were lost while they were reported again");
    ensure!(lost > 0, "the ring was not too small");
    ensure!(
        found.slots.resync_done()? == 41,
        "it has not told everything again"
    );
    let after = both.blocks(executor)?;
    ensure!(
        after == (BLOCKS, true),
        "{BLOCKS} blocks live, and the snapshot did not arrive whole: {after:?}"
    );

    // At the second request the workload reports in steps. It has dropped one block without a fact.
    ask(&mut both, &mut workload, 42)?;
    both.take_steps(&mut workload)?;
    ensure!(
        both.blocks(executor)? == (BLOCKS, false),
        "nothing is gone before the telling has ended"
    );
    workload.run()?;
    both.take()?;
    ensure!(both.lost(executor)? == lost, "nothing more was lost");
    let after = both.blocks(executor)?;
    ensure!(
        after == (BLOCKS - 1, false),
        "one block is gone, and all others came: {after:?}"
    );
    workload.end()
}
