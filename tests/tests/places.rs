//! Placement of the cached blocks of a real Spark application, and the resulting advice: on a machine with two NUMA
//! nodes and swap, as emulated machines have (`cargo xtask vm x86-6.12`).
//!
//! The application's JVM starts bound to the CPUs and the memory of one node. Later it runs on the CPUs of the other
//! node, then on all CPUs. It reads one RDD all the time and another never; in the end the test swaps out the unread
//! memory. Last the cgroup of the application gets a limit below its use, at which the kernel kills it. The kernel (`move_pages`, `pagemap`, `/proc/PID/status`) is the witness, at the addresses at which
//! `/proc/PID/mem` has the application's bytes. [`smtt_tests::jvm`] says where the JVM is.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smtt_tests::cgroup::MemoryCgroup;
use smtt_tests::json::number;
use smtt_tests::jvm::{Application, CACHED_PLACES, Prepared};
use smtt_tests::lab::programs;
use smtt_tests::node;
use smtt_tests::skip::{must_have, skip};
use xtask::daemon::{Daemon, Options};
use xtask::paths::Paths;
use xtask::process::{hint, wait_for};

/// The daemon's figures arrive with its tick, where every instruction is emulated.
const LIMIT: Duration = Duration::from_secs(300);
const MIB: u64 = 1 << 20;
/// Bytes of the RDDs.
const READ_BYTES: u64 = 32 * MIB;
const UNREAD_BYTES: u64 = 16 * MIB;
/// Bytes of each object of the RDD of objects, without its header.
const OBJECT_BYTES: usize = 16 << 10;
/// Limit of the cgroup in the end, far below what the JVM has.
const JVM_LIMIT: u64 = 64 * MIB;
/// The node on which the application starts, and the node to which its threads move.
const HOME: u32 = 1;
const AWAY: u32 = 0;

/// The daemon and the application under test.
struct Scene {
    daemon: Daemon,
    application: Application,
    /// The cgroup of the application, where the machine has a memory controller of version 2.
    group: Option<MemoryCgroup>,
}

/// A block at the addresses that the daemon reports.
struct Block {
    partition: u64,
    ranges: Vec<(u64, u64)>,
}

impl Scene {
    /// A listing. The daemon may be slower than the time limit of `smtt-ctl`, so the query is repeated.
    fn json(&self, listing: &[&str]) -> Result<Value> {
        let mut last = None;
        let asked = wait_for("the daemon answers", LIMIT, || {
            Ok(self
                .daemon
                .json(listing)
                .map_err(|error| last = Some(error))
                .ok())
        });
        asked.with_context(|| format!("smtt-ctl {listing:?}: {last:?}"))
    }

    /// The row of an RDD in the listing of pages, once the row matches.
    fn row(&self, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut last = Value::Null;
        wait_for(&format!("{name}: {what}"), LIMIT, || {
            let rows = self.json(&["pages"])?;
            let rows = rows.as_array().into_iter().flatten();
            let Some(row) = rows.into_iter().find(|row| row["name"] == name) else {
                return Ok(None);
            };
            last = row.clone();
            Ok(wanted(row).then(|| row.clone()))
        })
        .with_context(|| {
            let first = [
                "addresses",
                "held_bytes",
                "resolved_bytes",
                "read_local_bytes",
                "read_remote_bytes",
            ];
            let first = first.map(|key| format!("{key} {}", last[key]));
            format!(
                "waited for `{name}: {what}`: {}; it is {last}\nThe daemon says:{}",
                first.join(", "),
                hint(self.daemon.log())
            )
        })
    }

    /// The blocks of an RDD.
    fn blocks(&self, row: &Value) -> Result<Vec<Block>> {
        let rdd = number(row, "rdd_id")?.to_string();
        let rows = self.json(&["blocks", "--rdd", &rdd])?;
        let rows = rows.as_array().context("no listing of blocks")?;
        rows.iter()
            .map(|row| {
                let ranges = row["ranges"].as_array().context("a block has ranges")?;
                let ranges = ranges
                    .iter()
                    .map(|range| Ok((number(range, "address")?, number(range, "length")?)));
                Ok(Block {
                    partition: number(row, "partition")?,
                    ranges: ranges.collect::<Result<_>>()?,
                })
            })
            .collect()
    }

