//! Placement of pages against independent readers of the same kernel: this test's own reading of pagemap and
//! kpageflags, `smaps`, `numa_maps`, and the known accesses of the workload.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use smtt_config::{FaultHook, PlacementSettings};
use smtt_daemon::placement::Resolver;
use smtt_daemon::shared::{DaemonInfo, Shared};
use smtt_machine::doctor;
use smtt_machine::pages::{Machine, Method};
use smtt_model::decode::decode;
use smtt_model::rows::{Filter, PagesBy, PagesRow};
use smtt_model::state::Limits;
use smtt_tests::lab::LIMIT;
use smtt_tests::skip::skip;
use xtask::process::wait_for;

use crate::lab::{KernelLab, Workload, lab, with_hook};

pub const PAGE: u64 = 4096;
pub const MIB: u64 = 1 << 20;

/// The workload frees its large block when it gets its next line.
pub const FREED: &str = "free=yes";

/// A larger budget than any test needs.
pub const GENEROUS: PlacementSettings = PlacementSettings {
    pages_per_second: 10_000_000,
    milliseconds_per_second: 1000,
    interval: Duration::from_secs(10),
    frames: true,
};

/// A workload that reports its memory, and the state that its facts built.
pub struct Scene {
    /// The probes, and this test's turn.
    pub lab: KernelLab,
    pub shared: Shared,
    pub workload: Workload,
    /// The workload's own description of its blocks, by kind.
    pub blocks: BTreeMap<String, Told>,
    pub said: Value,
}

/// A block as the workload reported it.
#[derive(Clone, Debug)]
pub struct Told {
    pub name: String,
    pub address: u64,
    pub bytes: u64,
}

/// Runs the workload; `None` (and a line that says why) where this machine cannot run it.
pub fn scene(options: &[&str]) -> Result<Option<Scene>> {
    scene_of("pages", options)
}

/// As [`scene`], with another scenario that reports blocks.
pub fn scene_of(scenario: &str, options: &[&str]) -> Result<Option<Scene>> {
    if procfs_page_bytes() != PAGE {
        skip(
            "base_pages_4k",
            "the workload's memory is laid out for these",
        )?;
        return Ok(None);
    }
    let Some(mut lab) = lab(&with_hook(FaultHook::Auto))? else {
        return Ok(None);
    };
    let mut workload = Workload::start(scenario, options)?;
    lab.executor(workload.pid())?;
    let said = if options.contains(&FREED) {
        workload.go()?;
        serde_json::from_str(&workload.expect("HELD ")?)?
    } else {
        workload.run()?
    };
    lab.read()?;
    let shared = Shared::new(
        DaemonInfo {
            version: String::new(),
            kernel_side: String::new(),
            telemetry_path: "/metrics".into(),
            metrics: smtt_daemon::metrics::MetricsSettings::at_once(10),
            doctor: doctor::examine,
        },
        Limits::default(),
    );
    for record in &lab.records {
        shared
            .state()
            .apply(decode(&record.header, &record.payload)?);
    }
    let blocks = said["blocks"].as_object().context("no blocks")?;
    let blocks = blocks
        .iter()
        .map(|(kind, block)| {
            let number = |key: &str| block[key].as_u64().context("no number");
            let told = Told {
                name: block["block"].as_str().context("no name")?.to_owned(),
                address: number("address")?,
                bytes: number("bytes")?,
            };
            Ok((kind.clone(), told))
        })
        .collect::<Result<_>>()?;
    Ok(Some(Scene {
        lab,
        shared,
        workload,
        blocks,
        said,
    }))
}

fn procfs_page_bytes() -> u64 {
    // SAFETY: sysconf has no precondition.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0)
}

impl Scene {
    /// Reads of an RDD's blocks: bytes on the reader's node, bytes on other nodes, and the share of the latter.
    pub fn read(&self, rdd: u32) -> Result<(Option<u64>, Option<u64>, Option<f64>)> {
        let rows = self
            .shared
            .state()
            .list_pages(&Filter::default(), PagesBy::Rdd)
            .rows;
        let row = rows.into_iter().find(|row| row.rdd_id == Some(rdd));
        let row = row.with_context(|| format!("no row of RDD {rdd}"))?;
        Ok((
            row.read_local_bytes,
            row.read_remote_bytes,
            row.remote_access_ratio,
        ))
    }

