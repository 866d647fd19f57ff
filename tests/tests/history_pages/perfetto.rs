//! The trace that `smtt-history export --perfetto` writes, read by Perfetto itself: its web interface in the browser, with its
//! trace processor. What it finds is compared with the SQLite database of the same export, read by Python.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, from_value};
use smtt_tests::lab::programs;
use xtask::event_log::ID;
use xtask::paths::Paths;
use xtask::process::{Running, free_port, output, wait_for};
use xtask::setup::perfetto::{pages, perfetto, python};

use super::{LIMIT, Site};

/// Name of the trace beside Perfetto's pages.
const TRACE: &str = "trace.json";
const MS: i64 = 1_000_000;

/// Exports both forms and opens the trace.
pub(super) fn trace(paths: &Paths, site: &Site, folder: &Path) -> Result<()> {
    perfetto(paths)?;
    let (served, database) = (folder.join("perfetto"), folder.join("export.sqlite"));
    fs::create_dir(&served)?;
    for page in fs::read_dir(pages(paths)?)? {
        let page = page?;
        symlink(page.path(), served.join(page.file_name()))?;
    }
    let mut export = Command::new(programs()?.join("smtt-history"));
    export.args(["export", ID, "--store"]).arg(&site.store);
    export.arg("--perfetto").arg(served.join(TRACE));
    output(export.arg("--sqlite").arg(&database))?;
    let port = free_port()?;
    let mut server = Command::new(python(paths));
    server.args(["-m", "http.server", "--bind", "127.0.0.1", "--directory"]);
    server.arg(&served).arg(port.to_string());
    let log = folder.join("perfetto.log");
    let _server = Running::start("Python's web server", &mut server, &log)?;
    wait_for("Perfetto's pages", LIMIT, || {
        Ok(xtask::http::get(port, "/").ok())
    })?;
    let own = format!("http://127.0.0.1:{port}");
    site.browser.open(&format!("{own}/#!/?url={own}/{TRACE}"))?;
    site.browser.until("return !!(window.app && app.trace)")?;
    let sql = |query: &str| -> Result<Value> {
        let script = paths.root.join("tests/fixture/python/rows.py");
        let mut rows = Command::new(python(paths));
        let text = output(rows.arg(script).arg(&database).arg(query))?;
        Ok(serde_json::from_str(&text)?)
    };
    let both = Both { site, sql: &sql };
    both.nothing_is_refused()?;
    both.slices()?;
    both.functions()?;
    both.tracks()?;
    both.counters()?;
    site.browser.picture(&site.pictures.join("perfetto.png"))?;
    // Perfetto's pages ask for addresses that this machine does not reach.
    site.browser.complaints().map(drop)
}

/// Both forms of the export.
struct Both<'a> {
    site: &'a Site,
    sql: &'a dyn Fn(&str) -> Result<Value>,
}