    /// Findings of a rule of `advise`, by name of the RDD, once the rule is checked and they match. Nothing of pages is
    /// known in a moment in which the addresses are stale.
    fn found(
        &self,
        rule: &str,
        what: &str,
        wanted: impl Fn(&[(String, Value)]) -> bool,
    ) -> Result<Vec<(String, Value)>> {
        let mut last = Value::Null;
        let named = |finding: &Value| {
            let name = finding["subject"]["rdd_name"].as_str().unwrap_or_default();
            (name.to_owned(), finding.clone())
        };
        let found = wait_for(&format!("{rule}: {what}"), LIMIT, || {
            last = self.json(&["advise"])?["applications"][0].clone();
            let of_rule = |list: &str| {
                let list = last[list].as_array().into_iter().flatten();
                list.filter(|row| row["id"] == rule).collect::<Vec<_>>()
            };
            let checked = of_rule("checks")
                .iter()
                .any(|check| check["went"] != "not_checked");
            let found: Vec<_> = of_rule("findings").into_iter().map(named).collect();
            Ok((checked && wanted(&found)).then_some(found))
        });
        found.with_context(|| format!("waited for `{rule}: {what}`; advice is {last}"))
    }

    /// Waits until the text of `advise` has all parts.
    fn advises(&self, parts: &[&str]) -> Result<()> {
        let mut last = String::new();
        let said = wait_for("the advice", LIMIT, || {
            last = self
                .daemon
                .ask(&["advise"])
                .unwrap_or_else(|error| format!("{error:#}"));
            Ok(parts.iter().all(|part| last.contains(part)).then_some(()))
        });
        said.with_context(|| format!("{parts:?} are not all in the advice: {last}"))
    }

    /// The node of every page of an RDD, according to the kernel, after a check that the bytes are the application's.
    fn nodes_of(&self, row: &Value, is: impl Fn(u64, &[u8]) -> bool) -> Result<Vec<i32>> {
        let pid = self.application.pid();
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        let mut pages = Vec::new();
        for block in self.blocks(row)? {
            ensure!(!block.ranges.is_empty(), "a block without addresses: {row}");
            for (address, length) in block.ranges {
                let mut bytes = vec![0; usize::try_from(length)?];
                memory.read_exact_at(&mut bytes, address)?;
                ensure!(
                    is(block.partition, &bytes),
                    "partition {} is not at {address:#x}: {row}",
                    block.partition
                );
                pages.extend(node::pages(address, length));
            }
        }
        node::of_pages(pid, &pages)
    }
}

/// Bytes of an RDD: its arrays, and Spark's bytes around them.
fn held(row: &Value, arrays: u64) -> Result<u64> {
    let held = number(row, "held_bytes")?;
    ensure!(
        (arrays..arrays + MIB / 16).contains(&held),
        "arrays of {arrays} bytes and a little: {row:#}"
    );
    Ok(held)
}

/// Bytes of a row by node.
fn nodes(row: &Value) -> Vec<(u64, u64)> {
    let nodes = row["nodes"].as_array().into_iter().flatten();
    nodes
        .filter_map(|node| Some((node["node"].as_u64()?, node["bytes"].as_u64()?)))
        .collect()
}

/// Whether the machine has two nodes and swap; `false` (and a line that says why) where one is missing.
fn has_places() -> Result<bool> {
    let swap = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let nodes = node::whole();
    if !nodes.contains(&HOME) || !nodes.contains(&AWAY) {
        skip(
            "two_nodes",
            format!("nodes with memory and CPUs are {nodes:?}"),
        )?;
        return Ok(false);
    }
    if swap.lines().count() < 2 {
        skip("swap", "/proc/swaps is empty")?;
        return Ok(false);
    }
    Ok(true)
}

#[test]
fn remote_and_swapped_blocks_of_a_jvm_are_found_and_local_ones_are_not() -> Result<()> {
    if !has_places()? {
        return Ok(());
    }
    let scene = start()?;
    let scene = local(scene)?;
    let scene = remote(scene)?;
    let scene = hot(scene)?;
    let scene = swapped(scene)?;
    limited(scene)
}