    /// Frames of a block's first pages, in the form of trace records.
    pub fn frames(&self, told: &Told) -> Result<Vec<Option<u64>>> {
        let state = self.shared.state();
        let mut memories = state.executors().values().map(|executor| &executor.memory);
        memories
            .find_map(|memory| {
                let ranges_id = memory.blocks.get(&told.name)?.ranges_id()?;
                Some(memory.last_examined.of(ranges_id)?.frames.clone())
            })
            .with_context(|| format!("{} was not examined", told.name))
    }

    pub fn told(&self, kind: &str) -> Result<&Told> {
        self.blocks
            .get(kind)
            .with_context(|| format!("the workload told no block {kind}"))
    }

    /// The row of a block.
    pub fn row(&self, kind: &str) -> Result<PagesRow> {
        let name = &self.told(kind)?.name;
        self.shared
            .state()
            .list_pages(&Filter::default(), PagesBy::Block)
            .rows
            .into_iter()
            .find(|row| row.block_id.as_ref() == Some(name))
            .with_context(|| format!("no row of block {name}"))
    }

    /// This test's own reading of the process's page table entries.
    pub fn entries(&self, block: &Told) -> Result<Vec<u64>> {
        let first = block.address / PAGE;
        let pages = (block.address + block.bytes).div_ceil(PAGE) - first;
        let mut bytes = vec![0; pages as usize * 8];
        File::open(format!("/proc/{}/pagemap", self.workload.pid()))?
            .read_exact_at(&mut bytes, first * 8)?;
        Ok(bytes
            .chunks_exact(8)
            .filter_map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?)))
            .collect())
    }

    /// Lines about the mapping at an address in one of the process's files of mappings.
    pub fn mapping(&self, file: &str, address: u64) -> Result<String> {
        let text = fs::read_to_string(format!("/proc/{}/{file}", self.workload.pid()))?;
        let range = |line: &str| {
            let (start, end) = line.split_whitespace().next()?.split_once('-')?;
            let hex = |text| u64::from_str_radix(text, 16).ok();
            Some(hex(start)?..hex(end)?)
        };
        Ok(text
            .lines()
            .skip_while(|line| !range(line).is_some_and(|range| range.contains(&address)))
            .enumerate()
            .take_while(|(index, line)| *index == 0 || range(line).is_none())
            .map(|(_, line)| format!("{line}\n"))
            .collect())
    }
}

/// Bytes of a block in pages whose entry matches.
pub fn bytes_in(block: &Told, entries: &[u64], wanted: impl Fn(u64) -> bool) -> u64 {
    let first = block.address / PAGE * PAGE;
    let end = block.address + block.bytes;
    entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| wanted(**entry))
        .map(|(index, _)| {
            let start = first + index as u64 * PAGE;
            (start + PAGE).min(end) - start.max(block.address)
        })
        .sum()
}

pub const fn present(entry: u64) -> bool {
    entry >> 63 == 1
}

pub const fn swapped(entry: u64) -> bool {
    entry >> 62 & 1 == 1
}

pub fn sum(row: &PagesRow) -> Option<u64> {
    Some(row.present_bytes? + row.swapped_bytes? + row.untouched_bytes? + row.unmapped_bytes?)
}

/// Bytes on pages of the given size.
pub fn on_pages_of(row: &PagesRow, page_bytes: u64) -> u64 {
    let sizes = row.page_sizes.iter().flatten();
    sizes
        .filter(|size| size.page_bytes == page_bytes)
        .map(|size| size.bytes)
        .sum()
}

/// The methods of the resolver that this machine supports.
pub fn methods() -> Vec<Method> {
    let best = Machine::find().method;
    if best == Method::Scan {
        vec![Method::Scan, Method::Entries]
    } else {
        println!("not tried: PAGEMAP_SCAN, which this kernel does not have (6.7 and newer do)");
        vec![best]
    }
}

