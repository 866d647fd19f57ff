//! Work whose page walks are known: three RDDs in turns on one thread; and plain counts of the work, which the kernel
//! makes for the thread without sampling.
//!
//! RDD 1 reads many pages, RDD 2 writes the same number of pages, RDD 3 returns to a few. A counter that distinguishes
//! the RDDs (page walks or, on fresh memory, page faults) has a different number for each.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use smtt_machine::perf::{Event, Of, Opening, refusal};
use smtt_model::cpu::{self, Encoding, Overrides, Role};

use crate::memory::{Mapping, PAGE};

/// The RDD whose pages are read.
pub const READ_RDD: u32 = 1;
/// The RDD whose pages are written.
pub const WRITTEN_RDD: u32 = 2;
/// The RDD that touches few pages.
pub const FEW_RDD: u32 = 3;
/// Pages of [`FEW_RDD`].
pub const FEW_PAGES: usize = 8;

/// The memory of one thread's three RDDs.
#[derive(Debug)]
pub struct Work {
    read: Mapping,
    written: Mapping,
    few: Mapping,
    spare: Mapping,
    pages: usize,
}

impl Work {
    /// Fresh memory: `pages` pages to read and `pages` pages to write.
    ///
    /// # Errors
    /// When the kernel refuses the mapping.
    pub fn new(pages: usize) -> Result<Self> {
        Ok(Self {
            read: Mapping::anonymous(pages)?,
            written: Mapping::anonymous(pages)?,
            few: Mapping::anonymous(FEW_PAGES)?,
            spare: Mapping::anonymous(1)?,
            pages,
        })
    }

    /// Makes every page resident and distinct: reads of fresh memory would map one shared page of zeros everywhere.
    pub fn make_resident(&self) {
        for page in 0..self.pages {
            self.read.write(page * PAGE);
            self.written.write(page * PAGE);
        }
        (0..FEW_PAGES).for_each(|page| self.few.write(page * PAGE));
    }

    /// Flushes translations, as far as the kernel allows.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn forget_translations(&self) -> Result<()> {
        self.spare.forget_translations()
    }

    /// Reads every page of [`READ_RDD`] once.
    pub fn read_all(&self) {
        (0..self.pages).for_each(|page| self.read.read(page * PAGE));
    }

    /// Flushes the translations and then touches every page once, in turns of the three RDDs. The third RDD touches its
    /// few pages with the frequency of the others.
    ///
    /// `enter` gets the RDD of the next turn, and `None` at the end.
    ///
    /// # Errors
    /// When translations cannot be flushed, and the errors of `enter`.
    pub fn round(
        &self,
        turns: usize,
        mut enter: impl FnMut(Option<u32>) -> Result<()>,
    ) -> Result<()> {
        self.forget_translations()?;
        for turn in 0..turns {
            let part = self.pages * turn / turns..self.pages * (turn + 1) / turns;
            enter(Some(READ_RDD))?;
            part.clone().for_each(|page| self.read.read(page * PAGE));
            enter(Some(WRITTEN_RDD))?;
            part.clone()
                .for_each(|page| self.written.write(page * PAGE));
            enter(Some(FEW_RDD))?;
            part.for_each(|page| self.few.write(page % FEW_PAGES * PAGE));
        }
        enter(None)
    }
}

/// Plain counts of the calling thread by RDD.
#[derive(Debug)]
pub struct Witness {
    events: Vec<Event>,
    last: Vec<u64>,
    rdd: Option<u32>,
    counts: BTreeMap<u32, Vec<u64>>,
}

impl Witness {
    /// Opens the events as one group of the calling thread, which counts from here on.
    ///
    /// # Errors
    /// When the kernel refuses an event, or an event has no counter.
    pub fn open(encodings: &[Encoding]) -> Result<Self> {
        let mut events: Vec<Event> = Vec::new();
        for encoding in encodings {
            let event = Event::open(Opening {
                event: encoding,
                of: Of::ThisThread,
                period: 0,
                addresses: false,
                leader: events.first(),
            })
            .map_err(|error| anyhow::anyhow!("{encoding:?}: {}", refusal(&error)))?;
            events.push(event);
        }
        let leader = events.first().context("no event to count")?;
        leader.enable()?;
        let mut witness = Self {
            last: vec![0; events.len()],
            events,
            rdd: None,
            // Allocate what counting touches before the count begins.
            counts: [READ_RDD, WRITTEN_RDD, FEW_RDD]
                .map(|rdd| (rdd, vec![0; encodings.len()]))
                .into(),
        };
        witness.enter(None)?;
        Ok(witness)
    }

    /// Attributes the following counts to an RDD.
    ///
    /// # Errors
    /// When an event cannot be read, or shared its hardware counter.
    pub fn enter(&mut self, rdd: Option<u32>) -> Result<()> {
        for (index, event) in self.events.iter().enumerate() {
            let now = event.read()?;
            ensure!(
                now.enabled_ns == now.running_ns,
                "others hold the counters: {now:?} is no plain count"
            );
            if let Some(counts) = self.rdd.and_then(|rdd| self.counts.get_mut(&rdd)) {
                counts[index] += now.value - self.last[index];
            }
            self.last[index] = now.value;
        }
        self.rdd = rdd;
        Ok(())
    }

    /// Counts by RDD, in the order of the events.
    #[must_use]
    pub fn counts(&self) -> &BTreeMap<u32, Vec<u64>> {
        &self.counts
    }
}

/// Counts by RDD as JSON.
#[must_use]
pub fn to_json(counts: &BTreeMap<u32, Vec<u64>>) -> Value {
    counts
        .iter()
        .map(|(rdd, counts)| (rdd.to_string(), json!(counts)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// The kernel's own count of page faults.
#[must_use]
pub fn page_faults() -> Encoding {
    Encoding::software(2)
}

/// The events of this machine that count page walks of reads and of writes; `None` where the machine has none.
///
/// # Errors
/// When the machine's processor cannot be described.
pub fn read_and_write_walks() -> Result<Option<[Encoding; 2]>> {
    events([Role::LoadWalksCompleted, Role::StoreWalksCompleted])
}

/// The events of this machine for these roles; `None` where the machine lacks one.
///
/// # Errors
/// When the machine's processor cannot be described.
pub fn events<const COUNT: usize>(roles: [Role; COUNT]) -> Result<Option<[Encoding; COUNT]>> {
    let identity = smtt_machine::cpu::of_this_machine(std::path::Path::new("/"));
    let measured = cpu::describe(&identity, &Overrides::default())?;
    let event = |role: Role| {
        measured
            .cores
            .iter()
            .filter(|core| core.pmu_present == Some(true))
            .find_map(|core| core.roles.get(&role)?.encoding.clone())
    };
    let found: Vec<Encoding> = roles.into_iter().filter_map(event).collect();
    Ok(found.try_into().ok())
}

/// One processor of each node that has processors.
#[must_use]
pub fn a_processor_of_each_node() -> Vec<usize> {
    let first = |node: usize| -> Option<usize> {
        let memory = format!("/sys/devices/system/node/node{node}/meminfo");
        let memory = std::fs::read_to_string(memory).ok()?;
        let total = memory.lines().find(|line| line.contains("MemTotal:"))?;
        if total.split_whitespace().nth(3) == Some("0") {
            return None;
        }
        let path = format!("/sys/devices/system/node/node{node}/cpulist");
        let list = std::fs::read_to_string(path).ok()?;
        list.trim().split([',', '-']).next()?.parse().ok()
    };
    let found: Vec<usize> = (0..64).filter_map(first).collect();
    if found.is_empty() { vec![0] } else { found }
}