/// The application, bound to a node, after it has cached everything.
fn start() -> Result<Scene> {
    let prepared = Prepared::new()?;
    // The machine has a single DAMON: only an emulated machine gives it to a test.
    let hotness = if must_have("damon") { "damon" } else { "reads" };
    let options = Options {
        toml: format!(
            "[placement]\npages_per_second = 10000000\nmilliseconds_per_second = 1000\ninterval = \"1s\"\n\n[hotness]\nmethod = {hotness:?}\n"
        ),
        // The daemon finds the executor while it runs, and the marker reports its state again.
        without_library: true,
        ..Options::default()
    };
    let (paths, folder) = (Paths::find()?, prepared.at("daemon"));
    let daemon = Daemon::start(&paths, &programs()?, &folder, &options)?;
    let begin = std::time::Instant::now();
    let group = MemoryCgroup::unlimited("places")?.filter(|group| group.version == 2);
    let start = || prepared.start(&CACHED_PLACES, Some(HOME));
    let mut application = match &group {
        Some(group) => group.within(start)?,
        None => start()?,
    };
    application.reach("cached")?;
    println!("cached after {:.1} s", begin.elapsed().as_secs_f64());
    Ok(Scene {
        daemon,
        application,
        group,
    })
}

/// All blocks are on the node of the CPUs that read them.
fn local(mut scene: Scene) -> Result<Scene> {
    // The application has collected before the gate: reads at the addresses from before would have no place.
    wait_for("the addresses after the collection", LIMIT, || {
        let rows = scene.json(&["executors"])?;
        let known =
            rows[0]["heap_addresses"] == "current" && rows[0]["collections"].as_u64() >= Some(1);
        Ok(known.then_some(()))
    })?;
    // Reads before the daemon has found the executor are not counted.
    scene.row("read", "it was examined", |row| {
        row["resolved_bytes"] == row["held_bytes"]
    })?;
    scene.application.open("cached")?;
    scene.application.reach("pass1")?;
    let row = scene.row("read", "pass 0 is placed", |row| {
        row["read_local_bytes"].as_u64() >= Some(READ_BYTES)
            && row["resolved_bytes"] == row["held_bytes"]
    })?;
    println!("after a pass on its own node: {row}");
    // Spark writes a few bytes around each array; the array's bytes are the number of the partition, counted from 1.
    let seen = scene.nodes_of(&row, |partition, bytes| {
        let own = bytes
            .iter()
            .filter(|byte| u64::from(**byte) == partition + 1);
        bytes.len() - own.count() < 256
    })?;
    ensure!(
        seen.iter().all(|node| *node == HOME as i32),
        "the kernel says that pages are elsewhere"
    );
    let held = held(&row, READ_BYTES)?;
    ensure!(
        nodes(&row) == [(u64::from(HOME), held)]
            && number(&row, "read_local_bytes")? == held
            && number(&row, "read_remote_bytes")? == 0,
        "{held} bytes on node {HOME}, read once from there: {row:#}"
    );
    let unread = scene.row("unread", "it was examined", |row| {
        row["resolved_bytes"] == row["held_bytes"]
    })?;
    ensure!(
        nodes(&unread) == [(u64::from(HOME), self::held(&unread, UNREAD_BYTES)?)],
        "all of it is on node {HOME}: {unread:#}"
    );
    // The resolver places a sample of the objects and extrapolates to the whole block.
    let objects = scene.row("objects", "a sample was examined", |row| {
        row["sampled_objects"].as_u64() > Some(0) && !row["sample"]["nodes"].is_null()
    })?;
    println!("objects: {objects}");
    // Each object is an array of its partition's number behind a header of at most 24 bytes.
    let seen = scene.nodes_of(&objects, |partition, bytes| {
        let own = bytes
            .iter()
            .filter(|byte| u64::from(**byte) == partition + 1);
        bytes.len() >= OBJECT_BYTES && bytes.len() - own.count() <= 24
    })?;
    let shares = objects["sample"]["nodes"].as_array().context("no shares")?;
    ensure!(
        seen.iter().all(|node| *node == HOME as i32)
            && shares.len() == 1
            && shares[0]["node"] == HOME
            && shares[0]["share"] == 1.0,
        "all sampled objects are on node {HOME}: {objects:#}"
    );
    for rule in ["remote_memory", "swapped"] {
        let found = scene.found(rule, "it is checked", |_| true)?;
        ensure!(found.is_empty(), "nothing is {rule} yet: {found:#?}");
    }
    Ok(scene)
}