pub fn resolver(settings: PlacementSettings, method: Method) -> Resolver {
    Resolver::with(
        settings,
        Machine {
            method,
            ..Machine::find()
        },
    )
}

/// A round in which every executor was examined. On a busy machine a step may take longer than the resolver waits for
/// a process; it then tries again after a pause.
pub fn whole_round(resolver: &mut Resolver, shared: &Shared) -> Result<()> {
    let mut rounds = 0;
    let whole = wait_for("every executor is examined", LIMIT, || {
        let before = resolver.counts();
        resolver.round(shared, &|| false);
        rounds += 1;
        let after = resolver.counts();
        let is_whole = after.refused == before.refused && after.ended == before.ended;
        Ok((is_whole && after.looks > before.looks).then_some(()))
    });
    if rounds > 1 {
        println!("examined in {rounds} rounds");
    }
    whole
}

#[test]
fn every_page_is_in_the_state_that_the_kernel_says() -> Result<()> {
    let Some(scene) = scene(&[])? else {
        return Ok(());
    };
    for method in methods() {
        let mut resolver = resolver(GENEROUS, method);
        whole_round(&mut resolver, &scene.shared)?;
        for (kind, block) in &scene.blocks {
            let row = scene.row(kind)?;
            let entries = scene.entries(block)?;
            ensure!(
                sum(&row) == Some(block.bytes) && row.resolved_bytes == Some(block.bytes),
                "{method:?} {kind}: the states do not add up to {}: {row:?}",
                block.bytes
            );
            ensure!(
                row.pages == Some(entries.len() as u64)
                    && row.examined_pages == row.pages
                    && row.estimated == Some(false),
                "{method:?} {kind}: not every page was examined: {row:?}"
            );
            let in_memory = bytes_in(block, &entries, present);
            let out = bytes_in(block, &entries, swapped);
            ensure!(
                row.present_bytes == Some(in_memory) && row.swapped_bytes == Some(out),
                "{method:?} {kind}: this test sees {in_memory} bytes present and {out} swapped: {row:?}"
            );
        }
        let half = scene.row("half")?;
        ensure!(
            half.untouched_bytes
                == Some(bytes_in(
                    scene.told("half")?,
                    &scene.entries(scene.told("half")?)?,
                    |entry| !present(entry) && !swapped(entry)
                ))
                && half.untouched_bytes > Some(2 * MIB - 2 * PAGE),
            "{method:?}: every second page was never touched: {half:?}"
        );
        let nowhere = scene.row("nowhere")?;
        ensure!(
            nowhere.unmapped_bytes == Some(MIB) && resolver.counts().unmapped_bytes == MIB,
            "{method:?}: nothing is mapped there: {nowhere:?}"
        );
        let zero = scene.row("zero")?;
        if zero.zero_page_bytes.is_some() {
            ensure!(
                zero.zero_page_bytes == Some(MIB) && zero.nodes.as_deref() == Some(&[]),
                "{method:?}: what was only read is the page of zeros: {zero:?}"
            );
        }
    }
    scene.workload.end()
}

#[test]
fn bytes_that_were_read_are_those_that_are_there() -> Result<()> {
    let Some(scene) = scene(&[])? else {
        return Ok(());
    };
    ensure!(
        scene.read(21)? == (None, None, None),
        "their placement is unknown"
    );
    for method in methods() {
        whole_round(&mut resolver(GENEROUS, method), &scene.shared)?;
        let row = scene.row("half")?;
        ensure!(
            row.reads == Some(2) && row.hotness.is_some_and(|hot| (0.5..=2.0).contains(&hot)),
            "{method:?}: two reads just now: {row:?}"
        );
        // Only resident pages have a node. Any node is possible, but each byte was read twice.
        let (local, remote, ratio) = scene.read(21)?;
        let (local, remote) = (local.unwrap_or(0), remote.unwrap_or(0));
        let present = row.present_bytes.context("it was examined")?;
        let unknown = row.node_unknown_bytes.unwrap_or(0);
        ensure!(
            local + remote == 2 * (present - unknown) && local + remote > 3 * MIB,
            "{method:?}: {local} and {remote} bytes: {row:?}"
        );
        ensure!(
            (row.read_local_bytes, row.read_remote_bytes) == (Some(local), Some(remote)),
            "{method:?}: {local} and {remote} bytes, all of one block: {row:?}"
        );
        if nodes(&row).len() == 1 && nodes(&row).contains_key(&0) {
            ensure!(
                ratio == Some(0.0),
                "{method:?}: it is on node 0, as its reader: {ratio:?}"
            );
        }
    }
    scene.workload.end()
}

