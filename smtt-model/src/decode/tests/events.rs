//! Any event, for the tests of the decoder.

use proptest::prelude::*;
use smtt_common::context::Activity;
use smtt_common::counter::ContextKey;
use smtt_common::event::used::{Helper, TaskUsed, WorkerUsed};

use super::super::*;

fn text() -> impl Strategy<Value = String> + Clone {
    "[a-zA-Z0-9_.äß-]{0,40}"
}

fn maybe_id() -> impl Strategy<Value = Option<u32>> {
    proptest::option::of(any::<u32>())
}

fn figures() -> impl Strategy<Value = Vec<Figure>> {
    let figure = (any::<u8>(), any::<u32>(), any::<u64>()).prop_map(|(code, age, value)| Figure {
        code,
        age_ms: age.into(),
        value,
    });
    proptest::collection::vec(figure, 0..30)
}

fn maybe_long() -> impl Strategy<Value = Option<u64>> {
    proptest::option::of(0..u64::MAX)
}

fn block() -> impl Strategy<Value = BlockFact> {
    (
        (
            text(),
            maybe_id(),
            maybe_id(),
            any::<u64>(),
            any::<[bool; 6]>(),
        ),
        (
            maybe_long(),
            any::<u64>(),
            any::<u64>(),
            proptest::collection::vec(any::<(u64, u64)>(), 0..20),
        ),
    )
        .prop_map(
            |(
                (block_id, rdd_id, partition, size_bytes, flags),
                (task_attempt_id, range_total, range_first, ranges),
            )| BlockFact {
                block_id,
                rdd_id,
                partition,
                size_bytes,
                on_heap: flags[0],
                serialized: flags[1],
                without_task: flags[2],
                reported_again: flags[3],
                sampled: flags[4],
                array: flags[5],
                task_attempt_id,
                range_total,
                range_first,
                ranges,
            },
        )
}

fn end() -> impl Strategy<Value = ProcessEnd> {
    (any::<(u32, u64)>(), "[a-z]{0,15}").prop_map(|((status, peak_rss_bytes), name)| ProcessEnd {
        status,
        peak_rss_bytes,
        name,
    })
}

fn context() -> impl Strategy<Value = ContextKey> {
    (
        1..u64::MAX,
        any::<u64>(),
        any::<u32>(),
        any::<u32>(),
        any::<u16>(),
        any::<u8>(),
        any::<u8>(),
    )
        .prop_map(
            |(
                executor,
                task_attempt_id,
                stage_id,
                rdd_plus_one,
                stage_attempt,
                activity,
                access_region,
            )| ContextKey {
                executor,
                task_attempt_id,
                stage_id,
                rdd_plus_one,
                stage_attempt,
                activity,
                access_region,
                reserved: 0,
            },
        )
}

fn page() -> impl Strategy<Value = (PageAllocated, PageFreed)> {
    (
        maybe_long(),
        maybe_long(),
        any::<u64>(),
        any::<u64>(),
        any::<[bool; 2]>(),
        maybe_id(),
        maybe_id(),
        text(),
    )
        .prop_map(
            |(
                task_attempt_id,
                page_number,
                address,
                size_bytes,
                flags,
                rdd_id,
                stage_id,
                consumer,
            )| {
                let freed = PageFreed {
                    task_attempt_id,
                    page_number,
                    address,
                    size_bytes,
                    on_heap: flags[0],
                    consumer: consumer.clone(),
                    activity: flags[1].then_some(Activity::SPILL),
                };
                let allocated = PageAllocated {
                    task_attempt_id,
                    page_number,
                    address,
                    size_bytes,
                    on_heap: flags[0],
                    reported_again: flags[1],
                    activity: flags[1].then_some(Activity::HASH_GROW),
                    rdd_id,
                    stage_id,
                    consumer,
                };
                (allocated, freed)
            },
        )
}

