//! Cached RDDs: their blocks, by partition and by executor.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Value, json};

use super::executors::{Executor, LONGEST_ID, added};
use super::{ENTRY, LIVE, PARTITIONS, Replay};
use crate::event::{BlockUpdated, StageInfo, UnpersistRdd};
use crate::json::present;

/// Executors of a block at most.
const COPIES: usize = 1000;
/// The change of a block that has no place for another executor.
const TOO_MANY: i64 = i64::MIN;

#[derive(Clone, Debug, Default)]
pub(super) struct Rdd {
    name: String,
    partitions: i64,
    level: String,
    is_off_heap: bool,
    is_deserialized: bool,
    memory: i64,
    disk: i64,
    /// By the order in which they were stored first.
    blocks: BTreeMap<u64, Block>,
    by_name: HashMap<String, u64>,
    next: u64,
    distributions: BTreeMap<String, Distribution>,
}

#[derive(Clone, Debug)]
struct Block {
    name: String,
    memory: i64,
    disk: i64,
    executors: Vec<String>,
}

/// What one executor holds of an RDD, and the room that it had when that changed.
#[derive(Clone, Debug, Default)]
struct Distribution {
    address: Option<String>,
    memory: i64,
    disk: i64,
    on_heap: i64,
    off_heap: i64,
    memory_left: i64,
    heaps_left: Option<(i64, i64)>,
}

impl Distribution {
    fn see(&mut self, executor: &Executor) {
        self.address.clone_from(&executor.host_port);
        self.memory_left = executor.max_memory.wrapping_sub(executor.memory_used);
        self.heaps_left = executor.memory.map(|memory| {
            (
                memory.on_heap.wrapping_sub(memory.on_heap_used),
                memory.off_heap.wrapping_sub(memory.off_heap_used),
            )
        });
    }

    fn json(&self) -> Value {
        let has = self.heaps_left.is_some();
        present(json!({
            "address": self.address,
            "memoryUsed": self.memory,
            "memoryRemaining": self.memory_left,
            "diskUsed": self.disk,
            "onHeapMemoryUsed": has.then_some(self.on_heap),
            "offHeapMemoryUsed": has.then_some(self.off_heap),
            "onHeapMemoryRemaining": self.heaps_left.map(|(left, _)| left),
            "offHeapMemoryRemaining": self.heaps_left.map(|(_, left)| left),
        }))
    }
}

impl Rdd {
    pub(super) fn json(&self, id: i32) -> Value {
        let distributions = self.distributions.values().map(Distribution::json);
        let distributions: Vec<Value> = distributions.collect();
        let blocks = self.blocks.values().map(|block| {
            json!({
                "blockName": block.name,
                "storageLevel": self.level_of(block),
                "memoryUsed": block.memory,
                "diskUsed": block.disk,
                "executors": block.executors,
            })
        });
        present(json!({
            "id": id,
            "name": self.name,
            "numPartitions": self.partitions,
            "numCachedPartitions": self.blocks.len(),
            "storageLevel": self.level,
            "memoryUsed": self.memory,
            "diskUsed": self.disk,
            "dataDistribution": (!distributions.is_empty()).then_some(distributions),
            "partitions": blocks.collect::<Value>(),
        }))
    }

    /// The level that a block has in effect.
    fn level_of(&self, block: &Block) -> String {
        let level = crate::event::StorageLevel {
            disk: block.disk > 0,
            memory: block.memory > 0,
            off_heap: self.is_off_heap,
            deserialized: block.memory > 0 && self.is_deserialized,
            replication: i64::try_from(block.executors.len()).unwrap_or(i64::MAX),
        };
        level.description()
    }

    fn remove(&mut self, name: &str) -> bool {
        self.by_name
            .remove(name)
            .is_some_and(|at| self.blocks.remove(&at).is_some())
    }
}

impl Replay {
    /// Begins to follow the RDDs of a stage that are to be stored.
    pub(super) fn follow_rdds(&mut self, info: &StageInfo<'_>) {
        for rdd in &info.rdds {
            if !rdd.level.is_valid() || self.rdds.contains_key(&rdd.id) {
                continue;
            }
            if self.rdds.len() >= LIVE || !self.held.take(ENTRY + rdd.name.len()) {
                self.drop_one("RDDs");
                return;
            }
            let new = Rdd {
                name: rdd.name.kept(),
                partitions: rdd.partitions,
                level: rdd.level.description(),
                is_off_heap: rdd.level.off_heap,
                is_deserialized: rdd.level.deserialized,
                ..Rdd::default()
            };
            self.rdds.insert(rdd.id, new);
        }
    }