#[test]
fn frames_are_those_of_pagemap() -> Result<()> {
    let Some(scene) = scene(&[])? else {
        return Ok(());
    };
    for method in methods() {
        whole_round(&mut resolver(GENEROUS, method), &scene.shared)?;
        let mut known = 0;
        for (kind, told) in &scene.blocks {
            let frames = scene.frames(told)?;
            let expected: Vec<Option<u64>> = scene
                .entries(told)?
                .into_iter()
                .take(16)
                .map(|entry| present(entry).then_some(entry & ((1 << 55) - 1)))
                .collect();
            ensure!(
                frames == expected,
                "{method:?} {kind}: {frames:x?}, this test sees {expected:x?}"
            );
            known += frames.iter().flatten().count();
        }
        ensure!(known > 16, "{method:?}: {known} frames are known");
    }
    scene.workload.end()
}

#[test]
fn large_pages_are_what_kpageflags_and_smaps_say() -> Result<()> {
    let Some(scene) = scene(&[])? else {
        return Ok(());
    };
    let huge = scene.told("huge")?.clone();
    let smaps = scene.mapping("smaps", huge.address)?;
    let large_kib: u64 = smaps
        .lines()
        .find_map(|line| line.strip_prefix("AnonHugePages:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .context("smaps has no AnonHugePages")?;
    println!("smaps: {large_kib} KiB on large pages");
    // The flags of a frame mark transparent huge pages; hugetlbfs is not used here.
    let thp = |frame: u64| -> Result<bool> {
        let mut word = [0; 8];
        File::open("/proc/kpageflags")?.read_exact_at(&mut word, frame * 8)?;
        Ok(u64::from_ne_bytes(word) >> 22 & 1 == 1)
    };
    let mut flagged = 0;
    for entry in scene.entries(&huge)? {
        let frame = entry & ((1 << 55) - 1);
        if present(entry) && frame != 0 && thp(frame)? {
            flagged += PAGE;
        }
    }
    println!("kpageflags: {flagged} bytes on large pages");
    for method in methods() {
        whole_round(&mut resolver(GENEROUS, method), &scene.shared)?;
        let row = scene.row("huge")?;
        ensure!(
            on_pages_of(&row, 2 * MIB) == large_kib * 1024
                && on_pages_of(&row, 2 * MIB) == flagged
                && row.huge_page_bytes == Some(flagged),
            "{method:?}: smaps says {large_kib} KiB, kpageflags {flagged} bytes: {row:?}"
        );
        let half = scene.row("half")?;
        ensure!(
            half.huge_page_bytes == Some(0) && Some(on_pages_of(&half, PAGE)) == half.present_bytes,
            "{method:?}: small pages only: {half:?}"
        );
        for (kind, page_bytes) in [("hugetlb", 2 * MIB), ("giant", 1 << 30)] {
            if !scene.blocks.contains_key(kind) {
                println!("not tried: hugetlbfs has no free page of {page_bytes} bytes");
                continue;
            }
            let row = scene.row(kind)?;
            println!("{method:?} {kind}: {row:?}");
            ensure!(
                on_pages_of(&row, page_bytes) == page_bytes
                    && row.huge_page_bytes == Some(page_bytes),
                "{method:?}: one page of hugetlbfs: {row:?}"
            );
        }
    }
    if scene.said["large_pages"].as_bool() != Some(true) || large_kib == 0 {
        println!("not tried: large pages; this kernel gives none to MADV_HUGEPAGE memory");
    } else {
        ensure!(flagged == 8 * MIB, "all of it is on large pages: {flagged}");
    }
    scene.workload.end()
}

/// Bytes by node of the mapping at an address, according to `numa_maps`.
pub fn numa_maps(pid: u32, address: u64) -> Result<BTreeMap<u32, u64>> {
    let text = fs::read_to_string(format!("/proc/{pid}/numa_maps"))
        .context("this kernel has no numa_maps")?;
    let line = text
        .lines()
        .rfind(|line| {
            let start = line.split_whitespace().next();
            start
                .and_then(|start| u64::from_str_radix(start, 16).ok())
                .is_some_and(|start| start <= address)
        })
        .context("no mapping in numa_maps")?;
    Ok(line
        .split_whitespace()
        .filter_map(|field| {
            let (node, pages) = field.strip_prefix('N')?.split_once('=')?;
            Some((node.parse().ok()?, pages.parse::<u64>().ok()? * PAGE))
        })
        .collect())
}

pub fn nodes(row: &PagesRow) -> BTreeMap<u32, u64> {
    let nodes = row.nodes.iter().flatten();
    nodes.map(|node| (node.node, node.bytes)).collect()
}

#[test]
fn nodes_are_those_of_numa_maps() -> Result<()> {
    let Some(scene) = scene(&["large=1"])? else {
        return Ok(());
    };
    if !std::path::Path::new("/proc/self/numa_maps").exists() {
        scene.workload.end()?;
        return skip(
            "numa",
            "there is no numa_maps: no page has a node to compare",
        );
    }
    for method in methods() {
        whole_round(&mut resolver(GENEROUS, method), &scene.shared)?;
        let large = scene.told("large")?;
        let expected = numa_maps(scene.workload.pid(), large.address)?;
        let row = scene.row("large")?;
        println!("{method:?}: numa_maps {expected:?}, {row:?}");
        ensure!(
            nodes(&row) == expected && expected.values().sum::<u64>() == 256 * MIB,
            "{method:?}: numa_maps says {expected:?}: {row:?}"
        );
    }
    scene.workload.end()
}

#[test]
fn memory_that_is_bound_to_the_second_node_is_on_it() -> Result<()> {
    let memory = fs::read_to_string("/sys/devices/system/node/node1/meminfo").unwrap_or_default();
    let total: Option<u64> = memory
        .lines()
        .find_map(|line| line.split_once("MemTotal:"))
        .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    if total.unwrap_or(0) == 0 {
        return skip("two_nodes", "node1 has no memory");
    }
    let Some(scene) = scene(&["node=1"])? else {
        return Ok(());
    };
    for method in methods() {
        whole_round(&mut resolver(GENEROUS, method), &scene.shared)?;
        let row = scene.row("bound")?;
        println!("{method:?}: {row:?}");
        ensure!(
            nodes(&row) == BTreeMap::from([(1, 4 * MIB)]) && row.spanning_nodes == Some(0),
            "{method:?}: all of it is on node 1: {row:?}"
        );
        let read = scene.read(25)?;
        ensure!(
            read == (Some(4 * MIB), Some(12 * MIB), Some(0.75)),
            "{method:?}: read three times from node 0 and once from node 1: {read:?}"
        );
    }
    scene.workload.end()
}

#[test]
fn pages_that_were_swapped_out_are_reported() -> Result<()> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().count() < 2 {
        return skip("swap", "/proc/swaps is empty");
    }
    let Some(scene) = scene(&[])? else {
        return Ok(());
    };
    ensure!(
        scene.said["paged_out"].as_bool() == Some(true),
        "the kernel refuses MADV_PAGEOUT"
    );
    for method in methods() {
        whole_round(&mut resolver(GENEROUS, method), &scene.shared)?;
        let row = scene.row("swapped")?;
        println!("{method:?}: {row:?}");
        // The test above compares with this test's own reading; this one checks that the figure is not zero.
        ensure!(
            row.swapped_bytes > Some(MIB / 2) && sum(&row) == Some(MIB),
            "{method:?}: the pages were swapped out: {row:?}"
        );
    }
    scene.workload.end()
}
