//! The rule about NUMA nodes: RDDs on another node than the CPUs that read them.

use std::collections::BTreeMap;

use super::pages::{NOT_EXAMINED, OF_SAMPLES, any_examined_or_sampled, caveats};
use super::surroundings::{Process, Surroundings};
use super::{
    BYTES_WORTH, Cost, Evidence, Finding, Outcome, Rdd, Severity, View, bytes, count, part, remedy,
    share,
};
use crate::rows::{ExecutorRow, PagesRow};
use crate::units;

/// Minimum share of reads from another node, or of bytes outside of the executor's node, for a finding.
pub(super) const REMOTE_SHARE: f64 = 0.25;

/// Finds RDDs on another node than the CPUs that use them.
pub(super) fn remote_memory(view: &View, around: &Surroundings) -> Outcome {
    const ID: &str = "remote_memory";
    const LOOKS_FOR: &str = "RDDs on another NUMA node than the CPUs that read them";
    match around.nodes.as_deref() {
        Some([_]) => {
            return Outcome::checked(ID, LOOKS_FOR, Vec::new(), "this machine has one node");
        }
        None => return Outcome::not_checked(ID, LOOKS_FOR, "the machine's nodes cannot be read"),
        Some(_) => {}
    }
    let rdds = view.rdds();
    let bound = |row: &ExecutorRow| {
        around
            .processes
            .get(&row.who.pid)
            .and_then(Process::bound_to_a_node)
    };
    let alive: Vec<&ExecutorRow> = view
        .executors
        .iter()
        .filter(|row| row.state == crate::rows::ExecutorState::Alive)
        .collect();
    if !alive.is_empty() && alive.iter().all(|row| bound(row) == Some(true)) {
        return Outcome::checked(
            ID,
            LOOKS_FOR,
            Vec::new(),
            "every executor is bound to one node",
        );
    }
    // `numactl` binds memory by a policy of the process, which other processes cannot read. The allowed CPUs show such
    // a binding; the executor is judged like all others, by the placement of its bytes.
    let free = alive.iter().filter(|row| {
        let process = around.processes.get(&row.who.pid);
        process.is_some_and(|process| process.cpu_nodes.as_ref().is_some_and(|on| on.len() > 1))
    });
    let free = free.count();
    let findings: Vec<_> = rdds
        .iter()
        .filter_map(|rdd| remote(rdd, view, around, free))
        .collect();
    // Reads keep their node while the addresses of the pages are not known; RDDs that were not read have none then.
    if findings.is_empty() && !any_examined_or_sampled(&rdds) {
        return Outcome::not_checked(ID, LOOKS_FOR, NOT_EXAMINED);
    }
    Outcome::checked(ID, LOOKS_FOR, findings, "RDDs with known nodes")
}

/// Bytes that were read on the same and on another node; `None` where no read has a known node.
fn reads_by_node(rdd: &Rdd<'_>) -> Option<(u64, u64)> {
    rdd.seen(|row| row.read_local_bytes)
        .zip(rdd.seen(|row| row.read_remote_bytes))
        .filter(|(local, away)| local.saturating_add(*away) > 0)
}