impl Both<'_> {
    /// Rows of a query to Perfetto's trace processor. One text, because the browser's driver copies values one by one.
    fn perfetto(&self, query: &str) -> Result<Value> {
        let query = serde_json::to_string(query)?;
        let script = format!(
            "return (async () => {{
                const rows = [], found = await app.trace.engine.query({query}), names = found.columns();
                for (const row = found.iter({{}}); row.valid(); row.next())
                    rows.push(names.map((name) => {{ const it = row.get(name); return typeof it === 'bigint' ? Number(it) : it; }}));
                return JSON.stringify(rows); }})()"
        );
        let text: String = from_value(self.site.browser.run(&script)?)?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Begin of the trace in milliseconds since 1970: that of the first stage or task.
    fn start(&self) -> Result<i64> {
        let [[first]]: [[i64; 1]; 1] =
            from_value(self.sqlite("select min(coalesce(submission_time, 9e15)) from jobs")?)?;
        let [[launch]]: [[i64; 1]; 1] =
            from_value(self.sqlite("select min(launch_time) from tasks")?)?;
        Ok(first.min(launch))
    }

    /// Rows of a query to the database.
    fn sqlite(&self, query: &str) -> Result<Value> {
        (self.sql)(query)
    }

    /// One number of each: of Perfetto and of the database.
    fn same(&self, what: &str, of_perfetto: &str, of_sqlite: &str) -> Result<i64> {
        let one: [[i64; 1]; 1] = from_value(self.perfetto(of_perfetto)?)?;
        let two: [[i64; 1]; 1] = from_value(self.sqlite(of_sqlite)?)?;
        println!("{what}: {one:?} by Perfetto, {two:?} in the database");
        ensure!(
            one == two,
            "{what}: {one:?} by Perfetto, {two:?} in the database"
        );
        Ok(one[0][0])
    }

    /// The reader took every event: none is damaged, none overlaps another one of its track.
    fn nothing_is_refused(&self) -> Result<()> {
        let wrong: Vec<(String, i64)> = from_value(
            self.perfetto("select name, value from stats where severity != 'info' and value > 0")?,
        )?;
        ensure!(wrong.is_empty(), "{wrong:?}");
        // It would name what is wrong.
        let known: [[i64; 1]; 1] = from_value(self.perfetto(
            "select count(*) from stats where name in ('slice_drop_overlapping_complete_event', 'json_tokenizer_failure')",
        )?)?;
        ensure!(known == [[2]], "{known:?}");
        Ok(())
    }

    /// Tasks with their begins and lengths, their parts within them, and jobs and stages.
    fn slices(&self) -> Result<()> {
        let of_trace: Vec<(i64, i64, i64)> = from_value(self.perfetto(
            "select extract_arg(arg_set_id, 'args.task') as task, ts, dur from slice where category = 'task' order by task",
        )?)?;
        let start = self.start()?;
        let of_database: Vec<(i64, i64, i64)> = from_value(self.sqlite(&format!(
            "select task_id, (launch_time - {start}) * {MS}, duration_ms * {MS} from tasks order by task_id"
        ))?)?;
        ensure!(of_trace.len() == of_database.len() && !of_trace.is_empty());
        let differs = of_trace
            .iter()
            .zip(&of_database)
            .find(|(one, two)| one != two);
        ensure!(differs.is_none(), "{differs:?}");
        println!("{} tasks have the same begins and lengths", of_trace.len());
        let depth = |category: &str, depth: u8| {
            let of = format!("select count(*) from slice where category = '{category}'");
            let there: [[i64; 1]; 1] =
                from_value(self.perfetto(&format!("{of} and depth = {depth}"))?)?;
            let all: [[i64; 1]; 1] = from_value(self.perfetto(&of)?)?;
            ensure!(
                there == all && all[0][0] > 0,
                "{category}: {there:?} of {all:?}"
            );
            Ok(all[0][0])
        };
        depth("task", 0)?;
        let parts = depth("part", 1)?;
        ensure!(parts > of_trace.len() as i64, "{parts}");
        let inside: [[i64; 1]; 1] = from_value(self.perfetto(
            "select count(*) from slice part join slice task on part.parent_id = task.id where part.category = 'part'
                and task.category = 'task' and part.ts >= task.ts and part.ts + part.dur <= task.ts + task.dur",
        )?)?;
        ensure!(inside == [[parts]], "{inside:?} of {parts} parts");
        self.same(
            "jobs",
            "select count(*) from slice where category = 'job'",
            "select count(*) from jobs",
        )?;
        self.same(
            "stages",
            "select count(*) from slice where category = 'stage'",
            "select count(*) from (select distinct stage_id, stage_attempt from tasks)",
        )?;
        Ok(())
    }

    /// Functions, pauses and requests of the task that has some.
    fn functions(&self) -> Result<()> {
        for (category, table) in [("function", "functions"), ("fetch", "fetches")] {
            let of = |figure: &str, from: &str| format!("select {figure} from {from}");
            let slices = format!("slice where category = '{category}'");
            let rows = self.same(table, &of("count(*)", &slices), &of("count(*)", table))?;
            ensure!(rows >= 3, "{rows} {table}");
            // Begins and lengths within the task, which is shorter than what the worker tells of it.
            let ids = format!("select distinct task_id from {table}");
            let [[task]]: [[i64; 1]; 1] = from_value(self.sqlite(&ids)?)?;
            let length = format!("select duration_ms * {MS} from tasks where task_id = {task}");
            let [[length]]: [[i64; 1]; 1] = from_value(self.sqlite(&length)?)?;
            let begin = format!(
                "select ts from slice where category = 'task' and extract_arg(arg_set_id, 'args.task') = {task}"
            );
            let mut drawn: Vec<(i64, i64)> =
                from_value(self.perfetto(&of(&format!("ts - ({begin}), dur"), &slices))?)?;
            let known: Vec<(i64, i64)> =
                from_value(self.sqlite(&of("begin_ns, duration_ns", table))?)?;
            let clip = |(begin, duration): &(i64, i64)| {
                let [begin, end] = [*begin, begin + duration].map(|time| time.min(length));
                (begin, end - begin)
            };
            let mut known: Vec<(i64, i64)> = known.iter().map(clip).collect();
            drawn.sort_unstable();
            known.sort_unstable();
            println!("{table}: {drawn:?} by Perfetto, {known:?} in the database");
            // A trace has microseconds.
            let is_near = |one: i64, two: i64| one.abs_diff(two) <= 1000;
            let is_same = |(one, two): (&(i64, i64), &(i64, i64))| {
                is_near(one.0, two.0) && is_near(one.1, two.1)
            };
            ensure!(
                drawn.iter().zip(&known).all(is_same),
                "{drawn:?} by Perfetto, {known:?} in the database"
            );
        }
        let tracks: Vec<(String, i64)> = from_value(self.perfetto(
            "select thread.name, sum(dur) from slice join thread_track on slice.track_id = thread_track.id join thread using (utid)
                where category in ('function', 'fetch') group by utid order by thread.name",
        )?)?;
        println!("{tracks:?}");
        let has = |word: &str| tracks.iter().any(|(name, _)| name.contains(word));
        ensure!(
            has("collections") && has("helper 1") && has("functions"),
            "{tracks:?}"
        );
        Ok(())
    }

    /// Every slice is on a thread with a name, of a process with a name: one for each executor, and one for jobs and stages.
    fn tracks(&self) -> Result<()> {
        let unnamed: [[i64; 1]; 1] = from_value(self.perfetto(
            "select count(*) from slice left join thread_track on slice.track_id = thread_track.id left join thread using (utid)
                left join process using (upid) where thread.name is null or process.name is null",
        )?)?;
        ensure!(
            unnamed == [[0]],
            "{unnamed:?} slices without a name of their track"
        );
        self.same(
            "processes with tasks",
            "select count(distinct upid) from slice join thread_track on slice.track_id = thread_track.id join thread using (utid)
                where category = 'task'",
            "select count(distinct executor_id) from tasks",
        )?;
        Ok(())
    }

    /// Counters are of processes and go forward in time; that of running tasks has what the database's tasks give.
    fn counters(&self) -> Result<()> {
        let rows: Vec<(String, String, i64, f64)> = from_value(self.perfetto(
            "select process.name as executor, t.name as counter, ts, value from counter join process_counter_track t
                on counter.track_id = t.id join process using (upid) order by counter.id",
        )?)?;
        let [[all]]: [[i64; 1]; 1] = from_value(self.perfetto("select count(*) from counter")?)?;
        ensure!(
            rows.len() as i64 == all && all > 0,
            "{} of {all}",
            rows.len()
        );
        let mut tracks: BTreeMap<(&str, &str), Vec<(i64, f64)>> = BTreeMap::new();
        for (executor, counter, time, value) in &rows {
            let track = tracks.entry((executor, counter)).or_default();
            ensure!(
                track.last().is_none_or(|last| last.0 < *time),
                "{executor} {counter}"
            );
            track.push((*time, *value));
        }
        let names: std::collections::BTreeSet<&str> =
            tracks.keys().map(|(_, name)| *name).collect();
        println!("{names:?}");
        ensure!(names.contains("memory of Spark storage heap"), "{names:?}");
        let tasks: Vec<(String, i64, i64)> =
            from_value(self.sqlite("select executor_id, launch_time, duration_ms from tasks")?)?;
        let start = self.start()?;
        let mut changes: BTreeMap<&str, BTreeMap<i64, i64>> = BTreeMap::new();
        for (executor, launch, duration) in &tasks {
            let own = changes.entry(executor).or_default();
            *own.entry(launch - start).or_default() += 1;
            *own.entry(launch - start + duration).or_default() -= 1;
        }
        for (executor, changes) in changes {
            let process = format!("executor {executor} on ");
            let own = |(track, _): &(&(&str, &str), &Vec<(i64, f64)>)| {
                track.0.starts_with(&process) && track.1.starts_with("running tasks")
            };
            let counted = tracks.iter().find(own).context(process.clone())?.1;
            let (mut sum, mut expected) = (0, Vec::new());
            for (time, change) in changes {
                sum += change;
                expected.push((time, sum));
            }
            let expected = expected.into_iter().map(|(time, sum)| (time * MS, sum));
            let found = counted.iter().map(|(time, value)| (*time, *value as i64));
            ensure!(
                found.eq(expected),
                "{process}: the counts of running tasks differ"
            );
        }
        Ok(())
    }
}