/// Checks that the RDD `read` has the finding, with `free` executors that may run on several nodes.
fn is_remote(scene: &Scene, free: u64) -> Result<()> {
    let free_by = |finding: &Value| {
        let numbers = finding["numbers"].as_array().into_iter().flatten();
        let mut told = numbers.filter(|number| {
            number["what"] == "executors here that may run on CPUs of several nodes"
        });
        told.next().and_then(|number| number["value"].as_u64())
    };
    let what = format!("three reads of four of `read`, {free} executors on several nodes");
    let found = scene.found("remote_memory", &what, |found| match found {
        [(name, finding)] => {
            name == "read" && finding["cost"]["share"] == 0.75 && free_by(finding) == Some(free)
        }
        _ => false,
    })?;
    println!("{found:?}");
    Ok(())
}

/// Three passes from the other node.
fn remote(mut scene: Scene) -> Result<Scene> {
    let pid = scene.application.pid();
    node::move_threads(pid, &node::cpus(AWAY))?;
    let mut placed = 0;
    for pass in 1..4 {
        scene.application.open(&format!("pass{pass}"))?;
        scene.application.reach(&format!("pass{}", pass + 1))?;
        // Reads while the addresses are stale have their place once the addresses are known again.
        let row = scene.row("read", &format!("pass {pass} is placed"), |row| {
            row["read_remote_bytes"].as_u64() >= Some(placed + READ_BYTES)
                && row["resolved_bytes"] == row["held_bytes"]
        })?;
        placed = number(&row, "read_remote_bytes")?;
    }
    for thread in node::threads(pid)? {
        let allowed = node::allowed(pid, thread);
        ensure!(
            allowed.is_none_or(|cpus| cpus == node::cpus(AWAY)),
            "thread {thread} may have read on another node than {AWAY}"
        );
    }
    let row = scene.row("read", "all passes are placed", |row| {
        row["read_remote_bytes"].as_u64() >= Some(3 * READ_BYTES)
            && row["resolved_bytes"] == row["held_bytes"]
    })?;
    println!("after three passes from the other node: {row}");
    let held = held(&row, READ_BYTES)?;
    ensure!(
        nodes(&row) == [(u64::from(HOME), held)]
            && number(&row, "read_local_bytes")? == held
            && number(&row, "read_remote_bytes")? == 3 * held
            && row["remote_access_ratio"] == 0.75,
        "{held} bytes on node {HOME}, read once from there and three times from node {AWAY}: {row:#}"
    );
    // First bound to the CPUs of a node without bytes of the RDD, then free to run on all CPUs.
    is_remote(&scene, 0)?;
    let mut everywhere: Vec<u32> = node::whole().into_iter().flat_map(node::cpus).collect();
    everywhere.sort_unstable();
    node::move_threads(pid, &everywhere)?;
    is_remote(&scene, 1)?;
    scene.advises(&[
        "numactl --cpunodebind=N --membind=N",
        "for each node N of 0, 1",
    ])?;
    Ok(scene)
}

/// By DAMON, memory that is read all the time is hotter than memory that is never read.
fn hot(mut scene: Scene) -> Result<Scene> {
    scene.application.open("pass4")?;
    let heat = |row: &Value| Some((row["hotness"].as_f64()?, row["hot_bytes"].as_u64()?));
    let hot = |row: &Value| {
        row["hotness_method"] == "damon" && row["hot_bytes"].as_u64() >= Some(READ_BYTES / 4)
    };
    let hotter = || {
        let row = scene.row("read", "DAMON has seen reads of it", hot)?;
        let unread = scene.row("unread", "DAMON has sampled it", |row| {
            row["hotness_method"] == "damon"
        })?;
        println!("read {:?}, unread {:?}", heat(&row), heat(&unread));
        let told = heat(&row).zip(heat(&unread));
        let hotter = told.is_some_and(|(read, unread)| {
            read.0 > 0.0 && unread.0 < read.0 / 4.0 && unread.1 < UNREAD_BYTES / 8
        });
        Ok(hotter.then_some(()))
    };
    if must_have("damon") {
        wait_for("what is read is hotter than what is not", LIMIT, hotter)?;
    } else {
        println!("not tried: DAMON, which only an emulated machine lends to a test");
    }
    scene.application.open("reading")?;
    scene.application.reach("end")?;
    Ok(scene)
}