fn described() -> impl Strategy<Value = ExecutorDescribed> {
    (any::<[u64; 6]>(), proptest::array::uniform11(text())).prop_map(|(words, strings)| {
        let [
            application_id,
            application_name,
            executor_id,
            host,
            spark_version,
            java_version,
            missing_hook_names,
            application_attempt_id,
            queue,
            kubernetes_namespace,
            kubernetes_pod,
        ] = strings;
        ExecutorDescribed {
            slots_address: words[0],
            slot_count: words[1],
            start_unix_ms: words[2],
            heap_max_bytes: words[3],
            missing_hooks: words[4],
            flags: words[5],
            application_id,
            application_name,
            executor_id,
            host,
            spark_version,
            java_version,
            missing_hook_names,
            application_attempt_id,
            queue,
            kubernetes_namespace,
            kubernetes_pod,
        }
    })
}

fn fact() -> impl Strategy<Value = Fact> {
    let outcome = prop_oneof![
        Just(Outcome::Succeeded),
        Just(Outcome::Failed),
        Just(Outcome::Killed)
    ];
    let thread = (any::<u64>(), any::<u32>(), any::<u64>(), text());
    prop_oneof![
        described().prop_map(|described| Fact::ExecutorDescribed(Box::new(described))),
        thread.clone().prop_map(
            |(slot_address, tid, generation, name)| Fact::ThreadRegistered(ThreadFact {
                slot_address,
                tid,
                generation,
                name
            })
        ),
        thread.prop_map(
            |(slot_address, tid, generation, _)| Fact::ThreadGone(ThreadFact {
                slot_address,
                tid,
                generation,
                name: String::new()
            })
        ),
        (
            (any::<u32>(), any::<u64>(), any::<u64>()),
            (text(), text(), text()),
            proptest::collection::vec(any::<u32>(), 0..9),
            (text(), "[a-z0-9_]{0,40}")
        )
            .prop_map(
                |(
                    (rdd_id, partitions, storage_level),
                    (name, call_site, storage_level_text),
                    parents,
                    (node, node_id),
                )| Fact::RddDescribed(Box::new(RddDescribed {
                    rdd_id,
                    partitions,
                    storage_level,
                    name,
                    call_site,
                    storage_level_text,
                    parents,
                    node,
                    node_id
                }))
            ),
        (
            any::<u32>(),
            any::<u32>(),
            any::<u64>(),
            maybe_id(),
            maybe_id(),
            [text(), text(), text(), text()],
            any::<[Option<u64>; 3]>()
        )
            .prop_map(
                |(stage_id, stage_attempt, tasks, job_id, rdd_id, texts, numbers)| {
                    let [name, sql_description, job_description, failure] = texts;
                    let [sql_execution_id, submitted_unix_ms, completed_unix_ms] = numbers;
                    Fact::StageDescribed(StageDescribed {
                        stage_id,
                        stage_attempt,
                        tasks,
                        job_id,
                        rdd_id,
                        name,
                        sql_execution_id,
                        sql_description,
                        job_description,
                        submitted_unix_ms,
                        completed_unix_ms,
                        failure,
                    })
                }
            ),
        (
            0..u32::MAX,
            [0..u64::MAX, 0..u64::MAX, 0..u64::MAX],
            any::<[bool; 2]>(),
            text()
        )
            .prop_map(|(job_id, numbers, has, failure)| {
                Fact::JobDescribed(JobDescribed {
                    job_id,
                    started_unix_ms: numbers[2],
                    ended_unix_ms: has[0].then_some(numbers[0]),
                    sql_execution_id: has[1].then_some(numbers[1]),
                    failure,
                })
            }),
        (0..u64::MAX, any::<[u32; 4]>(), maybe_id()).prop_map(|(task_attempt_id, ids, job_id)| {
            Fact::TaskStarted(TaskStarted {
                task_attempt_id,
                stage_id: ids[0],
                stage_attempt: ids[1],
                partition: ids[2],
                attempt_number: ids[3],
                job_id,
            })
        }),
        (
            0..u64::MAX,
            any::<[u32; 2]>(),
            outcome,
            any::<u64>(),
            text()
        )
            .prop_map(
                |(task_attempt_id, ids, outcome, execution_memory_peak_bytes, reason)| {
                    Fact::TaskEnded(TaskEnded {
                        task_attempt_id,
                        stage_id: ids[0],
                        stage_attempt: ids[1],
                        outcome,
                        execution_memory_peak_bytes,
                        reason,
                    })
                }
            ),
        block().prop_map(|block| Fact::BlockStored(Box::new(block))),
        block().prop_map(|block| Fact::BlockMoved(Box::new(block))),
        (block(), proptest::option::of(0..1000_u32)).prop_map(|(block, node)| Fact::BlockRead(
            BlockRead {
                block_id: block.block_id,
                rdd_id: block.rdd_id,
                partition: block.partition,
                task_attempt_id: block.task_attempt_id,
                node
            }
        )),
        block().prop_map(|block| Fact::BlockRemoved(BlockRemoved {
            block_id: block.block_id,
            rdd_id: block.rdd_id,
            partition: block.partition,
            activity: block.on_heap.then_some(Activity::EVICT),
        })),
        (
            maybe_long(),
            any::<[u64; 2]>(),
            maybe_long(),
            any::<bool>(),
            text()
        )
            .prop_map(
                |(task_attempt_id, numbers, counted_bytes, estimated, consumer)| {
                    Fact::ConsumerUsed(ConsumerUsed {
                        task_attempt_id,
                        instances: numbers[0],
                        peak_bytes: numbers[1],
                        counted_bytes,
                        estimated,
                        consumer,
                    })
                }
            ),
        page().prop_map(|(allocated, _)| Fact::PageAllocated(allocated)),
        page().prop_map(|(_, freed)| Fact::PageFreed(freed)),
        (
            maybe_long(),
            any::<u8>(),
            any::<u64>(),
            any::<u64>(),
            maybe_id(),
            text()
        )
            .prop_map(
                |(task_attempt_id, activity, start_monotonic_ns, duration_ns, rdd_id, name)| {
                    Fact::Span(Span {
                        task_attempt_id,
                        activity,
                        start_monotonic_ns,
                        duration_ns,
                        rdd_id,
                        name,
                    })
                }
            ),
        (any::<u64>(), any::<u64>(), maybe_long()).prop_map(|(number, age_ns, duration_ns)| {
            Fact::Paused(Paused {
                number,
                age_ns,
                duration_ns,
            })
        }),
        (any::<[u64; 7]>(), 0..=i64::MAX as u64, text(), text()).prop_map(
            |(words, task_attempt_id, address, executor_id)| {
                let [start_monotonic_ns, duration_ns, requests, blocks, rest @ ..] = words;
                let [arrived_blocks, failed_blocks, arrived_bytes] = rest;
                Fact::Fetched(Box::new(Fetched {
                    task_attempt_id,
                    start_monotonic_ns,
                    duration_ns,
                    requests,
                    blocks,
                    arrived_blocks,
                    failed_blocks,
                    arrived_bytes,
                    address,
                    executor_id,
                }))
            }
        ),
        (
            any::<u32>(),
            maybe_long(),
            any::<u64>(),
            maybe_id(),
            any::<u32>()
        )
            .prop_map(|(pid, task_attempt_id, hot, stage_id, stage_attempt)| {
                Fact::PythonWorker(PythonWorker {
                    pid,
                    task_attempt_id,
                    hot,
                    stage_id,
                    stage_attempt,
                })
            }),
        any::<u64>().prop_map(|request| Fact::ResyncDone { request }),
        (any::<u64>(), any::<u64>())
            .prop_map(|(request, facts)| Fact::ResyncReported { request, facts }),
        (any::<u64>(), any::<u64>()).prop_map(|(collection, moved_facts)| {
            Fact::AddressesReported {
                collection,
                moved_facts,
            }
        }),
        (any::<u64>(), any::<bool>()).prop_map(|(task_attempt_id, late)| Fact::TaskBegun {
            task_attempt_id: task_attempt_id >> 1,
            late
        }),
        (any::<[bool; 2]>(), figures()).prop_map(|([examined, overhead_is_default], figures)| {
            Fact::MemoryReported(Box::new(MemoryReported {
                examined,
                overhead_is_default,
                figures,
            }))
        }),
        (any::<Option<(u16, u16)>>(), figures()).prop_map(|(stage, figures)| {
            Fact::PeaksReported(Box::new(PeaksReported {
                stage: stage.map(|(id, attempt)| (id.into(), attempt.into())),
                figures,
            }))
        }),
        (any::<u64>(), maybe_long(), maybe_long()).prop_map(|(task, allocated, collection)| {
            Fact::TaskHeap(TaskHeap {
                task_attempt_id: task >> 1,
                allocated_bytes: allocated,
                collection_ms: collection,
            })
        }),
        (
            any::<u64>(),
            any::<[u64; 10]>(),
            proptest::option::of(any::<[u64; 4]>()),
        )
            .prop_map(|(task, values, times)| {
                Fact::TaskMetrics(Box::new(TaskMetrics {
                    task_attempt_id: task >> 1,
                    values,
                    times: times.map(|times| times.map(|time| time >> 1)),
                }))
            }),
        (any::<u64>(), any::<u64>()).prop_map(|(task, bytes)| Fact::TaskHeapSoFar {
            task_attempt_id: task >> 1,
            allocated_bytes: bytes,
        }),
        (any::<u64>(), any::<u8>()).prop_map(|(task, helper)| Fact::HelperBegun {
            task_attempt_id: task >> 1,
            helper: Helper(helper),
        }),
        (any::<u64>(), any::<u8>(), maybe_long()).prop_map(|(task, helper, allocated_bytes)| {
            Fact::HelperEnded {
                task_attempt_id: task >> 1,
                helper: Helper(helper),
                allocated_bytes,
            }
        }),
        (any::<[u64; 16]>(), any::<[u32; 2]>()).prop_map(|(words, flags)| {
            Fact::TaskUsed(Box::new(TaskUsed {
                task_attempt_id: words[0],
                accounts: words[1..15].try_into().expect("fourteen accounts"),
                duration_ns: words[15],
                present: flags[0],
                flags: flags[1],
            }))
        }),
        (any::<[u64; 16]>(), any::<[u32; 3]>()).prop_map(|(words, words32)| {
            Fact::WorkerUsed(Box::new(WorkerUsed {
                used: TaskUsed {
                    task_attempt_id: words[0],
                    accounts: words[1..15].try_into().expect("fourteen accounts"),
                    duration_ns: words[15],
                    present: words32[0],
                    flags: words32[1],
                },
                pid: words32[2],
                reserved: 0,
            }))
        }),
        any::<u32>().prop_map(|child_pid| Fact::ProcessForked { child_pid }),
        (any::<[bool; 2]>(), proptest::option::of(end())).prop_map(|(flags, end)| {
            Fact::ProcessGone {
                exec: flags[0],
                is_executor: flags[1],
                end: end.map(Box::new),
            }
        }),
        (any::<[u32; 4]>(), any::<[bool; 2]>(), "[a-z]{0,15}").prop_map(|(words, flags, name)| {
            Fact::SignalSent(Box::new(SignalSent {
                target_pid: words[0],
                is_executor: flags[0],
                signal: words[1],
                from_kernel: flags[1],
                sender_pid: words[2],
                sender_uid: words[3],
                sender_name: name,
            }))
        }),
        any::<(u32, bool)>().prop_map(|(victim_pid, is_executor)| {
            Fact::OomKilled(OomKilled {
                victim_pid,
                is_executor,
            })
        }),
        (any::<(bool, u64)>(), "[a-z]{0,200}").prop_map(|((uncaught, flags), description)| {
            Fact::Exhausted(Box::new(Exhausted {
                uncaught,
                flags,
                description,
            }))
        }),
        (
            any::<u64>(),
            proptest::option::of(any::<bool>()),
            proptest::option::of(context())
        )
            .prop_map(|(address, write, context)| Fact::FaultSample {
                address,
                write,
                context
            }),
        (
            any::<u64>(),
            proptest::option::of(any::<bool>()),
            proptest::option::of(context())
        )
            .prop_map(|(address, write, context)| Fact::WalkSample {
                address,
                write,
                context
            }),
    ]
}

pub(super) fn event() -> impl Strategy<Value = Event> {
    (
        any::<u64>(),
        any::<u64>(),
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
        fact(),
    )
        .prop_map(|(time_ns, executor, pid, tid, uid, fact)| Event {
            time_ns,
            executor,
            pid,
            tid,
            uid,
            fact,
        })
}
