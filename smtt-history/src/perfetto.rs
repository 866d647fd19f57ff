//! An application as a trace for Perfetto and Chrome, in the trace event format: executors are processes, their cores are
//! threads, tasks are slices with their parts inside; jobs and stages are tracks of their own; running tasks are
//! counters, and so are memory and page faults of executors, from workers.
//!
//! <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>. Times are microseconds since the first
//! task or job. Spark measures lengths of parts, not their beginnings: within a task they stand one after the other.

mod fetches;
mod functions;
mod memory;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};
use smtt_store::history::place;

use crate::fetches::OfWorkers;
use crate::live::{self, is_live};
use crate::open::App;
use crate::timeline::memory::Memory;
use crate::timeline::model::{Columns, Executor, LOCALITIES, Model, OUTCOMES, Task};
use crate::timeline::parts::{ALL, PARTS, divide};

/// Process of jobs and stages; executors follow.
const APPLICATION: usize = 1;
/// Thread of the first row of stages.
const STAGES: usize = 1_000_001;
/// Tasks whose times are read at a time.
const ROWS: u64 = 100_000;

/// Events while they are written.
struct Trace<W> {
    out: W,
    is_first: bool,
}

impl<W: Write> Trace<W> {
    fn event(&mut self, event: &impl Serialize) -> io::Result<()> {
        self.out
            .write_all(if self.is_first { b"\n" } else { b",\n" })?;
        self.is_first = false;
        serde_json::to_writer(&mut self.out, event)?;
        Ok(())
    }

    /// The name of a process, or of one of its threads.
    fn name(&mut self, pid: usize, tid: Option<usize>, name: &str) -> io::Result<()> {
        let (of, sort) = match tid {
            None => ("process_name", "process_sort_index"),
            Some(_) => ("thread_name", "thread_sort_index"),
        };
        let tid = tid.unwrap_or_default();
        self.event(
            &json!({"ph": "M", "pid": pid, "tid": tid, "name": of, "args": {"name": name}}),
        )?;
        let index = if tid == 0 { pid } else { tid };
        self.event(&json!({"ph": "M", "pid": pid, "tid": tid, "name": sort, "args": {"sort_index": index}}))
    }

    fn slice(
        &mut self,
        (pid, tid): (usize, usize),
        (begin, length): (i64, u64),
        (category, name): (&str, &str),
        arguments: &Value,
    ) -> io::Result<()> {
        self.event(&json!({"ph": "X", "pid": pid, "tid": tid, "ts": begin, "dur": length, "cat": category, "name": name,
            "args": arguments}))
    }

    /// Values of a counter of a process from a time on.
    fn counter(&mut self, (pid, time): (usize, i64), name: &str, values: &Value) -> io::Result<()> {
        self.event(
            &json!({"ph": "C", "pid": pid, "tid": 0, "ts": time, "name": name, "args": values}),
        )
    }
}

/// Opens an application of a store.
///
/// # Errors
/// When the store does not have it, or its tables cannot be read.
pub fn open(store: &Path, id: &str, attempt: Option<&str>) -> Result<App> {
    let name = place::name(id, attempt).with_context(|| format!("{id} is no application's id"))?;
    let folder = store.join(&name);
    if is_live(&folder) {
        return live::open(store, &name);
    }
    App::open(&folder).with_context(|| {
        format!(
            "{} has no application {id}; import its event log first",
            store.display()
        )
    })
}

/// Writes the trace, with what workers know of the tasks and of the executors' memory; returns the number of its tasks.
///
/// # Errors
/// When a table cannot be read, or the trace cannot be written.
pub fn write(
    (app, model): (&App, &Model),
    workers: &OfWorkers,
    memory: &Memory,
    out: impl Write,
) -> Result<usize> {
    let mut trace = Trace {
        out,
        is_first: true,
    };
    trace
        .out
        .write_all(b"{\"displayTimeUnit\":\"ms\",\"otherData\":")?;
    let origin = json!({"origin": "smtt-history", "start_unix_ms": model.start, "left_out_tasks": model.left_out});
    serde_json::to_writer(&mut trace.out, &origin)?;
    trace.out.write_all(b",\"traceEvents\":[")?;
    jobs_and_stages(&mut trace, model)?;
    for (number, executor) in model.executors.iter().enumerate() {
        let pid = APPLICATION + 1 + number;
        trace.name(
            pid,
            None,
            &format!("executor {} on {}", executor.id, executor.host),
        )?;
        for lane in executor.lanes.clone() {
            let core = (lane - executor.lanes.start) as usize;
            trace.name(pid, Some(core + 1), &format!("core {core}"))?;
        }
        running(&mut trace, pid, model, executor)?;
    }
    memory::write(&mut trace, model, memory)?;
    tasks(&mut trace, app, model, workers)?;
    trace.out.write_all(b"\n]}\n")?;
    trace.out.flush()?;
    Ok(model.tasks.len())
}

