//! Incomplete nodes: one without memory, one without a processor, and one whose memory and processors go offline while
//! the resolver runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use smtt_daemon::advice::advice;
use smtt_machine::doctor;
use smtt_machine::pages::Method;
use smtt_model::rows::{Filter, PagesBy};
use smtt_tests::skip::skip;

use crate::page_limits::in_the_middle;
use crate::pages::{
    GENEROUS, MIB, PAGE, Scene, methods, nodes, numa_maps, resolver, scene, sum, whole_round,
};

const NODES: &str = "/sys/devices/system/node";
/// How long the kernel may take to offline the memory of a node.
const LIMIT: Duration = Duration::from_secs(60);

/// The nodes in one of the kernel's node lists.
fn list(name: &str) -> BTreeSet<u32> {
    let text = fs::read_to_string(format!("{NODES}/{name}")).unwrap_or_default();
    text.trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.parse().ok()?..=last.parse().ok()?)
        })
        .flatten()
        .collect()
}

/// A node's memory and processors, which go offline and come back.
struct Removable {
    switches: Vec<(PathBuf, &'static str, &'static str)>,
}

impl Removable {
    /// The memory of one node and the processors of another.
    fn new(memory: u32, processors: u32) -> Result<Self> {
        let below = |node: u32, beginning: &str| -> Result<Vec<PathBuf>> {
            let entries = fs::read_dir(format!("{NODES}/node{node}"))?;
            let paths = entries.flatten().map(|entry| entry.path());
            let numbered = |path: &PathBuf| {
                let name = path.file_name()?.to_str()?.strip_prefix(beginning)?;
                name.parse::<u32>().ok()
            };
            Ok(paths.filter(|path| numbered(path).is_some()).collect())
        };
        let mut switches = Vec::new();
        for block in below(memory, "memory")? {
            switches.push((
                block.canonicalize()?.join("state"),
                "offline",
                "online_movable",
            ));
        }
        for processor in below(processors, "cpu")? {
            switches.push((processor.canonicalize()?.join("online"), "0", "1"));
        }
        ensure!(switches.len() > 1, "there is nothing to take away");
        Ok(Self { switches })
    }