fn remote(rdd: &Rdd<'_>, view: &View, around: &Surroundings, free: usize) -> Option<Finding> {
    let spanning = rdd.seen(|row| row.spanning_nodes);
    let mut not_measured = caveats(rdd, 0);
    let mut numbers: Vec<Evidence>;
    let (severity, cost, title) = match reads_by_node(rdd) {
        Some((local, away)) => {
            let ratio = part(away, local.saturating_add(away));
            if ratio < REMOTE_SHARE || away < BYTES_WORTH {
                return None;
            }
            numbers = vec![
                bytes("read by a CPU of another node", away),
                bytes("read by a CPU of the same node", local),
                share("remote", ratio),
            ];
            let title = format!(
                "{} of the reads of {} come from another node",
                units::share(ratio),
                rdd.label()
            );
            let of = "its bytes that were read, each over the link between nodes; the cost was not measured";
            (
                Severity::Medium,
                Cost {
                    share: Some(ratio),
                    of: of.to_owned(),
                    estimated: false,
                },
                title,
            )
        }
        None => {
            // Executors on different nodes are normal. Each is compared with its own node: the node of its CPUs, or the
            // fullest node where its CPUs belong to several.
            let rows = rdd.pages.iter().filter_map(|row| {
                let process = around.processes.get(&row.who.pid);
                let home = match process.and_then(|process| process.cpu_nodes.as_deref()) {
                    Some([home]) => Some(*home),
                    _ => None,
                };
                Some((on_nodes(row)?, home))
            });
            let (outside, all, sampled) = rows
                .map(|((nodes, sampled), home)| {
                    let all = nodes.values().copied().fold(0, u64::saturating_add);
                    let own = match home {
                        Some(home) => nodes.get(&home).copied(),
                        None => nodes.values().copied().max(),
                    };
                    (all - own.unwrap_or(0), all, sampled)
                })
                .reduce(|sum, more| {
                    (
                        sum.0.saturating_add(more.0),
                        sum.1.saturating_add(more.1),
                        sum.2.saturating_add(more.2),
                    )
                })?;
            let ratio = part(outside, all);
            if ratio < REMOTE_SHARE || outside < BYTES_WORTH {
                return None;
            }
            not_measured = caveats(rdd, sampled);
            numbers = vec![
                bytes("in memory, on known nodes", all),
                bytes(
                    "outside of each executor's node (that of its CPUs, or the fullest)",
                    outside,
                ),
                share("outside of it", ratio),
            ];
            if sampled > 0 {
                numbers.insert(1, bytes(OF_SAMPLES, sampled));
            }
            not_measured.insert(
                0,
                "the reading node: no read of its blocks has a known node".to_owned(),
            );
            let title = format!(
                "{} of {} lie on other nodes than its executor's",
                units::share(ratio),
                rdd.label()
            );
            let of = "its bytes: this share is on another node than the executor's CPUs, or than most of its bytes";
            (
                Severity::Low,
                Cost {
                    share: Some(ratio),
                    of: of.to_owned(),
                    estimated: sampled > 0,
                },
                title,
            )
        }
    };
    numbers.extend(spanning.map(|blocks| {
        count(
            "blocks and pages of execution memory on several nodes, at least",
            blocks,
        )
    }));
    numbers.push(count(
        "executors here that may run on CPUs of several nodes",
        free as u64,
    ));
    let workers = around.nodes_with_cpus.as_deref().unwrap_or_default();
    let count_of_nodes = workers.len().max(1);
    let nodes: Vec<String> = workers.iter().map(u32::to_string).collect();
    let nodes = nodes.join(", ");
    Some(Finding {
        id: "remote_memory".to_owned(),
        severity,
        title,
        subject: rdd.subject(view),
        window: "bytes: at the last scan; reads: since the RDD was first seen".to_owned(),
        numbers,
        cost,
        saving: None,
        computed: "not in seconds: what a read over the link between nodes costs was not measured"
            .to_owned(),
        disproof: "bound to one node, the executor's tasks take as long".to_owned(),
        remedies: vec![
            remedy(
                &format!(
                    "Standalone: one worker per node instead of one per machine, each with 1/{count_of_nodes} of cores and memory; for each node N of {nodes}:"
                ),
                &[
                    "numactl --cpunodebind=N --membind=N bin/spark-class org.apache.spark.deploy.worker.Worker --cores C --memory M spark://MASTER:7077",
                ],
            ),
            remedy(
                "YARN, with the LinuxContainerExecutor, in yarn-site.xml:",
                &[
                    "yarn.nodemanager.numa-awareness.enabled=true",
                    "yarn.nodemanager.numa-awareness.read-topology=true",
                ],
            ),
            remedy(
                "Kubernetes, in the kubelet's configuration, for executors that request as much as their limit:",
                &[
                    "topologyManagerPolicy: single-numa-node",
                    "cpuManagerPolicy: static",
                    "memoryManagerPolicy: Static",
                ],
            ),
            remedy(
                "Executors that must span nodes: let the collector (G1 from JDK 14 on, or Parallel) allocate on the node of the thread:",
                &["spark.executor.extraJavaOptions  -XX:+UseNUMA"],
            ),
        ],
        not_measured,
    })
}

/// Bytes of a row by node (for objects as estimated from their sample) and the bytes that the sample stands for; `None`
/// where no page was examined.
fn on_nodes(row: &PagesRow) -> Option<(BTreeMap<u32, u64>, u64)> {
    if row.nodes.is_none() && row.sample.is_none() {
        return None;
    }
    let mut nodes: BTreeMap<u32, u64> = BTreeMap::new();
    for on in row.nodes.iter().flatten() {
        nodes.insert(on.node, on.bytes);
    }
    if let Some(sample) = &row.sample {
        let present = sample.held_bytes as f64 * sample.present_share.clamp(0.0, 1.0);
        for on in &sample.nodes {
            let bytes = (present * on.share.clamp(0.0, 1.0)).round() as u64;
            let sum = nodes.entry(on.node).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
    let sampled = row.sample.as_ref().map_or(0, |sample| sample.held_bytes);
    Some((nodes, sampled))
}