fn us(milliseconds: i64) -> i64 {
    milliseconds.saturating_mul(1000)
}

/// Jobs and stages, each in the first row that is free: slices of one thread must not overlap.
fn jobs_and_stages<W: Write>(trace: &mut Trace<W>, model: &Model) -> Result<()> {
    trace.name(APPLICATION, None, "jobs and stages")?;
    let rows = model.jobs.iter().map(|job| job.row + 1).max().unwrap_or(0);
    for row in 0..rows {
        trace.name(APPLICATION, Some(row + 1), "jobs")?;
    }
    for job in &model.jobs {
        let arguments = json!({"job": job.id, "status": job.status});
        let length = us(job.end - job.start).unsigned_abs();
        let name = format!("job {} {}", job.id, job.name);
        let track = (APPLICATION, job.row + 1);
        trace.slice(track, (us(job.start), length), ("job", &name), &arguments)?;
    }
    let mut spans: BTreeMap<u32, (i64, i64, usize)> = BTreeMap::new();
    for task in &model.tasks {
        let span = spans
            .entry(task.stage)
            .or_insert((task.launch, task.end(), 0));
        *span = (span.0.min(task.launch), span.1.max(task.end()), span.2 + 1);
    }
    let mut spans: Vec<_> = spans.into_iter().collect();
    spans.sort_by_key(|(stage, (start, end, _))| (*start, *end, *stage));
    let mut ends: Vec<i64> = Vec::new();
    for (stage, (start, end, tasks)) in spans {
        let row = ends.iter().position(|until| *until <= start);
        let row = row.unwrap_or_else(|| {
            ends.push(end);
            ends.len() - 1
        });
        ends[row] = end;
        let stage = &model.stages[stage as usize];
        let name = format!("stage {}.{} {}", stage.key.0, stage.key.1, stage.name);
        let arguments = json!({"stage": stage.key.0, "attempt": stage.key.1, "tasks": tasks});
        let length = us(end - start).unsigned_abs();
        let track = (APPLICATION, STAGES + row);
        trace.slice(track, (us(start), length), ("stage", &name), &arguments)?;
    }
    for row in 0..ends.len() {
        trace.name(APPLICATION, Some(STAGES + row), "stages")?;
    }
    Ok(())
}

/// How many tasks an executor runs, wherever that changes.
fn running<W: Write>(
    trace: &mut Trace<W>,
    pid: usize,
    model: &Model,
    executor: &Executor,
) -> Result<()> {
    let lanes = &model.lanes[executor.lanes.start as usize..executor.lanes.end as usize];
    let tasks = lanes.iter().flat_map(|lane| model.of_lane(lane));
    let mut changes: Vec<(i64, i64)> = tasks
        .flat_map(|task| [(task.launch, 1), (task.end(), -1)])
        .collect();
    changes.sort_unstable();
    let mut count = 0;
    for (at, &(time, change)) in changes.iter().enumerate() {
        count += change;
        if changes.get(at + 1).is_none_or(|next| next.0 != time) {
            let tasks = json!({"tasks": count});
            trace.counter((pid, us(time)), "running tasks", &tasks)?;
        }
    }
    Ok(())
}

/// Tasks with their parts, in the order of the table.
fn tasks<W: Write>(
    trace: &mut Trace<W>,
    app: &App,
    model: &Model,
    workers: &OfWorkers,
) -> Result<()> {
    let mut tracks = functions::Tracks::default();
    let mut fetches = fetches::Tracks::default();
    let table = app.tasks()?;
    let mut order: Vec<&Task> = model.tasks.iter().collect();
    order.sort_unstable_by_key(|task| task.row);
    let mut left = order.as_slice();
    while let Some(first) = left.first() {
        let begin = u64::from(first.row);
        let end = (begin + ROWS).min(table.rows());
        let here = left.partition_point(|task| u64::from(task.row) < end);
        let times = Columns::read(&table, &[begin..end])?;
        for task in &left[..here] {
            let at = (u64::from(task.row) - begin) as usize;
            let launch = model.start.saturating_add(task.launch);
            let exact = divide(&times.microseconds(at, launch, u64::from(task.duration)));
            let track = one(trace, model, task, &exact)?;
            let spans = workers.spans.get(&task.id).map_or(&[][..], Vec::as_slice);
            let requests = workers.fetches.get(&task.id).map_or(&[][..], Vec::as_slice);
            // Both are of one clock.
            let times = spans.iter().map(functions::times);
            let times = times.chain(requests.iter().map(fetches::times));
            let place = functions::place(model, task, times);
            tracks.task(trace, place, track, spans)?;
            fetches.task(trace, place, track, requests)?;
        }
        left = &left[here..];
    }
    tracks.names(trace)?;
    Ok(fetches.names(trace)?)
}