    pub(super) fn on_block_updated(&mut self, event: &BlockUpdated<'_>) {
        let info = &event.info;
        let sign = |is_stored: bool, bytes: i64| {
            if is_stored {
                bytes
            } else {
                bytes.wrapping_neg()
            }
        };
        let memory = sign(info.level.memory, info.memory);
        let disk = sign(info.level.disk, info.disk);
        let is_off_heap = info.level.off_heap;
        let id = &*info.manager.executor;
        // Numbers can have any number of leading zeros.
        if info.block.len() > LONGEST_ID || id.len() > LONGEST_ID {
            self.drop_one("blocks of RDDs");
            return;
        }
        let rdd_id = info
            .block
            .strip_prefix("rdd_")
            .and_then(|rest| rest.split_once('_'))
            .filter(|(_, partition)| partition.parse::<i32>().is_ok())
            .and_then(|(rdd, _)| rdd.parse::<i32>().ok());
        let Some(rdd_id) = rdd_id else {
            if info.block.starts_with("broadcast_")
                && let Some(executor) = self.live_executor(id)
            {
                executor.store(memory, disk, is_off_heap);
            }
            return;
        };
        if let Some(executor) = self.live_executor(id) {
            executor.store(memory, disk, is_off_heap);
        }
        let mut delta = 0;
        let mut is_full = false;
        if let Some(rdd) = self.rdds.get_mut(&rdd_id) {
            is_full = self.partitions >= PARTITIONS && !rdd.by_name.contains_key(&*info.block);
            if !is_full {
                delta = update(rdd, info, memory, disk, &mut self.partitions);
                is_full = delta == TOO_MANY;
                delta = if is_full { 0 } else { delta };
            }
            rdd.memory = added(rdd.memory, memory);
            rdd.disk = added(rdd.disk, disk);
        }
        if is_full {
            self.drop_one("blocks of RDDs");
        }
        let rdds = self.executors.get(id).map_or(0, |it| it.rdds.len());
        let may_visit = self.visit(rdds);
        let Some(executor) = self
            .executors
            .get_mut(id)
            .filter(|executor| executor.is_live)
        else {
            return;
        };
        if let Some(rdd) = self.rdds.get_mut(&rdd_id) {
            executor.rdds.insert(rdd_id);
            if executor.rdd_blocks + delta > 0 {
                let distribution = rdd.distributions.entry(id.to_owned()).or_default();
                distribution.memory = added(distribution.memory, memory);
                distribution.disk = added(distribution.disk, disk);
                if executor.memory.is_some() {
                    let used = if is_off_heap {
                        &mut distribution.off_heap
                    } else {
                        &mut distribution.on_heap
                    };
                    *used = added(*used, memory);
                }
            } else {
                rdd.distributions.remove(id);
            }
            // Spark shows the room of an executor as it was when one of its RDD blocks last changed.
            for other in executor.rdds.iter().filter(|_| may_visit) {
                if let Some(other) = self.rdds.get_mut(other)
                    && let Some(distribution) = other.distributions.get_mut(id)
                {
                    distribution.see(executor);
                }
            }
        }
        executor.rdd_blocks += delta;
    }

    pub(super) fn on_unpersist(&mut self, event: &UnpersistRdd) {
        let Some(rdd) = self.rdds.remove(&event.id) else {
            return;
        };
        self.partitions -= rdd.blocks.len();
        self.held.give(ENTRY + rdd.name.len());
        for id in rdd.blocks.values().flat_map(|block| &block.executors) {
            if let Some(executor) = self.live_executor(id) {
                executor.rdd_blocks -= 1;
            }
        }
        for (id, distribution) in rdd.distributions {
            if let Some(executor) = self.live_executor(&id) {
                executor.rdds.remove(&event.id);
                let heap = if rdd.is_off_heap {
                    distribution.off_heap
                } else {
                    distribution.on_heap
                };
                if let Some(memory) = &mut executor.memory {
                    let used = if rdd.is_off_heap {
                        &mut memory.off_heap_used
                    } else {
                        &mut memory.on_heap_used
                    };
                    *used = added(*used, heap.wrapping_neg());
                }
                executor.memory_used = added(executor.memory_used, -distribution.memory);
                executor.disk_used = added(executor.disk_used, -distribution.disk);
            }
        }
    }

    /// Forgets the blocks of a removed executor.
    pub(super) fn forget_blocks(&mut self, executor: &str, rdds: &BTreeSet<i32>) {
        for id in rdds {
            let Some(rdd) = self.rdds.get_mut(id) else {
                continue;
            };
            rdd.distributions.remove(executor);
            let blocks = rdd.blocks.len();
            if !self.visit(blocks) {
                return;
            }
            let Some(rdd) = self.rdds.get_mut(id) else {
                continue;
            };
            let mut gone = Vec::new();
            for block in rdd.blocks.values_mut() {
                let Some(at) = block.executors.iter().position(|id| id == executor) else {
                    continue;
                };
                let copies = i64::try_from(block.executors.len()).unwrap_or(i64::MAX);
                let (memory, disk) = (block.memory / copies, block.disk / copies);
                rdd.memory = added(rdd.memory, -memory);
                rdd.disk = added(rdd.disk, -disk);
                block.executors.remove(at);
                block.memory = added(block.memory, -memory);
                block.disk = added(block.disk, -disk);
                if block.executors.is_empty() {
                    gone.push(block.name.clone());
                }
            }
            for name in gone {
                self.partitions -= usize::from(rdd.remove(&name));
            }
        }
    }
}

/// Changes a block; the change of the executor's number of blocks.
fn update(
    rdd: &mut Rdd,
    info: &crate::event::BlockInfo<'_>,
    memory: i64,
    disk: i64,
    partitions: &mut usize,
) -> i64 {
    let (name, executor) = (&*info.block, &*info.manager.executor);
    let at = match rdd.by_name.get(name) {
        Some(at) => *at,
        None => {
            let at = rdd.next;
            rdd.next += 1;
            rdd.by_name.insert(name.to_owned(), at);
            let block = Block {
                name: name.to_owned(),
                memory: 0,
                disk: 0,
                executors: Vec::new(),
            };
            rdd.blocks.insert(at, block);
            *partitions += 1;
            at
        }
    };
    let Some(block) = rdd.blocks.get_mut(&at) else {
        return 0;
    };
    let delta = if info.level.is_valid() {
        let is_new = !block.executors.iter().any(|id| id == executor);
        if is_new && block.executors.len() >= COPIES {
            return TOO_MANY;
        }
        if is_new {
            block.executors.push(executor.to_owned());
        }
        i64::from(is_new)
    } else {
        block.executors.retain(|id| id != executor);
        -1
    };
    if block.executors.is_empty() {
        *partitions -= usize::from(rdd.remove(name));
    } else {
        block.memory = added(block.memory, memory);
        block.disk = added(block.disk, disk);
    }
    delta
}