/// Swaps out the unread memory: an RDD of serialised bytes, and an RDD of objects.
fn swapped(scene: Scene) -> Result<Scene> {
    let pid = scene.application.pid();
    let row = scene.row("unread", "it was examined", |row| {
        row["resolved_bytes"] == row["held_bytes"]
    })?;
    ensure!(
        number(&row, "swapped_bytes")? == 0 && node::swap_of(pid)? == 0,
        "nothing of the application is in swap: {row:#}"
    );
    let held = held(&row, UNREAD_BYTES)?;
    let ranges: Vec<_> = scene
        .blocks(&row)?
        .into_iter()
        .flat_map(|block| block.ranges)
        .collect();
    for (address, length) in &ranges {
        node::page_out(pid, *address, *length)?;
    }
    let mut out = 0;
    for (address, length) in &ranges {
        out += node::swapped_bytes(pid, *address, *length)?;
    }
    let status = node::swap_of(pid)?;
    println!("of {held} bytes {out} are swapped out by pagemap, {status} of the process by VmSwap");
    ensure!(
        out > held / 2 && status >= out,
        "the kernel has swapped {out} of {held} bytes, and {status} of the process"
    );
    let row = scene.row("unread", "it is swapped", |row| {
        row["swapped_bytes"].as_u64() == Some(out)
    })?;
    println!("swapped: {row}");
    // The sample stands for all objects, so the test also swaps out the memory between the sampled ones.
    let row = scene.row("objects", "it was examined", |row| {
        row["sample"]["swapped_share"] == 0.0
    })?;
    let ranges: Vec<_> = scene
        .blocks(&row)?
        .into_iter()
        .flat_map(|block| block.ranges)
        .collect();
    let first = ranges.iter().map(|(address, _)| *address).min();
    let end = ranges
        .iter()
        .map(|(address, length)| address + length)
        .max();
    let (first, end) = first.zip(end).context("no sampled object has an address")?;
    node::page_out(pid, first, end - first)?;
    let (mut out, mut all) = (0, 0);
    for (address, length) in &ranges {
        out += node::swapped_bytes(pid, *address, *length)?;
        all += length;
    }
    let share = out as f64 / all as f64;
    println!("of {all} bytes of sampled objects {out} are swapped out by pagemap");
    ensure!(share > 0.5, "the kernel has swapped {out} of {all} bytes");
    let row = scene.row("objects", "it is swapped", |row| {
        let said = row["sample"]["swapped_share"].as_f64();
        said.is_some_and(|said| (said - share).abs() < 0.05)
    })?;
    println!("swapped: {row}");
    let found = scene.found("swapped", "both are", |found| {
        let mut names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names == ["objects", "unread"]
    })?;
    for (name, finding) in &found {
        println!("{finding}");
        ensure!(
            finding["cost"]["estimated"] == (name == "objects"),
            "only a sample is an estimate: {finding:#}"
        );
    }
    scene.advises(&["spark.executor.memory  ", "sysctl vm.swappiness=1"])?;
    Ok(scene)
}

/// The kernel kills the executor at a limit of its cgroup, and the daemon says so; without such a cgroup it ends well.
fn limited(mut scene: Scene) -> Result<()> {
    let Some(group) = scene.group.take() else {
        return scene.application.finish();
    };
    let pid = scene.application.pid();
    let held = group.current_bytes()?;
    ensure!(held > 4 * JVM_LIMIT, "it uses {held} bytes only");
    group.limit(JVM_LIMIT)?;
    scene.application.killed()?;
    ensure!(
        group.oom_kills()? == 1,
        "the kernel counts {}",
        group.oom_kills()?
    );
    let report = wait_for("the death is listed", LIMIT, || {
        let list = scene.json(&["postmortem"])?;
        let rows = list["rows"].as_array().into_iter().flatten();
        let mut own = rows.filter(|row| row["pid"] == pid);
        let id = own.next().and_then(|row| row["id"].as_str());
        id.map(|id| scene.json(&["postmortem", id])).transpose()
    })?;
    println!("{report:#}");
    let cgroup = &report["cgroup"];
    let pair = |counts: &str| {
        let counts = cgroup[counts].as_array()?;
        counts[1].as_u64()?.checked_sub(counts[0].as_u64()?)
    };
    ensure!(
        report["verdict"] == "oom_killed_cgroup"
            && cgroup["version"] == 2
            && cgroup["limit_bytes"] == JVM_LIMIT
            && cgroup["peak_bytes"] == group.peak_bytes()?
            && pair("oom_kills") == Some(1)
            && (1..=group.limit_hits()?).contains(&pair("limit_hits").unwrap_or(0)),
        "killed at {JVM_LIMIT} bytes, with a peak of {}: {report:#}",
        group.peak_bytes()?
    );
    scene.application.remove()
}