    /// Takes memory and processors offline. A page that is pinned for a moment cannot be moved, so the request is
    /// repeated.
    fn away(&self) -> Result<()> {
        for (switch, off, _) in &self.switches {
            let begin = Instant::now();
            while let Err(error) = fs::write(switch, off) {
                if begin.elapsed() > LIMIT {
                    bail!("{off} > {}: {error}", switch.display());
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        Ok(())
    }

    fn back(&self) {
        for (switch, _, on) in &self.switches {
            // Memory that never went offline is online already.
            let _ = fs::write(switch, on);
        }
    }
}

impl Drop for Removable {
    fn drop(&mut self) {
        self.back();
    }
}

/// Every block is resolved, and no block is on a node without memory.
fn is_right(scene: &Scene, method: Method, with_memory: &BTreeSet<u32>) -> Result<()> {
    for (kind, told) in &scene.blocks {
        let row = scene.row(kind)?;
        ensure!(
            sum(&row) == Some(told.bytes),
            "{method:?} {kind}: the states do not add up: {row:?}"
        );
        let on_nodes: u64 = nodes(&row).values().sum();
        let elsewhere = row.node_unknown_bytes.unwrap_or(0) + row.zero_page_bytes.unwrap_or(0);
        ensure!(
            Some(on_nodes + elsewhere) == row.present_bytes,
            "{method:?} {kind}: the nodes do not add up to what is in memory: {row:?}"
        );
        ensure!(
            nodes(&row).keys().all(|node| with_memory.contains(node)),
            "{method:?} {kind}: only {with_memory:?} have memory: {row:?}"
        );
    }
    Ok(())
}

/// The answers of `advise` and of the doctor know the nodes.
fn advice_knows(scene: &Scene) -> Result<()> {
    let advice = advice(&scene.shared, &Filter::default(), None);
    let around = &advice.surroundings;
    let with_memory = list("has_memory");
    let whole: Vec<u32> = with_memory
        .intersection(&list("has_cpu"))
        .copied()
        .collect();
    ensure!(
        around.nodes == Some(with_memory.iter().copied().collect())
            && around.nodes_with_cpus == Some(whole),
        "{with_memory:?} have memory: {around:?}"
    );
    ensure!(!advice.applications.is_empty(), "there is no application");
    for application in &advice.applications {
        ensure!(!application.checks.is_empty(), "{application:?}");
    }
    let checks = doctor::examine();
    let check = checks.iter().find(|check| check.name == "memory nodes");
    println!("memory nodes: {}", check.context("no such check")?.detail);
    Ok(())
}

#[test]
fn nodes_without_memory_or_processors_and_memory_that_goes_are_told_right() -> Result<()> {
    let (with_memory, with_processors) = (list("has_memory"), list("has_cpu"));
    let memory_only = with_memory.difference(&with_processors).next();
    let processors_only = with_processors.difference(&with_memory).next();
    let (Some(memory_only), Some(processors_only)) = (memory_only, processors_only) else {
        return skip(
            "bare_nodes",
            format!("nodes {with_memory:?} have memory, {with_processors:?} processors"),
        );
    };
    println!("node {memory_only} has no processor, node {processors_only} no memory");
    for method in methods() {
        let Some(scene) = scene(&[&format!("node={memory_only}"), "large=1"])? else {
            return Ok(());
        };
        let removable = Removable::new(*memory_only, *processors_only)?;
        let mut resolver = resolver(GENEROUS, method);
        whole_round(&mut resolver, &scene.shared)?;
        is_right(&scene, method, &with_memory)?;
        let told = scene.told("bound")?;
        let row = scene.row("bound")?;
        ensure!(
            nodes(&row) == BTreeMap::from([(*memory_only, 4 * MIB)])
                && nodes(&row) == numa_maps(scene.workload.pid(), told.address)?,
            "{method:?}: all of it is on node {memory_only}: {row:?}"
        );
        let read = scene.read(25)?;
        ensure!(
            read == (Some(0), Some(16 * MIB), Some(1.0)),
            "{method:?}: no thread on that node can have read it: {read:?}"
        );
        advice_knows(&scene)?;

        // Both go offline during a round: a page's node is right for the moment of its query.
        resolver.round(&scene.shared, &in_the_middle(30, || removable.away()));
        is_right(&scene, method, &with_memory)?;
        let left = list("has_memory");
        println!(
            "{method:?}: {left:?} have memory now, and {:?} processors",
            list("has_cpu")
        );
        ensure!(
            !left.contains(memory_only) && !list("has_cpu").contains(processors_only),
            "they are still there"
        );

        // Both are offline now.
        whole_round(&mut resolver, &scene.shared)?;
        is_right(&scene, method, &left)?;
        let row = scene.row("bound")?;
        let expected = numa_maps(scene.workload.pid(), told.address)?;
        println!("{method:?}: numa_maps {expected:?}, {row:?}");
        ensure!(
            nodes(&row) == expected && expected.values().sum::<u64>() == 4 * MIB,
            "{method:?}: its memory was moved: {row:?}"
        );
        let frames = scene.frames(told)?;
        let entries = scene.entries(told)?;
        ensure!(
            frames
                .iter()
                .zip(&entries)
                .all(|(frame, entry)| *frame == Some(entry & ((1 << 55) - 1))),
            "{method:?}: the frames of {} pages of {PAGE} bytes: {frames:?}",
            frames.len()
        );
        advice_knows(&scene)?;
        let rows = scene
            .shared
            .state()
            .list_pages(&Filter::default(), PagesBy::Executor)
            .rows;
        ensure!(rows.len() == 1, "{rows:?}");
        removable.back();
        ensure!(list("has_memory") == with_memory, "it came back");
        scene.workload.end()?;
    }
    Ok(())
}