/// Writes a task with its parts; returns its executor's process and its core.
fn one<W: Write>(
    trace: &mut Trace<W>,
    model: &Model,
    task: &Task,
    parts: &[u64; PARTS],
) -> Result<(usize, usize)> {
    let lane = &model.lanes[task.lane as usize];
    let executor = &model.executors[lane.executor as usize];
    let core = (task.lane - executor.lanes.start) as usize;
    let pid = APPLICATION + 1 + lane.executor as usize;
    let track = (pid, core + 1);
    let stage = model.stages[task.stage as usize].key;
    let arguments = json!({"task": task.id, "stage": stage.0, "stage_attempt": stage.1,
        "outcome": OUTCOMES[usize::from(task.outcome)], "locality": LOCALITIES[usize::from(task.locality)],
        "speculative": task.speculative, "straggler": task.straggler});
    let length = u64::from(task.duration) * 1000;
    let name = format!("task {} of stage {}", task.id, stage.0);
    trace.slice(
        track,
        (us(task.launch), length),
        ("task", &name),
        &arguments,
    )?;
    if task.parts.iter().all(|part| *part == 0) {
        return Ok((pid, core));
    }
    let mut begin = us(task.launch);
    for (part, length) in ALL.iter().zip(parts).filter(|(_, length)| **length > 0) {
        trace.slice(track, (begin, *length), ("part", part.title), &json!({}))?;
        begin = begin.saturating_add_unsigned(*length);
    }
    Ok((pid, core))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use smtt_model::state::history::{PagePoint, RddPoint};

    use super::*;
    use crate::import::{Admission, import};
    use crate::log::Bounds;
    use crate::timeline::memory::{History, Moment};

    /// Slices by process and thread, and counts with their times by process.
    type Slices = BTreeMap<(u64, u64), Vec<Value>>;
    type Counters = BTreeMap<(u64, String), Vec<(i64, Value)>>;

    /// Reads a trace as the format's document states, and refuses what a viewer would draw wrongly: slices of one
    /// thread that overlap without one lying in the other, and counters that go back in time.
    fn read(text: &str) -> (Slices, Counters) {
        let json: Value = serde_json::from_str(text).expect("is JSON");
        let (mut slices, mut counters) = (
            BTreeMap::<_, Vec<Value>>::new(),
            BTreeMap::<_, Vec<(i64, Value)>>::new(),
        );
        for event in json["traceEvents"].as_array().expect("has events") {
            let number = |name: &str| event[name].as_u64().expect("is a number");
            assert!(event["name"].is_string(), "{event}");
            match event["ph"].as_str() {
                Some("X") => slices
                    .entry((number("pid"), number("tid")))
                    .or_default()
                    .push(event.clone()),
                Some("C") => {
                    let values = event["args"].as_object().expect("has values");
                    assert!(values.values().all(Value::is_u64), "{event}");
                    let name = event["name"].as_str().unwrap_or_default();
                    counters
                        .entry((number("pid"), name.to_owned()))
                        .or_default()
                        .push((number("ts") as i64, event["args"].clone()));
                }
                Some("M") => assert!(event["args"].is_object(), "{event}"),
                other => panic!("unknown phase {other:?}"),
            }
        }
        for slices in slices.values_mut() {
            let span = |event: &Value| {
                let begin = event["ts"].as_i64().expect("is a time");
                (begin, begin + event["dur"].as_i64().expect("is a length"))
            };
            slices.sort_by_key(|event| (span(event).0, std::cmp::Reverse(span(event).1)));
            let mut open: Vec<(i64, i64)> = Vec::new();
            for event in slices.iter() {
                let (begin, end) = span(event);
                while open.last().is_some_and(|(_, until)| *until <= begin) {
                    open.pop();
                }
                assert!(
                    open.last().is_none_or(|(_, until)| end <= *until),
                    "{event} overlaps {open:?}"
                );
                open.push((begin, end));
            }
        }
        for counts in counters.values() {
            assert!(
                counts.windows(2).all(|pair| pair[0].0 < pair[1].0),
                "{counts:?}"
            );
        }
        (slices, counters)
    }

    /// Memory of the log's executor, with a gap, and of one without tasks.
    fn histories() -> Memory {
        let moment = |at: i64, faults: Option<u64>, resident: Option<u64>| {
            let pages = resident.map(|present_bytes| {
                Box::new(PagePoint {
                    present_bytes,
                    ..PagePoint::default()
                })
            });
            let rdd = |pages| RddPoint {
                storage_heap_bytes: 3,
                execution_off_heap_bytes: 2,
                pages,
                ..RddPoint::default()
            };
            Moment {
                at,
                until: at + 200,
                page_faults: faults,
                rdds: vec![rdd(pages), rdd(None)],
                ..Moment::default()
            }
        };
        let history = |executor: &str, moments: Vec<Moment>| History {
            executor: executor.to_owned(),
            moments,
            ..History::default()
        };
        let of_1 = vec![
            moment(100, Some(1000), None),
            moment(300, Some(1100), Some(5)),
            moment(900, Some(9000), None),
        ];
        Memory {
            histories: vec![
                history("1", of_1),
                history("7", vec![moment(0, None, None)]),
            ],
            ..Memory::default()
        }
    }

    #[test]
    fn a_trace_has_nested_slices_and_counts_running_tasks() {
        let folder = tempfile::tempdir().expect("makes a folder");
        let mut log = r#"{"Event":"SparkListenerApplicationStart","App Name":"n","App ID":"app-1","Timestamp":1,"User":"u"}
{"Event":"SparkListenerJobStart","Job ID":0,"Submission Time":900,"Stage Infos":[{"Stage ID":0,"Stage Name":"s"}],"Stage IDs":[0],"Properties":{}}
{"Event":"SparkListenerStageSubmitted","Stage Info":{"Stage ID":0,"Stage Name":"\"s\"</script>"}}"#.to_owned();
        for (id, launch, finish) in [
            (0, 1000, 1500),
            (1, 1000, 2000),
            (2, 1500, 2500),
            (3, 2600, 2600),
        ] {
            let info = format!(
                r#"{{"Task ID":{id},"Index":{id},"Launch Time":{launch},"Executor ID":"1","Host":"h","Locality":"ANY","Finish Time":{finish}}}"#
            );
            log += &format!(
                "\n{{\"Event\":\"SparkListenerTaskStart\",\"Stage ID\":0,\"Stage Attempt ID\":0,\"Task Info\":{info}}}\n{{\"Event\":\"SparkListenerTaskEnd\",\"Stage ID\":0,\"Stage Attempt ID\":0,\"Task End Reason\":{{\"Reason\":\"Success\"}},\"Task Info\":{info},\"Task Metrics\":{{\"Executor Run Time\":400,\"Executor CPU Time\":123456789,\"JVM GC Time\":9}}}}"
            );
        }
        let path = folder.path().join("log");
        fs::write(&path, log).expect("writes");
        let store = folder.path().join("store");
        import(&store, &path, Bounds::default(), &Admission::default()).expect("imports");
        let app = open(&store, "app-1", None).expect("opens");
        let mut text = Vec::new();
        // Functions by another clock, over each other, and outside of their task.
        let span = |task: i64, tid: u32, begin: u64, length: u64| crate::functions::Span {
            task,
            begin_unix_us: Some(1_000_000 + (begin / 1000) as i64),
            row: smtt_model::rows::FunctionRow {
                thread: match tid {
                    0 => "collections",
                    7 => "task",
                    70.. => "python worker",
                    _ => "helper",
                }
                .to_owned(),
                tid,
                activity: "sort".to_owned(),
                function: Some("Sorter.\"sort\"".to_owned()),
                begin_ns: begin,
                duration_ns: length,
                ..smtt_model::rows::FunctionRow::default()
            },
        };
        let of_1 = [
            span(1, 7, 100_000_000, 300_000_000),
            span(1, 7, 150_000_000, 50_000_000),
            span(1, 7, 350_000_000, 200_000_000),
            span(1, 9, 0, 10_000_000),
            span(1, 70, 20_000_000, 5_000_000),
            span(1, 71, 0, 1_000_000),
            span(1, 0, 30_000_000, 2_000_000),
        ];
        let of_0 = [span(0, 7, u64::MAX, u64::MAX), span(0, 7, 5, 1 << 62)];
        let fetch = |begin: u64, length: u64| crate::fetches::Fetch {
            task: 1,
            begin_unix_us: Some(1_000_000 + (begin / 1000) as i64),
            row: smtt_model::rows::FetchRow {
                address: Some("node-2:7337".to_owned()),
                begin_ns: begin,
                duration_ns: length,
                bytes: 7,
                ..smtt_model::rows::FetchRow::default()
            },
        };
        let fetches = [
            fetch(100_000_000, 100_000_000),
            fetch(150_000_000, u64::MAX),
            fetch(200_000_000, 1_000),
        ];
        let workers = OfWorkers {
            spans: [(0, of_0.to_vec()), (1, of_1.to_vec()), (99, of_0.to_vec())].into(),
            fetches: [(1, fetches.to_vec())].into(),
        };
        let model = Model::read(&app).expect("reads");
        let memory = histories();
        assert_eq!(
            write((&app, &model), &workers, &memory, &mut text).expect("writes"),
            4
        );
        let (slices, counters) = read(std::str::from_utf8(&text).expect("is UTF-8"));
        let counter = |pid: u64, name: &str, value: &str| -> Vec<(i64, i64)> {
            let all = counters.get(&(pid, name.to_owned())).into_iter().flatten();
            all.map(|(time, values)| (*time, values[value].as_i64().expect("has the value")))
                .collect()
        };
        assert_eq!(
            counter(2, "running tasks", "tasks"),
            [
                (100_000, 2),
                (600_000, 2),
                (1_100_000, 1),
                (1_600_000, 0),
                (1_700_000, 0)
            ]
        );
        let spark = "memory of Spark";
        assert_eq!(
            counter(2, spark, "storage heap"),
            [(100_000, 6), (300_000, 6), (900_000, 6)]
        );
        assert_eq!(
            counter(2, spark, "execution off heap"),
            [(100_000, 4), (300_000, 4), (900_000, 4)]
        );
        let pages = "pages of that memory";
        assert_eq!(counter(2, pages, "resident"), [(300_000, 5)]);
        // 100 faults in 200 ms; over the gap there is no rate.
        let faults = "page faults per second";
        assert_eq!(counter(2, faults, "faults"), [(100_000, 500)]);
        assert_eq!(
            counter(2, "measured", "points"),
            [(100_000, 1), (500_000, 0), (900_000, 1), (1_100_000, 0)]
        );
        // An executor without tasks has a process of its own, and no page faults where they are not counted.
        assert_eq!(counter(3, spark, "storage heap"), [(0, 6)]);
        assert_eq!(counter(3, faults, "faults"), []);
        let of = |track| {
            let all = slices[&track].iter();
            all.filter(|event| event["cat"] == "task")
                .map(|event| event["args"]["task"].as_i64())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (of((2, 1)), of((2, 2))),
            (vec![Some(0), Some(2), Some(3)], vec![Some(1)])
        );
        let parts = slices[&(2, 2)]
            .iter()
            .filter(|event| event["cat"] == "part");
        let parts: Vec<_> = parts
            .map(|event| (event["name"].as_str(), event["dur"].as_i64()))
            .collect();
        let expected = [
            ("scheduler delay", 600_000),
            ("garbage collection", 9_000),
            ("running on a CPU", 123_456),
            ("other run time", 267_544),
        ];
        assert_eq!(
            parts,
            expected.map(|(name, length)| (Some(name), Some(length)))
        );
        let functions = |tid| -> Vec<(i64, i64)> {
            let all = slices[&(2, tid)].iter();
            all.map(|it| {
                (
                    it["ts"].as_i64().expect("begin"),
                    it["dur"].as_i64().expect("length"),
                )
            })
            .collect()
        };
        // The second core's task runs from 0.1 s on; what outlives the span around it ends with that.
        let expected = [(200_000, 300_000), (250_000, 50_000), (450_000, 50_000)];
        assert_eq!(functions(2_000_009), expected);
        assert_eq!(functions(2_000_010), [(100_000, 10_000)]);
        // A Python worker is no helper thread.
        assert_eq!(functions(4_000_009), [(120_000, 5_000)]);
        assert_eq!(functions(4_000_010), [(100_000, 1_000)]);
        // Neither are pauses of the collector.
        assert_eq!(functions(8_000_009), [(130_000, 2_000)]);
        // Requests at the same time have tracks of their own.
        assert_eq!(functions(6_000_017), [(200_000, 100_000), (300_000, 1)]);
        assert_eq!(functions(6_000_018), [(250_000, 850_000)]);
        let within = |(begin, length)| begin >= 100_000 && begin + length <= 600_000;
        assert!(functions(2_000_001).into_iter().all(within));
        assert!(open(&store, "../app-1", None).is_err());
        assert!(open(&store, "app-2", None).is_err());
    }
}
